//! What the page shows of the ClusterSet. Pure.

use std::collections::{BTreeMap, BTreeSet};

use kube::Resource;
use serde_json::{Value, json};

use crate::status::{Cluster, Objects, Report, State, stream};
use api::ServiceImport;
use cloudmap::{Estimate, quotas::USD_PER_INSTANCE};
use model::{Exported, ServiceKey};
use records::ClusterView;

/// Everything on the first view, as JSON. `report` is what `status` says of the same reading.
pub(super) fn overview(seen: &Cluster, objects: &Objects, report: &Report) -> Value {
    let views = seen.ledger.as_deref().unwrap_or_default();
    json!({
        "observed": seen.now.as_second(),
        "report": report.json(),
        "clusters": views.iter().map(|view| of_cluster(view, stream(seen, view))).collect::<Vec<_>>(),
        "names": names(objects, views, report),
        "cost": cost(views),
    })
}

/// `stream`: whether the leaders are connected, if that is known.
fn of_cluster(view: &ClusterView, stream: Option<bool>) -> Value {
    let exports = || view.catalog.exports.values();
    json!({
        "id": &*view.id,
        "ageSeconds": view.age.map(|age| age.as_secs()),
        "stream": stream,
        "exports": exports().count(),
        "ready": exports().map(Exported::ready).sum::<usize>(),
        "endpoints": exports().map(|exported| exported.endpoints.len()).sum::<usize>(),
        "claims": view.catalog.registrations.len(),
    })
}

/// Every name that some cluster exports, or that has an object in this cluster, with the worst of what the report says of its
/// objects.
fn names(objects: &Objects, views: &[ClusterView], report: &Report) -> Vec<Value> {
    let states = report.states();
    let kinds = [("ServiceExport", objects.exports.is_ok()), ("ServiceImport", objects.imports.is_ok())];
    let state = |key: &ServiceKey| {
        let of_object = |(kind, read): &(&str, bool)| {
            let said = states.get(&*format!("{kind} {}/{}", key.namespace, key.name)).copied();
            said.or_else(|| (!read).then_some(State::Unseen))
        };
        let said: Vec<State> = kinds.iter().filter_map(of_object).collect();
        if said.contains(&State::Wrong) { State::Wrong } else { said.first().copied().unwrap_or(State::Well) }
    };
    let exports = objects.exports.as_deref().unwrap_or_default().iter().map(key);
    let imports = objects.imports.as_deref().unwrap_or_default();
    let imports: BTreeMap<_, _> = imports.iter().map(|import| (key(import), import)).collect();
    let in_ledger = views.iter().flat_map(|view| view.catalog.exports.keys().cloned());
    let all: BTreeSet<ServiceKey> = in_ledger.chain(exports).chain(imports.keys().cloned()).collect();
    let of = |key: ServiceKey| {
        let exporters = views.iter().filter_map(|view| {
            let exported = view.catalog.exports.get(&key)?;
            let (ready, endpoints) = (exported.ready(), exported.endpoints.len());
            Some(json!({"cluster": &*view.id, "ready": ready, "endpoints": endpoints}))
        });
        json!({
            "namespace": &*key.namespace,
            "name": &*key.name,
            "state": state(&key).as_str(),
            "exporters": exporters.collect::<Vec<_>>(),
            "import": imports.get(&key).map(|import| of_import(import)),
        })
    };
    all.into_iter().map(of).collect()
}

fn key(object: &impl Resource) -> ServiceKey {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    ServiceKey::new(part(&object.meta().namespace), part(&object.meta().name))
}

fn of_import(import: &ServiceImport) -> Value {
    let ports = import.spec.ports.iter();
    let ports: Vec<_> =
        ports.map(|port| format!("{}/{}", port.port, port.protocol.as_deref().unwrap_or("TCP"))).collect();
    json!({"type": import.spec.type_.as_str(), "ips": import.spec.ips, "ports": ports})
}

/// What the ClusterSet costs in a month, by AWS's prices: a read of the ledger each second in each cluster, the ledger's
/// rows, and an instance for each ready endpoint in each target of its export. Annotated Services are not counted: their
/// endpoints are not in the ledger.
fn cost(views: &[ClusterView]) -> Value {
    let live: Vec<_> = views.iter().filter(|view| view.head.as_ref().is_some_and(|head| head.is_live())).collect();
    let rows: usize = live.iter().map(|view| 1 + view.pages).sum();
    let instances: usize = live.iter().flat_map(|view| view.catalog.instances()).map(|(_, count)| count).sum();
    let reads_usd = Estimate::of_discovery(live.len() as f64).usd;
    let (rows_usd, instances_usd) = (rows as f64 * USD_PER_INSTANCE, instances as f64 * USD_PER_INSTANCE);
    json!({
        "clusters": live.len(), "readsUsd": reads_usd, "rows": rows, "rowsUsd": rows_usd,
        "instances": instances, "instancesUsd": instances_usd, "usd": reads_usd + rows_usd + instances_usd,
    })
}
