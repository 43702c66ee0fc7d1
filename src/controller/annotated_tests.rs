use super::*;
use crate::{
    controller::targets::tests::{key, mk_knowledge, mk_targets, target},
    instances::{
        Consent,
        sync::{Creation, Reason},
    },
};

#[test]
fn what_is_refused_counts_until_it_is_not_whatever_else_changes() {
    let notes = Outbox::new(prometheus::IntCounter::new("dropped", "dropped").unwrap());
    let mut annotated = Annotated::new(Settings::default(), mk_targets(Selection::All), None, notes);
    let owner = ClaimOwner::service(&key("web"));
    let touch = |annotated: &mut Annotated, others: &[(&str, i64)]| {
        let wanted = Wanted {
            instances: [].into(),
            creation: Creation::default(),
            consent: Consent::default(),
            keep: false,
            as_is: false,
        };
        let planned = Planned { wanted: Some([(target(), wanted)].into()), refusals: vec![] };
        annotated.replan(&owner, Some(Object { uid: "uid".into(), planned }));
        annotated.tell_waiting(&mk_knowledge(others), &target(), false);
        annotated.sizes()
    };
    let tell = |annotated: &mut Annotated, outcome| {
        let status = TargetStatus { outcome, ..TargetStatus::default() };
        annotated.tell_status(&owner, &target(), None, &status, |_| Some("uid".into()));
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
