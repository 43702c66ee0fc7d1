#[path = "plan_tests/refusals.rs"]
mod refusals;

use k8s_openapi::api::core::v1;
use serde_json::{Value, json};

use super::*;
use cloudmap::{Namespace, NamespaceKind, RecordType, fake::mk_service};
use cluster::cache::Narrow;
use instances::{Owner, RegistrationPolicy, attributes::ServiceTraits, policy::mk_rights, records::host_record};
use model::{Conditions, ServiceKey};

const HOSTNAME: &str = "external-dns.alpha.kubernetes.io/hostname";
const INTERNAL: &str = "external-dns.alpha.kubernetes.io/internal-hostname";
const TARGET: &str = "external-dns.alpha.kubernetes.io/target";
const ELB: &str = "web-1.eu-west-1.elb.amazonaws.com";

fn service(annotations: &[(&str, &str)], spec: &Value, load_balancer: &Value) -> Service {
    let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
    let object: v1::Service = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", "annotations": annotations},
        "spec": spec,
        "status": {"loadBalancer": {"ingress": load_balancer}},
    }))
    .unwrap();
    Service::narrow(object).unwrap()
}

fn headless(annotations: &[(&str, &str)]) -> Service {
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    service(annotations, &spec, &json!([]))
}

fn pod(ip: &str, ready: bool, hostname: Option<&str>) -> Endpoint {
    Endpoint {
        ipv4: ip.parse().ok(),
        ipv6: ip.parse().ok(),
        ports: [EndpointPort { name: "http".into(), protocol: model::Protocol::Tcp, port: 8080, app_protocol: None }]
            .into(),
        conditions: Conditions { ready, ..Conditions::READY },
        hostname: hostname.map(Arc::from),
        zone: None,
        node: None,
    }
}

fn zones() -> Zones {
    let namespace = |(name, kind): (&str, NamespaceKind)| Namespace {
        id: "ns".into(),
        arn: "arn".into(),
        name: name.into(),
        http_name: name.into(),
        kind,
        description: None,
        created: 0,
        soa_ttl: None,
        hosted_zone: None,
    };
    let all = [("internal", NamespaceKind::DnsPrivate), ("test-namespace", NamespaceKind::Http)].map(namespace);
    Zones::new(&all)
}

fn planned(service: &Service, endpoints: &[Endpoint]) -> Planned {
    let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
    let key = ServiceKey::new("shop", "web");
    let source = Source { identity: &identity, service: &key, ports: &service.ports, region: None };
    plan(
        service,
        &source,
        endpoints,
        &Arc::default(),
        Some(&zones()),
        &AnnotationSettings::default(),
        &Rights::default(),
    )
    .unwrap()
}

/// One line per target: ready addresses, records, TTL.
fn lines(planned: &Planned) -> Vec<String> {
    let line = |(target, wanted): (&Target, &Wanted)| {
        let ready = wanted.instances.iter().filter(|spec| spec.is_ready());
        let addresses: Vec<_> = ready.map(InstanceSpec::address).collect();
        let dns = wanted.creation.dns.as_ref().map_or("nothing yet".to_owned(), |dns| {
            let records: Vec<_> =
                dns.records.iter().map(|record| format!("{:?} {}", record.record_type, record.ttl)).collect();
            format!("{}{}", records.join("+"), if dns.weighted { " weighted" } else { "" })
        });
        format!("{target}: {} ({dns})", addresses.join(" "))
    };
    planned.wanted.iter().flatten().map(line).collect()
}

fn reasons(planned: &Planned) -> Vec<&str> {
    planned.refusals.iter().map(|refusal| refusal.reason.as_str()).collect()
}

/// `example/nginx-service.yaml` of the Python controller, which would create A, TTL 60, MULTIVALUE.
#[test]
fn a_headless_service_of_the_python_controller_gets_its_ready_pods_registered() {
    let annotations =
        [("cloudmap.controller/namespace", "test-namespace"), ("cloudmap.controller/hostname", "nginx-service")];
    let pods = [pod("10.0.0.1", true, None), pod("10.0.0.2", false, None), pod("10.0.0.3", true, Some("nginx-0"))];
    let found = planned(&headless(&annotations), &pods);
    assert_eq!(lines(&found), ["test-namespace/nginx-service: 10.0.0.1 10.0.0.3 (A 60)"]);
    assert_eq!(found.refusals, []);
    let wanted = found.wanted.unwrap().into_values().next().unwrap();
    assert!(!wanted.creation.namespace && wanted.consent.named, "namespaces are never created, services are joined");

    let clusterip = service(&annotations, &json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]}), &json!([]));
    let found = planned(&clusterip, &pods);
    assert_eq!((lines(&found).len(), reasons(&found)), (0, vec!["NotHeadless"]));
    assert!(found.refusals[0].message.contains("clusterIP: None"));
}

