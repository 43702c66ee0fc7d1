//! What is installed. The Helm chart, as the real helm renders it: the same objects as `kubectl kustomize`, every flag, values
//! that are refused. And `config/` as kustomize reads it from a URL.
//!
//! `HELM` names the program; `make test` compiles it (`testbed peer helm`).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints for whoever runs it"
)]

#[path = "install/manifests.rs"]
mod manifests;
#[path = "install/repository.rs"]
mod repository;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use self::manifests::*;
use clap::Parser as _;
use cli::Cli;
use serde::Deserialize as _;
use serde_json::{Value, json};

const NAMESPACE: &str = "cloudmap-mcs-system";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// A value for every flag.
fn every_flag() -> Value {
    let mut flags = json!({
        "clusterId": "cluster-1", "clustersetId": "my-set", "region": "eu-central-1",
        "assumeRoleArn": "arn:aws:iam::111122223333:role/registry", "assumeRoleExternalId": "x1",
        "cloudmapEndpoint": "http://192.0.2.1:8700", "instances": "annotated", "instancesNamespace": "internal", "createDnsNamespaces": "vpc-0123456789abcdef0",
        "instanceLabels": ["version", "app.kubernetes.io/name"], "driftCallsPerSecond": 2.5,
        "readinessGates": true, "gateTimeout": "2m", "cutovers": true, "hideTasks": true, "settle": "1m",
        "domainFilter": ["example.org", ".internal"], "awsZoneType": "private", "txtOwnerId": "eks",
        "policy": "upsert-only", "dryRun": true, "registrationPolicy": "granted", "namespaceQuota": "names=2000,records=9000",
        "claimDelay": "500ms", "home": "eu",
        "registries": {"eu": {"region": "eu-central-1"}, "us": {"region": "us-east-1", "roleArn": "arn:aws:iam::111122223333:role/registry"}},
    });
    // The macro would recurse too deeply for all at once.
    let more = json!({
        "exportNamespaces": "team in (a, b),!private", "importFrom": ["{namespace}", "internal"],
        "importCallsPerSecond": 10, "closedNamespaces": ["default", "team-*"], "awsMcsCompat": false, "typeNotice": "1h", "clusterSelectors": "local-first", "trust": "open", "join": "approve", "stream": "off",
        "probe": "off", "streamPort": 7000, "streamAddresses": ["192.0.2.7", "2001:db8::7"],
        "ledgerTick": "5s", "staleClusterTtl": "1h", "remoteMemory": 256, "derivedName": "{name}-global",
        "guardPrometheus": "http://prometheus.monitoring:9090", "listen": "0.0.0.0:9090", "pageListen": "[::]:8090",
        "concurrency": 16, "log": "debug", "logFormat": "json",
    });
    flags.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
    flags
}

