use std::collections::BTreeSet;

use clap::ValueEnum as _;

use super::{Effect, Mode, Policy, Scope, Statement, domain, modes, partition, statement::joined, statements};
use cloudmap::Operation;

/// Every fact, with ids as long as AWS makes them.
fn scope() -> Scope {
    let some = |prefix: &str, count: usize| (0..count).map(|n| format!("{prefix}{n:016}")).collect::<Vec<_>>();
    Scope {
        region: "us-gov-northwest-1".to_owned(),
        account: "111122223333".to_owned(),
        clusterset: Some("x".repeat(63).parse().unwrap()),
        clusters: vec!["y".repeat(63).parse().unwrap()],
        cluster_uid: Some("0b7a6c3e-0000-4000-8000-000000000000".to_owned()),
        namespaces: some("namespace-", 5),
        namespace_ids: some("ns-", 5),
        services: some("srv-", 5),
        hosted_zones: some("Z", 3),
        ecs_clusters: some("cluster-", 3),
        role: Some("arn:aws:iam::444455556666:role/registry".to_owned()),
    }
}

fn operations(modes: &[Mode], effect: Effect) -> BTreeSet<String> {
    let all = statements(modes, &scope()).unwrap();
    let actions =
        all.into_iter().filter(|statement| statement.effect == effect).flat_map(|statement| statement.action.0);
    actions.filter_map(|action| action.strip_prefix("servicediscovery:").map(str::to_owned)).collect()
}

#[test]
fn the_statements_allow_what_can_be_called_and_nothing_else() {
    let known: BTreeSet<_> = Operation::ALL.iter().map(|operation| operation.name().to_owned()).collect();
    assert_eq!(operations(Mode::value_variants(), Effect::Allow), known, "in the statements, and in the port");
    let writes: BTreeSet<_> = operations(&[Mode::Deny], Effect::Deny);
    assert!(writes.iter().all(|action| known.contains(action)), "{writes:?}");
    for statement in statements(Mode::value_variants(), &scope()).unwrap() {
        assert!(statement.action.0.iter().all(|action| !action.contains('*')), "{statement:?}");
    }
}

/// An installation that does all of this needs one policy, or a few.
#[test]
fn any_modes_together_have_unique_names_and_fit_into_a_policy_or_several() {
    let alone = [Mode::People, Mode::Cutover, Mode::DenyOthers, Mode::AssumeRole];
    let all: Vec<_> = Mode::value_variants().iter().filter(|mode| !alone.contains(mode)).collect();
    let mut longest = 0;
    for chosen in 1..1usize << all.len() {
        let modes: Vec<_> =
            all.iter().enumerate().filter(|(at, _)| chosen & (1 << at) != 0).map(|(_, mode)| **mode).collect();
        let statements = statements(&modes, &scope()).unwrap();
        let names: BTreeSet<_> = statements.iter().map(|statement| statement.sid.clone()).collect();
        assert_eq!(names.len(), statements.len(), "{modes:?}");
        let count = statements.len();
        let policies = Policy::fitting(statements).unwrap();
        assert!(policies.iter().all(|policy| policy.length() <= Policy::LONGEST), "{modes:?}");
        assert_eq!(policies.iter().map(|policy| policy.statement.len()).sum::<usize>(), count);
        longest = longest.max(policies.len());
    }
    assert_eq!(longest, 2);
    let usual = [Mode::Instances, Mode::Imports, Mode::Joining, Mode::Deny];
    assert_eq!(Policy::fitting(statements(&usual, &scope()).unwrap()).unwrap().len(), 1);
}

#[test]
fn people_who_move_services_may_stop_tasks_in_the_named_clusters_only() {
    let scope = Scope { ecs_clusters: vec!["prod".to_owned()], ..scope() };
    let all = statements(&[Mode::Cutover], &scope).unwrap();
    let (stops, looks): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|statement| statement.action.0.contains(&"ecs:UpdateService".to_owned()));
    assert_eq!(stops[0].resource.0, ["arn:aws-us-gov:ecs:us-gov-northwest-1:111122223333:service/prod/*"]);
    assert_eq!((stops.len(), stops[0].action.0.len()), (1, 1));
    let looked: Vec<_> = looks.iter().flat_map(|statement| &statement.action.0).collect();
    assert!(looked.len() > 3, "{looked:?}");
    assert!(looked.iter().all(|action| ["List", "Describe", "Discover"].iter().any(|verb| action.contains(verb))));
}

