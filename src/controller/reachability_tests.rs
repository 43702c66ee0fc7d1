use std::collections::BTreeSet;

use super::*;
use crate::{
    Membership, Mode,
    core::{
        Input,
        tests::{Bench, at, key, published},
    },
};
use export::Exports;
use import::Plan;
use ledger::{driver::Status, writer::Stage};
use model::{EndpointPort, Exported, ServicePort, fixtures};

const NODES: [&str; 2] = ["node-1", "node-2"];

fn id(name: &str) -> ClusterId {
    name.parse().unwrap()
}

/// An export with ready endpoints on two nodes.
fn exported(net: u8, count: u8) -> Exported {
    let port = ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
    let endpoint = |host: u8| {
        let node = Some(NODES[usize::from(host % 2)].into());
        let port = EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None };
        Endpoint { node, ports: [port].into(), ..fixtures::mk_endpoint([10, net, 0, host]) }
    };
    Exported {
        export: model::Export { uid: format!("uid-{net}").into(), ports: vec![port], ..fixtures::mk_export(1) },
        endpoints: (1..=count).map(endpoint).collect(),
    }
}

fn state(net: u8, count: u8) -> Arc<Map> {
    let mut exports = Exports::resume(&Map::new());
    exports.set(&key("web"), Some(Arc::new(exported(net, count))), BTreeSet::new(), 1);
    exports.map()
}

/// A member that is connected with `blue` and `green`, which both export `web`.
fn bench() -> Bench {
    let mut bench = Bench::member();
    bench.remotes_are(&[("blue", state(1, 20)), ("green", state(2, 2))], at(1));
    connect(&mut bench, Some(&["blue", "green"]), 2);
    bench
}

fn connect(bench: &mut Bench, connected: Option<&[&str]>, second: u64) -> Vec<Command> {
    let connected = connected.map(|ids| ids.iter().map(|id| (*id).into()).collect());
    let status = Status { stage: Stage::Running, connected, ..Status::default() };
    bench.core.handle(Input::Ledger(Arc::new(status)), at(second))
}

fn asked(commands: &[Command]) -> Option<Arc<Questions>> {
    commands.iter().rev().find_map(|c| if let Command::Reach(asked) = c { Some(Arc::clone(asked)) } else { None })
}

fn judge(bench: &mut Bench, cluster: &str, verdict: Verdict, second: u64) -> Vec<Command> {
    let verdicts = Arc::new(Verdicts::from([(id(cluster), verdict)]));
    bench.core.handle(Input::Reached(verdicts), at(second))
}

const DEAD: Verdict = Verdict::Unreachable(Evidence { endpoints: 5, nodes: 2 });

/// The clusters of which `web` shows endpoints, and what the import says of those that cannot be reached.
fn shown(bench: &mut Bench, second: u64) -> (Vec<String>, Option<String>) {
    let Plan::Want(wanted) = bench.work("web", at(second)).import else { panic!("nothing is wanted") };
    let shown = wanted.slices.iter().filter(|(_, slices)| slices.iter().any(|slice| !slice.endpoints.is_empty()));
    let said = wanted.unreachable.iter().map(|(cluster, unreachable)| format!("{cluster}: {unreachable}")).next();
    (shown.map(|(cluster, _)| cluster.to_string()).collect(), said)
}

#[test]
fn a_cluster_is_asked_for_by_few_endpoints_of_several_nodes_and_only_while_leaders_are_connected() {
    let mut bench = bench();
    let questions = asked(&connect(&mut bench, Some(&["blue"]), 3)).unwrap();
    let [blue, green] = ["blue", "green"].map(|name| &questions[&Party::There(id(name))]);
    assert_eq!((blue.connected, green.connected), (true, false));
    assert_eq!((blue.endpoints.len(), green.endpoints.len()), (CANDIDATES, 2));
    let on = |node: &str| blue.endpoints.values().filter(|of| &***of == node).count();
    assert_eq!(NODES.map(on), [CANDIDATES / 2; 2]);
    assert_eq!(asked(&connect(&mut bench, None, 4)), Some(Arc::default()), "the stream is off");
    bench.core.importing.reachability.enabled = false;
    assert_eq!(asked(&connect(&mut bench, Some(&["blue"]), 5)), None, "--probe=off");
}

