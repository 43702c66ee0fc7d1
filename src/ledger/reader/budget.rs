//! What all other clusters may take in memory, together. Each may have a state of the size that one cluster may have
//! ([`MAX_STATE_BYTES`]), but a thousand of them may not: whoever has one role can write states under many ids.
//!
//! The largest is refused first, so that no cluster pays for another one that is larger. Nothing of a refused cluster is
//! deleted (R8): it counts as not read.

use std::{sync::Arc, time::Duration};

use super::{Held, Peer, Reader};
use crate::{Map, Value, fetch::Fetch, limits::MAX_STATE_BYTES, writer::Now};

/// What a pair takes beside its bytes: two shared allocations, and its place in a leaf.
const PAIR: usize = 64;
/// A refused cluster is read again after this time. It may be smaller by then.
const AGAIN: Duration = Duration::from_mins(5);

/// What to do about a cluster that is refused.
pub const TOO_LARGE: &str = "look at what it exports, or raise --remote-memory and the memory limit of the controller";

/// A cluster whose state does not fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    /// What it took, at least.
    bytes: usize,
    /// When to read it again.
    pub(super) until: Duration,
}

/// What a pair takes in memory.
pub(crate) fn cost(key: &str, value: &Value) -> usize {
    key.len() + value.len() + PAIR
}

/// What a state takes that another one does not have, with which it shares the rest.
pub(super) fn added(before: Option<&Arc<Map>>, after: &Map) -> usize {
    match before {
        Some(before) => before.difference(after).filter_map(|(key, _, value)| Some(cost(key, value?))).sum(),
        None => after.iter().map(|(key, value)| cost(key, value)).sum(),
    }
}

/// What another cluster may take beside `others`, so that it is not the one that is refused. Those that are larger do not
/// count, because they are refused before it.
fn room(most: usize, mut others: Vec<usize>) -> usize {
    others.sort_unstable();
    let (mut smaller, mut best) = (0, 0);
    for other in others {
        let Some(left) = most.checked_sub(smaller) else { return best };
        best = best.max(left.min(other.saturating_sub(1)));
        smaller += other;
    }
    most.checked_sub(smaller).map_or(best, |left| best.max(left))
}

impl Peer {
    /// What its states and pages take.
    pub(super) fn bytes(&self) -> usize {
        let pages = self.held.verified.as_ref().map_or(0, |base| base.cache.run_bytes());
        let read = self.reading.fetch.as_ref().map_or(0, Fetch::bytes);
        self.held.state_bytes + self.held.streamed.bytes() + pages + read
    }
}

impl Reader {
    /// Bytes that all other clusters may take, together.
    pub(crate) const fn most(&self) -> usize {
        self.most
    }

    /// What a cluster may take.
    pub(super) fn room_for(&self, id: &str) -> usize {
        let others = self.peers.iter().filter(|(other, _)| ***other != *id).map(|(_, peer)| peer.bytes());
        room(self.most, others.collect()).min(MAX_STATE_BYTES)
    }

    /// Drops what the budget has no room for: first former states that came by stream, then whole clusters, the largest
    /// first.
    pub(crate) fn keep_budget(&mut self, now: Now) {
        let mut total: usize = self.peers.values().map(Peer::bytes).sum();
        if total <= self.most {
            return;
        }
        for peer in self.peers.values_mut().filter(|peer| peer.held.streamed.len() > 1) {
            let before = peer.bytes();
            peer.held.streamed.forget_former();
            total = total.saturating_sub(before) + peer.bytes();
        }
        while total > self.most {
            let largest = self.peers.iter().max_by_key(|(_, peer)| peer.bytes());
            let Some((id, bytes)) = largest.map(|(id, peer)| (id.clone(), peer.bytes())) else { return };
            self.refuse(now, &id, bytes);
            total -= bytes;
        }
    }

    /// Drops everything that is known of a cluster but its position and its key.
    pub(super) fn refuse(&mut self, now: Now, id: &Arc<str>, bytes: usize) {
        self.revision += 1;
        let most = self.most;
        let Some(peer) = self.peers.get_mut(id) else { return };
        peer.refused = Some(Refused { bytes, until: now.mono + AGAIN });
        (peer.applied, peer.candidate, peer.reading.fetch) = (None, None, None);
        peer.held = Held::default();
        peer.reading.problem = Some(format!("{}: {TOO_LARGE}", why(bytes, most)));
    }

