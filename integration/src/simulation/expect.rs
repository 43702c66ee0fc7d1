//! What should be everywhere, from what the users of all clusters have, and what is there.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    claims::{self, exported},
    cloudmap::Registry,
    kubernetes::ApiServer,
    merge::{Export, Port, UNNAMED, affinity, merge, policy, ports},
    users::{addresses, annotation, is_terminating, label},
    world::Cluster,
};

/// Namespace and name.
pub(crate) type Name = (String, String);

/// One name as a cluster should have it, or has it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Imported {
    /// `ClusterSetIP` or `Headless`.
    pub(crate) type_: String,
    pub(crate) ports: BTreeSet<Port>,
    pub(crate) affinity: String,
    pub(crate) policy: String,
    /// Those that were exported.
    pub(crate) labels: BTreeMap<String, String>,
    /// The clusters that export it.
    pub(crate) clusters: BTreeSet<String>,
    /// Ready addresses by the name of the port.
    pub(crate) endpoints: BTreeMap<String, BTreeSet<String>>,
    /// Ports, affinity and traffic policy of the Service that kube-proxy serves, if there is one.
    pub(crate) derived: Option<(BTreeSet<Port>, String, String)>,
}

impl Imported {
    /// Ready addresses.
    pub(crate) fn addresses(&self) -> BTreeSet<String> {
        self.endpoints.values().flatten().cloned().collect()
    }
}

/// What a name should be everywhere, and the conflicts that its exports should say.
pub(crate) type Merged = BTreeMap<Name, (Imported, BTreeSet<&'static str>)>;

/// What all names should be.
pub(crate) fn merged(clusters: &[Cluster]) -> Merged {
    let mut exports: BTreeMap<Name, Vec<Export>> = BTreeMap::new();
    for Cluster { id, api, .. } in clusters {
        for name in api.list("serviceexports").into_keys() {
            if let Some(export) = Export::of(id, api, &name) {
                exports.entry(name).or_default().push(export);
            }
        }
    }
    exports.into_iter().filter_map(|(name, exports)| Some((name, merge(exports)?))).collect()
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

/// What a cluster imports.
pub(crate) fn imported(api: &ApiServer) -> BTreeMap<Name, Imported> {
    let mut found: BTreeMap<Name, Imported> = BTreeMap::new();
    for (name, import) in api.list("serviceimports") {
        let derived = annotation(&import, "multicluster.kubernetes.io/derived-service");
        let derived = derived.and_then(|derived| api.get("services", &name.0, derived));
        let labels = import["metadata"]["labels"].as_object().into_iter().flatten();
        let labels = labels.filter(|(key, _)| *key != "cloudmap-mcs/managed-by");
        let clusters = import["status"]["clusters"].as_array().into_iter().flatten();
        let spec = &import["spec"];
        let imported = Imported {
            type_: spec["type"].as_str().unwrap_or("none").to_owned(),
            ports: ports(spec),
            affinity: affinity(spec),
            policy: policy(spec),
            labels: labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
            clusters: clusters.filter_map(|cluster| cluster["cluster"].as_str().map(str::to_owned)).collect(),
            endpoints: BTreeMap::new(),
            derived: derived.map(|object| {
                let spec = &object["spec"];
                (ports(spec), affinity(spec), policy(spec))
            }),
        };
        found.insert(name, imported);
    }
    for (key, slice) in api.list("endpointslices") {
        if label(&slice, "endpointslice.kubernetes.io/managed-by") != "cloudmap-mcs" {
            continue;
        }
        let name = label(&slice, "multicluster.kubernetes.io/service-name").to_owned();
        let import = found.entry((key.0, name)).or_default();
        for port in slice["ports"].as_array().into_iter().flatten().filter_map(|port| port["name"].as_str()) {
            // The same port by the name that the derived Service has for it.
            if port != UNNAMED {
                import.endpoints.entry(port.to_owned()).or_default().extend(addresses(&slice));
            }
        }
    }
    found
}

/// What is not as it should be, if anything.
pub(crate) fn mismatch(clusters: &[Cluster], registry: &Registry) -> Option<String> {
    let (claims, registered) = (claims::claims(clusters), claims::registered(registry));
    let (owners, merged) = (claims::owners(&claims, &registered), merged(clusters));
    for Cluster { id, api, .. } in clusters {
        let there = |(name, _): &(&Name, _)| {
            api.get("namespaces", "", &name.0).is_some_and(|namespace| !is_terminating(&namespace))
        };
        let wanted = merged.iter().filter(there).map(|(name, (import, _))| (name, import));
        let (wanted, found) = (wanted.collect::<BTreeMap<_, _>>(), imported(api));
        for name in wanted.keys().copied().chain(found.keys()) {
            let (wanted, found) = (wanted.get(name).copied(), found.get(name));
            if wanted != found {
                return Some(format!("{id} imports {}/{} as {found:?}, not as {wanted:?}", name.0, name.1));
            }
        }
        for (name, export) in api.list("serviceexports") {
            if let Some(what) = conditions(api, &name, &export, &owners, &merged) {
                return Some(format!("{id} says of its export {}/{}: {what}", name.0, name.1));
            }
        }
    }
    let there = |namespace: &str| registry.with(|cloudmap, _| cloudmap.namespaces().any(|it| it.name == namespace));
    claims::mismatch(&claims, &registered, there)
}

/// What the conditions of an export should not say. `owners`: who has which name in Cloud Map.
fn conditions(
    api: &ApiServer,
    name: &Name,
    export: &Value,
    owners: &BTreeMap<Name, Name>,
    merged: &Merged,
) -> Option<String> {
    let said = |type_: &str| {
        let mut all = export["status"]["conditions"].as_array().into_iter().flatten();
        let found = all.find(|condition| condition["type"] == type_);
        found.map_or(("missing", ""), |condition| {
            (condition["status"].as_str().unwrap_or("none"), condition["reason"].as_str().unwrap_or_default())
        })
    };
    let registered: &[(&str, &str)] = match exported(api, name).and_then(|target| owners.get(&target)) {
        Some(owner) if owner == name => &[("True", "Registered")],
        Some(_) => &[("False", "NameConflict")],
        // Whose it is cannot be seen: the one that has it has no endpoints.
        None => &[("True", "Registered"), ("False", "NameConflict")],
    };
    let exports = api.get("services", &name.0, &name.1).is_some();
    let wanted: &[(&str, &[(&str, &str)])] = if exports {
        &[("Valid", &[("True", "Valid")]), ("Ready", &[("True", "Exported")]), ("Registered", registered)]
    } else {
        &[("Valid", &[("False", "NoService")])]
    };
    // Who exports nothing is in no conflict.
    let conflicts = merged.get(name).filter(|_| exports).map(|(_, conflicts)| conflicts.clone()).unwrap_or_default();
    let (status, reasons) = said("Conflict");
    let agrees = match status {
        "True" => reasons.split(',').collect::<BTreeSet<_>>() == conflicts,
        _ => conflicts.is_empty() && ["False", "missing"].contains(&status),
    };
    if !agrees {
        return Some(format!("Conflict is not {conflicts:?} in {}", export["status"]["conditions"]));
    }
    let wrong = wanted.iter().find(|(type_, allowed)| !allowed.contains(&said(type_)))?;
    Some(format!("{} is {:?} in {}", wrong.0, said(wrong.0), export["status"]["conditions"]))
}
