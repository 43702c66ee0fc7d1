//! What a tenant, who may write Services and ServiceExports in one namespace, cannot do to the ledger and to others.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{
    annotated::{HOSTNAME, PYTHON},
    world::{Cluster, World, until},
};
use crate::{api::names, cloudmap::NamespaceKind};

const TARGET: &str = "external-dns.alpha.kubernetes.io/target";

impl World {
    /// Services and ids of instances in the namespaces of ledgers.
    fn ledgers(&self) -> BTreeMap<String, Vec<String>> {
        let registry = self.fake.registry();
        let name = |id| registry.namespaces.iter().find(|there| Some(&there.id) == id).map(|there| there.name.clone());
        let services = registry.services.values().filter_map(|service| {
            let namespace = name(service.namespace_id.as_ref()).filter(|name| name.starts_with("clusterset-"))?;
            let inside = registry.instances.keys().filter(|(id, _)| *id == service.id);
            Some((format!("{namespace}/{}", service.name), inside.map(|(_, id)| id.to_string()).collect()))
        });
        services.collect()
    }
}

impl Cluster {
    fn node_port(&self, name: &str, annotations: &[(&str, &str)]) {
        self.annotate(name, annotations, &json!({"type": "NodePort", "clusterIP": "10.96.0.1"}));
    }
}

/// Registered there, addresses are heads that cannot be read, a thousand of them hide all others, and a service named like the
/// pages of a future cluster keeps that cluster out.
#[tokio::test(start_paused = true)]
async fn nothing_is_ever_registered_in_a_ledger_whichever_annotation_asks_for_it() {
    let world = World::new();
    // Of another ClusterSet.
    let other = world.add_namespace("clusterset-test", NamespaceKind::Http);
    world.fake.registry().add_service(&other, "clusters", "cloudmap-mcs", "");
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    let heads = || world.ledgers()["clusterset-prod/clusters"].clone();
    assert_eq!(heads(), ["blue", "green"]);
    let services: Vec<_> = world.ledgers().into_keys().collect();

    let addresses = "10.9.9.1,10.9.9.2,10.9.9.3";
    for (name, host) in [
        ("evil", "clusters.clusterset-prod"),
        ("upper", "clusters.CLUSTERSET-prod"),
        ("squatter", "exports-0.red.clusterset-prod"),
        ("neighbour", "clusters.clusterset-test"),
    ] {
        blue.node_port(name, &[(HOSTNAME, host), (TARGET, addresses)]);
        let text = blue.until_noted(name, "NoNamespace").await;
        assert!(text.contains("ledger") && text.contains(&host.to_lowercase()) && text.contains("change"), "{text}");
    }
    for (name, service) in [("python", "clusters"), ("pages", "exports-0.red")] {
        blue.headless(name, &[(PYTHON[0], "clusterset-prod"), (PYTHON[1], service)], &["10.9.9.1"]);
        let text = blue.until_noted(name, "InvalidName").await;
        assert!(text.contains("\"clusterset-prod\"") && text.contains("ledger") && text.contains(PYTHON[0]), "{text}");
    }
    for (name, namespace, share) in [
        ("first", "clusterset-prod", "false"),
        ("second", "clusterset-test", "true"),
        ("third", "clusterset-new", "true"),
    ] {
        blue.export(name, 80, &["10.9.9.1"]);
        let annotations = [
            (names::ANNOTATION_TARGET_NAMESPACE, namespace),
            (names::ANNOTATION_TARGET_SERVICE, "clusters"),
            (names::ANNOTATION_SHARE, share),
        ];
        blue.put_export(name, &annotations);
        blue.until_says(name, "Registered", "False", "InvalidAnnotation").await;
        let text = blue.condition(name, "Registered").unwrap().message;
        assert!(text.contains(namespace) && text.contains(names::ANNOTATION_TARGET_NAMESPACE), "{text}");
    }
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(heads(), ["blue", "green"]);
    assert_eq!(world.ledgers().into_keys().collect::<Vec<_>>(), services, "services were made in a ledger");
    assert!(world.ledgers().values().flatten().all(|id| !id.starts_with("k8s-")), "{:?}", world.ledgers());
    // Other clusters still hear of this one.
    green.until_imports("first", &["10.9.9.1"]).await;
    until("a future cluster is not kept out", || !world.ledgers().contains_key("clusterset-prod/exports-0.red")).await;
}
