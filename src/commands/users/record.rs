//! One record of a log: of which kind it is, and whether somebody uses the name in it.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::cloudtrail::Principal;

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
    /// The name that was queried, if it is an alias of the name.
    pub(super) alias: Option<String>,
    /// The queried name of a search path, if it has an answer that may be that of the name.
    pub(super) hint: Option<String>,
    /// The task's address to which somebody connected.
    pub(super) task: Option<IpAddr>,
}

impl Sighting {
    pub(super) fn new(how: How, at: Option<Timestamp>) -> Self {
        let (address, instance, endpoint, principal, alias, hint, task) = Default::default();
        Self { how, first: at, last: at, address, instance, endpoint, principal, alias, hint, task }
    }
}

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Somebody uses the name.
    Use(Box<Sighting>),
    /// Somebody asked for the name with a suffix: a try of a search path.
    Suffixed(String),
    /// Somebody asked for a name below it.
    Below(String),
    /// A call of `DiscoverInstances` whose service CloudTrail does not show.
    Unnamed,
    /// Somebody uses the name, and the record does not say who. The text says why.
    Named(&'static str),
    /// The same in something else than a query or a call: a message, or another field.
    Mentioned(&'static str),
    /// AWS could not record all flows of a time.
    Skipped,
    /// It is about something else.
    Other,
    /// It is a line of such a log without a record: the names of fields, or another message of CoreDNS.
    Nothing,
}

/// A record that was understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) kind: Kind,
    pub(super) at: Option<Timestamp>,
    pub(super) said: Meaning,
}
