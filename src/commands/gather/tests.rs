use std::{collections::BTreeMap, io::Read as _};

use axum::Router;
use clap::Parser as _;
use flate2::read::GzDecoder;
use k8s_openapi::api::rbac::v1::{ClusterRole, Role};
use serde_json::{Value, json};

use super::*;
use crate::doctor;
use cli::{Cli, Command};
use cluster::{
    fake_api::{FakeApi, Request},
    rbac::{OWN, granted, manifest, needed},
};
use model::ServiceKey;

/// The files of an archive, by path without the folder.
fn unpacked(bundle: &Bundle) -> BTreeMap<String, String> {
    let mut bytes = Vec::new();
    bundle.write("folder", &mut bytes).unwrap();
    let mut files = BTreeMap::new();
    for entry in tar::Archive::new(GzDecoder::new(bytes.as_slice())).entries().unwrap() {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().strip_prefix("folder").unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        assert!(files.insert(path, text).is_none());
    }
    files
}

/// An API server with one pod of the controller, which has restarted, and a Deployment with a secret in its environment.
fn api() -> FakeApi {
    let api = FakeApi::default();
    let container = json!({"name": "controller", "ports": [{"name": "admin", "containerPort": 8080}]});
    let pod = json!({
        "metadata": {"name": "cloudmap-mcs-7c6d5b9f8-x2wlq", "namespace": OWN},
        "spec": {"containers": [container]},
        "status": {"containerStatuses": [
            {"name": "controller", "restartCount": 1, "ready": true, "image": "i", "imageID": "i"}]},
    });
    let container = json!({
        "name": "controller",
        "env": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "hidden"}],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
    });
    let deployment = json!({
        "metadata": {"name": "cloudmap-mcs"},
        "spec": {"selector": {}, "template": {"spec": {"containers": [container]}}},
    });
    api.prepare(200, json!({"metadata": {}, "items": [pod]}));
    for text in ["its log", "its previous log", "its metrics"] {
        api.prepare(200, json!(text));
    }
    api.prepare(200, deployment);
    api
}

fn arguments() -> GatherArgs {
    let Command::Gather(args) = Cli::parse_from(["cloudmap-mcs", "gather"]).command else { panic!("not gather") };
    args
}

#[tokio::test(start_paused = true)]
async fn the_bundle_has_everything_but_secrets_and_says_what_could_not_be_read() {
    let (api, args) = (api(), arguments());
    for name in ["settings", "lease", "record"] {
        api.prepare(200, json!({"metadata": {"name": name}}));
    }
    api.prepare(200, json!({"metadata": {"name": "coredns"}, "data": {"Corefile": "aws_access_key AKIA hidden\n"}}));
    let observer = Observer { client: api.client(), place: &args.place, cloudmap: Err("no credentials".to_owned()) };
    let files = unpacked(&Box::pin(collect(&observer, &["shop".to_owned()])).await);
    for path in [
        "index.txt",
        "Corefile",
        "status.txt",
        "status.json",
        "controller/cloudmap-mcs-7c6d5b9f8-x2wlq/controller.log",
        "controller/cloudmap-mcs-7c6d5b9f8-x2wlq/controller-previous.log",
        "controller/cloudmap-mcs-7c6d5b9f8-x2wlq/metrics.txt",
        "controller/pods.json",
        "controller/deployment.json",
        "controller/config-settings.json",
        "controller/lease.json",
        "controller/record.json",
        "controller/events.json",
        "objects/clusterproperties.json",
        "objects/clusterimportpolicies.json",
        "objects/shop/serviceexports.json",
        "objects/shop/cutovers.json",
        "objects/shop/endpointslices.json",
        "objects/shop/events.json",
    ] {
        assert!(files.contains_key(path), "{path} is missing: {:?}", files.keys());
        assert!(path == "index.txt" || files["index.txt"].contains(&format!("{path}: ")), "{}", files["index.txt"]);
    }
    assert!(files["controller/cloudmap-mcs-7c6d5b9f8-x2wlq/controller-previous.log"].contains("its previous log"));
    assert!(files["index.txt"].contains("ledger.json: NOT READ: "), "{}", files["index.txt"]);
    assert!(files["Corefile"].starts_with("aws_access_key REDACTED"), "{}", files["Corefile"]);
    let deployment = &files["controller/deployment.json"];
    assert!(deployment.contains("AWS_SECRET_ACCESS_KEY") && !deployment.contains("hidden"), "{deployment}");
}

