//! What pods add to the instances of their Services, beside their EndpointSlices: labels, and readiness behind a gate.
//! Indexed by pod IP.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::world::World;
use cluster::{
    cache::{Change, Narrow},
    objects::{EndpointSlice, SourceSlice, TargetId},
};
use instances::custom::ByAddress;
use model::{Endpoint, ServiceKey};

/// For each registered Service. Empty without `--instance-labels` and `--readiness-gates`.
#[derive(Debug, Clone, Default)]
pub(super) struct Pods(BTreeMap<ServiceKey, OfService>);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OfService {
    labels: Arc<ByAddress>,
    /// Addresses of pods that wait for the gate alone: they are fit, whatever their EndpointSlices say.
    fit: BTreeSet<IpAddr>,
}

impl Pods {
    /// The labels that become attributes.
    pub(super) fn labels(&self, key: &ServiceKey) -> Arc<ByAddress> {
        self.0.get(key).map(|pods| Arc::clone(&pods.labels)).unwrap_or_default()
    }

    /// The endpoints of a Service as they are registered: a pod behind a readiness gate is ready when it waits for nothing
    /// else.
    pub(super) fn admit<'a>(&self, key: &ServiceKey, endpoints: &'a [Endpoint]) -> Cow<'a, [Endpoint]> {
        let Some(OfService { fit, .. }) = self.0.get(key).filter(|pods| !pods.fit.is_empty()) else {
            return Cow::Borrowed(endpoints);
        };
        let admitted = endpoints.iter().map(|endpoint| {
            let mut endpoint = endpoint.clone();
            let addresses = [endpoint.ipv4.map(IpAddr::from), endpoint.ipv6.map(IpAddr::from)];
            let is_fit = addresses.into_iter().flatten().any(|address| fit.contains(&address));
            endpoint.conditions.ready |= is_fit && !endpoint.conditions.terminating;
            endpoint
        });
        Cow::Owned(admitted.collect())
    }

    /// The Service is no longer registered.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.0.remove(key);
    }

    /// Looks at the pods behind a Service again. Returns whether anything about them changed.
    pub(super) fn update(&mut self, key: &ServiceKey, slices: &[Arc<SourceSlice>], world: &World) -> bool {
        let World { pods, gated, .. } = world;
        if pods.is_empty() && gated.is_empty() && self.0.is_empty() {
            return false;
        }
        let there = pods_by_address(slices);
        let labels = by_address(&there, |pod| pods.get(&pod).map(|pod| Arc::clone(&pod.labels)));
        let is_fit = |pod: &TargetId| gated.get(pod).is_some_and(|pod| pod.fit);
        let fit = there.iter().filter(|(_, pods)| pods.iter().all(is_fit)).map(|(address, _)| *address).collect();
        let now = OfService { labels: Arc::new(labels), fit };
        let before = self.0.remove(key).unwrap_or_default();
        let changed = before != now;
        if now != OfService::default() {
            self.0.insert(key.clone(), now);
        }
        changed
    }
}

fn pods_by_address(slices: &[Arc<SourceSlice>]) -> BTreeMap<IpAddr, BTreeSet<TargetId>> {
    let mut pods: BTreeMap<IpAddr, BTreeSet<TargetId>> = BTreeMap::new();
    for row in slices.iter().flat_map(|slice| &slice.endpoints) {
        if let (Some(address), Some(pod)) = (row.address, row.target) {
            pods.entry(address).or_default().insert(pod);
        }
    }
    pods
}

/// The labels by pod IP. Pods that share an IP (host network) have there what all of them have.
fn by_address(
    pods: &BTreeMap<IpAddr, BTreeSet<TargetId>>,
    labels_of: impl Fn(TargetId) -> Option<Arc<BTreeMap<String, String>>>,
) -> ByAddress {
    let common = |pods: &BTreeSet<TargetId>| {
        let mut labels = pods.iter().map(|pod| labels_of(*pod).unwrap_or_default());
        let first = labels.next()?;
        let shared = labels.fold(first, |shared, other| {
            if shared == other {
                return shared;
            }
            let both = shared.iter().filter(|(key, value)| other.get(*key) == Some(value));
            Arc::new(both.map(|(key, value)| (key.clone(), value.clone())).collect())
        });
        (!shared.is_empty()).then_some(shared)
    };
    pods.iter().filter_map(|(address, pods)| Some((*address, common(pods)?))).collect()
}

