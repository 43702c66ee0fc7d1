//! The list of Cloud Map namespaces. It is read again from time to time while an object has host names.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tracing::warn;

use super::Zones;
use base::env;
use cloudmap::{ErrorKind, Listings};

/// Time between two listings. A new namespace takes names from the next one on.
const PERIOD: Duration = Duration::from_mins(1);
/// Pause after a failure. It doubles with each one in a row, but not while AWS throttles: then the next call waits for its turn
/// as well, and nothing happens to annotated objects before the first list.
const RETRY: Duration = Duration::from_secs(2);
/// After this many failures in a row, the failure is reported.
const SAID_AFTER: u32 = 3;
/// Throttling is reported if it lasts longer: an account allows few listings, and others need them, too.
const THROTTLED: Duration = Duration::from_mins(1);

/// What is known about the namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// The last complete list; `None` before the first one. It stays when a later listing fails.
    pub zones: Option<Arc<Zones>>,
    /// Why listing fails repeatedly, if it does.
    pub error: Option<String>,
}

/// Lists the namespaces once a minute, until it is dropped.
#[derive(Debug)]
pub struct Directory {
    wanted: watch::Sender<bool>,
    known: watch::Receiver<Known>,
    task: JoinHandle<()>,
}

impl Directory {
    /// Starts the task that lists.
    pub fn spawn(listings: Arc<Listings>) -> Self {
        let (wanted, asked) = watch::channel(false);
        let (sender, known) = watch::channel(Known::default());
        Self { wanted, known, task: env::spawn(follow(listings, asked, sender)) }
    }

    /// Sets whether any object needs the list.
    pub fn want(&self, wanted: bool) {
        self.wanted.send_if_modified(|held| std::mem::replace(held, wanted) != wanted);
    }

    /// What is known, and its changes.
    pub fn known(&self) -> watch::Receiver<Known> {
        self.known.clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(listings: Arc<Listings>, mut asked: watch::Receiver<bool>, known: watch::Sender<Known>) {
    let mut failures = 0u32;
    let mut failing_since = Instant::now();
    loop {
        if asked.wait_for(|wanted| *wanted).await.is_err() {
            return;
        }
        let begun = Instant::now();
        if failures == 0 {
            failing_since = begun;
        }
        let listed = listings.namespaces().await;
        failures = if listed.is_ok() { 0 } else { failures + 1 };
        known.send_if_modified(|known| {
            let now = match &listed {
                Ok(namespaces) => Known { zones: Some(Arc::new(Zones::new(namespaces))), error: None },
                Err(error) => {
                    let hiccup = error.kind == ErrorKind::Throttled && failing_since.elapsed() < THROTTLED;
                    let error = (failures >= SAID_AFTER && !hiccup).then(|| error.to_string());
                    Known { zones: known.zones.clone(), error }
                }
            };
            let changed = *known != now;
            *known = now;
            changed
        });
        match listed {
            Ok(_) => sleep_until(begun + PERIOD).await,
            Err(error) => {
                warn!(%error, "cannot list the Cloud Map namespaces; annotated host names stay as they are");
                let doublings = if error.kind == ErrorKind::Throttled { 0 } else { failures.min(5) };
                sleep(RETRY.saturating_mul(1 << doublings).min(PERIOD)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::{
        NamespaceKind, Operation,
        fake::{Fake, Fault},
    };

    #[tokio::test(start_paused = true)]
    async fn lists_only_while_needed_and_keeps_the_last_list_when_a_listing_fails() {
        let fake = Fake::new();
        fake.registry().add_namespace("internal", NamespaceKind::DnsPrivate);
        let directory = Directory::spawn(Listings::new(Arc::new(fake.clone())));
        let mut known = directory.known();
        sleep(PERIOD * 3).await;
        assert_eq!((fake.registry().count(Operation::ListNamespaces), known.borrow().clone()), (0, Known::default()));
        directory.want(true);
        let zones = known.wait_for(|known| known.zones.is_some()).await.unwrap().zones.clone();
        for _ in 0..SAID_AFTER {
            fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::AccessDenied));
        }
        let failed = known.wait_for(|known| known.error.is_some()).await.unwrap().clone();
        assert_eq!(failed.zones, zones);
        known.wait_for(|known| known.error.is_none()).await.unwrap();
        directory.want(false);
        sleep(PERIOD).await;
        let calls = fake.registry().count(Operation::ListNamespaces);
        sleep(PERIOD * 5).await;
        assert_eq!(fake.registry().count(Operation::ListNamespaces), calls);
    }

    #[tokio::test(start_paused = true)]
    async fn asks_again_soon_while_others_use_up_the_rate() {
        let fake = Fake::new();
        for _ in 0..6 {
            fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::Throttled));
        }
        let directory = Directory::spawn(Listings::new(Arc::new(fake)));
        let begun = Instant::now();
        directory.want(true);
        let mut known = directory.known();
        let known = known.wait_for(|known| *known != Known::default()).await.unwrap();
        assert!(known.zones.is_some() && known.error.is_none(), "a short time of it is nobody's concern: {known:?}");
        assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn says_that_aws_has_throttled_for_a_minute() {
        let fake = Fake::new();
        for _ in 0..60 {
            fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::Throttled));
        }
        let directory = Directory::spawn(Listings::new(Arc::new(fake)));
        let begun = Instant::now();
        directory.want(true);
        let mut known = directory.known();
        known.wait_for(|known| known.error.is_some()).await.unwrap();
        assert!((60..70).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
        let known = known.wait_for(|known| known.zones.is_some()).await.unwrap();
        assert_eq!(known.error, None);
    }
}
