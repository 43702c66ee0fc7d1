//! What scenarios do in their world, what they look at, and what they wait for.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::cluster::{Cluster, DEPLOYMENT, ENDPOINT_SLICE, Kind, POD, SERVICE, SERVICE_EXPORT, SERVICE_IMPORT};
use super::manifests;
use super::wait::{NAMES, PODS, PROPAGATION, eventually, holds};
use super::world::{World, name_of};

impl World {
    /// `<service>.<namespace>.svc.clusterset.local`
    pub fn name(&self, service: &str) -> String {
        format!("{service}.{}.svc.clusterset.local", self.namespace)
    }

    pub async fn apply(&self, cluster: &Cluster, manifest: Value) -> Result<Value> {
        cluster.apply(&self.namespace, manifest).await
    }

    /// Applies a Deployment and waits until its pods are ready, and others are gone.
    pub async fn deploy(&self, cluster: &Cluster, name: &str, replicas: u32) -> Result<()> {
        self.roll_out(cluster, manifests::deployment(name, replicas)).await
    }

    /// Applies a Deployment, whose pods have the label `app` with its name, and waits until they are ready, and others are gone.
    pub async fn roll_out(&self, cluster: &Cluster, deployment: Value) -> Result<()> {
        let name = name_of(&deployment).to_owned();
        let replicas = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
        self.apply(cluster, deployment).await?;
        eventually("the pods are ready, and no others are left", PODS, async || {
            let deployment = cluster.expect(DEPLOYMENT, &self.namespace, &name).await?;
            let ready = deployment["status"]["readyReplicas"].as_u64().unwrap_or(0);
            holds(ready == replicas, "all replicas are ready", &deployment["status"])?;
            let pods = cluster.list(POD, &self.namespace, &format!("app={name}")).await?;
            holds(
                pods.len() as u64 == replicas,
                "there are no other pods",
                &pods.iter().map(name_of).collect::<Vec<_>>(),
            )
        })
        .await
    }

    /// Deploys pods, and exports a Service with their port 80.
    pub async fn export(&self, cluster: &Cluster, name: &str, replicas: u32) -> Result<()> {
        self.deploy(cluster, name, replicas).await?;
        self.apply(cluster, manifests::service(name, &[manifests::http(80)])).await?;
        self.apply(cluster, manifests::export(name)).await.map(drop)
    }

    /// Waits until the controllers of all clusters are ready and have leaders.
    pub async fn settle(&self) -> Result<()> {
        for cluster in &self.clusters {
            cluster.controller().settle().await?;
        }
        Ok(())
    }

    /// Waits for a condition of a ServiceExport.
    pub async fn export_condition(
        &self,
        cluster: &Cluster,
        export: &str,
        kind: &str,
        status: &str,
        reason: &str,
    ) -> Result<Value> {
        self.export_condition_within(PROPAGATION, cluster, export, [kind, status, reason]).await
    }

    /// For a controller that has just begun to lead, and shares what AWS lets it list with others.
    pub async fn export_condition_within(
        &self,
        deadline: Duration,
        cluster: &Cluster,
        export: &str,
        [kind, status, reason]: [&str; 3],
    ) -> Result<Value> {
        let what = format!("{}: the export {export} has {kind}={status}, {reason}", cluster.context);
        eventually(&what, deadline, async || {
            let export = cluster.expect(SERVICE_EXPORT, &self.namespace, export).await?;
            let condition = condition(&export, kind);
            holds(condition["status"] == status && condition["reason"] == reason, &what, &export)?;
            Ok(condition.clone())
        })
        .await
    }

    /// Waits for a ServiceImport.
    pub async fn imported(&self, cluster: &Cluster, name: &str) -> Result<Value> {
        let what = format!("{} has the import {name}", cluster.context);
        eventually(&what, PROPAGATION, async || cluster.expect(SERVICE_IMPORT, &self.namespace, name).await).await
    }

    /// Waits until a ServiceImport, its derived Service and its EndpointSlices are gone.
    pub async fn import_gone(&self, cluster: &Cluster, name: &str) -> Result<()> {
        let what = format!("{} has nothing left of the import {name}", cluster.context);
        eventually(&what, PROPAGATION, async || {
            cluster.expect_none(SERVICE_IMPORT, &self.namespace, name).await?;
            let slices = self.imported_slices(cluster, name).await?;
            holds(slices.is_empty(), "the slices are gone", &slices)?;
            let services = cluster.list(SERVICE, &self.namespace, "").await?;
            let derived: Vec<_> =
                services.iter().map(name_of).filter(|service| service.starts_with("derived-")).collect();
            holds(derived.is_empty(), "the derived Service is gone", &derived)
        })
        .await
    }

    /// The names of a Deployment's pods, which are what they answer.
    pub async fn pods(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        let pods = cluster.list(POD, &self.namespace, &format!("app={name}")).await?;
        Ok(pods.iter().map(|pod| name_of(pod).to_owned()).collect())
    }

