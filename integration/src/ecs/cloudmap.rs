//! The calls that ECS and those who set it up make.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use aws_sdk_servicediscovery::error::SdkError;
use aws_sdk_servicediscovery::operation::create_service::CreateServiceError;
use aws_sdk_servicediscovery::operation::deregister_instance::DeregisterInstanceError;
use aws_sdk_servicediscovery::types::{
    CustomHealthStatus, DnsConfig, DnsRecord, HealthCheckCustomConfig, OperationStatus, OperationTargetType,
    PrivateDnsNamespaceProperties, PrivateDnsPropertiesMutable, PublicDnsNamespaceProperties,
    PublicDnsPropertiesMutable, RecordType, RoutingPolicy, Soa,
};
use aws_sdk_servicediscovery::{Client, Error};

use emulator::patient_sdk_config;

/// For an operation, whatever the emulator's latencies.
const PATIENCE: Duration = Duration::from_mins(3);
const PAUSE: Duration = Duration::from_millis(50);
/// The pauses grow to this: hundreds of operations at once must not use up the calls that AWS allows.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The DNS records of a service in Cloud Map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    A,
    Aaaa,
    DualStack,
    Srv,
    /// Found by API calls only.
    None,
}

impl Records {
    fn kinds(self) -> &'static [RecordType] {
        match self {
            Self::A => &[RecordType::A],
            Self::Aaaa => &[RecordType::Aaaa],
            Self::DualStack => &[RecordType::A, RecordType::Aaaa],
            Self::Srv => &[RecordType::Srv],
            Self::None => &[],
        }
    }
}

/// Cloud Map, called as `ecs`. Every call waits until the operation that it starts is done.
#[derive(Clone, Debug)]
pub struct CloudMap {
    client: Client,
    endpoint: String,
}

impl CloudMap {
    pub(crate) fn new(endpoint: &str) -> Self {
        // Many scenarios make their namespaces at the same time, and AWS allows one every two seconds.
        Self { client: Client::from_conf(patient_sdk_config(endpoint, "ecs")), endpoint: endpoint.to_owned() }
    }

    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// For calls that are not here.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The id of a private namespace, which is made if it is not there. `absence` is for how many seconds resolvers keep that
    /// a name is not there: the TTL of the SOA record.
    pub async fn private_namespace(&self, name: &str, absence: i64) -> Result<String> {
        let soa = Soa::builder().ttl(absence).build()?;
        let dns = PrivateDnsPropertiesMutable::builder().soa(soa).build();
        let properties = PrivateDnsNamespaceProperties::builder().dns_properties(dns).build();
        let request = self.client.create_private_dns_namespace().name(name).vpc("vpc-testbed").properties(properties);
        // A repeated request is told of the namespace that there is; another one fails, because the VPC has the zone.
        let request = request.creator_request_id(name);
        let created = request.send().await.map_err(Error::from);
        self.namespace_id(name, created.map(|created| created.operation_id)).await
    }

    /// [`CloudMap::private_namespace`] of a public one.
    pub async fn public_namespace(&self, name: &str, absence: i64) -> Result<String> {
        let soa = Soa::builder().ttl(absence).build()?;
        let dns = PublicDnsPropertiesMutable::builder().soa(soa).build();
        let properties = PublicDnsNamespaceProperties::builder().dns_properties(dns).build();
        let request = self.client.create_public_dns_namespace().name(name).properties(properties);
        let created = request.send().await.map_err(Error::from);
        self.namespace_id(name, created.map(|created| created.operation_id)).await
    }

    async fn namespace_id(&self, name: &str, created: Result<Option<String>, Error>) -> Result<String> {
        match created {
            Ok(operation) => self.done(operation.as_deref()).await,
            Err(Error::NamespaceAlreadyExists(there)) => {
                there.namespace_id.context("NamespaceAlreadyExists without the namespace's id")
            }
            Err(error) => Err(error).with_context(|| format!("failed to create the namespace {name}")),
        }
    }

