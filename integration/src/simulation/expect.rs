//! What should be everywhere, from what the users of all clusters have: written from KEP-1645 and the documents, not from
//! the product's plans.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    cloudmap::Registry,
    kubernetes::ApiServer,
    world::{Cluster, addresses, is_terminating, label},
};

/// Namespace and name.
pub(crate) type Name = (String, String);

/// One name as a cluster should have it, or has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Imported {
    /// `ClusterSetIP` or `Headless`.
    pub(crate) type_: String,
    pub(crate) ports: BTreeSet<u64>,
    /// The clusters that export it.
    pub(crate) clusters: BTreeSet<String>,
    pub(crate) addresses: BTreeSet<String>,
    /// There is a Service that kube-proxy serves.
    pub(crate) derived: bool,
}

/// What everybody exports, by name and cluster.
fn exports(clusters: &[Cluster]) -> BTreeMap<Name, BTreeMap<String, (Value, BTreeSet<String>)>> {
    let mut all: BTreeMap<Name, BTreeMap<_, _>> = BTreeMap::new();
    for Cluster { id, api, .. } in clusters {
        for (name, export) in api.list("serviceexports") {
            let Some(service) = api.get("services", &name.0, &name.1) else { continue };
            if is_terminating(&export) || is_terminating(&service) {
                continue;
            }
            let live = live(api, &name);
            all.entry(name).or_default().insert(id.clone(), ((*service).clone(), live));
        }
    }
    all
}

/// The ready addresses of a Service of the cluster itself.
pub(crate) fn live(api: &ApiServer, name: &Name) -> BTreeSet<String> {
    let slices = api.list("endpointslices");
    slices
        .iter()
        .filter(|(key, slice)| {
            key.0 == name.0
                && label(slice, "kubernetes.io/service-name") == name.1
                && label(slice, "endpointslice.kubernetes.io/managed-by") != "cloudmap-mcs"
        })
        .flat_map(|(_, slice)| addresses(slice))
        .collect()
}

/// What a cluster should import.
fn expected(clusters: &[Cluster], api: &ApiServer) -> BTreeMap<Name, Imported> {
    let there =
        |namespace: &str| api.get("namespaces", "", namespace).is_some_and(|namespace| !is_terminating(&namespace));
    let mut wanted = BTreeMap::new();
    for (name, by_cluster) in exports(clusters).into_iter().filter(|(name, _)| there(&name.0)) {
        let mut import = Imported::default();
        for (cluster, (service, live)) in by_cluster {
            let headless = service["spec"]["clusterIP"] == "None";
            if headless { "Headless" } else { "ClusterSetIP" }.clone_into(&mut import.type_);
            import.derived = !headless;
            import
                .ports
                .extend(service["spec"]["ports"].as_array().into_iter().flatten().filter_map(|p| p["port"].as_u64()));
            import.clusters.insert(cluster);
            import.addresses.extend(live);
        }
        wanted.insert(name, import);
    }
    wanted
}

/// What a cluster imports.
pub(crate) fn imported(api: &ApiServer) -> BTreeMap<Name, Imported> {
    let mut found: BTreeMap<Name, Imported> = BTreeMap::new();
    for (name, import) in api.list("serviceimports") {
        let entry = found.entry(name).or_default();
        import["spec"]["type"].as_str().unwrap_or("none").clone_into(&mut entry.type_);
        let ports = import["spec"]["ports"].as_array().into_iter().flatten();
        entry.ports = ports.filter_map(|port| port["port"].as_u64()).collect();
        let clusters = import["status"]["clusters"].as_array().into_iter().flatten();
        entry.clusters = clusters.filter_map(|cluster| cluster["cluster"].as_str().map(str::to_owned)).collect();
    }
    for (key, slice) in api.list("endpointslices") {
        let name = label(&slice, "multicluster.kubernetes.io/service-name");
        if label(&slice, "endpointslice.kubernetes.io/managed-by") == "cloudmap-mcs" {
            found.entry((key.0, name.to_owned())).or_default().addresses.extend(addresses(&slice));
        }
    }
    for (key, import) in api.list("serviceimports") {
        let derived = import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"].as_str();
        let exists = derived.is_some_and(|derived| api.get("services", &key.0, derived).is_some());
        found.entry(key).or_default().derived = exists;
    }
    found
}

/// The addresses that are registered in Cloud Map by this project, by namespace and service.
fn registered(registry: &Registry) -> BTreeMap<Name, BTreeSet<String>> {
    let snapshot = registry.with(|cloudmap, _| cloudmap.snapshot());
    let namespaces: BTreeMap<_, _> = snapshot.namespaces.iter().map(|it| (it.id.clone(), it.name.clone())).collect();
    let mut found: BTreeMap<Name, BTreeSet<String>> = BTreeMap::new();
    for service in &snapshot.services {
        let namespace = namespaces.get(&service.namespace_id).cloned().unwrap_or_default();
        for instance in service.instances.values().filter(|it| it.attributes.contains_key("CLOUDMAP_MCS_CLUSTER")) {
            let address = instance.attributes.get("AWS_INSTANCE_IPV4").cloned().unwrap_or_default();
            found.entry((namespace.clone(), service.name.clone())).or_default().insert(address);
        }
    }
    found
}

/// What is not as it should be, if anything.
pub(crate) fn mismatch(clusters: &[Cluster], registry: &Registry) -> Option<String> {
    for Cluster { id, api, .. } in clusters {
        let (wanted, found) = (expected(clusters, api), imported(api));
        for name in wanted.keys().chain(found.keys()) {
            if wanted.get(name) != found.get(name) {
                let (wanted, found) = (wanted.get(name), found.get(name));
                return Some(format!("{id} imports {}/{} as {found:?}, not as {wanted:?}", name.0, name.1));
            }
        }
        for (name, export) in api.list("serviceexports") {
            if let Some(what) = conditions(api, &name, &export) {
                return Some(format!("{id} says of its export {}/{}: {what}", name.0, name.1));
            }
        }
    }
    let mut wanted: BTreeMap<Name, BTreeSet<String>> = BTreeMap::new();
    for (name, by_cluster) in exports(clusters) {
        let live: BTreeSet<_> = by_cluster.into_values().flat_map(|(_, live)| live).collect();
        if !live.is_empty() {
            wanted.insert(name, live);
        }
    }
    let found = registered(registry);
    for name in wanted.keys().chain(found.keys()) {
        if wanted.get(name) != found.get(name) {
            let (wanted, found) = (wanted.get(name), found.get(name));
            return Some(format!("Cloud Map has {}/{} with {found:?}, not with {wanted:?}", name.0, name.1));
        }
    }
    None
}

/// What the conditions of an export should not say.
fn conditions(api: &ApiServer, name: &Name, export: &Value) -> Option<String> {
    let said = |type_: &str| {
        let mut all = export["status"]["conditions"].as_array().into_iter().flatten();
        let found = all.find(|condition| condition["type"] == type_);
        found.map_or("missing", |condition| condition["status"].as_str().unwrap_or("none"))
    };
    let exported = api.get("services", &name.0, &name.1).is_some();
    let wanted: &[(&str, &[&str])] = if exported {
        &[("Valid", &["True"]), ("Ready", &["True"]), ("Conflict", &["False", "missing"]), ("Registered", &["True"])]
    } else {
        &[("Valid", &["False"])]
    };
    let wrong = wanted.iter().find(|(type_, allowed)| !allowed.contains(&said(type_)))?;
    Some(format!("{} is {} in {}", wrong.0, said(wrong.0), export["status"]["conditions"]))
}
