//! What is registered for a host: addresses, or the name of a load balancer.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use super::Wanted;
use crate::request::HostTarget;
use cluster::objects::Service;
use instances::{
    Adopt, Consent, Custom, Source, Traffic, custom,
    host::is_load_balancer,
    records::{address_records, host_record},
    sync::Creation,
};
use model::{Conditions, Endpoint, EndpointPort, IpFamily, ServicePort};

/// The backends of a target, before they become instances.
#[derive(Debug, Clone, Default)]
pub(super) struct Backends {
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) hosts: BTreeSet<Arc<str>>,
    /// Families of the records, also while there are no endpoints.
    pub(super) families: BTreeSet<IpFamily>,
    pub(super) ttl: u32,
    pub(super) ttl_asked: bool,
    pub(super) adopt: Option<Adopt>,
    /// Whether existing instances stay as they are, because everything that is named instead of them is wrong.
    pub(super) keep: bool,
}

pub(super) fn pods(service: &Service, endpoints: &[Endpoint]) -> Backends {
    let mut families: BTreeSet<_> = service.ip_families.iter().copied().collect();
    if !service.has_selector && families.len() > 1 {
        // Kubernetes gives a headless Service without a selector both families, also in a cluster that has only one.
        let has = |family: &IpFamily| match family {
            IpFamily::V4 => endpoints.iter().any(|endpoint| endpoint.ipv4.is_some()),
            IpFamily::V6 => endpoints.iter().any(|endpoint| endpoint.ipv6.is_some()),
        };
        families.retain(has);
    }
    Backends { endpoints: endpoints.to_vec(), families, ..Backends::default() }
}

/// The cluster IPs of a Service. Both families of a dual-stack Service are one instance.
pub(super) fn cluster_ips(service: &Service) -> Backends {
    let targets: Vec<_> = service.cluster_ips.iter().copied().map(HostTarget::Ip).collect();
    fixed(&targets, &ports(service))
}

pub(super) fn ports(service: &Service) -> Vec<EndpointPort> {
    let port = |port: &ServicePort| EndpointPort {
        name: port.name.clone(),
        protocol: port.protocol,
        port: port.port,
        app_protocol: port.app_protocol.clone(),
    };
    let mut ports: Vec<_> = service.ports.iter().map(port).collect();
    ports.sort();
    ports
}

/// Backends for addresses and names that do not come from EndpointSlices.
pub(super) fn fixed(targets: &[HostTarget], ports: &[EndpointPort]) -> Backends {
    let (mut ipv4, mut ipv6, mut hosts) = (Vec::new(), Vec::new(), BTreeSet::new());
    for target in targets {
        match target {
            HostTarget::Ip(IpAddr::V4(ip)) => ipv4.push(*ip),
            HostTarget::Ip(IpAddr::V6(ip)) => ipv6.push(*ip),
            HostTarget::Name(name) => {
                hosts.insert(name.clone());
            }
        }
    }
    // If both families exist, each instance needs both; any combination will do.
    let nth = |n: usize, len: usize| n.min(len.saturating_sub(1));
    let endpoints = (0..ipv4.len().max(ipv6.len())).map(|n| Endpoint {
        ipv4: ipv4.get(nth(n, ipv4.len())).copied(),
        ipv6: ipv6.get(nth(n, ipv6.len())).copied(),
        ..endpoint(ports)
    });
    let endpoints = endpoints.collect();
    let families = [(IpFamily::V4, ipv4.is_empty()), (IpFamily::V6, ipv6.is_empty())];
    let families = families.into_iter().filter(|(_, empty)| !empty).map(|(family, _)| family).collect();
    Backends { endpoints, hosts, families, ..Backends::default() }
}

pub(super) fn endpoint(ports: &[EndpointPort]) -> Endpoint {
    let (conditions, ports) = (Conditions::READY, ports.into());
    Endpoint { ipv4: None, ipv6: None, ports, conditions, hostname: None, zone: None, node: None }
}

impl Backends {
    /// The desired state of a target, and a complaint about it.
    pub(super) fn wanted(self, source: &Source<'_>, custom: &Custom, consent: &Consent) -> (Wanted, Option<String>) {
        let Self { endpoints, hosts, families, ttl, ttl_asked, adopt, keep } = self;
        let (instances, complaint) = custom::fit(custom, |custom| {
            let mut instances = source.instances_with(&endpoints, custom)?;
            instances.extend(source.hosts(&hosts, custom)?);
            instances.sort_by(|a, b| a.id().cmp(b.id()));
            Ok(instances)
        });
        let dns = if families.is_empty() && !hosts.is_empty() {
            Some(host_record(hosts.iter().all(|host| is_load_balancer(host)), ttl))
        } else {
            address_records(families, ttl)
        };
        let wanted = Wanted {
            keep: keep || instances.is_none(),
            as_is: complaint.is_some(),
            instances: instances.unwrap_or_default().into(),
            // Records cannot be changed later. While they are not known, no service is created.
            creation: Creation {
                namespace: false,
                service: dns.is_some(),
                dns,
                custom_health_check: false,
                ttl: ttl_asked.then_some(ttl),
            },
            consent: Consent { adopt, ..consent.clone() },
            traffic: Traffic::All,
        };
        (wanted, complaint)
    }
}
