//! Broken set-ups: each begins with one that is well, breaks one thing, and has exactly one finding, with its remedy.

use super::*;
use iam::Mode;

/// A breakage; and the state, the place, and words of the one finding and of its remedy.
type Case = (fn(&mut Observation), State, &'static str, &'static str, &'static str);

/// What the leaders of both clusters say of their build.
fn build(it: &mut Observation, builds: [&str; 2]) {
    lease(it).build = Some(builds[0].to_owned());
    second(it).lease.as_mut().unwrap().as_mut().unwrap().build = Some(builds[1].to_owned());
}

/// A mirror of the registry may give it another name.
#[test]
fn the_same_build_under_two_tags_is_one_version() {
    let mut observation = healthy();
    controller(&mut observation).image = "mirror.example/cloudmap-mcs:stable".to_owned();
    build(&mut observation, ["0.1.0 (commit a, built x)"; 2]);
    let report = plan(&observation);
    let versions = report.0.iter().find(|finding| finding.subject == "versions").unwrap();
    assert_eq!((versions.state, versions.what.contains("commit a")), (State::Ok, true), "{}", versions.what);
}

#[test]
fn every_broken_set_up_is_named_with_its_remedy_and_nothing_else_is() {
    use State::{Fail, Skip, Warn};
    let cases: &[Case] = &[
        // Kubernetes.
        (
            |it| {
                // Without the cluster nothing is known that is between the two.
                it.clusters[0].seen = Err("connection refused".to_owned());
                (it.registry, it.probed) = (None, None);
            },
            Fail,
            "a",
            "not reached: connection refused",
            "kubeconfig",
        ),
        (
            |it| first(it).version = "v1.29.9".to_owned(),
            Fail,
            "a",
            "v1.29.9 is not supported",
            "upgrade the cluster to 1.30",
        ),
        (|it| first(it).version = "v2.0.0".to_owned(), Warn, "a", "no version of Kubernetes 1", "1.30"),
        (
            |it| {
                first(it).ahead = Some(SignedDuration::from_secs(-8));
                second(it).ahead = Some(SignedDuration::from_secs(-4));
            },
            Warn,
            "a",
            "8 s behind",
            "synchronize it with NTP",
        ),
        (
            |it| {
                first(it).ahead = Some(SignedDuration::from_secs(4));
                second(it).ahead = Some(SignedDuration::from_secs(-4));
            },
            Warn,
            "a, b",
            "b's clock, compared with a's, is 8 s behind",
            "synchronize both",
        ),
        (
            |it| first(it).crds[0].1 = Ok(None),
            Fail,
            "a",
            "serviceexports.multicluster.x-k8s.io is missing",
            "cloudmap-mcs crds | kubectl --context a apply",
        ),
        (
            |it| first(it).crds[1].1 = Ok(Some(Crd { established: true, served: vec!["v1alpha1".to_owned()] })),
            Fail,
            "a",
            "serviceimports.multicluster.x-k8s.io has v1alpha1, and the controller needs v1beta1",
            "cloudmap-mcs crds",
        ),
        (
            |it| first(it).crds[2].1.as_mut().unwrap().as_mut().unwrap().established = false,
            Fail,
            "a",
            "clusterproperties.about.k8s.io is not established",
            "kubectl --context a describe crd",
        ),
        (
            |it| first(it).crds.push(("cutovers.cloudmap-mcs.io".to_owned(), Ok(None))),
            Fail,
            "a",
            "cutovers.cloudmap-mcs.io is missing",
            "cloudmap-mcs crds | kubectl --context a apply",
        ),
        // The controller.
        (
            |it| {
                first(it).controller = Ok(None);
            },
            Fail,
            "a",
            "no Deployment cloudmap-mcs",
            "docs/install.md",
        ),
        (|it| controller(it).ready = 0, Fail, "a", "0 of 2 ready", "logs deployment/cloudmap-mcs"),
        (|it| controller(it).ready = 1, Warn, "a", "1 of 2 ready", "describe pods"),
        (|it| controller(it).former = 2, Warn, "a", "2 of the pods are still those before", "describe replicasets"),
        (|it| controller(it).wanted = 0, Fail, "a", "2 of 0 ready", "--replicas=2"),
        (
            |it| controller(it).pulled = ["r@sha256:a".to_owned(), "r@sha256:b".to_owned()].into(),
            Warn,
            "a",
            "the pods run 2 different images of this name",
            "rollout restart",
        ),
        (
            |it| build(it, ["0.1.0 (commit a, built x)", "0.1.0 (commit b, built x)"]),
            Warn,
            "a, b",
            "the same tag, and the controllers are different builds (0.1.0 (commit a, built x): a; 0.1.0 (commit b",
            "a tag of its own",
        ),
        (
            |it| {
                controller(it).image = "cloudmap-mcs:0.2.0".to_owned();
                build(it, ["0.2.0 (commit a, built x)", "0.1.0 (commit b, built x)"]);
            },
            Warn,
            "a, b",
            "different versions (0.1.0 (commit b, built x): b; 0.2.0",
            "upgrade",
        ),
        (|it| controller(it).image = "cloudmap-mcs:0.2.0".to_owned(), Warn, "a, b", "0.1.0: b; 0.2.0: a", "upgrade"),
        (
            |it| drop(controller(it).settings.values.insert("CLOUDMAP_MCS_REGION".to_owned(), "eu-west-1".to_owned())),
            Fail,
            "a, b",
            "eu-central-1: b; eu-west-1: a",
            "one region",
        ),
        (|it| first(it).lease = Ok(None), Fail, "a", "no Lease", "logs"),
        (|it| lease(it).holder = None, Fail, "a", "nobody holds the Lease", "logs"),
        (
            |it| lease(it).renewed = Timestamp::from_second(1_000_000 - 100).ok(),
            Fail,
            "a",
            "pod-a has not renewed the Lease for 100 s",
            "logs",
        ),
        (
            |it| lease(it).renewed = Timestamp::from_second(1_000_000 + 40).ok(),
            Fail,
            "a",
            "the clock of pod-a's Node is 40 s ahead",
            "NTP",
        ),
        (
            |it| lease(it).yields = Some("Service is old".to_owned()),
            Warn,
            "a",
            "would rather not lead: Service is old",
            "logs",
        ),
        // Who the clusters are.
        (
            |it| {
                first(it).properties = Ok(Vec::new());
                controller(it).settings.unread = Some("the ConfigMap cannot be read".to_owned());
            },
            Skip,
            "a",
            "the flags of the controller were not read",
            "the Role cloudmap-mcs-reader",
        ),
        (
            |it| first(it).properties = Ok(vec![property("cluster.clusterset.k8s.io", "c1")]),
            Fail,
            "a",
            "in no ClusterSet",
            "kubectl --context a apply -f samples/cluster-properties.yaml",
        ),
        (
            |it| {
                first(it).properties = Ok(vec![property("clusterset.k8s.io", "prod")]);
                let head = ledger(it).heads.remove("c1").unwrap();
                ledger(it).heads.insert("uid-1".to_owned(), head);
            },
            Warn,
            "a",
            "without an id of its own",
            "before the first export",
        ),
        (
            |it| first(it).properties.as_mut().unwrap()[0] = property("cluster.clusterset.k8s.io", "Not_An_Id"),
            Fail,
            "a",
            "cluster.clusterset.k8s.io cannot be used",
            "correct the ClusterProperty",
        ),
        (
            |it| drop(controller(it).settings.values.insert("CLOUDMAP_MCS_CLUSTER_ID".to_owned(), "other".to_owned())),
            Fail,
            "a",
            "but the flag --cluster-id is \"other\"",
            "cloudmap-mcs-config",
        ),
        (
            |it| {
                first(it).properties.as_mut().unwrap()[0] = property("cluster.clusterset.k8s.io", "c2");
                it.registry = None;
            },
            Fail,
            "a, b",
            "the same cluster id c2",
            "an id of its own",
        ),
        (
            |it| first(it).properties.as_mut().unwrap()[1] = property("clusterset.k8s.io", "test"),
            Fail,
            "a, b",
            "different ClusterSets, and exchange nothing (prod: b; test: a)",
            "the same ClusterProperty",
        ),
        (
            |it| {
                first(it).uid = Ok("uid-2".into());
                ledger(it).heads.get_mut("c1").unwrap().1 = "uid-2".to_owned();
            },
            Fail,
            "a, b",
            "they are one cluster, or one is restored",
            "created anew",
        ),
        // What may be done in Kubernetes.
        (
            |it| first(it).access.as_mut().unwrap()[3].allowed = false,
            Fail,
            "a",
            "lacks 1 of",
            "kubectl --context a apply -k your overlay, with the components",
        ),
        (
            |it| first(it).access = Err(Unread::Forbidden("you may not ask".to_owned())),
            Skip,
            "a",
            "not read: you may not ask",
            "cloudmap-mcs-reader",
        ),
        // Who may run beside the controller.
        (
            |it| first(it).enforced = Ok(None),
            Warn,
            "a",
            "cloudmap-mcs-system enforces no level of Pod Security",
            "kubectl --context a label --overwrite namespace cloudmap-mcs-system pod-security.kubernetes.io/enforce=restricted",
        ),
        (
            |it| first(it).enforced = Ok(Some("baseline".to_owned())),
            Warn,
            "a",
            "enforces baseline",
            "pod-security.kubernetes.io/enforce=restricted",
        ),
        (
            |it| first(it).enforced = Err(Unread::Forbidden("you may not list namespaces".to_owned())),
            Skip,
            "a",
            "not read: you may not list namespaces",
            "cloudmap-mcs-reader",
        ),
        // CoreDNS.
        (
            |it| {
                first(it).dns.as_mut().unwrap().corefile.as_mut().unwrap().text =
                    coredns::whole().corefile.unwrap().text.replace("      multicluster clusterset.local", "      #");
            },
            Fail,
            "a",
            "the Corefile",
            "cloudmap-mcs coredns apply --context a",
        ),
        (
            |it| first(it).dns.as_mut().unwrap().permitted = false,
            Fail,
            "a",
            "may not read ServiceImports",
            "coredns apply",
        ),
        (
            |it| first(it).dns.as_mut().unwrap().workload.as_mut().unwrap().image = "coredns:v1.11.1".to_owned(),
            Fail,
            "a",
            "CoreDNS is 1.11.1",
            "update it",
        ),
        (
            |it| {
                let dns = first(it).dns.as_mut().unwrap();
                (dns.corefile, dns.workload, dns.permitted) = (None, None, false);
            },
            Skip,
            "a",
            "no ConfigMap kube-system/coredns",
            "EKS Auto Mode",
        ),
        (
            |it| first(it).dns.as_mut().unwrap().defined = false,
            Fail,
            "a",
            "ServiceImports are not defined",
            "cloudmap-mcs crds | kubectl --context a apply",
        ),
        // Addresses.
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
        // The way to AWS, and the role.
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
                of_registry(it).namespaces =
                    Err(error(ErrorKind::NoCredentials, "cannot get AWS credentials: dns error"));
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
                answer(
                    it,
                    "WriteTheLedger",
                    Operation::DeregisterInstance,
                    Answer::Denied("access denied: x".to_owned()),
                );
            },
            Fail,
            "registry",
            "WriteTheLedger: DeregisterInstance denied (access denied: x)",
            "cloudmap-mcs iam --mode instances --clusterset prod --account 111122223333 --region eu-central-1",
        ),
        (
            |it| {
                for operation in [Operation::RegisterInstance, Operation::DeregisterInstance, Operation::DeleteService]
                {
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
        // Quotas.
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
        // The network.
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
    assert!(cases.len() > 40);
    let mut wrong = BTreeMap::new();
    for (number, (breaks, state, place, what, remedy)) in cases.iter().enumerate() {
        let mut observation = healthy();
        breaks(&mut observation);
        let report = plan(&observation);
        let found: Vec<_> = report.0.iter().filter(|finding| finding.state != State::Ok).collect();
        let is_it = match &*found {
            [one] => {
                one.state == *state
                    && one.place == *place
                    && one.what.contains(what)
                    && one.remedy.as_ref().is_some_and(|it| it.contains(remedy))
            }
            _ => false,
        };
        if !is_it {
            wrong.insert((number, *what), format!("{found:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
