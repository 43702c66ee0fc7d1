//! One record of a log: of which kind it is, and whether somebody uses the name in it.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    cloudtrail::{self, Principal},
    coredns, flow,
    frames::Frame,
    resolver,
    subject::Subject,
};

/// The kinds of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Kind {
    /// Route 53 Resolver query logs.
    Resolver,
    /// The lines of CoreDNS' plugin `log`.
    CoreDns,
    /// CloudTrail events.
    CloudTrail,
    /// VPC flow logs.
    Flow,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Resolver, Self::CoreDns, Self::CloudTrail, Self::Flow];

    /// What its logs are called.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Resolver => "Resolver query logs",
            Self::CoreDns => "CoreDNS logs",
            Self::CloudTrail => "CloudTrail events",
            Self::Flow => "VPC flow logs",
        }
    }
}

/// How a use was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum How {
    /// A DNS query in the log of the VPC's resolver.
    ResolverQuery,
    /// A DNS query in the log of CoreDNS.
    CoreDnsQuery,
    /// A call of `DiscoverInstances` or `DiscoverInstancesRevision`.
    DiscoverInstances,
    /// Traffic to a task.
    Connection,
    /// Traffic to a task that a security group or network ACL refused.
    RefusedConnection,
}

impl How {
    pub(super) const fn is_query(self) -> bool {
        matches!(self, Self::ResolverQuery | Self::CoreDnsQuery)
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::ResolverQuery => "Resolver query",
            Self::CoreDnsQuery => "CoreDNS query",
            Self::DiscoverInstances => "DiscoverInstances",
            Self::Connection => "connection",
            Self::RefusedConnection => "refused connection",
        }
    }
}

/// Somebody who used the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sighting {
    pub(super) how: How,
    /// When, or when it began; `None` if the log does not say it.
    pub(super) first: Option<Timestamp>,
    pub(super) last: Option<Timestamp>,
    pub(super) address: Option<IpAddr>,
    /// The EC2 instance of the network interface.
    pub(super) instance: Option<String>,
    /// The Resolver endpoint through which the query came.
    pub(super) endpoint: Option<String>,
    pub(super) principal: Option<Principal>,
    /// The name that was asked for, if it is another one that leads to the name.
    pub(super) alias: Option<String>,
    /// The task's address to which somebody connected.
    pub(super) task: Option<IpAddr>,
}

impl Sighting {
    pub(super) fn new(how: How, at: Option<Timestamp>) -> Self {
        let (address, instance, endpoint, principal, alias, task) = Default::default();
        Self { how, first: at, last: at, address, instance, endpoint, principal, alias, task }
    }
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// Somebody uses the name.
    Use(Box<Sighting>),
    /// Somebody asked for the name with a suffix: a try of a search path.
    Suffixed(String),
    /// Somebody asked for a name below it.
    Below(String),
    /// A call of `DiscoverInstances` whose service CloudTrail does not show.
    Unnamed,
    /// It is about something else.
    Other,
    /// It is no record, but belongs into such a log: a line with the names of fields, other messages of CoreDNS.
    Nothing,
}

/// A record that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) kind: Kind,
    pub(super) at: Option<Timestamp>,
    pub(super) said: Said,
}

const UNKNOWN_JSON: &str = "it is JSON, but of no log that is known";

/// Reads the records of one file.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    pub(super) subject: &'a Subject,
    /// The fields of flow logs, if a line or a flag gave them.
    pub(super) columns: Option<flow::Columns>,
}

/// The fields in which collectors and CloudWatch Logs put the line of a log.
#[derive(Debug, Deserialize)]
struct Envelope {
    message: Option<String>,
    log: Option<String>,
    timestamp: Option<Value>,
    time: Option<Value>,
}

