//! What is read, of a cluster and of the registry, and that nothing is changed.

use std::sync::Arc;

use clap::Parser as _;
use serde_json::json;

use super::{
    checks::plan,
    observe::{Observation, observe},
    registry::{self, Wanted},
    report::{Report, State},
    *,
};
use crate::status::tests::view;
use cli::{Cli, Command};
use cloudmap::{
    Connected, Endpoint, Error, ErrorKind, NamespaceKind, Operation, answered,
    fake::{Fake, Fault, permit},
};
use cluster::{fake_api::FakeApi, rbac::OWN};
use iam::{Scope, harmless::Answer, statements};
use ledger::{driver::Registries, head::Presence};

fn cluster(name: &str, seen: Result<Seen, String>) -> Cluster {
    Cluster { name: name.to_owned(), flags: format!(" --context {name}"), own: OWN.to_owned(), seen }
}

fn arguments(flags: &[&str]) -> DoctorArgs {
    match Cli::try_parse_from(["cloudmap-mcs", "doctor"].iter().chain(flags)).unwrap().command {
        Command::Doctor(args) => *args,
        _ => panic!("not doctor"),
    }
}

fn wanted() -> Wanted {
    Wanted { clusterset: Some("prod".parse().unwrap()), instances: true, ..Wanted::default() }
}

fn connected(fake: &Fake) -> Connected {
    Connected {
        cloudmap: Arc::new(fake.clone()),
        region: Some("eu-central-1".to_owned()),
        endpoint: Endpoint::default(),
    }
}

/// A registry with the ledger of `prod` and a service of its instances.
fn filled() -> Fake {
    let fake = Fake::new();
    let mut registry = fake.registry();
    for (namespace, service, tag) in [
        ("clusterset-prod", "clusters", ("cloudmap-mcs/clusterset", "prod")),
        ("shop", "web", ("cloudmap-mcs/made-for", "clusterset/prod")),
    ] {
        let namespace = registry.add_namespace(namespace, NamespaceKind::Http);
        let service = registry.add_service(&namespace, service, "x", "");
        registry.instances.insert((service.clone(), "i".into()), [].into());
        registry.tags.insert(format!("arn:{service}").into(), [(tag.0.to_owned(), tag.1.to_owned())].into());
    }
    drop(registry);
    fake
}

/// Everything that is stored.
fn content(fake: &Fake) -> String {
    let registry = fake.registry();
    format!("{:?} {:?} {:?} {:?}", registry.namespaces, registry.services, registry.instances, registry.tags)
}

fn report(registry: registry::ObservedRegistry) -> Report {
    plan(&Observation { clusters: Vec::new(), registry: Some(Ok(registry)), probed: None })
}

