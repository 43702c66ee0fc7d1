//! Addresses that can never be an endpoint. This is the one place that decides it, for every source: another cluster's
//! ledger, Cloud Map, an annotation, or an EndpointSlice that a user wrote.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// Why an address is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forbidden {
    /// `::`, and `0.0.0.0/8`: "this network" (RFC 1122).
    Unspecified,
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `169.254.0.0/16`, where AWS serves the instance metadata, the credentials of ECS and EKS Pod Identity, DNS and
    /// time; and `fe80::/10`.
    LinkLocal,
    /// `224.0.0.0/4` and `ff00::/8`.
    Multicast,
    /// `240.0.0.0/4` (RFC 1112), including broadcast.
    Reserved,
    /// `fd00:ec2::/32`, where AWS serves the same as in `169.254.0.0/16`.
    AwsService,
    /// An IPv6 address that contains or stands for an IPv4 address. It would bypass all other rules.
    Ipv4InIpv6,
}

impl Forbidden {
    /// A text for metrics and messages that completes "it is ...".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unspecified => "unspecified",
            Self::Loopback => "loopback",
            Self::LinkLocal => "link-local",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
            Self::AwsService => "of a service of AWS itself, such as instance metadata",
            Self::Ipv4InIpv6 => "an IPv4 address in an IPv6 form",
        }
    }
}

/// Ranges of IPv6 addresses that stand for IPv4 addresses.
const IPV4_IN_IPV6: [Range; 7] = [
    // Compatible (RFC 4291, deprecated): `::a.b.c.d`. `check` handles `::` and `::1` before.
    Range::v6(0, 96),
    // Mapped: `::ffff:a.b.c.d`.
    Range::v6(0xffff << 32, 96),
    // Translated (RFC 2765): `::ffff:0:a.b.c.d`.
    Range::v6(0xffff << 48, 96),
    // NAT64 (RFC 6052), and its local form (RFC 8215).
    Range::v6(0x0064_ff9b << 96, 96),
    Range::v6(0x0064_ff9b_0001 << 80, 48),
    // 6to4 (RFC 3056) and Teredo (RFC 4380).
    Range::v6(0x2002 << 112, 16),
    Range::v6(0x2001 << 112, 32),
];
const AWS_SERVICES: Range = Range::v6(0xfd00_0ec2 << 96, 32);

/// Checks whether an address can be an endpoint at all. Private addresses can, and so can addresses for documentation.
/// Whether an address belongs to a Service of a cluster is for that cluster to check.
///
/// # Errors
/// The reason why it cannot be an endpoint.
pub fn check(address: IpAddr) -> Result<(), Forbidden> {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let first = match address {
        IpAddr::V4(v4) => Some(v4.octets()[0]),
        IpAddr::V6(_) => None,
    };
    if address.is_unspecified() || first == Some(0) {
        Err(Forbidden::Unspecified)
    } else if address.is_loopback() {
        Err(Forbidden::Loopback)
    } else if is_link_local {
        Err(Forbidden::LinkLocal)
    } else if address.is_multicast() {
        Err(Forbidden::Multicast)
    } else if first.is_some_and(|first| first >= 240) {
        Err(Forbidden::Reserved)
    } else if AWS_SERVICES.contains(address) {
        Err(Forbidden::AwsService)
    } else if IPV4_IN_IPV6.iter().any(|range| range.contains(address)) {
        Err(Forbidden::Ipv4InIpv6)
    } else {
        Ok(())
    }
}

/// A range of addresses, such as `10.96.0.0/12`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    base: IpAddr,
    /// Number of leading bits that all addresses of the range share with `base`.
    length: u32,
}

impl Range {
    const fn v6(bits: u128, length: u32) -> Self {
        Self { base: IpAddr::V6(Ipv6Addr::from_bits(bits)), length }
    }

