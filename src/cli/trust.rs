//! Flags of `trust`.

use clap::{Args, Subcommand};

use super::{KubeArgs, OutputFormat, PlaceArgs, values::parsed};
use model::{ClusterId, PublicKey};

/// The commands for the keys with which clusters sign.
#[derive(Debug, Subcommand)]
pub enum TrustCommand {
    /// Print the key of every cluster: the one that signs, and the one that this cluster has pinned.
    List(TrustListArgs),
    /// Accept a new cluster (`--join=approve`), one that was rejected, or the new key of one that was rebuilt or lost its key.
    /// First compare the key with what `trust list` prints in that cluster.
    Accept(TrustAcceptArgs),
    /// Take back that a cluster is a member, as far as this cluster is concerned: nothing that it says counts here any more, until
    /// `trust accept`. Run it in every cluster. A cluster that is younger than the one that rejects it registers nothing any
    /// more.
    Reject(TrustRejectArgs),
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

/// Flags of `trust reject`.
#[derive(Debug, Args)]
pub struct TrustRejectArgs {
    /// How to reach the cluster, and where the controller is in it.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// Id of the cluster to reject.
    #[arg(value_parser = parsed::<ClusterId>)]
    pub cluster: ClusterId,
}

/// Flags of `trust rotate`.
#[derive(Debug, Args)]
pub struct TrustRotateArgs {
    /// How to reach the cluster, and where the controller is in it.
    #[command(flatten)]
    pub kube: KubeArgs,
}
