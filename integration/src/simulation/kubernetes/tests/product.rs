//! The product's own clients of the Kubernetes API over the model.

use std::{sync::Arc, time::Duration};

use api::{
    ServiceImport, ServiceImportSpec, ServiceImportStatus, ServiceImportType, conditions::GateReason,
    events::EventReason, names::FieldManager,
};
use cluster::{
    Caches, ClusterWriter as _, KubernetesWriter, Leadership, Metrics,
    apply::Cause,
    events::{self, EventRecord, Publisher},
    identity,
    lease::{self, Elector, KubernetesLease, LeaseStore as _, Timing},
    objects::ObjectKey,
    record::RecordObject,
};
use k8s_openapi::{
    api::{core::v1, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
    jiff::Timestamp,
};
use ledger::record::{Record, RecordStore as _, StoreError};
use model::ServiceKey;
use serde_json::json;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::{
    super::{Fault, Scope},
    ApiServer, server, service,
};

const OWN: &str = "cloudmap-mcs-system";

fn metrics() -> Metrics {
    Metrics::new(&prometheus::Registry::new()).unwrap()
}

fn writer(server: &ApiServer, replica: &str) -> KubernetesWriter {
    let client = server.client(replica, OWN);
    let leadership = Leadership::manual(Some(Instant::now() + Duration::from_hours(24)));
    KubernetesWriter::new(client.clone(), leadership, metrics(), Publisher::new(client, replica, metrics()))
}

#[tokio::test(start_paused = true)]
async fn the_caches_follow_the_cluster() {
    let server = server();
    server.put("services", service("web")).unwrap();
    let mut tasks = JoinSet::new();
    let keys = "version".parse().unwrap();
    let caches = Caches::start(&server.client("a", OWN), &metrics(), Some(&keys), true, false, &mut tasks);
    caches.synced().await;
    assert_eq!((caches.services.len(), caches.namespaces.len()), (1, 3));
    let slice = |name: &str, by: &str| {
        json!({
            "metadata": {"namespace": "shop", "name": name, "labels": {
                "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": by,
            }},
            "addressType": "IPv4", "endpoints": [{"addresses": ["10.1.2.3"]}], "ports": [{"port": 80}],
        })
    };
    server.put("endpointslices", slice("web-1", "endpointslice-controller.k8s.io")).unwrap();
    server.put("endpointslices", slice("web-2", api::names::MANAGED_BY)).unwrap();
    server
        .put("clusterproperties", json!({"metadata": {"name": "cluster.clusterset.k8s.io"}, "spec": {"value": "c1"}}))
        .unwrap();
    server.delete("services", "shop", "web").unwrap();
    sleep(Duration::from_millis(100)).await;
    assert_eq!((caches.slices.len(), caches.properties.len(), caches.services.len()), (1, 1, 0));
    sleep(Duration::from_mins(30)).await;
    assert_eq!(caches.trouble(), None);
    assert!(tasks.try_join_next().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_the_writer_writes_is_there_and_owned_by_it() {
    let server = server();
    let writer = writer(&server, "a");
    let key = ServiceKey::new("shop", "web");
    let named = || ObjectMeta { namespace: Some("shop".into()), name: Some("web".into()), ..ObjectMeta::default() };
    let import = ServiceImport {
        metadata: named(),
        spec: ServiceImportSpec { type_: ServiceImportType::Headless, ..ServiceImportSpec::default() },
        status: None,
    };
    let made = writer.apply_service_import(&import).await.unwrap();
    let uid = made.metadata.uid.clone().unwrap();
    writer.apply_import_status(&key, &uid, &ServiceImportStatus::default()).await.unwrap();
    let status = writer.apply_import_status(&key, "another", &ServiceImportStatus::default()).await.unwrap_err();
    assert!(matches!(status.cause, Cause::Conflict(_)), "{status:?}");

    let derived = v1::Service {
        metadata: ObjectMeta { name: Some("derived".into()), ..named() },
        spec: Some(v1::ServiceSpec {
            ports: Some(vec![v1::ServicePort { port: 80, ..Default::default() }]),
            ..Default::default()
        }),
        ..Default::default()
    };
    let derived = writer.apply_derived_service(&derived).await.unwrap();
    assert_eq!(derived.spec.unwrap().cluster_ips.unwrap().len(), 1);
    server.put("services", service("taken")).unwrap();
    let taken = v1::Service {
        metadata: ObjectMeta {
            name: Some("taken".into()),
            labels: Some([("app".to_owned(), "mine".to_owned())].into()),
            ..named()
        },
        ..Default::default()
    };
    let refused = writer.apply_derived_service(&taken).await.unwrap_err();
    assert!(matches!(refused.cause, Cause::Conflict(_)), "{refused:?}");

    server.set_node_hints(false);
    let slice = discovery::EndpointSlice {
        metadata: named(),
        address_type: "IPv4".into(),
        endpoints: vec![discovery::Endpoint {
            addresses: vec!["10.0.0.1".into()],
            hints: Some(discovery::EndpointHints {
                for_nodes: Some(vec![discovery::ForNode::default()]),
                for_zones: None,
            }),
            ..Default::default()
        }],
        ..Default::default()
    };
    writer.apply_endpoint_slice(&slice).await.unwrap();
    assert!(!writer.takes_node_hints());

    server.put("serviceexports", json!({"metadata": {"namespace": "shop", "name": "web"}})).unwrap();
    writer.apply_export_conditions(&key, "any", &[], FieldManager::ExportStatus).await.unwrap_err();
    let regarding = events::export(&key, "u");
    let text = "as it happens".to_owned();
    writer.emit(EventRecord { regarding, reason: EventReason::Exported, action: "Export", text }).await;
    assert_eq!(server.list("events").len(), 1);

    writer.delete_service_import(&key, "another").await.unwrap();
    assert!(server.get("serviceimports", "shop", "web").is_some());
    writer.delete_service_import(&key, &uid).await.unwrap();
    assert!(server.get("serviceimports", "shop", "web").is_none());
}

#[tokio::test(start_paused = true)]
async fn one_replica_leads_and_the_other_takes_over_when_it_is_cut_off() {
    let server = server();
    server.put("namespaces", json!({"metadata": {"name": OWN}})).unwrap();
    let start = |replica: &str| {
        let lease = KubernetesLease::new(server.client(replica, OWN), OWN);
        let healthy = Arc::new(|| None::<String>);
        let (elector, leadership) =
            Elector::new(lease, format!("{replica}_1"), Timing::default(), healthy, None, metrics());
        (tokio::spawn(elector.run(std::future::pending())), leadership)
    };
    let (first, a) = start("a");
    a.acquired().await;
    let (second, b) = start("b");
    sleep(Duration::from_mins(2)).await;
    assert!(a.is_leader() && !b.is_leader());
    server.inject(Scope::replica("a"), Fault::Partitioned);
    while a.is_leader() {
        assert!(!b.is_leader(), "there are never two");
        sleep(Duration::from_millis(100)).await;
    }
    b.acquired().await;
    let lease = server.get("leases", OWN, "cloudmap-mcs").unwrap();
    assert_eq!((&lease["spec"]["holderIdentity"], &lease["spec"]["leaseTransitions"]), (&json!("b_1"), &json!(1)));
    first.abort();
    second.abort();
}

/// The API server would create it, as Leases are created by replacing them.
#[tokio::test(start_paused = true)]
async fn a_renewal_does_not_create_a_lease_that_was_deleted() {
    let server = server();
    server.put("namespaces", json!({"metadata": {"name": OWN}})).unwrap();
    let store = KubernetesLease::new(server.client("a", OWN), OWN);
    let record = lease::Record {
        holder: Some("a_1".to_owned()),
        duration: Duration::from_secs(15),
        transitions: 0,
        acquired: Timestamp::UNIX_EPOCH,
        yields: None,
        bid: None,
        peers: lease::PeerReport::default(),
    };
    let version = store.write(&record, None).await.unwrap();
    let version = store.write(&record, Some(&version)).await.unwrap();
    server.delete("leases", OWN, lease::LEASE).unwrap();
    assert!(matches!(store.write(&record, Some(&version)).await, Err(lease::Error::Conflict)));
    assert!(server.get("leases", OWN, lease::LEASE).is_none());
}

#[tokio::test(start_paused = true)]
async fn the_record_is_kept_by_compare_and_swap() {
    let server = server();
    server.put("namespaces", json!({"metadata": {"name": OWN}})).unwrap();
    let (a, b) = (RecordObject::new(server.client("a", OWN), OWN), RecordObject::new(server.client("b", OWN), OWN));
    assert_eq!(a.load().await.unwrap(), None);
    let version = a.store(&Record::default(), &None).await.unwrap();
    assert_eq!(b.store(&Record::default(), &None).await, Err(StoreError::Conflict));
    let next = Record { epoch: 2, ..Record::default() };
    let newer = b.store(&next, &version).await.unwrap();
    assert_eq!(a.store(&next, &version).await, Err(StoreError::Conflict));
    assert_eq!(a.load().await.unwrap(), Some((next, newer)));
}

#[tokio::test(start_paused = true)]
async fn the_cluster_knows_who_it_is() {
    let server = server();
    let uid = identity::kube_system_uid(&server.client("a", OWN)).await.unwrap();
    assert_eq!(server.get("namespaces", "", "kube-system").unwrap()["metadata"]["uid"], *uid);
}

/// The condition of ours is one of many, and the status of a pod that has taken the name of another is not ours.
#[tokio::test(start_paused = true)]
async fn a_gate_is_opened_beside_the_conditions_of_the_kubelet() {
    let server = server();
    let writer = writer(&server, "a");
    let pod = json!({
        "metadata": {"namespace": "shop", "name": "web-0", "labels": {"cloudmap-mcs/gate": "registered"}},
        "spec": {"containers": [], "readinessGates": [{"conditionType": "cloudmap-mcs/registered"}]},
    });
    server.put("pods", pod).unwrap();
    let status = json!({
        "podIPs": [{"ip": "10.1.2.3"}],
        "conditions": [{"type": "ContainersReady", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    });
    server.put_status("pods", "shop", "web-0", &status).unwrap();
    let mut tasks = JoinSet::new();
    let caches = Caches::start(&server.client("a", OWN), &metrics(), None, true, false, &mut tasks);
    caches.synced().await;
    let found = caches.gated.snapshot();
    assert!(found.len() == 1 && found[0].waits(), "{found:?}");

    let (key, now) = (ObjectKey::new("shop", "web-0"), Timestamp::UNIX_EPOCH);
    writer.open_gate(&key, &found[0].uid, GateReason::Registered, "It is there.", now).await.unwrap();
    let pod = server.get("pods", "shop", "web-0").unwrap();
    let conditions: Vec<_> =
        pod["status"]["conditions"].as_array().unwrap().iter().map(|said| [&said["type"], &said["status"]]).collect();
    assert_eq!(conditions, [["ContainersReady", "True"], ["cloudmap-mcs/registered", "True"]]);
    sleep(Duration::from_millis(100)).await;
    assert!(caches.gated.snapshot()[0].open);
    let other = writer.open_gate(&key, "another", GateReason::Registered, "", now).await.unwrap_err();
    assert!(matches!(other.cause, Cause::Conflict(_)), "{other:?}");
    tasks.shutdown().await;
}
