//! What several checks do and look for.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{
    Cluster, NODE, POD, PROPAGATION, SERVICE_EXPORT, SERVICE_IMPORT, Skip, World, condition, eventually, holds,
    manifests, name_of,
};
use serde_json::Value;

/// Creation times have a resolution of one second: exports that far apart have an order.
pub(crate) const AGE: Duration = Duration::from_millis(1100);

/// Long enough for what must not come to have come.
pub(crate) const QUIET: Duration = Duration::from_secs(6);

/// The minor version of Kubernetes whose API servers keep `trafficDistribution`: before, it was behind a feature gate.
pub(crate) const TRAFFIC_DISTRIBUTION: u32 = 31;

/// The 34 of `v1.34.4`.
pub(crate) async fn minor(cluster: &Cluster) -> Result<u32> {
    let version = cluster.version().await?;
    version
        .split('.')
        .nth(1)
        .and_then(|minor| minor.parse().ok())
        .with_context(|| format!("{version} has no minor version"))
}

/// # Errors
/// [`Skip`] where the cluster's Kubernetes is older.
pub(crate) async fn needs(cluster: &Cluster, since: u32) -> Result<()> {
    if minor(cluster).await? < since {
        let version = cluster.version().await?;
        return Err(Skip(format!("needs Kubernetes 1.{since} or later; this is {version}")).into());
    }
    Ok(())
}

/// Applies a Service and a ServiceExport of its name.
pub(crate) async fn export(world: &World, cluster: &Cluster, service: Value) -> Result<()> {
    let name = name_of(&service).to_owned();
    world.apply(cluster, service).await?;
    world.apply(cluster, manifests::export(&name)).await.map(drop)
}

/// Waits until a new export is not ready for one of these reasons, and its message has these words. Until the controller sees
/// the Service, the export has failed for want of it.
pub(crate) async fn not_ready(
    world: &World,
    cluster: &Cluster,
    export: &str,
    deadline: Duration,
    reasons: &[&str],
    words: &str,
) -> Result<()> {
    let what = format!("{cluster:?}: the export {export} has Ready=False, {reasons:?}, with {words:?}");
    eventually(&what, deadline, async || {
        let export = cluster.expect(SERVICE_EXPORT, &world.namespace, export).await?;
        let ready = condition(&export, "Ready");
        let [reason, message] = ["reason", "message"].map(|field| ready[field].as_str().unwrap_or_default());
        holds(ready["status"] == "False" && reasons.contains(&reason) && message.contains(words), &what, &export)
    })
    .await
}

/// Waits until a ServiceImport is there and is as described.
pub(crate) async fn import_where(
    world: &World,
    cluster: &Cluster,
    name: &str,
    what: &str,
    fact: impl Fn(&Value) -> bool,
) -> Result<Value> {
    eventually(&format!("in {cluster:?} the import {name}: {what}"), PROPAGATION, async || {
        let import = cluster.expect(SERVICE_IMPORT, &world.namespace, name).await?;
        holds(fact(&import), what, &import)?;
        Ok(import)
    })
    .await
}

/// Waits until a ClusterSetIP import has addresses.
pub(crate) async fn import_with_ips(world: &World, cluster: &Cluster, name: &str) -> Result<Value> {
    import_where(world, cluster, name, "it has addresses", |import| !strings(&import["spec"]["ips"]).is_empty()).await
}

/// Waits until no other pods than these answer requests of a URL.
pub(crate) async fn reaches(
    cluster: &Cluster,
    client: Option<&str>,
    url: &str,
    wanted: &BTreeSet<String>,
) -> Result<()> {
    const REQUESTS: usize = 8;
    let what = format!("in {cluster:?} {url} is answered by {wanted:?}");
    eventually(&what, PROPAGATION, async || {
        let answered = cluster.answers(client, url, REQUESTS).await?;
        holds(!answered.is_empty() && answered.is_subset(wanted), &what, &answered)
    })
    .await
}

/// Waits until a server answers; gives its answer.
pub(crate) async fn answers(cluster: &Cluster, url: &str, flags: &[&str]) -> Result<String> {
    eventually(&format!("{url} answers in {cluster:?}"), PROPAGATION, async || cluster.curl(url, flags).await).await
}

/// Waits until DNS answers so in a pod of a cluster.
pub(crate) async fn resolves(cluster: &Cluster, name: &str, record: &str, wanted: &BTreeSet<String>) -> Result<()> {
    let what = format!("in {cluster:?} {record} of {name} is {wanted:?}");
    eventually(&what, PROPAGATION, async || {
        let answer = cluster.dig(name, record).await?;
        holds(answer == *wanted, &what, &answer)
    })
    .await
}

/// Waits until a name is NXDOMAIN in a cluster.
pub(crate) async fn is_nxdomain(cluster: &Cluster, name: &str, record: &str) -> Result<()> {
    eventually(&format!("in {cluster:?} {name} is NXDOMAIN"), PROPAGATION, async || {
        let status = cluster.dig_status(name, record).await?;
        holds(status == "NXDOMAIN", &format!("{record} of {name} is NXDOMAIN"), &status)
    })
    .await
}

/// The names of the pods `app=<name>`.
pub(crate) async fn pods(world: &World, cluster: &Cluster, app: &str) -> Result<BTreeSet<String>> {
    let pods = cluster.list(POD, &world.namespace, &format!("app={app}")).await?;
    Ok(pods.iter().map(|pod| name_of(pod).to_owned()).collect())
}

/// The nodes of a cluster, by name, with their zones.
pub(crate) async fn zones(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let nodes = cluster.list(NODE, "", "").await?;
    let mut zones: Vec<_> = nodes
        .iter()
        .map(|node| {
            let zone = &node["metadata"]["labels"]["topology.kubernetes.io/zone"];
            (name_of(node).to_owned(), zone.as_str().unwrap_or_default().to_owned())
        })
        .collect();
    zones.sort();
    Ok(zones)
}

/// The ids that `status.clusters` names.
pub(crate) fn clusters_of(import: &Value) -> BTreeSet<String> {
    let clusters = import["status"]["clusters"].as_array().into_iter().flatten();
    clusters.filter_map(|entry| entry["cluster"].as_str().map(ToOwned::to_owned)).collect()
}

/// The strings of a list, in its order.
pub(crate) fn strings(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(ToOwned::to_owned)).collect()
}

/// The ports of a Service, an import or a slice: `name/protocol/port`.
pub(crate) fn ports(list: &Value) -> BTreeSet<String> {
    let port = |port: &Value| {
        let text = |field: &str, default: &str| port[field].as_str().unwrap_or(default).to_owned();
        format!("{}/{}/{}", text("name", ""), text("protocol", "TCP"), port["port"])
    };
    list.as_array().into_iter().flatten().map(port).collect()
}

/// The endpoints of slices.
pub(crate) fn endpoints(slices: &[Value]) -> impl Iterator<Item = &Value> {
    slices.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
}

/// The addresses by the type of their DNS records.
pub(crate) fn by_record(addresses: impl IntoIterator<Item = String>) -> [(&'static str, BTreeSet<String>); 2] {
    let (six, four) = addresses.into_iter().partition(|address| address.contains(':'));
    [("A", four), ("AAAA", six)]
}

/// The name of the derived Service, as the import has it.
pub(crate) fn derived_service(import: &Value) -> Result<&str> {
    let annotation = &import["metadata"]["annotations"]["multicluster.kubernetes.io/derived-service"];
    annotation.as_str().context("the import has no annotation multicluster.kubernetes.io/derived-service")
}
