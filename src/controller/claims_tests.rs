use super::{claim::AGAIN, clusters::FRESH, *};
use crate::{
    Asks, Membership,
    knowledge::tests::mk_remotes,
    targets::tests::{adopt, key, mk_knowledge, mk_local, target},
};
use export::Exports;

const DELAY: Duration = Duration::from_secs(10);
/// When the tests begin, since the controller leads.
const START: Duration = Duration::from_mins(5);

/// Claims of a cluster that can read another one, and has read its own claim back.
fn mk_claims(knowledge: &Knowledge) -> Claims {
    let mut claims = Claims::new(DELAY);
    claims.set_clusters(false, true, Duration::ZERO);
    claims.set_visible(knowledge.desired());
    claims
}

/// A reading that began at this time; the other cluster's head has advanced all the time.
fn hear(claims: &mut Claims, now: Duration) {
    let there = Arc::from("there");
    let before = (0..now.as_secs()).step_by(20).map(Duration::from_secs);
    for at in before.chain([now, now]) {
        let position = Position { epoch: 1, seq: at.as_millis() as u64 };
        claims.read([(&there, position)].into_iter(), at);
    }
}

/// What follows from a reading at this time.
fn judge(claims: &mut Claims, knowledge: &Knowledge, now: Duration) -> Standing {
    hear(claims, now);
    judge_unread(claims, knowledge, now)
}

fn judge_unread(claims: &mut Claims, knowledge: &Knowledge, now: Duration) -> Standing {
    claims.judge(knowledge, &target(), |_, _, _| DONE, now).unwrap()
}

/// A target that is named, and whose successor, if there is one, serves it.
const DONE: Circumstances = Circumstances { implied: false, hand_over: HandOver::Succeeded };
const IMPLIED: Circumstances = Circumstances { implied: true, ..DONE };

/// A claim that holds, and since when.
fn mk_held(others: &[(&str, i64)]) -> (Knowledge, Claims, Duration) {
    let knowledge = mk_knowledge(others);
    let mut claims = mk_claims(&knowledge);
    judge(&mut claims, &knowledge, START);
    let held = START + DELAY;
    assert_eq!(judge(&mut claims, &knowledge, held), Standing::Holds);
    (knowledge, claims, held)
}

#[test]
fn a_named_target_waits_until_its_claim_was_visible_for_a_while() {
    let (knowledge, start) = (mk_knowledge(&[]), START);
    let mut claims = mk_claims(&knowledge);
    claims.set_visible(None);
    assert_eq!(judge(&mut claims, &knowledge, start), Standing::AwaitsRecord);
    assert_eq!(claims.waiting().collect::<Vec<_>>(), [&target()]);
    claims.set_visible(knowledge.desired());
    let seen = start + Duration::from_mins(1);
    assert_eq!(judge(&mut claims, &knowledge, seen), Standing::AwaitsDelay);
    assert_eq!(claims.wake(), Some(seen + DELAY));
    assert_eq!(claims.due(seen + DELAY).collect::<Vec<_>>(), [&target()]);
    assert_eq!(judge(&mut claims, &knowledge, seen + Duration::from_millis(9_999)), Standing::AwaitsDelay);
    assert_eq!(judge(&mut claims, &knowledge, seen + DELAY), Standing::Holds);
    assert_eq!((claims.wake(), claims.waiting().count()), (None, 0));
}

