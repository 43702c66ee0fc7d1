//! Values that the tests of several modules start from.

use std::{collections::BTreeMap, net::Ipv4Addr};

use super::{Conditions, Endpoint, Export, IpFamily, ServiceType, SessionAffinity, TrafficPolicy};

/// An export of a ClusterIP Service without ports, IPv4 only, created at second `created`.
pub fn mk_export(created: i64) -> Export {
    Export {
        uid: format!("uid-{created}").into(),
        created,
        service_type: ServiceType::ClusterSetIp,
        ports: Vec::new(),
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        traffic_distribution: None,
        ip_families: vec![IpFamily::V4],
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        publish_not_ready_addresses: false,
        target: None,
        cluster_selection: None,
        drain: None,
    }
}

/// A ready endpoint with an IPv4 address and nothing else.
pub fn mk_endpoint(ipv4: impl Into<Ipv4Addr>) -> Endpoint {
    Endpoint {
        ipv4: Some(ipv4.into()),
        ipv6: None,
        ports: [].into(),
        conditions: Conditions::READY,
        hostname: None,
        zone: None,
        node: None,
    }
}
