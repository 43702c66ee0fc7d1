//! The scenarios: which kinds of things happen.

/// A kind of step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Endpoints come and go.
    Endpoints,
    /// ServiceExports come and go.
    Exports,
    /// Services come and go under their exports.
    Services,
    /// Namespaces terminate and come back empty.
    Namespaces,
    /// A process dies before or after one of its writes, of either port.
    Crashes,
    /// A process dies.
    Kills,
    /// A process is asked to end.
    Stops,
    /// A process stands still.
    Pauses,
    /// A wall clock jumps.
    Clocks,
    /// Caches lag.
    Stale,
    /// Watches lose events, or die without a word.
    Unobserved,
    /// The API server is away, slow, throttles, fails, hangs, loses answers.
    Kubernetes,
    /// A replica, or the whole cluster, does not reach the API server.
    Partitions,
    /// Discovery lags.
    Lag,
    /// Cloud Map throttles, denies, fails, hangs, is late, gives half an answer.
    Registry,
    /// Others register instances beside ours.
    Foreigners,
}

/// A mixture of kinds.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// What it is about, for people.
    pub about: &'static str,
    /// Clusters, of two replicas each.
    pub(crate) clusters: usize,
    pub(crate) kinds: &'static [Kind],
    /// How many steps are drawn.
    pub(crate) steps: usize,
}

use Kind::{
    Clocks, Crashes, Endpoints, Exports, Foreigners, Kills, Kubernetes, Lag, Namespaces, Partitions, Pauses, Registry,
    Services, Stale, Stops, Unobserved,
};

/// All scenarios.
pub static SCENARIOS: &[Scenario] = &[
    Scenario { name: "calm", about: "users only", clusters: 2, kinds: &[Endpoints], steps: 12 },
    Scenario {
        name: "churn",
        about: "exports, Services and namespaces come and go",
        clusters: 2,
        kinds: &[Endpoints, Exports, Services, Namespaces],
        steps: 20,
    },
    Scenario {
        name: "crashes",
        about: "processes die at any write, and are replaced",
        clusters: 2,
        kinds: &[Endpoints, Exports, Crashes, Crashes, Kills, Stops],
        steps: 18,
    },
    Scenario {
        name: "stale",
        about: "caches lag by up to minutes",
        clusters: 2,
        kinds: &[Endpoints, Exports, Stale, Stale, Stops],
        steps: 16,
    },
    Scenario {
        name: "unobserved",
        about: "watches lose events or die",
        clusters: 2,
        kinds: &[Endpoints, Exports, Unobserved, Unobserved, Kills],
        steps: 16,
    },
    Scenario {
        name: "kubernetes",
        about: "the API server fails in every way",
        clusters: 2,
        kinds: &[Endpoints, Exports, Kubernetes, Kubernetes, Partitions],
        steps: 16,
    },
    Scenario {
        name: "registry",
        about: "Cloud Map fails in every way",
        clusters: 2,
        kinds: &[Endpoints, Exports, Registry, Registry, Lag, Kills],
        steps: 16,
    },
    Scenario {
        name: "pauses",
        about: "processes stand still",
        clusters: 2,
        kinds: &[Endpoints, Exports, Pauses, Pauses],
        steps: 16,
    },
    Scenario {
        name: "clocks",
        about: "wall clocks differ and jump",
        clusters: 2,
        kinds: &[Endpoints, Exports, Clocks, Clocks, Stops],
        steps: 16,
    },
    Scenario {
        name: "foreigners",
        about: "others register instances in the same services",
        clusters: 2,
        kinds: &[Endpoints, Exports, Foreigners, Kills],
        steps: 16,
    },
    Scenario {
        name: "everything",
        about: "three clusters and all of it",
        clusters: 3,
        kinds: &[
            Endpoints, Endpoints, Exports, Services, Namespaces, Crashes, Kills, Stops, Pauses, Clocks, Stale,
            Unobserved, Kubernetes, Partitions, Lag, Registry, Foreigners,
        ],
        steps: 30,
    },
];
