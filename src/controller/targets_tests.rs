use std::collections::BTreeMap;

use super::*;
use crate::{
    Membership,
    claims::{Circumstances, HandOver},
    knowledge::tests::mk_remotes,
};
use api::{
    conditions::{SharedCondition, conditions},
    names::ANNOTATION_TARGET_NAMESPACE,
};
use export::Exports;
use instances::sync::TargetStatus;
use ledger::Map;
use model::{Export, Exported, fixtures};

pub(crate) fn key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

pub(crate) fn target() -> Target {
    Target { namespace: "shop".into(), service: "www".into() }
}

pub(crate) fn mk_targets(policy: Selection) -> Targets {
    let identity = Owner { clusterset: None, cluster: "here".parse().unwrap(), cluster_uid: "uid".into() };
    Targets { policy, naming: Naming::PerNamespace, identity, region: None, aws_mcs: false, zones: None }
}

fn mk_export(annotations: &[(&str, &str)]) -> ServiceExport {
    ServiceExport {
        key: key("web"),
        uid: "uid".into(),
        created: 1,
        generation: Some(1),
        deleting: false,
        aws_mcs_finalizer: None,
        exported_labels: BTreeMap::new(),
        exported_annotations: BTreeMap::new(),
        annotations: annotations.iter().copied().collect(),
        conditions: [].into(),
    }
}

pub(crate) fn mk_local() -> Exported {
    let endpoint = fixtures::mk_endpoint([10, 0, 0, 1]);
    Exported {
        export: Export { uid: "uid".into(), ip_families: vec![], target: Some(target()), ..fixtures::mk_export(1) },
        endpoints: vec![endpoint],
    }
}

/// A cluster whose export `web` claimed the target at second 5, on record, beside another cluster's claims.
pub(crate) fn mk_knowledge(others: &[(&str, i64)]) -> Knowledge {
    let mut knowledge = Knowledge::new("here".parse().unwrap(), Membership::Member { trouble: None });
    knowledge.resume(&Map::new(), 5);
    knowledge.replan(&key("web"), Some(Ok(mk_local())), 5);
    let own = knowledge.desired();
    knowledge.adopt_published(own);
    adopt(&mut knowledge, others);
    knowledge
}

pub(crate) fn adopt(knowledge: &mut Knowledge, others: &[(&str, i64)]) {
    let mut exports = Exports::resume(&Map::new());
    for (name, claimed) in others {
        exports.set(&key(name), Some(Arc::new(mk_local())), [target()].into(), *claimed);
    }
    knowledge.adopt_remotes(&mk_remotes(&[("there", Some(exports.map()))]));
}

#[test]
fn annotations_decide_over_the_flag() {
    use Selection::{All, Annotated, None};
    let implied = Target { namespace: "shop".into(), service: "web".into() };
    let named = [(ANNOTATION_TARGET_SERVICE, "www")];
    for (policy, annotations, expected) in [
        (All, &[][..], Asked::Target(implied.clone())),
        (Annotated, &[], Asked::None),
        (None, &named, Asked::None),
        (Annotated, &named, Asked::Target(target())),
        (None, &[(ANNOTATION_INSTANCES, "true")], Asked::Target(implied)),
        (All, &[(ANNOTATION_INSTANCES, "false")], Asked::None),
    ] {
        assert_eq!(
            mk_targets(policy).asked(&mk_export(annotations), &Rights::default()),
            expected,
            "{policy:?} {annotations:?}"
        );
    }
    let invalid = [
        [(ANNOTATION_INSTANCES, "yes")],
        [(ANNOTATION_TARGET_SERVICE, "no spaces")],
        [(ANNOTATION_TARGET_NAMESPACE, "clusterset-prod")],
    ];
    for annotations in invalid {
        let Asked::Invalid(message) = mk_targets(All).asked(&mk_export(&annotations), &Rights::default()) else {
            panic!("accepted")
        };
        assert!(message.contains(annotations[0].1), "{message}");
    }
    // The name of a Kubernetes namespace implies no target in a ledger.
    let export = ServiceExport { key: ServiceKey::new("clusterset-prod", "clusters"), ..mk_export(&[]) };
    for aws_mcs in [false, true] {
        let targets = Targets { aws_mcs, ..mk_targets(All) };
        assert!(matches!(targets.asked(&export, &Rights::default()), Asked::Invalid(_)));
        assert_eq!(targets.for_aws_mcs(&export.key), Option::None);
    }
}