#[test]
fn nobody_waits_where_no_other_name_can_want_the_target() {
    let (knowledge, now) = (mk_knowledge(&[]), START);
    assert_eq!(
        mk_claims(&knowledge).judge(&knowledge, &target(), |_, _, _| IMPLIED, now),
        Some(Standing::Holds),
        "implied"
    );
    let mut alone = mk_claims(&knowledge);
    alone.set_clusters(true, true, Duration::ZERO);
    assert_eq!(judge(&mut alone, &knowledge, now), Standing::Holds, "alone");
    let mut newly_alone = mk_claims(&knowledge);
    newly_alone.set_clusters(true, true, now);
    assert_eq!(judge(&mut newly_alone, &knowledge, now), Standing::AwaitsDelay, "another one may be on its way");
    assert_eq!(newly_alone.wake(), Some(now + DELAY));
    newly_alone.set_visible(None);
    assert_eq!(judge(&mut newly_alone, &knowledge, now + DELAY), Standing::Holds, "alone for a while");
    let shared = mk_knowledge(&[("web", -6)]);
    assert_eq!(judge(&mut mk_claims(&shared), &shared, now), Standing::Holds, "the same name elsewhere");
    for claimed in [-5, 5, 9] {
        let fresh = mk_knowledge(&[("web", claimed)]);
        let standing = judge(&mut mk_claims(&fresh), &fresh, now);
        assert_eq!(standing, Standing::AwaitsDelay, "which claimed it at the same time, {claimed}");
    }
    let younger = mk_knowledge(&[("younger", 9)]);
    assert_eq!(judge(&mut mk_claims(&younger), &younger, now), Standing::AwaitsDelay, "another name");
    let older = mk_knowledge(&[("older", 3)]);
    for implied in [true, false] {
        let circumstances = Circumstances { implied, ..DONE };
        assert_eq!(mk_claims(&older).judge(&older, &target(), |_, _, _| circumstances, now), Some(Standing::Withdraws));
    }
}

#[test]
fn a_service_that_is_annotated_here_and_exported_elsewhere_holds_its_target_beside_that() {
    for (exported, standing) in [(-6, Standing::Holds), (3, Standing::AwaitsDelay), (9, Standing::AwaitsDelay)] {
        let mut knowledge = Knowledge::new("here".parse().unwrap(), Membership::Member { trouble: None });
        knowledge.resume(&Map::new(), 5);
        knowledge.annotate(&ClaimOwner::service(&key("web")), Some(Asks::one(target())), 5);
        let own = knowledge.desired();
        knowledge.adopt_published(own);
        adopt(&mut knowledge, &[("web", exported)]);
        let now = START;
        assert_eq!(judge(&mut mk_claims(&knowledge), &knowledge, now), standing, "claimed at {exported}");
    }
}

#[test]
fn a_new_target_waits_for_clusters_that_cannot_be_read_and_a_held_one_does_not() {
    let (knowledge, start) = (mk_knowledge(&[]), START);
    let mut claims = mk_claims(&knowledge);
    claims.set_clusters(false, false, Duration::ZERO);
    assert_eq!(judge(&mut claims, &knowledge, start), Standing::AwaitsClusters);
    assert_eq!(judge(&mut claims, &knowledge, start + 2 * DELAY), Standing::AwaitsClusters);
    claims.set_clusters(false, true, Duration::ZERO);
    assert_eq!(judge(&mut claims, &knowledge, start + 2 * DELAY), Standing::Holds);
    claims.set_clusters(false, false, Duration::ZERO);
    assert_eq!(judge(&mut claims, &knowledge, start + 3 * DELAY), Standing::Holds);
}

#[test]
fn who_loses_a_target_keeps_it_until_its_successor_had_time_and_gets_it_back_at_once() {
    let (mut knowledge, mut claims, held) = mk_held(&[]);
    adopt(&mut knowledge, &[("older", 3)]);
    assert_eq!(judge(&mut claims, &knowledge, held), Standing::HandsOver);
    assert_eq!(claims.wake(), Some(held + 2 * DELAY));
    assert_eq!(judge(&mut claims, &knowledge, held + DELAY), Standing::HandsOver);
    assert_eq!(judge(&mut claims, &knowledge, held + 2 * DELAY), Standing::Withdraws);
    assert_eq!(judge(&mut claims, &knowledge, held + 2 * DELAY), Standing::Withdraws);
    // Its own claim was visible all the time.
    adopt(&mut knowledge, &[]);
    assert_eq!(judge(&mut claims, &knowledge, held + 2 * DELAY), Standing::Holds);
}

