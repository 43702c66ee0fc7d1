use std::net::{IpAddr, Ipv6Addr};

use super::*;
use api::conditions::ValidReason;
use export::Publication;
use import::Unknown;
use ledger::{
    Value,
    remote::{Remote as Read, Remotes},
};
use model::{Export, fixtures, intern};

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("ns", name)
}

fn id(name: &str) -> ClusterId {
    name.parse().unwrap()
}

fn mk_local(target: Option<&str>) -> Exported {
    let target = target.map(|service| Target { namespace: "ns".into(), service: service.into() });
    Exported { export: Export { target, ..fixtures::mk_export(1) }, endpoints: vec![] }
}

/// The ledger map of a cluster that exports these names, under these targets, since these times.
fn mk_map(exports: &[(&str, Option<&str>, i64)]) -> Arc<Map> {
    let mut state = Exports::resume(&Map::new());
    for (name, target, claimed) in exports {
        let local = mk_local(*target);
        let targets = local.export.target.iter().cloned().collect();
        state.set(&key(name), Some(Arc::new(local)), targets, *claimed);
    }
    state.map()
}

/// The ledger map of a cluster that exports a name with one endpoint.
fn mk_map_with(name: &str, endpoint: &Endpoint) -> Arc<Map> {
    let exported = Exported { endpoints: vec![endpoint.clone()], ..mk_local(None) };
    let mut state = Exports::resume(&Map::new());
    state.set(&key(name), Some(Arc::new(exported)), BTreeSet::new(), 1_i64);
    state.map()
}

/// The clusters that were read, with what they export, or without it if it cannot be read.
pub(crate) fn mk_remotes(clusters: &[(&str, Option<Arc<Map>>)]) -> Remotes {
    let read = |state: &Option<Arc<Map>>| Read {
        uid: "uid".into(),
        state: state.clone(),
        committed: state.clone(),
        version: None,
        position: ledger::record::Position::default(),
        left: false,
        stale: None,
        expired: false,
        refused: false,
        created: 0,
        registry: None,
        problem: None,
    };
    Remotes {
        clusters: clusters.iter().map(|(name, state)| (id(name), read(state))).collect(),
        heads_read: true,
        all_live_verified: clusters.iter().all(|(_, state)| state.is_some()),
        all_read: clusters.iter().all(|(_, state)| state.is_some()),
        ..Remotes::default()
    }
}

/// A cluster that is too large counts as not read: nothing of it is known, and so nothing of it is deleted.
#[test]
fn what_a_cluster_exports_that_is_refused_is_unknown_until_it_is_read_again() {
    let mut knowledge = mk_knowledge();
    let target = Target { namespace: "ns".into(), service: "web".into() };
    let map = mk_map(&[("web", Some("web"), 1)]);
    let read = mk_remotes(&[("there", Some(map))]);
    knowledge.adopt_remotes(&read);
    assert_eq!((knowledge.unknown(), knowledge.other_claims(&target).count()), (Unknown::Only([].into()), 1));
    let mut refused = mk_remotes(&[("there", None)]);
    refused.clusters.values_mut().for_each(|remote| remote.refused = true);
    let concerned = knowledge.adopt_remotes(&refused);
    assert!(concerned.names.contains(&key("web")) && concerned.targets.contains(&target));
    assert_eq!(knowledge.unknown(), Unknown::Only([id("there")].into()));
    assert_eq!((knowledge.other_claims(&target).count(), knowledge.names.len()), (0, 0));
    assert!(knowledge.adopt_remotes(&read).names.contains(&key("web")));
    assert_eq!(knowledge.unknown(), Unknown::Only([].into()));
}

fn mk_knowledge() -> Knowledge {
    Knowledge::new(id("here"), Membership::Member { trouble: None })
}

#[test]
fn nothing_is_known_before_the_registry_was_read() {
    let mut knowledge = mk_knowledge();
    assert_eq!(knowledge.unknown(), Unknown::All);
    assert!(!knowledge.end_first_reading() && knowledge.awaits_first_reading(), "time alone does not tell");
    knowledge.adopt_remotes(&Remotes::default());
    assert_eq!(knowledge.unknown(), Unknown::All, "an empty reading that verified nothing is none");
    knowledge.adopt_remotes(&mk_remotes(&[]));
    assert!(knowledge.unknown().is_none() && !knowledge.awaits_first_reading());
}

