//! Annotated objects with the names of load balancers.

use std::time::Duration;

use k8s_openapi::api::{core::v1 as core, networking::v1 as networking};
use serde_json::{Value, json};

use super::{
    annotated::HOSTNAME,
    world::{World, until},
};
use cloudmap::NamespaceKind;

#[tokio::test(start_paused = true)]
async fn an_annotated_ingress_is_registered_where_its_load_balancer_is_and_claims_its_names() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let mut blue = world.cluster("blue");
    let elb = "k8s-shop-web-1.eu-west-1.elb.amazonaws.com";
    let ingress = |annotations: Value, balancers: Value| -> networking::Ingress {
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "front", "uid": "uid-of-front", "annotations": annotations},
            "spec": {"rules": [{"host": "shop.internal"}, {"host": "other.internal"}]},
            "status": {"loadBalancer": {"ingress": balancers}},
        }))
        .unwrap()
    };
    let annotated = || json!({HOSTNAME: "www.internal", "external-dns.alpha.kubernetes.io/ttl": "60"});
    // A Service has one of its names already.
    blue.headless("other", &[(HOSTNAME, "other.internal")], &["10.0.0.1"]);
    until("the Service is registered", || world.holds("internal", "other") == ["10.0.0.1"]).await;
    blue.objects.put_ingress(ingress(annotated(), json!([{"hostname": elb}])));
    until("its names are", || ["www", "shop"].iter().all(|name| world.holds("internal", name) == [elb])).await;
    assert_eq!(world.service("internal", "www").unwrap().dns.unwrap().records[0].ttl, 60);
    assert_eq!(world.holds("internal", "other"), ["10.0.0.1"]);
    let mut notes = Vec::new();
    let deadline = tokio::time::Instant::now() + Duration::from_mins(10);
    while !["DomainConflict", "IPRegistered"].iter().all(|reason| notes.iter().any(|(said, _)| said == reason)) {
        assert!(tokio::time::Instant::now() < deadline, "{notes:?}");
        let of_it = blue.objects.take_notes().into_iter().filter(|n| n.regarding.kind.as_deref() == Some("Ingress"));
        notes.extend(of_it.map(|note| (note.reason.as_str(), note.text)));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let conflict = notes.iter().find(|(reason, _)| *reason == "DomainConflict").unwrap();
    assert!(conflict.1.contains("Service shop/other of cluster blue"), "{conflict:?}");

    // Gone while nobody led; an Ingress without annotations asks for nothing.
    blue.kill();
    blue.objects.put_ingress(ingress(json!({}), json!([{"hostname": elb}])));
    blue.lead();
    until("it is withdrawn", || ["www", "shop"].iter().all(|name| world.service("internal", name).is_none())).await;
    assert_eq!(world.holds("internal", "other"), ["10.0.0.1"]);
    blue.objects.put_ingress(ingress(annotated(), json!([{"ip": "192.0.2.1"}])));
    until("it is registered again", || world.holds("internal", "www") == ["192.0.2.1"]).await;
    blue.objects.remove_ingress(ingress(annotated(), json!([])));
    until("and withdrawn", || world.service("internal", "www").is_none()).await;
}

/// A cloud's load balancer first has a host name, then an address; and somebody corrects a target.
#[tokio::test(start_paused = true)]
async fn a_name_follows_its_load_balancer_from_host_name_to_address_and_back() {
    const TARGET: &str = "external-dns.alpha.kubernetes.io/target";
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let balancer = |balancers: Value, annotations: Value| -> core::Service {
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "lb", "uid": "uid-of-lb", "annotations": annotations},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.96.0.9", "ports": [{"port": 443, "protocol": "TCP"}]},
            "status": {"loadBalancer": {"ingress": balancers}},
        }))
        .unwrap()
    };
    let named = || json!({HOSTNAME: "lb.internal"});
    for (balancers, expected) in [
        (json!([{"hostname": "lb.example.org"}]), "lb.example.org"),
        (json!([{"ip": "192.0.2.1"}]), "192.0.2.1"),
        (json!([{"hostname": "k8s-shop-lb.eu-west-1.elb.amazonaws.com"}]), "k8s-shop-lb.eu-west-1.elb.amazonaws.com"),
    ] {
        blue.objects.put_service(balancer(balancers, named()));
        until("it is registered", || world.holds("internal", "lb") == [expected]).await;
    }
    let text = blue.until_noted("lb", "ServiceRemade").await;
    assert!(text.contains("were CNAME and its endpoints need A") && text.contains("no answer for"), "{text}");
    let targeted = |target: &str| json!({HOSTNAME: "lb.internal", TARGET: target});
    for target in ["web.exmaple.org", "192.0.2.7"] {
        blue.objects.put_service(balancer(json!([]), targeted(target)));
        until("the target is registered", || world.holds("internal", "lb") == [target]).await;
    }
}