/// The schema has every flag: `src/tests/chart.rs` shows it.
#[test]
fn every_flag_is_every_flag_of_the_schema() {
    let schema = std::fs::read_to_string(root().join("config/chart/values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let names = |flags: &Value| flags.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&every_flag()), names(&schema["properties"]["config"]["properties"]), "here, then in the schema");
}

#[test]
fn it_passes_helms_own_checks() {
    let Some(mut helm) = helm() else { return };
    let values = Values::new(&json!({"config": every_flag(), "networkPolicy": {"egress": true}}));
    output(helm.args(["lint", "--strict", &chart(), "--values"]).arg(&values.0)).unwrap();
}

#[test]
fn its_defaults_are_the_objects_of_kustomize() {
    let Some(objects) = rendered(&json!({})) else { return };
    assert_same(objects, &kustomized("config/default"));
}

#[test]
fn its_parts_are_the_objects_of_kustomize() {
    let Some(mut objects) = rendered(&json!({"crds": {"enabled": false}})) else { return };
    objects.retain(|[_, kind, ..], _| kind != "CustomResourceDefinition");
    assert_same(objects, &kustomized("config/controller"));

    for (name, config) in [
        ("instance-labels", json!({"instanceLabels": ["version"]})),
        ("readiness-gates", json!({"readinessGates": true})),
        ("cutovers", json!({"cutovers": true})),
    ] {
        let Some(objects) = rendered(&json!({"config": config})) else { return };
        let component = kustomized(&format!("config/components/{name}"));
        assert_eq!(component.len(), 2);
        let (objects, mut compared) = (plain(objects), 0);
        for (key, object) in objects {
            if let Some(theirs) = component.get(&key) {
                assert_eq!(object["rules"], theirs["rules"]);
                assert_eq!(object["roleRef"], theirs["roleRef"]);
                assert_eq!(object["subjects"], theirs["subjects"]);
                compared += 1;
            }
        }
        assert_eq!(compared, 2, "{name}");
    }
}

#[test]
fn its_monitoring_is_the_component_of_kustomize() {
    // Who installs the component writes its own address in there.
    let runbooks = "https://git.example.org/cloudmap-mcs/docs/alerts.md";
    let values = json!({"monitoring": {"enabled": true, "runbooks": runbooks}});
    let Some(objects) = rendered(&values) else { return };
    let mut component = kustomized("config/components/monitoring");
    for object in component.values_mut() {
        let text = object.to_string();
        let placed = text.replace("https://github.com/OWNER/cloudmap-mcs/blob/main/docs/alerts.md", runbooks);
        *object = serde_json::from_str(&placed).unwrap();
    }
    assert_eq!(component.len(), 3);
    let mut ours = plain(objects);
    ours.retain(|key, _| component.contains_key(key));
    for (key, object) in &mut ours {
        // A component does not know of the label of all parts, which an overlay gives them.
        let labels = object["metadata"]["labels"].as_object_mut().unwrap();
        assert_eq!(labels.remove("app.kubernetes.io/part-of"), Some("cloudmap-mcs".into()));
        if labels.is_empty() {
            object["metadata"].as_object_mut().unwrap().remove("labels");
        }
        assert_eq!(*object, component[key], "{key:?}: helm on the left, kustomize on the right");
    }
    assert_eq!(ours.len(), 3);
}

#[test]
fn a_packaged_chart_renders_the_same() {
    let (Some(mut helm), Some(from_folder)) = (helm(), render(&chart(), &json!({}))) else { return };
    let folder = scratch("chart");
    output(helm.args(["package", &chart(), "--destination"]).arg(&folder)).unwrap();
    let package = folder.join(format!("cloudmap-mcs-{}.tgz", env!("CARGO_PKG_VERSION")));
    let links = output(Command::new("tar").arg("--list").arg("--verbose").arg("--file").arg(&package)).unwrap();
    assert!(links.lines().all(|line| line.starts_with('-') || line.starts_with('d')), "no links: {links}");
    let from_package = render(&package.display().to_string(), &json!({})).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(parse(&from_folder.unwrap()), parse(&from_package.unwrap()));
}

#[test]
fn every_flag_reaches_the_controller() {
    let mut config = every_flag();
    // Some exclude others.
    config["awsMcsCompat"] = true.into();
    let mut without = |flag: &str| config.as_object_mut().unwrap().remove(flag).unwrap();
    let others = json!({
        "instancesNamespace": without("instancesNamespace"), "dryRun": false, "home": without("home"),
        "registries": without("registries"),
    });
    for (config, count) in [(&config, 46), (&others, 4)] {
        let Some(objects) = rendered(&json!({"config": config})) else { return };
        let data = &find(&objects, "ConfigMap", "cloudmap-mcs-config").unwrap()["data"];
        let flags: Vec<_> = data.as_object().unwrap().iter().collect();
        assert_eq!(flags.len(), count, "{data}");
        let mut command = vec!["cloudmap-mcs".to_owned(), "run".to_owned()];
        for (variable, value) in flags {
            let flag = variable.strip_prefix("CLOUDMAP_MCS_").unwrap().to_lowercase().replace('_', "-");
            match value.as_str().unwrap() {
                "true" => command.push(format!("--{flag}")),
                "false" => {}
                value => command.push(format!("--{flag}={value}")),
            }
        }
        Cli::try_parse_from(&command).unwrap_or_else(|error| panic!("{command:?}: {error}"));
    }
}

#[test]
fn pods_start_anew_when_settings_change_and_listen_where_they_are_asked() {
    let annotations = |values: &Value| {
        let objects = rendered(values)?;
        Some(find(&objects, "Deployment", "cloudmap-mcs")?["spec"]["template"]["metadata"]["annotations"].clone())
    };
    let Some(of_5s) = annotations(&json!({"config": {"ledgerTick": "5s"}})) else { return };
    assert_ne!(Some(of_5s), annotations(&json!({"config": {"ledgerTick": "10s"}})));

    let objects = rendered(&json!({"config": {"listen": "[::]:9090"}})).unwrap();
    let deployment = find(&objects, "Deployment", "cloudmap-mcs").unwrap();
    assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"], 9090);
    let service = find(&objects, "Service", "cloudmap-mcs").unwrap();
    assert_eq!(service["spec"]["ports"][0]["port"], 9090);
    assert_eq!(service["metadata"]["annotations"]["prometheus.io/port"], "9090");
    let policy = find(&objects, "NetworkPolicy", "cloudmap-mcs").unwrap();
    assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["port"], 9090);
}

/// What listens on loopback is reached by `kubectl port-forward` only, which no policy stops.
#[test]
fn the_network_policy_lets_in_who_looks_at_the_page_unless_it_is_for_port_forwarding_only() {
    for (config, ports) in [
        (json!({"pageListen": "[::]:8090"}), vec![8080, 8090]),
        (json!({"pageListen": "0.0.0.0:9000"}), vec![8080, 9000]),
        (json!({"pageListen": "127.0.0.1:8090"}), vec![8080]),
        (json!({"pageListen": "[::1]:8090"}), vec![8080]),
        (json!({}), vec![8080]),
    ] {
        let from = json!([{"podSelector": {}}]);
        let values = json!({"config": config, "networkPolicy": {"from": from}});
        let Some(objects) = rendered(&values) else { return };
        let ingress = &find(&objects, "NetworkPolicy", "cloudmap-mcs").unwrap()["spec"]["ingress"];
        let open = ingress[0]["ports"].as_array().unwrap().iter().map(|port| port["port"].as_i64().unwrap());
        assert_eq!(open.collect::<Vec<_>>(), ports, "{config}");
        assert_eq!(ingress[0]["from"], from);
        assert_eq!(ingress.as_array().unwrap().len(), 2, "{ingress}");
    }
}

#[test]
fn alerts_tell_clusters_apart_by_their_label_and_link_nowhere_until_the_owner_is_known() {
    let rules = |values: Value| {
        let objects = rendered(&values)?;
        let rules = &find(&objects, "PrometheusRule", "cloudmap-mcs")?["spec"]["groups"][0]["rules"];
        Some(rules.as_array()?.clone())
    };
    let monitoring = json!({"enabled": true, "clusterLabel": "cluster"});
    let Some(many) = rules(json!({"monitoring": monitoring})) else { return };
    assert!(many.len() > 20);
    for rule in &many {
        let expression = rule["expr"].as_str().unwrap();
        for grouped in ["by (", "on ("] {
            for labels in expression.split(grouped).skip(1) {
                assert!(labels.starts_with("cluster"), "two clusters would count as one: {expression}");
            }
        }
        assert!(rule["annotations"].get("runbook_url").is_none(), "{rule}");
    }
    let down = many.iter().find(|rule| rule["alert"] == "CloudmapMcsDown").unwrap()["expr"].as_str().unwrap();
    assert!(down.contains("unless on (cluster)"), "one of many clusters may be missing: {down}");

    let one = rules(json!({"monitoring": {"enabled": true}})).unwrap();
    assert!(one.iter().all(|rule| !rule["expr"].as_str().unwrap().contains("cluster,")));
}

#[test]
fn by_default_only_namespaces_that_scrape_reach_the_admin_port_and_nothing_limits_what_the_controller_reaches() {
    let policy = |values: &Value| Some(find(&rendered(values)?, "NetworkPolicy", "cloudmap-mcs")?["spec"].clone());
    let Some(spec) = policy(&json!({})) else { return };
    let scrapes = json!([{"namespaceSelector": {"matchLabels": {"cloudmap-mcs/scrapes": "true"}}}]);
    assert_eq!(spec["ingress"][0]["from"], scrapes);
    assert!(spec["ingress"][1].get("from").is_none(), "leaders of other clusters prove who they are: {spec}");
    assert_eq!(spec["policyTypes"], json!(["Ingress"]));
    assert!(spec.get("egress").is_none(), "{spec}");

    let open = policy(&json!({"networkPolicy": {"from": []}})).unwrap();
    assert!(open["ingress"][0].get("from").is_none(), "{open}");
    let both = policy(&json!({"networkPolicy": {"egress": true}})).unwrap();
    assert_eq!(both["policyTypes"], json!(["Ingress", "Egress"]));
    assert_eq!(both["egress"].as_array().unwrap().len(), 4, "{both}");
    let off = rendered(&json!({"networkPolicy": {"enabled": false}})).unwrap();
    assert!(find(&off, "NetworkPolicy", "cloudmap-mcs").is_none());
}

#[test]
fn ids_become_the_properties_of_the_sample() {
    let values = json!({"clusterProperties": {"clusterId": "cluster-1", "clustersetId": "my-clusterset"}});
    let Some(mut objects) = rendered(&values) else { return };
    objects.retain(|[_, kind, ..], _| kind == "ClusterProperty");
    for property in objects.values_mut() {
        assert_eq!(property["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
        assert!(property["metadata"].as_object_mut().unwrap().remove("labels").is_some());
    }
    let sample = std::fs::read_to_string(root().join("samples/cluster-properties.yaml")).unwrap();
    assert_eq!(plain(objects), parse(&sample));
}

#[test]
fn what_it_leaves_when_it_goes_is_marked() {
    let Some(objects) = rendered(&json!({})) else { return };
    for name in
        ["serviceexports.multicluster.x-k8s.io", "serviceimports.multicluster.x-k8s.io", "cutovers.cloudmap-mcs.io"]
    {
        let definition = find(&objects, "CustomResourceDefinition", name).unwrap();
        assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    }
}

#[test]
fn what_is_off_by_default_is_there_when_it_is_asked_for() {
    let role = "arn:aws:iam::111122223333:role/cloudmap-mcs";
    let values = json!({
        "serviceAccount": {"roleArn": role, "name": "other"},
        "rbac": {"aggregateToUserRoles": false},
        "monitoring": {
            "enabled": true, "labels": {"release": "prometheus"}, "runbooks": "https://docs.example/alerts.html",
        },
        "image": {"repository": "registry.example/cloudmap-mcs", "digest": format!("sha256:{}", "0".repeat(64))},
        "podLabels": {"team": "network"}, "podAnnotations": {"a": "b"}, "imagePullSecrets": [{"name": "pull"}],
        "topologySpreadConstraints": [{"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "extraEnv": [{"name": "AWS_USE_FIPS_ENDPOINT", "value": "true"}],
        "extraEnvFrom": [{"secretRef": {"name": "aws"}}],
        "podDisruptionBudget": {"maxUnavailable": "50%"},
    });
    let Some(objects) = rendered(&values) else { return };
    let account = find(&objects, "ServiceAccount", "other").unwrap();
    assert_eq!(account["metadata"]["annotations"]["eks.amazonaws.com/role-arn"], role);
    for ([_, kind, ..], object) in &objects {
        if kind.ends_with("RoleBinding") {
            assert_eq!(object["subjects"][0]["name"], "other");
        }
    }
    let edit = find(&objects, "ClusterRole", "cloudmap-mcs-edit").unwrap();
    assert!(edit["metadata"]["labels"].as_object().unwrap().keys().all(|label| !label.contains("aggregate")));
    for kind in ["ServiceMonitor", "PrometheusRule"] {
        assert_eq!(find(&objects, kind, "cloudmap-mcs").unwrap()["metadata"]["labels"]["release"], "prometheus");
    }
    let alert = &find(&objects, "PrometheusRule", "cloudmap-mcs").unwrap()["spec"]["groups"][0]["rules"][0];
    assert_eq!(alert["annotations"]["runbook_url"], "https://docs.example/alerts.html#cloudmapmcsdown");
    assert_eq!(find(&objects, "PodDisruptionBudget", "cloudmap-mcs").unwrap()["spec"]["maxUnavailable"], "50%");
    let template = &find(&objects, "Deployment", "cloudmap-mcs").unwrap()["spec"]["template"];
    assert_eq!(template["metadata"]["labels"]["team"], "network");
    assert_eq!(template["metadata"]["annotations"]["a"], "b");
    let spec = &template["spec"];
    assert_eq!(spec["serviceAccountName"], "other");
    assert_eq!(spec["imagePullSecrets"][0]["name"], "pull");
    assert_eq!(spec["topologySpreadConstraints"][0]["maxSkew"], 2);
    assert_eq!(
        spec["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]["app.kubernetes.io/name"],
        "cloudmap-mcs"
    );
    let container = &spec["containers"][0];
    assert!(container["image"].as_str().unwrap().starts_with("registry.example/cloudmap-mcs@sha256:"));
    assert_eq!(container["env"].as_array().unwrap().last().unwrap()["name"], "AWS_USE_FIPS_ENDPOINT");
    assert_eq!(container["envFrom"][1]["secretRef"]["name"], "aws");

    let objects = rendered(&json!({"serviceAccount": {"create": false, "name": "made-by-eksctl"}})).unwrap();
    assert!(objects.keys().all(|[_, kind, ..]| kind != "ServiceAccount"));
}

#[test]
fn bad_values_are_refused_by_name() {
    for (values, path) in [
        (json!({"clusterId": "a"}), "clusterId"),
        (json!({"config": {"ledgertick": "5s"}}), "ledgertick"),
        (json!({"config": {"ledgerTick": "fast"}}), "/config/ledgerTick"),
        (json!({"config": {"instances": "some"}}), "/config/instances"),
        (json!({"config": {"concurrency": 0}}), "/config/concurrency"),
        (json!({"config": {"clusterId": "Prod"}}), "/config/clusterId"),
        (json!({"config": {"clusterId": "ecs-prod"}}), "/config/clusterId"),
        (json!({"clusterProperties": {"clusterId": "cloudmap-a"}}), "/clusterProperties/clusterId"),
        (json!({"config": {"domainFilter": "a,b"}}), "/config/domainFilter"),
        (json!({"clusterProperties": {"clustersetId": "no spaces"}}), "/clusterProperties/clustersetId"),
        (json!({"serviceAccount": {"roleArn": "cloudmap-mcs"}}), "/serviceAccount/roleArn"),
        (json!({"image": {"digest": "latest"}}), "/image/digest"),
        (json!({"replicas": "two"}), "/replicas"),
        (json!({"networkPolicy": {"egressPorts": [0]}}), "/networkPolicy/egressPorts/0"),
        (json!({"config": {"ledgerTick": "1h"}}), "/config/ledgerTick"),
        (json!({"config": {"settle": "2h"}}), "/config/settle"),
        (json!({"config": {"createDnsNamespaces": "shop"}}), "/config/createDnsNamespaces"),
        (json!({"config": {"staleClusterTtl": "1m"}}), "/config/staleClusterTtl"),
        (json!({"config": {"instancesNamespace": "clusterset-prod"}}), "/config/instancesNamespace"),
        (
            json!({"clusterProperties": {"clusterId": "a"}, "config": {"clusterId": "b"}}),
            "clusterProperties.clusterId is \"a\" and config.clusterId is \"b\"",
        ),
        (
            json!({"clusterProperties": {"clustersetId": "a"}, "config": {"clustersetId": "b"}}),
            "Set only clusterProperties.clustersetId",
        ),
        (json!({"config": {"awsMcsCompat": true, "instancesNamespace": "x"}}), "config.instancesNamespace exclude"),
        (json!({"config": {"assumeRoleExternalId": "x"}}), "config.assumeRoleArn"),
        (json!({"config": {"pageListen": "127.0.0.1:8080"}}), "the port of config.listen"),
    ] {
        let Some(result) = render(&chart(), &values) else { return };
        let error = result.expect_err(path);
        assert!(error.contains(path), "{values} should name {path}: {error}");
    }
}

/// What is said after the installation: what to do next, and what it costs.
#[test]
fn notes_say_what_is_missing_and_what_it_costs() {
    let notes = |values: &Value| {
        let file = Values::new(values);
        let arguments = ["install", "my-release", &chart(), "--dry-run=client", "--namespace", NAMESPACE, "--values"];
        Some(output(helm()?.args(arguments).arg(&file.0)).unwrap().split_once("NOTES:").unwrap().1.to_owned())
    };
    let Some(bare) = notes(&json!({})) else { return };
    for words in
        ["in no ClusterSet yet", "image.repository", "needs a role in AWS", "0.10 USD", "config.instances=none"]
    {
        assert!(bare.contains(words), "{words}: {bare}");
    }
    let complete = notes(&json!({
        "clusterProperties": {"clusterId": "a", "clustersetId": "b"}, "config": {"instances": "none"},
        "image": {"repository": "registry.example/cloudmap-mcs"},
        "serviceAccount": {"roleArn": "arn:aws:iam::111122223333:role/cloudmap-mcs"},
    }))
    .unwrap();
    for words in ["in no ClusterSet yet", "image.repository", "needs a role in AWS", "0.10 USD"] {
        assert!(!complete.contains(words), "{words}: {complete}");
    }
    assert!(complete.contains("cloudmap-mcs leave") && complete.contains("kind: ServiceExport"), "{complete}");
}
