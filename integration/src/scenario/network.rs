//! What a pod of a cluster sees: DNS answers and servers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::cluster::{CONFIG_MAP, Cluster, NAMESPACE, POD, SERVICE_ACCOUNT};
use super::manifests;
use super::standstill::{self, Span};
use super::wait::{PODS, eventually, holds};

/// One pod per cluster that all scenarios and runs ask from.
const NAMESPACE_OF_CLIENTS: &str = "mcs-e2e-client";
const CLIENT: &str = "client";

/// Requests are sent for as long as what happens meanwhile takes, which its own deadlines end.
const LOAD: Duration = Duration::from_hours(2);
/// How long a request of these may take.
const PATIENCE: Duration = Duration::from_secs(20);
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

    /// How many of so many requests, each over a new connection, each answer came to. The name is resolved once.
    pub async fn shares(&self, url: &str, requests: usize) -> Result<BTreeMap<String, usize>> {
        let patience = PATIENCE.as_secs();
        let script = format!(
            "curl --silent --show-error --fail --max-time {patience} --header 'Connection: close' --write-out '\\n' '{url}?[1-{requests}]'"
        );
        let output = self.exec_within(LOAD, NAMESPACE_OF_CLIENTS, CLIENT, &["sh", "-c", &script]).await?;
        let mut shares = BTreeMap::new();
        for answer in output.lines().map(str::trim).filter(|line| !line.is_empty()) {
            *shares.entry(answer.to_owned()).or_default() += 1;
        }
        Ok(shares)
    }

    /// Who answers at each address of a name, in the client pod: see [`reach`].
    pub async fn reach(&self, name: &str, port: u16) -> Result<BTreeSet<String>> {
        let output = self.ask(CLIENT, &["sh", "-c", &reach(name, port)]).await?;
        Ok(output.lines().map(ToOwned::to_owned).collect())
    }

    /// Requests the URL about ten times a second, each over a new connection, while `during` runs. Gives the number of
    /// answers, and what went wrong with each request that failed. A connection stays with the endpoint that it was given: one
    /// that is dead fails however long is waited. A machine that stands still fails nothing ([`standstill`]).
    pub async fn load<T>(&self, url: &str, during: impl Future<Output = Result<T>>) -> Result<(T, Load)> {
        let stop = stop_file();
        let patience = PATIENCE.as_secs();
        let script = format!(
            "while [ ! -e {stop} ]; do from=$(date +%s); \
             said=$(curl --silent --show-error --verbose --fail --max-time {patience} --output /dev/null {url} 2>&1) \
             && echo answered || echo \"$from $(date +%s) until $(date -u +%T): $(echo \"$said\" | grep -E 'Trying|^curl' | tr '\\n' ' ')\"; \
             sleep 0.1; done; rm {stop}"
        );
        let (outcome, output, standstills) = self.until_stopped(&script, &stop, during).await?;
        Ok((outcome, Load::of_one(&output, standstills)))
    }

    /// The same for many names, one after the other: ten requests to each, each over a new connection, as fast as the answers
    /// come. Each ten resolve the name once.
    pub async fn load_all<T>(&self, urls: &[String], during: impl Future<Output = Result<T>>) -> Result<(T, Load)> {
        let stop = stop_file();
        let (patience, urls) = (PATIENCE.as_secs(), urls.join(" "));
        let script = format!(
            "while [ ! -e {stop} ]; do for url in {urls}; do echo \"at $(date +%s)\"; \
             curl --silent --fail --max-time {patience} --header 'Connection: close' --output /dev/null \
             --write-out '%{{exitcode}} %{{time_total}} %{{errormsg}} (%{{remote_ip}})\\n' \"$url?[1-10]\"; sleep 0.02; done; done; \
             echo \"at $(date +%s)\"; rm {stop}"
        );
        let (outcome, output, standstills) = self.until_stopped(&script, &stop, during).await?;
        Ok((outcome, Load::of_many(&output, standstills)))
    }

    /// Runs a script in the client pod while `during` runs; then there is the file `stop`, at which it ends. Gives what it printed,
    /// and when the machine stood still.
    async fn until_stopped<T>(
        &self,
        script: &str,
        stop: &str,
        during: impl Future<Output = Result<T>>,
    ) -> Result<(T, String, Vec<Span>)> {
        let command = ["sh", "-c", script];
        let run = self.exec_within(LOAD, NAMESPACE_OF_CLIENTS, CLIENT, &command);
        let steer = async {
            let outcome = during.await;
            self.ask(CLIENT, &["touch", stop]).await?;
            outcome
        };
        let both = Box::pin(async { tokio::join!(run, steer) });
        let ((output, outcome), standstills) = standstill::watch(both).await;
        let (output, outcome) = (output?, outcome?);
        Ok((outcome, output, standstills))
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

/// The name of a file that there is not.
fn stop_file() -> String {
    format!("/tmp/stop-{:016x}", rand::random::<u64>())
}

/// What became of the requests of [`Cluster::load`].
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct Load {
    pub answers: usize,
    pub failures: Vec<String>,
    /// Requests that failed because the machine stood still: they say nothing of the product.
    pub disturbed: Vec<String>,
}

/// A request that failed.
struct Failed {
    /// When that was.
    within: Span,
    /// How long it took, in seconds.
    took: u64,
    said: String,
}

impl Load {
    /// What the script of [`Cluster::load`] printed: `answered`, or when a request began and ended, in seconds since 1970, and what
    /// was said.
    fn of_one(output: &str, standstills: Vec<Span>) -> Self {
        let mut load = Self::default();
        let mut failed = Vec::new();
        for line in output.lines() {
            let mut words = line.splitn(3, ' ');
            match (words.next().map(str::parse), words.next().map(str::parse), words.next()) {
                (Some(Ok(from)), Some(Ok(until)), Some(said)) => {
                    let within = Span { from, until };
                    failed.push(Failed { within, took: within.lasts(), said: said.to_owned() });
                }
                _ if line == "answered" => load.answers += 1,
                _ => load.failures.push(line.to_owned()),
            }
        }
        load.sorted(failed, standstills)
    }

    /// What the script of [`Cluster::load_all`] printed: when some requests began, in seconds since 1970, and of each of them the
    /// exit code of curl, how many seconds it took, and what curl says.
    fn of_many(output: &str, standstills: Vec<Span>) -> Self {
        let mut load = Self::default();
        let (mut from, mut these, mut failed) = (0, Vec::new(), Vec::new());
        for line in output.lines() {
            if let Some(Ok(at)) = line.strip_prefix("at ").map(str::parse) {
                // They ended before the next ones began.
                failed.extend(these.drain(..).map(|(took, said)| Failed {
                    within: Span { from, until: at },
                    took,
                    said,
                }));
                from = at;
                continue;
            }
            let mut words = line.splitn(3, ' ');
            match (words.next(), words.next().map(str::parse::<f64>), words.next()) {
                (Some("0"), Some(Ok(_)), Some(_)) => load.answers += 1,
                (Some(_), Some(Ok(took)), Some(said)) => {
                    let took = Duration::try_from_secs_f64(took).unwrap_or_default();
                    these.push((took.as_secs(), format!("at {from}: {said}")));
                }
                _ => load.failures.push(line.to_owned()),
            }
        }
        load.failures.extend(these.into_iter().map(|(_, said)| said));
        load.sorted(failed, standstills)
    }

    /// Sorts out what failed because the machine stood still.
    fn sorted(mut self, failed: Vec<Failed>, mut standstills: Vec<Span>) -> Self {
        // Its own clock ends a request in time, unless it does not run.
        let late = failed.iter().filter(|request| request.took > PATIENCE.as_secs() + 5);
        standstills.extend(late.map(|request| request.within));
        for Failed { within, said, .. } in failed {
            let disturbed = standstills.iter().any(|standstill| standstill.disturbs(within));
            let list = if disturbed { &mut self.disturbed } else { &mut self.failures };
            list.push(said);
        }
        if !self.disturbed.is_empty() {
            let _ = writeln!(std::io::stderr(), "the machine stood still: {:?} do not count", self.disturbed);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(load: &Load) -> (usize, usize, usize) {
        (load.answers, load.failures.len(), load.disturbed.len())
    }

    #[test]
    fn what_fails_counts_unless_the_machine_stood_still() {
        let of = |output: &str, standstills: &[(u64, u64)]| {
            let standstills = standstills.iter().map(|(from, until)| Span { from: *from, until: *until });
            counts(&Load::of_one(output, standstills.collect()))
        };
        let refused = "answered\n100 100 until 10:00:00: curl: (7) refused\nanswered\n";
        assert_eq!(of(refused, &[]), (2, 1, 0));
        assert_eq!(of(refused, &[(40, 80)]), (2, 0, 1), "what was lost meanwhile is missed a little later");
        assert_eq!(of(refused, &[(20, 50)]), (2, 1, 0));
        assert_eq!(of(refused, &[(101, 180)]), (2, 1, 0));
        let late = "100 120 until 10:00:20: curl: (28) timed out\n";
        assert_eq!(of(late, &[]), (0, 1, 0), "a request that waited for its whole time");
        let stood_still = "100 159 until 10:00:59: curl: (28) timed out\n160 171 until 10:01:11: curl: (6) no name\n";
        assert_eq!(of(stood_still, &[]), (0, 0, 2), "20 seconds took 59");
        assert_eq!(of("sh: no curl\n", &[]), (0, 1, 0));
    }

    #[test]
    fn of_many_requests_each_has_its_own_time() {
        let of = |output: &str| counts(&Load::of_many(output, Vec::new()));
        assert_eq!(
            of("at 100\n0 0.001  (10.0.0.1)\n7 0.002 refused (10.0.0.2)\nat 101\n0 0.001  (10.0.0.1)\nat 102\n"),
            (2, 1, 0)
        );
        let dead = "at 100\n28 20.001 timed out ()\n28 20.002 timed out ()\nat 140\n";
        assert_eq!(of(dead), (0, 2, 0), "two that waited for their whole time");
        assert_eq!(of("at 100\n28 59.3 timed out ()\nat 160\n6 10.0 no name ()\nat 171\n"), (0, 0, 2));
        assert_eq!(of("at 100\n0 0.001  (10.0.0.1)\n6 1.0 no name ()"), (1, 1, 0), "the script ended");
        assert_eq!(of("sh: no curl\n"), (0, 1, 0));
    }
}
