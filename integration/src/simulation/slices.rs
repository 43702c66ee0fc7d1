//! The EndpointSlices of users' Services, as the EndpointSlice controller writes them.

use serde_json::{Value, json};

use super::{
    gates,
    kubernetes::ApiServer,
    users::{NAMES, Place, is_terminating},
    world::{World, must},
};

/// The families of EndpointSlices, and what the names of the slices end with.
pub(super) const FAMILIES: [(&str, &str); 2] = [("IPv4", "v4"), ("IPv6", "v6")];

/// What the name of a slice ends with whose pods do not have the new ports yet.
const LATE: &str = "late";

impl World {
    /// A slice for each family of the Service.
    pub(super) fn put_endpoints(&self, place: Place, pods: &[String]) {
        let (namespace, service, _) = NAMES[place.name];
        let cluster = &self.clusters[place.cluster];
        let Some(object) = cluster.api.get("services", namespace, service) else { return };
        if cluster.site.has_gates() {
            gates::put_pods(self, cluster, &(namespace.to_owned(), service.to_owned()), pods);
        }
        for (family, suffix) in FAMILIES {
            if has_family(&object, family) {
                let name = format!("{service}-{suffix}");
                put_slice(&cluster.api, (namespace, service), (family, &*name), pods, &object["spec"]["ports"]);
                drop(cluster.api.delete("endpointslices", namespace, &format!("{name}-{LATE}")));
            } else {
                remove_slices(&cluster.api, (namespace, service), suffix);
            }
        }
    }

    /// As it is where there are many pods: those of one slice have new ports before those of another one, which have the
    /// ports `before`. Each pod is in one of them at every moment.
    pub(super) fn put_late_endpoints(&self, place: Place, pods: &[String], before: &Value) {
        let (namespace, service, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        let Some(object) = api.get("services", namespace, service) else { return };
        let (first, late) = pods.split_at(pods.len() / 2);
        for (family, suffix) in FAMILIES {
            if has_family(&object, family) {
                let name = format!("{service}-{suffix}");
                let other = format!("{name}-{LATE}");
                put_slice(api, (namespace, service), (family, &*other), late, before);
                put_slice(api, (namespace, service), (family, &*name), first, &object["spec"]["ports"]);
            }
        }
    }

    /// Gives all pods the ports of their Service.
    pub(crate) fn settle_slices(&self, place: Place) {
        let (namespace, service, _) = NAMES[place.name];
        let api = &self.clusters[place.cluster].api;
        let lives = api.get("namespaces", "", namespace).is_some_and(|object| !is_terminating(&object));
        let mut late = FAMILIES.iter().map(|(_, suffix)| format!("{service}-{suffix}-{LATE}"));
        if lives && late.any(|name| api.get("endpointslices", namespace, &name).is_some()) {
            self.put_endpoints(place, &pods(api, namespace, service));
        }
    }
}

fn has_family(service: &Value, family: &str) -> bool {
    service["spec"]["ipFamilies"].as_array().is_some_and(|families| families.iter().any(|of| *of == family))
}

/// Puts a slice of a Service. Its ports are those of the Service, by their numbers at the endpoints.
fn put_slice(
    api: &ApiServer,
    (namespace, service): (&str, &str),
    (family, name): (&str, &str),
    pods: &[String],
    ports: &Value,
) {
    let port = |port: &Value| json!({"name": port["name"].as_str().unwrap_or_default(), "port": port["targetPort"], "protocol": "TCP"});
    let endpoint = |pod: &String| {
        let address = if family == "IPv4" { address(pod).to_owned() } else { ipv6(pod) };
        let (uid, ready) = gates::pod(api, namespace, pod).unwrap_or_else(|| (uid(pod), true));
        json!({"addresses": [address], "conditions": {"ready": ready, "serving": ready},
            "nodeName": node(pod),
            "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod, "uid": uid}})
    };
    must(api.put(
        "endpointslices",
        json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
            }},
            "addressType": family,
            "endpoints": pods.iter().map(endpoint).collect::<Vec<_>>(),
            "ports": ports.as_array().into_iter().flatten().map(port).collect::<Vec<_>>(),
        }),
    ));
}

/// Deletes the slices of one family. `suffix`: as in [`FAMILIES`].
pub(super) fn remove_slices(api: &ApiServer, (namespace, service): (&str, &str), suffix: &str) {
    drop(api.delete("endpointslices", namespace, &format!("{service}-{suffix}")));
    drop(api.delete("endpointslices", namespace, &format!("{service}-{suffix}-{LATE}")));
}

/// The pods of a Service.
pub(super) fn pods(api: &ApiServer, namespace: &str, service: &str) -> Vec<String> {
    let pods = |name: &str| -> Vec<String> {
        let slice = api.get("endpointslices", namespace, name).unwrap_or_default();
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        endpoints.filter_map(|endpoint| endpoint["targetRef"]["name"].as_str().map(str::to_owned)).collect()
    };
    let of_family = FAMILIES.map(|(_, suffix)| {
        let name = format!("{service}-{suffix}");
        [pods(&name), pods(&format!("{name}-{LATE}"))].concat()
    });
    of_family.into_iter().find(|pods| !pods.is_empty()).unwrap_or_default()
}

/// The address of a pod by IPv4, with which its name begins. A number follows where other pods had the address before.
pub(super) fn address(pod: &str) -> &str {
    pod.split_once('-').map_or(pod, |(address, _)| address)
}

/// The address of a pod by IPv6.
pub(super) fn ipv6(pod: &str) -> String {
    format!("fd00::{}", address(pod).replace('.', ":"))
}

/// One of two nodes.
fn node(pod: &str) -> &'static str {
    if address(pod).ends_with(['0', '2', '4', '6', '8']) { "node-1" } else { "node-2" }
}

/// A UID that is the pod's for ever.
fn uid(pod: &str) -> String {
    let (address, number) = pod.split_once('-').unwrap_or((pod, "0"));
    let parts: Vec<u8> = address.split('.').filter_map(|part| part.parse().ok()).collect();
    format!("{number:0>8}-0000-4000-8000-0000{:02x}{:02x}{:02x}{:02x}", parts[0], parts[1], parts[2], parts[3])
}
