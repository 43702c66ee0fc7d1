//! One backend of an exported Service.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::Protocol;

/// One backend: a pod, or whatever else an EndpointSlice lists. Both addresses of a dual-stack pod are one endpoint.
///
/// At least one address is present. Names are shared ([`Arc`]) because thousands of endpoints name the same nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    /// The ports that this endpoint really serves, sorted by name, protocol, port.
    pub ports: Arc<[EndpointPort]>,
    pub conditions: Conditions,
    /// Hostname from the EndpointSlice: names the pod of a headless Service in DNS.
    pub hostname: Option<Arc<str>>,
    pub zone: Option<Arc<str>>,
    pub node: Option<Arc<str>>,
}

/// A port as an EndpointSlice lists it: `port` is the number that the endpoint listens on, `name` links it to the
/// Service port of that name (empty for an unnamed one).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub app_protocol: Option<Arc<str>>,
}

/// EndpointSlice conditions with the API's defaults resolved: `ready` and `serving` absent mean true, `terminating`
/// absent means false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conditions {
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
}

impl Conditions {
    pub const READY: Self = Self { ready: true, serving: true, terminating: false };
}
