//! Cloud Map as others see it: an ECS task that discovers, somebody who registers, and the emulator's books.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::types::{HealthCheckCustomConfig, HealthStatusFilter, OperationStatus};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

use super::wait::{PROPAGATION, changed, eventually};
use emulator::{Counters, Fault, Snapshot, Write, patient_sdk_config};

/// For an answer of the emulator. It ends only a wait that would not end: watchers ask all the time, and fail with one answer.
const PATIENCE: Duration = Duration::from_mins(2);

/// Attributes of instances by instance id.
pub type Instances = BTreeMap<String, BTreeMap<String, String>>;

/// The registry that the controllers use.
#[derive(Debug, Clone)]
pub struct Registry {
    client: Client,
    /// `host:port`
    authority: String,
}

impl Registry {
    /// The emulator of `MCS_E2E_EMULATOR`, if that is set.
    pub fn from_env() -> Result<Option<Self>> {
        Self::of_variable("MCS_E2E_EMULATOR")
    }

    /// That of another region, `MCS_E2E_OTHER_EMULATOR`, if it is set.
    pub fn elsewhere() -> Result<Option<Self>> {
        Self::of_variable("MCS_E2E_OTHER_EMULATOR")
    }

    fn of_variable(name: &str) -> Result<Option<Self>> {
        let endpoint = super::setting(name, "");
        if endpoint.is_empty() {
            return Ok(None);
        }
        let authority = endpoint.strip_prefix("http://").with_context(|| format!("{name} must start with http://"))?;
        Ok(Some(Self {
            // AWS lets an account make a namespace every two seconds, and controllers make those of other scenarios.
            client: Client::from_conf(patient_sdk_config(&endpoint, "e2e")),
            authority: authority.trim_end_matches('/').to_owned(),
        }))
    }

    /// Where it listens.
    pub fn address(&self) -> Result<SocketAddr> {
        self.authority.parse().with_context(|| format!("{} is no address with a port", self.authority))
    }

    /// What `DiscoverInstances` answers; nothing where the namespace or the service is not there.
    pub async fn discover(&self, namespace: &str, service: &str) -> Result<Instances> {
        self.discover_by(HealthStatusFilter::All, namespace, service).await
    }

    /// [`Registry::discover`] of the healthy instances alone.
    pub async fn discover_healthy(&self, namespace: &str, service: &str) -> Result<Instances> {
        self.discover_by(HealthStatusFilter::Healthy, namespace, service).await
    }

    async fn discover_by(&self, health: HealthStatusFilter, namespace: &str, service: &str) -> Result<Instances> {
        let answer = self
            .client
            .discover_instances()
            .namespace_name(namespace)
            .service_name(service)
            .health_status(health)
            .max_results(1000)
            .send()
            .await
            .map_err(aws_sdk_servicediscovery::Error::from);
        match answer {
            Ok(answer) => Ok(answer
                .instances()
                .iter()
                .map(|instance| {
                    let attributes = instance.attributes().cloned().unwrap_or_default().into_iter().collect();
                    (instance.instance_id().unwrap_or_default().to_owned(), attributes)
                })
                .collect()),
            Err(
                aws_sdk_servicediscovery::Error::NamespaceNotFound(_)
                | aws_sdk_servicediscovery::Error::ServiceNotFound(_),
            ) => Ok(Instances::new()),
            Err(error) => Err(error).with_context(|| format!("failed to discover {namespace}/{service}")),
        }
    }

    /// Makes an API-only namespace, as somebody else would have. Gives its id.
    pub async fn create_namespace(&self, namespace: &str) -> Result<String> {
        let operation = self.client.create_http_namespace().name(namespace).send().await?;
        let operation = operation.operation_id().context("no operation")?;
        eventually("the namespace is created", PROPAGATION, async || {
            let operation = self.client.get_operation().operation_id(operation).send().await?;
            let operation = operation.operation().context("no operation")?;
            ensure!(operation.status() == Some(&OperationStatus::Success), "{operation:?}");
            let targets = operation.targets().context("no targets")?;
            targets.values().next().cloned().context("no target")
        })
        .await
    }

    /// Makes an API-only namespace with one service, as somebody else would have. Gives the service's id.
    pub async fn create_service(&self, namespace: &str, service: &str) -> Result<String> {
        let id = self.create_namespace(namespace).await?;
        // ECS keeps the health of its tasks itself.
        let health = HealthCheckCustomConfig::builder().build();
        let created = self
            .client
            .create_service()
            .name(service)
            .namespace_id(id)
            .health_check_custom_config(health)
            .send()
            .await?;
        Ok(created.service().and_then(|service| service.id()).context("no id")?.to_owned())
    }

