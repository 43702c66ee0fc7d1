//! What KEP-1645 asks of several clusters together: conflicts, conditions, identities, and clusters that are lost.

use std::{collections::VecDeque, time::Duration};

use super::world::{Cluster, World, always, key, until};
use cloudmap::{ErrorKind, Operation, fake::Fault};

#[tokio::test(start_paused = true)]
async fn three_clusters_say_a_conflict_alike_and_who_disagrees_reads_what_to_do() {
    let world = World::new();
    let (blue, green, red) = (world.cluster("blue"), world.cluster("green"), world.cluster("red"));
    blue.export("web", 80, &["10.0.0.1"]);
    green.until_imports("web", &["10.0.0.1"]).await;
    let before = (green.uids("web"), green.objects.import(&key("web")).unwrap().spec);
    // Every object in memory gets a serial number as its creation time, per cluster: make these younger.
    for cluster in [&green, &red] {
        for _ in 0..50 {
            cluster.objects.add_namespace("another");
            cluster.put_service("unrelated", 1);
        }
    }
    green.export("web", 81, &["10.1.0.1"]);
    red.export("web", 80, &["10.2.0.1"]);
    for cluster in [&blue, &green, &red] {
        cluster.until_says("web", "Conflict", "True", "PortConflict").await;
        cluster.until_imports("web", &["10.0.0.1", "10.2.0.1"]).await;
        let message = cluster.condition("web", "Conflict").unwrap().message;
        assert!(message.contains("from oldest service export in \"blue\". 1/3 clusters disagree."), "{message}");
        assert_eq!(message.contains("This cluster's Service has"), cluster.id == "green", "{message}");
    }
    let after = (green.uids("web"), green.objects.import(&key("web")).unwrap().spec);
    assert!(before.0.iter().all(|uid| after.0.contains(uid)), "nothing was made anew");
    assert_eq!(after.1, before.1, "running traffic sees no younger export");

    green.put_service("web", 80);
    for cluster in [&blue, &green, &red] {
        cluster.until_says("web", "Conflict", "False", "NoConflicts").await;
        cluster.until_imports("web", &["10.0.0.1", "10.1.0.1", "10.2.0.1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_conflict_is_said_on_through_a_restart_without_aws_and_without_a_transition() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1"]);
    green.export("web", 81, &["10.1.0.1"]);
    blue.until_says("web", "Conflict", "True", "PortConflict").await;
    blue.until_says("web", "Ready", "True", "Exported").await;
    let since = blue.condition("web", "Conflict").unwrap().last_transition_time;
    world.fail();
    blue.kill();
    blue.lead();
    blue.until_says("web", "Ready", "False", "Failed").await;
    always("what is not known is said on", Duration::from_mins(2), || {
        blue.condition("web", "Conflict").is_some_and(|c| c.status == "True" && c.last_transition_time == since)
    })
    .await;
    world.heal();
    blue.until_says("web", "Ready", "True", "Exported").await;
    let conflict = blue.condition("web", "Conflict").unwrap();
    assert_eq!((&*conflict.reason, conflict.last_transition_time), ("PortConflict", since));
}

#[tokio::test(start_paused = true)]
async fn an_export_that_is_soon_published_never_says_pending() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.export("first", 80, &["10.0.0.1"]);
    blue.until_says("first", "Ready", "True", "Exported").await;
    blue.export("web", 80, &["10.0.0.1"]);
    until("it is published", || {
        assert_ne!(blue.says("web", "Ready").1, "Pending");
        blue.says("web", "Ready").1 == "Exported"
    })
    .await;
    // Nor does one that changes.
    blue.put_service("web", 81);
    always("it stays ready", Duration::from_secs(30), || blue.says("web", "Ready").1 == "Exported").await;
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_registry_that_passes_is_not_said_on_an_export_that_is_soon_published() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.export("web", 80, &["10.0.0.1"]);
    world.fake.fault(Operation::DeregisterInstance, Fault::Refused(ErrorKind::Throttled));
    // Each change becomes a page, until there are enough for a compaction, which makes garbage of all.
    let mut ports = 81..200;
    while !world.fake.registry().faults.values().all(VecDeque::is_empty) {
        blue.put_service("web", ports.next().expect("garbage is deleted"));
        tokio::time::sleep(Duration::from_mins(2)).await;
    }
    blue.put_service("web", 80);
    always("that is no failure", Duration::from_secs(30), || blue.says("web", "Ready").1 != "Failed").await;
    assert_eq!(blue.says("web", "Ready").1, "Exported");
}

