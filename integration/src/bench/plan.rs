//! What is to be measured, on which clusters.

use std::{path::PathBuf, time::Duration};

/// What is measured. Each stage implies those before it that it builds on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Stage {
    /// The time until 100 services have arrived.
    Small,
    /// The time until all services have arrived.
    Large,
    /// The time until all of them are instances.
    Instances,
    /// Calls and writes while nothing changes.
    Idle,
    /// The time that one changed endpoint takes, and what it costs.
    Change,
    /// The same change copied by a watch of one cluster and writes to the other, with no registry in between. Implies
    /// `change`.
    Direct,
    /// What the arrivals of `small` and of all services take at the least: one process writes to both API servers. Comes
    /// before them.
    DirectArrival,
    /// The time from a changed endpoint to its instance.
    Instance,
    /// Changes while leaders cannot reach each other, and after that.
    Cut,
    /// Endpoints that change all the time.
    Sustained,
    /// All pods of 100 services are replaced, as Deployments do it.
    Rollout,
    /// The leader of the exporting cluster ends, and another replica takes over.
    Failover,
    /// What many clusters cost one that reads them.
    Clusters,
    /// Memory with all services.
    Memory,
    /// Sizes of image and binary.
    Image,
}

impl Stage {
    /// Whether it needs all services in the importing cluster.
    pub(super) fn needs_large(self) -> bool {
        !matches!(self, Self::Small | Self::Image | Self::DirectArrival)
    }

    /// Whether instances must all be registered before it, so that nothing but what it measures goes on.
    pub(super) fn needs_instances(self) -> bool {
        self.needs_large() && self != Self::Large
    }
}

/// A replica that leads its cluster, and where both are.
#[derive(Debug, Clone)]
pub struct Member {
    /// Cluster id, which is also the access key id of its controller.
    pub id: String,
    /// Context of the kubeconfig.
    pub context: String,
    /// Process id of its controller.
    pub pid: u32,
    /// Address of its controller's probes and metrics.
    pub admin: String,
    /// Process ids of its API server and etcd, if they run on this machine.
    pub servers: Vec<u32>,
}

impl std::str::FromStr for Member {
    type Err = String;

    /// `id=ID,context=CONTEXT,pid=PID[,servers=PID+PID],admin=URL`
    fn from_str(text: &str) -> Result<Self, String> {
        let field = |name: &str| {
            let mut fields = text.split(',').filter_map(|field| field.split_once('='));
            let found = fields.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned());
            found.ok_or_else(|| format!("it lacks {name}=; write id=ID,context=CONTEXT,pid=PID,admin=URL"))
        };
        let pid = field("pid")?;
        let number = |pid: &str| pid.parse().map_err(|_| format!("pid={pid} is not a process id"));
        let servers = field("servers").unwrap_or_default();
        let servers = servers.split('+').filter(|pid| !pid.is_empty()).map(number).collect::<Result<_, _>>()?;
        let (id, context, admin) = (field("id")?, field("context")?, field("admin")?);
        Ok(Self { id, context, pid: number(&pid)?, admin, servers })
    }
}

#[derive(Debug, Clone)]
pub struct Plan {
    pub stages: Vec<Stage>,
    pub exporter: Member,
    pub importer: Member,
    /// Address of the emulator.
    pub registry: String,
    /// `integration/bench-host.sh`, which starts replicas and cuts the connections between leaders.
    pub host: Option<PathBuf>,
    pub services: usize,
    pub endpoints: usize,
    pub changes: usize,
    /// How long nothing is done for the idle figures.
    pub idle: Duration,
    /// Changes a second, and for how long, for the figures of sustained change.
    pub rate: u16,
    pub sustained: Duration,
    /// How often a leader is ended by each signal.
    pub failovers: usize,
    /// The numbers of clusters whose cost is measured, in ascending order, and for how long.
    pub clusters: Vec<usize>,
    pub clusters_for: Duration,
    /// How many clusters of the fleet export what the importing cluster imports.
    pub imported: usize,
    /// Whether leaders tell each other their endpoints.
    pub stream: bool,
    /// Whether the registry takes AWS' times.
    pub aws_times: bool,
    /// Whether the controllers are others than ours: no ledger, no metrics of ours, no targets.
    pub peer: bool,
    /// Decides which pods there are, which are replaced, and when.
    pub seed: u64,
    pub image: Option<PathBuf>,
    pub compressed_image: Option<PathBuf>,
    pub binary: Option<PathBuf>,
}

impl Plan {
    pub(super) fn wants(&self, stage: Stage) -> bool {
        self.stages.contains(&stage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_read_from_its_line() {
        let member: Member = "id=a,context=mcs-1,pid=7,admin=http://127.0.0.1:8711".parse().unwrap();
        assert_eq!(
            (&*member.id, &*member.context, member.pid, &*member.admin),
            ("a", "mcs-1", 7, "http://127.0.0.1:8711")
        );
        let member: Member = "id=a,context=mcs-1,pid=7,servers=8+9,admin=c".parse().unwrap();
        assert_eq!(member.servers, [8, 9]);
        assert!("id=a,context=b,pid=7".parse::<Member>().unwrap_err().contains("admin="));
        assert!("id=a,context=b,pid=x,admin=c".parse::<Member>().unwrap_err().contains("pid=x"));
    }
}
