use super::*;
use crate::{
    cloudmap::{Instance, fake::mk_service},
    foreign::{NoEndpoint, Reading, ServiceFound},
    instances,
};

fn namespace(name: &str, import_from: Option<&str>) -> Namespace {
    Namespace {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        terminating: false,
        labels: BTreeMap::new(),
        import_from: import_from.map(Into::into),
        may_register: None,
        allow_adopt: None,
    }
}

fn reading(instances: &[(&str, &str)]) -> Reading {
    let instance = |(id, ip): &(&str, &str)| Instance {
        id: (*id).into(),
        attributes: [("AWS_INSTANCE_IPV4".to_owned(), (*ip).to_owned())].into(),
    };
    let identity = instances::Identity { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "u".into() };
    let service = mk_service();
    let instances: Vec<_> = instances.iter().map(instance).collect();
    Reading::of(&instances, &BTreeSet::new(), &service, "internal", &identity, None)
}

fn found_in(namespaces: &[(&str, NamespaceFound)]) -> Arc<Found> {
    let namespaces = namespaces.iter().map(|(name, found)| (Arc::from(*name), Arc::new(found.clone()))).collect();
    Arc::new(Found { namespaces })
}

fn services(listed: bool, services: &[(&str, Option<Reading>)]) -> NamespaceFound {
    let service = |(name, reading): &(&str, Option<Reading>)| {
        let found = ServiceFound { name: (*name).into(), reading: reading.clone(), error: None };
        (Arc::from(*name), Arc::new(found))
    };
    NamespaceFound { services: services.iter().map(service).collect(), listed, trouble: None }
}

fn trouble(trouble: Trouble) -> NamespaceFound {
    NamespaceFound { trouble: Some(trouble), ..NamespaceFound::default() }
}

fn add(foreign: &mut Foreign, namespace: &Namespace) -> Consequences {
    foreign.namespace_changed(&namespace.name.clone(), Some(namespace))
}