#[test]
fn a_hand_over_lasts_until_its_successor_was_heard_of_since() {
    let (mut knowledge, mut claims, held) = mk_held(&[]);
    adopt(&mut knowledge, &[("older", 3)]);
    assert_eq!(judge(&mut claims, &knowledge, held + DELAY), Standing::HandsOver);
    // Its head stands still, though the registry is read.
    let there = Arc::from("there");
    // Nobody waits for its instances, because it may not register any more.
    let circumstances = Circumstances { hand_over: HandOver::Timed, ..DONE };
    let read = |claims: &mut Claims, seq, now| {
        claims.read([(&there, Position { epoch: 9, seq })].into_iter(), now);
        claims.judge(&knowledge, &target(), |_, _, _| circumstances, now).unwrap()
    };
    let until = held + 3 * DELAY;
    read(&mut claims, 1, held + 2 * DELAY);
    for later in [until, until + Duration::from_mins(5), until + Duration::from_hours(5)] {
        assert_eq!(read(&mut claims, 1, later), Standing::HandsOver);
        assert_eq!(claims.wake(), Some(later + AGAIN));
    }
    // It is back, and has to begin with its own wait.
    let back = until + Duration::from_hours(6);
    assert_eq!(read(&mut claims, 2, back), Standing::HandsOver);
    assert_eq!(read(&mut claims, 3, back + DELAY), Standing::HandsOver);
    assert_eq!(read(&mut claims, 3, back + 3 * DELAY), Standing::HandsOver);
    assert_eq!(read(&mut claims, 4, back + 3 * DELAY), Standing::Withdraws);
}

/// Whatever keeps the successor: it may be denied, throttled, over a quota, or dead.
#[test]
fn a_hand_over_lasts_until_the_instances_of_its_successor_are_there_or_it_has_none_to_register() {
    let awaits = Circumstances { hand_over: HandOver::Awaited, ..DONE };
    let judge = |claims: &mut Claims, knowledge: &Knowledge, circumstances, now| {
        hear(claims, now);
        claims.judge(knowledge, &target(), |_, _, _| circumstances, now).unwrap()
    };
    let (mut knowledge, mut claims, held) = mk_held(&[]);
    adopt(&mut knowledge, &[("older", 3)]);
    for later in [held, held + 2 * DELAY, held + Duration::from_hours(1)] {
        assert_eq!(judge(&mut claims, &knowledge, awaits, later), Standing::HandsOver);
    }
    assert_eq!(claims.wake(), None, "a reading tells, not the time");
    assert_eq!(claims.successor(&target()).unwrap().place(), ("there".parse().unwrap(), key("older")));
    let later = held + Duration::from_hours(1);
    let grantless = Circumstances { hand_over: HandOver::Timed, ..DONE };
    assert_eq!(judge(&mut claims, &knowledge, grantless, later), Standing::Withdraws, "it may not register there");

    let (mut knowledge, mut claims, held) = mk_held(&[]);
    adopt(&mut knowledge, &[("older", 3)]);
    assert_eq!(judge(&mut claims, &knowledge, awaits, held), Standing::HandsOver);
    let deleted = Circumstances { hand_over: HandOver::Nothing, ..DONE };
    assert_eq!(
        judge(&mut claims, &knowledge, deleted, held),
        Standing::Withdraws,
        "who was deleted hands nothing over"
    );

    for empty in [false, true] {
        let (mut knowledge, mut claims, held) = mk_held(&[]);
        adopt(&mut knowledge, &[("older", 3)]);
        assert_eq!(judge(&mut claims, &knowledge, awaits, held), Standing::HandsOver);
        if empty {
            say(&mut knowledge, "older", 3, ClaimState::Empty);
        }
        let end = if empty { awaits } else { DONE };
        assert_eq!(judge(&mut claims, &knowledge, end, held + DELAY), Standing::HandsOver, "it has time");
        assert_eq!(judge(&mut claims, &knowledge, end, held + 2 * DELAY), Standing::Withdraws, "empty: {empty}");
        assert_eq!(claims.successor(&target()), None);
    }
}

