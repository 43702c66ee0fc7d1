//! VPC flow logs as text: the default format (the fields of version 2), and custom formats, whose fields a line at the
//! beginning names (files in S3 have one) or a flag.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;

use super::{
    record::{How, Kind, Read, Said, Sighting},
    subject::Subject,
};

/// The fields of the default format, in their order.
const DEFAULT: &str = "version account-id interface-id srcaddr dstaddr srcport dstport protocol packets bytes start end \
                       action log-status";
/// Fields that every format must have to be of use, or their counterparts of the packet itself.
const ADDRESSES: [&str; 2] = ["srcaddr", "dstaddr"];
const INTERFACE: &str = "eni-";
/// What stands for a value that there is not.
const NONE: &str = "-";

/// The fields of a format, in their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Columns(Vec<String>);

impl Columns {
    /// From the text of a format: `${version} ${srcaddr}`, or only the names.
    ///
    /// # Errors
    /// A field is missing without which nobody can be seen.
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

/// A flow.
struct Flow<'a> {
    values: &'a [&'a str],
    columns: &'a Columns,
}

impl Flow<'_> {
    fn field(&self, name: &str) -> Option<&str> {
        let value = *self.values.get(self.columns.position(name)?)?;
        (value != NONE).then_some(value)
    }

    /// The address in the packet, which NAT and load balancers do not change, or else that of the interface.
    fn address(&self, name: &str) -> Result<Option<IpAddr>, String> {
        let Some(value) = self.field(&format!("pkt-{name}")).or_else(|| self.field(name)) else { return Ok(None) };
        let address = value.parse::<IpAddr>().map_err(|_| format!("its {name} is no address"))?;
        Ok(Some(address.to_canonical()))
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        self.field(name).map(|value| value.parse().map_err(|_| format!("its {name} is not valid"))).transpose()
    }

    fn time(&self, name: &str) -> Result<Option<Timestamp>, String> {
        let Some(seconds) = self.number(name)? else { return Ok(None) };
        Timestamp::from_second(seconds).map(Some).map_err(|_| format!("its {name} is not valid"))
    }
}

/// Whether a line may be a flow: the other kinds of lines need not be tried first. Of all logs these have the most lines.
pub(super) fn is_likely(line: &str, columns: Option<&Columns>) -> bool {
    match columns {
        Some(columns) => !line.contains('"') && line.split_whitespace().count() == columns.0.len(),
        None => line.split_whitespace().nth(2).is_some_and(|interface| interface.starts_with(INTERFACE)),
    }
}

/// Reads a line.
///
/// # Errors
/// Why it is broken, or of no log that is known.
pub(super) fn read(line: &str, columns: Option<&Columns>, subject: &Subject) -> Result<Read, String> {
    let default;
    let mut values: Vec<_> = line.split_whitespace().collect();
    // As exported from CloudWatch Logs, with a time before each line, and maybe the name of the stream.
    let fields = columns.map_or(DEFAULT.split_whitespace().count(), |columns| columns.0.len());
    let before = values.len().saturating_sub(fields);
    if (1..=2).contains(&before) && values.first().is_some_and(|time| time.parse::<Timestamp>().is_ok()) {
        values.drain(..before);
    }
    let columns = if let Some(columns) = columns {
        columns
    } else {
        if !values.get(2).is_some_and(|interface| interface.starts_with(INTERFACE)) {
            return Err("it is of no log that is known".to_owned());
        }
        default = Columns(DEFAULT.split_whitespace().map(str::to_owned).collect());
        &default
    };
    if values.len() != fields {
        return Err(format!("it has {} fields, and the flow log's format has {fields}", values.len()));
    }
    let flow = Flow { values: &values, columns };
    let (start, end) = (flow.time("start")?, flow.time("end")?);
    let of = |said| Ok(Read { kind: Kind::Flow, at: start.or(end), said });
    let (Some(source), Some(destination)) = (flow.address("srcaddr")?, flow.address("dstaddr")?) else {
        // NODATA and SKIPDATA.
        return of(Said::Other);
    };
    let ports = (flow.number::<u16>("srcport")?, flow.number::<u16>("dstport")?);
    let (client, task) = match ports {
        // Protocols without ports write 0.
        (Some(from), Some(to)) if subject.listens(destination, to, from) => (source, destination),
        // The answers, where only they are logged.
        (Some(from), Some(to)) if subject.listens(source, from, to) => (destination, source),
        // Without ports nobody knows who connected to whom: both directions look the same.
        (None, _) | (_, None) if subject.tasks.contains_key(&destination) => (source, destination),
        _ => return of(Said::Other),
    };
    let how = if flow.field("action") == Some("REJECT") { How::RefusedConnection } else { How::Connection };
    let (address, task, last) = (Some(client), Some(task), end.or(start));
    let sighting = Sighting { last, address, task, ..Sighting::new(how, start.or(end)) };
    of(Said::Use(Box::new(sighting)))
}
