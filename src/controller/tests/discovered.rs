//! What others registered in Cloud Map becomes an import, by itself or beside what clusters export.

mod shared;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::world::{Cluster, World, always, key, until};
use api::ServiceImportType;
use cloudmap::{DnsConfig, DnsRecord, ErrorKind, NamespaceKind, Operation, RecordType, fake::Fault};
use cluster::events::EventRecord;

impl World {
    /// A Cloud Map namespace of somebody else, with services.
    pub(super) fn foreign(&self, namespace: &str, services: &[&str]) -> Vec<Arc<str>> {
        let mut registry = self.fake.registry();
        let id = registry.add_namespace(namespace, NamespaceKind::DnsPrivate);
        services.iter().map(|name| registry.add_service(&id, name, "terraform", "")).collect()
    }

    /// Starts an ECS task.
    pub(super) fn task(&self, service: &Arc<str>, ip: &str, port: Option<u16>) {
        let mut attributes: BTreeMap<_, _> = [
            ("AWS_INSTANCE_IPV4", ip),
            ("ECS_CLUSTER_NAME", "prod"),
            ("AVAILABILITY_ZONE", "eu-central-1a"),
            ("AWS_INIT_HEALTH_STATUS", "HEALTHY"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        attributes.extend(port.map(|port| ("AWS_INSTANCE_PORT".to_owned(), port.to_string())));
        self.fake.registry().instances.insert((service.clone(), task_id(ip)), attributes);
    }

    pub(super) fn stop_task(&self, service: &Arc<str>, ip: &str) {
        self.fake.registry().instances.remove(&(service.clone(), task_id(ip)));
    }

    fn set_health(&self, service: &Arc<str>, ip: &str, healthy: bool) {
        let key = (service.clone(), task_id(ip));
        let mut registry = self.fake.registry();
        if healthy {
            registry.unhealthy.remove(&key);
        } else {
            registry.unhealthy.insert(key);
        }
    }
}

fn task_id(ip: &str) -> Arc<str> {
    format!("task-{ip}").into()
}

impl Cluster {
    pub(super) fn import_from(&self, value: Option<&str>) {
        let annotation = value.map(|value| ("cloudmap.controller/import-from", value));
        self.objects.annotate_namespace("shop", annotation.as_slice());
    }

    /// Source, numbers and readiness of the endpoints of a name, as `<source> <address>:<numbers> <ready>`.
    fn endpoints(&self, name: &str) -> Vec<String> {
        let mut rows = Vec::new();
        for slice in self.slices(name) {
            let source = &slice.metadata.labels.as_ref().unwrap()["multicluster.kubernetes.io/source-cluster"];
            // An unnamed port has two names in a slice.
            let numbers: BTreeSet<_> = slice.ports.iter().flatten().filter_map(|port| port.port).collect();
            let ports: Vec<_> = numbers.iter().map(|number| format!(":{number}")).collect();
            for endpoint in &slice.endpoints {
                let ready = endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap();
                let ready = if ready { "" } else { " unready" };
                rows.push(format!("{source} {}{}{ready}", endpoint.addresses[0], ports.concat()));
            }
        }
        rows.sort();
        rows
    }

    async fn until_endpoints(&self, name: &str, expected: &[&str]) {
        until(&format!("{name} has {expected:?}"), || {
            let is = self.endpoints(name);
            let announced = self.objects.import(&key(name)).is_some_and(|import| import.status.is_some());
            announced && is == expected
        })
        .await;
    }

    /// Type, ports and sources of an import.
    fn front(&self, name: &str) -> (ServiceImportType, Vec<i32>, Vec<String>) {
        let import = self.objects.import(&key(name)).unwrap();
        let sources = import.status.unwrap_or_default().clusters.into_iter().map(|status| status.cluster).collect();
        (import.spec.type_, import.spec.ports.iter().map(|port| port.port).collect(), sources)
    }

    pub(super) fn notes(&self, reason: &str) -> Vec<String> {
        let notes = self.objects.take_notes().into_iter().filter(|note| note.reason == reason);
        notes.map(|note| format!("{}: {}", note.regarding.kind.unwrap(), note.text)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn ecs_tasks_become_an_import_that_follows_them_and_goes_with_their_service() {
    let world = World::new();
    let blue = world.cluster("blue");
    let [orders, jobs] = world.foreign("internal", &["orders", "jobs"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    world.task(&orders, "10.9.0.2", None);
    world.task(&jobs, "10.9.0.3", None);
    always("nothing is imported unasked", Duration::from_secs(30), || blue.is_clean("orders")).await;
    blue.import_from(Some("internal"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    assert_eq!(blue.front("orders"), (ServiceImportType::ClusterSetIp, vec![8080], vec!["ecs-prod".to_owned()]));
    let ips = blue.derived("orders").unwrap().spec.unwrap().cluster_ips.unwrap();
    assert_eq!(blue.objects.import(&key("orders")).unwrap().spec.ips, ips);
    blue.until_endpoints("jobs", &["ecs-prod 10.9.0.3"]).await;
    assert_eq!(blue.front("jobs").0, ServiceImportType::Headless);

    world.set_health(&orders, "10.9.0.2", false);
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080 unready"]).await;
    world.task(&orders, "10.9.0.4", Some(8080));
    world.stop_task(&orders, "10.9.0.1");
    world.set_health(&orders, "10.9.0.2", true);
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.2:8080", "ecs-prod 10.9.0.4:8080"]).await;

    // Scaled to nothing, it keeps its address: the tasks come back.
    for ip in ["10.9.0.2", "10.9.0.4"] {
        world.stop_task(&orders, ip);
    }
    until("no endpoint is left", || blue.endpoints("orders").is_empty()).await;
    always("the import stays", Duration::from_mins(3), || blue.objects.import(&key("orders")).is_some()).await;
    world.task(&orders, "10.9.0.5", Some(8080));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.5:8080"]).await;
    assert_eq!(blue.objects.import(&key("orders")).unwrap().spec.ips, ips);

    world.stop_task(&orders, "10.9.0.5");
    world.fake.registry().services.remove(&orders);
    until("it goes with its service", || blue.is_clean("orders")).await;
    blue.import_from(None);
    until("the other one goes with the annotation", || blue.is_clean("jobs")).await;
}

#[tokio::test(start_paused = true)]
async fn tasks_join_an_export_without_changing_it_and_take_its_name_over() {
    let world = World::new();
    let (blue, green) = (world.cluster("blue"), world.cluster("green"));
    let [web] = world.foreign("internal", &["web"]).try_into().unwrap();
    world.task(&web, "10.9.0.1", Some(8080));
    world.task(&web, "10.0.0.1", Some(8080));
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_endpoints("web", &["blue 10.0.0.1:8080"]).await;
    let before = blue.objects.import(&key("web")).unwrap();
    blue.import_from(Some("internal"));
    // The pod that somebody registered as well counts once.
    blue.until_endpoints("web", &["blue 10.0.0.1:8080", "ecs-prod 10.9.0.1:8080"]).await;
    assert_eq!(blue.objects.import(&key("web")).unwrap().spec, before.spec);
    until("its sources are named", || blue.front("web").2 == ["blue", "ecs-prod"]).await;
    blue.until_says("web", "Conflict", "False", "NoConflicts").await;
    // Who did not ask gets none.
    green.until_endpoints("web", &["blue 10.0.0.1:8080"]).await;

    green.export("web", 80, &["10.1.0.1"]);
    world.stop_task(&web, "10.9.0.1");
    world.task(&web, "10.9.0.2", Some(3000));
    blue.until_endpoints("web", &["blue 10.0.0.1:8080", "ecs-prod 10.9.0.2:3000", "green 10.1.0.1:8080"]).await;
    world.stop_task(&web, "10.0.0.1");
    blue.objects.remove_export(&key("web"));
    green.objects.remove_export(&key("web"));
    blue.until_endpoints("web", &["ecs-prod 10.9.0.2:3000"]).await;
    until("the name is theirs", || blue.front("web").1 == [3000]).await;
    until("no cluster has it", || green.is_clean("web")).await;

    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_endpoints("web", &["blue 10.0.0.1:8080", "ecs-prod 10.9.0.2:3000"]).await;
    assert_eq!(blue.front("web").1, [80]);
    world.stop_task(&web, "10.9.0.2");
    blue.until_endpoints("web", &["blue 10.0.0.1:8080"]).await;
    blue.objects.remove_export(&key("web"));
    until("all is gone", || blue.is_clean("web")).await;
}

#[tokio::test(start_paused = true)]
async fn tasks_with_ports_of_their_own_are_behind_one_port() {
    let world = World::new();
    let blue = world.cluster("blue");
    let [legacy] = world.foreign("internal", &["legacy"]).try_into().unwrap();
    let records = vec![DnsRecord { record_type: RecordType::Srv, ttl: 10 }];
    world.fake.registry().services.get_mut(&legacy).unwrap().dns = Some(DnsConfig { weighted: false, records });
    world.task(&legacy, "10.9.0.1", Some(32_768));
    blue.import_from(Some("internal"));
    blue.until_endpoints("legacy", &["ecs-prod 10.9.0.1:32768"]).await;
    world.task(&legacy, "10.9.0.2", Some(32_801));
    blue.until_endpoints("legacy", &["ecs-prod 10.9.0.1:32768", "ecs-prod 10.9.0.2:32801"]).await;
    world.stop_task(&legacy, "10.9.0.1");
    blue.until_endpoints("legacy", &["ecs-prod 10.9.0.2:32801"]).await;
    assert_eq!(blue.front("legacy").1, [80]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_deletes_nothing_before_all_was_read() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    let [orders] = world.foreign("internal", &["orders"]).try_into().unwrap();
    let [more, gone] = world.foreign("more", &["orders", "gone"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    world.task(&more, "10.9.0.2", Some(8080));
    world.task(&gone, "10.9.0.3", Some(8080));
    blue.import_from(Some("internal,more"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    blue.until_endpoints("gone", &["ecs-prod 10.9.0.3:8080"]).await;
    let uids = |blue: &Cluster| (blue.uids("orders"), blue.uids("gone"));
    let before = uids(&blue);

    blue.kill();
    world.stop_task(&gone, "10.9.0.3");
    world.fake.registry().services.remove(&gone);
    for operation in [Operation::ListServices, Operation::ListNamespaces] {
        for _ in 0..10_000 {
            world.fake.fault(operation, Fault::Refused(ErrorKind::AccessDenied));
        }
    }
    blue.lead();
    always("all stays while nothing can be read", Duration::from_mins(5), || uids(&blue) == before).await;
    until("it is said", || blue.notes("ImportFailed").iter().any(|note| note.starts_with("Namespace: "))).await;
    world.heal();
    until("what is gone goes", || blue.is_clean("gone")).await;
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    assert_eq!(blue.uids("orders"), before.0);

    // Nothing is written while nothing changes, by this leader or another one.
    tokio::time::sleep(Duration::from_mins(6)).await;
    let writes = blue.objects.writes();
    blue.kill();
    blue.lead();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(blue.objects.writes(), writes);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_imported_is_said() {
    let world = World::new();
    let blue = world.cluster("blue");
    blue.import_from(Some("later"));
    until("the namespace is missing", || {
        blue.notes("NoNamespace").iter().any(|note| note.starts_with("Namespace: ") && note.contains("later"))
    })
    .await;
    let [web, alias] = world.foreign("later", &["web", "alias"]).try_into().unwrap();
    world.task(&web, "10.9.0.1", Some(80));
    world.task(&web, "127.0.0.1", Some(80));
    let name = ("AWS_ALIAS_DNS_NAME".to_owned(), "lb.example.com".to_owned());
    world.fake.registry().instances.insert((alias, "lb".into()), [name].into());
    blue.until_endpoints("web", &["ecs-prod 10.9.0.1:80"]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let notes = blue.objects.take_notes();
    let said = |reason: &str, text: &str| notes.iter().any(|note| note.reason == reason && note.text.contains(text));
    assert!(said("InstanceSkipped", "load balancer"), "{notes:?}");
    assert!(said("AddressSkipped", "127.0.0.1"), "{notes:?}");
    // An Event with the same text is not created again, and their number changes with each task.
    let of_addresses = |notes: &[EventRecord]| -> BTreeSet<String> {
        notes.iter().filter(|note| note.reason == "AddressSkipped").map(|note| note.text.clone()).collect()
    };
    world.task(&web, "127.0.0.2", Some(80));
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(of_addresses(&blue.objects.take_notes()), of_addresses(&notes));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_none_in_kubernetes_gets_one() {
    let world = World::new();
    let blue = world.cluster("blue");
    let [odd] = world.foreign("internal", &["Order_Service"]).try_into().unwrap();
    world.task(&odd, "10.9.0.1", Some(80));
    blue.import_from(Some("internal"));
    blue.until_endpoints(&discovery::label("Order_Service"), &["ecs-prod 10.9.0.1:80"]).await;
}

#[tokio::test(start_paused = true)]
async fn an_annotation_that_cannot_be_understood_changes_nothing() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    let [orders] = world.foreign("internal", &["orders"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    blue.import_from(Some("internal"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080"]).await;
    let before = blue.uids("orders");
    blue.import_from(Some("internal,"));
    always("all stays", Duration::from_mins(2), || blue.uids("orders") == before).await;
    assert_eq!(blue.notes("InvalidAnnotation").len(), 1);
    // As long as its leader knows what the annotation was, it is followed.
    world.task(&orders, "10.9.0.2", Some(8080));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    assert_eq!(blue.uids("orders"), before);
    blue.kill();
    blue.lead();
    always("the next leader keeps it, too", Duration::from_mins(5), || blue.uids("orders") == before).await;
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    world.stop_task(&orders, "10.9.0.1");
    blue.import_from(Some("internal"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.2:8080"]).await;
    assert_eq!(blue.uids("orders"), before);
}

#[tokio::test(start_paused = true)]
async fn a_namespace_that_does_not_exist_holds_nothing_up() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    let [orders, gone] = world.foreign("internal", &["orders", "gone"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    world.task(&orders, "10.9.0.2", Some(8080));
    world.task(&gone, "10.9.0.3", Some(8080));
    blue.import_from(Some("internal,missing"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    blue.until_endpoints("gone", &["ecs-prod 10.9.0.3:8080"]).await;
    let before = blue.uids("orders");
    blue.kill();
    world.stop_task(&orders, "10.9.0.1");
    world.stop_task(&gone, "10.9.0.3");
    world.fake.registry().services.remove(&gone);
    blue.lead();
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.2:8080"]).await;
    until("a service that is gone goes", || blue.is_clean("gone")).await;
    assert_eq!(blue.uids("orders"), before);
    world.task(&orders, "10.9.0.2", Some(9090));
    until("the port follows", || blue.front("orders").1 == [9090]).await;

    // What this leader read in it goes when the namespace was certainly deleted.
    let [late] = world.foreign("missing", &["late"]).try_into().unwrap();
    world.task(&late, "10.9.0.4", Some(8080));
    blue.until_endpoints("late", &["ecs-prod 10.9.0.4:8080"]).await;
    let before = blue.uids("late");
    world.fake.registry().namespaces.retain(|namespace| *namespace.name != *"missing");
    always("it stays at first", Duration::from_secs(50), || blue.uids("late") == before).await;
    until("it goes", || blue.is_clean("late")).await;
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.2:9090"]).await;
}

#[tokio::test(start_paused = true)]
async fn where_no_namespace_is_there_everything_stays() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    let [orders] = world.foreign("internal", &["orders"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    blue.import_from(Some("internal,missing"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080"]).await;
    let before = blue.uids("orders");
    blue.kill();
    // Another region, by mistake.
    world.fake.registry().namespaces.retain(|namespace| *namespace.name != *"internal");
    blue.lead();
    always("all stays", Duration::from_mins(5), || blue.uids("orders") == before).await;
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080"]).await;
}

impl World {
    /// How often a service was looked at.
    fn looks(&self, service: &str) -> usize {
        let registry = self.fake.registry();
        registry.calls.iter().filter(|(op, id)| *op == Operation::DiscoverInstances && id == service).count()
    }
}

#[tokio::test(start_paused = true)]
async fn outside_a_clusterset_nothing_is_read_and_that_is_said() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    blue.kill();
    blue.member = false;
    blue.lead();
    let [orders] = world.foreign("internal", &["orders"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    blue.import_from(Some("internal"));
    tokio::time::sleep(Duration::from_mins(3)).await;
    assert_eq!(world.looks("orders"), 0);
    let notes = blue.notes("NoClusterSet");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("Namespace: ") && notes[0].contains("in no ClusterSet"), "{notes:?}");
    blue.kill();
    blue.member = true;
    blue.lead();
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080"]).await;
    assert!(blue.notes("NoClusterSet").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_whose_id_is_taken_reads_nothing_and_keeps_what_is_there() {
    let world = World::new();
    let blue = world.cluster("blue");
    let [orders] = world.foreign("internal", &["orders"]).try_into().unwrap();
    world.task(&orders, "10.9.0.1", Some(8080));
    blue.import_from(Some("internal"));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080"]).await;
    // What it exports makes its head.
    blue.export("web", 80, &["10.0.0.1"]);
    blue.until_says("web", "Ready", "True", "Exported").await;
    let before = blue.uids("orders");
    world.rename_creator("exports-0.blue", "uid-of-another");
    world.rewrite_heads("blue", "uid-of-another");
    until("it is said", || blue.notes("NoClusterSet").iter().any(|note| note.contains("belongs to another"))).await;
    // One may be under way.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let looks = world.looks("orders");
    always("all stays", Duration::from_mins(5), || blue.uids("orders") == before).await;
    assert_eq!(world.looks("orders"), looks);
    world.rename_creator("exports-0.blue", "uid-blue");
    world.task(&orders, "10.9.0.2", Some(8080));
    blue.until_endpoints("orders", &["ecs-prod 10.9.0.1:8080", "ecs-prod 10.9.0.2:8080"]).await;
    assert_eq!(blue.uids("orders"), before);
}

#[tokio::test(start_paused = true)]
async fn the_address_of_a_task_is_no_endpoint_while_it_is_a_cluster_ip() {
    let world = World::new();
    let blue = world.cluster("blue");
    let [orders] = world.foreign("internal", &["orders"]).try_into().unwrap();
    let both = ["ecs-prod 10.9.0.1:8080", "ecs-prod 10.97.200.9:8080"];
    for ip in ["10.9.0.1", "10.97.200.9"] {
        world.task(&orders, ip, Some(8080));
    }
    blue.import_from(Some("internal"));
    blue.until_endpoints("orders", &both).await;
    blue.objects.put_service(
        serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "shop", "name": "other"},
            "spec": {"clusterIP": "10.97.200.9", "clusterIPs": ["10.97.200.9"], "ipFamilies": ["IPv4"], "ports": [{"port": 80}]},
        }))
        .unwrap(),
    );
    blue.until_endpoints("orders", &both[..1]).await;
    blue.objects.remove_service(&key("other"));
    blue.until_endpoints("orders", &both).await;
}