#[test]
fn an_annotation_with_a_wrong_value_is_said_and_what_is_registered_stays() {
    let (targets, knowledge) = (mk_targets(Selection::All), mk_knowledge(&[]));
    let claims = Claims::new(std::time::Duration::from_secs(10));
    for (name, wrong) in [(ANNOTATION_SHARE, "yes"), (ANNOTATION_SHARE, ""), (ANNOTATION_ADOPT, "somebody")] {
        let export = mk_export(&[(ANNOTATION_TARGET_SERVICE, "www"), (name, wrong)]);
        let (reason, message) = targets
            .registered(&knowledge, (&export, Traffic::All), &claims, &Statuses::new(), &Pods::default())
            .unwrap();
        assert!(reason == RegisteredReason::InvalidAnnotation && message.contains(name), "{message}");
        assert!(consent(&export.annotations, "shop", &Rights::default()).unclear, "{name}");
    }
    for right in ["true", "false"] {
        let export = mk_export(&[(ANNOTATION_TARGET_SERVICE, "www"), (ANNOTATION_SHARE, right)]);
        let consent = consent(&export.annotations, "shop", &Rights::default());
        assert!(!consent.unclear && consent.share == (right == "true"));
    }
}

#[test]
fn the_standing_of_a_claim_decides_what_is_registered() {
    let (targets, owner) = (mk_targets(Selection::All), ClaimOwner::export(&key("web")));
    let knowledge = mk_knowledge(&[]);
    let desired = |standing| {
        let desired = targets.desired(&knowledge, &target(), (&owner, standing), |_| None, &Pods::default());
        assert_eq!(desired.only_found, (standing == Standing::Keeps).then(|| key("web")));
        (desired.active, desired.retiring, desired.instances.len())
    };
    assert_eq!(desired(Standing::Holds), (true, false, 1));
    assert_eq!(desired(Standing::HandsOver), (true, false, 1));
    assert_eq!(desired(Standing::Keeps), (true, false, 1));
    assert_eq!(desired(Standing::Withdraws), (false, true, 0));
    for waits in [Standing::AwaitsRecord, Standing::AwaitsClusters, Standing::AwaitsDelay] {
        let (active, retiring, _) = desired(waits);
        assert!(!active && !retiring, "{waits:?}");
    }
    // The record is written anew, as after a change of leaders: until then nothing is registered.
    let mut knowledge = mk_knowledge(&[]);
    knowledge.adopt_published(None);
    assert!(!targets.desired(&knowledge, &target(), (&owner, Standing::Holds), |_| None, &Pods::default()).active);
}

#[test]
fn what_an_export_was_allowed_counts_until_its_hand_over_ends() {
    let (targets, owner) = (mk_targets(Selection::All), ClaimOwner::export(&key("web")));
    let (knowledge, joined) = (mk_knowledge(&[]), Target { namespace: "ecs".into(), service: "www".into() });
    let names = [(ANNOTATION_TARGET_NAMESPACE, "ecs"), (ANNOTATION_TARGET_SERVICE, "www")];
    let consent = |standing, annotations: &[(&str, &str)]| {
        let export = Arc::new(mk_export(annotations));
        let export = |_: &ServiceKey| Some((Arc::clone(&export), Traffic::All));
        targets.desired(&knowledge, &joined, (&owner, standing), export, &Pods::default()).consent
    };
    assert_eq!(consent(Standing::HandsOver, &names), consent(Standing::Holds, &names));
    for standing in [Standing::HandsOver, Standing::Keeps] {
        // Unclear: the service of others that it was registered in is not left before its time.
        assert!(consent(standing, &[]).unclear);
    }
    assert!(!consent(Standing::Withdraws, &[]).unclear);
}

