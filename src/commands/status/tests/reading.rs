//! What is read, and what may be.

use clap::Parser as _;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;

use super::*;
use crate::{
    purge,
    status::observe::{Observer, all},
};
use api::ServiceExport;
use cli::{Cli, Command, StatusArgs};
use cloudmap::{NamespaceKind, attributes, fake::Fake};
use cluster::{
    fake_api::FakeApi,
    rbac::{granted, manifest, needed},
};

fn arguments() -> StatusArgs {
    let arguments = ["cloudmap-mcs", "status", "web", "-n", "shop", "--clusterset-id", "prod"];
    let Command::Status(args) = Cli::parse_from(arguments).command else { panic!("not status") };
    args
}

fn observer<'a>(
    api: &FakeApi,
    args: &'a StatusArgs,
    cloudmap: Result<Arc<dyn cloudmap::Read>, String>,
) -> Observer<'a> {
    Observer { client: api.client(), place: &args.place, cloudmap }
}

#[tokio::test]
async fn a_part_that_is_refused_hides_no_other() {
    let (api, args) = (FakeApi::default(), arguments());
    let observer = observer(&api, &args, Err("no credentials".to_owned()));
    let seen = observer.cluster().await;
    assert_eq!(seen.ledger.as_ref().unwrap_err(), &Dark::Unseen("no credentials".to_owned()));
    api.refuse(403, "Forbidden", "you may not list it");
    let objects = observer.objects(Some("shop")).await;
    let report = overview::plan(&seen, &objects);
    let of_objects = report.findings.iter().filter(|finding| finding.about.starts_with("Service"));
    let (refused, shown): (Vec<_>, Vec<_>) = of_objects.partition(|finding| finding.state == State::Wrong);
    assert_eq!((refused.len(), shown.len()), (1, 1), "{}", report.table());
    assert_eq!(refused[0].text, "not read: you may not list it");
    assert!(refused[0].remedy.as_ref().unwrap().contains("cloudmap-mcs-reader"));
    assert_eq!((shown[0].state, &*shown[0].text), (State::Absent, "there is none in the namespace shop"));
}

