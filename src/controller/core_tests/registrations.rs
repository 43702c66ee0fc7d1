//! What is registered in Cloud Map for exports and annotated Services, and from when on.

use super::*;
use annotations::{Known, Zones};
use cloudmap::{Namespace, NamespaceKind};
use instances::sync::{Outcome, Reason};
use model::ClaimOwner;

/// `web` holds `internal/www`, for which a Service of another cluster waits. Then it names `internal/web` instead. `put`
/// makes it name a Cloud Map service.
fn mk_moved(put: impl Fn(&Bench, &str)) -> (Bench, Target, Desired) {
    let mut bench = Bench::member();
    let status = Status { stage: Stage::Running, reads: 1, ..Status::default() };
    bench.core.handle(Input::Ledger(Arc::new(status)), at(20));
    put(&bench, "www");
    let map = published(&bench.observe(at(20)));
    let target = Target { namespace: "internal".into(), service: "www".into() };
    let desired = registered(&bench.core.handle(Input::Published(map), at(20))).unwrap();
    assert!(desired[&target].active);
    let mut others = Exports::resume(&Map::new());
    others.claim(&ClaimOwner::service(&key("other")), [target.clone()].into(), 2_000_000);
    bench.remote(Some(others.map()), at(21));
    put(&bench, "web");
    let desired = registered(&bench.observe(at(22))).unwrap();
    assert!(!desired[&target].retiring, "it hands over");
    (bench, target, desired)
}

#[test]
fn a_named_target_is_registered_when_its_claim_was_on_record_and_visible_for_long_enough() {
    let mut bench = Bench::member();
    // Another cluster is there, which might want the name, too.
    bench.remotes(["other"], at(1));
    bench.export("web", &[("cloudmap-mcs/service", "www")]);
    let commands = bench.observe(at(2));
    let target = Target { namespace: "shop".into(), service: "www".into() };
    let active = |desired: &Desired| desired[&target].active;
    let desired = registered(&commands).unwrap();
    assert!(!active(&desired) && desired[&target].instances.len() == 1);
    let map = published(&commands);
    bench.core.handle(Input::Published(map.clone()), at(3));
    bench.core.handle(Input::ReadBack(map), at(4));
    assert_eq!(bench.core.wake(), Some(at(4).mono + DELAY));
    assert!(bench.core.handle(Input::Tick, at(13)).is_empty(), "not yet");
    assert!(registered(&bench.core.handle(Input::Tick, at(14))).is_none(), "what was read before says nothing");
    for (reads, second) in [(1, 14), (2, 15)] {
        let status = Status { stage: Stage::Running, reads, ..Status::default() };
        bench.core.handle(Input::Ledger(Arc::new(status)), at(second));
    }
    let desired = registered(&bench.core.handle(Input::Tick, at(15))).unwrap();
    assert!(active(&desired));
    // What came of it is said on the export alone that it concerns.
    let status = TargetStatus { outcome: Outcome::Registered { count: 1 }, ..TargetStatus::default() };
    let commands = bench.core.handle(Input::Statuses([(target, status)].into()), at(15));
    assert_eq!(reconciled(&commands), [key("web")].into());
    let conditions = bench.work("web", at(20)).report.unwrap().conditions;
    assert!(
        conditions.iter().any(|c| (c.type_.as_str(), c.status.as_str()) == ("Registered", "True")),
        "{conditions:?}"
    );
}

#[test]
fn who_comes_back_after_it_left_is_the_only_cluster_from_then_on() {
    let mut bench = Bench::member();
    let hear = |bench: &mut Bench, leaving, reads, now| {
        let status = Status { stage: Stage::Running, leaving, reads, ..Status::default() };
        bench.core.handle(Input::Ledger(Arc::new(status)), now);
    };
    hear(&mut bench, true, 1, at(1));
    hear(&mut bench, false, 2, at(60));
    bench.export("web", &[("cloudmap-mcs/service", "www")]);
    let target = Target { namespace: "shop".into(), service: "www".into() };
    let map = published(&bench.observe(at(60)));
    bench.core.handle(Input::Published(map.clone()), at(61));
    let desired = registered(&bench.core.handle(Input::ReadBack(map), at(62)));
    assert!(desired.is_none_or(|desired| !desired[&target].active), "others may come at the same time");
    let desired = registered(&bench.core.handle(Input::Tick, at(70))).unwrap();
    assert!(desired[&target].active, "nobody came");
}

