//! What becomes of the calls of the processes: the registry, the store of a cluster's record, and their faults.

use std::sync::Arc;

use ledger::{
    call::{Call, CallId, Created, Failure, Outcome, Pages},
    head::{Head, MAX_SHARDS, RootRun},
    trust::{Announced, COPY_INSTANCE, KEY_INSTANCE},
    writer::Heads,
};

use super::{
    Sim,
    events::Event,
    joining::created,
    process::Caller,
    registry::{Service, Value, micros},
};

/// The adapter's deadline, and the margin with which leadership is checked.
pub(super) const CALL_LIMIT: f64 = 5.0;
const OPERATION_LIMIT: f64 = 60.0;

pub(super) fn failed(message: &str) -> Outcome {
    Outcome::Failed(Failure { message: message.to_owned() })
}

impl Sim {
    /// A call that leaves the process.
    pub(super) fn make(&mut self, caller: Caller, id: CallId, call: Call) {
        let p = &self.procs[caller.proc];
        if p.incarnation != caller.incarnation {
            return;
        }
        let cluster = p.cluster;
        let uid = self.clusters[cluster].uid.clone();
        let own = p.id.clone();
        let (delay, outcome) = match call {
            Call::ConfirmLease => {
                let held = self.clusters[cluster].lease.is_some_and(|(holder, _, _)| holder == caller.proc);
                (self.kube_latency(), Outcome::Lease { held: held && !self.kube_down(cluster) })
            }
            Call::LoadRecord | Call::StoreRecord { .. } => {
                let delay = self.kube_latency();
                return self.at(delay, Event::Kube { caller, id, call });
            }
            Call::Creator { cluster } => {
                let creator = self.registry.services.get(&Service::Exports { cluster, shard: 0 });
                let begins = |uid: &Arc<str>| self.clusters.iter().find(|c| c.uid == *uid).map_or(0.0, |c| c.begins);
                let creator = creator.map(|uid| Created { by: uid.to_string(), at: created(begins(uid)) });
                let bad = self.throttled(caller, true);
                let outcome = if bad { failed("throttled") } else { Outcome::Creator(creator) };
                (self.rng.uniform(0.02, 0.5), outcome)
            }
            Call::Announce => return self.announce(caller, id, own),
            Call::PutCopy { head } => {
                let head = Arc::new(Head { signer: Some(self.clusters[cluster].key), ..Head::clone(&head) });
                let key = (Service::Exports { cluster: own, shard: 0 }, COPY_INSTANCE.into());
                return self.write(caller, id, key, Some(Value::Head(head)));
            }
            Call::Copy { cluster } => self.find(caller, cluster, Outcome::Copy, |value| match value {
                Value::Head(head) => Some(head),
                Value::Key(_) | Value::Page(_) => None,
            }),
            Call::Announced { cluster, uid: _ } => {
                self.find(caller, cluster, Outcome::Announced, |value| match value {
                    Value::Key(key) => Some(Announced::clone(&key)),
                    Value::Head(_) | Value::Page(_) => None,
                })
            }
            // There is one registry.
            Call::Elsewhere { .. } | Call::Depart { .. } => (0.1, Outcome::Done),
            Call::RemoveFormer { cluster } => return self.remove_former(caller, id, &uid, cluster),
            Call::Claim { shard } => self.claim(caller, &own, &uid, shard),
            Call::ReadPages { cluster, shard, flush } => {
                (self.rng.uniform(0.02, 0.3), self.read_pages(caller, &cluster, shard, flush.as_deref()))
            }
            Call::PutHead { head, .. } => return self.put_head(caller, id, &head),
            Call::PutPage { shard, page } => {
                let key = (Service::Exports { cluster: own, shard }, page.id.to_string().into());
                return self.write(caller, id, key, Some(Value::Page(page)));
            }
            Call::DeletePage { cluster, shard, page } => {
                let key = (Service::Exports { cluster, shard }, page.to_string().into());
                return self.write(caller, id, key, None);
            }
        };
        self.at(delay, Event::Done { caller, id, outcome });
    }

