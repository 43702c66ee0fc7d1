//! Finds the records of a log in its lines, in rows of tables, and in JSON. A JSON object is a record, or it wraps records.

use std::borrow::Cow;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    cloudtrail, coredns,
    csv::Table,
    custom,
    fields::{self, Object, get},
    flow,
    frames::Frame,
    record::{Kind, Meaning, Read},
    resolver,
    subject::Subject,
    times,
};

const UNKNOWN: &str = "it is of no log that is known";
const UNKNOWN_JSON: &str = "it is JSON, but of no log that is known";
/// Why a record that mentions the name, and shows no use of it, is reported.
const MENTIONED: &str = "it has the name, and not as a query or call that says who uses it";
const TASK: &str = "it has the address of a task, and does not say who connects to it";
/// How many objects around a record are opened.
const DEEPEST: usize = 16;

/// The records of one object, which may wrap several; an error for each that cannot be read.
pub(super) type Found = Vec<Result<Read, String>>;

/// Reads the records of one file.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    pub(super) subject: &'a Subject,
    /// The fields of flow logs, if a line or a flag gave them.
    pub(super) columns: Option<flow::Columns>,
    /// The columns of a table, since a line that names them.
    table: Option<Table>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(subject: &'a Subject, columns: Option<flow::Columns>) -> Self {
        Self { subject, columns, table: None }
    }

    /// Whether the next lines are rows of a table.
    pub(super) fn is_in_table(&self) -> bool {
        self.table.is_some()
    }

    /// Reads a record; nothing for an empty line. A record that has the name, or the address of a task, is reported even if
    /// the reader of its log finds no use in the fields that it knows.
    pub(super) fn read(&mut self, frame: Frame, bytes: &[u8]) -> Found {
        let mut found = match frame {
            Frame::Broken(why) => vec![Err(why.to_owned())],
            Frame::Json => match serde_json::from_slice(bytes) {
                Ok(value) => self.value(&value, None, true, 0),
                Err(error) => vec![Err(invalid(&error))],
            },
            Frame::Line => match std::str::from_utf8(bytes) {
                Ok(line) => self.line(line.trim(), None, 0),
                Err(_) => vec![Err("it is not text in UTF-8".to_owned())],
            },
        };
        let is_flow = |read: &Read| read.kind == Kind::Flow && read.said != Meaning::Nothing;
        let is_about_others = |found: &Result<Read, String>| {
            found.as_ref().is_ok_and(|read| matches!(read.said, Meaning::Other | Meaning::Nothing) && !is_flow(read))
        };
        if !found.is_empty() && found.iter().all(is_about_others) {
            let text = String::from_utf8_lossy(bytes);
            let message = |found: &Result<Read, String>| found.as_ref().is_ok_and(|read| read.said == Meaning::Nothing);
            let why = if self.subject.in_text(&text).is_some() {
                Some(MENTIONED)
            } else {
                let task = found.iter().all(message).then(|| self.subject.task_in_text(&text)).flatten();
                task.map(|_| TASK)
            };
            if let (Some(why), Some(Ok(first))) = (why, found.first_mut()) {
                first.said = Meaning::Mentioned(why);
            }
        }
        found
    }

    /// Reads JSON: a record, or a wrapper of records. `at` is the time of its own wrapper. With `any`, queries in unknown
    /// formats count, too.
    fn value(&mut self, value: &Value, at: Option<Timestamp>, any: bool, depth: usize) -> Found {
        match value {
            _ if depth > DEEPEST => vec![Err(UNKNOWN_JSON.to_owned())],
            Value::Object(object) => self.object(object, at, any, depth + 1),
            Value::Array(items) => self.list(items, at, any, depth + 1),
            Value::String(text) => self.line(text.trim(), at, depth + 1),
            _ => vec![Err(UNKNOWN_JSON.to_owned())],
        }
    }

    fn list(&mut self, items: &[Value], at: Option<Timestamp>, any: bool, depth: usize) -> Found {
        if let Some(row) = fields::row(items) {
            return self.object(&row, at, any, depth);
        }
        // Loki has times and lines as pairs.
        if let [time @ Value::String(_), line @ Value::String(_), ..] = items
            && let Some(time) = times::of_value(time)
        {
            return self.value(line, Some(time), any, depth);
        }
        items.iter().flat_map(|item| self.value(item, at, any, depth)).collect()
    }

    fn object(&mut self, object: &Object, at: Option<Timestamp>, any: bool, depth: usize) -> Found {
        let object = fields::undotted(object);
        let at = fields::time(&object).or(at);
        if let Some(cells) = fields::cells(&object) {
            return self.cells(&cells, at, depth);
        }
        let (found, unread) = self.whole(&object, at, depth);
        if !found.is_empty() {
            return found;
        }
        if any {
            let at = at.or_else(|| fields::time_within(&object));
            // A list may hold the answers to a query, or records. Try a query without its lists first, then the records in
            // the lists, then a query with its lists.
            let own =
                |reader: &Self, lists| custom::object(&object, lists, at, reader.subject).map(|read| vec![Ok(read)]);
            let inner =
                |reader: &mut Self| Some(reader.beside(&object, at, true, depth)).filter(|found| !found.is_empty());
            if let Some(found) = own(self, false).or_else(|| inner(self)).or_else(|| own(self, true)) {
                return found;
            }
        }
        if !unread.is_empty() {
            return unread;
        }
        let why = self.unknown(UNKNOWN_JSON, &serde_json::to_string(&*object).unwrap_or_default());
        let is_blank = |(key, value): (&String, &Value)| fields::is_line(key) && value.as_str().is_some_and(is_blank);
        if why == UNKNOWN_JSON && object.iter().any(is_blank) { Vec::new() } else { vec![Err(why)] }
    }

    /// The records of an object of a known form: the object itself, the log line in it, or the records in its fields. The
    /// second list has the errors, if there are no records.
    fn whole(&mut self, object: &Object, at: Option<Timestamp>, depth: usize) -> (Found, Found) {
        let has_whole = ["cloudtrailevent", "eventjson"].iter().any(|field| get(object, field).is_some());
        if !has_whole && let Some(read) = self.of_aws(object, at) {
            return (vec![read], Vec::new());
        }
        let mut unread = Vec::new();
        for (_, value) in object.iter().filter(|(key, value)| fields::is_line(key) && !value.is_null()) {
            let found = self.value(value, at, true, depth);
            if found.iter().any(Result::is_ok) {
                return (found, unread);
            }
            unread.extend(found);
        }
        (self.beside(object, at, false, depth), unread)
    }

    /// The records in the fields of an object that usually have none, such as labels. A field without a record is no error.
    fn beside(&mut self, object: &Object, at: Option<Timestamp>, any: bool, depth: usize) -> Found {
        let mut all = Vec::new();
        for (_, value) in object.iter().filter(|(key, _)| !fields::is_line(key)) {
            let parsed = value.as_str().and_then(fields::parsed);
            all.extend(match parsed.as_ref().unwrap_or(value) {
                _ if depth >= DEEPEST => Vec::new(),
                Value::Object(object) => {
                    let object = fields::undotted(object);
                    let at = fields::time(&object).or(at);
                    match fields::cells(&object) {
                        Some(cells) => self.cells(&cells, at, depth + 1),
                        None if any => self.beside(&object, at, true, depth + 1),
                        None => self.whole(&object, at, depth + 1).0,
                    }
                }
                Value::Array(items) => {
                    let found = self.list(items, at, any, depth + 1);
                    if found.iter().any(Result::is_ok) { found } else { Vec::new() }
                }
                _ => Vec::new(),
            });
        }
        all
    }

    /// A record that AWS writes; `None` if it is none.
    fn of_aws(&self, object: &Object, at: Option<Timestamp>) -> Option<Result<Read, String>> {
        resolver::read(object, at, self.subject)
            .or_else(|| cloudtrail::read(object, at, self.subject))
            .map(Ok)
            .or_else(|| flow::of_object(object, at, self.subject))
    }

    fn cells(&mut self, cells: &[String], at: Option<Timestamp>, depth: usize) -> Found {
        if cells.iter().all(|cell| self.may_be_header(cell))
            && let Some(table) = Table::of(',', cells.to_vec())
        {
            self.table = Some(table);
            return Vec::new();
        }
        match self.table.as_ref().and_then(|table| table.object(cells)) {
            Some(row) => self.object(&row, at, true, depth),
            None => vec![Err(UNKNOWN_JSON.to_owned())],
        }
    }

    fn line(&mut self, line: &str, at: Option<Timestamp>, depth: usize) -> Found {
        if line.is_empty() {
            return Vec::new();
        }
        if depth == 0
            && let Some(row) = self.table.as_ref().and_then(|table| table.row(line))
        {
            let found = self.object(&row, at, true, depth);
            if found.iter().any(Result::is_ok) {
                return found;
            }
        }
        if flow::is_likely(line, self.columns.as_ref())
            && let Some(read) = flow::read(line, self.columns.as_ref(), at, self.subject)
        {
            return vec![read];
        }
        // What prints the events of CloudWatch Logs, and collectors, put a time and other words before an object, and an
        // object may be the text of a field of another one.
        for (begin, value) in fields::in_text(line) {
            let at = times::in_words(line.get(..begin).unwrap_or_default()).or(at);
            let found = self.value(&value, at, true, depth + 1);
            if found.iter().any(Result::is_ok) {
                return found;
            }
        }
        let header = self.may_be_header(line);
        if header
            && depth == 0
            && let Some(table) = Table::header(line)
        {
            self.table = Some(table);
            return Vec::new();
        }
        if header && let Some(columns) = flow::Columns::header(line) {
            return vec![columns.map(|columns| {
                self.columns = Some(columns);
                Read { kind: Kind::Flow, at: None, said: Meaning::Nothing }
            })];
        }
        // Some print texts with their escapes.
        let plain = if line.contains("\\\"") { Cow::Owned(line.replace("\\\"", "\"")) } else { Cow::Borrowed(line) };
        match coredns::read(&plain, at, self.subject) {
            Ok(Some(read)) => vec![Ok(read)],
            Err(why) => vec![Err(why)],
            Ok(None) => match flow::read(line, self.columns.as_ref(), at, self.subject) {
                Some(read) => vec![read],
                None => vec![Err(self.unknown(UNKNOWN, line))],
            },
        }
    }

    /// What has the name or an address of a task is no header, whatever else it looks like.
    fn may_be_header(&self, text: &str) -> bool {
        self.subject.in_text(text).is_none() && self.subject.task_in_text(text).is_none()
    }

    /// The error for a record that belongs to no known log.
    fn unknown(&self, why: &str, text: &str) -> String {
        if self.subject.in_text(text).is_some() {
            format!("{why}, and it has the name")
        } else {
            match self.subject.task_in_text(text) {
                Some(task) => format!("{why}, and it has the address {task} of a task"),
                None => why.to_owned(),
            }
        }
    }
}

fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// The reason of the parser, without its position: that counts from the beginning of the record, not of the file.
fn invalid(error: &serde_json::Error) -> String {
    let text = error.to_string();
    format!("it is not the JSON of such a record: {}", text.split(" at line ").next().unwrap_or(&text))
}
