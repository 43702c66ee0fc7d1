//! What can be broken between clusters, and between a cluster and AWS.

use super::{
    super::*,
    Case,
    State::{Fail, Skip, Warn},
};
use iam::Mode;

/// All of them.
pub(super) const CASES: &[&[Case]] = &[ADDRESSES, REGISTRY, QUOTAS, NETWORK];

/// Addresses.
const ADDRESSES: &[Case] = &[
    (
        |it| first(it).ranges = Ok(vec![Range::parse("10.2.0.0/16").unwrap()]),
        Fail,
        "a, b",
        "10.2.0.0/16 of a overlaps 10.2.0.0/24 of b",
        "another range",
    ),
    (
        |it| {
            first(it).ranges = Ok(Vec::new());
            first(it).pods = Ok(BTreeSet::from([[10, 2, 1, 7].into()]));
        },
        Fail,
        "a, b",
        "the pod 10.2.1.7 of a is in the range 10.2.1.0/24 of b",
        "another range",
    ),
    (
        |it| {
            (first(it).ranges, second(it).ranges) = (Ok(Vec::new()), Ok(Vec::new()));
            first(it).pods = Ok(BTreeSet::from([pod(2)]));
        },
        Fail,
        "a, b",
        "pods of both have the address 10.2.2.3",
        "another range",
    ),
];

