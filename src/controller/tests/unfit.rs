//! What does not fit, or names something that is not there, is said; what is registered stays, and endpoints are followed.

use std::time::Duration;

use serde_json::json;

use super::{
    annotated::HOSTNAME,
    world::{Cluster, World, always, until},
};
use api::names;
use cloudmap::{Attributes, NamespaceKind};

impl World {
    /// What the instance with this address says.
    fn said(&self, namespace: &str, service: &str, address: &str) -> Option<Attributes> {
        let id = self.service(namespace, service)?.id;
        let registry = self.fake.registry();
        let mut inside = registry.instances.iter().filter(|((service, _), _)| *service == id);
        inside.find(|(_, said)| said["AWS_INSTANCE_IPV4"] == address).map(|(_, said)| said.clone())
    }
}

/// A Service with this many ports after the first, which its endpoints serve.
fn put(blue: &Cluster, annotations: &[(&str, &str)], further: u16, addresses: &[&str]) {
    let port = |at: u16| json!({"name": format!("p{at}"), "port": 80 + at, "protocol": "TCP"});
    let ports: Vec<_> = (0..=further).map(port).collect();
    let endpoints: Vec<_> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
    for name in ["web", "api"] {
        let slice = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": format!("{name}-1"), "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: name}},
            "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
        }));
        blue.objects.put_slice(slice.unwrap());
    }
    blue.annotate(
        "web",
        &[],
        &json!({"clusterIP": "10.96.200.1", "clusterIPs": ["10.96.200.1"], "ipFamilies": ["IPv4"], "ports": ports}),
    );
    blue.put_export("web", annotations);
    let hosted = [annotations, &[(HOSTNAME, "api.internal")]].concat();
    blue.annotate(
        "api",
        &hosted,
        &json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"], "ports": ports}),
    );
}

#[tokio::test(start_paused = true)]
async fn an_attribute_or_a_port_too_many_takes_nothing_away() {
    let world = World::new();
    world.add_namespace("shop", NamespaceKind::DnsPrivate);
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let canary = [(names::ANNOTATION_ATTRIBUTES, "stage=canary")];
    put(&blue, &canary, 0, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    until("it is registered", || world.holds("internal", "api") == ["10.0.0.1"]).await;
    let there = || {
        let both = [world.said("shop", "web", "10.0.0.1"), world.said("internal", "api", "10.0.0.1")];
        both.iter()
            .all(|said| said.as_ref().is_some_and(|said| said.get("stage").is_some_and(|stage| stage == "canary")))
    };

    let many: Vec<_> = (0..30).map(|n| format!("a{n}=x")).collect();
    let many = many.join(",");
    put(&blue, &[(names::ANNOTATION_ATTRIBUTES, &many)], 0, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "False", "Failed").await;
    let message = blue.condition("web", "Registered").unwrap().message;
    assert!(message.contains("fewer attributes") && message.contains("stay as they are"), "{message}");
    let text = blue.until_noted("api", "TooManyAttributes").await;
    assert!(text.contains("stay as they are"), "{text}");
    always("what is registered stays", Duration::from_mins(3), there).await;
    // Endpoints are followed, with what fits.
    put(&blue, &[(names::ANNOTATION_ATTRIBUTES, &many)], 0, &["10.0.0.1", "10.0.0.2"]);
    until("the new one is there", || {
        let new = [world.said("shop", "web", "10.0.0.2"), world.said("internal", "api", "10.0.0.2")];
        new.iter().all(|said| said.as_ref().is_some_and(|said| !said.contains_key("a1"))) && there()
    })
    .await;

    // Not even without them.
    put(&blue, &canary, 30, &["10.0.0.1", "10.0.0.2"]);
    until("it is said", || blue.condition("web", "Registered").is_some_and(|now| now.message.contains("31 ports")))
        .await;
    let ports = |text: &str| text.contains("31 ports");
    while !ports(&blue.until_noted("api", "TooManyAttributes").await) {}
    put(&blue, &canary, 30, &["10.0.0.2"]);
    always("what is registered stays", Duration::from_mins(3), || {
        there() && world.instances("web").len() == 2 && world.holds("internal", "api").len() == 2
    })
    .await;

    put(&blue, &canary, 1, &["10.0.0.2"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    until("all is as it should be", || {
        world.holds("internal", "api") == ["10.0.0.2"]
            && world.instances("web").len() == 1
            && world.said("shop", "web", "10.0.0.2").is_some_and(|said| said["stage"] == "canary")
    })
    .await;
    blue.objects.remove_export(&super::world::key("web"));
    blue.objects.remove_service(&super::world::key("api"));
    until("it goes", || world.instances("web").is_empty() && world.holds("internal", "api").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_port_that_the_service_does_not_have_is_said_and_changes_no_instance() {
    let world = World::new();
    world.add_namespace("shop", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let port = |address: &str| world.said("shop", "web", address).map(|said| said["AWS_INSTANCE_PORT"].clone());
    put(&blue, &[(names::ANNOTATION_INSTANCE_PORT, "p1")], 1, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    assert_eq!(port("10.0.0.1").as_deref(), Some("81"));

    put(&blue, &[(names::ANNOTATION_INSTANCE_PORT, "p7")], 1, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "False", "InvalidAnnotation").await;
    let message = blue.condition("web", "Registered").unwrap().message;
    assert!(message.contains("\"p7\"") && message.contains(names::ANNOTATION_INSTANCE_PORT), "{message}");
    put(&blue, &[(names::ANNOTATION_INSTANCE_PORT, "p7")], 1, &["10.0.0.1", "10.0.0.2"]);
    until("endpoints are followed", || port("10.0.0.2").as_deref() == Some("80")).await;
    always("what was there stays", Duration::from_mins(2), || port("10.0.0.1").as_deref() == Some("81")).await;

    put(&blue, &[(names::ANNOTATION_INSTANCE_PORT, "80")], 1, &["10.0.0.1", "10.0.0.2"]);
    until("it is put right", || port("10.0.0.1").as_deref() == Some("80")).await;
    blue.until_says("web", "Registered", "True", "Registered").await;
}
