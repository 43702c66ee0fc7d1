//! Cutovers, from the spec to instances, and from these to the next step.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde_json::json;
use tokio::time::Instant;

use super::{
    annotated::PYTHON,
    shares::{ecs, pods},
    world::{Cluster, World, always, key, until},
};
use api::{
    CutoverGuard, CutoverPhase, CutoverSpec, CutoverStatus,
    names::{ANNOTATION_HEALTH_CHECK, ANNOTATION_MAY_REGISTER, ANNOTATION_SHARE, ANNOTATION_SHARE_OF_TRAFFIC},
};
use cloudmap::{DnsConfig, DnsRecord, RecordType};
use cluster::apply::Cause;

const PODS: [&str; 3] = ["10.0.0.1", "10.0.0.2", "10.0.0.3"];
const MINUTE: Duration = Duration::from_mins(1);

fn spec(steps: &[i64]) -> CutoverSpec {
    CutoverSpec { steps: steps.to_vec(), interval: Some("1m".to_owned()), ..CutoverSpec::default() }
}

fn status(cluster: &Cluster, name: &str) -> CutoverStatus {
    cluster.objects.cutover(&key(name)).and_then(|cutover| cutover.status).unwrap_or_default()
}

/// Phase, share and reason.
fn says(cluster: &Cluster, name: &str) -> (Option<CutoverPhase>, Option<i64>, String) {
    let CutoverStatus { phase, share_of_traffic, conditions, .. } = status(cluster, name);
    (phase, share_of_traffic, conditions.first().map(|condition| condition.reason.clone()).unwrap_or_default())
}

