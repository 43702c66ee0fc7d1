//! What is granted is what is used.

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use kube::{Client, api::ObjectMeta};
use tokio::task::JoinSet;

use super::*;
use crate::{
    LabelKeys,
    apply::{ClusterWriter, KubernetesWriter},
    events::{self, EventRecord, Publisher},
    fake_api::FakeApi,
    identity,
    keys::KeyStore,
    lease::{self, KubernetesLease, Leadership, LeaseStore, PeerReport, Record},
    metrics::Metrics,
    neighbours,
    objects::ObjectKey,
    record::{HIDDEN, Hidden, HiddenObject, HiddenStore, RECORD, RecordObject},
    service_network,
    watches::Caches,
};
use api::{
    ClusterImportPolicyStatus, CutoverStatus, ServiceImport, ServiceImportSpec, ServiceImportStatus,
    conditions::GateReason, events::EventReason, names::FieldManager,
};
use ledger::{
    record::{self, RecordStore},
    trust::{SECRET, StoredKey, TRUSTED},
};
use model::ServiceKey;

/// Writes everything that the controller writes in the namespaces of users.
async fn write_for_users(writer: &KubernetesWriter) {
    let key = ServiceKey::new("ns", "web");
    let named = || ObjectMeta { namespace: Some("ns".into()), name: Some("web".into()), ..ObjectMeta::default() };

    writer
        .apply_service_import(&ServiceImport { metadata: named(), spec: ServiceImportSpec::default(), status: None })
        .await
        .unwrap();
    writer.apply_import_status(&key, "u", &ServiceImportStatus::default()).await.unwrap();
    writer
        .apply_derived_service(&k8s_openapi::api::core::v1::Service { metadata: named(), ..Default::default() })
        .await
        .unwrap();
    writer
        .apply_endpoint_slice(&k8s_openapi::api::discovery::v1::EndpointSlice {
            metadata: named(),
            address_type: "IPv4".into(),
            ..Default::default()
        })
        .await
        .unwrap();
    writer.delete_service_import(&key, "u").await.unwrap();
    writer.delete_derived_service(&key, "u").await.unwrap();
    writer.delete_endpoint_slice(&ObjectKey::from(key.clone()), "u").await.unwrap();
    writer.apply_export_conditions(&key, "u", &[], FieldManager::ExportStatus).await.unwrap();
    writer.apply_import_policy_status("policy", "u", &ClusterImportPolicyStatus::default()).await.unwrap();
    writer
        .emit(EventRecord {
            regarding: events::export(&key, "u"),
            reason: EventReason::Exported,
            action: "Export",
            text: String::new(),
        })
        .await;
}

/// Reads and writes everything in the namespace of the controller, and asks what it has to know of its cluster.
async fn use_own_objects(client: &Client) {
    let store = KubernetesLease::new(client.clone(), OWN);
    store.read().await.unwrap();
    let record = Record {
        holder: None,
        duration: Duration::from_secs(15),
        transitions: 0,
        acquired: k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
        yields: None,
        bid: None,
        peers: PeerReport::default(),
    };
    store.write(&record, None).await.unwrap();
    store.write(&record, Some("1")).await.unwrap();
    // It may never resolve.
    drop(tokio::time::timeout(Duration::from_millis(100), store.released()).await);
    let object = RecordObject::new(client.clone(), OWN);
    object.load().await.unwrap();
    object.store(&record::Record::default(), &None).await.unwrap();
    object.store(&record::Record::default(), &Some("1".to_owned())).await.unwrap();
    let hidden = HiddenObject::new(client.clone(), OWN);
    hidden.load().await.unwrap();
    hidden.store(&Hidden::default(), &None).await.unwrap();
    hidden.store(&Hidden::default(), &Some("1".to_owned())).await.unwrap();
    let keys = KeyStore::new(client.clone(), OWN);
    keys.load().await.unwrap_err();
    keys.store(&StoredKey { seed: Vec::new(), former: Vec::new() }, None).await.unwrap();
    keys.trusted().await.unwrap();
    identity::kube_system_uid(client).await.unwrap();
    service_network::ip_families(client, OWN).await.unwrap();
    service_network::service_ranges(client, OWN).await.unwrap();
    neighbours::look(client).await.unwrap();
}