/// Clusters that joined since are missing in it.
#[test]
fn a_record_that_was_rolled_back_says_nothing_about_the_clusters_that_it_lacks() {
    let mut knowledge = mk_knowledge();
    let recorded = Remotes { heads_read: false, ..mk_remotes(&[("there", None)]) };
    knowledge.adopt_remotes(&recorded);
    assert_eq!(knowledge.unknown(), Unknown::All);
    assert!(!knowledge.end_first_reading(), "time alone does not tell");
    // Who made the exports service of the other one is asked only now.
    let mut read = mk_remotes(&[("there", Some(mk_map(&[])))]);
    (read.unaccepted, read.all_live_verified, read.all_read) = ([id("joined")].into(), false, false);
    knowledge.adopt_remotes(&read);
    assert_eq!(knowledge.unknown(), Unknown::Only([id("joined")].into()));
    assert!(knowledge.is_unread(&id("joined")) && knowledge.awaits_first_reading());
    knowledge.adopt_remotes(&mk_remotes(&[("there", Some(mk_map(&[]))), ("joined", Some(mk_map(&[])))]));
    assert!(knowledge.unknown().is_none());
}

#[test]
fn a_cluster_is_unknown_until_it_is_verified_and_its_exports_go_when_it_left() {
    let mut knowledge = mk_knowledge();
    knowledge.adopt_remotes(&mk_remotes(&[("there", None)]));
    assert_eq!(knowledge.unknown(), Unknown::Only([id("there")].into()));
    assert!(knowledge.awaits_first_reading());
    let changed = knowledge.adopt_remotes(&mk_remotes(&[("there", Some(mk_map(&[("a", None, 1), ("b", None, 1)])))]));
    assert_eq!(changed.names, [key("a"), key("b")].into());
    assert_eq!(knowledge.sources(&key("a")).len(), 1);

    let changed = knowledge.adopt_remotes(&mk_remotes(&[("there", Some(mk_map(&[("a", None, 1)])))]));
    assert_eq!(changed.names, [key("b")].into(), "only what changed");

    let mut left = mk_remotes(&[("there", None)]);
    left.clusters.get_mut(&id("there")).unwrap().left = true;
    assert!(knowledge.adopt_remotes(&left).names.contains(&key("a")));
    assert!(knowledge.sources(&key("a")).is_empty() && knowledge.unknown().is_none());
}

/// A cluster imports few of the exports of a hundred others.
#[test]
fn what_others_export_is_decoded_while_somebody_looks_at_it() {
    let zone = intern("the-zone-of-an-endpoint-that-nobody-looks-at");
    let endpoint = Endpoint { zone: Some(Arc::clone(&zone)), ..fixtures::mk_endpoint([10, 0, 0, 7]) };
    let map = mk_map_with("a", &endpoint);
    let holders = Arc::strong_count(&zone);
    let mut knowledge = mk_knowledge();
    assert_eq!(knowledge.adopt_remotes(&mk_remotes(&[("there", Some(map))])).names, [key("a")].into());
    assert_eq!(Arc::strong_count(&zone), holders, "nobody looked");
    let sources = knowledge.sources(&key("a"));
    assert_eq!(sources[&id("there")].endpoints, std::slice::from_ref(&endpoint));
    assert_eq!(Arc::strong_count(&zone), holders + 1);
}

#[test]
fn an_export_that_becomes_unreadable_is_withdrawn_and_affects_no_other() {
    let mut knowledge = mk_knowledge();
    let readable = mk_map(&[("a", None, 1), ("b", None, 1)]);
    let mut unreadable = Map::clone(&readable);
    unreadable.insert(records::export_key(&key("b")), Value::from([0xff]));
    knowledge.adopt_remotes(&mk_remotes(&[("there", Some(readable))]));
    let concerned = knowledge.adopt_remotes(&mk_remotes(&[("there", Some(Arc::new(unreadable)))]));
    assert_eq!(concerned.names, [key("b")].into());
    assert_eq!(knowledge.names().collect::<Vec<_>>(), [&key("a")]);
    assert!(knowledge.sources(&key("b")).is_empty() && knowledge.withdrew(&id("there"), &key("b")));
    assert_eq!(knowledge.sources(&key("a")).len(), 1);
}

