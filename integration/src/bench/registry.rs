//! The emulator, asked over its control interface: who called what, and what was written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use anyhow::Context as _;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_servicediscovery::config::{Credentials, SharedCredentialsProvider};
use cloudmap::{AwsCloudMap, AwsSettings, Instance, Limits, Rates};
use hyper::Request;
use kube::Client;
use ledger::{
    CLUSTERS,
    head::Head,
    trust::{COPY_INSTANCE, KEY_INSTANCE},
};

use super::http;
use emulator::{Counters, Effect, EmulatorSettings, Fault, Snapshot, Write};

/// Prefix of the Cloud Map namespaces that hold ledgers.
const LEDGER_NAMESPACE: &str = "clusterset-";

/// Cloud Map as a caller of this access key id sees it, with the limits and the client of the controller.
pub(super) async fn caller(endpoint: &str, id: &str) -> anyhow::Result<Arc<dyn cloudmap::Write>> {
    let sdk = SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new(id, "emulator", None, None, "bench")))
        .build();
    let settings = AwsSettings { endpoint: Some(endpoint.to_owned()), ..AwsSettings::default() };
    let rates = Rates::default();
    let aws = AwsCloudMap::configured(&sdk, &settings, Limits::new(&rates, None)).await;
    let metrics = cloudmap::Metrics::new(&prometheus::Registry::new())?;
    Ok(cloudmap::limited(aws.with_context(|| format!("failed to connect {id} to {endpoint}"))?, &rates, metrics))
}

/// A running emulator.
pub(super) struct Registry {
    client: Client,
}

impl Registry {
    pub(super) fn new(endpoint: &str) -> anyhow::Result<Self> {
        Ok(Self { client: http::client(endpoint)? })
    }

    pub(super) async fn settings(&self) -> anyhow::Result<EmulatorSettings> {
        self.get("settings").await
    }

    /// All calls since the emulator started.
    pub(super) async fn counters(&self) -> anyhow::Result<Counters> {
        self.get("counters").await
    }

    /// The writes after the one with the given sequence number.
    pub(super) async fn writes_since(&self, sequence: u64) -> anyhow::Result<Vec<Write>> {
        self.get(&format!("writes?since={sequence}")).await
    }

    /// Has the emulator remember so many writes, if it remembers fewer.
    pub(super) async fn remember(&self, writes: usize) -> anyhow::Result<()> {
        let history = self.settings().await?.history.max(writes);
        let body = serde_json::to_vec(&serde_json::json!({"history": history}))?;
        let request = Request::put("/_emulator/settings").body(body)?;
        self.client.request_text(request).await.context("failed to have the emulator remember more writes")?;
        Ok(())
    }

    /// Sequence number of the last head that a cluster wrote; 0 if none is remembered.
    pub(super) async fn last_head(&self, cluster: &str) -> anyhow::Result<u64> {
        let writes = self.writes_since(0).await?;
        let last = writes.iter().rfind(|write| is_head(write) && write.caller == cluster);
        Ok(last.map_or(0, |write| write.sequence))
    }

    /// Instances outside the ledger.
    pub(super) async fn instances(&self) -> anyhow::Result<usize> {
        let snapshot: Snapshot = self.get("snapshot").await?;
        Ok(instances(&snapshot))
    }

    /// The IPv4 addresses of all instances.
    pub(super) async fn addresses(&self) -> anyhow::Result<BTreeSet<String>> {
        let snapshot: Snapshot = self.get("snapshot").await?;
        let instances = snapshot.services.iter().flat_map(|service| service.instances.values());
        Ok(instances.filter_map(|instance| instance.attributes.get("AWS_INSTANCE_IPV4").cloned()).collect())
    }

    /// Refuses every call of a caller, as AWS does where an account calls too often, until [`Self::relieve`].
    pub(super) async fn throttle(&self, caller: &str) -> anyhow::Result<()> {
        let refusal = |code: &str| {
            let (code, message) = (code.to_owned(), "Rate exceeded".to_owned());
            Effect::Error { code, message, status: None }
        };
        // Of two errors the first counts.
        let discovery = Fault::on("DiscoverInstances", refusal("RequestLimitExceeded"));
        for fault in [discovery, Fault::on_any(refusal("ThrottlingException"))] {
            let body = serde_json::to_vec(&fault.for_caller(caller))?;
            let request = Request::post("/_emulator/faults").body(body)?;
            self.client.request_text(request).await.context("failed to have the emulator throttle")?;
        }
        Ok(())
    }

    /// Refuses no call any more that AWS would not refuse.
    pub(super) async fn relieve(&self) -> anyhow::Result<()> {
        let request = Request::delete("/_emulator/faults").body(Vec::new())?;
        self.client.request_text(request).await.context("failed to have the emulator throttle no more")?;
        Ok(())
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, what: &str) -> anyhow::Result<T> {
        let request = Request::get(format!("/_emulator/{what}")).body(Vec::new())?;
        self.client.request(request).await.with_context(|| format!("failed to ask the emulator for {what}"))
    }
}

