use serde_json::json;

use super::*;
use crate::targets::tests::{key, mk_knowledge, mk_targets, target};
use cloudmap::{Namespace, NamespaceKind};
use cluster::cache::Narrow;
use instances::{
    Consent, Traffic,
    sync::{Creation, Ids, Outcome, Reason, TargetStatus},
};

fn wanting(target: Target) -> Object {
    let wanted = Wanted {
        instances: [].into(),
        creation: Creation::default(),
        consent: Consent::default(),
        keep: false,
        as_is: false,
        traffic: Traffic::All,
    };
    let planned = Planned { wanted: Some([(target, wanted)].into()), ..Planned::default() };
    Object { uid: "uid".into(), created: 1, planned }
}

#[test]
fn objects_that_come_and_go_leave_nothing_behind() {
    let mut annotated = Annotated::new(AnnotationSettings::default(), mk_targets(Selection::All));
    let knowledge = mk_knowledge(&[("older", 3)]);
    for n in 0..1_000 {
        let owner = ClaimOwner::service(&key(&format!("web-{n}")));
        let target = Target { namespace: "internal".into(), service: format!("web-{n}").into() };
        let elsewhere = Target { service: format!("other-{n}").into(), ..target.clone() };
        annotated.replan(&owner, Some(wanting(target.clone())));
        annotated.report_waiting(&knowledge, &target, false);
        let ids: Ids = Arc::new(["k8s-1".into()].into());
        let registered = TargetStatus { reached: Some(ids), ..TargetStatus::default() };
        annotated.report_status(&owner, &target, None, &registered, |_| Some("uid".into()));
        // It wants another name, and what it leaves cannot be withdrawn.
        annotated.replan(&owner, Some(wanting(elsewhere.clone())));
        let notices = vec![Notice { reason: EventReason::NearlyFull, message: "not ours".to_owned() }];
        let outcome = Outcome::Refused { reason: Reason::AccessDenied, message: "denied".to_owned() };
        let refused = TargetStatus { outcome, notices, ..TargetStatus::default() };
        for target in [&target, &elsewhere] {
            annotated.report_status(&owner, target, None, &refused, |_| Some("uid".into()));
        }
        annotated.replan(&owner, None);
        // By hand, or because the record of a claim is another one's.
        for target in [&target, &elsewhere] {
            annotated.forget(target);
        }
    }
    let Annotated { objects, wanting, said, trouble, held_up, noticed, .. } = &annotated;
    let sizes = [objects.len(), wanting.len(), said.len(), trouble.len(), held_up.len(), noticed.len()];
    assert_eq!(sizes, [0; 6]);
}

#[test]
fn what_is_refused_counts_until_it_is_not_whatever_else_changes() {
    let mut annotated = Annotated::new(AnnotationSettings::default(), mk_targets(Selection::All));
    let owner = ClaimOwner::service(&key("web"));
    let touch = |annotated: &mut Annotated, others: &[(&str, i64)]| {
        annotated.replan(&owner, Some(wanting(target())));
        annotated.report_waiting(&mk_knowledge(others), &target(), false);
        annotated.sizes()
    };
    let tell = |annotated: &mut Annotated, outcome| {
        let status = TargetStatus { outcome, ..TargetStatus::default() };
        annotated.report_status(&owner, &target(), None, &status, |_| Some("uid".into()));
        annotated.sizes()
    };
    assert_eq!(touch(&mut annotated, &[]), (1, 0));
    let refused = Outcome::Refused { reason: Reason::ForeignOwner, message: "it is theirs".to_owned() };
    assert_eq!(tell(&mut annotated, refused), (1, 1));
    assert_eq!(touch(&mut annotated, &[]), (1, 1));
    assert_eq!(touch(&mut annotated, &[("older", 3)]), (1, 2), "and it is another's");
    assert_eq!(touch(&mut annotated, &[]), (1, 1));
    assert_eq!(tell(&mut annotated, Outcome::Registered { count: 1 }), (1, 0));
}

/// What was said on the former one, nobody finds on this one.
#[test]
fn an_object_that_was_made_again_at_once_is_told_everything_again() {
    let mut annotated = Annotated::new(AnnotationSettings::default(), mk_targets(Selection::All));
    let owner = ClaimOwner::service(&key("web"));
    let knowledge = mk_knowledge(&[("older", 3)]);
    let outcome = Outcome::Refused { reason: Reason::ForeignOwner, message: "it is theirs".to_owned() };
    let notices = vec![Notice { reason: EventReason::NearlyFull, message: "there are many".to_owned() }];
    let status = TargetStatus { outcome, notices, ..TargetStatus::default() };
    let mut tell = |uid: &str| {
        let mut object = wanting(target());
        object.uid = uid.into();
        let message = "it is not valid".to_owned();
        object.planned.refusals = vec![Refusal { reason: EventReason::InvalidAnnotation, message }];
        let anew = annotated.replan(&owner, Some(object)).unwrap().anew;
        annotated.report_waiting(&knowledge, &target(), false);
        annotated.report_status(&owner, &target(), None, &status, |_| Some(uid.into()));
        let notes = annotated.take_notes();
        assert!(notes.iter().all(|note| note.regarding.uid.as_deref() == Some(uid)), "{notes:?}");
        (anew, notes.into_iter().map(|note| note.reason).collect::<BTreeSet<_>>())
    };
    let all: BTreeSet<_> = [
        EventReason::DomainConflict,
        EventReason::ForeignOwner,
        EventReason::InvalidAnnotation,
        EventReason::NearlyFull,
    ]
    .into();
    assert_eq!(tell("first"), (false, all.clone()));
    assert_eq!(tell("first"), (false, BTreeSet::new()));
    assert_eq!(tell("second"), (true, all));
}