/// The way to AWS, and the role.
const REGISTRY: &[Case] = &[
    (
        |it| drop(of_registry(it).wanted.flags.insert(Mode::Hiding, BTreeSet::new())),
        Skip,
        "registry",
        "hiding: not tried, because it holds for single services",
        "cloudmap-mcs iam --mode hiding --clusterset prod --services IDS",
    ),
    (
        |it| drop(of_registry(it).wanted.flags.insert(Mode::Gates, BTreeSet::new())),
        Skip,
        "registry",
        "gates: not tried, because no Cloud Map namespace is known",
        "cloudmap-mcs iam --mode gates --clusterset prod --cloudmap-namespaces NAMES",
    ),
    (
        |it| {
            let registry = of_registry(it);
            registry.wanted.flags.insert(Mode::Gates, BTreeSet::from(["c1".to_owned()]));
            registry.permissions.push(Permission {
                sid: "SeeWhatIsRegistered".to_owned(),
                flag: Some(Mode::Gates),
                answers: vec![(Operation::DiscoverInstances, Answer::Denied("no".to_owned()))],
            });
        },
        Fail,
        "registry",
        "SeeWhatIsRegistered: DiscoverInstances denied (no)",
        "add the statement SeeWhatIsRegistered to the role's policy: cloudmap-mcs iam --mode gates",
    ),
    (
        |it| {
            let registry = of_registry(it);
            registry.wanted.flags.insert(Mode::AwsMcs, BTreeSet::from(["c1".to_owned()]));
            registry.permissions.push(Permission {
                sid: "ReadItsExports".to_owned(),
                flag: Some(Mode::AwsMcs),
                answers: vec![(Operation::DiscoverInstances, Answer::Allowed)],
            });
        },
        Skip,
        "registry",
        "aws-mcs: JoinItsServices, CreateInItsNamespaces not tried",
        "--cloudmap-namespaces NAMES --cloudmap-namespace-ids IDS",
    ),
    (
        |it| {
            let registry = of_registry(it);
            let arn = "arn:aws:servicediscovery:eu-central-1:444455556666:namespace/ns-1";
            registry.wanted.imports.push(arn.to_owned());
            registry.permissions.push(Permission {
                sid: "ReadWhatIsShared".to_owned(),
                flag: None,
                answers: vec![(Operation::GetNamespace, Answer::Denied("no".to_owned()))],
            });
        },
        Fail,
        "registry",
        "ReadWhatIsShared: GetNamespace denied (no)",
        "accept the invitation (docs/ecs.md#namespaces-of-other-accounts); or add the statement ReadWhatIsShared to \
         the role's policy: cloudmap-mcs iam --mode instances,imports --clusterset prod --cloudmap-namespaces \
         arn:aws:servicediscovery:eu-central-1:444455556666:namespace/ns-1",
    ),
    (
        |it| it.registry = Some(Err("no AWS region is set: set --region".to_owned())),
        Fail,
        "registry",
        "no AWS region is set",
        "--no-aws",
    ),
    (
        |it| {
            of_registry(it).endpoint =
                Endpoint { url: Some("https://vpce.example".to_owned()), fips: true, dual_stack: false };
        },
        Fail,
        "registry",
        "https://vpce.example and FIPS exclude each other",
        "AWS_USE_FIPS_ENDPOINT",
    ),
    (
        |it| of_registry(it).namespaces = Err(error(ErrorKind::AccessDenied, "cannot get AWS credentials: none")),
        Fail,
        "registry",
        "cannot get AWS credentials",
        "or for the role of the node, allow TCP 80 of 169.254.169.254, with networkPolicy.extraEgress",
    ),
    (
        |it| {
            of_registry(it).namespaces = Err(error(ErrorKind::NoCredentials, "cannot get AWS credentials: dns error"));
        },
        Fail,
        "registry",
        "cannot get AWS credentials",
        "allow HTTPS to sts.eu-central-1.amazonaws.com",
    ),
    (
        |it| of_registry(it).namespaces = Err(error(ErrorKind::Other, "cannot connect to the endpoint")),
        Fail,
        "registry",
        "cannot connect",
        "allow HTTPS to servicediscovery.eu-central-1.amazonaws.com, or",
    ),
    (
        |it| {
            of_registry(it).region = Some("cn-north-1".to_owned());
            of_registry(it).namespaces = Err(error(ErrorKind::Other, "cannot connect to the endpoint"));
            for cluster in [0, 1] {
                let seen = it.clusters[cluster].seen.as_mut().unwrap();
                seen.controller.as_mut().unwrap().as_mut().unwrap().settings.values.clear();
            }
        },
        Fail,
        "registry",
        "cannot connect",
        "allow HTTPS to servicediscovery.cn-north-1.amazonaws.com.cn, or",
    ),
    (
        |it| of_registry(it).discovery = Err(error(ErrorKind::Other, "cannot connect to the endpoint")),
        Fail,
        "registry",
        "discovery is not reached",
        "data-servicediscovery.eu-central-1.amazonaws.com",
    ),
    (
        |it| {
            of_registry(it).endpoint.url = Some("https://vpce.example".to_owned());
            of_registry(it).discovery = Err(error(ErrorKind::Other, "dns error"));
        },
        Fail,
        "registry",
        "discovery is not reached: dns error",
        "puts `data-` before the host of https://vpce.example",
    ),
    (
        |it| {
            of_registry(it).region = Some("eu-west-1".to_owned());
            for cluster in [0, 1] {
                let seen = it.clusters[cluster].seen.as_mut().unwrap();
                seen.controller.as_mut().unwrap().as_mut().unwrap().settings.values =
                    [("AWS_REGION".to_owned(), "eu-central-1".to_owned())].into();
            }
            controller(it).settings.values = [("CLOUDMAP_MCS_REGION".to_owned(), "eu-central-1".to_owned())].into();
        },
        Warn,
        "registry",
        "eu-west-1 was asked, and the controllers use eu-central-1",
        "--region eu-central-1",
    ),
    (
        |it| drop(of_registry(it).others.insert("us".to_owned(), Err("access denied".to_owned()))),
        Fail,
        "registry",
        "the registry us cannot be read: access denied",
        "cloudmap-mcs iam --mode reading",
    ),
    (
        |it| {
            for cluster in [0, 1] {
                let seen = it.clusters[cluster].seen.as_mut().unwrap();
                seen.controller.as_mut().unwrap().as_mut().unwrap().settings.values =
                    [("CLOUDMAP_MCS_REGISTRIES".to_owned(), "eu: {region: eu-central-1}".to_owned())].into();
            }
        },
        Warn,
        "registry",
        "the controllers of a read several registries, and one of them was asked",
        "--home",
    ),
    (
        |it| {
            let role = "arn:aws:iam::444455556666:role/registry";
            controller(it).settings.values.insert("CLOUDMAP_MCS_ASSUME_ROLE_ARN".to_owned(), role.to_owned());
        },
        Warn,
        "registry",
        "the account 111122223333 was asked, and the controllers use the registry of 444455556666",
        "--assume-role-arn arn:aws:iam::444455556666:role/registry, or with credentials of that account",
    ),
    (
        |it| {
            answer(it, "WriteTheLedger", Operation::DeregisterInstance, Answer::Denied("access denied: x".to_owned()));
        },
        Fail,
        "registry",
        "WriteTheLedger: DeregisterInstance denied (access denied: x)",
        "cloudmap-mcs iam --mode instances --clusterset prod --account 111122223333 --region eu-central-1",
    ),
    (
        |it| {
            for operation in [Operation::RegisterInstance, Operation::DeregisterInstance, Operation::DeleteService] {
                answer(it, "WriteTheLedger", operation, Answer::Unknown("no service yet".to_owned()));
            }
        },
        Skip,
        "registry",
        "WriteTheLedger: RegisterInstance, DeregisterInstance, DeleteService cannot be told (no service yet)",
        "after the first export",
    ),
    (|it| drop(ledger(it).heads.remove("c1")), Fail, "a", "c1 is not in the ledger of prod", "--context a"),
    (
        |it| {
            ledger(it).heads.remove("c1");
            ledger(it).left.insert("c1".to_owned(), "uid-1".to_owned());
        },
        Fail,
        "a",
        "c1 has left prod",
        "leave --undo --context a",
    ),
    (
        |it| ledger(it).heads.get_mut("c1").unwrap().0 = SignedDuration::from_mins(20),
        Fail,
        "a",
        "c1 last wrote 1200 s ago",
        "logs",
    ),
    (
        |it| ledger(it).heads.get_mut("c1").unwrap().1 = "uid-9".to_owned(),
        Fail,
        "a",
        "belongs to another cluster in the ledger",
        "purge --cluster c1",
    ),
];

