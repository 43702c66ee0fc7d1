//! The endpoints of a Service, from its EndpointSlices.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use cluster::objects::{AddressType, SourceSlice, TargetId};
use model::{
    Conditions, Endpoint, EndpointPort,
    addresses::{Forbidden, check},
};

/// What makes rows of several slices one endpoint: the object behind them, or else the address.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum EndpointKey {
    Object(TargetId),
    Address(IpAddr),
}

/// All endpoints in `slices`, sorted by address. The two families of one pod are one endpoint. Of several addresses of one
/// family that it has, each is an endpoint. A duplicate row counts once, with the ports of both.
///
/// Rows without an object that have one address are about one endpoint, which takes traffic if one of them says so, as for
/// kube-proxy. Whatever else they say, the first one counts.
///
/// Only the first address of a row counts, as Kubernetes demands of consumers. Rows without an IP address (host names)
/// are left out, and so are rows whose address can never be an endpoint ([`forbidden`]).
pub fn join(slices: &[Arc<SourceSlice>]) -> Vec<Endpoint> {
    let mut joined: BTreeMap<EndpointKey, Endpoint> = BTreeMap::new();
    for slice in slices.iter().filter(|slice| slice.address_type != AddressType::Unsupported && !slice.deleting) {
        for row in &slice.endpoints {
            let Some(address) = row.address.filter(|address| check(*address).is_ok()) else { continue };
            let mut identity = row.target.map_or(EndpointKey::Address(address), EndpointKey::Object);
            if joined.get(&identity).is_some_and(|there| has_another(there, address)) {
                identity = EndpointKey::Address(address);
            }
            let endpoint = joined.entry(identity).or_insert_with(|| Endpoint {
                ipv4: None,
                ipv6: None,
                ports: slice.ports.clone(),
                conditions: row.conditions,
                hostname: row.hostname.clone(),
                zone: row.zone.clone(),
                node: row.node.clone(),
            });
            match address {
                IpAddr::V4(address) => endpoint.ipv4 = endpoint.ipv4.or(Some(address)),
                IpAddr::V6(address) => endpoint.ipv6 = endpoint.ipv6.or(Some(address)),
            }
            endpoint.conditions = match row.target {
                Some(_) => both(endpoint.conditions, row.conditions),
                None => endpoint.conditions.better(row.conditions),
            };
            if endpoint.ports != slice.ports {
                endpoint.ports = union(&endpoint.ports, &slice.ports);
            }
        }
    }
    let mut endpoints: Vec<_> = joined.into_values().collect();
    endpoints.sort_by_key(|endpoint| (endpoint.ipv4, endpoint.ipv6.unwrap_or(Ipv6Addr::UNSPECIFIED)));
    endpoints
}

/// Whether an endpoint has another address of this family.
fn has_another(endpoint: &Endpoint, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => endpoint.ipv4.is_some_and(|there| there != address),
        IpAddr::V6(address) => endpoint.ipv6.is_some_and(|there| there != address),
    }
}

/// The addresses in `slices` that can never be an endpoint, sorted. Anyone who may write EndpointSlices can write any
/// address.
pub fn forbidden(slices: &[Arc<SourceSlice>]) -> BTreeMap<IpAddr, Forbidden> {
    let slices = slices.iter().filter(|slice| slice.address_type != AddressType::Unsupported);
    let addresses = slices.flat_map(|slice| &slice.endpoints).filter_map(|row| row.address);
    addresses.filter_map(|address| Some((address, check(address).err()?))).collect()
}

/// Names of the slices that list host names. Neither this project nor kube-proxy resolves them.
pub fn host_names(slices: &[Arc<SourceSlice>]) -> BTreeSet<Arc<str>> {
    let named = slices.iter().filter(|slice| slice.address_type == AddressType::Unsupported && !slice.deleting);
    named.filter(|slice| !slice.endpoints.is_empty()).map(|slice| slice.key.name.clone()).collect()
}

/// The slices of the two families are updated one after the other. Until they agree, the worse condition counts.
fn both(a: Conditions, b: Conditions) -> Conditions {
    Conditions {
        ready: a.ready && b.ready,
        serving: a.serving && b.serving,
        terminating: a.terminating || b.terminating,
    }
}

