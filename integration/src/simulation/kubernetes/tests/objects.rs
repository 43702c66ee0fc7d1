use api::{ServiceExport, ServiceImport};
use k8s_openapi::api::{core::v1, discovery::v1 as discovery};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{ApiServer, ApiServerSettings, server, service, services};

fn code(error: kube::Error) -> (u16, String) {
    match error {
        kube::Error::Api(status) => (status.code, status.message.clone()),
        error => panic!("{error}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_gets_what_the_api_server_gives_it() {
    let server = server();
    let api = services(&server, "a");
    let made: v1::Service = serde_json::from_value(service("web")).unwrap();
    let made = api.create(&PostParams::default(), &made).await.unwrap();
    assert!(made.metadata.uid.is_some() && made.metadata.creation_timestamp.is_some());
    let spec = made.spec.clone().unwrap();
    assert_eq!(spec.cluster_ip.as_deref(), Some("10.96.0.2"));
    assert_eq!(spec.ip_families, Some(vec!["IPv4".to_owned()]));
    assert_eq!(code(api.create(&PostParams::default(), &made).await.unwrap_err()).0, 409);
    assert_eq!(api.get("web").await.unwrap(), made);
    assert_eq!(code(api.get("api").await.unwrap_err()), (404, "services \"api\" not found".to_owned()));

    let other = server.put("services", service("api")).unwrap();
    assert_ne!(other["metadata"]["uid"], *made.metadata.uid.as_ref().unwrap());
    assert_eq!(other["spec"]["clusterIP"], "10.96.0.3");
    server.delete("services", "shop", "web").unwrap();
    let again = server.put("services", service("web")).unwrap();
    assert_ne!(again["metadata"]["uid"], *made.metadata.uid.as_ref().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_put_of_an_old_version_is_a_conflict() {
    let server = server();
    let api = services(&server, "a");
    server.put("services", service("web")).unwrap();
    let mut first = api.get("web").await.unwrap();
    let second = first.clone();
    first.labels_mut().insert("by".to_owned(), "first".to_owned());
    let first = api.replace("web", &PostParams::default(), &first).await.unwrap();
    let (code, message) = code(api.replace("web", &PostParams::default(), &second).await.unwrap_err());
    assert!(code == 409 && message.contains("the object has been modified"), "{code} {message}");
    assert_eq!(first.spec, second.spec, "what was allocated stays");
    let same = api.replace("web", &PostParams::default(), &first).await.unwrap();
    assert_eq!(same.metadata.resource_version, first.metadata.resource_version, "nothing changed, nothing is written");
}

#[tokio::test(start_paused = true)]
async fn a_delete_is_of_the_object_meant() {
    let server = server();
    let api = services(&server, "a");
    server.put("services", service("web")).unwrap();
    let of = |uid: &str| {
        DeleteParams::background().preconditions(Preconditions { uid: Some(uid.to_owned()), resource_version: None })
    };
    assert_eq!(code(api.delete("web", &of("another")).await.unwrap_err()).0, 409);
    let uid = api.get("web").await.unwrap().uid().unwrap();
    api.delete("web", &of(&uid)).await.unwrap();
    assert_eq!(code(api.delete("web", &of(&uid)).await.unwrap_err()).0, 404);
    let writes = server.take_writes();
    let last = writes.last().unwrap();
    assert_eq!((last.by.as_str(), last.resource, last.key.1.as_str(), last.changed()), ("a", "services", "web", true));
}

#[tokio::test(start_paused = true)]
async fn an_object_with_a_finalizer_goes_when_that_does() {
    let server = server();
    let mut object = service("web");
    object["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.put("services", object).unwrap();
    server.delete("services", "shop", "web").unwrap();
    let held = server.get("services", "shop", "web").unwrap();
    assert!(held["metadata"]["deletionTimestamp"].is_string());
    server.patch("services", "shop", "web", &json!({"metadata": {"finalizers": null}})).unwrap();
    assert_eq!(server.get("services", "shop", "web"), None);
}

#[tokio::test(start_paused = true)]
async fn a_status_is_written_apart_and_counts_no_generation() {
    let server = server();
    let export = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}});
    server.put("serviceexports", export).unwrap();
    let api: Api<ServiceExport> = Api::namespaced(server.client("a", "shop"), "shop");
    let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "Because", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let patch = |conditions: &[serde_json::Value]| {
        Patch::Apply(json!({
            "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
            "metadata": {"uid": "of another object"}, "status": {"conditions": conditions},
        }))
    };
    let by = |manager: &str| PatchParams::apply(manager).force();
    api.patch_status("web", &by("one"), &patch(&[condition("Valid"), condition("Ready")])).await.unwrap();
    let both = api.patch_status("web", &by("two"), &patch(&[condition("Conflict")])).await.unwrap();
    let kinds = |export: &ServiceExport| -> Vec<String> {
        export.status.iter().flat_map(|status| &status.conditions).map(|condition| condition.type_.clone()).collect()
    };
    assert_eq!(kinds(&both), ["Valid", "Ready", "Conflict"]);
    let fewer = api.patch_status("web", &by("one"), &patch(&[condition("Valid")])).await.unwrap();
    assert_eq!((kinds(&fewer), fewer.metadata.generation), (vec!["Valid".to_owned(), "Conflict".to_owned()], Some(1)));
    let again = api.patch_status("web", &by("one"), &patch(&[condition("Valid")])).await.unwrap();
    assert_eq!(again.meta().resource_version, fewer.meta().resource_version, "the same again is no write");
    assert_eq!(code(api.patch_status("api", &by("one"), &patch(&[])).await.unwrap_err()).0, 404);
    let (code, message) =
        code(api.patch_status("web", &by("one"), &patch(&[json!({"type": "Ready"})])).await.unwrap_err());
    assert!(code == 422 && message.contains("status.conditions[1].lastTransitionTime: Required"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_server_side_apply_makes_an_object_once_and_knows_its_uid() {
    let server = server();
    let api: Api<ServiceImport> = Api::namespaced(server.client("a", "shop"), "shop");
    let import = |uid: Option<&str>| {
        Patch::Apply(json!({
            "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
            "metadata": {"name": "web", "uid": uid}, "spec": {"type": "Headless", "ports": []},
        }))
    };
    let params = PatchParams::apply("one");
    assert_eq!(code(api.patch("web", &params, &import(Some("gone"))).await.unwrap_err()).0, 409);
    let made = api.patch("web", &params, &import(None)).await.unwrap();
    assert_eq!(made.metadata.managed_fields.as_ref().unwrap()[0].manager.as_deref(), Some("one"));
    let same = api.patch("web", &params, &import(made.metadata.uid.as_deref())).await.unwrap();
    assert_eq!(same, made);
    let (code, message) = code(api.patch("web", &params, &import(Some("another"))).await.unwrap_err());
    assert!(code == 422 && message.contains("metadata.uid"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn services_get_addresses_of_the_families_that_the_cluster_has() {
    let dual = server();
    let single =
        ApiServer::new(ApiServerSettings { families: vec!["IPv4".to_owned()], ..ApiServerSettings::default() });
    let both = json!({"metadata": {"namespace": "default", "name": "web"},
        "spec": {"ipFamilyPolicy": "PreferDualStack", "ports": [{"port": 80}]}});
    let ips = |server: &ApiServer| server.put("services", both.clone()).unwrap()["spec"]["clusterIPs"].clone();
    assert_eq!(ips(&dual), json!(["10.96.0.2", "fd00:10:96::3"]));
    assert_eq!(ips(&single), json!(["10.96.0.2"]));
    assert_eq!(ips(&dual), json!(["10.96.0.2", "fd00:10:96::3"]), "kept when written again");
    dual.patch("services", "default", "web", &json!({"spec": {"clusterIPs": null, "clusterIP": "10.96.7.7"}}))
        .unwrap_err();
    let headless = json!({"metadata": {"namespace": "default", "name": "pods"},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}]}});
    assert_eq!(dual.put("services", headless).unwrap()["spec"]["clusterIPs"], json!(["None"]));
    let wrong = json!({"metadata": {"namespace": "default", "name": "v6"}, "spec": {"ipFamilies": ["IPv6"], "ports": [{"port": 80}]}});
    let refused = single.put("services", wrong).unwrap_err().to_string();
    assert!(refused.contains("not configured on this cluster"), "{refused}");
    assert!(single.get("services", "default", "v6").is_none());
    let port_less = json!({"metadata": {"namespace": "default", "name": "none"}, "spec": {}});
    assert!(single.put("services", port_less).unwrap_err().to_string().contains("spec.ports"));
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_stores_and_keeps_nothing() {
    let server = server();
    let families = cluster::service_network::ip_families(&server.client("a", "shop"), "shop").await.unwrap();
    assert_eq!(families.len(), 2);
    assert!(server.list("services").is_empty());
    assert!(server.take_writes().iter().all(|write| write.resource == "namespaces"));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_ends_takes_nothing_new_and_all_it_has_with_it() {
    let server = server();
    let api = services(&server, "a");
    server.put("services", service("web")).unwrap();
    server.delete("namespaces", "", "shop").unwrap();
    assert_eq!(server.get("namespaces", "", "shop").unwrap()["status"]["phase"], "Terminating");
    let new: v1::Service = serde_json::from_value(service("api")).unwrap();
    match api.create(&PostParams::default(), &new).await.unwrap_err() {
        kube::Error::Api(status) => {
            assert_eq!((status.code, status.details.unwrap().causes[0].reason.as_str()), (403, "NamespaceTerminating"));
        }
        error => panic!("{error}"),
    }
    api.get("web").await.unwrap();
    server.finish_namespace("shop");
    let (code, message) = code(api.create(&PostParams::default(), &new).await.unwrap_err());
    assert_eq!((code, message.as_str()), (404, "namespaces \"shop\" not found"));
    assert!(server.list("services").is_empty());
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_of_one_version() {
    let server = server();
    let api = services(&server, "a");
    for n in 0..5 {
        server.put("services", service(&format!("web-{n}"))).unwrap();
    }
    let first = api.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!((first.items.len(), first.metadata.remaining_item_count), (2, Some(3)));
    server.delete("services", "shop", "web-3").unwrap();
    let token = first.metadata.continue_.unwrap();
    let rest = api.list(&ListParams::default().continue_token(&token)).await.unwrap();
    assert_eq!(rest.items.iter().map(kube::ResourceExt::name_any).collect::<Vec<_>>(), ["web-2", "web-3", "web-4"]);
    assert_eq!(rest.metadata.resource_version, first.metadata.resource_version);
    server.compact("services");
    assert_eq!(code(api.list(&ListParams::default().continue_token(&token)).await.unwrap_err()).0, 410);
    let others = api.list(&ListParams::default().labels("app!=web-0,app!=web-1")).await.unwrap();
    assert_eq!(others.items.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_kind_whose_crd_is_not_installed_is_not_there() {
    let server = server();
    server.install("serviceexports", false);
    let api: Api<ServiceExport> = Api::all(server.client("a", "shop"));
    assert_eq!(code(api.list(&ListParams::default()).await.unwrap_err()).0, 404);
    server.install("serviceexports", true);
    assert!(api.list(&ListParams::default()).await.unwrap().items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn slices_are_held_to_their_rules_and_node_hints_to_the_version() {
    let server = server();
    let api: Api<discovery::EndpointSlice> = Api::namespaced(server.client("a", "shop"), "shop");
    let slice = |kind: &str, address: &str| {
        Patch::Apply(json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-1"}, "addressType": kind,
            "endpoints": [{"addresses": [address], "hints": {"forNodes": [{"name": "n"}]}}], "ports": [{"port": 80}],
        }))
    };
    let params = PatchParams::apply("one");
    server.set_node_hints(false);
    let (status, message) = code(api.patch("web-1", &params, &slice("IPv4", "10.0.0.1")).await.unwrap_err());
    assert!(status == 500 && message.contains("forNodes: field not declared in schema"), "{message}");
    server.set_node_hints(true);
    let made = api.patch("web-1", &params, &slice("IPv4", "10.0.0.1")).await.unwrap();
    assert_eq!(made.ports.unwrap()[0].protocol.as_deref(), Some("TCP"));
    for (kind, address) in [("IPv6", "fd00::1"), ("IPv4", "127.0.0.1"), ("IPv4", "fd00::1")] {
        assert_eq!(
            code(api.patch("web-1", &params, &slice(kind, address)).await.unwrap_err()).0,
            422,
            "{kind} {address}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_metadata_is_given_to_whoever_asks_for_no_more() {
    let server = server();
    let api = services(&server, "a");
    server.put("services", service("web")).unwrap();
    assert_eq!(api.get_metadata("web").await.unwrap().name_any(), "web");
    assert_eq!(api.list_metadata(&ListParams::default()).await.unwrap().items[0].labels()["app"], "web");
}

#[tokio::test(start_paused = true)]
async fn people_put_back_what_they_took_away_for_whoever_cannot_know_it() {
    let server = server();
    let lease = |holder: &str, transitions: u32| {
        json!({"metadata": {"namespace": "shop", "name": "lease"},
            "spec": {"holderIdentity": holder, "leaseTransitions": transitions}})
    };
    server.put("leases", lease("a_1", 0)).unwrap();
    server.put("secrets", json!({"metadata": {"namespace": "shop", "name": "key"}, "data": {"seed": "AQ=="}})).unwrap();
    let secrets = |replica: &str| Api::<v1::Secret>::namespaced(server.client(replica, "shop"), "shop");
    let (one, other) = (secrets("a"), secrets("b"));
    let before = one.get("key").await.unwrap().data;
    server.take_away("secrets", "shop", "key").unwrap();
    assert_eq!(one.get_opt("key").await.unwrap(), None, "it has read it in its term");
    server.put("leases", lease("b_1", 1)).unwrap();
    assert_eq!(other.get("key").await.unwrap().data, before);
    server.take_away("secrets", "shop", "key").unwrap();
    assert_eq!(other.get_opt("key").await.unwrap(), None);
    server.put("leases", lease("b_1", 2)).unwrap();
    assert_eq!(other.get("key").await.unwrap().data, before, "it has forgotten it");
}
