//! A Cutover of the Service that joins ECS tasks: what users say, and what must hold of its steps, written from
//! `docs/cutover.md`.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use cluster::record::HIDDEN;
use cutover::guard::{Failure, Outside};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{
    check::NEWS,
    expect::{Name, live},
    kubernetes::Write,
    users::{JOINING, NAMES, PYTHON, Place, annotation, is_terminating},
    world::{Cluster, OWN, World, must},
};
use crate::ledger_sim::rng::Rng;
use emulator::Health;

/// The steps of every Cutover, in percent, and how long each lasts at least. The service has no records, so that nobody
/// raises it.
const STEPS: [i64; 4] = [10, 30, 60, 100];
const INTERVAL: Duration = Duration::from_secs(40);
/// What a hold asks for.
const HELD: [i64; 4] = [0, 20, 50, 100];
/// Within this time a guard has noticed whether pods answer: three looks, and a process that stood still for less than the
/// Lease lasts.
const NOTICED: Duration = Duration::from_secs(45);
/// How long a call takes.
const LATENCY: Duration = Duration::from_millis(20);

/// How a user changes a Cutover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// There is one, or there is one again.
    Begin,
    Pause(bool),
    Hold(Option<i64>),
    Back(bool),
    Delete,
    /// A guard looks at the steps.
    Guard(bool),
    /// The pods do not answer any more, or again.
    Ill(bool),
    /// Tasks are hidden.
    Hide(bool),
}

impl Instruction {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        match rng.below(20) {
            0..3 => Self::Begin,
            3 | 4 => Self::Pause(rng.chance(0.5)),
            5 | 6 => Self::Hold(rng.chance(0.5).then(|| *rng.pick(&HELD))),
            7..11 => Self::Back(rng.chance(0.4)),
            11..13 => Self::Guard(rng.chance(0.7)),
            13..16 => Self::Ill(rng.chance(0.4)),
            16..19 => Self::Hide(rng.chance(0.7)),
            _ => Self::Delete,
        }
    }
}

fn key() -> (&'static str, &'static str) {
    let (namespace, name, _) = NAMES[JOINING.0];
    (namespace, name)
}

impl World {
    /// Has the Service of a cluster join the ECS tasks.
    pub(crate) fn join_tasks(&mut self, cluster: usize) {
        self.share(cluster, None);
        debug_assert!(self.clusters[cluster].site.has_cutovers(), "nobody would follow its Cutover");
    }

    pub(crate) fn instruct(&mut self, cluster: usize, instruction: Instruction) {
        let (namespace, name) = key();
        let api = &self.clusters[cluster].api;
        let spec = |spec: Value| drop(api.patch("cutovers", namespace, name, &json!({ "spec": spec })));
        match instruction {
            Instruction::Begin if api.get("cutovers", namespace, name).is_some() => {
                // Another spec, so that what a guard found is forgotten.
                spec(json!({ "rollBack": true }));
                spec(json!({"paused": null, "shareOfTraffic": null, "rollBack": null}));
            }
            Instruction::Begin => {
                let interval = format!("{}s", INTERVAL.as_secs());
                must(api.put(
                    "cutovers",
                    json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"steps": STEPS, "interval": interval}}),
                ));
            }
            Instruction::Pause(paused) => spec(json!({ "paused": paused })),
            Instruction::Hold(share) => spec(json!({ "shareOfTraffic": share })),
            Instruction::Back(back) => spec(json!({ "rollBack": back })),
            Instruction::Delete => drop(api.delete("cutovers", namespace, name)),
            Instruction::Guard(guard) => spec(json!({ "guard": guard.then(|| json!({})) })),
            Instruction::Hide(hide) => spec(json!({ "hideTasks": hide })),
            Instruction::Ill(ill) => self.callers.note(self.began.elapsed(), ill),
        }
    }

    /// A Cutover that has its own way: nobody holds or pauses it, and its Service is there.
    pub(crate) fn let_go(&mut self, cluster: usize) {
        self.scale(Place { cluster, name: JOINING.0 }, 3, false);
        self.join_tasks(cluster);
        self.instruct(cluster, Instruction::Begin);
    }
}

