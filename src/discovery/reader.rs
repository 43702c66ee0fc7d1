//! The task that reads.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{backend::NoEndpoint, call, engine::Engine, reading::Discovered};
use base::env;
use cloudmap::Listings;
use instances::Owner;
use model::ClusterSetId;

/// How many calls a second reading may use by default: enough to read 200 services every 4 s.
pub(crate) const CALLS_PER_SECOND: f64 = 60.0;
/// Minimum time between two publications, because many services change at the same moment.
const PUBLISH: Duration = Duration::from_millis(50);
/// How often the statistics are updated.
const MEASURE: Duration = Duration::from_secs(1);
/// Maximum sleep.
const REST: Duration = Duration::from_secs(10);

/// Settings of the reader.
#[derive(Debug, Clone)]
pub struct DiscoverySettings {
    /// Our identity: instances of our ClusterSet are not foreign.
    pub identity: Owner,
    /// How many calls a second reading may use, greater than 0. Listings of namespaces and services are not included:
    /// at most one call in two seconds.
    pub calls_per_second: f64,
    /// Whether instances of AWS controllers of our ClusterSet are exports (`--aws-mcs-compat`).
    pub aws_mcs: bool,
}

impl DiscoverySettings {
    /// The default settings.
    pub const fn new(identity: Owner) -> Self {
        Self { identity, calls_per_second: CALLS_PER_SECOND, aws_mcs: false }
    }

    /// The ClusterSet whose AWS controllers' instances are exports, if any.
    pub(super) fn aws_mcs(&self) -> Option<&ClusterSetId> {
        self.identity.clusterset.as_ref().filter(|_| self.aws_mcs)
    }
}

/// Statistics for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DiscoveryFigures {
    /// Subscribed Cloud Map namespaces.
    pub namespaces: usize,
    /// Subscribed Cloud Map namespaces that are missing or could not be listed.
    pub unreadable_namespaces: usize,
    /// Services in them.
    pub services: usize,
    /// Services whose last reading failed.
    pub unreadable_services: usize,
    /// Foreign instances that can be endpoints.
    pub instances: usize,
    /// Foreign instances that cannot, by [`NoEndpoint::CATEGORIES`].
    pub rejected: [usize; NoEndpoint::CATEGORIES.len()],
    /// Time from one reading of a service that does not change to the next.
    pub idle_period: Duration,
    /// Time from one reading of a service that changed within the last minute to the next.
    pub active_period: Duration,
    /// Number of readings a second that follow from these periods.
    pub calls_per_second: f64,
}

impl DiscoveryFigures {
    /// Those of two registries together.
    #[must_use]
    pub(super) fn and(self, other: Self) -> Self {
        let mut rejected = self.rejected;
        for (count, more) in rejected.iter_mut().zip(other.rejected) {
            *count += more;
        }
        Self {
            namespaces: self.namespaces + other.namespaces,
            unreadable_namespaces: self.unreadable_namespaces + other.unreadable_namespaces,
            services: self.services + other.services,
            unreadable_services: self.unreadable_services + other.unreadable_services,
            instances: self.instances + other.instances,
            rejected,
            idle_period: self.idle_period.max(other.idle_period),
            active_period: self.active_period.max(other.active_period),
            calls_per_second: self.calls_per_second + other.calls_per_second,
        }
    }
}

/// The outputs of the running task.
#[derive(Debug)]
pub struct DiscoveryHandle {
    pub(super) found: watch::Receiver<Arc<Discovered>>,
    pub(super) figures: watch::Receiver<DiscoveryFigures>,
}

impl DiscoveryHandle {
    /// What was discovered, and its changes.
    pub fn found(&self) -> watch::Receiver<Arc<Discovered>> {
        self.found.clone()
    }

    /// The statistics, and their changes.
    pub fn figures(&self) -> watch::Receiver<DiscoveryFigures> {
        self.figures.clone()
    }
}

/// Starts the task. It reads the Cloud Map namespaces in `subscribed` (names, ids or ARNs), and writes nothing. It ends when
/// that channel is closed.
pub(super) fn spawn(
    settings: DiscoverySettings,
    cloudmap: Arc<dyn cloudmap::Read>,
    listings: Arc<Listings>,
    subscribed: watch::Receiver<Arc<BTreeSet<Arc<str>>>>,
) -> DiscoveryHandle {
    let (found, found_receiver) = watch::channel(Arc::default());
    let (figures, figures_receiver) = watch::channel(DiscoveryFigures::default());
    env::spawn(run(settings, cloudmap, listings, subscribed, found, figures));
    DiscoveryHandle { found: found_receiver, figures: figures_receiver }
}

async fn run(
    settings: DiscoverySettings,
    cloudmap: Arc<dyn cloudmap::Read>,
    listings: Arc<Listings>,
    mut subscribed: watch::Receiver<Arc<BTreeSet<Arc<str>>>>,
    found: watch::Sender<Arc<Discovered>>,
    figures: watch::Sender<DiscoveryFigures>,
) {
    let settings = Arc::new(settings);
    let mut engine = Engine::new(&settings, Instant::now());
    engine.subscribe(&subscribed.borrow_and_update().clone(), Instant::now());
    let mut calls = FuturesUnordered::new();
    let (mut publish, mut measure) = (Instant::now(), Instant::now());
    loop {
        let now = Instant::now();
        while let Some(call) = engine.next(now) {
            calls.push(call::perform(cloudmap.clone(), listings.clone(), settings.clone(), call));
        }
        if now >= publish
            && let Some(changed) = engine.take_changed()
        {
            publish = now + PUBLISH;
            found.send_replace(Arc::new(changed));
        }
        if now >= measure {
            measure = now + MEASURE;
            let measured = engine.figures(now);
            figures.send_if_modified(|published| std::mem::replace(published, measured) != measured);
        }
        let mut wake = engine.wake(now).unwrap_or(now + REST).min(now + REST);
        if engine.has_changed() {
            wake = wake.min(publish);
        }
        // Never at once: timers have a resolution of one millisecond.
        let wake = wake.max(now + Duration::from_millis(1));
        tokio::select! {
            biased;
            changed = subscribed.changed() => {
                if changed.is_err() {
                    return;
                }
                engine.subscribe(&subscribed.borrow_and_update().clone(), Instant::now());
            }
            Some(event) = calls.next(), if !calls.is_empty() => engine.done(event, Instant::now()),
            () = sleep_until(wake) => {}
        }
    }
}
