//! What a pod of a cluster sees: DNS answers and servers.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::cluster::{CONFIG_MAP, Cluster, NAMESPACE, POD, SERVICE_ACCOUNT};
use super::manifests;
use super::wait::{PODS, eventually, holds};

/// One pod per cluster that all scenarios and runs ask from.
const NAMESPACE_OF_CLIENTS: &str = "mcs-e2e-client";
const CLIENT: &str = "client";

/// Requests are sent for as long as what happens meanwhile takes, which its own deadlines end.
const LOAD: Duration = Duration::from_hours(2);
/// Some scenarios ask once: a machine that stands still for ten seconds must not cost them the answer.
const TRIES: &str = "+tries=4";
const TIME: &str = "+time=10";

impl Cluster {
    /// Starts the client pod, if it does not run yet, and waits for it.
    pub async fn start_client(&self) -> Result<()> {
        self.apply("", manifests::namespace(NAMESPACE_OF_CLIENTS, &[])).await?;
        self.takes_pods(NAMESPACE_OF_CLIENTS).await?;
        self.apply(NAMESPACE_OF_CLIENTS, manifests::client(CLIENT)).await?;
        self.client_runs(CLIENT).await
    }

    /// Waits until a new namespace has what pods are refused without, and what they mount.
    pub(super) async fn takes_pods(&self, namespace: &str) -> Result<()> {
        eventually("the namespace has its service account", PODS, async || {
            self.expect(SERVICE_ACCOUNT, namespace, "default").await?;
            self.expect(CONFIG_MAP, namespace, "kube-root-ca.crt").await.map(drop)
        })
        .await
        .with_context(|| format!("in {}", self.context))
    }

    async fn client_runs(&self, name: &str) -> Result<()> {
        eventually("the client pod runs", PODS, async || {
            let pod = self.expect(POD, NAMESPACE_OF_CLIENTS, name).await?;
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
        let output = self.ask(CLIENT, &["dig", "+short", TRIES, TIME, name, record]).await?;
        Ok(output.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
    }

    /// What the DNS server says to `dig NAME TYPE` in a pod: `NOERROR`, `NXDOMAIN`, ...
    pub async fn dig_status(&self, name: &str, record: &str) -> Result<String> {
        let command = ["dig", "+noall", "+comments", TRIES, TIME, name, record];
        let output = self.ask(CLIENT, &command).await?;
        let status = output.split("status: ").nth(1).and_then(|rest| rest.split(',').next());
        status.map(ToOwned::to_owned).with_context(|| format!("dig says no status: {output}"))
    }

    /// What `curl URL` prints in a pod; flags as curl takes them.
    pub async fn curl(&self, url: &str, flags: &[&str]) -> Result<String> {
        self.curl_from(CLIENT, url, flags).await
    }

    /// [`Cluster::curl`] in the pod that [`Cluster::start_client_on`] gave.
    pub async fn curl_from(&self, client: &str, url: &str, flags: &[&str]) -> Result<String> {
        let mut command = vec!["curl", "--silent", "--show-error", "--fail", "--max-time", "5"];
        command.extend(flags);
        command.push(url);
        Ok(self.ask(client, &command).await?.trim().to_owned())
    }

    /// The different answers of so many requests, each over a new connection, in the client pod or in another one.
    pub async fn answers(&self, client: Option<&str>, url: &str, requests: usize) -> Result<BTreeSet<String>> {
        let script = format!(
            "for n in $(seq {requests}); do curl --silent --show-error --fail --max-time 5 {url} && echo || exit 1; done"
        );
        let output = self.ask(client.unwrap_or(CLIENT), &["sh", "-c", &script]).await?;
        Ok(output.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
    }

    /// Who answers at each address of a name, in the client pod: see [`reach`].
    pub async fn reach(&self, name: &str, port: u16) -> Result<BTreeSet<String>> {
        let output = self.ask(CLIENT, &["sh", "-c", &reach(name, port)]).await?;
        Ok(output.lines().map(ToOwned::to_owned).collect())
    }

    /// Requests the URL about ten times a second, each over a new connection, while `during` runs. Gives the number of
    /// answers, and what went wrong with each request that failed. A connection stays with the endpoint that it was given: one
    /// that is dead fails however long is waited, and a machine that stands still for some seconds fails nothing.
    pub async fn load<T>(&self, url: &str, during: impl Future<Output = Result<T>>) -> Result<(T, Load)> {
        let stop = format!("/tmp/stop-{:016x}", rand::random::<u64>());
        let script = format!(
            "while [ ! -e {stop} ]; do said=$(curl --silent --show-error --verbose --fail --max-time 20 --output /dev/null {url} 2>&1) \
             && echo answered || echo \"until $(date -u +%T): $(echo \"$said\" | grep -E 'Trying|^curl' | tr '\\n' ' ')\"; \
             sleep 0.1; done; rm {stop}"
        );
        let command = ["sh", "-c", &script];
        let run = self.exec_within(LOAD, NAMESPACE_OF_CLIENTS, CLIENT, &command);
        let steer = async {
            let outcome = during.await;
            self.ask(CLIENT, &["touch", &stop]).await?;
            outcome
        };
        let (output, outcome) = tokio::join!(run, steer);
        let (output, outcome) = (output?, outcome?);
        let (answers, failures): (Vec<_>, Vec<_>) = output.lines().partition(|line| *line == "answered");
        let failures = failures.into_iter().map(ToOwned::to_owned).collect();
        Ok((outcome, Load { answers: answers.len(), failures }))
    }

    /// Starts a client on a node, beside the one that is asked otherwise, and gives its name.
    pub async fn start_client_on(&self, node: &str) -> Result<String> {
        let name = format!("{CLIENT}-{node}");
        let mut pod = manifests::client(&name);
        pod["spec"]["nodeName"] = node.into();
        self.apply(NAMESPACE_OF_CLIENTS, pod).await?;
        self.client_runs(&name).await?;
        Ok(name)
    }

    async fn ask(&self, client: &str, command: &[&str]) -> Result<String> {
        self.exec(NAMESPACE_OF_CLIENTS, client, command).await
    }

    /// Sends a UDP datagram to `host:port` in a pod, and succeeds if an answer comes.
    pub async fn ask_udp(&self, address: &str) -> Result<()> {
        let command = ["/agnhost", "connect", "--protocol", "udp", "--timeout", "3s", address];
        self.ask(CLIENT, &command).await.map(drop)
    }
}

/// A shell script that prints who answers `/hostname` at each IPv4 address that the resolver has for a name, and then at the
/// name itself. It fails if one of them does not answer, or there is none.
///
/// The name alone would not do: the C library prefers addresses that are near its own (RFC 6724), so that some are never used.
pub fn reach(name: &str, port: u16) -> String {
    let curl = "curl --silent --show-error --fail --ipv4 --max-time 5";
    format!(
        "addresses=$(dig +short +tries=1 +time=3 {name} A) && [ -n \"$addresses\" ] || {{ echo no addresses >&2; exit 1; }}; \
         for address in $addresses {name}; do {curl} http://$address:{port}/hostname && echo || exit 1; done"
    )
}

/// What became of the requests of [`Cluster::load`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Load {
    pub answers: usize,
    pub failures: Vec<String>,
}