#[test]
fn whose_owner_is_unable_wins_over_nobody_and_waits_as_a_new_claim_when_it_is_able() {
    let (mut knowledge, mut claims, held) = mk_held(&[]);
    adopt(&mut knowledge, &[("older", 3)]);
    assert_eq!(judge(&mut claims, &knowledge, held), Standing::HandsOver);
    say(&mut knowledge, "older", 3, ClaimState::Unable);
    assert_eq!(judge(&mut claims, &knowledge, held), Standing::Holds);

    // This one is: others win, whoever they are. What it has is handed over.
    let own = ClaimOwner::export(&key("web"));
    let publish = |knowledge: &mut Knowledge, claims: &mut Claims, state| {
        knowledge.set_state(&target(), &own, state, 20);
        knowledge.adopt_published(knowledge.desired());
        claims.set_visible(knowledge.desired());
    };
    publish(&mut knowledge, &mut claims, ClaimState::Unable);
    assert_eq!(judge(&mut claims, &knowledge, held), Standing::Unable, "the other is as well");
    say(&mut knowledge, "younger", 90, ClaimState::Serves);
    assert_eq!(judge(&mut claims, &knowledge, held), Standing::Keeps);
    assert_eq!(judge(&mut claims, &knowledge, held + 2 * DELAY), Standing::Withdraws);
    say(&mut knowledge, "younger", 90, ClaimState::Retiring);
    let after = held + 2 * DELAY;
    assert_eq!(judge(&mut claims, &knowledge, after), Standing::Unable);
    publish(&mut knowledge, &mut claims, ClaimState::Serves);
    for (later, standing) in [(Duration::ZERO, Standing::Unable), (DELAY, Standing::Holds)] {
        hear(&mut claims, after + later);
        let standing_now = claims.judge(&knowledge, &target(), |_, _, _| IMPLIED, after + later).unwrap();
        assert_eq!(standing_now, standing, "also to the own name");
    }
    publish(&mut knowledge, &mut claims, ClaimState::Empty);
    assert_eq!(judge(&mut claims, &knowledge, after + DELAY), Standing::Holds, "it is the same claim");
}

/// The other cluster has one claim.
fn say(knowledge: &mut Knowledge, name: &str, claimed: i64, state: ClaimState) {
    let mut exports = Exports::resume(&Map::new());
    let owner = ClaimOwner::export(&key(name));
    exports.set(&key(name), Some(Arc::new(mk_local())), [target()].into(), claimed);
    if state == ClaimState::Retiring {
        exports.claim(&owner, BTreeSet::new(), claimed);
    } else {
        exports.set_state(&target(), &owner, state, claimed);
    }
    knowledge.adopt_remotes(&mk_remotes(&[("there", Some(exports.map()))]));
}

#[test]
fn what_was_read_a_while_ago_says_nothing_about_who_has_claims_now() {
    let (knowledge, start) = (mk_knowledge(&[]), START);
    let mut claims = mk_claims(&knowledge);
    assert_eq!(judge(&mut claims, &knowledge, start), Standing::AwaitsDelay);
    // The claim is visible for long enough, but the last reading may have begun before that.
    let ripe = start + DELAY;
    claims.read([].into_iter(), ripe);
    assert_eq!(judge_unread(&mut claims, &knowledge, ripe), Standing::AwaitsDelay);
    assert_eq!(claims.wake(), Some(ripe + AGAIN));
    claims.read([].into_iter(), ripe + AGAIN);
    assert_eq!(judge_unread(&mut claims, &knowledge, ripe + AGAIN), Standing::Holds);

    let shared = mk_knowledge(&[("web", -6)]);
    for (sole, knowledge) in [(true, &knowledge), (false, &shared)] {
        for (age, standing) in [(FRESH, Standing::Holds), (FRESH + AGAIN, Standing::AwaitsDelay)] {
            let mut claims = mk_claims(knowledge);
            claims.set_clusters(sole, true, Duration::ZERO);
            hear(&mut claims, start);
            assert_eq!(judge_unread(&mut claims, knowledge, start + age), standing, "{sole} {age:?}");
        }
    }
    let mut nobody = Claims::standalone(DELAY);
    assert_eq!(judge_unread(&mut nobody, &knowledge, start), Standing::Holds, "there is nobody to be read");
}

