//! Instances for the AWS Cloud Map MCS Controller in other clusters: one for each endpoint and port.
//!
//! They have all attributes of the default instances, except for the further ports, which are instances of their own.
//! So they serve ECS tasks as well, and nothing else needs to be registered.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use super::{
    Custom,
    attributes::{InstanceSpec, Source, Unfit, resolve, shared_by_all},
};
use awsmcs::{ExportAttributes, PortOf};
use cloudmap::Attributes;
use model::{Endpoint, Pairs};

/// Instances that differ only in their addresses: those of all pods of a node, unless they have host names or
/// attributes of users.
#[derive(PartialEq, Eq, Hash)]
struct Alike<'a> {
    port: usize,
    number: u16,
    hostname: Option<&'a str>,
    node: Option<&'a str>,
    custom: Attributes,
}

impl Source<'_> {
    /// One instance for each port of the Service that a ready endpoint serves, sorted by id, with the ids and
    /// attributes of the AWS controller ([`awsmcs`]) and the attributes of users. If two ports of the Service
    /// have one number on an endpoint, the id has room only for the first one. A Service without ports has the default
    /// instances, which that controller does not see.
    ///
    /// An endpoint that is not ready is never registered, not even behind a health check, because that controller
    /// ignores it.
    ///
    /// # Errors
    /// [`Unfit`], as for [`instances_with`](Self::instances_with).
    pub fn instances_per_port<'e>(
        &self,
        exported: ExportAttributes<'_>,
        endpoints: impl IntoIterator<Item = &'e Endpoint>,
        custom: &Custom,
    ) -> Result<Vec<InstanceSpec>, Unfit> {
        if self.ports.is_empty() {
            return self.instances_with(endpoints, custom);
        }
        let mut shared: HashMap<Alike<'_>, Arc<Pairs>> = HashMap::new();
        let mut specs = BTreeMap::new();
        for endpoint in endpoints.into_iter().filter(|endpoint| endpoint.conditions.ready) {
            // The zone is not shared.
            let Endpoint { ipv4, ipv6, ports, hostname, node, conditions: _, zone: _ } = endpoint;
            let Some(address) = ipv4.map(IpAddr::V4).or(ipv6.map(IpAddr::V6)) else { continue };
            for (at, service) in self.ports.iter().enumerate() {
                let Some(number) = resolve(service, ports) else { continue };
                let port = PortOf { service, number };
                let id: Arc<str> = port.id(address).into();
                if specs.contains_key(&id) {
                    continue;
                }
                let added = custom.of(endpoint);
                let (hostname, node) = (hostname.as_deref(), node.as_deref());
                let alike = Alike { port: at, number, hostname, node, custom: added };
                let common = shared.entry(alike).or_insert_with_key(|alike| {
                    let mut attributes = self.common(&[], &alike.custom);
                    attributes.extend(port.attributes(exported, endpoint));
                    shared_by_all(&attributes)
                });
                let spec = InstanceSpec::of_port(id.clone(), common.clone(), endpoint, number);
                self.check(&spec)?;
                specs.insert(id, spec);
            }
        }
        Ok(specs.into_values().collect())
    }
}

#[cfg(test)]
#[path = "per_port_tests.rs"]
mod tests;
