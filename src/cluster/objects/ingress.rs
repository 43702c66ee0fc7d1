use std::collections::BTreeSet;

use k8s_openapi::{api::networking::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{MAX_ADDRESSES, created, known_annotations, service_key, uid};
use crate::cache::Narrow;
use model::{Pairs, ServiceKey};

/// How many hosts are kept, and how many bytes of them. Nobody registers so many: an Ingress has far fewer names in Cloud
/// Map, and the API server accepts more than a megabyte.
const MAX_HOSTS: usize = 500;
const MAX_HOST_BYTES: usize = 32 * 1024;

/// An Ingress with annotations that this project reads. All others are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ingress {
    /// Its key.
    pub key: ServiceKey,
    /// Its uid.
    pub uid: Box<str>,
    /// Creation in seconds since 1970.
    pub created: i64,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Annotations with one of [`api::names::ANNOTATION_PREFIXES`].
    pub annotations: Pairs,
    /// Hosts in `spec.rules` and `spec.tls`, cut if there are too many.
    pub hosts: BTreeSet<Box<str>>,
    /// Whether hosts were cut.
    pub has_more_hosts: bool,
    /// Addresses and host names in `status.loadBalancer.ingress`, cut if there are more than a Cloud Map service takes.
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
        let all = rules.chain(tls).filter(|host| !host.is_empty()).map(String::into_boxed_str);
        let (hosts, has_more_hosts) = cut(all.collect());
        let balancers = object.status.and_then(|status| status.load_balancer?.ingress).into_iter().flatten();
        Some(Self {
            key: service_key(metadata)?,
            uid: uid(metadata),
            created: created(metadata),
            deleting: metadata.deletion_timestamp.is_some(),
            annotations,
            hosts,
            has_more_hosts,
            load_balancer: balancers
                .flat_map(|balancer| [balancer.ip, balancer.hostname])
                .flatten()
                .filter(|text| !text.is_empty())
                .take(MAX_ADDRESSES)
                .map(String::into_boxed_str)
                .collect(),
        })
    }
}

/// The first hosts in the order of their names, and whether that is not all. The order does not depend on who reads them.
fn cut(hosts: BTreeSet<Box<str>>) -> (BTreeSet<Box<str>>, bool) {
    let (all, mut bytes) = (hosts.len(), 0);
    let first = hosts.into_iter().take(MAX_HOSTS).take_while(|host| {
        bytes += host.len();
        bytes <= MAX_HOST_BYTES
    });
    let kept: BTreeSet<_> = first.collect();
    let is_cut = kept.len() < all;
    (kept, is_cut)
}
