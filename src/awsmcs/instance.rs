//! One instance: an address and a port of an export.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::attributes as names;
use api::names::CONTROLLER;
use cloudmap::{
    Attributes, Instance,
    attributes::{CLUSTER_UID, IPV4, IPV6, PORT},
};
use model::{
    ClusterId, ClusterSetId, Endpoint, EndpointPort, Protocol, ServicePort, ServiceType, is_dns_label, is_port_name,
};

/// What all instances of an export have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportAttributes<'a> {
    /// The exporting cluster.
    pub cluster: &'a ClusterId,
    /// Its ClusterSet.
    pub clusterset: &'a ClusterSetId,
    /// Creation of the ServiceExport, in seconds since 1970.
    pub created: i64,
    /// Type of the service.
    pub service_type: ServiceType,
}

/// A port of the Service as one endpoint serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortOf<'a> {
    /// The port of the Service.
    pub service: &'a ServicePort,
    /// The number on which the endpoint listens.
    pub number: u16,
}

impl PortOf<'_> {
    /// The id that the AWS controller would give to the instance: `tcp-10_1_2_3-8080`. At most 50 characters.
    pub fn id(self, address: IpAddr) -> String {
        id(self.service.protocol, address, self.number)
    }

    /// The attributes that describe an endpoint's port to the AWS controller, without address and number
    /// (`AWS_INSTANCE_...`).
    ///
    /// Only ready endpoints are registered. Other clusters do not get the name of the `targetPort`. Its number is
    /// enough, because the Service that they create has no selector.
    pub fn attributes(self, exported: ExportAttributes<'_>, endpoint: &Endpoint) -> Attributes {
        let ServicePort { name, protocol, port, app_protocol: _ } = self.service;
        let Endpoint { hostname, node, ipv4: _, ipv6: _, ports: _, conditions: _, zone: _ } = endpoint;
        let text = |text: &Option<Arc<str>>| text.as_deref().unwrap_or_default().to_owned();
        [
            (names::CLUSTER_ID, exported.cluster.to_string()),
            (names::CLUSTERSET_ID, exported.clusterset.to_string()),
            (names::SERVICE_TYPE, exported.service_type.to_string()),
            (names::CREATED, exported.created.saturating_mul(1000).to_string()),
            (names::ENDPOINT_PORT_NAME, name.to_string()),
            (names::ENDPOINT_PROTOCOL, protocol.to_string()),
            (names::SERVICE_PORT_NAME, name.to_string()),
            (names::SERVICE_PORT, port.to_string()),
            (names::SERVICE_TARGET_PORT, self.number.to_string()),
            (names::SERVICE_PROTOCOL, protocol.to_string()),
            (names::READY, "true".to_owned()),
            (names::HOSTNAME, text(hostname)),
            (names::NODENAME, text(node)),
            (names::CONTROLLER, CONTROLLER.to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into()
    }
}

fn id(protocol: Protocol, address: IpAddr, number: u16) -> String {
    let address = address.to_string().replace(['.', ':'], "_");
    format!("{}-{address}-{number}", protocol.as_str().to_ascii_lowercase())
}

/// Whether an id has the form of the AWS controller's ids.
pub fn is_id(id: &str) -> bool {
    ["tcp-", "udp-", "sctp-"].iter().any(|protocol| id.starts_with(protocol))
}

/// Whether an instance belongs to our ClusterSet in the terms of the AWS controllers, no matter which controller wrote
/// it.
pub fn is_of_set(instance: &Instance, clusterset: &ClusterSetId) -> bool {
    instance.attributes.get(names::CLUSTERSET_ID).is_some_and(|set| set == clusterset.as_str())
        && instance.attributes.contains_key(names::CLUSTER_ID)
}

/// Whether the AWS controller of this very cluster registered an instance, so that its successor there may take it
/// over: both ids match, and the instance id is the one that it would give.
pub fn wrote(instance: &Instance, cluster: &ClusterId, clusterset: &ClusterSetId) -> bool {
    is_of_set(instance, clusterset)
        && !instance.attributes.contains_key(CLUSTER_UID)
        && Registered::read(instance, true).is_ok_and(|told| {
            told.cluster == *cluster && *instance.id == *id(told.served.protocol, told.address, told.served.port)
        })
}

/// An instance as a part of another cluster's export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The exporting cluster.
    pub cluster: ClusterId,
    /// Creation of the ServiceExport, in milliseconds since 1970.
    pub created: i64,
    /// Type of the service.
    pub service_type: ServiceType,
    /// The port of the Service.
    pub port: ServicePort,
    /// Address of the endpoint.
    pub address: IpAddr,
    /// The port on which the endpoint listens, with the name of the Service's port.
    pub served: EndpointPort,
    /// Whether the endpoint is ready.
    pub ready: bool,
    /// `false` only if the Cloud Map service has a health check and the instance fails it.
    pub healthy: bool,
    /// Host name of the pod.
    pub hostname: Option<Arc<str>>,
    /// Whether our own controller wrote the instance, so the cluster has moved.
    pub moved: bool,
}

