//! The heads of the registries beside the home: each is read by itself, so that one that is slow or away delays no other.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::Registry;
use crate::{RegistryName, call::Failure, writer::Heads};

/// As long as a registry has no ledger of the ClusterSet, the pause before it is asked again is doubled up to this. AWS allows
/// one listing in two seconds to all callers together, and whoever founds the ledger there needs some of them.
const NO_LEDGER: Duration = Duration::from_secs(30);
/// After a failure, the pause before the next read is doubled up to so many times.
const DOUBLED: u32 = 3;
/// After so many failures in a row, the namespace is looked for again: somebody may have deleted it, and another one has its name.
const LOST: u32 = 5;

/// A registry beside the home.
pub(super) struct Elsewhere {
    registry: Arc<Registry<dyn cloudmap::Read>>,
    read: Option<BoxFuture<'static, Answer>>,
    next: Instant,
    failures: u32,
    /// Why the last read failed, if it did.
    error: Option<String>,
    /// So many reads in a row found no ledger.
    without: u32,
    since: Option<Instant>,
}

/// `None`: there is no ledger.
pub(super) type Answer = Result<Option<Heads>, Failure>;

impl Elsewhere {
    pub(super) fn new(registry: Arc<Registry<dyn cloudmap::Read>>) -> Self {
        Self { registry, read: None, next: Instant::now(), failures: 0, error: None, without: 0, since: None }
    }

    /// Why the last read failed, if it did.
    pub(super) const fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }

    /// Waits until the next read is due, and then for its answer. It can be dropped and called again.
    async fn answer(&mut self) -> Answer {
        if self.read.is_none() {
            sleep_until(self.next).await;
        }
        let (registry, lost) = (&self.registry, self.failures > 0 && self.failures.is_multiple_of(LOST));
        let read = self.read.get_or_insert_with(|| {
            self.since = Some(Instant::now());
            let registry = Arc::clone(registry);
            async move { registry.read_ledger(lost).await }.boxed()
        });
        let answer = read.await;
        self.read = None;
        answer
    }

    /// Takes note of an answer, and returns the heads that it has. `pace`: when the next read begins after the beginning of this one.
    pub(super) fn take(&mut self, name: &RegistryName, answer: Answer, pace: Duration) -> Option<Heads> {
        let began = self.since.take().unwrap_or_else(Instant::now);
        match answer {
            Ok(heads) => {
                if self.failures > 0 {
                    info!(registry = %name, "the registry is read again");
                }
                (self.failures, self.error) = (0, None);
                self.without = if heads.is_none() { self.without.saturating_add(1) } else { 0 };
                let doubled = pace.saturating_mul(2u32.saturating_pow(self.without.saturating_sub(1)));
                self.next = began + doubled.min(NO_LEDGER).max(pace);
                // Where there is no ledger, there are no heads.
                Some(heads.unwrap_or_default())
            }
            Err(Failure { message }) => {
                if self.error.as_ref() != Some(&message) {
                    warn!(registry = %name, error = message, "the registry cannot be read; what was read stays");
                }
                self.failures += 1;
                self.error = Some(message);
                self.next = Instant::now() + pace * 2u32.pow(self.failures.min(DOUBLED));
                None
            }
        }
    }
}

/// The registry that has an answer first. It can be dropped and called again.
pub(super) async fn read_elsewhere(registries: &mut BTreeMap<RegistryName, Elsewhere>) -> (RegistryName, Answer) {
    if registries.is_empty() {
        return std::future::pending().await;
    }
    let answers = registries.iter_mut();
    let answers = answers.map(|(name, registry)| Box::pin(async move { (name.clone(), registry.answer().await) }));
    let (first, ..) = futures::future::select_all(answers).await;
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::fake::Fake;

    /// Whoever founds the ledger there needs listings, and AWS allows one in two seconds to all callers together.
    #[tokio::test(start_paused = true)]
    async fn a_registry_without_a_ledger_is_asked_more_and_more_seldom() {
        let fake: Arc<dyn cloudmap::Read> = Arc::new(Fake::new());
        let mut us = Elsewhere::new(Arc::new(Registry::new(fake, &"prod".parse().unwrap())));
        let name = RegistryName::from("us");
        let mut pauses = |answers: usize, none: bool| {
            let pause = |_| {
                us.since = Some(Instant::now());
                us.take(&name, Ok((!none).then(Heads::new)), Duration::from_secs(1));
                us.next.duration_since(Instant::now()).as_secs()
            };
            (0..answers).map(pause).collect::<Vec<_>>()
        };
        assert_eq!(pauses(8, true), [1, 2, 4, 8, 16, 30, 30, 30]);
        assert_eq!(pauses(2, false), [1, 1], "it is there");
        assert_eq!(pauses(2, true), [1, 2], "it was deleted");
    }
}
