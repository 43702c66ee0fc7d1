//! Cutovers: what each is about, how far it is, and which share is in force.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::{
    core::{Command, Core, Now},
    cutover_writer::{Progress as Writing, Written},
    dirty::Fact,
    world::Objects,
};
use api::CutoverPhase;
use cluster::objects::{Cutover, ObjectKey};
use cutover::{
    Facing, Observed, Planned, Settle, Stopwatch, TargetStanding,
    guard::{self, Guard, Judgement, Judgements, MOST_PODS, Pods, Question, Registered},
    hiding::LastMark,
    plan::{looks, plan},
};
use gates::Progress;
use instances::{
    Adopt, Consent, Rights, Share, Traffic,
    sync::{Outcome, Reason},
};
use model::{ClaimOwner, ServiceKey, Target};

/// What is known about Cutovers. Empty without `--cutovers`.
#[derive(Debug, Clone, Default)]
pub(super) struct Cutovers {
    /// `--settle`
    settle: Settle,
    stopwatches: BTreeMap<ServiceKey, Stopwatch>,
    /// The statuses that were planned and that the API server does not show yet.
    planned: BTreeMap<ServiceKey, Arc<Writing>>,
    written: Arc<Written>,
    last_marks: BTreeMap<ServiceKey, LastMark>,
    /// What the guards are asked, and what they found.
    asked: Arc<guard::Questions>,
    judgements: Arc<Judgements>,
}

impl Cutovers {
    pub(super) fn new(settle: Settle) -> Self {
        Self { settle, ..Self::default() }
    }
}

/// The share that is in force for an object whose annotation requests `asked`: that of its Cutover, as the API server shows
/// it. One that has none yet changes nothing.
pub(super) fn in_force(cutovers: &Objects<Cutover>, key: &ServiceKey, asked: Traffic) -> Traffic {
    let Some(cutover) = cutovers.get(key) else { return asked };
    let share = cutover.status.share_of_traffic.and_then(|share| u8::try_from(share).ok());
    match (share, asked) {
        (Some(share), _) => Traffic::Share(Share::percent(share)),
        (None, Traffic::All) => Traffic::Unclear,
        (None, asked) => asked,
    }
}

/// Whether an object's Cutover hides tasks for the share that it has put in force.
pub(super) fn hides(cutovers: &Objects<Cutover>, key: &ServiceKey) -> bool {
    cutovers.get(key).is_some_and(|cutover| cutover.spec.hide_tasks && cutover.status.share_of_traffic.is_some())
}

/// Whether tasks of others may be hidden in a target: an administrator has granted it, or the takeover of what is there.
pub(super) fn may_hide_in(rights: &Rights, namespace: &str, target: &Target, consent: &Consent) -> bool {
    let takes_over = |adopt: &Adopt| !matches!(adopt, Adopt::AwsMcsController { .. });
    rights.is_granted(namespace, target) || consent.adopt.as_ref().is_some_and(takes_over)
}

/// How many Cutovers there are, by phase.
pub(super) fn phases(cutovers: &Objects<Cutover>) -> [(CutoverPhase, usize); CutoverPhase::ALL.len()] {
    CutoverPhase::ALL
        .map(|phase| (phase, cutovers.values().filter(|cutover| cutover.status.phase == Some(phase)).count()))
}

impl Core {
    pub(super) fn judged(&mut self, judgements: Arc<Judgements>) {
        self.cutovers.judgements = judgements;
        self.changed(Fact::Judged);
    }

    /// Decides about all Cutovers again.
    pub(super) fn judge_cutovers(&mut self, now: Now) {
        let all = self.world.cutovers.values().cloned().collect::<Vec<_>>();
        if all.is_empty() && self.cutovers.planned.is_empty() && self.cutovers.asked.is_empty() {
            return;
        }
        let exists = |key: &ServiceKey| self.world.cutovers.contains(key);
        self.cutovers.stopwatches.retain(|key, _| exists(key));
        self.cutovers.planned.retain(|key, _| exists(key));
        self.cutovers.last_marks.retain(|key, _| exists(key));
        let unfinished = unfinished(&all);
        let mut asked = guard::Questions::new();
        for cutover in &all {
            let question = self.judge_cutover(cutover, &unfinished, now);
            asked.extend(question.map(|question| (cutover.key.clone(), Arc::new(question))));
        }
        if asked != *self.cutovers.asked {
            self.cutovers.asked = Arc::new(asked);
            self.out.push(Command::Guard(Arc::clone(&self.cutovers.asked)));
        }
        if self.cutovers.planned != *self.cutovers.written {
            self.cutovers.written = Arc::new(self.cutovers.planned.clone());
            self.out.push(Command::WriteCutovers(Arc::clone(&self.cutovers.written)));
        }
    }

