//! What was read.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::backend::{self, Backend, NoEndpoint};
use awsmcs::Registered;
use cloudmap::{Instance, Service};
use instances::{Owner, ownership::is_ours};
use model::ClusterSetId;

/// The discovered instances of one Cloud Map service, by id.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    discovered: BTreeMap<Arc<str>, Result<Backend, NoEndpoint>>,
    /// Instances of the AWS controllers of our ClusterSet, if they are exports of other clusters.
    exported: BTreeMap<Arc<str>, Registered>,
    /// Ids of instances that our ClusterSet registered, which the ledger knows, and of those that the AWS controller of
    /// this cluster left behind.
    own: BTreeSet<Arc<str>>,
    /// Of these, the ones for AWS controllers that are this cluster's exports.
    remains: Remains,
}

/// Ids of this cluster's own instances for AWS controllers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Remains {
    /// By the UID of this cluster: this controller registered them.
    pub ours: BTreeSet<Arc<str>>,
    /// By the id of this cluster alone: its former AWS controller left them, or another cluster has the id as well.
    pub left: BTreeSet<Arc<str>>,
}

impl Remains {
    fn extend(&mut self, other: &Self, unseen: impl Fn(&Arc<str>) -> bool) {
        self.ours.extend(other.ours.iter().filter(|id| unseen(id)).cloned());
        self.left.extend(other.left.iter().filter(|id| unseen(id)).cloned());
    }
}

/// An instance that cannot be an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejected {
    /// Id of the instance.
    pub instance: Arc<str>,
    /// The reason.
    pub why: NoEndpoint,
}

impl Reading {
    /// Sorts the instances of `service` in the Cloud Map namespace `namespace`. Those of the AWS controllers of the
    /// ClusterSet `aws_mcs` are exports.
    pub fn of(
        instances: &[Instance],
        unhealthy: &BTreeSet<Arc<str>>,
        service: &Service,
        namespace: &str,
        identity: &Owner,
        aws_mcs: Option<&ClusterSetId>,
    ) -> Self {
        let mut reading = Self::default();
        for instance in instances {
            let healthy = !unhealthy.contains(&instance.id);
            if aws_mcs.is_some_and(|set| awsmcs::is_of_set(instance, set)) {
                let moved = !backend::is_discovered(instance, identity);
                match Registered::read(instance, healthy) {
                    Ok(registered) if registered.cluster != identity.cluster => {
                        reading.exported.insert(instance.id.clone(), Registered { moved, ..registered });
                    }
                    Ok(_) => {
                        let remains = &mut reading.remains;
                        let by = if is_ours(instance, identity) { &mut remains.ours } else { &mut remains.left };
                        by.insert(instance.id.clone());
                        reading.own.insert(instance.id.clone());
                    }
                    Err(invalid) => {
                        reading.discovered.insert(instance.id.clone(), Err(NoEndpoint::AwsMcs(invalid)));
                    }
                }
            } else if backend::is_discovered(instance, identity) {
                let backend = Backend::read(instance, healthy, service, namespace);
                reading.discovered.insert(instance.id.clone(), backend);
            } else {
                reading.own.insert(instance.id.clone());
            }
        }
        reading
    }

