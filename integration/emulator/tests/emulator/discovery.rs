//! `DiscoverInstances` and `DiscoverInstancesRevision`.

use std::collections::BTreeSet;

use super::*;

#[tokio::test]
async fn without_max_results_a_random_hundred_are_given() {
    // "If you don't specify a value for MaxResults, Cloud Map returns up to 100 instances."
    let f = Fixture::start().await;
    for n in 0..150 {
        f.register(&format!("i-{n:03}"), "v").await;
    }
    let some = || f.client.discover_instances().namespace_name("apps").service_name("web");
    let ids = |found: aws_sdk_servicediscovery::operation::discover_instances::DiscoverInstancesOutput| {
        found.instances().iter().map(|found| found.instance_id().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (first, second) = (ids(some().send().await.unwrap()), ids(some().send().await.unwrap()));
    assert_eq!(first.len(), 100);
    assert_eq!(first.iter().collect::<BTreeSet<_>>().len(), 100);
    // "DiscoverInstances returns a randomized list": two equal orders are next to impossible.
    assert_ne!(first, second);
    assert_eq!(ids(some().max_results(1000).send().await.unwrap()).len(), 150);
    assert_eq!(ids(some().max_results(7).send().await.unwrap()).len(), 7);
    // DiscoverMaxResults: 1 to 1,000.
    for wrong in [0, 1001] {
        assert_eq!(code(some().max_results(wrong).send().await), "InvalidInput");
    }
}

#[tokio::test]
async fn parameters_filter_by_attributes() {
    let f = Fixture::start().await;
    for (id, version, zone) in [("a", "v1", "1a"), ("b", "v1", "1b"), ("c", "v2", "1a")] {
        let request = f.client.register_instance().service_id(&f.service).instance_id(id);
        request.attributes("version", version).attributes("zone", zone).send().await.unwrap();
    }
    let find = async |query: &[(&str, &str)], optional: &[(&str, &str)]| {
        let mut request = f.client.discover_instances().namespace_name("apps").service_name("web");
        for (key, value) in query {
            request = request.query_parameters(*key, *value);
        }
        for (key, value) in optional {
            request = request.optional_parameters(*key, *value);
        }
        let mut ids: Vec<_> =
            request.send().await.unwrap().instances().iter().map(|i| i.instance_id().unwrap().to_owned()).collect();
        ids.sort_unstable();
        ids.join("")
    };
    // "Only instances that match all the specified key-value pairs are returned."
    assert_eq!(find(&[("version", "v1")], &[]).await, "ab");
    assert_eq!(find(&[("version", "v1"), ("zone", "1a")], &[]).await, "a");
    assert_eq!(find(&[("version", "v3")], &[]).await, "");
    // "If there are instances that match both the filters [...], all of these instances are returned."
    assert_eq!(find(&[("version", "v1")], &[("zone", "1b")]).await, "b");
    // "Otherwise, the filters are ignored, and only instances that match [...] QueryParameters [...] are returned."
    assert_eq!(find(&[("version", "v2")], &[("zone", "1b")]).await, "c");
    assert_eq!(find(&[], &[("zone", "1a")]).await, "ac");
}

#[tokio::test]
async fn the_revision_moves_with_registrations_and_never_back() {
    // "If a new instance is registered or deregistered, the InstancesRevision updates."
    let f = Fixture::start().await;
    let revision = async || {
        let request = f.client.discover_instances_revision().namespace_name("apps").service_name("web");
        request.send().await.unwrap().instances_revision().unwrap()
    };
    let mut seen = vec![revision().await];
    for id in ["a", "b"] {
        f.register(id, "v").await;
        seen.push(revision().await);
    }
    for id in ["a", "b"] {
        f.client.deregister_instance().service_id(&f.service).instance_id(id).send().await.unwrap();
        seen.push(revision().await);
    }
    f.register("a", "v").await;
    seen.push(revision().await);
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]), "{seen:?}");
    let discovered = f.client.discover_instances().namespace_name("apps").service_name("web").send().await.unwrap();
    assert_eq!(discovered.instances_revision(), seen.last().copied());
    // An instance that is registered again with other attributes is neither new nor deregistered.
    f.register("a", "other").await;
    assert_eq!(revision().await, *seen.last().unwrap());
}

#[tokio::test]
async fn names_that_do_not_exist_are_told_apart() {
    let f = Fixture::start().await;
    let discover = |namespace: &str, service: &str| {
        f.client.discover_instances().namespace_name(namespace).service_name(service).send()
    };
    assert_eq!(code(discover("none", "web").await), "NamespaceNotFound");
    assert_eq!(code(discover("apps", "none").await), "ServiceNotFound");
    assert_eq!(code(discover("apps", "a b").await), "InvalidInput");
    let revision = f.client.discover_instances_revision().namespace_name("apps").service_name("none").send().await;
    assert_eq!(code(revision), "ServiceNotFound");
    // "The ID of the Amazon Web Services account that owns the namespace."
    let of = |owner: &str| {
        f.client.discover_instances().namespace_name("apps").service_name("web").owner_account(owner).send()
    };
    of("123456789012").await.unwrap();
    assert_eq!(code(of("210987654321").await), "NamespaceNotFound");
}

#[tokio::test]
async fn a_thousand_instances_come_in_one_answer() {
    // DiscoverMaxResults and the quota of instances per service are both 1,000.
    let f = Fixture::start().await;
    for n in 0..1000 {
        f.register(&format!("i-{n}"), &"v".repeat(200)).await;
    }
    assert_eq!(f.discover().await.len(), 1000);
    assert_eq!(f.emulator.control().counters().calls("DiscoverInstances"), 1);
}
