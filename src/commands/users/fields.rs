//! The fields of records, whatever exported them: names with other cases, dots and separators, objects as JSON in texts or as
//! Athena prints them, rows of query results as lists of fields, and addresses.

use std::{borrow::Cow, net::IpAddr};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value};

use super::times;

pub(super) type Object = Map<String, Value>;

/// The fields with the time of a record or of its wrapper; the first one counts.
const TIMES: [&str; 13] = [
    "querytimestamp",
    "eventtime",
    "timestamp",
    "time",
    "ts",
    "date",
    "datetime",
    "start",
    "starttime",
    "timeiso8601",
    "observedtimestamp",
    "realtimetimestamp",
    "ingestiontime",
];
/// Where wrappers have the line of a log.
const LINES: [&str; 22] = [
    "cloudtrailevent",
    "eventjson",
    "message",
    "log",
    "line",
    "msg",
    "raw",
    "body",
    "content",
    "text",
    "logmessage",
    "original",
    "eventoriginal",
    "rawlog",
    "rawmessage",
    "logline",
    "entry",
    "event",
    "shortmessage",
    "fullmessage",
    "textpayload",
    "payload",
];
/// Values that mean that there is none.
const NONE: [&str; 3] = ["", "-", "null"];

/// Whether two names of a field are the same: `query_name`, `queryName` and `@query-name`. `name` is in lower case, and
/// has only letters and digits.
fn is_called(key: &str, name: &str) -> bool {
    key.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).eq(name.chars())
}

/// A field by its name in lower case without separators.
pub(super) fn get<'a>(object: &'a Object, name: &str) -> Option<&'a Value> {
    object.iter().find(|(key, _)| is_called(key, name)).map(|(_, value)| value)
}

/// The text of a field, if it has one.
pub(super) fn text(object: &Object, name: &str) -> Option<String> {
    let text = match get(object, name)? {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        _ => return None,
    };
    (!NONE.contains(&&*text)).then_some(text)
}

/// A field that is an object, also as JSON in a text or as Athena prints it.
pub(super) fn nested(object: &Object, name: &str) -> Option<Object> {
    match get(object, name)? {
        Value::Object(nested) => Some(nested.clone()),
        Value::String(text) => match parsed(text)? {
            Value::Object(nested) => Some(nested),
            _ => None,
        },
        _ => None,
    }
}

/// A text that is an object or a list: JSON, or `{instance=i-0, endpoint=null}` of Athena and CloudTrail Lake.
pub(super) fn parsed(text: &str) -> Option<Value> {
    let text = text.trim();
    if !text.starts_with(['{', '[']) {
        return None;
    }
    serde_json::from_str(text).ok().or_else(|| structure(text, 0)).filter(|value| value.is_object() || value.is_array())
}

/// How deep structures of Athena are read, and names with dots. Those of AWS have four levels.
const DEEPEST: usize = 16;
/// How many brackets of a line may begin an object.
const MOST: usize = 16;

/// Objects and lists of JSON in a text, whatever is before, between and after them, and where they begin.
pub(super) fn in_text(text: &str) -> Vec<(usize, Value)> {
    let mut found = Vec::new();
    let mut end = 0;
    for (at, _) in text.match_indices(['{', '[']).take(MOST) {
        let rest = text.get(at..).unwrap_or_default();
        let begins = rest.get(1..).unwrap_or_default().trim_start().starts_with(['"', '{', '[']);
        if at < end || !begins {
            continue;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        if let Some(Ok(value)) = values.next() {
            end = at + values.byte_offset();
            found.push((at, value));
        }
    }
    found
}

fn structure(text: &str, depth: usize) -> Option<Value> {
    let text = text.trim();
    let inner = |open: char, close: char| text.strip_prefix(open).and_then(|text| text.strip_suffix(close));
    if depth > DEEPEST {
        return None;
    }
    if let Some(list) = inner('[', ']') {
        return parts(list)
            .into_iter()
            .map(|part| structure(part, depth + 1))
            .collect::<Option<Vec<_>>>()
            .map(Value::Array);
    }
    let Some(fields) = inner('{', '}') else { return Some(Value::String(text.to_owned())) };
    let mut object = Object::new();
    let mut last = None;
    for part in parts(fields) {
        match (part.split_once('='), &last) {
            (Some((key, value)), _) if !key.trim().contains(char::is_whitespace) => {
                let key = key.trim().to_owned();
                object.insert(key.clone(), structure(value, depth + 1)?);
                last = Some(key);
            }
            // A comma in a value.
            (_, Some(key)) => match object.get_mut(key) {
                Some(Value::String(value)) => value.extend([",", part]),
                _ => return None,
            },
            _ if part.trim().is_empty() => {}
            _ => return None,
        }
    }
    Some(Value::Object(object))
}

/// Cuts a text at the commas that are not in brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (0_usize, 0, Vec::new());
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                found.extend(text.get(from..at));
                from = at + 1;
            }
            _ => {}
        }
    }
    found.extend(text.get(from..));
    found
}

