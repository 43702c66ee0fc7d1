//! All pods of 100 services are replaced, one after the other in each service, as Deployments with `maxUnavailable: 0`
//! do it: the new pod is ready before the old one ends, and the old one answers while it ends.

use std::{
    collections::{BTreeSet, HashMap},
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
    sync::oneshot,
    task::{JoinHandle, JoinSet},
};

use super::{
    arrivals::{Arrivals, LABEL_SERVICE_NAME, LABEL_SOURCE_CLUSTER},
    figure::{Figure, Latencies},
    load::{Load, Pod, Slices},
    stages::{Bench, PATIENCE},
};

/// Services that roll at the same time.
const SERVICES: usize = 100;
/// From one new pod of a service to the next.
const STEP: Duration = Duration::from_secs(3);
/// Changes of an EndpointSlice per replaced pod: the new one is ready, the old one ends, the old one is gone.
const WRITES: u32 = 3;

/// The endpoints of a service at some time.
#[derive(Debug, Clone, PartialEq)]
struct Write {
    /// Since the start.
    at: Duration,
    endpoints: Vec<Pod>,
    /// The pod that is new or ends.
    news: Option<Pod>,
}

/// What is written for the service `number` of `services`, whose pods are replaced by others. Services begin one after
/// the other within the first step, so that the load is even.
fn plan(number: usize, services: usize, old: &[u32], new: &[u32]) -> Vec<Write> {
    let begin = STEP * number as u32 / services.max(1) as u32;
    let mut endpoints: Vec<Pod> = old.iter().copied().map(Pod::ready).collect();
    let mut writes = Vec::new();
    for (position, (&old, &new)) in old.iter().zip(new).enumerate() {
        let mut write = |part: u32, endpoints: &[Pod], news: Option<Pod>| {
            let at = begin + STEP * position as u32 + STEP * part / WRITES;
            writes.push(Write { at, endpoints: endpoints.to_vec(), news });
        };
        let ending = Pod { number: old, terminating: true };
        endpoints.push(Pod::ready(new));
        write(0, &endpoints, Some(Pod::ready(new)));
        endpoints.iter_mut().filter(|pod| pod.number == old).for_each(|pod| *pod = ending);
        write(1, &endpoints, Some(ending));
        endpoints.retain(|pod| pod.number != old);
        write(2, &endpoints, None);
    }
    writes
}

/// What the importing cluster shows: the ready addresses of each service, and when they came and went.
#[derive(Debug, Default)]
struct Shown {
    /// By service, then by slice.
    ready: HashMap<String, HashMap<String, BTreeSet<String>>>,
    came: HashMap<String, Instant>,
    went: HashMap<String, Instant>,
    /// How often a service that had ready addresses had none.
    emptied: usize,
}

impl Shown {
    fn put(&mut self, service: &str, slice: &str, ready: BTreeSet<String>, now: Instant) {
        let slices = self.ready.entry(service.to_owned()).or_default();
        let before: BTreeSet<String> = slices.values().flatten().cloned().collect();
        slices.insert(slice.to_owned(), ready);
        let after: BTreeSet<String> = slices.values().flatten().cloned().collect();
        for address in after.difference(&before) {
            self.came.entry(address.clone()).or_insert(now);
            self.went.remove(address);
        }
        for address in before.difference(&after) {
            self.went.insert(address.clone(), now);
        }
        self.emptied += usize::from(after.is_empty() && !before.is_empty());
    }
}

