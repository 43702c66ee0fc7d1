//! The core by itself: what changed goes in, commands come out, and time is a number.

#[path = "core_tests/joining.rs"]
mod joining;
#[path = "core_tests/left_out.rs"]
mod left_out;
#[path = "core_tests/registrations.rs"]
mod registrations;
#[path = "core_tests/written.rs"]
mod written;

use serde_json::json;

use super::*;
use crate::{
    ImportRules, Metrics,
    derived::Derived,
    knowledge::tests::mk_remotes,
    peers::tests::{found, instance, reading},
    runtime::Watched,
    targets::tests::mk_targets,
    work::{Part, Report},
};
use api::names::{LABEL_KUBERNETES_SERVICE_NAME, LABEL_MANAGED_BY, LABEL_SERVICE_NAME};
use cluster::{
    Change,
    apply::{Cause, Error},
    events::Outbox,
    memory::MemoryCluster,
};
use cutover::Settle;
use export::{Exports, Quota};
use import::{DerivedNaming, Former, Plan, hashed};
use instances::{RegistrationPolicy, Selection, sync::TargetStatus};
use ledger::writer::Stage;
use model::Target;

const DELAY: Duration = Duration::from_secs(10);

pub(crate) fn at(seconds: u64) -> Now {
    Now { mono: Duration::from_secs(seconds), wall: Timestamp::from_second(1_000_000 + seconds.cast_signed()).unwrap() }
}

pub(crate) fn key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

/// A core, and the cluster that its caches show.
pub(crate) struct Bench {
    objects: Arc<MemoryCluster>,
    pub(crate) core: Core,
    watched: Watched,
}

impl Bench {
    pub(crate) fn new(mode: Mode) -> Self {
        let (objects, caches) = MemoryCluster::new();
        let settings = ControllerSettings {
            cluster: "here".parse().unwrap(),
            concurrency: 1,
            targets: mk_targets(Selection::All),
            annotations: annotations::AnnotationSettings::default(),
            registration: RegistrationPolicy::Open,
            quota: Quota::default(),
            claim_delay: DELAY,
            export_namespaces: None,
            families: vec![IpFamily::V4],
            derived: DerivedNaming::Hash,
            gate_timeout: Duration::from_mins(5),
            hide_tasks: false,
            settle: Settle::default(),
            type_notice: Duration::from_mins(15),
            cluster_selection: api::selection::ClusterSelection::spread(),
            probe: true,
            import: ImportRules::default(),
        };
        let watched = Watched::new(&caches);
        let core = Core::new(settings, mode, Membership::Joining("starting".to_owned()), at(0));
        objects.add_namespace("shop");
        Self { objects, core, watched }
    }

    /// A member whose ledger is empty, and whose heads were read: there is nobody else.
    pub(crate) fn member() -> Self {
        let mut bench = Self::new(Mode::Member);
        bench.observe(at(0));
        let running = Status { stage: Stage::Running, ..Status::default() };
        bench.core.handle(Input::Ledger(Arc::new(running)), at(0));
        bench.core.handle(Input::Resumed(Some(Arc::default())), at(0));
        bench.remotes([], at(0));
        bench
    }

    /// Takes in what the caches show.
    pub(crate) fn observe(&mut self, now: Now) -> Vec<Command> {
        let batch = self.watched.take();
        self.take_in(batch, now)
    }

    fn take_in(&mut self, batch: Batch, now: Now) -> Vec<Command> {
        self.core.handle(Input::Objects(Box::new(batch)), now)
    }

    fn remotes<const N: usize>(&mut self, exporting: [&str; N], now: Now) -> Vec<Command> {
        let mut map = Exports::resume(&Map::new());
        let local = Arc::new(crate::targets::tests::mk_local());
        for name in exporting {
            map.set(&key(name), Some(Arc::clone(&local)), BTreeSet::new(), 1);
        }
        self.remote((N > 0).then(|| map.map()), now)
    }