    /// Writes the key of a cluster, unless discovery shows it.
    fn announce(&mut self, caller: Caller, id: CallId, own: Arc<str>) {
        let key = self.clusters[self.procs[caller.proc].cluster].key;
        let announced = Announced { key, former: Vec::new() };
        let service = Service::Exports { cluster: own, shard: 0 };
        let rows = self.registry.discover(self.now, &mut self.rng, &service);
        if rows.iter().any(|(_, value)| matches!(value, Value::Key(key) if **key == announced)) {
            return self.at(0.1, Event::Done { caller, id, outcome: Outcome::Done });
        }
        self.write(caller, id, (service, KEY_INSTANCE.into()), Some(Value::Key(Arc::new(announced))));
    }

    /// The first value of a kind that discovery shows in a cluster's first service of exports.
    fn find<T>(
        &mut self,
        caller: Caller,
        cluster: Arc<str>,
        outcome: impl Fn(Option<T>) -> Outcome,
        of_kind: impl Fn(Value) -> Option<T>,
    ) -> (f64, Outcome) {
        let bad = self.throttled(caller, false);
        let rows = self.registry.discover(self.now, &mut self.rng, &Service::Exports { cluster, shard: 0 });
        let found = rows.into_iter().find_map(|(_, value)| of_kind(value));
        (self.rng.uniform(0.02, 0.3), if bad { failed("throttled") } else { outcome(found) })
    }

    /// Deletes the services and the head of an id that the cluster had before.
    fn remove_former(&mut self, caller: Caller, id: CallId, uid: &Arc<str>, former: Arc<str>) {
        let service = Service::Exports { cluster: former.clone(), shard: 0 };
        if self.registry.services.get(&service).is_some_and(|owner| owner != uid) {
            return self.at(0.1, Event::Done { caller, id, outcome: Outcome::Done });
        }
        let of_it = |service: &Service| matches!(service, Service::Exports { cluster: of, .. } if *of == former);
        // The key and the copy are deleted with the service, but no pages.
        let is_page = |value: &Value| matches!(value, Value::Page(_));
        let mut services = self.registry.committed.iter();
        if services.any(|(service, rows)| of_it(service) && rows.values().any(is_page)) {
            return self.at(0.5, Event::Done { caller, id, outcome: failed("the service is in use") });
        }
        self.registry.services.retain(|service, _| !of_it(service));
        self.operate(caller, id, (Service::Clusters, former), None);
    }

    fn put_head(&mut self, caller: Caller, id: CallId, head: &Arc<Head>) {
        if self.rng.chance(0.01) {
            // Who signed it is not in these attributes.
            let read = Head::from_instance(&head.to_instance()).map(|read| Head { signer: head.signer, ..read });
            assert_eq!(read.as_ref(), Ok(&**head), "a head survives its attributes");
        }
        self.trace(|s| {
            let runs = head.root.runs.iter().map(RootRun::page);
            let pages: Vec<_> = head.root.pages.iter().chain(runs).map(|page| page.id.to_string()).collect();
            let delta = head.delta.changes().len();
            format!(
                "{} says {} {} (state {}) {:?} {pages:?} + {delta}",
                s.name(caller.proc),
                head.cluster,
                head.position,
                head.summary.version,
                head.presence
            )
        });
        self.check_summary(caller.proc, head);
        let key = (Service::Clusters, head.cluster.clone());
        let signer = self.scenario.signed.then_some(self.clusters[self.procs[caller.proc].cluster].key);
        let head = Arc::new(Head { signer, ..Head::clone(head) });
        self.write(caller, id, key, Some(Value::Head(head)));
    }

    fn claim(&mut self, caller: Caller, own: &Arc<str>, uid: &Arc<str>, shard: u32) -> (f64, Outcome) {
        if self.throttled(caller, true) {
            return (self.rng.uniform(0.05, 1.0), failed("throttled"));
        }
        let service = Service::Exports { cluster: own.clone(), shard };
        let created = !self.registry.services.contains_key(&service);
        let owner = self.registry.services.entry(service).or_insert_with(|| uid.clone()).clone();
        if !self.calm && self.rng.chance(self.scenario.unknown) {
            return (1.0, failed("time-out"));
        }
        let exists = |shard: &u32| {
            self.registry.services.contains_key(&Service::Exports { cluster: own.clone(), shard: *shard })
        };
        let shards = (0..MAX_SHARDS).rev().find(exists).map_or(0, |last| last + 1);
        let outcome = if owner == *uid {
            Outcome::Claimed { created, shards }
        } else {
            Outcome::Taken { owner: owner.to_string() }
        };
        (self.rng.uniform(0.02, 0.5), outcome)
    }

