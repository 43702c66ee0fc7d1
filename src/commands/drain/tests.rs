use super::*;
use cluster::fake_api::FakeApi;

fn names() -> Scope {
    Scope::Names(vec![ServiceKey::new("shop", "cart"), ServiceKey::new("shop", "pay")])
}

fn export(conditions: &Value) -> Value {
    json!({"metadata": {"namespace": "shop", "name": "cart"}, "spec": {}, "status": {"conditions": conditions}})
}

#[tokio::test]
async fn a_cluster_is_drained_by_a_property_and_no_other_field_manager_is_overruled() {
    let api = FakeApi::default();
    for _ in 0..2 {
        api.prepare(200, json!({"metadata": {"name": PROPERTY_DRAIN}, "spec": {"value": "true"}}));
    }
    ask(&api.client(), &Scope::Cluster, Some("50%".parse().unwrap())).await.unwrap();
    let requests = api.requests();
    let written = |n: usize| (requests[n].path.rsplit('/').next().unwrap(), requests[n].body["spec"]["value"].clone());
    assert_eq!(written(0), (PROPERTY_DRAIN_MIN_READY, json!("50%")), "before the drain, which goes by it");
    assert_eq!(written(1), (PROPERTY_DRAIN, json!("true")));
    assert!(
        requests
            .iter()
            .all(|it| it.query.contains("fieldManager=cloudmap-mcs-drain") && !it.query.contains("force=true"))
    );
    api.refuse(409, "Conflict", "conflict with \"argocd\": .spec.value");
    let error = format!("{:#}", ask(&api.client(), &Scope::Cluster, None).await.unwrap_err());
    assert!(error.contains("ClusterProperty drain.cloudmap-mcs.io") && error.contains("argocd"), "{error}");
}

#[tokio::test]
async fn nothing_is_annotated_if_a_name_is_wrong() {
    let api = FakeApi::default();
    api.prepare(200, export(&json!([])));
    api.refuse(404, "NotFound", "serviceexports \"pay\" not found");
    let error = ask(&api.client(), &names(), None).await.unwrap_err().to_string();
    assert!(error.contains("no ServiceExport shop/pay"), "{error}");
    assert!(api.requests().iter().all(|request| request.method == "GET"));
}

#[tokio::test]
async fn the_way_back_takes_away_what_is_there() {
    let api = FakeApi::default();
    api.prepare(200, json!({"apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Success"}));
    api.refuse(404, "NotFound", "not found");
    take_back(&api.client(), &Scope::Cluster).await.unwrap();
    for _ in 0..4 {
        api.prepare(200, export(&json!([])));
    }
    api.refuse(404, "NotFound", "there is no such property");
    take_back(&api.client(), &names()).await.unwrap();
    let requests = api.requests();
    let body = &requests[requests.len() - 2].body;
    let nothing = json!({ANNOTATION_DRAIN: null, ANNOTATION_DRAIN_MIN_READY: null});
    assert_eq!(body["metadata"]["annotations"], nothing);
}

/// Or the command would wait for what nobody asked for.
#[tokio::test]
async fn what_the_other_kind_of_drain_holds_is_said_and_not_waited_for() {
    let api = FakeApi::default();
    for _ in 0..4 {
        api.prepare(200, export(&json!([])));
    }
    api.prepare(200, json!({"metadata": {"name": PROPERTY_DRAIN}, "spec": {"value": "true"}}));
    let error = take_back(&api.client(), &names()).await.unwrap_err().to_string();
    assert!(error.contains("still drained") && error.contains("drain --all --back"), "{error}");

    let mut own = export(
        &json!([{"type": "Drained", "status": "True", "reason": "Drained", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"}]),
    );
    own["metadata"]["annotations"] = json!({ANNOTATION_DRAIN: "true"});
    api.prepare(200, json!({"metadata": {}, "items": [own]}));
    api.prepare(200, json!({"metadata": {}, "items": []}));
    let seen = look(&api.client(), &Scope::Cluster, Way::Back).await.unwrap();
    assert_eq!(seen.waits(Way::Back), None);
    assert!(seen.back().ends_with("drained by themselves: shop/cart.\n"), "{}", seen.back());
}

#[tokio::test]
async fn a_look_reads_every_export_and_what_imports_say_of_silent_clusters() {
    let api = FakeApi::default();
    let condition = |type_: &str, reason: &str| json!({"type": type_, "status": "True", "reason": reason, "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    api.prepare(200, json!({"metadata": {}, "items": [export(&json!([condition("Drained", "Drained")]))]}));
    let import = |name: &str| json!({"metadata": {"namespace": "shop", "name": name}, "spec": {"type": "ClusterSetIP", "ports": []}, "status": {"conditions": [condition("Stale", "ClusterSilent")]}});
    api.prepare(200, json!({"metadata": {}, "items": [import("cart"), import("pay")]}));
    let seen = look(&api.client(), &Scope::Cluster, Way::Out).await.unwrap();
    assert_eq!(seen.exports, [(ServiceKey::new("shop", "cart"), State::Done)]);
    assert_eq!(seen.silent, ["m"], "once for all imports");
    api.refuse(403, "Forbidden", "you may not list them");
    let error = look(&api.client(), &Scope::Cluster, Way::Out).await.unwrap_err();
    assert!(!error.may_pass());
}
