//! Corefiles of the kinds that people have, each with what is said of it and what becomes of it. `integration/tests/corefile.rs`
//! gives the same files to a real CoreDNS.

use std::{fs, path::PathBuf};

use super::{
    corefile::Corefile,
    edit::{Edited, mark},
    faults, offline,
    plan::{Action, Finding},
};

const ZONE: &str = "clusterset.local";

/// What is right for a file.
enum Right {
    /// So many lines get the mark, and what else is said has these parts.
    Added(usize, &'static [&'static str]),
    /// Nothing is missing, and this is said.
    There(&'static [&'static str]),
    /// Nothing is written; what is wrong has this part, and its remedy that one.
    Refused(&'static str, &'static str),
}

use Right::{Added, Refused, There};

const TABLE: &[(&str, Right)] = &[
    ("helm-ports", Added(4, &[])),
    ("zone-by-hand", Added(2, &[])),
    (
        "stub-of-all",
        Added(
            4,
            &[
                "missing  the Corefile, line 7: the server block of svc.clusterset.local answers for all names of Services",
            ],
        ),
    ),
    (
        "stub-of-one-namespace",
        Added(
            2,
            &[
                "warning  the Corefile, line 6: another server block answers for the names of the namespace billing: they go to 10.200.0.10 10.200.0.11",
            ],
        ),
    ),
    ("byte-order-mark", Added(4, &[])),
    (
        "byte-order-mark-inside",
        Refused("line 4: there is an invisible character (U+FEFF) in `corp.example`", "type it again"),
    ),
    (
        "variable-with-default",
        Refused("line 1: `{$DNS_PORT:53}` is empty", "write `.:53`, or `.:{$DNS_PORT}` and set DNS_PORT"),
    ),
    ("variables", Added(4, &[])),
    ("windows", Added(4, &[])),
    (
        "rewrite-suffix",
        Added(
            2,
            &[
                "missing  the Corefile, line 2: `rewrite name suffix .clusterset.local .cluster.local` asks another zone: my-service.my-namespace.svc.cluster.local",
            ],
        ),
    ),
    ("rewrite-regex", Added(2, &["missing  the Corefile, line 2: `rewrite name regex"])),
    (
        "rewrite-one-name",
        Added(2, &["warning  the Corefile, line 2: `rewrite name exact pay.shop.svc.clusterset.local"]),
    ),
    (
        "options",
        Added(
            2,
            &[
                "warning  the Corefile, line 3: `namespaces shop pay`: names of all other namespaces",
                "warning  the Corefile, line 4: `noendpoints`",
                "warning  the Corefile, line 5: `endpoint_pod_names`",
            ],
        ),
    ),
    (
        "namespace-labels",
        Added(
            2,
            &[
                "missing  the Corefile, line 3: `namespace_labels dns=public`",
                "warning  the Corefile, line 4: `labels tier=web`",
            ],
        ),
    ),
    ("snippets", Added(4, &[])),
    ("twice", Refused("line 7: `Corp.Example.` is an address already, on line 4", "remove one of the two")),
    ("twice-in-a-snippet", Refused("line 7: `cache` is in this server block already, by line 2", "remove one")),
    ("reverse-range-twice", Refused("line 7: `10.0.0.0/8` is an address already, on line 1", "remove one")),
    (
        "hosts-and-template",
        Added(
            2,
            &[
                "missing  the Corefile, line 2: `hosts` answers for clusterset.local",
                "add clusterset.local to `fallthrough` in line 4",
                "missing  the Corefile, line 6: `template`",
            ],
        ),
    ),
    (
        "answered-behind",
        Added(4, &["warning  the Corefile, line 5: `forward` has clusterset.local, but `kubernetes` answers first"]),
    ),
    ("quotes", Added(4, &[])),
    ("addresses-on-lines", Added(3, &[])),
    ("unknown-plugin", Added(2, &["unknown  the Corefile, line 3: stock CoreDNS has no plugin `gathersrv`"])),
    ("node-local-capitals", Added(1, &[])),
    ("node-local-transport", Added(1, &[])),
    ("node-local-snippet", Added(1, &[])),
    (
        "node-local-stub",
        Added(
            1,
            &[
                "warning  the Corefile of NodeLocal DNSCache, line 9: another server block answers for the names of the namespace shop: they go to 10.200.0.10",
            ],
        ),
    ),
    (
        "node-local-elsewhere",
        There(&[
            "missing  the Corefile of NodeLocal DNSCache, line 5: clusterset.local does not go where cluster.local goes",
            "write `forward . 172.20.0.10`",
            "keeps answers of clusterset.local for up to 60 s",
        ]),
    ),
    (
        "node-local-all",
        There(&[
            "warning  the Corefile of NodeLocal DNSCache, line 8: `cache` keeps answers of clusterset.local for up to 30 s",
        ]),
    ),
    ("node-local-twice", Refused("line 5: `Cluster.Local:53` is an address already, on line 1", "remove one")),
];