#[test]
fn an_annotated_service_of_a_cluster_in_no_clusterset_is_registered_when_its_record_is_kept() {
    let mut bench = Bench::new(Mode::Standalone);
    bench.observe(at(0));
    bench.core.handle(Input::Kept(Kept { map: Some(Arc::default()), ..Kept::default() }), at(0));
    bench.put("web", &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", "web")]);
    let commands = bench.observe(at(1));
    assert!(commands.iter().any(|command| matches!(command, Command::List(true))));
    assert!(registered(&commands).unwrap().values().all(|desired| !desired.active));
    let kept = Kept { map: published(&commands), ..Kept::default() };
    let desired = registered(&bench.core.handle(Input::Kept(kept), at(2))).unwrap();
    assert!(desired.values().all(|desired| desired.active) && desired.len() == 1);
}

#[test]
fn an_export_hears_what_came_of_a_target_that_its_annotated_service_holds() {
    let mut bench = Bench::member();
    let target = Target { namespace: "internal".into(), service: "www".into() };
    bench.export("web", &[]);
    bench.put("web", &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", "www")]);
    bench.observe(at(1));
    assert!(bench.core.knowledge.exports().unwrap().registrations()[&target].owner.is_annotated());
    let named = [("cloudmap-mcs/namespace", "internal"), ("cloudmap-mcs/service", "www")];
    let export = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"namespace": "shop", "name": "web", "annotations": BTreeMap::from(named)},
    });
    bench.objects.put_export(serde_json::from_value(export).unwrap());
    let map = published(&bench.observe(at(2)));
    bench.core.handle(Input::Published(map.clone()), at(2));
    bench.core.handle(Input::ReadBack(map), at(2));
    let outcome = Outcome::Refused { reason: Reason::ForeignOwner, message: "Of external-dns.".to_owned() };
    let status = TargetStatus { outcome, ..TargetStatus::default() };
    let commands = bench.core.handle(Input::Statuses([(target, status)].into()), at(3));
    assert_eq!(reconciled(&commands), [key("web")].into());
    let conditions = bench.work("web", at(20)).report.unwrap().conditions;
    assert!(conditions.iter().any(|c| c.type_ == "Registered" && c.reason == "ForeignOwner"), "{conditions:?}");
}