#[tokio::test(start_paused = true)]
async fn namespaces_export_while_their_labels_allow_it() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1"]);
    green.until_imports("web", &["10.0.0.1"]).await;
    blue.kill();
    blue.export_namespaces = Some("export in (yes),!private".parse().unwrap());
    blue.lead();
    blue.until_says("web", "Ready", "False", "Failed").await;
    assert_eq!(blue.says("web", "Valid"), ("True".to_owned(), "Valid".to_owned()));
    let message = blue.condition("web", "Ready").unwrap().message;
    assert!(message.contains("Namespace shop may not export") && message.contains("--export-namespaces"), "{message}");
    until("it is withdrawn", || green.is_clean("web") && blue.is_clean("web")).await;

    blue.objects.put_namespace("shop", &[("export", "yes")]);
    blue.until_says("web", "Ready", "True", "Exported").await;
    green.until_imports("web", &["10.0.0.1"]).await;
    // What others export is imported whatever the labels.
    blue.objects.put_namespace("shop", &[("export", "yes"), ("private", "")]);
    green.export("api", 80, &["10.1.0.1"]);
    until("it is withdrawn", || green.is_clean("web")).await;
    blue.until_imports("api", &["10.1.0.1"]).await;
}

#[tokio::test(start_paused = true)]
async fn another_id_relabels_everything_and_nothing_is_without_endpoints_meanwhile() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1"]);
    green.export("web", 80, &["10.1.0.1"]);
    for cluster in [&blue, &green] {
        cluster.until_imports("web", &["10.0.0.1", "10.1.0.1"]).await;
    }
    blue.kill();
    "azure".clone_into(&mut blue.id);
    blue.lead();
    let of = |ids: [&str; 2]| ids.map(str::to_owned).into_iter().collect();
    for cluster in [&blue, &green] {
        until("everything is of the new id", || {
            let addresses = cluster.imported("web");
            assert!(
                ["10.0.0.1", "10.1.0.1"].iter().all(|ip| addresses.iter().any(|there| there == ip)),
                "{addresses:?}"
            );
            cluster.sources("web") == [of(["azure", "green"]), of(["azure", "green"])]
        })
        .await;
        cluster.until_imports("web", &["10.0.0.1", "10.1.0.1"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_finds_its_clusterset_late_says_so_and_then_exports() {
    let world = World::new();
    let (mut blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.kill();
    blue.member = false;
    blue.lead();
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Ready", "False", "Pending").await;
    let message = blue.condition("web", "Ready").unwrap().message;
    assert!(message.contains("in no ClusterSet"), "{message}");
    assert!(blue.objects.take_notes().iter().any(|note| note.reason == "NoClusterSet"));
    assert_eq!(blue.condition("web", "Conflict"), None);
    blue.kill();
    blue.member = true;
    blue.lead();
    blue.until_says("web", "Ready", "True", "Exported").await;
    green.until_imports("web", &["10.0.0.1"]).await;
}

async fn exported_by_both(world: &World) -> (Cluster, Cluster) {
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    blue.export("web", 80, &["10.0.0.1"]);
    blue.export("only-blue", 80, &["10.0.0.2"]);
    green.export("web", 80, &["10.1.0.1"]);
    green.until_imports("web", &["10.0.0.1", "10.1.0.1"]).await;
    green.until_imports("only-blue", &["10.0.0.2"]).await;
    (blue, green)
}

#[tokio::test(start_paused = true)]
async fn a_lost_cluster_is_said_on_its_imports_and_keeps_its_endpoints_until_it_is_heard_again() {
    let world = World::new();
    let (mut blue, green) = exported_by_both(&world).await;
    green.export("only-green", 80, &["10.1.0.2"]);
    green.objects.take_notes();
    blue.kill();
    until("it is noticed", || green.import_condition("web", "Stale").is_some()).await;
    let stale = green.import_condition("only-blue", "Stale").unwrap();
    assert_eq!((&*stale.status, &*stale.reason), ("True", "ClusterSilent"));
    assert!(stale.message.contains("\"blue\""), "{}", stale.message);
    assert_eq!(green.import_condition("only-green", "Stale"), None);
    assert_eq!(green.import_condition("web", "Ready").unwrap().status, "True");
    let notes: Vec<_> = green.objects.take_notes().into_iter().filter(|note| note.reason == "ClusterSilent").collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
    always("its endpoints stay", Duration::from_mins(20), || {
        green.imported("web") == ["10.0.0.1", "10.1.0.1"] && green.imported("only-blue") == ["10.0.0.2"]
    })
    .await;
    blue.lead();
    until("it is heard again", || {
        ["web", "only-blue"].iter().all(|name| green.import_condition(name, "Stale").is_none())
    })
    .await;
    assert_eq!(green.objects.take_notes().iter().filter(|note| note.reason == "ClustersHeard").count(), 2);
}

/// It has not waited for 5 minutes yet, and nothing shows that the cluster is well.
#[tokio::test(start_paused = true)]
async fn a_new_leader_does_not_say_that_a_lost_cluster_is_heard_before_it_is() {
    let world = World::new();
    let (mut blue, mut green) = exported_by_both(&world).await;
    blue.kill();
    until("it is noticed", || green.import_condition("only-blue", "Stale").is_some()).await;
    green.kill();
    green.objects.take_notes();
    green.lead();
    always("it stays said", Duration::from_mins(10), || green.import_condition("only-blue", "Stale").is_some()).await;
    assert!(green.objects.take_notes().iter().all(|note| note.reason != "ClustersHeard"));
    green.kill();
    green.lead();
    blue.lead();
    until("it is heard again", || green.import_condition("only-blue", "Stale").is_none()).await;
}

/// Its head is gone before `cloudmap-mcs forget`, and the next leader here knows it from the record alone.
#[tokio::test(start_paused = true)]
async fn a_cluster_that_only_the_record_names_is_said_to_be_silent_on_its_imports() {
    let world = World::new();
    let (mut blue, mut green) = exported_by_both(&world).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    blue.kill();
    green.kill();
    world.purge("blue");
    green.lead();
    until("it is noticed", || ["web", "only-blue"].iter().all(|name| green.import_condition(name, "Stale").is_some()))
        .await;
    assert!(green.imported("web") == ["10.0.0.1", "10.1.0.1"] && green.imported("only-blue") == ["10.0.0.2"]);
    let notes: Vec<_> = green.objects.take_notes().into_iter().filter(|note| note.reason == "ClusterSilent").collect();
    assert_eq!(notes.len(), 2, "{notes:?}");
}

/// Alerts take the largest value of all replicas.
#[tokio::test(start_paused = true)]
async fn who_no_longer_leads_shows_nothing_of_what_it_knew() {
    let world = World::new();
    let (mut blue, mut green) = exported_by_both(&world).await;
    let stale = |value: u8| format!("cloudmap_mcs_cluster_stale{{remote_cluster=\"blue\"}} {value}");
    until("it shows what it knows", || green.shows("cloudmap_mcs_services 2") && green.shows(&stale(0))).await;
    blue.kill();
    until("the lost cluster is shown", || green.shows(&stale(1))).await;
    assert!(green.shows("cloudmap_mcs_stale_clusters 1"));
    green.kill();
    until("nothing is shown", || green.shows("cloudmap_mcs_services 0")).await;
    assert!(!green.shows(&stale(1)) && !green.shows(&stale(0)) && green.shows("cloudmap_mcs_stale_clusters 0"));
}

#[tokio::test(start_paused = true)]
async fn a_ttl_withdraws_a_lost_cluster_and_brings_it_back() {
    let world = World::new();
    let (mut blue, mut green) = exported_by_both(&world).await;
    green.kill();
    green.stale_ttl = Some(Duration::from_mins(8));
    green.lead();
    // Verified by this leader: what it has not read it never withdraws.
    tokio::time::sleep(Duration::from_mins(1)).await;
    blue.kill();
    until("it is noticed", || green.import_condition("web", "Stale").is_some()).await;
    assert_eq!(green.imported("web"), ["10.0.0.1", "10.1.0.1"]);
    green.until_imports("web", &["10.1.0.1"]).await;
    until("what it alone exported is gone", || green.is_clean("only-blue")).await;
    assert_eq!(green.import_condition("web", "Stale"), None, "no endpoint of it is left");
    green.kill();
    green.lead();
    green.export("new", 80, &["10.1.0.9"]);
    green.until_says("new", "Conflict", "False", "NoConflicts").await;
    always("the next leader knows it", Duration::from_mins(12), || {
        green.imported("web") == ["10.1.0.1"] && green.is_clean("only-blue")
    })
    .await;
    blue.lead();
    green.until_imports("web", &["10.0.0.1", "10.1.0.1"]).await;
    green.until_imports("only-blue", &["10.0.0.2"]).await;
}
