//! What has arrived in the importing cluster: its EndpointSlices from the exporting one, as a watch shows them.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::StreamExt as _;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};

pub(super) const LABEL_SERVICE_NAME: &str = "multicluster.kubernetes.io/service-name";
pub(super) const LABEL_SOURCE_CLUSTER: &str = "multicluster.kubernetes.io/source-cluster";

/// The addresses that a service is to have, by service name.
pub(super) type Addresses = BTreeMap<String, BTreeSet<String>>;

/// Compares what there is with what is expected, service by service, as slices come and go.
#[derive(Debug, Default)]
struct Progress {
    expected: Addresses,
    /// By service, then by slice.
    present: HashMap<String, HashMap<String, BTreeSet<String>>>,
    /// Services whose addresses are not the expected ones.
    missing: BTreeSet<String>,
}

impl Progress {
    /// Adds to what is expected; an empty set of addresses means that the service is to have none.
    fn expect(&mut self, addresses: Addresses) {
        for (service, addresses) in addresses {
            self.expected.insert(service.clone(), addresses);
            self.compare(&service);
        }
    }

    fn put(&mut self, service: &str, slice: &str, addresses: BTreeSet<String>) {
        self.present.entry(service.to_owned()).or_default().insert(slice.to_owned(), addresses);
        self.compare(service);
    }

    fn remove(&mut self, service: &str, slice: &str) {
        if let Some(slices) = self.present.get_mut(service) {
            slices.remove(slice);
        }
        self.compare(service);
    }

    /// What is listed again replaces everything that was seen before.
    fn clear(&mut self) {
        self.present.clear();
        for service in self.expected.keys().cloned().collect::<Vec<_>>() {
            self.compare(&service);
        }
    }

    fn compare(&mut self, service: &str) {
        let Some(expected) = self.expected.get(service) else { return };
        let slices = self.present.get(service);
        let present: BTreeSet<&String> = slices.into_iter().flat_map(HashMap::values).flatten().collect();
        if present.len() == expected.len() && expected.iter().eq(present) {
            self.missing.remove(service);
        } else {
            self.missing.insert(service.to_owned());
        }
    }
}

/// When everything expected was there, or how much was missing at the last look.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Status {
    Missing(usize),
    CompleteSince(Instant),
}

impl Status {
    fn of(progress: &Progress) -> Self {
        match progress.missing.len() {
            0 => Self::CompleteSince(Instant::now()),
            missing => Self::Missing(missing),
        }
    }

    /// Takes the newer status, but keeps the time since when all is complete. Whether anything changed.
    fn advance(&mut self, now: Self) -> bool {
        let same = match (&*self, now) {
            (Self::CompleteSince(_), Self::CompleteSince(_)) => true,
            (Self::Missing(before), Self::Missing(now)) => *before == now,
            _ => false,
        };
        if !same {
            *self = now;
        }
        !same
    }
}

/// What is to arrive, and who wants to know when it is being compared with what is there.
#[derive(Debug)]
struct Expectation {
    addresses: Addresses,
    taken: oneshot::Sender<()>,
}

/// A watch of one cluster's imported EndpointSlices. The watch ends when this is dropped.
#[derive(Debug)]
pub(super) struct Arrivals {
    expect: mpsc::UnboundedSender<Expectation>,
    status: watch::Receiver<Status>,
    watch: JoinHandle<()>,
    recorded: Recorded,
}

/// When each address was seen first, while that is recorded.
type Recorded = Arc<Mutex<Option<HashMap<String, Instant>>>>;

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

impl Arrivals {
    /// Watches the slices of `namespace` that come from the cluster `source`.
    pub(super) fn watch(client: Client, namespace: &str, source: &str) -> Self {
        let (expect, mut expectations) = mpsc::unbounded_channel::<Expectation>();
        let (publish, status) = watch::channel(Status::CompleteSince(Instant::now()));
        let recorded = Recorded::default();
        let record = Arc::clone(&recorded);
        let config = watcher::Config::default().labels(&format!("{LABEL_SOURCE_CLUSTER}={source}"));
        let slices: Api<EndpointSlice> = Api::namespaced(client, namespace);
        let watch = tokio::spawn(async move {
            let mut progress = Progress::default();
            let mut events = pin!(watcher(slices, config).default_backoff());
            loop {
                tokio::select! {
                    event = events.next() => match event {
                        Some(Ok(event)) => {
                            note(&record, &event);
                            apply(&mut progress, event);
                        }
                        Some(Err(error)) => tracing::warn!(%error, "the watch of EndpointSlices failed and starts again"),
                        None => break,
                    },
                    Some(Expectation { addresses, taken }) = expectations.recv() => {
                        progress.expect(addresses);
                        publish.send_replace(Status::of(&progress));
                        // Nobody waits any more: nothing is lost.
                        let _ = taken.send(());
                    }
                }
                let now = Status::of(&progress);
                publish.send_if_modified(|status| status.advance(now));
            }
        });
        Self { expect, status, watch, recorded }
    }

