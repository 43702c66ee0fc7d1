//! Which addresses of the registry may become endpoints here.

use std::net::IpAddr;

use crate::{
    foreign::Misfit,
    model::addresses::{Forbidden, check},
};

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unusable {
    /// It is nobody's endpoint.
    Forbidden(Forbidden),
    /// A cluster IP of this cluster, or in a range of these: traffic would go in circles, or to whoever gets the address next.
    ClusterIp,
    /// Registered by others, in a way that does not fit the service that clusters export.
    Misfit(Misfit),
}

impl Unusable {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Forbidden(forbidden) => forbidden.as_str(),
            Self::ClusterIp => "a cluster IP of this cluster",
            Self::Misfit(Misfit::NoPort) => "registered without a port, which cannot be told by others",
            Self::Misfit(Misfit::NoSuchPort) => "registered with a port that is none of the service's",
            Self::Misfit(Misfit::Family) => "of an IP family that the service does not have",
        }
    }
}

/// Whether an address may be an endpoint here: the API server refuses a whole EndpointSlice for some, so that they must be left
/// out one by one.
///
/// # Errors
/// Says what is wrong with the address.
pub fn usable(address: IpAddr, is_cluster_ip: impl Fn(IpAddr) -> bool) -> Result<(), Unusable> {
    check(address).map_err(Unusable::Forbidden)?;
    if is_cluster_ip(address) { Err(Unusable::ClusterIp) } else { Ok(()) }
}