    /// Decides about a Cutover, and returns what its guard is asked.
    fn judge_cutover(
        &mut self,
        cutover: &Cutover,
        unfinished: &BTreeMap<ObjectKey, i64>,
        now: Now,
    ) -> Option<Question> {
        let Cutover { key, uid, version, generation, spec, status: shown } = cutover;
        let (facing, annotation) = self.facing(key);
        // A new leader has to read everything first.
        if self.term.young && !facing.is_known() {
            return None;
        }
        // What was planned counts until the API server shows it, or something else.
        let follows = |writing: &&Arc<Writing>| writing.version == *version && writing.status != *shown;
        let planned = self.cutovers.planned.get(key).filter(follows).map(|writing| writing.status.clone());
        if planned.is_none() {
            self.cutovers.planned.remove(key);
        }
        let status = planned.unwrap_or_else(|| shown.clone());
        let share = status.share_of_traffic.and_then(|share| u8::try_from(share).ok());
        let settle = self.cutovers.settle;
        let guard = looks(spec, &status, *generation, facing.ttl(), settle);
        let question = guard.map(|guard| self.question(key, guard, share, &facing));
        let judgement = question.as_ref().map(|question| guard::judgement(&self.cutovers.judgements, key, question));
        // Time in which nobody looks does not count either.
        let is_good = judgement.as_ref().map_or(spec.guard.is_none(), |judgement| *judgement == Judgement::Passed);
        let is_reached = is_good && share.is_some_and(|share| facing.stands_at(share).is_ok());
        let hidden_since = self.cutovers.last_marks.entry(key.clone()).or_default().look(&facing, now.wall);
        let stopwatch = self.cutovers.stopwatches.entry(key.clone()).or_default();
        let waited = stopwatch.look(&status, is_reached, now.mono);
        let lower = unfinished.iter().find(|(other, wave)| other.namespace == key.namespace && **wave < spec.wave);
        let observed = Observed {
            generation: *generation,
            annotation,
            facing: &facing,
            awaits: lower.map(|(other, _)| &*other.name),
            guard: judgement.as_ref(),
            may_hide: self.settings.hide_tasks,
            ungranted: facing.targets().iter().map(|place| &place.target).find(|target| !self.may_hide(key, target)),
            settle,
            hidden_since,
            waited,
            now: now.wall,
        };
        if let Some(Planned { status, news }) = plan(spec, &status, &observed) {
            let writing = Writing { key: key.clone(), uid: uid.clone(), version: version.clone(), status, news };
            self.cutovers.planned.insert(key.clone(), Arc::new(writing));
        }
        question
    }

    fn may_hide(&self, key: &ServiceKey, target: &Target) -> bool {
        let consent = self.instances.desired.get(target).map(|desired| desired.consent.clone()).unwrap_or_default();
        may_hide_in(self.knowledge.rights(), &key.namespace, target, &consent)
    }

    /// What a guard is asked while a share is in force.
    fn question(&self, key: &ServiceKey, guard: Guard, share: Option<u8>, facing: &Facing) -> Question {
        let service = self.world.services.get(key);
        let pods_of_it =
            Pods::of(service.as_deref(), &self.world.slices.get(key), |address| self.is_cluster_ip(address));
        let (mut services, mut first, mut others) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        for TargetStanding { target, share, trouble: _ } in facing.targets() {
            let Some(desired) = self.instances.desired.get(target) else { continue };
            let registered = |address: &IpAddr| share.as_ref().is_some_and(|share| share.addresses.contains(address));
            let mut instances = BTreeSet::new();
            for spec in desired.instances.iter().filter(|spec| spec.is_ready()) {
                let is_registered = spec.addresses().any(|address| registered(&address));
                let pods = if is_registered { &mut first } else { &mut others };
                let port = guard.port.or(spec.port());
                let places =
                    port.into_iter().flat_map(|port| spec.addresses().map(move |it| SocketAddr::new(it, port)));
                pods.extend(places.filter(|at| pods_of_it.serve(*at)).take(1));
                if is_registered {
                    instances.insert(Arc::clone(spec.id()));
                }
            }
            let Some(share) = share else { continue };
            services.extend(share.http_name.as_ref().map(|http_name| Registered {
                http_name: Arc::clone(http_name),
                service: target.service.clone(),
                domain: share.resolves.then(|| format!("{}.{}.", target.service, target.namespace)),
                instances,
            }));
        }
        let pods = first.into_iter().chain(others).take(MOST_PODS).collect();
        Question { share, guard, services, pods }
    }

