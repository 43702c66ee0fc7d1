//! Names that an owner loses to another one which does not register: it may not, it cannot, or it has nothing.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::{
    annotated::PYTHON,
    world::{Cluster, World, always, until},
};
use api::names;
use cloudmap::NamespaceKind;
use instances::RegistrationPolicy;
use model::ServiceKey;

const PAY: [(&str, &str); 2] = [(PYTHON[0], "internal"), (PYTHON[1], "pay")];

/// A name that ECS, or somebody else, made, and that an annotated Service of the first cluster serves. The other cluster is
/// the one in which somebody has the Kubernetes namespace `internal`.
async fn mk_served(policy: RegistrationPolicy, within_one: bool) -> (World, Cluster, Cluster) {
    let world = World::new();
    let internal = world.add_namespace("internal", NamespaceKind::DnsPrivate);
    world.fake.registry().add_service(&internal, "pay", "ecs", "");
    let (mut blue, mut green) = (world.cluster("blue"), world.cluster("green"));
    for cluster in [&mut blue, &mut green] {
        cluster.kill();
        cluster.registration = policy;
        cluster.lead();
        cluster.objects.annotate_namespace("shop", &[(names::ANNOTATION_MAY_REGISTER, "internal/*")]);
    }
    blue.until_knows(&green).await;
    green.until_knows(&blue).await;
    blue.headless("web", &PAY, &["10.0.0.1"]);
    until("it is registered", || pay(&world) == ["10.0.0.1"]).await;
    sleep(Duration::from_mins(1)).await;
    if within_one { (world, green, blue) } else { (world, blue, green) }
}

fn pay(world: &World) -> Vec<String> {
    world.holds("internal", "pay")
}

/// The name is the namespace's own, so that its claim comes first. But it was only implied, and the service is not ours.
#[tokio::test(start_paused = true)]
async fn a_claim_that_may_register_nothing_takes_no_name_from_who_serves_it() {
    for policy in [RegistrationPolicy::Open, RegistrationPolicy::Granted] {
        for within_one in [false, true] {
            let (world, mut other, mut home) = mk_served(policy, within_one).await;
            let said = |cluster: &Cluster| {
                let export = cluster.objects.export(&ServiceKey::new("internal", "pay"));
                let conditions = export.and_then(|export| export.status).map(|status| status.conditions);
                conditions.unwrap_or_default().into_iter().find(|condition| condition.type_ == "Registered")
            };
            home.export_in(&ServiceKey::new("internal", "pay"), 80, &["10.1.0.1"]);
            until("it is refused", || said(&home).is_some_and(|said| said.reason == "ForeignOwner")).await;
            let served = || pay(&world) == ["10.0.0.1"];
            always("who serves the name goes on", Duration::from_mins(5), served).await;
            // The next leaders know.
            for cluster in [&mut home, &mut other] {
                cluster.kill();
                cluster.lead();
                always("across leaders", Duration::from_mins(2), served).await;
            }
            let serving = if within_one { &home } else { &other };
            serving.headless("web", &PAY, &["10.0.0.2"]);
            until("it follows its pods", || pay(&world) == ["10.0.0.2"]).await;
            until("it is refused", || said(&home).is_some_and(|said| said.reason == "ForeignOwner")).await;

            // Whoever made the service deletes it, and then it is made for the ClusterSet: the name is the namespace's own.
            serving.headless("web", &[], &["10.0.0.2"]);
            until("it is withdrawn", || pay(&world).is_empty()).await;
            let service = world.service("internal", "pay").unwrap();
            world.fake.registry().services.remove(&service.id);
            until("who was unable is able", || pay(&world) == ["10.1.0.1"]).await;
        }
    }
}

/// Endpoints that the service cannot take, a share of 0 %: they make nobody unable, and take no name away.
#[tokio::test(start_paused = true)]
async fn a_name_that_changes_hands_stays_until_its_successor_is_registered_however_long_that_takes() {
    for obstacle in ["family", "share"] {
        let world = World::new();
        world.add_namespace("bank", NamespaceKind::DnsPrivate);
        let (mut blue, mut green) = (world.cluster("blue"), world.cluster("green"));
        blue.until_knows(&green).await;
        green.until_knows(&blue).await;
        blue.export("evil", 80, &["10.0.0.66"]);
        let names = [(names::ANNOTATION_TARGET_NAMESPACE, "bank"), (names::ANNOTATION_TARGET_SERVICE, "payments")];
        blue.put_export("evil", &names);
        let held = || world.holds("bank", "payments");
        until("nobody else has it", || held() == ["10.0.0.66"]).await;
        let payments = ServiceKey::new("bank", "payments");
        if obstacle == "family" {
            green.export_in(&payments, 80, &["2001:db8::1"]);
        } else {
            let annotations = json!({names::ANNOTATION_SHARE_OF_TRAFFIC: "0%"});
            green.export_with(&payments, 80, &["10.1.0.1"], &annotations);
        }
        blue.until_says("evil", "Registered", "False", "NameConflict").await;
        always("it stays", Duration::from_mins(5), || held() == ["10.0.0.66"]).await;
        let text = blue.condition("evil", "Registered").unwrap().message;
        assert!(text.contains("stays until"), "{text}");
        blue.put_endpoints("evil", &["10.0.0.67"]);
        until("it follows its pods", || held() == ["10.0.0.67"]).await;
        blue.kill();
        blue.lead();
        always("across leaders", Duration::from_mins(3), || held() == ["10.0.0.67"]).await;
        green.kill();
        green.lead();
        green.export_in(&payments, 80, &["10.1.0.1"]);
        until("it changes hands", || held() == ["10.1.0.1"]).await;
        always("for good", Duration::from_mins(2), || held() == ["10.1.0.1"]).await;
    }
}

/// The owner of the name says so by itself: nothing is to be served there.
#[tokio::test(start_paused = true)]
async fn who_has_a_name_and_no_endpoints_has_it_all_the_same() {
    let world = World::new();
    world.add_namespace("bank", NamespaceKind::Http);
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    green.until_knows(&blue).await;
    blue.export("evil", 80, &["10.0.0.66"]);
    let names = [(names::ANNOTATION_TARGET_NAMESPACE, "bank"), (names::ANNOTATION_TARGET_SERVICE, "payments")];
    blue.put_export("evil", &names);
    let held = || world.holds("bank", "payments");
    until("nobody else has it", || held() == ["10.0.0.66"]).await;
    let payments = ServiceKey::new("bank", "payments");
    green.export_in(&payments, 80, &[]);
    until("it is empty", || held().is_empty()).await;
    green.export_in(&payments, 80, &["10.1.0.1"]);
    until("its pods are there", || held() == ["10.1.0.1"]).await;
    green.export_in(&payments, 80, &[]);
    until("they are gone", || held().is_empty()).await;
    always("nobody else comes", Duration::from_mins(2), || held().is_empty()).await;
    blue.until_imports("evil", &["10.0.0.66"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_name_in_a_missing_namespace_is_served_by_nobody_and_then_by_whoever_comes_first() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    green.until_knows(&blue).await;
    for (cluster, name, address) in [(&blue, "first", "10.0.0.1"), (&green, "second", "10.1.0.1")] {
        cluster.headless(name, &PAY, &[address]);
        cluster.until_noted(name, "NoNamespace").await;
    }
    world.add_namespace("internal", NamespaceKind::Http);
    until("one of them is registered", || !pay(&world).is_empty()).await;
    always("only the one", Duration::from_mins(5), || pay(&world).len() == 1).await;
}
