//! Several clusters export one name and do not agree.

use std::time::Duration;

use cloudmap_mcs_integration::scenario::{PROPAGATION, World, eventually, holds, manifests};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_conflict_is_on_both_exports_and_goes_when_it_is_resolved() {
    World::run("port-conflict", async |world| {
        let [oldest, younger] = &world.clusters;
        world.apply(oldest, manifests::service("web", &[manifests::http(80)])).await?;
        world.apply(oldest, manifests::export("web")).await?;
        world.export_condition(oldest, "web", "Conflict", "False", "NoConflicts").await?;
        // Creation times have a resolution of one second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        world.apply(younger, manifests::service("web", &[manifests::http(81)])).await?;
        world.apply(younger, manifests::export("web")).await?;
        for cluster in &world.clusters {
            let condition = world.export_condition(cluster, "web", "Conflict", "True", "PortConflict").await?;
            let message = condition["message"].as_str().unwrap_or_default();
            holds(message.contains(&oldest.id), "the message names the cluster that wins", &condition)?;
        }
        for cluster in &world.clusters {
            let import = world.imported(cluster, "web").await?;
            let ports = &import["spec"]["ports"];
            holds(
                ports.as_array().is_some_and(|ports| ports.len() == 1) && ports[0]["port"] == 80,
                "the oldest export wins",
                &import,
            )?;
        }
        world.apply(younger, manifests::service("web", &[manifests::http(80)])).await?;
        for cluster in &world.clusters {
            world.export_condition(cluster, "web", "Conflict", "False", "NoConflicts").await?;
        }
        Ok(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn different_ports_are_merged_and_each_cluster_serves_its_own() {
    World::run("port-union", async |world| {
        let [first, second] = &world.clusters;
        for (cluster, ports) in [
            (first, vec![manifests::http(80)]),
            (
                second,
                vec![
                    manifests::http(80),
                    serde_json::json!({"name": "extra", "port": 8000, "targetPort": 8080, "protocol": "TCP"}),
                ],
            ),
        ] {
            world.deploy(cluster, "web", 1).await?;
            world.apply(cluster, manifests::service("web", &ports)).await?;
            world.apply(cluster, manifests::export("web")).await?;
        }
        for cluster in &world.clusters {
            world.export_condition(cluster, "web", "Conflict", "True", "PortConflict").await?;
            eventually("the import has both ports", PROPAGATION, async || {
                let import = world.imported(cluster, "web").await?;
                holds(
                    import["spec"]["ports"].as_array().is_some_and(|ports| ports.len() == 2),
                    "it has both ports",
                    &import,
                )
            })
            .await?;
            world.followed(second, "web").await?;
            let pods = second.list(cloudmap_mcs_integration::scenario::POD, &world.namespace, "app=web").await?;
            for _ in 0..5 {
                let url = format!("http://{}:8000/hostname", world.name("web"));
                let answered =
                    eventually("the port of one cluster answers", PROPAGATION, async || cluster.curl(&url, &[]).await)
                        .await?;
                let names: Vec<_> = pods.iter().map(cloudmap_mcs_integration::scenario::name_of).collect();
                holds(names.contains(&answered.as_str()), &format!("{names:?} answered"), &answered)?;
            }
        }
        Ok(())
    })
    .await;
}
