//! Flags of `drain`.

use std::time::Duration;

use clap::Args;

use super::{
    ClusterArgs,
    values::{duration, parsed},
};
use model::MinReady;

/// Flags of `drain`.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// How to reach the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Names of ServiceExports, or `namespace/name`.
    #[arg(value_name = "NAME", required_unless_present = "all")]
    pub names: Vec<String>,
    /// Namespace of the names; without it, that of the kubeconfig's context.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// All names of this cluster: sets the ClusterProperty drain.cloudmap-mcs.io.
    #[arg(long, conflicts_with_all = ["names", "namespace"])]
    pub all: bool,
    /// Bring the endpoints back, step by step.
    #[arg(long)]
    pub back: bool,
    /// Which share of the endpoints elsewhere must be ready for all endpoints of this cluster to leave: `any`, or a whole
    /// percentage. Without it: what was set before, or else 70%.
    #[arg(long, value_name = "SHARE", conflicts_with = "back", value_parser = parsed::<MinReady>)]
    pub min_ready: Option<MinReady>,
    /// How long to wait once no import uses the endpoints: for the answers that resolvers keep, and for connections to end.
    #[arg(long, value_name = "DURATION", default_value = "60s", conflicts_with = "back", value_parser = duration)]
    pub settle: Duration,
    /// Stop waiting after this time. The controllers continue by themselves.
    #[arg(long, value_name = "DURATION", default_value = "15m", value_parser = duration)]
    pub timeout: Duration,
}