#[test]
fn a_long_statement_is_several_that_say_the_same() {
    let ids: Vec<_> = (0..800).map(|n| format!("srv-{n:016}")).collect();
    let many = Scope { services: ids.clone(), ..scope() };
    for mode in [Mode::Joining, Mode::Hiding] {
        let policies = Policy::fitting(statements(&[mode], &many).unwrap()).unwrap();
        assert!(policies.iter().all(|policy| policy.length() <= Policy::LONGEST));
        let all: Vec<_> = policies.into_iter().flat_map(|policy| policy.statement).collect();
        let of_services: Vec<_> = all.iter().filter(|statement| statement.resource.0 != ["*"]).collect();
        let names: BTreeSet<_> = all.iter().map(|statement| &statement.sid).collect();
        assert!(of_services.len() > 10 && names.len() == all.len(), "{names:?}");
        assert!(of_services.iter().all(|statement| statement.action == of_services[0].action));
        let resources = of_services.iter().flat_map(|statement| &statement.resource.0);
        assert!(resources.map(|arn| arn.rsplit('/').next().unwrap()).eq(ids.iter().map(String::as_str)));
    }
    // The same for the values of a condition of which any one is enough.
    let namespaces = (0..400).map(|n| format!("namespace-{n:016}")).collect();
    let policies = Policy::fitting(statements(&[Mode::Gates], &Scope { namespaces, ..scope() }).unwrap()).unwrap();
    let values = |statement: &Statement| statement.condition["StringEquals"].values().next().unwrap().0.len();
    assert_eq!(policies.iter().flat_map(|policy| &policy.statement).map(values).sum::<usize>(), 400);
}

#[test]
fn a_statement_that_cannot_be_cut_is_named() {
    let long = Statement::allow("Long", ["a"]).when("StringEquals", "k", ["v".repeat(Policy::LONGEST)]);
    assert_eq!(Policy::fitting(vec![long]), Err("Long".to_owned()));
    // Each part would deny what the others leave out.
    let values = (0..400).map(|n| format!("{n:020}"));
    let denied = Statement::allow("Denied", ["a"]).deny().when("StringNotEquals", "k", values);
    assert_eq!(Policy::fitting(vec![denied]), Err("Denied".to_owned()));
}

#[test]
fn services_of_others_are_those_that_are_named_or_those_with_the_tag() {
    let of = |scope: &Scope| {
        let all = statements(&[Mode::Hiding], scope).unwrap();
        serde_json::to_value(&all[0]).unwrap()
    };
    let set = Scope { services: Vec::new(), clusterset: Some("prod".parse().unwrap()), ..scope() };
    let alone = Scope { clusterset: None, ..set.clone() };
    for (scope, by) in [(&set, "prod"), (&alone, "0b7a6c3e-0000-4000-8000-000000000000")] {
        let statement = of(scope);
        assert_eq!(statement["Condition"], serde_json::json!({"StringEquals": {"aws:ResourceTag/joined-by": by}}));
        assert!(statement["Resource"].as_str().unwrap().ends_with(":service/*"), "{statement}");
    }
    assert!(of(&scope()).get("Condition").is_none());
}

#[test]
fn a_creation_in_a_namespace_is_allowed_for_the_namespace_and_the_service() {
    let all = statements(&[Mode::AwsMcs], &scope()).unwrap();
    let create = all.iter().find(|statement| statement.sid == "CreateInItsNamespaces").unwrap();
    for kind in [":namespace/ns-", ":service/*"] {
        assert!(create.resource.0.iter().any(|arn| arn.contains(kind)), "{create:?}");
    }
}