/// external-dns' tutorial for headless Services: `kafka-0.example.org` from the host name `example.org`.
#[test]
fn pods_get_names_below_a_domain_that_is_no_service_itself() {
    let pods =
        [pod("10.0.0.1", true, Some("kafka-0")), pod("10.0.0.2", true, Some("kafka-1")), pod("10.0.0.3", true, None)];
    let planned = planned(&headless(&[(HOSTNAME, "internal")]), &pods);
    assert_eq!(lines(&planned), ["internal/kafka-0: 10.0.0.1 (A 300)", "internal/kafka-1: 10.0.0.2 (A 300)"]);
    assert_eq!(reasons(&planned), ["NoNamespace"]);
}

/// The manifest of external-dns' `docs/tutorials/aws-sd.md`, whose fixture has A records with TTL 300.
#[test]
fn a_headless_service_of_external_dns_gets_its_ready_pods_registered() {
    let found = planned(&headless(&[(HOSTNAME, "nginx.internal")]), &[pod("10.0.0.1", true, None)]);
    assert_eq!(lines(&found), ["internal/nginx: 10.0.0.1 (A 300)"]);
    // Nothing is ready yet, but the service is created anyway, because the Service determines the records.
    assert_eq!(lines(&planned(&headless(&[(HOSTNAME, "nginx.internal")]), &[])), ["internal/nginx:  (A 300)"]);
}

#[test]
fn pods_with_host_names_get_names_of_their_own() {
    let pods = [pod("10.0.0.1", true, Some("db-0")), pod("10.0.0.2", true, Some("db-1"))];
    let found = planned(&headless(&[(HOSTNAME, "db.internal"), ("external-dns.kubernetes.io/ttl", "30s")]), &pods);
    assert_eq!(
        lines(&found),
        [
            "internal/db: 10.0.0.1 10.0.0.2 (A 30)",
            "internal/db-0.db: 10.0.0.1 (A 30)",
            "internal/db-1.db: 10.0.0.2 (A 30)"
        ]
    );
}

#[test]
fn records_follow_the_families_of_the_service() {
    let spec = |families: Value| {
        json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": families,
        "selector": {"app": "web"}})
    };
    for (families, records) in [
        (json!(["IPv6"]), "(AAAA 300)".replace("AAAA", "Aaaa")),
        (json!(["IPv6", "IPv4"]), "(A 300+Aaaa 300)".to_owned()),
    ] {
        let service = service(&[(HOSTNAME, "web.internal")], &spec(families), &json!([]));
        assert!(lines(&planned(&service, &[]))[0].ends_with(&records));
    }
    let mut both = pod("10.0.0.1", true, None);
    both.ipv6 = "fd00::1".parse().ok();
    let dual = service(&[(HOSTNAME, "web.internal")], &spec(json!(["IPv4", "IPv6"])), &json!([]));
    let wanted = planned(&dual, &[both]).wanted.unwrap().into_values().next().unwrap();
    assert_eq!(wanted.instances.len(), 1, "both families of a pod are one instance");
}

/// external-dns may write them to Route 53, which is not for this controller.
#[test]
fn host_names_outside_the_domain_filter_are_left_to_others_if_no_namespace_has_them() {
    let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
    let key = ServiceKey::new("shop", "web");
    let source = Source { identity: &identity, service: &key, ports: &[], region: None };
    let settings = AnnotationSettings { domain_filter: vec!["internal".to_owned()], ..AnnotationSettings::default() };
    for (hosts, planned, refused) in [
        ("web.internal,www.example.org,*.example.org,example.org", "internal/web:  (A 300)", &[][..]),
        ("*.internal", "", &["InvalidAnnotation"]),
        ("internal", "", &["NoNamespace"]),
        ("web.test-namespace", "", &["NoNamespace"]),
    ] {
        let service = headless(&[(HOSTNAME, hosts)]);
        let found = plan(&service, &source, &[], &Arc::default(), Some(&zones()), &settings, &Rights::default());
        let found = found.unwrap();
        assert_eq!((lines(&found).concat().as_str(), reasons(&found)), (planned, refused.to_vec()), "{hosts}");
    }
    // Without the filter.
    let found = planned(&headless(&[(HOSTNAME, "*.internal,a.internal,www.example.org")]), &[]);
    assert_eq!(lines(&found), ["internal/a:  (A 300)"]);
    assert_eq!(reasons(&found), ["NoNamespace", "InvalidAnnotation"]);
}