/// Whether a slice lists one of the changed pods.
pub(super) fn concerns(slice: &EndpointSlice, changed: &BTreeSet<TargetId>) -> bool {
    slice.endpoints.iter().any(|row| row.target.is_some_and(|pod| changed.contains(&pod)))
}

/// The changed pods, and their namespaces.
pub(super) fn changed<T: Narrow<Key = TargetId>>(
    changes: &[Change<T>],
    namespace: impl Fn(&T) -> &Arc<str>,
) -> (BTreeSet<TargetId>, BTreeSet<Arc<str>>) {
    let objects = changes.iter().flat_map(|change| change.old.iter().chain(&change.new));
    (changes.iter().map(|change| change.key).collect(), objects.map(|pod| Arc::clone(namespace(pod))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::objects::{AddressType, Endpoint as Row};
    use model::{Conditions, fixtures};

    fn labels(pairs: &[(&str, &str)]) -> Arc<BTreeMap<String, String>> {
        Arc::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    fn slice(rows: &[(&str, Option<&str>)]) -> Arc<SourceSlice> {
        let row = |(address, pod): &(&str, Option<&str>)| Row {
            address: address.parse().ok(),
            conditions: Conditions::READY,
            target: pod.and_then(TargetId::new),
            about: Arc::default(),
        };
        Arc::new(SourceSlice(EndpointSlice {
            key: ServiceKey::new("shop", "web-1").into(),
            uid: "u".into(),
            deleting: false,
            service: Some("web".into()),
            managed_by: None,
            service_import: None,
            source_cluster: None,
            address_type: AddressType::V4,
            ports: [].into(),
            endpoints: rows.iter().map(row).collect(),
        }))
    }

    #[test]
    fn an_address_has_the_labels_of_its_pod_and_a_shared_one_the_common_labels() {
        let slices = [
            slice(&[("10.0.0.1", Some("a")), ("10.0.0.2", Some("b")), ("10.0.0.3", None)]),
            slice(&[("fd00::1", Some("a")), ("10.0.0.9", Some("a")), ("10.0.0.9", Some("c")), ("10.0.0.8", Some("d"))]),
        ];
        let [a, c, d] = ["a", "c", "d"].map(|uid| TargetId::new(uid).unwrap());
        let found = by_address(&pods_by_address(&slices), |pod| match pod {
            _ if pod == a => Some(labels(&[("version", "2"), ("team", "web")])),
            _ if pod == c => Some(labels(&[("version", "3"), ("team", "web")])),
            _ if pod == d => Some(labels(&[])),
            _ => None,
        });
        let said: Vec<_> = found.iter().map(|(address, labels)| (address.to_string(), labels.len())).collect();
        assert_eq!(said, [("10.0.0.1".to_owned(), 2), ("10.0.0.9".to_owned(), 1), ("fd00::1".to_owned(), 2)]);
        assert_eq!(*found[&"10.0.0.9".parse::<IpAddr>().unwrap()], *labels(&[("team", "web")]));
    }

    /// The waiting pod of an EndpointSlice that does not know better.
    #[test]
    fn a_fit_pod_is_ready_whatever_its_slices_say_unless_it_terminates() {
        let key = ServiceKey::new("shop", "web");
        let fit = ["10.0.0.1", "fd00::2", "10.0.0.3"].map(|address| address.parse().unwrap()).into();
        let pods = Pods([(key.clone(), OfService { fit, ..OfService::default() })].into());
        let not_ready = Conditions { ready: false, serving: false, terminating: false };
        let terminating = Conditions { terminating: true, ..not_ready };
        let of = |last: u32, conditions| Endpoint { conditions, ..fixtures::mk_endpoint(0x0a00_0000 + last) };
        let six = Endpoint { ipv4: None, ipv6: Some("fd00::2".parse().unwrap()), ..of(0, not_ready) };
        let endpoints = [of(1, not_ready), six, of(3, terminating), of(4, not_ready), of(5, Conditions::READY)];
        let ready: Vec<_> = pods.admit(&key, &endpoints).iter().map(|endpoint| endpoint.conditions.ready).collect();
        assert_eq!(ready, [true, true, false, false, true]);
        assert!(matches!(pods.admit(&ServiceKey::new("shop", "api"), &endpoints), Cow::Borrowed(_)));
    }
}