#[test]
fn labels_of_pods_come_to_the_export_and_to_the_annotated_service_that_register_them() {
    let mut bench = Bench::member();
    bench.export("web", &[]);
    bench.put("web", &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", "web")]);
    let before = registered(&bench.observe(at(1))).unwrap();
    bench.objects.put_pod("shop", "pod", &[("role", "primary")]);
    let after = registered(&bench.observe(at(2))).unwrap();
    for namespace in ["shop", "internal"] {
        let target = Target { namespace: namespace.into(), service: "web".into() };
        assert_eq!(before[&target].instances.len(), 1);
        assert!(after[&target].instances != before[&target].instances, "{target}");
    }
}

#[test]
fn what_an_export_hands_over_follows_its_endpoints() {
    let (mut bench, target, desired) = mk_moved(|bench, service| {
        bench.export("web", &[("cloudmap-mcs/namespace", "internal"), ("cloudmap-mcs/service", service)]);
    });
    assert_eq!(desired[&target].instances.len(), 1);
    let slice = json!({
        "metadata": {"namespace": "shop", "name": "web-1", "labels": {LABEL_KUBERNETES_SERVICE_NAME: "web"}},
        "addressType": "IPv4", "endpoints": [],
    });
    bench.objects.put_slice(serde_json::from_value(slice).unwrap());
    let desired = registered(&bench.observe(at(23))).unwrap();
    assert_eq!(desired[&target].instances.len(), 0, "its pod is gone");
    bench.objects.remove_export(&key("web"));
    assert!(registered(&bench.observe(at(24))).unwrap()[&target].retiring);
}

/// Somebody may still be registered there by what was allowed.
#[test]
fn what_an_export_hands_over_follows_its_annotations() {
    let (mut bench, target, desired) = mk_moved(|bench, service| {
        bench.export("web", &[("cloudmap-mcs/namespace", "internal"), ("cloudmap-mcs/service", service)]);
    });
    assert!(desired[&target].consent.named);
    bench.export("web", &[("cloudmap-mcs/namespace", "internal"), ("cloudmap-mcs/share-of-traffic", "50%")]);
    let desired = registered(&bench.observe(at(23))).unwrap();
    assert!(!desired[&target].consent.named);
    assert_eq!(bench.core.clone().derive_from_scratch(at(23)).len(), 0);
}

/// A new leader finds a target on record that is to be withdrawn, before it knows what the annotations of its owner mean.
#[test]
fn what_an_annotated_service_gave_up_is_withdrawn_as_soon_as_its_annotations_are_understood() {
    let mut bench = Bench::new(Mode::Standalone);
    let target = Target { namespace: "internal".into(), service: "old".into() };
    let mut left = Exports::resume(&Map::new());
    left.claim(&ClaimOwner::service(&key("web")), [target.clone()].into(), 1);
    left.claim(&ClaimOwner::service(&key("web")), BTreeSet::new(), 2);
    // Only the list of Cloud Map namespaces says where this belongs.
    bench.put("web", &[("external-dns.alpha.kubernetes.io/hostname", "web.internal")]);
    bench.observe(at(0));
    let kept = Kept { map: Some(left.map()), ..Kept::default() };
    bench.core.handle(Input::Kept(kept), at(1));
    bench.put("web", &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", "web")]);
    let desired = registered(&bench.observe(at(2)));
    assert!(desired.is_some_and(|desired| desired[&target].retiring));
    assert_eq!(bench.core.clone().derive_from_scratch(at(2)).len(), 0);
}

#[test]
fn an_annotated_service_that_is_deleted_takes_along_what_it_hands_over() {
    let (mut bench, target, _) = mk_moved(|bench, service| {
        bench.put("web", &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", service)]);
    });
    bench.objects.remove_service(&key("web"));
    assert!(registered(&bench.observe(at(23))).unwrap()[&target].retiring);
}

/// The export `web`, of which this cluster said that it is registered.
fn put_registered(bench: &Bench) {
    bench.put("web", &[]);
    let registered = json!({
        "type": "Registered", "status": "True", "reason": "Registered",
        "message": "The ready endpoints are registered in Cloud Map service shop/web.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let export = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"namespace": "shop", "name": "web"}, "status": {"conditions": [registered]},
    });
    bench.objects.put_export(serde_json::from_value(export).unwrap());
}

/// Status, reason and message of the condition `Registered` that is to be written.
fn says_registered(bench: &mut Bench, now: Now) -> (String, String, String) {
    let conditions = bench.work("web", now).report.unwrap().conditions;
    let registered = conditions.into_iter().find(|condition| condition.type_ == "Registered").unwrap();
    (registered.status, registered.reason, registered.message)
}

#[test]
fn a_cluster_that_leaves_says_of_no_export_that_it_is_registered() {
    let mut bench = Bench::member();
    put_registered(&bench);
    bench.observe(at(1));
    let leaving = Status { stage: Stage::Running, leaving: true, ..Status::default() };
    bench.core.handle(Input::Ledger(Arc::new(leaving)), at(2));
    let (status, reason, message) = says_registered(&mut bench, at(2));
    assert!(status == "False" && reason == "Pending" && message.contains("leave --undo"), "{reason} {message}");
}

#[test]
fn a_cluster_in_no_clusterset_says_of_no_export_that_it_is_registered() {
    let mut bench = Bench::new(Mode::Standalone);
    put_registered(&bench);
    bench.observe(at(0));
    bench.core.handle(Input::Kept(Kept { map: Some(Arc::default()), ..Kept::default() }), at(0));
    let (status, reason, message) = says_registered(&mut bench, at(1));
    assert_eq!((&*status, &*reason, &*message), ("False", "Pending", "starting"));
}

/// A status of which this cluster has no record, because its own ledger cannot be read yet, and one that is gone.
#[test]
fn an_export_learns_of_each_change_of_a_status_of_its_target_whoever_holds_it() {
    let mut bench = Bench::new(Mode::Standalone);
    bench.export("web", &[]);
    bench.observe(at(0));
    assert!(bench.core.knowledge.exports().is_none());
    let target = Target { namespace: "shop".into(), service: "web".into() };
    let outcome = Outcome::Refused { reason: Reason::ForeignOwner, message: "Of external-dns.".to_owned() };
    let status = TargetStatus { outcome, ..TargetStatus::default() };
    let commands = bench.core.handle(Input::Statuses([(target, status)].into()), at(1));
    assert_eq!(reconciled(&commands), [key("web")].into());
    assert_eq!(says_registered(&mut bench, at(20)).1, "ForeignOwner");
    let commands = bench.core.handle(Input::Statuses(Statuses::new()), at(21));
    assert_eq!(reconciled(&commands), [key("web")].into());
    assert_eq!(says_registered(&mut bench, at(21)).1, "Pending");
}

#[test]
fn a_record_that_cannot_be_kept_is_reported_on_the_annotated_objects_that_need_it() {
    let mut bench = Bench::new(Mode::Standalone);
    bench.core.handle(Input::Kept(Kept { map: Some(Arc::default()), ..Kept::default() }), at(0));
    bench.put("web", &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", "web")]);
    bench.observe(at(1));
    let events = |commands: Vec<Command>| -> Vec<String> {
        let events = commands.into_iter().filter_map(|command| match command {
            Command::Emit(event) => Some(event.text),
            _ => None,
        });
        events.collect()
    };
    let denied = Kept { error: Some("the record cannot be written: forbidden".to_owned()), ..Kept::default() };
    let said = events(bench.core.handle(Input::Kept(denied.clone()), at(2)));
    assert!(said.len() == 1 && said[0].contains("forbidden"), "{said:?}");
    assert_eq!(events(bench.core.handle(Input::Kept(denied), at(3))), Vec::<String>::new(), "once");
}

#[test]
fn a_claim_that_waits_for_clusters_is_judged_when_the_last_of_them_was_read() {
    let mut bench = Bench::member();
    let clusters = |all_live_verified| {
        let remotes = mk_remotes(&[("there", Some(Arc::default()))]);
        Input::Remotes(Arc::new(Remotes { all_live_verified, ..remotes }))
    };
    bench.core.handle(clusters(false), at(1));
    bench.export("web", &[("cloudmap-mcs/service", "www")]);
    let map = published(&bench.observe(at(2)));
    bench.core.handle(Input::Published(map.clone()), at(3));
    bench.core.handle(Input::ReadBack(map), at(3));
    for (reads, second) in [(1, 30), (2, 31), (3, 60)] {
        let status = Status { stage: Stage::Running, reads, ..Status::default() };
        bench.core.handle(Input::Ledger(Arc::new(status)), at(second));
        bench.core.handle(Input::Tick, at(second));
    }
    let target = Target { namespace: "shop".into(), service: "www".into() };
    assert_eq!(bench.core.claims.standing(&target), Some(crate::claims::Standing::AwaitsClusters));
    let desired = registered(&bench.core.handle(clusters(true), at(61))).unwrap();
    assert!(desired[&target].active);
}

/// As for a leader that follows another one: the objects are there before the record was read.
#[test]
fn what_was_annotated_before_the_record_was_read_is_claimed_when_it_was() {
    let mut bench = Bench::new(Mode::Standalone);
    bench.put("web", &[("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", "web")]);
    assert!(published(&bench.observe(at(0))).is_none());
    let kept = Kept { map: Some(Arc::default()), ..Kept::default() };
    let commands = bench.core.handle(Input::Kept(kept), at(1));
    let target = Target { namespace: "internal".into(), service: "web".into() };
    let claims = records::registrations(&published(&commands).unwrap());
    assert!(claims.contains_key(&target) && registered(&commands).unwrap().contains_key(&target), "{claims:?}");
}

/// Annotations are served outside a ClusterSet, too, and may have registered the target of the export.
#[test]
fn an_export_outside_a_clusterset_follows_whether_its_service_is_annotated() {
    let mut bench = Bench::new(Mode::Standalone);
    put_registered(&bench);
    let service = |bench: &Bench, annotations: &[(&str, &str)]| {
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        let metadata = json!({"namespace": "shop", "name": "web", "annotations": annotations});
        let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
        let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"], "ports": ports});
        bench.objects.put_service(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap());
    };
    service(&bench, &[("cloudmap.controller/namespace", "shop"), ("cloudmap.controller/hostname", "web")]);
    bench.observe(at(0));
    assert_eq!(says_registered(&mut bench, at(1)).1, "Registered");
    service(&bench, &[]);
    assert_eq!(reconciled(&bench.observe(at(2))), [key("web")].into());
    assert_eq!(says_registered(&mut bench, at(2)).1, "Pending");
}

/// The previous leader recorded a target that the object gave up meanwhile. Whether it did is known once the namespaces are.
#[test]
fn what_an_object_gave_up_before_this_term_is_withdrawn_when_it_is_understood() {
    let mut bench = Bench::new(Mode::Member);
    bench.put("web", &[("external-dns.alpha.kubernetes.io/hostname", "web.internal")]);
    bench.observe(at(0));
    let running = Status { stage: Stage::Running, ..Status::default() };
    bench.core.handle(Input::Ledger(Arc::new(running)), at(0));
    let target = Target { namespace: "internal".into(), service: "former".into() };
    let mut before = Exports::resume(&Map::new());
    before.claim(&ClaimOwner::service(&key("web")), [target.clone()].into(), 1);
    let own = ledger::writer::Inherited { map: before.map(), ..Default::default() };
    bench.core.handle(Input::Resumed(Some(Arc::new(own))), at(0));
    bench.remotes([], at(0));
    assert!(!bench.core.knowledge.exports().unwrap().registrations()[&target].is_retiring(), "nothing is known yet");
    let internal = Namespace {
        id: "ns".into(),
        arn: "arn".into(),
        name: "internal".into(),
        http_name: "internal".into(),
        kind: NamespaceKind::DnsPrivate,
        description: None,
        created: 0,
        soa_ttl: None,
        hosted_zone: None,
    };
    let known = Known { zones: Some(Arc::new(Zones::new(&[internal]))), error: None };
    let desired = registered(&bench.core.handle(Input::Zones(known), at(1))).unwrap();
    assert!(desired[&target].retiring && desired[&target].released, "{desired:?}");
}