    /// The IPv4 addresses of a Deployment's pods, as the pods have them: EndpointSlices may still be on their way.
    pub async fn pod_ipv4s(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        self.pod_addresses(cluster, name, |address| !address.contains(':')).await
    }

    /// The IPv6 addresses of a Deployment's pods: see [`World::pod_ipv4s`].
    pub async fn pod_ipv6s(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        self.pod_addresses(cluster, name, |address| address.contains(':')).await
    }

    async fn pod_addresses(
        &self,
        cluster: &Cluster,
        name: &str,
        of_family: impl Fn(&str) -> bool,
    ) -> Result<BTreeSet<String>> {
        let pods = cluster.list(POD, &self.namespace, &format!("app={name}")).await?;
        let addresses = pods.iter().flat_map(addresses_of).filter(|address| of_family(address));
        Ok(addresses.map(ToOwned::to_owned).collect())
    }

    /// Waits until `kubectl describe` prints an Event of this reason for an object, with these words in its message.
    pub async fn described(&self, cluster: &Cluster, kind: Kind, name: &str, reason: &str, words: &str) -> Result<()> {
        let what = format!("kubectl describe tells of {reason} on {name} in {}: {words}", cluster.context);
        eventually(&what, NAMES, async || {
            let text = cluster.describe(kind, &self.namespace, name).await?;
            let events = text.split_once("\nEvents:").map_or("", |(_, events)| events);
            let told = |line: &str| line.split_whitespace().any(|word| word == reason) && line.contains(words);
            holds(events.lines().any(told), &what, &text)
        })
        .await
    }

    /// The EndpointSlices of a ServiceImport.
    pub async fn imported_slices(&self, cluster: &Cluster, name: &str) -> Result<Vec<Value>> {
        cluster.list(ENDPOINT_SLICE, &self.namespace, &format!("multicluster.kubernetes.io/service-name={name}")).await
    }

    /// The ready addresses that a ServiceImport has from one source cluster.
    pub async fn imported_addresses(
        &self,
        cluster: &Cluster,
        name: &str,
        source: &Cluster,
    ) -> Result<BTreeSet<String>> {
        let slices = self.imported_slices(cluster, name).await?;
        Ok(ready_addresses(
            slices
                .iter()
                .filter(|slice| slice["metadata"]["labels"]["multicluster.kubernetes.io/source-cluster"] == source.id),
        ))
    }

    /// The ready addresses that a Service has in its own cluster.
    pub async fn local_addresses(&self, cluster: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        let slices =
            cluster.list(ENDPOINT_SLICE, &self.namespace, &format!("kubernetes.io/service-name={name}")).await?;
        Ok(ready_addresses(slices.iter()))
    }

    /// Waits until every cluster has exactly the ready addresses that the Service has in its own cluster. Where there are pods of
    /// its name, these are theirs: Kubernetes may not have written its own EndpointSlices yet.
    pub async fn followed(&self, source: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        self.followed_within(PROPAGATION, source, name).await
    }

    /// [`World::followed`] with another deadline.
    pub async fn followed_within(&self, deadline: Duration, source: &Cluster, name: &str) -> Result<BTreeSet<String>> {
        let mut addresses = BTreeSet::new();
        for cluster in &self.clusters {
            let what = format!("{} has the addresses of {name} in {}", cluster.context, source.context);
            addresses = eventually(&what, deadline, async || {
                let wanted = self.local_addresses(source, name).await?;
                let pods = source.list(POD, &self.namespace, &format!("app={name}")).await?;
                for pod in &pods {
                    let known = addresses_of(pod).any(|address| wanted.contains(address));
                    holds(known, &format!("{} is an endpoint in its own cluster", name_of(pod)), &wanted)?;
                }
                let of_pods: BTreeSet<_> = pods.iter().flat_map(addresses_of).collect();
                let stays = wanted.iter().find(|address| !pods.is_empty() && !of_pods.contains(address.as_str()));
                holds(stays.is_none(), "pods that went are no endpoints in their own cluster", &stays)?;
                let imported = self.imported_addresses(cluster, name, source).await?;
                holds(imported == wanted, &format!("{what}, which are {wanted:?}"), &imported)?;
                Ok(wanted)
            })
            .await?;
        }
        Ok(addresses)
    }
}

/// A condition of an object, or null.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind)).unwrap_or(&Value::Null)
}

/// The addresses of a pod.
fn addresses_of(pod: &Value) -> impl Iterator<Item = &str> {
    pod["status"]["podIPs"].as_array().into_iter().flatten().filter_map(|address| address["ip"].as_str())
}

fn ready_addresses<'a>(slices: impl Iterator<Item = &'a Value>) -> BTreeSet<String> {
    slices
        .flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten())
        .filter(|endpoint| endpoint["conditions"]["ready"] != false)
        .flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten())
        .filter_map(|address| address.as_str().map(ToOwned::to_owned))
        .collect()
}
