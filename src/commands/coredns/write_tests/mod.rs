//! The commands against an API server that gives prepared answers.

mod around;

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use axum::http::Method;
use serde_json::{Value, json};

use super::{Action, Run, check, edit::mark, read, tests::EKS};
use cli::{Cli, Command, CorednsCommand, CorednsWriteArgs};
use cluster::{
    coredns::{Answer, Ask, Installation, Kind, observe_pods},
    fake_api::{FakeApi, Request},
};

const ZONE: &str = "clusterset.local";

fn installation() -> Installation {
    Installation { namespace: "kube-system".into(), config_map: "coredns".into(), deployment: "coredns".into() }
}

fn account(name: &str) -> Value {
    json!({"kind": "ServiceAccount", "name": name, "namespace": "kube-system"})
}

/// What is in the cluster; `None`: nothing of the kind.
struct Cluster {
    corefile: Option<(String, Value)>,
    node_local: Option<String>,
    /// Service accounts of its pods.
    pods: &'static [&'static str],
    /// The name of a DaemonSet of NodeLocal DNSCache, and of the ConfigMap that it mounts.
    daemon_set: Option<[&'static str; 2]>,
    image: &'static str,
    defined: bool,
    /// The role and the binding are there.
    permitted: bool,
    /// Service accounts in the binding; that of the Deployment is `dns`. Without any, there is only the role.
    bound: &'static [&'static str],
}

impl Default for Cluster {
    fn default() -> Self {
        let corefile = Some((EKS.to_owned(), json!({})));
        let image = "coredns:v1.12.4-eksbuild.1";
        let (node_local, daemon_set) = (None, None);
        Self {
            corefile,
            node_local,
            pods: &["dns"],
            daemon_set,
            image,
            defined: true,
            permitted: false,
            bound: &["dns"],
        }
    }
}

impl Cluster {
    fn api(&self) -> FakeApi {
        let api = FakeApi::default();
        let map = |name: &str, text: &str, metadata: &Value| {
            let mut metadata = metadata.clone();
            metadata["name"] = name.into();
            metadata["resourceVersion"] = "7".into();
            json!({"metadata": metadata, "data": {"Corefile": text}})
        };
        let pod = json!({"serviceAccountName": "dns", "containers": [{"name": "coredns", "image": self.image}]});
        let permission = || {
            let file = include_str!("../../../../coredns/rbac.yaml");
            let (role, binding) = file.split_once("\n---\n").unwrap();
            let read = |text: &str| serde_yaml_ng::from_str::<Value>(text).unwrap();
            let mut binding = read(binding);
            binding["metadata"]["resourceVersion"] = "9".into();
            binding["subjects"] = self.bound.iter().copied().map(account).collect();
            (read(role), binding)
        };
        let crd = json!({"metadata": {"name": "serviceimports.multicluster.x-k8s.io"}, "spec": {
            "group": "multicluster.x-k8s.io", "names": {"kind": "ServiceImport", "plural": "serviceimports"},
            "scope": "Namespaced", "versions": [{"name": "v1alpha1", "served": true, "storage": false}]}});
        let deployment = json!({"metadata": {"name": "coredns"},
            "spec": {"selector": {}, "template": {"metadata": {}, "spec": pod}}});
        let node_local = |name: &str| {
            let there = self.daemon_set.map_or("node-local-dns", |[_, map]| map) == name;
            self.node_local.as_ref().filter(|_| there).map(|text| map(name, text, &json!({})))
        };
        let list = |items: Vec<Value>| json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items});
        let pods = self.pods.iter().map(|account| {
            json!({"metadata": {"name": account}, "spec": {"serviceAccountName": account, "containers": [{"name": "coredns"}],
                "volumes": [{"name": "config", "configMap": {"name": "coredns"}}]}})
        });
        let daemon_sets = self.daemon_set.iter().map(|[name, map]| {
            let pod = json!({"containers": [{"name": "it", "image": "dns/k8s-dns-node-cache:1.26"}],
                "volumes": [{"name": "config", "configMap": {"name": map}}]});
            json!({"metadata": {"name": name}, "spec": {"selector": {}, "template": {"spec": pod}}})
        });
        let rights = || {
            let binding = (self.permitted && !self.bound.is_empty()).then(|| permission().1);
            [self.permitted.then(|| permission().0), binding]
        };
        let mut answers = vec![
            self.corefile.as_ref().map(|(text, metadata)| map("coredns", text, metadata)),
            node_local("node-local-dns"),
            node_local("nodelocaldns"),
            Some(deployment),
            None,
            self.defined.then_some(crd),
        ];
        answers.extend(rights());
        answers.push(Some(list(pods.collect())));
        // As whom it runs is compared with the permission once more if the pods say something else.
        if self.pods.iter().any(|account| *account != "dns") {
            answers.extend(rights());
        }
        answers.push(Some(list(daemon_sets.collect())));
        answers.extend(self.daemon_set.filter(|[_, map]| *map == "dns-cache").map(|_| node_local("dns-cache")));
        for answer in answers {
            match answer {
                Some(object) => api.prepare(200, object),
                None => api.refuse(404, "NotFound", "not found"),
            }
        }
        api
    }

    /// What the command prints, or why it fails; and its writes.
    async fn run(&self, command: &[&str]) -> (Result<String, String>, Vec<Request>) {
        let api = self.api();
        let result = run(&api, command).await;
        let writes = api.requests().into_iter().filter(|request| request.method != Method::GET).collect();
        (result, writes)
    }
}

