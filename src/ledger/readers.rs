//! The readers of all registries: that of the home, and one for each further registry. Each of them knows the clusters whose
//! ledger is in its registry, and nothing that happens to one registry reaches the reader of another one.
//!
//! A cluster id belongs to one cluster in the whole ClusterSet, and within one registry W0 holds that. Where two registries have
//! an id, one of them counts, and all leaders that read both come to the same result:
//! - of two clusters, the one that is in the ledger for longer, as AWS says it (R10), and then the name of the registry;
//! - of one cluster, its newer position: it moved from one home to another.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    Map, RegistryName,
    call::{Call, CallId, Outbox, Outcome},
    diff::Diff,
    hash::Hashed,
    joining::Voter,
    reader::{Reader, TOO_LARGE},
    remote::{RemoteFigures, Remotes},
    stream::Contact,
    writer::{Heads, Now},
};
use crate::record::{Accepted, Gone};
use model::PublicKey;

/// The readers of all registries.
#[derive(Debug)]
pub(super) struct Readers {
    home: Reader,
    /// The name of the home; empty if it has none.
    home_name: RegistryName,
    elsewhere: BTreeMap<RegistryName, Reader>,
}

/// The cluster in another registry to which the own id belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// Its registry.
    pub registry: RegistryName,
    /// Its UID.
    pub uid: String,
}

/// What a registry has under an id, and its name.
type Found<'a> = (&'a RegistryName, &'a Accepted);

/// Whether two ledgers of one id are of one cluster: it has one UID, and one key or the key that it replaced. Who may write in one
/// registry can say the UID of a cluster in another one, but has not its key.
fn is_same(one: &Accepted, other: &Accepted) -> bool {
    let replaced = |new: &Accepted, old: &Accepted| old.key.is_some_and(|key| new.former.contains(&key));
    one.uid == other.uid && (one.key == other.key || replaced(one, other) || replaced(other, one))
}