async fn until_says(cluster: &Cluster, name: &str, phase: CutoverPhase, share: Option<i64>, reason: &str) {
    for _ in 0..12_000 {
        if says(cluster, name) == (Some(phase), share, reason.to_owned()) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{phase} {share:?} {reason}, but it is {:?}", status(cluster, name));
}

/// The Service `web` with three pods joins two tasks.
fn joins(cluster: &Cluster) {
    cluster.put_service("web", 80);
    cluster.put_endpoints("web", &PODS);
    cluster.put_export("web", &[(ANNOTATION_SHARE, "true")]);
}

#[tokio::test(start_paused = true)]
async fn the_traffic_moves_step_by_step_and_back_whoever_leads() {
    let world = World::new();
    ecs(&world);
    let mut blue = world.cluster("blue");
    blue.objects.put_cutover(&key("web"), spec(&[40, 50, 100]));
    joins(&blue);
    // Every share lasts for a minute at least, after its pods are registered, and no pod is registered before.
    let mut reached = Instant::now();
    for (share, count, next) in [(40, 1, Some(50)), (50, 2, Some(100)), (100, 3, None)] {
        until(&format!("{share} % is reached"), || {
            assert!(status(&blue, "web").share_of_traffic <= Some(share) && pods(&world).len() <= count);
            status(&blue, "web").share_of_traffic == Some(share) && pods(&world).len() == count
        })
        .await;
        assert!(share == 40 || reached.elapsed() >= MINUTE, "{share} % came after {:?}", reached.elapsed());
        reached = Instant::now();
        if next.is_some() {
            // A leader that goes loses nothing but what it has counted since it wrote it.
            tokio::time::sleep(Duration::from_secs(20)).await;
            blue.kill();
            blue.lead();
        }
    }
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    let notes = blue.objects.take_notes();
    let begun: Vec<_> = notes.iter().filter(|note| note.reason == "StepBegun").map(|note| &*note.text).collect();
    assert_eq!(begun.len(), 3, "{begun:?}");
    assert!(begun[2].contains("100 % of the traffic is requested, after 50 %"), "{begun:?}");
    assert!(notes.iter().any(|note| note.reason == "Finished" && note.text.contains("cutover finish")), "{notes:?}");
    assert_eq!(status(&blue, "web").reached.as_deref(), Some("60%"));

    // The status wins over the annotation, under another leader as well.
    blue.put_export("web", &[(ANNOTATION_SHARE, "true"), (ANNOTATION_SHARE_OF_TRAFFIC, "0%")]);
    blue.kill();
    blue.lead();
    always("all stay", 2 * MINUTE, || pods(&world).len() == 3).await;
    blue.put_export("web", &[(ANNOTATION_SHARE, "true")]);

    blue.objects.put_cutover(&key("web"), CutoverSpec { roll_back: true, ..spec(&[40, 50, 100]) });
    until_says(&blue, "web", CutoverPhase::RolledBack, Some(0), "RolledBack").await;
    assert!(pods(&world).is_empty());
    // Without the Cutover all pods are there again.
    blue.objects.remove_cutover(&key("web"));
    until("all are registered", || pods(&world).len() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_lasts_for_clients_that_are_as_late_as_the_flag_says() {
    let world = World::new();
    ecs(&world);
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.settle = "5m".parse().unwrap();
    blue.lead();
    blue.objects.put_cutover(&key("web"), spec(&[40, 100]));
    joins(&blue);
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "Shifting").await;
    let reached = Instant::now();
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    assert!(reached.elapsed() > 4 * MINUTE, "100 % came after {:?}", reached.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_annotated_service_moves_likewise_and_goes_on_from_its_annotation() {
    let world = World::new();
    ecs(&world);
    let blue = world.cluster("blue");
    let annotations = [(PYTHON[0], "shop"), (PYTHON[1], "web"), (ANNOTATION_SHARE_OF_TRAFFIC, "45%")];
    blue.headless("web", &annotations, &PODS);
    until("one is registered", || pods(&world).len() == 1).await;
    blue.objects.put_cutover(&key("web"), CutoverSpec { share_of_traffic: None, ..spec(&[10, 50]) });
    until_says(&blue, "web", CutoverPhase::Shifting, Some(45), "Shifting").await;
    until_says(&blue, "web", CutoverPhase::Holding, Some(50), "LastStep").await;
    assert_eq!(pods(&world).len(), 2);
    blue.objects.put_cutover(&key("web"), CutoverSpec { share_of_traffic: Some(10), ..spec(&[10, 50]) });
    until_says(&blue, "web", CutoverPhase::Holding, Some(10), "Held").await;
    until("one is registered", || pods(&world).len() == 1).await;
    always("it holds", 5 * MINUTE, || pods(&world).len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_ready_paused_or_blocked_holds_the_step_and_says_why() {
    let world = World::new();
    ecs(&world);
    let blue = world.cluster("blue");
    let steps = spec(&[40, 100]);
    blue.objects.put_cutover(&key("web"), steps.clone());
    until_says(&blue, "web", CutoverPhase::Blocked, None, "NoObject").await;
    let is_blocked = |note: &cluster::events::EventRecord| note.reason == "CutoverBlocked";
    until("an Event says so", || blue.objects.take_note(is_blocked).is_some()).await;
    joins(&blue);
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "Shifting").await;

    // One pod fails: no more traffic, for however long.
    blue.put_readiness("web", &[(PODS[0], true), (PODS[1], true), (PODS[2], false)]);
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "PodsNotReady").await;
    always("it holds", 5 * MINUTE, || pods(&world).len() == 1).await;
    assert!(status(&blue, "web").conditions[0].message.contains("1 pod is not ready"));
    blue.objects.put_cutover(&key("web"), CutoverSpec { paused: true, ..steps.clone() });
    until_says(&blue, "web", CutoverPhase::Paused, Some(40), "Paused").await;
    blue.put_endpoints("web", &PODS);
    always("it holds", 5 * MINUTE, || pods(&world).len() == 1).await;

    // Without its object it keeps the share, which then counts again.
    blue.objects.remove_export(&key("web"));
    until_says(&blue, "web", CutoverPhase::Blocked, Some(40), "NoObject").await;
    until("all pods are withdrawn", || pods(&world).is_empty()).await;
    blue.put_export("web", &[(ANNOTATION_SHARE, "true")]);
    until_says(&blue, "web", CutoverPhase::Paused, Some(40), "Paused").await;
    until("one is registered", || pods(&world).len() == 1).await;
    blue.objects.put_cutover(&key("web"), CutoverSpec { steps: vec![40, 30], ..steps.clone() });
    until_says(&blue, "web", CutoverPhase::Blocked, Some(40), "InvalidSpec").await;
    always("it holds", 2 * MINUTE, || pods(&world).len() == 1).await;
    blue.objects.put_cutover(&key("web"), steps);
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;

    // The last pod stays where nobody else is.
    for n in 1..=2 {
        world.fake.registry().instances.retain(|(_, id), _| **id != *format!("{n:032x}"));
    }
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "Finished").await;
    blue.objects.put_cutover(&key("web"), CutoverSpec { roll_back: true, ..spec(&[40, 100]) });
    until_says(&blue, "web", CutoverPhase::RollingBack, Some(0), "LastInstance").await;
    always("the name is not empty", 5 * MINUTE, || !pods(&world).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_step_counts_when_its_status_is_written_and_not_before() {
    let world = World::new();
    ecs(&world);
    let blue = world.cluster("blue");
    joins(&blue);
    until("all are registered", || pods(&world).len() == 3).await;
    always("and stay", MINUTE, || pods(&world).len() == 3).await;
    for _ in 0..5 {
        blue.objects.fail_next(Cause::Forbidden("cutovers/status is forbidden".to_owned()));
    }
    blue.objects.put_cutover(&key("web"), spec(&[40]));
    let refused = |note: &cluster::events::EventRecord| note.reason == "CutoverNotWritten";
    until("an Event says so", || {
        assert!(status(&blue, "web").phase.is_some() || pods(&world).len() == 3);
        blue.objects.take_note(refused).is_some()
    })
    .await;
    until_says(&blue, "web", CutoverPhase::Holding, Some(40), "LastStep").await;
    assert_eq!(pods(&world).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wave_waits_until_the_lower_one_is_finished_and_a_clock_that_jumps_changes_nothing() {
    let world = World::new();
    ecs(&world);
    let mut blue = world.cluster("blue");
    blue.objects.put_cutover(&key("web"), CutoverSpec { wave: 2, ..spec(&[40, 100]) });
    blue.objects.put_cutover(&key("api"), CutoverSpec { wave: 1, ..spec(&[100]) });
    joins(&blue);
    until_says(&blue, "web", CutoverPhase::Waiting, None, "AwaitsWave").await;
    always("no pod is registered", 3 * MINUTE, || pods(&world).is_empty()).await;
    assert!(status(&blue, "web").conditions[0].message.contains("Cutover api"));
    blue.objects.remove_cutover(&key("api"));
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "Shifting").await;
    let begun = Instant::now();
    // Another leader, whose clock is an hour behind.
    blue.kill();
    World::set_back(&mut blue, Duration::from_hours(1));
    blue.lead();
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    assert!((MINUTE..4 * MINUTE).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_finds_something_wrong_takes_the_traffic_back_until_the_spec_changes() {
    let world = World::new();
    ecs(&world);
    let mut blue = world.cluster("blue");
    let guarded = |steps: &[i64]| CutoverSpec { guard: Some(CutoverGuard::default()), ..spec(steps) };
    joins(&blue);
    until("all are registered", || pods(&world).len() == 3).await;
    blue.objects.put_cutover(&key("web"), guarded(&[40, 100]));
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "Shifting").await;
    // Also a pod that gets no traffic yet.
    world.callers.ill.lock().unwrap().insert(PODS[2].parse().unwrap());
    until_says(&blue, "web", CutoverPhase::RolledBack, Some(0), "GuardFailed").await;
    assert!(pods(&world).is_empty());
    let failed = |note: &cluster::events::EventRecord| note.reason == "GuardFailed";
    until("an Event says so", || blue.objects.take_note(failed).is_some()).await;
    let said = status(&blue, "web").guard_failure.unwrap().message;
    assert_eq!(said, "the pod at 10.0.0.3:8080 failed 3 probes in a row: it refused the connection");

    // Also under the next leader, and when all is well again.
    world.callers.ill.lock().unwrap().clear();
    blue.kill();
    blue.lead();
    always("it stays back", 5 * MINUTE, || pods(&world).is_empty()).await;
    assert_eq!(says(&blue, "web"), (Some(CutoverPhase::RolledBack), Some(0), "GuardFailed".to_owned()));

    blue.objects.put_cutover(&key("web"), guarded(&[50, 100]));
    until_says(&blue, "web", CutoverPhase::Shifting, Some(50), "Shifting").await;
    until("it is at the last step", || status(&blue, "web").share_of_traffic == Some(100)).await;
    let begun = Instant::now();
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    assert!(begun.elapsed() >= MINUTE, "the last step lasts as well: {:?}", begun.elapsed());
    // Then the tasks may be gone.
    world.callers.ill.lock().unwrap().insert(PODS[0].parse().unwrap());
    always("it stays", 5 * MINUTE, || pods(&world).len() == 3).await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_without_data_holds_the_step_for_however_long() {
    let world = World::new();
    ecs(&world);
    let blue = world.cluster("blue");
    let (query, max) = (Some("errors".to_owned()), Some("0.05".to_owned()));
    let guard = Some(CutoverGuard { query, max, ..CutoverGuard::default() });
    blue.objects.put_cutover(&key("web"), CutoverSpec { guard, ..spec(&[40, 100]) });
    joins(&blue);
    until_says(&blue, "web", CutoverPhase::Shifting, None, "GuardUnclear").await;
    always("no pod gets traffic", 5 * MINUTE, || pods(&world).is_empty()).await;
    assert!(status(&blue, "web").conditions[0].message.contains("Prometheus: the query has no value"));
    *world.callers.value.lock().unwrap() = Some(0.05);
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "Shifting").await;
    *world.callers.value.lock().unwrap() = None;
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "GuardUnclear").await;
    always("it holds", 5 * MINUTE, || pods(&world).len() == 1).await;
    *world.callers.value.lock().unwrap() = Some(0.06);
    until_says(&blue, "web", CutoverPhase::RolledBack, Some(0), "GuardFailed").await;
    assert!(status(&blue, "web").guard_failure.unwrap().message.contains("above its maximum"));
}

/// Annotations and EndpointSlices of users may have any address, and the controller reaches more than they do.
#[tokio::test(start_paused = true)]
async fn a_guard_asks_only_pods_of_the_service_on_its_ports() {
    let world = World::new();
    ecs(&world);
    let blue = world.cluster("blue");
    joins(&blue);
    let written = json!({
        "metadata": {"namespace": "shop", "name": "web-written", "labels": {"kubernetes.io/service-name": "web"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 6443}],
        "endpoints": [{"addresses": ["10.0.0.66"]}],
    });
    blue.objects.put_slice(serde_json::from_value(written).unwrap());
    let guarded =
        |port| CutoverSpec { guard: Some(CutoverGuard { port, ..CutoverGuard::default() }), ..spec(&[40, 100]) };
    blue.objects.put_cutover(&key("web"), guarded(Some(10_250)));
    until_says(&blue, "web", CutoverPhase::Shifting, None, "GuardUnclear").await;
    let message = status(&blue, "web").conditions[0].message.clone();
    assert!(message.contains("no pod to probe") && message.contains("spec.guard.port"), "{message}");
    assert!(world.callers.asked.lock().unwrap().is_empty());

    blue.objects.put_cutover(&key("web"), guarded(None));
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    assert!(pods(&world).iter().any(|pod| pod == "10.0.0.66"), "it is registered all the same: {:?}", pods(&world));
    let asked = PODS.map(|pod| SocketAddr::new(pod.parse().unwrap(), 8080)).into();
    assert_eq!(*world.callers.asked.lock().unwrap(), asked);
}

/// The name of such a service has no address; only those of its instances have one.
#[tokio::test(start_paused = true)]
async fn a_guard_asks_dns_for_no_address_of_a_service_with_srv_records_alone() {
    let world = World::new();
    let web = ecs(&world);
    let records = vec![DnsRecord { record_type: RecordType::Srv, ttl: 10 }];
    world.fake.registry().services.get_mut(&web).unwrap().dns = Some(DnsConfig { weighted: false, records });
    *world.callers.unresolved.lock().unwrap() = Some("no such name".to_owned());
    let blue = world.cluster("blue");
    let guard = Some(CutoverGuard::default());
    blue.objects.put_cutover(&key("web"), CutoverSpec { guard, ..spec(&[40, 100]) });
    joins(&blue);
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "Shifting").await;
}

/// With so many tasks of ECS, in a service with a custom health check.
fn checked(world: &World, tasks: u8) -> Arc<str> {
    ecs(world);
    let mut registry = world.fake.registry();
    let id = registry.services.values().find(|service| &*service.name == "web").unwrap().id.clone();
    registry.services.get_mut(&id).unwrap().custom_health_check = true;
    registry.instances.retain(|(service, _), _| *service != id);
    for n in 1..=tasks {
        let attributes = [("AWS_INSTANCE_IPV4", format!("10.9.0.{n}")), ("ECS_SERVICE_NAME", "web".to_owned())];
        let attributes = attributes.map(|(key, value)| (key.to_owned(), value)).into();
        registry.instances.insert((id.clone(), format!("task-{n}").into()), attributes);
    }
    id
}

/// A controller that may hide tasks, or may not.
fn hiding(world: &World, may: bool) -> Cluster {
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.hide_tasks = may;
    blue.lead();
    blue
}

fn hidden_says(cluster: &Cluster) -> (String, String, String) {
    let conditions = status(cluster, "web").conditions;
    let said = conditions.into_iter().find(|said| said.type_ == "TasksHidden");
    said.map(|said| (said.status, said.reason, said.message)).unwrap_or_default()
}

async fn until_hidden_says(cluster: &Cluster, status_: &str, reason: &str) -> String {
    for _ in 0..12_000 {
        let (status, said, message) = hidden_says(cluster);
        if (&*status, &*said) == (status_, reason) {
            return message;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("{status_} {reason}, but it is {:?}", status(cluster, "web"));
}

#[tokio::test(start_paused = true)]
async fn tasks_are_hidden_for_the_steps_and_shown_on_every_way_back() {
    let world = World::new();
    let id = checked(&world, 4);
    let mut blue = hiding(&world, true);
    let ill = || world.fake.registry().unhealthy.iter().filter(|(service, _)| *service == id).count();
    let recorded = |blue: &Cluster| blue.hidden.0.lock().unwrap().0.values().map(Vec::len).sum::<usize>();
    let with = |steps: &[i64]| CutoverSpec { hide_tasks: true, ..spec(steps) };
    blue.objects.put_cutover(&key("web"), with(&[40, 60, 100]));
    joins(&blue);
    until_says(&blue, "web", CutoverPhase::Shifting, Some(40), "Shifting").await;
    until_hidden_says(&blue, "True", "NoneToHide").await;
    until_says(&blue, "web", CutoverPhase::Shifting, Some(60), "Shifting").await;
    // Three pods beside two of four tasks.
    let message = until_hidden_says(&blue, "True", "Hidden").await;
    assert!(message.starts_with("2 tasks are hidden, and may be stopped from "), "{message}");
    assert_eq!((status(&blue, "web").hidden, status(&blue, "web").reached.as_deref()), (Some(2), Some("60%")));
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    until_hidden_says(&blue, "True", "Hidden").await;
    until("all are hidden", || ill() == 4 && status(&blue, "web").hidden == Some(4)).await;
    let since = |blue: &Cluster| status(blue, "web").hidden_since.map(|since| since.0);
    let before = since(&blue);
    assert!(before.is_some());

    // Another leader goes on. It does not know when the last one was marked.
    tokio::time::sleep(Duration::from_secs(10)).await;
    blue.kill();
    blue.lead();
    always("they stay hidden", 3 * MINUTE, || ill() == 4 && pods(&world).len() == 3).await;
    assert!(since(&blue) > before, "{before:?}");

    blue.objects.put_cutover(&key("web"), CutoverSpec { roll_back: true, ..with(&[40, 60, 100]) });
    until("a pod goes", || pods(&world).len() < 3).await;
    assert_eq!(ill(), 0, "the tasks are found again before");
    until_says(&blue, "web", CutoverPhase::RolledBack, Some(0), "RolledBack").await;
    until("nothing is recorded", || recorded(&blue) == 0 && status(&blue, "web").hidden.is_none()).await;

    // Without the Cutover, the Service, or the flag.
    for without in ["cutover", "export", "flag"] {
        blue.objects.put_cutover(&key("web"), with(&[99]));
        blue.objects.put_cutover(&key("web"), CutoverSpec { share_of_traffic: Some(100), ..with(&[99]) });
        joins(&blue);
        until("all are hidden", || ill() == 4 && pods(&world).len() == 3).await;
        match without {
            "cutover" => blue.objects.remove_cutover(&key("web")),
            "export" => blue.objects.remove_export(&key("web")),
            _ => {
                blue.kill();
                blue.hide_tasks = false;
                blue.lead();
            }
        }
        until(without, || ill() == 0 && recorded(&blue) == 0).await;
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_the_steps_go_on_and_the_condition_names_it() {
    let world = World::new();
    checked(&world, 4);
    let blue = hiding(&world, false);
    blue.objects.put_cutover(&key("web"), CutoverSpec { hide_tasks: true, ..spec(&[40, 100]) });
    joins(&blue);
    let message = until_hidden_says(&blue, "False", "FlagMissing").await;
    assert!(message.contains("--hide-tasks") && message.contains("iam --mode hiding"), "{message}");
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    assert!(world.fake.registry().unhealthy.is_empty());
    assert!(blue.objects.take_notes().iter().any(|note| note.reason == "TasksNotHidden"));
}

/// Hiding moves the traffic of tasks, also where the service is ours and only the tasks are not.
#[tokio::test(start_paused = true)]
async fn tasks_are_hidden_only_where_an_administrator_allows_it() {
    let world = World::new();
    let blue = hiding(&world, true);
    blue.objects.annotate_namespace("shop", &[]);
    blue.put_service("web", 80);
    blue.put_endpoints("web", &PODS);
    blue.put_export("web", &[(ANNOTATION_HEALTH_CHECK, "custom")]);
    until("the service is ours", || pods(&world).len() == 3).await;
    let id = world.service("shop", "web").unwrap().id;
    world.add_instance(&id, "task-1", &[("AWS_INSTANCE_IPV4", "10.9.0.1"), ("ECS_SERVICE_NAME", "web")]);
    blue.objects.put_cutover(&key("web"), CutoverSpec { hide_tasks: true, ..spec(&[40, 100]) });
    let message = until_hidden_says(&blue, "False", "NotGranted").await;
    assert!(
        message.contains("cloudmap-mcs/may-register: \"shop/web\"") && message.contains("administrator"),
        "{message}"
    );
    until_says(&blue, "web", CutoverPhase::Finished, Some(100), "OthersServe").await;
    assert!(world.fake.registry().unhealthy.is_empty());
    assert!(blue.objects.take_notes().iter().any(|note| note.reason == "TasksNotHidden"));
    blue.objects.annotate_namespace("shop", &[(ANNOTATION_MAY_REGISTER, "shop/*")]);
    until_hidden_says(&blue, "True", "Hidden").await;
    until("it is hidden", || world.fake.registry().unhealthy.len() == 1).await;
    blue.objects.annotate_namespace("shop", &[]);
    until("it is shown again", || world.fake.registry().unhealthy.is_empty()).await;
    until_hidden_says(&blue, "False", "NotGranted").await;
}