/// Every pod answers; after so many questions, with SERVFAIL.
struct Pods {
    answers: usize,
    asked: AtomicUsize,
}

#[async_trait]
impl Ask for Pods {
    async fn ask(&self, pod: &str, port: u16, name: &str, _: Kind) -> Result<Answer, String> {
        assert_eq!(port, 53);
        assert!(["kubernetes.default.svc.cluster.local", "dns-version.clusterset.local"].contains(&name), "{name}");
        assert!(!pod.is_empty());
        let good = self.asked.fetch_add(1, Ordering::Relaxed) < self.answers;
        Ok(if good { Answer { code: 0, records: 1 } } else { Answer { code: 2, records: 0 } })
    }
}

async fn run(api: &FakeApi, command: &[&str]) -> Result<String, String> {
    run_with(api, command, usize::MAX).await
}

async fn run_with(api: &FakeApi, command: &[&str], answers: usize) -> Result<String, String> {
    let args = <Cli as clap::Parser>::try_parse_from(["cloudmap-mcs", "coredns"].iter().chain(command)).unwrap();
    let Command::Coredns(command) = args.command else { panic!("{command:?}") };
    let client = api.client();
    let mut out = Vec::new();
    let write = async |action, args: CorednsWriteArgs, out: &mut Vec<u8>| {
        let values = args.addon_values.as_deref().map(read).transpose()?;
        let (asker, installation) = (Pods { answers, asked: AtomicUsize::new(0) }, installation());
        let run = Run { client: &client, asker: &asker, action, args: &args, installation: &installation };
        let observed = observe_pods(&client, &installation).await?;
        let values = run.write(&observed, values.as_deref(), out).await?;
        if let Some(values) = values {
            *out = values.into_bytes();
        }
        Ok(())
    };
    let result = match command {
        CorednsCommand::Check(args) => check(&observe_pods(&client, &installation()).await.unwrap(), &args, &mut out),
        CorednsCommand::Apply(args) => write(Action::Apply, args, &mut out).await,
        CorednsCommand::Remove(args) => write(Action::Remove, args, &mut out).await,
    };
    let out = String::from_utf8(out).unwrap();
    result.map(|()| out.clone()).map_err(|error| format!("{out}error: {error:#}"))
}

/// With the zone.
fn complete() -> Cluster {
    let corefile = super::edit::add(EKS, ZONE).unwrap().text;
    Cluster { corefile: Some((corefile, json!({}))), permitted: true, ..Cluster::default() }
}

