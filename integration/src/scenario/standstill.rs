//! Times at which the machine stood still: a virtual machine that is suspended, or starved of its processors. Whatever fails then
//! says nothing of the product. Timers that all ran out meanwhile fail a little later.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::task::spawn_blocking;

/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(500);
/// Shorter ones fail nothing.
const SHORTEST: u64 = 8;
/// Probes, leases and queries that ran out meanwhile may fail what comes so many seconds later.
const AFTER: u64 = 30;

/// From when to when something lasted, in seconds since 1970: a standstill, or a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u64,
    pub(super) until: u64,
}

impl Span {
    pub(super) const fn lasts(self) -> u64 {
        self.until.saturating_sub(self.from)
    }

    /// Whether a request may have failed because of this standstill.
    pub(super) const fn disturbs(self, request: Self) -> bool {
        request.from <= self.until + AFTER && request.until >= self.from
    }
}

/// Runs something, and gives the times at which this process stood still meanwhile.
pub(super) async fn watch<T>(during: impl Future<Output = T>) -> (T, Vec<Span>) {
    // On a thread of its own: a test that keeps its own threads busy is no standstill.
    let (stop, stopped) = mpsc::channel::<()>();
    let watcher = thread::spawn(move || {
        let (mut found, mut last) = (Vec::new(), now());
        while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
            let tick = Span { from: last, until: now() };
            found.extend((tick.lasts() >= SHORTEST).then_some(tick));
            last = tick.until;
        }
        found
    });
    let outcome = during.await;
    drop(stop);
    (outcome, spawn_blocking(|| watcher.join().unwrap_or_default()).await.unwrap_or_default())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