#[test]
fn who_lost_or_waits_for_a_target_is_told_so() {
    let targets = mk_targets(Selection::All);
    let named = mk_export(&[(ANNOTATION_TARGET_SERVICE, "www")]);
    let mut claims = Claims::new(std::time::Duration::from_secs(10));
    let (reason, message) = targets
        .registered(&mk_knowledge(&[("older", 3)]), (&named, Traffic::All), &claims, &Statuses::new(), &Pods::default())
        .unwrap();
    assert!(reason == RegisteredReason::NameConflict && message.contains("shop/older"), "{message}");

    let knowledge = mk_knowledge(&[]);
    claims.set_visible(knowledge.desired());
    for (verified, words) in [(false, "every cluster"), (true, "after 10s")] {
        claims.set_clusters(false, verified, std::time::Duration::ZERO);
        let circumstances = Circumstances { implied: false, hand_over: HandOver::Awaited };
        claims.judge(&knowledge, &target(), |_, _, _| circumstances, std::time::Duration::from_mins(5));
        let (reason, message) = targets
            .registered(&knowledge, (&named, Traffic::All), &claims, &Statuses::new(), &Pods::default())
            .unwrap();
        assert!(reason == RegisteredReason::Pending && message.contains(words), "{message}");
    }
}

#[test]
fn what_the_leader_before_registered_holds_until_the_target_was_read() {
    let targets = mk_targets(Selection::All);
    let knowledge = mk_knowledge(&[]);
    let claims = Claims::new(std::time::Duration::from_secs(10));
    let mut export = mk_export(&[(ANNOTATION_TARGET_SERVICE, "www")]);
    let registered = |export: &ServiceExport, outcome: Outcome| {
        let status = TargetStatus { outcome, ..TargetStatus::default() };
        targets
            .registered(&knowledge, (export, Traffic::All), &claims, &[(target(), status)].into(), &Pods::default())
            .unwrap()
    };
    assert_eq!(registered(&export, Outcome::Pending).0, RegisteredReason::Pending);
    let (reason, message) = registered(&export, Outcome::Registered { count: 1 });
    assert_eq!(reason, RegisteredReason::Registered);
    let verdict = api::conditions::Verdict::new(reason, message);
    let said = conditions(&[], [verdict], None, k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    export.conditions = said.iter().map(SharedCondition::from).collect();
    assert_eq!(registered(&export, Outcome::Pending).0, RegisteredReason::Registered);
    let mut of_another = export.clone();
    for said in &mut of_another.conditions {
        said.message = said.message.replace("shop/www.", "shop/www.old.").into();
    }
    assert_eq!(registered(&of_another, Outcome::Pending).0, RegisteredReason::Pending, "that one has a longer name");
    let refused = Outcome::Refused { reason: Reason::LimitExceeded, message: "full".to_owned() };
    assert_eq!(registered(&export, refused).0, RegisteredReason::LimitExceeded);
    export.annotations = mk_export(&[]).annotations;
    let elsewhere =
        targets.registered(&knowledge, (&export, Traffic::All), &claims, &Statuses::new(), &Pods::default()).unwrap();
    assert_eq!(elsewhere.0, RegisteredReason::Pending, "another target is not that one");
}

#[test]
fn under_the_policy_granted_an_export_has_its_own_name_and_what_its_namespace_has() {
    use instances::{RegistrationPolicy::Granted, policy::mk_rights};
    let targets = mk_targets(Selection::All);
    let service = (ANNOTATION_TARGET_SERVICE, "www");
    for (annotations, granted, allowed) in [
        (&[][..], None, true),
        (&[service], None, false),
        (&[service], Some("shop/www"), true),
        (&[(ANNOTATION_TARGET_NAMESPACE, "internal")], Some("shop/*"), false),
        (&[(ANNOTATION_TARGET_NAMESPACE, "internal")], Some("internal/web"), true),
        (&[(ANNOTATION_SHARE, "true")], None, false),
        (&[(ANNOTATION_SHARE, "true")], Some("shop/web"), true),
    ] {
        match targets.asked(&mk_export(annotations), &mk_rights(Granted, granted, None)) {
            Asked::Target(_) => assert!(allowed, "{annotations:?} {granted:?}"),
            Asked::Invalid(why) => {
                assert!(!allowed && why.contains("may-register"), "{annotations:?} {granted:?} {why}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(targets.asked(&mk_export(&[service]), &Rights::new(Granted)), Asked::Unknown);
}