#[tokio::test]
async fn check_names_each_missing_thing_with_its_remedy() {
    let nothing = Cluster { defined: false, image: "coredns:1.11.1", ..Cluster::default() };
    let said = nothing.run(&["check"]).await.0.unwrap_err();
    let expected = "\
missing  ServiceImports are not defined, and CoreDNS does not become ready while it cannot list them
         -> cloudmap-mcs crds | kubectl apply --server-side -f -
missing  CoreDNS is 1.11.1, which has no option `multicluster`
         -> update it to 1.12.2 or later
missing  CoreDNS may not read ServiceImports
         -> cloudmap-mcs coredns apply
missing  the Corefile, line 7: `kubernetes` does not answer for clusterset.local
         -> cloudmap-mcs coredns apply
missing  the Corefile, line 7: `kubernetes` has no option `multicluster clusterset.local`
         -> cloudmap-mcs coredns apply
missing  the Corefile, line 13: `cache` has no `disable success clusterset.local`
         -> cloudmap-mcs coredns apply
missing  the Corefile, line 13: `cache` has no `disable denial clusterset.local`
         -> cloudmap-mcs coredns apply
error: names in clusterset.local do not resolve yet: 7 of 7 points are missing";
    assert_eq!(said, expected);

    let (said, writes) = complete().run(&["check"]).await;
    let expected = "\
ok       ServiceImports are defined
ok       CoreDNS is 1.12.4
ok       CoreDNS may read ServiceImports
ok       the Corefile has clusterset.local
";
    assert_eq!((said.as_deref(), writes.len()), (Ok(expected), 0));

    let none = Cluster { corefile: None, image: "coredns@sha256:00", ..complete() };
    let said = none.run(&["check"]).await.0.unwrap_err();
    assert!(said.contains("there is no ConfigMap kube-system/coredns with a Corefile"), "{said}");
    assert!(said.contains("unknown  the version of CoreDNS cannot be told"), "{said}");
}

#[tokio::test]
async fn the_documented_output_is_that_of_the_commands() {
    let document = include_str!("../../../../coredns/README.md");
    let shown: Vec<_> = document.split("```console\n$ cloudmap-mcs coredns ").skip(1).collect();
    assert_eq!(shown.len(), 3);
    for shown in shown {
        let (command, output) = shown.split("```").next().unwrap().split_once('\n').unwrap();
        let cluster = if command == "remove" { complete() } else { Cluster::default() };
        let said = cluster.run(&[command]).await.0.unwrap_or_else(|failed| failed + "\n");
        assert_eq!(said, output, "{command}");
    }
}

#[tokio::test]
async fn apply_permits_then_writes_the_version_that_it_has_read_and_a_second_time_nothing() {
    let (said, writes) = Cluster::default().run(&["apply"]).await;
    let said = said.unwrap();
    assert!(said.starts_with("--- kube-system/coredns\n+++ kube-system/coredns\n@@ "), "{said}");
    assert!(said.contains("ConfigMap kube-system/coredns: written. It is read within about a minute"), "{said}");
    let paths: Vec<_> = writes.iter().map(|request| (request.method.as_str(), &*request.path)).collect();
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let expected = [
        ("PATCH", format!("{rbac}/clusterroles/cloudmap-mcs-coredns")),
        ("PATCH", format!("{rbac}/clusterrolebindings/cloudmap-mcs-coredns")),
        ("PATCH", "/api/v1/namespaces/kube-system/configmaps/coredns".to_owned()),
    ];
    assert_eq!(paths, expected.each_ref().map(|(method, path)| (*method, &**path)));
    assert_eq!(writes[1].body["subjects"], json!([account("dns")]));
    let text = super::edit::add(EKS, ZONE).unwrap().text;
    assert_eq!(writes[2].body, json!({"metadata": {"resourceVersion": "7"}, "data": {"Corefile": text}}));
    assert_eq!(writes[2].content_type, "application/merge-patch+json");

    let (said, writes) = complete().run(&["apply"]).await;
    assert_eq!((said.as_deref(), writes.len()), (Ok("There is nothing to change.\n"), 0));
}

