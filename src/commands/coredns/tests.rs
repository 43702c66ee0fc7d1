//! Corefiles as they are found in clusters, and what becomes of them.

use proptest::prelude::*;

use super::{
    diff,
    edit::{self, Edited, mark},
    node_local,
    syntax::Refusal,
};

const ZONE: &str = "clusterset.local";

/// The default of EKS's add-on, of kubeadm, and what k3s writes.
pub(super) const EKS: &str = "\
.:53 {
    errors
    health {
        lameduck 5s
      }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
      pods insecure
      fallthrough in-addr.arpa ip6.arpa
    }
    prometheus :9153
    forward . /etc/resolv.conf
    cache 30
    loop
    reload
    loadbalance
}
";
const KUBEADM: &str = "\
.:53 {
    errors
    health {
       lameduck 5s
    }
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
       pods insecure
       fallthrough in-addr.arpa ip6.arpa
       ttl 30
    }
    prometheus :9153
    forward . /etc/resolv.conf {
       max_concurrent 1000
    }
    cache 30 {
       disable success cluster.local
       disable denial cluster.local
    }
    loop
    reload
    loadbalance
}
";
const K3S: &str = "\
.:53 {
    errors
    health
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa {
      pods insecure
      fallthrough in-addr.arpa ip6.arpa
    }
    hosts /etc/coredns/NodeHosts {
      ttl 60
      reload 15s
      fallthrough
    }
    prometheus :9153
    cache 30
    loop
    reload
    loadbalance
    import /etc/coredns/custom/*.override
    forward . /etc/resolv.conf
}
import /etc/coredns/custom/*.server
";

/// With the mark wherever `@` is, which keeps the texts below short.
fn marked(text: &str) -> String {
    text.replace('@', &mark(ZONE))
}

fn add(text: &str) -> String {
    edit::add(text, ZONE).unwrap_or_else(|refusal| panic!("{refusal}: {text}")).text
}

fn remove(text: &str) -> String {
    edit::remove(text, ZONE).unwrap_or_else(|refusal| panic!("{refusal}: {text}")).text
}

/// The lines that change, without those around them.
fn changed(before: &str, after: &str) -> Vec<String> {
    let diff = diff::unified("it", before, after);
    diff.lines().skip(2).filter(|line| line.starts_with(['+', '-'])).map(str::to_owned).collect()
}

#[test]
fn the_default_corefiles_get_the_zone_and_lose_nothing() {
    let kubernetes = [
        "-    kubernetes cluster.local in-addr.arpa ip6.arpa {",
        "+    kubernetes cluster.local clusterset.local in-addr.arpa ip6.arpa {@",
    ];
    let cache = [
        "-    cache 30",
        "+    cache 30 {",
        "+        disable success clusterset.local@",
        "+        disable denial clusterset.local@",
        "+    }",
    ];
    let eks = [&kubernetes[..], &["+      multicluster clusterset.local@"], &cache].concat();
    let expected = |lines: Vec<&str>| lines.into_iter().map(marked).collect::<Vec<_>>();
    assert_eq!(changed(EKS, &add(EKS)), expected(eks.clone()));
    assert_eq!(changed(K3S, &add(K3S)), expected(eks));
    let kubeadm = [
        "+       multicluster clusterset.local@",
        "-       disable success cluster.local",
        "-       disable denial cluster.local",
        "+       disable success cluster.local clusterset.local@",
        "+       disable denial cluster.local clusterset.local@",
    ];
    assert_eq!(changed(KUBEADM, &add(KUBEADM)), expected([&kubernetes[..], &kubeadm].concat()));
}

#[test]
fn every_change_is_said_with_its_line() {
    let Edited { changes, .. } = edit::add(EKS, ZONE).unwrap();
    let expected = [
        "line 7: `kubernetes` does not answer for clusterset.local",
        "line 7: `kubernetes` has no option `multicluster clusterset.local`",
        "line 13: `cache` has no `disable success clusterset.local`",
        "line 13: `cache` has no `disable denial clusterset.local`",
    ];
    assert_eq!(changes, expected);
    assert_eq!(edit::remove(&add(EKS), ZONE).unwrap().changes.len(), 4);
    assert!(edit::reloads(EKS) && !edit::reloads(&EKS.replace("    reload\n", "")));
}

#[test]
fn what_is_there_is_not_added_again() {
    for there in [
        add(EKS),
        add(KUBEADM),
        // The whole zone in a server block of its own.
        format!("{EKS}clusterset.local:53 {{\n    kubernetes clusterset.local {{\n        multicluster clusterset.local\n    }}\n}}\n"),
        // The zones are the addresses of the server block.
        "cluster.local ClusterSet.local. {\n  kubernetes {\n    multicluster clusterset.local\n  }\n}\n".to_owned(),
        // Other caches: of other zones only, of nothing, turned off for all, or for the zone above.
        ".:53 {\n kubernetes cluster.local clusterset.local {\n  multicluster clusterset.local\n }\n cache 30 cluster.local\n}\n".to_owned(),
        ".:53 {\n kubernetes cluster.local clusterset.local {\n  multicluster clusterset.local\n }\n}\n".to_owned(),
        ".:53 {\n kubernetes cluster.local clusterset.local {\n  multicluster clusterset.local\n }\n cache {\n  disable success\n  disable denial local\n }\n}\n".to_owned(),
    ] {
        assert_eq!(edit::add(&there, ZONE), Ok(Edited { text: there.clone(), ..Edited::default() }));
    }
}

#[test]
fn corefiles_that_people_wrote_keep_their_form() {
    for (before, after) in [
        // Tabs, comments, no line break at the end, a plugin without a block, Windows.
        (
            ".:53 {\n\tkubernetes cluster.local # the cluster\n\tcache # all\n}",
            ".:53 {\n\tkubernetes cluster.local clusterset.local { # the cluster@\n\t\tmulticluster clusterset.local@\n\t}\n\tcache { # \
             all\n\t\tdisable success clusterset.local@\n\t\tdisable denial clusterset.local@\n\t}\n}",
        ),
        (
            ".:53 {\r\n kubernetes cluster.local\r\n}\r\n",
            ".:53 {\r\n kubernetes cluster.local clusterset.local {@\r\n     multicluster clusterset.local@\r\n }\r\n}\r\n",
        ),
        // A cache with arguments and a block, which turns off another zone and only one kind.
        (
            ". {\n  kubernetes k8s.example {\n    pods verified\n  }\n  cache 60 . {\n    # mine\n    success 5000\n    disable denial \
             k8s.example\n  }\n}\n",
            ". {\n  kubernetes k8s.example clusterset.local {@\n    multicluster clusterset.local@\n    pods verified\n  }\n  cache 60 . \
             {\n    disable success clusterset.local@\n    # mine\n    success 5000\n    disable denial k8s.example \
             clusterset.local@\n  }\n}\n",
        ),
        // Another ClusterSet zone beside it, and words in quotes.
        (
            "\".:53\" {\n  kubernetes \"cluster.local\" other.local {\n    multicluster other.local\n  }\n}\n",
            "\".:53\" {\n  kubernetes \"cluster.local\" other.local clusterset.local {@\n    multicluster other.local clusterset.local@\n  \
             }\n}\n",
        ),
        // Two ports; the plugins are in a snippet that both import.
        (
            "(cluster) {\n    kubernetes cluster.local\n}\n.:53 {\n    import cluster\n    cache 5\n}\ntls://.:853 {\n    import cluster\n}\n",
            "(cluster) {\n    kubernetes cluster.local clusterset.local {@\n        multicluster clusterset.local@\n    }\n}\n.:53 {\n    import \
             cluster\n    cache 5 {\n        disable success clusterset.local@\n        disable denial clusterset.local@\n    }\n}\ntls://.:853 \
             {\n    import cluster\n}\n",
        ),
        // Environment variables.
        (
            ".:{$PORT} {\n  kubernetes {$DOMAIN} in-addr.arpa\n}\n",
            ".:{$PORT} {\n  kubernetes {$DOMAIN} clusterset.local in-addr.arpa {@\n      multicluster clusterset.local@\n  }\n}\n",
        ),
        // Other server blocks stay as they are, also one with a cache.
        (
            "corp.example:53 {\n    cache 30\n    forward . 10.0.0.2\n}\n.:53 {\n    kubernetes cluster.local\n}\n",
            "corp.example:53 {\n    cache 30\n    forward . 10.0.0.2\n}\n.:53 {\n    kubernetes cluster.local clusterset.local {@\n        \
             multicluster clusterset.local@\n    }\n}\n",
        ),
    ] {
        let after = marked(after);
        assert_eq!(add(before), after);
        assert_eq!(remove(&after), before);
    }
}

#[test]
fn what_was_added_is_removed_also_when_the_address_went_first() {
    let before = "cluster.local:53 {\n  kubernetes cluster.local\n}\n.:53 {\n  forward . 10.0.0.2\n}\n";
    let with_address = before.replacen("cluster.local:53", "cluster.local:53 clusterset.local:53", 1);
    let after = add(&with_address);
    assert_eq!(remove(&after), with_address);
    assert_eq!(remove(&after.replace(" clusterset.local:53", "")), before);
    assert_eq!(remove(before), before);
}

/// The samples of the AWS Cloud Map MCS Controller replaced CoreDNS by one with a plugin of this name.
#[test]
fn the_plugin_of_the_aws_controller_makes_way_for_the_option() {
    let before = EKS.replace("    ready\n", "    ready\n    multicluster clusterset.local\n");
    assert_eq!(add(&before), add(EKS));
}

#[test]
fn the_plugin_of_the_aws_controller_may_be_right_below_a_line_that_gets_a_block() {
    for above in ["kubernetes cluster.local", "kubernetes cluster.local clusterset.local", "cache 30"] {
        let others = if above == "cache 30" { "    kubernetes cluster.local\n" } else { "" };
        let before = format!(".:53 {{\n{others}    {above}\n    multicluster clusterset.local\n    ready\n}}\n");
        let after = add(&before);
        assert!(!after.contains("\n    multicluster") && after.contains("    }\n    ready\n}\n"), "{after}");
        assert_eq!(add(&after), after);
    }
}

#[test]
fn what_it_does_not_understand_it_refuses_with_the_remedy() {
    for (text, hint) in [
        ("", "no server block answers for clusterset.local"),
        (".:53 {\n  forward . 10.0.0.2\n}\n", "--config-map"),
        (".:53 {\n  import /etc/coredns/*.override\n}\n", "imported (/etc/coredns/*.override)"),
        (
            "cluster.local:53 {\n  kubernetes cluster.local\n}\n.:53 {\n  forward . 10.0.0.2\n}\n",
            "line 4 answers for clusterset.local, and has no plugin `kubernetes`: add the address `clusterset.local` to the \
             server block of line 1",
        ),
        (
            "cluster.local:1053 {\n  kubernetes cluster.local\n}\n.:1053 {\n  forward . 10.0.0.2\n}\n",
            "add the address `clusterset.local:1053` to the server block of line 1",
        ),
        // A second server block with this address would keep CoreDNS from starting.
        (
            ".:53 {\n  kubernetes cluster.local\n}\nclusterset.local:53 {\n  forward . 10.0.0.2\n}\n",
            "line 4 answers for clusterset.local, and has no plugin `kubernetes`: remove it (Submariner",
        ),
        (
            ".:53 {\n  kubernetes cluster.local\n}\ncorp.example, clusterset.local {\n  forward . 10.0.0.2\n}\n",
            "remove this address from it (Submariner",
        ),
        (".:53 {\n  kubernetes\n}\n", "line 2: `kubernetes` does not name its zones"),
        (
            ".:53 {\n  kubernetes cluster.local { pods insecure }\n}\n",
            "line 2: the closing brace must be on a line of its own",
        ),
        (".:53 {\n  kubernetes cluster.local\n  cache {\n    success 10 }\n}\n", "line 4: the closing brace"),
        (".:53 {\n  kubernetes cluster.local { pods insecure\n  }\n}\n", "line 2: the block of `kubernetes`"),
        (".:53 {\n  kubernetes cluster.local {\n  } errors\n}\n", "line 3: what follows a closing brace"),
        (".:53 {\n  kubernetes cluster.local {\n", "line 2: this brace is not closed"),
        (".:53 {\n  log \"a\n}\n", "line 2: a quotation mark is not closed"),
        (".:53\nkubernetes cluster.local\n", "not between braces"),
        (".:53 {\n  {\n  }\n}\n", "line 2: there is no plugin before this brace"),
    ] {
        let refusal = edit::add(text, ZONE).unwrap_err().to_string();
        assert!(refusal.contains(hint), "{refusal}: {text}");
    }
}

#[test]
fn what_somebody_else_wrote_stays_and_is_named() {
    let own = "clusterset.local {\n  kubernetes clusterset.local {\n    multicluster clusterset.local\n  }\n}\n";
    let Edited { text, changes, kept } = edit::remove(own, ZONE).unwrap();
    assert_eq!((text.as_str(), changes.len(), kept.len()), (own, 0, 2));
    // Somebody else gave CoreDNS the zone, and the cache is ours.
    let theirs = KUBEADM.replace(
        "cluster.local in-addr.arpa ip6.arpa {\n",
        "cluster.local clusterset.local in-addr.arpa ip6.arpa {\n       multicluster clusterset.local\n",
    );
    let ours = add(&theirs);
    assert_eq!(ours.matches(&mark(ZONE)).count(), 2, "{ours}");
    let Edited { text, changes, kept } = edit::remove(&ours, ZONE).unwrap();
    assert_eq!((text, changes.len()), (theirs, 2));
    let expected = [
        "line 7: `kubernetes` answers for clusterset.local, which `apply` has not written",
        "line 8: `kubernetes` has `multicluster clusterset.local`, which `apply` has not written",
    ];
    assert_eq!(kept, expected);
    // The mark of another zone is not that of this one.
    let other = edit::add(EKS, "clusterset.local.example").unwrap().text;
    assert_eq!(remove(&add(&other)), other);
    assert_eq!(edit::remove(&add(&other), "clusterset.local.example").unwrap().text, add(EKS));
}

const NODE_LOCAL: &str = "\
cluster.local:53 {
    errors
    cache {
            success 9984 30
            denial 9984 5
    }
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__CLUSTER__DNS__ {
            force_tcp
    }
    prometheus :9253
    health __PILLAR__LOCAL__DNS__:8080
    }
.:53 {
    errors
    cache 30
    reload
    loop
    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
    forward . __PILLAR__UPSTREAM__SERVERS__
    prometheus :9253
    }
";

fn forward(text: &str, domains: &[&str]) -> Result<Edited, Refusal> {
    let domains: Vec<_> = domains.iter().map(|&domain| domain.to_owned()).collect();
    node_local::add(text, &domains, ZONE)
}

#[test]
fn node_local_dns_cache_gets_a_copy_of_the_clusters_own_server_block() {
    let edited = forward(NODE_LOCAL, &["cluster.local"]).unwrap();
    let expected = "\
+clusterset.local:53 {@
+    errors
+    cache {
+        success 9984 5
+        denial 9984 5
+    }
+    reload
+    loop
+    bind __PILLAR__LOCAL__DNS__ __PILLAR__DNS__SERVER__
+    forward . __PILLAR__CLUSTER__DNS__ {
+            force_tcp
+    }
+    prometheus :9253
+}";
    assert_eq!(changed(NODE_LOCAL, &edited.text).join("\n"), marked(expected));
    assert_eq!(edited.changes, ["line 1: only cluster.local is forwarded to the cluster's DNS, not clusterset.local"]);
    assert_eq!(forward(&edited.text, &["cluster.local"]).unwrap().changes, Vec::<String>::new());
    assert_eq!(node_local::remove(&edited.text, ZONE).unwrap().text, NODE_LOCAL);
    assert_eq!(node_local::remove(NODE_LOCAL, ZONE).unwrap().text, NODE_LOCAL);
    // Everything goes to the cluster's DNS already.
    let all = NODE_LOCAL.replace("__PILLAR__UPSTREAM__SERVERS__", "__PILLAR__CLUSTER__DNS__");
    assert_eq!(forward(&all, &["cluster.local"]).unwrap().text, all);
    let refusal = forward(NODE_LOCAL, &["k8s.example"]).unwrap_err().to_string();
    assert!(refusal.contains("no server block for k8s.example"), "{refusal}");
    let by_hand = forward(&edited.text.replace(&mark(ZONE), ""), &["k8s.example"]).map(|it| it.changes);
    assert_eq!(by_hand, Ok(Vec::new()), "what the refusal asks for");
    assert_eq!(edit::cluster_domains(&add(EKS), ZONE).unwrap(), ["cluster.local"]);
}

/// The copy would be in that block.
#[test]
fn a_block_that_begins_where_the_one_to_copy_ends_is_refused_with_the_remedy() {
    let node_local = |between: &str| {
        format!(
            "cluster.local:53 {{\n    bind 169.254.20.10\n    forward . 10.0.0.10\n}}{between}\n.:53 {{\n    bind 169.254.20.10\n}}\n"
        )
    };
    for between in ["", " # text", "\r"] {
        assert!(forward(&node_local(between), &["cluster.local"]).is_ok(), "{between:?}");
    }
    for between in [" in-addr.arpa:53 {\n    errors\n}", "\u{b}a.example {\n    errors\n}", " import x"] {
        let refusal = forward(&node_local(between), &["cluster.local"]).unwrap_err().to_string();
        assert!(refusal.contains("line 4: something begins") && refusal.contains("a line of its own"), "{refusal}");
    }
}

#[test]
fn the_domain_of_the_cluster_is_the_one_that_node_local_dns_cache_forwards() {
    let renamed = "old.example:53 {\n  kubernetes old.example cluster.local in-addr.arpa\n}\n";
    let domains = edit::cluster_domains(renamed, ZONE).unwrap();
    assert_eq!(domains, ["old.example", "cluster.local"]);
    let text = forward(NODE_LOCAL, &["old.example", "cluster.local"]).unwrap().text;
    assert!(text.contains("\nclusterset.local:53 {"), "{text}");
    let refusal = forward(NODE_LOCAL, &["old.example", "k8s.example"]).unwrap_err().to_string();
    assert!(refusal.contains("no server block for old.example or k8s.example"), "{refusal}");
}

/// Lines of a Corefile that have nothing to do with the zone, in the forms that the language allows.
fn corefile() -> impl Strategy<Value = String> {
    let indentation = prop_oneof![Just("  "), Just("    "), Just("\t")];
    let line_break = prop_oneof![4 => Just("\n"), 1 => Just("\r\n")];
    let comment = || prop_oneof![4 => Just(""), 1 => Just(" # clusterset.local { "), 1 => Just("  ")];
    let other = prop_oneof![
        Just(vec!["errors"]),
        Just(vec!["health {", "\tlameduck 5s", "}"]),
        Just(vec!["# cache {", ""]),
        Just(vec!["log . \"{common} \\\"quoted\\\"\""]),
        Just(vec!["forward . 10.0.0.2 # cluster.local"]),
        Just(vec!["rewrite name regex (.*)\\.example {$DOMAIN} answer auto"]),
        Just(vec!["import /etc/coredns/*.override"]),
    ];
    let zones =
        prop_oneof![Just("cluster.local"), Just("cluster.local in-addr.arpa ip6.arpa"), Just("a.b \"c.d\" 10.0.0.0/8")];
    let options = || proptest::collection::vec(prop_oneof![Just("pods insecure"), Just("ttl 5"), Just("# mine")], 1..3);
    let cache = prop_oneof![
        Just(vec![]),
        Just(vec!["cache"]),
        Just(vec!["cache 30"]),
        Just(vec!["cache 30 corp.example"]),
        Just(vec!["cache 10 . {", "success 5000", "}"]),
        Just(vec!["cache {", "disable success cluster.local", "disable denial", "}"]),
        Just(vec!["cache {", "# nothing else", "disable denial cluster.local", "disable denial a.b", "}"]),
    ];
    let parts = (proptest::collection::vec(other, 0..4), zones, proptest::option::of(options()), cache, any::<bool>());
    (parts, indentation, line_break, comment(), comment(), any::<bool>()).prop_map(
        |((others, zones, options, cache, first), indentation, line_break, one, two, ends)| {
            let mut lines = vec![format!(".:53 {{{one}")];
            let mut say = |depth: usize, text: &str| lines.push(format!("{}{text}", indentation.repeat(depth)));
            // CoreDNS takes a plugin once in a server block.
            let mut seen = std::collections::BTreeSet::new();
            let others: Vec<_> = others.into_iter().filter(|lines| seen.insert(lines.clone())).collect();
            let cut = others.len() / 2;
            for line in others[..cut].iter().flatten() {
                say(1, line);
            }
            let say_cache = |say: &mut dyn FnMut(usize, &str)| {
                for (at, line) in cache.iter().enumerate() {
                    let inside = at > 0 && *line != "}";
                    say(1 + usize::from(inside), &if at == 0 { format!("{line}{two}") } else { (*line).to_owned() });
                }
            };
            if first {
                say_cache(&mut say);
            }
            match options {
                None => say(1, &format!("kubernetes {zones}{two}")),
                Some(options) => {
                    say(1, &format!("kubernetes {zones} {{{two}"));
                    for option in options {
                        say(2, option);
                    }
                    say(1, "}");
                }
            }
            if !first {
                say_cache(&mut say);
            }
            for line in others[cut..].iter().flatten() {
                say(1, line);
            }
            lines.push("}".to_owned());
            let text = lines.join(line_break);
            if ends { text + line_break } else { text }
        },
    )
}

proptest! {
    #[test]
    fn applying_twice_is_applying_once_and_removing_undoes_it(before in corefile()) {
        let after = add(&before);
        prop_assert_ne!(&after, &before);
        prop_assert_eq!(add(&after), after.clone());
        prop_assert_eq!(remove(&after), before.clone());
        prop_assert_eq!(remove(&before), before);
    }

    /// Without the zone and the lines that name nothing else, the words are the same.
    #[test]
    fn what_others_wrote_stays(before in corefile()) {
        let after = add(&before);
        let kept = |text: &str| -> String {
            text.replace(&mark(ZONE), "").replace(" clusterset.local", "").lines().filter(|line| !["multicluster", "disable success", "disable denial"]
                .contains(&line.trim())).flat_map(str::chars).filter(|c| !"{} \t\r".contains(*c)).collect()
        };
        prop_assert_eq!(kept(&after), kept(&before));
    }
}
