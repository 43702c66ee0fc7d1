//! The AWS adapter of Cloud Map. No other code uses its SDK.
//!
//! A call of the port is one request (for listings one per page), with a deadline. It is never repeated here: callers
//! know whether they may still write, the ledger reads again on its next tick anyway, and the request rates of
//! [`Limits`] stay true.

mod convert;
mod credentials;
mod endpoint;
mod error;
mod session;
#[cfg(test)]
mod tests;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use aws_config::SdkConfig;
use aws_sdk_servicediscovery::{
    Client,
    operation::get_instances_health_status::GetInstancesHealthStatusError,
    types::{
        HealthStatus, HealthStatusFilter, HttpInstanceSummary, NamespaceFilter, NamespaceFilterName, ServiceFilter,
        ServiceFilterName, ServiceSummary,
    },
};

use self::{
    credentials::Expiry,
    endpoint::{NoHostPrefix, is_url},
};
pub use self::{endpoint::Endpoint, error::answered};
pub use self::{
    error::{chain, is_denied, of_credentials, unsigned, words},
    session::{identified, load, retries},
};
use super::{
    Discovery, Error, ErrorKind, HttpName, Instance, Lane, Limits, Namespace, Operation, OperationId, OperationState,
    Read, Service,
};

/// Maximum size of a page in listings (`MaxResults`).
const PAGE: i32 = 100;
/// Maximum number of instances that `DiscoverInstances` returns. It has no next page, and without `MaxResults` it
/// returns 100.
const DISCOVERED: i32 = 1000;
/// Value of the filter `RESOURCE_OWNER` for the caller's own account.
const SELF: &str = "SELF";
/// No listing is this long: with 100 rows per page it would be a million rows.
const MAX_PAGES: usize = 10_000;
/// After this many throttled answers to one further page, a listing fails. A listing of many pages would never end if those
/// of all pages counted.
const THROTTLED_PAGES: u32 = 5;

/// Where Cloud Map is, and with which identity to call it. Unset values come from the SDK's default chain: environment,
/// profile, web identity (IRSA), container (EKS Pod Identity), instance metadata.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsSettings {
    /// AWS region of the registry.
    pub region: Option<String>,
    /// Role to assume with the credentials of the default chain, for a registry in another account.
    pub assume_role_arn: Option<String>,
    /// External id that the trust policy of the role may require.
    pub external_id: Option<String>,
    /// URL of an emulator or of another replacement for Cloud Map. Unlike `AWS_ENDPOINT_URL_SERVICEDISCOVERY` (for
    /// example for PrivateLink) it is used as it is: discovery calls do not get the host prefix `data-`.
    pub endpoint: Option<String>,
    /// How often a call that was throttled or got no answer is repeated, after a second or more. The controller repeats
    /// nothing (0), because it decides again. Commands have nothing else that would try again.
    pub repeat: u32,
    /// Deadline of one attempt, from signing to the last byte of the answer. The leader stops that much before its Lease
    /// may end, so only tests and commands may set a longer one.
    pub deadline: Duration,
}

impl Default for AwsSettings {
    fn default() -> Self {
        Self {
            region: None,
            assume_role_arn: None,
            external_id: None,
            endpoint: None,
            repeat: 0,
            deadline: session::DEADLINE,
        }
    }
}

/// The settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No region is configured.
    #[error("no AWS region is set: set --region, AWS_REGION, or a profile with a region")]
    NoRegion,
    /// The endpoint is not a URL.
    #[error("invalid Cloud Map endpoint {0:?}: it must be a URL such as http://127.0.0.1:5000")]
    InvalidEndpoint(String),
    /// The external id has no role.
    #[error("an external id is set, but no role to assume: also set --assume-role-arn")]
    ExternalIdWithoutRole,
}

/// Cloud Map of one account and region, through the SDK.
#[derive(Debug, Clone)]
pub struct AwsCloudMap {
    client: Client,
    limits: Arc<Limits>,
    endpoint: Endpoint,
}

impl AwsCloudMap {
    /// Reads the settings and the environment. Makes no call to Cloud Map.
    ///
    /// Further pages of a listing wait for `limits`. For the first request of a call, [`Limited`](super::Limited)
    /// waits.
    ///
    /// # Errors
    /// The settings cannot be used.
    pub async fn connect(settings: &AwsSettings, limits: Arc<Limits>) -> Result<Self, ConnectError> {
        Self::configured(&load(settings).await, settings, limits).await
    }