    /// Another cluster with this state, if any.
    fn remote(&mut self, map: Option<Arc<Map>>, now: Now) -> Vec<Command> {
        let there = map.map(|map| ("there", Some(map)));
        let remotes = mk_remotes(there.as_slice());
        self.core.handle(Input::Remotes(Arc::new(remotes)), now)
    }

    /// Other clusters with these states.
    pub(crate) fn remotes_are(&mut self, clusters: &[(&str, Arc<Map>)], now: Now) -> Vec<Command> {
        let clusters: Vec<_> = clusters.iter().map(|(name, map)| (*name, Some(Arc::clone(map)))).collect();
        self.core.handle(Input::Remotes(Arc::new(mk_remotes(&clusters))), now)
    }

    fn put(&self, name: &str, annotations: &[(&str, &str)]) {
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        // What annotations ask for has its pods registered only where it is headless.
        let ip = if annotations.is_empty() { "10.96.0.9" } else { "None" };
        let metadata = json!({"namespace": "shop", "name": name, "annotations": annotations});
        let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
        let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"], "ports": ports});
        self.objects.put_service(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
        let slice = json!({
            "metadata": {"namespace": "shop", "name": format!("{name}-1"), "labels": {LABEL_KUBERNETES_SERVICE_NAME: name}},
            "addressType": "IPv4", "ports": ports, "endpoints": [{
                "addresses": ["10.0.0.1"], "conditions": {"ready": true},
                "targetRef": {"kind": "Pod", "name": "pod", "uid": "pod"},
            }],
        });
        self.objects.put_slice(serde_json::from_value(slice).unwrap());
    }

    fn export(&self, name: &str, annotations: &[(&str, &str)]) {
        self.put(name, &[]);
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        let export = json!({
            "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
            "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
        });
        self.objects.put_export(serde_json::from_value(export).unwrap());
    }

    pub(crate) fn work(&mut self, name: &str, now: Now) -> Box<Work> {
        let commands = self.core.handle(Input::Due(key(name)), now);
        commands.into_iter().find_map(|c| if let Command::Apply(work) = c { Some(work) } else { None }).unwrap()
    }
}

/// The key of a name's derived Service.
fn hashed_key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", hashed(&key(name)))
}

pub(crate) fn published(commands: &[Command]) -> Option<Arc<Map>> {
    commands.iter().rev().find_map(|c| if let Command::Publish(map) = c { Some(Arc::clone(map)) } else { None })
}

fn registered(commands: &[Command]) -> Option<Desired> {
    commands.iter().rev().find_map(|c| if let Command::Register(desired) = c { Some(desired.clone()) } else { None })
}

fn reconciled(commands: &[Command]) -> BTreeSet<ServiceKey> {
    commands.iter().filter_map(|c| if let Command::Reconcile(key) = c { Some(key.clone()) } else { None }).collect()
}

#[test]
fn an_export_is_published_with_its_endpoints_and_taken_back_when_it_goes() {
    let mut bench = Bench::member();
    bench.export("web", &[]);
    let commands = bench.observe(at(1));
    let map = published(&commands).unwrap();
    assert!(map.contains_key("shop/web") && map.contains_key("shop/web#0"), "{map:?}");
    assert!(reconciled(&commands).contains(&key("web")));
    assert!(bench.observe(at(2)).is_empty(), "no news");
    bench.objects.remove_export(&key("web"));
    let map = published(&bench.observe(at(3))).unwrap();
    assert!(!map.contains_key("shop/web") && !map.contains_key("shop/web#0"), "{map:?}");
}