    /// The instances that can be endpoints.
    pub fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.discovered.values().filter_map(|instance| instance.as_ref().ok())
    }

    /// The instances that cannot be endpoints.
    pub fn rejected(&self) -> Vec<Rejected> {
        let rejected = self.discovered.iter().filter_map(|(id, instance)| Some((id, instance.as_ref().err()?)));
        rejected.map(|(id, why)| Rejected { instance: id.clone(), why: *why }).collect()
    }

    /// Exports of other clusters, from instances of AWS controllers.
    pub fn exported(&self) -> impl Iterator<Item = &Registered> {
        self.exported.values()
    }

    /// Whether an endpoint has one of these addresses.
    fn has_one_of(&self, addresses: &BTreeSet<IpAddr>) -> bool {
        let exported = self.exported().map(|registered| registered.address);
        self.backends().flat_map(Backend::addresses).chain(exported).any(|address| addresses.contains(&address))
    }

    /// This cluster's own instances for AWS controllers.
    pub const fn remains(&self) -> &Remains {
        &self.remains
    }

    /// The ids of all known instances, foreign or not.
    pub(super) fn ids(&self) -> impl Iterator<Item = &Arc<str>> {
        self.discovered.keys().chain(self.exported.keys()).chain(&self.own)
    }

    /// Ids of foreign instances that fail their health check.
    pub(super) fn unhealthy(&self) -> BTreeSet<Arc<str>> {
        let fails = |instance: &Result<Backend, NoEndpoint>| instance.as_ref().is_ok_and(|backend| !backend.healthy);
        let discovered = self.discovered.iter().filter(|(_, instance)| fails(instance)).map(|(id, _)| id);
        let exported = self.exported.iter().filter(|(_, registered)| !registered.healthy).map(|(id, _)| id);
        discovered.chain(exported).cloned().collect()
    }

    /// Adds what an earlier reading contained and this one did not see.
    pub(super) fn keep(&mut self, earlier: &Self) {
        let seen: BTreeSet<Arc<str>> = self.ids().cloned().collect();
        let unseen = |id: &Arc<str>| !seen.contains(id);
        let discovered = earlier.discovered.iter().filter(|(id, _)| unseen(id));
        self.discovered.extend(discovered.map(|(id, instance)| (id.clone(), instance.clone())));
        let exported = earlier.exported.iter().filter(|(id, _)| unseen(id));
        self.exported.extend(exported.map(|(id, registered)| (id.clone(), registered.clone())));
        self.own.extend(earlier.own.iter().filter(|id| unseen(id)).cloned());
        self.remains.extend(&earlier.remains, unseen);
    }
}

/// Everything that was discovered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Discovered {
    /// The subscribed namespaces, by the name (or id, or ARN) by which they are subscribed.
    pub namespaces: BTreeMap<Arc<str>, Arc<NamespaceFound>>,
}

/// What was discovered in one Cloud Map namespace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NamespaceFound {
    /// The services, by the name of the ServiceImport.
    pub services: BTreeMap<Arc<str>, Arc<ServiceFound>>,
    /// Whether all services were listed twice, or the namespace was deleted, so that a service which is not in `services`
    /// does not exist.
    pub listed: bool,
    /// The problem with the namespace, if there is one.
    pub trouble: Option<Trouble>,
}

impl NamespaceFound {
    /// Whether there is no such namespace, and nothing was read in it before.
    pub fn is_absent(&self) -> bool {
        self.trouble == Some(Trouble::NotFound) && self.services.is_empty()
    }

    /// The services of which an endpoint has one of these addresses, by the name of the ServiceImport.
    pub fn services_with(&self, addresses: &BTreeSet<IpAddr>) -> impl Iterator<Item = &Arc<str>> {
        let has = move |service: &ServiceFound| service.reading.iter().any(|reading| reading.has_one_of(addresses));
        self.services.iter().filter(move |(_, service)| has(service)).map(|(name, _)| name)
    }
}

/// Why a namespace, or a part of it, could not be read at the last attempt. What was read before stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// This account and region has no such namespace.
    NotFound,
    /// AWS refused; the text is AWS's.
    Failed(String),
}

/// A discovered service.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceFound {
    /// Its name in Cloud Map.
    pub name: Arc<str>,
    /// The last reading; `None` if it was not read yet.
    pub reading: Option<Reading>,
    /// Why it repeatedly cannot be read, if so; `reading` is then an older one.
    pub error: Option<String>,
}

