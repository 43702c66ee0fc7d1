//! What one cluster exports, the others import; all of it follows, and all of it goes again.

use std::{collections::BTreeSet, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::world::{Cluster, World, always, key, until};
use api::names;
use cloudmap::Operation;
use import::hashed;

#[tokio::test(start_paused = true)]
async fn an_export_appears_everywhere_follows_its_endpoints_and_goes() {
    let world = World::new();
    let (blue, green, red) = (world.cluster("blue"), world.cluster("green"), world.cluster("red"));
    blue.export("web", 80, &["10.0.0.1", "10.0.0.2"]);
    for cluster in [&blue, &green, &red] {
        cluster.until_imports("web", &["10.0.0.1", "10.0.0.2"]).await;
        let import = cluster.objects.import(&key("web")).unwrap();
        let ips = cluster.derived("web").unwrap().spec.unwrap().cluster_ips.unwrap();
        assert_eq!((import.spec.ips, import.spec.ports[0].port), (ips, 80));
        assert_eq!(import.status.unwrap().clusters[0].cluster, "blue");
    }
    blue.until_says("web", "Ready", "True", "Exported").await;
    blue.until_says("web", "Valid", "True", "Valid").await;
    blue.until_says("web", "Conflict", "False", "NoConflicts").await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    assert_eq!(world.instances("web").len(), 2);

    blue.put_endpoints("web", &["10.0.0.2", "10.0.0.3"]);
    green.until_imports("web", &["10.0.0.2", "10.0.0.3"]).await;
    until("the instances follow", || {
        let instances = world.instances("web");
        instances.len() == 2 && instances.iter().all(|id| !id.ends_with("10-0-0-1"))
    })
    .await;

    green.export("web", 80, &["10.1.0.1"]);
    for cluster in [&blue, &red] {
        cluster.until_imports("web", &["10.0.0.2", "10.0.0.3", "10.1.0.1"]).await;
    }
    // One goes, the other stays.
    blue.objects.remove_export(&key("web"));
    for cluster in [&blue, &green, &red] {
        cluster.until_imports("web", &["10.1.0.1"]).await;
    }
    green.objects.remove_service(&key("web"));
    green.until_says("web", "Valid", "False", "NoService").await;
    for cluster in [&blue, &green, &red] {
        until("all is gone", || cluster.is_clean("web")).await;
    }
    until("no instance is left", || world.instances("web").is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn endpoints_that_move_to_another_service_move_everywhere() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1"]);
    blue.export("api", 80, &[]);
    green.until_imports("web", &["10.0.0.1"]).await;
    green.until_imports("api", &[]).await;
    let mut slices = blue.objects.slices();
    let mut slice = slices.remove(slices.iter().position(|s| s.metadata.name.as_deref() == Some("web-1")).unwrap());
    slice.metadata.labels.as_mut().unwrap().insert(names::LABEL_KUBERNETES_SERVICE_NAME.to_owned(), "api".to_owned());
    blue.objects.put_slice(slice);
    green.until_imports("web", &[]).await;
    green.until_imports("api", &["10.0.0.1"]).await;
    until("so do the instances", || world.instances("web").is_empty() && world.instances("api").len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn ports_that_differ_are_said_on_both_exports_and_merged() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Conflict", "False", "NoConflicts").await;
    green.export("web", 81, &["10.1.0.1"]);
    for cluster in [&blue, &green] {
        cluster.until_says("web", "Conflict", "True", "PortConflict").await;
        cluster.until_says("web", "Ready", "True", "Exported").await;
    }
    green.put_service("web", 80);
    for cluster in [&blue, &green] {
        cluster.until_says("web", "Conflict", "False", "NoConflicts").await;
        cluster.until_imports("web", &["10.0.0.1", "10.1.0.1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_nothing_changes() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    for name in ["web", "api", "db"] {
        blue.export(name, 80, &["10.0.0.1", "10.0.0.2"]);
        green.export(name, 80, &["10.1.0.1"]);
    }
    for name in ["web", "api", "db"] {
        green.until_imports(name, &["10.0.0.1", "10.0.0.2", "10.1.0.1"]).await;
        green.until_says(name, "Registered", "True", "Registered").await;
    }
    // Until the ledger is flushed and its garbage collected.
    tokio::time::sleep(Duration::from_mins(6)).await;
    let before = (world.writes(), blue.objects.writes(), green.objects.writes());
    tokio::time::sleep(Duration::from_mins(10)).await;
    let after = (world.writes(), blue.objects.writes(), green.objects.writes());
    assert_eq!(after.0[before.0.len()..], []);
    assert_eq!((after.1, after.2), (before.1, before.2));
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_comes_later_gets_its_imports() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    green.objects.remove_namespace("shop");
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Ready", "True", "Exported").await;
    always("nothing is imported", Duration::from_secs(30), || green.is_clean("web")).await;
    for _ in 0..2 {
        green.objects.add_namespace("shop");
        green.until_imports("web", &["10.0.0.1"]).await;
        green.objects.remove_namespace("shop");
        until("all went with the namespace", || green.is_clean("web")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_ip_that_comes_or_goes_is_an_endpoint_no_more_or_again() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1", "10.97.200.9"]);
    green.until_imports("web", &["10.0.0.1", "10.97.200.9"]).await;
    green.objects.put_service(
        serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": "other"},
            "spec": {"clusterIP": "10.97.200.9", "clusterIPs": ["10.97.200.9"], "ipFamilies": ["IPv4"], "ports": [{"port": 80}]},
        }))
        .unwrap(),
    );
    green.until_imports("web", &["10.0.0.1"]).await;
    green.objects.remove_service(&key("other"));
    green.until_imports("web", &["10.0.0.1", "10.97.200.9"]).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_in_the_way_or_was_deleted_by_hand_is_made_up_for() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    let derived = hashed(&key("web"));
    green.put_service(&derived, 80);
    blue.export("web", 80, &["10.0.0.1"]);
    until("it is said", || {
        let notes = green.objects.take_notes();
        notes.iter().any(|note| note.reason == "ForeignObject" && note.text.contains(&derived))
    })
    .await;
    until("the import says it, too", || {
        green
            .import_condition("web", "Ready")
            .is_some_and(|ready| ready.reason == "Pending" && ready.message.contains(&derived))
    })
    .await;
    assert!(
        green.imported("web").is_empty() && green.objects.writes() == 2,
        "the import and its status, and nothing else"
    );
    green.objects.remove_service(&key(&derived));
    green.until_imports("web", &["10.0.0.1"]).await;
    until("it is ready", || green.import_condition("web", "Ready").is_some_and(|ready| ready.status == "True")).await;

    green.objects.remove_service(&key(&derived));
    until("it is made again", || green.derived("web").is_some()).await;
    let ips = || green.derived("web").and_then(|service| service.spec?.cluster_ips);
    until("the import has its address", || green.objects.import(&key("web")).map(|import| import.spec.ips) == ips())
        .await;
}

#[tokio::test(start_paused = true)]
async fn foreign_instances_are_never_touched_and_an_annotation_joins_them() {
    let world = World::new();
    let task = "0123456789abcdef0123456789abcdef";
    {
        let mut registry = world.fake.registry();
        let shop = registry.add_namespace("shop", cloudmap::NamespaceKind::Http);
        let web = registry.add_service(&shop, "web", "ecs", "");
        let attributes = [("AWS_INSTANCE_IPV4".to_owned(), "10.9.0.1".to_owned())];
        registry.instances.insert((web, task.into()), attributes.into());
    }
    let blue = world.cluster("blue");
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Ready", "True", "Exported").await;
    blue.until_says("web", "Registered", "False", "ForeignOwner").await;
    assert_eq!(world.instances("web"), [task]);
    blue.put_export("web", &[(names::ANNOTATION_SHARE, "true")]);
    until("it joins", || world.instances("web").len() == 2).await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    blue.objects.remove_export(&key("web"));
    until("what is ours goes", || world.instances("web") == [task]).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(world.instances("web"), [task]);
    let touched = world.fake.registry().calls.iter().any(|(_, id)| id == task);
    assert!(!touched && world.fake.registry().count(Operation::DeleteService) == 0);
}

#[tokio::test(start_paused = true)]
async fn another_target_moves_the_instances_and_an_export_made_anew_keeps_them() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    blue.put_export("web", &[(names::ANNOTATION_TARGET_SERVICE, "www")]);
    until("they moved", || world.instances("web").is_empty() && world.instances("www").len() == 1).await;
    blue.put_export("web", &[(names::ANNOTATION_INSTANCES, "false")]);
    blue.until_says("web", "Registered", "False", "Disabled").await;
    until("they went", || world.instances("www").is_empty()).await;
    blue.put_export("web", &[]);
    until("they came back", || world.instances("web").len() == 1).await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    blue.objects.remove_export(&key("web"));
    blue.put_export("web", &[]);
    blue.until_says("web", "Ready", "True", "Exported").await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    assert_eq!(world.instances("web").len(), 1);
}

/// When an instance first was in a service, and when it no longer was.
async fn times(world: &World, service: &str, suffix: &str) -> (Instant, Instant) {
    let there = || world.instances(service).iter().any(|id| id.ends_with(suffix));
    until("it comes", there).await;
    let came = Instant::now();
    until("it goes", || !there()).await;
    (came, Instant::now())
}

#[tokio::test(start_paused = true)]
async fn the_younger_claim_to_a_target_waits_and_takes_over() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    let target = [(names::ANNOTATION_TARGET_SERVICE, "www")];
    for (cluster, name, address) in [(&blue, "web", "10.0.0.1"), (&green, "shop", "10.1.0.1")] {
        cluster.put_service(name, 80);
        cluster.put_endpoints(name, &[address]);
    }
    blue.until_knows(&green).await;
    // Claims date from whole seconds; equal ones are decided by the cluster's id, so that blue wins in any case.
    let since = Instant::now();
    blue.put_export("web", &target);
    blue.until_says("web", "Ready", "True", "Exported").await;
    assert!(world.instances("www").is_empty());
    blue.until_says("web", "Registered", "True", "Registered").await;
    assert!(since.elapsed() >= Duration::from_secs(10), "it waited only {:?}", since.elapsed());
    green.put_export("shop", &target);
    green.until_says("shop", "Registered", "False", "NameConflict").await;
    green.until_says("shop", "Ready", "True", "Exported").await;
    until("only the winner is registered", || {
        let instances = world.instances("www");
        instances.len() == 1 && instances[0].ends_with("10-0-0-1")
    })
    .await;
    // Until each has read the other's claim. Then it moves away: its successor is there first.
    tokio::time::sleep(Duration::from_secs(20)).await;
    blue.put_export("web", &[]);
    let successor = async {
        until("the successor is registered", || world.instances("www").iter().any(|id| id.ends_with("10-1-0-1"))).await;
        Instant::now()
    };
    let (came, (_, went)) = tokio::join!(successor, times(&world, "www", "10-0-0-1"));
    assert!(came < went, "the name was empty for {:?}", came - went);
    green.until_says("shop", "Registered", "True", "Registered").await;
    assert_eq!(world.instances("www").len(), 1);
    until("what moved is in its own place", || world.instances("web").len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_target_of_the_own_name_is_not_waited_for() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.until_knows(&green).await;
    blue.export("web", 80, &["10.0.0.1"]);
    let since = Instant::now();
    until("it is registered", || world.instances("web").len() == 1).await;
    assert!(since.elapsed() < Duration::from_secs(9), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn of_two_claims_made_at_once_one_alone_ever_registers() {
    for pause in [0, 1, 3, 6] {
        let world = World::new();
        let (blue, green) = (world.cluster("blue"), world.cluster("green"));
        blue.until_knows(&green).await;
        green.until_knows(&blue).await;
        for (cluster, name, address) in [(&green, "shop", "10.1.0.1"), (&blue, "web", "10.0.0.1")] {
            cluster.put_service(name, 80);
            cluster.put_endpoints(name, &[address]);
            cluster.put_export(name, &[(names::ANNOTATION_TARGET_SERVICE, "www")]);
            tokio::time::sleep(Duration::from_secs(pause)).await;
        }
        let (mut seen, end) = (BTreeSet::new(), Instant::now() + Duration::from_mins(1));
        while Instant::now() < end {
            seen.extend(world.instances("www"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(seen.len(), 1, "{pause} s apart: {seen:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_template_names_derived_services_unless_the_name_is_taken() {
    let world = World::new();
    let (blue, mut green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1"]);
    blue.export("api", 80, &["10.0.0.2"]);
    green.until_imports("web", &["10.0.0.1"]).await;
    green.until_imports("api", &["10.0.0.2"]).await;
    let derived = |green: &Cluster, name: &str| {
        let import = green.objects.import(&key(name)).unwrap();
        let derived = import.metadata.annotations.unwrap().remove(names::ANNOTATION_DERIVED_SERVICE).unwrap();
        assert!(green.objects.services().iter().any(|service| service.metadata.name.as_ref() == Some(&derived)));
        derived
    };

    green.put_service("api-global", 80);
    green.naming = "{name}-global".parse().unwrap();
    green.kill();
    green.lead();
    until("it has the name of the template", || derived(&green, "web") == "web-global").await;
    until("the former one is gone", || green.derived("web").is_none()).await;
    assert_eq!(derived(&green, "api"), hashed(&key("api")), "a Service of others has that name");
    until("it is said", || {
        let notes = green.objects.take_notes();
        notes.iter().any(|note| note.reason == "DerivedNameUnusable" && note.text.contains("shop/api-global"))
    })
    .await;

    green.objects.remove_service(&key("api-global"));
    until("it has the name of the template", || derived(&green, "api") == "api-global").await;
    until("the former one is gone", || green.derived("api").is_none()).await;

    blue.objects.remove_export(&key("web"));
    until("nothing is left", || {
        !green.objects.services().iter().any(|s| s.metadata.name.as_deref() == Some("web-global"))
    })
    .await;
}