/// With a hundred clusters, most names are in namespaces that this one does not have.
#[test]
fn a_name_is_looked_at_when_its_namespace_is_here() {
    let mut bench = Bench::member();
    let there = |namespace: &str| ServiceKey::new(namespace, "web");
    let mut map = Exports::resume(&Map::new());
    let local = Arc::new(crate::targets::tests::mk_local());
    for namespace in ["shop", "away"] {
        map.set(&there(namespace), Some(Arc::clone(&local)), BTreeSet::new(), 1);
    }
    assert_eq!(reconciled(&bench.remote(Some(map.map()), at(1))), [there("shop")].into());
    bench.objects.add_namespace("away");
    assert_eq!(reconciled(&bench.observe(at(2))), [there("away")].into());
    bench.objects.remove_namespace("away");
    bench.observe(at(3));
    assert_eq!(reconciled(&bench.remote(None, at(4))), [there("shop")].into());
}

/// The other exports differ from none that this cluster has.
#[test]
fn an_export_that_is_not_allowed_any_more_has_no_conflict() {
    let mut bench = Bench::member();
    bench.core.settings.export_namespaces = Some("export in (yes)".parse().unwrap());
    bench.put("web", &[]);
    let conflict = json!({
        "type": "Conflict", "status": "True", "reason": "TypeConflict", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let export = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"namespace": "shop", "name": "web"}, "status": {"conditions": [conflict]},
    });
    bench.objects.put_export(serde_json::from_value(export).unwrap());
    bench.observe(at(1));
    let conditions = bench.work("web", at(1)).report.unwrap().conditions;
    let types: Vec<_> = conditions.iter().map(|condition| condition.type_.as_str()).collect();
    assert_eq!(types, ["Valid", "Ready"]);
}

#[test]
fn endpoints_stay_while_their_slices_follow_the_new_name_of_a_port() {
    let mut bench = Bench::member();
    bench.export("web", &[]);
    let before = published(&bench.observe(at(1))).unwrap();
    let ports = |name: &str| json!([{"name": name, "protocol": "TCP", "port": 80}]);
    let put_service = |bench: &Bench, name: &str| {
        let ip = "10.96.0.9";
        let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"], "ports": ports(name)});
        let metadata = json!({"namespace": "shop", "name": "web"});
        bench.objects.put_service(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
    };
    put_service(&bench, "api");
    assert!(published(&bench.observe(at(2))).is_none(), "no endpoint serves this port yet");
    assert!(bench.core.wake().is_some_and(|wake| wake <= at(7).mono));
    let slice = json!({
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {LABEL_KUBERNETES_SERVICE_NAME: "web"}},
        "addressType": "IPv4", "ports": ports("api"),
        "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
    });
    bench.objects.put_slice(serde_json::from_value(slice).unwrap());
    let after = published(&bench.observe(at(3))).unwrap();
    assert!(after.get("shop/web") != before.get("shop/web") && after.contains_key("shop/web#0"), "{after:?}");

    // Somebody else writes the slices, and leaves them as they are.
    put_service(&bench, "other");
    assert!(published(&bench.observe(at(4))).is_none());
    assert!(published(&bench.core.handle(Input::Tick, at(8))).is_none());
    let alone = published(&bench.core.handle(Input::Tick, at(9))).unwrap();
    assert!(alone.contains_key("shop/web") && !alone.contains_key("shop/web#0"), "{alone:?}");
    assert!(bench.core.exporting.held.is_empty());
}

/// The endpoints still serve the other port, which says nothing about this one.
#[test]
fn one_of_several_ports_gets_a_new_name_with_its_slices() {
    let ports = |name: &str| json!([{"name": name, "protocol": "TCP", "port": 80}, {"name": "admin", "protocol": "TCP", "port": 90}]);
    let put_service = |bench: &Bench, name: &str| {
        let ip = "10.96.0.9";
        let spec = json!({"clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"], "ports": ports(name)});
        let metadata = json!({"namespace": "shop", "name": "web"});
        bench.objects.put_service(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
    };
    let put_slice = |bench: &Bench, name: &str| {
        let slice = json!({
            "metadata": {"namespace": "shop", "name": "web-1", "labels": {LABEL_KUBERNETES_SERVICE_NAME: "web"}},
            "addressType": "IPv4", "ports": ports(name),
            "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": true}}],
        });
        bench.objects.put_slice(serde_json::from_value(slice).unwrap());
    };
    let mut bench = Bench::member();
    bench.export("web", &[]);
    put_service(&bench, "http");
    put_slice(&bench, "http");
    bench.observe(at(1));
    put_service(&bench, "web");
    assert!(published(&bench.observe(at(2))).is_none(), "no endpoint serves the renamed port yet");
    put_slice(&bench, "web");
    assert!(published(&bench.observe(at(3))).is_some() && bench.core.exporting.held.is_empty());
}