/// What goes was never registered for the other one.
#[test]
fn what_goes_with_a_deleted_object_is_not_said_on_another_one_of_its_name() {
    for (annotated_again, reason, on) in
        [(false, EventReason::ServiceDeleted, "uid"), (true, EventReason::IpRemoved, "second")]
    {
        let mut annotated = Annotated::new(AnnotationSettings::default(), mk_targets(Selection::All));
        let owner = ClaimOwner::service(&key("web"));
        let status = |ids: &[&str], own_gone: bool| {
            let reached = ids.iter().map(|id| Arc::from(*id)).collect::<BTreeSet<_>>();
            let outcome = Outcome::Registered { count: ids.len() };
            TargetStatus { outcome, own_gone, reached: Some(Arc::new(reached)), ..TargetStatus::default() }
        };
        annotated.replan(&owner, Some(wanting(target())));
        annotated.report_status(&owner, &target(), None, &status(&["k8s-1"], false), |_| Some("uid".into()));
        annotated.replan(&owner, annotated_again.then(|| Object { uid: "second".into(), ..wanting(target()) }));
        for status in [status(&["k8s-1"], false), status(&[], !annotated_again)] {
            annotated.report_status(&owner, &target(), None, &status, |_| Some("second".into()));
        }
        let notes = annotated.take_notes();
        let said: Vec<_> = notes.iter().map(|note| (note.reason, note.regarding.uid.as_deref())).collect();
        assert_eq!(said, [(reason, Some(on))]);
    }
}

#[test]
fn who_waits_for_an_object_that_asks_for_too_much_is_told_so_and_does_not_wait() {
    let mut annotated = Annotated::new(AnnotationSettings::default(), mk_targets(Selection::All));
    let owner = ClaimOwner::service(&key("web"));
    let mut obstacle = |planned: Planned| {
        annotated.replan(&owner, Some(Object { uid: "uid".into(), created: 1, planned }));
        annotated.obstacle(&owner)
    };
    let unknown = || Planned { waits: Some("something is not known yet".to_owned()), ..Planned::default() };
    assert_eq!(obstacle(unknown()), Some(Progress::Waits("something is not known yet".to_owned())));
    let refusal = Refusal { reason: EventReason::InvalidAnnotation, message: "there are too many".to_owned() };
    let told = Some(Progress::Refused("there are too many.".to_owned()));
    assert_eq!(obstacle(Planned { refusals: vec![refusal.clone()], ..Planned::default() }), told);
    let nowhere = Some(BTreeMap::new());
    assert_eq!(obstacle(Planned { wanted: nowhere, refusals: vec![refusal.clone()], ..Planned::default() }), told);
    let waits = Planned { refusals: vec![refusal], ..unknown() };
    assert!(matches!(obstacle(waits), Some(Progress::Waits(_))), "what is refused besides is said by an Event");
    assert_eq!(obstacle(wanting(target()).planned), None);
    assert_eq!(obstacle(Planned { wanted: Some(BTreeMap::new()), ..Planned::default() }), None);
}

/// external-dns writes most names to Route 53.
#[test]
fn with_instances_turned_off_only_objects_that_would_be_registered_say_so() {
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
    let mut annotated = Annotated::new(AnnotationSettings::default(), mk_targets(Selection::None));
    annotated.set_zones(Known { zones: Some(Arc::new(Zones::new(&[internal]))), error: None });
    for (host, said) in [("web.internal", vec![EventReason::Disabled]), ("www.example.org", vec![])] {
        let object = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "web", "annotations": {"external-dns.kubernetes.io/hostname": host}},
            "spec": {"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"]},
        }));
        let service = Service::narrow(object.unwrap()).unwrap();
        let object = annotated.plan_service(&service, Default::default, &Rights::default()).unwrap();
        assert_eq!(object.planned.wanted, Some(BTreeMap::new()));
        let reasons: Vec<_> = object.planned.refusals.iter().map(|refusal| refusal.reason).collect();
        assert_eq!(reasons, said, "{host}");
    }
}