/// The time of a record, or of what it is wrapped in.
pub(super) fn time(object: &Object) -> Option<Timestamp> {
    TIMES.iter().find_map(|name| get(object, name).and_then(times::of_value))
}

/// The same, or that of an object in it.
pub(super) fn time_within(object: &Object) -> Option<Timestamp> {
    let nested = || object.values().filter_map(Value::as_object).find_map(time_within);
    time(object).or_else(nested)
}

/// Whether wrappers have the line of a log in a field of this name.
pub(super) fn is_line(key: &str) -> bool {
    LINES.iter().any(|name| is_called(key, name))
}

/// With objects in place of dots in names, as Logs Insights has them: `srcids.instance`.
pub(super) fn undotted(object: &Object) -> Cow<'_, Object> {
    if !object.keys().any(|key| key.contains('.')) {
        return Cow::Borrowed(object);
    }
    let mut whole = Object::new();
    for (key, value) in object {
        if key.matches('.').count() > DEEPEST || !put(&mut whole, key, value) {
            whole.insert(key.clone(), value.clone());
        }
    }
    Cow::Owned(whole)
}

fn put(into: &mut Object, key: &str, value: &Value) -> bool {
    let Some((first, rest)) = key.split_once('.').filter(|(first, rest)| !first.is_empty() && !rest.is_empty()) else {
        return into.insert(key.to_owned(), value.clone()).is_none();
    };
    match into.entry(first).or_insert_with(|| Value::Object(Object::new())) {
        Value::Object(nested) => put(nested, rest, value),
        _ => false,
    }
}

/// A row of a query's result as an object: Logs Insights lists `{"field": ..., "value": ...}`, CloudTrail Lake objects with
/// one field each.
pub(super) fn row(items: &[Value]) -> Option<Object> {
    let mut row = Object::new();
    for item in items {
        let Value::Object(item) = item else { return None };
        match (item.get("field"), item.get("value")) {
            (Some(Value::String(field)), value) => row.insert(field.clone(), value.cloned().unwrap_or_default()),
            _ if item.len() == 1 && items.len() > 1 => {
                let (field, value) = item.iter().next().filter(|(_, value)| !value.is_object() && !value.is_array())?;
                row.insert(field.clone(), value.clone())
            }
            _ => return None,
        };
    }
    (row.len() == items.len() && !row.is_empty()).then_some(row)
}

/// The cells of a row of `aws athena get-query-results`.
pub(super) fn cells(object: &Object) -> Option<Vec<String>> {
    let Some(Value::Array(data)) = object.get("Data") else { return None };
    let cell = |cell: &Value| cell.get("VarCharValue").and_then(Value::as_str).unwrap_or_default().to_owned();
    (object.len() == 1 && data.iter().all(Value::is_object)).then(|| data.iter().map(cell).collect())
}

/// The words of a text, without the marks that no name and no address has.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || "\"'(),;{}<>|=\\`".contains(c)).filter(|word| !word.is_empty())
}

/// An address, with a port or without one, as logs write it: `192.0.2.7:53`, `[2001:db8::7]:53`, `192.0.2.7#53`.
pub(super) fn address(word: &str) -> Option<IpAddr> {
    let word = word.trim_matches(['/', ',', ';', '.', '(', ')', '"', '\'']);
    let parse = |text: &str| {
        let text = text.trim_start_matches('[').trim_end_matches(']');
        text.split('%').next().unwrap_or(text).parse::<IpAddr>().ok()
    };
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let with_port = || word.rsplit_once([':', '#']).filter(|(_, port)| port.is_empty() || is_port(port));
    parse(word).or_else(|| with_port().and_then(|(address, _)| parse(address))).map(|address| address.to_canonical())
}
