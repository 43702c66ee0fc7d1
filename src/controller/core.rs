//! The core: all knowledge and all decisions, in one place, without a clock, a channel or a task.
//!
//! [`Core::handle`] takes a change and the time, and returns commands. It is divided into files by subject: exports
//! ([`exports`](super::exports)), imports ([`imports`](super::imports)), registrations
//! ([`registrations`](super::registrations)), the membership of this cluster ([`membership`](super::membership)), and
//! the writes of a worker for one name ([`names`](super::names)). Objects that did not change themselves are in its own
//! world ([`world`](super::world)).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;

use super::{
    Knowledge, Membership, Mode,
    annotated::Annotated,
    claims::Claims,
    cutover_writer::Written,
    cutovers::Cutovers,
    dirty::{Dirty, Fact},
    exports::Exporting,
    gate_writer::Openings,
    gates::Gates,
    imports::Importing,
    knowledge::Rules,
    membership::Term,
    peers::Peers,
    pending::Reports,
    pods::Pods,
    policies::ImportPolicies,
    policy_writer,
    reachability::Reachability,
    registrations::Instances,
    runtime::ControllerSettings,
    subscriptions::Subscriptions,
    work::Work,
    world::{Batch, World},
};
use annotations::Known;
use api::selection::ClusterSelection;
use cluster::{events::EventRecord, selector::NamespaceSelector};
use cutover::guard::{self, Judgements};
use discovery::Discovered;
use gates::{Answers, Questions};
use import::{Serving, Unknown};
use instances::sync::{Desired, Statuses};
use ledger::{
    Map,
    driver::{Status, local::Kept},
    remote::Remotes,
    writer::Inherited,
};
use model::{ClusterId, Exported, IpFamily, ServiceKey, addresses::Range};
use reachability::Verdicts;

/// After the election, new imports wait this long for clusters that exist but could not be read. Errors of the registry
/// are not reported for this long, because another attempt may succeed.
pub(super) const FIRST_READING: Duration = Duration::from_secs(15);

/// The time at which an input is handled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// Time since this replica leads, by which waiting is measured.
    pub(super) mono: Duration,
    /// The wall clock, from which dates are made.
    pub(super) wall: Timestamp,
}

impl Now {
    /// Seconds since 1970, for the dates of claims.
    pub(super) fn seconds(self) -> i64 {
        self.wall.as_second()
    }
}

/// What happened.
#[derive(Debug, Clone)]
pub(super) enum Input {
    /// Objects in Kubernetes changed. The first one has all objects.
    Objects(Box<Batch>),
    /// The ranges of cluster IPs, as far as they are known.
    Ranges(Arc<[Range]>),
    /// The Cloud Map namespaces that take host names.
    Zones(Known),
    /// The status of the ledger.
    Ledger(Arc<Status>),
    /// The own ledger as the previous leader left it, once that is known.
    Resumed(Option<Arc<Inherited>>),
    /// What was published of this cluster.
    Published(Option<Arc<Map>>),
    /// What of it was read back.
    ReadBack(Option<Arc<Map>>),
    Remotes(Arc<Remotes>),
    /// The registration records of a standalone cluster.
    Kept(Kept),
    /// The statuses of the desired instances.
    Statuses(Statuses),
    /// What was discovered.
    Discovered(Arc<Discovered>),
    /// What the discovery plane shows of instances for which pods wait.
    Answers(Arc<Answers>),
    /// What the guards of Cutovers found.
    Judged(Arc<Judgements>),
    /// What connections to endpoints of other clusters showed.
    Reached(Arc<Verdicts>),
    /// A worker is free for a name.
    Due(ServiceKey),
    /// Time passed. This comes when [`Core::wake`] asks for it, and about once a second.
    Tick,
}

/// What to do.
#[derive(Debug, Clone)]
pub(super) enum Command {
    /// Publish this in the registry, or in the record of a standalone cluster.
    Publish(Arc<Map>),
    /// Register these instances.
    Register(Desired),
    /// Read these Cloud Map namespaces.
    Subscribe(Arc<BTreeSet<Arc<str>>>),
    /// List the Cloud Map namespaces, or stop it.
    List(bool),
    /// Reconcile a name as soon as a worker is free.
    Reconcile(ServiceKey),
    /// Reconcile a name after this time.
    ReconcileIn(ServiceKey, Duration),
    /// Write this; the answer to [`Input::Due`].
    Apply(Box<Work>),
    /// Open these gates.
    OpenGates(Arc<Openings>),
    /// Write these statuses of Cutovers.
    WriteCutovers(Arc<Written>),
    /// Write these statuses of ClusterImportPolicies.
    WritePolicies(Arc<policy_writer::Written>),
    /// Look for these instances in the discovery plane.
    LookUp(Arc<Questions>),
    /// Let these guards look.
    Guard(Arc<guard::Questions>),
    /// Try these endpoints.
    Reach(Arc<reachability::Questions>),
    /// Emit an Event.
    Emit(EventRecord),
}