fn importing(from: &str) -> Foreign {
    let mut foreign = Foreign::new(ImportRules::default());
    add(&mut foreign, &namespace("shop", Some(from)));
    foreign
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

fn octets(picture: &Picture) -> Vec<u8> {
    picture.backends.iter().map(|backend| backend.ipv4.unwrap().octets()[3]).collect()
}

#[test]
fn an_annotation_counts_before_the_flag_and_the_ledger_is_never_imported() {
    let rules = ImportRules { default: "{namespace},common".parse().unwrap(), ..ImportRules::default() };
    let mut foreign = Foreign::new(rules);
    for (namespace, expected) in [
        (namespace("shop", None), &["common", "shop"][..]),
        (namespace("shop", Some("internal")), &["internal"]),
        (namespace("shop", Some("")), &[]),
        (namespace("clusterset-prod", None), &["common"]),
        (Namespace { terminating: true, ..namespace("clusterset-prod", None) }, &[]),
    ] {
        let consequences = add(&mut foreign, &namespace);
        let sought: Vec<_> = foreign.sought().iter().map(ToString::to_string).collect();
        assert_eq!(sought, expected, "{namespace:?}");
        assert_eq!(add(&mut foreign, &namespace).namespaces, [].into(), "no news");
        assert!(consequences.notes.is_empty());
    }
    let bad = add(&mut foreign, &namespace("shop", Some("a b")));
    assert_eq!(
        (bad.notes[0].reason.as_str(), bad.notes[0].regarding.name.as_deref()),
        ("InvalidAnnotation", Some("shop"))
    );
    assert!(bad.notes[0].text.contains("\"a b\""), "{}", bad.notes[0].text);
    add(&mut foreign, &namespace("shop", Some("internal")));
    for annotation in ["internal,clusterset-prod", "ClusterSet-test"] {
        let refused = add(&mut foreign, &namespace("shop", Some(annotation)));
        assert_eq!(foreign.sought(), ["internal".into()].into(), "{annotation}: what was imported stays");
        let text = &refused.notes[0].text;
        assert!(text.contains("ledger") && text.contains("import-from") && text.contains("remove it"), "{text}");
    }
}

#[test]
fn what_changed_concerns_the_names_in_every_namespace_that_imports_it() {
    let mut foreign = importing("internal");
    add(&mut foreign, &namespace("other", Some("internal")));
    let first =
        foreign.adopt(found_in(&[("internal", services(false, &[("web", None), ("api", Some(reading(&[])))]))]));
    assert_eq!(first.names.len(), 4);
    let web = |reading| found_in(&[("internal", services(false, &[("web", Some(reading))]))]);
    let second = foreign.adopt(web(reading(&[("a", "10.0.0.1"), ("b", "none")])));
    assert_eq!(second.names.iter().filter(|name| *name.namespace == *"shop").count(), 2, "one that went counts, too");
    let rejected = vec![Rejected { instance: "b".into(), why: NoEndpoint::InvalidAddress }];
    assert!(second.rejected.contains(&(key("web"), rejected.clone())));
    let third = foreign.adopt(web(reading(&[("a", "10.0.0.2"), ("b", "none")])));
    assert_eq!((third.rejected.len(), third.names.len()), (0, 2), "it is not said again");
    let note = rejection(&key("web"), &rejected, events::import(&key("web"), "uid")).unwrap();
    assert!(note.text.contains("1 instance(s) of Cloud Map service web"), "{}", note.text);
    let listed = foreign.adopt(found_in(&[("internal", services(true, &[("web", None)]))]));
    assert_eq!(listed.namespaces.len(), 2, "what is missing is gone now");
}

#[test]
fn a_namespace_that_cannot_be_read_is_said_once_where_somebody_named_it() {
    let mut foreign = Foreign::new(ImportRules { default: "{namespace}".parse().unwrap(), ..ImportRules::default() });
    add(&mut foreign, &namespace("implied", None));
    add(&mut foreign, &namespace("shop", Some("internal")));
    let missing = || found_in(&[("internal", trouble(Trouble::NotFound)), ("implied", trouble(Trouble::NotFound))]);
    let notes = foreign.adopt(missing()).notes;
    assert_eq!(
        notes.iter().map(|note| (note.reason.as_str(), note.regarding.name.as_deref())).collect::<Vec<_>>(),
        [("NoNamespace", Some("shop"))]
    );
    assert!(notes[0].text.contains("internal") && notes[0].text.contains("Create it"), "{}", notes[0].text);
    assert!(foreign.adopt(missing()).notes.is_empty());
    let failed = || trouble(Trouble::Failed("access denied".to_owned()));
    let notes = foreign.adopt(found_in(&[("internal", failed()), ("implied", failed())])).notes;
    assert_eq!(notes.len(), 2, "what AWS refuses concerns both");
    foreign.adopt(found_in(&[("internal", services(true, &[]))]));
    assert_eq!(foreign.adopt(missing()).notes.len(), 1, "it is missing again");
}

#[test]
fn services_that_cannot_be_read_are_said_together() {
    let mut foreign = importing("internal");
    let denied = |names: &[&str]| {
        let mut found = services(true, &[("web", None), ("api", None), ("db", None)]);
        for name in names {
            let service = ServiceFound { name: (*name).into(), reading: None, error: Some("access denied".to_owned()) };
            found.services.insert((*name).into(), Arc::new(service));
        }
        found_in(&[("internal", found)])
    };
    assert!(foreign.adopt(denied(&[])).notes.is_empty());
    let notes = foreign.adopt(denied(&["api", "web"])).notes;
    assert_eq!((notes.len(), notes[0].reason.as_str()), (1, "ImportFailed"));
    assert!(
        notes[0].text.starts_with("2 service(s) of Cloud Map namespace internal cannot be read, such as api: access"),
        "{}",
        notes[0].text
    );
    assert!(foreign.adopt(denied(&["api", "web"])).notes.is_empty(), "no news");
    assert_eq!(foreign.adopt(denied(&["api", "web", "db"])).notes.len(), 1);
}

#[test]
fn a_name_is_complete_when_all_that_may_have_it_was_read() {
    let mut foreign = importing("a,b");
    let a = services(true, &[("web", Some(reading(&[("i", "10.0.0.1")])))]);
    foreign.adopt(found_in(&[("a", a.clone())]));
    let picture = |foreign: &mut Foreign, name: &str| {
        let picture = foreign.picture(&key(name));
        (octets(&picture), picture.exists, picture.complete)
    };
    assert_eq!(picture(&mut foreign, "web"), (vec![1], true, false));
    assert_eq!(picture(&mut foreign, "api"), (vec![], false, false));
    foreign.adopt(found_in(&[("a", a.clone()), ("b", services(false, &[]))]));
    assert_eq!(picture(&mut foreign, "web"), (vec![1], true, false), "one listing is not enough");
    foreign.adopt(found_in(&[("a", a.clone()), ("b", services(true, &[("web", None)]))]));
    assert_eq!(picture(&mut foreign, "web"), (vec![1], true, false), "it was not looked at yet");
    assert_eq!(picture(&mut foreign, "api"), (vec![], false, true));
    foreign.adopt(found_in(&[("a", a), ("b", services(true, &[("web", Some(reading(&[("j", "10.0.0.2")])))]))]));
    assert_eq!(picture(&mut foreign, "web"), (vec![1, 2], true, true), "both have endpoints of it");
    let elsewhere = foreign.picture(&ServiceKey::new("not-importing", "web"));
    assert_eq!(elsewhere, Picture::nothing());
    assert_eq!(foreign.names().collect::<BTreeSet<_>>(), [key("web")].into());
}

#[test]
fn what_was_read_once_is_remembered_until_all_was() {
    let mut foreign = importing("a,b");
    let seen = |foreign: &mut Foreign| -> Vec<String> {
        foreign.picture(&key("web")).seen.iter().map(ToString::to_string).collect()
    };
    assert_eq!(seen(&mut foreign), [""; 0]);
    foreign.adopt(found_in(&[("a", services(true, &[("web", Some(reading(&[("i", "10.0.0.1")])))]))]));
    assert_eq!(seen(&mut foreign), ["10.0.0.1"]);
    foreign.adopt(found_in(&[("a", services(true, &[("web", Some(reading(&[])))]))]));
    assert_eq!(seen(&mut foreign), ["10.0.0.1"], "it was seen to go");
    foreign.adopt(found_in(&[("a", services(true, &[])), ("b", services(true, &[]))]));
    assert_eq!(seen(&mut foreign), [""; 0]);
}

#[test]
fn a_namespace_that_does_not_exist_counts_as_empty_beside_one_that_does() {
    let mut foreign = importing("a,b");
    let complete = |foreign: &mut Foreign| foreign.picture(&key("web")).complete;
    let missing = || trouble(Trouble::NotFound);
    foreign.adopt(found_in(&[("a", missing()), ("b", missing())]));
    assert!(!complete(&mut foreign), "it may be the wrong region");
    let a = services(true, &[("web", Some(reading(&[])))]);
    foreign.adopt(found_in(&[("a", services(false, &[("web", Some(reading(&[])))])), ("b", missing())]));
    assert!(!complete(&mut foreign), "one listing is not enough");
    let news = foreign.adopt(found_in(&[("a", a.clone()), ("b", missing())]));
    assert!(complete(&mut foreign) && news.namespaces.contains("shop"), "{news:?}");
    let failed = trouble(Trouble::Failed("access denied".to_owned()));
    foreign.adopt(found_in(&[("a", a.clone()), ("b", failed)]));
    assert!(!complete(&mut foreign), "it is not known any more whether it exists");
    let news = foreign.adopt(found_in(&[("a", a.clone()), ("b", missing())]));
    assert!(complete(&mut foreign) && news.namespaces.contains("shop"), "{news:?}");
    let read = NamespaceFound { services: services(true, &[("api", None)]).services, ..missing() };
    foreign.adopt(found_in(&[("a", a), ("b", read)]));
    assert!(!complete(&mut foreign), "it was there, and had services");
}

#[test]
fn outside_a_clusterset_nothing_is_sought_and_who_asked_is_told() {
    let mut foreign = Foreign::new(ImportRules { default: "common".parse().unwrap(), ..ImportRules::default() });
    add(&mut foreign, &namespace("implied", None));
    add(&mut foreign, &namespace("shop", Some("internal")));
    let why = || Some("There is no ClusterSet.".to_owned());
    let of = |consequences: Consequences| -> Vec<_> {
        let named = consequences.notes.into_iter().map(|note| (note.reason.as_str(), note.regarding.name.unwrap()));
        named.collect()
    };
    assert_eq!(of(foreign.bar(why())), [("NoClusterSet", "shop".to_owned())]);
    assert_eq!(foreign.sought(), [].into());
    assert_eq!(of(foreign.bar(why())), [], "no news");
    assert_eq!(of(add(&mut foreign, &namespace("late", Some("internal")))), [("NoClusterSet", "late".to_owned())]);
    assert_eq!(of(foreign.bar(None)), []);
    assert_eq!(foreign.sought().len(), 2);
}

/// What is not read any more may be there again as soon as it is.
#[test]
fn what_was_seen_counts_no_more_when_it_is_not_read_any_more() {
    let mut foreign = importing("a,b");
    foreign.adopt(found_in(&[("a", services(true, &[("web", Some(reading(&[("i", "10.0.0.1")])))]))]));
    assert_eq!(foreign.picture(&key("web")).seen.len(), 1);
    foreign.bar(Some("There is no ClusterSet.".to_owned()));
    foreign.adopt(found_in(&[]));
    foreign.bar(None);
    assert_eq!(foreign.picture(&key("web")), Picture { complete: false, ..Picture::nothing() });
}

#[test]
fn who_imports_later_is_told_of_what_cannot_be_an_endpoint() {
    let mut foreign = importing("internal");
    foreign.adopt(found_in(&[("internal", services(true, &[("web", Some(reading(&[("b", "none")])))]))]));
    let later = add(&mut foreign, &namespace("other", Some("internal")));
    let rejected = vec![Rejected { instance: "b".into(), why: NoEndpoint::InvalidAddress }];
    assert_eq!(later.rejected, [(ServiceKey::new("other", "web"), rejected)]);
    let same = add(&mut foreign, &namespace("other", Some("internal,more")));
    assert_eq!(same.rejected, [], "it is not said again");
}

#[test]
fn names_that_nothing_was_read_of_leave_nothing_behind() {
    let mut foreign = importing("internal,unread");
    foreign.adopt(found_in(&[("internal", services(false, &[("web", Some(reading(&[("a", "10.0.0.1")])))]))]));
    for n in 0..1_000 {
        assert!(!foreign.picture(&key(&format!("name-{n}"))).complete);
        foreign.picture(&key("web"));
    }
    assert_eq!(foreign.seen.keys().collect::<Vec<_>>(), [&key("web")]);
}