/// Which fields tell the kind of a JSON object.
#[derive(Debug, Clone, Copy, Deserialize)]
struct Fields {
    #[serde(default)]
    query_name: Present,
    #[serde(default, rename = "eventName")]
    event_name: Present,
    #[serde(default)]
    message: Present,
    #[serde(default)]
    log: Present,
    #[serde(default, rename = "digestStartTime")]
    digest: Present,
}

/// Whether a field is there.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Present(bool);

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self(true))
    }
}

impl Reader<'_> {
    /// Reads a record; `None` for an empty one.
    ///
    /// # Errors
    /// Why it is broken.
    pub(super) fn read(&mut self, frame: Frame, bytes: &[u8]) -> Result<Option<Read>, String> {
        match frame {
            Frame::Broken(why) => Err(why.to_owned()),
            Frame::Json => self.object(bytes, None),
            Frame::Line => {
                let line = std::str::from_utf8(bytes).map_err(|_| "it is not text in UTF-8".to_owned())?;
                self.line(line.trim(), None)
            }
        }
    }

    /// `outer`: the time of what it is in.
    fn object(&mut self, bytes: &[u8], outer: Option<Timestamp>) -> Result<Option<Read>, String> {
        let fields: Fields = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
        if let Some(read) = self.of_aws(fields, bytes) {
            return read.map(Some);
        }
        if !fields.message.0 && !fields.log.0 {
            return Err(UNKNOWN_JSON.to_owned());
        }
        let Envelope { message, log, timestamp, time } =
            serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
        let own = timestamp.as_ref().and_then(moment).or_else(|| time.as_ref().and_then(moment));
        self.line(message.or(log).unwrap_or_default().trim(), own.or(outer))
    }

    /// A record that AWS writes as JSON; `None` if it is none.
    fn of_aws(&self, fields: Fields, bytes: &[u8]) -> Option<Result<Read, String>> {
        if fields.query_name.0 {
            Some(resolver::read(bytes, self.subject))
        } else if fields.event_name.0 {
            Some(cloudtrail::read(bytes, self.subject))
        } else {
            let digest = || Ok(Read { kind: Kind::CloudTrail, at: None, said: Said::Nothing });
            fields.digest.0.then(digest)
        }
    }

    fn line(&mut self, line: &str, at: Option<Timestamp>) -> Result<Option<Read>, String> {
        if line.is_empty() {
            return Ok(None);
        }
        // `aws logs tail` and exports of CloudWatch Logs put the time before each line, and maybe the name of the stream. The
        // agents of EKS write a line of CoreDNS as an object, which is in an event then. Each level escapes the quotes of the
        // next one, so there are few.
        if let Some((before, _)) = line.split_once('{')
            && is_prefix(before)
        {
            let time = before.split_whitespace().next().and_then(|time| time.parse().ok());
            return self.object(line.get(before.len()..).unwrap_or_default().as_bytes(), time.or(at));
        }
        if !flow::is_likely(line, self.columns.as_ref()) {
            match coredns::read(line, at, self.subject) {
                Ok(None) => {}
                read => return read,
            }
        }
        if let Some(columns) = flow::Columns::header(line) {
            self.columns = Some(columns?);
            return Ok(Some(Read { kind: Kind::Flow, at: None, said: Said::Nothing }));
        }
        flow::read(line, self.columns.as_ref(), self.subject).map(Some)
    }
}

/// Nothing, or a time and at most one word after it.
fn is_prefix(text: &str) -> bool {
    let mut words = text.split_whitespace();
    words.next().is_none_or(|time| time.parse::<Timestamp>().is_ok()) && words.nth(1).is_none()
}

/// A time as text, or in milliseconds since 1970.
fn moment(value: &Value) -> Option<Timestamp> {
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => Timestamp::from_millisecond(number.as_i64()?).ok(),
        _ => None,
    }
}

/// The reason of the parser, without the place in the record, which says nothing about the place in the file.
pub(super) fn invalid(error: &serde_json::Error) -> String {
    let text = error.to_string();
    format!("it is not the JSON of such a record: {}", text.split(" at line ").next().unwrap_or(&text))
}
