//! What was called: counters by operation and caller, and every write in its order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hickory_proto::rr::RecordType;
use serde::{Deserialize, Serialize};

use super::requests::{Attributes, Subject};
use super::settings::millis;

/// The calls of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationCounters {
    pub calls: u64,
    /// Answered without an error; an answer that was then lost on its way is among them.
    pub ok: u64,
    /// By error code; calls that were dropped before they had an effect are under `dropped`.
    pub errors: BTreeMap<String, u64>,
}

/// The queries for records of one type and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueryCounters {
    pub queries: u64,
    /// By response code, and `NODATA` for a name without such records, `dropped` for what was not answered.
    pub results: BTreeMap<String, u64>,
    /// Answered from the resolver's cache.
    pub cached: u64,
}

/// Calls since the start, the last reset, or the last clearing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    pub operations: BTreeMap<String, OperationCounters>,
    /// Calls by caller (access key id) and operation.
    pub callers: BTreeMap<String, BTreeMap<String, u64>>,
    /// DNS queries by what was asked (`DnsQuery`: the zones, `ResolverQuery`: the resolver), and by type and name, such as
    /// `A web.internal`, the name in lower case.
    #[serde(default)]
    pub queries: BTreeMap<String, BTreeMap<String, QueryCounters>>,
}

impl Counters {
    /// Calls of one operation by anyone.
    pub fn calls(&self, operation: &str) -> u64 {
        self.operations.get(operation).map_or(0, |counters| counters.calls)
    }

    /// Calls of one operation by one caller.
    pub fn calls_by(&self, caller: &str, operation: &str) -> u64 {
        self.callers.get(caller).and_then(|calls| calls.get(operation)).copied().unwrap_or(0)
    }

    /// Answers of one operation with one error code.
    pub fn errors(&self, operation: &str, code: &str) -> u64 {
        self.operations.get(operation).and_then(|counters| counters.errors.get(code)).copied().unwrap_or(0)
    }

    /// Calls of all operations by anyone.
    pub fn total(&self) -> u64 {
        self.operations.values().map(|counters| counters.calls).sum()
    }

    /// DNS queries of one kind ([`DNS_QUERY`](super::DNS_QUERY) or [`RESOLVER_QUERY`](super::RESOLVER_QUERY)) for one type
    /// and name.
    pub fn queries(&self, query: &str, kind: &str, name: &str) -> QueryCounters {
        let found = self.queries.get(query).and_then(|queries| queries.get(&format!("{kind} {name}")));
        found.cloned().unwrap_or_default()
    }

    /// Counts a query; beyond `most` names all others are one, `others`.
    pub(crate) fn count_query(
        &mut self,
        query: &str,
        kind: RecordType,
        name: &str,
        result: &str,
        cached: bool,
        most: usize,
    ) {
        let queries = entry(&mut self.queries, query);
        let mut key = format!("{kind} {name}");
        if queries.len() >= most && !queries.contains_key(&key) {
            "others".clone_into(&mut key);
        }
        let counters = entry(queries, &key);
        counters.queries += 1;
        counters.cached += u64::from(cached);
        *entry(&mut counters.results, result) += 1;
    }

    pub(crate) fn count(&mut self, operation: &str, caller: &str, result: &str) {
        let counters = entry(&mut self.operations, operation);
        counters.calls += 1;
        if result == "ok" {
            counters.ok += 1;
        } else {
            *entry(&mut counters.errors, result) += 1;
        }
        *entry(entry(&mut self.callers, caller), operation) += 1;
    }
}

/// An entry without an allocation where the key is there already.
fn entry<'a, V: Default>(map: &'a mut BTreeMap<String, V>, key: &str) -> &'a mut V {
    if !map.contains_key(key) {
        map.insert(key.to_owned(), V::default());
    }
    map.get_mut(key).expect("just inserted")
}

/// A call that changes something, or would have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Write {
    /// Grows from write to write, not by one.
    pub sequence: u64,
    /// Since the Unix epoch.
    #[serde(rename = "at_ms", with = "millis")]
    pub at: Duration,
    /// The access key id.
    pub caller: String,
    pub operation: String,
    /// Names as far as the request has them or its ids lead to them, else empty.
    pub namespace: String,
    pub service: String,
    pub service_id: String,
    pub instance: String,
    /// Where tags are set.
    pub arn: String,
    pub attributes: Attributes,
    /// `ok`, `dropped`, or the code of the error.
    pub result: String,
}

impl Write {
    pub(crate) fn new(
        sequence: u64,
        at: Duration,
        caller: &str,
        operation: &str,
        subject: Subject,
        result: &str,
    ) -> Self {
        Self {
            sequence,
            at,
            caller: caller.to_owned(),
            operation: operation.to_owned(),
            namespace: subject.namespace_name,
            service: subject.service_name,
            service_id: subject.service_id,
            instance: subject.instance_id,
            arn: subject.resource_arn,
            attributes: serde_json::from_value(subject.attributes).unwrap_or_default(),
            result: result.to_owned(),
        }
    }

    pub fn is_ok(&self) -> bool {
        self.result == "ok"
    }
}

/// The last writes, the oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writes {
    list: VecDeque<Write>,
}

impl Writes {
    pub(crate) fn record(&mut self, write: Write, history: usize) {
        while self.list.len() >= history.max(1) {
            self.list.pop_front();
        }
        self.list.push_back(write);
    }

    /// The writes after the one with the given sequence number.
    pub(crate) fn since(&self, sequence: u64) -> Vec<Write> {
        let start = self.list.partition_point(|write| write.sequence <= sequence);
        self.list.range(start..).cloned().collect()
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
}
