//! How discovered endpoints fit under a Service.
//!
//! A name that Kubernetes clusters export keeps its type and ports, no matter what others registered. A name that only
//! others registered is a service of its own. It has at most one port, because an instance has at most one port.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::backend::Backend;
use model::{
    ClusterId, ClusterSetService, Conditions, Endpoint, EndpointPort, IpFamily, Protocol, ServicePort, ServiceType,
    SessionAffinity, TrafficPolicy,
};

/// The port of a name whose instances have different ports.
const STABLE_PORT: u16 = 80;

/// Numbers on which endpoints listen, by the name of the port.
pub type Numbers = BTreeMap<Arc<str>, BTreeSet<u16>>;

/// The service that endpoints must fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Front {
    /// Its type.
    pub service_type: ServiceType,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// Its IP families, the primary one first.
    pub ip_families: Vec<IpFamily>,
}

impl Front {
    /// The properties of a merged service.
    pub fn of(service: &ClusterSetService) -> Self {
        Self {
            service_type: service.service_type,
            ports: service.ports.clone(),
            ip_families: service.ip_families.clone(),
        }
    }
}

/// Why a backend does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Misfit {
    /// It has no port, and the other instances do not show on which port it listens.
    NoPort,
    /// It has a port that the service does not have.
    NoSuchPort,
    /// Its address is of an IP family that the service does not have.
    Family,
}

/// The endpoints of each source, and the addresses that did not fit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fitted {
    /// The endpoints, by source.
    pub endpoints: BTreeMap<ClusterId, Vec<Endpoint>>,
    /// The addresses that did not fit, with their source.
    pub misfits: Vec<(ClusterId, IpAddr, Misfit)>,
}

/// The service of a name that only `backends` have; `None` without any.
///
/// Without ports it is headless. If all have the same port, that is its port. If ports differ, or a container runtime
/// chose them, it keeps the port that it has at `present`, or gets port 80.
pub fn service(backends: &[Backend], present: Option<&Front>) -> Option<ClusterSetService> {
    if backends.is_empty() {
        return None;
    }
    let numbers: BTreeSet<u16> = backends.iter().filter_map(|backend| backend.port).collect();
    let dynamic = backends.iter().any(|backend| backend.dynamic);
    let number = match (numbers.first(), numbers.len(), dynamic) {
        (None, ..) => None,
        (Some(only), 1, false) => Some(*only),
        _ => Some(present.and_then(only_port).unwrap_or(STABLE_PORT)),
    };
    let port = |port| ServicePort { name: "".into(), protocol: Protocol::Tcp, port, app_protocol: None };
    let families = [
        (IpFamily::V4, backends.iter().any(|backend| backend.ipv4.is_some())),
        (IpFamily::V6, backends.iter().any(|backend| backend.ipv6.is_some())),
    ];
    let mut ip_families: Vec<IpFamily> =
        families.into_iter().filter(|(_, has)| *has).map(|(family, _)| family).collect();
    // A Service keeps its primary family, and with it its IP.
    let primary = present.and_then(|front| front.ip_families.first());
    ip_families.sort_by_key(|family| Some(family) != primary);
    Some(ClusterSetService {
        cluster_selection: None,
        selection_conflict: None,
        service_type: if number.is_some() { ServiceType::ClusterSetIp } else { ServiceType::Headless },
        ports: number.map(port).into_iter().collect(),
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        traffic_distribution: None,
        ip_families,
        other_families: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        clusters: BTreeMap::new(),
        conflicts: Vec::new(),
    })
}

fn only_port(front: &Front) -> Option<u16> {
    match front.ports.as_slice() {
        [only] if front.service_type == ServiceType::ClusterSetIp => Some(only.port),
        _ => None,
    }
}