#[test]
fn endpoints_are_found_by_either_address_in_namespaces_that_are_here() {
    let ipv6 = Ipv6Addr::from_bits(7);
    let endpoint = Endpoint { ipv6: Some(ipv6), ..fixtures::mk_endpoint([10, 0, 0, 7]) };
    let other = mk_map_with("b", &fixtures::mk_endpoint([10, 0, 0, 8]));
    let mut knowledge = mk_knowledge();
    let clusters = [("there", Some(mk_map_with("a", &endpoint))), ("third", Some(other))];
    knowledge.adopt_remotes(&mk_remotes(&clusters));
    for address in [IpAddr::from([10, 0, 0, 7]), ipv6.into()] {
        assert_eq!(knowledge.names_with(&[address].into(), |namespace| **namespace == *"ns"), [key("a")].into());
        assert!(knowledge.names_with(&[address].into(), |_| false).is_empty());
    }
    assert!(knowledge.names_with(&[IpAddr::from([10, 0, 0, 9])].into(), |_| true).is_empty());
}

/// Instances of the others may be their exports until they were read.
#[test]
fn the_ledger_decides_for_clusters_that_export_a_name_there_or_withdrew_it_in_this_term() {
    let read = |exports: &[(&str, Option<&str>, i64)]| {
        mk_remotes(&[("there", Some(mk_map(exports))), ("moves", Some(mk_map(&[("other", None, 1)])))])
    };
    let mut knowledge = mk_knowledge();
    knowledge.adopt_remotes(&read(&[("a", None, 1)]));
    assert_eq!(knowledge.deciding(&key("a")), [id("here"), id("there")].into());
    knowledge.adopt_remotes(&read(&[]));
    assert_eq!(knowledge.deciding(&key("a")), [id("here"), id("there")].into(), "it was withdrawn");
    knowledge.forget_withdrawn(|name, _| *name == key("other"));
    assert_eq!(knowledge.deciding(&key("a")), [id("here"), id("there")].into());
    knowledge.forget_withdrawn(|name, _| *name == key("a"));
    assert_eq!(knowledge.deciding(&key("a")), [id("here")].into(), "its instances were read");

    // The next leader never saw the exports of a cluster that has left.
    let mut left = read(&[("a", None, 1)]);
    left.clusters.get_mut(&id("there")).unwrap().left = true;
    let mut next = mk_knowledge();
    next.adopt_remotes(&left);
    assert_eq!(next.deciding(&key("a")), [id("here")].into());
}

/// It may have gone back to its AWS controller, which writes its instances from then on.
#[test]
fn a_cluster_has_withdrawn_a_name_while_it_lives_and_does_not_export_it_again() {
    let mut knowledge = mk_knowledge();
    let mut read = mk_remotes(&[("there", Some(mk_map(&[("a", None, 1)])))]);
    knowledge.adopt_remotes(&read);
    assert!(!knowledge.withdrew(&id("there"), &key("a")));
    let withdrawn = mk_remotes(&[("there", Some(mk_map(&[])))]);
    knowledge.adopt_remotes(&withdrawn);
    knowledge.forget_withdrawn(|_, live| !live);
    assert!(knowledge.withdrew(&id("there"), &key("a")));
    assert!(!knowledge.withdrew(&id("there"), &key("b")) && !knowledge.withdrew(&id("other"), &key("a")));
    knowledge.adopt_remotes(&read);
    assert!(!knowledge.withdrew(&id("there"), &key("a")), "it exports it again");

    knowledge.adopt_remotes(&withdrawn);
    read.clusters.get_mut(&id("there")).unwrap().left = true;
    assert_eq!(knowledge.adopt_remotes(&read).names, [key("a")].into(), "its instances count now");
    assert!(!knowledge.withdrew(&id("there"), &key("a")));
}

