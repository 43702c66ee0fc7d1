//! The loop that takes changes in. It awaits nothing but the next change, so that an endpoint that goes is on its way to
//! the registry within a millisecond, whatever the workers are busy with.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    net::IpAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use super::{
    Knowledge, Membership, Targets,
    annotated::Annotated,
    claims::Claims,
    foreign::{Foreign, ImportRules},
    index::SliceIndex,
    knowledge::Rules,
    metrics::Metrics,
    peers::Peers,
    pending::Pending,
    pods::{self, PodLabels},
    reconcile::Reconciler,
    shared::{Shared, State},
};
use crate::{
    annotations::{self, Directory},
    cluster::{
        Caches, Change, ClusterWriter,
        events::{self, Note, Outbox, Severity},
        objects::{ForeignSlice, Ingress, Namespace, OwnSlice, Pod, Service, ServiceExport, ServiceImport},
        selector::NamespaceSelector,
    },
    env, export,
    foreign::Found,
    instances::{
        RegistrationPolicy,
        sync::{Desired, TargetDesired, TargetStatus},
    },
    ledger::{driver::Handle, records, remote::Remotes},
    model::{
        ClaimOwner, ClusterId, IpFamily, ServiceKey, Target,
        addresses::{Forbidden, Range},
    },
    queue::Queue,
};

/// How long new imports wait for clusters that are there but could not be read since this replica leads, and errors of
/// the registry for another attempt before the objects say them.
pub(super) const SETTLE: Duration = Duration::from_secs(15);

/// How often the sizes of what is known are measured: counting all names is too much for each change.
const MEASURE: Duration = Duration::from_secs(1);

/// What the controller is told at its start.
#[derive(Debug, Clone)]
pub struct Settings {
    pub cluster: ClusterId,
    /// Reconciles in flight at once.
    pub concurrency: usize,
    pub targets: Targets,
    pub annotations: annotations::Settings,
    /// Which targets annotations may name.
    pub registration: RegistrationPolicy,
    /// How long a new claim to a named target must have been visible before instances are registered there.
    pub claim_delay: Duration,
    /// The namespaces that may export; `None`: all.
    pub export_namespaces: Option<NamespaceSelector>,
    /// The IP families that this cluster has.
    pub families: Vec<IpFamily>,
    /// The ranges that it takes addresses of Services from, as far as they are known.
    pub service_ranges: Vec<Range>,
    pub import: ImportRules,
}

/// Everything that the controller listens and speaks to.
#[expect(missing_debug_implementations, reason = "the writer is a trait object")]
pub struct Inputs {
    pub caches: Caches,
    pub writer: Arc<dyn ClusterWriter>,
    /// `None` while the identity is not known: nothing is read or written then, and the conditions say why.
    pub ledger: Option<Handle>,
    /// In no ClusterSet: the ledger keeps the registrations of annotated Services, and nothing is exported.
    pub alone: bool,
    /// The namespaces that host names in annotations may be in. `None`: no annotated Service is registered.
    pub directory: Option<Directory>,
    pub membership: Membership,
    pub instances: watch::Sender<Arc<Desired>>,
    pub statuses: watch::Receiver<Arc<BTreeMap<Target, TargetStatus>>>,
    /// The Cloud Map namespaces to import from, and what others registered there.
    pub sought: watch::Sender<Arc<BTreeSet<Arc<str>>>>,
    pub found: watch::Receiver<Arc<Found>>,
    pub metrics: Metrics,
}