#[tokio::test]
async fn remove_takes_the_zone_away_before_the_permission() {
    let (said, writes) = complete().run(&["remove"]).await;
    assert!(said.unwrap().contains(&format!("-      multicluster clusterset.local{}\n", mark(ZONE))));
    assert_eq!(writes[0].body["data"]["Corefile"], EKS);
    assert_eq!(writes[1..].iter().map(|request| request.method.as_str()).collect::<Vec<_>>(), ["DELETE", "DELETE"]);
    assert!(writes[1].path.ends_with("clusterrolebindings/cloudmap-mcs-coredns"), "{}", writes[1].path);
    // Another zone, in which imports are read, too.
    let corefile =
        Some((complete().corefile.unwrap().0.replace("multicluster clus", "multicluster other clus"), json!({})));
    assert_eq!(Cluster { corefile, ..complete() }.run(&["remove"]).await.1.len(), 1);
    let nothing = Cluster::default().run(&["remove"]).await;
    assert_eq!((nothing.0.as_deref(), nothing.1.len()), (Ok("There is nothing to change.\n"), 0));
}

#[tokio::test]
async fn remove_takes_away_the_role_that_a_failed_removal_left() {
    let (said, writes) = Cluster { permitted: true, bound: &[], ..Cluster::default() }.run(&["remove"]).await;
    assert!(said.unwrap().contains("ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: deleted.\n"));
    let role = writes.iter().find(|request| request.path.ends_with("clusterroles/cloudmap-mcs-coredns"));
    assert_eq!(role.map(|request| request.method.as_str()), Some("DELETE"));
}

#[tokio::test]
async fn apply_for_another_coredns_keeps_the_subjects_that_are_there() {
    let cluster = Cluster { permitted: true, bound: &["coredns", "somebody"], ..Cluster::default() };
    let (said, writes) = cluster.run(&["apply"]).await;
    assert!(said.unwrap().contains("cloudmap-mcs-coredns: written. Others keep the permission.\n"));
    let body = &writes[1].body;
    assert_eq!(body["subjects"], json!([account("coredns"), account("somebody"), account("dns")]));
    assert_eq!(body["metadata"]["resourceVersion"], "9", "the subjects are those of this version");
}

#[tokio::test]
async fn remove_keeps_the_permission_of_another_coredns() {
    let (said, writes) = Cluster { bound: &["coredns", "dns"], ..complete() }.run(&["remove"]).await;
    assert!(said.unwrap().contains("cloudmap-mcs-coredns: written. Others keep the permission.\n"));
    let [corefile, binding] = &writes[..] else { panic!("{writes:?}") };
    assert_eq!(corefile.body["data"]["Corefile"], EKS);
    assert!(binding.path.ends_with("clusterrolebindings/cloudmap-mcs-coredns"), "{}", binding.path);
    assert_eq!((binding.method.as_str(), &binding.body["subjects"]), ("PATCH", &json!([account("coredns")])));
    assert_eq!(binding.body["metadata"]["resourceVersion"], "9");
    // The last one deletes the version that it has read.
    let writes = complete().run(&["remove"]).await.1;
    assert_eq!(writes[1].body["preconditions"]["resourceVersion"], "9");
}

#[tokio::test]
async fn who_was_faster_keeps_the_permission() {
    let api = Cluster { permitted: true, bound: &["coredns"], ..Cluster::default() }.api();
    api.prepare(200, json!({"metadata": {"name": "cloudmap-mcs-coredns"}}));
    api.refuse(409, "Conflict", "the object has been modified");
    let said = run(&api, &["apply"]).await.unwrap_err();
    let hint = "somebody else has written the ClusterRoleBinding cloudmap-mcs-coredns just now: run this again";
    assert!(said.contains(hint), "{said}");
}

#[tokio::test]
async fn a_dry_run_shows_the_same_and_writes_nothing() {
    let (said, writes) = Cluster::default().run(&["apply", "--dry-run"]).await;
    let said = said.unwrap();
    assert!(said.contains("+      multicluster clusterset.local #") && said.contains("Nothing is written"), "{said}");
    assert!(
        said.ends_with("Without it: ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: created.\n"),
        "{said}"
    );
    assert_eq!(writes.len(), 0);
}

