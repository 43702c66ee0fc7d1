//! The command line. Every flag is also an environment variable (`CLOUDMAP_MCS_` and the name of the flag), so that a
//! ConfigMap can configure the Deployment.

#![warn(missing_docs)]

mod coredns;
mod cutover;
mod doctor;
mod drain;
mod gather;
mod iam;
mod page;
mod registries;
mod run;
mod shared;
pub mod shell;
mod status;
pub mod telemetry;
mod trust;
mod users;
mod values;

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;

use self::values::{duration, parsed};
use crate::telemetry::LogArgs;
use base::release;
use model::ClusterId;

pub use self::{
    coredns::{CorednsCommand, CorednsPlace, CorednsWriteArgs},
    cutover::{
        CutoverBackArgs, CutoverChoice, CutoverCommand, CutoverEditArgs, CutoverFinishArgs, CutoverPlanArgs,
        CutoverShiftArgs, CutoverStartArgs, CutoverStatusArgs, CutoverWriteArgs, EcsArgs,
    },
    doctor::{DoctorArgs, ProbeArgs, ProbeCommand},
    drain::DrainArgs,
    gather::GatherArgs,
    iam::{IamArgs, IamCommand, IamFormat, PolicyArgs, TrustArgs, Trusted},
    page::PageArgs,
    registries::{Registries, RegistryPlace},
    run::{RunArgs, STREAM_PORT},
    shared::{AwsArgs, ClusterArgs, ControllerArgs, IdentityArgs, KubeArgs, OutputFormat, PlaceArgs},
    status::StatusArgs,
    trust::{TrustAcceptArgs, TrustCommand, TrustListArgs, TrustRejectArgs, TrustRotateArgs},
    users::{TaskAddress, UsersArgs},
};

/// The name of the program as a plugin of kubectl.
pub const PLUGIN: &str = "kubectl-mcs";

/// Multi-Cluster Services API for Kubernetes with AWS Cloud Map as the registry.
#[derive(Debug, Parser)]
#[command(name = release::NAME, version = release::version(), max_term_width = 110)]
pub struct Cli {
    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses arguments, of which the first is the program. Under the name [`PLUGIN`] its help is that of `kubectl mcs`.
    ///
    /// # Errors
    /// What is wrong with them, or the help or version that they ask for.
    pub fn of(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Self, clap::Error> {
        let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
        let called = arguments.first().and_then(|program| Path::new(program).file_stem());
        let mut command = Self::command();
        if called.is_some_and(|name| name == PLUGIN) {
            command = command.bin_name("kubectl mcs");
        }
        let matches = command.try_get_matches_from_mut(arguments)?;
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the controller.
    Run(Box<RunArgs>),
    /// Check an installation: the clusters, the controllers, the registry and its permissions, and the network between the
    /// clusters with temporary pods. Every finding says what to do.
    Doctor(Box<DoctorArgs>),
    /// What runs in the temporary pods of `doctor`.
    #[command(subcommand, hide = true)]
    Probe(ProbeCommand),
    /// Say what is wrong, where, and what to do. Without a name: in the ClusterSet, as this cluster sees it.
    Status(StatusArgs),
    /// Find out who still uses a Cloud Map name, before its ECS tasks are stopped. Reads logs of DNS, of the API and of
    /// connections.
    Users(Box<UsersArgs>),
    /// Move the traffic of a Cloud Map service from ECS tasks to pods, step by step and back.
    #[command(subcommand)]
    Cutover(Box<CutoverCommand>),
    /// Take the endpoints of this cluster out of all names that others can serve, such as before an upgrade, and bring them
    /// back. Says when the cluster may be upgraded.
    #[command(
        after_help = "Exit status: 0 if all is done, 1 if names stay that nobody else can serve, or if something failed."
    )]
    Drain(DrainArgs),
    /// Serve a page that shows what `status` says, for a browser on this machine.
    Page(PageArgs),
    /// Write a bundle for a bug report: the controller, its logs, objects and status. Secrets are left out.
    Gather(GatherArgs),
    /// Print the CustomResourceDefinitions as YAML.
    Crds,
    /// Inspect the ledger, through which the clusters of the ClusterSet exchange their exports.
    #[command(subcommand)]
    Ledger(LedgerCommand),
    /// List, accept and replace the keys with which the clusters sign their heads in the ledger.
    #[command(subcommand)]
    Trust(TrustCommand),
    /// Remove this cluster from its ClusterSet: the leader withdraws its exports, instances and ledger pages.
    Leave(LeaveArgs),
    /// Remove what a cluster, or the whole ClusterSet, left behind in AWS. Use --dry-run first, which only lists it.
    Purge(PurgeArgs),
    /// Mark a dead cluster as left, so that the other clusters drop its exports.
    Forget(ForgetArgs),
    /// Let CoreDNS answer for clusterset.local. Run it on a workstation, as somebody who may edit kube-system.
    #[command(subcommand)]
    Coredns(CorednsCommand),
    /// Print the IAM policies that the controller's role needs, or the role's trust policy. Calls neither AWS nor
    /// Kubernetes.
    Iam(Box<IamArgs>),
    /// Print the completions for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a man page for each command.
    Man {
        /// Where to write them; it is created.
        folder: PathBuf,
    },
}

/// The commands for the ledger.
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Print every cluster's exports, endpoints, claims, age and lag.
    Show(ShowArgs),
}

/// Flags of `ledger show`.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
    /// Show only this cluster.
    #[arg(long, value_name = "ID", value_parser = parsed::<ClusterId>)]
    pub cluster: Option<ClusterId>,
}

/// Flags of `leave`.
#[derive(Debug, Args)]
pub struct LeaveArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Stop waiting for the leader after this time. The leader continues by itself.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = duration)]
    pub timeout: Duration,
    /// Rejoin: clear the flag that an earlier `leave` set.
    #[arg(long)]
    pub undo: bool,
}

/// Flags of `purge`.
#[derive(Debug, Args)]
pub struct PurgeArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Remove only what this cluster left behind. Without it: what the whole ClusterSet left behind.
    #[arg(long, value_name = "ID", value_parser = parsed::<ClusterId>)]
    pub cluster: Option<ClusterId>,
    /// Remove only these Cloud Map namespaces, separated by commas, if they are empty and the ClusterSet made them. Its
    /// clusters may be alive.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "cluster")]
    pub cloudmap_namespace: Vec<String>,
    /// List what would be removed, and remove nothing.
    #[arg(long)]
    pub dry_run: bool,
}

/// Flags of `forget`.
#[derive(Debug, Args)]
pub struct ForgetArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Id of the dead cluster.
    #[arg(value_parser = parsed::<ClusterId>)]
    pub cluster: ClusterId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn as_a_plugin_of_kubectl_its_help_says_kubectl_mcs() {
        for (program, expected) in [
            ("/usr/local/bin/kubectl-mcs", "Usage: kubectl mcs status"),
            ("target/cloudmap-mcs", "Usage: cloudmap-mcs status"),
        ] {
            let help = Cli::of([program, "status", "--help"]).unwrap_err().to_string();
            assert!(help.contains(expected), "{help}");
        }
        assert!(matches!(Cli::of([PLUGIN, "crds"]).unwrap().command, Command::Crds));
    }
}
