//! What exports of one name are together: written from KEP-1645 and the documents (imports.md, mcs-api.md), not from the
//! product's merge.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{
    expect::{Imported, Name, slices},
    kubernetes::ApiServer,
    scenario::Site,
    users::{addresses, is_terminating},
    world::record,
};

/// Name and number of a port of a Service; all are TCP.
pub(crate) type Port = (String, u64);

/// Number of a port of a Service, and the address of an endpoint behind it.
pub(crate) type Pair = (u64, String);

/// What one cluster exports under a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Export {
    /// First, for the oldest wins: when the ServiceExport was made.
    created: String,
    pub(crate) cluster: String,
    pub(crate) headless: bool,
    ports: BTreeSet<Port>,
    affinity: String,
    policy: String,
    /// The first is the primary one.
    families: Vec<String>,
    /// `exportedLabels`.
    labels: BTreeMap<String, String>,
    /// Ready addresses by the name of the port.
    pub(crate) endpoints: BTreeMap<String, BTreeSet<String>>,
}

impl Export {
    /// What a cluster exports under a name. `None`: there is no export, or no Service.
    pub(crate) fn of(cluster: &str, api: &ApiServer, name: &Name) -> Option<Self> {
        let [export, service] = ["serviceexports", "services"].map(|kind| api.get(kind, &name.0, &name.1));
        let (export, service) = (export?, service?);
        if is_terminating(&export) || is_terminating(&service) {
            return None;
        }
        let labels = export["spec"]["exportedLabels"].as_object().into_iter().flatten();
        let created = export["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
        Some(Self {
            created: created.max(since(api)),
            cluster: cluster.to_owned(),
            headless: service["spec"]["clusterIP"] == "None",
            ports: ports(&service["spec"]),
            affinity: affinity(&service["spec"]),
            policy: policy(&service["spec"]),
            families: families(&service["spec"]),
            labels: labels.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect(),
            endpoints: endpoints(api, name),
        })
    }

    /// The families that a cluster has of those of the Service.
    pub(crate) fn families_in(&self, site: &Site) -> impl Iterator<Item = &String> {
        self.families.iter().filter(move |family| site.families.contains(&family.as_str()))
    }

    /// The ready addresses of these families behind each port.
    pub(crate) fn pairs(&self, families: &[String]) -> BTreeSet<Pair> {
        let served = |address: &&String| families.iter().any(|of| (of == "IPv6") == address.contains(':'));
        let of_port = |(name, number): &Port| {
            let addresses = self.endpoints.get(name).into_iter().flatten().filter(served);
            addresses.map(|address| (*number, address.clone())).collect::<Vec<_>>()
        };
        self.ports.iter().flat_map(of_port).collect()
    }
}

/// Since when a cluster is in the ledger, as it noted what AWS said: no export of it is older (R10).
fn since(api: &ApiServer) -> String {
    let record = record(api);
    let dates = record["created"].as_object().into_iter().flatten().filter_map(|(_, at)| at.as_i64());
    let since = dates.min().and_then(|at| Timestamp::from_second(at).ok());
    since.map(|since| since.to_string()).unwrap_or_default()
}

/// Of a Service or a ServiceImport.
pub(crate) fn ports(spec: &Value) -> BTreeSet<Port> {
    let name = |port: &Value| port["name"].as_str().unwrap_or_default().to_owned();
    let ports = spec["ports"].as_array().into_iter().flatten();
    ports.map(|port| (name(port), port["port"].as_u64().unwrap_or_default())).collect()
}

/// Session affinity with its time-out, of a Service or a ServiceImport.
pub(crate) fn affinity(spec: &Value) -> String {
    let kind = spec["sessionAffinity"].as_str().unwrap_or("None");
    let timeout = spec["sessionAffinityConfig"]["clientIP"]["timeoutSeconds"].as_u64().unwrap_or(10_800);
    if kind == "None" { kind.to_owned() } else { format!("{kind} {timeout}") }
}

pub(crate) fn policy(spec: &Value) -> String {
    spec["internalTrafficPolicy"].as_str().unwrap_or("Cluster").to_owned()
}

/// Whether a Service selects pods by itself.
pub(crate) fn selects(spec: &Value) -> bool {
    spec["selector"].as_object().is_some_and(|selector| !selector.is_empty())
}

/// IP families, of a Service or a ServiceImport.
pub(crate) fn families(spec: &Value) -> Vec<String> {
    let families = spec["ipFamilies"].as_array().into_iter().flatten();
    families.filter_map(|family| family.as_str().map(str::to_owned)).collect()
}

/// Ready addresses of a Service of the cluster itself, by the name of the port.
fn endpoints(api: &ApiServer, name: &Name) -> BTreeMap<String, BTreeSet<String>> {
    let mut endpoints: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for slice in slices(api, name) {
        for port in slice["ports"].as_array().into_iter().flatten() {
            let name = port["name"].as_str().unwrap_or_default().to_owned();
            endpoints.entry(name).or_default().extend(addresses(&slice));
        }
    }
    endpoints
}

/// What the exports of a name are together in such a cluster, and the reasons of the condition `Conflict` on
/// each of them.
pub(crate) fn merge(mut exports: Vec<Export>, site: &Site) -> Option<(Imported, BTreeSet<&'static str>)> {
    exports.sort();
    let oldest = exports.first()?;
    let usable = |families: &[String]| -> Vec<String> {
        families.iter().filter(|family| site.families.contains(&family.as_str())).cloned().collect()
    };
    let mut families = usable(&oldest.families);
    if families.is_empty() {
        for family in exports.iter().flat_map(|export| usable(&export.families)) {
            if !families.contains(&family) {
                families.push(family);
            }
        }
    }
    let served = |address: &&String| families.iter().any(|of| (of == "IPv6") == address.contains(':'));
    let mut ports: Vec<Port> = Vec::new();
    let mut endpoints: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for export in &exports {
        for port in &export.ports {
            let rival = ports.iter().find(|other| other.0 == port.0 || other.1 == port.1);
            if rival.is_some_and(|rival| rival != port) {
                continue;
            }
            if rival.is_none() {
                ports.push(port.clone());
            }
            endpoints
                .entry(port.0.clone())
                .or_default()
                .extend(export.endpoints.get(&port.0).into_iter().flatten().filter(served).cloned());
        }
    }
    let differ = |differs: &dyn Fn(&Export) -> bool| exports.iter().any(differs);
    let client_ip = |export: &Export| export.affinity != "None";
    let conflicts = [
        ("TypeConflict", differ(&|export| export.headless != oldest.headless)),
        ("PortConflict", differ(&|export| export.ports != oldest.ports)),
        ("SessionAffinityConflict", differ(&|export| client_ip(export) != client_ip(oldest))),
        (
            "SessionAffinityConfigConflict",
            client_ip(oldest) && differ(&|export| client_ip(export) && export.affinity != oldest.affinity),
        ),
        ("InternalTrafficPolicyConflict", differ(&|export| export.policy != oldest.policy)),
        ("IPFamilyConflict", differ(&|export| oldest.families.iter().any(|family| !export.families.contains(family)))),
        ("LabelsConflict", differ(&|export| export.labels != oldest.labels)),
    ];
    endpoints.retain(|_, addresses| !addresses.is_empty());
    let ports: BTreeSet<Port> = ports.into_iter().collect();
    let import = Imported {
        type_: if oldest.headless { "Headless" } else { "ClusterSetIP" }.to_owned(),
        derived: ((!oldest.headless || site.names_derived_services()) && !families.is_empty()).then(|| {
            let named =
                |(name, number): &Port| (if name.is_empty() { UNNAMED.to_owned() } else { name.clone() }, *number);
            (ports.iter().map(named).collect(), oldest.affinity.clone(), oldest.policy.clone())
        }),
        ports,
        affinity: oldest.affinity.clone(),
        policy: oldest.policy.clone(),
        families,
        labels: oldest.labels.clone(),
        clusters: exports.iter().map(|export| export.cluster.clone()).collect(),
        endpoints,
    };
    Some((import, conflicts.into_iter().filter(|(_, is)| *is).map(|(reason, _)| reason).collect()))
}

/// What the derived Service calls a port without a name.
pub(crate) const UNNAMED: &str = "cloudmap-mcs-unnamed";
