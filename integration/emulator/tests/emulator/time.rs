//! What takes time, on the registry itself with the time passed in: no network, no clock.

use std::collections::BTreeSet;
use std::time::Duration;

use cloudmap_emulator::{CloudMap, EmulatorSettings, Latency, Outcome};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    registry: CloudMap,
    now: Duration,
    service: String,
}

impl World {
    /// With the namespace `apps` and the service `web`, which has a custom health check, and everything settled.
    fn new(settings: EmulatorSettings) -> Self {
        let registry = CloudMap::new(EmulatorSettings { seed: settings.seed.or(Some(7)), ..settings });
        let mut world = Self { registry, now: Duration::from_secs(1_000_000), service: String::new() };
        let operation = world.call("CreateHttpNamespace", &json!({ "Name": "apps" }));
        world.wait(60.0);
        let namespace = world.operation(&operation)["Targets"]["NAMESPACE"].clone();
        let request = json!({ "NamespaceId": namespace, "Name": "web", "HealthCheckCustomConfig": {} });
        let service = world.call("CreateService", &request)["Service"]["Id"].as_str().unwrap().to_owned();
        world.service = service;
        world.wait(60.0);
        world
    }

    fn try_call(&mut self, operation: &str, members: &Value) -> Result<Value, String> {
        match self.registry.call(self.now, "tester", operation, members.to_string().as_bytes()) {
            Outcome::Answered(Ok(answer)) => Ok(serde_json::from_slice(&answer.into_json()).unwrap()),
            Outcome::Answered(Err(error)) => Err(error.code),
            Outcome::Dropped => panic!("{operation} was dropped"),
        }
    }

    fn call(&mut self, operation: &str, members: &Value) -> Value {
        self.try_call(operation, members).unwrap()
    }

    fn wait(&mut self, seconds: f64) {
        self.now += Duration::from_secs_f64(seconds);
    }

    fn operation(&mut self, started: &Value) -> Value {
        self.call("GetOperation", &json!({ "OperationId": started["OperationId"] }))["Operation"].clone()
    }

    fn register(&mut self, instance: &str, value: &str) -> Result<Value, String> {
        let request = json!({ "ServiceId": self.service, "InstanceId": instance, "Attributes": { "k": value } });
        self.try_call("RegisterInstance", &request)
    }

    fn discover(&mut self, health: &str) -> Value {
        let request = json!({ "NamespaceName": "apps", "ServiceName": "web", "HealthStatus": health });
        self.call("DiscoverInstances", &request)
    }

    /// The value of the only instance, if there is any.
    fn value(&mut self) -> Option<String> {
        let found = self.discover("ALL");
        found["Instances"][0]["Attributes"]["k"].as_str().map(str::to_owned)
    }
}

#[test]
fn an_operation_is_submitted_pending_and_done() {
    let mut world =
        World::new(EmulatorSettings { operation_latency: Latency::fixed(4 * SECOND), ..EmulatorSettings::default() });
    let operation = world.register("a", "v").unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let instances = world.call("ListInstances", &json!({ "ServiceId": world.service }));
        let there = !instances["Instances"].as_array().unwrap().is_empty();
        seen.push((world.operation(&operation)["Status"].as_str().unwrap().to_owned(), there));
        world.wait(1.5);
    }
    let expected = [("SUBMITTED", false), ("PENDING", false), ("PENDING", false), ("SUCCESS", true)];
    assert_eq!(seen, expected.map(|(status, there)| (status.to_owned(), there)));
    let done = world.operation(&operation);
    let took = done["UpdateDate"].as_f64().unwrap() - done["CreateDate"].as_f64().unwrap();
    assert!((took - 4.0).abs() < 0.01, "{took}");
}

#[test]
fn a_target_is_free_again_when_its_operation_ends() {
    let mut world =
        World::new(EmulatorSettings { operation_latency: Latency::fixed(2 * SECOND), ..EmulatorSettings::default() });
    world.register("a", "1").unwrap();
    world.wait(1.9);
    assert_eq!(world.register("a", "2"), Err("DuplicateRequest".to_owned()));
    world.wait(0.2);
    world.register("a", "2").unwrap();
    // What was there stays until the second operation is done.
    assert_eq!(world.value().as_deref(), Some("1"));
    world.wait(2.0);
    assert_eq!(world.value().as_deref(), Some("2"));
}

