//! The DNS side: what Route 53 answers from the zones of DNS namespaces, and the resolver of a VPC before it.
//!
//! A namespace with DNS is a zone of its name. A service with `DnsConfig` is a name in it once it has an instance; without
//! one there is no record, so its name does not exist. Names outside the zones are `REFUSED`.
//!
//! Where the documentation is silent:
//! - All private zones are answered to everyone, whatever their VPC. Of several zones that match a name the most specific
//!   one answers, then a private one rather than a public one, then the oldest.
//! - An instance with `AWS_ALIAS_DNS_NAME` answers with the addresses that [`EmulatorSettings::load_balancers`] has for that name,
//!   and with nothing for a name that is not there.
//! - The server follows no CNAME records, the resolver does. Neither adds addresses to an SRV answer.
//! - Route 53 can't have a record set for an instance id that is no label of a name, so the registration of such an
//!   instance in a service with SRV records is an operation that fails.
//!
//! [`EmulatorSettings::load_balancers`]: super::EmulatorSettings::load_balancers

mod cache;
mod lookup;
mod names;
mod resolver;
mod server;

use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, Record, RecordType};
use rand::RngExt;

pub use server::DnsServer;

pub(crate) use lookup::Zone;
pub(crate) use names::check_srv_target;

use super::CloudMap;
use super::faults::Shaping;
use super::requests::Subject;

/// What fault rules and counters call a query of the zones, by a client or by the resolver that has no answer cached.
pub const DNS_QUERY: &str = "DnsQuery";
/// And a query that reaches the resolver.
pub const RESOLVER_QUERY: &str = "ResolverQuery";

/// The response codes that a fault rule can give, by the names that `dig` prints.
const CODES: [(&str, ResponseCode); 5] = [
    ("SERVFAIL", ResponseCode::ServFail),
    ("REFUSED", ResponseCode::Refused),
    ("NXDOMAIN", ResponseCode::NXDomain),
    ("FORMERR", ResponseCode::FormErr),
    ("NOTIMP", ResponseCode::NotImp),
];

pub(crate) fn response_code(name: &str) -> Option<ResponseCode> {
    CODES.iter().find(|(code, _)| *code == name).map(|(_, code)| *code)
}

/// What is answered to one question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) code: ResponseCode,
    pub(crate) answers: Vec<Record>,
    /// The SOA record where there is no answer.
    pub(crate) authorities: Vec<Record>,
    /// Whether the name is in one of the zones.
    pub(crate) authoritative: bool,
}

impl Reply {
    pub(crate) fn failure(code: ResponseCode) -> Self {
        Self { code, answers: Vec::new(), authorities: Vec::new(), authoritative: false }
    }

    /// For the counters: the response code, or `NODATA`.
    pub(crate) fn result(&self) -> &'static str {
        match self.code {
            ResponseCode::NoError if self.answers.is_empty() => "NODATA",
            ResponseCode::NoError => "NOERROR",
            other => CODES.iter().find(|(_, code)| *code == other).map_or("OTHER", |(name, _)| name),
        }
    }
}

/// A question and what the fault rules make of it.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) client: &'a str,
    pub(crate) name: &'a Name,
    pub(crate) kind: RecordType,
}

impl CloudMap {
    /// What fault rules do to a query of either kind.
    pub(crate) fn shape_query(&mut self, now: Duration, query: &str, asked: &Asked) -> Shaping {
        self.advance(now);
        if self.faults.is_empty() {
            return Shaping::default();
        }
        let subject = Subject { service_name: names::text(asked.name), ..Subject::default() };
        self.faults.select(query, asked.client, &subject, &mut self.rng)
    }

    /// The answer of the zones, from any one of the replicas of the DNS side; none where a fault rule drops it.
    pub(crate) fn answer_query(&mut self, now: Duration, asked: &Asked, shaping: &Shaping) -> Option<Reply> {
        self.advance(now);
        let reply = if shaping.drop_request || shaping.drop_response {
            None
        } else if let Some(error) = &shaping.error {
            Some(Reply::failure(response_code(&error.code).unwrap_or(ResponseCode::ServFail)))
        } else {
            let first = self.settings.discovery_lag.len();
            let replica = match &shaping.stale {
                Some(kept) => kept,
                None => &self.replicas[self.rng.random_range(first..self.replicas.len())],
            };
            Some(lookup::look_up(replica, &self.settings.load_balancers, asked.name, asked.kind, &mut self.rng))
        };
        self.count_query(DNS_QUERY, asked, reply.as_ref().map_or("dropped", Reply::result), false);
        reply
    }

    pub(crate) fn count_query(&mut self, query: &'static str, asked: &Asked, result: &str, cached: bool) {
        let most = self.settings.history;
        self.counters.count_query(query, asked.kind, &names::text(asked.name), result, cached, most);
    }
}
