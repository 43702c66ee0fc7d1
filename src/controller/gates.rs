//! Readiness gates: which pods wait, what became of each in its targets, and which gates open.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use super::{
    Membership, Mode,
    claims::Standing,
    core::{Command, Core, Now},
    dirty::Fact,
    gate_writer::{Opening, Openings},
    pods,
    targets::{Asked, awaits_clusters},
};
use annotations::UNLISTED;
use api::events::EventReason;
use cluster::{
    Change,
    events::{self, EventRecord},
    objects::{GatedPod, TargetId},
};
use export::{Extent, Refusal};
use gates::{Answers, Observed, Progress, Question, Questions, Verdict, plan};
use instances::{
    InstanceSpec,
    sync::{Awaited, Ids, Outcome, Reason, TargetDesired},
};
use model::{ClaimOwner, ServiceKey, Target};

/// After this time, an Event on a pod says what it waits for.
const SAID_AFTER: Duration = Duration::from_secs(30);

/// What is known about the pods that wait for nothing but their gates. Empty without `--readiness-gates`.
#[derive(Debug, Clone, Default)]
pub(super) struct Gates {
    /// `--gate-timeout`
    timeout: Duration,
    waiting: BTreeMap<TargetId, Waiting>,
    /// The addresses of these pods.
    addresses: BTreeSet<IpAddr>,
    /// Gates that open. They do not close again before the API server shows that they are open.
    openings: Arc<Openings>,
    asked: Arc<Questions>,
    answers: Arc<Answers>,
}

#[derive(Debug, Clone)]
struct Waiting {
    /// When this leader first saw it wait.
    since: Duration,
    /// How long it had waited before, under earlier leaders.
    before: Duration,
    /// Whether an Event has said what it waits for.
    reported: bool,
}

impl Gates {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, ..Self::default() }
    }

    /// Number of pods that wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The instances for which a pod waits.
    pub(super) fn awaited(&self, instances: &[InstanceSpec]) -> Ids {
        if self.addresses.is_empty() {
            return Ids::default();
        }
        let awaited =
            |spec: &&InstanceSpec| spec.is_ready() && spec.addresses().any(|address| self.addresses.contains(&address));
        Arc::new(instances.iter().filter(awaited).map(|spec| Arc::clone(spec.id())).collect())
    }
}

impl Core {
    pub(super) fn gated_changed(&mut self, changes: &[Change<GatedPod>], now: Now) {
        for Change { key, old, new } in changes {
            if let Some(pod) = new.as_ref().filter(|pod| pod.waits()) {
                // This leader saw others begin to wait, and clocks may be wrong. That of the node may be ahead.
                let since = pod.since.filter(|_| old.is_none());
                let before = since.and_then(|since| u64::try_from(now.seconds().saturating_sub(since)).ok());
                let before = Duration::from_secs(before.unwrap_or_default());
                self.gates.waiting.entry(*key).or_insert(Waiting { since: now.mono, before, reported: false });
            } else {
                self.gates.waiting.remove(key);
            }
        }
        let waiting = self.gates.waiting.keys().filter_map(|key| self.world.gated.get(key));
        self.gates.addresses = waiting.flat_map(|pod| pod.addresses.to_vec()).collect();
        let (pods, namespaces) = pods::changed(changes, |pod| &pod.key.namespace);
        for key in self.services_of(&pods, &namespaces) {
            self.changed(Fact::Endpoints(&key));
        }
    }

    pub(super) fn answers_changed(&mut self, answers: Arc<Answers>) {
        self.gates.answers = answers;
        self.changed(Fact::Answers);
    }

    /// Decides about all gates again.
    pub(super) fn judge_gates(&mut self, now: Now) {
        let Gates { waiting, openings, asked, .. } = &self.gates;
        if waiting.is_empty() && openings.is_empty() && asked.is_empty() {
            return;
        }
        let gated = |key: &TargetId| Some((*key, self.world.gated.get(key).filter(|pod| pod.waits())?));
        let pods: BTreeMap<_, _> = self.gates.waiting.keys().filter_map(gated).collect();
        let services = self.services_by_pod(&pods);
        let (mut asked, mut openings) = (Questions::new(), Openings::new());
        for (id, pod) in &pods {
            let services = services.get(id).into_iter().flatten();
            let progress: Vec<_> = services.flat_map(|key| self.progress(key, *id, pod, &mut asked)).collect();
            let Some(waiting) = self.gates.waiting.get_mut(id) else { continue };
            let known_for = now.mono.saturating_sub(waiting.since);
            let waited = waiting.before.saturating_add(known_for);
            match plan(&Observed { progress: &progress, waited, known_for, timeout: self.gates.timeout }) {
                Verdict::Open(reason, message) => {
                    let (key, uid) = (pod.key.clone(), pod.uid.clone());
                    openings.insert(*id, Arc::new(Opening { key, uid, reason, message }));
                }
                Verdict::Wait(why) => {
                    if let Some(opening) = self.gates.openings.get(id) {
                        openings.insert(*id, Arc::clone(opening));
                    }
                    if waited >= SAID_AFTER && !std::mem::replace(&mut waiting.reported, true) {
                        let text = format!(
                            "The pod is not ready, because its readiness gate waits until clients of Cloud Map find it: {why}."
                        );
                        let (regarding, action) = (events::pod(&pod.key, &pod.uid), "Register");
                        let reason = EventReason::AwaitsRegistration;
                        self.out.push(Command::Emit(EventRecord { regarding, reason, action, text }));
                    }
                }
            }
        }
        if openings != *self.gates.openings {
            self.gates.openings = Arc::new(openings);
            self.out.push(Command::OpenGates(Arc::clone(&self.gates.openings)));
        }
        if asked != *self.gates.asked {
            self.gates.asked = Arc::new(asked);
            self.out.push(Command::LookUp(Arc::clone(&self.gates.asked)));
        }
    }