    /// From now on, remembers when each address is seen first.
    pub(super) fn record(&self) {
        *self.recorded.lock().unwrap_or_else(PoisonError::into_inner) = Some(HashMap::new());
    }

    /// When each address was seen first since [`Self::record`].
    pub(super) fn recorded(&self) -> HashMap<String, Instant> {
        self.recorded.lock().unwrap_or_else(PoisonError::into_inner).clone().unwrap_or_default()
    }

    /// Says what is to arrive, beside what was expected before. Returns when arrivals are compared with it.
    pub(super) async fn expect(&self, addresses: Addresses) -> anyhow::Result<()> {
        let (taken, confirmed) = oneshot::channel();
        self.expect.send(Expectation { addresses, taken }).ok().context("the watch of EndpointSlices has ended")?;
        confirmed.await.context("the watch of EndpointSlices has ended")
    }

    /// When all that is expected had arrived.
    ///
    /// # Errors
    /// If that takes longer than `limit`.
    pub(super) async fn complete(&self, limit: Duration) -> anyhow::Result<Instant> {
        let mut status = self.status.clone();
        let complete = status.wait_for(|status| matches!(status, Status::CompleteSince(_)));
        let in_time = tokio::time::timeout(limit, complete).await;
        if let Ok(ended) = in_time {
            ended.context("the watch of EndpointSlices has ended")?;
        }
        match *self.status.borrow() {
            Status::CompleteSince(at) => Ok(at),
            Status::Missing(services) => {
                anyhow::bail!("after {limit:?} {services} services have not arrived as expected")
            }
        }
    }
}

fn note(recorded: &Recorded, event: &watcher::Event<EndpointSlice>) {
    let mut recorded = recorded.lock().unwrap_or_else(PoisonError::into_inner);
    if let (Some(recorded), watcher::Event::Apply(slice)) = (&mut *recorded, event) {
        let now = Instant::now();
        for address in slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses) {
            recorded.entry(address.clone()).or_insert(now);
        }
    }
}

fn apply(progress: &mut Progress, event: watcher::Event<EndpointSlice>) {
    match event {
        watcher::Event::Init => progress.clear(),
        watcher::Event::InitDone => {}
        watcher::Event::Apply(slice) | watcher::Event::InitApply(slice) => {
            if let Some(service) = slice.labels().get(LABEL_SERVICE_NAME) {
                let addresses =
                    slice.endpoints.iter().flat_map(|endpoint| endpoint.addresses.iter().cloned()).collect();
                progress.put(service, &slice.name_any(), addresses);
            }
        }
        watcher::Event::Delete(slice) => {
            if let Some(service) = slice.labels().get(LABEL_SERVICE_NAME) {
                progress.remove(service, &slice.name_any());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|&address| address.to_owned()).collect()
    }

    fn expecting(services: &[(&str, &[&str])]) -> Progress {
        let mut progress = Progress::default();
        progress.expect(services.iter().map(|(name, list)| ((*name).to_owned(), addresses(list))).collect());
        progress
    }

    #[test]
    fn a_service_has_arrived_when_its_slices_together_have_exactly_its_addresses() {
        let mut progress = expecting(&[("a", &["10.0.0.1", "10.0.0.2"]), ("b", &["10.0.0.3"])]);
        assert_eq!(progress.missing.len(), 2);
        progress.put("a", "a-1", addresses(&["10.0.0.1"]));
        assert_eq!(progress.missing.len(), 2, "half of it");
        progress.put("a", "a-2", addresses(&["10.0.0.2"]));
        progress.put("unexpected", "u-1", addresses(&["10.0.0.9"]));
        assert_eq!(progress.missing, addresses(&["b"]));
        progress.put("b", "b-1", addresses(&["10.0.0.3", "10.0.0.4"]));
        assert_eq!(progress.missing, addresses(&["b"]), "one too many");
        progress.put("b", "b-1", addresses(&["10.0.0.3"]));
        assert!(progress.missing.is_empty());
    }

    #[test]
    fn an_expectation_can_change_and_be_nothing() {
        let mut progress = expecting(&[("a", &["10.0.0.1"])]);
        progress.put("a", "a-1", addresses(&["10.0.0.1"]));
        progress.expect([("a".to_owned(), addresses(&["10.0.0.2"]))].into());
        assert_eq!(progress.missing, addresses(&["a"]));
        progress.put("a", "a-1", addresses(&["10.0.0.2"]));
        assert!(progress.missing.is_empty());
        progress.expect([("a".to_owned(), BTreeSet::new())].into());
        assert_eq!(progress.missing, addresses(&["a"]));
        progress.remove("a", "a-1");
        assert!(progress.missing.is_empty());
    }

    #[test]
    fn a_watch_that_starts_again_forgets_what_it_saw() {
        let mut progress = expecting(&[("a", &["10.0.0.1"])]);
        progress.put("a", "a-1", addresses(&["10.0.0.1"]));
        progress.clear();
        assert_eq!(progress.missing, addresses(&["a"]));
    }
}