    /// Like [`connect`](Self::connect), with a region and credentials that the caller has loaded.
    pub async fn configured(
        sdk: &SdkConfig,
        settings: &AwsSettings,
        limits: Arc<Limits>,
    ) -> Result<Self, ConnectError> {
        let endpoint = Endpoint::of(sdk, settings);
        let (sdk, held) = Box::pin(session::signed(sdk, settings)).await?;
        let mut config = aws_sdk_servicediscovery::config::Builder::from(&sdk).retry_config(retries(settings.repeat));
        if let Some(held) = held {
            config = config.interceptor(Expiry(held));
        }
        if let Some(url) = &settings.endpoint {
            if !is_url(url) {
                return Err(ConnectError::InvalidEndpoint(url.clone()));
            }
            config = config.endpoint_url(url).interceptor(NoHostPrefix);
        }
        Ok(Self { client: Client::from_conf(config.build()), limits, endpoint })
    }

    /// The region that calls go to.
    pub fn region(&self) -> Option<String> {
        self.client.config().region().map(ToString::to_string)
    }

    /// Where calls go.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Reads a listing to its end. Pages may be empty and have a next page, because AWS filters after paging. A further
    /// page that is throttled is requested again, so that the pages before it are not lost.
    async fn pages<T, F>(
        &self,
        operation: Operation,
        lane: Lane,
        mut page: impl FnMut(Option<String>) -> F + Send,
    ) -> Result<Vec<T>, Error>
    where
        F: Future<Output = Result<(Vec<T>, Option<String>), Error>> + Send,
        T: Send,
    {
        let unending = |why: String| {
            let message = format!("the listing does not end: {why}");
            Error { operation: operation.name(), kind: ErrorKind::Other, message }
        };
        let mut all = Vec::new();
        let (mut token, mut throttled) = (None, 0);
        for _ in 0..MAX_PAGES {
            let (items, next) = match page(token.clone()).await {
                Err(error) if error.kind == ErrorKind::Throttled && token.is_some() && throttled < THROTTLED_PAGES => {
                    throttled += 1;
                    self.limits.throttled(operation);
                    self.limits.acquire_page(operation, lane, error.kind.category()).await;
                    continue;
                }
                page => page?,
            };
            throttled = 0;
            all.extend(items);
            let next = next.filter(|next| !next.is_empty());
            if next.is_none() {
                return Ok(all);
            }
            if next == token {
                return Err(unending("it repeats a page".to_owned()));
            }
            token = next;
            self.limits.acquire_page(operation, lane, "ok").await;
        }
        Err(unending(format!("there are more than {MAX_PAGES} pages")))
    }
}

/// The error for an answer without an id that AWS always sends.
fn missing(operation: Operation, what: &str) -> Error {
    Error { operation: operation.name(), kind: ErrorKind::Unknown, message: format!("the answer has no {what}") }
}

fn unbuilt(operation: Operation, error: &aws_sdk_servicediscovery::error::BuildError) -> Error {
    Error { operation: operation.name(), kind: ErrorKind::InvalidInput, message: error.to_string() }
}

#[async_trait]
impl Read for AwsCloudMap {
    async fn list_namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error> {
        let operation = Operation::ListNamespaces;
        let own = NamespaceFilter::builder().name(NamespaceFilterName::ResourceOwner).values(SELF).build();
        let own = own.map_err(|e| unbuilt(operation, &e))?;
        self.pages(operation, lane, async |token| {
            let request = self.client.list_namespaces().filters(own.clone()).max_results(PAGE).set_next_token(token);
            let page = request.send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
            Ok((page.namespaces().iter().filter_map(convert::summarized_namespace).collect(), page.next_token))
        })
        .await
    }

    async fn get_namespace(&self, id: &str) -> Result<Namespace, Error> {
        let operation = Operation::GetNamespace;
        let answer =
            self.client.get_namespace().id(id).send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
        let found = answer.namespace().and_then(|found| convert::namespace(found, id));
        found.ok_or_else(|| missing(operation, "namespace of a known type"))
    }

