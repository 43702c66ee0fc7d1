//! Two clusters in which everything is well, and what is said of them.

mod broken;
mod gates;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    super::{
        access::{self, Access},
        observe::{Cluster, Controller, Crd, Import, Observation, Seen},
        probe::{Connected, Outcome, Probe, Probed, Tried},
        registry::{Ledger, ObservedRegistry, Permission, Wanted},
        report::State,
    },
    cluster::SINCE,
    plan,
};
use crate::{coredns, installed::Settings, status::Leader};
use cloudmap::{Endpoint, Error, ErrorKind, Operation};
use cluster::{objects::ClusterProperty, reader::Unread};
use iam::{
    Scope, Statement,
    harmless::{self, Answer},
    statements,
};
use model::{ServiceKey, Target, addresses::Range};

const PORT: u16 = 8080;

fn property(name: &str, value: &str) -> ClusterProperty {
    ClusterProperty { name: name.into(), value: value.into() }
}

fn pod(number: u8) -> IpAddr {
    [10, number, 2, 3].into()
}

fn import() -> Import {
    Import { key: ServiceKey::new("shop", "web"), ips: BTreeSet::from([[10, 96, 0, 9].into()]) }
}

fn seen(number: u8) -> Seen {
    let crd = || Crd { established: true, served: vec!["v1alpha1".to_owned(), "v1beta1".to_owned()] };
    let controller = Controller {
        wanted: 2,
        ready: 2,
        image: format!("registry-{number}.example:5000/cloudmap-mcs:0.1.0"),
        account: "cloudmap-mcs".to_owned(),
        settings: Settings {
            values: [("CLOUDMAP_MCS_REGION".to_owned(), "eu-central-1".to_owned())].into(),
            ..Settings::default()
        },
        ..Controller::default()
    };
    let read = Timestamp::from_second(1_000_000).unwrap();
    let renewed = read.checked_sub(SignedDuration::from_secs(2)).ok();
    let allowed = |_| Access { permission: "list services".to_owned(), allowed: true };
    Seen {
        version: "v1.34.4".to_owned(),
        ahead: Some(SignedDuration::from_millis(400)),
        crds: api::needed_crds(false).iter().map(|it| (it.metadata.name.clone().unwrap(), Ok(Some(crd())))).collect(),
        controller: Ok(Some(controller)),
        enforced: Ok(Some("restricted".to_owned())),
        lease: Ok(Some(Leader { holder: Some("pod-a".to_owned()), renewed, ..Leader::default() })),
        read,
        uid: Ok(format!("uid-{number}").into()),
        properties: Ok(vec![
            property("cluster.clusterset.k8s.io", &format!("c{number}")),
            property("clusterset.k8s.io", "prod"),
        ]),
        exports: Ok(true),
        access: Ok(access::granted("cloudmap-mcs-system", |_| false).into_iter().map(allowed).collect()),
        dns: Ok(coredns::whole()),
        ranges: Ok([0, 1].into_iter().filter_map(|it| Range::parse(&format!("10.{number}.{it}.0/24"))).collect()),
        pods: Ok(BTreeSet::from([pod(number)])),
        imports: Ok(vec![import()]),
        shared: BTreeSet::new(),
        streams: Ok(vec![leader(number)]),
        unwatched: None,
    }
}

fn wanted() -> Wanted {
    Wanted { clusterset: Some("prod".parse().unwrap()), instances: true, ..Wanted::default() }
}

fn permissions() -> Vec<Permission> {
    let facts = Scope { clusterset: wanted().clusterset, ..Scope::default() };
    let statements = statements(&wanted().modes(), &facts).unwrap();
    let answers = |of: Vec<Operation>| of.into_iter().map(|operation| (operation, Answer::Allowed)).collect();
    let of =
        |it: &Statement| Permission { sid: it.sid.clone(), flag: None, answers: answers(harmless::operations(it)) };
    statements.iter().map(of).collect()
}

fn registry() -> ObservedRegistry {
    let head = |uid: &str| (SignedDuration::from_secs(3), uid.to_owned());
    ObservedRegistry {
        region: Some("eu-central-1".to_owned()),
        endpoint: Endpoint::default(),
        namespaces: Ok(3),
        discovery: Ok(()),
        account: Some("111122223333".to_owned()),
        wanted: wanted(),
        permissions: permissions(),
        others: BTreeMap::new(),
        ledger: Ok(Ledger {
            heads: [("c1".to_owned(), head("uid-1")), ("c2".to_owned(), head("uid-2"))].into(),
            instances: [(target(), 4)].into(),
            ..Ledger::default()
        }),
    }
}

