use std::path::PathBuf;

use clap::Args;

use super::PlaceArgs;

/// Flags of `gather`.
#[derive(Debug, Args)]
#[command(
    after_help = "It reads no Secrets. Values are replaced if their names look as if they were secret. The file index.txt says what is in the bundle, \
                        and what could not be read. Look through the bundle before you send it: it contains names, addresses, ids of AWS accounts and logs."
)]
pub struct GatherArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// File to write; `-` for the standard output. Without it: `cloudmap-mcs-TIME.tar.gz` in the current folder.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Gather objects and Events of this namespace only, besides those of the controller. May be given several times.
    /// Without it: of all namespaces.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Vec<String>,
}