#[tokio::test]
async fn objects_are_read_page_by_page_and_kept_without_who_owns_their_fields() {
    let api = FakeApi::default();
    for (next, name) in [("more", "a"), ("", "b")] {
        let metadata = json!({"namespace": "shop", "name": name, "managedFields": [{"manager": "kubectl"}]});
        api.prepare(200, json!({"metadata": {"continue": next}, "items": [{"metadata": metadata, "spec": {}}]}));
    }
    let found = all(&Api::<ServiceExport>::all(api.client())).await.unwrap();
    let names: Vec<_> = found.iter().filter_map(|export| export.metadata.name.as_deref()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(found.iter().all(|export| export.metadata.managed_fields.is_none()));
    let requests = api.requests();
    assert!(requests.iter().all(|request| request.query.contains("limit=500")), "{requests:?}");
    assert!(requests[1].query.contains("continue=more"), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn the_instances_of_a_target_are_counted_by_cluster() {
    let (api, args, fake) = (FakeApi::default(), arguments(), Fake::new());
    {
        let mut registry = fake.registry();
        let shop = registry.add_namespace("shop", NamespaceKind::Http);
        let web = registry.add_service(&shop, "web", "x", "");
        for (id, cluster) in [("a", Some("one")), ("b", Some("one")), ("c", Some("two")), ("d", None)] {
            let attributes = cluster.map(|cluster| (attributes::CLUSTER.to_owned(), cluster.to_owned()));
            registry.instances.insert((web.clone(), id.into()), attributes.into_iter().collect());
        }
    }
    let observer = observer(&api, &args, Ok(Arc::new(fake)));
    let name = Box::pin(observer.name(&key(), &Ok(vec![view("one")]))).await;
    let registered = [(String::new(), 1), ("one".to_owned(), 2), ("two".to_owned(), 1)].into();
    assert_eq!(name.targets, [(target(), Ok(Some(Instances { registered, ..Instances::default() })))]);
}

/// Whoever reads it must know how long to wait for a better answer.
#[tokio::test(start_paused = true)]
async fn a_registry_that_says_nothing_is_given_half_a_minute() {
    let (api, args, fake) = (FakeApi::default(), arguments(), Fake::new().with_call(Duration::from_hours(1)));
    let observer = observer(&api, &args, Ok(Arc::new(fake)));
    let name = Box::pin(observer.name(&key(), &Ok(vec![view("one")]))).await;
    assert_eq!(name.targets, [(target(), Err("no answer within 30 s".to_owned()))]);
}

#[tokio::test]
async fn the_commands_of_remedies_lead_to_the_cluster_that_was_asked() {
    let arguments = ["cloudmap-mcs", "status", "--context", "a"];
    let Command::Status(args) = Cli::parse_from(arguments).command else { panic!("not status") };
    let api = FakeApi::default();
    let asked = observer(&api, &args, Err(String::new())).cluster().await;
    let (mut seen, mut name) = (Cluster { flags: asked.flags, ..cluster() }, followed());
    seen.lease = Err(Unread::NoSuchKind);
    seen.record = Ok(Some(Record { leaving: true, ..Record::default() }));
    seen.ledger = Err(Dark::Unseen("no credentials".to_owned()));
    (name.local, name.derived, name.dns) = (Ok(Vec::new()), Ok(None), Dns::Asked(Err("NXDOMAIN".to_owned())));
    let remedies: Vec<_> = name::plan(&seen, &name).findings.into_iter().filter_map(|it| it.remedy).collect();
    let commands: Vec<_> = remedies.iter().flat_map(|remedy| remedy.split('`').skip(1).step_by(2)).collect();
    assert_eq!(commands.len(), 6, "{commands:?}");
    assert!(commands.iter().all(|command| command.contains(" --context a")), "{commands:?}");
}

/// A workstation's clock that is ahead would make a leader and heads that are well seem silent.
#[tokio::test(start_paused = true)]
async fn a_lease_and_heads_are_judged_by_the_clock_of_the_api_server() {
    let (api, args, fake) = (FakeApi::default(), arguments(), Fake::new());
    let _blue = purge::tests::member(&fake, "blue", "blue").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    api.answers_with_date("Mon, 01 Jan 2001 10:02:00 GMT");
    // In whichever order the parts are read, each finds in it what it needs.
    let spec = json!({"holderIdentity": "pod-a_1", "renewTime": "2001-01-01T10:01:58.000000Z"});
    let answer = json!({"metadata": {"name": "any", "uid": "uid"}, "spec": spec, "items": [],
        "major": "1", "minor": "34", "gitVersion": "v1.34.4"});
    for _ in 0..10 {
        api.prepare(200, answer.clone());
    }
    let seen = observer(&api, &args, Ok(Arc::new(fake))).cluster().await;
    let there: Timestamp = "2001-01-01T10:02:00Z".parse().unwrap();
    assert!(seen.now.duration_since(there).as_hours().abs() < 1, "{}", seen.now);
    let leader = seen.lease.as_ref().unwrap().as_ref().unwrap();
    assert_eq!(leader.holder.as_deref(), Some("pod-a_1"));
    assert!(overview::since(seen.now, leader.renewed.unwrap()) < Duration::from_hours(1));
    let views = seen.ledger.as_ref().unwrap();
    // The fake registry's clock is the one here.
    assert!(views.len() == 1 && views[0].age.is_none(), "{:?}", views[0].age);
}

/// The test of `gather` says that nothing else is granted.
#[tokio::test(start_paused = true)]
async fn a_reader_may_read_what_status_reads() {
    let (api, args) = (FakeApi::default(), arguments());
    let observer = observer(&api, &args, Err(String::new()));
    let seen = observer.cluster().await;
    observer.objects(None).await;
    Box::pin(observer.name(&key(), &seen.ledger)).await;
    let anywhere = |(_, group, resource, verb)| (group, resource, verb);
    // Everybody may ask for the version.
    let requests: Vec<_> = api.requests().into_iter().filter(|request| request.path != "/version").collect();
    let needed: std::collections::BTreeSet<_> = needed(&requests).into_iter().map(anywhere).collect();
    let reader: ClusterRole = manifest("reader_cluster_role.yaml");
    let granted = granted(false, reader.rules.unwrap()).into_iter().map(anywhere).collect();
    assert!(needed.is_subset(&granted), "{needed:?}");
    let controller: ClusterRole = manifest("cluster_role.yaml");
    let role: k8s_openapi::api::rbac::v1::Role = manifest("role.yaml");
    let rules = controller.rules.unwrap().into_iter().chain(role.rules.unwrap()).collect();
    let own: std::collections::BTreeSet<_> = cluster::rbac::granted(false, rules).into_iter().map(anywhere).collect();
    assert!(needed.is_subset(&own), "`kubectl exec` into the controller's pod reads with its own role");
}
