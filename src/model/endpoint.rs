//! One endpoint of an exported Service.

use std::{
    net::{Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::Protocol;

/// One endpoint of a Service: a pod, or whatever else an EndpointSlice lists. Both addresses of a dual-stack pod are
/// one endpoint, and at least one address is present.
///
/// Names are shared ([`Arc`]), because thousands of endpoints are on the same nodes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// The ports that this endpoint really serves, sorted by name, protocol and number.
    pub ports: Arc<[EndpointPort]>,
    /// Whether it takes traffic.
    pub conditions: Conditions,
    /// Host name from the EndpointSlice. It names the pod of a headless Service in DNS.
    pub hostname: Option<Arc<str>>,
    /// Zone of its node.
    pub zone: Option<Arc<str>>,
    /// Name of its node.
    pub node: Option<Arc<str>>,
}

/// A port as an EndpointSlice lists it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointPort {
    /// Name of the Service port that this port implements; empty for an unnamed port.
    pub name: Arc<str>,
    /// Transport protocol.
    pub protocol: Protocol,
    /// The number on which the endpoint listens.
    pub port: u16,
    /// Application protocol, such as `http`.
    pub app_protocol: Option<Arc<str>>,
}

/// Conditions of an endpoint in an EndpointSlice, with the defaults of the API filled in: without a value, `ready` and
/// `serving` are true and `terminating` is false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conditions {
    /// It should get traffic.
    pub ready: bool,
    /// It can take traffic, even while it terminates.
    pub serving: bool,
    /// It is shutting down.
    pub terminating: bool,
}

impl Conditions {
    /// The conditions of an endpoint that is ready.
    pub const READY: Self = Self { ready: true, serving: true, terminating: false };

    /// The better ones of two that are said of one address: it takes traffic if one of them says so. It does not matter in
    /// which order they come.
    #[must_use]
    pub fn better(self, other: Self) -> Self {
        let rank = |conditions: Self| (conditions.ready, conditions.serving, !conditions.terminating);
        if rank(other) > rank(self) { other } else { self }
    }
}

/// At most `most` of these endpoints or instances, in their order: the ready ones first, and of those the first ones, whoever
/// leads.
pub fn some_of<T: Clone>(all: &[T], most: usize, is_ready: impl Fn(&T) -> bool) -> Vec<T> {
    let mut chosen: Vec<_> = all.iter().enumerate().collect();
    chosen.sort_by_key(|(n, one)| (!is_ready(one), *n));
    chosen.truncate(most);
    chosen.sort_by_key(|(n, _)| *n);
    chosen.into_iter().map(|(_, one)| one.clone()).collect()
}