/// In a cluster with one family, a service with records for both would take none of its endpoints.
#[test]
fn a_headless_service_without_a_selector_gets_records_for_the_families_of_its_endpoints() {
    let spec = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "RequireDualStack"});
    let db = service(&[(HOSTNAME, "db.internal")], &spec, &json!([]));
    for (addresses, expected) in [
        (&[][..], "internal/db:  (nothing yet)"),
        (&["10.0.0.1"], "internal/db: 10.0.0.1 (A 300)"),
        (&["fd00::1"], "internal/db: fd00::1 (Aaaa 300)"),
    ] {
        let endpoints: Vec<_> = addresses.iter().map(|address| pod(address, true, None)).collect();
        assert_eq!(lines(&planned(&db, &endpoints)), [expected]);
    }
}

/// Annotations, `spec`, `status.loadBalancer.ingress`; the lines and the reasons of refusals.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a Value, Value, &'a [&'a str], &'a [&'a str]);

#[test]
fn each_type_of_service_gets_the_backends_that_external_dns_gives_it() {
    let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
    let ips =
        json!({"type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::96"], "ports": ports});
    let balanced =
        json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": ports});
    let external_ips = json!({"type": "LoadBalancer", "clusterIP": "10.96.0.1", "externalIPs": ["198.51.100.7"]});
    let external = json!({"type": "ExternalName", "externalName": "Db.example.org."});
    let node_port = json!({"type": "NodePort", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"]});
    let web = (HOSTNAME, "web.internal");
    let inner = (INTERNAL, "in.internal");
    let cases: &[Case<'_>] = &[
        (&[web], &balanced, json!([{"hostname": ELB}]), &[&format!("internal/web: {ELB} (A 300 weighted)")], &[]),
        (
            &[web],
            &balanced,
            json!([{"hostname": "lb.example.org"}]),
            &["internal/web: lb.example.org (Cname 300 weighted)"],
            &[],
        ),
        (
            &[web],
            &balanced,
            json!([{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}]),
            &["internal/web: 192.0.2.1 192.0.2.2 (A 300)"],
            &[],
        ),
        (&[web], &balanced, json!([]), &["internal/web:  (nothing yet)"], &[]),
        (
            &[web, inner],
            &balanced,
            json!([{"hostname": ELB}]),
            &["internal/in: 10.96.0.1 (A 300)", &format!("internal/web: {ELB} (A 300 weighted)")],
            &[],
        ),
        (&[web], &external_ips, json!([{"hostname": ELB}]), &["internal/web: 198.51.100.7 (A 300)"], &[]),
        (&[inner], &ips, json!([]), &["internal/in: 10.96.0.1 (A 300+Aaaa 300)"], &[]),
        (&[web], &ips, json!([]), &[], &["NoAddress"]),
        (&[web], &node_port, json!([]), &[], &["NoAddress"]),
        (&[web], &external, json!([]), &["internal/web: db.example.org (Cname 300 weighted)"], &[]),
        (
            &[web, (TARGET, "192.0.2.9, fd00::9")],
            &node_port,
            json!([]),
            &["internal/web: 192.0.2.9 (A 300+Aaaa 300)"],
            &[],
        ),
        (&[web, (TARGET, ELB)], &ips, json!([]), &[&format!("internal/web: {ELB} (A 300 weighted)")], &[]),
        (
            &[(HOSTNAME, "web.internal,www.internal,web.example.com")],
            &external,
            json!([]),
            &["internal/web: db.example.org (Cname 300 weighted)", "internal/www: db.example.org (Cname 300 weighted)"],
            &["NoNamespace"],
        ),
        (&[(HOSTNAME, "-web.internal")], &external, json!([]), &[], &["InvalidName"]),
    ];
    for (annotations, spec, load_balancer, expected, refused) in cases {
        let found = planned(&service(annotations, spec, load_balancer), &[]);
        assert_eq!(lines(&found), *expected, "{annotations:?} {spec}");
        assert_eq!(reasons(&found), *refused, "{annotations:?} {spec}");
    }
}

/// A service that was created with these records takes the instances, by AWS's checks.
#[test]
fn planned_instances_fit_the_service_that_is_created_for_them() {
    for (annotations, targets) in [
        ("10.0.0.1", 1),
        (ELB, 1),
        ("db.example.org", 1),
        ("10.0.0.1,10.0.0.2,fd00::1", 2),
        ("10.0.0.1,fd00::1,fd00::2,fd00::3", 3),
    ] {
        let service =
            service(&[(HOSTNAME, "web.internal"), (TARGET, annotations)], &json!({"type": "NodePort"}), &json!([]));
        let wanted = planned(&service, &[]).wanted.unwrap().into_values().next().unwrap();
        let made = cloudmap::Service { dns: wanted.creation.dns, ..mk_service() };
        let fits = wanted.instances.iter().filter(|spec| spec.lacks(ServiceTraits::from(&made)).is_none()).count();
        assert_eq!(fits, targets, "{annotations}");
    }
}

#[test]
fn requests_of_both_tools_add_up_and_a_service_without_requests_is_none() {
    let annotations = [
        ("cloudmap.controller/namespace", "internal"),
        ("cloudmap.controller/hostname", "nginx"),
        (HOSTNAME, "nginx.internal,www.internal"),
    ];
    let found = planned(&headless(&annotations), &[pod("10.0.0.1", true, None)]);
    assert_eq!(lines(&found), ["internal/nginx: 10.0.0.1 (A 60)", "internal/www: 10.0.0.1 (A 300)"]);
    let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
    let key = ServiceKey::new("shop", "web");
    let source = Source { identity: &identity, service: &key, ports: &[], region: None };
    let settings = AnnotationSettings::default();
    assert_eq!(
        plan(&headless(&[]), &source, &[], &Arc::default(), Some(&zones()), &settings, &Rights::default()),
        None
    );
    let unknown =
        plan(&headless(&annotations), &source, &[], &Arc::default(), None, &settings, &Rights::default()).unwrap();
    assert_eq!(unknown.wanted, None, "without the namespaces nothing is concluded");
    assert!(
        plan(&headless(&annotations[..2]), &source, &[], &Arc::default(), None, &settings, &Rights::default())
            .unwrap()
            .wanted
            .is_some()
    );
}

#[test]
fn the_owner_to_take_over_from_is_in_the_flag_or_the_annotation() {
    let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
    let key = ServiceKey::new("shop", "web");
    let source = Source { identity: &identity, service: &key, ports: &[], region: None };
    let settings = AnnotationSettings { owner_id: Some("eks".to_owned()), ..AnnotationSettings::default() };
    let rights = mk_rights(RegistrationPolicy::Open, None, Some("external-dns/other,cloudmap-controller"));
    let consent = |annotations: &[(&str, &str)]| {
        let found =
            plan(&headless(annotations), &source, &[], &Arc::default(), Some(&zones()), &settings, &rights).unwrap();
        found.wanted.unwrap().into_values().next().unwrap().consent
    };
    let eks = Some(Adopt::ExternalDns("eks".into()));
    assert_eq!(consent(&[(HOSTNAME, "web.internal")]).adopt, eks);
    let other = consent(&[(HOSTNAME, "web.internal"), ("cloudmap-mcs/adopt", "external-dns/other")]);
    assert_eq!(other.adopt, Some(Adopt::ExternalDns("other".into())));
    let python = [("cloudmap.controller/namespace", "internal"), ("cloudmap.controller/hostname", "web")];
    assert_eq!(consent(&python).adopt, None, "the flag is about external-dns");
    let both = consent(&[(HOSTNAME, "web.internal"), ("cloudmap-mcs/adopt", "cloudmap-controller")]);
    assert_eq!(both.adopt, eks, "a Service can have the annotations of both controllers");
    assert!(consent(&[(HOSTNAME, "web.internal"), ("cloudmap-mcs/share", "true")]).share);
}

#[test]
fn attributes_are_added_to_all_instances_and_bad_ones_are_reported() {
    let annotations =
        [(HOSTNAME, "web.internal"), ("cloudmap-mcs/attributes", "stage=canary,AWS_INSTANCE_IPV4=1.2.3.4")];
    let found = planned(&headless(&annotations), &[pod("10.0.0.1", true, None)]);
    assert_eq!(reasons(&found), ["InvalidAnnotation"]);
    assert!(found.refusals[0].message.contains("AWS_INSTANCE_IPV4"), "{:?}", found.refusals);
    let wanted = found.wanted.unwrap().into_values().next().unwrap();
    let attributes = wanted.instances[0].render(ServiceTraits::default()).attributes;
    assert_eq!((attributes["stage"].as_str(), attributes["AWS_INSTANCE_IPV4"].as_str()), ("canary", "10.0.0.1"));
}

#[test]
fn only_a_valid_annotation_requests_a_ttl() {
    let ttl = "external-dns.alpha.kubernetes.io/ttl";
    for (annotations, asked, records) in [
        (&[][..], None, 300),
        (&[(ttl, "30s")], Some(30), 30),
        (&[(ttl, "soon")], None, 300),
        (&[(ttl, "500ms")], None, 300),
        (&[("cloudmap-mcs/dns-ttl", "5")], Some(5), 5),
    ] {
        let annotations = [&[(HOSTNAME, "web.internal")], annotations].concat();
        let creation = planned(&headless(&annotations), &[]).wanted.unwrap().into_values().next().unwrap().creation;
        assert_eq!((creation.ttl, creation.dns.unwrap().records[0].ttl), (asked, records), "{annotations:?}");
    }
}

#[test]
fn the_records_of_aliases_and_names_are_weighted() {
    assert!(host_record(true, 60).weighted && host_record(true, 60).records[0].record_type == RecordType::A);
    assert!(host_record(false, 60).weighted && host_record(false, 60).records[0].record_type == RecordType::Cname);
}

fn planned_with(annotations: &[(&str, &str)], rights: &Rights) -> Planned {
    let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
    let key = ServiceKey::new("shop", "web");
    let source = Source { identity: &identity, service: &key, ports: &[], region: None };
    let settings = AnnotationSettings::default();
    plan(&headless(annotations), &source, &[], &Arc::default(), Some(&zones()), &settings, rights).unwrap()
}

/// A user who may annotate a Service can read the owner id of external-dns in Cloud Map, or guess it.
#[test]
fn a_takeover_happens_only_if_an_administrator_allows_it() {
    let annotations = [(HOSTNAME, "web.internal"), ("cloudmap-mcs/adopt", "external-dns/eks")];
    let consent = |rights: &Rights| {
        let found = planned_with(&annotations, rights);
        let consent = found.wanted.as_ref().unwrap().values().next().unwrap().consent.clone();
        (consent.adopt.is_some(), consent.unclear, reasons(&found).join(" "))
    };
    let allowed = |allow_adopt| mk_rights(RegistrationPolicy::Open, None, allow_adopt);
    assert_eq!(consent(&allowed(Some("external-dns/eks"))), (true, false, String::new()));
    assert_eq!(consent(&allowed(None)), (false, false, "NotAllowed".to_owned()));
    assert_eq!(consent(&Rights::default()), (false, true, String::new()), "not known yet: nothing follows");
}

#[test]
fn with_the_policy_granted_only_names_of_the_namespace_are_planned() {
    let annotations = [
        (HOSTNAME, "web.internal,www.internal"),
        ("cloudmap.controller/namespace", "test-namespace"),
        ("cloudmap.controller/hostname", "web"),
    ];
    let found = planned_with(&annotations, &mk_rights(RegistrationPolicy::Granted, Some("internal/web"), None));
    assert_eq!(lines(&found), ["internal/web:  (A 300)"]);
    assert_eq!(reasons(&found), ["NotAllowed", "NotAllowed"]);
    let unknown = planned_with(&annotations, &Rights::new(RegistrationPolicy::Granted));
    assert_eq!((unknown.wanted, unknown.refusals), (None, vec![]), "not known yet: nothing follows");
    assert_eq!(unknown.waits.as_deref(), Some("the Namespace shop is not known yet"));
    assert_eq!(lines(&planned_with(&annotations, &Rights::default())).len(), 3, "open");
}