#[tokio::test]
async fn the_granted_permissions_are_the_ones_that_are_used() {
    let api = FakeApi::default();
    let client = api.client();
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    write_for_users(&leading_writer(&api, &metrics)).await;
    use_own_objects(&client).await;

    let mut tasks = JoinSet::new();
    let caches = Caches::start(&client, &metrics, None, false, false, &mut tasks);
    caches.synced().await;
    let watches = || api.requests().iter().filter(|request| request.query.contains("watch=true")).count();
    // That of the Lease is another one.
    while watches() < 10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tasks.shutdown().await;

    let mut granted_here = granted(false, manifest::<ClusterRole>("cluster_role.yaml").rules.unwrap());
    granted_here.extend(granted(true, manifest::<Role>("role.yaml").rules.unwrap()));
    let names: BTreeSet<String> = manifest::<Role>("role.yaml")
        .rules
        .unwrap()
        .into_iter()
        .flat_map(|rule| rule.resource_names.unwrap_or_default())
        .collect();
    let ours = [lease::LEASE, RECORD, HIDDEN, SECRET, TRUSTED];
    assert_eq!(names, ours.map(str::to_owned).into());
    let needed = needed(&api.requests());
    // A permission for all namespaces includes the own namespace.
    let everywhere = |(_, group, resource, verb): &Permission| {
        granted_here.contains(&(false, group.clone(), resource.clone(), verb.clone()))
    };
    let missing: Vec<_> = needed.difference(&granted_here).filter(|needed| !everywhere(needed)).collect();
    let superfluous: Vec<_> = granted_here.difference(&needed).collect();
    assert!(missing.is_empty() && superfluous.is_empty(), "missing {missing:#?}, superfluous {superfluous:#?}");
}

/// Runs the caches until all kinds are watched that are requested, and returns the requests about one of them.
async fn watched(
    api: &FakeApi,
    metrics: &Metrics,
    labels: Option<&LabelKeys>,
    (gates, cutovers): (bool, bool),
    kind: &str,
) -> Vec<Request> {
    let mut tasks = JoinSet::new();
    let caches = Caches::start(&api.client(), metrics, labels, gates, cutovers, &mut tasks);
    caches.synced().await;
    let of_kind =
        || -> Vec<Request> { api.requests().into_iter().filter(|request| request.path.contains(kind)).collect() };
    while !of_kind().iter().any(|request| request.query.contains("watch=true")) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tasks.shutdown().await;
    of_kind()
}

fn leading_writer(api: &FakeApi, metrics: &Metrics) -> KubernetesWriter {
    let leadership = Leadership::manual(Some(tokio::time::Instant::now() + Duration::from_hours(1)));
    let publisher = Publisher::new(api.client(), "pod", metrics.clone());
    KubernetesWriter::new(api.client(), leadership, metrics.clone(), publisher)
}

/// The additional permissions for `--instance-labels` are a component of their own, so that nobody grants them without
/// need.
#[tokio::test]
async fn pods_are_read_only_if_their_labels_are_requested() {
    let api = FakeApi::default();
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let labels = "version".parse().unwrap();
    let of_pods = watched(&api, &metrics, Some(&labels), (false, false), "/pods").await;
    assert!(of_pods.iter().all(|request| request.path.ends_with("/pods")), "{of_pods:?}");
    let role: ClusterRole = manifest("../components/instance-labels/cluster_role.yaml");
    assert_eq!(needed(&of_pods), granted(false, role.rules.unwrap()));
}

/// So are those for `--readiness-gates`.
#[tokio::test]
async fn pods_behind_gates_are_read_and_their_status_is_written_only_if_gates_are_requested() {
    let api = FakeApi::default();
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
    let pod = ObjectKey::new("shop", "web-0");
    leading_writer(&api, &metrics).open_gate(&pod, "u", GateReason::Registered, "", now).await.unwrap();
    let of_pods = watched(&api, &metrics, None, (true, false), "/pods").await;
    let selected = |request: &Request| request.query.contains("labelSelector=cloudmap-mcs%2Fgate");
    assert!(of_pods.iter().all(|request| request.method == "PATCH" || selected(request)), "{of_pods:?}");
    let role: ClusterRole = manifest("../components/readiness-gates/cluster_role.yaml");
    assert_eq!(needed(&of_pods), granted(false, role.rules.unwrap()));
}

/// So are those for `--cutovers`.
#[tokio::test]
async fn cutovers_are_followed_only_if_that_is_requested() {
    let api = FakeApi::default();
    let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
    let key = ServiceKey::new("shop", "web");
    let writer = leading_writer(&api, &metrics);
    writer.apply_cutover_status(&key, "u", "1", &CutoverStatus::default()).await.unwrap();
    let of_cutovers = watched(&api, &metrics, None, (false, true), "/cutovers").await;
    let role: ClusterRole = manifest("../components/cutovers/cluster_role.yaml");
    assert_eq!(needed(&of_cutovers), granted(false, role.rules.unwrap()));
}
