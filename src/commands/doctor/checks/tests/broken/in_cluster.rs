//! What can be broken in one cluster.

use super::{
    super::*,
    Case,
    State::{Fail, Skip, Warn},
    build,
};

/// All of them.
pub(super) const CASES: &[&[Case]] = &[CLUSTER, CONTROLLER, IDENTITY, PERMISSIONS, NEIGHBOURS, CORE_DNS];

/// Kubernetes.
const CLUSTER: &[Case] = &[
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
];

/// The controller.
const CONTROLLER: &[Case] = &[
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
];

/// Who the clusters are.
const IDENTITY: &[Case] = &[
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
];

/// What may be done in Kubernetes.
const PERMISSIONS: &[Case] = &[
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
];

/// Who may run beside the controller.
const NEIGHBOURS: &[Case] = &[
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
];

/// CoreDNS.
const CORE_DNS: &[Case] = &[
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
    (|it| first(it).dns.as_mut().unwrap().permitted = false, Fail, "a", "may not read ServiceImports", "coredns apply"),
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
];