#[test]
fn what_is_released_is_kept_only_for_another_name_that_waits() {
    for (others, first) in
        [(&[][..], Standing::Withdraws), (&[("web", 9)], Standing::Withdraws), (&[("younger", 9)], Standing::HandsOver)]
    {
        let (mut knowledge, mut claims, held) = mk_held(others);
        knowledge.replan(&key("web"), None, 20);
        assert_eq!(judge(&mut claims, &knowledge, held), first, "{others:?}");
        assert_eq!(judge(&mut claims, &knowledge, held + 2 * DELAY), Standing::Withdraws);
        knowledge.retired(&target());
        assert_eq!(claims.judge(&knowledge, &target(), |_, _, _| DONE, held + DELAY), None);
        assert_eq!((claims.waiting().count(), claims.wake()), (0, None));
    }
}

/// Another name of this cluster, which waited less long than one elsewhere: it never held anything.
#[test]
fn what_a_name_of_this_cluster_had_is_kept_for_the_one_elsewhere_that_is_next() {
    for (since, standing) in [(8, Standing::AwaitsRecord), (12, Standing::HandsOver)] {
        let (mut knowledge, start) = (mk_knowledge(&[]), START);
        let mut claims = mk_claims(&knowledge);
        judge(&mut claims, &knowledge, start);
        assert_eq!(judge(&mut claims, &knowledge, start + DELAY), Standing::Holds);
        knowledge.replan(&key("next"), Some(Ok(mk_local())), since);
        adopt(&mut knowledge, &[("other", 9)]);
        for owner in knowledge.replan(&key("web"), None, 20).0 {
            knowledge.claim_again(&owner, 20);
        }
        assert_eq!(judge(&mut claims, &knowledge, start + DELAY), standing, "since {since}");
        let [web, next] = ["web", "next"].map(|name| ClaimOwner::export(&key(name)));
        let acting = if standing == Standing::HandsOver { &web } else { &next };
        assert_eq!(claims.acts_for(&target()), Some(acting));
        claims.set_visible(knowledge.desired());
        let later = if standing == Standing::HandsOver { Standing::Withdraws } else { Standing::Holds };
        assert_eq!(judge(&mut claims, &knowledge, start + 3 * DELAY), later);
        assert_eq!(claims.acts_for(&target()), Some(&next));
    }
}

/// Another name of this cluster, and one elsewhere that is found to be first before, or after, the other name was read back.
#[test]
fn what_a_name_of_this_cluster_had_is_not_taken_by_the_next_one_that_is_not_the_first() {
    for read_back in [false, true] {
        let (mut knowledge, mut claims, held) = mk_held(&[]);
        knowledge.replan(&key("next"), Some(Ok(mk_local())), 8);
        for owner in knowledge.replan(&key("web"), None, 20).0 {
            knowledge.claim_again(&owner, 20);
        }
        let own = knowledge.desired();
        knowledge.adopt_published(own.clone());
        assert_eq!(judge(&mut claims, &knowledge, held), Standing::AwaitsRecord);
        if read_back {
            claims.set_visible(own);
            assert_eq!(judge(&mut claims, &knowledge, held), Standing::Holds);
        }
        adopt(&mut knowledge, &[("other", 7)]);
        assert_eq!(judge(&mut claims, &knowledge, held), Standing::HandsOver);
        let acting = if read_back { "next" } else { "web" };
        assert_eq!(claims.acts_for(&target()), Some(&ClaimOwner::export(&key(acting))), "read back: {read_back}");
    }
}

