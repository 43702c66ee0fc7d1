//! `ledger show`: the ledger as tables or JSON.

use serde_json::{Value, json};

use super::{
    asking::{self, AllLedgers},
    table::{self, Table, human, time},
};
use cli::ShowArgs;
use ledger::{head::Presence, show};
use model::{ClaimState, Conditions, Endpoint, Registration};
use records::ClusterView;

pub(super) async fn show(args: ShowArgs) -> anyhow::Result<()> {
    let clusterset = asking::clusterset(&args.place.kube, &args.place.identity).await?;
    let mut ledgers = AllLedgers::read(&args.place.aws, &clusterset).await?;
    if let Some(cluster) = &args.cluster {
        let others = ledgers.others.iter_mut().filter_map(|(_, views)| views.as_mut().ok());
        for views in others.chain([&mut ledgers.home]) {
            views.retain(|view| *view.id == *cluster.as_str());
        }
        anyhow::ensure!(ledgers.clusters().next().is_some(), "the ClusterSet {clusterset} has no cluster {cluster}");
    }
    let AllLedgers { home: views, others } = &ledgers;
    let json = || {
        let mut shown = json!({ "clusterset": clusterset.as_str(), "clusters": clusters_json(views) });
        if !others.is_empty() {
            shown["registries"] = others.iter().map(|(name, views)| (name.to_string(), registry_json(views))).collect();
        }
        shown
    };
    let text = || {
        let others = others.iter().map(|(name, views)| {
            let views = views.as_ref().map_or_else(|error| format!("{error}\n"), |views| tables(views));
            format!("\nRegistry {name}:\n{views}")
        });
        tables(views) + &others.collect::<String>()
    };
    table::print(args.output, text, json)?;
    ledgers.all_read()
}

/// A registry beside the home.
fn registry_json(views: &Result<Vec<ClusterView>, show::Error>) -> Value {
    match views {
        Ok(views) => json!({ "clusters": clusters_json(views) }),
        Err(error) => json!({ "error": error.to_string() }),
    }
}

fn tables(views: &[ClusterView]) -> String {
    let mut clusters = Table::new([
        "CLUSTER",
        "STATE",
        "POSITION",
        "WRITTEN",
        "EXPORTS",
        "ENDPOINTS",
        "CLAIMS",
        "PAGES",
        "STREAM",
        "PROBLEMS",
    ]);
    let mut exports = Table::new(["CLUSTER", "NAMESPACE", "NAME", "TYPE", "PORTS", "READY", "TARGET"]);
    let mut claims = Table::new(["CLUSTER", "TARGET", "OWNER", "SINCE", "STATE"]);
    let mut properties = Table::new(["CLUSTER", "PROPERTY", "VALUE"]);
    for view in views {
        let catalog = &view.catalog;
        clusters.row([
            view.id.to_string(),
            state(view),
            view.head.as_ref().map_or_else(String::new, |head| head.position.to_string()),
            view.age.map_or_else(String::new, |age| format!("{} ago", human(age))),
            catalog.exports.len().to_string(),
            catalog.exports.values().map(|exported| exported.endpoints.len()).sum::<usize>().to_string(),
            catalog.registrations.len().to_string(),
            view.state.as_ref().map_or_else(String::new, |_| view.pages.to_string()),
            addresses(view).first().cloned().unwrap_or_else(|| "-".to_owned()),
            if view.problems.is_empty() { "-".to_owned() } else { view.problems.join("; ") },
        ]);
        for (key, exported) in &catalog.exports {
            let ports: Vec<_> = exported
                .export
                .ports
                .iter()
                .map(|port| format!("{}:{}/{}", port.name, port.port, port.protocol))
                .collect();
            exports.row([
                view.id.to_string(),
                key.namespace.to_string(),
                key.name.to_string(),
                exported.export.service_type.to_string(),
                if ports.is_empty() { "-".to_owned() } else { ports.join(",") },
                format!("{}/{}", exported.ready(), exported.endpoints.len()),
                exported.export.target.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            ]);
        }
        for (name, value) in &catalog.properties {
            properties.row([view.id.to_string(), name.clone(), value.clone()]);
        }
        let waiting = catalog.waiting.iter().map(|registration| (registration, true));
        for (registration, waits) in catalog.registrations.values().map(|held| (held, false)).chain(waiting) {
            let Registration { target, owner, claimed, state } = registration;
            claims.row([
                view.id.to_string(),
                target.to_string(),
                format!("{} {}/{}", owner.kind, owner.namespace, owner.name),
                time(*claimed),
                word(*state, waits).to_owned(),
            ]);
        }
    }
    format!("{clusters}\n{exports}\n{claims}\n{properties}")
}

/// A word for what a claim says of its owner.
const fn word(state: ClaimState, waits: bool) -> &'static str {
    match state {
        ClaimState::Unable => "unable",
        ClaimState::Retiring => "retiring",
        ClaimState::Serves | ClaimState::Empty if waits => "waiting",
        ClaimState::Serves => "active",
        ClaimState::Empty => "empty",
    }
}

