//! Shares of the traffic, from the annotation to instances, imports, conditions and Events.

use std::{sync::Arc, time::Duration};

use super::{
    annotated::PYTHON,
    world::{World, always, key, until},
};
use api::names::{ANNOTATION_SHARE, ANNOTATION_SHARE_OF_TRAFFIC};
use cloudmap::NamespaceKind;

/// An ECS service `shop/web` with two tasks.
pub(super) fn ecs(world: &World) -> Arc<str> {
    let shop = world.add_namespace("shop", NamespaceKind::DnsPrivate);
    let web = world.fake.registry().add_service(&shop, "web", "ecs", "");
    for n in 1..=2 {
        world.add_instance(&web, &format!("{n:032x}"), &[("AWS_INSTANCE_IPV4", &format!("10.9.0.{n}"))]);
    }
    web
}

/// The addresses of the pods that are registered in `shop/web`.
pub(super) fn pods(world: &World) -> Vec<String> {
    world.holds("shop", "web").into_iter().filter(|there| !there.contains('=')).collect()
}

const PODS: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];

#[tokio::test(start_paused = true)]
async fn imports_have_the_pods_that_are_registered_and_the_export_says_what_is_chosen() {
    let world = World::new();
    ecs(&world);
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.put_service("web", 80);
    blue.put_endpoints("web", &PODS);
    let put = |cluster: &super::world::Cluster, share: &str| {
        cluster.put_export("web", &[(ANNOTATION_SHARE, "true"), (ANNOTATION_SHARE_OF_TRAFFIC, share)]);
    };
    for (share, count, said) in [
        (
            "40%",
            1,
            "40 % of the traffic is requested, and 33.33 % chosen (1 instance beside 2 of others); the next share is 50 %",
        ),
        ("50%", 2, "50 % of the traffic is requested, and 50 % chosen (2 instances beside 2 of others)"),
        ("90%", 3, "a larger share needs more ready pods"),
        ("0%", 0, "0 % of the traffic is requested, and 0 % chosen"),
        ("50%", 2, "50 % chosen"),
    ] {
        put(&blue, share);
        let says =
            || blue.condition("web", "Registered").is_some_and(|it| it.status == "True" && it.message.contains(said));
        until(&format!("{share} is said"), says).await;
        until(&format!("{share} is registered"), || pods(&world).len() == count).await;
        for cluster in [&blue, &green] {
            until(&format!("{} imports the same", cluster.id), || {
                cluster.objects.import(&key("web")).is_some() && cluster.imported("web") == pods(&world)
            })
            .await;
        }
    }

    // A pod that goes is replaced, in imports as well.
    let (gone, stays) = (pods(&world)[0].clone(), pods(&world)[1].clone());
    let left: Vec<_> = PODS.into_iter().filter(|pod| *pod != gone).collect();
    blue.put_endpoints("web", &left);
    until("it is replaced", || pods(&world).len() == 2 && !pods(&world).contains(&gone)).await;
    assert!(pods(&world).contains(&stays));
    green.until_imports("web", &left).await;

    // What is no share leaves everything as it is, and says so with the remedy; also after another leader was elected.
    blue.put_endpoints("web", &PODS);
    put(&blue, "120%");
    blue.until_says("web", "Registered", "False", "InvalidAnnotation").await;
    let message = blue.condition("web", "Registered").unwrap().message;
    for part in ["cloudmap-mcs/share-of-traffic", "120%", "\"0%\" to \"100%\""] {
        assert!(message.contains(part), "{message}");
    }
    let same = || pods(&world) == left && green.imported("web") == left && blue.imported("web") == left;
    always("nothing changes", Duration::from_mins(3), same).await;
    blue.kill();
    blue.lead();
    let same = || pods(&world) == left && green.imported("web") == left && blue.imported("web") == left;
    always("nothing changes under another leader", Duration::from_mins(3), same).await;
    put(&blue, "50%");
    blue.until_says("web", "Registered", "True", "Registered").await;
    blue.kill();
    blue.lead();
    let same = || pods(&world) == left && green.imported("web") == left && blue.imported("web") == left;
    always("another leader goes on with the same pods", Duration::from_mins(3), same).await;

    // Without the annotation all pods are there again, and a deleted export is withdrawn.
    blue.put_export("web", &[(ANNOTATION_SHARE, "true")]);
    green.until_imports("web", &PODS).await;
    until("all are registered", || pods(&world) == PODS).await;
    put(&blue, "40%");
    until("one is", || pods(&world).len() == 1 && green.imported("web").len() == 1).await;
    blue.objects.remove_export(&key("web"));
    until("all is gone but the tasks", || pods(&world).is_empty() && green.is_clean("web")).await;
    assert_eq!(world.holds("shop", "web").len(), 2);
}