#[test]
fn reads_go_backwards_between_replicas_but_not_on_one() {
    let lags = vec![Latency::ZERO, Latency::fixed(5 * SECOND)];
    let mut world = World::new(EmulatorSettings { discovery_lag: lags, ..EmulatorSettings::default() });
    world.register("a", "old").unwrap();
    world.wait(10.0);
    world.register("a", "new").unwrap();
    let seen: Vec<_> = (0..50).map(|_| world.value().unwrap()).collect();
    assert_eq!(seen.iter().map(String::as_str).collect::<BTreeSet<_>>(), BTreeSet::from(["new", "old"]));
    assert!(seen.windows(2).any(|pair| pair[0] == "new" && pair[1] == "old"), "{seen:?}");
    world.wait(5.0);
    assert!((0..50).all(|_| world.value().as_deref() == Some("new")));
}

#[test]
fn changes_reach_a_replica_in_their_order() {
    // The lag of each change is drawn anew, and yet none overtakes another of its service.
    let lags = vec![Latency::range(Duration::ZERO, 5 * SECOND)];
    let mut world = World::new(EmulatorSettings { discovery_lag: lags, ..EmulatorSettings::unthrottled() });
    let (mut last, mut last_revision) = (0, 0);
    for n in 1..=200u64 {
        world.register("a", &n.to_string()).unwrap();
        world.wait(0.1);
        let value = world.value().map_or(0, |value| value.parse().unwrap());
        let revision = world.discover("ALL")["InstancesRevision"].as_u64().unwrap();
        assert!(value >= last && revision >= last_revision, "{value} after {last}, {revision} after {last_revision}");
        assert!(value <= n);
        (last, last_revision) = (value, revision);
    }
    assert!(last < 200, "nothing lagged");
    world.wait(5.0);
    assert_eq!(world.value().as_deref(), Some("200"));
}

#[test]
fn a_service_is_found_and_forgotten_late_too() {
    let lags = vec![Latency::fixed(3 * SECOND)];
    let mut world = World::new(EmulatorSettings { discovery_lag: lags, ..EmulatorSettings::default() });
    let namespace = world.call("GetService", &json!({ "Id": world.service }))["Service"]["NamespaceId"].clone();
    world.call("DeleteService", &json!({ "Id": world.service }));
    world.call("CreateService", &json!({ "NamespaceId": namespace, "Name": "new" }));
    let found = |world: &mut World, name: &str| {
        let request = json!({ "NamespaceName": "apps", "ServiceName": name });
        world.try_call("DiscoverInstances", &request).map(|_| ())
    };
    let not_found = Err("ServiceNotFound".to_owned());
    assert_eq!((found(&mut world, "web"), found(&mut world, "new")), (Ok(()), not_found.clone()));
    world.wait(3.0);
    assert_eq!((found(&mut world, "web"), found(&mut world, "new")), (not_found, Ok(())));
}

#[test]
fn a_custom_status_waits_and_can_be_taken_back() {
    // "Cloud Map waits for 30 seconds. If another UpdateInstanceCustomHealthStatus request doesn't arrive during that time
    // to change the status back to healthy, Cloud Map stops routing traffic to the resource." "Sending a second or
    // subsequent [...] request with the same value before 30 seconds has passed doesn't accelerate the change. Cloud Map
    // still waits 30 seconds after the first request to make the change."
    let mut world = World::new(EmulatorSettings::default());
    world.register("a", "v").unwrap();
    let set = |world: &mut World, status: &str| {
        let request = json!({ "ServiceId": world.service, "InstanceId": "a", "Status": status });
        world.call("UpdateInstanceCustomHealthStatus", &request);
    };
    let healthy = |world: &mut World| world.discover("HEALTHY")["Instances"].as_array().unwrap().len() == 1;
    set(&mut world, "UNHEALTHY");
    world.wait(20.0);
    set(&mut world, "UNHEALTHY");
    assert!(healthy(&mut world));
    world.wait(10.0);
    assert!(!healthy(&mut world));
    set(&mut world, "HEALTHY");
    world.wait(20.0);
    set(&mut world, "UNHEALTHY");
    world.wait(60.0);
    assert!(!healthy(&mut world));
    set(&mut world, "HEALTHY");
    world.wait(30.0);
    assert!(healthy(&mut world));
}