    /// Clusters whose states do not fit, and why, without [`TOO_LARGE`].
    pub(crate) fn refused(&self) -> impl Iterator<Item = (&Arc<str>, String)> {
        self.peers.iter().filter_map(|(id, peer)| Some((id, why(peer.refused?.bytes, self.most))))
    }
}

fn why(bytes: usize, most: usize) -> String {
    format!(
        "its state takes {} MiB or more, it is the largest, and all other clusters together may take {} MiB",
        bytes.div_ceil(1 << 20),
        most >> 20
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{hash::Hashes, limits::Timing, trust::Trust, writer::WriterIdentity};

    #[test]
    fn there_is_room_beside_smaller_clusters_whatever_larger_ones_take() {
        for (others, expected) in [
            (vec![], 100),
            (vec![30], 70),
            (vec![60], 59),
            (vec![10, 20], 70),
            (vec![40, 40, 40], 39),
            (vec![90, 10], 89),
            (vec![100, 100], 99),
        ] {
            assert_eq!(room(100, others.clone()), expected, "{others:?}");
        }
    }

    fn reader(peers: Vec<(&str, Peer)>) -> Reader {
        let me = WriterIdentity { clusterset: "prod".into(), cluster: "red".into(), uid: "uid-red".into() };
        let mut reader = Reader::new(me, Timing::default(), None, Trust::default(), 1_000);
        reader.peers = peers.into_iter().map(|(id, peer)| (id.into(), peer)).collect();
        reader.keep_budget(Now { mono: Duration::ZERO, wall: 0 });
        reader
    }

    /// So many states that came by stream, each of one other pair.
    fn peer(state_bytes: usize, streamed: u8) -> Peer {
        let mut peer = Peer { held: Held { state_bytes, ..Held::default() }, ..Peer::default() };
        let owner = WriterIdentity { clusterset: "prod".into(), cluster: "green".into(), uid: "uid-green".into() };
        for n in 0..streamed {
            let map = Arc::new(Map::from([("a".into(), Value::from([n; 100]))]));
            peer.held.streamed.push(Hashes::of(&owner, &map), &map, None, None);
        }
        peer
    }

    #[test]
    fn former_states_go_before_any_cluster_does_and_then_the_largest_one() {
        let refused = |reader: &Reader| reader.refused().map(|(id, _)| id.to_string()).collect::<Vec<_>>();
        let few = reader(vec![("blue", peer(300, 0)), ("green", peer(100, 3))]);
        assert_eq!((few.peers["green"].held.streamed.len(), refused(&few).len()), (3, 0));
        let many = reader(vec![("blue", peer(300, 0)), ("green", peer(100, 64))]);
        assert_eq!((many.peers["green"].held.streamed.len(), refused(&many).len()), (1, 0), "the newest one stays");
        let large = reader(vec![("blue", peer(300, 0)), ("green", peer(100, 64)), ("lime", peer(600, 0))]);
        assert_eq!(refused(&large), ["lime"]);
        assert_eq!(large.peers["lime"].bytes(), 0);
    }

    proptest! {
        /// Whoever keeps to its room is not refused, and whoever takes more is, unless somebody larger goes.
        #[test]
        fn who_keeps_to_its_room_stays(others in prop::collection::vec(0usize..60, 0..8), more in 1usize..20) {
            let stays = |own: usize| {
                let mut all: Vec<(usize, bool)> = others.iter().map(|other| (*other, false)).collect();
                all.push((own, true));
                while all.iter().map(|(bytes, _)| bytes).sum::<usize>() > 100 {
                    // Of two that are equal, either may go.
                    let largest = *all.iter().max().unwrap();
                    all.remove(all.iter().position(|it| *it == largest).unwrap());
                }
                all.contains(&(own, true))
            };
            let own = room(100, others.clone());
            prop_assert!(own == 0 || stays(own));
            prop_assert!(!stays(own + more) || own + more > 100);
        }
    }
}
