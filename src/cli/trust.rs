//! Flags of `trust`.

use clap::{Args, Subcommand};

use super::{KubeArgs, OutputFormat, PlaceArgs, values::parsed};
use crate::model::{ClusterId, PublicKey};

/// The commands for the keys with which clusters sign.
#[derive(Debug, Subcommand)]
pub enum TrustCommand {
    /// Print the key of every cluster: the one that signs, and the one that this cluster has pinned.
    List(TrustListArgs),
    /// Accept a new key of a cluster that was rebuilt or lost its key. First compare the key with what `trust list`
    /// prints in that cluster.
    Accept(TrustAcceptArgs),
    /// Replace the key of this cluster. The old key signs that the new one replaces it. Clusters with `--trust=tofu`
    /// then accept the new one by themselves; clusters with `--trust=pinned` must get it before.
    Rotate(TrustRotateArgs),
}

/// Flags of `trust list`.
#[derive(Debug, Args)]
pub struct TrustListArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}

/// Flags of `trust accept`.
#[derive(Debug, Args)]
pub struct TrustAcceptArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Id of the cluster.
    #[arg(value_parser = parsed::<ClusterId>)]
    pub cluster: ClusterId,
    /// The key to accept. Without it: print the key that the cluster has now, and accept nothing.
    #[arg(long, value_name = "KEY", value_parser = parsed::<PublicKey>)]
    pub key: Option<PublicKey>,
}

/// Flags of `trust rotate`.
#[derive(Debug, Args)]
pub struct TrustRotateArgs {
    /// How to reach the cluster, and where the controller is in it.
    #[command(flatten)]
    pub kube: KubeArgs,
}