#[tokio::test]
async fn a_remedy_leads_to_the_same_cluster_and_the_same_coredns() {
    let flags = ["check", "--context", "a", "--config-map", "dns", "--zone", "x.example"];
    let nothing = Cluster { defined: false, ..Cluster::default() };
    let said = nothing.run(&flags).await.0.unwrap_err();
    assert!(said.contains("-> cloudmap-mcs crds | kubectl --context a apply"), "{said}");
    let remedy = "-> cloudmap-mcs coredns apply --context a --config-map dns --zone x.example\n";
    assert!(said.contains(remedy) && !said.contains("coredns apply\n"), "{said}");
    let said = nothing.run(&["apply", "--kubeconfig", "file"]).await.0.unwrap_err();
    assert!(said.contains("First: cloudmap-mcs crds | kubectl --kubeconfig file apply"), "{said}");
    let of_addon = json!({"managedFields": [{"manager": "eks", "operation": "Apply"}]});
    let whole = super::edit::add(EKS, ZONE).unwrap().text;
    for (action, corefile) in [("apply", EKS), ("remove", whole.as_str())] {
        let managed = Cluster { corefile: Some((corefile.to_owned(), of_addon.clone())), ..Cluster::default() };
        let said = managed.run(&[action, "--context", "a"]).await.0.unwrap_err();
        let command = format!("\n  cloudmap-mcs coredns {action} --context a --addon-values values > values.json\n");
        assert!(said.contains(&command), "{said}");
    }
}

#[tokio::test]
async fn nothing_is_written_with_which_coredns_would_not_start() {
    for (cluster, hint) in [
        (Cluster { defined: false, ..Cluster::default() }, "First: cloudmap-mcs crds | kubectl apply"),
        (Cluster { image: "coredns:v1.11.4-eksbuild.2", ..Cluster::default() }, "CoreDNS is 1.11.4"),
        (Cluster { corefile: None, ..Cluster::default() }, "there is no ConfigMap kube-system/coredns"),
        (Cluster { corefile: Some((".:53 {\n".into(), json!({}))), ..Cluster::default() }, "line 1: this brace"),
    ] {
        let (said, writes) = cluster.run(&["apply"]).await;
        let said = said.unwrap_err();
        assert!(said.contains(hint) && writes.is_empty(), "{said} {writes:?}");
    }
}

#[tokio::test]
async fn apply_says_that_the_version_cannot_be_told() {
    let cluster = Cluster { image: "coredns@sha256:00", ..Cluster::default() };
    let (said, writes) = cluster.run(&["apply"]).await;
    let hint = "unknown  the version of CoreDNS cannot be told from its image coredns@sha256:00: it needs 1.12.2\n---";
    assert!(said.as_deref().unwrap().starts_with(hint), "{said:?}");
    assert_eq!(writes.len(), 3);
}

#[tokio::test]
async fn who_was_faster_is_not_overwritten() {
    let api = Cluster { permitted: true, ..Cluster::default() }.api();
    api.refuse(409, "Conflict", "the object has been modified");
    let said = run(&api, &["apply"]).await.unwrap_err();
    assert!(
        said.contains("somebody else has written the ConfigMap kube-system/coredns just now: run this again"),
        "{said}"
    );
}

#[tokio::test]
async fn what_somebody_else_keeps_is_written_only_on_demand() {
    for (metadata, hint) in [
        (json!({"managedFields": [{"manager": "eks", "operation": "Apply"}]}), "aws eks update-addon"),
        (json!({"annotations": {"meta.helm.sh/release-name": "coredns"}}), "values of the chart"),
        (json!({"labels": {"objectset.rio.cattle.io/hash": "00"}}), "k3s"),
    ] {
        let cluster = Cluster { corefile: Some((EKS.to_owned(), metadata)), ..Cluster::default() };
        let (said, writes) = cluster.run(&["apply"]).await;
        let said = said.unwrap_err();
        assert!(said.contains(hint) && said.contains("--write-managed") && writes.is_empty(), "{said} {writes:?}");
        let (said, writes) = cluster.run(&["apply", "--write-managed"]).await;
        assert_eq!(writes.len(), 3, "{said:?}");
    }
    // EKS gives every CoreDNS of its this label, with the add-on or without.
    let label = json!({"labels": {"eks.amazonaws.com/component": "coredns"}});
    let plain = Cluster { corefile: Some((EKS.to_owned(), label)), ..Cluster::default() };
    assert_eq!(plain.run(&["apply"]).await.1.len(), 3);
}