fn target() -> Target {
    Target { namespace: "shop".into(), service: "web".into() }
}

fn leader(number: u8) -> SocketAddr {
    SocketAddr::from(([10, number, 2, 9], 7_946))
}

fn probe(number: u8, other: u8) -> Probe {
    let answered = |address| Connected { address, outcome: Outcome::Answered };
    let connected = vec![answered(SocketAddr::new(pod(other), PORT)), answered(leader(other))];
    Probe {
        run: "r".to_owned(),
        listens: Ok(vec![pod(number)]),
        tried: Ok(Tried { connected, resolved: Some(Ok(import().ips)) }),
        import: Some(import()),
        streams: vec![leader(number)],
        left: None,
    }
}

/// The clusters `a` and `b`, in which everything is well.
fn healthy() -> Observation {
    let cluster = |name: &str, number| Cluster {
        name: name.to_owned(),
        flags: format!(" --context {name}"),
        own: "cloudmap-mcs-system".to_owned(),
        seen: Ok(seen(number)),
    };
    Observation {
        clusters: vec![cluster("a", 1), cluster("b", 2)],
        registry: Some(Ok(registry())),
        probed: Some(Probed {
            port: PORT,
            clusters: [("a".to_owned(), probe(1, 2)), ("b".to_owned(), probe(2, 1))].into(),
        }),
    }
}

fn first(it: &mut Observation) -> &mut Seen {
    it.clusters[0].seen.as_mut().unwrap()
}

fn second(it: &mut Observation) -> &mut Seen {
    it.clusters[1].seen.as_mut().unwrap()
}

fn controller(it: &mut Observation) -> &mut Controller {
    first(it).controller.as_mut().unwrap().as_mut().unwrap()
}

fn lease(it: &mut Observation) -> &mut Leader {
    first(it).lease.as_mut().unwrap().as_mut().unwrap()
}

fn of_registry(it: &mut Observation) -> &mut ObservedRegistry {
    it.registry.as_mut().unwrap().as_mut().unwrap()
}

fn ledger(it: &mut Observation) -> &mut Ledger {
    of_registry(it).ledger.as_mut().unwrap()
}

fn of_probe(it: &mut Observation) -> &mut Probe {
    it.probed.as_mut().unwrap().clusters.get_mut("a").unwrap()
}

fn outcome(it: &mut Observation) -> &mut Outcome {
    &mut of_probe(it).tried.as_mut().unwrap().connected[0].outcome
}

fn error(kind: ErrorKind, message: &str) -> Error {
    Error { operation: "ListNamespaces", kind, message: message.to_owned() }
}

fn answer(it: &mut Observation, sid: &str, operation: Operation, answer: Answer) {
    let statement = of_registry(it).permissions.iter_mut().find(|permission| permission.sid == sid).unwrap();
    statement.answers.iter_mut().find(|(of, _)| *of == operation).unwrap().1 = answer;
}

#[test]
fn nothing_is_wrong_with_what_is_well() {
    let report = plan(&healthy());
    assert!(report.0.iter().all(|finding| finding.state == State::Ok), "{}", report.table());
    let subjects: BTreeSet<_> = report.0.iter().map(|finding| finding.subject).collect();
    let all = "kubernetes clock crds controller leader ids rbac coredns versions pod_ranges endpoint credentials role \
               ledger quota cost tcp stream dns";
    assert_eq!(subjects, all.split(' ').map(|it| if it == "pod_ranges" { "pod ranges" } else { it }).collect());
}

#[test]
fn before_the_first_export_it_says_what_instances_cost_and_how_to_turn_them_off() {
    let mut observation = healthy();
    ledger(&mut observation).instances.clear();
    let report = plan(&observation);
    let cost = report.0.iter().find(|finding| finding.subject == "cost").unwrap();
    for words in ["0 instances", "0.10 USD for each", "at most 1000 of one name", "--instances=none turns them off"] {
        assert!(cost.what.contains(words), "{}", cost.what);
    }
    of_registry(&mut observation).wanted.instances = false;
    let report = plan(&observation);
    assert!(report.0.iter().any(|finding| finding.what.contains("no instances are registered")));
}

#[test]
fn a_cluster_without_a_known_image_is_skipped_aloud() {
    let mut observation = healthy();
    observation.probed.as_mut().unwrap().clusters.remove("b");
    let report = plan(&observation);
    let other: Vec<_> = report.0.iter().filter(|finding| finding.state != State::Ok).collect();
    let [finding] = &other[..] else { panic!("{}", report.table()) };
    assert_eq!((finding.state, &*finding.place, finding.subject), (State::Skip, "b", "pods"));
    assert!(finding.remedy.as_ref().unwrap().contains("--probe-image"), "{finding:?}");
    // Nobody wanted to try the network.
    observation.probed = None;
    assert_eq!(plan(&observation).count(State::Skip), 0);
}