fn instances(snapshot: &Snapshot) -> usize {
    let ledgers: BTreeSet<&String> = snapshot
        .namespaces
        .iter()
        .filter(|namespace| namespace.name.starts_with(LEDGER_NAMESPACE))
        .map(|namespace| &namespace.id)
        .collect();
    let services = snapshot.services.iter().filter(|service| !ledgers.contains(&service.namespace_id));
    services.map(|service| service.instances.len()).sum()
}

/// Calls that a caller made from one look at the counters to the next, by operation.
pub(super) fn calls_between(before: &Counters, after: &Counters, caller: &str) -> BTreeMap<String, u64> {
    let operations = after.callers.get(caller).into_iter().flatten();
    operations
        .map(|(operation, calls)| (operation.clone(), calls - before.calls_by(caller, operation)))
        .filter(|(_, calls)| *calls > 0)
        .collect()
}

/// Whether a write goes to the ledger: a head or a page.
pub(super) fn is_ledger(write: &Write) -> bool {
    write.namespace.starts_with(LEDGER_NAMESPACE)
}

/// Whether a write is an accepted head of a cluster.
pub(super) fn is_head(write: &Write) -> bool {
    write.is_ok() && is_ledger(write) && write.operation == "RegisterInstance" && write.service == CLUSTERS
}

/// What a cluster wrote to its ledger.
#[derive(Debug, Default, PartialEq)]
pub(super) struct LedgerWrites {
    /// Heads on the pages that the head before was on, with another delta: each carries a change.
    pub(super) changes: usize,
    /// Heads that say again what the one before said.
    pub(super) heartbeats: usize,
    /// Heads on other pages: each commits a flush.
    pub(super) flushes: usize,
    pub(super) pages: usize,
}