/// In a registry that is not the home, a controller writes nothing, whatever it imports from there.
#[test]
fn what_is_imported_from_another_registry_is_read_there() {
    let actions = |namespaces: &[&str]| -> BTreeSet<_> {
        let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
        let all = statements(&[Mode::Reading], &Scope { namespaces, ..scope() }).unwrap();
        all.into_iter().flat_map(|statement| statement.action.0).collect()
    };
    let (ledger, imports) = (actions(&[]), actions(&["internal"]));
    let more: Vec<_> = imports.difference(&ledger).map(String::as_str).collect();
    assert_eq!(more, ["servicediscovery:GetInstancesHealthStatus", "servicediscovery:ListInstances"]);
    assert!(ledger.is_subset(&imports));
}

#[test]
fn the_controller_makes_namespaces_with_dns_and_only_people_delete_zones() {
    let actions = |modes: &[Mode], scope: &Scope| -> BTreeSet<_> {
        statements(modes, scope).unwrap().into_iter().flat_map(|statement| statement.action.0).collect()
    };
    let made = statements(&[Mode::DnsNamespaces], &scope()).unwrap();
    let create = made.iter().find(|it| it.action.0[0] == "servicediscovery:CreatePrivateDnsNamespace").unwrap();
    assert!(create.condition["StringEquals"].contains_key("aws:RequestTag/cloudmap-mcs/made-for"), "{create:?}");
    // AWS Cloud Map API permissions reference.
    let documented = [
        "route53:CreateHostedZone",
        "route53:GetHostedZone",
        "route53:ListHostedZonesByName",
        "ec2:DescribeVpcs",
        "ec2:DescribeRegions",
    ];
    let all = actions(&[Mode::DnsNamespaces], &scope());
    assert!(documented.iter().all(|action| all.contains(*action)), "{all:?}");
    for mode in Mode::value_variants() {
        let deletes = actions(&[*mode], &scope()).contains("route53:DeleteHostedZone");
        assert_eq!(deletes, *mode == Mode::People, "{mode:?}");
    }
    let no_zones = Scope { hosted_zones: Vec::new(), ..scope() };
    assert!(!actions(&[Mode::People], &no_zones).contains("route53:DeleteHostedZone"));
}

#[test]
fn a_role_of_one_cluster_may_write_its_own_part_of_the_ledger_and_the_heads_of_all() {
    let condition = |clusters: &[&str], sid: &str| {
        let scope = Scope { clusters: clusters.iter().map(|id| id.parse().unwrap()).collect(), ..scope() };
        let all = statements(&[Mode::Ledger], &scope).unwrap();
        let statement = all.into_iter().find(|statement| statement.sid == sid).unwrap();
        serde_json::to_value(statement.condition).unwrap().get("StringEqualsIfExists").cloned()
    };
    let [request, resource] = ["Request", "Resource"].map(|of| format!("aws:{of}Tag/cloudmap-mcs/cluster"));
    assert_eq!(condition(&["blue"], "CreateTheLedger"), Some(serde_json::json!({request: "blue"})));
    assert_eq!(condition(&["blue"], "WriteTheLedger"), Some(serde_json::json!({&resource: "blue"})));
    // While it changes its id, it writes under both.
    assert_eq!(condition(&["navy", "blue"], "WriteTheLedger"), Some(serde_json::json!({resource: ["navy", "blue"]})));
    assert_eq!(condition(&[], "WriteTheLedger"), None);
}

#[test]
fn a_mode_without_its_facts_says_which_flag_gives_them() {
    // Nobody else has to do with any ledger.
    for mode in Mode::value_variants().iter().filter(|mode| **mode != Mode::DenyOthers) {
        let needed = statements(&[*mode], &Scope::default()).unwrap_err();
        let said = needed.to_string();
        assert!(said.starts_with("--mode ") && said.contains(" needs --"), "{said}");
    }
    let needed = statements(&[Mode::Dns], &Scope::default()).unwrap_err().to_string();
    assert_eq!(needed, "--mode dns needs --hosted-zones");
}