#[tokio::test(start_paused = true)]
async fn permissions_are_tried_and_the_registry_stays_as_it_is() {
    for fake in [Fake::new(), filled()] {
        let before = content(&fake);
        let seen = registry::observe(connected(&fake), Registries::default(), &permit(), wanted()).await;
        tokio::time::sleep(std::time::Duration::from_mins(2)).await;
        assert_eq!(content(&fake), before);
        let answers = || seen.permissions.iter().flat_map(|permission| &permission.answers);
        assert!(answers().count() > 15);
        for (operation, answer) in answers() {
            let without = fake.registry().namespaces.is_empty() && *operation == Operation::TagResource;
            let known = matches!(answer, Answer::Allowed | Answer::NotDenied);
            assert!(known || without || *operation == Operation::ListTagsForResource, "{operation}: {answer:?}");
        }
        let report = report(seen);
        assert_eq!(report.count(State::Fail), 0, "{}", report.table());
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_role_lacks_is_named_with_its_statement() {
    let fake = filled();
    fake.fault(Operation::DeregisterInstance, Fault::Refused(ErrorKind::AccessDenied));
    let report = report(registry::observe(connected(&fake), Registries::default(), &permit(), wanted()).await);
    let failed: Vec<_> = report.0.iter().filter(|finding| finding.state == State::Fail).collect();
    assert_eq!(failed.len(), 1, "{}", report.table());
    assert!(failed[0].what.starts_with("WriteTheLedger: DeregisterInstance denied"), "{}", failed[0].what);
    assert!(failed[0].remedy.as_ref().unwrap().contains("cloudmap-mcs iam --mode instances --clusterset prod"));
}

#[test]
fn the_reads_of_a_flags_mode_are_tried_where_a_cluster_with_the_flag_registers() {
    let namespaces = filled().registry().namespaces.clone();
    let facts = Scope { clusterset: wanted().clusterset, ..Scope::default() };
    let tried = statements(&wanted().modes(), &facts).unwrap();
    let of = |cluster: &str| -> Vec<(Option<Mode>, String)> {
        let flags = BTreeMap::from(FLAGS.map(|(_, mode)| (mode, BTreeSet::from([cluster.to_owned()]))));
        let found = Wanted { flags, ..wanted() }.of_flags(&tried, &facts, &namespaces, &[view("c1")]);
        found.into_iter().map(|(mode, statement)| (mode, statement.sid)).collect()
    };
    let expected =
        [(Mode::AwsMcs, "ReadItsExports"), (Mode::AwsMcs, "ReadHealth"), (Mode::Gates, "SeeWhatIsRegistered")];
    assert_eq!(of("c1"), expected.map(|(mode, sid)| (Some(mode), sid.to_owned())));
    assert!(of("c2").is_empty(), "it may register nothing, and others may have other roles");
}

#[tokio::test(start_paused = true)]
async fn the_flags_of_the_controller_say_which_modes_its_role_needs() {
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    let env = json!([
        {"name": "CLOUDMAP_MCS_READINESS_GATES", "value": "true"},
        {"name": "CLOUDMAP_MCS_HIDE_TASKS", "value": "false"},
    ]);
    let template = json!({"spec": {"containers": [{"name": "cloudmap-mcs", "env": env}]}});
    let spec = json!({"selector": {}, "template": template});
    api.prepare(200, json!({"metadata": {"name": "cloudmap-mcs"}, "spec": spec}));
    let seen = observe(&api.client(), OWN).await;
    let wanted = super::wanted(&arguments(&[]), &[cluster("a", seen)]);
    assert!(wanted.flags.keys().eq([&Mode::Gates]), "{wanted:?}");
}

/// A policy or a quota may refuse the new pods of an upgrade. The former ones stay ready, and the image is the new one.
#[tokio::test(start_paused = true)]
async fn pods_that_a_roll_out_has_not_replaced_are_counted() {
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    let spec = json!({"selector": {}, "template": {"spec": {"containers": [{"name": "cloudmap-mcs"}]}}});
    let status = json!({"replicas": 2, "readyReplicas": 2});
    api.prepare(200, json!({"metadata": {"name": "cloudmap-mcs"}, "spec": spec, "status": status}));
    let controller = observe(&api.client(), OWN).await.unwrap().controller.unwrap().unwrap();
    assert_eq!((controller.ready, controller.former), (2, 2));
}

#[test]
fn credentials_that_are_rejected_and_the_403_of_a_proxy_are_no_refusals_by_iam() {
    for (code, expected) in
        [(Some("AccessDeniedException"), true), (Some("ExpiredTokenException"), false), (None, false)]
    {
        let operation = Operation::ListNamespaces;
        let (kind, message) = answered(operation, code, None, 403);
        assert_eq!(kind, ErrorKind::AccessDenied, "{code:?}");
        let error = Error { operation: operation.name(), kind, message };
        assert_eq!(registry::is_denied_by_iam(&error), expected, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_permission_by_tag_cannot_be_told_where_nothing_has_the_tag() {
    let fake = Fake::new();
    fake.fault(Operation::DeregisterInstance, Fault::Refused(ErrorKind::AccessDenied));
    let seen = registry::observe(connected(&fake), Registries::default(), &permit(), wanted()).await;
    let statement = seen.permissions.iter().find(|permission| permission.sid == "WriteTheLedger").unwrap();
    assert!(matches!(&statement.answers[1], (Operation::DeregisterInstance, Answer::Unknown(_))), "{statement:?}");
}

#[tokio::test(start_paused = true)]
async fn the_ledger_of_each_registry_is_read() {
    let (fake, empty, denied) = (filled(), Fake::new(), filled());
    denied.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::AccessDenied));
    let others = [("empty", empty), ("us", denied)].map(|(name, fake)| (name.into(), Arc::new(fake) as _)).into();
    let registries = Registries { home: "eu".into(), others };
    let seen = registry::observe(connected(&fake), registries, &permit(), wanted()).await;
    let report = report(seen);
    let found = report.0.iter().filter(|finding| finding.subject == "registries");
    let found: Vec<_> = found.map(|finding| (finding.state, finding.what.as_str())).collect();
    assert_eq!(found.len(), 2, "{}", report.table());
    assert_eq!(found[0], (State::Ok, "the registry empty can be read: 0 clusters"));
    assert!(found[1].0 == State::Fail && found[1].1.starts_with("the registry us cannot be read: "), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_does_not_answer_is_one_finding() {
    let fake = filled();
    fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::Other));
    let seen = registry::observe(connected(&fake), Registries::default(), &permit(), wanted()).await;
    assert!(seen.permissions.is_empty());
    let report = report(seen);
    assert_eq!((report.count(State::Fail), report.count(State::Skip)), (1, 0), "{}", report.table());
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_cluster_that_is_refused_hides_no_other() {
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    api.refuse(403, "Forbidden", "you may not read deployments");
    let seen = observe(&api.client(), OWN).await;
    let report = plan(&Observation { clusters: vec![cluster("a", seen)], registry: None, probed: None });
    let find = |subject| report.0.iter().find(|finding| finding.subject == subject).unwrap();
    assert_eq!(find("kubernetes").what, "v1.34.4");
    assert_eq!(
        (find("controller").state, &*find("controller").what),
        (State::Skip, "not read: you may not read deployments")
    );
    assert_eq!(find("coredns").state, State::Skip, "a cluster without a CoreDNS that can be seen");
    assert_eq!((find("leader").state, &*find("leader").what), (State::Fail, "nobody holds the Lease"));
    assert_eq!(find("crds").state, State::Fail);
    assert!(find("rbac").what.starts_with("the controller lacks 44 of 44"), "{}", find("rbac").what);
}

#[test]
fn what_the_component_of_a_flag_grants_is_asked_for_where_the_flag_is_set() {
    let asked = |set: &[&str]| access::granted(OWN, |variable| set.contains(&variable)).len();
    let all = ["CLOUDMAP_MCS_INSTANCE_LABELS", "CLOUDMAP_MCS_READINESS_GATES", "CLOUDMAP_MCS_CUTOVERS"];
    assert_eq!(all.map(|flag| asked(&[flag]) - asked(&[])), [2, 3, 3]);
    assert_eq!(asked(&all) - asked(&[]), 6, "two of them read pods");
}

#[tokio::test(start_paused = true)]
async fn with_cutovers_their_definition_is_looked_for() {
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    let env = json!([{"name": "CLOUDMAP_MCS_CUTOVERS", "value": "true"}]);
    let template = json!({"spec": {"containers": [{"name": "cloudmap-mcs", "env": env}]}});
    let spec = json!({"selector": {}, "template": template});
    api.prepare(200, json!({"metadata": {"name": "cloudmap-mcs"}, "spec": spec}));
    drop(observe(&api.client(), OWN).await);
    let definition = "/customresourcedefinitions/cutovers.cloudmap-mcs.io";
    assert!(api.requests().iter().any(|request| request.path.ends_with(definition)));
}

#[tokio::test(start_paused = true)]
async fn the_pod_of_the_leader_is_read_with_what_readers_may_do() {
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    // In whichever order the parts are read, the Lease is held.
    let held = json!({"metadata": {"name": "any", "uid": "uid"}, "spec": {"holderIdentity": "pod-a_1"}, "items": []});
    for _ in 0..100 {
        api.prepare(200, held.clone());
    }
    drop(observe(&api.client(), OWN).await);
    let path = format!("/api/v1/namespaces/{OWN}/pods");
    let requests: Vec<_> = api.requests().into_iter().filter(|request| request.path.starts_with(&path)).collect();
    // The images of all, and the addresses of one.
    let [all, leader] = requests.as_slice() else { panic!("{requests:?}") };
    assert!(all.path == path && all.query.contains("labelSelector"), "{all:?}");
    assert!(leader.path == path && leader.query.contains("metadata.name"), "{leader:?}");
}

/// One answer with thousands of Nodes takes longer than a read may.
#[tokio::test(start_paused = true)]
async fn nodes_are_read_page_by_page() {
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    drop(observe(&api.client(), OWN).await);
    let requests = api.requests();
    let nodes = requests.iter().find(|request| request.path == "/api/v1/nodes").unwrap();
    assert!(nodes.query.contains("limit=500"), "{nodes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_does_not_answer_is_one_finding() {
    let api = FakeApi::default();
    api.refuse(503, "ServiceUnavailable", "away");
    let seen = observe(&api.client(), OWN).await;
    let report = plan(&Observation { clusters: vec![cluster("a", seen)], registry: None, probed: None });
    assert_eq!((report.0.len(), report.count(State::Fail)), (1, 1), "{}", report.table());
}

#[tokio::test(start_paused = true)]
async fn the_commands_of_remedies_lead_to_the_cluster_that_was_asked() {
    let (looked, _) = look(Some("a".to_owned()), &arguments(&["--kubeconfig=/nonexistent/file"])).await;
    let api = FakeApi::default();
    api.prepare(200, json!({"major": "1", "minor": "34", "gitVersion": "v1.34.4"}));
    let seen = observe(&api.client(), OWN).await;
    let report = plan(&Observation { clusters: vec![Cluster { seen, ..looked }], registry: None, probed: None });
    let remedies: Vec<_> = report.0.iter().filter_map(|finding| finding.remedy.as_ref()).collect();
    let commands: Vec<_> = remedies.iter().filter(|remedy| remedy.contains(" --context a")).collect();
    assert!(!commands.is_empty(), "{remedies:?}");
    assert!(commands.iter().all(|it| it.contains(" --kubeconfig /nonexistent/file --context a")), "{commands:?}");
}

#[test]
fn a_cluster_that_left_is_another_one_than_one_that_never_wrote() {
    let mut left = view("c1");
    Arc::make_mut(left.head.as_mut().unwrap()).presence = Presence::Left { successor: None };
    let ledger = registry::Ledger::of(&[left, view("c2")], std::time::Duration::ZERO);
    assert_eq!(ledger.left, [("c1".to_owned(), "uid-c1".to_owned())].into());
    assert!(ledger.heads.keys().eq(["c2"]), "{ledger:?}");
}

#[test]
fn an_interruption_says_what_is_left_and_how_to_delete_it() {
    let clusters = [cluster("a", Err(String::new()))];
    assert_eq!(interrupted(&BTreeMap::new(), &clusters, "r"), "interrupted; the temporary pods are deleted");
    let said = interrupted(&[("a".to_owned(), "no answer".to_owned())].into(), &clusters, "r");
    let expected = "a: no answer\n  -> kubectl delete pods -A -l cloudmap-mcs/doctor=r --context a";
    assert!(said.starts_with("interrupted; temporary pods may be left:") && said.ends_with(expected), "{said}");
}

#[test]
fn the_network_is_tried_between_clusters_or_if_somebody_wants_it() {
    for (flags, expected) in [
        (&[][..], false),
        (&["--probe"], true),
        (&["--contexts=a"], false),
        (&["--contexts=a,b"], true),
        (&["--contexts=a,b", "--no-probe"], false),
        (&["--contexts=a,a"], false),
    ] {
        assert_eq!(probes(&arguments(flags)), expected, "{flags:?}");
    }
}
