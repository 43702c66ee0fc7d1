mod exports;
mod formats;
mod frames;
mod holders;
mod output;
mod surroundings;

use std::io::{BufReader, Cursor};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    flow::Columns,
    holders::Holders,
    plan::Seen,
    reader::Reader,
    report::Report,
    stream,
    subject::{Relation, Subject},
};
use cloudmap::Instance;

const RESOLVER: &str = include_str!("fixtures/resolver.jsonl");
const COREDNS: &str = include_str!("fixtures/coredns.log");
const CLOUDTRAIL: &str = include_str!("fixtures/cloudtrail.json");
const FLOW: &str = include_str!("fixtures/flow.log");
const FLOW_CUSTOM: &str = include_str!("fixtures/flow-custom.log");

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// The name of the fixtures, with two tasks.
fn orders() -> Subject {
    let mut subject = Subject::new("orders.internal");
    for task in ["192.0.2.10:8080", "[2001:db8::10]:8080"] {
        subject.add(task.parse().unwrap());
    }
    subject
}

fn read_with(subject: &Subject, holders: &Holders, columns: Option<&Columns>, files: &[(&str, &[u8])]) -> Seen {
    let mut seen = Seen::default();
    for (name, content) in files {
        let input = super::input::plain(Cursor::new(content.to_vec()));
        match input {
            Ok(input) => stream(input, name, Reader::new(subject, columns.cloned()), holders, &mut seen),
            Err(error) => seen.unread(name, error.to_string()),
        }
    }
    seen
}

/// What is said about `orders.internal` without a cluster and AWS.
fn read(content: &str) -> Seen {
    read_with(&orders(), &Holders::default(), None, &[("log", content.as_bytes())])
}

/// The users as JSON, and how they were seen.
fn users(seen: &Seen) -> Vec<(Value, Value)> {
    let (subject, holders) = (orders(), Holders::default());
    let report = Report { subject: &subject, seen, holders: &holders, left_out: &[] };
    let users = report.json()["users"].as_array().unwrap().clone();
    users.into_iter().map(|user| (user["who"].clone(), user["seenBy"].clone())).collect()
}

fn address(address: &str) -> Value {
    json!({"kind": "address", "address": address})
}

fn pod(name: &str, addresses: &[&str], started: &str, labels: &Value) -> k8s_openapi::api::core::v1::Pod {
    let ips: Vec<_> = addresses.iter().map(|ip| json!({"ip": ip})).collect();
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop", "name": name, "labels": labels,
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "checkout-7d9c5b8f4", "uid": "u", "controller": true}],
        },
        "spec": {"containers": [], "serviceAccountName": "checkout"},
        "status": {"phase": "Running", "podIPs": ips, "startTime": started},
    }))
    .unwrap()
}

fn instance(id: &str, attributes: &[(&str, &str)]) -> Instance {
    let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Instance { id: id.into(), attributes }
}

#[test]
fn a_dns_name_and_a_service_are_derived_from_each_other() {
    for (name, namespace, service, expected) in [
        ("orders.internal", "internal", "orders", true),
        ("Orders.Internal.", "internal", "orders", true),
        ("orders.internal", "Internal", "ORDERS", true),
        ("orders.internal", "internal", "carts", false),
        ("orders.internal", "corp.internal", "orders", false),
        // Namespaces and services may have dots.
        ("orders.eu.internal", "eu.internal", "orders", true),
        ("orders.eu.internal", "internal", "orders.eu", true),
        ("internal/orders", "internal", "orders", true),
        ("internal/orders.eu", "eu.internal", "orders", false),
    ] {
        assert_eq!(Subject::new(name).is(namespace, service), expected, "{name} {namespace}/{service}");
    }
    assert_eq!(Subject::new("internal/Orders").dns, "orders.internal");
    assert!(Subject::new("orders.eu.internal").may_be_in("internal"));
    assert!(!Subject::new("orders.eu.internal").may_be_in("ternal"));
    assert!(!Subject::new("internal/orders").may_be_in("eu.internal"));
}

#[test]
fn names_are_compared_without_case_and_last_dot_and_search_paths_are_no_users() {
    for (query, expected) in [
        ("orders.internal.", Relation::Same),
        ("oRDERS.INTERNAL", Relation::Same),
        ("orders.internal.cluster.local.", Relation::Suffixed),
        ("orders.internal.shop.svc.cluster.local", Relation::Suffixed),
        ("0123456789abcdef.orders.internal.", Relation::Below),
        ("reorders.internal.", Relation::Other),
        ("orders.internals.", Relation::Other),
        ("internal.", Relation::Other),
        ("", Relation::Other),
    ] {
        assert_eq!(orders().relation(query), expected, "{query}");
    }
}