#[test]
fn a_silent_cluster_concerns_its_names_and_one_that_expired_exports_nothing_until_it_is_heard_again() {
    let mut knowledge = mk_knowledge();
    let map = mk_map(&[("a", None, 1)]);
    let mut read = mk_remotes(&[("there", Some(map.clone())), ("third", Some(mk_map(&[("b", None, 1)])))]);
    knowledge.adopt_remotes(&read);
    assert!(knowledge.silent().is_empty());

    let mut adopt = |knowledge: &mut Knowledge, stale, expired: bool| {
        let there = read.clusters.get_mut(&id("there")).unwrap();
        (there.stale, there.expired, there.state) = (stale, expired, Some(map.clone()).filter(|_| !expired));
        knowledge.adopt_remotes(&read).names
    };
    assert_eq!(adopt(&mut knowledge, Some(7_000), false), [key("a")].into());
    assert_eq!(knowledge.silent(), [(id("there"), 7_000)].into());
    assert_eq!(adopt(&mut knowledge, Some(7_000), false), [].into(), "no news");
    assert_eq!(knowledge.sources(&key("a")).len(), 1, "what it said last counts");

    assert_eq!(adopt(&mut knowledge, Some(7_000), true), [key("a")].into());
    assert!(knowledge.sources(&key("a")).is_empty() && knowledge.silent().is_empty());
    assert!(knowledge.unknown().is_none(), "so that its objects may go");
    assert_eq!(adopt(&mut knowledge, None, false), [key("a")].into());
    assert_eq!(knowledge.sources(&key("a")).len(), 1);

    assert_eq!(adopt(&mut knowledge, Some(9_000), false), [key("a")].into());
    assert_eq!(adopt(&mut knowledge, None, false), [key("a")].into());
    assert!(knowledge.silent().is_empty());
}

#[test]
fn a_cluster_is_unheard_until_its_position_advances_or_it_is_silent() {
    let mut knowledge = mk_knowledge();
    let maps = [("there", "a"), ("third", "b")].map(|(cluster, name)| (cluster, Some(mk_map(&[(name, None, 1)]))));
    let mut read = mk_remotes(&maps);
    knowledge.adopt_remotes(&read);
    assert_eq!(knowledge.unheard(), [id("there"), id("third")].into());
    assert_eq!(knowledge.set_advanced(&[id("there")]), [key("a")].into());
    assert_eq!(knowledge.set_advanced(&[id("there")]), [].into(), "no news");
    assert_eq!(knowledge.unheard(), [id("third")].into());
    for stale in [Some(7_000), None] {
        read.clusters.get_mut(&id("third")).unwrap().stale = stale;
        knowledge.adopt_remotes(&read);
        assert_eq!(knowledge.unheard(), [].into(), "{stale:?}");
    }
    read.unaccepted = [id("new")].into();
    knowledge.adopt_remotes(&read);
    assert_eq!(knowledge.unheard(), [id("new")].into(), "nothing that it says counts yet");
}

#[test]
fn an_export_is_ready_when_the_registry_has_exactly_it() {
    let mut knowledge = mk_knowledge();
    knowledge.replan(&key("a"), Some(Ok(mk_local(None))), 1);
    assert!(matches!(knowledge.publication(&key("a")), Publication::Pending(_)));
    knowledge.resume(&Map::new(), 1);
    let map = knowledge.desired().unwrap();
    assert!(matches!(knowledge.publication(&key("a")), Publication::Pending(_)));
    assert_eq!(knowledge.adopt_published(Some(map)).names, [key("a")].into());
    assert_eq!(knowledge.publication(&key("a")), Publication::Published);
    let mut changed = mk_local(None);
    changed.export.created = 5;
    knowledge.replan(&key("a"), Some(Ok(changed)), 2);
    assert!(matches!(knowledge.publication(&key("a")), Publication::Pending(_)));
    knowledge.set_membership(Membership::Refused("no".to_owned()), 3);
    assert_eq!(knowledge.publication(&key("a")), Publication::Failed("no".to_owned()));
}