/// Runs until it is dropped, with the caches synced: nothing may act before that. Only the leader runs it.
pub async fn run(settings: Settings, inputs: Inputs) {
    let Settings {
        cluster,
        concurrency,
        targets,
        annotations,
        registration,
        claim_delay,
        export_namespaces,
        families,
        service_ranges,
        import,
    } = settings;
    let Inputs { caches, writer, ledger, alone, directory, membership, instances, statuses, sought, found, metrics } =
        inputs;
    let notes = Outbox::new(metrics.dropped_events());
    let said = notes.clone();
    let rules = Rules { alone, frozen: annotations.dry_run, own_targets: targets.aws_mcs, registration };
    let annotated = Annotated::new(annotations, targets.clone(), directory, notes.clone());
    let mut claims = Claims::new(claim_delay);
    if alone {
        claims.set_clusters(true, true);
    }
    let peers = Peers::new(targets.aws_mcs && !alone);
    let shared = Arc::new(Shared {
        caches,
        queue: Queue::default(),
        targets,
        export_namespaces,
        families,
        service_ranges,
        metrics,
        ledger: ledger.is_some() && !alone,
        state: Mutex::new(State {
            knowledge: Knowledge::new(cluster, membership).with(rules),
            imported: SliceIndex::new(|slice| slice.service_import.as_ref()),
            cluster_ips: HashMap::new(),
            claims,
            statuses: Arc::default(),
            pending: Pending::default(),
            foreign: Foreign::new(import),
            pods: PodLabels::default(),
            peers,
        }),
    });
    let mut workers = JoinSet::new();
    for _ in 0..concurrency {
        let reconciler = Reconciler { shared: Arc::clone(&shared), writer: Arc::clone(&writer) };
        workers.spawn(env::task(async move { reconciler.run().await }));
    }
    let watch = Watch {
        shared,
        sought,
        notes,
        slices: SliceIndex::new(|slice| slice.service.as_ref()),
        ledger,
        annotated,
        instances,
        desired: BTreeMap::new(),
        touched: BTreeSet::new(),
        forbidden: HashMap::new(),
        moved_ips: HashSet::new(),
    };
    tokio::select! {
        () = watch.run(statuses, found) => {}
        // Events are published one after the other: none may hold up the loop.
        () = async { loop { writer.publish_event(said.next().await).await } } => {}
        // A worker ends only by a panic: the process must not go on with fewer of them.
        ended = workers.join_next() => warn!(?ended, "a worker of the controller ended"),
    }
}

pub(super) struct Watch {
    pub(super) shared: Arc<Shared>,
    pub(super) slices: SliceIndex<ForeignSlice>,
    pub(super) ledger: Option<Handle>,
    pub(super) annotated: Annotated,
    pub(super) sought: watch::Sender<Arc<BTreeSet<Arc<str>>>>,
    pub(super) notes: Outbox,
    pub(super) instances: watch::Sender<Arc<Desired>>,
    pub(super) desired: BTreeMap<Target, TargetDesired>,
    /// Targets whose desired instances may have changed since the last round.
    pub(super) touched: BTreeSet<Target>,
    /// What was said last of addresses that exports leave out.
    forbidden: HashMap<ServiceKey, BTreeMap<IpAddr, Forbidden>>,
    /// Cluster IPs that came or went since the names with such endpoints were last looked for.
    moved_ips: HashSet<IpAddr>,
}