/// Fits backends under a service. `exported` are the endpoints that Kubernetes clusters export under the name, and
/// whether their cluster is heard. An address that is already exported by such a cluster counts once. (One of a silent
/// cluster may belong to somebody else by now.) The numbers on which all exported endpoints listen show which port of the
/// service a backend's number means.
///
/// If the service has one port, a backend's number belongs to it. If it has several, the number belongs to the port
/// whose exported endpoints listen on that number, or else to the port with that number. A backend without a number
/// listens, if there is only one port, on the number of the other backends, or else on the number of the exported
/// endpoints, or else on the number in `before`, on which backends were served until now: they still listen where they
/// did when the endpoints that showed it are gone. If nothing shows a number, it is the number of the port.
pub fn fit<'a>(
    front: &Front,
    exported: impl IntoIterator<Item = (&'a Endpoint, bool)>,
    backends: &[Backend],
    before: &Numbers,
) -> Fitted {
    let mut known: BTreeSet<IpAddr> = BTreeSet::new();
    let mut listens = Numbers::new();
    for (endpoint, is_heard) in exported {
        if is_heard {
            known.extend(endpoint.ipv4.map(IpAddr::V4));
            known.extend(endpoint.ipv6.map(IpAddr::V6));
        }
        for port in endpoint.ports.iter() {
            listens.entry(port.name.clone()).or_default().insert(port.port);
        }
    }
    let numbers: BTreeSet<u16> = backends.iter().filter_map(|backend| backend.port).collect();
    let mut fitted = Fitted::default();
    let mut taken: BTreeSet<(IpAddr, Option<u16>)> = BTreeSet::new();
    // An unhealthy leftover instance must not hide a healthy one that has the same address.
    let (healthy, unhealthy): (Vec<_>, Vec<_>) = backends.iter().partition(|backend| backend.healthy);
    for backend in healthy.into_iter().chain(unhealthy) {
        let serves = |family: &IpFamily| match family {
            IpFamily::V4 => backend.ipv4.is_some(),
            IpFamily::V6 => backend.ipv6.is_some(),
        };
        let Some(address) = backend.addresses().next() else { continue };
        if backend.addresses().any(|address| known.contains(&address)) {
            continue;
        }
        if !front.ip_families.iter().any(serves) {
            fitted.misfits.push((backend.source.clone(), address, Misfit::Family));
            continue;
        }
        match ports(front, (&listens, before), &numbers, backend.port) {
            Err(misfit) => fitted.misfits.push((backend.source.clone(), address, misfit)),
            Ok(ports) => {
                // Two writers may register one process.
                let number = ports.first().map(|port| port.port);
                if !backend.addresses().map(|address| taken.insert((address, number))).fold(false, |any, new| any | new)
                {
                    continue;
                }
                let endpoint = Endpoint {
                    ipv4: backend.ipv4,
                    ipv6: backend.ipv6,
                    ports,
                    conditions: Conditions { ready: backend.healthy, serving: backend.healthy, terminating: false },
                    hostname: None,
                    zone: backend.zone.clone(),
                    node: None,
                };
                fitted.endpoints.entry(backend.source.clone()).or_default().push(endpoint);
            }
        }
    }
    fitted
}

/// The ports of the service that a backend serves. Exported endpoints listen on `listens`, and backends were served on
/// `before` until now.
fn ports(
    front: &Front,
    (listens, before): (&Numbers, &Numbers),
    numbers: &BTreeSet<u16>,
    number: Option<u16>,
) -> Result<Arc<[EndpointPort]>, Misfit> {
    let serve = |port: &ServicePort, number| {
        let ServicePort { name, protocol, port: _, app_protocol } = port.clone();
        Arc::from([EndpointPort { name, protocol, port: number, app_protocol }])
    };
    let listening = |port: &ServicePort| listens.get(&port.name);
    // Several do not show which one it is.
    let known = |port: &ServicePort| before.get(&port.name).filter(|numbers| numbers.len() == 1)?.first().copied();
    match (front.ports.as_slice(), number) {
        ([], _) => Ok(Arc::from([])),
        ([only], Some(number)) => Ok(serve(only, number)),
        ([only], None) => {
            let of_exported = listening(only).filter(|_| numbers.is_empty());
            let told: Vec<u16> = numbers.iter().chain(of_exported.into_iter().flatten()).copied().collect();
            match told.as_slice() {
                [] => Ok(serve(only, known(only).unwrap_or(only.port))),
                [number] => Ok(serve(only, *number)),
                _ => Err(Misfit::NoPort),
            }
        }
        (_, None) => Err(Misfit::NoPort),
        (several, Some(number)) => {
            let by_target = several.iter().find(|port| listening(port).is_some_and(|on| on.contains(&number)));
            let port = by_target.or_else(|| several.iter().find(|port| port.port == number));
            port.map(|port| serve(port, number)).ok_or(Misfit::NoSuchPort)
        }
    }
}

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