#[test]
fn an_export_that_is_refused_counts_here_as_it_does_elsewhere() {
    let mut knowledge = mk_knowledge();
    knowledge.resume(&Map::new(), 1);
    knowledge.replan(&key("a"), Some(Ok(mk_local(None))), 1);
    let mut large = mk_local(None);
    large.export.labels = (0..200).map(|n| (format!("label-{n}"), "x".repeat(30))).collect();
    large.endpoints = vec![fixtures::mk_endpoint([10, 0, 0, 7])];
    knowledge.replan(&key("a"), Some(Ok(large.clone())), 2);
    assert!(matches!(knowledge.publication(&key("a")), Publication::Failed(_)));
    let published = Exported { endpoints: large.endpoints.clone(), ..mk_local(None) };
    assert_eq!(*knowledge.sources(&key("a"))[&id("here")], published);
    knowledge.replan(&key("b"), Some(Ok(large)), 2);
    assert!(knowledge.sources(&key("b")).is_empty(), "no other cluster hears of it");
}

#[test]
fn the_first_publication_drops_what_was_unexported_while_nobody_led() {
    let mut knowledge = mk_knowledge();
    knowledge.replan(&key("a"), Some(Ok(mk_local(None))), 1);
    let invalid = Refusal::Invalid { reason: ValidReason::NoService, message: String::new() };
    knowledge.replan(&key("b"), Some(Err(invalid)), 1);
    assert_eq!(knowledge.desired(), None, "nothing is published before the own ledger is known");
    knowledge.resume(&mk_map(&[("a", None, 1), ("b", None, 1), ("c", None, 1)]), 2);
    assert_eq!(knowledge.desired().unwrap(), mk_map(&[("a", None, 1)]));
}

#[test]
fn instances_wait_until_their_registration_is_on_record() {
    let mut knowledge = mk_knowledge();
    let target = Target { namespace: "ns".into(), service: "t".into() };
    knowledge.resume(&Map::new(), 1);
    knowledge.replan(&key("a"), Some(Ok(mk_local(Some("t")))), 1);
    assert!(!knowledge.is_on_record(&target));
    let map = knowledge.desired();
    knowledge.adopt_published(map);
    assert!(knowledge.is_on_record(&target));
    knowledge.replan(&key("a"), None, 2);
    assert!(!knowledge.is_on_record(&target), "that it retires is not on record yet");
}

#[test]
fn the_oldest_claim_of_all_clusters_holds_and_equal_names_share() {
    let mut knowledge = mk_knowledge();
    let target = Target { namespace: "ns".into(), service: "t".into() };
    knowledge.resume(&Map::new(), 5);
    knowledge.replan(&key("a"), Some(Ok(mk_local(Some("t")))), 5);
    knowledge.adopt_remotes(&mk_remotes(&[("there", Some(mk_map(&[("b", Some("t"), 3)])))]));
    let (cluster, owner) = knowledge.claimant(&target).unwrap();
    assert_eq!((cluster, &*owner.name), (id("there"), "b"));
    knowledge.adopt_remotes(&mk_remotes(&[("there", Some(mk_map(&[])))]));
    assert_eq!(knowledge.claimant(&target).unwrap().0, id("here"));
    knowledge.adopt_remotes(&mk_remotes(&[("there", Some(mk_map(&[("a", Some("t"), 3)])))]));
    assert_eq!(&*knowledge.claimant(&target).unwrap().1.name, "a", "the same name in another cluster is no rival");
}

#[test]
fn who_leaves_exports_nothing_but_keeps_its_registrations_until_they_are_empty() {
    let mut knowledge = mk_knowledge();
    let target = Target { namespace: "ns".into(), service: "t".into() };
    knowledge.resume(&Map::new(), 1);
    knowledge.replan(&key("a"), Some(Ok(mk_local(Some("t")))), 1);
    let member = knowledge.desired().unwrap();
    knowledge.set_membership(Membership::Leaving, 2);
    let leaving = knowledge.desired().unwrap();
    assert_eq!(leaving.keys().collect::<Vec<_>>(), [&records::registration_key(&target)]);
    assert!(knowledge.exports().unwrap().registrations()[&target].is_retiring());
    knowledge.replan(&key("b"), Some(Ok(mk_local(None))), 2);
    assert_eq!(knowledge.desired().unwrap(), leaving, "nothing new is exported meanwhile");
    knowledge.set_membership(Membership::Member { trouble: None }, 3);
    assert_eq!(knowledge.desired().unwrap().len(), member.len() + 1, "and all of it when it comes back");
}

