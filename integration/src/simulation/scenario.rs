//! The scenarios: which kinds of things happen.

use std::time::Duration;

pub(crate) use super::sites::Site;
use super::sites::{ABROAD, EXPIRING, GATED, MOVING, NAMED, NEAREST, OTHER, THREE, TWO, USUAL, V4, V6};

/// A kind of step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Endpoints come and go.
    Endpoints,
    /// The same, with more pods that are replaced. All pods get the addresses of others after a cooldown.
    Cooldown,
    /// ServiceExports come and go.
    Exports,
    /// Services come and go under their exports.
    Services,
    /// Exports of one name differ between clusters.
    Shapes,
    /// Ports of Services get other names and numbers, come and go.
    Ports,
    /// Services and exports ask for names in Cloud Map.
    Claims,
    /// Annotated Services join a service of ECS tasks with a share of its traffic, and ECS scales.
    Shares,
    /// The Service that joins ECS tasks has a Cutover, of which users say this and that, and ECS scales.
    Cutovers,
    /// Others register instances in a Cloud Map namespace that clusters import from, and delete it.
    Imports,
    /// Clusters get weights in the namespaces of one of them, for a while.
    Weights,
    /// Clusters are drained, and come back.
    Drains,
    /// A cluster does not reach the pods of others, mostly with the streams to their leaders.
    Blackholes,
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
    /// The API server is away, slow, throttles, fails, hangs, loses answers, refuses writes.
    Kubernetes,
    /// People delete and alter by hand what the controllers made in Kubernetes.
    Editors,
    /// A replica, or the whole cluster, does not reach the API server.
    Partitions,
    /// Connections between leaders are cut, or nothing passes from one cluster to another.
    Divides,
    /// The cluster gets another id.
    Renames,
    /// The cluster leaves its ClusterSet, as `cloudmap-mcs leave` does it or at once, and joins another one, or none.
    Moves,
    /// Discovery lags.
    Lag,
    /// Cloud Map throttles, denies, fails, hangs, is late, gives half an answer.
    Registry,
    /// One kind of reading of Cloud Map is denied or throttled for minutes. All writes pass.
    Readings,
    /// An admission policy refuses one kind of object that imports consist of.
    Policies,
    /// People delete the Secret with the cluster's key, before or after its leader dies or while it lives.
    Keys,
    /// Others register instances beside ours.
    Foreigners,
    /// People delete and alter our instances.
    Meddlers,
    /// People delete heads and pages of ledgers.
    Vandals,
    /// A cluster does not reach Cloud Map, its API server, or either, for so long that the others report it.
    Silences,
    /// Others make objects in Kubernetes under names that imports use.
    Strangers,
}

impl Kind {
    /// What users do, and nothing that goes wrong.
    pub(crate) fn is_of_users(self) -> bool {
        [
            Endpoints, Cooldown, Exports, Services, Weights, Drains, Namespaces, Shapes, Ports, Claims, Shares,
            Cutovers, Imports,
        ]
        .contains(&self)
    }
}

/// A mixture of kinds.
#[derive(Debug)]
pub struct Scenario {
    pub name: &'static str,
    /// What it is about, for people.
    pub about: &'static str,
    /// Clusters, of two replicas each.
    pub(crate) clusters: &'static [Site],
    pub(crate) kinds: &'static [Kind],
    /// How many steps are drawn.
    pub(crate) steps: usize,
}

impl Scenario {
    /// Only users do anything: no process, clock or API fails.
    pub(crate) fn is_gentle(&self) -> bool {
        self.kinds.iter().all(|kind| kind.is_of_users())
    }

    /// How long things happen.
    pub(crate) fn trouble(&self) -> Duration {
        Duration::from_mins(if self.kinds.contains(&Silences) { 12 } else { 4 })
    }

    /// It is about the connections between leaders, so that there have to be some.
    pub(crate) fn connects(&self) -> bool {
        self.kinds.contains(&Blackholes) || self.kinds.iter().filter(|kind| **kind == Divides).count() > 1
    }

    /// Only users do anything, and what they do to a name concerns no other one.
    pub(crate) fn keeps_names_apart(&self) -> bool {
        self.is_gentle() && !self.kinds.iter().any(|kind| [Claims, Shares, Cutovers, Imports].contains(kind))
    }

