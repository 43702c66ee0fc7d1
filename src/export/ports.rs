//! Ports of a Service that its endpoints do not serve.
//!
//! The EndpointSlice controller of Kubernetes lists a port only for pods in which it finds its `targetPort`. If that is a
//! name that no container has with that protocol, the port is missing, and the endpoints are ready all the same: nobody
//! gets through, and nothing says so.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::join;
use cluster::objects::{Service, SourceSlice};
use model::{Endpoint, Protocol, ServiceKey, ServicePort};

/// Ports beyond this number are not named.
const NAMED: usize = 8;

/// How many endpoints a port of a Service has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served<'a> {
    /// The port.
    pub port: &'a ServicePort,
    /// How many endpoints serve it, of those that do not terminate.
    pub endpoints: usize,
}

/// Which ports some endpoints do not serve, in the order of the Service. Endpoints that terminate do not count; without
/// others, nothing can be said of a port. `total` is how many there are.
pub fn partly_served<'a>(ports: &'a [ServicePort], endpoints: &[Endpoint]) -> (Vec<Served<'a>>, usize) {
    // Thousands of endpoints have the same ports in memory.
    let mut alike: BTreeMap<*const (), (&Endpoint, usize)> = BTreeMap::new();
    let live = endpoints.iter().filter(|endpoint| !endpoint.conditions.terminating);
    for endpoint in live {
        alike.entry(Arc::as_ptr(&endpoint.ports).cast()).or_insert((endpoint, 0)).1 += 1;
    }
    let mut counts: BTreeMap<(&str, Protocol), usize> = BTreeMap::new();
    let mut total = 0;
    for (endpoint, count) in alike.into_values() {
        total += count;
        let served: BTreeSet<_> = endpoint.ports.iter().map(|port| (&*port.name, port.protocol)).collect();
        for port in served {
            *counts.entry(port).or_default() += count;
        }
    }
    let served = ports
        .iter()
        .map(|port| Served { port, endpoints: counts.get(&(&*port.name, port.protocol)).copied().unwrap_or_default() });
    (served.filter(|served| served.endpoints < total).collect(), total)
}

/// How every [`unserved`] text about a Service begins.
pub fn unserved_begins(service: &ServiceKey) -> String {
    format!("No endpoint of Service {service} serves ")
}

/// Which ports no endpoint serves, with the remedy; `None` if there is none. Without a selector, somebody else than
/// Kubernetes writes the EndpointSlices.
pub fn unserved(
    service: &ServiceKey,
    ports: &[ServicePort],
    endpoints: &[Endpoint],
    has_selector: bool,
) -> Option<String> {
    let (served, _) = partly_served(ports, endpoints);
    let missing: Vec<_> = served.iter().filter(|served| served.endpoints == 0).map(|served| served.port).collect();
    if missing.is_empty() {
        return None;
    }
    let listed: Vec<_> = missing.iter().take(NAMED).map(|port| port_text(port)).collect();
    let more = if missing.len() > NAMED { " and others" } else { "" };
    let remedy = if has_selector {
        "Give targetPort in spec.ports of the Service the number of a container's port, or the name that a container of \
         the pods gives a port of this protocol; or take the port out of the Service."
    } else {
        "List the port in the Service's EndpointSlices, with its name, protocol and number; or take it out of the Service."
    };
    let begin = unserved_begins(service);
    Some(format!("{begin}its port {}{more}, so nobody gets through there. {remedy}", listed.join(", ")))
}

/// [`unserved`] of a Service, from its EndpointSlices. Mostly some slice lists every port, and then the endpoints need not be
/// joined.
pub fn unserved_in(service: &Service, slices: &[Arc<SourceSlice>]) -> Option<String> {
    let live = |slice: &SourceSlice| slice.endpoints.iter().any(|endpoint| !endpoint.conditions.terminating);
    let listed: BTreeSet<_> = slices
        .iter()
        .filter(|slice| live(slice))
        .flat_map(|slice| slice.ports.iter().map(|port| (&*port.name, port.protocol)))
        .collect();
    if service.ports.iter().all(|port| listed.contains(&(&*port.name, port.protocol))) {
        return None;
    }
    unserved(&service.key, &service.ports, &join(slices), service.has_selector)
}

