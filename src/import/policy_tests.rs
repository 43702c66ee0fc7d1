use std::net::{IpAddr, Ipv4Addr};

use super::*;
use api::{AllowedNames, AllowedRanges, ImportSources};
use model::{Conditions, fixtures::mk_endpoint};

const BLUE: Origin<'static> = Origin { cluster: "blue", registry: Some("eu") };
const PARTNER: Origin<'static> = Origin { cluster: "partner-1", registry: None };

fn texts(texts: &[&str]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn policies(specs: impl IntoIterator<Item = (&'static str, ClusterImportPolicySpec)>) -> Policies {
    let mut policies = Policies::new(texts(&["default", "istio-*"]).into());
    for (name, spec) in specs {
        policies.set(&name.into(), Some(&spec));
    }
    policies
}

fn from(clusters: &[&str]) -> ImportSources {
    ImportSources { clusters: Some(texts(clusters)), ..ImportSources::default() }
}

fn into(allowed: &[&str], denied: &[&str]) -> AllowedNames {
    AllowedNames { allowed: Some(texts(allowed)), denied: texts(denied) }
}

fn endpoint(address: &str) -> Endpoint {
    mk_endpoint(address.parse::<Ipv4Addr>().unwrap())
}

fn unready(address: &str) -> Endpoint {
    Endpoint { conditions: Conditions { ready: false, serving: false, terminating: false }, ..endpoint(address) }
}

fn ipv4(endpoints: &[Endpoint]) -> Vec<String> {
    endpoints.iter().filter_map(|endpoint| Some(endpoint.ipv4?.to_string())).collect()
}

#[test]
fn closed_namespaces_take_nobody_until_their_annotation_lists_somebody() {
    let none = policies([]);
    assert_eq!(none.excludes(BLUE, "shop", None), None);
    for closed in ["default", "istio-system"] {
        assert_eq!(none.excludes(BLUE, closed, None), Some(Exclusion::Closed), "{closed}");
        assert_eq!(none.excludes(BLUE, closed, Some("*")), None, "{closed}");
        assert_eq!(none.excludes(BLUE, closed, Some("red, blue")), None, "{closed}");
        assert_eq!(none.excludes(PARTNER, closed, Some("red, blue")), Some(Exclusion::NotAccepted), "{closed}");
    }
}

#[test]
fn the_annotation_of_an_open_namespace_lists_who_comes_in() {
    let none = policies([]);
    let excluded = |accepted| none.excludes(PARTNER, "shop", Some(accepted));
    for accepted in ["partner-1", "blue,partner-*", "*"] {
        assert_eq!(excluded(accepted), None, "{accepted}");
    }
    for accepted in ["", " , ", "partner", "partner-", "blue"] {
        assert_eq!(excluded(accepted), Some(Exclusion::NotAccepted), "{accepted}");
    }
    assert_eq!(unacceptable("blue, partner-*"), None);
    assert_eq!(unacceptable("blue, Red"), Some("Red"));
    assert_eq!(unacceptable("blue red"), Some("blue red"));
}

#[test]
fn a_policy_is_about_the_clusters_that_it_selects() {
    let spec = |from| ClusterImportPolicySpec { from, namespaces: into(&[], &[]), ..Default::default() };
    let excluded =
        |sources: ImportSources, origin| policies([("p", spec(sources))]).excludes(origin, "shop", None).is_some();
    let sources = |clusters: Option<&[&str]>, except: &[&str], registries: Option<&[&str]>| ImportSources {
        clusters: clusters.map(texts),
        except_clusters: texts(except),
        registries: registries.map(texts),
    };
    for (sources, blue, partner) in [
        (sources(None, &[], None), true, true),
        (sources(Some(&["partner-*"]), &[], None), false, true),
        (sources(None, &["blue"], None), false, true),
        (sources(Some(&["*"]), &["partner-1"], None), true, false),
        (sources(None, &[], Some(&["eu", "us"])), true, false),
        (sources(None, &[], Some(&["us"])), false, false),
        (sources(Some(&["blue"]), &[], Some(&["us"])), false, false),
    ] {
        assert_eq!(
            (excluded(sources.clone(), BLUE), excluded(sources.clone(), PARTNER)),
            (blue, partner),
            "{sources:?}"
        );
    }
}

#[test]
fn several_policies_must_all_allow_it_and_only_take_away() {
    let spec = |allowed: &[&str], denied: &[&str]| ClusterImportPolicySpec {
        namespaces: into(allowed, denied),
        ..ClusterImportPolicySpec::default()
    };
    let excluded = |policies: &Policies, namespace| policies.excludes(BLUE, namespace, None);
    let one = policies([("a", spec(&["shop", "pay-*"], &["pay-internal"]))]);
    assert_eq!(excluded(&one, "shop"), None);
    assert_eq!(excluded(&one, "pay-web"), None);
    for denied in ["pay-internal", "web", "shop-2"] {
        assert_eq!(excluded(&one, denied), Some(Exclusion::Namespace("a".into())), "{denied}");
    }
    let mut both = policies([("a", spec(&["shop", "pay-*"], &[])), ("b", spec(&["*"], &["shop"]))]);
    assert_eq!(excluded(&both, "shop"), Some(Exclusion::Namespace("b".into())));
    assert_eq!(excluded(&both, "pay-web"), None);
    // No policy opens what is closed.
    assert_eq!(excluded(&both, "default"), Some(Exclusion::Closed));
    both.set(&"b".into(), None);
    assert_eq!(excluded(&both, "shop"), None);
}

#[test]
fn the_smallest_limit_of_names_counts() {
    let spec = |clusters: &[&str], max_names| ClusterImportPolicySpec {
        from: from(clusters),
        max_names,
        ..ClusterImportPolicySpec::default()
    };
    let all =
        policies([("a", spec(&["*"], Some(20))), ("b", spec(&["partner-*"], Some(3))), ("c", spec(&["*"], None))]);
    assert_eq!(all.most_names(BLUE), Some((20, &"a".into())));
    assert_eq!(all.most_names(PARTNER), Some((3, &"b".into())));
    assert_eq!(policies([]).most_names(BLUE), None);
}

#[test]
fn addresses_outside_of_the_allowed_ranges_and_in_the_denied_ones_are_left_out() {
    let spec = ClusterImportPolicySpec {
        addresses: AllowedRanges {
            allowed: Some(texts(&["10.0.0.0/8", "fd00:1::/32"])),
            denied: texts(&["10.1.0.0/16"]),
        },
        ..ClusterImportPolicySpec::default()
    };
    let all = policies([("ranges", spec)]);
    let dual = Endpoint { ipv6: Some("fd00:2::1".parse().unwrap()), ..endpoint("10.2.0.1") };
    let only_v6 = Endpoint { ipv4: None, ipv6: Some("fd00:2::1".parse().unwrap()), ..endpoint("10.2.0.1") };
    let endpoints = [endpoint("10.0.0.1"), endpoint("10.1.0.1"), endpoint("192.168.0.1"), dual, only_v6];
    let (admitted, why) = all.admit(BLUE, &endpoints, |_| false);
    assert_eq!(ipv4(&admitted), ["10.0.0.1", "10.2.0.1"]);
    assert!(admitted.iter().all(|endpoint| endpoint.ipv6.is_none()), "{admitted:?}");
    assert_eq!(why, [Exclusion::Addresses("ranges".into())]);
    let (admitted, why) = all.admit(BLUE, &endpoints[..1], |_| false);
    assert!(matches!(admitted, Cow::Borrowed(_)) && why.is_empty(), "{why:?}");
}

#[test]
fn over_the_limit_of_endpoints_the_shown_ones_stay_and_ready_ones_come_before_others() {
    let spec = ClusterImportPolicySpec { max_endpoints_per_name: Some(2), ..ClusterImportPolicySpec::default() };
    let all = policies([("small", spec)]);
    let shown = |address: IpAddr| [3, 4].map(|last| IpAddr::from(Ipv4Addr::new(10, 0, 0, last))).contains(&address);
    let admit = |endpoints: &[Endpoint]| {
        let (admitted, why) = all.admit(BLUE, endpoints, shown);
        assert_eq!(why, [Exclusion::Endpoints("small".into(), 2)]);
        ipv4(&admitted)
    };
    assert_eq!(admit(&["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"].map(endpoint)), ["10.0.0.3", "10.0.0.4"]);
    // Only what takes no traffic makes room.
    let mixed = [endpoint("10.0.0.1"), unready("10.0.0.2"), unready("10.0.0.3"), endpoint("10.0.0.4")];
    assert_eq!(admit(&mixed), ["10.0.0.4", "10.0.0.1"]);
}

#[test]
fn the_message_says_what_is_left_out_of_whom() {
    let id = |id: &str| id.parse().unwrap();
    let said = message(&[(id("blue"), Exclusion::Closed), (id("dark-blue"), Exclusion::Endpoints("p".into(), 3))]);
    assert_eq!(said_of(&said, "blue").unwrap(), Exclusion::Closed.to_string());
    assert_eq!(said_of(&said, "dark-blue").unwrap(), Exclusion::Endpoints("p".into(), 3).to_string());
    assert_eq!(said_of(&said, "red"), None);
    assert_eq!(named(&said).collect::<Vec<_>>(), ["blue", "dark-blue"]);
}

#[test]
fn an_invalid_range_is_named_with_its_field_and_a_remedy() {
    let spec = |allowed: &[&str], denied: &[&str]| ClusterImportPolicySpec {
        addresses: AllowedRanges { allowed: (!allowed.is_empty()).then(|| texts(allowed)), denied: texts(denied) },
        ..ClusterImportPolicySpec::default()
    };
    assert_eq!(invalid(&spec(&["10.0.0.0/8"], &["fd00::/8"])), None);
    for (spec, field, value) in [
        (spec(&["10.0.0.0/33"], &[]), "allowed", "10.0.0.0/33"),
        (spec(&[], &["fd00::1::/8"]), "denied", "fd00::1::/8"),
    ] {
        let said = invalid(&spec).unwrap();
        assert!(said.contains(field) && said.contains(value) && said.contains("write one such as"), "{said}");
        // It matches nothing.
        let endpoints = [endpoint("10.0.0.1")];
        let rules = policies([("p", spec)]);
        let (admitted, _) = rules.admit(BLUE, &endpoints, |_| false);
        assert_eq!(admitted.len(), usize::from(field == "denied"), "{said}");
    }
}
