//! Draws from a seed what happens to a world.

use std::time::Duration;

use cloudmap::{Operation, Plane};

use super::{
    cutovers::Instruction,
    editors::Edit,
    kubernetes::{Fault, Moment, Scope, Verb},
    scenario::{Kind, Scenario, Site},
    schedule::{Action, Step},
    silences::Way,
    strangers::Stranger,
    users::{ANNOTATED, EXPORTED, JOINING, MOST_TASKS, Meddling, NAMES, PORTS, Place, Shape, WISHES},
    world::Role,
};
use crate::ledger_sim::rng::Rng;
use emulator::{Effect, Fault as Rule};

/// The kinds of objects that every replica watches.
const WATCHED: [&str; 5] = ["services", "endpointslices", "serviceexports", "serviceimports", "namespaces"];

/// The kinds of objects that replicas watch in a scenario.
fn watched(scenario: &Scenario) -> Vec<&'static str> {
    let mut watched = WATCHED.to_vec();
    watched.extend(scenario.clusters.iter().any(Site::has_gates).then_some("pods"));
    watched.extend(scenario.clusters.iter().any(Site::has_cutovers).then_some("cutovers"));
    watched
}

/// The kinds of objects that a replica writes.
const WRITTEN: [&str; 7] =
    ["serviceimports", "services", "endpointslices", "serviceexports", "events", "configmaps", "leases"];

/// The kinds of objects that a replica puts in place of the version that it knows: the others it applies.
const UPDATED: [&str; 3] = ["configmaps", "configmaps", "leases"];

/// The kinds of objects that imports consist of.
const IMPORTED: [&str; 3] = ["services", "endpointslices", "serviceimports"];

/// The operations that fail. Those of the first two go on after their calls.
const FAILING: [&str; 16] = [
    "RegisterInstance",
    "DeregisterInstance",
    "DiscoverInstances",
    "ListInstances",
    "GetOperation",
    "CreateService",
    "ListServices",
    "ListNamespaces",
    "GetInstancesHealthStatus",
    "GetNamespace",
    "CreateHttpNamespace",
    "GetService",
    "UpdateService",
    "DeleteService",
    "UpdateInstanceCustomHealthStatus",
    "ListTagsForResource",
];

/// What is read of instances and operations.
const READINGS: [&str; 4] = ["ListInstances", "GetInstancesHealthStatus", "DiscoverInstances", "GetOperation"];

/// The ClusterSets that clusters join; empty: none.
const SETS: [&str; 4] = ["set", "set", "other", ""];

/// What users ask for. Above 0 %, each cluster shows an endpoint at least.
const WEIGHTS: [&str; 4] = ["c1=10%,c2=90%", "c3=50%", "c1=30%,c2=30%,c3=40%", "c2=1%"];

/// How long after the end of a trouble users still meet what it leaves behind.
const WAKE: Duration = Duration::from_secs(10);

fn throttled() -> Effect {
    Effect::Error { code: "ThrottlingException".into(), message: "Rate exceeded".into(), status: None }
}

fn denied() -> Effect {
    Effect::Error { code: "AccessDeniedException".into(), message: "no policy allows it".into(), status: Some(403) }
}

/// By an admission policy, which is about one kind.
fn refused() -> Fault {
    Fault::Denied("a policy of this cluster forbids it".to_owned())
}

/// Draws the steps of a scenario, which all end by `end`. What users do comes mostly while something goes wrong.
pub(crate) fn draw(rng: &mut Rng, scenario: &Scenario, end: Duration) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for _ in 0..scenario.steps {
        let kind = *rng.pick(scenario.kinds);
        steps.push(step(rng, kind, scenario, end));
    }
    let wrong = steps.iter().filter(|step| !step.kind.is_of_users());
    let wrong: Vec<_> = wrong.map(|step| (step.at, step.lasts)).collect();
    for step in steps.iter_mut().filter(|step| step.kind.is_of_users()) {
        if !wrong.is_empty() && rng.chance(0.7) {
            let (at, lasts) = *rng.pick(&wrong);
            let within = rng.between(0, (lasts + WAKE).as_millis() as u64);
            step.at = (at + Duration::from_millis(within)).min(end.saturating_sub(Duration::from_secs(1)));
            step.lasts = step.lasts.min(end.saturating_sub(step.at));
        }
    }
    steps.sort_by_key(|step| step.at);
    steps
}

