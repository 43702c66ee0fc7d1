use std::path::PathBuf;

use clap::Args;

use super::PlaceArgs;

/// Flags of `gather`.
#[derive(Debug, Args)]
#[command(
    after_help = "It reads no Secrets. Values whose names look secret are replaced. The file index.txt says what is in the bundle, \
                        and what could not be read. Look through it before you send it: it has names, addresses and logs."
)]
pub struct GatherArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// The file; `-` for the standard output. Without it: `cloudmap-mcs-TIME.tar.gz` in this folder.
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Objects and Events of this namespace only, besides those of the controller; may be given several times.
    #[arg(long, short, value_name = "NAME")]
    pub namespace: Vec<String>,
}
