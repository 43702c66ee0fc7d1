//! The manifests for a whole Cloud Map namespace.

use std::{os::unix::fs::PermissionsExt as _, path::PathBuf};

use k8s_openapi::api::core::v1::Service;
use serde::Deserialize as _;

use super::*;
use crate::cutover::{
    manifests::{Candidate, Manifest, Wishes, manifest},
    write::{Survey, rooms, sorted, survey, written},
};
use api::fixtures::unknown;
use cli::CutoverPlanArgs;
use cutover::Course;
use ecs::{Controller, Operation, fake::FakeEcs};

/// The flags of `cutover plan`, as people type them.
fn parsed(line: &str) -> Result<CutoverPlanArgs, String> {
    let words = ["cloudmap-mcs", "cutover", "plan"].into_iter().chain(line.split_whitespace());
    let Command::Cutover(command) = Cli::try_parse_from(words).map_err(|error| error.to_string())?.command else {
        panic!("not cutover")
    };
    let CutoverCommand::Plan(args) = *command else { panic!("not plan") };
    Ok(args)
}

fn wishes(line: &str) -> anyhow::Result<Wishes> {
    let args = parsed(&format!("--namespace prod.internal --write moves {line}")).map_err(anyhow::Error::msg)?;
    Wishes::of(&args.write, &args.steps)
}

const ALL: &str = "--into shop --selector app={service},tier=web --port 8080";

fn candidate(service: &str) -> Candidate {
    let target = Target { namespace: "prod.internal".into(), service: service.into() };
    Candidate { target, registry: Ok(registry(2, 60)), ecs: Ok(Some(found([ecs_service(2)]))) }
}

fn written_of(service: &str, line: &str) -> Manifest {
    manifest(&candidate(service), &wishes(line).unwrap()).unwrap().unwrap()
}

fn documents(text: &str) -> Result<Vec<Value>, serde_yaml_ng::Error> {
    serde_yaml_ng::Deserializer::from_str(text).map(Value::deserialize).collect()
}

/// A document as its type, without a field that the type does not know.
fn typed<T: serde::de::DeserializeOwned + serde::Serialize>(document: &Value) -> T {
    assert_eq!(unknown::<T>(document), [""; 0], "{document}");
    serde_json::from_value(document.clone()).unwrap()
}

#[test]
fn the_flags_for_manifests_go_with_the_folder_and_nothing_else_changes() {
    let args = parsed("--namespace prod.internal --write moves").unwrap();
    assert_eq!(args.write.write, Some(PathBuf::from("moves")));
    for (line, part) in [
        ("", "<NAME"),
        ("--namespace prod.internal", "<NAME"),
        ("--write moves", "--namespace"),
        ("orders --namespace prod.internal --write moves", "cannot be used with"),
        ("--all --namespace prod.internal --write moves", "cannot be used with"),
        ("orders --into shop", "--write"),
        ("orders --selector app=x", "--write"),
        ("--namespace a --write b --existing-services --port 80", "cannot be used with"),
        ("--namespace a --write b --port 0", "--port"),
    ] {
        let why = parsed(line).unwrap_err();
        assert!(why.contains(part), "{line}: {why}");
    }
    for (line, part) in [
        ("--into Shop", "--into"),
        ("--into shop.eu", "--into"),
        ("--selector app", "KEY=VALUE"),
        ("--selector app=", "KEY=VALUE"),
        ("--selector app=-x", "KEY=VALUE"),
        ("--selector a/b/c=x", "KEY=VALUE"),
        ("--steps 50,5", "steps"),
    ] {
        let why = wishes(line).unwrap_err().to_string();
        assert!(why.contains(part), "{line}: {why}");
    }
}

#[test]
fn a_file_has_what_the_guide_tells_people_to_write_and_moves_nothing_yet() {
    let Manifest { name, text, missing, target, pods } = written_of("orders", ALL);
    // Of the two pods that two tasks need, one is registered.
    assert_eq!((&*name, missing.len(), pods), ("orders", 0, 1));
    let [service, cutover, export] = &documents(&text).unwrap()[..] else { panic!("{text}") };
    let (service, cutover, export): (Service, Cutover, ServiceExport) = (typed(service), typed(cutover), typed(export));
    for metadata in [&service.metadata, &cutover.metadata, &export.metadata] {
        assert_eq!((metadata.name.as_deref(), metadata.namespace.as_deref()), (Some("orders"), Some("shop")));
    }
    let spec = service.spec.unwrap();
    let labels = [("app", "orders"), ("tier", "web")].map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(spec.selector, Some(labels.into()));
    let ports = spec.ports.unwrap();
    assert_eq!((ports.len(), ports[0].port), (1, 8080));
    // As the controller and `cutover plan` read them.
    assert_eq!(observe::target_of(&export, &Naming::PerNamespace), Some(target));
    let annotations = export.metadata.annotations.clone().unwrap();
    assert_eq!(annotations["cloudmap-mcs/share-of-traffic"], "0%");
    assert!(observe::counterpart(Some(&export), None, &Naming::PerNamespace).target.is_some());
    assert_eq!(Course::read(&cutover.spec).unwrap().steps, [5, 25, 50, 100]);
    assert!(cutover.spec.paused && cutover.spec.share_of_traffic.is_none());
    assert!(text.contains("\n  paused: true\n"), "people delete this line:\n{text}");
    let begun = text.replace("  paused: true\n", "");
    assert!(!typed::<Cutover>(&documents(&begun).unwrap()[1]).spec.paused);
    assert!(text.contains("# kubectl annotate namespace shop cloudmap-mcs/may-register=prod.internal/orders\n"));
}

