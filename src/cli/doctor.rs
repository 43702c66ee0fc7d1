use std::time::Duration;

use clap::{Args, Subcommand};

use super::{OutputFormat, PlaceArgs, values::duration};

/// Flags of `doctor`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if nothing failed; 1 if something failed. What could not be checked is SKIP, and does not count as failed. With --wait, that of the last report.\n\
                        It needs credentials for AWS, and what the ClusterRole and the Role cloudmap-mcs-reader allow. The temporary pods need more: see docs/doctor.md."
)]
pub struct DoctorArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Contexts of the kubeconfig, separated by commas, one for each cluster of the ClusterSet. Without it: only the
    /// cluster of --context.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "context")]
    pub contexts: Vec<String>,
    /// Check nothing in AWS.
    #[arg(long)]
    pub no_aws: bool,
    /// How to try the network with temporary pods.
    #[command(flatten)]
    pub probe: ProbeArgs,
    /// For scripts: check again every 15 s until nothing fails, at most for this time. Temporary pods are created only when
    /// nothing else fails. What is waited for is said on stderr; the last report is printed.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}

/// How `doctor` tries the network: with two or more clusters, temporary pods in each.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// Also create temporary pods with a single cluster. They resolve the name of a ServiceImport. With two or more
    /// clusters (--contexts), `doctor` creates such pods anyway.
    #[arg(long, conflicts_with = "no_probe")]
    pub probe: bool,
    /// Create no temporary pods. The network between the clusters is then not tried.
    #[arg(long)]
    pub no_probe: bool,
    /// Image of the temporary pods. It must contain this program. Without it: the image of the controller in the
    /// cluster.
    #[arg(long, value_name = "IMAGE")]
    pub probe_image: Option<String>,
    /// TCP port on which the temporary pods listen, from 1024. If security groups admit only the ports of your exported
    /// Services, give one of those.
    #[arg(long, value_name = "PORT", default_value_t = 8080, value_parser = clap::value_parser!(u16).range(1024..))]
    pub probe_port: u16,
    /// Namespace of the temporary pods. Without it: the namespace of the controller.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
}

/// What runs in the temporary pods of `doctor`.
#[derive(Debug, Subcommand)]
pub enum ProbeCommand {
    /// Say a word to everybody who connects.
    Serve {
        /// The port.
        #[arg(long)]
        port: u16,
        /// The word.
        #[arg(long)]
        word: String,
    },
    /// Connect, resolve, and write as JSON what happened.
    Try {
        /// Where to connect, as `ADDRESS:PORT=WORD`. Without a word it is enough to be connected.
        #[arg(long)]
        connect: Vec<String>,
        /// A name to resolve.
        #[arg(long)]
        resolve: Option<String>,
        /// The file to write.
        #[arg(long, value_name = "FILE")]
        output: std::path::PathBuf,
    },
}
