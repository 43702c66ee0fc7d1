//! Which addresses a guard may ask: those of the pods behind the Service, as Kubernetes itself lists them. Pure.
//!
//! A user who writes a Cutover chooses what the controller probes, and the controller reaches more than the user. The addresses with which
//! something is registered do not count by themselves: annotations and EndpointSlices of users may have any address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use api::names::ENDPOINT_SLICE_CONTROLLER;
use cluster::objects::{Service, SourceSlice};
use model::{Protocol, addresses};

/// The pods behind a Service, with the TCP ports on which they serve it.
#[derive(Debug, Default)]
pub struct Pods(BTreeMap<IpAddr, BTreeSet<u16>>);

impl Pods {
    /// The pods that the EndpointSlice controller lists for a Service. It removes what others write in its name, as long as
    /// the Service has a selector. `is_cluster_ip` returns whether an address is a cluster IP of this cluster.
    pub fn of(service: Option<&Service>, slices: &[Arc<SourceSlice>], is_cluster_ip: impl Fn(IpAddr) -> bool) -> Self {
        let mut pods = BTreeMap::<IpAddr, BTreeSet<u16>>::new();
        if !service.is_some_and(|service| service.has_selector) {
            return Self::default();
        }
        let by_kubernetes = |slice: &&Arc<SourceSlice>| {
            slice.managed_by.as_deref() == Some(ENDPOINT_SLICE_CONTROLLER) && !slice.deleting
        };
        for slice in slices.iter().filter(by_kubernetes) {
            let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Tcp).map(|port| port.port);
            let ports: BTreeSet<u16> = ports.filter(|port| *port > 0).collect();
            let rows = slice.endpoints.iter().filter(|row| row.is_pod).filter_map(|row| row.address);
            for address in rows.filter(|address| addresses::check(*address).is_ok() && !is_cluster_ip(*address)) {
                pods.entry(address).or_default().extend(&ports);
            }
        }
        Self(pods)
    }

    /// Whether a pod serves its Service there.
    pub fn serve(&self, at: SocketAddr) -> bool {
        self.0.get(&at.ip()).is_some_and(|ports| ports.contains(&at.port()))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use cluster::cache::Narrow as _;

    fn service(selector: &Value) -> Service {
        let service = json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u"},
            "spec": {"selector": selector, "ports": [{"port": 80}]},
        });
        Service::narrow(serde_json::from_value(service).unwrap()).unwrap()
    }

    fn slice(change: impl FnOnce(&mut Value)) -> Arc<SourceSlice> {
        let mut slice = json!({
            "metadata": {"namespace": "shop", "name": "web-1", "labels": {
                "kubernetes.io/service-name": "web",
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            }},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
            "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "namespace": "shop", "name": "web-0"}}],
        });
        change(&mut slice);
        Arc::new(SourceSlice::narrow(serde_json::from_value(slice).unwrap()).unwrap())
    }

    fn serves(service: &Service, slice: Arc<SourceSlice>, at: &str) -> bool {
        let is_cluster_ip = |address| address == IpAddr::from([10, 0, 0, 9]);
        Pods::of(Some(service), &[slice], is_cluster_ip).serve(at.parse().unwrap())
    }

    #[test]
    fn the_pods_that_kubernetes_lists_are_asked_on_the_ports_of_the_service() {
        let selects = service(&json!({"app": "web"}));
        for (at, expected) in [
            ("10.0.0.1:8080", true),
            ("10.0.0.1:80", false),
            ("10.0.0.1:53", false),
            ("10.0.0.1:10250", false),
            ("10.0.0.2:8080", false),
        ] {
            assert_eq!(serves(&selects, slice(|_| {}), at), expected, "{at}");
        }
    }

    #[test]
    fn nothing_is_asked_that_somebody_else_lists_or_that_is_no_pod() {
        let selects = service(&json!({"app": "web"}));
        let address =
            |address: &'static str| move |slice: &mut Value| slice["endpoints"][0]["addresses"] = json!([address]);
        let other = |value: &'static str| {
            move |slice: &mut Value| {
                slice["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = json!(value);
            }
        };
        for (slice, at, why) in [
            (slice(other("me")), "10.0.0.1:8080", "a slice of somebody"),
            (
                slice(other("endpointslicemirroring-controller.k8s.io")),
                "10.0.0.1:8080",
                "a copy of Endpoints of somebody",
            ),
            (slice(|slice| slice["endpoints"][0]["targetRef"]["kind"] = json!("Node")), "10.0.0.1:8080", "a node"),
            (
                slice(|slice| drop(slice["endpoints"][0]["targetRef"].take())),
                "10.0.0.1:8080",
                "no object, as the API server",
            ),
            (
                slice(|slice| slice["endpoints"][0]["targetRef"]["namespace"] = json!("kube-system")),
                "10.0.0.1:8080",
                "a pod of others",
            ),
            (slice(address("169.254.169.254")), "169.254.169.254:8080", "AWS' own services"),
            (slice(address("127.0.0.1")), "127.0.0.1:8080", "the controller itself"),
            (slice(address("10.0.0.9")), "10.0.0.9:8080", "a cluster IP"),
        ] {
            assert!(!serves(&selects, slice, at), "{why}");
        }
        // Nobody removes what is written in the name of Kubernetes for a Service without a selector.
        for none in [json!(null), json!({})] {
            assert!(!serves(&service(&none), slice(|_| {}), "10.0.0.1:8080"));
        }
        assert!(!Pods::of(None, &[slice(|_| {})], |_| false).serve("10.0.0.1:8080".parse().unwrap()));
    }
}
