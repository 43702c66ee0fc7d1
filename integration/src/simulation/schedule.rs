//! What happens to a world, step by step. Steps are data, so that a failing run can be repeated with fewer of them.
//! [`draw`](super::draw) draws them from a seed.

use std::time::Duration;

use super::{
    cutovers::Instruction,
    editors::Edit,
    kubernetes::{Fault, Moment, Scope},
    scenario::Kind,
    silences::Way,
    strangers::Stranger,
    users::{Meddling, Place, Shape},
    world::Role,
};
use emulator::Fault as Rule;

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
    /// Changes the Cutover of a cluster.
    Instruct {
        cluster: usize,
        instruction: Instruction,
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
    /// Gives a Service other ports, by index into [`PORTS`](super::users::PORTS).
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
    /// No connection from a cluster to pods of another one comes about, or to those of any; with `streams`, the leaders do not reach
    /// each other either.
    Blackhole {
        from: usize,
        to: Option<usize>,
        streams: bool,
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
    /// Asks for weights in a Kubernetes namespace of a cluster, as long as this lasts.
    Weigh {
        cluster: usize,
        namespace: &'static str,
        weights: &'static str,
    },
    /// Asks for the drain of a cluster, or no more.
    Drain {
        cluster: usize,
        drained: bool,
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
                | Self::Blackhole { streams: true, .. }
                | Self::Truncate(_)
                | Self::Silence { .. }
        )
    }
}