    /// Clusters see each other's claims within the time that they wait for that.
    pub(crate) fn sees_claims(&self) -> bool {
        !self.kinds.iter().any(|kind| [Lag, Registry, Readings].contains(kind))
    }

    /// Beside users, only readings of Cloud Map fail.
    pub(crate) fn fails_in_readings_only(&self) -> bool {
        self.kinds.contains(&Readings) && self.kinds.iter().all(|kind| kind.is_of_users() || *kind == Readings)
    }

    /// People alter what imports consist of, and nobody refuses what makes that good.
    pub(crate) fn repairs(&self) -> bool {
        self.kinds.contains(&Editors) && !self.kinds.contains(&Kubernetes) && !self.kinds.contains(&Policies)
    }

    /// Pods get the addresses that others had.
    pub(crate) fn reuses_addresses(&self) -> bool {
        self.kinds.contains(&Cooldown)
    }

    /// Caches show Services and EndpointSlices at the same time: a cluster never publishes the ports of one time with the
    /// endpoints of another one.
    pub(crate) fn sees_at_once(&self) -> bool {
        let may = |kind: &Kind| kind.is_of_users() || [Policies, Crashes, Kills, Stops].contains(kind);
        self.kinds.iter().all(may)
    }
}

use Kind::{
    Blackholes, Claims, Clocks, Cooldown, Crashes, Cutovers, Divides, Drains, Editors, Endpoints, Exports, Foreigners,
    Imports, Keys, Kills, Kubernetes, Lag, Meddlers, Moves, Namespaces, Partitions, Pauses, Policies, Ports, Readings,
    Registry, Renames, Services, Shapes, Shares, Silences, Stale, Stops, Strangers, Unobserved, Vandals, Weights,
};

