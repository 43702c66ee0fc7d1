//! Names in the namespaces of Kubernetes itself: no other cluster puts Services there. And what comes and goes for long.

use std::{sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::sleep;

use super::world::{Cluster, World, until};
use api::names;
use model::ServiceKey;

/// A Service with an endpoint, and its ServiceExport.
fn export(cluster: &Cluster, namespace: &str, name: &str) {
    cluster.objects.add_namespace(namespace);
    let metadata = json!({"namespace": namespace, "name": name});
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    let spec = json!({"clusterIP": "10.96.9.9", "clusterIPs": ["10.96.9.9"], "ipFamilies": ["IPv4"], "ports": ports});
    cluster.objects.put_service(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
    let slice = json!({
        "metadata": {"namespace": namespace, "name": format!("{name}-1"), "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: name}},
        "addressType": "IPv4", "ports": ports, "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
    });
    cluster.objects.put_slice(serde_json::from_value(slice).unwrap());
    let export = json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": metadata});
    cluster.objects.put_export(serde_json::from_value(export).unwrap());
}

#[tokio::test(start_paused = true)]
async fn no_cluster_makes_services_in_the_namespaces_of_kubernetes_elsewhere() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    let refused = [
        ("kube-system", "kube-dns"),
        ("kube-public", "web"),
        ("kube-node-lease", "web"),
        ("cloudmap-mcs-system", "web"),
        ("default", "kubernetes"),
    ];
    for (namespace, name) in refused.into_iter().chain([("default", "web")]) {
        green.objects.put_namespace(namespace, &[]);
        // Not even an administrator opens the namespaces of Kubernetes.
        green.objects.annotate_namespace(namespace, &[(names::ANNOTATION_ACCEPT_CLUSTERS, "*")]);
        export(&blue, namespace, name);
    }
    until("another one is imported", || green.objects.import(&ServiceKey::new("default", "web")).is_some()).await;
    sleep(Duration::from_mins(2)).await;
    for cluster in [&blue, &green] {
        let notes = cluster.objects.take_notes();
        for (namespace, name) in refused {
            assert_eq!(cluster.objects.import(&ServiceKey::new(namespace, name)), None, "{namespace}/{name}");
            let is_of = |text: &str| text.starts_with(&format!("{namespace}/{name} "));
            let said = notes.iter().find(|note| note.reason == "SystemNamespace" && is_of(&note.text));
            let kind = said.and_then(|note| note.regarding.kind.as_deref());
            let expected = if cluster.id == "blue" { "ServiceExport" } else { "Namespace" };
            assert_eq!(kind, Some(expected), "{namespace}/{name}");
        }
    }
    let foreign =
        |object: &Arc<str>| refused.iter().any(|(namespace, _)| **object == **namespace && *namespace != "default");
    let mut made = green.objects.services().into_iter().filter_map(|service| service.metadata.namespace);
    assert!(!made.any(|namespace| foreign(&namespace.into())));
    let mut made = green.objects.slices().into_iter().filter_map(|slice| slice.metadata.namespace);
    assert!(!made.any(|namespace| foreign(&namespace.into())));
}