/// Of what registries have under one id, what counts, and since when its cluster is in the ledger.
fn counting<'a>(found: &[Found<'a>]) -> Option<(Found<'a>, i64)> {
    // An id that a person rejected is nobody's.
    let rejected = found.iter().find(|(_, accepted)| accepted.gone == Some(Gone::Rejected));
    let mut clusters: Vec<Vec<Found<'a>>> = Vec::new();
    for it in found {
        match clusters.iter_mut().find(|cluster| cluster.iter().any(|other| is_same(it.1, other.1))) {
            Some(cluster) => cluster.push(*it),
            None => clusters.push(vec![*it]),
        }
    }
    let newest = |cluster: &[Found<'a>]| cluster.iter().max_by_key(|(name, it)| (it.position, Reverse(*name))).copied();
    let created = |cluster: &[Found<'a>]| {
        cluster.iter().map(|(_, accepted)| accepted.created).filter(|at| *at != 0).min().unwrap_or_default()
    };
    let first = |cluster: &[Found<'a>]| cluster.iter().map(|(name, _)| *name).min();
    let rank = |cluster: &Vec<Found<'a>>| {
        let gone = newest(cluster).is_none_or(|(_, accepted)| accepted.gone.is_some_and(Gone::is_left));
        (gone, created(cluster) == 0, created(cluster), first(cluster))
    };
    let cluster = clusters.iter().min_by_key(|cluster| rank(cluster))?;
    match rejected {
        Some(it) => Some((*it, it.1.created)),
        None => Some((newest(cluster)?, created(cluster))),
    }
}

impl Readers {
    pub(super) fn new(home: Reader) -> Self {
        Self { home, home_name: RegistryName::default(), elsewhere: BTreeMap::new() }
    }

    /// Reads these registries, too. They share the memory that the home alone would have.
    pub(super) fn beside(
        self,
        home_name: RegistryName,
        names: &[RegistryName],
        make: impl Fn(usize) -> Reader,
    ) -> Self {
        let most = self.home.most() / (names.len() + 1);
        let elsewhere = names.iter().map(|name| (name.clone(), make(most).elsewhere(name.clone()))).collect();
        Self { home: make(most), home_name, elsewhere }
    }

    /// That of the home.
    pub(super) const fn home(&self) -> &Reader {
        &self.home
    }

    fn all(&self) -> impl Iterator<Item = &Reader> {
        std::iter::once(&self.home).chain(self.elsewhere.values())
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Reader> {
        std::iter::once(&mut self.home).chain(self.elsewhere.values_mut())
    }

    /// The reader that has what counts of a cluster.
    fn of(&mut self, cluster: &str) -> Option<&mut Reader> {
        self.all_mut().find(|reader| reader.counts(cluster))
    }

    /// Whether an entry of the record is of a registry that is read.
    pub(super) fn reads_from(&self, accepted: &Accepted) -> bool {
        accepted.registry.as_deref().is_none_or(|registry| self.elsewhere.contains_key(registry))
    }

    /// The heads of a registry: see [`Reader::tick`].
    pub(super) fn tick(
        &mut self,
        now: Now,
        registry: Option<&RegistryName>,
        max_step: Duration,
        heads: Option<&Heads>,
        out: &mut Outbox,
    ) {
        match registry {
            None => self.home.tick(now, max_step, heads, out),
            Some(name) => {
                let Some(reader) = self.elsewhere.get_mut(name) else { return };
                from(name, out, |out| reader.tick(now, max_step, heads, out));
            }
        }
        self.compare();
    }

    pub(super) fn done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) {
        if !self.home.done(now, id, outcome, out) {
            let mut rest = self.elsewhere.iter_mut();
            rest.any(|(name, reader)| from(name, out, |out| reader.done(now, id, outcome, out)));
        }
        self.compare();
    }

    pub(super) fn restore(&mut self, before: Option<&BTreeMap<String, Accepted>>, stored: &BTreeMap<String, Accepted>) {
        self.all_mut().for_each(|reader| reader.restore(before, stored));
        self.compare();
    }

    pub(super) fn commit(&mut self, now: Now, stored: &BTreeMap<String, Accepted>) {
        self.all_mut().for_each(|reader| reader.commit(now, stored));
    }

    pub(super) fn forget(&mut self, stored: &BTreeMap<String, Accepted>) {
        self.all_mut().for_each(|reader| reader.forget(stored));
    }

    /// Which ledger counts of each id that several registries have, and who is gone for good according to others.
    fn compare(&mut self) {
        if self.elsewhere.is_empty() {
            return;
        }
        let home = self.home_name.clone();
        let mut all = BTreeMap::<&Arc<str>, Vec<Found<'_>>>::new();
        for reader in self.all() {
            for (id, accepted) in reader.positions() {
                all.entry(id).or_default().push((reader.registry().unwrap_or(&home), accepted));
            }
        }
        let several = all.into_iter().filter(|(_, found)| found.len() > 1);
        let first: BTreeMap<Arc<str>, (RegistryName, i64)> = several
            .filter_map(|(id, found)| counting(&found).map(|((name, _), since)| (id.clone(), (name.clone(), since))))
            .collect();
        // Who owns the own id is a question of its own: see `owner`.
        let me = self.home.me().clone();
        for reader in self.all_mut() {
            let here = reader.registry().unwrap_or(&home).clone();
            let elsewhere = reader.registry().is_some();
            reader.give_way(|id| {
                if *id == me {
                    return elsewhere.then(|| home.clone());
                }
                first.get(id).map(|(name, _)| name).filter(|name| **name != here).cloned()
            });
            // A cluster that moved is there since it was in its former home.
            let here = first.iter().filter(|(_, (name, since))| *name == here && *since != 0);
            here.for_each(|(id, (_, since))| reader.date(id, *since));
        }
        let states: Vec<(Option<RegistryName>, Vec<Arc<Map>>)> =
            self.all().map(|reader| (reader.registry().cloned(), reader.live_states().cloned().collect())).collect();
        for reader in self.all_mut() {
            let others = states.iter().filter(|(name, _)| name.as_ref() != reader.registry());
            reader.bury(&others.flat_map(|(_, states)| states).collect::<Vec<_>>());
        }
    }

    /// The cluster in another registry to which the own id belongs, if it is there for longer than this one. `created`: since when
    /// this one is; 0 if that is not known.
    pub(super) fn owner(&self, created: i64) -> Option<Owner> {
        let me = self.home.me();
        let older = |(name, reader): (&RegistryName, &Reader)| {
            let (_, accepted) = reader.positions().find(|(id, _)| *id == me)?;
            let dated = created != 0 && accepted.created != 0 && !accepted.gone.is_some_and(Gone::is_left);
            let first = (accepted.created, name) < (created, &self.home_name);
            (dated && first).then(|| Owner { registry: name.clone(), uid: accepted.uid.clone() })
        };
        self.elsewhere.iter().find_map(older)
    }

    /// Another number whenever anything may have changed that readers know.
    pub(super) fn revision(&self) -> u64 {
        self.all().map(Reader::revision).sum()
    }

    /// The other clusters. Claims are judged by the home alone.
    pub(super) fn remotes(&self) -> Remotes {
        let mut remotes = self.home.remotes();
        for (name, reader) in &self.elsewhere {
            let Remotes { clusters, heads_read, unaccepted, all_live_verified, .. } = reader.remotes();
            remotes.clusters.extend(clusters);
            remotes.unaccepted.extend(unaccepted);
            remotes.all_read &= all_live_verified;
            remotes.others += 1;
            if !heads_read {
                remotes.unread.insert(name.clone());
            }
        }
        remotes.unaccepted.retain(|id| !remotes.clusters.contains_key(id) || remotes.clusters[id].state.is_none());
        remotes
    }

    pub(super) fn contacts(&self) -> BTreeMap<Arc<str>, Contact> {
        self.all().flat_map(Reader::contacts).collect()
    }

    /// Bytes that all other clusters may take, together.
    pub(super) fn most(&self) -> usize {
        self.all().map(Reader::most).sum()
    }

    pub(super) fn keep_budget(&mut self, now: Now) {
        self.all_mut().for_each(|reader| reader.keep_budget(now));
    }

    /// See [`Reader::streams`] and [`Reader::hold`].
    pub(super) fn hold(&mut self, id: &Arc<str>, streamed: &Hashed, diff: Option<&Arc<Diff>>) -> bool {
        let Some(reader) = self.of(id) else { return false };
        reader.streams(id);
        reader.hold(id, streamed, diff)
    }

    pub(super) fn believe(&mut self, cluster: &Arc<str>, uid: &str, key: PublicKey) {
        // Nobody knows yet in which registry it is.
        self.all_mut().for_each(|reader| reader.believe(cluster, uid, key));
        self.compare();
    }

    /// Whether the heads of all registries were read in this term, and it is known for each whether it counts.
    pub(super) fn all_read(&self) -> bool {
        self.all().all(Reader::is_verified)
    }

    pub(super) fn voters(&self) -> BTreeMap<Arc<str>, Voter> {
        self.all().flat_map(Reader::voters).collect()
    }

    pub(super) fn unaccepted(&self) -> BTreeSet<Arc<str>> {
        let unaccepted = self.all().flat_map(|reader| reader.unaccepted().iter().cloned());
        unaccepted.filter(|id| !self.all().any(|reader| reader.counts(id))).collect()
    }

    pub(super) fn forgettable(&self) -> impl Iterator<Item = &str> {
        self.all().flat_map(Reader::forgettable)
    }

    pub(super) fn proposal(&self) -> impl Iterator<Item = (&str, &Accepted)> {
        self.all().flat_map(Reader::proposal)
    }

    /// S10: see [`Reader::is_at_rest`]. A registry that cannot be read does not make the others be read more often.
    pub(super) fn is_at_rest(&self) -> bool {
        self.home.is_at_rest() && self.elsewhere.values().all(|reader| !reader.is_complete() || reader.is_at_rest())
    }

    pub(super) fn figures(&self) -> BTreeMap<Arc<str>, RemoteFigures> {
        self.all().flat_map(Reader::figures).collect()
    }

    /// Clusters that are too large, and why, without [`TOO_LARGE`].
    pub(super) fn refused(&self) -> BTreeMap<Arc<str>, String> {
        self.all().flat_map(Reader::refused).map(|(id, why)| (id.clone(), why)).collect()
    }

    /// Heads that do not count, and why.
    pub(super) fn ignored(&self) -> BTreeMap<Arc<str>, String> {
        let mut ignored = BTreeMap::new();
        for (name, reader) in &self.elsewhere {
            ignored.extend(reader.ignored().iter().map(|(id, why)| (id.clone(), format!("{why} (registry {name})"))));
        }
        ignored.extend(self.home.ignored().clone());
        ignored.extend(self.refused().into_iter().map(|(id, why)| (id, format!("{why}: {TOO_LARGE}"))));
        for reader in self.all() {
            for (id, registry) in reader.given_way().filter(|(id, _)| *id != self.home.me()) {
                let here = reader.registry().unwrap_or(&self.home_name);
                ignored.entry(id.clone()).or_insert_with(|| {
                    format!(
                        "registry {here} and registry {registry} both have a cluster {id}, and that of {registry} counts: give \
                         one of the clusters another id, or run `cloudmap-mcs purge --cluster {id}` in the registry that it left"
                    )
                });
            }
        }
        ignored
    }
}

/// Sends the calls of a reader to its registry.
fn from<T>(registry: &RegistryName, out: &mut Outbox, act: impl FnOnce(&mut Outbox) -> T) -> T {
    let before = out.calls.len();
    let result = act(out);
    for (_, call) in &mut out.calls[before..] {
        let inner = std::mem::replace(call, Call::LoadRecord);
        *call = Call::Elsewhere { registry: registry.clone(), call: Box::new(inner) };
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Position;

    fn ledger(uid: &str, key: Option<u8>, created: i64, epoch: u64) -> Accepted {
        let key = key.map(|key| PublicKey::from_bytes([key; 32]));
        let position = Position { epoch, seq: 1 };
        Accepted { position, created, ..Accepted::unread(uid.to_owned(), key) }
    }

    #[test]
    fn of_one_id_the_older_cluster_counts_and_of_one_cluster_what_it_said_last() {
        let gone = |gone, it: Accepted| Accepted { gone: Some(gone), ..it };
        let rotated = |it: Accepted| Accepted { former: vec![PublicKey::from_bytes([1; 32])], ..it };
        // The first one counts, in whichever registry it is.
        for (one, other, since, what) in [
            (ledger("a", Some(1), 10, 1), ledger("b", Some(2), 11, 9), 10, "the older one"),
            (ledger("a", Some(1), 10, 1), ledger("b", Some(2), 0, 9), 10, "the one whose date is known"),
            (ledger("a", Some(1), 20, 8), ledger("a", Some(1), 10, 7), 10, "the newer part of one cluster"),
            (ledger("a", None, 20, 8), ledger("a", None, 10, 7), 10, "the same where nothing is signed"),
            (rotated(ledger("a", Some(2), 20, 8)), ledger("a", Some(1), 10, 7), 10, "the same with another key"),
            (ledger("a", Some(1), 10, 7), ledger("a", Some(2), 20, 9), 10, "the older one, if somebody says its UID"),
            (ledger("a", Some(1), 10, 7), ledger("a", None, 20, 9), 10, "the same without a key"),
            (ledger("b", Some(2), 11, 1), gone(Gone::Left, ledger("a", Some(1), 10, 1)), 11, "the one that is there"),
            (gone(Gone::Rejected, ledger("b", Some(2), 11, 1)), ledger("a", Some(1), 10, 1), 11, "a rejection"),
        ] {
            for (here, there) in [("eu", "us"), ("us", "eu")] {
                let (here, there) = (RegistryName::from(here), RegistryName::from(there));
                let found = [(&here, &one), (&there, &other)];
                for found in [found, [found[1], found[0]]] {
                    let ((name, _), created) = counting(&found).unwrap();
                    assert_eq!((name, created), (&here, since), "{what}");
                }
            }
        }
        let names = ["eu", "us", "ap"].map(RegistryName::from);
        let (one, other) = (ledger("a", Some(1), 10, 1), ledger("b", Some(2), 10, 1));
        assert_eq!(counting(&[(&names[1], &one), (&names[0], &other)]).unwrap().0.0, &names[0], "then the name");
        // In whichever order they are looked at.
        let moved = [ledger("a", Some(1), 10, 7), ledger("b", Some(2), 15, 1), ledger("a", Some(1), 20, 8)];
        for order in [[0, 1, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let found = order.map(|at| (&names[at], &moved[at]));
            assert_eq!(counting(&found).unwrap().0.0, &names[2], "{order:?}");
        }
    }
}
