use super::*;
use cloudmap::{Instance, fake::mk_service};
use discovery::{NoEndpoint, Reading, ServiceFound};
use instances::policy::mk_namespace;

fn namespace(name: &str, import_from: Option<&str>) -> Namespace {
    Namespace {
        name: name.into(),
        uid: format!("uid-{name}").into(),
        import_from: import_from.map(Into::into),
        ..mk_namespace()
    }
}

fn reading(instances: &[(&str, &str)]) -> Reading {
    let instance = |(id, ip): &(&str, &str)| Instance {
        id: (*id).into(),
        attributes: [("AWS_INSTANCE_IPV4".to_owned(), (*ip).to_owned())].into(),
    };
    let identity = instances::Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "u".into() };
    let service = mk_service();
    let instances: Vec<_> = instances.iter().map(instance).collect();
    Reading::of(&instances, &BTreeSet::new(), &service, "internal", &identity, None)
}

fn found_in(namespaces: &[(&str, NamespaceFound)]) -> Arc<Discovered> {
    let namespaces = namespaces.iter().map(|(name, found)| (Arc::from(*name), Arc::new(found.clone()))).collect();
    Arc::new(Discovered { namespaces })
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

fn add(subscriptions: &mut Subscriptions, namespace: &Namespace) -> Consequences {
    subscriptions.namespace_changed(&namespace.name.clone(), Some(namespace))
}

fn importing(from: &str) -> Subscriptions {
    let mut subscriptions = Subscriptions::new(ImportRules::default());
    add(&mut subscriptions, &namespace("shop", Some(from)));
    subscriptions
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
    let mut subscriptions = Subscriptions::new(rules);
    for (namespace, expected) in [
        (namespace("shop", None), &["common", "shop"][..]),
        (namespace("shop", Some("internal")), &["internal"]),
        (namespace("shop", Some("")), &[]),
        (namespace("clusterset-prod", None), &["common"]),
        (Namespace { terminating: true, ..namespace("clusterset-prod", None) }, &[]),
    ] {
        let consequences = add(&mut subscriptions, &namespace);
        let subscribed: Vec<_> = subscriptions.subscribed().iter().map(ToString::to_string).collect();
        assert_eq!(subscribed, expected, "{namespace:?}");
        assert_eq!(add(&mut subscriptions, &namespace).namespaces, [].into(), "no news");
        assert!(consequences.notes.is_empty());
    }
    let bad = add(&mut subscriptions, &namespace("shop", Some("a b")));
    assert_eq!(
        (bad.notes[0].reason.as_str(), bad.notes[0].regarding.name.as_deref()),
        ("InvalidAnnotation", Some("shop"))
    );
    assert!(bad.notes[0].text.contains("\"a b\""), "{}", bad.notes[0].text);
    add(&mut subscriptions, &namespace("shop", Some("internal")));
    for annotation in ["internal,clusterset-prod", "ClusterSet-test"] {
        let refused = add(&mut subscriptions, &namespace("shop", Some(annotation)));
        assert_eq!(subscriptions.subscribed(), ["internal".into()].into(), "{annotation}: what was imported stays");
        let text = &refused.notes[0].text;
        assert!(text.contains("ledger") && text.contains("import-from") && text.contains("remove it"), "{text}");
    }
}

#[test]
fn what_changed_concerns_the_names_in_every_namespace_that_imports_it() {
    let mut subscriptions = importing("internal");
    add(&mut subscriptions, &namespace("other", Some("internal")));
    let first =
        subscriptions.adopt(found_in(&[("internal", services(false, &[("web", None), ("api", Some(reading(&[])))]))]));
    assert_eq!(first.names.len(), 4);
    let web = |reading| found_in(&[("internal", services(false, &[("web", Some(reading))]))]);
    let second = subscriptions.adopt(web(reading(&[("a", "10.0.0.1"), ("b", "none")])));
    assert_eq!(second.names.iter().filter(|name| *name.namespace == *"shop").count(), 2, "one that went counts, too");
    let rejected = vec![Rejected { instance: "b".into(), why: NoEndpoint::InvalidAddress }];
    assert!(second.rejected.contains(&(key("web"), rejected)));
    let third = subscriptions.adopt(web(reading(&[("a", "10.0.0.2"), ("b", "none")])));
    assert_eq!((third.rejected.len(), third.names.len()), (0, 2), "it is not said again");
    let note = |instances: &[(&str, NoEndpoint)]| {
        let rejected = |(id, why): &(&str, NoEndpoint)| Rejected { instance: (*id).into(), why: *why };
        let rejected: Vec<_> = instances.iter().map(rejected).collect();
        rejection(&key("web"), &rejected, events::import(&key("web"), "uid")).unwrap().text
    };
    let (port, alias) = (NoEndpoint::InvalidPort, NoEndpoint::Alias);
    let text = note(&[("b", port), ("c", alias)]);
    assert_eq!(
        text,
        "Left out each instance of Cloud Map service web that has only the name of a load balancer (AWS_ALIAS_DNS_NAME), or \
         that has an invalid port (AWS_INSTANCE_PORT): it cannot be an endpoint."
    );
    assert_eq!(
        note(&[("a", alias), ("d", port), ("e", port)]),
        text,
        "an Event with the same text is not created again"
    );
    let listed = subscriptions.adopt(found_in(&[("internal", services(true, &[("web", None)]))]));
    assert_eq!(listed.namespaces.len(), 2, "what is missing is gone now");
}

#[test]
fn a_namespace_that_cannot_be_read_is_said_once_where_somebody_named_it() {
    let mut subscriptions =
        Subscriptions::new(ImportRules { default: "{namespace}".parse().unwrap(), ..ImportRules::default() });
    add(&mut subscriptions, &namespace("implied", None));
    add(&mut subscriptions, &namespace("shop", Some("internal")));
    let missing = || found_in(&[("internal", trouble(Trouble::NotFound)), ("implied", trouble(Trouble::NotFound))]);
    let notes = subscriptions.adopt(missing()).notes;
    assert_eq!(
        notes.iter().map(|note| (note.reason.as_str(), note.regarding.name.as_deref())).collect::<Vec<_>>(),
        [("NoNamespace", Some("shop"))]
    );
    assert!(notes[0].text.contains("internal") && notes[0].text.contains("Create it"), "{}", notes[0].text);
    assert!(subscriptions.adopt(missing()).notes.is_empty());
    let failed = || trouble(Trouble::Failed("access denied".to_owned()));
    let notes = subscriptions.adopt(found_in(&[("internal", failed()), ("implied", failed())])).notes;
    assert_eq!(notes.len(), 2, "what AWS refuses concerns both");
    subscriptions.adopt(found_in(&[("internal", services(true, &[]))]));
    assert_eq!(subscriptions.adopt(missing()).notes.len(), 1, "it is missing again");
}

#[test]
fn services_that_cannot_be_read_are_said_together() {
    let mut subscriptions = importing("internal");
    let denied = |names: &[&str]| {
        let mut found = services(true, &[("web", None), ("api", None), ("db", None)]);
        for name in names {
            let service = ServiceFound { name: (*name).into(), reading: None, error: Some("access denied".to_owned()) };
            found.services.insert((*name).into(), Arc::new(service));
        }
        found_in(&[("internal", found)])
    };
    assert!(subscriptions.adopt(denied(&[])).notes.is_empty());
    let notes = subscriptions.adopt(denied(&["api", "web"])).notes;
    assert_eq!((notes.len(), notes[0].reason.as_str()), (1, "ImportFailed"));
    assert!(
        notes[0].text.starts_with("2 service(s) of Cloud Map namespace internal cannot be read, such as api: access"),
        "{}",
        notes[0].text
    );
    assert!(subscriptions.adopt(denied(&["api", "web"])).notes.is_empty(), "no news");
    assert_eq!(subscriptions.adopt(denied(&["api", "web", "db"])).notes.len(), 1);
}

#[test]
fn a_name_is_complete_when_all_that_may_have_it_was_read() {
    let mut subscriptions = importing("a,b");
    let a = services(true, &[("web", Some(reading(&[("i", "10.0.0.1")])))]);
    subscriptions.adopt(found_in(&[("a", a.clone())]));
    let picture = |subscriptions: &mut Subscriptions, name: &str| {
        let picture = subscriptions.picture(&key(name));
        (octets(&picture), picture.exists, picture.complete)
    };
    assert_eq!(picture(&mut subscriptions, "web"), (vec![1], true, false));
    assert_eq!(picture(&mut subscriptions, "api"), (vec![], false, false));
    subscriptions.adopt(found_in(&[("a", a.clone()), ("b", services(false, &[]))]));
    assert_eq!(picture(&mut subscriptions, "web"), (vec![1], true, false), "one listing is not enough");
    subscriptions.adopt(found_in(&[("a", a.clone()), ("b", services(true, &[("web", None)]))]));
    assert_eq!(picture(&mut subscriptions, "web"), (vec![1], true, false), "it was not looked at yet");
    assert_eq!(picture(&mut subscriptions, "api"), (vec![], false, true));
    subscriptions.adopt(found_in(&[("a", a), ("b", services(true, &[("web", Some(reading(&[("j", "10.0.0.2")])))]))]));
    assert_eq!(picture(&mut subscriptions, "web"), (vec![1, 2], true, true), "both have endpoints of it");
    let elsewhere = subscriptions.picture(&ServiceKey::new("not-importing", "web"));
    assert_eq!(elsewhere, Picture::nothing());
    assert_eq!(subscriptions.names().collect::<BTreeSet<_>>(), [key("web")].into());
}

#[test]
fn what_was_read_once_is_remembered_until_all_was() {
    let mut subscriptions = importing("a,b");
    let seen = |subscriptions: &mut Subscriptions| -> Vec<String> {
        subscriptions.picture(&key("web")).seen.iter().map(ToString::to_string).collect()
    };
    assert_eq!(seen(&mut subscriptions), [""; 0]);
    subscriptions.adopt(found_in(&[("a", services(true, &[("web", Some(reading(&[("i", "10.0.0.1")])))]))]));
    assert_eq!(seen(&mut subscriptions), ["10.0.0.1"]);
    subscriptions.adopt(found_in(&[("a", services(true, &[("web", Some(reading(&[])))]))]));
    assert_eq!(seen(&mut subscriptions), ["10.0.0.1"], "it was seen to go");
    subscriptions.adopt(found_in(&[("a", services(true, &[])), ("b", services(true, &[]))]));
    assert_eq!(seen(&mut subscriptions), [""; 0]);
}

#[test]
fn a_namespace_that_does_not_exist_counts_as_empty_beside_one_that_does() {
    let mut subscriptions = importing("a,b");
    let complete = |subscriptions: &mut Subscriptions| subscriptions.picture(&key("web")).complete;
    let missing = || trouble(Trouble::NotFound);
    subscriptions.adopt(found_in(&[("a", missing()), ("b", missing())]));
    assert!(!complete(&mut subscriptions), "it may be the wrong region");
    let a = services(true, &[("web", Some(reading(&[])))]);
    subscriptions.adopt(found_in(&[("a", services(false, &[("web", Some(reading(&[])))])), ("b", missing())]));
    assert!(!complete(&mut subscriptions), "one listing is not enough");
    let news = subscriptions.adopt(found_in(&[("a", a.clone()), ("b", missing())]));
    assert!(complete(&mut subscriptions) && news.namespaces.contains("shop"), "{news:?}");
    let failed = trouble(Trouble::Failed("access denied".to_owned()));
    subscriptions.adopt(found_in(&[("a", a.clone()), ("b", failed)]));
    assert!(!complete(&mut subscriptions), "it is not known any more whether it exists");
    let news = subscriptions.adopt(found_in(&[("a", a.clone()), ("b", missing())]));
    assert!(complete(&mut subscriptions) && news.namespaces.contains("shop"), "{news:?}");
    let read = NamespaceFound { services: services(true, &[("api", None)]).services, ..missing() };
    subscriptions.adopt(found_in(&[("a", a), ("b", read)]));
    assert!(!complete(&mut subscriptions), "it was there, and had services");
}

#[test]
fn outside_a_clusterset_nothing_is_sought_and_who_asked_is_told() {
    let mut subscriptions =
        Subscriptions::new(ImportRules { default: "common".parse().unwrap(), ..ImportRules::default() });
    add(&mut subscriptions, &namespace("implied", None));
    add(&mut subscriptions, &namespace("shop", Some("internal")));
    let why = || Some("There is no ClusterSet.".to_owned());
    let of = |consequences: Consequences| -> Vec<_> {
        let named = consequences.notes.into_iter().map(|note| (note.reason.as_str(), note.regarding.name.unwrap()));
        named.collect()
    };
    assert_eq!(of(subscriptions.bar(why())), [("NoClusterSet", "shop".to_owned())]);
    assert_eq!(subscriptions.subscribed(), [].into());
    assert_eq!(of(subscriptions.bar(why())), [], "no news");
    assert_eq!(
        of(add(&mut subscriptions, &namespace("late", Some("internal")))),
        [("NoClusterSet", "late".to_owned())]
    );
    assert_eq!(of(subscriptions.bar(None)), []);
    assert_eq!(subscriptions.subscribed().len(), 2);
}

/// What is not read any more may be there again as soon as it is.
#[test]
fn what_was_seen_counts_no_more_when_it_is_not_read_any_more() {
    let mut subscriptions = importing("a,b");
    subscriptions.adopt(found_in(&[("a", services(true, &[("web", Some(reading(&[("i", "10.0.0.1")])))]))]));
    assert_eq!(subscriptions.picture(&key("web")).seen.len(), 1);
    subscriptions.bar(Some("There is no ClusterSet.".to_owned()));
    subscriptions.adopt(found_in(&[]));
    subscriptions.bar(None);
    assert_eq!(subscriptions.picture(&key("web")), Picture { complete: false, ..Picture::nothing() });
}

#[test]
fn who_imports_later_is_told_of_what_cannot_be_an_endpoint() {
    let mut subscriptions = importing("internal");
    subscriptions.adopt(found_in(&[("internal", services(true, &[("web", Some(reading(&[("b", "none")])))]))]));
    let later = add(&mut subscriptions, &namespace("other", Some("internal")));
    let rejected = vec![Rejected { instance: "b".into(), why: NoEndpoint::InvalidAddress }];
    assert_eq!(later.rejected, [(ServiceKey::new("other", "web"), rejected)]);
    let same = add(&mut subscriptions, &namespace("other", Some("internal,more")));
    assert_eq!(same.rejected, [], "it is not said again");
}

#[test]
fn names_that_nothing_was_read_of_leave_nothing_behind() {
    let mut subscriptions = importing("internal,unread");
    subscriptions.adopt(found_in(&[("internal", services(false, &[("web", Some(reading(&[("a", "10.0.0.1")])))]))]));
    for n in 0..1_000 {
        assert!(!subscriptions.picture(&key(&format!("name-{n}"))).complete);
        subscriptions.picture(&key("web"));
    }
    assert_eq!(subscriptions.seen.keys().collect::<Vec<_>>(), [&key("web")]);
}

#[test]
fn names_are_found_by_the_addresses_of_their_instances() {
    let mut subscriptions = importing("internal");
    add(&mut subscriptions, &namespace("other", Some("internal")));
    let [web, api] = [("a", "10.0.0.1"), ("b", "10.0.0.2")].map(|instance| Some(reading(&[instance])));
    let found = found_in(&[("internal", services(true, &[("web", web), ("api", api), ("unread", None)]))]);
    subscriptions.adopt(found);
    let names_with = |address: &str| subscriptions.names_with(&[address.parse().unwrap()].into());
    assert_eq!(names_with("10.0.0.1"), [key("web"), ServiceKey::new("other", "web")].into());
    assert_eq!(names_with("10.0.0.3"), [].into());
}