/// Where the leader listens for those of other clusters.
fn addresses(view: &ClusterView) -> Vec<String> {
    view.head.iter().flat_map(|head| head.addresses.iter().map(ToString::to_string)).collect()
}

/// All fields of every cluster.
pub(super) fn clusters_json(views: &[ClusterView]) -> Value {
    views.iter().map(cluster_json).collect()
}

/// A word for what the ledger says of a cluster.
pub(super) fn state(view: &ClusterView) -> String {
    match view.head.as_ref().map(|head| &head.presence) {
        None => "unreadable".to_owned(),
        Some(Presence::Live) if view.state.is_none() => "unverified".to_owned(),
        Some(Presence::Live) => "live".to_owned(),
        Some(Presence::Left { successor: None }) => "left".to_owned(),
        Some(Presence::Left { successor: Some(id) }) => format!("now {id}"),
    }
}

fn cluster_json(view: &ClusterView) -> Value {
    let exports: Vec<_> = view
        .catalog
        .exports
        .iter()
        .map(|(key, exported)| {
            let export = &exported.export;
            json!({
                "namespace": &*key.namespace,
                "name": &*key.name,
                "uid": &*export.uid,
                "created": time(export.created),
                "type": export.service_type.to_string(),
                "ports": export.ports.iter().map(|port| json!({
                    "name": &*port.name, "protocol": port.protocol.as_str(), "port": port.port,
                    "appProtocol": port.app_protocol.as_deref(),
                })).collect::<Vec<_>>(),
                "ipFamilies": export.ip_families.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "internalTrafficPolicy": export.internal_traffic_policy.to_string(),
                "trafficDistribution": export.traffic_distribution.as_deref(),
                "clusterSelection": export.cluster_selection.as_deref(),
                "drain": export.drain.map(model::Drain::percent),
                "labels": export.labels,
                "annotations": export.annotations,
                "target": export.target.as_ref().map(ToString::to_string),
                "endpoints": exported.endpoints.iter().map(endpoint_json).collect::<Vec<_>>(),
            })
        })
        .collect();
    let claims: Vec<_> = view
        .catalog
        .registrations
        .values()
        .map(|held| (held, false))
        .chain(view.catalog.waiting.iter().map(|waiting| (waiting, true)))
        .map(|(registration, waiting)| {
            json!({
                "target": registration.target.to_string(),
                "owner": {
                    "kind": &*registration.owner.kind,
                    "namespace": &*registration.owner.namespace,
                    "name": &*registration.owner.name,
                },
                "claimed": time(registration.claimed),
                "state": word(registration.state, waiting),
            })
        })
        .collect();
    json!({
        "id": &*view.id,
        "state": state(view),
        "uid": view.head.as_ref().map(|head| &*head.uid),
        "creator": view.creator,
        "signer": view.head.as_ref().and_then(|head| head.signer).map(|key| key.to_string()),
        "stream": addresses(view),
        "position": view.head.as_ref().map(|head| json!({ "epoch": head.position.epoch, "seq": head.position.seq })),
        "ageSeconds": view.age.map(|age| age.as_secs_f64()),
        "pages": view.state.as_ref().map(|_| view.pages),
        "properties": view.catalog.properties,
        "exports": exports,
        "claims": claims,
        "problems": view.problems,
    })
}

fn endpoint_json(endpoint: &Endpoint) -> Value {
    let Endpoint { ipv4, ipv6, ports, conditions, hostname, zone, node } = endpoint;
    let Conditions { ready, serving, terminating } = conditions;
    json!({
        "ipv4": ipv4,
        "ipv6": ipv6,
        "ports": ports.iter().map(|port| json!({
            "name": &*port.name, "protocol": port.protocol.as_str(), "port": port.port,
        })).collect::<Vec<_>>(),
        "ready": ready,
        "serving": serving,
        "terminating": terminating,
        "hostname": hostname.as_deref(),
        "zone": zone.as_deref(),
        "node": node.as_deref(),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use super::*;
    use crate::status;
    use model::{Protocol, ServicePort};

    /// A cluster that exports shop/web with two endpoints, one of them ready.
    fn view(id: &str, age: Duration) -> ClusterView {
        let mut view = ClusterView { age: Some(age), ..status::tests::view(id) };
        let region = ("region.topology.k8s.io".to_owned(), "eu-central-1".to_owned());
        view.catalog.properties.extend([region]);
        for exported in view.catalog.exports.values_mut() {
            let http = ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
            exported.export.ports = vec![http];
            exported.export.target = view.catalog.registrations.keys().next().cloned();
        }
        for claim in view.catalog.registrations.values_mut() {
            claim.claimed = 1_790_000_000;
        }
        view
    }

    #[test]
    fn the_document_shows_what_is_printed() {
        let tables = tables(&[view("one", Duration::from_secs(2)), view("two", Duration::from_mins(9))]);
        let document = fs::read_to_string(base::repository().join("docs/operations.md")).unwrap();
        assert!(document.contains(&format!("$ cloudmap-mcs ledger show\n{tables}```\n")), "{tables}");
    }
}
