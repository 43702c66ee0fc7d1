//! What should be everywhere, from what the users of all clusters have, and what is there.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde_json::Value;

use super::{
    claims::Registrations,
    discovered,
    kubernetes::ApiServer,
    merge::{Export, Port, UNNAMED, affinity, families, merge, policy, ports, selects},
    users::{addresses, annotation, is_terminating, label},
    world::{Cluster, World},
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
    pub(crate) families: Vec<String>,
    /// Those that were exported.
    pub(crate) labels: BTreeMap<String, String>,
    /// The clusters that export it.
    pub(crate) clusters: BTreeSet<String>,
    /// Ready addresses by the name of the port.
    pub(crate) endpoints: BTreeMap<String, BTreeSet<String>>,
    /// Ports, affinity and traffic policy of the derived Service, if there is one. It has no selector.
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

/// What all clusters of a cluster's ClusterSet export, by name.
pub(crate) fn exports(clusters: &[Cluster], here: &Cluster) -> BTreeMap<Name, Vec<Export>> {
    let mut exports: BTreeMap<Name, Vec<Export>> = BTreeMap::new();
    for Cluster { id, api, .. } in
        clusters.iter().filter(|cluster| here.membership().is_some() && cluster.membership() == here.membership())
    {
        for name in api.list("serviceexports").into_keys() {
            if let Some(export) = Export::of(id, api, &name) {
                exports.entry(name).or_default().push(export);
            }
        }
    }
    exports
}

/// What all names should be in a cluster.
pub(crate) fn merged(clusters: &[Cluster], here: &Cluster) -> Merged {
    merged_without(clusters, here, |_| false)
}

/// The same while some clusters are `lost`, so that they serve only if no others do.
pub(crate) fn merged_without(clusters: &[Cluster], here: &Cluster, lost: impl Fn(usize) -> bool) -> Merged {
    let exports = exports(clusters, here).into_iter();
    let merged = exports.filter_map(|(name, exports)| Some((name, merge(exports, here.site)?)));
    let nearest = merged.map(|(name, (mut import, conflicts))| {
        if import.type_ == "ClusterSetIP" {
            let of = |cluster: &Cluster| {
                if import.clusters.contains(&cluster.id) { live(&cluster.api, &name) } else { BTreeSet::new() }
            };
            let lost =
                clusters.iter().enumerate().filter(|(index, _)| lost(*index)).flat_map(|(_, it)| of(it)).collect();
            let drained = clusters.iter().filter(|cluster| cluster.is_drained()).flat_map(of).collect();
            let own = if here.site.prefers_itself() { of(here) } else { BTreeSet::new() };
            use_the_first(&mut import, &lost, &drained, &own);
        }
        (name, (import, conflicts))
    });
    nearest.collect()
}

/// Leaves out, on each port and in each IP family, what is lost or drained where others serve, and what is of others where there
/// are own endpoints.
fn use_the_first(import: &mut Imported, lost: &BTreeSet<String>, drained: &BTreeSet<String>, own: &BTreeSet<String>) {
    let rank = |address: &String| (lost.contains(address), drained.contains(address), !own.contains(address));
    for addresses in import.endpoints.values_mut() {
        for is_v6 in [false, true] {
            let of_family = |address: &String| address.contains(':') == is_v6;
            if let Some(first) = addresses.iter().filter(|address| of_family(address)).map(rank).min() {
                addresses.retain(|address| !of_family(address) || rank(address) == first);
            }
        }
    }
}

/// The EndpointSlices of a Service of the cluster itself.
pub(crate) fn slices(api: &ApiServer, name: &Name) -> Vec<Arc<Value>> {
    let is_of = |(key, slice): &(Name, Arc<Value>)| {
        key.0 == name.0
            && label(slice, "kubernetes.io/service-name") == name.1
            && label(slice, "endpointslice.kubernetes.io/managed-by") != "cloudmap-mcs"
    };
    api.list("endpointslices").into_iter().filter(is_of).map(|(_, slice)| slice).collect()
}

/// The ready addresses of a Service of the cluster itself.
pub(crate) fn live(api: &ApiServer, name: &Name) -> BTreeSet<String> {
    slices(api, name).iter().flat_map(|slice| addresses(slice)).collect()
}

/// What a cluster imports.
pub(crate) fn imported(api: &ApiServer) -> BTreeMap<Name, Imported> {
    let mut found: BTreeMap<Name, Imported> = BTreeMap::new();
    for (name, import) in api.list("serviceimports") {
        let derived = annotation(&import, "multicluster.kubernetes.io/derived-service");
        let derived = derived.and_then(|derived| api.get("services", &name.0, derived));
        let derived = derived.filter(|object| !selects(&object["spec"]));
        let labels = import["metadata"]["labels"].as_object().into_iter().flatten();
        let labels = labels.filter(|(key, _)| *key != "cloudmap-mcs/managed-by");
        let clusters = import["status"]["clusters"].as_array().into_iter().flatten();
        let spec = &import["spec"];
        let imported = Imported {
            type_: spec["type"].as_str().unwrap_or("none").to_owned(),
            ports: ports(spec),
            affinity: affinity(spec),
            policy: policy(spec),
            families: families(spec),
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
pub(crate) fn mismatch(world: &World) -> Option<String> {
    if let Some(what) = discovered::mismatch(world) {
        return Some(what);
    }
    // What is registered is looked at where all register in one registry.
    let registrations = world.abroad.is_none().then(|| Registrations::observe(world));
    for cluster in &world.clusters {
        let Cluster { id, api, .. } = cluster;
        let (mut wanted, mut found) = (merged(&world.clusters, cluster), imported(api));
        found.retain(|name, _| name.0 != discovered::PLACE.0);
        wanted
            .retain(|name, _| api.get("namespaces", "", &name.0).is_some_and(|namespace| !is_terminating(&namespace)));
        for name in wanted.keys().chain(found.keys()) {
            let (wanted, found) = (wanted.get(name).map(|(import, _)| import), found.get(name));
            if wanted != found {
                return Some(format!("{id} imports {}/{} as {found:?}, not as {wanted:?}", name.0, name.1));
            }
            if let Some(what) = wanted.and_then(|wanted| import_ips(api, name, wanted)) {
                return Some(format!("{id} imports {}/{} with {what}", name.0, name.1));
            }
            if let Some(what) = wanted.and_then(|wanted| import_conditions(api, name, wanted)) {
                return Some(format!("{id} says of its import {}/{}: {what}", name.0, name.1));
            }
        }
        for (name, export) in api.list("serviceexports") {
            let conflicts = wanted.get(&name).map(|(_, conflicts)| conflicts);
            let registered = registrations.as_ref().map(|registrations| registrations.condition(cluster, &name));
            if let Some(what) = conditions(cluster, &name, &export, registered, conflicts) {
                return Some(format!("{id} says of its export {}/{}: {what}", name.0, name.1));
            }
        }
    }
    registrations?.mismatch()
}

/// The addresses that an import shows, if they are not those of its derived Service. One that had two families keeps both
/// addresses.
fn import_ips(api: &ApiServer, name: &Name, wanted: &Imported) -> Option<String> {
    if wanted.type_ != "ClusterSetIP" || wanted.derived.is_none() {
        return None;
    }
    let import = api.get("serviceimports", &name.0, &name.1)?;
    let derived = annotation(&import, "multicluster.kubernetes.io/derived-service")?;
    let derived = api.get("services", &name.0, derived)?;
    let (shown, has) = (&import["spec"]["ips"], &derived["spec"]["clusterIPs"]);
    let all = has.as_array()?;
    let right = shown.as_array().is_some_and(|some| !some.is_empty() && some.iter().all(|ip| all.contains(ip)));
    (!right).then(|| format!("{shown}, and its derived Service has {has}"))
}

/// What the conditions of an import should not say: every cluster is heard of, and nobody is in the way of any object.
fn import_conditions(api: &ApiServer, name: &Name, wanted: &Imported) -> Option<String> {
    let import = api.get("serviceimports", &name.0, &name.1)?;
    let ready = if wanted.families.is_empty() { ("False", "IPFamilyNotSupported") } else { ("True", "Ready") };
    let (said, stale) = (condition(&import, "Ready"), condition(&import, "Stale"));
    let right = said == ready && stale == ("missing", "");
    (!right).then(|| format!("Ready should be {ready:?}, and Stale missing, in {}", import["status"]["conditions"]))
}

/// Status and reason of a condition.
fn condition<'a>(object: &'a Value, type_: &str) -> (&'a str, &'a str) {
    let mut all = object["status"]["conditions"].as_array().into_iter().flatten();
    let found = all.find(|condition| condition["type"] == type_);
    found.map_or(("missing", ""), |condition| {
        (condition["status"].as_str().unwrap_or("none"), condition["reason"].as_str().unwrap_or_default())
    })
}

/// What the conditions of an export should not say. `registered`: what `Registered` may be, if that is looked at.
fn conditions(
    Cluster { set, api, .. }: &Cluster,
    name: &Name,
    export: &Value,
    registered: Option<&[(&str, &str)]>,
    conflicts: Option<&BTreeSet<&'static str>>,
) -> Option<String> {
    let condition = |type_: &str| condition(export, type_);
    let exports = api.get("services", &name.0, &name.1).is_some() && !set.is_empty();
    let wanted: &[(&str, &[(&str, &str)])] = match api.get("services", &name.0, &name.1) {
        Some(_) if set.is_empty() => &[("Valid", &[("True", "Valid")]), ("Ready", &[("False", "Pending")])],
        Some(_) => &[("Valid", &[("True", "Valid")]), ("Ready", &[("True", "Exported")])],
        None => &[("Valid", &[("False", "NoService")])],
    };
    // Who exports nothing is in no conflict.
    let conflicts = conflicts.filter(|_| exports).cloned().unwrap_or_default();
    let (status, reasons) = condition("Conflict");
    let agrees = match status {
        "True" => reasons.split(',').collect::<BTreeSet<_>>() == conflicts,
        _ => conflicts.is_empty() && ["False", "missing"].contains(&status),
    };
    if !agrees {
        return Some(format!("Conflict is not {conflicts:?} in {}", export["status"]["conditions"]));
    }
    let registered = registered.filter(|_| exports).map(|registered| ("Registered", registered));
    let wrong = wanted.iter().chain(&registered).find(|(type_, allowed)| !allowed.contains(&condition(type_)))?;
    Some(format!("{} is {:?} in {}", wrong.0, condition(wrong.0), export["status"]["conditions"]))
}