/// Others did not have to wait for it, so one of them may serve the name.
#[test]
fn a_new_leader_waits_with_an_old_claim_whose_owner_was_unable() {
    for (state, standing) in [
        (ClaimState::Serves, Standing::Holds),
        (ClaimState::Empty, Standing::Holds),
        (ClaimState::Unable, Standing::AwaitsDelay),
    ] {
        let mut knowledge = mk_knowledge(&[]);
        let own = ClaimOwner::export(&key("web"));
        knowledge.set_state(&target(), &own, state, 20);
        let mut claims = Claims::new(DELAY);
        claims.set_clusters(false, true, Duration::ZERO);
        claims.inherit(knowledge.exports().map(Exports::registrations).unwrap().values(), 100);
        knowledge.set_state(&target(), &own, ClaimState::Serves, 100);
        knowledge.adopt_published(knowledge.desired());
        claims.set_visible(knowledge.desired());
        assert_eq!(judge(&mut claims, &knowledge, START), standing, "{state:?}");
    }
}

#[test]
fn a_new_leader_goes_on_with_old_claims_once_it_knows_the_other_clusters() {
    let inherit = |knowledge: &Knowledge, now: i64| {
        let mut claims = mk_claims(knowledge);
        claims.inherit(knowledge.exports().map(Exports::registrations).unwrap().values(), now);
        claims
    };
    let start = START;
    let knowledge = mk_knowledge(&[]);
    assert_eq!(judge(&mut inherit(&knowledge, 15), &knowledge, start), Standing::Holds);
    assert_eq!(judge(&mut inherit(&knowledge, 14), &knowledge, start), Standing::AwaitsDelay, "9 s old");
    // It lost it already: nothing is registered for a moment, and what the leader before kept for the successor stays.
    let lost = mk_knowledge(&[("older", 3)]);
    let mut claims = inherit(&lost, 100);
    assert_eq!(judge(&mut claims, &lost, start), Standing::Keeps);
    assert_eq!(claims.wake(), Some(start + 2 * DELAY));
    assert_eq!(judge(&mut claims, &lost, start + 2 * DELAY), Standing::Withdraws);
    assert_eq!(judge(&mut claims, &lost, start + 3 * DELAY), Standing::Withdraws);
    // Also where the others are read only later.
    let mut lost = mk_knowledge(&[]);
    lost.adopt_published(None);
    let mut claims = inherit(&lost, 100);
    assert_eq!(judge(&mut claims, &lost, start), Standing::AwaitsRecord);
    adopt(&mut lost, &[("older", 3)]);
    assert_eq!(judge(&mut claims, &lost, start), Standing::Keeps);
    // So does what it had released.
    let mut released = mk_knowledge(&[("younger", 9)]);
    released.replan(&key("web"), None, 20);
    let mut claims = inherit(&released, 100);
    assert_eq!(judge(&mut claims, &released, start), Standing::Keeps);
    assert_eq!(judge(&mut claims, &released, start + 2 * DELAY), Standing::Withdraws);

    let mut unread = Knowledge::new("here".parse().unwrap(), Membership::Member { trouble: None });
    unread.resume(&knowledge.desired().unwrap(), 100);
    unread.adopt_published(knowledge.desired());
    unread.replan(&key("web"), knowledge.planned(&key("web")).cloned().map(|plan| plan.map(|p| (*p).clone())), 100);
    let mut claims = inherit(&unread, 100);
    assert_eq!(judge(&mut claims, &unread, start), Standing::AwaitsClusters);
    adopt(&mut unread, &[]);
    assert_eq!(judge(&mut claims, &unread, start), Standing::Holds);
}
