//! Who runs CoreDNS, who keeps its Corefile, and whether it answers after a change.

use axum::http::Method;
use serde_json::json;

use super::{Cluster, account, complete, run_with};
use crate::coredns::tests::EKS;

#[tokio::test(start_paused = true)]
async fn apply_takes_its_change_back_if_names_of_the_cluster_fail() {
    let api = Cluster { permitted: true, ..Cluster::default() }.api();
    // The version that was written.
    api.prepare(200, json!({"metadata": {"name": "coredns", "resourceVersion": "8"}}));
    let said = run_with(&api, &["apply"], 1).await.unwrap_err();
    let hint = "the cluster's DNS was worse with the change: the pod dns answers SERVFAIL to kubernetes.default.svc.cluster.local";
    assert!(said.contains(hint), "{said}");
    let requests = api.requests();
    let writes: Vec<_> = requests.iter().filter(|request| request.method == Method::PATCH).collect();
    let [_, back] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(back.body, json!({"metadata": {"resourceVersion": "8"}, "data": {"Corefile": EKS}}));
}

#[tokio::test]
async fn apply_asks_nobody_if_nobody_wants_to_wait() {
    let api = Cluster { permitted: true, ..Cluster::default() }.api();
    let said = run_with(&api, &["apply", "--no-wait"], 0).await.unwrap();
    assert!(said.ends_with("It is read within about a minute (plugin `reload`).\n"), "{said}");
    let nobody = Cluster { permitted: true, pods: &[], ..Cluster::default() };
    let said = nobody.run(&["apply"]).await.0.unwrap();
    assert!(said.contains("unknown  whether CoreDNS answers with the change: no pod of it runs"), "{said}");
}

#[tokio::test]
async fn those_get_the_permission_as_whom_the_pods_run() {
    let cluster = Cluster { pods: &["default"], ..Cluster::default() };
    let (said, writes) = cluster.run(&["apply"]).await;
    assert!(said.is_ok(), "{said:?}");
    assert_eq!(writes[1].body["subjects"], json!([account("default"), account("dns")]));
    // Only the template has it.
    let cluster = Cluster { pods: &["default"], permitted: true, ..Cluster::default() };
    let said = cluster.run(&["check"]).await.0.unwrap_err();
    assert!(said.contains("missing  CoreDNS may not read ServiceImports"), "{said}");
}

#[tokio::test]
async fn node_local_dns_cache_is_found_under_every_name() {
    let corefile = "cluster.local:53 {\n    forward . 10.96.0.10\n    reload\n}\n".to_owned();
    for [daemon_set, map] in
        [["node-local-dns", "node-local-dns"], ["nodelocaldns", "nodelocaldns"], ["dns-cache", "dns-cache"]]
    {
        let cluster = Cluster { node_local: Some(corefile.clone()), daemon_set: Some([daemon_set, map]), ..complete() };
        let (said, writes) = cluster.run(&["apply"]).await;
        assert!(
            said.as_ref().is_ok_and(|said| said.contains(&format!("ConfigMap kube-system/{map}: written"))),
            "{said:?}"
        );
        let [write] = &writes[..] else { panic!("{writes:?}") };
        assert!(write.path.ends_with(&format!("/configmaps/{map}")), "{}", write.path);
    }
}

#[tokio::test]
async fn check_says_who_keeps_the_config_map_and_how_they_get_the_change() {
    for (metadata, hint) in [
        (
            json!({"annotations": {"argocd.argoproj.io/tracking-id": "dns:/ConfigMap:kube-system/coredns"}}),
            "the application dns of Argo CD",
        ),
        (json!({"labels": {"kustomize.toolkit.fluxcd.io/name": "dns"}}), "flux trace configmap coredns -n kube-system"),
        (json!({"labels": {"addonmanager.kubernetes.io/mode": "Reconcile"}}), "coredns-custom"),
        (json!({"managedFields": [{"manager": "Terraform", "operation": "Update"}]}), "in what Terraform reads"),
        (
            json!({"ownerReferences": [{"apiVersion": "v1", "kind": "DNS", "name": "x", "uid": "1"}]}),
            "an operator (DNS x)",
        ),
    ] {
        let cluster = Cluster { corefile: Some((EKS.to_owned(), metadata.clone())), ..Cluster::default() };
        let said = cluster.run(&["check"]).await.0.unwrap_err();
        assert!(said.contains("warning  ") && said.contains(hint), "{said}");
        let (said, writes) = cluster.run(&["apply"]).await;
        let said = said.unwrap_err();
        assert!(said.contains(hint) && said.contains("--write-managed") && writes.is_empty(), "{said}");
        // Who has the zone from them is not warned.
        let given = Cluster { corefile: Some((complete().corefile.unwrap().0, metadata)), ..complete() };
        assert!(!given.run(&["check"]).await.0.unwrap().contains("warning"));
    }
}
