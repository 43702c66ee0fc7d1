//! What happens to a world, step by step: drawn from a seed, and data, so that a failing run can be repeated with less.

use std::time::Duration;

use cloudmap::{Operation, Plane};

use super::{
    cutovers::Saying,
    editors::Edit,
    kubernetes::{Fault, Moment, Scope, Verb},
    scenario::{Kind, Scenario, Site},
    silences::Way,
    strangers::Stranger,
    users::{ANNOTATED, EXPORTED, JOINING, MOST_TASKS, Meddling, NAMES, PORTS, Place, Shape, WISHES},
    world::Role,
};
use crate::ledger_sim::rng::Rng;
use emulator::{Effect, Fault as Rule};

/// One thing that happens, and goes on for a time.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) kind: Kind,
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
    pub(crate) action: Action,
}

#[derive(Debug, Clone)]
pub(crate) enum Action {
    Scale {
        place: Place,
        to: usize,
        rolled: bool,
    },
    Export(Place),
    Unexport(Place),
    RemoveService(Place),
    /// Asks for names in Cloud Map, as external-dns and as the Python controller understand it.
    Annotate {
        place: Place,
        host: Option<usize>,
        python: Option<usize>,
    },
    /// Has the Service of a cluster join ECS tasks, with a share of their traffic.
    Share {
        cluster: usize,
        share: Option<&'static str>,
    },
    /// Says something to the Cutover of a cluster.
    Say {
        cluster: usize,
        saying: Saying,
    },
    /// ECS runs so many tasks.
    Tasks(usize),
    /// Others run so many tasks in a namespace that clusters import from; `None`: they delete it.
    Orders(Option<usize>),
    /// Has an export registered under another name.
    NameTarget {
        place: Place,
        wish: Option<usize>,
    },
    /// Makes a Service another one.
    Shape {
        place: Place,
        shape: Shape,
    },
    /// Gives a Service other ports, by index into [`PORTS`].
    Ports {
        place: Place,
        index: usize,
    },
    /// Exports a label with it, or none.
    Label {
        place: Place,
        tier: Option<&'static str>,
    },
    /// Deletes a namespace, which takes a while, and makes it anew in the end, without anything in it.
    Namespace {
        cluster: usize,
        namespace: &'static str,
    },
    /// The process dies at its n-th write from now on.
    Crash {
        cluster: usize,
        role: Role,
        of_registry: bool,
        nth: u32,
        after: bool,
    },
    Kill {
        cluster: usize,
        role: Role,
    },
    Stop {
        cluster: usize,
        role: Role,
    },
    Pause {
        cluster: usize,
        role: Role,
    },
    Clock {
        cluster: usize,
        role: Role,
        offset: i64,
    },
    Kubernetes {
        cluster: usize,
        /// `None`: both replicas.
        role: Option<Role>,
        scope: Scope,
        fault: Fault,
    },
    /// What changes meanwhile of a kind is not seen, and its events are lost in the end.
    LoseEvents {
        cluster: usize,
        role: Role,
        kind: &'static str,
    },
    /// The API server forgets its history: whoever is behind has to list anew.
    Compact {
        cluster: usize,
        kind: &'static str,
    },
    /// People change what a cluster's controllers made in Kubernetes. `which` decides about the object.
    Edit {
        cluster: usize,
        which: usize,
        edit: Edit,
    },
    Registry {
        rules: Vec<Rule>,
        /// Index of the cluster, and which replica; `None`: all calls.
        replica: Option<(usize, Role)>,
    },
    /// All connections of the leaders of a cluster end.
    Cut {
        cluster: usize,
    },
    /// Nothing passes from one cluster to another, or in neither direction.
    Divide {
        from: usize,
        to: usize,
        both: bool,
    },
    /// Discovery gives no more than so many rows.
    Truncate(usize),
    Lag(Duration),
    /// Somebody else registers an instance beside ours, or in a service that they make, and takes both away in the end.
    Foreigner {
        target: (&'static str, &'static str),
    },
    /// People delete or alter something of ours in Cloud Map.
    Meddle {
        which: usize,
        how: Meddling,
    },
    /// People delete the Secret with the key of a cluster. Before or after that its leader dies, or it lives.
    DeleteKey {
        cluster: usize,
        dies: Option<Moment>,
    },
    Rename {
        cluster: usize,
        id: String,
    },
    /// Leaves the ClusterSet and joins this one in the end (empty: none); or at once if it is not `told` to leave.
    Move {
        cluster: usize,
        told: bool,
        to: &'static str,
    },
    /// The ledger of a cluster falls silent, unless that of another one is.
    Silence {
        cluster: usize,
        way: Way,
    },
    /// Others make an object under a name that an import uses, in the place of ours, and delete it in the end.
    Intrude {
        place: Place,
        what: Stranger,
    },
}