/// Quotas.
const QUOTAS: &[Case] = &[
    (|it| of_registry(it).namespaces = Ok(45), Warn, "registry", "45 of 50 namespaces", "L-0FE3F50E"),
    (
        |it| *ledger(it).instances.get_mut(&target()).unwrap() = 900,
        Warn,
        "registry",
        "900 of 1000 instances for shop/web",
        "another name",
    ),
    (
        |it| *ledger(it).instances.get_mut(&target()).unwrap() = 1_001,
        Fail,
        "registry",
        "1001 instances for shop/web",
        "fewer pods",
    ),
    (
        |it| {
            for number in 0..3 {
                let target = Target { service: format!("web-{number}").into(), ..target() };
                ledger(it).instances.insert(target, 600);
            }
        },
        Warn,
        "registry",
        "1804 of 2000 instances in the namespace shop",
        "L-D95E8A57",
    ),
];

/// The network.
const NETWORK: &[Case] = &[
    (
        |it| *outcome(it) = Outcome::TimedOut,
        Fail,
        "a→b",
        "10.2.2.3:8080 timed out",
        "allow 10.1.0.0/23 in b's node security group",
    ),
    (
        |it| {
            first(it).ranges = Ok(Vec::new());
            *outcome(it) = Outcome::TimedOut;
        },
        Fail,
        "a→b",
        "10.2.2.3:8080 timed out",
        "the subnets of a's pods (10.1.2.3 is one of them) in b's",
    ),
    (|it| *outcome(it) = Outcome::Failed("refused".to_owned()), Fail, "a→b", "failed: refused", "NetworkPolicy"),
    (
        |it| *outcome(it) = Outcome::Stranger("HTTP".to_owned()),
        Fail,
        "a→b",
        "another program answered",
        "its own range",
    ),
    (
        |it| {
            let probed = it.probed.as_mut().unwrap();
            probed.clusters.get_mut("b").unwrap().listens = Ok(vec!["fd00::3".parse().unwrap()]);
            probed.clusters.get_mut("b").unwrap().tried = Err(String::new());
            of_probe(it).tried.as_mut().unwrap().connected.clear();
            it.probed.as_mut().unwrap().clusters.get_mut("b").unwrap().tried = Ok(Tried {
                connected: vec![Connected { address: SocketAddr::new(pod(1), PORT), outcome: Outcome::Answered }],
                resolved: Some(Ok(import().ips)),
            });
        },
        Fail,
        "a→b",
        "only IPv4 here and only IPv6 there",
        "by a family that both have",
    ),
    (
        |it| {
            for probe in it.probed.as_mut().unwrap().clusters.values_mut() {
                probe.tried.as_mut().unwrap().connected[1].outcome = Outcome::TimedOut;
            }
        },
        Warn,
        "a↔b",
        "neither leader is reached by the other cluster's pods: 10.2.2.9:7946, 10.1.2.9:7946",
        "allow 10.1.0.0/23 to reach port 7946 in b's node security group",
    ),
    (
        |it| of_probe(it).tried = Err("it ended with 2".to_owned()),
        Fail,
        "a",
        "tried nothing: it ended with 2",
        "--probe-image",
    ),
    (
        |it| of_probe(it).left = Some("forbidden".to_owned()),
        Fail,
        "a",
        "temporary pods are left: forbidden",
        "kubectl --context a delete pods -A -l cloudmap-mcs/doctor=r",
    ),
    (
        |it| of_probe(it).tried.as_mut().unwrap().resolved = Some(Err("NXDOMAIN".to_owned())),
        Fail,
        "a",
        "web.shop.svc.clusterset.local does not resolve in a pod: NXDOMAIN",
        "coredns check --context a",
    ),
    (
        |it| of_probe(it).tried.as_mut().unwrap().resolved = Some(Ok(BTreeSet::from([pod(9)]))),
        Fail,
        "a",
        "is 10.9.2.3 in a pod, and 10.96.0.9 in the ServiceImport",
        "another DNS server",
    ),
    (|it| of_probe(it).import = None, Skip, "a", "no ServiceImport", "after the first export"),
];