    fn read_pages(&mut self, caller: Caller, cluster: &Arc<str>, shard: u32, flush: Option<&str>) -> Outcome {
        if self.throttled(caller, false) {
            return failed("throttled");
        }
        let service = Service::Exports { cluster: cluster.clone(), shard };
        let rows = self.registry.discover(self.now, &mut self.rng, &service);
        let mut pages: Vec<_> = rows
            .into_iter()
            .filter_map(|(_, value)| match value {
                Value::Page(page) if flush.is_none_or(|flush| *page.id.flush == *flush) => Some(page),
                _ => None,
            })
            .collect();
        let truncated = !self.calm && self.rng.chance(self.scenario.truncate);
        if truncated {
            pages.retain(|_| self.rng.chance(0.5));
        }
        Outcome::Pages(Arc::new(Pages { pages, truncated }))
    }

    pub(super) fn read_heads(&mut self, proc: usize) -> Option<Heads> {
        let caller = self.caller(proc);
        if self.throttled(caller, false) || (!self.calm && self.rng.chance(self.scenario.truncate)) {
            return None;
        }
        let rows = self.registry.discover(self.now, &mut self.rng, &Service::Clusters);
        let heads = rows.into_iter().filter_map(|(id, value)| match value {
            Value::Head(head) => Some((id, Ok(head))),
            Value::Page(_) | Value::Key(_) => None,
        });
        Some(heads.collect())
    }

    /// An asynchronous operation.
    fn write(&mut self, caller: Caller, id: CallId, key: (Service, Arc<str>), value: Option<Value>) {
        let uid = self.clusters[self.procs[caller.proc].cluster].uid.clone();
        let owned = match &key.0 {
            Service::Clusters => Service::Exports { cluster: key.1.clone(), shard: 0 },
            exports @ Service::Exports { .. } => exports.clone(),
        };
        match self.registry.services.get(&owned) {
            Some(owner) if *owner == uid => {}
            // It went meanwhile. Whoever writes a page claims the id anew, and tries again.
            None if key.0 == owned => {
                if value.is_some() {
                    self.registry.services.insert(owned, uid);
                }
                return self.at(0.1, Event::Done { caller, id, outcome: failed("there is no such service") });
            }
            None => {}
            Some(_) => {
                self.violate("I5", format!("{} writes {key:?}, which is not its own", self.name(caller.proc)));
            }
        }
        self.operate(caller, id, key, value);
    }

    /// As [`write`](Self::write), whosever it is.
    fn operate(&mut self, caller: Caller, id: CallId, key: (Service, Arc<str>), value: Option<Value>) {
        self.count(match (&key.0, &value) {
            (Service::Clusters, _) => "head writes",
            (_, Some(_)) => "page writes",
            (_, None) => "page deletions",
        });
        let unknown = if self.calm { 0.0 } else { self.scenario.unknown };
        if self.throttled(caller, true) {
            let delay = self.rng.uniform(0.05, 1.0);
            return self.at(delay, Event::Done { caller, id, outcome: failed("throttled") });
        }
        if self.rng.chance(unknown / 2.0) {
            return self.at(CALL_LIMIT, Event::Done { caller, id, outcome: failed("time-out") });
        }
        if !self.registry.in_flight.insert(key.clone()) {
            return self.at(0.1, Event::Done { caller, id, outcome: failed("another operation is running") });
        }
        let mut latency = 0.1 + (self.scenario.latency - 0.1) * self.rng.fraction().powi(2);
        if !self.calm && self.rng.chance(self.scenario.slow) {
            latency = self.rng.uniform(5.0, 40.0);
        }
        if !self.calm && key.0 == Service::Clusters && self.rng.chance(self.scenario.stuck) {
            latency = self.rng.uniform(40.0, 150.0);
        }
        let fails = !self.calm && self.rng.chance(self.scenario.fail);
        let lost = self.rng.chance(unknown / 2.0) || self.scenario.unobserved;
        let limit = if lost { CALL_LIMIT } else { OPERATION_LIMIT };
        let answer = if lost || latency > OPERATION_LIMIT {
            self.at(limit, Event::Done { caller, id, outcome: failed("time-out") });
            None
        } else {
            Some((caller, id))
        };
        self.at(latency, Event::Commit { caller, key, value, fails, answer });
    }