/// An instance has the form of the AWS controller's, but cannot be an endpoint. The value is the attribute that is
/// missing or invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[error("the attribute {0} is missing or invalid")]
pub struct Invalid(pub &'static str);

impl Registered {
    /// Reads the attributes that the AWS controller requires; [`is_of_set`] must be true. IPv6 addresses, which later
    /// releases write, are accepted as well.
    ///
    /// # Errors
    /// An attribute is missing or invalid. The AWS controller also skips such instances.
    pub fn read(instance: &Instance, healthy: bool) -> Result<Self, Invalid> {
        let text = |name: &'static str| instance.attributes.get(name).map(|value| value.trim()).ok_or(Invalid(name));
        let number = |name| text(name)?.parse::<u16>().ok().filter(|number| *number > 0).ok_or(Invalid(name));
        let protocol = |name| Protocol::parse(Some(text(name)?)).ok_or(Invalid(name));
        let address = match text(IPV4) {
            Ok(ipv4) => ipv4.parse::<Ipv4Addr>().map_err(|_| Invalid(IPV4))?.into(),
            Err(missing) => text(IPV6).map_err(|_| missing)?.parse::<Ipv6Addr>().map_err(|_| Invalid(IPV6))?.into(),
        };
        let service_type = match text(names::SERVICE_TYPE)? {
            "ClusterSetIP" => ServiceType::ClusterSetIp,
            "Headless" => ServiceType::Headless,
            _ => return Err(Invalid(names::SERVICE_TYPE)),
        };
        let name: Arc<str> = text(names::SERVICE_PORT_NAME)?.into();
        if !is_port_name(&name) {
            return Err(Invalid(names::SERVICE_PORT_NAME));
        }
        text(names::ENDPOINT_PORT_NAME)?;
        text(names::SERVICE_TARGET_PORT)?;
        let hostname = text(names::HOSTNAME).ok().filter(|name| is_dns_label(name));
        Ok(Self {
            cluster: text(names::CLUSTER_ID)?.parse().map_err(|_| Invalid(names::CLUSTER_ID))?,
            created: text(names::CREATED)?.parse().map_err(|_| Invalid(names::CREATED))?,
            service_type,
            port: ServicePort {
                name: name.clone(),
                protocol: protocol(names::SERVICE_PROTOCOL)?,
                port: number(names::SERVICE_PORT)?,
                app_protocol: None,
            },
            address,
            served: EndpointPort {
                name,
                protocol: protocol(names::ENDPOINT_PROTOCOL)?,
                port: number(PORT)?,
                app_protocol: None,
            },
            ready: boolean(text(names::READY)?).ok_or(Invalid(names::READY))?,
            healthy,
            hostname: hostname.map(Arc::from),
            moved: false,
        })
    }
}

/// Parses like Go's `strconv.ParseBool`.
fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
#[path = "instance_tests.rs"]
pub(super) mod tests;