/// An error may repeat the address of a proxy.
#[tokio::test(start_paused = true)]
async fn no_file_has_the_password_of_a_url() {
    let arguments = ["cloudmap-mcs", "gather", "--clusterset-id", "prod"];
    let Command::Gather(args) = Cli::parse_from(arguments).command else { panic!("not gather") };
    let cloudmap = Err("https://user:hidden@proxy:3128 does not answer".to_owned());
    let observer = Observer { client: api().client(), place: &args.place, cloudmap };
    let files = unpacked(&Box::pin(collect(&observer, &["shop".to_owned()])).await);
    for path in ["status.txt", "status.json", "index.txt"] {
        assert!(files[path].contains("https://REDACTED@proxy:3128 does not answer"), "{path}: {}", files[path]);
    }
    assert!(files.values().all(|text| !text.contains("user:hidden")), "{files:?}");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_no_missing_crd() {
    let (api, args) = (api(), arguments());
    api.refuse(404, "NotFound", "configmaps \"settings\" not found");
    let observer = Observer { client: api.client(), place: &args.place, cloudmap: Err("no credentials".to_owned()) };
    let index = Box::pin(collect(&observer, &["shop".to_owned()])).await.index();
    assert!(index.contains("controller/config-settings.json: NOT READ: there is none\n"), "{index}");
}

/// The document has another version, day and numbers of bytes.
#[tokio::test(start_paused = true)]
async fn the_document_shows_what_is_printed() {
    let (api, args) = (api(), arguments());
    let observer = Observer { client: api.client(), place: &args.place, cloudmap: Err("no credentials".to_owned()) };
    let bundle = Box::pin(collect(&observer, &["shop".to_owned()])).await;
    let kept = |text: &str| -> Vec<String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.map(|line| line.replace(|c: char| c.is_ascii_digit(), "").replace(": bytes", ":  bytes")).collect()
    };
    let printed = said(&bundle, Path::new("shop.tar.gz"));
    let document = include_str!("../../../docs/operations.md");
    let shown = document.split("$ cloudmap-mcs gather -n shop -o shop.tar.gz\n").nth(1).unwrap();
    let shown = shown.split("```").next().unwrap();
    assert_eq!(kept(shown)[1..], kept(&printed)[1..], "{printed}");
}

/// A log of megabytes needs longer than other answers on the way to a workstation.
#[tokio::test(start_paused = true)]
async fn a_log_has_two_minutes_to_arrive() {
    let (api, mut bundle) = (FakeApi::default(), Bundle::default());
    let container = json!({"name": "controller"});
    let pod = json!({"metadata": {"name": "x", "namespace": OWN}, "spec": {"containers": [container]}});
    let pods = Api::namespaced(api.client(), OWN);
    api.hang();
    of_pod(&mut bundle, &api.client(), &pods, &serde_json::from_value(pod).unwrap()).await;
    let index = bundle.index();
    assert!(index.contains("controller/x/controller.log: NOT READ: no answer within 120 s"), "{index}");
}

