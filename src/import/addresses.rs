//! Which addresses in the registry can be endpoints in this cluster.

use std::net::IpAddr;

use discovery::Misfit;
use model::addresses::{Forbidden, check};

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unusable {
    /// It can never be an endpoint.
    Forbidden(Forbidden),
    /// A cluster IP of this cluster, or an address in the range of cluster IPs. Traffic would go in circles, or to
    /// whoever gets the address next.
    ClusterIp,
    /// A discovered instance that does not fit the exported service.
    Misfit(Misfit),
}

impl Unusable {
    /// A text for metrics and messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden(forbidden) => forbidden.as_str(),
            Self::ClusterIp => "a cluster IP of this cluster",
            Self::Misfit(Misfit::NoPort) => "registered without a port, which cannot be inferred from other instances",
            Self::Misfit(Misfit::NoSuchPort) => "registered with a port that the service does not have",
            Self::Misfit(Misfit::Family) => "of an IP family that the service does not have",
        }
    }
}

/// Whether an address can be an endpoint in this cluster. The API server refuses a whole EndpointSlice because of some
/// addresses, so each bad address must be left out.
///
/// # Errors
/// What is wrong with the address.
pub fn usable(address: IpAddr, is_cluster_ip: impl Fn(IpAddr) -> bool) -> Result<(), Unusable> {
    check(address).map_err(Unusable::Forbidden)?;
    if is_cluster_ip(address) { Err(Unusable::ClusterIp) } else { Ok(()) }
}