/// The caches may show a change before the core takes it in.
#[test]
fn a_decision_sees_what_was_taken_in_and_no_more() {
    let mut bench = Bench::member();
    bench.export("web", &[]);
    let before = published(&bench.observe(at(1))).unwrap();
    let service = bench.objects.services().pop().unwrap();
    let mut other = service.clone();
    other.spec.as_mut().unwrap().session_affinity = Some("ClientIP".to_owned());
    bench.objects.put_service(other.clone());
    // Something else of the same name is taken in first.
    let export = bench.core.world.exports.get(&key("web"));
    let exports = vec![Change { key: key("web"), old: export.clone(), new: export }];
    assert!(published(&bench.take_in(Batch { exports, ..Batch::default() }, at(2))).is_none());
    bench.objects.put_service(service);
    assert!(published(&bench.observe(at(3))).is_none(), "it was taken back");
    bench.objects.put_service(other);
    let after = published(&bench.observe(at(4))).unwrap();
    assert!(after.get("shop/web") != before.get("shop/web"), "{after:?}");
}

/// A derived Service or a slice that somebody deletes as soon as it was made.
#[test]
fn what_comes_and_goes_before_it_is_taken_in_is_made_again() {
    let mut bench = Bench::member();
    bench.remotes(["web"], at(1));
    let services = vec![Change { key: hashed_key("web"), old: None, new: None }];
    let commands = bench.take_in(Batch { services, ..Batch::default() }, at(2));
    assert!(reconciled(&commands).contains(&key("web")));
    let imported_slices = vec![Change { key: key("web-0").into(), old: None, new: None }];
    let commands = bench.take_in(Batch { imported_slices, ..Batch::default() }, at(3));
    assert!(reconciled(&commands).contains(&key("web")));
}

/// Another namespace imports from the Cloud Map namespace `shop`, so that nothing more is read when this one comes.
#[test]
fn what_aws_controllers_export_is_imported_into_a_namespace_that_comes_later() {
    let mut bench = Bench::member();
    bench.core.importing.peers = Peers::new(true);
    let web = reading(&[instance("c1", "10.0.0.1", &[])]);
    let commands = bench.core.handle(Input::Discovered(found(&[("web", Some(web))], true, None)), at(1));
    assert!(reconciled(&commands).is_empty());
    let new = bench.core.world.namespaces.get(&Arc::from("shop"));
    let namespaces = vec![Change { key: "shop".into(), old: None, new }];
    let commands = bench.take_in(Batch { namespaces, ..Batch::default() }, at(2));
    assert!(reconciled(&commands).contains(&key("web")));
}

#[test]
fn what_another_cluster_exports_is_written_by_a_worker_and_stays_while_that_cluster_is_not_known() {
    let mut bench = Bench::member();
    let commands = bench.remotes(["web"], at(1));
    assert!(reconciled(&commands).contains(&key("web")));
    assert!(matches!(bench.work("web", at(1)).import, Plan::Want(_)));
    assert!(matches!(bench.work("other", at(1)).import, Plan::Keep));
    // In the namespaces of Kubernetes nothing is.
    let system = ServiceKey::new("kube-system", "web");
    let commands = bench.core.handle(Input::Due(system), at(1));
    assert!(matches!(&commands[..], [Command::Apply(work)] if matches!(work.import, Plan::Keep)));
    assert!(bench.remotes(["web"], at(2)).is_empty(), "no news");
    let commands = bench.remotes([], at(3));
    assert!(reconciled(&commands).contains(&key("web")));
}

