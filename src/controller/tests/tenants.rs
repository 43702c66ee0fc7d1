//! What a tenant, who may write Services and ServiceExports in one namespace, cannot do to the ledger and to others.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;

use super::{
    annotated::{HOSTNAME, PYTHON},
    world::{Cluster, World, always, until},
};
use api::names;
use cloudmap::NamespaceKind;
use instances::RegistrationPolicy;
use model::ServiceKey;

const TARGET: &str = "external-dns.alpha.kubernetes.io/target";

impl World {
    /// Services and ids of instances in the namespaces of ledgers.
    fn ledgers(&self) -> BTreeMap<String, Vec<String>> {
        let registry = self.fake.registry();
        let name = |id| registry.namespaces.iter().find(|there| Some(&there.id) == id).map(|there| there.name.clone());
        let services = registry.services.values().filter_map(|service| {
            let namespace = name(service.namespace_id.as_ref()).filter(|name| name.starts_with("clusterset-"))?;
            let inside = registry.instances.keys().filter(|(id, _)| *id == service.id);
            Some((format!("{namespace}/{}", service.name), inside.map(|(_, id)| id.to_string()).collect()))
        });
        services.collect()
    }
}

impl Cluster {
    /// A Service with endpoints, and its ServiceExport, in another namespace than the world's.
    pub(super) fn export_in(&self, key: &ServiceKey, port: u16, addresses: &[&str]) {
        self.export_with(key, port, addresses, &json!({}));
    }

    /// The same with annotations on the export.
    pub(super) fn export_with(&self, key: &ServiceKey, port: u16, addresses: &[&str], annotations: &serde_json::Value) {
        let (namespace, name) = (&*key.namespace, &*key.name);
        self.objects.add_namespace(namespace);
        let port = json!({"name": "http", "protocol": "TCP", "port": port});
        let service = json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": "10.96.200.9", "clusterIPs": ["10.96.200.9"], "ipFamilies": ["IPv4"], "ports": [port]},
        });
        self.objects.put_service(serde_json::from_value(service).unwrap());
        let endpoints: Vec<_> =
            addresses.iter().map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
        let managed_by = "endpointslice-controller.k8s.io";
        let slice = json!({
            "metadata": {
                "namespace": namespace, "name": format!("{name}-1"),
                "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: name, names::LABEL_SLICE_MANAGED_BY: managed_by},
            },
            "addressType": if addresses.iter().any(|address| address.contains(':')) { "IPv6" } else { "IPv4" },
            "ports": [port], "endpoints": endpoints,
        });
        self.objects.put_slice(serde_json::from_value(slice).unwrap());
        let export = json!({
            "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
            "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
        });
        self.objects.put_export(serde_json::from_value(export).unwrap());
    }

    fn node_port(&self, name: &str, annotations: &[(&str, &str)]) {
        self.annotate(name, annotations, &json!({"type": "NodePort", "clusterIP": "10.96.0.1"}));
    }
}