    /// The id of a service with a custom health check, which ECS reports to, made if it is not there. `ttl` is that of its
    /// records, in seconds.
    pub async fn service(&self, namespace_id: &str, name: &str, records: Records, ttl: i64) -> Result<String> {
        let mut request = self.client.create_service().name(name).namespace_id(namespace_id);
        request = request.health_check_custom_config(HealthCheckCustomConfig::builder().build());
        if records == Records::None {
            let namespace = self.client.get_namespace().id(namespace_id).send().await?;
            let kind = namespace.namespace().and_then(|namespace| namespace.r#type());
            if kind != Some(&aws_sdk_servicediscovery::types::NamespaceType::Http) {
                request = request.r#type(aws_sdk_servicediscovery::types::ServiceTypeOption::Http);
            }
        } else {
            let mut config = DnsConfig::builder().routing_policy(RoutingPolicy::Multivalue);
            for kind in records.kinds() {
                config = config.dns_records(DnsRecord::builder().r#type(kind.clone()).ttl(ttl).build()?);
            }
            request = request.dns_config(config.build()?);
        }
        match request.send().await.map_err(SdkError::into_service_error) {
            Ok(created) => created.service.and_then(|service| service.id).context("a service without id"),
            Err(CreateServiceError::ServiceAlreadyExists(there)) => {
                there.service_id.context("ServiceAlreadyExists without the service's id")
            }
            Err(error) => Err(error).with_context(|| format!("failed to create the service {name}")),
        }
    }

    /// The id of a [`CloudMap::service`] in a [`CloudMap::private_namespace`] of this name; resolvers keep for a second what
    /// either says.
    pub async fn private_service(&self, namespace: &str, name: &str, records: Records) -> Result<String> {
        let namespace_id = self.private_namespace(namespace, 1).await?;
        self.service(&namespace_id, name, records, 1).await
    }

    /// The ARN of a service.
    pub async fn arn(&self, service_id: &str) -> Result<String> {
        let answer = self.client.get_service().id(service_id).send().await;
        let answer = answer.with_context(|| format!("failed to read the service {service_id}"))?;
        answer.service.and_then(|service| service.arn).context("a service without ARN")
    }

    pub async fn register(&self, service_id: &str, id: &str, attributes: BTreeMap<String, String>) -> Result<()> {
        let mut request = self.client.register_instance().service_id(service_id).instance_id(id);
        for (key, value) in attributes {
            request = request.attributes(key, value);
        }
        let started = request.send().await.with_context(|| format!("failed to register {id} in {service_id}"))?;
        self.done(started.operation_id()).await.map(drop)
    }

    /// That it is gone already is fine.
    pub async fn deregister(&self, service_id: &str, id: &str) -> Result<()> {
        let request = self.client.deregister_instance().service_id(service_id).instance_id(id);
        match request.send().await.map_err(SdkError::into_service_error) {
            Ok(started) => self.done(started.operation_id()).await.map(drop),
            Err(DeregisterInstanceError::InstanceNotFound(_) | DeregisterInstanceError::ServiceNotFound(_)) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("failed to deregister {id} from {service_id}")),
        }
    }

    /// A status that takes effect when Cloud Map thinks so, after some 30 seconds.
    pub async fn set_health(&self, service_id: &str, id: &str, status: CustomHealthStatus) -> Result<()> {
        let request = self.client.update_instance_custom_health_status().service_id(service_id).instance_id(id);
        request.status(status).send().await.with_context(|| format!("failed to set the health of {id}"))?;
        Ok(())
    }

    /// Waits for an operation. Gives the id of its namespace, or nothing.
    async fn done(&self, operation: Option<&str>) -> Result<String> {
        let id = operation.context("no operation")?;
        let wait = async {
            let mut pause = PAUSE;
            loop {
                let answer = self.client.get_operation().operation_id(id).send().await?;
                let operation = answer.operation.context("no operation")?;
                match operation.status() {
                    Some(OperationStatus::Success) => {
                        let target = |targets: &std::collections::HashMap<_, String>| {
                            targets.get(&OperationTargetType::Namespace).cloned()
                        };
                        return Ok(operation.targets().and_then(target).unwrap_or_default());
                    }
                    Some(OperationStatus::Fail) => bail!("{operation:?}"),
                    _ => tokio::time::sleep(pause).await,
                }
                pause = (pause * 3 / 2).min(LONGEST_PAUSE);
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .unwrap_or_else(|_| bail!("it is not done within {PATIENCE:?}"))
            .with_context(|| format!("the operation {id} failed"))
    }
}
