//! What other clusters say of their exports, as far as an API server takes it.
//!
//! Imports make objects of it. The API server refuses a whole Service or EndpointSlice because of one field, and with it
//! what other clusters say of the same name. So each field is checked here, and what does not fit is left out and reported.

use prost::Message as _;

use super::{read_target, wire};
use ledger::capped;
use model::{
    Export, IpFamily, Protocol, ServicePort, ServiceType, SessionAffinity, TrafficPolicy, intern, is_dns_label,
    is_port_name,
    labels::{is_label_key, is_label_value},
};

/// Longest name of a Node: a DNS subdomain.
const MAX_NODE: usize = 253;
/// Longest cluster selection, in bytes: `api::selection` writes no longer one, and reads no longer one.
const MAX_SELECTION: usize = 1_000;
/// The timeouts that a session affinity by client IP may have, in seconds: up to a day (`validateClientIPAffinityConfig` of
/// Kubernetes).
const TIMEOUTS: std::ops::RangeInclusive<u32> = 1..=86_400;

/// The export in a record, and what was left out of it; `None` if it is unreadable.
pub(crate) fn export(bytes: &[u8]) -> Option<(Export, Vec<&'static str>)> {
    let message = wire::Export::decode(capped(bytes)?).ok()?;
    let mut degraded = Vec::new();
    let ports = message.ports.iter().filter_map(|said| port(said).map_err(|why| degraded.push(why)).ok());
    let ports: Vec<(ServicePort, Option<&'static str>)> = ports.collect();
    degraded.extend(ports.iter().filter_map(|(_, why)| *why));
    let mut ip_families: Vec<IpFamily> = Vec::new();
    for said in &message.families {
        match family(*said) {
            Some(family) if !ip_families.contains(&family) => ip_families.push(family),
            Some(_) => {}
            None => degraded.push("an unknown IP family is left out"),
        }
    }
    let service_type = match message.service_type {
        1 => ServiceType::ClusterSetIp,
        2 => ServiceType::Headless,
        _ => {
            degraded.push("the unknown type is read as ClusterSetIP");
            ServiceType::ClusterSetIp
        }
    };
    let session_affinity = match (message.affinity, message.affinity_timeout) {
        (0, _) => SessionAffinity::None,
        (1, Some(timeout)) if !TIMEOUTS.contains(&timeout) => {
            degraded.push("the timeout of the session affinity is not 1 to 86400 s, and read as the default");
            SessionAffinity::ClientIp { timeout: None }
        }
        (1, timeout) => SessionAffinity::ClientIp { timeout },
        _ => {
            degraded.push("the unknown session affinity is read as None");
            SessionAffinity::None
        }
    };
    let internal_traffic_policy = match message.internal_traffic_policy {
        0 => TrafficPolicy::Cluster,
        1 => TrafficPolicy::Local,
        _ => {
            degraded.push("the unknown internal traffic policy is read as Cluster");
            TrafficPolicy::Cluster
        }
    };
    let cluster_selection = message.cluster_selection.filter(|text| {
        let fits = text.len() <= MAX_SELECTION && !text.chars().any(char::is_control);
        if !fits {
            degraded.push("a cluster selection that nobody can have written is left out");
        }
        fits
    });
    let drain = message.drain.as_deref().map(str::parse);
    if drain.as_ref().is_some_and(Result::is_err) {
        degraded.push("a drain that this version does not understand is left out");
    }
    let export = Export {
        uid: message.uid.into(),
        created: message.created,
        service_type,
        ports: ports.into_iter().map(|(port, _)| port).collect(),
        session_affinity,
        internal_traffic_policy,
        traffic_distribution: message.traffic_distribution.as_deref().map(intern),
        ip_families,
        labels: message.labels,
        annotations: message.annotations,
        publish_not_ready_addresses: message.publish_not_ready_addresses,
        target: message.target.as_ref().map(read_target),
        cluster_selection: cluster_selection.map(Into::into),
        drain: drain.and_then(Result::ok),
    };
    degraded.sort_unstable();
    degraded.dedup();
    Some((export, degraded))
}

/// A port, and what was left out of it.
fn port(said: &wire::Port) -> Result<(ServicePort, Option<&'static str>), &'static str> {
    let protocol = match said.protocol {
        0 => Protocol::Tcp,
        1 => Protocol::Udp,
        2 => Protocol::Sctp,
        _ => return Err("a port of unknown protocol is left out"),
    };
    let port = number(said.port).ok_or("a port whose number is not 1 to 65535 is left out")?;
    if !is_port_name(&said.name) {
        return Err("a port whose name no Service can have is left out");
    }
    let app_protocol = said.app_protocol.as_deref().filter(|name| is_label_key(name)).map(intern);
    let degraded = (app_protocol.is_none() && said.app_protocol.is_some())
        .then_some("an appProtocol that no Service can have is left out");
    Ok((ServicePort { name: intern(&said.name), protocol, port, app_protocol }, degraded))
}

/// The number of a port.
pub(crate) fn number(said: u32) -> Option<u16> {
    u16::try_from(said).ok().filter(|number| *number > 0)
}

const fn family(said: u32) -> Option<IpFamily> {
    match said {
        4 => Some(IpFamily::V4),
        6 => Some(IpFamily::V6),
        _ => None,
    }
}

/// Whether an endpoint may have this host name.
pub(crate) fn is_host_name(name: &str) -> bool {
    is_dns_label(name)
}

/// Whether an endpoint may be in this zone, which becomes a label and a hint.
pub(crate) fn is_zone(name: &str) -> bool {
    !name.is_empty() && is_label_value(name)
}

/// Whether an endpoint may be on a Node of this name.
pub(crate) fn is_node(name: &str) -> bool {
    let is_inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
    name.len() <= MAX_NODE && name.split('.').all(|part| is_part(part) && part.bytes().all(is_inner))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Catalog;
    use ledger::{Map, Value};
    use model::{ServiceKey, UNNAMED_PORT};

    fn said(name: &str, protocol: u32, port: u32, app_protocol: Option<&str>) -> wire::Port {
        wire::Port { name: name.to_owned(), protocol, port, app_protocol: app_protocol.map(str::to_owned) }
    }

    fn decoded(message: &wire::Export) -> (Export, Vec<&'static str>) {
        export(&message.encode_to_vec()).unwrap()
    }

    #[test]
    fn a_bad_port_is_left_out_and_said_and_the_others_stay() {
        let good = said("http", 0, 80, Some("kubernetes.io/h2c"));
        let long = "a".repeat(64);
        for (bad, why) in [
            (said("zero", 0, 0, None), "number"),
            (said("high", 0, 65_536, None), "number"),
            (said("type", 3, 80, None), "protocol"),
            (said("Upper", 0, 81, None), "name"),
            (said("under_score", 0, 81, None), "name"),
            (said(&long, 0, 81, None), "name"),
            (said(UNNAMED_PORT, 0, 81, None), "name"),
        ] {
            let (export, degraded) =
                decoded(&wire::Export { ports: vec![bad.clone(), good.clone()], ..Default::default() });
            let names: Vec<&str> = export.ports.iter().map(|port| &*port.name).collect();
            assert_eq!(names, ["http"], "{bad:?}");
            assert!(degraded.iter().any(|text| text.contains(why)), "{bad:?}: {degraded:?}");
        }
        // The longest name that the API server takes for a port of a Service.
        let fits = said(&long[..63], 2, 65_535, None);
        assert_eq!(decoded(&wire::Export { ports: vec![fits], ..Default::default() }).0.ports.len(), 1);
    }

    #[test]
    fn a_field_that_no_service_can_have_is_read_as_its_default_and_said() {
        let bad = wire::Export {
            ports: vec![said("http", 0, 80, Some("a b")), said("", 0, 81, Some(&format!("x/{}", "y".repeat(64))))],
            affinity: 1,
            affinity_timeout: Some(86_401),
            families: vec![4, 4, 5, 6],
            cluster_selection: Some("local-first\n".to_owned()),
            drain: Some("101-70".to_owned()),
            ..Default::default()
        };
        let (export, degraded) = decoded(&bad);
        assert!(export.ports.iter().all(|port| port.app_protocol.is_none()) && export.ports.len() == 2);
        assert_eq!(export.session_affinity, SessionAffinity::ClientIp { timeout: None });
        assert_eq!(export.ip_families, [IpFamily::V4, IpFamily::V6]);
        assert_eq!((export.cluster_selection, export.drain), (None, None));
        for text in ["appProtocol", "86400", "IP family", "cluster selection", "drain"] {
            assert_eq!(degraded.iter().filter(|said| said.contains(text)).count(), 1, "{text}: {degraded:?}");
        }
        let day = wire::Export { affinity: 1, affinity_timeout: Some(86_400), ..Default::default() };
        assert_eq!(decoded(&day).0.session_affinity, SessionAffinity::ClientIp { timeout: Some(86_400) });
    }

    #[test]
    fn names_that_no_object_can_have_are_no_exports() {
        let value: Value = wire::Export { service_type: 1, ..Default::default() }.encode_to_vec().into();
        let keys = ["ns/web", "Ns/web", "ns/we_b", "ns/a.b", "ns/-web", "ns/web/x", "ns/", "ns/wéb"];
        let map: Map = keys.iter().map(|key| ((*key).into(), value.clone())).collect();
        let catalog = Catalog::decode(&map);
        assert_eq!(catalog.exports.into_keys().collect::<Vec<_>>(), [ServiceKey::new("ns", "web")]);
        assert_eq!(catalog.problems.len(), keys.len() - 1, "{:?}", catalog.problems);
    }

    #[test]
    fn what_endpoints_say_of_their_places_is_left_out_where_no_slice_can_say_it() {
        for (name, [host, zone, node]) in [
            ("web-0", [true; 3]),
            ("eu-west-1a", [true; 3]),
            ("ip-10-0-0-1.eu-west-1.compute.internal", [false, true, true]),
            ("Zone_A", [false, true, false]),
            ("", [false; 3]),
            ("a..b", [false, true, false]),
            ("a b", [false; 3]),
            ("-a", [false; 3]),
        ] {
            assert_eq!([is_host_name(name), is_zone(name), is_node(name)], [host, zone, node], "{name}");
        }
        assert!(is_node(&"n".repeat(253)) && !is_node(&"n".repeat(254)));
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[a-zA-Z_./-]{0,70}"]
    }

    proptest! {
        /// Whatever a member writes: it ends in objects that an API server takes, or is left out.
        #[test]
        fn whatever_is_said_of_an_export_fits_into_a_service(
            ports in prop::collection::vec((text(), any::<u32>(), any::<u32>(), prop::option::of(text())), 0..8),
            numbers in any::<[u32; 4]>(), timeout in any::<Option<u32>>(), families in prop::collection::vec(0u32..9, 0..5),
        ) {
            let [service_type, affinity, internal_traffic_policy, _] = numbers.map(|number| number % 4);
            let ports = ports.iter().map(|(name, protocol, port, app)| said(name, protocol % 4, port % 70_000, app.as_deref()));
            let ports: Vec<_> = ports.collect();
            let message = wire::Export {
                service_type, affinity, internal_traffic_policy, affinity_timeout: timeout, families, ports, ..Default::default()
            };
            let Some((export, _)) = super::export(&message.encode_to_vec()) else { return Ok(()) };
            for port in &export.ports {
                prop_assert!(port.port > 0 && is_port_name(&port.name));
                prop_assert!(port.app_protocol.as_deref().is_none_or(is_label_key));
            }
            if let SessionAffinity::ClientIp { timeout: Some(timeout) } = export.session_affinity {
                prop_assert!(TIMEOUTS.contains(&timeout));
            }
            prop_assert!(export.ip_families.len() <= 2);
        }

        #[test]
        fn no_bytes_end_a_decoder(key in "[!~^]?[a-z#/0-9]{0,20}", bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut map = Map::new();
            map.insert("ns/web".into(), bytes.clone().into());
            map.insert("ns/web#0".into(), bytes.clone().into());
            map.insert(key.into(), bytes.into());
            let catalog = Catalog::decode(&map);
            for exported in catalog.exports.values() {
                prop_assert!(exported.export.ports.iter().all(|port| port.port > 0));
                for endpoint in &exported.endpoints {
                    prop_assert!(endpoint.ports.iter().all(|port| port.port > 0));
                    prop_assert!(endpoint.hostname.as_deref().is_none_or(is_host_name));
                    prop_assert!(endpoint.zone.as_deref().is_none_or(is_zone) && endpoint.node.as_deref().is_none_or(is_node));
                }
            }
            prop_assert!(crate::registrations(&map).len() <= 2);
        }
    }
}