#[test]
fn nothing_is_left_to_happen_once_all_has_settled() {
    let mut world = World::new(EmulatorSettings::aws());
    world.register("a", "v").unwrap();
    assert!(world.registry.next_event().is_some_and(|at| at > world.now));
    world.wait(60.0);
    assert_eq!(world.value().as_deref(), Some("v"));
    assert_eq!(world.registry.next_event(), None);
}

#[test]
fn one_seed_gives_one_course_of_events() {
    let run = || {
        let mut world = World::new(EmulatorSettings::aws());
        world.register("a", "v").unwrap();
        (0..100)
            .map(|_| {
                world.wait(0.1);
                world.value()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn whatever_happens_discovery_agrees_with_the_control_plane_in_the_end() {
    for seed in 0..100 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut world = World::new(EmulatorSettings { seed: Some(seed), throttling: false, ..EmulatorSettings::aws() });
        let namespace = world.call("GetService", &json!({ "Id": world.service }))["Service"]["NamespaceId"].clone();
        let refusals = ["DuplicateRequest", "InstanceNotFound", "ResourceInUse", "ServiceNotFound"];
        for step in 0..100 {
            let instance = format!("i-{}", random.random_range(0..5));
            let at = json!({ "ServiceId": world.service, "InstanceId": instance });
            let answer = match random.random_range(0..10) {
                0..5 => world.register(&instance, &step.to_string()),
                5..8 => world.try_call("DeregisterInstance", &at),
                8 => {
                    let status = if random.random_bool(0.5) { "HEALTHY" } else { "UNHEALTHY" };
                    let request = json!({ "ServiceId": world.service, "InstanceId": instance, "Status": status });
                    world.try_call("UpdateInstanceCustomHealthStatus", &request)
                }
                _ => world.try_call("DeleteService", &json!({ "Id": world.service })),
            };
            if let Err(code) = answer {
                assert!(refusals.contains(&code.as_str()), "seed {seed}: {code}");
            }
            let request = json!({ "NamespaceId": namespace, "Name": "web", "HealthCheckCustomConfig": {} });
            if let Ok(created) = world.try_call("CreateService", &request) {
                world.service = created["Service"]["Id"].as_str().unwrap().to_owned();
            }
            world.wait(random.random_range(0.0..2.0));
        }
        world.wait(120.0);
        world.registry.advance(world.now);
        let snapshot = world.registry.snapshot();
        let service = snapshot.service("apps", "web").unwrap();
        let expected: BTreeSet<_> = service
            .instances
            .values()
            .map(|i| (i.id.clone(), i.attributes["k"].clone(), serde_json::to_value(i.health).unwrap().to_string()))
            .collect();
        for _ in 0..10 {
            let found = world.discover("ALL");
            let text = |value: &Value| value.as_str().unwrap().to_owned();
            let instances = found["Instances"].as_array().unwrap().iter();
            let seen: BTreeSet<_> = instances
                .map(|i| (text(&i["InstanceId"]), text(&i["Attributes"]["k"]), i["HealthStatus"].to_string()))
                .collect();
            assert_eq!(
                (seen, found["InstancesRevision"].as_u64()),
                (expected.clone(), Some(service.revision)),
                "{seed}"
            );
        }
        // The counts agree too: all can be taken down.
        for instance in service.instances.keys() {
            world.call("DeregisterInstance", &json!({ "ServiceId": world.service, "InstanceId": instance }));
        }
        world.wait(10.0);
        world.call("DeleteService", &json!({ "Id": world.service }));
        world.call("DeleteNamespace", &json!({ "Id": namespace }));
    }
}