fn folder() -> PathBuf {
    base::repository().join("src/commands/coredns/fixtures")
}

fn read(name: &str) -> String {
    fs::read_to_string(folder().join(format!("{name}.corefile"))).unwrap()
}

fn edited(action: Action, text: &str) -> Result<Edited, String> {
    offline::edited(action, text, ZONE).map_err(|refusal| refusal.to_string())
}

fn said(text: &str) -> String {
    let findings: Vec<_> = offline::check(text, ZONE).iter().map(ToString::to_string).collect();
    findings.join("\n")
}

#[test]
fn every_corefile_of_the_field_comes_out_right() {
    let files = fs::read_dir(folder()).unwrap().count();
    assert_eq!(files, TABLE.len(), "every file is in the table");
    for (name, right) in TABLE {
        let before = read(name);
        let said = said(&before);
        match (right, edited(Action::Apply, &before)) {
            (Added(marks, parts), Ok(after)) => {
                assert_eq!(after.text.matches(&mark(ZONE)).count(), *marks, "{name}: {}", after.text);
                for part in *parts {
                    assert!(said.contains(part), "{name} lacks {part:?}: {said}");
                }
                let others = said.lines().filter(|line| {
                    let known = parts.iter().any(|part| line.contains(part)) || line.starts_with("         ->");
                    !known
                        && (!line.starts_with("missing")
                            || !line.contains("has no")
                                && !line.contains("does not answer")
                                && !line.contains("only cluster.local"))
                });
                assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new(), "{name}");
            }
            (There(parts), Ok(after)) => {
                assert_eq!(after.changes, Vec::<String>::new(), "{name}");
                for part in *parts {
                    assert!(said.contains(part), "{name} lacks {part:?}: {said}");
                }
            }
            (Refused(what, remedy), Err(refusal)) => {
                assert!(refusal.contains(what) && refusal.contains(remedy), "{name}: {refusal}");
                assert!(said.contains(what) && said.contains(remedy), "{name}: {said}");
            }
            (_, result) => panic!("{name}: {result:?}"),
        }
    }
}

#[test]
fn what_is_applied_twice_is_the_same_and_what_is_removed_is_as_before() {
    for (name, right) in TABLE {
        let before = read(name);
        let Ok(after) = edited(Action::Apply, &before) else { continue };
        assert_eq!(edited(Action::Apply, &after.text).unwrap().changes, Vec::<String>::new(), "{name}");
        assert_eq!(faults::faults(&Corefile::parse(&after.text).unwrap()), Vec::new(), "{name}");
        let removed = edited(Action::Remove, &after.text).unwrap();
        assert_eq!(removed.text, before, "{name}");
        if matches!(right, Added(..)) {
            assert_ne!(after.text, before, "{name}");
        }
    }
}

#[test]
fn blocks_that_were_added_go_also_if_they_are_the_first_ones_of_the_file() {
    let block = "clusterset.local:53 { # cloudmap-mcs added clusterset.local\n    bind 169.254.20.10\n    forward . 172.20.0.10\n}\n";
    let others = ".:53 {\n    bind 169.254.20.10\n    forward . /etc/resolv.conf\n}\n";
    for count in 1..4 {
        let before = block.repeat(count) + others;
        assert_eq!(edited(Action::Remove, &before).unwrap().text.trim_start(), others, "{count}");
    }
}

#[test]
fn nothing_is_said_of_a_corefile_that_has_all() {
    let text = edited(Action::Apply, super::tests::EKS).unwrap().text;
    assert_eq!(offline::check(&text, ZONE), [Finding::There("the Corefile has clusterset.local".to_owned())]);
}

#[test]
fn a_copied_server_block_has_its_snippets_written_out_with_a_cache_of_its_own() {
    let after = edited(Action::Apply, &read("node-local-snippet")).unwrap().text;
    let copy = [
        "clusterset.local {@",
        "    errors",
        "    bind 169.254.20.10",
        "    cache {",
        "        success 9984 5",
        "        denial 9984 5",
        "    }",
        "    forward . __PILLAR__CLUSTER__DNS__ {",
        "        prefer_udp",
        "    }",
        "}\n",
    ];
    let copy = copy.join("\n").replace('@', &mark(ZONE));
    assert!(after.contains(&copy), "{after}");
    for (name, address) in
        [("node-local-capitals", "\nclusterset.local:53 {"), ("node-local-transport", "\ndns://clusterset.local:053 {")]
    {
        let after = edited(Action::Apply, &read(name)).unwrap().text;
        assert!(after.contains(address), "{after}");
    }
}

