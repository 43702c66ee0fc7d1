use super::*;
use crate::users::{
    holders::{Held, Who},
    record::How,
};

fn named(held: &Held<'_>) -> String {
    let of = |who: &Who| match who {
        Who::Pod { name, .. } | Who::Node { name, .. } | Who::ClusterDns { name, .. } => name.clone(),
        Who::Task { id, .. } | Who::Ec2 { id } | Who::Instance { id, .. } => id.clone(),
        who => format!("{who:?}"),
    };
    match held {
        Held::By(who) => of(who),
        Held::Perhaps(who) => format!("{}?", of(who)),
        Held::Later(who, since) => format!("{} since {since}", of(who)),
        Held::Unknown => "unknown".to_owned(),
    }
}

#[test]
fn an_address_belongs_to_who_held_it_then() {
    let mut holders = Holders::default();
    let mut done = pod("done", &["192.0.2.30"], "2026-11-23T06:00:00Z", &json!({}));
    let status = done.status.as_mut().unwrap();
    status.phase = Some("Succeeded".to_owned());
    status.container_statuses = serde_json::from_value(json!([{
        "name": "a", "image": "", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 0, "finishedAt": "2026-11-23T07:00:00Z"}},
    }]))
    .unwrap();
    holders.add_pod(None, &done);
    holders.add_pod(None, &pod("now", &["192.0.2.30", "2001:db8::30"], "2026-11-23T08:00:00Z", &json!({})));
    holders.add_instance(
        "internal",
        "orders",
        &instance("task", &[("AWS_INSTANCE_IPV4", "192.0.2.30"), ("ECS_CLUSTER_NAME", "c")]),
    );
    holders.add_instance(
        "internal",
        "orders",
        &instance("task2", &[("AWS_INSTANCE_IPV6", "2001:db8::31"), ("ECS_CLUSTER_NAME", "c")]),
    );
    for (address, then, expected) in [
        ("192.0.2.30", Some("2026-11-23T05:59:59Z"), "now since 2026-11-23T08:00:00Z"),
        ("192.0.2.30", Some("2026-11-23T06:30:00Z"), "done"),
        ("192.0.2.30", Some("2026-11-23T07:30:00Z"), "now since 2026-11-23T08:00:00Z"),
        ("192.0.2.30", Some("2026-11-23T08:00:00Z"), "now"),
        ("192.0.2.30", None, "now?"),
        ("::ffff:192.0.2.30", None, "now?"),
        ("2001:db8::30", Some("2026-11-24T08:00:00Z"), "now"),
        ("2001:db8::31", Some("2026-11-24T08:00:00Z"), "task2?"),
        ("192.0.2.99", Some("2026-11-24T08:00:00Z"), "unknown"),
        ("192.0.2.99", None, "unknown"),
    ] {
        let held = holders.at(address.parse().unwrap(), then.map(at), How::ResolverQuery);
        assert_eq!(named(&held), expected, "{address} {then:?}");
    }
}

/// Clusters in VPCs of their own may have the same ranges.
#[test]
fn an_address_that_pods_of_two_clusters_hold_at_once_tells_nobody() {
    let mut holders = Holders::default();
    for (cluster, name, start) in [("a", "early", "2026-11-23T06:00:00Z"), ("b", "late", "2026-11-23T08:00:00Z")] {
        holders.add_pod(Some(cluster), &pod(name, &["192.0.2.30"], start, &json!({})));
    }
    let address = "192.0.2.30".parse().unwrap();
    for (then, expected) in
        [(Some("2026-11-23T07:00:00Z"), "early"), (Some("2026-11-23T09:00:00Z"), "unknown"), (None, "unknown")]
    {
        assert_eq!(named(&holders.at(address, then.map(at), How::ResolverQuery)), expected, "{then:?}");
    }
}

#[test]
fn pods_in_the_network_of_a_node_are_the_node_and_dns_pods_are_dns() {
    let mut holders = Holders::default();
    let mut host = pod("host", &["192.0.2.1"], "2026-11-23T06:00:00Z", &json!({}));
    host.spec.as_mut().unwrap().host_network = Some(true);
    holders.add_pod(None, &host);
    let node = json!({
        "metadata": {"name": "node-1", "creationTimestamp": "2026-11-01T00:00:00Z"}, "spec": {"providerID": "aws:///eu-central-1a/i-0abc"},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "node-1"}]},
    });
    holders.add_node(None, &serde_json::from_value(node).unwrap());
    holders.add_pod(None, &pod("coredns-1", &["192.0.2.53"], "2026-11-23T06:00:00Z", &json!({"k8s-app": "kube-dns"})));
    let mut local =
        pod("node-local-dns-1", &["192.0.2.2"], "2026-11-23T06:00:00Z", &json!({"k8s-app": "node-local-dns"}));
    local.spec.as_mut().unwrap().host_network = Some(true);
    holders.add_pod(None, &local);
    let node = json!({"metadata": {"name": "node-2", "creationTimestamp": "2026-11-01T00:00:00Z"}, "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.2"}]}});
    holders.add_node(None, &serde_json::from_value(node).unwrap());
    let then = Some(at("2026-11-23T08:00:00Z"));
    let named = |address: &str, how: How| named(&holders.at(address.parse().unwrap(), then, how));
    assert_eq!(named("192.0.2.1", How::ResolverQuery), "node-1");
    assert_eq!(named("192.0.2.53", How::ResolverQuery), "CoreDNS");
    // NodeLocal DNSCache asks for pods, and does not connect for them.
    assert_eq!(named("192.0.2.2", How::ResolverQuery), "NodeLocal DNSCache");
    for how in [How::Connection, How::RefusedConnection] {
        assert_eq!(named("192.0.2.2", how), "node-2");
    }
    assert_eq!(holders.nodes.get("i-0abc").map(String::as_str), Some("node-1"));
}

#[test]
fn a_pod_says_its_workload() {
    for (labels, kind, owner, expected) in [
        (json!({"pod-template-hash": "7d9c5b8f4"}), "ReplicaSet", "web-7d9c5b8f4", "Deployment web"),
        (json!({}), "ReplicaSet", "web-7d9c5b8f4", "ReplicaSet web-7d9c5b8f4"),
        (json!({"pod-template-hash": "x"}), "StatefulSet", "db", "StatefulSet db"),
    ] {
        let mut pod = pod("a", &["192.0.2.30"], "2026-11-23T06:00:00Z", &labels);
        let owners = pod.metadata.owner_references.as_mut().unwrap();
        (owners[0].kind, owners[0].name) = (kind.to_owned(), owner.to_owned());
        let mut holders = Holders::default();
        holders.add_pod(None, &pod);
        let Held::Perhaps(Who::Pod { workload, service_account, .. }) =
            holders.at("192.0.2.30".parse().unwrap(), None, How::ResolverQuery)
        else {
            panic!("no pod")
        };
        assert_eq!((workload.as_deref(), service_account.as_deref()), (Some(expected), Some("checkout")));
    }
}