#[tokio::test]
async fn the_add_on_gets_its_values_with_the_corefile_and_the_config_map_stays() {
    let managed = json!({"managedFields": [{"manager": "eks", "operation": "Apply"}]});
    let cluster = Cluster { corefile: Some((EKS.to_owned(), managed)), ..Cluster::default() };
    let file = std::env::temp_dir().join(format!("cloudmap-mcs-values-{}", std::process::id()));
    let path = file.to_str().unwrap();
    let own = EKS.replace("cache 30", "cache 10");
    let added = |text: &str| super::edit::add(text, ZONE).unwrap().text;
    for (values, expected) in [
        ("None\n".to_owned(), json!({"corefile": added(EKS)})),
        ("{\"replicaCount\": 3}".to_owned(), json!({"replicaCount": 3, "corefile": added(EKS)})),
        ("replicaCount: 3\n".to_owned(), json!({"replicaCount": 3, "corefile": added(EKS)})),
        (json!({"corefile": own}).to_string(), json!({"corefile": added(&own)})),
    ] {
        std::fs::write(&file, values).unwrap();
        let (said, writes) = cluster.run(&["apply", "--addon-values", path]).await;
        assert_eq!(serde_json::from_str::<Value>(&said.unwrap()).unwrap(), expected);
        assert_eq!(writes.len(), 2, "the permission alone");
    }
    for (values, expected) in [
        (json!({"replicaCount": 3}), json!({"replicaCount": 3})),
        (json!({"corefile": added(&own)}), json!({"corefile": own})),
    ] {
        std::fs::write(&file, values.to_string()).unwrap();
        let said = cluster.run(&["remove", "--addon-values", path]).await.0.unwrap();
        assert_eq!(serde_json::from_str::<Value>(&said).unwrap(), expected);
    }
    // A Helm release may keep the Corefile of NodeLocal DNSCache.
    let (_, writes) = cluster.run(&["apply", "--addon-values", path, "--write-managed"]).await;
    assert_eq!(writes.len(), 2, "the permission alone");
    for (values, hint) in [("[]", "a JSON object"), ("{\"addon\": {}}", "--query"), ("{", "neither JSON nor YAML")] {
        std::fs::write(&file, values).unwrap();
        let said = cluster.run(&["apply", "--addon-values", path]).await.0.unwrap_err();
        assert!(said.contains(hint), "{said}");
    }
    std::fs::remove_file(&file).unwrap();
    let said = cluster.run(&["apply", "--addon-values", path]).await.0.unwrap_err();
    assert!(said.contains("failed to read"), "{said}");
}

#[tokio::test]
async fn node_local_dns_cache_is_checked_and_changed_too() {
    let corefile = "cluster.local:53 {\n    forward . 10.96.0.10\n}\n.:53 {\n    forward . /etc/resolv.conf\n}\n";
    let cluster = Cluster { node_local: Some(corefile.to_owned()), ..complete() };
    let said = cluster.run(&["check"]).await.0.unwrap_err();
    assert!(
        said.contains("missing  the Corefile of NodeLocal DNSCache, line 1: only cluster.local is forwarded"),
        "{said}"
    );
    let (said, writes) = cluster.run(&["apply"]).await;
    assert!(
        said.unwrap()
            .contains("It has no plugin `reload`: kubectl -n kube-system rollout restart daemonset node-local-dns")
    );
    let [write] = &writes[..] else { panic!("{writes:?}") };
    assert!(write.path.ends_with("/configmaps/node-local-dns"), "{}", write.path);
    let text = write.body["data"]["Corefile"].as_str().unwrap();
    let added = "}\nclusterset.local:53 { # cloudmap-mcs added clusterset.local\n    forward . 10.96.0.10\n}\n.:53 {";
    assert!(text.contains(added), "{text}");
}
