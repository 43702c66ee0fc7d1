use clap::Args;

use super::{OutputFormat, PlaceArgs};

/// Flags of `status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 if all is well that could be read; 1 if something is wrong, or if Kubernetes refuses a part.\n\
                        It reads what the ClusterRole cloudmap-mcs-reader allows. Without credentials for AWS it says what it cannot see."
)]
pub struct StatusArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Follow this name from the clusters that export it to DNS. Without it: the ClusterSet, and every export and import that
    /// is not well.
    pub name: Option<String>,
    /// Namespace of the name; without it, that of the kubeconfig's context. Without a name: look at this namespace only.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Option<String>,
    /// Output format.
    #[arg(long, short, value_enum, default_value_t = OutputFormat::Table)]
    pub output: OutputFormat,
}
