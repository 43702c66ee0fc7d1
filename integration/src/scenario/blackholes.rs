//! Networks that lead nowhere for a while.

use anyhow::Result;

use super::cluster::{Cluster, NODE, POD};
use super::manifests::{self, Blackhole};
use super::wait::{PODS, eventually, holds};
use super::world::{World, name_of};

impl World {
    /// Lets nothing pass from the nodes of a cluster to these, until [`World::let_through`].
    pub async fn blackhole(&self, cluster: &Cluster, name: &str, blackholes: &[Blackhole]) -> Result<()> {
        holds(!blackholes.is_empty(), "there is something to cut off", &blackholes.len())?;
        let nodes = cluster.list(NODE, "", "").await?;
        for node in &nodes {
            let pod = format!("{name}-{}", name_of(node));
            self.apply(cluster, manifests::blackhole(&pod, name_of(node), blackholes)).await?;
        }
        eventually("nothing passes any more", PODS, async || {
            for node in &nodes {
                let pod = cluster.expect(POD, &self.namespace, &format!("{name}-{}", name_of(node))).await?;
                let ready = &pod["status"]["containerStatuses"][0]["ready"];
                holds(*ready == true, "the routes are there", &pod["status"])?;
            }
            Ok(())
        })
        .await
    }

    /// Ends what [`World::blackhole`] did under this name.
    pub async fn let_through(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let nodes = cluster.list(NODE, "", "").await?;
        for node in &nodes {
            cluster.delete(POD, &self.namespace, &format!("{name}-{}", name_of(node))).await?;
        }
        eventually("the routes are gone", PODS, async || {
            for node in &nodes {
                cluster.expect_none(POD, &self.namespace, &format!("{name}-{}", name_of(node))).await?;
            }
            Ok(())
        })
        .await
    }
}
