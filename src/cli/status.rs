use std::time::Duration;

use clap::Args;

use super::{OutputFormat, PlaceArgs, values::duration};

/// Flags of `status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if everything that could be read is well; 1 if something is wrong, or if Kubernetes refuses to show a part. With --wait, that of the last look.\n\
                        It reads what the ClusterRole cloudmap-mcs-reader allows. Without credentials for AWS it says what it cannot see."
)]
pub struct StatusArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Name of a Service: follow it from the clusters that export it to DNS. Without it: the ClusterSet, and every
    /// export and import that has a problem.
    pub name: Option<String>,
    /// Namespace of the name. Without it: the namespace of the kubeconfig's context. If no name is given: look at this
    /// namespace only.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// For scripts: look again every 5 s until nothing is wrong, at most for this time. What is waited for is said on stderr;
    /// the last report is printed.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub wait: Option<Duration>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}