#[test]
fn services_that_are_there_already_are_not_written() {
    let Manifest { text, missing, .. } = written_of("orders", "--into shop --existing-services --steps 10,100");
    let [cutover, export] = &documents(&text).unwrap()[..] else { panic!("{text}") };
    assert_eq!((typed::<Cutover>(cutover).spec.steps, missing.len()), (vec![10, 100], 0));
    typed::<ServiceExport>(export);
}

/// Otherwise kubectl would create the objects that are complete: a Cutover and a ServiceExport for a Service that is missing, or
/// for one of this name that is there already.
#[test]
fn of_a_file_that_lacks_something_kubectl_takes_nothing() {
    for (line, expected) in [
        ("", &["--into", "--selector"][..]),
        ("--into shop", &["--selector"]),
        ("--selector app=x", &["--into"]),
        ("--existing-services", &["--into"]),
    ] {
        let Manifest { text, missing, .. } = written_of("orders", line);
        assert_eq!(missing, expected.iter().copied().collect(), "{line}");
        for flag in expected {
            assert!(text.contains(&format!("# TODO ({flag}): ")), "{text}");
        }
        // Not even the first document: kubectl reads no further than to the first mistake.
        assert!(documents(&text).is_err() && !text.split("TODO: ").next().unwrap().contains("\n---"), "{text}");
        // Who deletes only that line is refused as well.
        let lines = text.lines().filter(|line| !line.starts_with("TODO: "));
        let without = lines.collect::<Vec<_>>().join("\n");
        for document in documents(&without).unwrap() {
            let namespace = document["metadata"]["namespace"].as_str().unwrap();
            assert_eq!(model::is_dns_label(namespace), !expected.contains(&"--into"), "{namespace}");
            if document["kind"] == "Service" && expected.contains(&"--selector") {
                serde_json::from_value::<Service>(document).unwrap_err();
            }
        }
    }
}

#[test]
fn the_port_is_that_of_the_tasks_if_they_have_one() {
    let with = |ecs: &[u16], instances: &[u16], line: &str| {
        let mut candidate = candidate("orders");
        candidate.registry.as_mut().unwrap().ports = instances.iter().copied().collect();
        let ports = ecs.iter().copied().collect();
        candidate.ecs = Ok(Some(found([ecs::Service { ports, ..ecs_service(2) }])));
        let wishes = wishes(&format!("--into shop --selector app=x {line}")).unwrap();
        manifest(&candidate, &wishes).unwrap().unwrap()
    };
    for (ecs, instances, line, port) in [
        (&[8080][..], &[][..], "", Some(8080)),
        (&[], &[8080], "", Some(8080)),
        (&[8080], &[8080], "", Some(8080)),
        (&[8080], &[9090], "--port 80", Some(80)),
        (&[8080], &[9090], "", None),
        (&[8080, 9090], &[], "", None),
        (&[], &[], "", None),
    ] {
        let Manifest { text, missing, .. } = with(ecs, instances, line);
        assert_eq!(missing.contains("--port"), port.is_none(), "{ecs:?} {instances:?}");
        if let Some(port) = port {
            let service: Service = typed(&documents(&text).unwrap()[0]);
            assert_eq!(service.spec.unwrap().ports.unwrap()[0].port, port);
        }
    }
    assert!(with(&[8080], &[9090], "").text.contains("that of the tasks is 8080 or 9090"));
}

/// A service of ECS may be called so, and kubectl reads YAML 1.1.
#[test]
fn names_that_look_like_booleans_stay_names() {
    for name in ["on", "no", "y", "null", "true"] {
        let Manifest { text, .. } = written_of(name, ALL);
        assert!(text.contains(&format!("cloudmap-mcs/service: \"{name}\"\n")), "{text}");
        let export: ServiceExport = typed(&documents(&text).unwrap()[2]);
        assert_eq!(export.metadata.name.as_deref(), Some(name));
    }
}

