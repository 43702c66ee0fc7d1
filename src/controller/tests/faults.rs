//! Restarts, a Cloud Map that fails, clusters that leave, and an id that is taken.

use std::time::Duration;

use proptest::prelude::*;
use serde_json::json;

use super::world::{Cluster, World, always, key, until};
use cloudmap::{ErrorKind, Operation, fake::Fault};
use cluster::apply::Cause;

const NAMES: [&str; 3] = ["web", "api", "db"];

async fn exporting(world: &World) -> (Cluster, Cluster) {
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    for name in NAMES {
        blue.export(name, 80, &["10.0.0.1", "10.0.0.2"]);
        green.export(name, 80, &["10.1.0.1"]);
    }
    for name in NAMES {
        for cluster in [&blue, &green] {
            cluster.until_imports(name, &["10.0.0.1", "10.0.0.2", "10.1.0.1"]).await;
            cluster.until_says(name, "Ready", "True", "Exported").await;
            cluster.until_says(name, "Registered", "True", "Registered").await;
        }
        until("all are registered", || world.instances(name).len() == 3).await;
    }
    (blue, green)
}

/// Calls that withdrew an instance of a Service.
fn withdrawn(world: &World) -> Vec<String> {
    let calls = world.fake.registry().calls.clone();
    let withdrawn = calls.into_iter().filter(|(op, id)| *op == Operation::DeregisterInstance && id.starts_with("k8s-"));
    withdrawn.map(|(_, id)| id).collect()
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_finds_everything_as_it_is_and_writes_nothing() {
    let world = World::new();
    let (mut blue, mut green) = exporting(&world).await;
    tokio::time::sleep(Duration::from_mins(6)).await;
    for _ in 0..3 {
        let before = (blue.objects.writes(), green.objects.writes());
        blue.kill();
        blue.lead();
        tokio::time::sleep(Duration::from_mins(2)).await;
        green.kill();
        tokio::time::sleep(Duration::from_secs(40)).await;
        green.lead();
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!((blue.objects.writes(), green.objects.writes()), before);
    }
    assert_eq!(withdrawn(&world), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn what_happened_while_nobody_led_is_made_up_for() {
    let world = World::new();
    let (mut blue, mut green) = exporting(&world).await;
    blue.export("shy", 80, &[]);
    blue.until_imports("shy", &[]).await;
    green.until_imports("shy", &[]).await;
    blue.kill();
    green.kill();
    blue.objects.remove_export(&key("shy"));
    blue.objects.remove_export(&key("web"));
    green.objects.remove_export(&key("web"));
    blue.objects.remove_export(&key("api"));
    blue.put_endpoints("db", &["10.0.0.9"]);
    blue.export("new", 80, &["10.0.0.7"]);
    blue.lead();
    // Until nothing in the registry tells of the names any more.
    tokio::time::sleep(Duration::from_mins(5)).await;
    green.lead();
    for cluster in [&blue, &green] {
        until("the names that nobody exports are gone", || cluster.is_clean("web") && cluster.is_clean("shy")).await;
        cluster.until_imports("api", &["10.1.0.1"]).await;
        cluster.until_imports("db", &["10.0.0.9", "10.1.0.1"]).await;
        cluster.until_imports("new", &["10.0.0.7"]).await;
    }
    until("the instances follow", || {
        ["web", "api", "db", "new"].map(|name| world.instances(name).len()) == [0, 1, 2, 1]
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn while_cloud_map_fails_nothing_is_deleted_and_new_exports_say_so() {
    let world = World::new();
    let (mut blue, green) = exporting(&world).await;
    let uids = |cluster: &Cluster| NAMES.map(|name| cluster.uids(name));
    let before = (uids(&blue), uids(&green));
    world.fail();
    blue.export("new", 80, &["10.0.0.7"]);
    blue.until_says("new", "Ready", "False", "Failed").await;
    // Also for a leader that knows nothing yet, for longer than any cluster may be silent.
    blue.kill();
    blue.lead();
    always("everything stays", Duration::from_mins(10), || (uids(&blue), uids(&green)) == before).await;
    for name in NAMES {
        assert_eq!(green.says(name, "Ready").0, "True", "what is in the registry stays there");
    }
    world.heal();
    blue.until_says("new", "Ready", "True", "Exported").await;
    green.until_imports("new", &["10.0.0.7"]).await;
    for name in NAMES {
        blue.until_says(name, "Ready", "True", "Exported").await;
        blue.until_says(name, "Registered", "True", "Registered").await;
    }
    blue.objects.remove_export(&key("new"));
    until("it goes", || green.is_clean("new") && blue.is_clean("new")).await;
    let new = |id: &&String| !id.ends_with("10-0-0-7");
    assert_eq!(withdrawn(&world).iter().find(new), None);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_api_server_refuses_is_tried_again_until_all_is_there() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    for writes in 0..6 {
        green.objects.fail_after(writes, Cause::Unavailable("overloaded".to_owned()));
    }
    blue.objects.fail_next(Cause::Conflict("it changed".to_owned()));
    for name in NAMES {
        blue.export(name, 80, &["10.0.0.1"]);
    }
    for name in NAMES {
        green.until_imports(name, &["10.0.0.1"]).await;
        blue.until_imports(name, &["10.0.0.1"]).await;
        blue.until_says(name, "Ready", "True", "Exported").await;
    }
    green.objects.fail_after(1, Cause::Timeout);
    for name in NAMES {
        blue.objects.remove_export(&key(name));
    }
    for name in NAMES {
        until("it goes", || green.is_clean(name) && blue.is_clean(name)).await;
    }
}

/// Large clusters store Events apart from everything else.
#[tokio::test(start_paused = true)]
async fn endpoints_wait_for_no_event_that_the_api_server_does_not_take() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    green.objects.hold_events();
    // More than there are workers.
    for n in 0..8 {
        let name = format!("blocked-{n}");
        let metadata = json!({"namespace": "shop", "name": name});
        let import = json!({"metadata": metadata, "spec": {"type": "ClusterSetIP", "ports": []}});
        green.objects.put_import(serde_json::from_value(import).unwrap());
        blue.export(&name, 80, &["10.0.0.1"]);
    }
    blue.until_says("blocked-7", "Ready", "True", "Exported").await;
    // Green finds that they are blocked.
    tokio::time::sleep(Duration::from_mins(1)).await;
    blue.export("web", 80, &["10.0.0.2"]);
    green.until_imports("web", &["10.0.0.2"]).await;
}

#[tokio::test(start_paused = true)]
async fn who_leaves_takes_everything_along_and_may_come_back() {
    let world = World::new();
    let (mut blue, green) = exporting(&world).await;
    green.export("shy", 80, &[]);
    blue.until_imports("shy", &[]).await;
    blue.set_leaving(true);
    for name in NAMES {
        until("nothing is imported any more", || blue.is_clean(name)).await;
        green.until_imports(name, &["10.1.0.1"]).await;
        until("the other's instances stay", || world.instances(name).len() == 1).await;
        blue.until_says(name, "Ready", "False", "Pending").await;
    }
    until("an import without endpoints goes, too", || blue.is_clean("shy")).await;
    always("it stays so", Duration::from_mins(2), || blue.is_clean("web") && !green.is_clean("web")).await;
    blue.kill();
    blue.lead();
    always("also after a restart", Duration::from_mins(2), || blue.is_clean("web")).await;
    blue.set_leaving(false);
    for name in NAMES {
        green.until_imports(name, &["10.0.0.1", "10.0.0.2", "10.1.0.1"]).await;
        blue.until_imports(name, &["10.0.0.1", "10.0.0.2", "10.1.0.1"]).await;
        blue.until_says(name, "Ready", "True", "Exported").await;
    }
}

#[tokio::test(start_paused = true)]
async fn who_was_forgotten_and_purged_is_no_riddle_to_the_next_leader() {
    let world = World::new();
    let (mut blue, mut green) = exporting(&world).await;
    blue.kill();
    world.forget("blue").await;
    for name in NAMES {
        green.until_imports(name, &["10.1.0.1"]).await;
    }
    green.kill();
    world.purge("blue");
    green.lead();
    green.export("new", 80, &["10.1.0.9"]);
    green.until_says("new", "Conflict", "False", "NoConflicts").await;
    // Nor is a conflict with somebody else said on when it is over.
    let red = world.cluster("red");
    red.export("web", 81, &["10.2.0.1"]);
    green.until_says("web", "Conflict", "True", "PortConflict").await;
    red.put_service("web", 80);
    green.until_says("web", "Conflict", "False", "NoConflicts").await;
}

#[tokio::test(start_paused = true)]
async fn who_took_an_id_that_is_taken_writes_nothing_and_says_so() {
    let world = World::new();
    let green = world.cluster("green");
    let blue = world.cluster("blue");
    blue.export("web", 80, &["10.0.0.1"]);
    green.until_imports("web", &["10.0.0.1"]).await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    let impostor = world.cluster_with_uid("blue", "uid-of-another");
    impostor.export("other", 80, &["10.6.0.1"]);
    impostor.until_says("other", "Ready", "False", "Failed").await;
    always("nothing of it arrives", Duration::from_mins(5), || green.is_clean("other")).await;
    assert!(world.instances("other").is_empty() && !blue.is_clean("web"));
    assert!(impostor.is_clean("other") && impostor.is_clean("web"));
    assert_eq!(blue.says("web", "Ready"), ("True".to_owned(), "Exported".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn who_loses_its_id_leaves_its_instances_as_they_are_until_it_has_it_again() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.export("web", 80, &["10.0.0.1", "10.0.0.2"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    until("both are registered", || world.instances("web").len() == 2).await;
    // Another cluster takes the id, as after a purge, and says so in the head.
    let exports = world.rename_creator("exports-0.blue", "uid-of-another");
    world.rewrite_heads("blue", "uid-of-another");
    blue.until_says("web", "Ready", "False", "Failed").await;
    let before = world.writes().len();
    blue.put_endpoints("web", &["10.0.0.2", "10.0.0.3"]);
    blue.export("new", 80, &["10.0.0.9"]);
    let quiet = || world.writes().len() == before && world.instances("web").len() == 2;
    always("nothing is written", Duration::from_mins(5), quiet).await;
    assert!(!blue.is_clean("web"));

    world.rename_creator("exports-0.blue", "uid-blue");
    assert_eq!(exports, "uid-blue");
    blue.until_says("web", "Ready", "True", "Exported").await;
    until("all goes on", || {
        world.instances("new").len() == 1 && world.instances("web").iter().any(|id| id.ends_with("10-0-0-3"))
    })
    .await;
}

/// Restarts at these milliseconds after each other, while everything is under way and some registrations fail: the
/// first cluster's, then the second's, and so on.
async fn restarts(pauses: Vec<u64>) {
    let world = World::new();
    let (mut blue, mut green) = (world.cluster("blue"), world.cluster("green"));
    for (n, pause) in pauses.into_iter().enumerate() {
        if let Some(name) = NAMES.get(n) {
            blue.export(name, 80, &["10.0.0.1", "10.0.0.2"]);
            green.export(name, 80, &["10.1.0.1"]);
        }
        for fault in [
            Fault::FailedLater("INTERNAL_FAILURE"),
            Fault::Lost(ErrorKind::Unknown),
            Fault::Refused(ErrorKind::Throttled),
        ] {
            if pause % 4 > 0 {
                world.fake.fault(Operation::RegisterInstance, fault);
            }
        }
        tokio::time::sleep(Duration::from_millis(pause)).await;
        let (cluster, other) = if n % 2 == 0 { (&mut blue, &green) } else { (&mut green, &blue) };
        let before = (cluster.uids("web"), other.uids("web"));
        cluster.kill();
        cluster.lead();
        let kept = |now: Vec<Option<String>>, before: &[Option<String>]| before.iter().all(|uid| now.contains(uid));
        assert!(kept(cluster.uids("web"), &before.0) && kept(other.uids("web"), &before.1), "something was deleted");
    }
    for name in NAMES {
        for cluster in [&blue, &green] {
            cluster.until_imports(name, &["10.0.0.1", "10.0.0.2", "10.1.0.1"]).await;
            cluster.until_says(name, "Ready", "True", "Exported").await;
            cluster.until_says(name, "Registered", "True", "Registered").await;
            cluster.until_says(name, "Conflict", "False", "NoConflicts").await;
        }
        until("all are registered", || world.instances(name).len() == 3).await;
    }
    assert_eq!(withdrawn(&world), [""; 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn restarts_at_any_moment_converge_and_delete_nothing(pauses in prop::collection::vec(0u64..12_000, 3..8)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(restarts(pauses));
    }
}