    /// The id of a namespace, by the emulator's books.
    pub async fn namespace_id(&self, namespace: &str) -> Result<String> {
        let snapshot: Snapshot = self.control("GET", "snapshot", Bytes::new()).await?;
        let found = snapshot.namespace(namespace);
        found.map(|found| found.id.clone()).with_context(|| format!("there is no namespace {namespace}"))
    }

    /// The id of a service, by the emulator's books.
    pub async fn service_id(&self, namespace: &str, service: &str) -> Result<String> {
        let snapshot: Snapshot = self.control("GET", "snapshot", Bytes::new()).await?;
        let found = snapshot.service(namespace, service);
        found.map(|found| found.id.clone()).with_context(|| format!("there is no service {namespace}/{service}"))
    }

    /// Registers an instance and waits until it is discovered: as the attributes that are given back. (The next look may
    /// ask a replica that does not know it yet.)
    pub async fn register(
        &self,
        namespace: &str,
        service: (&str, &str),
        id: &str,
        attributes: &[(&str, &str)],
    ) -> Result<BTreeMap<String, String>> {
        let (name, service_id) = service;
        let mut call = self.client.register_instance().service_id(service_id).instance_id(id);
        for (key, value) in attributes {
            call = call.attributes(*key, *value);
        }
        // The controller may be writing the same instance: one operation at a time.
        eventually("the instance is registered", PROPAGATION, async || Ok(call.clone().send().await?)).await?;
        eventually("the instance is discovered", PROPAGATION, async || {
            self.discover(namespace, name).await?.remove(id).with_context(|| format!("{id} is not there"))
        })
        .await
    }

    /// Gives a load balancer addresses, for instances with its name as `AWS_ALIAS_DNS_NAME`.
    pub async fn set_load_balancer(&self, name: &str, addresses: &[String]) -> Result<()> {
        let settings = serde_json::json!({"load_balancers": {name: addresses}});
        let _: serde_json::Value = self.control("PUT", "settings", serde_json::to_vec(&settings)?.into()).await?;
        Ok(())
    }

    /// The emulator's counters of calls.
    pub async fn counters(&self) -> Result<Counters> {
        self.control("GET", "counters", Bytes::new()).await
    }

    /// The calls that changed something, or would have.
    pub async fn writes(&self) -> Result<Vec<Write>> {
        self.control("GET", "writes", Bytes::new()).await
    }

    /// Who writes the head of a cluster: the access key id.
    pub async fn caller(&self, cluster: &str) -> Result<String> {
        let writes = self.writes().await?;
        let head = writes.iter().rev().find(|write| write.service == "clusters" && write.instance == cluster);
        head.map(|head| head.caller.clone()).with_context(|| format!("nobody wrote the head of {cluster}"))
    }

    /// Adds a rule of what goes wrong, and gives its id.
    pub async fn add_fault(&self, fault: &Fault) -> Result<u64> {
        #[derive(Deserialize)]
        struct Added {
            id: u64,
        }
        let added: Added = self.control("POST", "faults", serde_json::to_vec(fault)?.into()).await?;
        changed();
        Ok(added.id)
    }

    /// Removes a rule.
    pub async fn remove_fault(&self, id: u64) -> Result<()> {
        let _: serde_json::Value = self.control("DELETE", &format!("faults/{id}"), Bytes::new()).await?;
        changed();
        Ok(())
    }

    async fn control<T: DeserializeOwned>(&self, method: &str, route: &str, body: Bytes) -> Result<T> {
        let ask = async {
            let stream = TcpStream::connect(&self.authority).await?;
            let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let connection = tokio::spawn(connection);
            let request = hyper::Request::builder()
                .method(method)
                .uri(format!("/_emulator/{route}"))
                .header("host", &self.authority)
                .body(Full::new(body))?;
            let response = sender.send_request(request).await?;
            let status = response.status();
            let body = response.into_body().collect().await?.to_bytes();
            connection.abort();
            ensure!(status.is_success(), "{status}: {}", String::from_utf8_lossy(&body));
            Ok(serde_json::from_slice(&body)?)
        };
        tokio::time::timeout(PATIENCE, ask)
            .await
            .unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {PATIENCE:?}")))
            .with_context(|| format!("failed to ask the emulator at {} for {route}", self.authority))
    }
}