/// What is drawn for every step, whatever its kind.
#[derive(Clone, Copy)]
struct Draw {
    kind: Kind,
    at: Duration,
    /// Until the end of the run.
    longest: Duration,
    short: Duration,
    long: Duration,
    clusters: usize,
    cluster: usize,
    role: Role,
    place: Place,
    /// Whether both replicas are concerned.
    both: bool,
}

impl Draw {
    fn new(rng: &mut Rng, kind: Kind, scenario: &Scenario, end: Duration) -> Self {
        let clusters = scenario.clusters.len();
        let at = Duration::from_millis(rng.between(0, end.as_millis() as u64 - 1_000));
        let longest = end.saturating_sub(at);
        let (short, long) = (lasting(rng, 200, 20_000).min(longest), lasting(rng, 5_000, 120_000).min(longest));
        let (cluster, role) = (rng.below(clusters), if rng.chance(0.7) { Role::Leader } else { Role::Other });
        let place = Place { cluster, name: rng.below(EXPORTED) };
        let both = rng.chance(0.4);
        Self { kind, at, longest, short, long, clusters, cluster, role, place, both }
    }

    fn step(&self, lasts: Duration, action: Action) -> Step {
        Step { kind: self.kind, at: self.at, lasts, action }
    }

    fn short(&self, action: Action) -> Step {
        self.step(self.short, action)
    }

    fn long(&self, action: Action) -> Step {
        self.step(self.long, action)
    }

    /// A fault of the API server for one replica, or for both.
    fn kubernetes(&self, fault: Fault, scope: Scope) -> Action {
        Action::Kubernetes { cluster: self.cluster, role: (!self.both).then_some(self.role), scope, fault }
    }

    /// Rules for the credentials, or the way, of one replica, or for all calls.
    fn registry(&self, rules: Vec<Rule>) -> Action {
        Action::Registry { rules, replica: (!self.both).then_some((self.cluster, self.role)) }
    }
}

fn lasting(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.between(from, to))
}

fn seconds(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_secs(rng.between(from, to))
}