    pub(super) fn commit(
        &mut self,
        caller: Caller,
        key: (Service, Arc<str>),
        value: Option<Value>,
        fails: bool,
        answer: Option<(Caller, CallId)>,
    ) {
        self.registry.in_flight.remove(&key);
        let uid = self.clusters[self.procs[caller.proc].cluster].uid.clone();
        let fails = fails || (!self.calm && self.write_outage(&uid) && self.rng.chance(0.3));
        if !fails {
            // A copy counts as well.
            if let Some(Value::Head(head)) = &value {
                self.history.committed.insert((head.cluster.clone(), head.summary.hashes.state));
            }
            if let (Service::Clusters, Some(Value::Head(head))) = (&key.0, &value) {
                self.registry.said.push(head.clone());
                self.expect_claims_read(head);
            }
            self.registry.put(self.now, &mut self.rng, &key, value);
        }
        if let Some((caller, id)) = answer {
            let delay = self.rng.uniform(0.0, 0.5);
            let outcome = if fails { failed("the operation failed") } else { Outcome::Done };
            self.at(delay, Event::Done { caller, id, outcome });
        }
    }

    fn kube_latency(&mut self) -> f64 {
        if self.scenario.kube && !self.calm && self.rng.chance(0.1) {
            self.rng.uniform(0.5, 4.0)
        } else {
            self.rng.uniform(0.01, 0.2)
        }
    }

    /// The call reaches the Kubernetes API server.
    pub(super) fn kube(&mut self, caller: Caller, id: CallId, call: Call) {
        let cluster = self.procs[caller.proc].cluster;
        let down = self.kube_down(cluster);
        let flaky = self.scenario.kube && !self.calm;
        let (fails, lost) = (flaky && self.rng.chance(0.05), flaky && self.rng.chance(0.05));
        let mut given_up = Vec::new();
        let c = &mut self.clusters[cluster];
        let outcome = match call {
            _ if down || fails => failed("the API server does not answer"),
            Call::StoreRecord { record, expected } => {
                let stored = c.record.as_ref().map(|(_, version)| version.to_string());
                if stored == expected {
                    for (id, accepted) in &record.accepted {
                        let before = c.record.as_ref().and_then(|(record, _)| record.accepted.get(id));
                        if let Some(before) = before.filter(|before| before.position > accepted.position) {
                            // Positions of different UIDs are not comparable.
                            if before.uid == accepted.uid {
                                given_up.push(format!("{} of {id} for {}", before.position, accepted.position));
                            }
                            c.may_go_back.insert(id.as_str().into());
                        }
                    }
                    for (id, streamed) in &record.streamed {
                        let key = (id.as_str().into(), streamed.uid.as_str().into());
                        let newest = c.recorded.entry(key).or_default();
                        *newest = streamed.version.max(*newest);
                    }
                    c.record_version += 1;
                    c.record = Some((*record, c.record_version));
                    let version = Some(c.record_version.to_string());
                    if lost { failed("the answer was lost") } else { Outcome::Stored { version } }
                } else {
                    Outcome::Conflict
                }
            }
            _ => {
                let (record, version) = c.record.clone().unzip();
                Outcome::Loaded {
                    record: Box::new(record.unwrap_or_default()),
                    version: version.map(|v| v.to_string()),
                }
            }
        };
        if !given_up.is_empty() {
            self.count("positions given up");
            // Of two leaders, after somebody deleted the Lease, one may store less than the other one knows.
            let leads =
                |&other: &usize| other != caller.proc && self.now <= self.procs[other].lease_until + micros(CALL_LIMIT);
            let alone = !self.clusters[cluster].procs.iter().any(leads);
            if alone && !self.scenario.gives_positions_up() {
                let name = self.name(caller.proc);
                self.violate("I2", format!("{name} gives up {given_up:?}"));
            }
        }
        self.done(caller, id, outcome);
    }
}