impl Watch {
    async fn run(
        mut self,
        mut statuses: watch::Receiver<Arc<BTreeMap<Target, TargetStatus>>>,
        mut found: watch::Receiver<Arc<Found>>,
    ) {
        let caches = self.shared.caches.clone();
        let mut exports = caches.exports.subscribe();
        let mut services = caches.services.subscribe();
        let mut ingresses = caches.ingresses.subscribe();
        let mut slices = caches.slices.subscribe();
        let mut imported = caches.imported_slices.subscribe();
        let mut namespaces = caches.namespaces.subscribe();
        let mut imports = caches.imports.subscribe();
        let mut pods = caches.pods.subscribe();
        // Without a ledger these never change.
        let closed = (
            watch::channel(None).1,
            watch::channel(None).1,
            watch::channel(None).1,
            watch::channel(Arc::default()).1,
            watch::channel(Arc::default()).1,
        );
        let (mut own, mut published, mut read_back, mut remotes, mut status) = match &self.ledger {
            Some(ledger) => (ledger.own(), ledger.published(), ledger.read_back(), ledger.remotes(), ledger.status()),
            None => closed,
        };
        self.membership_changed(&status.borrow_and_update(), true);
        self.check_membership();
        let mut zones = self.annotated.known();
        let settle = tokio::time::sleep(SETTLE);
        tokio::pin!(settle);
        let (mut settled, mut young) = (false, true);
        let mut measure = tokio::time::interval(MEASURE);

        // All that the caches hold, before anything else: an index that is only half filled would read as "no endpoints",
        // and exports that are not planned yet as withdrawn. After that no source of changes goes before another, so that
        // none starves.
        let present = namespaces.take();
        self.rights_changed(&present);
        self.slices_changed(slices.take());
        self.imported_changed(imported.take());
        self.services_changed(&services.take());
        self.ingresses_changed(ingresses.take());
        self.exports_changed(&exports.take());
        // Nothing was read of the registry before this either, so that nothing is deleted because a namespace does not seem
        // to import anything.
        self.namespaces_changed(&present);
        loop {
            let due = self.shared.state().claims.wake();
            tokio::select! {
                changes = slices.next() => self.slices_changed(changes),
                changes = exports.next() => self.exports_changed(&changes),
                changes = services.next() => self.services_changed(&changes),
                changes = ingresses.next() => self.ingresses_changed(changes),
                changes = pods.next() => self.pods_changed(&changes),
                Ok(()) = own.changed() => {
                    let map = own.borrow_and_update().clone();
                    if let Some(map) = map {
                        let mut state = self.shared.state();
                        state.claims.inherit(records::registrations(&map).values(), seconds());
                        state.knowledge.resume(&map, seconds());
                        drop(state);
                        self.touch_all();
                        self.publish();
                    }
                }
                Ok(()) = remotes.changed() => {
                    let now = remotes.borrow_and_update().clone();
                    self.remotes_changed(&now);
                }
                Ok(()) = published.changed() => {
                    let map = published.borrow_and_update().clone();
                    let concerned = self.shared.state().knowledge.adopt_published(map);
                    self.touched.extend(concerned.targets);
                    self.enqueue(concerned.names);
                }
                Ok(()) = read_back.changed() => {
                    let map = read_back.borrow_and_update().clone();
                    let mut state = self.shared.state();
                    state.claims.set_visible(map);
                    self.touched.extend(state.claims.waiting().cloned());
                }
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.touched.extend(self.shared.state().claims.due(Instant::now()).cloned());
                }
                Ok(()) = zones.changed() => {
                    zones.mark_unchanged();
                    let annotated = self.annotated.owners();
                    self.annotate(annotated);
                }
                Ok(()) = statuses.changed() => {
                    let now = Arc::clone(&statuses.borrow_and_update());
                    self.statuses_changed(&now);
                }
                Ok(()) = status.changed() => {
                    self.membership_changed(&status.borrow_and_update(), young);
                }
                Ok(()) = found.changed() => {
                    let found = Arc::clone(&found.borrow_and_update());
                    self.found_changed(found);
                }
                changes = imported.next() => self.imported_changed(changes),
                changes = imports.next() => self.enqueue(changes.into_iter().map(|change: Change<ServiceImport>| change.key)),
                changes = namespaces.next() => self.namespaces_changed(&changes),
                () = &mut settle, if !settled => {
                    young = false;
                    self.membership_changed(&status.borrow(), young);
                    let settled_now = {
                        let mut state = self.shared.state();
                        // Both: what waits for either waits no longer.
                        state.knowledge.settle() | state.peers.settle()
                    };
                    if settled_now {
                        info!("not all clusters could be read: their objects are kept, new imports wait no longer");
                        self.enqueue(self.names());
                        self.touched.extend(self.shared.state().claims.waiting().cloned());
                    }
                    // While the registry cannot be read at all, the time has not begun.
                    settled = !self.shared.state().knowledge.settling();
                    settle.as_mut().reset(Instant::now() + SETTLE);
                }
                _ = measure.tick() => {
                    self.cluster_ips_moved();
                    self.shared.measure();
                    self.shared.metrics.annotated(self.annotated.sizes());
                }
            }
            self.update_instances();
        }
    }

    fn remotes_changed(&mut self, remotes: &Remotes) {
        let mut state = self.shared.state();
        let waiting = |knowledge: &Knowledge| (knowledge.unknown(), knowledge.settling());
        let before = waiting(&state.knowledge);
        let concerned = state.knowledge.adopt_remotes(remotes);
        let known = waiting(&state.knowledge) != before;
        let alone = remotes.all_live_verified && remotes.clusters.values().all(|remote| remote.left);
        state.claims.set_clusters(alone, remotes.all_live_verified);
        self.touched.extend(state.claims.waiting().cloned());
        drop(state);
        self.shared.metrics.adopted(remotes);
        self.touched.extend(concerned.targets);
        self.enqueue(concerned.names);
        if known {
            // What waited for a cluster to become known, or was kept because it was not.
            self.enqueue(self.names());
        }
    }

    /// Every name that anybody exports, or that there are objects of.
    pub(super) fn names(&self) -> BTreeSet<ServiceKey> {
        let caches = &self.shared.caches;
        let state = self.shared.state();
        let mut names = state.knowledge.names();
        names.extend(state.imported.names().cloned());
        names.extend(state.foreign.names());
        names.extend(state.peers.names());
        drop(state);
        caches.imports.read(|imports| {
            names.extend(imports.values().filter(|import| import.managed).map(|import| import.key.clone()));
        });
        caches.services.read(|services| {
            let derived = services.values().filter_map(|service| Some((service, service.service_import.as_deref()?)));
            names.extend(derived.map(|(service, name)| ServiceKey::new(service.key.namespace.clone(), name)));
        });
        names
    }

    fn exports_changed(&mut self, changes: &[Change<ServiceExport>]) {
        self.replan(changes.iter().map(|change| change.key.clone()));
        for Change { key, .. } in changes {
            // Annotations decide about instances that the plan, which other clusters see, does not tell.
            self.touched.extend(self.shared.state().knowledge.targets_of(&ClaimOwner::export(key)));
            self.shared.queue.add(key.clone());
        }
    }

    fn services_changed(&mut self, changes: &[Change<Service>]) {
        let mut keys = Vec::new();
        for Change { key, old, new } in changes {
            let mut state = self.shared.state();
            for ip in old.iter().flat_map(|service| &service.cluster_ips) {
                if let Some(count) = state.cluster_ips.get_mut(ip) {
                    *count -= 1;
                    if *count == 0 {
                        state.cluster_ips.remove(ip);
                        self.moved_ips.insert(*ip);
                    }
                }
            }
            for ip in new.iter().flat_map(|service| &service.cluster_ips) {
                let count = state.cluster_ips.entry(*ip).or_default();
                *count += 1;
                if *count == 1 {
                    self.moved_ips.insert(*ip);
                }
            }
            drop(state);
            for service in old.iter().chain(new).filter_map(|service| service.service_import.as_deref()) {
                self.shared.queue.add(ServiceKey::new(key.namespace.clone(), service));
            }
            // One of somebody else may have been in the way of an import, which its name does not tell.
            if key.name.starts_with("derived-") && old.as_ref().is_some_and(|service| !service.managed) {
                let names = self.names();
                self.enqueue(names.into_iter().filter(|name| name.namespace == key.namespace));
            }
            keys.push(key.clone());
        }
        self.annotate(keys.iter().map(ClaimOwner::service));
        self.replan(keys);
    }

    fn ingresses_changed(&mut self, changes: Vec<Change<Ingress>>) {
        self.annotate(changes.into_iter().map(|change| ClaimOwner::ingress(&change.key)));
    }

    /// An imported endpoint cannot have an address that is a cluster IP here. All endpoints are looked through for it, so
    /// that this is done for many Services at once.
    fn cluster_ips_moved(&mut self) {
        if self.moved_ips.is_empty() {
            return;
        }
        let moved = std::mem::take(&mut self.moved_ips);
        let names = self.shared.state().knowledge.names_with(&moved);
        self.enqueue(names);
    }

    fn imported_changed(&self, changes: Vec<Change<OwnSlice>>) {
        let mut state = self.shared.state();
        let names: Vec<_> = changes
            .into_iter()
            .flat_map(|change| state.imported.update(change.old.as_ref(), change.new.as_ref()))
            .collect();
        drop(state);
        self.enqueue(names);
    }

    fn slices_changed(&mut self, changes: Vec<Change<ForeignSlice>>) {
        let keys: BTreeSet<_> = changes
            .into_iter()
            .flat_map(|change| self.slices.update(change.old.as_ref(), change.new.as_ref()))
            .collect();
        let annotated: Vec<_> =
            keys.iter().filter(|key| self.annotated.concerns(key)).map(ClaimOwner::service).collect();
        self.annotate(annotated);
        self.replan(keys);
    }

    /// Pods say other labels now, or are seen only now: instances may say so.
    fn pods_changed(&mut self, changes: &[Change<Pod>]) {
        let (pods, namespaces) = pods::changed(changes);
        let within = self.slices.names().filter(|key| namespaces.contains(&key.namespace)).cloned();
        let of_them = |key: &ServiceKey| self.slices.get(key).iter().any(|slice| pods::concerns(slice, &pods));
        let keys: Vec<_> = within.filter(of_them).collect();
        let annotated: Vec<_> =
            keys.iter().filter(|key| self.annotated.concerns(key)).map(ClaimOwner::service).collect();
        self.annotate(annotated);
        self.replan(keys);
    }

    /// Takes in what Namespaces allow. Returns those that allow anything else now.
    fn rights_changed(&self, changes: &[Change<Namespace>]) -> BTreeSet<Arc<str>> {
        let mut state = self.shared.state();
        let changed =
            changes.iter().filter(|change| state.knowledge.namespace_changed(&change.key, change.new.as_deref()));
        changed.map(|change| change.key.clone()).collect()
    }

    fn namespaces_changed(&mut self, changes: &[Change<Namespace>]) {
        self.importers_changed(changes);
        let rights = self.rights_changed(changes);
        let changed: BTreeSet<&Arc<str>> = changes.iter().map(|change| &change.key).collect();
        let every = self.shared.export_namespaces.is_some();
        let of_changed =
            |key: &&ServiceKey| rights.contains(&key.namespace) || every && changed.contains(&key.namespace);
        let exports =
            self.shared.caches.exports.read(|exports| exports.keys().filter(of_changed).cloned().collect::<Vec<_>>());
        for key in &exports {
            self.touched.extend(self.shared.state().knowledge.targets_of(&ClaimOwner::export(key)));
        }
        self.replan(exports);
        let owners = self.annotated.owners().into_iter().filter(|owner| rights.contains(&owner.namespace));
        self.annotate(owners.collect::<Vec<_>>());
        let names = self.shared.state().knowledge.names();
        self.enqueue(names.into_iter().filter(|key| changed.contains(&key.namespace)));
    }

    /// Says on a ServiceExport which addresses of its Service are left out, when that is news.
    fn tell_forbidden(&mut self, key: &ServiceKey, export: Option<&ServiceExport>, slices: &[Arc<ForeignSlice>]) {
        let forbidden = export.map(|_| export::forbidden(slices)).unwrap_or_default();
        let (Some(export), Some((address, why))) = (export, forbidden.first_key_value()) else {
            self.forbidden.remove(key);
            return;
        };
        if self.forbidden.get(key) == Some(&forbidden) {
            return;
        }
        let text = format!(
            "Left out {} address(es) of Service {key} that are nobody's endpoint, such as {address}: it is {}. Correct its \
             EndpointSlices.",
            forbidden.len(),
            why.as_str()
        );
        let (regarding, severity) = (events::export(key, &export.uid), Severity::Warning);
        self.notes.send(Note { regarding, severity, reason: "AddressSkipped", action: "Export", text });
        self.forbidden.insert(key.clone(), forbidden);
    }

    /// Plans names again that are exported or were; publishes if that changed anything.
    fn replan(&mut self, keys: impl IntoIterator<Item = ServiceKey>) {
        let mut work: Vec<ServiceKey> = keys.into_iter().collect();
        let mut publish = false;
        while let Some(key) = work.pop() {
            let export = self.shared.caches.exports.get(&key).filter(|export| !export.deleting);
            let slices = self.slices.get(&key);
            let exported = export.is_some();
            self.tell_forbidden(&key, export.as_deref(), &slices);
            let plan = export.and_then(|export| self.shared.plan(&export, &slices));
            let mut state = self.shared.state();
            let owner = ClaimOwner::export(&key);
            let before = state.knowledge.targets_of(&owner);
            if exported && state.pods.update(&key, &slices, &self.shared.caches.pods) {
                self.touched.extend(before.clone());
            }
            let (freed, changed) = state.knowledge.replan(&key, plan, seconds());
            if changed {
                publish = true;
                self.touched.extend(before);
                self.touched.extend(state.knowledge.targets_of(&owner));
                drop(state);
                self.freed(freed);
                self.shared.queue.add(key);
            }
        }
        if publish {
            self.publish();
        }
    }
}

impl Watch {
    pub(super) fn enqueue(&self, names: impl IntoIterator<Item = ServiceKey>) {
        for name in names {
            self.shared.queue.add(name);
        }
    }
}

pub(super) fn seconds() -> i64 {
    env::timestamp().as_second()
}
