//! The task that reads.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{backend::NoEndpoint, call, engine::Engine, reading::Found};
use crate::{cloudmap::CloudMap, env, instances::Identity, model::ClusterSetId};

/// Calls a second that reading may spend by default: enough to look at 200 services every 4 s.
pub(crate) const CALLS_PER_SECOND: f64 = 60.0;
/// What changed is published at most so often: many services change in the same moment.
const PUBLISH: Duration = Duration::from_millis(50);
/// How often the figures are brought up to date.
const MEASURE: Duration = Duration::from_secs(1);
/// Longest sleep.
const REST: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Settings {
    /// Whose instances are not foreign.
    pub identity: Identity,
    /// Greater than 0. Listings of namespaces and services are not part of it: at most one call in two seconds.
    pub calls_per_second: f64,
    /// The instances of AWS controllers of our ClusterSet are exports (`--aws-mcs-compat`).
    pub aws_mcs: bool,
}

impl Settings {
    pub const fn new(identity: Identity) -> Self {
        Self { identity, calls_per_second: CALLS_PER_SECOND, aws_mcs: false }
    }

    /// The ClusterSet whose AWS controllers' instances are exports.
    pub(super) fn aws_mcs(&self) -> Option<&ClusterSetId> {
        self.identity.clusterset.as_ref().filter(|_| self.aws_mcs)
    }
}

/// Sizes for metrics.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Figures {
    /// Cloud Map namespaces that are sought, and those of them that are missing or could not be listed.
    pub namespaces: usize,
    pub unreadable_namespaces: usize,
    /// Services in them, and those of them whose last look failed.
    pub services: usize,
    pub unreadable_services: usize,
    /// Instances of others that can be endpoints.
    pub instances: usize,
    /// Those that cannot, by [`NoEndpoint::CATEGORIES`].
    pub rejected: [usize; NoEndpoint::CATEGORIES.len()],
    /// From one look at a service that does not change to the next.
    pub idle_period: Duration,
    /// The same for one that changed within the last minute.
    pub active_period: Duration,
    /// Looks a second that come of these.
    pub calls_per_second: f64,
}

/// What the running task tells.
#[derive(Debug)]
pub struct Handle {
    found: watch::Receiver<Arc<Found>>,
    figures: watch::Receiver<Figures>,
}

impl Handle {
    pub fn found(&self) -> watch::Receiver<Arc<Found>> {
        self.found.clone()
    }

    pub fn figures(&self) -> watch::Receiver<Figures> {
        self.figures.clone()
    }
}

/// Starts the task, which reads the Cloud Map namespaces in `sought` (names or ids) and ends when that is closed. It
/// writes nothing.
pub fn spawn(
    settings: Settings,
    cloudmap: Arc<dyn CloudMap>,
    sought: watch::Receiver<Arc<BTreeSet<Arc<str>>>>,
) -> Handle {
    let (found, found_receiver) = watch::channel(Arc::default());
    let (figures, figures_receiver) = watch::channel(Figures::default());
    env::spawn(run(settings, cloudmap, sought, found, figures));
    Handle { found: found_receiver, figures: figures_receiver }
}

async fn run(
    settings: Settings,
    cloudmap: Arc<dyn CloudMap>,
    mut sought: watch::Receiver<Arc<BTreeSet<Arc<str>>>>,
    found: watch::Sender<Arc<Found>>,
    figures: watch::Sender<Figures>,
) {
    let settings = Arc::new(settings);
    let mut engine = Engine::new(&settings, Instant::now());
    engine.seek(&sought.borrow_and_update().clone(), Instant::now());
    let mut calls = FuturesUnordered::new();
    let (mut publish, mut measure) = (Instant::now(), Instant::now());
    loop {
        let now = Instant::now();
        while let Some(call) = engine.next(now) {
            calls.push(call::perform(cloudmap.clone(), settings.clone(), call));
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
        // Never at once again: the clock of timers has a resolution of a millisecond.
        let wake = wake.max(now + Duration::from_millis(1));
        tokio::select! {
            biased;
            changed = sought.changed() => {
                if changed.is_err() {
                    return;
                }
                engine.seek(&sought.borrow_and_update().clone(), Instant::now());
            }
            Some(event) = calls.next(), if !calls.is_empty() => engine.done(event, Instant::now()),
            () = sleep_until(wake) => {}
        }
    }
}