    /// Parses CIDR notation; `None` if `text` is not valid.
    pub fn parse(text: &str) -> Option<Self> {
        let (base, length) = text.split_once('/')?;
        let (base, length) = (base.parse::<IpAddr>().ok()?, length.parse::<u32>().ok()?);
        let bits = if base.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS };
        (length <= bits).then_some(Self { base, length })
    }

    /// Whether the range contains `address`. Addresses of the other family are never in it.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                (base.to_bits() ^ address.to_bits()).leading_zeros() >= self.length
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => {
                (base.to_bits() ^ address.to_bits()).leading_zeros() >= self.length
            }
            _ => false,
        }
    }

    /// Whether some address is in both ranges.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.base) || other.contains(self.base)
    }

    /// The smallest range that has this one and an address of the same family.
    #[must_use]
    pub fn extended(self, address: IpAddr) -> Self {
        let alike = match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => (base.to_bits() ^ address.to_bits()).leading_zeros(),
            (IpAddr::V6(base), IpAddr::V6(address)) => (base.to_bits() ^ address.to_bits()).leading_zeros(),
            _ => self.length,
        };
        Self { base: self.base, length: self.length.min(alike) }
    }

    /// Its first address, if it was written as usual.
    pub fn base(&self) -> IpAddr {
        self.base
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.length;
        match self.base {
            IpAddr::V4(base) => {
                let mask = u32::MAX.checked_shl(Ipv4Addr::BITS - length).unwrap_or(0);
                write!(f, "{}/{length}", Ipv4Addr::from_bits(base.to_bits() & mask))
            }
            IpAddr::V6(base) => {
                let mask = u128::MAX.checked_shl(Ipv6Addr::BITS - length).unwrap_or(0);
                write!(f, "{}/{length}", Ipv6Addr::from_bits(base.to_bits() & mask))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_that_can_be_somebodys_pods_may_be_endpoints() {
        use Forbidden::{AwsService, Ipv4InIpv6, LinkLocal, Loopback, Multicast, Reserved, Unspecified};
        for (addresses, expected) in [
            ("10.0.0.1 172.16.0.1 100.64.0.1 192.0.2.1 198.51.100.7 203.0.113.9 198.18.0.1 8.8.8.8", Ok(())),
            ("fd00::1 fd00:ec1::254 fd00:ec3::1 2001:db8::1 2001:db7::1 2600:1f18::1 2003::1 64:ff9c::1", Ok(())),
            ("0.0.0.0 0.1.2.3 ::", Err(Unspecified)),
            ("127.0.0.1 127.9.9.9 ::1", Err(Loopback)),
            (
                "169.254.169.254 169.254.170.2 169.254.170.23 169.254.169.253 169.254.0.1 fe80::1 febf::1",
                Err(LinkLocal),
            ),
            ("224.0.0.1 239.255.255.255 ff02::1", Err(Multicast)),
            ("240.0.0.1 250.1.2.3 255.255.255.255", Err(Reserved)),
            ("fd00:ec2::254 fd00:ec2::23 fd00:ec2::253 fd00:ec2:ffff::1", Err(AwsService)),
            ("::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::10.0.0.1 ::ffff:0:10.0.0.1", Err(Ipv4InIpv6)),
            ("64:ff9b::169.254.169.254 64:ff9b::10.0.0.1 64:ff9b:1::1 64:ff9b:1:ffff::a00:1", Err(Ipv4InIpv6)),
            ("2002:a9fe:a9fe::1 2002::1 2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2", Err(Ipv4InIpv6)),
        ] {
            for address in addresses.split(' ') {
                assert_eq!(check(address.parse().unwrap()), expected, "{address}");
            }
        }
    }

    #[test]
    fn a_range_has_the_addresses_of_its_family_that_begin_alike() {
        for (range, inside, outside) in [
            ("10.96.0.0/12", "10.96.0.1 10.111.255.255", "10.112.0.0 10.95.255.255 ::ffff:10.96.0.1 fd00::1"),
            ("10.20.0.1/32", "10.20.0.1", "10.20.0.0 10.20.0.2"),
            ("0.0.0.0/0", "1.2.3.4", "fd00::1"),
            ("fd12:3456::/108", "fd12:3456::f:ffff", "fd12:3456::10:0 10.0.0.1"),
        ] {
            let range = Range::parse(range).unwrap();
            let is_inside =
                |addresses: &str| addresses.split(' ').map(|a| range.contains(a.parse().unwrap())).collect();
            let (inside, outside): (Vec<bool>, Vec<bool>) = (is_inside(inside), is_inside(outside));
            assert!(inside.iter().all(|is| *is) && !outside.iter().any(|is| *is), "{range:?} {inside:?} {outside:?}");
        }
        let range = |text: &str| Range::parse(text).unwrap();
        for (one, other, common) in [
            ("10.244.0.0/24", "10.244.3.0/24", "10.244.0.0/22"),
            ("10.0.0.0/8", "10.96.0.0/12", "10.0.0.0/8"),
            ("fd00::1:0/112", "fd00::/112", "fd00::/111"),
            ("1.2.3.4/32", "200.0.0.0/32", "0.0.0.0/0"),
        ] {
            let (one, other) = (range(one), range(other));
            assert_eq!(one.overlaps(&other), one.contains(other.base()), "{one} {other}");
            assert_eq!(one.overlaps(&other), other.overlaps(&one));
            assert_eq!(one.extended(other.base()).to_string(), common);
        }
        assert!(!range("0.0.0.0/0").overlaps(&range("::/0")));
        for wrong in ["10.0.0.0", "10.0.0.0/33", "fd00::/129", "10.0.0.0/-1", "x/8", ""] {
            assert_eq!(Range::parse(wrong), None, "{wrong}");
        }
    }
}
