//! The Cloud Map emulator through the real SDK. Each test quotes the rule of the AWS API model or documentation that it
//! checks.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accounts;
mod attributes;
mod control;
mod discovery;
mod dns;
mod faults;
mod health;
mod iam;
mod instances;
mod limits;
mod namespaces;
mod operations;
mod ram;
mod resolver;
mod services;
mod sts;
mod time;

use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_servicediscovery::types::{DnsConfig, DnsRecord, RecordType, RoutingPolicy};
use cloudmap_emulator::{Emulator, EmulatorSettings};

/// An emulator that answers at once and refuses nothing for its rate, with an HTTP namespace `apps` and a service `web`.
struct Fixture {
    emulator: Emulator,
    client: Client,
    namespace: String,
    service: String,
}

impl Fixture {
    async fn start() -> Self {
        Self::start_with(EmulatorSettings::unthrottled()).await
    }

    async fn start_with(settings: EmulatorSettings) -> Self {
        let emulator = Emulator::start(settings).await.unwrap();
        let client = emulator.client("tester");
        let namespace = create_http_namespace(&client, "apps").await;
        let service = create_service(&client, &namespace, "web").await;
        Self { emulator, client, namespace, service }
    }

    /// Registers with one attribute, `k`.
    async fn register(&self, instance: &str, value: &str) {
        let request = self.client.register_instance().service_id(&self.service).instance_id(instance);
        request.attributes("k", value).send().await.unwrap();
    }

    async fn discover(&self) -> Vec<String> {
        let request = self.client.discover_instances().namespace_name("apps").service_name("web").max_results(1000);
        let found = request.send().await.unwrap();
        let mut ids: Vec<_> = found.instances().iter().map(|found| found.instance_id().unwrap().to_owned()).collect();
        ids.sort_unstable();
        ids
    }
}

async fn create_http_namespace(client: &Client, name: &str) -> String {
    let created = client.create_http_namespace().name(name).send().await.unwrap();
    namespace_of(client, created.operation_id().unwrap()).await
}

async fn create_private_namespace(client: &Client, name: &str, vpc: &str) -> String {
    let created = client.create_private_dns_namespace().name(name).vpc(vpc).send().await.unwrap();
    namespace_of(client, created.operation_id().unwrap()).await
}

async fn namespace_of(client: &Client, operation: &str) -> String {
    use aws_sdk_servicediscovery::types::OperationTargetType::Namespace;
    let operation = client.get_operation().operation_id(operation).send().await.unwrap().operation.unwrap();
    operation.targets.unwrap()[&Namespace].clone()
}

async fn create_service(client: &Client, namespace: &str, name: &str) -> String {
    let created = client.create_service().namespace_id(namespace).name(name).send().await.unwrap();
    created.service.unwrap().id.unwrap()
}

/// Records of the given types with a TTL of a minute.
fn dns(kinds: &[RecordType], policy: RoutingPolicy) -> DnsConfig {
    let record = |kind: &RecordType| DnsRecord::builder().r#type(kind.clone()).ttl(60).build().unwrap();
    let records = kinds.iter().map(record).collect();
    DnsConfig::builder().set_dns_records(Some(records)).routing_policy(policy).build().unwrap()
}

/// The error code of an answer that has to be an error.
fn code<T: std::fmt::Debug, E: ProvideErrorMetadata>(answer: Result<T, SdkError<E>>) -> String {
    match answer.expect_err("the call was to be refused") {
        SdkError::ServiceError(error) => error.err().code().unwrap().to_owned(),
        _ => panic!("the call got no answer"),
    }
}
