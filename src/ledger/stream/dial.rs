//! S1: when a leader dials another one.

use std::{
    cell::LazyCell,
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use super::{Command, Contact, Stream, session::Session};

/// The next attempt to connect comes after this, doubled up to five times.
const PAUSE: Duration = Duration::from_millis(500);

/// The attempts to connect to a cluster.
#[derive(Debug, Default)]
pub(super) struct Dialling {
    pub running: bool,
    next: Duration,
    failures: u32,
    /// Where the last attempt went; empty before the first one.
    to: Arc<[SocketAddr]>,
}

impl Stream {
    /// Connects to every cluster with which there is no session.
    pub(super) fn dial(&mut self, now: Duration, contacts: &BTreeMap<Arc<str>, Contact>) {
        let here = |session: &Session| {
            let peer = session.peer.as_ref().map(|peer| peer.cluster.clone());
            peer.into_iter().chain(session.dialled.clone())
        };
        // Looking through the sessions for each cluster would take a thousand times a thousand steps, at every event. Mostly
        // all clusters are followed.
        let here = LazyCell::new(|| self.sessions.values().flat_map(here).collect::<BTreeSet<Arc<str>>>());
        for (cluster, contact) in contacts {
            let Some(key) = contact.key.filter(|_| contact.live && !contact.addresses.is_empty()) else { continue };
            if self.following.contains_key(cluster) || here.contains(cluster) || self.distrusted.contains_key(cluster) {
                continue;
            }
            let dialling = self.dialling.entry(cluster.clone()).or_default();
            if dialling.running {
                continue;
            }
            // A new leader listens elsewhere, and what failed says nothing about it.
            let same = dialling.to.is_empty() || dialling.to == contact.addresses;
            if same && now < dialling.next {
                self.wake = Some(self.wake.map_or(dialling.next, |wake| wake.min(dialling.next)));
                continue;
            }
            dialling.running = true;
            let addresses = contact.addresses.clone();
            dialling.to = addresses.clone();
            self.commands.push(Command::Dial { cluster: cluster.clone(), addresses, key });
        }
    }

    /// The next attempt comes later and later, and up to a second after that, so that not all come at once.
    pub(super) fn pause(&mut self, now: Duration, cluster: &Arc<str>) {
        let jitter = Duration::from_millis(self.ids.next() % 1_000);
        let dialling = self.dialling.entry(cluster.clone()).or_default();
        let pause = PAUSE * 2u32.pow(dialling.failures.min(5));
        dialling.failures += 1;
        dialling.next = now + pause + jitter;
    }
}