/// Registered there, addresses are heads that cannot be read, a thousand of them hide all others, and a service named like the
/// pages of a future cluster keeps that cluster out.
#[tokio::test(start_paused = true)]
async fn nothing_is_ever_registered_in_a_ledger_whichever_annotation_asks_for_it() {
    let world = World::new();
    // Of another ClusterSet.
    let other = world.add_namespace("clusterset-test", NamespaceKind::Http);
    world.fake.registry().add_service(&other, "clusters", "cloudmap-mcs", "");
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    let heads = || world.ledgers()["clusterset-prod/clusters"].clone();
    assert_eq!(heads(), ["blue", "green"]);
    let services: Vec<_> = world.ledgers().into_keys().collect();

    let addresses = "10.9.9.1,10.9.9.2,10.9.9.3";
    for (name, host) in [
        ("evil", "clusters.clusterset-prod"),
        ("upper", "clusters.CLUSTERSET-prod"),
        ("squatter", "exports-0.red.clusterset-prod"),
        ("neighbour", "clusters.clusterset-test"),
    ] {
        blue.node_port(name, &[(HOSTNAME, host), (TARGET, addresses)]);
        let text = blue.until_noted(name, "NoNamespace").await;
        assert!(text.contains("ledger") && text.contains(&host.to_lowercase()) && text.contains("change"), "{text}");
    }
    for (name, service) in [("python", "clusters"), ("pages", "exports-0.red")] {
        blue.headless(name, &[(PYTHON[0], "clusterset-prod"), (PYTHON[1], service)], &["10.9.9.1"]);
        let text = blue.until_noted(name, "InvalidName").await;
        assert!(text.contains("\"clusterset-prod\"") && text.contains("ledger") && text.contains(PYTHON[0]), "{text}");
    }
    for (name, namespace, share) in [
        ("first", "clusterset-prod", "false"),
        ("second", "clusterset-test", "true"),
        ("third", "clusterset-new", "true"),
    ] {
        blue.export(name, 80, &["10.9.9.1"]);
        let annotations = [
            (names::ANNOTATION_TARGET_NAMESPACE, namespace),
            (names::ANNOTATION_TARGET_SERVICE, "clusters"),
            (names::ANNOTATION_SHARE, share),
        ];
        blue.put_export(name, &annotations);
        blue.until_says(name, "Registered", "False", "InvalidAnnotation").await;
        let text = blue.condition(name, "Registered").unwrap().message;
        assert!(text.contains(namespace) && text.contains(names::ANNOTATION_TARGET_NAMESPACE), "{text}");
    }
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(heads(), ["blue", "green"]);
    assert_eq!(world.ledgers().into_keys().collect::<Vec<_>>(), services, "services were made in a ledger");
    assert!(world.ledgers().values().flatten().all(|id| !id.starts_with("k8s-")), "{:?}", world.ledgers());
    // Other clusters still hear of this one.
    green.until_imports("first", &["10.9.9.1"]).await;
    until("a future cluster is not kept out", || !world.ledgers().contains_key("clusterset-prod/exports-0.red")).await;
}

/// In one cluster and across two: whoever names it first does not keep a name that is another namespace's own.
#[tokio::test(start_paused = true)]
async fn a_name_that_a_tenant_took_goes_to_the_namespace_whose_own_it_is() {
    for here in [true, false] {
        let world = World::new();
        world.add_namespace("bank", NamespaceKind::Http);
        let (blue, mut green) = (world.cluster("blue"), world.cluster("green"));
        blue.until_knows(&green).await;
        green.until_knows(&blue).await;
        // The world's Services are in the namespace shop; this one wants a name of the namespace bank.
        blue.export("evil", 80, &["10.0.0.66"]);
        let names = [(names::ANNOTATION_TARGET_NAMESPACE, "bank"), (names::ANNOTATION_TARGET_SERVICE, "payments")];
        blue.put_export("evil", &names);
        until("nobody else has it", || world.holds("bank", "payments") == ["10.0.0.66"]).await;

        let owner = if here { &blue } else { &green };
        let payments = ServiceKey::new("bank", "payments");
        owner.export_in(&payments, 80, &["10.1.0.1"]);
        until("it is the bank's", || world.holds("bank", "payments") == ["10.1.0.1"]).await;
        blue.until_says("evil", "Registered", "False", "NameConflict").await;
        let text = blue.condition("evil", "Registered").unwrap().message;
        assert!(text.contains("ServiceExport bank/payments") && text.contains("whose own name it is"), "{text}");
        if !here {
            green.kill();
            green.lead();
        }
        always("it stays so", Duration::from_mins(2), || world.holds("bank", "payments") == ["10.1.0.1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_takeover_waits_for_the_administrator_and_nobody_tells_the_tenant_the_owner_id() {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let heritage = "heritage=external-dns,external-dns/owner=eks,external-dns/resource=service/shop/web";
    let theirs = world.fake.registry().add_service(&internal, "web", "random", heritage);
    world.add_instance(&theirs, "10.0.0.9", &[("AWS_INSTANCE_IPV4", "10.0.0.9")]);
    let blue = world.cluster("blue");
    let before = world.holds("internal", "web");
    blue.headless("web", &[(HOSTNAME, "web.internal"), (names::ANNOTATION_ADOPT, "external-dns/eks")], &["10.0.0.1"]);
    let text = blue.until_noted("web", "NotAllowed").await;
    assert!(text.contains(names::ANNOTATION_ALLOW_ADOPT) && text.contains("administrator"), "{text}");
    let text = blue.until_noted("web", "ForeignOwner").await;
    assert!(!text.contains("eks"), "{text}");
    // An export fares alike.
    blue.export("other", 80, &["10.0.0.2"]);
    let annotations = [
        (names::ANNOTATION_TARGET_NAMESPACE, "internal"),
        (names::ANNOTATION_TARGET_SERVICE, "web"),
        (names::ANNOTATION_ADOPT, "external-dns/eks"),
    ];
    blue.headless("web", &[], &["10.0.0.1"]);
    blue.put_export("other", &annotations);
    blue.until_says("other", "Registered", "False", "InvalidAnnotation").await;
    let text = blue.condition("other", "Registered").unwrap().message;
    assert!(text.contains(names::ANNOTATION_ALLOW_ADOPT), "{text}");
    assert_eq!(world.holds("internal", "web"), before);

    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_ALLOW_ADOPT, "external-dns/eks")]);
    until("it is taken over", || world.holds("internal", "web") == ["10.0.0.2"]).await;
}