#[test]
fn what_coredns_does_not_load_is_known() {
    let said = |text: &str| {
        let corefile = Corefile::parse(text).unwrap();
        faults::faults(&corefile).into_iter().map(|fault| fault.what).collect::<Vec<_>>()
    };
    // What a real CoreDNS 1.14 refuses, and beside it what it loads.
    for (text, expected) in [
        (".:53 {\n  import later\n}\n(later) {\n  whoami\n}\n", "line 2: the snippet (later) is below, on line 4"),
        ("(one) {\n  whoami\n}\n(one) {\n  errors\n}\n", "line 4: the snippet (one) is there already, on line 1"),
        ("(one) {\n  import one\n}\n. {\n  import one\n}\n", "line 2: the snippet (one) imports itself"),
        (".:53 {\n  import a b\n}\n", "line 2: `import` has 2 arguments"),
        (
            "a.example:53 b.example,\nA.Example.:053 {\n  whoami\n}\n",
            "line 2: `A.Example.:053` is an address already, on line 1",
        ),
        (". {\n  bind 127.0.0.1\n}\n.:53 {\n  whoami\n}\n", "line 4: `.:53` is an address already, on line 1"),
        (".: {\n  whoami\n}\n", "line 1: the address `.:` ends in a colon"),
        (". {\n  kubernetes in-addr.arpa 10.0.0.0/8\n}\n", "line 2: `kubernetes` has reverse zones only"),
        (
            ". {\n  kubernetes a {\n    multicluster b\n  }\n}\n",
            "line 3: `multicluster` has b, which `kubernetes` does not have",
        ),
        (
            ". {\n  kubernetes a {\n    namespaces x\n    namespace_labels y\n  }\n}\n",
            "line 2: `kubernetes` has `namespaces` and `namespace_labels`",
        ),
    ] {
        assert!(said(text).first().is_some_and(|fault| fault.starts_with(expected)), "{text}: {:?}", said(text));
    }
    for text in [
        ". {\n  bind 127.0.0.1\n}\n.:53 {\n  bind 127.0.0.2\n}\n",
        ". {\n  view a {\n    expr true\n  }\n}\n. {\n  whoami\n}\n",
        ".:53 {\n  whoami\n}\n.:1053 {\n  whoami\n}\ntls://. {\n  tls a b\n}\n",
        ". { errors\n  cache { }\n  log\n  log a.example\n}\n",
        ".:{$PORT} {\n  whoami\n}\n.:{$OTHER} {\n  whoami\n}\n",
    ] {
        assert_eq!(said(text), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn values_of_the_add_on_need_no_cluster_if_somebody_has_the_corefile() {
    let with = |values: &str, default: Option<&str>, news: &mut Vec<u8>| {
        offline::addon_values(Action::Apply, values, default, ZONE, news).map_err(|error| format!("{error:#}"))
    };
    let mut news = Vec::new();
    let own = serde_json::json!({"corefile": super::tests::EKS, "replicaCount": 3}).to_string();
    let expected = edited(Action::Apply, super::tests::EKS).unwrap().text;
    for (values, default) in [(&*own, None), ("replicaCount: 3", Some(super::tests::EKS))] {
        let values: serde_json::Value = serde_json::from_str(&with(values, default, &mut news).unwrap()).unwrap();
        assert_eq!(values, serde_json::json!({"corefile": expected, "replicaCount": 3}));
    }
    let said = String::from_utf8(news).unwrap();
    assert!(
        said.contains("+      multicluster clusterset.local") && said.contains("The cluster was not asked"),
        "{said}"
    );
    let refused = with("None", None, &mut Vec::new()).unwrap_err();
    assert!(refused.contains("the values have no `corefile`") && refused.contains("--corefile"), "{refused}");
}

#[test]
fn a_corefile_from_a_file_is_printed_with_the_changes() {
    let mut news = Vec::new();
    let printed = offline::edit(Action::Apply, &read("stub-of-one-namespace"), ZONE, &mut news).unwrap();
    assert_eq!(printed, edited(Action::Apply, &read("stub-of-one-namespace")).unwrap().text);
    let said = String::from_utf8(news).unwrap();
    assert!(said.starts_with("warning  the Corefile, line 6: another server block"), "{said}");
    let mut news = Vec::new();
    let removed = offline::edit(Action::Remove, &read("zone-by-hand"), ZONE, &mut news).unwrap();
    let said = String::from_utf8(news).unwrap();
    assert!(
        removed == read("zone-by-hand") && said.contains("kept     line 3: `kubernetes` answers for clusterset.local"),
        "{said}"
    );
}