    async fn list_services(&self, namespace_id: &str, lane: Lane) -> Result<Vec<Service>, Error> {
        let operation = Operation::ListServices;
        let filter = ServiceFilter::builder()
            .name(ServiceFilterName::NamespaceId)
            .values(namespace_id)
            .build()
            .map_err(|e| unbuilt(operation, &e))?;
        let found = |page: &[ServiceSummary]| {
            page.iter().map(|service| convert::summarized_service(service, namespace_id)).collect()
        };
        self.pages(operation, lane, async |token| {
            let request = self.client.list_services().filters(filter.clone()).max_results(PAGE).set_next_token(token);
            let page = request.send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
            Ok((found(page.services()), page.next_token))
        })
        .await
    }

    async fn get_service(&self, id: &str, _lane: Lane) -> Result<Service, Error> {
        let operation = Operation::GetService;
        let answer = self.client.get_service().id(id).send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
        let found = answer.service().map(|found| convert::service(found, id));
        found.ok_or_else(|| missing(operation, "service"))
    }

    async fn operation(&self, id: &OperationId, _lane: Lane) -> Result<OperationState, Error> {
        let operation = Operation::GetOperation;
        let request = self.client.get_operation().operation_id(&*id.0);
        let answer = request.send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
        answer.operation().map(convert::operation).ok_or_else(|| missing(operation, "operation"))
    }

    async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error> {
        let operation = Operation::ListInstances;
        self.pages(operation, Lane::Instances, async |token| {
            let request = self.client.list_instances().service_id(service_id).max_results(PAGE).set_next_token(token);
            let page = request.send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
            let instances = page.instances.unwrap_or_default();
            Ok((instances.into_iter().map(convert::listed_instance).collect(), page.next_token))
        })
        .await
    }

    async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error> {
        let operation = Operation::GetInstancesHealthStatus;
        let pages = self.pages(operation, Lane::Instances, async |token| {
            let first = token.is_none();
            let request = self
                .client
                .get_instances_health_status()
                .service_id(service_id)
                .max_results(PAGE)
                .set_next_token(token);
            let page = match request.send().await {
                Ok(page) => page,
                Err(e) => {
                    let gone = e.as_service_error().is_some_and(GetInstancesHealthStatusError::is_service_not_found);
                    let error = error::sort(operation, &e, |_| None);
                    // AWS answers this for a service without a health check. After a first page, the service has one, and the
                    // rest is not known.
                    let unchecked =
                        first && !gone && matches!(error.kind, ErrorKind::NotFound | ErrorKind::InvalidInput);
                    return if unchecked { Ok((Vec::new(), None)) } else { Err(error) };
                }
            };
            let statuses = page.status.unwrap_or_default().into_iter();
            let unhealthy = statuses.filter(|(_, status)| *status == HealthStatus::Unhealthy).map(|(id, _)| id.into());
            Ok((unhealthy.collect::<Vec<Arc<str>>>(), page.next_token))
        });
        Ok(pages.await?.into_iter().collect())
    }

    async fn discover_instances(
        &self,
        namespace: HttpName<'_>,
        service: &str,
        query: &BTreeMap<String, String>,
        _lane: Lane,
    ) -> Result<Discovery, Error> {
        let operation = Operation::DiscoverInstances;
        let query = query.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let request = self
            .client
            .discover_instances()
            .namespace_name(namespace.name)
            .set_owner_account(namespace.owner.map(str::to_owned))
            .service_name(service)
            .max_results(DISCOVERED)
            // The default is not documented.
            .health_status(HealthStatusFilter::All)
            .set_query_parameters(Some(query).filter(|query: &HashMap<_, _>| !query.is_empty()));
        let answer = request.send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
        let discovered = answer.instances.unwrap_or_default();
        let fails = |instance: &&HttpInstanceSummary| instance.health_status() == Some(&HealthStatus::Unhealthy);
        let unhealthy = discovered.iter().filter(fails).filter_map(|instance| instance.instance_id());
        let unhealthy = unhealthy.map(Into::into).collect();
        let instances: Vec<_> = discovered.into_iter().map(convert::discovered_instance).collect();
        let truncated = instances.len() >= DISCOVERED as usize;
        Ok(Discovery { instances, unhealthy, truncated })
    }

    async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
        let operation = Operation::ListTagsForResource;
        let request = self.client.list_tags_for_resource().resource_arn(arn);
        let answer = request.send().await.map_err(|e| error::sort(operation, &e, |_| None))?;
        Ok(answer.tags().iter().map(|tag| (tag.key().to_owned(), tag.value().to_owned())).collect())
    }
}
