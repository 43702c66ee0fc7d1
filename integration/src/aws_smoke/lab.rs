//! Where checks work: one namespace of the run, and the calls that most of them make.

use std::collections::HashMap;
use std::fmt::Debug;
use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_servicediscovery::operation::create_service::builders::CreateServiceFluentBuilder;
use aws_sdk_servicediscovery::types::{
    HealthStatusFilter, HttpInstanceSummary, OperationStatus, OperationTargetType, Tag,
};
use cloudmap::AwsCloudMap;

use super::meter::Meter;

/// How often a wait looks, at most.
pub(super) const POLLS: u32 = 600;
/// What the names of namespaces begin with, before the id of the run.
pub const PREFIX: &str = "cloudmap-mcs-smoke-";
/// The tag that everything has, with the id of the run as its value.
pub const TAG: &str = "cloudmap-mcs/smoke";

/// A namespace that the run has made.
#[derive(Clone, Debug)]
pub struct Made {
    pub id: String,
    pub arn: String,
    pub name: String,
    pub http_name: String,
    /// How long its operation took.
    pub took: Duration,
}

/// What a run works with.
#[derive(Debug)]
pub struct Lab {
    /// Counts and limits what it does.
    pub client: Client,
    /// The controller's own adapter. It is not counted: whoever uses it admits its costs.
    pub adapter: AwsCloudMap,
    pub meter: Meter,
    /// The id of the run.
    pub run: String,
    pub vpc: Option<String>,
    /// How long a wait lasts, at most.
    pub patience: Duration,
    pub namespace: Made,
}

impl Lab {
    /// The name of anything that the run makes.
    pub(super) fn name(&self, what: &str) -> String {
        name(&self.run, what)
    }

    /// A service of its own for a check, in the namespace of the run.
    pub(super) async fn service(&self, what: &str) -> anyhow::Result<String> {
        let created = self.new_service(what).send().await?;
        created.service.and_then(|service| service.id).context("CreateService returned no id")
    }

    pub(super) fn new_service(&self, what: &str) -> CreateServiceFluentBuilder {
        self.client.create_service().namespace_id(&self.namespace.id).name(self.name(what)).tags(tag(TAG, &self.run))
    }

    /// Registers, and waits until the operation has ended.
    pub(super) async fn put(
        &self,
        service: &str,
        instance: &str,
        attributes: &[(&str, &str)],
    ) -> anyhow::Result<Duration> {
        let operation = self.register(service, instance, attributes).await?;
        self.finish(&operation).await
    }

    /// Registers. Gives the id of the operation.
    pub(super) async fn register(
        &self,
        service: &str,
        instance: &str,
        attributes: &[(&str, &str)],
    ) -> anyhow::Result<String> {
        let request = self.client.register_instance().service_id(service).instance_id(instance);
        let begun = request.set_attributes(Some(pairs(attributes))).send().await?;
        begun.operation_id.context("RegisterInstance returned no operation")
    }

    /// Deregisters, and waits until the operation has ended.
    pub(super) async fn remove(&self, service: &str, instance: &str) -> anyhow::Result<Duration> {
        let begun = self.client.deregister_instance().service_id(service).instance_id(instance).send().await?;
        self.finish(begun.operation_id().context("DeregisterInstance returned no operation")?).await
    }

    /// Waits for the end of an operation. Gives the time that this took.
    ///
    /// # Errors
    /// It failed, or took longer than the patience.
    pub(super) async fn finish(&self, operation: &str) -> anyhow::Result<Duration> {
        finish(&self.client, operation, self.patience).await.map(|(took, _)| took)
    }

