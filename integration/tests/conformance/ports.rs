//! Ports: merged from all exports, and served only where they are exposed.

use std::collections::BTreeSet;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{PROPAGATION, World, eventually, holds, manifests};
use serde_json::{Value, json};

use crate::check::{Check, check};
use crate::conflicts::{Dispute, Exported};
use crate::facts::{self, AGE};

pub(crate) const CHECKS: &[Check] = &[
    check!(All, [15, 16, 17, 21], ports::of_one_name_and_different_numbers),
    check!(All, [15, 21], ports::of_one_name_and_different_protocols),
    check!(All, [15, 21], ports::of_one_number_and_different_names),
    check!(All, [15, 21], ports::without_a_name),
    check!(All, [15, 21], ports::that_only_some_have_add_up),
    check!(All, [15, 21], ports::of_different_application_protocols),
    check!(All, [21], ports::are_served_only_by_the_clusters_that_expose_them),
    check!(Two, [31, 36, 45], ports::of_every_protocol_arrive),
    check!(Two, [31, 45], ports::without_a_name_arrive_without_one),
];

fn port(name: &str, number: u16, protocol: &str) -> Value {
    let mut port = json!({"port": number, "targetPort": 8080, "protocol": protocol});
    if !name.is_empty() {
        port["name"] = name.into();
    }
    port
}

async fn dispute(world: &World, oldest: &[Value], youngest: &[Value], merged: &[&str]) -> Result<()> {
    let merged: BTreeSet<_> = merged.iter().map(ToString::to_string).collect();
    Dispute {
        oldest: Exported::service(manifests::single_stack("web", oldest)),
        youngest: Exported::service(manifests::single_stack("web", youngest)),
        reason: "PortConflict",
        field: "port",
        decided: &|import| facts::ports(&import["spec"]["ports"]) == merged,
    }
    .play(world)
    .await
}

async fn of_one_name_and_different_numbers(world: &World) -> Result<()> {
    dispute(world, &[port("http", 80, "TCP")], &[port("http", 81, "TCP")], &["http/TCP/80"]).await
}

async fn of_one_name_and_different_protocols(world: &World) -> Result<()> {
    dispute(world, &[port("dns", 53, "UDP")], &[port("dns", 53, "TCP")], &["dns/UDP/53"]).await
}

async fn of_one_number_and_different_names(world: &World) -> Result<()> {
    dispute(world, &[port("http", 80, "TCP")], &[port("web", 80, "TCP")], &["http/TCP/80"]).await
}

async fn without_a_name(world: &World) -> Result<()> {
    dispute(world, &[port("", 80, "TCP")], &[port("", 81, "TCP")], &["/TCP/80"]).await
}

async fn that_only_some_have_add_up(world: &World) -> Result<()> {
    let youngest = [port("dns-tcp", 53, "TCP"), port("metrics", 9153, "TCP")];
    dispute(world, &[port("dns", 53, "UDP")], &youngest, &["dns/UDP/53", "dns-tcp/TCP/53", "metrics/TCP/9153"]).await
}

async fn of_different_application_protocols(world: &World) -> Result<()> {
    let mut other = port("http", 80, "TCP");
    other["appProtocol"] = "kubernetes.io/h2c".into();
    dispute(world, &[port("http", 80, "TCP")], &[other], &["http/TCP/80"]).await
}

