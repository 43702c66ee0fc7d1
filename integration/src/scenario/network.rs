//! What a pod of a cluster sees: DNS answers and servers.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use super::cluster::{Cluster, NAMESPACE, POD};
use super::manifests;
use super::wait::{PODS, eventually, holds};

/// One pod per cluster that all scenarios and runs ask from.
const NAMESPACE_OF_CLIENTS: &str = "mcs-e2e-client";
const CLIENT: &str = "client";

impl Cluster {
    /// Starts the client pod, if it does not run yet, and waits for it.
    pub async fn start_client(&self) -> Result<()> {
        self.apply("", manifests::namespace(NAMESPACE_OF_CLIENTS, &[])).await?;
        self.apply(NAMESPACE_OF_CLIENTS, manifests::client(CLIENT)).await?;
        eventually("the client pod runs", PODS, async || {
            let pod = self.expect(POD, NAMESPACE_OF_CLIENTS, CLIENT).await?;
            holds(pod["status"]["phase"] == "Running", "the client pod runs", &pod)
        })
        .await
        .with_context(|| format!("in {}", self.context))
    }

    /// Removes the namespace of the client pod, without waiting.
    pub async fn remove_client(&self) -> Result<()> {
        self.delete(NAMESPACE, "", NAMESPACE_OF_CLIENTS).await
    }

    /// The answers to `dig NAME TYPE` in a pod; none for NXDOMAIN. Addresses are in their canonical form.
    pub async fn dig(&self, name: &str, record: &str) -> Result<BTreeSet<String>> {
        let script = ["dig", "+short", "+tries=1", "+time=3", name, record];
        let output = self.exec(NAMESPACE_OF_CLIENTS, CLIENT, &script).await?;
        Ok(output.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
    }

    /// What `curl URL` prints in a pod; flags as curl takes them.
    pub async fn curl(&self, url: &str, flags: &[&str]) -> Result<String> {
        let mut command = vec!["curl", "--silent", "--show-error", "--fail", "--max-time", "5"];
        command.extend(flags);
        command.push(url);
        Ok(self.exec(NAMESPACE_OF_CLIENTS, CLIENT, &command).await?.trim().to_owned())
    }

    /// Sends a UDP datagram to `host:port` in a pod, and succeeds if an answer comes.
    pub async fn ask_udp(&self, address: &str) -> Result<()> {
        let command = ["/agnhost", "connect", "--protocol", "udp", "--timeout", "3s", address];
        self.exec(NAMESPACE_OF_CLIENTS, CLIENT, &command).await.map(drop)
    }
}
