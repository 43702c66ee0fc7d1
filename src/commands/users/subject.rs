//! The name whose users are wanted, in its two forms, and what else stands for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{
    fields::{address, words},
    record::{Meaning, Sighting},
};
use cli::TaskAddress;

/// Why a query is not a user's.
const NO_CLIENT: &str = "somebody asks for the name, and the record does not say who";

/// How a DNS name relates to the one that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Relation {
    /// It is the name.
    Same,
    /// It is the name with a suffix, as a search path makes them: `orders.internal.cluster.local`.
    Suffixed,
    /// It is below the name: one instance of a service with SRV records.
    Below,
    /// It is another name.
    Other,
}

/// The name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Subject {
    /// In lower case, without the last dot.
    pub(super) dns: String,
    /// Cloud Map's namespace and service, if they were given.
    given: Option<(String, String)>,
    /// Namespaces (by the name that `DiscoverInstances` takes) and services that Cloud Map has for it.
    pub(super) found: BTreeSet<(String, String)>,
    /// The addresses of its tasks, with the ports on which they listen, as far as they are known.
    pub(super) tasks: BTreeMap<IpAddr, BTreeSet<u16>>,
}

impl Subject {
    /// From a DNS name, or `NAMESPACE/SERVICE`.
    pub(super) fn new(name: &str) -> Self {
        let given = name.split_once('/').map(|(namespace, service)| (namespace.to_owned(), service.to_owned()));
        let dns = given.as_ref().map_or_else(|| normal(name), |(namespace, service)| joined(namespace, service));
        Self { dns, given, ..Self::default() }
    }

    /// Whether this Cloud Map service has the name. A DNS name can be split at each of its dots, because both parts may
    /// have some.
    pub(super) fn is(&self, namespace: &str, service: &str) -> bool {
        let same =
            |(of, name): &(String, String)| of.eq_ignore_ascii_case(namespace) && name.eq_ignore_ascii_case(service);
        match &self.given {
            Some(given) => same(given) || self.found.iter().any(same),
            None => joined(namespace, service) == self.dns || self.found.iter().any(same),
        }
    }

    /// Whether a Cloud Map namespace may have the service.
    pub(super) fn may_be_in(&self, namespace: &str) -> bool {
        match &self.given {
            Some((given, _)) => given.eq_ignore_ascii_case(namespace),
            None => self.dns.ends_with(&format!(".{}", normal(namespace))),
        }
    }

    pub(super) fn relation(&self, query: &str) -> Relation {
        let query = normal(query);
        let cut = |whole: &str, end: bool| {
            let rest = if end { whole.strip_suffix(&*self.dns) } else { whole.strip_prefix(&*self.dns) };
            rest.is_some_and(|rest| if end { rest.ends_with('.') } else { rest.starts_with('.') })
        };
        if query == self.dns {
            Relation::Same
        } else if cut(&query, false) {
            Relation::Suffixed
        } else if cut(&query, true) {
            Relation::Below
        } else {
            Relation::Other
        }
    }

    /// The name in a text that is closest to it, and how they relate; `None` if no name there has to do with it.
    pub(super) fn in_text(&self, text: &str) -> Option<(Relation, String)> {
        if !self.dns.is_empty() && !contains(text, &self.dns) {
            return None;
        }
        let is_mark = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
        let related =
            |name| Some((self.relation(name), normal(name))).filter(|(relation, _)| *relation != Relation::Other);
        text.split(is_mark).filter_map(related).min_by_key(|(relation, _)| *relation)
    }

    /// The address of a task that is in a text.
    pub(super) fn task_in_text(&self, text: &str) -> Option<IpAddr> {
        if self.tasks.is_empty() {
            return None;
        }
        words(text).filter_map(address).find(|address| self.tasks.contains_key(address))
    }

    /// What a query for `name` shows. `by` is the client, if the log names it.
    ///
    /// A client with a search path appends its suffixes one after another, until a name has an answer. So a query with a
    /// suffix that fails is no use of the name. If it succeeds, the client may have got the answer to the name itself: with
    /// its plugin `autopath`, CoreDNS answers the first query of the path at once, and logs only that one.
    pub(super) fn asked(&self, name: &str, rcode: Option<&str>, by: Option<Sighting>) -> Meaning {
        let hint = match self.relation(name) {
            Relation::Same => None,
            Relation::Suffixed => {
                let suffix = normal(name).split_off(self.dns.len());
                let failed = rcode.is_some_and(|rcode| rcode.eq_ignore_ascii_case("NXDOMAIN"));
                // The name of a Service in Kubernetes, or in a ClusterSet.
                if failed || suffix.starts_with(".svc.") {
                    return Meaning::Suffixed(normal(name));
                }
                Some(normal(name))
            }
            Relation::Below => return Meaning::Below(normal(name)),
            Relation::Other => return Meaning::Other,
        };
        by.map_or(Meaning::Named(NO_CLIENT), |by| Meaning::Use(Box::new(Sighting { hint, ..by })))
    }

    pub(super) fn add(&mut self, task: TaskAddress) {
        self.tasks.entry(task.address.to_canonical()).or_default().extend(task.port);
    }

    /// Whether a flow to this port of an address goes to a task. If the ports of the task are not known, a port counts if
    /// another task has it, or if it is lower than the port of the other side.
    pub(super) fn listens(&self, address: IpAddr, port: u16, other_port: u16) -> bool {
        let others_listen = || self.tasks.values().any(|ports| ports.contains(&port));
        self.tasks.get(&address).is_some_and(|ports| {
            if ports.is_empty() { port < other_port || others_listen() } else { ports.contains(&port) }
        })
    }
}

/// A DNS name as it is compared.
pub(super) fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// Whether a text contains another one, in any case of its letters.
fn contains(text: &str, part: &str) -> bool {
    text.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part.as_bytes()))
}

fn joined(namespace: &str, service: &str) -> String {
    normal(&format!("{service}.{namespace}"))
}