    /// The instances of a service in discovery, healthy or not.
    pub(super) async fn discover(&self, what: &str) -> anyhow::Result<Vec<HttpInstanceSummary>> {
        let request = self.client.discover_instances().namespace_name(&self.namespace.http_name);
        let request = request.service_name(self.name(what)).max_results(1000).health_status(HealthStatusFilter::All);
        match request.send().await {
            Ok(found) => Ok(found.instances.unwrap_or_default()),
            // Discovery learns of services late, too.
            Err(error) if unknown_yet(&error) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Looks until it is so. Gives the time that this took, or nothing if the patience was over before.
    pub(super) async fn until<F>(&self, mut is: impl FnMut() -> F) -> anyhow::Result<Option<Duration>>
    where
        F: Future<Output = anyhow::Result<bool>>,
    {
        let begin = Instant::now();
        for _ in 0..POLLS {
            if is().await? {
                return Ok(Some(begin.elapsed()));
            }
            tokio::time::sleep(self.patience / POLLS).await;
        }
        Ok(None)
    }

    /// Waits until discovery shows exactly this many instances, in several calls in a row: replicas differ.
    pub(super) async fn shown(&self, what: &str, number: usize) -> anyhow::Result<Option<Duration>> {
        const IN_A_ROW: usize = 10;
        let mut row = 0;
        let begin = Instant::now();
        let mut first = begin;
        for _ in 0..POLLS {
            let shown = self.discover(what).await?.len() == number;
            if shown && row == 0 {
                first = Instant::now();
            }
            row = if shown { row + 1 } else { 0 };
            if row == IN_A_ROW {
                return Ok(Some(first - begin));
            }
            tokio::time::sleep(self.patience / POLLS).await;
        }
        Ok(None)
    }
}

pub(super) fn name(run: &str, what: &str) -> String {
    format!("{PREFIX}{run}-{what}")
}

/// Creates an API-only namespace, and waits for it.
pub(super) async fn namespace(client: &Client, run: &str, what: &str, patience: Duration) -> anyhow::Result<Made> {
    let begun = client.create_http_namespace().name(name(run, what)).tags(tag(TAG, run)).send().await?;
    made(client, begun.operation_id(), patience).await
}

/// The namespace that an operation makes.
pub(super) async fn made(client: &Client, operation: Option<&str>, patience: Duration) -> anyhow::Result<Made> {
    let (took, targets) = finish(client, operation.context("the answer has no operation")?, patience).await?;
    let id = targets.get(&OperationTargetType::Namespace).context("the operation has no namespace")?;
    Ok(Made { took, ..describe(client, id).await? })
}

/// A namespace that is there.
pub(super) async fn describe(client: &Client, id: &str) -> anyhow::Result<Made> {
    let found = client.get_namespace().id(id).send().await?.namespace.context("GetNamespace returned nothing")?;
    let name = found.name.context("a namespace without a name")?;
    let http = found.properties.and_then(|all| all.http_properties).and_then(|http| http.http_name);
    let arn = found.arn.context("a namespace without an ARN")?;
    Ok(Made { id: id.to_owned(), arn, http_name: http.unwrap_or_else(|| name.clone()), name, took: Duration::ZERO })
}

pub(super) async fn finish(
    client: &Client,
    operation: &str,
    patience: Duration,
) -> anyhow::Result<(Duration, HashMap<OperationTargetType, String>)> {
    let begin = Instant::now();
    // Looks are counted, as everywhere here: where this process gets no time, time says nothing about AWS.
    for _ in 0..POLLS {
        let answer = client.get_operation().operation_id(operation).send().await?;
        let state = answer.operation.context("GetOperation returned nothing")?;
        match state.status() {
            Some(OperationStatus::Success) => return Ok((begin.elapsed(), state.targets.unwrap_or_default())),
            Some(OperationStatus::Fail) => {
                let (code, message) =
                    (state.error_code().unwrap_or_default(), state.error_message().unwrap_or_default());
                bail!("the operation failed: {code} {message}");
            }
            _ => tokio::time::sleep(patience / POLLS).await,
        }
    }
    bail!("the operation did not end within {} s", patience.as_secs_f64())
}

pub(super) fn tag(key: &str, value: &str) -> Tag {
    Tag::builder().key(key).value(value).build().expect("a tag has a key and a value")
}

pub(super) fn pairs(attributes: &[(&str, &str)]) -> HashMap<String, String> {
    attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// `accepted`, or the code with which AWS refused.
///
/// # Errors
/// There was no answer, or none about the request: the caller was throttled or may not call this.
pub(super) fn answer<T: Debug, E>(result: Result<T, SdkError<E>>) -> anyhow::Result<String>
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    match result {
        Ok(_) => Ok("accepted".to_owned()),
        Err(error) => match error.as_service_error().and_then(ProvideErrorMetadata::code) {
            Some("ThrottlingException" | "RequestLimitExceeded" | "AccessDeniedException") | None => Err(error.into()),
            Some(code) => Ok(code.to_owned()),
        },
    }
}

/// Whether discovery does not know a service, or its namespace.
pub(super) fn unknown_yet<E: ProvideErrorMetadata>(error: &SdkError<E>) -> bool {
    let code = error.as_service_error().and_then(ProvideErrorMetadata::code);
    matches!(code, Some("ServiceNotFound" | "NamespaceNotFound"))
}

/// The account in an ARN.
pub(super) fn account(arn: &str) -> &str {
    arn.split(':').nth(4).unwrap_or_default()
}