/// Sorts what `cluster` wrote after its first head among `writes`.
pub(super) fn ledger_writes(writes: &[Write], cluster: &str) -> anyhow::Result<LedgerWrites> {
    let mut counted = LedgerWrites::default();
    let mut last: Option<Head> = None;
    for write in writes.iter().filter(|write| write.caller == cluster && write.is_ok() && is_ledger(write)) {
        if is_head(write) {
            let instance = Instance { id: write.instance.as_str().into(), attributes: write.attributes.clone() };
            let head = Head::from_instance(&instance).context("the cluster wrote a head that cannot be read")?;
            match last.replace(head.clone()) {
                Some(before) if before.root != head.root => counted.flushes += 1,
                Some(before) if before.delta != head.delta => counted.changes += 1,
                Some(_) => counted.heartbeats += 1,
                None => {}
            }
        } else if last.is_some() && write.operation == "RegisterInstance" {
            if [KEY_INSTANCE, COPY_INSTANCE].contains(&write.instance.as_str()) {
                continue;
            }
            counted.pages += 1;
        }
    }
    Ok(counted)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use ledger::{
        Map,
        codec::Digest,
        hash::Summary,
        head::{Delta, FORMAT, Presence, Root, RootPage},
        record::Position,
    };

    use super::*;
    use emulator::Emulator;

    fn counters(text: &str) -> Counters {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn calls_are_told_apart_by_caller_and_by_time() {
        let before = counters(r#"{"operations": {}, "callers": {"a": {"DiscoverInstances": 10, "GetOperation": 3}}}"#);
        let after = counters(
            r#"{"operations": {}, "callers": {
                "a": {"DiscoverInstances": 130, "GetOperation": 3, "ListInstances": 2},
                "b": {"DiscoverInstances": 7}}}"#,
        );
        let calls = |caller| calls_between(&before, &after, caller);
        assert_eq!(calls("a"), BTreeMap::from([("DiscoverInstances".into(), 120), ("ListInstances".into(), 2)]));
        assert_eq!(calls("b"), BTreeMap::from([("DiscoverInstances".into(), 7)]));
        assert_eq!(calls("c"), BTreeMap::new());
    }

    #[tokio::test]
    async fn the_ledger_is_told_apart_from_instances() {
        let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
        let client = emulator.client("a");
        for (namespace, service, instances) in
            [("clusterset-bench", CLUSTERS, 2), ("shop", "cart", 3), ("shop-2", "till", 1)]
        {
            client.create_http_namespace().name(namespace).send().await.unwrap();
            // Without latencies the operation is done when the next call comes.
            let snapshot = emulator.control().snapshot();
            let id = &snapshot.namespace(namespace).unwrap().id;
            let created = client.create_service().name(service).namespace_id(id).send().await.unwrap();
            let service = created.service().and_then(|service| service.id()).unwrap();
            for instance in 0..instances {
                let request = client.register_instance().service_id(service).instance_id(format!("i-{instance}"));
                request.attributes("AWS_INSTANCE_IPV4", "10.0.0.1").send().await.unwrap();
            }
        }
        let registry = Registry::new(&emulator.endpoint()).unwrap();
        assert_eq!(registry.instances().await.unwrap(), 4);
        let writes = registry.writes_since(0).await.unwrap();
        let heads: Vec<&Write> = writes.iter().filter(|write| is_head(write)).collect();
        assert_eq!(
            heads.iter().map(|write| (&*write.instance, &*write.caller)).collect::<Vec<_>>(),
            [("i-0", "a"), ("i-1", "a")]
        );
        assert_eq!(registry.counters().await.unwrap().calls_by("a", "RegisterInstance"), 6);
        assert!(registry.writes_since(writes.last().unwrap().sequence).await.unwrap().is_empty());
        emulator.shutdown().await;
    }

    #[tokio::test]
    async fn as_many_writes_are_remembered_as_was_asked_for_and_no_fewer_than_before() {
        let settings = EmulatorSettings { history: 2, ..EmulatorSettings::unthrottled() };
        let emulator = Emulator::start(settings).await.unwrap();
        let registry = Registry::new(&emulator.endpoint()).unwrap();
        for writes in [4, 3] {
            registry.remember(writes).await.unwrap();
        }
        for name in ["a", "b", "c", "d", "e"] {
            emulator.client("a").create_http_namespace().name(name).send().await.unwrap();
        }
        let remembered = registry.writes_since(0).await.unwrap();
        assert_eq!(remembered.iter().map(|write| &*write.namespace).collect::<Vec<_>>(), ["b", "c", "d", "e"]);
        emulator.shutdown().await;
    }

    #[tokio::test]
    async fn calls_of_one_caller_are_refused_until_it_is_relieved() {
        let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
        let registry = Registry::new(&emulator.endpoint()).unwrap();
        let listed = async |caller: &str| emulator.client(caller).list_namespaces().send().await.is_ok();
        registry.throttle("a").await.unwrap();
        assert_eq!((listed("a").await, listed("b").await), (false, true));
        let discovered =
            emulator.client("a").discover_instances().namespace_name("shop").service_name("cart").send().await;
        assert!(discovered.unwrap_err().into_service_error().is_request_limit_exceeded());
        registry.relieve().await.unwrap();
        assert!(listed("a").await);
        emulator.shutdown().await;
    }

    #[test]
    fn heads_are_changes_heartbeats_or_flushes() {
        let head = |cluster: &str, pages: &[&str], keys: &[&str]| {
            let delta: Map = keys.iter().map(|&key| (key.into(), Arc::from(*b"value"))).collect();
            let pages =
                pages.iter().map(|page| RootPage { shard: 0, id: page.parse().unwrap(), digest: Digest::of(b"") });
            let head = Head {
                cluster: cluster.into(),
                reads: FORMAT,
                uid: "uid".into(),
                position: Position { epoch: 1, seq: 1 },
                presence: Presence::Live,
                root: Root { shards: 1, pages: pages.collect(), runs: Arc::default() },
                delta: Arc::new(Delta::between(&Map::new(), &delta, 6)),
                summary: Summary::default(),
                addresses: Arc::default(),
                lease: Duration::from_mins(5),
                written: 0,
                signer: None,
            };
            write(cluster, CLUSTERS, head.to_instance().attributes)
        };
        let page = |cluster: &str| write(cluster, &format!("exports-0.{cluster}"), BTreeMap::new());
        let writes = [
            page("a"),
            head("a", &[], &[]),
            head("a", &[], &["x"]),
            page("a"),
            page("b"),
            page("a"),
            head("b", &[], &[]),
            head("a", &["1-1-aaaa.0"], &[]),
            head("a", &["1-1-aaaa.0"], &["y"]),
            head("a", &["1-1-aaaa.0"], &["y"]),
            head("a", &["1-1-aaaa.0"], &["y", "z"]),
        ];
        let counted = |cluster| ledger_writes(&writes, cluster).unwrap();
        assert_eq!(counted("a"), LedgerWrites { changes: 3, heartbeats: 1, flushes: 1, pages: 2 });
        assert_eq!(counted("b"), LedgerWrites::default(), "nothing after its first head");
    }

    fn write(caller: &str, service: &str, attributes: BTreeMap<String, String>) -> Write {
        Write {
            sequence: 0,
            at: Duration::ZERO,
            caller: caller.into(),
            operation: "RegisterInstance".into(),
            namespace: "clusterset-bench".into(),
            service: service.into(),
            service_id: String::new(),
            instance: caller.into(),
            arn: String::new(),
            attributes,
            result: "ok".into(),
        }
    }
}
