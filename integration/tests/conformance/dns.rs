//! DNS, through the CoreDNS of the clusters.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    Deviation, POD, PODS, SERVICE, World, condition, eventually, holds, manifests, name_of,
};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::facts;

pub(crate) const CHECKS: &[Check] = &[
    check!(Two, [42, 44, 45, 51], dns::of_a_clusterset_ip_service),
    check!(Two, [46, 47, 48, 49, 51], dns::of_a_headless_service),
    check!(Two, [46, 47, 48], dns::of_a_headless_service_has_its_ready_endpoints),
    check!(Two, [54], dns::follows_endpoints_that_were_asked_for),
    check!(Two, [44], dns::of_a_service_without_endpoints),
    check!(Two, [42, 49], dns::of_names_that_are_not_there),
    check!(Two, [43], dns::says_its_version),
];

async fn of_a_clusterset_ip_service(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    world.deploy(source, "web", 1).await?;
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
    let families = source.expect(SERVICE, &world.namespace, "web").await?["spec"]["ipFamilies"].clone();
    let name = world.name("web");
    for cluster in [other, source] {
        let import = facts::import_with_ips(world, cluster, "web").await?;
        let ips = facts::strings(&import["spec"]["ips"]);
        holds(ips.len() == facts::strings(&families).len(), "it has an address for each family", &import)?;
        world.followed(source, "web").await?;
        for ((record, wanted), flag) in facts::by_record(ips).into_iter().zip(["-4", "-6"]) {
            facts::resolves(cluster, &name, record, &wanted).await?;
            if !wanted.is_empty() {
                facts::answers(cluster, &format!("http://{name}/hostname"), &[flag]).await?;
            }
        }
        let srv = cluster.dig(&format!("_http._tcp.{name}"), "SRV").await?;
        let told = srv.len() == 1 && srv.iter().all(|line| line.ends_with(&format!(" 80 {name}.")));
        holds(told, "SRV names the service", &srv)?;
    }
    // What cluster.local means has not changed.
    let local = format!("web.{}.svc.cluster.local", world.namespace);
    let service = source.expect(SERVICE, &world.namespace, "web").await?;
    for (record, wanted) in facts::by_record(facts::strings(&service["spec"]["clusterIPs"])) {
        facts::resolves(source, &local, record, &wanted).await?;
    }
    facts::is_nxdomain(other, &local, "A").await
}

async fn of_a_headless_service(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    let service = manifests::service("db", &[manifests::http(8080)]);
    world.apply(source, manifests::stateful_set("db", 2)).await?;
    facts::export(world, source, manifests::with_spec(service, &json!({"clusterIP": "None"}))).await?;
    both_ready(world).await?;
    world.imported(other, "db").await?;
    let addresses = world.followed(source, "db").await?;
    let name = world.name("db");
    for (record, wanted) in facts::by_record(addresses) {
        facts::resolves(other, &name, record, &wanted).await?;
    }
    let mut targets = BTreeSet::new();
    for pod in ["db-0", "db-1"] {
        let host = format!("{pod}.{}.{name}", source.id);
        let object = source.expect(POD, &world.namespace, pod).await?;
        let ips = object["status"]["podIPs"].as_array().context("no addresses")?;
        let ips = ips.iter().filter_map(|ip| ip["ip"].as_str().map(ToOwned::to_owned));
        for (record, wanted) in facts::by_record(ips) {
            facts::resolves(other, &host, record, &wanted).await?;
        }
        let answered = facts::answers(other, &format!("http://{host}:8080/hostname"), &[]).await?;
        holds(answered == pod, &format!("{pod} answered"), &answered)?;
        targets.insert(format!("{host}."));
    }
    let srv = other.dig(&format!("_http._tcp.{name}"), "SRV").await?;
    let named: BTreeSet<_> = srv.iter().filter_map(|line| line.split(' ').nth(3).map(ToOwned::to_owned)).collect();
    holds(named == targets, &format!("SRV names {targets:?}"), &srv)?;
    let answer = other.dig(&format!("{}.{name}", source.id), "A").await?;
    holds(answer.is_empty(), "the cluster alone has no record", &answer)
}

async fn both_ready(world: &World) -> Result<()> {
    let [source, _] = world.pair();
    eventually("both pods are ready", PODS, async || {
        let pods = source.list(POD, &world.namespace, "app=db").await?;
        let ready = pods.iter().filter(|pod| condition(pod, "Ready")["status"] == "True").count();
        holds(ready == 2, "both pods are ready", &pods.iter().map(name_of).collect::<Vec<_>>())
    })
    .await
}