/// Its ClusterProperty may come back; nothing tells it any more which endpoints are alive.
#[test]
fn a_cluster_in_no_clusterset_keeps_its_imports_until_it_has_left() {
    let mut bench = Bench::new(Mode::Standalone);
    let metadata = json!({"namespace": "shop", "name": "web", "labels": {"cloudmap-mcs/managed-by": "cloudmap-mcs"}});
    let import = json!({"metadata": metadata, "spec": {"type": "ClusterSetIP", "ports": []}});
    bench.objects.put_import(serde_json::from_value(import).unwrap());
    bench.observe(at(0));
    let mut kept = Kept { map: Some(Arc::default()), ..Kept::default() };
    bench.core.handle(Input::Kept(kept.clone()), at(0));
    assert_eq!(bench.work("web", at(0)).import, Plan::Keep);
    kept.outside = true;
    assert!(reconciled(&bench.core.handle(Input::Kept(kept), at(1))).contains(&key("web")));
    assert_eq!(bench.work("web", at(1)).import, Plan::Remove);
}

#[test]
fn a_cloud_map_namespace_is_sought_as_long_as_a_namespace_imports_it() {
    let mut bench = Bench::member();
    let subscribed = |commands: Vec<Command>| {
        commands
            .into_iter()
            .find_map(|c| if let Command::Subscribe(subscribed) = c { Some(subscribed.len()) } else { None })
    };
    bench.objects.annotate_namespace("shop", &[("cloudmap.controller/import-from", "internal")]);
    assert_eq!(subscribed(bench.observe(at(1))), Some(1));
    bench.objects.annotate_namespace("shop", &[]);
    assert_eq!(subscribed(bench.observe(at(2))), Some(0));
}

#[test]
fn an_error_of_the_registry_counts_as_waiting_at_first_and_is_said_later() {
    let mut bench = Bench::new(Mode::Member);
    bench.observe(at(0));
    bench.export("web", &[]);
    bench.observe(at(0));
    let failing = Status { error: Some("access denied".to_owned()), ..Status::default() };
    bench.core.handle(Input::Ledger(Arc::new(failing)), at(1));
    assert!(matches!(bench.core.knowledge.membership(), Membership::Joining(_)));
    let commands = bench.core.handle(Input::Tick, Now { mono: FIRST_READING, ..at(15) });
    assert!(matches!(bench.core.knowledge.membership(), Membership::Failing(_)));
    assert_eq!(reconciled(&commands), [key("web")].into());
}

#[test]
fn an_error_gets_other_words_once_a_minute() {
    let mut bench = Bench::new(Mode::Member);
    bench.observe(at(0));
    bench.export("web", &[]);
    bench.observe(at(0));
    bench.core.handle(Input::Tick, at(20));
    let mut fails = |words: &str, second| {
        let failing = Status { error: Some(words.to_owned()), ..Status::default() };
        reconciled(&bench.core.handle(Input::Ledger(Arc::new(failing)), at(second)))
    };
    assert_eq!(fails("timed out", 21), [key("web")].into());
    for second in 22..30 {
        assert_eq!(fails(["access denied", "timed out"][second as usize % 2], second), [].into(), "{second}");
    }
    assert_eq!(fails("access denied", 30), [].into());
    assert!(bench.core.wake().is_some_and(|at_last| at_last <= at(81).mono));
    assert_eq!(reconciled(&bench.core.handle(Input::Tick, at(81))), [key("web")].into());
    let Membership::Failing(words) = bench.core.knowledge.membership() else { panic!("it fails") };
    assert!(words.contains("access denied"), "{words}");
}