/// Who calls pods: everybody reaches them, or nobody.
#[derive(Debug, Clone, Default)]
pub(crate) struct Callers(Arc<Mutex<Vec<(Duration, bool)>>>);

impl Callers {
    fn note(&self, at: Duration, ill: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((at, ill));
    }

    /// All pods answer.
    pub(crate) fn heal(&self, at: Duration) {
        self.note(at, false);
    }

    /// Whether no pod answered, or whether one did, at some time of an interval.
    fn had(&self, from: Duration, to: Duration, ill: bool) -> bool {
        let said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = false;
        for (at, now) in said.iter().copied().chain([(Duration::MAX, false)]) {
            if before == ill && at > from {
                return true;
            }
            if at > to {
                return false;
            }
            before = now;
        }
        false
    }

    pub(super) fn place(&self, began: Instant) -> Arc<dyn Outside> {
        Arc::new(Caller { callers: self.clone(), began })
    }
}

/// One replica, as it calls.
struct Caller {
    callers: Callers,
    began: Instant,
}

#[async_trait]
impl Outside for Caller {
    async fn resolve(&self, _: &str) -> Result<BTreeSet<IpAddr>, String> {
        sleep(LATENCY).await;
        Ok([[10, 0, 0, 1].into()].into())
    }

    async fn probe(&self, _: SocketAddr, _: Option<&str>) -> Result<(), Failure> {
        sleep(LATENCY).await;
        let now = self.began.elapsed();
        if self.callers.had(now, now, true) { Err(Failure::Refused) } else { Ok(()) }
    }

    async fn query(&self, _: &str) -> Result<f64, String> {
        Err("there is no Prometheus".to_owned())
    }
}

/// The share of a Service that its Cutover has put in force, as an annotation would say it. What is not a share: none is in
/// force yet.
pub(crate) fn in_force(cluster: &Cluster, name: &Name) -> Option<String> {
    let cutover = cluster.api.get("cutovers", &name.0, &name.1).filter(|cutover| !is_terminating(cutover))?;
    Some(
        cutover["status"]["shareOfTraffic"].as_i64().map_or_else(|| "none yet".to_owned(), |share| format!("{share}%")),
    )
}

/// Tasks that are hidden, or recorded as that, although nobody says so: none is ill by itself.
fn hidden(world: &World) -> Option<String> {
    let hides = |cluster: &Cluster| {
        cluster.api.list("cutovers").iter().any(|(_, cutover)| cutover["spec"]["hideTasks"] == true)
    };
    if world.clusters.iter().any(hides) {
        return None;
    }
    let ill = world.registry.with(|cloudmap, _| {
        let all = cloudmap.services().flat_map(|service| service.instances.iter());
        let ill = all.filter(|(id, instance)| id.starts_with("task-") && instance.health == Health::Unhealthy);
        ill.map(|(id, _)| id.clone()).collect::<Vec<_>>()
    });
    let recorded: Vec<_> = world.clusters.iter().flat_map(recorded).collect();
    (!ill.is_empty() || !recorded.is_empty()).then(|| format!("{ill:?} are hidden, {recorded:?} are recorded"))
}

/// The services and instances in a cluster's record of hidden tasks.
fn recorded(cluster: &Cluster) -> BTreeSet<(String, String)> {
    cluster.api.get("configmaps", OWN, HIDDEN).map(|object| in_record(&object)).unwrap_or_default()
}

/// The services and instances in a record of hidden tasks.
pub(super) fn in_record(object: &Value) -> BTreeSet<(String, String)> {
    let json = object["data"]["tasks.json"].as_str().unwrap_or("{}");
    let services: BTreeMap<String, Vec<String>> = serde_json::from_str(json).unwrap_or_default();
    services.into_iter().flat_map(|(service, ids)| ids.into_iter().map(move |id| (service.clone(), id))).collect()
}