/// It was ignored, and nothing said so.
#[tokio::test(start_paused = true)]
async fn a_share_on_a_service_whose_export_decides_says_where_it_belongs() {
    let world = World::new();
    ecs(&world);
    let blue = world.cluster("blue");
    blue.put_export("web", &[(ANNOTATION_SHARE, "true")]);
    let share = (ANNOTATION_SHARE_OF_TRAFFIC, "40%");
    let name = [(PYTHON[0], "shop"), (PYTHON[1], "web")];
    for annotations in [&[share][..], &[name[0], name[1], share]] {
        blue.headless("web", annotations, &PODS);
        let text = blue.until_noted("web", "InvalidAnnotation").await;
        for part in ["cloudmap-mcs/share-of-traffic", "no effect", "on ServiceExport shop/web, and remove it here"] {
            assert!(text.contains(part), "{text}");
        }
        until("all are registered", || pods(&world) == PODS).await;
        always("all stay", Duration::from_mins(1), || pods(&world) == PODS).await;
    }
    // Where it belongs, nothing is said.
    blue.put_export("web", &[(ANNOTATION_SHARE, "true"), share]);
    blue.headless("web", &name, &PODS);
    until("one is registered", || pods(&world).len() == 1).await;
    assert!(blue.objects.take_note(|note| note.reason == "InvalidAnnotation").is_none());
}

#[tokio::test(start_paused = true)]
async fn an_annotated_service_says_by_events_what_became_of_its_share() {
    let world = World::new();
    ecs(&world);
    let blue = world.cluster("blue");
    let put = |share: &str| {
        let annotations = [(PYTHON[0], "shop"), (PYTHON[1], "web"), (ANNOTATION_SHARE_OF_TRAFFIC, share)];
        blue.headless("web", &annotations, &PODS[..2]);
    };
    let noted = async |reason: &str| {
        let wanted = |note: &cluster::events::EventRecord| note.reason == reason;
        let mut text = None;
        for _ in 0..600 {
            text = blue.objects.take_note(wanted).map(|note| note.text);
            if text.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        text.unwrap_or_else(|| panic!("no {reason}"))
    };
    put("40%");
    let text = noted("ShareReached").await;
    assert!(text.contains("Cloud Map service shop/web: 40 %") && text.contains("33.33 % chosen"), "{text}");
    until("one is registered", || pods(&world).len() == 1).await;
    put("75%");
    let text = noted("ShareLimited").await;
    assert!(text.contains("75 %") && text.contains("50 % chosen") && text.contains("more ready pods"), "{text}");
    until("both are registered", || pods(&world).len() == 2).await;
    put("-3%");
    let text = noted("InvalidAnnotation").await;
    assert!(
        text.contains("cloudmap-mcs/share-of-traffic") && text.contains("-3%") && text.contains("\"25%\""),
        "{text}"
    );
    always("both stay", Duration::from_mins(2), || pods(&world).len() == 2).await;
    blue.objects.remove_service(&key("web"));
    until("it is withdrawn", || pods(&world).is_empty()).await;
    assert_eq!(world.holds("shop", "web").len(), 2);
}