#[test]
fn what_is_no_pod_or_no_import_may_have_is_never_tried() {
    let mut bench = bench();
    let bad = |change: fn(&mut Endpoint)| {
        let mut exported = exported(3, 1);
        change(&mut exported.endpoints[0]);
        exported
    };
    let cases = [
        bad(|_| ()),
        bad(|endpoint| endpoint.node = None),
        bad(|endpoint| endpoint.ipv4 = Some([169, 254, 169, 254].into())),
        bad(|endpoint| endpoint.conditions.ready = false),
        bad(|endpoint| endpoint.ports = [].into()),
        bad(|endpoint| endpoint.ipv4 = None),
    ];
    for (number, exported) in cases.into_iter().enumerate() {
        let mut exports = Exports::resume(&Map::new());
        exports.set(&key("web"), Some(Arc::new(exported)), BTreeSet::new(), 1);
        bench.remotes_are(&[("red", exports.map())], at(1));
        bench.core.importing.reachability.next = Duration::ZERO;
        bench.core.handle(Input::Tick, at(30));
        let asked = &bench.core.importing.reachability.asked;
        assert_eq!(asked.is_empty(), number > 0, "case {number}: {asked:?}");
    }
}

#[test]
fn who_cannot_be_reached_serves_last_and_a_new_leader_knows_it() {
    let mut bench = bench();
    assert_eq!(shown(&mut bench, 3).0, ["blue", "green"]);
    let commands = judge(&mut bench, "blue", DEAD, 10);
    assert!(commands.iter().any(|command| matches!(command, Command::Reconcile(name) if *name == key("web"))));
    let map = published(&commands).unwrap();
    let (clusters, said) = shown(&mut bench, 11);
    assert_eq!(clusters, ["green"]);
    let said = said.unwrap();
    assert!(said.contains("5 of its endpoints on 2 nodes") && said.starts_with("blue: 1970-"), "{said}");
    assert!(judge(&mut bench, "blue", DEAD, 12).is_empty(), "nothing new");

    // A new leader of this cluster; nothing is known of streams yet.
    let mut next = Bench::new(Mode::Member);
    next.observe(at(0));
    assert_eq!(*next.core.knowledge.membership(), Membership::Joining("starting".to_owned()));
    connect(&mut next, Some(&[]), 1);
    let own = ledger::writer::Inherited { map, ..Default::default() };
    next.core.handle(Input::Resumed(Some(Arc::new(own))), at(1));
    next.remotes_are(&[("blue", state(1, 20)), ("green", state(2, 2))], at(1));
    next.core.handle(Input::Tick, at(40));
    let (clusters, said) = shown(&mut next, 41);
    assert_eq!((clusters, said.unwrap().contains("an earlier leader")), (vec!["green".to_owned()], true));
    let asked = asked(&connect(&mut next, Some(&["blue"]), 42)).unwrap();
    assert!(asked[&Party::There(id("blue"))].unreachable, "it is looked for whether it is back");
    let commands = judge(&mut next, "blue", Verdict::Reachable, 50);
    assert_eq!(shown(&mut next, 51), (vec!["blue".to_owned(), "green".to_owned()], None));
    let map = published(&commands).unwrap();
    assert!(!records::properties::keys(&map).iter().any(|name| name.contains(api::names::PROPERTY_UNREACHABLE)));
}

#[test]
fn the_last_ones_serve_and_verdicts_end_where_nobody_looks() {
    let mut bench = bench();
    judge(&mut bench, "blue", DEAD, 10);
    judge(&mut bench, "green", DEAD, 11);
    assert_eq!(shown(&mut bench, 12).0, ["blue", "green"], "nobody else is ready");
    // Its leader does not talk to others any more.
    connect(&mut bench, None, 13);
    assert_eq!(shown(&mut bench, 14), (vec!["blue".to_owned(), "green".to_owned()], None));
}