#[test]
fn only_the_targets_whose_records_changed_are_concerned() {
    let mut knowledge = mk_knowledge();
    let target = |service: &str| Target { namespace: "ns".into(), service: service.into() };
    knowledge.resume(&Map::new(), 1);
    for name in ["a", "b"] {
        knowledge.replan(&key(name), Some(Ok(mk_local(Some(name)))), 1);
    }
    let both = knowledge.desired();
    let concerned = knowledge.adopt_published(both.clone());
    assert_eq!(concerned.targets, [target("a"), target("b")].into());
    assert_eq!(knowledge.adopt_published(both), Concerned::default());
    knowledge.replan(&key("b"), None, 2);
    let one = knowledge.desired();
    assert_eq!(knowledge.adopt_published(one).targets, [target("b")].into());

    let rival = mk_remotes(&[("there", Some(mk_map(&[("c", Some("a"), 0), ("d", Some("d"), 0)])))]);
    let concerned = knowledge.adopt_remotes(&rival);
    assert_eq!(concerned.targets, [target("a"), target("d")].into());
    assert_eq!(concerned.names, [key("a"), key("c"), key("d")].into(), "with the own export that wants one of them");
    assert_eq!(knowledge.adopt_remotes(&rival), Concerned::default());
    let gone = knowledge.adopt_remotes(&mk_remotes(&[]));
    assert_eq!(gone.targets, [target("a"), target("d")].into());
}

#[test]
fn who_waits_for_a_target_gets_it_when_the_leader_after_finds_it_free() {
    let target = Target { namespace: "ns".into(), service: "t".into() };
    // `a` is planned before `z`, which held the target when the leader before ended, and wants another one now.
    let mut knowledge = mk_knowledge();
    knowledge.replan(&key("a"), Some(Ok(mk_local(Some("t")))), 1);
    knowledge.replan(&key("z"), Some(Ok(mk_local(Some("u")))), 1);
    knowledge.resume(&mk_map(&[("z", Some("t"), 1)]), 2);
    let holder = |knowledge: &Knowledge| knowledge.exports().unwrap().registrations()[&target].owner.name.to_string();
    assert_eq!(holder(&knowledge), "a");
    // Its ServiceExport went meanwhile.
    let mut knowledge = mk_knowledge();
    knowledge.replan(&key("a"), Some(Ok(mk_local(Some("t")))), 1);
    knowledge.resume(&mk_map(&[("z", Some("t"), 1)]), 2);
    assert_eq!(holder(&knowledge), "a");
}

#[test]
fn no_claim_dates_from_before_what_is_known() {
    let mut knowledge = Knowledge::new("here".parse().unwrap(), Membership::Member { trouble: None });
    knowledge.not_before(10_000);
    knowledge.resume(&Map::new(), 4_000);
    let date = |knowledge: &mut Knowledge, name: &str, service: &str, now| {
        let target = Target { namespace: "internal".into(), service: service.into() };
        knowledge.annotate(&ClaimOwner::service(&key(name)), Some(Asks::one(target.clone())), now);
        knowledge.exports().unwrap().registrations()[&target].claimed
    };
    assert_eq!(date(&mut knowledge, "a", "a", 5_000), 10_000, "the ledger knows better than the clock");
    assert_eq!(date(&mut knowledge, "b", "b", 20_000), 20_000);
    assert_eq!(date(&mut knowledge, "c", "c", 6_000), 20_000, "the clock was set back");
    // By the next leader, whose clock is behind.
    let map = knowledge.desired().unwrap();
    let mut next = Knowledge::new("here".parse().unwrap(), Membership::Member { trouble: None });
    next.resume(&map, 19_900);
    assert_eq!(date(&mut next, "d", "d", 19_900), 20_000);
    let mut absurd = Knowledge::new("here".parse().unwrap(), Membership::Member { trouble: None });
    absurd.resume(&map, 50);
    assert_eq!(date(&mut absurd, "d", "d", 50), 50, "a date may be wrong by years");
}