#[test]
fn a_cluster_in_no_cluster_set_is_not_said_to_be_in_that_of_the_others() {
    let mut observation = healthy();
    first(&mut observation).properties = Ok(vec![property("cluster.clusterset.k8s.io", "c1")]);
    let report = plan(&observation);
    assert!(!report.0.iter().any(|finding| finding.what.contains("ClusterSet is the same")), "{}", report.table());
}

/// Annotated Services need neither ids nor names in DNS.
#[test]
fn a_cluster_without_ids_and_exports_needs_no_clusterset_unless_another_one_is_a_member() {
    let of_ids = |observation: &Observation| {
        let findings = plan(observation).0;
        findings.into_iter().find(|it| it.subject == "ids" && it.place == "a").map(|it| it.state)
    };
    let mut observation = Observation { registry: None, probed: None, ..healthy() };
    let cluster = first(&mut observation);
    (cluster.properties, cluster.exports) = (Ok(Vec::new()), Ok(false));
    cluster.dns.as_mut().unwrap().permitted = false;
    assert_eq!(of_ids(&observation), Some(State::Fail), "the other one is a member");
    observation.clusters.truncate(1);
    let report = plan(&observation);
    assert!(report.0.iter().all(|finding| finding.state == State::Ok), "{}", report.table());
    assert!(report.table().contains("To join one, kubectl --context a apply"), "{}", report.table());
    for exports in [Ok(true), Err(Unread::Failed("no answer".to_owned()))] {
        first(&mut observation).exports = exports;
        assert_eq!(of_ids(&observation), Some(State::Fail));
    }
    first(&mut observation).exports = Ok(false);
    first(&mut observation).properties = Ok(vec![property("cluster.clusterset.k8s.io", "c1")]);
    assert_eq!(of_ids(&observation), Some(State::Fail), "half of a set-up");
}

/// That of a workstation may be.
#[test]
fn a_clock_here_that_is_wrong_makes_no_head_old() {
    let mut observation = healthy();
    let wrong = SignedDuration::from_mins(15);
    (first(&mut observation).ahead, second(&mut observation).ahead) = (Some(-wrong), Some(-wrong));
    ledger(&mut observation).heads.values_mut().for_each(|(age, _)| *age += wrong);
    let report = plan(&observation);
    let bad: Vec<_> =
        report.0.iter().filter(|it| it.state != State::Ok).map(|it| (it.place.as_str(), it.subject)).collect();
    assert_eq!(bad, [("a", "clock"), ("b", "clock")], "{}", report.table());
}

#[test]
fn the_chart_asks_for_the_same_version_of_kubernetes() {
    let chart = fs::read_to_string(base::repository().join("config/chart/Chart.yaml")).unwrap();
    assert!(chart.contains(&format!("kubeVersion: \">=1.{SINCE}.0-0\"")), "{chart}");
}

#[test]
fn the_report_begins_with_the_answer_and_each_remedy_follows_its_finding() {
    let mut observation = healthy();
    *outcome(&mut observation) = Outcome::TimedOut;
    let report = plan(&observation);
    let table = report.table();
    assert!(table.contains(" checks: 1 failed, 0 warned, 0 were skipped\n\nSTATE   WHERE "), "{table}");
    let lines: Vec<_> = table.lines().collect();
    let at = lines
        .iter()
        .position(|line| line.starts_with("FAIL    a→b ") && line.ends_with("10.2.2.3:8080 timed out"))
        .unwrap();
    assert!(lines[at + 1].trim_start().starts_with("-> allow 10.1.0.0/23 in b's node security group"), "{table}");
    let json = report.json();
    assert_eq!(json["well"], false);
    let all = json["findings"].as_array().unwrap();
    assert!(all.iter().any(|it| it["state"] == "FAIL" && it["where"] == "a→b" && it["subject"] == "tcp"), "{json}");
}

#[test]
fn the_document_shows_a_report() {
    let mut observation = healthy();
    *outcome(&mut observation) = Outcome::TimedOut;
    first(&mut observation).ahead = Some(SignedDuration::from_secs(-4));
    second(&mut observation).ahead = Some(SignedDuration::from_secs(3));
    let table = plan(&observation).table();
    let shown: String =
        table.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect();
    let document = fs::read_to_string(base::repository().join("docs/doctor.md")).unwrap();
    assert!(document.contains(&shown), "docs/doctor.md lacks:\n\n    $ cloudmap-mcs doctor --contexts a,b\n{shown}");
}
