//! Route 53 Resolver query logs (version 1): one JSON object for each query. Queries that the resolver answers from its
//! cache are not in them (AWS, "Resolver query logging").

use std::net::IpAddr;

use serde::Deserialize;

use super::{
    record::{How, Kind, Read, Said, Sighting, invalid},
    subject::{Relation, Subject, normal},
};

#[derive(Debug, Deserialize)]
struct Query {
    #[serde(rename = "query_name")]
    name: String,
    #[serde(rename = "query_timestamp")]
    timestamp: Option<String>,
    srcaddr: Option<String>,
    #[serde(default)]
    srcids: Sources,
    #[serde(default)]
    answers: Vec<Answer>,
}

/// What the query passed through.
#[derive(Debug, Default, Deserialize)]
struct Sources {
    instance: Option<String>,
    #[serde(alias = "resolver-endpoint")]
    resolver_endpoint: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(rename = "Rdata")]
    data: Option<String>,
    #[serde(rename = "Type")]
    record_type: Option<String>,
}

/// Reads a query.
///
/// # Errors
/// Why it is none.
pub(super) fn read(bytes: &[u8], subject: &Subject) -> Result<Read, String> {
    let query: Query = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
    let at = query.timestamp.and_then(|time| time.parse().ok());
    let leads_to_it = |answer: &Answer| {
        answer.record_type.as_deref() == Some("CNAME")
            && answer.data.as_deref().is_some_and(|data| subject.relation(data) == Relation::Same)
    };
    let alias = match subject.relation(&query.name) {
        Relation::Same => None,
        _ if query.answers.iter().any(leads_to_it) => Some(normal(&query.name)),
        Relation::Suffixed => return Ok(of(at, Said::Suffixed(normal(&query.name)))),
        Relation::Below => return Ok(of(at, Said::Below(normal(&query.name)))),
        Relation::Other => return Ok(of(at, Said::Other)),
    };
    let address = query.srcaddr.and_then(|address| address.parse::<IpAddr>().ok());
    if address.is_none() && query.srcids.instance.is_none() && query.srcids.resolver_endpoint.is_none() {
        return Err("it does not say who asked: srcaddr is no address".to_owned());
    }
    let sighting = Sighting {
        address: address.map(|address| address.to_canonical()),
        instance: query.srcids.instance,
        endpoint: query.srcids.resolver_endpoint,
        alias,
        ..Sighting::new(How::ResolverQuery, at)
    };
    Ok(of(at, Said::Use(Box::new(sighting))))
}

fn of(at: Option<k8s_openapi::jiff::Timestamp>, said: Said) -> Read {
    Read { kind: Kind::Resolver, at, said }
}