/// The discovered instances of one name in one Kubernetes namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// The instances that can be endpoints.
    pub backends: Vec<Backend>,
    /// Whether at least one Cloud Map service with the name exists, possibly empty.
    pub exists: bool,
    /// Whether everything was read at least once, so that what is missing does not exist.
    pub complete: bool,
    /// While not complete: all addresses that were read so far. Addresses in the name's slices that were never read
    /// stay.
    pub seen: BTreeSet<IpAddr>,
}

impl Picture {
    /// No subscription concerns the name.
    pub const fn nothing() -> Self {
        Self { backends: Vec::new(), exists: false, complete: true, seen: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::fake::mk_service;

    fn instance(id: &str, attributes: &[(&str, &str)]) -> Instance {
        let attributes = attributes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Instance { id: id.into(), attributes }
    }

    fn read(instances: &[Instance], unhealthy: &[&str]) -> Reading {
        let identity = Owner {
            clusterset: Some("prod".parse().unwrap()),
            cluster: "c1".parse().unwrap(),
            cluster_uid: "u".into(),
        };
        let service = Service { custom_health_check: true, ..mk_service() };
        Reading::of(instances, &unhealthy.iter().map(|id| Arc::from(*id)).collect(), &service, "shop", &identity, None)
    }

    /// Each instance is judged by itself: half of a service may be ours.
    #[test]
    fn only_instances_of_our_clusterset_are_left_out() {
        let ours = |uid| {
            [("AWS_INSTANCE_IPV4", "10.0.0.1"), ("CLOUDMAP_MCS_CLUSTERSET", "prod"), ("CLOUDMAP_MCS_CLUSTER_UID", uid)]
        };
        let reading = read(
            &[
                instance("own", &ours("u")),
                instance("other-cluster", &ours("v")),
                instance("task", &[("AWS_INSTANCE_IPV4", "10.0.0.2"), ("ECS_CLUSTER_NAME", "prod")]),
                instance(
                    "other-set",
                    &[
                        ("AWS_INSTANCE_IPV4", "10.0.0.3"),
                        ("CLOUDMAP_MCS_CLUSTERSET", "test"),
                        ("CLOUDMAP_MCS_CLUSTER_UID", "u"),
                    ],
                ),
                instance(
                    "tcp-10_0_0_4-80",
                    &[("AWS_INSTANCE_IPV4", "10.0.0.4"), ("CLUSTERSET_ID", "prod"), ("CLUSTER_ID", "c2")],
                ),
                instance("10.0.0.5", &[("AWS_INSTANCE_IPV4", "10.0.0.5")]),
                instance("alias", &[("AWS_ALIAS_DNS_NAME", "lb.example.com")]),
            ],
            &["10.0.0.5"],
        );
        let backends: Vec<_> =
            reading.backends().map(|b| (b.ipv4.unwrap().octets()[3], b.source.to_string(), b.healthy)).collect();
        let shop = || "cloudmap-shop".to_owned();
        assert_eq!(
            backends,
            [(5, shop(), false), (3, shop(), true), (2, "ecs-prod".to_owned(), true), (4, shop(), true)]
        );
        assert_eq!(reading.rejected(), [Rejected { instance: "alias".into(), why: NoEndpoint::Alias }]);
        assert_eq!(reading.ids().count(), 7);
        assert_eq!(reading.unhealthy(), [Arc::from("10.0.0.5")].into());
    }

    #[test]
    fn instances_that_a_truncated_reading_did_not_see_are_kept() {
        let at = |id: &str, ip: &str| instance(id, &[("AWS_INSTANCE_IPV4", ip)]);
        let earlier = read(&[at("a", "10.0.0.1"), at("b", "10.0.0.2")], &[]);
        let mut later = read(&[at("b", "10.0.0.3")], &[]);
        later.keep(&earlier);
        let ips: Vec<_> = later.backends().map(|backend| backend.ipv4.unwrap().octets()[3]).collect();
        assert_eq!(ips, [1, 3]);
    }
}
