//! What of a Service arrives in the other cluster: DNS answers, connections, ports.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    Cluster, POD, PODS, PROPAGATION, SERVICE, World, eventually, holds, manifests, name_of,
};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_ip_service_answers_in_both_clusters() {
    World::run("cluster-ip", async |world| {
        let [source, other] = &world.clusters;
        world.deploy(source, "web", 1).await?;
        world.apply(source, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(source, manifests::export("web")).await?;
        world.export_condition(source, "web", "Valid", "True", "Valid").await?;
        world.export_condition(source, "web", "Ready", "True", "Exported").await?;
        world.export_condition(source, "web", "Conflict", "False", "NoConflicts").await?;
        let service = source.expect(SERVICE, &world.namespace, "web").await?;
        let families = strings(&service["spec"]["ipFamilies"]);
        let pods = pod_names(world, source).await?;
        for cluster in [other, source] {
            let import = import_with_ips(world, cluster, "web", families.len()).await?;
            holds(import["spec"]["type"] == "ClusterSetIP", "it is a ClusterSetIP", &import)?;
            holds(clusters_of(&import) == [&source.id], "its status names the exporting cluster", &import)?;
            let ips = strings(&import["spec"]["ips"]);
            let name = world.name("web");
            for (family, record, flag) in [("IPv4", "A", "-4"), ("IPv6", "AAAA", "-6")] {
                let of_family: BTreeSet<_> =
                    ips.iter().filter(|ip| ip.contains(':') == (family == "IPv6")).cloned().collect();
                eventually(&format!("{record} of {name} in {cluster:?}"), PROPAGATION, async || {
                    let answer = cluster.dig(&name, record).await?;
                    holds(answer == of_family, &format!("the answer is {of_family:?}"), &answer)
                })
                .await?;
                if families.contains(family) {
                    let pod = answers(cluster, &format!("http://{name}/hostname"), &[flag]).await?;
                    holds(pods.contains(&pod), &format!("one of {pods:?} answered"), &pod)?;
                }
            }
            let srv = cluster.dig(&format!("_http._tcp.{name}"), "SRV").await?;
            holds(
                srv.len() == 1 && srv.iter().all(|line| line.ends_with(&format!(" 80 {name}."))),
                "SRV names the service",
                &srv,
            )?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_headless_service_answers_with_its_pods_and_their_names() {
    World::run("headless", async |world| {
        let [source, other] = &world.clusters;
        let service = manifests::service("db", &[manifests::http(8080)]);
        world.apply(source, manifests::with_spec(service, &json!({"clusterIP": "None"}))).await?;
        world.apply(source, manifests::stateful_set("db", 2)).await?;
        world.apply(source, manifests::export("db")).await?;
        let import = world.imported(other, "db").await?;
        holds(import["spec"]["type"] == "Headless", "it is headless", &import)?;
        holds(strings(&import["spec"]["ips"]).is_empty(), "it has no addresses of its own", &import)?;
        eventually("both pods are ready", PODS, async || {
            let pods = source.list(POD, &world.namespace, "app=db").await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            holds(ready == 2, "both pods are ready", &pods.iter().map(name_of).collect::<Vec<_>>())
        })
        .await?;
        let addresses = world.followed(source, "db").await?;
        let name = world.name("db");
        for (record, of_family) in by_family(&addresses) {
            eventually(&format!("{record} of {name}"), PROPAGATION, async || {
                let answer = other.dig(&name, record).await?;
                holds(answer == of_family, &format!("the answer is {of_family:?}"), &answer)
            })
            .await?;
        }
        let mut targets = BTreeSet::new();
        for pod in ["db-0", "db-1"] {
            let host = format!("{pod}.{}.{name}", source.id);
            let object = source.expect(POD, &world.namespace, pod).await?;
            let ips = object["status"]["podIPs"].as_array().context("no addresses")?;
            let ips: BTreeSet<_> = ips.iter().filter_map(|ip| ip["ip"].as_str().map(ToOwned::to_owned)).collect();
            for (record, of_family) in by_family(&ips) {
                let answer = other.dig(&host, record).await?;
                holds(answer == of_family, &format!("{record} of {host} is {of_family:?}"), &answer)?;
            }
            let answered = answers(other, &format!("http://{host}:8080/hostname"), &[]).await?;
            holds(answered == pod, &format!("{pod} answered"), &answered)?;
            targets.insert(format!("{host}."));
        }
        let srv = other.dig(&format!("_http._tcp.{name}"), "SRV").await?;
        let named: BTreeSet<_> = srv.iter().filter_map(|line| line.split(' ').nth(3).map(ToOwned::to_owned)).collect();
        holds(named == targets, &format!("SRV names {targets:?}"), &srv)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_port_and_protocol_arrives() {
    World::run("ports", async |world| {
        let [source, other] = &world.clusters;
        world.deploy(source, "many", 1).await?;
        let ports = [
            json!({"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP", "appProtocol": "http"}),
            json!({"name": "alt", "port": 8000, "targetPort": 8080, "protocol": "TCP"}),
            json!({"name": "names", "port": 5300, "targetPort": 8081, "protocol": "UDP"}),
            json!({"name": "signals", "port": 9999, "targetPort": 9999, "protocol": "SCTP"}),
        ];
        world.apply(source, manifests::service("many", &ports)).await?;
        world.apply(source, manifests::export("many")).await?;
        world.imported(other, "many").await?;
        eventually("the import has all ports", PROPAGATION, async || {
            let import = world.imported(other, "many").await?;
            let seen: BTreeSet<_> = import["spec"]["ports"].as_array().into_iter().flatten().map(port_key).collect();
            holds(seen == ports.iter().map(port_key).collect(), "the ports are those of the Service", &import)?;
            let http = import["spec"]["ports"].as_array().into_iter().flatten().find(|port| port["name"] == "http");
            holds(http.is_some_and(|port| port["appProtocol"] == "http"), "appProtocol is there", &import)
        })
        .await?;
        world.followed(source, "many").await?;
        let slices = world.imported_slices(other, "many").await?;
        let wanted =
            BTreeSet::from(["http/TCP/8080", "alt/TCP/8080", "names/UDP/8081", "signals/SCTP/9999"].map(String::from));
        for slice in &slices {
            let ports: BTreeSet<_> = slice["ports"].as_array().into_iter().flatten().map(port_key).collect();
            holds(ports == wanted, &format!("the ports are the pods' own: {wanted:?}"), slice)?;
        }
        let name = world.name("many");
        answers(other, &format!("http://{name}/hostname"), &[]).await?;
        answers(other, &format!("http://{name}:8000/hostname"), &[]).await?;
        eventually("UDP is answered", PROPAGATION, async || other.ask_udp(&format!("{name}:5300")).await).await?;
        for (service, port) in [("_alt._tcp", 8000), ("_names._udp", 5300), ("_signals._sctp", 9999)] {
            let srv = other.dig(&format!("{service}.{name}"), "SRV").await?;
            holds(
                srv.iter().any(|line| line.ends_with(&format!(" {port} {name}."))),
                &format!("SRV of {service} names port {port}"),
                &srv,
            )?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unnamed_port_arrives_unnamed() {
    World::run("unnamed-port", async |world| {
        let [source, other] = &world.clusters;
        world.deploy(source, "plain", 1).await?;
        world.apply(source, manifests::service("plain", &[json!({"port": 80, "targetPort": 8080})])).await?;
        world.apply(source, manifests::export("plain")).await?;
        let import = world.imported(other, "plain").await?;
        let name = &import["spec"]["ports"][0]["name"];
        holds(name.is_null() || name == "", "its port has no name", &import)?;
        answers(other, &format!("http://{}/hostname", world.name("plain")), &[]).await.map(drop)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_port_and_load_balancer_services_are_exported_like_cluster_ips() {
    World::run("service-types", async |world| {
        let [source, other] = &world.clusters;
        world.deploy(source, "web", 1).await?;
        for (name, kind) in [("node-port", "NodePort"), ("load-balancer", "LoadBalancer")] {
            let service = manifests::service(name, &[manifests::http(80)]);
            let fields = json!({"type": kind, "selector": {"app": "web"}});
            world.apply(source, manifests::with_spec(service, &fields)).await?;
            world.apply(source, manifests::export(name)).await?;
            world.export_condition(source, name, "Valid", "True", "Valid").await?;
            let import = world.imported(other, name).await?;
            holds(import["spec"]["type"] == "ClusterSetIP", "it is a ClusterSetIP", &import)?;
            answers(other, &format!("http://{}/hostname", world.name(name)), &[]).await?;
        }
        Ok(())
    })
    .await;
}

/// Waits until the import has its addresses, one per family.
async fn import_with_ips(world: &World, cluster: &Cluster, name: &str, count: usize) -> Result<Value> {
    eventually(&format!("the import {name} has {count} addresses in {cluster:?}"), PROPAGATION, async || {
        let import = world.imported(cluster, name).await?;
        holds(strings(&import["spec"]["ips"]).len() == count, &format!("it has {count} addresses"), &import)?;
        Ok(import)
    })
    .await
}

/// Waits until a server answers; gives its answer.
async fn answers(cluster: &Cluster, url: &str, flags: &[&str]) -> Result<String> {
    eventually(&format!("{url} answers in {cluster:?}"), PROPAGATION, async || cluster.curl(url, flags).await).await
}

async fn pod_names(world: &World, cluster: &Cluster) -> Result<BTreeSet<String>> {
    Ok(cluster.list(POD, &world.namespace, "").await?.iter().map(|pod| name_of(pod).to_owned()).collect())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions
        .is_some_and(|all| all.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True"))
}

fn clusters_of(import: &Value) -> Vec<&str> {
    import["status"]["clusters"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["cluster"].as_str())
        .collect()
}

fn strings(list: &Value) -> BTreeSet<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
}

fn port_key(port: &Value) -> String {
    format!(
        "{}/{}/{}",
        port["name"].as_str().unwrap_or_default(),
        port["protocol"].as_str().unwrap_or("TCP"),
        port["port"]
    )
}

/// The addresses by the type of their DNS records.
fn by_family(addresses: &BTreeSet<String>) -> [(&'static str, BTreeSet<String>); 2] {
    let (six, four) = addresses.iter().cloned().partition(|address| address.contains(':'));
    [("A", four), ("AAAA", six)]
}
