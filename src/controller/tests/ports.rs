//! A port that no endpoint serves is said, because the endpoints are ready and registered all the same.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    annotated::HOSTNAME,
    world::{Cluster, World, always, until},
};
use api::{events::EventReason, names};
use cloudmap::NamespaceKind;
use cluster::events::EventRecord;

fn numbered(ports: &[&str]) -> Vec<Value> {
    let port = |(n, name): (usize, &&str)| json!({"name": name, "protocol": "TCP", "port": 80 + n});
    ports.iter().enumerate().map(port).collect()
}

/// A slice for each set of ports that pods have.
fn put_slices(blue: &Cluster, pods: &[(&str, &[&str])]) {
    for (n, (address, ports)) in pods.iter().enumerate() {
        let slice = serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": format!("web-{n}"),
                "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: "web"},
            },
            "addressType": "IPv4", "ports": numbered(ports), "endpoints": [{"addresses": [address]}],
        }));
        blue.objects.put_slice(slice.unwrap());
    }
}

/// A Service with these ports, and its slices.
fn put(blue: &Cluster, ports: &[&str], pods: &[(&str, &[&str])]) {
    put_slices(blue, pods);
    let service = serde_json::from_value(json!({
        "metadata": {"namespace": "shop", "name": "web"},
        "spec": {
            "clusterIP": "10.96.200.1", "clusterIPs": ["10.96.200.1"], "ipFamilies": ["IPv4"],
            "selector": {"app": "web"}, "ports": numbered(ports),
        },
    }));
    blue.objects.put_service(service.unwrap());
}

impl Cluster {
    fn noted_ports(&self) -> Option<String> {
        let wanted = |note: &EventRecord| note.reason == EventReason::PortNotServed;
        self.objects.take_note(wanted).map(|note| {
            assert_eq!(note.regarding.kind.as_deref(), Some("ServiceExport"));
            note.text
        })
    }

    fn message(&self, type_: &str) -> String {
        self.condition("web", type_).map(|condition| condition.message).unwrap_or_default()
    }
}

/// What the EndpointSlice controller writes for a `targetPort` that is a name which no container has.
#[tokio::test(start_paused = true)]
async fn a_port_that_no_endpoint_serves_is_a_reason_and_an_event_and_takes_no_instance_away() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    put(&blue, &["http"], &[("10.0.0.1", &[]), ("10.0.0.2", &[])]);
    blue.put_export("web", &[]);
    blue.until_says("web", "Registered", "False", "PortNotServed").await;
    assert_eq!((blue.says("web", "Valid").1, blue.says("web", "Ready").1), ("Valid".to_owned(), "Exported".to_owned()));
    for type_ in ["Registered", "Valid"] {
        let message = blue.message(type_);
        assert!(
            message.contains("shop/web serves its port http (80/TCP)") && message.contains("targetPort"),
            "{message}"
        );
    }
    assert!(blue.noted_ports().unwrap().contains("http (80/TCP)"));
    assert_eq!(world.instances("web").len(), 2, "those who know the port of the pods use the addresses");

    // The next leader repeats it at once and has nothing new to say.
    let before = blue.message("Registered");
    blue.kill();
    blue.lead();
    always("it stays so", Duration::from_mins(1), || blue.message("Registered") == before).await;
    assert_eq!(blue.noted_ports(), None);

    put(&blue, &["http"], &[("10.0.0.1", &["http"]), ("10.0.0.2", &["http"])]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    until("nothing of it is left", || {
        ["Registered", "Valid"].iter().all(|type_| !blue.message(type_).contains("targetPort"))
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn of_several_ports_those_are_named_that_no_pod_has_and_ports_may_differ_by_pod() {
    let world = World::new();
    let blue = world.cluster("blue");
    put(&blue, &["http", "grpc", "metrics"], &[("10.0.0.1", &["http"]), ("10.0.0.2", &["http", "grpc"])]);
    blue.put_export("web", &[]);
    blue.until_says("web", "Registered", "False", "PortNotServed").await;
    let message = blue.message("Registered");
    assert!(message.contains("port metrics (82/TCP),") && !message.contains("grpc"), "{message}");
    put(&blue, &["http", "grpc"], &[("10.0.0.1", &["http"]), ("10.0.0.2", &["http", "grpc"])]);
    blue.until_says("web", "Registered", "True", "Registered").await;
}

#[tokio::test(start_paused = true)]
async fn without_instances_the_event_and_the_condition_valid_say_it() {
    let world = World::new();
    let blue = world.cluster("blue");
    put(&blue, &["http"], &[("10.0.0.1", &[])]);
    blue.put_export("web", &[(names::ANNOTATION_INSTANCES, "false")]);
    until("it is said", || blue.message("Valid").contains("targetPort")).await;
    assert_eq!(blue.says("web", "Registered").1, "Disabled");
    assert!(blue.noted_ports().is_some());
    always("it is said once", Duration::from_mins(1), || blue.noted_ports().is_none()).await;
}

/// A port that is added to a Service appears in its EndpointSlices a moment later.
#[tokio::test(start_paused = true)]
async fn a_port_that_endpoints_serve_soon_is_not_worth_a_word() {
    let world = World::new();
    let blue = world.cluster("blue");
    put(&blue, &["http"], &[("10.0.0.1", &["http"])]);
    blue.put_export("web", &[]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    put(&blue, &["http", "grpc"], &[("10.0.0.1", &["http"])]);
    let quiet = || blue.says("web", "Registered").1 == "Registered" && !blue.message("Valid").contains("targetPort");
    always("it is not said at once", Duration::from_secs(8), quiet).await;
    put(&blue, &["http", "grpc"], &[("10.0.0.1", &["http", "grpc"])]);
    always("nor later", Duration::from_mins(1), quiet).await;
    assert_eq!(blue.noted_ports(), None);
}

/// An annotated Service has no conditions, so an Event says it; its addresses are registered all the same.
#[tokio::test(start_paused = true)]
async fn a_port_that_no_endpoint_of_an_annotated_service_serves_is_an_event_on_it() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let pods = |ports: &[&str]| {
        put_slices(&blue, &[("10.0.0.1", ports)]);
        let spec = json!({
            "clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"], "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        });
        blue.annotate("web", &[(HOSTNAME, "web.internal")], &spec);
    };
    let is_said = |note: &EventRecord| note.reason == EventReason::PortNotServed;
    pods(&[]);
    until("its address is registered", || world.holds("internal", "web") == ["10.0.0.1"]).await;
    for _ in 0..2 {
        let text = blue.until_noted("web", "PortNotServed").await;
        assert!(text.contains("shop/web serves its port http (80/TCP)") && text.contains("targetPort"), "{text}");
        always("it is said once", Duration::from_mins(1), || blue.objects.take_note(is_said).is_none()).await;
        assert_eq!(world.holds("internal", "web"), ["10.0.0.1"], "who knows the port of the pods uses the address");
        pods(&["http"]);
        tokio::time::sleep(Duration::from_mins(1)).await;
        // And if it is so again, it is said again. A moment is not worth a word.
        pods(&[]);
        tokio::time::sleep(Duration::from_secs(5)).await;
        pods(&["http"]);
        always("it is over", Duration::from_mins(1), || blue.objects.take_note(is_said).is_none()).await;
        pods(&[]);
    }
}
