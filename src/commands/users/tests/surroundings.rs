//! What is read of a cluster and of Cloud Map, and what is left out of it.

use std::time::Duration;

use super::*;
use crate::{
    asking::Progress,
    users::{
        observe::{self, Surroundings},
        record::How,
    },
};
use cloudmap::{
    ErrorKind, NamespaceKind, Operation,
    fake::{Fake, Fault},
};
use cluster::fake_api::FakeApi;

#[tokio::test(start_paused = true)]
async fn pods_and_nodes_are_listed_page_by_page_and_a_refusal_is_said() {
    let api = FakeApi::default();
    let list = |pod: Value, token: &str| json!({"kind": "List", "apiVersion": "v1", "metadata": {"continue": token}, "items": [pod]});
    api.prepare(200, list(json!(pod("a", &["192.0.2.30"], "2026-11-23T06:00:00Z", &json!({}))), "next"));
    api.prepare(200, list(json!(pod("b", &["192.0.2.31"], "2026-11-23T06:00:00Z", &json!({}))), ""));
    api.refuse(403, "Forbidden", "you may not list nodes");
    let mut seen = Surroundings::default();
    observe::cluster(&api.client(), Some("prod"), &mut seen).await;
    for address in ["192.0.2.30", "192.0.2.31"] {
        let held = seen.holders.at(address.parse().unwrap(), Some(at("2026-11-23T08:00:00Z")), How::ResolverQuery);
        assert!(matches!(held, super::super::holders::Held::By(_)), "{held:?}");
    }
    assert_eq!(seen.left_out, ["Nodes of prod: you may not list nodes"]);
    assert!(api.requests().iter().all(|request| request.method == "GET"));
}

#[tokio::test(start_paused = true)]
async fn cloud_map_gives_the_tasks_of_the_name_and_others_of_its_namespace() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let namespace = registry.add_namespace("internal", NamespaceKind::DnsPrivate);
        registry.add_namespace("other", NamespaceKind::Http);
        let orders = registry.add_service(&namespace, "orders", "x", "");
        let billing = registry.add_service(&namespace, "billing", "x", "");
        let task = |address: &str| {
            [("AWS_INSTANCE_IPV4", address), ("AWS_INSTANCE_PORT", "8080"), ("ECS_CLUSTER_NAME", "c")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into()
        };
        registry.instances.insert((orders.clone(), "t1".into()), task("192.0.2.10"));
        let mut pod: cloudmap::Attributes = task("192.0.2.11");
        pod.insert("CLOUDMAP_MCS_CLUSTER_UID".to_owned(), "u".to_owned());
        registry.instances.insert((orders, "p1".into()), pod);
        registry.instances.insert((billing, "t2".into()), task("192.0.2.90"));
    }
    let mut seen = Surroundings::default();
    let mut subject = Subject::new("orders.internal");
    observe::registry(&fake, &mut subject, &mut seen, &Progress::default()).await;
    assert_eq!(seen.left_out, Vec::<String>::new());
    assert_eq!(subject.tasks.keys().map(ToString::to_string).collect::<Vec<_>>(), ["192.0.2.10"]);
    assert_eq!(subject.found.len(), 1);
    let held = seen.holders.at("192.0.2.90".parse().unwrap(), Some(at("2026-11-23T08:00:00Z")), How::ResolverQuery);
    assert!(format!("{held:?}").contains("t2"), "{held:?}");

    let mut seen = Surroundings::default();
    observe::registry(&fake, &mut Subject::new("internal/carts"), &mut seen, &Progress::default()).await;
    assert!(seen.left_out[0].contains("no such service"), "{:?}", seen.left_out);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_does_not_answer_is_not_asked_for_each_service_and_not_taken_for_one_without_the_name() {
    use Operation::{DiscoverInstances, ListServices};
    // The faults, the most calls of DiscoverInstances that are made, and how many lines say so.
    for (operation, kind, faults, most, lines) in [
        (ListServices, ErrorKind::AccessDenied, 1, 0, 1),
        (DiscoverInstances, ErrorKind::Unknown, 100, 16, 1),
        // The next one may be allowed.
        (DiscoverInstances, ErrorKind::AccessDenied, 100, 100, 100),
    ] {
        let fake = Fake::new();
        let internal = fake.registry().add_namespace("internal", NamespaceKind::DnsPrivate);
        for number in 0..99 {
            fake.registry().add_service(&internal, &format!("other-{number}"), "x", "");
        }
        fake.registry().add_service(&internal, "orders", "x", "");
        for _ in 0..faults {
            fake.fault(operation, Fault::Refused(kind.clone()));
        }
        let (mut seen, mut subject) = (Surroundings::default(), Subject::new("orders.internal"));
        observe::registry(&fake, &mut subject, &mut seen, &Progress::default()).await;
        let asked = fake.registry().count(DiscoverInstances);
        assert!(asked <= most, "{operation:?} {kind:?}: {asked}");
        assert_eq!(seen.left_out.len(), lines, "{:?}", seen.left_out);
        assert!(!seen.left_out.iter().any(|why| why.contains("no such service")), "{:?}", seen.left_out);
    }
}

/// Each of hundreds of services may take half a minute where AWS throttles.
#[tokio::test(start_paused = true)]
async fn a_slow_registry_is_left_after_some_minutes_and_what_was_read_counts() {
    let fake = Fake::new().with_call(Duration::from_secs(20));
    let internal = fake.registry().add_namespace("internal", NamespaceKind::DnsPrivate);
    for number in 0..500 {
        fake.registry().add_service(&internal, &format!("other-{number}"), "x", "");
    }
    fake.registry().add_service(&internal, "orders", "x", "");
    let (mut seen, mut subject) = (Surroundings::default(), Subject::new("orders.internal"));
    let begun = tokio::time::Instant::now();
    observe::registry(&fake, &mut subject, &mut seen, &Progress::default()).await;
    assert_eq!(begun.elapsed(), Duration::from_mins(3));
    assert_eq!(subject.found.len(), 1);
    assert!(seen.left_out.iter().any(|why| why.contains("not read within 180 s")), "{:?}", seen.left_out);
}
