//! Which addresses of the registry may become endpoints here.

use std::net::IpAddr;

use crate::foreign::Misfit;

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unusable {
    Unspecified,
    Loopback,
    LinkLocal,
    Multicast,
    /// A cluster IP of this cluster: traffic would go in circles.
    ClusterIp,
    /// Registered by others, in a way that does not fit the service that clusters export.
    Misfit(Misfit),
}

impl Unusable {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Multicast => "multicast",
            Self::ClusterIp => "a cluster IP of this cluster",
            Self::Misfit(Misfit::NoPort) => "registered without a port, which cannot be told by others",
            Self::Misfit(Misfit::NoSuchPort) => "registered with a port that is none of the service's",
            Self::Misfit(Misfit::Family) => "of an IP family that the service does not have",
        }
    }
}

/// Whether an address may be an endpoint: the API server refuses a whole EndpointSlice for one of these, so that they
/// must be left out one by one.
///
/// # Errors
/// Says what is wrong with the address.
pub fn usable(address: IpAddr, is_cluster_ip: impl Fn(IpAddr) -> bool) -> Result<(), Unusable> {
    let mapped = match address {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(address, IpAddr::V4),
        IpAddr::V4(_) => address,
    };
    let link_local = match mapped {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    if mapped.is_unspecified() {
        Err(Unusable::Unspecified)
    } else if mapped.is_loopback() {
        Err(Unusable::Loopback)
    } else if link_local {
        Err(Unusable::LinkLocal)
    } else if mapped.is_multicast() {
        Err(Unusable::Multicast)
    } else if is_cluster_ip(address) {
        Err(Unusable::ClusterIp)
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_can_be_reached_are_usable() {
        let is_cluster_ip = |address: IpAddr| address.to_string() == "10.20.0.1";
        for (address, expected) in [
            ("10.0.0.1", Ok(())),
            ("fd00::1", Ok(())),
            ("0.0.0.0", Err(Unusable::Unspecified)),
            ("::", Err(Unusable::Unspecified)),
            ("127.0.0.1", Err(Unusable::Loopback)),
            ("::1", Err(Unusable::Loopback)),
            ("::ffff:127.0.0.1", Err(Unusable::Loopback)),
            ("169.254.169.254", Err(Unusable::LinkLocal)),
            ("fe80::1", Err(Unusable::LinkLocal)),
            ("224.0.0.1", Err(Unusable::Multicast)),
            ("ff02::1", Err(Unusable::Multicast)),
            ("10.20.0.1", Err(Unusable::ClusterIp)),
        ] {
            assert_eq!(usable(address.parse().unwrap(), is_cluster_ip), expected, "{address}");
        }
    }
}