fn step(rng: &mut Rng, kind: Kind, scenario: &Scenario, end: Duration) -> Step {
    let watched = watched(scenario);
    let draw = Draw::new(rng, kind, scenario, end);
    let Draw { longest, long, cluster, role, place, .. } = draw;
    match kind {
        Kind::Endpoints => draw.short(Action::Scale { place, to: rng.below(4) + 1, rolled: rng.chance(0.3) }),
        Kind::Cooldown => draw.short(Action::Scale { place, to: rng.below(5), rolled: rng.chance(0.6) }),
        Kind::Exports => draw.short(if rng.chance(0.5) { Action::Export(place) } else { Action::Unexport(place) }),
        Kind::Services if rng.chance(0.4) => draw.short(Action::RemoveService(place)),
        Kind::Services => draw.short(Action::Scale { place, to: rng.below(3), rolled: false }),
        Kind::Weights => {
            let (namespace, weights) = (if rng.chance(0.5) { "shop" } else { "pay" }, *rng.pick(&WEIGHTS));
            draw.long(Action::Weigh { cluster, namespace, weights })
        }
        Kind::Drains => draw.short(Action::Drain { cluster, drained: rng.chance(0.6) }),
        Kind::Namespaces => {
            draw.short(Action::Namespace { cluster, namespace: if rng.chance(0.5) { "shop" } else { "pay" } })
        }
        Kind::Shapes => draw.short(shape(rng, place)),
        Kind::Ports => draw.short(Action::Ports { place, index: rng.below(PORTS.len()) }),
        Kind::Claims => draw.short(claim(rng, place)),
        Kind::Shares => draw.short(share(rng, cluster)),
        Kind::Cutovers => draw.short(cutover(rng)),
        Kind::Imports => draw.short(Action::Orders(rng.chance(0.6).then(|| rng.below(MOST_TASKS + 1)))),
        Kind::Crashes => draw.short(crash(rng, cluster, role)),
        Kind::Kills => draw.short(Action::Kill { cluster, role }),
        Kind::Stops => draw.short(Action::Stop { cluster, role }),
        Kind::Pauses => draw.step(if rng.chance(0.5) { draw.short } else { long }, Action::Pause { cluster, role }),
        Kind::Clocks => draw.long(Action::Clock { cluster, role, offset: offset(rng) }),
        Kind::Stale => {
            let lag = seconds(rng, 1, 90);
            draw.long(draw.kubernetes(Fault::Stale(lag), Scope::all().of(rng.pick::<&str>(&watched))))
        }
        Kind::Unobserved => unobserved(rng, &draw, &watched),
        Kind::Kubernetes => kubernetes(rng, &draw),
        Kind::Editors => draw.short(Action::Edit { cluster, which: rng.below(1000), edit: *rng.pick(&Edit::ALL) }),
        Kind::Partitions => draw.long(draw.kubernetes(Fault::Partitioned, Scope::all())),
        Kind::Divides if rng.chance(0.4) => draw.short(Action::Cut { cluster }),
        Kind::Divides => {
            let to = (cluster + 1 + rng.below(draw.clusters - 1)) % draw.clusters;
            draw.long(Action::Divide { from: cluster, to, both: draw.both })
        }
        Kind::Blackholes => {
            let to = (cluster + 1 + rng.below(draw.clusters - 1)) % draw.clusters;
            let (to, streams) = (rng.chance(0.85).then_some(to), rng.chance(0.8));
            draw.step(
                draw.long.max(Duration::from_mins(1)).min(longest),
                Action::Blackhole { from: cluster, to, streams },
            )
        }
        Kind::Lag => draw.long(Action::Lag(seconds(rng, 3, 60))),
        Kind::Registry => registry(rng, &draw),
        Kind::Readings => {
            let effect = if rng.chance(0.5) { denied() } else { throttled() };
            let rules = vec![Rule::on(rng.pick::<&str>(&READINGS), effect)];
            draw.step(lasting(rng, 60_000, 180_000).min(longest), draw.registry(rules))
        }
        // For both replicas: a policy asks for no name.
        Kind::Policies => {
            let scope = Scope::all().of(rng.pick::<&str>(&IMPORTED));
            draw.long(Action::Kubernetes { cluster, role: None, scope, fault: refused() })
        }
        Kind::Keys => {
            let dies = *rng.pick(&[None, None, Some(Moment::Before), Some(Moment::After)]);
            draw.short(Action::DeleteKey { cluster, dies })
        }
        Kind::Foreigners => draw.long(foreigner(rng)),
        Kind::Meddlers => draw.short(meddle(rng)),
        Kind::Vandals => draw.short(vandalise(rng)),
        Kind::Renames => {
            draw.short(Action::Rename { cluster, id: format!("c{}{}", cluster + 1, rng.pick(&["", "x", "y"])) })
        }
        // At first, so that it lasts long enough.
        Kind::Silences => {
            let (at, lasts) = (lasting(rng, 0, 60_000), lasting(rng, 500_000, 600_000));
            Step { kind, at, lasts, action: Action::Silence { cluster, way: *rng.pick(&Way::ALL) } }
        }
        Kind::Strangers => {
            let stay = lasting(rng, 20_000, 220_000).min(longest);
            draw.step(stay, Action::Intrude { place, what: *rng.pick(&Stranger::ALL) })
        }
        Kind::Moves => draw.long(Action::Move { cluster, told: rng.chance(0.7), to: SETS[rng.below(SETS.len())] }),
    }
}

/// What users change of a Service and of its export.
fn shape(rng: &mut Rng, place: Place) -> Action {
    if rng.chance(0.2) {
        return Action::Label { place, tier: *rng.pick(&[None, Some("front"), Some("back")]) };
    }
    Action::Shape { place, shape: Shape::draw(rng, NAMES[place.name].2) }
}