/// A Cutover that is not where its spec sends it, or tasks that stay hidden without one.
pub(crate) fn under_way(world: &World) -> Option<String> {
    if let Some(hidden) = hidden(world) {
        return Some(hidden);
    }
    world.clusters.iter().find_map(|cluster| {
        let (name, cutover) = cluster.api.list("cutovers").into_iter().next()?;
        let (spec, status) = (&cutover["spec"], &cutover["status"]);
        let phase = status["phase"].as_str().unwrap_or_default();
        let reason = status["conditions"][0]["reason"].as_str().unwrap_or_default();
        let joins = |service: &Value| !is_terminating(service) && annotation(service, PYTHON[0]).is_some();
        let there = cluster.api.get("services", &name.0, &name.1).is_some_and(|service| joins(&service));
        let right = match spec["shareOfTraffic"].as_i64() {
            _ if status["observedGeneration"] != cutover["metadata"]["generation"] => false,
            _ if !there => phase == "Blocked",
            _ if status["guardFailure"]["generation"] == cutover["metadata"]["generation"] => {
                reason == "GuardFailed" && status["shareOfTraffic"] == 0
            }
            _ if spec["rollBack"] == true => phase == "RolledBack" || reason == "LastInstance",
            Some(held) => {
                status["shareOfTraffic"] == held && (phase == "Holding" || held == 100 && phase == "Finished")
            }
            None => {
                // A guard has nothing to probe then, and holds the step before that is said.
                let no_pods =
                    reason == "PodsNotReady" || reason == "GuardUnclear" && live(&cluster.api, &name).is_empty();
                phase == "Finished" || spec["paused"] == true && phase == "Paused" || no_pods
            }
        };
        (!right).then(|| format!("{} {}/{}: {spec} has {status}", cluster.id, name.0, name.1))
    })
}

/// What the checks remember of a cluster's Cutover.
#[derive(Debug, Default)]
pub(super) struct Course {
    /// The specs that it had, and until when; the last one is in force.
    specs: Vec<(Duration, Value)>,
    /// When its share changed.
    moved: Duration,
}

impl Course {
    /// Why a write of a Cutover by anybody must not have been, if it must not.
    pub(super) fn look(&mut self, write: &Write, callers: &Callers, by_replica: bool) -> Option<String> {
        let Some(after) = write.after.as_deref() else {
            *self = Self::default();
            return by_replica.then(|| "deleted".to_owned());
        };
        let before = write.before.as_deref().unwrap_or(&Value::Null);
        if !by_replica {
            if let Some((until, _)) = self.specs.last_mut() {
                *until = write.at;
            }
            self.specs.push((Duration::MAX, after["spec"].clone()));
            return None;
        }
        if !write.status || before["spec"] != after["spec"] {
            return Some(format!("more than the status of {before} became {after}"));
        }
        let [from, to] = [before, after].map(|cutover| cutover["status"]["shareOfTraffic"].as_i64());
        let was_finished = before["status"]["phase"] == "Finished";
        if from == to {
            let holds = was_finished && after["status"]["phase"] == "Holding";
            return holds.then(|| format!("what was finished holds: {after}"));
        }
        // Also one that is blocked: the tasks may be gone.
        let waited = before["status"]["waitedSeconds"].as_u64().unwrap_or_default();
        let is_over = from == Some(100) && (was_finished || waited >= INTERVAL.as_secs());
        let since = write.at.saturating_sub(std::mem::replace(&mut self.moved, write.at));
        let (now, long) = (write.at, write.at.saturating_sub(NOTICED));
        let known = self.specs.iter().filter(|(until, _)| *until == Duration::MAX || *until + NEWS >= now);
        let guards = |(_, spec): &(Duration, Value)| spec["guard"].is_object();
        if to == Some(0) && !is_over && known.clone().any(guards) && callers.had(now.saturating_sub(NEWS), now, true) {
            return None;
        }
        let said = known.clone().any(|(_, spec)| {
            to == Some(0) && spec["rollBack"] == true || to.is_some() && to == spec["shareOfTraffic"].as_i64()
        });
        if !said && to > from && known.clone().all(guards) && !callers.had(long, now, false) {
            return Some(format!("{from:?} became {to:?} while no pod answers: {after}"));
        }
        let next = STEPS.into_iter().find(|step| *step > from.unwrap_or_default());
        let waited = from.is_none_or(|from| from == 0) || since >= INTERVAL;
        (!said && (to != next || !waited)).then(|| format!("{from:?} became {to:?} after {since:?}: {after}"))
    }
}