/// Sizes of what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) clusters: usize,
    pub(super) names: usize,
    /// Number of annotated objects, and of their requests that are refused.
    pub(super) annotated: (usize, usize),
    /// Number of pods that wait for nothing but their readiness gates.
    pub(super) waiting_pods: usize,
    /// Number of imports with a cluster selection, by how near the clusters are that serve ([`Serving::ALL`]).
    pub(super) serving: [usize; 3],
}

/// What flags say of all that the core decides.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) mode: Mode,
    /// The namespaces that may export; `None` means all.
    pub(super) export_namespaces: Option<NamespaceSelector>,
    /// The IP families of this cluster.
    pub(super) families: Vec<IpFamily>,
    /// `--hide-tasks`
    pub(super) hide_tasks: bool,
    /// `--type-notice`
    pub(super) type_notice: Duration,
    /// `--cluster-selectors`
    pub(super) cluster_selection: ClusterSelection,
}

/// Everything that is known.
#[derive(Clone)]
pub(super) struct Core {
    pub(super) settings: Settings,
    pub(super) world: World,
    pub(super) term: Term,
    pub(super) knowledge: Knowledge,
    pub(super) exporting: Exporting,
    pub(super) claims: Claims,
    pub(super) annotated: Annotated,
    pub(super) instances: Instances,
    pub(super) importing: Importing,
    pub(super) pods: Pods,
    pub(super) gates: Gates,
    pub(super) cutovers: Cutovers,
    pub(super) reports: Reports,
    /// What must be derived again.
    pub(super) dirty: Dirty,
    pub(super) out: Vec<Command>,
}

impl Core {
    /// A core that knows nothing yet. `membership` is what to report before the first status of the ledger.
    pub(super) fn new(settings: ControllerSettings, mode: Mode, membership: Membership, now: Now) -> Self {
        let ControllerSettings {
            cluster,
            targets,
            annotations,
            registration,
            quota,
            claim_delay,
            export_namespaces,
            families,
            import,
            derived,
            gate_timeout,
            hide_tasks,
            settle,
            type_notice,
            cluster_selection,
            probe,
            ..
        } = settings;
        let rules = Rules { mode, frozen: annotations.dry_run, own_targets: targets.aws_mcs, registration, quota };
        let claims = if mode == Mode::Standalone { Claims::standalone(claim_delay) } else { Claims::new(claim_delay) };
        let peers = Peers::new(targets.aws_mcs && mode == Mode::Member);
        let mut core = Self {
            settings: Settings { mode, export_namespaces, families, hide_tasks, type_notice, cluster_selection },
            world: World::new(derived),
            term: Term::new(now.mono),
            knowledge: Knowledge::new(cluster, membership).with(rules),
            annotated: Annotated::new(annotations, targets.clone()),
            exporting: Exporting::new(targets),
            claims,
            instances: Instances::default(),
            importing: Importing::new(
                ImportPolicies::new(&import),
                Subscriptions::new(import),
                peers,
                Reachability::new(probe),
            ),
            pods: Pods::default(),
            gates: Gates::new(gate_timeout),
            cutovers: Cutovers::new(settle),
            reports: Reports::default(),
            dirty: Dirty::default(),
            out: Vec::new(),
        };
        core.check_membership();
        core
    }

    /// Takes one input and returns its consequences. They depend on the inputs so far, on the settings, and on nothing else
    /// ([`replay`](super::replay)).
    pub(super) fn handle(&mut self, input: Input, now: Now) -> Vec<Command> {
        match input {
            Input::Objects(batch) => self.objects_changed(&batch, now),
            Input::Ranges(ranges) => self.ranges_changed(ranges),
            Input::Zones(known) => self.zones_changed(known),
            Input::Ledger(status) => self.ledger_changed(status, now),
            Input::Resumed(own) => self.resumed(own.as_deref(), now),
            Input::Kept(kept) => self.kept(kept, now),
            Input::Published(map) => self.published(map),
            Input::ReadBack(map) => self.read_back(map),
            Input::Remotes(remotes) => self.remotes_changed(&remotes, now),
            Input::Statuses(statuses) => self.statuses_changed(&statuses, now),
            Input::Discovered(found) => self.found_changed(&found, now),
            Input::Answers(answers) => self.answers_changed(answers),
            Input::Judged(judgements) => self.judged(judgements),
            Input::Reached(verdicts) => self.reached(&verdicts, now),
            Input::Due(key) => {
                let work = self.work(&key, now);
                self.out.push(Command::Apply(Box::new(work)));
            }
            Input::Tick => self.time_passed(now),
        }
        self.conclude(now)
    }

    /// Takes in changed objects. What Namespaces allow determines everything that follows.
    fn objects_changed(&mut self, batch: &Batch, now: Now) {
        self.world.fold(batch);
        if !batch.properties.is_empty() {
            self.changed(Fact::Properties);
            self.drain_cluster(now);
        }
        self.policies_changed(&batch.policies);
        let rights = self.rights_changed(&batch.namespaces);
        self.slices_changed(&batch.slices);
        self.imported_changed(&batch.imported_slices);
        self.services_changed(&batch.services);
        self.changed_each(batch.ingresses.iter().map(|change| &change.key), Fact::Ingress);
        self.exports_changed(&batch.exports, now);
        self.namespaces_changed(&batch.namespaces, &rights);
        self.pods_changed(&batch.pods);
        self.gated_changed(&batch.gated, now);
        self.changed_each(batch.cutovers.iter().map(|change| &change.key), Fact::Cutover);
        self.changed_each(batch.imports.iter().map(|change| &change.key), Fact::Import);
    }