#[tokio::test(start_paused = true)]
async fn under_the_policy_granted_names_follow_what_the_namespace_has() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    blue.objects.annotate_namespace("shop", &[]);
    blue.kill();
    blue.registration = RegistrationPolicy::Granted;
    blue.lead();
    blue.headless("web", &[(HOSTNAME, "web.internal")], &["10.0.0.1"]);
    let text = blue.until_noted("web", "NotAllowed").await;
    assert!(text.contains("internal/web") && text.contains(names::ANNOTATION_MAY_REGISTER), "{text}");
    blue.export("own", 80, &["10.0.0.2"]);
    until("its own name an export has", || world.holds("shop", "own") == ["10.0.0.2"]).await;
    blue.put_export("own", &[(names::ANNOTATION_TARGET_NAMESPACE, "internal")]);
    blue.until_says("own", "Registered", "False", "InvalidAnnotation").await;
    assert!(world.service("internal", "web").is_none() && world.service("internal", "own").is_none());

    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_MAY_REGISTER, "internal/web, internal/ow*")]);
    until("both are granted", || {
        world.holds("internal", "web") == ["10.0.0.1"] && world.holds("internal", "own") == ["10.0.0.2"]
    })
    .await;
    blue.objects.annotate_namespace("shop", &[(names::ANNOTATION_MAY_REGISTER, "internal/own")]);
    until("one is taken back", || world.service("internal", "web").is_none()).await;
    assert_eq!(world.holds("internal", "own"), ["10.0.0.2"]);
}