/// One endpoint for each pair of addresses, as the ledger has them. Pods on the host network share theirs, and a slice that
/// somebody wrote may list a pod's without the pod. Those that take traffic best count, with the ports of all of these.
pub(super) fn by_addresses<'a>(endpoints: impl IntoIterator<Item = &'a Endpoint>) -> Vec<Endpoint> {
    let mut joined: BTreeMap<(Option<Ipv4Addr>, Option<Ipv6Addr>), Endpoint> = BTreeMap::new();
    for endpoint in endpoints {
        let mut there = match joined.entry((endpoint.ipv4, endpoint.ipv6)) {
            Entry::Vacant(free) => {
                free.insert(endpoint.clone());
                continue;
            }
            Entry::Occupied(there) => there,
        };
        let there = there.get_mut();
        if there.conditions == endpoint.conditions {
            there.ports = union(&there.ports, &endpoint.ports);
        } else if there.conditions.better(endpoint.conditions) == endpoint.conditions {
            there.clone_from(endpoint);
        }
    }
    joined.into_values().collect()
}

fn union(a: &[EndpointPort], b: &[EndpointPort]) -> Arc<[EndpointPort]> {
    let mut ports: Vec<_> = a.iter().chain(b).cloned().collect();
    ports.sort();
    ports.dedup();
    ports.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::objects::{About, Endpoint as Row, EndpointSlice, ObjectKey};
    use model::Protocol;

    fn mk_ports(ports: &[(&str, u16)]) -> Arc<[EndpointPort]> {
        let port = |(name, port): &(&str, u16)| EndpointPort {
            name: (*name).into(),
            protocol: Protocol::Tcp,
            port: *port,
            app_protocol: None,
        };
        ports.iter().map(port).collect::<Vec<_>>().into()
    }

    fn mk_row(address: &str, pod: Option<&str>) -> Row {
        Row {
            address: Some(address.parse().unwrap()),
            conditions: Conditions::READY,
            target: pod.and_then(TargetId::new),
            about: Arc::new(About { node: Some("node-1".into()), zone: Some("a".into()), ..About::default() }),
        }
    }

    fn mk_slice(name: &str, address_type: AddressType, ports: &[(&str, u16)], rows: Vec<Row>) -> Arc<SourceSlice> {
        Arc::new(SourceSlice(EndpointSlice {
            key: ObjectKey::new("ns", name),
            uid: "u".into(),
            deleting: false,
            service: Some("svc".into()),
            managed_by: None,
            service_import: None,
            source_cluster: None,
            address_type,
            ports: mk_ports(ports),
            endpoints: rows.into(),
        }))
    }

    #[test]
    fn both_families_of_a_pod_are_one_endpoint() {
        let v4 = mk_slice(
            "a",
            AddressType::V4,
            &[("http", 80)],
            vec![mk_row("10.0.0.2", Some("p2")), mk_row("10.0.0.1", Some("p1"))],
        );
        let v6 = mk_slice("b", AddressType::V6, &[("http", 80)], vec![mk_row("fd00::1", Some("p1"))]);
        let endpoints = join(&[v6, v4]);
        assert_eq!(endpoints.len(), 2);
        assert_eq!(endpoints[0].ipv4, Some([10, 0, 0, 1].into()));
        assert_eq!(endpoints[0].ipv6, Some("fd00::1".parse().unwrap()));
        assert_eq!(endpoints[1].ipv6, None);
    }

    /// Whoever writes slices by hand, or for a second network of pods, may name one object behind several rows.
    #[test]
    fn each_address_of_one_object_is_an_endpoint() {
        let rows = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|address| mk_row(address, Some("machine")));
        let v4 = mk_slice("a", AddressType::V4, &[("http", 80)], rows.to_vec());
        let again = mk_slice("b", AddressType::V4, &[("admin", 81)], vec![mk_row("10.0.0.2", Some("machine"))]);
        let v6 = mk_slice("c", AddressType::V6, &[("http", 80)], vec![mk_row("fd00::1", Some("machine"))]);
        let endpoints = join(&[v4, again, v6]);
        let last = |endpoint: &Endpoint| endpoint.ipv4.map(|address| address.octets()[3]);
        assert_eq!(endpoints.iter().map(last).collect::<Vec<_>>(), [Some(1), Some(2), Some(3)]);
        assert_eq!(endpoints.iter().filter(|endpoint| endpoint.ipv6.is_some()).count(), 1);
        assert_eq!(endpoints[1].ports, mk_ports(&[("admin", 81), ("http", 80)]));
    }

    /// The Endpoints API, which the replaced controllers read, ends at 1,000 addresses and has one family.
    #[test]
    fn endpoints_of_many_slices_and_both_families_all_count() {
        let slices: Vec<_> = (0..12)
            .map(|n| {
                let (family, base) = if n < 6 { (AddressType::V4, "10.0") } else { (AddressType::V6, "fd00::") };
                let address = |m: usize| match family {
                    AddressType::V4 => format!("{base}.{n}.{m}"),
                    _ => format!("{base}{n:x}:{m:x}"),
                };
                let rows = (0..200).map(|m| mk_row(&address(m), None)).collect();
                mk_slice(&format!("s-{n}"), family, &[("http", 80)], rows)
            })
            .collect();
        let endpoints = join(&slices);
        let families = (
            endpoints.iter().filter(|e| e.ipv4.is_some()).count(),
            endpoints.iter().filter(|e| e.ipv6.is_some()).count(),
        );
        assert_eq!((endpoints.len(), families), (2400, (1200, 1200)));
    }

    #[test]
    fn a_pod_is_ready_when_both_of_its_slices_say_so() {
        let v4 = mk_slice("a", AddressType::V4, &[], vec![mk_row("10.0.0.1", Some("p"))]);
        let mut row = mk_row("fd00::1", Some("p"));
        row.conditions = Conditions { ready: false, serving: true, terminating: true };
        let v6 = mk_slice("b", AddressType::V6, &[], vec![row.clone()]);
        assert_eq!(join(&[v4, v6])[0].conditions, row.conditions);
    }

    #[test]
    fn rows_without_an_object_are_joined_by_address_and_their_ports_add_up() {
        let a = mk_slice("a", AddressType::V4, &[("http", 80)], vec![mk_row("10.0.0.1", None)]);
        let b =
            mk_slice("b", AddressType::V4, &[("admin", 81)], vec![mk_row("10.0.0.1", None), mk_row("10.0.0.3", None)]);
        let endpoints = join(&[a, b]);
        assert_eq!(endpoints[0].ports, mk_ports(&[("admin", 81), ("http", 80)]));
        assert_eq!(endpoints[1].ports, mk_ports(&[("admin", 81)]));
    }

    /// People write them by hand, one for each port, or two tools do.
    #[test]
    fn an_address_in_several_slices_is_ready_if_one_says_so_in_whatever_order_they_come() {
        let said = |ready, serving, terminating| Conditions { ready, serving, terminating };
        let (ready, not_ready) = (Conditions::READY, said(false, false, false));
        let (drains, ends) = (said(false, true, true), said(false, false, true));
        for (one, other, expected) in [
            (ready, not_ready, ready),
            (ready, drains, ready),
            (ready, said(true, true, true), ready),
            (not_ready, drains, drains),
            (not_ready, ends, not_ready),
            (ends, ends, ends),
        ] {
            for said in [[one, other], [other, one]] {
                let slices: Vec<_> = ["a", "b"]
                    .into_iter()
                    .zip(said)
                    .map(|(name, conditions)| {
                        let about = Arc::new(About { zone: Some(name.into()), ..About::default() });
                        let row = Row { conditions, about, ..mk_row("10.0.0.1", None) };
                        mk_slice(name, AddressType::V4, &[("http", 80)], vec![row])
                    })
                    .collect();
                let joined = join(&slices);
                let [endpoint] = joined.as_slice() else { panic!("{joined:?}") };
                assert_eq!((endpoint.conditions, endpoint.zone.as_deref()), (expected, Some("a")), "{said:?}");
            }
        }
    }

    /// The API server accepts these addresses in slices that users write.
    #[test]
    fn addresses_that_can_never_be_endpoints_are_left_out() {
        let rows = ["fd00:ec2::254", "64:ff9b::a9fe:a9fe", "fd00::1"].map(|address| mk_row(address, None));
        let slices = [mk_slice("a", AddressType::V6, &[], rows.into())];
        let joined: Vec<_> = join(&slices).iter().map(|endpoint| endpoint.ipv6.unwrap().to_string()).collect();
        assert_eq!(joined, ["fd00::1"]);
        let refused: Vec<_> = forbidden(&slices).into_values().collect();
        assert_eq!(refused, [Forbidden::Ipv4InIpv6, Forbidden::AwsService]);
    }

    #[test]
    fn host_names_are_left_out() {
        let mut row = mk_row("10.0.0.1", None);
        row.address = None;
        let v4 = mk_slice("a", AddressType::V4, &[], vec![row]);
        let fqdn = mk_slice("b", AddressType::Unsupported, &[], vec![mk_row("10.0.0.2", None)]);
        let empty = mk_slice("c", AddressType::Unsupported, &[], vec![]);
        let slices = [v4, fqdn, empty];
        assert_eq!((join(&slices), host_names(&slices)), (vec![], ["b".into()].into()));
    }
}
