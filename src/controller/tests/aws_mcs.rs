//! A ClusterSet in which other clusters have the AWS Cloud Map MCS Controller (`--aws-mcs-compat`).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    iam::check,
    world::{Cluster, World, always, key, until},
};
use api::ServiceImportType;
use awsmcs::FINALIZER;
use cloudmap::{Attributes, ErrorKind, NamespaceKind, Operation, fake::Fault};
use iam::Mode;

/// Before any ServiceExport in the clusters in memory was created.
const OLDER: i64 = -1;

/// Written by the AWS controller of a cluster for the port `http` of a Service.
fn attributes(cluster: &str, ip: &str, port: u16, created: i64) -> Attributes {
    [
        ("AWS_INSTANCE_IPV4", ip.to_owned()),
        ("AWS_INSTANCE_PORT", "8080".to_owned()),
        ("CLUSTERSET_ID", "prod".to_owned()),
        ("CLUSTER_ID", cluster.to_owned()),
        ("ENDPOINT_PORT_NAME", "http".to_owned()),
        ("ENDPOINT_PROTOCOL", "TCP".to_owned()),
        ("HOSTNAME", String::new()),
        ("K8S_CONTROLLER", "aws-cloud-map-mcs-controller-for-k8s 0.3.1 (887737e)".to_owned()),
        ("NODENAME", "node".to_owned()),
        ("READY", "true".to_owned()),
        ("SERVICE_EXPORT_CREATION_TIMESTAMP", (created * 1000).to_string()),
        ("SERVICE_PORT", port.to_string()),
        ("SERVICE_PORT_NAME", "http".to_owned()),
        ("SERVICE_PROTOCOL", "TCP".to_owned()),
        ("SERVICE_TARGET_PORT", "8080".to_owned()),
        ("SERVICE_TYPE", "ClusterSetIP".to_owned()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn id(ip: &str) -> Arc<str> {
    format!("tcp-{}-8080", ip.replace('.', "_")).into()
}

impl World {
    /// The API-only namespace `shop` with services, as an AWS controller makes them: without any mark.
    fn of_aws_controllers(&self, services: &[&str]) -> Vec<Arc<str>> {
        let mut registry = self.fake.registry();
        let namespace = registry.add_namespace("shop", NamespaceKind::Http);
        services.iter().map(|name| registry.add_service(&namespace, name, "a-random-uuid", "")).collect()
    }

    fn register(&self, service: &Arc<str>, ip: &str, attributes: Attributes) {
        self.fake.registry().instances.insert((service.clone(), id(ip)), attributes);
    }

    fn deregister(&self, service: &Arc<str>, ip: &str) {
        self.fake.registry().instances.remove(&(service.clone(), id(ip)));
    }

    /// All instances of a service, by id.
    fn registered(&self, service: &Arc<str>) -> BTreeMap<Arc<str>, Attributes> {
        let registry = self.fake.registry();
        let of = registry.instances.iter().filter(|((of, _), _)| of == service);
        of.map(|((_, id), attributes)| (id.clone(), attributes.clone())).collect()
    }

    /// A cluster with the flag.
    fn compatible(&self, id: &str) -> Cluster {
        let mut cluster = self.cluster(id);
        cluster.set_compatible(true);
        cluster
    }
}

impl Cluster {
    /// Starts its controller anew with or without the flag.
    fn set_compatible(&mut self, compatible: bool) {
        self.kill();
        self.aws_mcs = compatible;
        self.lead();
    }

    /// A ServiceExport as the AWS controller of this cluster left it.
    fn put_export_with_finalizer(&self, name: &str, finalizer: bool) {
        let mut export = self.objects.export(&key(name)).unwrap_or_else(|| {
            self.put_export(name, &[]);
            self.objects.export(&key(name)).unwrap()
        });
        export.metadata.finalizers = finalizer.then(|| vec![FINALIZER.to_owned()]);
        self.objects.put_export(export);
    }
}

#[tokio::test(start_paused = true)]
async fn what_an_aws_controller_exports_is_an_export_of_its_cluster() {
    let world = World::new();
    let blue = world.compatible("blue");
    let [web] = world.of_aws_controllers(&["web"]).try_into().unwrap();
    world.register(&web, "10.2.0.1", attributes("c2", "10.2.0.1", 80, OLDER));
    blue.until_imports("web", &["10.2.0.1"]).await;
    let import = blue.objects.import(&key("web")).unwrap();
    assert_eq!((import.spec.type_, import.spec.ports[0].port), (ServiceImportType::ClusterSetIp, 80));
    assert_eq!(blue.sources("web"), [["c2".to_owned()].into(), ["c2".to_owned()].into()]);

    world.register(&web, "10.2.0.2", attributes("c2", "10.2.0.2", 80, OLDER));
    world.register(&web, "10.3.0.1", attributes("c3", "10.3.0.1", 80, OLDER));
    blue.until_imports("web", &["10.2.0.1", "10.2.0.2", "10.3.0.1"]).await;
    world.deregister(&web, "10.2.0.1");
    blue.until_imports("web", &["10.2.0.2", "10.3.0.1"]).await;

    // A younger export of this cluster must agree with the older ones.
    blue.export("web", 81, &["10.1.0.1"]);
    blue.until_says("web", "Conflict", "True", "PortConflict").await;
    blue.until_imports("web", &["10.2.0.2", "10.3.0.1"]).await;
    blue.put_service("web", 80);
    blue.until_says("web", "Conflict", "False", "NoConflicts").await;
    blue.until_imports("web", &["10.1.0.1", "10.2.0.2", "10.3.0.1"]).await;
    blue.objects.remove_export(&key("web"));
    blue.until_imports("web", &["10.2.0.2", "10.3.0.1"]).await;

    world.deregister(&web, "10.2.0.2");
    world.deregister(&web, "10.3.0.1");
    until("it goes with its last endpoint, as that controller has it", || blue.is_clean("web")).await;
}

#[tokio::test(start_paused = true)]
async fn exports_are_registered_for_aws_controllers_and_theirs_are_left_to_them() {
    let world = World::new();
    let [web] = world.of_aws_controllers(&["web"]).try_into().unwrap();
    let theirs = attributes("c2", "10.2.0.1", 80, 1_000);
    world.register(&web, "10.2.0.1", theirs.clone());
    // Under an id that this cluster would use, too.
    world.register(&web, "10.1.0.2", attributes("c3", "10.1.0.2", 80, 1_000));
    let blue = world.compatible("blue");
    blue.export("web", 80, &["10.1.0.1", "10.1.0.2"]);
    blue.until_says("web", "Registered", "False", "AddressFamilyMissing").await;
    until("it is registered", || world.registered(&web).len() == 3).await;
    let registered = world.registered(&web);
    assert_eq!(registered.keys().collect::<Vec<_>>(), [&id("10.1.0.1"), &id("10.1.0.2"), &id("10.2.0.1")]);
    let mut ours = registered[&id("10.1.0.1")].clone();
    ours.retain(|key, _| !key.starts_with("CLOUDMAP_MCS_"));
    let expected = attributes(
        "blue",
        "10.1.0.1",
        80,
        blue.objects.export(&key("web")).unwrap().metadata.creation_timestamp.unwrap().0.as_second(),
    );
    let differing: Vec<_> =
        expected.iter().filter(|(key, value)| ours.get(*key) != Some(value)).map(|(key, _)| &**key).collect();
    assert_eq!((differing, ours.len()), (vec!["K8S_CONTROLLER", "NODENAME"], expected.len()));

    blue.put_endpoints("web", &["10.1.0.3"]);
    until("it follows", || {
        world.registered(&web).contains_key(&id("10.1.0.3")) && !world.registered(&web).contains_key(&id("10.1.0.1"))
    })
    .await;
    blue.objects.remove_export(&key("web"));
    until("it is withdrawn", || world.registered(&web).len() == 2).await;
    always("theirs stay", Duration::from_mins(5), || world.registered(&web).get(&id("10.2.0.1")) == Some(&theirs))
        .await;
    let of_theirs = [id("10.2.0.1"), id("10.1.0.2")];
    let writes = world.writes();
    assert!(writes.iter().all(|(_, changed)| !of_theirs.iter().any(|id| **id == **changed)), "{writes:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cluster_moves_over_without_a_gap_and_counts_once() {
    let world = World::new();
    let blue = world.compatible("blue");
    let [web] = world.of_aws_controllers(&["web"]).try_into().unwrap();
    for ip in ["10.2.0.1", "10.2.0.2"] {
        world.register(&web, ip, attributes("green", ip, 80, 1_000));
    }
    // A pod that ended while nobody watched.
    world.register(&web, "10.2.0.9", attributes("green", "10.2.0.9", 80, 1_000));
    blue.until_imports("web", &["10.2.0.1", "10.2.0.2", "10.2.0.9"]).await;
    let uids = blue.uids("web");

    let stays = || {
        let imported = blue.imported("web");
        ["10.2.0.1", "10.2.0.2"].iter().all(|ip| imported.iter().filter(|there| there == ip).count() == 1)
    };
    // The AWS controller was stopped, ours starts in its place, and the finalizer is still there.
    let green = world.compatible("green");
    green.put_service("web", 80);
    green.put_endpoints("web", &["10.2.0.1", "10.2.0.2"]);
    green.put_export_with_finalizer("web", true);
    green.until_says("web", "Ready", "False", "Failed").await;
    let message = green.condition("web", "Ready").unwrap().message;
    assert!(message.contains(FINALIZER) && message.contains("kubectl patch serviceexport -n shop web"), "{message}");
    always("nothing changes until it is removed", Duration::from_mins(3), || {
        stays()
            && world.registered(&web).values().all(|attributes| !attributes.contains_key("CLOUDMAP_MCS_CLUSTER_UID"))
    })
    .await;
    green.put_export_with_finalizer("web", false);
    let moved = async {
        green.until_says("web", "Ready", "True", "Exported").await;
        green.until_says("web", "Registered", "True", "Registered").await;
        until("its instances are taken over, and what is left of it goes", || {
            let registered = world.registered(&web);
            registered.len() == 2
                && registered.values().all(|told| told.get("CLOUDMAP_MCS_CLUSTER").is_some_and(|of| of == "green"))
        })
        .await;
        blue.until_imports("web", &["10.2.0.1", "10.2.0.2"]).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
    };
    tokio::select! {
        () = moved => {}
        () = always("every endpoint stays, once", Duration::from_hours(1), stays) => {}
    }
    assert_eq!(blue.uids("web"), uids, "nothing was made anew");
    assert_eq!(blue.sources("web")[0], ["green".to_owned()].into());
    green.objects.remove_export(&key("web"));
    until("un-exported, it is gone", || blue.is_clean("web") && world.registered(&web).is_empty()).await;
    check(&world, &[Mode::AwsMcs]);
}

/// Its instances stay longer than its record, and others read them every few seconds only.
#[tokio::test(start_paused = true)]
async fn what_a_moved_cluster_withdraws_does_not_come_back_from_its_instances() {
    let world = World::new();
    let [web] = world.of_aws_controllers(&["web"]).try_into().unwrap();
    let (blue, green) = (world.compatible("blue"), world.compatible("green"));
    green.export("web", 80, &["10.2.0.1"]);
    green.until_says("web", "Registered", "True", "Registered").await;
    blue.until_imports("web", &["10.2.0.1"]).await;
    tokio::time::sleep(Duration::from_mins(2)).await;
    for _ in 0..20_000 {
        world.fake.fault(Operation::DeregisterInstance, Fault::Refused(ErrorKind::AccessDenied));
    }
    green.objects.remove_export(&key("web"));
    until("what the ledger withdraws goes", || blue.is_clean("web")).await;
    always("it stays away", Duration::from_mins(3), || blue.is_clean("web")).await;
    assert!(world.registered(&web).contains_key(&id("10.2.0.1")), "its instance is still there");
    // Exported again, it is there again. Withdrawn while all is well, it goes once.
    green.put_export("web", &[]);
    blue.until_imports("web", &["10.2.0.1"]).await;
    world.heal();
    tokio::time::sleep(Duration::from_mins(2)).await;
    green.objects.remove_export(&key("web"));
    until("it goes", || blue.is_clean("web")).await;
    always("it stays away", Duration::from_mins(3), || blue.is_clean("web")).await;
    until("its instance goes", || world.registered(&web).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_leader_that_cannot_read_keeps_what_aws_controllers_exported() {
    let world = World::new();
    let mut blue = world.compatible("blue");
    let [web] = world.of_aws_controllers(&["web"]).try_into().unwrap();
    world.register(&web, "10.2.0.1", attributes("c2", "10.2.0.1", 80, 1_000));
    blue.export("web", 80, &["10.1.0.1"]);
    blue.until_imports("web", &["10.1.0.1", "10.2.0.1"]).await;
    blue.kill();
    for _ in 0..20_000 {
        world.fake.fault(Operation::ListServices, Fault::Refused(ErrorKind::AccessDenied));
    }
    blue.lead();
    // Endpoints of this cluster follow nevertheless.
    blue.put_endpoints("web", &["10.1.0.2"]);
    blue.until_imports("web", &["10.1.0.2", "10.2.0.1"]).await;
    always("nothing is deleted", Duration::from_mins(10), || blue.imported("web") == ["10.1.0.2", "10.2.0.1"]).await;
    world.deregister(&web, "10.2.0.1");
    world.heal();
    blue.until_imports("web", &["10.1.0.2"]).await;
}

/// It is about to move: its head is there, and its export is not.
#[tokio::test(start_paused = true)]
async fn a_new_leader_keeps_what_a_cluster_in_the_ledger_tells_by_its_instances() {
    let world = World::new();
    let [web] = world.of_aws_controllers(&["web"]).try_into().unwrap();
    world.register(&web, "10.2.0.1", attributes("green", "10.2.0.1", 80, 1_000));
    let (mut blue, green) = (world.compatible("blue"), world.compatible("green"));
    green.export("other", 80, &["10.2.0.2"]);
    blue.until_imports("other", &["10.2.0.2"]).await;
    blue.until_imports("web", &["10.2.0.1"]).await;
    let uids = blue.uids("web");

    blue.kill();
    green.put_endpoints("other", &["10.2.0.3"]);
    let shop = world.fake.registry().namespaces.iter().find(|there| &*there.name == "shop").unwrap().id.clone();
    world.fake.registry().failing.insert(shop, ErrorKind::AccessDenied);
    blue.lead();
    let stays = || blue.uids("web") == uids && blue.imported("web") == ["10.2.0.1"];
    let read = async {
        blue.until_imports("other", &["10.2.0.3"]).await;
        // For this name the ledger decides, no matter what cannot be read.
        green.objects.remove_export(&key("other"));
        until("what the ledger withdraws goes", || blue.is_clean("other")).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        world.fake.registry().failing.clear();
        tokio::time::sleep(Duration::from_mins(5)).await;
    };
    tokio::select! {
        () = read => {}
        () = always("nothing is made anew", Duration::from_hours(1), stays) => {}
    }
    world.deregister(&web, "10.2.0.1");
    until("it goes with its last endpoint", || blue.is_clean("web")).await;
}

#[tokio::test(start_paused = true)]
async fn the_flag_comes_and_goes_and_the_name_is_never_empty() {
    let world = World::new();
    let mut blue = world.cluster("blue");
    blue.export("web", 80, &["10.1.0.1"]);
    blue.until_says("web", "Registered", "True", "Registered").await;
    let all = |prefix: &str| {
        let ids = world.instances("web");
        ids.len() == 1 && ids[0].starts_with(prefix)
    };
    assert!(all("k8s-"));
    for (compatible, prefix) in [(true, "tcp-"), (false, "k8s-")] {
        blue.set_compatible(compatible);
        tokio::select! {
            () = until("the instances have the other form", || all(prefix)) => {}
            () = always("there is one", Duration::from_hours(1), || !world.instances("web").is_empty()) => {}
        }
    }
}

/// The last step of the move, in a service that an AWS controller made.
#[tokio::test(start_paused = true)]
async fn without_the_flag_a_service_of_theirs_is_kept_by_saying_so() {
    let world = World::new();
    let [web] = world.of_aws_controllers(&["web"]).try_into().unwrap();
    let mut blue = world.compatible("blue");
    blue.export("web", 80, &["10.1.0.1"]);
    until("it is registered", || world.registered(&web).contains_key(&id("10.1.0.1"))).await;
    blue.put_export("web", &[("cloudmap-mcs/share", "true")]);
    blue.set_compatible(false);
    let renamed = || world.registered(&web).keys().all(|id| id.starts_with("k8s-"));
    tokio::select! {
        () = until("it has the other form", renamed) => {}
        () = always("there is one", Duration::from_hours(1), || !world.registered(&web).is_empty()) => {}
    }
    blue.until_says("web", "Registered", "True", "Registered").await;
}

#[tokio::test(start_paused = true)]
async fn an_export_with_another_target_is_registered_for_aws_controllers_as_well() {
    let world = World::new();
    let blue = world.compatible("blue");
    blue.put_service("web", 80);
    blue.put_endpoints("web", &["10.1.0.1"]);
    blue.put_export("web", &[("cloudmap-mcs/service", "www")]);
    until("it is in both", || {
        world.instances("web") == ["tcp-10_1_0_1-8080"]
            && world.instances("www").len() == 1
            && world.instances("www")[0].starts_with("k8s-")
    })
    .await;
    blue.until_says("web", "Registered", "True", "Registered").await;
    blue.put_export("web", &[("cloudmap-mcs/instances", "false")]);
    until("the other one is withdrawn", || world.instances("www").is_empty()).await;
    assert_eq!(world.instances("web"), ["tcp-10_1_0_1-8080"]);
    blue.objects.remove_export(&key("web"));
    until("both are", || world.instances("web").is_empty()).await;
}

/// Its export was deleted, and the record of where its instances are is lost.
#[tokio::test(start_paused = true)]
async fn an_instance_of_this_cluster_that_nothing_tells_of_is_withdrawn_and_one_with_its_id_alone_is_named() {
    let world = World::new();
    let [web, api, other] = world.of_aws_controllers(&["web", "api", "other"]).try_into().unwrap();
    let blue = world.compatible("blue");
    blue.export("other", 80, &["10.1.0.3"]);
    blue.until_says("other", "Registered", "True", "Registered").await;
    let marks = ["CLOUDMAP_MCS_CLUSTERSET", "CLOUDMAP_MCS_CLUSTER_UID"].map(str::to_owned).into_iter();
    let mut ours = attributes("blue", "10.1.0.1", 80, 1_000);
    ours.extend(marks.zip(["prod".to_owned(), "uid-blue".to_owned()]));
    world.register(&web, "10.1.0.1", ours);
    world.register(&web, "10.2.0.1", attributes("c2", "10.2.0.1", 80, 1_000));
    world.register(&api, "10.1.0.2", attributes("blue", "10.1.0.2", 80, 1_000));
    until("what it registered itself goes", || world.registered(&web).keys().eq([&id("10.2.0.1")])).await;
    let left = |note: &cluster::events::EventRecord| note.reason == "InstancesLeft";
    let said = loop {
        if let Some(said) = blue.objects.take_note(left) {
            break said;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    assert_eq!(said.regarding.kind.as_deref(), Some("Namespace"));
    assert!(said.text.contains("shop/api") && said.text.contains(&*id("10.1.0.2")) && said.text.contains("\"blue\""));
    assert!(!said.text.contains(" more"), "{}", said.text);
    always("and left alone", Duration::from_mins(5), || {
        world.registered(&api).len() == 1 && world.registered(&other).len() == 1 && world.registered(&web).len() == 1
    })
    .await;
    assert!(blue.objects.take_note(left).is_none(), "it is said once");
}