/// A Service without a selector, whose EndpointSlices the tenant writes, would lead the pods of all clusters to the credentials of
/// their nodes; and an address that the own cluster may give to a Service tomorrow.
#[tokio::test(start_paused = true)]
async fn addresses_that_are_nobodys_endpoints_leave_no_cluster_and_enter_none() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    blue.export("web", 80, &["10.0.0.1", "169.254.169.254", "::ffff:169.254.170.23", "240.0.0.1"]);
    green.until_imports("web", &["10.0.0.1"]).await;
    until("it is registered", || world.holds("shop", "web") == ["10.0.0.1"]).await;
    let notes = blue.objects.take_notes();
    let said = notes.iter().find(|note| note.reason == "AddressSkipped").expect("nothing is said");
    let regarding = (said.regarding.kind.as_deref(), said.regarding.name.as_deref());
    assert_eq!(regarding, (Some("ServiceExport"), Some("web")));
    assert!(said.text.contains("Left out addresses") && said.text.contains("169.254.169.254"), "{}", said.text);
    // In the range of Services here, though no Service has it.
    blue.put_endpoints("web", &["10.0.0.1", "10.96.77.77"]);
    until("it is registered, too", || world.holds("shop", "web") == ["10.0.0.1", "10.96.77.77"]).await;
    always("green does not take it", Duration::from_secs(30), || green.imported("web") == ["10.0.0.1"]).await;
}

/// Else everybody with `edit` in a namespace would get a part of the traffic of any ECS service.
#[tokio::test(start_paused = true)]
async fn what_others_made_is_joined_only_when_an_administrator_lists_it_whatever_the_policy_is() {
    for registration in [RegistrationPolicy::Open, RegistrationPolicy::Granted] {
        let world = World::new();
        let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
        for (name, creator) in [("pay", "ecs"), ("orders", "ecs"), ("other", "cloudmap-mcs:0123456789abcdef:1")] {
            let service = world.fake.registry().add_service(&internal, name, creator, "");
            world.add_instance(&service, "task", &[("AWS_INSTANCE_IPV4", "10.9.0.1")]);
        }
        let mut blue = world.cluster("blue");
        blue.objects.annotate_namespace("shop", &[]);
        blue.kill();
        blue.registration = registration;
        blue.lead();
        let untouched =
            || ["pay", "orders", "other"].iter().all(|name| world.holds("internal", name) == ["task=10.9.0.1"]);
        for (name, share) in [("pay", "false"), ("other", "true")] {
            blue.export(name, 80, &["10.0.0.1"]);
            let target = [(names::ANNOTATION_TARGET_NAMESPACE, "internal"), (names::ANNOTATION_TARGET_SERVICE, name)];
            blue.put_export(name, &[target[0], target[1], (names::ANNOTATION_SHARE, share)]);
        }
        blue.headless("orders", &[(HOSTNAME, "orders.internal")], &["10.0.0.2"]);
        let (reason, event) = match registration {
            RegistrationPolicy::Open => ("ForeignOwner", "ForeignOwner"),
            RegistrationPolicy::Granted => ("InvalidAnnotation", "NotAllowed"),
        };
        for name in ["pay", "other"] {
            blue.until_says(name, "Registered", "False", reason).await;
            let text = blue.condition(name, "Registered").unwrap().message;
            assert!(text.contains("cloudmap-mcs/may-register") && text.contains(&format!("internal/{name}")), "{text}");
        }
        let text = blue.until_noted("orders", event).await;
        assert!(text.contains("cloudmap-mcs/may-register") && text.contains("internal/orders"), "{text}");
        always("nothing is joined", Duration::from_mins(6), untouched).await;

        let grant = (names::ANNOTATION_MAY_REGISTER, "internal/pay, internal/o*");
        blue.objects.annotate_namespace("shop", &[grant]);
        until("all are joined", || {
            ["pay", "orders", "other"].iter().all(|name| world.holds("internal", name).len() == 2)
        })
        .await;
        blue.objects.annotate_namespace("shop", &[]);
        until("all are left when that is taken back", untouched).await;
        // What this ClusterSet made itself needs no grant with the policy open.
        if registration == RegistrationPolicy::Open {
            blue.headless("new", &[(HOSTNAME, "new.internal")], &["10.0.0.3"]);
            until("a new name is registered", || world.holds("internal", "new") == ["10.0.0.3"]).await;
            blue.kill();
            blue.lead();
            blue.put_endpoints("new", &["10.0.0.4"]);
            until("and followed by the next leader", || world.holds("internal", "new") == ["10.0.0.4"]).await;
        }
    }
}