fn crash(rng: &mut Rng, cluster: usize, role: Role) -> Action {
    let of_registry = rng.chance(0.5);
    // Of Kubernetes, renewals of the Lease do not count.
    let (nth, after) = (rng.below(if of_registry { 12 } else { 6 }) as u32 + 1, rng.chance(0.5));
    Action::Crash { cluster, role, of_registry, nth, after }
}

/// How far a clock is ahead, in milliseconds.
fn offset(rng: &mut Rng) -> i64 {
    let reach: u64 = *rng.pick(&[2_000, 60_000, 7_200_000, 90_000_000]);
    rng.between(0, reach * 2).cast_signed() - reach.cast_signed()
}

/// Watches that miss what happens.
fn unobserved(rng: &mut Rng, draw: &Draw, watched: &[&'static str]) -> Step {
    let Draw { cluster, role, .. } = *draw;
    let compacts = rng.chance(0.2);
    let loses = !compacts && rng.chance(0.5);
    let kind = *rng.pick(watched);
    draw.short(match (compacts, loses) {
        (true, _) => Action::Compact { cluster, kind },
        (false, true) => Action::LoseEvents { cluster, role, kind },
        (false, false) => draw.kubernetes(Fault::DeadWatches, Scope::all().of(kind)),
    })
}

/// What goes wrong with the API server.
fn kubernetes(rng: &mut Rng, draw: &Draw) -> Step {
    let (Draw { short, long, .. }, scope) = (*draw, Scope::all());
    // Of one kind: the Lease, which is read and renewed all the time, would use up all that strikes a few times.
    let some = scope.clone().of(rng.pick::<&str>(&WRITTEN));
    let (lasts, fault, scope) = match rng.below(10) {
        0 => (short, Fault::Away, scope),
        1 => (long, Fault::Throttled(2), scope),
        2 => (long, Fault::Unavailable, if rng.chance(0.5) { scope.on_writes() } else { scope }),
        3 => (long, Fault::Slow(seconds(rng, 1, 6)), scope),
        4 => (short, Fault::HangsBefore, some.times(3)),
        5 => (long, Fault::HangsAfter, some.on_writes().times(3)),
        6 => (long, Fault::AnswerLost, some.on_writes().times(4)),
        7 | 8 => (long, refused(), scope.of(rng.pick::<&str>(&WRITTEN))),
        _ => (long, Fault::Conflict, scope.of(rng.pick::<&str>(&UPDATED)).on(Verb::Update).times(3)),
    };
    draw.step(lasts, draw.kubernetes(fault, scope))
}

/// What goes wrong with Cloud Map.
fn registry(rng: &mut Rng, draw: &Draw) -> Step {
    if rng.chance(0.1) {
        return draw.long(Action::Truncate(rng.below(4) + 1));
    }
    // Of one plane, as AWS throttles, or in one service, as a policy by resource denies.
    if rng.chance(0.2) {
        let plane = *rng.pick(&[Plane::Control, Plane::Discovery]);
        let of_plane = Operation::ALL.iter().filter(|operation| operation.plane() == plane);
        let rules = of_plane.map(|operation| Rule::on(operation.name(), throttled())).collect();
        return draw.long(draw.registry(rules));
    }
    let rule = rule(rng);
    draw.long(draw.registry(vec![rule]))
}

fn rule(rng: &mut Rng) -> Rule {
    let error = |code: &str, message: &str, status| Effect::Error {
        code: code.into(),
        message: message.into(),
        status: Some(status),
    };
    match rng.below(11) {
        0 => Rule::on_any(throttled()).with_probability(0.7),
        1 => Rule::on(rng.pick::<&str>(&FAILING), throttled()),
        2 => Rule::on(rng.pick::<&str>(&FAILING), denied()),
        3 => Rule::on_any(error("ExpiredTokenException", "the token is expired", 403)),
        4 => Rule::on_any(error("InternalFailure", "", 500)).with_probability(0.5),
        5 => Rule::on_any(Effect::Latency { add: seconds(rng, 2, 30) }).with_probability(0.3),
        // Less than `LATEST_EFFECT` of the product: nobody knows of an operation that ends later.
        6 => Rule::on(FAILING[rng.below(2)], Effect::OperationLatency { add: seconds(rng, 10, 55) })
            .with_probability(0.5),
        7 => {
            let fails = Effect::FailOperation { code: "INTERNAL_FAILURE".into(), message: String::new() };
            Rule::on(FAILING[rng.below(2)], fails).with_probability(0.5)
        }
        8 => Rule::on("DiscoverInstances", Effect::Partial { keep: 0.6 }),
        9 => {
            let service = *rng.pick(&["clusters", "exports-", "web", "api", "db"]);
            Rule { service: Some(service.to_owned()), ..Rule::on_any(denied()) }
        }
        _ => {
            Rule::on_any(if rng.chance(0.5) { Effect::DropRequest } else { Effect::DropResponse }).with_probability(0.4)
        }
    }
}

fn foreigner(rng: &mut Rng) -> Action {
    let exported = NAMES[..EXPORTED].iter().map(|(namespace, name, _)| (*namespace, *name));
    let targets: Vec<_> = exported.chain(WISHES).collect();
    Action::Foreigner { target: *rng.pick(&targets) }
}

/// What people do to instances and services of ours.
fn meddle(rng: &mut Rng) -> Action {
    let how = *rng.pick(&[Meddling::Deletes, Meddling::Deletes, Meddling::Alters]);
    let which = rng.below(1000);
    let how = if how == Meddling::Alters && which < 500 { Meddling::ChangesTtl } else { how };
    Action::Meddle { which, how }
}

/// What people do to the ledger.
fn vandalise(rng: &mut Rng) -> Action {
    let how = *rng.pick(&[Meddling::DeletesHead, Meddling::DeletesPage, Meddling::ForgesHead, Meddling::ForgesHead]);
    Action::Meddle { which: rng.below(1000), how }
}

/// What users do about names in Cloud Map. `place`: of an export.
fn claim(rng: &mut Rng, place: Place) -> Action {
    let annotated = Place { name: *rng.pick(&ANNOTATED), ..place };
    let mut wish = || rng.chance(0.5).then(|| rng.below(WISHES.len()));
    match (wish(), wish()) {
        (host, python) if rng.chance(0.6) => Action::Annotate { place: annotated, host, python },
        (wish, _) if rng.chance(0.5) => Action::NameTarget { place, wish },
        _ if rng.chance(0.3) => Action::RemoveService(annotated),
        _ => Action::Scale { place: annotated, to: rng.below(4), rolled: rng.chance(0.3) },
    }
}

/// What users do about the share of a cluster, and what ECS does.
fn share(rng: &mut Rng, cluster: usize) -> Action {
    const SHARES: [Option<&str>; 10] = [
        None,
        Some("0%"),
        Some("0%"),
        Some("10%"),
        Some("25%"),
        Some("33.3%"),
        Some("40%"),
        Some("50%"),
        Some("100%"),
        Some("abc"),
    ];
    match rng.below(10) {
        0..5 => Action::Share { cluster, share: *rng.pick(&SHARES) },
        5..7 => Action::Tasks(rng.below(MOST_TASKS + 1)),
        7 => Action::RemoveService(Place { cluster, name: JOINING.0 }),
        _ => Action::Scale { place: Place { cluster, name: JOINING.0 }, to: rng.below(6), rolled: rng.chance(0.3) },
    }
}

/// How users change the Cutover, and what ECS does.
fn cutover(rng: &mut Rng) -> Action {
    let place = Place { cluster: 0, name: JOINING.0 };
    match rng.below(10) {
        0..5 => Action::Instruct { cluster: 0, instruction: Instruction::draw(rng) },
        5..7 => Action::Tasks(rng.below(MOST_TASKS + 1)),
        7 => Action::RemoveService(place),
        _ => Action::Scale { place, to: rng.below(6), rolled: rng.chance(0.3) },
    }
}