#[test]
fn names_that_come_and_go_leave_nothing_behind() {
    let mut bench = Bench::member();
    bench.objects.put_pod("shop", "pod", &[("version", "2")]);
    for n in 0..300 {
        let name = format!("web-{n}");
        bench.export(&name, &[("cloudmap-mcs/service", &format!("www-{n}"))]);
        bench.put(
            &format!("pods-{n}"),
            &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", &format!("pods-{n}"))],
        );
        let map = published(&bench.observe(at(n)));
        let labelled = |bench: &Bench, name: &str| !bench.core.pods.labels(&key(name)).is_empty();
        assert!(labelled(&bench, &name) && labelled(&bench, &format!("pods-{n}")));
        bench.core.handle(Input::Published(map.clone()), at(n));
        bench.core.handle(Input::ReadBack(map), at(n));
        bench.remotes(["theirs"], at(n));
        bench.work(&name, at(n));
        bench.objects.remove_export(&key(&name));
        for gone in [name.clone(), format!("pods-{n}")] {
            bench.objects.remove_service(&key(&gone));
            let slice = json!({
                "metadata": {"namespace": "shop", "name": format!("{gone}-1")}, "addressType": "IPv4", "endpoints": [],
            });
            bench.objects.put_slice(serde_json::from_value(slice).unwrap());
        }
        bench.observe(at(n));
        assert!(!labelled(&bench, &name) && !labelled(&bench, &format!("pods-{n}")));
        bench.work(&name, at(n));
        bench.remotes([], at(n));
        assert!(bench.core.instances.desired.iter().all(|(_, desired)| desired.released));
        let desired: BTreeSet<Target> = bench.core.instances.desired.keys().cloned().collect();
        assert_eq!(desired.len(), 2);
        let gone = TargetStatus { own_gone: true, done: true, ..TargetStatus::default() };
        let statuses = desired.into_iter().map(|target| (target, gone.clone())).collect();
        let map = published(&bench.core.handle(Input::Statuses(statuses), at(n)));
        assert_eq!(map.as_deref(), Some(&Map::new()));
        bench.core.handle(Input::Statuses(Statuses::new()), at(n));
    }
    let core = &bench.core;
    assert_eq!(core.sizes(), Sizes { clusters: 1, names: 0, annotated: (0, 0), waiting_pods: 0, serving: [0; 3] });
    assert_eq!(
        (core.world.slices.names().count(), core.world.cluster_ips.len(), core.instances.desired.len()),
        (0, 0, 0)
    );
    assert_eq!((core.claims.waiting().count(), core.claims.wake()), (0, None));
}

#[test]
fn names_are_looked_at_again_when_services_take_addresses_from_another_range() {
    let mut bench = Bench::member();
    bench.remotes(["web"], at(1));
    let ranges = |range: &str| Input::Ranges([Range::parse(range).unwrap()].into());
    let named = |commands: &[Command]| reconciled(commands).contains(&key("web"));
    assert!(named(&bench.core.handle(ranges("10.96.0.0/12"), at(2))));
    assert!(!named(&bench.core.handle(ranges("10.96.0.0/12"), at(3))), "no news");
}

/// A Service takes an address that an imported endpoint has, outside the known ranges of cluster IPs.
#[test]
fn the_names_with_an_address_that_becomes_a_cluster_ip_are_looked_at_again() {
    let mut bench = Bench::member();
    bench.remotes(["web"], at(1));
    let address = crate::targets::tests::mk_local().endpoints[0].ipv4.unwrap().to_string();
    let service = json!({
        "metadata": {"namespace": "shop", "name": "other"},
        "spec": {"clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"]},
    });
    bench.objects.put_service(serde_json::from_value(service).unwrap());
    bench.observe(at(2));
    assert_eq!(reconciled(&bench.core.handle(Input::Tick, at(3))), [key("web")].into());
    assert_eq!(reconciled(&bench.core.handle(Input::Tick, at(4))), BTreeSet::new(), "once");
}