    /// The consequences for instances, the registry and the user, once for all that changed.
    pub(super) fn conclude(&mut self, now: Now) -> Vec<Command> {
        self.derive(now);
        let listing = self.annotated.needs_zones() || !self.exporting.named.is_empty();
        if std::mem::replace(&mut self.importing.listing, listing) != listing {
            self.out.push(Command::List(listing));
        }
        self.out.extend(self.annotated.take_notes().into_iter().map(Command::Emit));
        std::mem::take(&mut self.out)
    }

    /// When time alone changes something next.
    pub(super) fn wake(&self) -> Option<Duration> {
        let membership = self.term.first_reading_ends.into_iter().chain(self.term.worded);
        self.claims
            .wake()
            .into_iter()
            .chain(membership)
            .chain(self.exporting.held.values().copied())
            .chain(self.importing.spills.wake())
            .chain(self.exporting.drains.wake())
            .min()
    }

    fn time_passed(&mut self, now: Now) {
        self.changed(Fact::Tick);
        for target in self.claims.due(now.mono).cloned().collect::<Vec<_>>() {
            self.changed(Fact::Due(&target));
        }
        if self.term.first_reading_ends.is_some_and(|at| at <= now.mono) {
            self.end_first_reading(now);
        }
        if self.term.worded.is_some_and(|until| until <= now.mono) {
            self.term.worded = None;
            self.judge_membership(now);
        }
        self.release(now);
        self.cluster_ips_moved();
        self.withdraw_orphans(now);
        self.look_at_blocked(now);
        self.report_policies(now);
        self.choose_endpoints_in_time(now);
        self.step_back(now);
        for key in self.importing.spills.step(now.mono) {
            self.changed(Fact::StepDue(&key));
        }
    }

    pub(super) fn sizes(&self) -> Sizes {
        let (clusters, names) = self.knowledge.sizes();
        let count = |it: Serving| self.importing.serving.values().filter(|serving| **serving == it).count();
        let (annotated, waiting_pods, serving) =
            (self.annotated.sizes(), self.gates.waiting(), Serving::ALL.map(count));
        Sizes { clusters, names, annotated, waiting_pods, serving }
    }

    /// Whether the namespace of a name is here, or an object of it. Whenever a namespace appears, its names are reconciled.
    pub(super) fn is_here(&self, key: &ServiceKey) -> bool {
        self.world.namespaces.contains(&key.namespace)
            || self.world.imports.contains(key)
            || !self.world.imported.get(key).is_empty()
    }

    /// Every name that anybody exports from a namespace that is here, or that has objects.
    pub(super) fn names(&self) -> BTreeSet<ServiceKey> {
        let exported = self.knowledge.names().filter(|key| self.is_here(key));
        let mut names: BTreeSet<ServiceKey> = exported.cloned().collect();
        names.extend(self.world.imported.names().cloned());
        names.extend(self.importing.subscriptions.names());
        names.extend(self.importing.peers.names());
        names.extend(self.world.imports.values().filter(|import| import.managed).map(|import| import.key.clone()));
        let services = self.world.services.values();
        let derived = services.filter_map(|service| Some((service, service.service_import.as_deref()?)));
        names.extend(derived.map(|(service, name)| ServiceKey::new(service.key.namespace.clone(), name)));
        names
    }

    /// The export of a name by every known cluster, from the ledger or from the instances of its AWS controller.
    pub(super) fn sources(&self, key: &ServiceKey) -> BTreeMap<ClusterId, Arc<Exported>> {
        let mut sources = self.knowledge.sources(key);
        let of_peers = self.importing.peers.exports_of(key, |cluster| self.knowledge.is_live(cluster));
        awsmcs::join(&mut sources, of_peers.exports, |cluster| {
            self.knowledge.is_unread(cluster) || self.knowledge.withdrew(cluster, key)
        });
        sources
    }

    /// The clusters whose export of a name is not known.
    pub(super) fn unknown(&self, key: &ServiceKey) -> Unknown {
        match self.knowledge.unknown() {
            Unknown::Only(_) if !self.importing.peers.is_complete(key) => Unknown::AllBut(self.knowledge.deciding(key)),
            Unknown::AllBut(known) if !self.importing.peers.is_complete(key) => {
                Unknown::AllBut(&known & &self.knowledge.deciding(key))
            }
            unknown => unknown,
        }
    }

    /// Whether new imports wait for the first reading.
    pub(super) fn awaits_first_reading(&self) -> bool {
        self.knowledge.awaits_first_reading() || !self.importing.peers.has_first_reading()
    }
}

#[cfg(test)]
#[path = "core_tests.rs"]
pub(super) mod tests;
