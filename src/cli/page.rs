use std::net::SocketAddr;

use clap::Args;

use super::PlaceArgs;

/// Flags of `page`.
#[derive(Debug, Args)]
#[command(after_help = "It reads what the ClusterRole cloudmap-mcs-reader allows, while somebody looks at the page.")]
pub struct PageArgs {
    /// Where to run.
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Address on which to serve the page.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8090")]
    pub listen: SocketAddr,
}