    /// What a Cutover is about, and what the annotation there requests.
    fn facing(&self, key: &ServiceKey) -> (Facing, Traffic) {
        let exported = self.world.exports.get(key).filter(|export| !export.deleting);
        let [export, service, ingress] = owners(key);
        let mut annotation = exported.as_ref().map(|export| Traffic::read(&export.annotations).0);
        let (mut found, mut obstacle, mut places) = (exported.is_some(), self.export_obstacle(key), Vec::new());
        let mut add = |owner: &ClaimOwner, targets: Vec<Target>| {
            for target in targets {
                if !places
                    .iter()
                    .any(|place: &Result<TargetStanding, _>| place.as_ref().is_ok_and(|it| it.target == target))
                {
                    places.extend(self.place(target, owner));
                }
            }
        };
        if exported.is_some() && obstacle.is_none() {
            add(&export, self.knowledge.targets_of(&export));
        }
        for owner in [service, ingress] {
            let Some(asked) = self.annotated.asked(&owner) else { continue };
            found = true;
            annotation = annotation.or(Some(asked));
            add(&owner, self.knowledge.targets_of(&owner));
            obstacle = obstacle.or_else(|| self.annotated.obstacle(&owner));
        }
        let annotation = annotation.unwrap_or_default();
        if !found {
            return (Facing::NoObject, annotation);
        }
        let places: Result<Vec<TargetStanding>, String> = places.into_iter().collect();
        let facing = match (places, obstacle) {
            (Err(why), _) => Facing::NotRegistered(why),
            (Ok(places), _) if !places.is_empty() => Facing::Targets(places),
            (_, Some(Progress::Waits(why))) => Facing::Waits(why),
            (_, Some(Progress::Refused(why))) => Facing::NotRegistered(why),
            (_, Some(Progress::Declined)) => Facing::NotRegistered(
                "Its registration is turned off by an annotation or a flag of the controller: see the annotation \
                 cloudmap-mcs/instances and the flag --instances."
                    .to_owned(),
            ),
            _ => Facing::Waits("it is not planned yet where it is registered".to_owned()),
        };
        (facing, annotation)
    }

    /// What became of an object in one of its targets. `None` if it gives that up.
    ///
    /// # Errors
    /// It will not be registered there before somebody changes something.
    fn place(&self, target: Target, owner: &ClaimOwner) -> Option<Result<TargetStanding, String>> {
        match self.knowledge.claimant(&target) {
            Some((cluster, other)) if !other.is_same_service(owner) => {
                return Some(Err(format!("Cloud Map service {target}: {other} of cluster {cluster} claims it.")));
            }
            _ => {}
        }
        let desired = self.instances.desired.get(&target);
        if desired.is_some_and(|desired| desired.retiring) {
            return None;
        }
        let status = self.instances.statuses.get(&target);
        let (share, mut trouble) = (status.and_then(|status| status.share.as_deref().cloned()), None);
        match status.map(|status| &status.outcome) {
            Some(Outcome::Refused {
                reason: Reason::ForeignOwner | Reason::NoNamespace | Reason::AccessDenied | Reason::LimitExceeded,
                message,
            }) => return Some(Err(format!("Cloud Map service {target}: {message}."))),
            Some(Outcome::Refused { message, .. }) => trouble = Some(format!("Cloud Map service {target}: {message}")),
            Some(Outcome::Pending | Outcome::Registered { .. }) | None if desired.is_none() => {
                trouble = Some(format!("Cloud Map service {target}: {}", self.standing_in(&target)));
            }
            Some(Outcome::Pending | Outcome::Registered { .. }) | None => {}
        }
        Some(Ok(TargetStanding { target, share, trouble }))
    }
}

/// The objects that a Cutover of this name may be about.
pub(super) fn owners(key: &ServiceKey) -> [ClaimOwner; 3] {
    [ClaimOwner::export(key), ClaimOwner::service(key), ClaimOwner::ingress(key)]
}

/// The waves of all Cutovers that are not finished.
fn unfinished(all: &[Arc<Cutover>]) -> BTreeMap<ObjectKey, i64> {
    let is_finished = |cutover: &Cutover| {
        cutover.status.phase == Some(CutoverPhase::Finished) && cutover.status.observed_generation == cutover.generation
    };
    let unfinished = all.iter().filter(|cutover| !is_finished(cutover));
    unfinished.map(|cutover| (cutover.key.clone().into(), cutover.spec.wave)).collect()
}