#[test]
fn what_cannot_be_written_is_left_out_with_its_remedy() {
    let reason = |candidate: &Candidate| manifest(candidate, &wishes(ALL).unwrap()).unwrap_err();
    let long = "a".repeat(64);
    for name in ["Orders", "orders.v2", "_http._tcp", "1api", "-a", "a-", "a_b", "../../etc/passwd", "a b", "é", &long]
    {
        let (why, shown) = (reason(&candidate(name)), format!("prod.internal/{name}"));
        assert!(why.starts_with(&format!("{shown:?}: ")), "{why}");
        assert!(why.contains("cloudmap-mcs/service") || why.contains("invalid Cloud Map service name"), "{why}");
    }
    let registered = |change: fn(&mut ecs::Service)| {
        let mut service = ecs_service(2);
        change(&mut service);
        Candidate { ecs: Ok(Some(found([service]))), ..candidate("orders") }
    };
    let mut cname = candidate("orders");
    let records = &mut cname.registry.as_mut().unwrap().service.as_mut().unwrap().dns.as_mut().unwrap().records;
    records[0].record_type = RecordType::Cname;
    let ledger = Target { namespace: "clusterset-my-clusterset".into(), service: "orders".into() };
    for (candidate, part) in [
        (registered(|it| it.daemon = true), "REPLICA"),
        (registered(|it| it.service_connect = true), "disable Service Connect"),
        (registered(|it| it.controller = Controller::External), "that ECS deploys"),
        (cname, "CNAME"),
        (Candidate { registry: Err("access denied".to_owned()), ..candidate("orders") }, "access denied"),
        (Candidate { target: ledger, ..candidate("orders") }, "ledger"),
    ] {
        let why = reason(&candidate);
        assert!(why.contains(part), "{part}: {why}");
    }
    let wishes = wishes(&format!("--into shop --selector app={}{{service}}", "a".repeat(60))).unwrap();
    let why = manifest(&candidate("orders"), &wishes).unwrap_err();
    assert!(why.contains("shorter --selector"), "{why}");
}

#[test]
fn services_of_ecs_are_told_by_ecs_and_where_it_is_silent_by_their_instances() {
    let (nobody, denied) = (Ok(Some(found([]))), Err("access denied".to_owned()));
    let empty = CloudMapService { service: Some(mk_service()), ..CloudMapService::default() };
    let mut others = registry(2, 60);
    others.ecs.clear();
    for (registry, ecs, expected) in [
        // A service without a task, such as one that was stopped over night.
        (&empty, Ok(Some(found([ecs_service(0)]))), Ok(true)),
        (&empty, nobody.clone(), Ok(false)),
        (&others, nobody.clone(), Ok(false)),
        // What the instances say counts, also of a cluster of ECS that was not searched.
        (&registry(2, 60), nobody, Ok(true)),
        (&registry(2, 60), denied.clone(), Ok(true)),
        (&registry(2, 60), Ok(None), Ok(true)),
        (&others, denied.clone(), Ok(false)),
        (&empty, denied, Err("access denied")),
        (&empty, Ok(None), Err("--ecs-endpoint")),
        (&empty, Ok(Some(found_in_part([]))), Err("the ECS cluster test could not be read")),
    ] {
        let candidate = Candidate { registry: Ok(registry.clone()), ecs, ..candidate("orders") };
        let said = manifest(&candidate, &wishes(ALL).unwrap()).map(|manifest| manifest.is_some());
        match (said, expected) {
            (Ok(said), Ok(expected)) => assert_eq!(said, expected, "{candidate:?}"),
            (Err(why), Err(part)) => assert!(why.contains(part) && why.contains("iam --mode cutover"), "{why}"),
            (said, _) => panic!("{said:?} of {candidate:?}"),
        }
    }
}

/// Cloud Map with a namespace of this name and these services, of which each has a task of ECS.
fn cloudmap(name: &str, services: &[&str]) -> (Fake, FakeEcs) {
    let (cloudmap, mut of_ecs) = (Fake::new(), Vec::new());
    let namespace = cloudmap.registry().add_namespace(name, NamespaceKind::DnsPrivate);
    for service in services {
        let id = cloudmap.registry().add_service(&namespace, service, "ecs", "");
        let task = [("AWS_INSTANCE_IPV4", "192.0.2.1"), ("ECS_CLUSTER_NAME", "prod"), ("ECS_SERVICE_NAME", *service)];
        let attributes = task.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        cloudmap.registry().instances.insert((id.clone(), "task".into()), attributes);
        of_ecs.push(fake::mk_service("prod", service, &format!("arn:{id}")));
    }
    (cloudmap, FakeEcs::with(of_ecs))
}

