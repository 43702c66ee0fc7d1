//! Route 53 Resolver query logs (version 1): one JSON object for each query. Queries that the resolver answers from its
//! cache are not in them (AWS, "Resolver query logging").

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    fields::{Object, address, get, nested, parsed, text},
    record::{How, Kind, Read, Sighting},
    subject::{Relation, Subject, normal},
};

/// Fields of which a query has one at least, besides its name, which other logs have, too.
const OWN: [&str; 4] = ["srcaddr", "srcids", "vpcid", "querytimestamp"];

/// Reads a query; `None` if the object is none.
pub(super) fn read(object: &Object, at: Option<Timestamp>, subject: &Subject) -> Option<Read> {
    get(object, "queryname").filter(|_| OWN.iter().any(|field| get(object, field).is_some()))?;
    let name = text(object, "queryname").unwrap_or_default();
    let sources = nested(object, "srcids").unwrap_or_default();
    let by = Sighting {
        address: text(object, "srcaddr").as_deref().and_then(address),
        instance: text(&sources, "instance"),
        endpoint: text(&sources, "resolverendpoint"),
        ..Sighting::new(How::ResolverQuery, at)
    };
    let by = Some(by).filter(|by| by.address.is_some() || by.instance.is_some() || by.endpoint.is_some());
    let relation = subject.relation(&name);
    let answers = get(object, "answers").filter(|_| relation != Relation::Same);
    let through =
        |found: fn(&Subject, &str) -> Option<Through>| answers.and_then(|of| any(of, &|text| found(subject, text)));
    // Instances have names below it with their addresses.
    let by_address = || through(of_task).filter(|_| relation != Relation::Below);
    let said = match through(of_name).or_else(by_address) {
        Some(Through(task)) => {
            let alias = Some(normal(&name));
            subject.asked(&subject.dns, None, by.map(|by| Sighting { alias, task, ..by }))
        }
        None => subject.asked(&name, text(object, "rcode").as_deref(), by),
    };
    Some(Read { kind: Kind::Resolver, at, said })
}

/// How the answer to a query for another name leads to the name: by a record with the name, or by the address of a task, as
/// a record does that somebody wrote by hand.
struct Through(Option<IpAddr>);

fn of_name(subject: &Subject, answer: &str) -> Option<Through> {
    matches!(subject.in_text(answer), Some((Relation::Same, _))).then_some(Through(None))
}

fn of_task(subject: &Subject, answer: &str) -> Option<Through> {
    address(answer).filter(|address| subject.tasks.contains_key(address)).map(|address| Through(Some(address)))
}

/// The first answer for which something is found.
fn any<T>(answers: &Value, find: &dyn Fn(&str) -> Option<T>) -> Option<T> {
    match answers {
        Value::Object(fields) => fields.values().find_map(|value| any(value, find)),
        Value::Array(items) => items.iter().find_map(|value| any(value, find)),
        Value::String(text) => parsed(text).map_or_else(|| find(text), |value| any(&value, find)),
        _ => None,
    }
}
