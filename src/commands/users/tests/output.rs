use std::{fs, process::ExitCode};

use clap::Parser as _;

use super::*;
use crate::users;
use cli::{Cli, Command};

fn world() -> Holders {
    let mut holders = Holders::default();
    let hash = || json!({"pod-template-hash": "7d9c5b8f4"});
    let addresses = ["192.0.2.30", "2001:db8::30"];
    holders.add_pod(None, &pod("checkout-7d9c5b8f4-x2x7k", &addresses, "2026-11-22T06:00:00Z", &hash()));
    holders.add_pod(None, &pod("checkout-7d9c5b8f4-late1", &["192.0.2.31"], "2026-11-23T12:00:00Z", &hash()));
    holders.add_pod(None, &pod("coredns-1", &["192.0.2.53"], "2026-11-01T06:00:00Z", &json!({"k8s-app": "kube-dns"})));
    let attributes =
        [("AWS_INSTANCE_IPV4", "192.0.2.90"), ("ECS_CLUSTER_NAME", "prod"), ("ECS_SERVICE_NAME", "billing")];
    holders.add_instance("internal", "billing", &instance("4f1c0d2b9e7a4c36", &attributes));
    holders
}

fn seen(holders: &Holders) -> Seen {
    let files = [
        ("logs/resolver.jsonl", RESOLVER.as_bytes()),
        ("logs/coredns.log", COREDNS.as_bytes()),
        ("logs/cloudtrail.json", CLOUDTRAIL.as_bytes()),
        ("logs/flow.log", FLOW.as_bytes()),
    ];
    read_with(&orders(), holders, None, &files)
}

#[test]
fn the_document_shows_a_report() {
    let holders = world();
    let (subject, seen) = (orders(), seen(&holders));
    let table = Report { subject: &subject, seen: &seen, holders: &holders, left_out: &[] }.table();
    let shown: String =
        table.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect();
    let document = fs::read_to_string(base::repository().join("docs/users.md")).unwrap_or_default();
    assert!(
        document.contains(&shown),
        "docs/users.md lacks:\n\n    $ cloudmap-mcs users orders.internal logs\n{shown}"
    );
}

#[test]
fn an_address_of_pods_in_two_clusters_says_why_it_has_no_name() {
    let mut holders = Holders::default();
    for cluster in ["a", "b"] {
        holders.add_pod(Some(cluster), &pod("checkout", &["192.0.2.30"], "2026-11-22T06:00:00Z", &json!({})));
    }
    let (subject, seen) = (orders(), seen(&holders));
    let table = Report { subject: &subject, seen: &seen, holders: &holders, left_out: &[] }.table();
    assert!(table.contains("in several clusters somebody has or had it"), "{table}");
}

#[test]
fn json_has_each_user_with_what_is_known_of_it() {
    let holders = world();
    let (subject, seen) = (orders(), seen(&holders));
    let left_out = ["Cloud Map: no credentials".to_owned()];
    let json = Report { subject: &subject, seen: &seen, holders: &holders, left_out: &left_out }.json();
    let users = json["users"].as_array().unwrap();
    let find = |kind: &str| users.iter().find(|user| user["who"]["kind"] == kind).unwrap();
    let pod = find("pod");
    let expected = json!({"kind": "pod", "namespace": "shop", "name": "checkout-7d9c5b8f4-x2x7k", "workload": "Deployment checkout", "serviceAccount": "checkout"});
    assert_eq!(
        (&pod["who"], &pod["certain"], &pod["first"]),
        (&expected, &json!(true), &json!("2026-11-23T08:00:05.02Z"))
    );
    assert_eq!(pod["addresses"], json!(["192.0.2.30", "2001:db8::30"]));
    let task = find("task");
    assert_eq!((&task["certain"], &task["seenBy"]), (&json!(false), &json!(["resolverQuery", "connection"])));
    // Its pod started later: it was somebody else.
    let unknown = users.iter().find(|user| user["who"]["address"] == "192.0.2.31").unwrap();
    assert_eq!(unknown["heldLaterBy"]["who"]["name"], "checkout-7d9c5b8f4-late1");
    assert_eq!((&json["leftOut"], &json["broken"]["records"]), (&json!(left_out), &json!(1)));
    assert_eq!(json["broken"]["first"][0]["line"], 6);
}

#[test]
fn the_notes_say_what_the_logs_cannot_show() {
    let notes = |content: &str, subject: &Subject| {
        let (holders, left_out) = (world(), []);
        let seen = read_with(subject, &holders, None, &[("x", content.as_bytes())]);
        Report { subject, seen: &seen, holders: &holders, left_out: &left_out }.table()
    };
    let resolver = notes(RESOLVER, &orders());
    for words in [
        "Pods ask through CoreDNS",
        "how often it asks",
        "No CloudTrail events were given",
        "No VPC flow logs were given",
    ] {
        assert!(resolver.contains(words), "{words}: {resolver}");
    }
    assert!(notes(COREDNS, &orders()).contains("orders.internal.cluster.local"));
    // Its plugin `log` is off, as it is at first: that is no proof that no pod asks.
    let started: Vec<_> = COREDNS.lines().filter(|line| !line.contains('"')).collect();
    let silent = notes(&format!("{RESOLVER}{}", started.join("\n")), &orders());
    for words in ["give its log", "The logs of CoreDNS have no query", "turn on its plugin `log`"] {
        assert!(silent.contains(words), "{words}: {silent}");
    }
    assert!(notes(FLOW, &Subject::new("orders.internal")).contains("give them with --address"));
    assert!(
        notes(FLOW, &Subject::new("orders.internal")).contains("without addresses of tasks, flow logs show nothing\n")
    );
}

async fn run(flags: &[&str]) -> ExitCode {
    let all = ["cloudmap-mcs", "users", "orders.internal", "--offline"].iter().chain(flags);
    match Cli::try_parse_from(all).unwrap().command {
        Command::Users(args) => users::users(*args).await.unwrap(),
        _ => panic!("not users"),
    }
}

#[tokio::test]
async fn unusable_input_ends_with_2_and_everything_else_with_0() {
    let folder = base::repository().join("src/commands/users/tests/fixtures");
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let all = folder.to_str().unwrap();
    let this = base::repository().join("Cargo.toml");
    for (flags, expected) in [
        (vec![all], ExitCode::SUCCESS),
        (vec![&*file("flow.log")], ExitCode::SUCCESS),
        (vec!["--output", "json", &*file("resolver.jsonl")], ExitCode::SUCCESS),
        (vec![&*file("flow.log"), &*file("nothing")], ExitCode::from(2)),
        (vec![this.to_str().unwrap()], ExitCode::from(2)),
        (vec!["--flow-format", "version", &*file("flow.log")], ExitCode::from(2)),
    ] {
        assert_eq!(run(&flags).await, expected, "{flags:?}");
    }
}