/// A watch of the importing cluster. It ends when this is dropped.
struct Watch {
    shown: Arc<Mutex<Shown>>,
    task: JoinHandle<()>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Watch {
    /// Returns when everything that is there was listed.
    async fn start(client: Client, namespace: &str, source: &str) -> anyhow::Result<Self> {
        let slices: Api<EndpointSlice> = Api::namespaced(client, namespace);
        let config = watcher::Config::default().labels(&format!("{LABEL_SOURCE_CLUSTER}={source}"));
        let shown = Arc::<Mutex<Shown>>::default();
        let (noted, (listed, complete)) = (Arc::clone(&shown), oneshot::channel());
        let task = tokio::spawn(async move {
            let mut listed = Some(listed);
            let mut events = pin!(watcher(slices, config).default_backoff());
            while let Some(event) = events.next().await {
                match event {
                    Ok(watcher::Event::InitDone) => drop(listed.take().map(|listed| listed.send(()))),
                    Ok(event) => note(&mut noted.lock().unwrap_or_else(PoisonError::into_inner), &event),
                    Err(error) => tracing::warn!(%error, "the watch of the rollout failed and starts again"),
                }
            }
        });
        tokio::time::timeout(PATIENCE, complete).await??;
        Ok(Self { shown, task })
    }

    fn look<R>(&self, look: impl FnOnce(&Shown) -> R) -> R {
        look(&self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn note(shown: &mut Shown, event: &watcher::Event<EndpointSlice>) {
    let (slice, gone) = match event {
        watcher::Event::Apply(slice) | watcher::Event::InitApply(slice) => (slice, false),
        watcher::Event::Delete(slice) => (slice, true),
        watcher::Event::Init | watcher::Event::InitDone => return,
    };
    let Some(service) = slice.labels().get(LABEL_SERVICE_NAME) else { return };
    // Without conditions an endpoint is ready.
    let ready = |endpoint: &&k8s_openapi::api::discovery::v1::Endpoint| {
        endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
    };
    let endpoints = slice.endpoints.iter().filter(ready).filter(|_| !gone);
    let addresses = endpoints.flat_map(|endpoint| endpoint.addresses.iter().cloned()).collect();
    shown.put(service, &slice.name_any(), addresses, Instant::now());
}

/// When which address was written, as a new one and as one that ends.
#[derive(Debug, Default)]
struct Written {
    new: HashMap<String, Instant>,
    ending: HashMap<String, Instant>,
}

/// Writes what is planned for a service, each in its time.
async fn roll(
    slices: Slices,
    service: usize,
    writes: Vec<Write>,
    start: tokio::time::Instant,
) -> anyhow::Result<Written> {
    let mut written = Written::default();
    for Write { at, endpoints, news } in writes {
        tokio::time::sleep_until(start + at).await;
        let now = Instant::now();
        match news {
            Some(Pod { number, terminating: false }) => written.new.insert(slices.address(number), now),
            Some(Pod { number, terminating: true }) => written.ending.insert(slices.address(number), now),
            None => None,
        };
        slices.put(service, &endpoints).await?;
    }
    Ok(written)
}

/// From when each address was written until it was seen.
///
/// # Errors
/// One was not seen.
fn delays(written: &HashMap<String, Instant>, seen: &HashMap<String, Instant>) -> anyhow::Result<Latencies> {
    let delay = |(address, at): (&String, &Instant)| {
        let seen = seen.get(address).with_context(|| format!("{address} has not arrived"))?;
        Ok(seen.saturating_duration_since(*at))
    };
    written.iter().map(delay).collect()
}

impl Bench {
    pub(super) async fn rollout(&self, load: &mut Load, arrivals: &Arrivals) -> anyhow::Result<Vec<Figure>> {
        self.rest(load, arrivals).await?;
        let (client, source) = (self.importer.cluster.clone(), &self.exporter.member.id);
        let watch = Watch::start(client, load.namespace(), source).await?;
        let pods = load.draw_rollout(SERVICES);
        let (services, replaced) = (pods.len(), pods.iter().map(|(old, _)| old.len()).sum::<usize>());
        tracing::info!("replacing all {replaced} pods of {services} services, one after the other in each");
        let before = self.costs().await?;
        let (start, mut rolling) = (tokio::time::Instant::now(), JoinSet::new());
        for (number, (old, new)) in pods.into_iter().enumerate() {
            rolling.spawn(roll(load.slices(), number, plan(number, services, &old, &new), start));
        }
        let mut written = Written::default();
        while let Some(rolled) = rolling.join_next().await {
            let Written { new, ending } = rolled??;
            written.new.extend(new);
            written.ending.extend(ending);
        }
        let took = start.elapsed();
        // Exactly the new pods, so the old ones are gone.
        self.rest(load, arrivals).await?;
        self.spent(&before, "the rollout").await?;
        // This watch may be behind the one that has seen them.
        let all = |shown: &Shown| {
            written.new.keys().all(|address| shown.came.contains_key(address))
                && written.ending.keys().all(|address| shown.went.contains_key(address))
        };
        let deadline = Instant::now() + PATIENCE;
        while !watch.look(all) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let (new, ending, last, emptied) = watch.look(|shown| {
            let last = written.new.keys().filter_map(|address| shown.came.get(address)).max().copied();
            (delays(&written.new, &shown.came), delays(&written.ending, &shown.went), last, shown.emptied)
        });
        let (new, ending, last) = (new?, ending?, last.context("there were no pods")?);
        let name = |figure: &str| format!("rollout_{replaced}_{figure}");
        let arrived = last.saturating_duration_since(start.into_std());
        Ok(vec![
            Figure::for_scale(name("writing"), took.as_secs_f64(), "s"),
            Figure::for_scale(name("arrival"), arrived.as_secs_f64(), "s"),
            Figure::for_scale(name("new_p50"), new.percentile(50.0)?, "s"),
            Figure::for_scale(name("new_longest"), new.percentile(100.0)?, "s"),
            Figure::for_scale(name("old_longest"), ending.percentile(100.0)?, "s"),
            Figure::at_most(name("emptied"), emptied as f64, "names", 0.0),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(addresses: &[&str]) -> BTreeSet<String> {
        addresses.iter().map(|&address| address.to_owned()).collect()
    }

    #[test]
    fn a_new_pod_is_ready_before_an_old_one_ends_and_no_pod_is_missing() {
        let writes = plan(0, 1, &[1, 2], &[3, 4]);
        let ending = |number| Pod { number, terminating: true };
        let lists: Vec<Vec<Pod>> = writes.iter().map(|write| write.endpoints.clone()).collect();
        assert_eq!(
            lists,
            [
                vec![Pod::ready(1), Pod::ready(2), Pod::ready(3)],
                vec![ending(1), Pod::ready(2), Pod::ready(3)],
                vec![Pod::ready(2), Pod::ready(3)],
                vec![Pod::ready(2), Pod::ready(3), Pod::ready(4)],
                vec![ending(2), Pod::ready(3), Pod::ready(4)],
                vec![Pod::ready(3), Pod::ready(4)],
            ]
        );
        let seconds: Vec<u64> = writes.iter().map(|write| write.at.as_secs()).collect();
        assert_eq!(seconds, [0, 1, 2, 3, 4, 5]);
        let news: Vec<Option<Pod>> = writes.iter().map(|write| write.news).collect();
        assert_eq!(&news[..3], [Some(Pod::ready(3)), Some(ending(1)), None]);
    }

    #[test]
    fn services_begin_one_after_the_other_within_one_step() {
        let first = |number| plan(number, 100, &[1], &[2])[0].at;
        assert_eq!((first(0), first(50)), (Duration::ZERO, STEP / 2));
        assert!(first(99) < STEP);
    }

    #[test]
    fn it_is_seen_when_an_address_came_and_went_whichever_slice_it_is_in() {
        let (mut shown, start) = (Shown::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        shown.put("web", "a", set(&["1", "2"]), at(0));
        shown.put("web", "b", set(&["3", "1"]), at(1));
        shown.put("web", "a", set(&["2"]), at(2));
        assert_eq!(shown.came["1"], at(0), "not again from another slice");
        assert!(shown.went.is_empty(), "1 is in the other slice");
        shown.put("web", "b", set(&["3"]), at(3));
        assert_eq!(shown.went, HashMap::from([("1".to_owned(), at(3))]));
        assert_eq!(shown.emptied, 0);
        shown.put("web", "a", set(&[]), at(4));
        shown.put("web", "b", set(&[]), at(5));
        shown.put("web", "b", set(&[]), at(6));
        assert_eq!(shown.emptied, 1);
        shown.put("web", "b", set(&["3"]), at(7));
        assert!(!shown.went.contains_key("3"), "it came back");
    }

    #[test]
    fn what_has_not_arrived_has_no_delay() {
        let start = Instant::now();
        let written = HashMap::from([("1".to_owned(), start), ("2".to_owned(), start)]);
        let mut seen = HashMap::from([("1".to_owned(), start + Duration::from_secs(1))]);
        assert!(delays(&written, &seen).unwrap_err().to_string().contains('2'));
        seen.insert("2".to_owned(), start + Duration::from_secs(3));
        assert_eq!(
            delays(&written, &seen).unwrap(),
            [1, 3].map(Duration::from_secs).into_iter().collect::<Latencies>()
        );
    }
}