#[tokio::test(start_paused = true)]
async fn of_a_log_with_long_lines_the_newest_are_taken() {
    let api = FakeApi::default();
    // The fake quotes it.
    api.prepare(200, json!("x".repeat(8 << 20)));
    api.prepare(200, json!("its end"));
    let log = LogParams { tail_lines: Some(LOG_LINES), ..LogParams::default() };
    let text = end_of_log(&Api::namespaced(api.client(), OWN), "x", log).await.unwrap();
    assert_eq!(text, "\"its end\"");
    let asked = api.requests();
    assert!(asked[1].query.contains("tailLines=5000"), "{}", asked[1].query);
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_cut_within_a_character_is_taken() {
    let answer = || async { b"its end \xE2\x82".to_vec() };
    let client = Client::new(Router::<()>::new().fallback(answer), "default");
    let text = end_of_log(&Api::namespaced(client, OWN), "x", LogParams::default()).await.unwrap();
    assert_eq!(text, "its end \u{FFFD}");
}

#[test]
fn a_file_that_cannot_be_written_is_named() {
    let error = format!("{:#}", create(Path::new("/there/is/none/x.tar.gz")).unwrap_err());
    assert!(error.starts_with("failed to write /there/is/none/x.tar.gz: name another file with --output: "), "{error}");
}

#[test]
fn only_its_owner_may_read_the_archive_also_if_it_was_there_before() {
    let folder = std::env::temp_dir().join(format!("cloudmap-mcs-gather-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (new, old) = (folder.join("new"), folder.join("old"));
    std::fs::write(&old, "x").unwrap();
    std::fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
    for path in [new, old] {
        create(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    std::fs::remove_dir_all(folder).unwrap();
    let mut bytes = Vec::new();
    Bundle::default().write("folder", &mut bytes).unwrap();
    for entry in tar::Archive::new(GzDecoder::new(bytes.as_slice())).entries().unwrap() {
        assert_eq!(entry.unwrap().header().mode().unwrap(), 0o600);
    }
}

/// Those on the Lease, such as HeadIgnored, are in its own namespace.
#[tokio::test(start_paused = true)]
async fn only_events_of_the_controller_are_read_and_always_those_in_its_namespace() {
    let (api, args) = (api(), arguments());
    let observer = Observer { client: api.client(), place: &args.place, cloudmap: Err(String::new()) };
    Box::pin(collect(&observer, &["shop".to_owned()])).await;
    let mut events = api.requests();
    events.retain(|request| request.path.ends_with("/events"));
    let paths: Vec<_> = events.iter().map(|request| request.path.clone()).collect();
    assert_eq!(paths, [OWN, "shop"].map(|name| format!("/apis/events.k8s.io/v1/namespaces/{name}/events")));
    for Request { query, .. } in events {
        assert!(query.contains("fieldSelector=reportingController%3Dcloudmap-mcs"), "{query}");
    }
}

/// Whoever reads the bundle must not take a part for the whole.
#[tokio::test(start_paused = true)]
async fn the_index_says_what_is_left_out_of_a_long_list() {
    let (api, mut bundle) = (FakeApi::default(), Bundle::default());
    let exports: Api<ServiceExport> = Api::all(api.client());
    let page = |count: usize| {
        let export = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}});
        json!({"metadata": {"continue": "more"}, "items": vec![export; count]})
    };
    api.prepare(200, page(MOST));
    list(&mut bundle, "long.json", &exports, &ListParams::default()).await;
    api.prepare(200, page(2));
    api.refuse(410, "Expired", "the list is too old");
    list(&mut bundle, "broken.json", &exports, &ListParams::default()).await;
    api.refuse(403, "Forbidden", "you may not list it");
    list(&mut bundle, "refused.json", &exports, &ListParams::default()).await;
    let index = bundle.index();
    for line in [
        "long.json: NOT READ: all but the first 10000: gather single namespaces with --namespace",
        "broken.json: NOT READ: all but the first 2: the list is too old",
        "refused.json: NOT READ: you may not list it",
    ] {
        assert!(index.lines().any(|there| there == line), "{line}\nis not in\n{index}");
    }
    let files = unpacked(&bundle);
    let read = |path: &str| serde_json::from_str::<Vec<Value>>(&files[path]).unwrap().len();
    assert_eq!((read("long.json"), read("broken.json"), files.contains_key("refused.json")), (MOST, 2, false));
}

/// Everything that `status`, `gather` and `doctor` read in Kubernetes, and nothing else.
#[tokio::test(start_paused = true)]
async fn a_reader_may_read_what_is_gathered() {
    let (api, args) = (api(), arguments());
    let observer = Observer { client: api.client(), place: &args.place, cloudmap: Err(String::new()) };
    Box::pin(collect(&observer, &[])).await;
    Box::pin(observer.name(&ServiceKey::new("shop", "web"), &Ok(Vec::new()))).await;
    doctor::read(&api.client(), OWN).await;
    // Everybody may ask for the version, and who they are.
    let everybody = |request: &Request| request.path == "/version" || request.path.ends_with("/selfsubjectreviews");
    let requests: Vec<_> = api.requests().into_iter().filter(|request| !everybody(request)).collect();
    let needed = needed(&requests);
    let everywhere = granted(false, manifest::<ClusterRole>("reader_cluster_role.yaml").rules.unwrap());
    let here = granted(true, manifest::<Role>("reader_role.yaml").rules.unwrap());
    // A permission for all namespaces includes the own namespace.
    let covered = |(_, group, resource, verb): &(bool, String, String, String)| {
        everywhere.contains(&(false, group.clone(), resource.clone(), verb.clone()))
    };
    let missing: Vec<_> = needed.difference(&here).filter(|needed| !covered(needed)).collect();
    let used = |(_, group, resource, verb): &(bool, String, String, String)| {
        [false, true].iter().any(|own| needed.contains(&(*own, group.clone(), resource.clone(), verb.clone())))
    };
    let superfluous: Vec<_> =
        here.difference(&needed).chain(everywhere.iter().filter(|granted| !used(granted))).collect();
    assert!(missing.is_empty() && superfluous.is_empty(), "missing {missing:#?}, superfluous {superfluous:#?}");
}
