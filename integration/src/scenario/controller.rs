//! The controller of one cluster, as its operator sees it.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::cluster::{Cluster, DEPLOYMENT, LEASE, POD};
use super::system_namespace;
use super::wait::{PODS, eventually, holds};

/// Name of the Deployment and of the Lease.
const NAME: &str = "cloudmap-mcs";

/// The controller of one cluster.
#[derive(Debug, Clone, Copy)]
pub struct Controller<'a> {
    cluster: &'a Cluster,
}

impl Cluster {
    pub fn controller(&self) -> Controller<'_> {
        Controller { cluster: self }
    }
}

impl Controller<'_> {
    /// Its pods that are not on their way out.
    pub async fn pods(&self) -> Result<Vec<Value>> {
        let deployment = self.cluster.expect(DEPLOYMENT, &system_namespace(), NAME).await?;
        let labels = deployment["spec"]["selector"]["matchLabels"].as_object().context("no selector")?;
        let selector: Vec<_> =
            labels.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
        let mut pods = self.cluster.list(POD, &system_namespace(), &selector.join(",")).await?;
        pods.retain(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        Ok(pods)
    }

    /// The name of the pod that holds the Lease.
    pub async fn leader(&self) -> Result<String> {
        let lease = self.cluster.expect(LEASE, &system_namespace(), NAME).await?;
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let pods = self.pods().await?;
        pods.iter()
            .filter_map(|pod| pod["metadata"]["name"].as_str())
            .find(|name| holder.contains(name))
            .map(ToOwned::to_owned)
            .with_context(|| {
                format!("{holder:?} holds the Lease and is none of the controller's pods in {:?}", self.cluster)
            })
    }

    /// Waits until all replicas are ready and one of them leads.
    pub async fn settle(&self) -> Result<()> {
        eventually("the controller is ready and has a leader", PODS, async || {
            let deployment = self.cluster.expect(DEPLOYMENT, &system_namespace(), NAME).await?;
            let (wanted, status) = (&deployment["spec"]["replicas"], &deployment["status"]);
            let observed = status["observedGeneration"] == deployment["metadata"]["generation"];
            let all = ["replicas", "updatedReplicas", "readyReplicas"].iter().all(|count| status[count] == *wanted);
            holds(observed && all, "all replicas are of the newest generation and ready", status)?;
            self.leader().await.map(drop)
        })
        .await
    }

    /// SIGKILLs the leader. Gives its name.
    pub async fn kill_leader(&self) -> Result<String> {
        let leader = eventually("the controller has a leader", PODS, async || self.leader().await).await?;
        self.cluster.kill_pod(&system_namespace(), &leader).await?;
        Ok(leader)
    }

    /// Its containers: what [`Controller::restore`] takes.
    pub async fn containers(&self) -> Result<Value> {
        let deployment = self.cluster.expect(DEPLOYMENT, &system_namespace(), NAME).await?;
        Ok(deployment["spec"]["template"]["spec"]["containers"].clone())
    }

    /// Sets environment variables, and waits until it runs with them. Gives what [`Controller::restore`] takes.
    pub async fn set(&self, variables: &[(&str, String)]) -> Result<Value> {
        let before = self.containers().await?;
        let mut containers = before.clone();
        let environment = containers[0]["env"].as_array_mut().context("the container has no environment")?;
        environment.extend(variables.iter().map(|(name, value)| json!({"name": name, "value": value})));
        self.restore(containers).await?;
        Ok(before)
    }

    /// Stops all its replicas, and waits until they are gone.
    pub async fn stop(&self) -> Result<()> {
        let patch = json!({"spec": {"replicas": 0}});
        self.cluster.merge(DEPLOYMENT, &system_namespace(), NAME, &patch).await?;
        eventually("no pod of the controller is left", PODS, async || {
            let pods = self.cluster.list(POD, &system_namespace(), &format!("app.kubernetes.io/name={NAME}")).await?;
            holds(pods.is_empty(), "there is none", &pods.len())
        })
        .await
    }

    /// Runs so many replicas with environment variables, or without them, and waits until they run.
    pub async fn run(&self, replicas: u32, variables: &[(&str, Option<&str>)]) -> Result<()> {
        let mut containers = self.containers().await?;
        let environment = containers[0]["env"].as_array_mut().context("the container has no environment")?;
        environment.retain(|there| variables.iter().all(|(name, _)| there["name"] != *name));
        let set = variables.iter().filter_map(|(name, value)| Some(json!({"name": name, "value": (*value)?})));
        environment.extend(set);
        let patch = json!({"spec": {"replicas": replicas, "template": {"spec": {"containers": containers}}}});
        self.cluster.merge(DEPLOYMENT, &system_namespace(), NAME, &patch).await?;
        self.settle().await
    }

    /// Puts its containers back, and waits until they run.
    pub async fn restore(&self, containers: Value) -> Result<()> {
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        self.cluster.merge(DEPLOYMENT, &system_namespace(), NAME, &patch).await?;
        self.settle().await
    }

    /// Runs `cloudmap-mcs` with these arguments in a pod of the controller.
    pub async fn command(&self, arguments: &[&str]) -> Result<String> {
        let pods = self.pods().await?;
        let running =
            pods.iter().find(|pod| pod["status"]["phase"] == "Running").context("no pod of the controller runs")?;
        let mut command = vec!["/usr/local/bin/cloudmap-mcs"];
        command.extend(arguments);
        self.cluster.exec(&system_namespace(), running["metadata"]["name"].as_str().unwrap_or_default(), &command).await
    }

    /// One metric of one pod: the sum over those of its series that have the label, given as `name="value"`.
    ///
    /// # Errors
    /// Also if the pod has no such metric.
    pub async fn metric(&self, pod: &str, name: &str, label: &str) -> Result<f64> {
        let page = self.cluster.get_from_pod(&system_namespace(), pod, 8080, "metrics").await?;
        let values: Vec<f64> = page
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{'])))
            .filter(|line| line.contains(label))
            .filter_map(|line| line.rsplit(' ').next()?.parse().ok())
            .collect();
        ensure!(!values.is_empty(), "{pod} has no metric {name} with {label:?}");
        Ok(values.into_iter().sum())
    }
}