/// The older cluster has `http` at 80, the younger one `http` at 81, which conflicts, and `extra`, which does not.
async fn are_served_only_by_the_clusters_that_expose_them(world: &World) -> Result<()> {
    let [younger, older] = world.pair();
    for cluster in [older, younger] {
        world.deploy(cluster, "web", 1).await?;
    }
    facts::export(world, older, manifests::single_stack("web", &[port("http", 80, "TCP")])).await?;
    tokio::time::sleep(AGE).await;
    let ports = [port("http", 81, "TCP"), port("extra", 8000, "TCP")];
    facts::export(world, younger, manifests::single_stack("web", &ports)).await?;
    let wanted = BTreeSet::from(["http/TCP/80".to_owned(), "extra/TCP/8000".to_owned()]);
    for cluster in &world.clusters {
        facts::import_where(world, cluster, "web", &format!("its ports are {wanted:?}"), |import| {
            facts::ports(&import["spec"]["ports"]) == wanted
        })
        .await?;
        world.followed(younger, "web").await?;
        world.followed(older, "web").await?;
        eventually("slices have only ports that their cluster exposes", PROPAGATION, async || {
            for slice in world.imported_slices(cluster, "web").await? {
                let of_older =
                    slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"] == older.id.as_str();
                let name = if of_older { "http/TCP/8080" } else { "extra/TCP/8080" };
                holds(
                    facts::ports(&slice["ports"]) == [name.to_owned()].into(),
                    &format!("its port is {name}"),
                    &slice,
                )?;
            }
            Ok(())
        })
        .await?;
        for (source, port) in [(older, 80), (younger, 8000)] {
            let url = format!("http://{}:{port}/hostname", world.name("web"));
            facts::reaches(cluster, None, &url, &facts::pods(world, source, "web").await?).await?;
        }
    }
    Ok(())
}

async fn of_every_protocol_arrive(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    world.deploy(source, "many", 1).await?;
    let ports = [
        json!({"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP", "appProtocol": "http"}),
        json!({"name": "alt", "port": 8000, "targetPort": 8080, "protocol": "TCP"}),
        json!({"name": "names", "port": 5300, "targetPort": 8081, "protocol": "UDP"}),
        json!({"name": "signals", "port": 9999, "targetPort": 9999, "protocol": "SCTP"}),
    ];
    facts::export(world, source, manifests::service("many", &ports)).await?;
    let wanted = facts::ports(&json!(ports));
    let import = facts::import_where(world, other, "many", "the ports are those of the Service", |import| {
        facts::ports(&import["spec"]["ports"]) == wanted
    })
    .await?;
    let http = import["spec"]["ports"].as_array().into_iter().flatten().find(|port| port["name"] == "http");
    holds(http.is_some_and(|port| port["appProtocol"] == "http"), "appProtocol is there", &import)?;
    world.followed(source, "many").await?;
    let wanted =
        BTreeSet::from(["http/TCP/8080", "alt/TCP/8080", "names/UDP/8081", "signals/SCTP/9999"].map(String::from));
    for slice in world.imported_slices(other, "many").await? {
        holds(facts::ports(&slice["ports"]) == wanted, "the ports of a slice are the pods' own", &slice)?;
    }
    let name = world.name("many");
    for port in [80, 8000] {
        facts::answers(other, &format!("http://{name}:{port}/hostname"), &[]).await?;
    }
    eventually("UDP is answered", PROPAGATION, async || other.ask_udp(&format!("{name}:5300")).await).await?;
    for (service, port) in [("_http._tcp", 80), ("_alt._tcp", 8000), ("_names._udp", 5300), ("_signals._sctp", 9999)] {
        let srv = other.dig(&format!("{service}.{name}"), "SRV").await?;
        let told = srv.len() == 1 && srv.iter().all(|line| line.ends_with(&format!(" {port} {name}.")));
        holds(told, &format!("SRV of {service} names port {port} of {name}"), &srv)?;
    }
    Ok(())
}

async fn without_a_name_arrive_without_one(world: &World) -> Result<()> {
    let [source, other] = world.pair();
    world.deploy(source, "plain", 1).await?;
    facts::export(world, source, manifests::service("plain", &[port("", 80, "TCP")])).await?;
    let import = facts::import_with_ips(world, other, "plain").await?;
    let name = &import["spec"]["ports"][0]["name"];
    holds(name.is_null() || name == "", "its port has no name", &import)?;
    let name = world.name("plain");
    facts::answers(other, &format!("http://{name}/hostname"), &[]).await?;
    let srv = other.dig(&format!("_tcp.{name}"), "SRV").await?;
    holds(srv.is_empty(), "there is no SRV record", &srv)
}