#[test]
fn a_claim_of_another_cluster_counts_when_the_registry_has_it_and_its_export_before() {
    let mut knowledge = mk_knowledge();
    let mut streamed = mk_remotes(&[("there", Some(mk_map(&[("a", Some("www"), 1)])))]);
    streamed.clusters.get_mut(&id("there")).unwrap().committed = Some(Arc::default());
    let concerned = knowledge.adopt_remotes(&streamed);
    assert_eq!(knowledge.sources(&key("a")).len(), 1);
    let www = Target { namespace: "ns".into(), service: "www".into() };
    assert!(concerned.targets.is_empty() && knowledge.other_claims(&www).next().is_none());
    let there = streamed.clusters.get_mut(&id("there")).unwrap();
    there.committed.clone_from(&there.state);
    assert_eq!(knowledge.adopt_remotes(&streamed).targets, [www.clone()].into());
    assert_eq!(knowledge.other_claims(&www).count(), 1);
}

/// Whoever gets into a ClusterSet could decide about every name otherwise.
#[test]
fn nothing_that_a_cluster_says_counts_as_older_than_the_cluster_is_there() {
    let mut knowledge = mk_knowledge();
    knowledge.resume(&Map::new(), 100);
    knowledge.replan(&key("a"), Some(Ok(mk_local(Some("www")))), 100);
    let mut read = mk_remotes(&[("there", Some(mk_map(&[("a", Some("www"), 1)])))]);
    let www = Target { namespace: "ns".into(), service: "www".into() };
    let dates = |knowledge: &Knowledge| {
        let sources = knowledge.sources(&key("a"));
        ["here", "there"].map(|cluster| sources[&id(cluster)].export.created)
    };
    knowledge.adopt_remotes(&read);
    assert_eq!(dates(&knowledge), [1, 1], "nobody knows how old they are");
    read.clusters.get_mut(&id("there")).unwrap().created = 500;
    let concerned = knowledge.adopt_remotes(&read);
    assert_eq!((concerned.names, concerned.targets), ([key("a")].into(), [www.clone()].into()));
    assert_eq!(dates(&knowledge), [1, 500]);
    assert_eq!(knowledge.other_claims(&www).map(|claim| claim.claimed).collect::<Vec<_>>(), [500]);
    assert_eq!(knowledge.claimant(&www).unwrap().0, id("here"), "its claim of the year 1970 is younger than ours");
    // The own cluster counts here as it counts elsewhere.
    read.own_created = 600;
    assert_eq!(knowledge.adopt_remotes(&read).names, [key("a")].into());
    assert_eq!((dates(&knowledge), knowledge.claimant(&www).unwrap().0), ([600, 500], id("there")));
    assert!(knowledge.adopt_remotes(&read).names.is_empty());
}

#[test]
fn a_cluster_that_has_not_joined_exports_and_claims_nothing_and_what_it_claimed_retires() {
    let mut knowledge = mk_knowledge();
    let www = Target { namespace: "ns".into(), service: "www".into() };
    let (owner, api) = (ClaimOwner::service(&key("b")), Target { namespace: "ns".into(), service: "api".into() });
    let claims = |knowledge: &Knowledge| -> Vec<(Target, bool)> {
        let registrations = knowledge.exports().unwrap().registrations();
        registrations.values().map(|claim| (claim.target.clone(), claim.is_retiring())).collect()
    };
    knowledge.set_barred(Some("nobody knows it".to_owned()), 100);
    knowledge.resume(&Map::new(), 100);
    knowledge.replan(&key("a"), Some(Ok(mk_local(Some("www")))), 100);
    knowledge.annotate(&owner, Some(Asks::one(api.clone())), 100);
    assert_eq!((claims(&knowledge), knowledge.sources(&key("a")).len()), (vec![], 1));
    assert!(records::decode_service(&knowledge.desired().unwrap(), &key("a"), &mut Vec::new()).is_some());
    assert!(knowledge.set_barred(Some("somebody does not know it".to_owned()), 150), "in other words");
    assert!(knowledge.set_barred(None, 200) && !knowledge.set_barred(None, 200));
    assert_eq!(claims(&knowledge), [(api.clone(), false), (www.clone(), false)]);
    knowledge.set_barred(Some("somebody rejected it".to_owned()), 300);
    assert_eq!(claims(&knowledge), [(api, true), (www, true)]);
}
