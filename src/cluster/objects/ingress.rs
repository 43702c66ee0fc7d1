use std::collections::BTreeSet;

use k8s_openapi::{api::networking::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{known_annotations, service_key, uid};
use crate::{
    cluster::cache::Narrow,
    model::{Pairs, ServiceKey},
};

/// An Ingress with annotations that this project reads. All others are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    /// Its key.
    pub key: ServiceKey,
    /// Its uid.
    pub uid: Box<str>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Annotations with one of [`crate::api::names::ANNOTATION_PREFIXES`].
    pub annotations: Pairs,
    /// Hosts in `spec.rules` and `spec.tls`.
    pub hosts: BTreeSet<Box<str>>,
    /// Addresses and host names in `status.loadBalancer.ingress`.
    pub load_balancer: Box<[Box<str>]>,
}

impl Narrow for Ingress {
    type Kind = v1::Ingress;
    type Key = ServiceKey;

    const CACHE: &'static str = "Ingress";

    fn key(metadata: &ObjectMeta) -> Option<ServiceKey> {
        service_key(metadata)
    }

    fn narrow(object: v1::Ingress) -> Option<Self> {
        let metadata = &object.metadata;
        let annotations = known_annotations(metadata);
        if annotations.is_empty() {
            return None;
        }
        let spec = object.spec.unwrap_or_default();
        let rules = spec.rules.into_iter().flatten().filter_map(|rule| rule.host);
        let tls = spec.tls.into_iter().flatten().flat_map(|tls| tls.hosts.into_iter().flatten());
        let balancers = object.status.and_then(|status| status.load_balancer?.ingress).into_iter().flatten();
        Some(Self {
            key: service_key(metadata)?,
            uid: uid(metadata),
            deleting: metadata.deletion_timestamp.is_some(),
            annotations,
            hosts: rules.chain(tls).filter(|host| !host.is_empty()).map(String::into_boxed_str).collect(),
            load_balancer: balancers
                .flat_map(|balancer| [balancer.ip, balancer.hostname])
                .flatten()
                .filter(|text| !text.is_empty())
                .map(String::into_boxed_str)
                .collect(),
        })
    }
}