/// All scenarios.
pub static SCENARIOS: &[Scenario] = &[
    Scenario { name: "calm", about: "users only", clusters: TWO, kinds: &[Endpoints], steps: 12 },
    Scenario {
        name: "churn",
        about: "exports, Services and namespaces come and go",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Services, Namespaces],
        steps: 20,
    },
    Scenario {
        name: "conflicts",
        about: "exports of one name differ in type, ports, affinity, policy and labels",
        clusters: &[USUAL, NAMED, USUAL],
        kinds: &[Endpoints, Exports, Exports, Services, Shapes, Shapes, Shapes, Shapes],
        steps: 24,
    },
    Scenario {
        name: "quarrels",
        about: "the same while processes die, see late, and cannot reach either world",
        clusters: &[USUAL, NAMED],
        kinds: &[
            Endpoints, Exports, Shapes, Shapes, Shapes, Crashes, Kills, Pauses, Stale, Unobserved, Kubernetes, Registry,
        ],
        steps: 24,
    },
    Scenario {
        name: "ports",
        about: "ports get other names, come and go, while policies refuse what imports consist of, and leaders die",
        clusters: TWO,
        kinds: &[Endpoints, Ports, Ports, Ports, Ports, Policies, Policies, Crashes, Kills],
        steps: 24,
    },
    Scenario {
        name: "claims",
        about: "Services and exports ask for the same names in Cloud Map, and give them up",
        clusters: THREE,
        kinds: &[Endpoints, Exports, Claims, Claims, Claims, Claims],
        steps: 24,
    },
    Scenario {
        name: "disputes",
        about: "the same while processes die, stand still, see late, and cannot reach either world",
        clusters: TWO,
        kinds: &[
            Endpoints, Exports, Claims, Claims, Claims, Claims, Crashes, Kills, Stops, Pauses, Clocks, Stale,
            Kubernetes, Registry,
        ],
        steps: 26,
    },
    Scenario {
        name: "squatters",
        about: "Services and exports ask for names that are their own, or not, in services that ECS makes, while leaders die",
        clusters: TWO,
        kinds: &[
            Endpoints, Exports, Claims, Claims, Claims, Claims, Foreigners, Foreigners, Foreigners, Kills, Stops,
            Registry,
        ],
        steps: 26,
    },
    Scenario {
        name: "shares",
        about: "pods get shares of the traffic of ECS tasks, which come and go, while leaders die and Cloud Map fails",
        clusters: TWO,
        kinds: &[Endpoints, Shares, Shares, Shares, Shares, Kills, Stops, Registry],
        steps: 24,
    },
    Scenario {
        name: "cutovers",
        about: "the traffic of ECS tasks moves to pods step by step and back, while leaders die, clocks jump and both worlds fail",
        clusters: &[MOVING, USUAL],
        kinds: &[
            Endpoints, Cutovers, Cutovers, Cutovers, Cutovers, Kills, Stops, Crashes, Pauses, Clocks, Kubernetes,
            Registry, Unobserved,
        ],
        steps: 26,
    },
    Scenario {
        name: "imports",
        about: "instances of others come and go with their Cloud Map namespace, from which all clusters import",
        clusters: TWO,
        kinds: &[Endpoints, Imports, Imports, Imports],
        steps: 16,
    },
    Scenario {
        name: "crashes",
        about: "processes die at any write, and are replaced",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Crashes, Crashes, Kills, Stops],
        steps: 18,
    },
    Scenario {
        name: "stale",
        about: "caches lag by up to minutes",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Stale, Stale, Stops],
        steps: 16,
    },
    Scenario {
        name: "unobserved",
        about: "watches lose events or die",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Unobserved, Unobserved, Kills],
        steps: 16,
    },
    Scenario {
        name: "kubernetes",
        about: "the API server fails in every way",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Kubernetes, Kubernetes, Partitions],
        steps: 16,
    },
    Scenario {
        name: "editors",
        about: "people delete and alter imports, derived Services and EndpointSlices",
        clusters: &[USUAL, NAMED],
        kinds: &[Endpoints, Exports, Services, Editors, Editors, Editors, Kills, Stale, Unobserved],
        steps: 20,
    },
    Scenario {
        name: "registry",
        about: "Cloud Map fails in every way",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Registry, Registry, Lag, Kills],
        steps: 16,
    },
    Scenario {
        name: "readings",
        about: "one kind of reading of Cloud Map is denied or throttled for minutes, and all writes pass",
        clusters: TWO,
        kinds: &[Endpoints, Endpoints, Endpoints, Exports, Readings, Readings],
        steps: 20,
    },
    Scenario {
        name: "pauses",
        about: "processes stand still",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Pauses, Pauses],
        steps: 16,
    },
    Scenario {
        name: "clocks",
        about: "wall clocks differ and jump",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Clocks, Clocks, Stops],
        steps: 16,
    },
    Scenario {
        name: "foreigners",
        about: "others register instances in the same services",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Foreigners, Kills],
        steps: 16,
    },
    Scenario {
        name: "nearest",
        about: "clients use their own cluster first, and others when that has no ready endpoint",
        clusters: &[NEAREST, NEAREST, USUAL],
        kinds: &[Endpoints, Endpoints, Exports, Services, Kills, Stops, Lag, Kubernetes, Registry],
        steps: 24,
    },
    Scenario {
        name: "drains",
        about: "clusters are drained, two at once or alone, and come back",
        clusters: &[NEAREST, USUAL, USUAL],
        kinds: &[
            Endpoints, Endpoints, Exports, Services, Drains, Drains, Drains, Kills, Stops, Lag, Kubernetes, Registry,
        ],
        steps: 24,
    },
    Scenario {
        name: "weights",
        about: "clusters have weights for a while, and some of their endpoints are shown",
        clusters: THREE,
        kinds: &[
            Endpoints, Endpoints, Exports, Services, Weights, Weights, Weights, Weights, Kills, Stops, Lag, Kubernetes,
            Registry,
        ],
        steps: 24,
    },
    Scenario {
        name: "unreachable",
        about: "clusters do not reach the pods of others, with their leaders or without",
        clusters: &[USUAL, NEAREST, USUAL],
        kinds: &[
            Endpoints, Endpoints, Exports, Services, Blackholes, Blackholes, Blackholes, Blackholes, Divides, Kills,
            Lag, Kubernetes, Registry,
        ],
        steps: 24,
    },
    Scenario {
        name: "families",
        about: "clusters with IPv4, IPv6 and both, and Services with one or both",
        clusters: &[V4, NAMED, V6],
        kinds: &[Endpoints, Exports, Exports, Services, Shapes, Shapes, Kills],
        steps: 20,
    },
    Scenario {
        name: "renames",
        about: "clusters get other ids",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Claims, Renames, Renames, Kills, Stops, Lag],
        steps: 18,
    },
    Scenario {
        name: "moves",
        about: "clusters leave their ClusterSet, and join another one or none",
        clusters: THREE,
        kinds: &[Endpoints, Exports, Claims, Moves, Moves, Kills, Stops],
        steps: 18,
    },
    Scenario {
        name: "neighbours",
        about: "another ClusterSet in the same account has the same names",
        clusters: &[USUAL, USUAL, OTHER],
        kinds: &[Endpoints, Exports, Services, Claims, Claims, Kills, Meddlers, Foreigners],
        steps: 20,
    },
    Scenario {
        name: "meddlers",
        about: "people delete and alter our instances, and others register and deregister beside them",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Claims, Meddlers, Meddlers, Foreigners, Kills],
        steps: 20,
    },
    Scenario {
        name: "vandals",
        about: "people delete heads and pages of ledgers",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Services, Claims, Vandals],
        steps: 20,
    },
    Scenario {
        name: "keys",
        about: "people delete the Secret with the key while leaders live, before and after they die, and while ids change",
        clusters: TWO,
        kinds: &[Endpoints, Exports, Keys, Keys, Keys, Keys, Renames, Kills, Stops],
        steps: 18,
    },
    Scenario {
        name: "streams",
        about: "leaders that talk to each other are cut off, stand still and die while Cloud Map fails",
        clusters: THREE,
        kinds: &[
            Endpoints, Endpoints, Exports, Shapes, Claims, Divides, Divides, Divides, Kills, Stops, Pauses, Lag,
            Registry,
        ],
        steps: 24,
    },
    Scenario {
        name: "regions",
        about: "clusters have their homes in two registries, each of which fails in every way, while leaders are cut off and die",
        clusters: &[USUAL, ABROAD, ABROAD],
        kinds: &[
            Endpoints, Endpoints, Exports, Services, Shapes, Divides, Divides, Crashes, Kills, Stops, Pauses, Lag,
            Kubernetes, Registry, Registry, Registry,
        ],
        steps: 26,
    },
    Scenario {
        name: "silences",
        about: "a cluster does not reach Cloud Map, its API server or either for longer than five minutes, while leaders die",
        clusters: &[USUAL, EXPIRING, USUAL],
        kinds: &[Endpoints, Endpoints, Endpoints, Exports, Exports, Silences, Silences, Kills, Stops],
        steps: 18,
    },
    Scenario {
        name: "strangers",
        about: "others make imports, Services and EndpointSlices under the names of ours, while leaders die",
        clusters: &[USUAL, NAMED],
        kinds: &[Endpoints, Exports, Exports, Strangers, Strangers, Strangers, Kills, Stops],
        steps: 20,
    },
    Scenario {
        name: "gates",
        about: "pods wait until discovery shows them, while processes die, see late, and cannot reach either world",
        clusters: &[GATED, USUAL],
        kinds: &[
            Endpoints, Endpoints, Exports, Services, Claims, Namespaces, Crashes, Kills, Stops, Stale, Unobserved,
            Kubernetes, Registry, Lag,
        ],
        steps: 24,
    },
    Scenario {
        name: "cooldown",
        about: "pods get the addresses of others after 30 s, while leaders die, see late, and cannot reach either world",
        clusters: &[GATED, USUAL],
        kinds: &[
            Cooldown, Cooldown, Cooldown, Cooldown, Cooldown, Cooldown, Cooldown, Cooldown, Cooldown, Cooldown,
            Exports, Services, Crashes, Kills, Stops, Pauses, Stale, Unobserved, Kubernetes, Registry, Lag,
        ],
        steps: 36,
    },
    Scenario {
        name: "cooldown-shares",
        about: "the same, while pods have shares of the traffic of ECS tasks",
        clusters: TWO,
        kinds: &[
            Cooldown, Cooldown, Cooldown, Cooldown, Cooldown, Cooldown, Shares, Shares, Shares, Shares, Kills, Stops,
            Registry,
        ],
        steps: 32,
    },
    Scenario {
        name: "everything",
        about: "three clusters and all of it",
        clusters: THREE,
        kinds: &[
            Endpoints, Endpoints, Exports, Services, Namespaces, Crashes, Kills, Stops, Pauses, Clocks, Stale,
            Unobserved, Kubernetes, Editors, Partitions, Lag, Registry, Foreigners, Divides,
        ],
        steps: 30,
    },
];