impl Action {
    /// Whether other clusters may not hear of changes while this lasts.
    pub(crate) const fn holds_up(&self) -> bool {
        matches!(
            self,
            Self::Pause { .. }
                | Self::Kubernetes { .. }
                | Self::LoseEvents { .. }
                | Self::Registry { .. }
                | Self::Divide { .. }
                | Self::Truncate(_)
                | Self::Silence { .. }
        )
    }
}

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

/// What is read of instances and operations.
const READINGS: [&str; 4] = ["ListInstances", "GetInstancesHealthStatus", "DiscoverInstances", "GetOperation"];

/// The ClusterSets that clusters join; empty: none.
const SETS: [&str; 4] = ["set", "set", "other", ""];

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

fn step(rng: &mut Rng, kind: Kind, scenario: &Scenario, end: Duration) -> Step {
    let (clusters, watched) = (scenario.clusters.len(), watched(scenario));
    let at = Duration::from_millis(rng.between(0, end.as_millis() as u64 - 1_000));
    let longest = end.saturating_sub(at).as_millis() as u64;
    let mut lasts = |from: u64, to: u64| Duration::from_millis(rng.between(from, to).min(longest));
    let (short, long) = (lasts(200, 20_000), lasts(5_000, 120_000));
    let (cluster, role) = (rng.below(clusters), if rng.chance(0.7) { Role::Leader } else { Role::Other });
    let place = Place { cluster, name: rng.below(EXPORTED) };
    let both = rng.chance(0.4);
    let scope = Scope::all();
    let kubernetes =
        |fault: Fault, scope: Scope| Action::Kubernetes { cluster, role: (!both).then_some(role), scope, fault };
    let seconds = |rng: &mut Rng, from, to| Duration::from_secs(rng.between(from, to));
    let (lasts, action) = match kind {
        Kind::Endpoints => (short, Action::Scale { place, to: rng.below(4) + 1, rolled: rng.chance(0.3) }),
        Kind::Cooldown => (short, Action::Scale { place, to: rng.below(5), rolled: rng.chance(0.6) }),
        Kind::Exports => (short, if rng.chance(0.5) { Action::Export(place) } else { Action::Unexport(place) }),
        Kind::Services => (
            short,
            if rng.chance(0.4) {
                Action::RemoveService(place)
            } else {
                Action::Scale { place, to: rng.below(3), rolled: false }
            },
        ),
        Kind::Namespaces => {
            (short, Action::Namespace { cluster, namespace: if rng.chance(0.5) { "shop" } else { "pay" } })
        }
        Kind::Shapes if rng.chance(0.2) => {
            (short, Action::Label { place, tier: *rng.pick(&[None, Some("front"), Some("back")]) })
        }
        Kind::Shapes => (short, Action::Shape { place, shape: Shape::draw(rng, NAMES[place.name].2) }),
        Kind::Ports => (short, Action::Ports { place, index: rng.below(PORTS.len()) }),
        Kind::Claims => (short, claim(rng, place)),
        Kind::Shares => (short, share(rng, cluster)),
        Kind::Cutovers => (short, cutover(rng)),
        Kind::Imports => (short, Action::Orders(rng.chance(0.6).then(|| rng.below(MOST_TASKS + 1)))),
        Kind::Crashes => {
            let of_registry = rng.chance(0.5);
            // Of Kubernetes, renewals of the Lease do not count.
            let (nth, after) = (rng.below(if of_registry { 12 } else { 6 }) as u32 + 1, rng.chance(0.5));
            (short, Action::Crash { cluster, role, of_registry, nth, after })
        }
        Kind::Kills => (short, Action::Kill { cluster, role }),
        Kind::Stops => (short, Action::Stop { cluster, role }),
        Kind::Pauses => (if rng.chance(0.5) { short } else { long }, Action::Pause { cluster, role }),
        Kind::Clocks => {
            let reach: u64 = *rng.pick(&[2_000, 60_000, 7_200_000, 90_000_000]);
            (
                long,
                Action::Clock { cluster, role, offset: rng.between(0, reach * 2).cast_signed() - reach.cast_signed() },
            )
        }
        Kind::Stale => {
            let lag = seconds(rng, 1, 90);
            (long, kubernetes(Fault::Stale(lag), scope.of(watched[rng.below(watched.len())])))
        }
        Kind::Unobserved if rng.chance(0.2) => {
            (short, Action::Compact { cluster, kind: watched[rng.below(watched.len())] })
        }
        Kind::Unobserved => {
            if rng.chance(0.5) {
                (short, Action::LoseEvents { cluster, role, kind: watched[rng.below(watched.len())] })
            } else {
                (short, kubernetes(Fault::DeadWatches, scope.of(watched[rng.below(watched.len())])))
            }
        }
        Kind::Kubernetes => {
            // Of one kind: the Lease, which is read and renewed all the time, would use up all that strikes a few times.
            let some = scope.clone().of(WRITTEN[rng.below(WRITTEN.len())]);
            let (lasts, fault, scope) = match rng.below(10) {
                0 => (short, Fault::Away, scope),
                1 => (long, Fault::Throttled(2), scope),
                2 => (long, Fault::Unavailable, if rng.chance(0.5) { scope.on_writes() } else { scope }),
                3 => (long, Fault::Slow(seconds(rng, 1, 6)), scope),
                4 => (short, Fault::HangsBefore, some.times(3)),
                5 => (long, Fault::HangsAfter, some.on_writes().times(3)),
                6 => (long, Fault::AnswerLost, some.on_writes().times(4)),
                7 | 8 => (long, refused(), scope.of(WRITTEN[rng.below(WRITTEN.len())])),
                _ => (long, Fault::Conflict, scope.of(UPDATED[rng.below(UPDATED.len())]).on(Verb::Update).times(3)),
            };
            (lasts, kubernetes(fault, scope))
        }
        Kind::Editors => (short, Action::Edit { cluster, which: rng.below(1000), edit: *rng.pick(&Edit::ALL) }),
        Kind::Partitions => (long, kubernetes(Fault::Partitioned, scope)),
        Kind::Divides if rng.chance(0.4) => (short, Action::Cut { cluster }),
        Kind::Divides => {
            let to = (cluster + 1 + rng.below(clusters - 1)) % clusters;
            (long, Action::Divide { from: cluster, to, both })
        }
        Kind::Lag => (long, Action::Lag(seconds(rng, 3, 60))),
        Kind::Registry => {
            let on = [
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
            let expired = Effect::Error {
                code: "ExpiredTokenException".into(),
                message: "the token is expired".into(),
                status: Some(403),
            };
            let failing = Effect::Error { code: "InternalFailure".into(), message: String::new(), status: Some(500) };
            // Else the credentials, or the way, of one replica.
            let replica = (!both).then_some((cluster, role));
            if rng.chance(0.1) {
                return Step { kind, at, lasts: long, action: Action::Truncate(rng.below(4) + 1) };
            }
            // Of one plane, as AWS throttles, or in one service, as a policy by resource denies.
            if rng.chance(0.2) {
                let plane = *rng.pick(&[Plane::Control, Plane::Discovery]);
                let of_plane = Operation::ALL.iter().filter(|operation| operation.plane() == plane);
                let rules = of_plane.map(|operation| Rule::on(operation.name(), throttled())).collect();
                return Step { kind, at, lasts: long, action: Action::Registry { rules, replica } };
            }
            let rule = match rng.below(11) {
                0 => Rule::on_any(throttled()).with_probability(0.7),
                1 => Rule::on(on[rng.below(on.len())], throttled()),
                2 => Rule::on(on[rng.below(on.len())], denied()),
                3 => Rule::on_any(expired),
                4 => Rule::on_any(failing).with_probability(0.5),
                5 => Rule::on_any(Effect::Latency { add: seconds(rng, 2, 30) }).with_probability(0.3),
                // Less than `LATEST_EFFECT` of the product: nobody knows of an operation that ends later.
                6 => Rule::on(on[rng.below(2)], Effect::OperationLatency { add: seconds(rng, 10, 55) })
                    .with_probability(0.5),
                7 => Rule::on(
                    on[rng.below(2)],
                    Effect::FailOperation { code: "INTERNAL_FAILURE".into(), message: String::new() },
                )
                .with_probability(0.5),
                8 => Rule::on("DiscoverInstances", Effect::Partial { keep: 0.6 }),
                9 => {
                    let service = *rng.pick(&["clusters", "exports-", "web", "api", "db"]);
                    Rule { service: Some(service.to_owned()), ..Rule::on_any(denied()) }
                }
                _ => Rule::on_any(if rng.chance(0.5) { Effect::DropRequest } else { Effect::DropResponse })
                    .with_probability(0.4),
            };
            (long, Action::Registry { rules: vec![rule], replica })
        }
        Kind::Readings => {
            let effect = if rng.chance(0.5) { denied() } else { throttled() };
            let rules = vec![Rule::on(rng.pick::<&str>(&READINGS), effect)];
            let minutes = Duration::from_millis(rng.between(60_000, 180_000).min(longest));
            (minutes, Action::Registry { rules, replica: (!both).then_some((cluster, role)) })
        }
        // For both replicas: a policy asks for no name.
        Kind::Policies => {
            let scope = scope.of(rng.pick::<&str>(&IMPORTED));
            (long, Action::Kubernetes { cluster, role: None, scope, fault: refused() })
        }
        Kind::Keys => {
            let dies = *rng.pick(&[None, None, Some(Moment::Before), Some(Moment::After)]);
            (short, Action::DeleteKey { cluster, dies })
        }
        Kind::Foreigners => {
            let exported = NAMES[..EXPORTED].iter().map(|(namespace, name, _)| (*namespace, *name));
            let targets: Vec<_> = exported.chain(WISHES).collect();
            (long, Action::Foreigner { target: *rng.pick(&targets) })
        }
        Kind::Meddlers => {
            let how = *rng.pick(&[Meddling::Deletes, Meddling::Deletes, Meddling::Alters]);
            let which = rng.below(1000);
            let how = if how == Meddling::Alters && which < 500 { Meddling::ChangesTtl } else { how };
            (short, Action::Meddle { which, how })
        }
        Kind::Vandals => {
            let how =
                *rng.pick(&[Meddling::DeletesHead, Meddling::DeletesPage, Meddling::ForgesHead, Meddling::ForgesHead]);
            (short, Action::Meddle { which: rng.below(1000), how })
        }
        Kind::Renames => {
            (short, Action::Rename { cluster, id: format!("c{}{}", cluster + 1, rng.pick(&["", "x", "y"])) })
        }
        // At first, so that it lasts long enough.
        Kind::Silences => {
            let (at, lasts) = (rng.between(0, 60_000), rng.between(500_000, 600_000));
            let (at, lasts) = (Duration::from_millis(at), Duration::from_millis(lasts));
            return Step { kind, at, lasts, action: Action::Silence { cluster, way: *rng.pick(&Way::ALL) } };
        }
        Kind::Strangers => {
            let stay = Duration::from_millis(rng.between(20_000, 220_000).min(longest));
            (stay, Action::Intrude { place, what: *rng.pick(&Stranger::ALL) })
        }
        Kind::Moves => (long, Action::Move { cluster, told: rng.chance(0.7), to: SETS[rng.below(SETS.len())] }),
    };
    Step { kind, at, lasts, action }
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

/// What users say to the Cutover, and what ECS does.
fn cutover(rng: &mut Rng) -> Action {
    let place = Place { cluster: 0, name: JOINING.0 };
    match rng.below(10) {
        0..5 => Action::Say { cluster: 0, saying: Saying::draw(rng) },
        5..7 => Action::Tasks(rng.below(MOST_TASKS + 1)),
        7 => Action::RemoveService(place),
        _ => Action::Scale { place, to: rng.below(6), rolled: rng.chance(0.3) },
    }
}