/// A port for people, such as `http (80/TCP)`.
pub fn port_text(port: &ServicePort) -> String {
    let ServicePort { name, protocol, port, app_protocol: _ } = port;
    let number = format!("{port}/{}", protocol.as_str());
    if name.is_empty() { number } else { format!("{name} ({number})") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Conditions, EndpointPort};

    fn mk_port(name: &str, port: u16) -> ServicePort {
        ServicePort { name: name.into(), protocol: Protocol::Tcp, port, app_protocol: None }
    }

    fn mk_endpoint(address: u8, ports: &[(&str, Protocol)]) -> Endpoint {
        let port = |(name, protocol): &(&str, Protocol)| EndpointPort {
            name: (*name).into(),
            protocol: *protocol,
            port: 8080,
            app_protocol: None,
        };
        Endpoint {
            ipv4: Some([10, 0, 0, address].into()),
            ipv6: None,
            ports: ports.iter().map(port).collect::<Vec<_>>().into(),
            conditions: Conditions::READY,
            hostname: None,
            zone: None,
            node: None,
        }
    }

    fn said(ports: &[ServicePort], endpoints: &[Endpoint]) -> Option<String> {
        unserved(&ServiceKey::new("field", "typo"), ports, endpoints, true)
    }

    #[test]
    fn a_port_that_no_endpoint_serves_is_named_with_the_remedy() {
        let ports = [mk_port("http", 80), mk_port("metrics", 9090)];
        let http = [("http", Protocol::Tcp)];
        let all = [mk_endpoint(1, &[]), mk_endpoint(2, &[])];
        let text = said(&ports, &all).unwrap();
        assert!(text.starts_with(&unserved_begins(&ServiceKey::new("field", "typo"))), "{text}");
        assert!(text.contains("http (80/TCP), metrics (9090/TCP)") && text.contains("targetPort"), "{text}");
        let one = said(&ports, &[mk_endpoint(1, &http), mk_endpoint(2, &http)]).unwrap();
        assert!(one.contains("its port metrics (9090/TCP),") && !one.contains("http"), "{one}");
        let other_protocol = said(&ports[..1], &[mk_endpoint(1, &[("http", Protocol::Udp)])]).unwrap();
        assert!(other_protocol.contains("http (80/TCP)"), "{other_protocol}");
        let by_hand = unserved(&ServiceKey::new("field", "typo"), &ports, &all, false).unwrap();
        assert!(by_hand.contains("EndpointSlices") && !by_hand.contains("targetPort"), "{by_hand}");
    }

    #[test]
    fn ports_that_differ_by_pod_are_served_and_counted() {
        let ports = [mk_port("smtp", 25), mk_port("imap", 143)];
        let (smtp, imap) = ([("smtp", Protocol::Tcp)], [("imap", Protocol::Tcp)]);
        let pods = [mk_endpoint(1, &smtp), mk_endpoint(2, &smtp), mk_endpoint(3, &imap)];
        assert_eq!(said(&ports, &pods), None, "each port has a pod");
        let (served, total) = partly_served(&ports, &pods);
        assert_eq!(served.iter().map(|served| served.endpoints).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(total, 3);
        assert_eq!(partly_served(&ports[..1], &pods[..2]), (vec![], 2), "all serve it");
    }

    #[test]
    fn without_endpoints_that_stay_nothing_is_said_of_ports() {
        let ports = [mk_port("", 80)];
        assert_eq!(said(&ports, &[]), None);
        let conditions = Conditions { terminating: true, ..Conditions::READY };
        assert_eq!(said(&ports, &[Endpoint { conditions, ..mk_endpoint(1, &[]) }]), None);
        assert_eq!(said(&[], &[mk_endpoint(1, &[])]), None, "a headless Service needs no ports");
        let starting = Endpoint { conditions: Conditions { ready: false, ..Conditions::READY }, ..mk_endpoint(1, &[]) };
        assert!(said(&ports, &[starting]).unwrap().contains("its port 80/TCP,"), "it is not too early");
    }

    #[test]
    fn of_many_ports_some_are_named() {
        let ports: Vec<_> = (0..100).map(|n| mk_port(&format!("p{n}"), 1000 + n)).collect();
        let text = said(&ports, &[mk_endpoint(1, &[])]).unwrap();
        assert!(text.contains("p7 ") && !text.contains("p8 ") && text.contains("and others"), "{text}");
    }
}