    /// The Services that list each of these pods. One pass over the EndpointSlices of their namespaces, whatever their
    /// number.
    fn services_by_pod(&self, pods: &BTreeMap<TargetId, Arc<GatedPod>>) -> BTreeMap<TargetId, BTreeSet<ServiceKey>> {
        let namespaces: BTreeSet<_> = pods.values().map(|pod| &pod.key.namespace).collect();
        let mut services = BTreeMap::<_, BTreeSet<_>>::new();
        let keys: BTreeSet<_> =
            namespaces.into_iter().flat_map(|namespace| self.world.slices.names_in(namespace)).collect();
        for key in keys {
            for slice in self.world.slices.get(key) {
                for pod in slice.endpoints.iter().filter_map(|row| row.target).filter(|pod| pods.contains_key(pod)) {
                    services.entry(pod).or_default().insert(key.clone());
                }
            }
        }
        services
    }

    /// What became of a pod in the targets of one of its Services. Adds what is to be looked up.
    fn progress(&self, key: &ServiceKey, id: TargetId, pod: &GatedPod, asked: &mut Questions) -> Vec<Progress> {
        let mut progress = Vec::new();
        let mut add = |owner: &ClaimOwner, targets: &[Target]| {
            progress.extend(targets.iter().filter_map(|target| self.progress_in(target, owner, id, pod, asked)));
        };
        let (export, service) = (ClaimOwner::export(key), ClaimOwner::service(key));
        let obstacle = self.export_obstacle(key);
        if obstacle.is_none() {
            add(&export, &self.knowledge.targets_of(&export));
        }
        add(&service, &self.knowledge.targets_of(&service));
        progress.extend(obstacle);
        progress.extend(self.annotated.obstacle(&service));
        progress
    }

    /// Why a ServiceExport has no target, if so.
    pub(super) fn export_obstacle(&self, key: &ServiceKey) -> Option<Progress> {
        let object = self.world.exports.get(key).filter(|export| !export.deleting)?;
        let owner = ClaimOwner::export(key);
        let targets = self.knowledge.targets_of(&owner);
        let exceeded = self.knowledge.exceeded(&owner);
        let refused = exceeded.filter(|(why, _)| why.extent == Extent::Whole).map(|(_, text)| text);
        match self.knowledge.planned(key) {
            _ if *self.knowledge.membership() == Membership::Leaving => Some(Progress::Declined),
            _ if self.settings.mode == Mode::Standalone => {
                Some(Progress::Refused(format!("Service {key} is exported, but this cluster is in no ClusterSet.")))
            }
            None => Some(Progress::Waits(format!("the export of Service {key} is not planned yet"))),
            Some(Err(Refusal::Invalid { message, .. } | Refusal::NotAllowed(message))) => {
                Some(Progress::Refused(message.clone()))
            }
            Some(Ok(_)) if refused.is_some() => refused.map(Progress::Refused),
            Some(Ok(_)) if targets.is_empty() => {
                Some(match self.exporting.targets.asked(&object, self.knowledge.rights()) {
                    Asked::None => Progress::Declined,
                    Asked::Invalid(message) => Progress::Refused(message),
                    Asked::Unlisted => Progress::Waits(UNLISTED.to_owned()),
                    Asked::Target(_) | Asked::Unknown => {
                        Progress::Waits(format!("the Namespace {} is not known yet", key.namespace))
                    }
                })
            }
            Some(Ok(_)) => None,
        }
    }