async fn surveyed(cloudmap: &Fake, ecs: &FakeEcs, name: &str) -> Result<Survey, String> {
    let mut registry = RegistryReader::new(Ok(Arc::new(cloudmap.clone())));
    let mut ecs = EcsReader::new(Ok(Some(Arc::new(ecs.clone()))), Choice::default());
    survey(&mut registry, &mut ecs, name, &mut Vec::new()).await
}

#[tokio::test(start_paused = true)]
async fn a_whole_namespace_is_read_with_one_listing_and_without_a_cluster() {
    let (cloudmap, ecs) = cloudmap("prod.internal", &["orders", "carts", "Bad_Name"]);
    let namespace = cloudmap.registry().namespaces[0].id.clone();
    cloudmap.registry().add_service(&namespace, "of-others", "terraform", "");
    let seen = surveyed(&cloudmap, &ecs, "prod.internal").await.unwrap();
    assert_eq!(cloudmap.registry().count(cloudmap::Operation::ListServices), 1);
    assert_eq!(ecs.state().calls.iter().filter(|call| **call == Operation::ListClusters).count(), 1);
    assert_eq!(seen.room.instances, Some(3));
    let (manifests, left_out, others) = sorted(&seen, &wishes(ALL).unwrap());
    let names: Vec<_> = manifests.iter().map(|manifest| &*manifest.name).collect();
    assert_eq!((names, others), (vec!["carts", "orders"], 1));
    assert!(left_out.len() == 1 && left_out[0].contains("Bad_Name"), "{left_out:?}");
    let said = text(&rooms(&seen.room, &manifests, &wishes(ALL).unwrap()));
    for part in [
        "Cloud Map namespace prod.internal: OK",
        "3 instances now and 4 more for the pods of these 2 names are 7 at once",
        "about 0.40 USD a month",
        "kubectl annotate namespace shop cloudmap-mcs/may-register=prod.internal/carts,prod.internal/orders",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let why = surveyed(&cloudmap, &ecs, "prod.intrenal").await.err().unwrap();
    assert!(why.contains("prod.intrenal") && why.ends_with("there are: prod.internal"), "{why}");
}

/// The annotation would otherwise name another namespace.
#[tokio::test(start_paused = true)]
async fn of_two_namespaces_with_one_name_the_younger_is_named_by_its_id() {
    let (cloudmap, ecs) = cloudmap("internal", &["orders"]);
    let younger = cloudmap.registry().add_namespace("internal", NamespaceKind::Http);
    // As AWS calls it for DiscoverInstances.
    cloudmap.registry().namespaces[1].http_name = "internal-1a2b".into();
    let id = cloudmap.registry().add_service(&younger, "pay", "ecs", "");
    ecs.state().services.push(fake::mk_service("prod", "pay", &format!("arn:{id}")));
    for (name, expected) in [("internal", "internal/orders".to_owned()), (&younger, format!("{younger}/pay"))] {
        let seen = surveyed(&cloudmap, &ecs, name).await.unwrap();
        let (manifests, left_out, _) = sorted(&seen, &wishes(ALL).unwrap());
        let targets: Vec<_> = manifests.iter().map(|manifest| manifest.target.to_string()).collect();
        assert_eq!((targets, left_out.len()), (vec![expected], 0));
    }
}

#[test]
fn files_are_written_for_everybody_to_read_and_nothing_is_overwritten() {
    let folder = std::env::temp_dir().join(format!("cloudmap-mcs-moves-{}", std::process::id()));
    let inside = folder.join("new/moves");
    let manifests = ["carts", "orders"].map(|name| written_of(name, ALL));
    let paths = written(&inside, &manifests).unwrap();
    assert_eq!(paths, ["carts.yaml", "orders.yaml"].map(|name| inside.join(name)));
    for (path, manifest) in paths.iter().zip(&manifests) {
        assert_eq!(fs::read_to_string(path).unwrap(), manifest.text);
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o644);
    }
    let again = written(&inside, &manifests).unwrap_err().to_string();
    assert!(again.contains("not empty") && again.contains("--write"), "{again}");
    let empty = folder.join("empty");
    fs::create_dir(&empty).unwrap();
    assert_eq!(written(&empty, &manifests).unwrap().len(), 2);
    let a_file = paths[0].clone();
    let why = written(&a_file, &manifests).unwrap_err().to_string();
    assert!(why.contains("carts.yaml") && fs::read_to_string(&a_file).unwrap() == manifests[0].text, "{why}");
    fs::remove_dir_all(&folder).unwrap();
}
