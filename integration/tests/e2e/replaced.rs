//! The controllers that this one replaces: the objects in their documents, and what they do beside it.
//!
//! The documents' Deployments run nginx, which needs a registry of images: here a server of the pod's name listens in its
//! place, on port 80 as well.

mod cloudmap_controller;
mod external_dns;
mod external_dns_beside;

use std::collections::BTreeSet;

use anyhow::Result;
use cloudmap_mcs_integration::scenario::{Cluster, NAMES, World, eventually, holds, manifests};

/// Starts as many pods `name-...`, with the label `app: name`, as nginx does.
async fn serve(world: &World, cluster: &Cluster, name: &str, replicas: u32) -> Result<()> {
    world.roll_out(cluster, manifests::on_port(manifests::deployment(name, replicas), 80)).await
}

/// A set of words.
fn set(words: &[&str]) -> BTreeSet<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Waits until a name leads from a pod to exactly these pods or tasks, by HTTP on port 80.
async fn leads_to(cluster: &Cluster, name: &str, wanted: &BTreeSet<String>) -> Result<()> {
    let what = format!("{wanted:?} answer at {name} in {}", cluster.context);
    eventually(&what, NAMES, async || {
        let answered = cluster.reach(name, 80).await?;
        holds(answered == *wanted, &what, &answered)
    })
    .await
}