/// Endpoints written by hand: ready or not, two of them with a host name.
fn endpoints(ready: bool) -> Value {
    json!([
        {"addresses": ["198.18.0.1"], "conditions": {"ready": ready}, "hostname": "named"},
        {"addresses": ["198.18.0.2"], "conditions": {"ready": ready}},
        {"addresses": ["198.18.0.3"], "conditions": {"ready": false}, "hostname": "unready"},
    ])
}

async fn export_endpoints(world: &World, service: &str, ready: bool) -> Result<()> {
    let [source, _] = world.pair();
    let manifest = manifests::service_without_selector(service, &[manifests::http(8080)]);
    let fields = json!({"clusterIP": "None", "ipFamilyPolicy": "SingleStack"});
    facts::export(world, source, manifests::with_spec(manifest, &fields)).await?;
    make_ready(world, service, ready).await
}

/// Waits until everybody has it so.
async fn make_ready(world: &World, service: &str, ready: bool) -> Result<()> {
    let [source, other] = world.pair();
    world.apply(source, manifests::endpoint_slice_of(service, service, &endpoints(ready))).await?;
    world.imported(other, service).await?;
    world.followed(source, service).await.map(drop)
}

/// Every name is asked once only: what DNS caches is not the matter here.
async fn of_a_headless_service_has_its_ready_endpoints(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    export_endpoints(world, "db", true).await?;
    let name = world.name("db");
    facts::resolves(other, &name, "A", &BTreeSet::from(["198.18.0.1", "198.18.0.2"].map(String::from))).await?;
    let host = |name: &str, service: &str| format!("{name}.{}.{}", source.id, world.name(service));
    facts::resolves(other, &host("named", "db"), "A", &["198.18.0.1".to_owned()].into()).await?;
    facts::is_nxdomain(other, &host("unready", "db"), "A").await?;
    let hosts = other.dig(&format!("_http._tcp.{name}"), "SRV").await?;
    holds(hosts.len() == 2, "SRV has the ready endpoints, also the one without a host name", &hosts)?;
    for host in hosts.iter().filter_map(|line| line.split(' ').nth(3)) {
        let answer = other.dig(host, "A").await?;
        holds(answer.len() == 1, &format!("{host} has an address"), &answer)?;
    }
    // Endpoints that were ready and are not any more.
    export_endpoints(world, "down", true).await?;
    make_ready(world, "down", false).await?;
    for gone in [world.name("down"), host("named", "down")] {
        facts::is_nxdomain(other, &gone, "A").await?;
    }
    Ok(())
}

/// Names that clients keep asking for.
async fn follows_endpoints_that_were_asked_for(world: &World) -> Result<()> {
    let [_, other] = world.pair();
    let name = world.name("db");
    export_endpoints(world, "db", false).await?;
    facts::is_nxdomain(other, &name, "A").await?;
    make_ready(world, "db", true).await?;
    facts::resolves(other, &name, "A", &BTreeSet::from(["198.18.0.1", "198.18.0.2"].map(String::from))).await?;
    make_ready(world, "db", false).await?;
    facts::is_nxdomain(other, &name, "A").await
}

async fn of_a_service_without_endpoints(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    facts::export(world, source, manifests::service("empty", &[manifests::http(80)])).await?;
    let import = facts::import_with_ips(world, other, "empty").await?;
    for (record, wanted) in facts::by_record(facts::strings(&import["spec"]["ips"])) {
        facts::resolves(other, &world.name("empty"), record, &wanted).await?;
    }
    Ok(())
}

async fn of_names_that_are_not_there(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    facts::export(world, source, manifests::service("web", &[manifests::http(80)])).await?;
    facts::import_with_ips(world, other, "web").await?;
    let name = world.name("web");
    facts::is_nxdomain(other, &world.name("nothing"), "A").await?;
    // The KEP's own name for it: a ClusterSetIP service has no records by cluster.
    facts::is_nxdomain(other, &format!("{}.{name}", source.id), "A").await?;
    facts::is_nxdomain(other, &format!("_nothing._tcp.{name}"), "SRV").await
}

async fn says_its_version(world: &World) -> Result<()> {
    let [cluster, _] = world.pair();
    let answer = cluster.dig("dns-version.clusterset.local", "TXT").await?;
    if answer == ["\"1.1.0\"".to_owned()].into() {
        return Err(Deviation("CoreDNS answers \"1.1.0\", whatever the controller does".to_owned()).into());
    }
    holds(answer == ["\"1.0.0\"".to_owned()].into(), "it is 1.0.0", &answer)
}
