//! VPC flow logs as text: the default format (the fields of version 2), and custom formats, whose fields a line at the
//! beginning names (files in S3 have one) or a flag.

use std::{borrow::Cow, net::IpAddr};

use k8s_openapi::jiff::Timestamp;

use super::{
    fields::{self, Object, address, get},
    record::{How, Kind, Meaning, Read, Sighting},
    subject::Subject,
    times,
};

/// The fields of the default format, in their order.
const DEFAULT: &str = "version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes start end \
                       action log-status";
/// Fields that every format must have to be of use, or their counterparts of the packet itself.
const ADDRESSES: [&str; 2] = ["srcaddr", "dstaddr"];
const INTERFACE: &str = "eni-";
/// The value that means that there is none.
const NONE: &str = "-";

/// The fields of a format, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns(Vec<String>);

impl Columns {
    /// From the text of a format: `${version} ${srcaddr}`, or only the names.
    ///
    /// # Errors
    /// A field is missing without which no user can be identified.
    pub(super) fn new(format: &str) -> Result<Self, String> {
        let plain = |word: &str| word.trim_start_matches("${").trim_end_matches('}').to_ascii_lowercase();
        let columns = Self(format.split_whitespace().map(plain).collect());
        for field in ADDRESSES {
            if columns.position(field).is_none() && columns.position(&format!("pkt-{field}")).is_none() {
                return Err(format!("the format of these flow logs has no field {field}"));
            }
        }
        Ok(columns)
    }

    /// From a line, if it names fields.
    pub(super) fn header(line: &str) -> Option<Result<Self, String>> {
        let is_field = |word: &str| word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-' || byte == b'_');
        let mut words = line.split_whitespace().peekable();
        words.peek()?;
        let known = |word: &str| {
            DEFAULT.split_whitespace().any(|field| field == word) || ["pkt-srcaddr", "pkt-dstaddr"].contains(&word)
        };
        let (mut all, mut some) = (true, 0);
        for word in words {
            all &= is_field(word) && word != NONE;
            some += usize::from(known(word));
        }
        (all && some > 1).then(|| Self::new(line))
    }

    fn position(&self, field: &str) -> Option<usize> {
        self.0.iter().position(|column| column == field)
    }
}

/// Where a flow has its fields.
enum Fields<'a> {
    Line { values: &'a [&'a str], columns: &'a Columns },
    Object(&'a Object),
}

/// A flow.
struct Flow<'a>(Fields<'a>);

impl Flow<'_> {
    fn field(&self, name: &str) -> Option<Cow<'_, str>> {
        match self.0 {
            Fields::Line { values, columns } => {
                let value = *values.get(columns.position(name)?)?;
                (value != NONE).then_some(Cow::Borrowed(value))
            }
            Fields::Object(object) => fields::text(object, &name.replace('-', "")).map(Cow::Owned),
        }
    }

    /// The address in the packet, which NAT and load balancers do not change, or else that of the interface.
    fn address(&self, name: &str) -> Result<Option<IpAddr>, String> {
        let Some(value) = self.field(&format!("pkt-{name}")).or_else(|| self.field(name)) else { return Ok(None) };
        let address = value.parse::<IpAddr>().map_err(|_| format!("its {name} is no address"))?;
        Ok(Some(address.to_canonical()))
    }

    fn port(&self, name: &str) -> Result<Option<u16>, String> {
        self.field(name).map(|value| value.parse().map_err(|_| format!("its {name} is not valid"))).transpose()
    }

    fn time(&self, name: &str) -> Result<Option<Timestamp>, String> {
        let Some(text) = self.field(name) else { return Ok(None) };
        times::of_text(&text).map(Some).ok_or_else(|| format!("its {name} is not valid"))
    }

    /// `at` is its time, if it has none of its own.
    fn read(&self, at: Option<Timestamp>, subject: &Subject) -> Result<Read, String> {
        let (start, end) = (self.time("start")?, self.time("end")?);
        let first = start.or(end).or(at);
        let of = |said| Ok(Read { kind: Kind::Flow, at: first, said });
        let (Some(source), Some(destination)) = (self.address("srcaddr")?, self.address("dstaddr")?) else {
            // AWS could not record all flows of this time.
            if self.field("log-status").as_deref() == Some("SKIPDATA") {
                return of(Meaning::Skipped);
            }
            return of(Meaning::Other);
        };
        let ports = (self.port("srcport")?, self.port("dstport")?);
        let (client, task) = match ports {
            // Protocols without ports write 0.
            (Some(from), Some(to)) if subject.listens(destination, to, from) => (source, destination),
            // The answers, where only they are logged.
            (Some(from), Some(to)) if subject.listens(source, from, to) => (destination, source),
            // Without ports, it is not known which side connected: both directions look the same.
            (None, _) | (_, None) if subject.tasks.contains_key(&destination) => (source, destination),
            _ => return of(Meaning::Other),
        };
        let refused = self.field("action").as_deref() == Some("REJECT");
        let how = if refused { How::RefusedConnection } else { How::Connection };
        let (address, task, last) = (Some(client), Some(task), end.or(first));
        of(Meaning::Use(Box::new(Sighting { last, address, task, ..Sighting::new(how, first) })))
    }
}

/// Reads a flow from the fields of an object, such as a row of a query's result; `None` if it is none.
pub(super) fn of_object(object: &Object, at: Option<Timestamp>, subject: &Subject) -> Option<Result<Read, String>> {
    let has = |field: &str| get(object, field).or_else(|| get(object, &format!("pkt{field}"))).is_some();
    ADDRESSES.iter().all(|field| has(field)).then(|| Flow(Fields::Object(object)).read(at, subject))
}

/// Whether a line may be a flow: the other kinds of lines need not be tried first. Of all logs these have the most lines.
pub(super) fn is_likely(line: &str, columns: Option<&Columns>) -> bool {
    match columns {
        Some(columns) => !line.contains('"') && line.split_whitespace().count() == columns.0.len(),
        None => line.split_whitespace().nth(2).is_some_and(|interface| interface.starts_with(INTERFACE)),
    }
}

/// Reads a line; `None` if it is none of a flow log.
///
/// # Errors
/// Why it is broken.
pub(super) fn read(
    line: &str,
    columns: Option<&Columns>,
    at: Option<Timestamp>,
    subject: &Subject,
) -> Option<Result<Read, String>> {
    let mut values: Vec<_> = line.split_whitespace().collect();
    // As exported from CloudWatch Logs, with a time before each line, and maybe the name of the stream.
    let fields = columns.map_or(DEFAULT.split_whitespace().count(), |columns| columns.0.len());
    let before = values.len().saturating_sub(fields);
    if (1..=3).contains(&before) && times::in_words(&values.get(..before)?.join(" ")).is_some() {
        values.drain(..before);
    }
    let is_default = values.get(2).is_some_and(|interface| interface.starts_with(INTERFACE));
    let default;
    let columns = if let Some(columns) = columns {
        // A line of another log in the same input.
        if values.len() != fields && !is_default && !values.iter().any(|value| address(value).is_some()) {
            return None;
        }
        columns
    } else if is_default {
        default = Columns(DEFAULT.split_whitespace().map(str::to_owned).collect());
        &default
    } else {
        return None;
    };
    if values.len() != fields {
        return Some(Err(format!("it has {} fields, and the flow log's format has {fields}", values.len())));
    }
    Some(Flow(Fields::Line { values: &values, columns }).read(at, subject))
}
