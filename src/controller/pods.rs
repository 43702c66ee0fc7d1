//! Pod labels copied onto Cloud Map instances, indexed by pod IP.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use crate::{
    cluster::{
        cache::{Cache, Change},
        objects::{EndpointSlice, Pod, SourceSlice, TargetId},
    },
    instances::custom::ByAddress,
    model::ServiceKey,
};

/// For each registered Service. Empty without `--instance-labels`.
#[derive(Debug, Default)]
pub(super) struct PodLabels(BTreeMap<ServiceKey, Arc<ByAddress>>);

impl PodLabels {
    pub(super) fn of(&self, key: &ServiceKey) -> Arc<ByAddress> {
        self.0.get(key).cloned().unwrap_or_default()
    }

    /// The Service is no longer registered.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.0.remove(key);
    }

    /// Looks at the pods behind a Service again. Returns whether their labels changed.
    pub(super) fn update(&mut self, key: &ServiceKey, slices: &[Arc<SourceSlice>], pods: &Cache<Pod>) -> bool {
        if pods.is_empty() && self.0.is_empty() {
            return false;
        }
        let labels = by_address(slices, |pod| pods.get(&pod).map(|pod| Arc::clone(&pod.labels)));
        let before = if labels.is_empty() { self.0.remove(key) } else { self.0.insert(key.clone(), Arc::new(labels)) };
        before.unwrap_or_default() != self.of(key)
    }
}

/// The labels by pod IP. Pods that share an IP (host network) have there what all of them have.
fn by_address(
    slices: &[Arc<SourceSlice>],
    labels_of: impl Fn(TargetId) -> Option<Arc<BTreeMap<String, String>>>,
) -> ByAddress {
    let mut pods: BTreeMap<IpAddr, BTreeSet<TargetId>> = BTreeMap::new();
    for row in slices.iter().flat_map(|slice| &slice.endpoints) {
        if let (Some(address), Some(pod)) = (row.address, row.target) {
            pods.entry(address).or_default().insert(pod);
        }
    }
    let common = |pods: BTreeSet<TargetId>| {
        let mut labels = pods.into_iter().map(|pod| labels_of(pod).unwrap_or_default());
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
    pods.into_iter().filter_map(|(address, pods)| Some((address, common(pods)?))).collect()
}

/// Whether a slice lists one of the changed pods.
pub(super) fn concerns(slice: &EndpointSlice, changed: &BTreeSet<TargetId>) -> bool {
    slice.endpoints.iter().any(|row| row.target.is_some_and(|pod| changed.contains(&pod)))
}

/// The changed pods, and their namespaces.
pub(super) fn changed(changes: &[Change<Pod>]) -> (BTreeSet<TargetId>, BTreeSet<Arc<str>>) {
    let namespaces = changes.iter().flat_map(|change| change.old.iter().chain(&change.new));
    (changes.iter().map(|change| change.key).collect(), namespaces.map(|pod| Arc::clone(&pod.namespace)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::objects::{AddressType, Endpoint};

    fn labels(pairs: &[(&str, &str)]) -> Arc<BTreeMap<String, String>> {
        Arc::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    fn slice(rows: &[(&str, Option<&str>)]) -> Arc<SourceSlice> {
        let row = |(address, pod): &(&str, Option<&str>)| Endpoint {
            address: address.parse().ok(),
            further_addresses: false,
            conditions: crate::model::Conditions::READY,
            hostname: None,
            node: None,
            zone: None,
            hints: None,
            target: pod.and_then(TargetId::new),
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
        let found = by_address(&slices, |pod| match pod {
            _ if pod == a => Some(labels(&[("version", "2"), ("team", "web")])),
            _ if pod == c => Some(labels(&[("version", "3"), ("team", "web")])),
            _ if pod == d => Some(labels(&[])),
            _ => None,
        });
        let said: Vec<_> = found.iter().map(|(address, labels)| (address.to_string(), labels.len())).collect();
        assert_eq!(said, [("10.0.0.1".to_owned(), 2), ("10.0.0.9".to_owned(), 1), ("fd00::1".to_owned(), 2)]);
        assert_eq!(*found[&"10.0.0.9".parse::<IpAddr>().unwrap()], *labels(&[("team", "web")]));
    }
}
