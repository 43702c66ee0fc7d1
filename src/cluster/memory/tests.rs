use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::*;
use crate::apply::ClusterWriter;
use api::{ServiceImportSpec, names};

fn key() -> ServiceKey {
    ServiceKey::new("ns", "web")
}

fn named(labels: &[(&str, &str)]) -> ObjectMeta {
    ObjectMeta {
        namespace: Some("ns".to_owned()),
        name: Some("web".to_owned()),
        labels: Some(labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()),
        ..ObjectMeta::default()
    }
}

fn import(labels: &[(&str, &str)]) -> ServiceImport {
    ServiceImport { metadata: named(labels), spec: ServiceImportSpec::default(), status: None }
}

#[tokio::test]
async fn writes_appear_in_the_caches_with_what_the_api_server_adds() {
    let (cluster, caches) = MemoryCluster::new();
    cluster.add_namespace("ns");
    let made = cluster
        .apply_service_import(&import(&[(names::LABEL_MANAGED_BY, names::MANAGED_BY), ("team", "a")]))
        .await
        .unwrap();
    let uid = made.metadata.uid.unwrap();
    let cached = caches.imports.get(&key()).unwrap();
    assert!(cached.managed && *cached.uid == *uid && cached.labels.get("team").is_some());

    let mut changed = import(&[(names::LABEL_MANAGED_BY, names::MANAGED_BY)]);
    changed.metadata.uid = Some(uid.clone());
    cluster.apply_service_import(&changed).await.unwrap();
    assert!(caches.imports.get(&key()).unwrap().labels.get("team").is_none());

    cluster.delete_service_import(&key(), "another").await.unwrap();
    assert!(caches.imports.get(&key()).is_some());
    cluster.delete_service_import(&key(), &uid).await.unwrap();
    assert!(caches.imports.get(&key()).is_none());
}

#[tokio::test]
async fn a_foreign_object_is_not_taken_over() {
    let (cluster, caches) = MemoryCluster::new();
    cluster.add_namespace("ns");
    cluster.put_import(import(&[]));
    let error = cluster.apply_service_import(&import(&[])).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Conflict(_)));
    assert!(!caches.imports.get(&key()).unwrap().managed);
}

#[tokio::test]
async fn nothing_is_created_without_its_namespace() {
    let (cluster, _) = MemoryCluster::new();
    assert!(matches!(cluster.apply_service_import(&import(&[])).await.unwrap_err().cause, Cause::NotFound(_)));
}

#[tokio::test]
async fn a_derived_service_gets_an_address_per_family_and_keeps_it() {
    let (cluster, caches) = MemoryCluster::new();
    cluster.add_namespace("ns");
    let spec =
        v1::ServiceSpec { ip_families: Some(vec!["IPv4".to_owned(), "IPv6".to_owned()]), ..v1::ServiceSpec::default() };
    let mut service = v1::Service { metadata: named(&[]), spec: Some(spec), status: None };
    let made = cluster.apply_derived_service(&service).await.unwrap();
    let ips = caches.services.get(&key()).unwrap().cluster_ips.clone();
    assert!(ips[0].is_ipv4() && ips[1].is_ipv6() && ips.len() == 2);
    service.metadata.uid = made.metadata.uid;
    cluster.apply_derived_service(&service).await.unwrap();
    assert_eq!(caches.services.get(&key()).unwrap().cluster_ips, ips);
}

#[tokio::test]
async fn each_manager_owns_its_conditions() {
    let (cluster, caches) = MemoryCluster::new();
    cluster.put_export(ServiceExport { metadata: named(&[]), ..ServiceExport::default() });
    let uid = caches.exports.get(&key()).unwrap().uid.clone();
    let condition = |type_: &str| Condition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: type_.to_owned(),
        message: String::new(),
        observed_generation: None,
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
    };
    let apply = async |conditions: &[Condition], manager| {
        cluster.apply_export_conditions(&key(), &uid, conditions, manager).await.unwrap();
    };
    apply(&[condition("Valid"), condition("Ready")], FieldManager::ExportStatus).await;
    apply(&[condition("Conflict")], FieldManager::ConflictStatus).await;
    apply(&[condition("Valid")], FieldManager::ExportStatus).await;
    let mut types: Vec<_> =
        caches.exports.get(&key()).unwrap().conditions.iter().map(|condition| condition.type_.to_string()).collect();
    types.sort();
    assert_eq!(types, ["Conflict", "Valid"]);
}