#[test]
fn modes_bring_what_they_build_on() {
    let of = |mode| operations(&[mode], Effect::Allow);
    assert!(of(Mode::AwsMcs).is_superset(&of(Mode::Instances)));
    assert!(of(Mode::Imports).is_superset(&of(Mode::Ledger)));
    assert_eq!(statements(&[Mode::Ledger, Mode::Instances], &scope()), statements(&[Mode::Instances], &scope()));
}

#[test]
fn statements_that_differ_in_their_actions_only_are_joined() {
    let one = Statement::allow("One", ["a", "b"]);
    let two = Statement::allow("Two", ["b", "c"]);
    let other = Statement::allow("Other", ["a"]).when("StringEquals", "k", ["v"]);
    let both = Statement::allow("One", ["a", "b", "c"]);
    assert_eq!(joined([one, other.clone(), two]), [both, other]);
}

#[test]
fn each_region_has_its_partition_and_domain() {
    for (region, expected, of_endpoints) in [
        ("eu-central-1", "aws", "amazonaws.com"),
        ("us-east-1", "aws", "amazonaws.com"),
        ("cn-northwest-1", "aws-cn", "amazonaws.com.cn"),
        ("us-gov-east-1", "aws-us-gov", "amazonaws.com"),
        ("us-iso-east-1", "aws-iso", "c2s.ic.gov"),
        ("us-isob-east-1", "aws-iso-b", "sc2s.sgov.gov"),
        ("eu-isoe-west-1", "aws-iso-e", "cloud.adc-e.uk"),
        ("us-isof-south-1", "aws-iso-f", "csp.hci.ic.gov"),
        ("eusc-de-east-1", "aws-eusc", "amazonaws.eu"),
    ] {
        assert_eq!((partition(region), domain(region)), (expected, of_endpoints), "{region}");
    }
}

#[test]
fn arns_begin_with_the_partition_of_the_region() {
    for (region, expected) in [("eu-central-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")] {
        assert_eq!(partition(region), expected);
        let scope = Scope { region: region.to_owned(), ..scope() };
        let arns = modes::statements(&[Mode::Joining, Mode::Dns], &scope).unwrap();
        let arns: Vec<_> =
            arns.into_iter().flat_map(|statement| statement.resource.0).filter(|arn| arn != "*").collect();
        assert!(arns.iter().all(|arn| arn.starts_with(&format!("arn:{expected}:"))), "{arns:?}");
    }
}

#[test]
fn what_others_share_is_read_by_its_arn_and_own_namespaces_by_their_names() {
    let arn = "arn:aws-us-gov:servicediscovery:us-gov-northwest-1:444455556666:namespace/ns-1";
    let of = |namespaces: &[&str], mode: Mode| {
        let namespaces = namespaces.iter().map(|it| (*it).to_owned()).collect();
        statements(&[mode], &Scope { namespaces, ..scope() })
    };
    let named = |namespaces: &[&str]| {
        let all = of(namespaces, Mode::Imports).unwrap();
        let of_ledger: Vec<_> = statements(&[Mode::Ledger], &scope()).unwrap();
        all.into_iter().filter(|it| !of_ledger.contains(it)).map(|it| (it.sid, it.resource.0)).collect::<Vec<_>>()
    };
    let services = "arn:aws-us-gov:servicediscovery:us-gov-northwest-1:444455556666:service/*";
    let shared = ("ReadWhatIsShared".to_owned(), vec![arn.to_owned(), services.to_owned()]);
    assert_eq!(named(&[arn]), std::slice::from_ref(&shared));
    let own: Vec<_> = named(&["shop"]);
    assert_eq!(own.iter().map(|(sid, _)| sid.as_str()).collect::<Vec<_>>(), ["ReadWhatIsImported", "ReadHealth"]);
    assert_eq!(named(&[arn, "shop"]), [own, vec![shared]].concat());
    for mode in [Mode::Gates, Mode::AwsMcs] {
        assert_eq!(of(&[arn], mode).unwrap_err().flag, "--cloudmap-namespaces");
        assert_eq!(of(&[arn, "shop"], mode), of(&["shop"], mode));
    }
    assert_eq!(of(&[], Mode::Imports).unwrap_err().flag, "--cloudmap-namespaces");
}
