//! Pods behind the readiness gate, as the kubelet, the EndpointSlice controller and clients of Cloud Map see them.

use std::time::Duration;

use k8s_openapi::{api::core::v1 as core, jiff::Timestamp};
use serde_json::json;

use super::{
    annotated::HOSTNAME,
    world::{Cluster, World, always, key, until},
};
use api::names::{self, ANNOTATION_SHARE, ANNOTATION_SHARE_OF_TRAFFIC, CONDITION_REGISTERED};
use cloudmap::{ErrorKind, NamespaceKind, Operation};
use cluster::{apply::Cause, objects::ObjectKey};
use iam::Mode;
use instances::Selection;

/// `--gate-timeout` of these clusters.
const TIMEOUT: Duration = Duration::from_mins(5);

/// A pod of a Service, by its name, which is its uid, and the last part of its address.
type Pod = (&'static str, u8);

impl Cluster {
    /// The kubelet reports on the containers of a pod.
    fn run(&self, (name, last): Pod, ready: bool) {
        self.run_since((name, last), ready, None);
    }

    fn run_since(&self, (name, last): Pod, ready: bool, since: Option<Timestamp>) {
        let pod = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": name, "uid": name, "labels": {names::LABEL_GATE: "registered"}},
            "spec": {"containers": [], "readinessGates": [{"conditionType": CONDITION_REGISTERED}]},
            "status": {
                "podIPs": [{"ip": format!("10.0.0.{last}")}],
                "conditions": [{
                    "type": "ContainersReady", "status": if ready { "True" } else { "False" },
                    "lastTransitionTime": since.map(|since| since.to_string()),
                }],
            },
        }));
        self.objects.put_gated(pod.unwrap());
    }

    fn pod(&self, name: &str) -> Option<core::Pod> {
        self.objects.gated(&ObjectKey::new("shop", name))
    }

    fn pod_says(&self, name: &str, type_: &str) -> Option<core::PodCondition> {
        self.pod(name)?.status?.conditions?.into_iter().find(|condition| condition.type_ == type_)
    }

    /// The reason for which the gate of a pod is open; `None` while it is closed.
    fn gate(&self, name: &str) -> Option<String> {
        let condition = self.pod_says(name, CONDITION_REGISTERED)?;
        assert_eq!(condition.status, "True", "it is never closed by us");
        condition.reason
    }

    fn gate_text(&self, name: &str) -> String {
        self.pod_says(name, CONDITION_REGISTERED).and_then(|condition| condition.message).unwrap_or_default()
    }

    /// The kubelet computes `Ready`, and the EndpointSlice controller lists the pods of a Service with it.
    fn list(&self, service: &str, pods: &[Pod]) {
        let row = |(name, last): &Pod| {
            let containers = self.pod_says(name, "ContainersReady").is_some_and(|said| said.status == "True");
            let ready = containers && self.gate(name).is_some();
            let reason = (containers && !ready).then_some("ReadinessGatesNotReady");
            if let Some(mut pod) = self.pod(name) {
                let said = json!({"type": "Ready", "status": if ready { "True" } else { "False" }, "reason": reason});
                pod.status.as_mut().unwrap().conditions = Some(vec![serde_json::from_value(said).unwrap()]);
                self.objects.put_gated(pod);
            }
            json!({
                "addresses": [format!("10.0.0.{last}")],
                "conditions": {"ready": ready, "serving": ready, "terminating": false},
                "targetRef": {"kind": "Pod", "name": name, "uid": name},
            })
        };
        let slice = serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": format!("{service}-1"),
                "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: service},
            },
            "addressType": "IPv4", "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": pods.iter().map(row).collect::<Vec<_>>(),
        }));
        self.objects.put_slice(slice.unwrap());
    }

    /// A pod of an exported Service whose containers are ready.
    fn start(&self, service: &str, pods: &[Pod]) {
        for pod in pods {
            self.run(*pod, true);
        }
        self.list(service, pods);
        self.put_service(service, 80);
        self.put_export(service, &[]);
    }

    async fn until_opens(&self, name: &str, reason: &str) {
        until(&format!("the gate of {name} opens"), || self.gate(name).is_some()).await;
        assert_eq!(self.gate(name).as_deref(), Some(reason), "{}", self.gate_text(name));
    }

    async fn until_pod_noted(&self, name: &str, reason: &str) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_mins(10);
        loop {
            let of_pod = |note: &cluster::events::EventRecord| {
                note.regarding.kind.as_deref() == Some("Pod")
                    && note.regarding.name.as_deref() == Some(name)
                    && note.reason == *reason
            };
            if let Some(note) = self.objects.take_note(of_pod) {
                assert_eq!(note.regarding.uid.as_deref(), Some(name));
                return note.text;
            }
            assert!(tokio::time::Instant::now() < deadline, "{name} has no Event {reason}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

impl World {
    /// Hides an instance of 10.0.0.`last` from the discovery plane, which need not be registered yet. Another one must be.
    fn hide(&self, (namespace, service): (&str, &str), last: u8) {
        let service = self.service(namespace, service).unwrap().id;
        let mut registry = self.fake.registry();
        let known =
            registry.instances.keys().find_map(|(_, id)| id.split_once("-10-0-0-").map(|(of, _)| of.to_owned()));
        registry.undiscovered.insert((service, format!("{}-10-0-0-{last}", known.unwrap()).into()));
    }

    fn lookups(&self) -> usize {
        let calls = &self.fake.registry().calls;
        calls.iter().filter(|(operation, of)| *operation == Operation::DiscoverInstances && of == "web").count()
    }
}

/// The EndpointSlice says "not ready" until the gate opens, so nothing else can be what the registration waits for.
#[tokio::test(start_paused = true)]
async fn a_pod_is_registered_before_it_is_ready_and_ready_when_discovery_shows_it() {
    let world = World::new();
    let blue = world.cluster("blue");
    let (old, new): (Pod, Pod) = (("web-old", 1), ("web-new", 2));
    blue.start("web", &[old]);
    blue.until_opens("web-old", "Registered").await;
    assert_eq!(world.instances("web").len(), 1, "not before it is registered");
    blue.list("web", &[old]);

    // A roll-out: the new pod starts, and discovery lags.
    blue.run(new, false);
    blue.list("web", &[old, new]);
    always("its containers are not ready", Duration::from_mins(1), || {
        world.instances("web").len() == 1 && blue.gate("web-new").is_none()
    })
    .await;
    world.hide(("shop", "web"), 2);
    blue.run(new, true);
    blue.list("web", &[old, new]);
    until("it is registered", || world.instances("web").len() == 2).await;
    always("discovery does not show it", Duration::from_secs(90), || blue.gate("web-new").is_none()).await;
    let text = blue.until_pod_noted("web-new", "AwaitsRegistration").await;
    assert!(text.contains("shop/web") && text.contains("discovery does not show it"), "{text}");
    world.fake.registry().undiscovered.clear();
    blue.until_opens("web-new", "Registered").await;
    assert!(blue.gate_text("web-new").contains("shop/web"), "{}", blue.gate_text("web-new"));
    blue.list("web", &[old, new]);
    let lookups = world.lookups();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(world.lookups(), lookups, "nobody waits");
    assert_eq!(world.instances("web").len(), 2);

    // The other clusters see what Kubernetes says.
    blue.until_imports("web", &["10.0.0.1", "10.0.0.2"]).await;
    // An open gate says nothing about a pod whose containers fail.
    blue.run(new, false);
    blue.list("web", &[old, new]);
    until("it is withdrawn", || world.instances("web").len() == 1).await;
    assert_eq!(blue.gate("web-new").as_deref(), Some("Registered"));
    super::iam::check(&world, &[Mode::Instances, Mode::Gates]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_share_of_the_traffic_leaves_out_does_not_wait() {
    let world = World::new();
    super::shares::ecs(&world);
    let blue = world.cluster("blue");
    let both: [Pod; 2] = [("web-a", 1), ("web-b", 2)];
    for pod in both {
        blue.run(pod, true);
    }
    blue.list("web", &both);
    blue.put_service("web", 80);
    blue.put_export("web", &[(ANNOTATION_SHARE, "true"), (ANNOTATION_SHARE_OF_TRAFFIC, "40%")]);
    until("both gates open", || both.iter().all(|(name, _)| blue.gate(name).is_some())).await;
    let reasons: std::collections::BTreeSet<_> = both.iter().filter_map(|(name, _)| blue.gate(name)).collect();
    assert_eq!(reasons, ["HeldBack", "Registered"].map(str::to_owned).into());
    assert_eq!(world.instances("web").len(), 3, "one pod beside two tasks");
}

#[tokio::test(start_paused = true)]
async fn a_cloud_map_that_is_away_blocks_nobody_for_longer_than_the_timeout() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.start("web", &[("web-a", 1)]);
    blue.until_opens("web-a", "Registered").await;
    blue.list("web", &[("web-a", 1)]);
    world.fail();
    blue.run(("web-b", 2), true);
    blue.list("web", &[("web-a", 1), ("web-b", 2)]);
    let since = tokio::time::Instant::now();
    blue.until_opens("web-b", "TimedOut").await;
    assert!((TIMEOUT..TIMEOUT + Duration::from_secs(5)).contains(&since.elapsed()), "{:?}", since.elapsed());
    let text = blue.until_pod_noted("web-b", "TimedOut").await;
    assert!(text.contains("--gate-timeout") && text.contains("shop/web"), "{text}");
    blue.list("web", &[("web-a", 1), ("web-b", 2)]);
    world.heal();
    until("it is registered later", || world.instances("web").len() == 2).await;
}

/// Where nothing will be registered, the roll-out goes on after seconds, and the pod says why.
#[tokio::test(start_paused = true)]
async fn who_will_not_be_registered_does_not_wait_for_the_timeout() {
    let world = World::new();
    let shop = world.add_namespace("shop", NamespaceKind::DnsPrivate);
    world.fake.registry().add_service(&shop, "theirs", "ecs", "");
    let blue = world.cluster("blue");
    blue.start("theirs", &[("theirs-a", 1)]);
    let since = tokio::time::Instant::now();
    blue.until_opens("theirs-a", "Refused").await;
    assert!(since.elapsed() < Duration::from_mins(1), "{:?}", since.elapsed());
    let text = blue.until_pod_noted("theirs-a", "Refused").await;
    assert!(text.contains("shop/theirs"), "{text}");

    // An annotation that turns instances off, an export that is not possible, and a name that another Service has.
    blue.run(("off-a", 2), true);
    blue.list("off", &[("off-a", 2)]);
    blue.put_service("off", 80);
    blue.put_export("off", &[(names::ANNOTATION_INSTANCES, "false")]);
    blue.until_opens("off-a", "NotRegistered").await;
    blue.run(("none-a", 3), true);
    blue.list("none", &[("none-a", 3)]);
    blue.put_export("none", &[]);
    blue.until_opens("none-a", "Refused").await;
    assert!(blue.gate_text("none-a").contains("no Service"), "{}", blue.gate_text("none-a"));
    blue.start("api", &[("api-a", 4)]);
    blue.until_opens("api-a", "Registered").await;
    blue.run(("late-a", 5), true);
    blue.list("late", &[("late-a", 5)]);
    blue.put_service("late", 80);
    blue.put_export("late", &[(names::ANNOTATION_TARGET_SERVICE, "api")]);
    blue.until_opens("late-a", "Refused").await;
    assert!(blue.gate_text("late-a").contains("claims it"), "{}", blue.gate_text("late-a"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_no_registered_service_lists_waits_a_moment_for_one() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    blue.run(("alone", 1), true);
    blue.until_opens("alone", "NotRegistered").await;
    // The Service comes after the pod, and its export last.
    blue.run(("web-a", 2), true);
    tokio::time::sleep(Duration::from_secs(4)).await;
    blue.put_service("web", 80);
    blue.list("web", &[("web-a", 2)]);
    tokio::time::sleep(Duration::from_secs(4)).await;
    blue.put_export("web", &[]);
    blue.until_opens("web-a", "Registered").await;

    blue.kill();
    blue.instances = Selection::None;
    blue.lead();
    blue.run(("web-b", 3), true);
    blue.list("web", &[("web-a", 2), ("web-b", 3)]);
    let since = tokio::time::Instant::now();
    blue.until_opens("web-b", "NotRegistered").await;
    assert!(since.elapsed() < Duration::from_secs(8), "nothing is registered at all: {:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_several_services_waits_for_all_of_its_targets() {
    let world = World::new();
    world.add_namespace("internal", NamespaceKind::DnsPrivate);
    let blue = world.cluster("blue");
    let pod = ("web-a", 1);
    blue.start("web", &[pod]);
    blue.until_opens("web-a", "Registered").await;
    let headless = json!({"clusterIP": "None", "clusterIPs": ["None"], "ipFamilies": ["IPv4"],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
    blue.annotate("api", &[(HOSTNAME, "api.internal")], &headless);
    blue.list("api", &[pod]);
    until("it is registered there, too", || world.holds("internal", "api").len() == 1).await;

    let new = ("web-b", 2);
    world.hide(("internal", "api"), 2);
    blue.run(new, true);
    blue.list("web", &[pod, new]);
    blue.list("api", &[pod, new]);
    always("one does not show it", Duration::from_secs(30), || blue.gate("web-b").is_none()).await;
    assert_eq!((world.instances("web").len(), world.holds("internal", "api").len()), (2, 2));
    world.fake.registry().undiscovered.clear();
    blue.until_opens("web-b", "Registered").await;
    let text = blue.gate_text("web-b");
    assert!(text.contains("shop/web") && text.contains("internal/api"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_reads_what_the_former_one_registered_and_counts_the_time_that_a_pod_has_waited() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    blue.start("web", &[("web-a", 1)]);
    blue.until_opens("web-a", "Registered").await;
    blue.list("web", &[("web-a", 1)]);
    let pods: [Pod; 2] = [("web-a", 1), ("web-b", 2)];
    world.hide(("shop", "web"), 2);
    blue.run_since(pods[1], true, Some(world.wall()));
    blue.list("web", &pods);
    until("it is registered", || world.instances("web").len() == 2).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    assert_eq!(blue.gate("web-b"), None);
    let writes = world.writes().len();
    blue.kill();
    blue.lead();
    always("it has not waited for long enough", Duration::from_mins(2), || blue.gate("web-b").is_none()).await;
    assert_eq!(world.instances("web").len(), 2, "nothing is withdrawn, although the slices say that it is not ready");
    assert_eq!(world.writes().len(), writes, "nor registered again");
    blue.kill();
    blue.lead();
    let since = tokio::time::Instant::now();
    blue.until_opens("web-b", "TimedOut").await;
    assert!(since.elapsed() < Duration::from_secs(70), "{:?}", since.elapsed());
}

fn hours_before(world: &World) -> Timestamp {
    Timestamp::from_second(world.wall().as_second() - 7_200).unwrap()
}

/// Otherwise a clock that jumps opens the gates of a whole roll-out at once.
#[tokio::test(start_paused = true)]
async fn a_pod_that_a_leader_saw_begin_to_wait_has_waited_no_longer_whatever_the_clocks_say() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.start("web", &[("web-a", 1)]);
    blue.until_opens("web-a", "Registered").await;
    blue.run(("web-b", 2), false);
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.fail();
    blue.run_since(("web-b", 2), true, Some(hours_before(&world)));
    blue.list("web", &[("web-a", 1), ("web-b", 2)]);
    let since = tokio::time::Instant::now();
    blue.until_opens("web-b", "TimedOut").await;
    assert!((TIMEOUT..TIMEOUT + Duration::from_secs(5)).contains(&since.elapsed()), "{:?}", since.elapsed());
}

/// Nobody led for hours, or its clock is ahead.
#[tokio::test(start_paused = true)]
async fn a_new_leader_looks_for_a_pod_before_it_says_that_the_timeout_is_over() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    blue.start("web", &[("web-a", 1)]);
    blue.until_opens("web-a", "Registered").await;
    world.hide(("shop", "web"), 2);
    blue.run(("web-b", 2), true);
    blue.list("web", &[("web-a", 1), ("web-b", 2)]);
    until("it is registered", || world.instances("web").len() == 2).await;
    blue.kill();
    world.fake.registry().undiscovered.clear();
    blue.run_since(("web-b", 2), true, Some(hours_before(&world)));
    blue.lead();
    blue.until_opens("web-b", "Registered").await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_while_it_waits_is_withdrawn_and_not_waited_for() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.start("web", &[("web-a", 1), ("web-b", 2)]);
    until("both are registered", || world.instances("web").len() == 2).await;
    blue.objects.remove_gated(&ObjectKey::new("shop", "web-b"));
    blue.list("web", &[("web-a", 1)]);
    until("it is gone", || world.instances("web").len() == 1).await;
    blue.until_opens("web-a", "Registered").await;
    let lookups = world.lookups();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(world.lookups(), lookups);
}

/// A cluster whose export is registered, and that writes nothing any more.
async fn at_rest(world: &World) -> Cluster {
    let blue = world.cluster("blue");
    blue.put_service("web", 80);
    blue.put_export("web", &[]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    blue
}

/// There is nobody to ask but the API server: neither refusals nor failures end it, and the pod's Event names the remedy.
#[tokio::test(start_paused = true)]
async fn a_condition_that_cannot_be_written_is_said_on_the_pod_and_tried_again() {
    let world = World::new();
    let blue = at_rest(&world).await;
    let cannot = "pods \"alone\" is forbidden: User \"controller\" cannot patch resource \"pods/status\" in API group \"\" in \
                  the namespace \"shop\"";
    for _ in 0..3 {
        blue.objects.fail_next(Cause::Forbidden(cannot.to_owned()));
    }
    // The import of the name does not change: nothing else is written.
    blue.run(("alone", 1), true);
    let text = blue.until_pod_noted("alone", "GateNotWritten").await;
    assert!(text.contains("config/components/readiness-gates"), "{text}");
    blue.until_opens("alone", "NotRegistered").await;
    blue.until_pod_noted("alone", "NotRegistered").await;
}

/// Of many writers of a pod, or of an admission webhook. Nothing else is planned for the pod afterwards.
#[tokio::test(start_paused = true)]
async fn a_conflict_does_not_keep_a_gate_closed() {
    let world = World::new();
    let blue = at_rest(&world).await;
    for _ in 0..4 {
        blue.objects.fail_next(Cause::Conflict("the object has been modified".to_owned()));
    }
    blue.run(("alone", 1), true);
    blue.until_opens("alone", "NotRegistered").await;
    assert!(blue.objects.take_note(|note| note.reason == "GateNotWritten").is_none());
}

/// ECS makes its services with a custom health check: pods that are not ready keep their instances there.
#[tokio::test(start_paused = true)]
async fn a_pod_in_a_service_with_a_custom_health_check_is_ready_when_it_is_healthy_there() {
    let world = World::new();
    let shop = world.add_namespace("shop", NamespaceKind::DnsPrivate);
    let orders = world.fake.registry().add_service(&shop, "orders", "ecs", "");
    world.fake.registry().services.get_mut(&orders).unwrap().custom_health_check = true;
    let blue = world.cluster("blue");
    let pod = ("orders-a", 1);
    blue.run(pod, true);
    blue.list("orders", &[pod]);
    blue.put_service("orders", 80);
    blue.put_export("orders", &[(names::ANNOTATION_SHARE, "true")]);
    blue.until_opens("orders-a", "Registered").await;
    blue.list("orders", &[pod]);
    blue.run(pod, false);
    blue.list("orders", &[pod]);
    until("it is unhealthy", || world.fake.registry().unhealthy.len() == 1).await;
    assert_eq!(world.instances("orders").len(), 1);

    // One that fails again before its gate opens: it is registered, and unhealthy.
    let next = ("orders-b", 2);
    world.hide(("shop", "orders"), 2);
    blue.run(next, true);
    blue.list("orders", &[pod, next]);
    until("it is registered", || world.instances("orders").len() == 2).await;
    blue.run(next, false);
    blue.list("orders", &[pod, next]);
    until("both are unhealthy", || world.fake.registry().unhealthy.len() == 2).await;
    world.fake.registry().undiscovered.clear();
    always("its containers are not ready", Duration::from_mins(1), || blue.gate("orders-b").is_none()).await;
    blue.run(next, true);
    blue.list("orders", &[pod, next]);
    blue.until_opens("orders-b", "Registered").await;
    assert!(!world.fake.registry().unhealthy.iter().any(|(_, id)| id.ends_with("-2")), "not before it is healthy");
}

#[tokio::test(start_paused = true)]
async fn throttled_lookups_delay_gates_and_nothing_else() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.start("web", &[("web-a", 1)]);
    blue.until_opens("web-a", "Registered").await;
    let id = world.service("shop", "web").unwrap().name;
    world.fake.registry().failing.insert(id.clone(), ErrorKind::Throttled);
    blue.run(("web-b", 2), true);
    blue.list("web", &[("web-a", 1), ("web-b", 2)]);
    until("it is registered", || world.instances("web").len() == 2).await;
    let text = blue.until_pod_noted("web-b", "AwaitsRegistration").await;
    assert!(text.contains("discovery fails") && text.contains("--mode gates"), "{text}");
    assert_eq!(blue.gate("web-b"), None);
    world.fake.registry().failing.clear();
    blue.until_opens("web-b", "Registered").await;
    assert!(blue.objects.import(&key("web")).is_some());
}