    /// What became of a pod in one target. `None` if other addresses than those of pods are registered there.
    fn progress_in(
        &self,
        target: &Target,
        owner: &ClaimOwner,
        id: TargetId,
        pod: &GatedPod,
        asked: &mut Questions,
    ) -> Option<Progress> {
        let waits = |why: &str| Some(Progress::Waits(format!("Cloud Map service {target}: {why}")));
        let refused = |why: &str| Some(Progress::Refused(format!("Cloud Map service {target}: {why}.")));
        match self.knowledge.claimant(target) {
            Some((cluster, other)) if !other.is_same_service(owner) => {
                return refused(&format!("{other} of cluster {cluster} claims it"));
            }
            _ => {}
        }
        let Some(desired) = self.instances.desired.get(target) else { return waits(&self.standing_in(target)) };
        if desired.retiring {
            return refused("the Service is being withdrawn");
        }
        let wanted = wanted(desired, pod);
        let status = self.instances.statuses.get(target);
        let outcome = status.map(|status| &status.outcome);
        if wanted.is_empty() {
            return match outcome {
                _ if desired.keep => refused("nothing new is registered there; see the Service"),
                _ if owner.is_annotated() => None,
                _ => refused("the addresses of the pod cannot be registered"),
            };
        }
        let none = Awaited::default();
        let awaited = status.and_then(|status| status.awaited.as_deref()).unwrap_or(&none);
        if wanted.iter().all(|id| awaited.registered.contains(*id)) {
            return Some(self.shown_in(target, &wanted, id, awaited, asked));
        }
        if wanted.iter().all(|id| awaited.held_back.contains(*id)) {
            return Some(Progress::HeldBack(target.clone()));
        }
        let unfit = wanted.iter().any(|id| awaited.unfit.contains(*id));
        match outcome {
            Some(Outcome::Refused { reason: Reason::UnfitEndpoints, message }) if unfit => refused(message),
            // It needs somebody who changes something, in AWS or in an annotation.
            Some(Outcome::Refused {
                reason: Reason::ForeignOwner | Reason::NoNamespace | Reason::LimitExceeded,
                message,
            }) => refused(message),
            // These may pass.
            Some(Outcome::Refused {
                reason: Reason::AccessDenied | Reason::Throttled | Reason::Failed | Reason::UnfitEndpoints,
                message,
            }) => waits(message),
            Some(Outcome::Pending | Outcome::Registered { .. }) | None => waits(&self.standing_in(target)),
        }
    }

    /// What became of instances whose registration succeeded.
    fn shown_in(
        &self,
        target: &Target,
        wanted: &[&Arc<str>],
        pod: TargetId,
        awaited: &Awaited,
        asked: &mut Questions,
    ) -> Progress {
        let about = |id: &Arc<str>| (target.clone(), (pod, Arc::clone(id)));
        let answers = &self.gates.answers;
        if let Some(http_name) = &awaited.http_name {
            let question = asked.entry(target.clone());
            let question =
                question.or_insert_with(|| Question { http_name: Arc::clone(http_name), sought: BTreeSet::new() });
            question.sought.extend(wanted.iter().map(|id| about(id).1));
        }
        if wanted.iter().all(|id| answers.shown.contains(&about(id))) {
            return Progress::Shown(target.clone());
        }
        let why = if let Some(error) = answers.failures.get(target) {
            format!(
                "registered, but discovery fails: {error}; `cloudmap-mcs iam --mode gates` prints what the role needs"
            )
        } else if wanted.iter().any(|id| answers.unhealthy.contains(&about(id))) {
            "registered, but it fails the health check of the Cloud Map service".to_owned()
        } else {
            "registered, but discovery does not show it yet".to_owned()
        };
        Progress::Waits(format!("Cloud Map service {target}: {why}"))
    }

    /// What a target waits for before anything is registered there.
    pub(super) fn standing_in(&self, target: &Target) -> String {
        match (self.knowledge.membership(), self.claims.standing(target)) {
            (Membership::Refused(why) | Membership::Failing(why), _) => why.trim_end_matches('.').to_owned(),
            (_, Some(Standing::AwaitsClusters)) => awaits_clusters(target).trim_end_matches('.').to_owned(),
            (_, Some(Standing::AwaitsDelay)) => "its claim must be visible for the --claim-delay first".to_owned(),
            (_, Some(Standing::AwaitsRecord) | None) => "its claim is on its way to the ledger".to_owned(),
            _ => "its registration is on its way".to_owned(),
        }
    }
}

/// The ids of the instances of a pod in a target.
fn wanted<'a>(desired: &'a TargetDesired, pod: &GatedPod) -> Vec<&'a Arc<str>> {
    let of_pod =
        |spec: &&InstanceSpec| spec.is_ready() && spec.addresses().any(|address| pod.addresses.contains(&address));
    desired.instances.iter().filter(of_pod).map(InstanceSpec::id).collect()
}
