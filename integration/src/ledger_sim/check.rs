//! What must hold.

use std::{collections::BTreeMap, sync::Arc};

use ledger::{
    Map,
    hash::Hashes,
    head::Head,
    page::PageId,
    record::Version,
    remote::{Remote, Remotes},
    term::Term,
    verify::{self, Cache},
    writer::{Stage, WriterIdentity},
};
use model::ClusterId;

use super::{
    Sim,
    cluster::{Cluster, Imported, version_of},
    events::Event,
    joining::{self, Role},
    process::{Caller, Proc, timing},
    registry::{Service, Value, micros},
};

/// Seconds: the lag of replicas, the wait for a base, and then some.
const YOUNG: f64 = 30.0;
/// Seconds: the delay of claims, and the time in which a leader that does not rest begins and ends a read.
const CLAIM_DELAY: f64 = 10.0;
const SOON: f64 = 3.0;

impl Sim {
    /// The import side of `proc`'s cluster acts on what its reader says.
    pub(super) fn import(&mut self, proc: usize, before: &Remotes, remotes: &Remotes) {
        // It drops whom it rejects.
        if self.clusters[self.procs[proc].cluster].role == Role::Hostile {
            return;
        }
        // What came goes in before what left goes out.
        let (left, rest): (Vec<_>, Vec<_>) = remotes.clusters.iter().partition(|(_, remote)| remote.left);
        for (id, remote) in rest.into_iter().chain(left) {
            let same_state = |old: &Remote| match (&old.state, &remote.state) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b) && old.version == remote.version,
                (None, None) => (old.left, old.expired) == (remote.left, remote.expired),
                _ => false,
            };
            if before.clusters.get(id).is_some_and(same_state) {
                continue;
            }
            let held = before.clusters.get(id).and_then(|old| old.state.as_ref());
            let id: Arc<str> = id.as_str().into();
            if remote.left {
                self.check_left(proc, &id, remote);
            } else if remote.expired {
                self.check_expired(proc, &id);
            } else if let Some(state) = &remote.state {
                self.check_state(proc, &id, remote, state, held == Some(state));
            }
            // Anything else is not verified yet: nothing is touched (R8).
        }
    }

    fn writer(&self, uid: &str, id: &str) -> usize {
        let mut of_uid = (0..self.clusters.len()).filter(|&index| *self.clusters[index].uid == *uid);
        let first = of_uid.next().unwrap();
        of_uid.find(|&index| *self.clusters[index].expected_id == *id).unwrap_or(first)
    }

    /// Which version of the cluster, or of one of those with this UID, a state is.
    fn origin(&self, uid: &str, state: &Arc<Map>) -> Option<usize> {
        let own = if self.scenario.approvals { Arc::new(joining::own(state)) } else { state.clone() };
        let state = &own;
        let mut of_uid = self.clusters.iter().filter(|cluster| *cluster.uid == *uid);
        of_uid.find_map(|Cluster { states, .. }| {
            // Only the first state and those of a cluster that leaves have no number; they are empty.
            let version = version_of(state).or_else(|| states.iter().rposition(|state| state.is_empty()))?;
            states.get(version).is_some_and(|real| real == state).then_some(version)
        })
    }

    /// The processes of a cluster that publish.
    fn running(&self, cluster: &Cluster) -> impl Iterator<Item = &Proc> {
        let runs = |proc: &&Proc| proc.term.as_ref().is_some_and(|term| term.writer().stage() == Stage::Running);
        cluster.procs.iter().map(|&proc| &self.procs[proc]).filter(runs)
    }

    fn runs(&self, cluster: usize) -> bool {
        self.running(&self.clusters[cluster]).next().is_some()
    }

    /// `held`: this process had the same state before, and only who says it is new.
    fn check_state(&mut self, proc: usize, id: &Arc<str>, remote: &Remote, state: &Arc<Map>, held: bool) {
        let reader = self.procs[proc].cluster;
        let before = self.clusters[reader].imported.get(id).cloned();
        let epoch = remote.position.epoch.max(remote.version.map_or(0, |version| version.epoch));
        let (said, term) = (remote.version.unwrap_or_default(), self.procs[proc].term_number);
        self.check_committed(proc, id, remote);
        let position = remote.position;
        // A process that begins takes up what a new leader repeats that did not see the newest head.
        let begins = before.as_ref().is_some_and(|before| before.term != term);
        let repeated = begins
            && self.registry.said.iter().any(|head| {
                let here = (&head.cluster, &head.uid, head.position) == (id, &remote.uid, position);
                here && head.summary.version.epoch < position.epoch
            });
        let Some(version) = self.origin(&remote.uid, state) else {
            let (name, version) = (self.name(proc), version_of(state));
            return self.violate("I1", format!("{name} applies a state of {id} that never was (version {version:?})"));
        };
        if let Some(before) = before.as_ref().filter(|before| before.uid == remote.uid)
            && let Some(old) = before.version
            // The same state may be said by another leader as well.
            && version != old
            && !held
            // A leader whose Lease was deleted goes on for some seconds, and what comes by stream is not stored first.
            && !(self.network.streams && before.term > term)
            && (said.epoch, version) < (before.said.epoch, old)
            // A process that begins may take up what a new leader repeats that did not see the newest head. Nor does it know
            // of what a leader stores that goes on beside it.
            && (before.term == term
                || epoch <= before.epoch
                    && self.was_recorded(reader, id, before)
                    && !(repeated && position.epoch == before.epoch)
                    && !before.deposed)
            && !before.expired
            && !self.clusters[reader].may_go_back.remove(id)
            // Each of two clusters with one UID goes on from what the other one said, until one of them stops.
            && !self.clusters.iter().any(|cluster| cluster.twin && cluster.uid == remote.uid)
        {
            let name = self.name(proc);
            let what = format!(
                "{name} applies version {version} (epoch {}) of {id} after {old} ({})",
                position.epoch, before.epoch
            );
            self.violate("I2", what);
        }
        if before.is_none_or(|before| before.version != Some(version) || before.expired) {
            self.trace(|s| format!("{} applies {id} {} version {version}", s.name(proc), remote.position));
            let key = (self.clusters[reader].uid.clone(), id.clone());
            let seen = self.history.delivered.get(&key).copied().unwrap_or_default();
            for version in seen + 1..=version {
                if let Some(at) = self.history.state_times.get(&(remote.uid.clone(), version)) {
                    self.report.delays.push((self.now - at) as f64 / 1e6);
                }
            }
            self.history.delivered.insert(key, version.max(seen));
        }
        let uid = remote.uid.clone();
        let deposed = self.clusters[reader].procs.iter().any(|&other| self.procs[other].term_number > term);
        let imported = Imported { uid, epoch, said, term, deposed, version: Some(version), expired: false };
        self.clusters[reader].imported.insert(id.clone(), imported);
    }

    /// Whether what a former process applied was in the ledger or in the record: what came by stream within the last second
    /// is lost with the process.
    fn was_recorded(&self, reader: usize, id: &Arc<str>, before: &Imported) -> bool {
        let cluster = &self.clusters[reader];
        let recorded = cluster.recorded.get(&(id.clone(), before.uid.clone())).is_some_and(|it| *it >= before.said);
        let accepted = cluster.record.as_ref().and_then(|(record, _)| record.accepted.get(&**id));
        let known = |head: &&Arc<Head>| {
            head.cluster == *id
                && accepted.is_some_and(|it| it.position >= head.position)
                && head.summary.version == before.said
        };
        recorded || self.registry.said.iter().any(|head| known(&head))
    }

    /// I11: what claims are judged by was committed.
    fn check_committed(&mut self, proc: usize, id: &Arc<str>, remote: &Remote) {
        let Some(committed) = &remote.committed else { return };
        let owner = WriterIdentity { clusterset: "prod".into(), cluster: id.clone(), uid: remote.uid.clone() };
        let hashes = Hashes::of(&owner, committed);
        if !self.history.committed.contains(&(id.clone(), hashes.state)) {
            let name = self.name(proc);
            self.violate("I11", format!("{name} judges claims by a state of {id} that the registry never had"));
        }
    }

    /// I12: whoever leads should soon have read the claims in this head, and its own cluster once more when their delay is
    /// over. With faults nobody needs to.
    pub(super) fn expect_claims_read(&mut self, head: &Arc<Head>) {
        let claims = head.summary.hashes.claims;
        if self.history.claims.insert(head.cluster.clone(), claims) == Some(claims)
            || !self.scenario.calm
            || !head.is_live()
        {
            return;
        }
        let own = |proc: usize| self.clusters[self.procs[proc].cluster].uid == head.uid;
        // The key of a cluster that is new may not be visible yet.
        let knows = |term: &Term| term.reader().figures().get(&head.cluster).is_some_and(|it| it.position.is_some());
        let leads = |proc: &usize| {
            let term = self.procs[*proc].term.as_ref().filter(|term| own(*proc) || knows(term));
            term.is_some_and(|term| term.writer().stage() == Stage::Running && self.holds(*proc, 0.0))
        };
        for (proc, own) in (0..self.procs.len()).filter(leads).map(|proc| (proc, own(proc))).collect::<Vec<_>>() {
            let caller = self.caller(proc);
            for delay in [0.0, CLAIM_DELAY].iter().take(1 + usize::from(own)) {
                let began = self.now + micros(self.scenario.lag + delay);
                self.push(began + micros(SOON), Event::Claimed { caller, head: head.clone(), began });
            }
        }
    }

    pub(super) fn check_claims_read(&mut self, caller: Caller, head: &Head, began: u64) {
        let p = &self.procs[caller.proc];
        let Some(term) = p.term.as_ref().filter(|_| p.alive && p.term_number == caller.term) else { return };
        if p.read < began {
            let (name, read) = (self.name(caller.proc), p.read as f64 / 1e6);
            let what = format!(
                "{name} read the heads at {read:.1} s, and not since, with the claims in {} there",
                head.position
            );
            return self.violate("I12", what);
        }
        let position = term.reader().figures().get(&head.cluster).and_then(|figures| figures.position);
        let other = head.uid != self.clusters[p.cluster].uid;
        if other && position.is_none_or(|position| position < head.position) {
            let name = self.name(caller.proc);
            self.violate("I12", format!("{name} has not read {} {}, but {position:?}", head.cluster, head.position));
        }
        self.count(if other { "claims of others read" } else { "own claims read" });
    }

    /// I10, of a head that is sent.
    pub(super) fn check_summary(&mut self, proc: usize, head: &Head) {
        let (uid, epoch, version) = (head.uid.clone(), head.position.epoch, head.summary.version);
        let hashes = head.summary.hashes;
        if !head.is_live() {
            return;
        }
        // The hashes are bound to the id, which may change.
        let of_version = (format!("{uid} {}", head.cluster).into(), version);
        let said = *self.history.summaries.entry(of_version).or_insert(hashes);
        let term = self.procs[proc].term_number;
        let before = self.history.newest.insert((uid, epoch, term), version).unwrap_or_default();
        if said != hashes || version.is_before(before) {
            let name = self.name(proc);
            self.violate(
                "I10",
                format!("{name} says {} {version:?} {hashes:?} after {before:?}, {said:?}", head.position),
            );
        }
    }

    fn check_left(&mut self, proc: usize, id: &Arc<str>, remote: &Remote) {
        let (reader, writer) = (self.procs[proc].cluster, self.writer(&remote.uid, id));
        let before = self.clusters[reader].imported.get(id).cloned();
        if before.as_ref().is_none_or(|before| before.version.is_some()) {
            self.trace(|s| format!("{} drops {id} {}", s.name(proc), remote.position));
            let moved = self.clusters[writer].expected_id != *id;
            let adopted = self.clusters[reader]
                .imported
                .iter()
                .any(|(other, imported)| other != id && imported.uid == remote.uid && imported.version.is_some());
            let name = self.name(proc);
            if before.is_some() && moved && !adopted && !self.clusters[writer].left {
                self.violate("I3", format!("{name} drops {id} before its successor is there"));
            }
            let excused = self.clusters[reader].may_go_back.remove(id);
            let old = before.as_ref().map_or(0, |before| before.epoch);
            // Of two clusters with one UID, one that writes no head for as long as the other one waits is taken for its former id.
            let advances = self.registry.advances(id);
            let paused =
                advances.windows(2).next_back().is_none_or(|last| last[1] - last[0] >= timing().stranger.as_secs_f64());
            let mistaken = paused && self.clusters.iter().any(|cluster| cluster.twin && cluster.uid == remote.uid);
            if !moved && !self.clusters[writer].leaving && remote.position.epoch < old && !excused && !mistaken {
                self.violate("I3", format!("{name} drops {id}, which has not left"));
            }
        }
        let imported = Imported {
            uid: remote.uid.clone(),
            epoch: remote.position.epoch,
            said: Version::default(),
            term: 0,
            deposed: false,
            version: None,
            expired: false,
        };
        self.clusters[reader].imported.insert(id.clone(), imported);
    }

    /// With a TTL, a cluster may be dropped only if its head really paused for about the lease, outages of all not
    /// counted.
    fn check_expired(&mut self, proc: usize, id: &Arc<str>) {
        let reader = self.procs[proc].cluster;
        let Some(imported) = self.clusters[reader].imported.get_mut(id) else { return };
        if imported.expired {
            return;
        }
        imported.expired = true;
        let (lease, heartbeat) = (timing().lease.as_secs_f64(), timing().heartbeat.as_secs_f64());
        // It is heard later than it comes, by different times.
        let silence = timing().silence().as_secs_f64() + self.scenario.lag;
        let (now, from) = (self.seconds(), (self.seconds() - 3.0 * lease).max(0.0));
        let mut commits = vec![from];
        commits.extend(self.registry.advances(id).into_iter().filter(|at| *at > from));
        commits.push(now);
        let outages: Vec<(f64, f64)> = self
            .outages
            .writes
            .iter()
            .filter(|(_, _, whose)| whose.is_none())
            .chain(&self.outages.throttling)
            .map(|(from, to, _)| (*from as f64 / 1e6, *to as f64 / 1e6))
            .collect();
        // In an outage that lets the own head through, silence counts.
        let own = self.registry.advances(&self.clusters[reader].id);
        let own: Vec<f64> = [0.0].into_iter().chain(own).chain([now]).collect();
        let cut_off: Vec<_> = own.windows(2).filter(|pair| pair[1] - pair[0] > silence).collect();
        let overlap = |(a, b): (f64, f64), (c, d): (f64, f64)| (a.max(c), b.min(d));
        let length = |(from, to): (f64, f64)| (to - from).max(0.0);
        let longest = commits
            .windows(2)
            .map(|pair| {
                let excused = outages.iter().flat_map(|outage| {
                    cut_off.iter().map(|own| length(overlap(overlap(*outage, (own[0], own[1])), (pair[0], pair[1]))))
                });
                pair[1] - pair[0] - excused.sum::<f64>()
            })
            .fold(0.0, f64::max);
        if longest < lease - heartbeat - 10.0 {
            let name = self.name(proc);
            self.violate("I3", format!("{name} expires {id}, whose head never paused for more than {longest:.0} s"));
        }
        self.count("expired");
    }

    /// The UID of the cluster that claimed an id.
    fn owner(&self, id: &Arc<str>) -> Option<&Arc<str>> {
        self.registry.services.get(&Service::Exports { cluster: id.clone(), shard: 0 })
    }

    fn owns(&self, cluster: usize) -> bool {
        let c = &self.clusters[cluster];
        self.owner(&c.expected_id) == Some(&c.uid)
    }

    /// A leader that starts from nothing has lost where its instances are.
    pub(super) fn check_start(&mut self, proc: usize, own: &Map) {
        if !own.is_empty() || self.clusters[self.procs[proc].cluster].leaving {
            return;
        }
        let Cluster { uid, key, .. } = &self.clusters[self.procs[proc].cluster];
        let (uid, signer) = (uid.clone(), self.scenario.signed.then_some(*key));
        let heads = self.registry.committed.get(&Service::Clusters).into_iter().flat_map(BTreeMap::values);
        let own_heads = heads.filter_map(|value| match value {
            Value::Head(head) if head.uid == uid && head.signer == signer => Some(head.clone()),
            _ => None,
        });
        let Some(head) = own_heads.max_by_key(|head| head.position).filter(|head| head.is_live()) else { return };
        let rows = self
            .registry
            .committed
            .iter()
            .filter(|(service, _)| matches!(service, Service::Exports { cluster, .. } if *cluster == head.cluster));
        let pages = rows.flat_map(|(_, rows)| rows.values()).filter_map(|value| match value {
            Value::Page(page) => Some((page.id.clone(), page.clone())),
            Value::Head(_) | Value::Key(_) => None,
        });
        // One that is this young may be hidden by replicas that lag, beyond the time that a new leader waits for it.
        let last = self.registry.head_commits.get(&head.cluster).and_then(|commits| commits.last());
        if last.is_none_or(|(at, _)| self.seconds() - at < YOUNG) {
            return;
        }
        let verified = verify::verify(&head.root, &Cache::default(), &pages.collect());
        if verified.is_ok_and(|verified| !head.delta.apply(&verified.map).is_empty()) {
            let name = self.name(proc);
            self.violate(
                "I8",
                format!("{name} starts from nothing, although {} {} is there", head.cluster, head.position),
            );
        }
    }

    /// The state of another cluster that a cluster shows: that of its leader. What a deposed one saw last does not stay.
    fn shown(&self, reader: &Cluster, id: &str) -> Option<usize> {
        let leader = self.running(reader).max_by_key(|proc| proc.lease_until);
        let remote = leader.and_then(|leader| leader.seen.clusters.iter().find(|(other, _)| other.as_str() == id));
        match remote {
            Some((_, remote)) if remote.left || remote.expired => None,
            Some((_, Remote { uid, state: Some(state), .. })) => self.origin(uid, state),
            // Nothing is touched before it is verified (R8).
            _ => reader.imported.get(id).filter(|imported| !imported.expired)?.version,
        }
    }

    /// Whether the leader of a cluster has read another one itself: what a former leader read stays, and is shown.
    fn has_read(&self, reader: &Cluster, id: &str) -> bool {
        let leader = self.running(reader).max_by_key(|proc| proc.lease_until);
        let read = |(other, remote): (&ClusterId, &Remote)| other.as_str() == id && remote.state.is_some();
        leader.is_some_and(|leader| leader.seen.clusters.iter().any(read))
    }

    /// Who does not have what.
    pub(super) fn disagreements(&self) -> Vec<String> {
        let mut found = self.not_joined();
        let twins = self.clusters.iter().enumerate().filter(|(_, cluster)| cluster.twin);
        let running: Vec<_> = twins.map(|(index, _)| index).filter(|&index| self.runs(index)).collect();
        if self.clusters.iter().any(|cluster| cluster.twin) && running.len() != 1 {
            found.push(format!("I9: of two clusters with one UID {running:?} run"));
        }
        // It neither writes nor reads until an operator has given it a UID of its own.
        let stopped = |index: usize| self.clusters[index].twin && !running.contains(&index);
        for (index, writer) in self.clusters.iter().enumerate() {
            let id = &writer.expected_id;
            // Of two clusters with one id, one has it. Where nobody has it, nothing else is wrong.
            if !writer.leaving && !stopped(index) && self.owner(id).is_none() {
                found.push(format!("nobody claimed {id}"));
            }
            if !self.owns(index) || stopped(index) {
                continue;
            }
            for (other, reader) in self.clusters.iter().enumerate() {
                if reader.uid == writer.uid || reader.leaving || stopped(other) || !self.belong_together(index, other) {
                    continue;
                }
                let version = self.shown(reader, id);
                let name = format!("{} of {id}", reader.uid);
                if writer.leaving {
                    if version.is_some_and(|version| !writer.states[version].is_empty()) {
                        found.push(format!("{name}: not dropped"));
                    }
                // Two states of a cluster that withdrew everything are the same.
                } else if version.and_then(|version| writer.states.get(version)) != writer.states.get(writer.newest()) {
                    found.push(format!("{name}: {version:?} of {}", writer.newest()));
                // Who has not got its id has no leader that runs.
                } else if self.owns(other) && !self.has_read(reader, id) {
                    found.push(format!("{name}: not read by the present leader"));
                }
                if writer.id != *id
                    && reader.imported.get(&writer.id).is_some_and(|imported| imported.version.is_some())
                {
                    found.push(format!("{name}: the former id is still there"));
                }
            }
        }
        found
    }

    pub(super) fn check_final(&mut self) {
        let services: Vec<_> = self.registry.services.iter().map(|(s, uid)| (s.clone(), uid.clone())).collect();
        let mut live = BTreeMap::<Arc<str>, usize>::new();
        let mut pages = BTreeMap::<Arc<str>, BTreeMap<PageId, _>>::new();
        for (service, _) in &services {
            let Service::Exports { cluster, .. } = service else { continue };
            let rows = self.registry.committed.get(service).into_iter().flatten();
            let of_cluster = pages.entry(cluster.clone()).or_default();
            for (_, value) in rows {
                if let Value::Page(page) = value {
                    of_cluster.insert(page.id.clone(), page.clone());
                }
            }
        }
        for (service, uid) in &services {
            let Service::Exports { cluster, shard: 0 } = service else { continue };
            let writer = self.writer(uid, cluster);
            let head = self.registry.head(cluster).cloned();
            // Of a cluster that left, nobody repairs what somebody repeats, and nobody follows it.
            let repeated = self.scenario.mallory.is_some() && self.clusters[writer].left;
            if let Some(head) = head.as_ref().filter(|head| head.is_live() && head.uid == *uid && !repeated) {
                match verify::verify(&head.root, &Cache::default(), &pages[cluster]) {
                    Ok(verified) => {
                        live.insert(cluster.clone(), verified.layout.pages().count());
                    }
                    Err(missing) => {
                        self.violate("I7", format!("the final root of {cluster} is unreadable: {missing:?}"));
                    }
                }
            }
            let garbage =
                pages[cluster].len() - live.get(cluster).copied().unwrap_or_default().min(pages[cluster].len());
            let stopped = self.clusters[writer].twin && !self.runs(writer);
            let abandoned = stopped || head.is_none() && self.clusters[writer].expected_id != *cluster;
            if garbage > 0 && !abandoned {
                self.violate("I6", format!("{cluster} keeps {garbage} garbage pages"));
            }
        }
        // What a restored registry has again is in nobody's count until it is listed.
        // Who changes leaders again and again writes a little more in the two minutes that garbage stays, and the key and the
        // copy of a head count as well.
        let most = if self.scenario.restore { 140 } else { 110 };
        if self.registry.most_pages > most {
            self.violate("I6", format!("a service had {} pages", self.registry.most_pages));
        }
    }
}
