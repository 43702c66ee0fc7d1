//! DNS queries in any other form: plugin `log` of CoreDNS writes whatever text or JSON its format asks for, and other DNS
//! servers and collectors have forms of their own. A name, signs of DNS, and one address that can be the client's are enough.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    fields::{Object, address, words},
    record::{How, Kind, Meaning, Read, Sighting},
    subject::{Relation, Subject},
};

const TYPES: [&str; 13] =
    ["A", "AAAA", "SRV", "CNAME", "ANY", "HTTPS", "SVCB", "PTR", "TXT", "MX", "NS", "SOA", "HINFO"];
const RCODES: [&str; 6] = ["NOERROR", "NXDOMAIN", "SERVFAIL", "REFUSED", "FORMERR", "NOTIMP"];
/// The beginnings of the names of fields about DNS.
const OF_DNS: [&str; 8] = ["quer", "question", "qname", "qtype", "rcode", "rrcode", "dns", "responsecode"];
/// The beginnings of the names of fields, and of words before an address, that mark the address of the client.
const CLIENTS: [&str; 7] = ["client", "remote", "src", "source", "peer", "from", "requester"];
/// The same for addresses of others than the client.
const OTHERS: [&str; 26] = [
    "kube",
    "k8s",
    "host",
    "node",
    "pod",
    "server",
    "local",
    "dst",
    "dest",
    "answer",
    "upstream",
    "label",
    "agent",
    "docker",
    "container",
    "ecs",
    "resource",
    "rdata",
    "listen",
    "tag",
    "meta",
    "via",
    "response",
    "proxy",
    "resolver",
    "instance",
];

/// What the fields of an object say about a query.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct Query {
    name: Option<(Relation, String)>,
    /// Whether there is a name that is not related to the wanted one.
    other: bool,
    /// Whether lists of objects count.
    lists: bool,
    /// Whether it is a line of CoreDNS of the form in which it logs queries.
    is_log: bool,
    of_dns: bool,
    rcode: Option<String>,
    clients: BTreeSet<IpAddr>,
    /// Addresses in fields that do not say whether they belong to the client.
    unnamed: BTreeSet<IpAddr>,
}

impl Query {
    fn value(&mut self, word: &str) {
        if let Some(rcode) = RCODES.iter().find(|rcode| rcode.eq_ignore_ascii_case(word)) {
            self.of_dns = true;
            self.rcode = Some((*rcode).to_owned());
        }
        self.of_dns |= TYPES.contains(&word);
        // CoreDNS writes the last dot of each name.
        let labels = word.trim_end_matches('.');
        self.other |= word.ends_with('.') && is_name(word) && (self.is_log || labels.contains('.'));
    }

    fn address(&mut self, address: IpAddr, is_client: Option<bool>) {
        match is_client {
            Some(true) => self.clients.insert(address),
            Some(false) => false,
            None => self.unnamed.insert(address),
        };
    }

    /// The client, if only one address can be it.
    fn client(&self) -> Option<IpAddr> {
        let of = if self.clients.is_empty() { &self.unnamed } else { &self.clients };
        of.first().copied().filter(|_| of.len() == 1)
    }

    fn judge(self, at: Option<Timestamp>, subject: &Subject) -> Option<Read> {
        let said = match &self.name {
            _ if !self.of_dns => return None,
            None if self.other && (self.is_log || self.client().is_some()) => Meaning::Other,
            None => return None,
            Some((_, name)) => {
                let by = self
                    .client()
                    .map(|address| Sighting { address: Some(address), ..Sighting::new(How::CoreDnsQuery, at) });
                subject.asked(name, self.rcode.as_deref(), by)
            }
        };
        Some(Read { kind: Kind::CoreDns, at, said })
    }
}

/// A line; `None` if it is no query. `is_log` if CoreDNS writes such lines for queries.
pub(super) fn text(line: &str, is_log: bool, at: Option<Timestamp>, subject: &Subject) -> Option<Read> {
    let mut query = Query { is_log, of_dns: is_log, name: subject.in_text(line), ..Query::default() };
    let mut before = "";
    for word in words(line) {
        query.value(word);
        query.of_dns |= begins(before, &OF_DNS);
        // `client:192.0.2.7`.
        let keyed = word.split_once(':').filter(|(key, _)| key.bytes().all(|byte| byte.is_ascii_alphabetic()));
        if let Some(address) = address(word) {
            query.address(address, role(before));
        } else if let Some((key, value)) = keyed
            && let Some(address) = address(value)
        {
            query.address(address, role(key));
        }
        before = word;
    }
    query.judge(at, subject)
}

/// An object with fields of any names, with the `lists` of objects in it or without them; `None` if it is no query.
pub(super) fn object(object: &Object, lists: bool, at: Option<Timestamp>, subject: &Subject) -> Option<Read> {
    let mut query = Query { lists, ..Query::default() };
    fields(object, None, subject, &mut query);
    query.judge(at, subject)
}

/// `is_client`: whether the names of the fields around it mark addresses as the client's.
fn fields(object: &Object, is_client: Option<bool>, subject: &Subject, query: &mut Query) {
    for (key, value) in object {
        let plain: String = key.chars().filter(char::is_ascii_alphanumeric).collect();
        let about_dns = begins(&plain, &OF_DNS) || parts(key).iter().any(|part| begins(part, &OF_DNS));
        query.of_dns |= about_dns;
        let roles: Vec<_> = parts(key).iter().filter_map(|part| role(part)).collect();
        let is_client = roles.contains(&true).then_some(true).or(roles.first().copied()).or(is_client);
        each(value, is_client, about_dns, subject, query);
    }
}

fn each(value: &Value, is_client: Option<bool>, about_dns: bool, subject: &Subject, query: &mut Query) {
    match value {
        Value::Object(nested) => fields(nested, is_client, subject, query),
        Value::Array(items) if !query.lists && items.iter().any(Value::is_object) => {}
        Value::Array(items) => items.iter().for_each(|item| each(item, is_client, about_dns, subject, query)),
        Value::String(text) => {
            query.value(text);
            query.other |= about_dns && is_name(text);
            let found = subject.in_text(text);
            query.name = query.name.take().into_iter().chain(found).min_by_key(|(relation, _)| *relation);
            if let Some(address) = address(text) {
                query.address(address, is_client);
            }
        }
        _ => {}
    }
}

/// The words of a field's name: `remoteIp`, `client_ip`, `pod.ip`.
fn parts(key: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in key.chars() {
        if !c.is_ascii_alphanumeric() || (c.is_ascii_uppercase() && was_lower) {
            parts.push(String::new());
        }
        was_lower = c.is_ascii_lowercase();
        if c.is_ascii_alphanumeric()
            && let Some(part) = parts.last_mut()
        {
            part.push(c.to_ascii_lowercase());
        }
    }
    parts
}

/// Whether an address under this name is that of the client; `None` if the name does not say it.
fn role(name: &str) -> Option<bool> {
    let name = name.trim_matches(|c: char| !c.is_ascii_alphanumeric());
    if begins(name, &CLIENTS) {
        Some(true)
    } else {
        (begins(name, &OTHERS) || matches!(name, "to" | "on" | "by" | "at")).then_some(false)
    }
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|part| name.get(..part.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(part)))
}

/// Whether it can be a name of DNS, of several labels, or the root.
fn is_name(word: &str) -> bool {
    let labels = word.trim_end_matches('.');
    let well = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_*".contains(&b))
    };
    word == "." || (word.contains('.') && labels.split('.').all(well) && address(labels).is_none())
}
