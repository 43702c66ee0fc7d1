//! Decorators of the port: [`Limited`] waits for the request rate, [`Counted`] counts and times calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
};

use async_trait::async_trait;
use tokio::{sync::Mutex, time::Instant};

use super::{
    CloudMap, CreateService, Discovery, Error, ErrorKind, Instance, Lane, Limits, Metrics, Namespace, NewService,
    Operation, OperationId, OperationState, Service, ServiceChange, answers::Answer,
};

/// Makes every call wait for its turn, and slows down the instances lane when AWS throttles. Retries nothing.
#[derive(Debug)]
pub struct Limited<C> {
    inner: C,
    limits: Arc<Limits>,
    /// The last listing of the namespaces for the instances lane. Callers that waited for it share its result.
    namespaces: Mutex<Option<Listing>>,
}

#[derive(Debug)]
struct Listing {
    /// When the call began. The listing shows the state at that time or later.
    begun: Instant,
    result: Result<Vec<Namespace>, Error>,
}

impl<C: CloudMap> Limited<C> {
    /// Limits the calls of `inner` to the rates of `limits`.
    pub fn new(inner: C, limits: Arc<Limits>) -> Self {
        Self { inner, limits, namespaces: Mutex::default() }
    }

    /// AWS allows one listing every two seconds, and several parts of the controller need one. A caller that arrives
    /// before the next listing begins shares its result. The ledger has a reserve of its own and does not wait.
    async fn namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error> {
        let operation = Operation::ListNamespaces;
        if lane == Lane::Ledger {
            return self.around(operation, lane, self.inner.list_namespaces(lane)).await;
        }
        let asked = Instant::now();
        let mut last = self.namespaces.lock().await;
        if let Some(Listing { begun, result }) = &*last
            && *begun >= asked
        {
            return result.clone();
        }
        let mut begun = asked;
        let listing = async {
            begun = Instant::now();
            self.inner.list_namespaces(lane).await
        };
        let result = self.around(operation, lane, listing).await;
        *last = Some(Listing { begun, result: result.clone() });
        result
    }

    async fn around<T>(
        &self,
        operation: Operation,
        lane: Lane,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        self.limits.acquire(operation, lane).await;
        let result = call.await;
        if matches!(&result, Err(Error { kind: ErrorKind::Throttled, .. })) {
            self.limits.throttled(operation);
        }
        result
    }
}

/// Counts every call by operation and outcome, measures its duration, and notes whether AWS answered.
#[derive(Debug)]
pub struct Counted<C> {
    inner: C,
    metrics: Metrics,
}

impl<C: CloudMap> Counted<C> {
    /// Counts the calls of `inner` in `metrics`.
    pub fn new(inner: C, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }

    async fn namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error> {
        self.around(Operation::ListNamespaces, lane, self.inner.list_namespaces(lane)).await
    }

    async fn around<T>(
        &self,
        operation: Operation,
        _lane: Lane,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let since = Instant::now();
        let result = call.await;
        let outcome = result.as_ref().map_or_else(|error| error.kind.category(), |_| "ok");
        self.metrics.called(operation, outcome, since.elapsed());
        self.metrics.ended(match &result {
            Err(Error { kind: ErrorKind::AccessDenied, .. }) => Answer::Denied,
            // Who sent an error of the server, or one of no known kind, is not certain.
            Err(error) if error.kind.may_come_late() => Answer::Missing,
            // Any other refusal is an answer.
            _ => Answer::Given,
        });
        result
    }
}

/// Implements the port: each method calls the same method of the inner port.
macro_rules! decorate {
    ($decorator:ident) => {
        #[async_trait]
        impl<C: CloudMap> CloudMap for $decorator<C> {
            async fn list_namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error> {
                self.namespaces(lane).await
            }

            async fn get_namespace(&self, id: &str) -> Result<Namespace, Error> {
                self.around(Operation::GetNamespace, Lane::Instances, self.inner.get_namespace(id)).await
            }

            async fn create_http_namespace(
                &self,
                name: &str,
                creator_request_id: &str,
                description: &str,
                tags: &BTreeMap<String, String>,
            ) -> Result<OperationId, Error> {
                let call = self.inner.create_http_namespace(name, creator_request_id, description, tags);
                self.around(Operation::CreateHttpNamespace, Lane::Instances, call).await
            }

            async fn delete_namespace(&self, id: &str) -> Result<OperationId, Error> {
                self.around(Operation::DeleteNamespace, Lane::Instances, self.inner.delete_namespace(id)).await
            }

            async fn list_services(&self, namespace_id: &str, lane: Lane) -> Result<Vec<Service>, Error> {
                self.around(Operation::ListServices, lane, self.inner.list_services(namespace_id, lane)).await
            }

            async fn get_service(&self, id: &str, lane: Lane) -> Result<Service, Error> {
                self.around(Operation::GetService, lane, self.inner.get_service(id, lane)).await
            }

            async fn create_service(&self, new: &NewService, lane: Lane) -> Result<CreateService, Error> {
                self.around(Operation::CreateService, lane, self.inner.create_service(new, lane)).await
            }

            async fn update_service(&self, id: &str, change: &ServiceChange) -> Result<OperationId, Error> {
                let call = self.inner.update_service(id, change);
                self.around(Operation::UpdateService, Lane::Instances, call).await
            }

            async fn delete_service(&self, id: &str) -> Result<(), Error> {
                self.around(Operation::DeleteService, Lane::Instances, self.inner.delete_service(id)).await
            }

            async fn register_instance(
                &self,
                service_id: &str,
                instance: &Instance,
                lane: Lane,
            ) -> Result<OperationId, Error> {
                let call = self.inner.register_instance(service_id, instance, lane);
                self.around(Operation::RegisterInstance, lane, call).await
            }

            async fn deregister_instance(
                &self,
                service_id: &str,
                instance_id: &str,
                lane: Lane,
            ) -> Result<OperationId, Error> {
                let call = self.inner.deregister_instance(service_id, instance_id, lane);
                self.around(Operation::DeregisterInstance, lane, call).await
            }

            async fn operation(&self, id: &OperationId, lane: Lane) -> Result<OperationState, Error> {
                self.around(Operation::GetOperation, lane, self.inner.operation(id, lane)).await
            }

            async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error> {
                self.around(Operation::ListInstances, Lane::Instances, self.inner.list_instances(service_id)).await
            }

            async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error> {
                let call = self.inner.unhealthy_instances(service_id);
                self.around(Operation::GetInstancesHealthStatus, Lane::Instances, call).await
            }

            async fn discover_instances(
                &self,
                http_name: &str,
                service: &str,
                query: &BTreeMap<String, String>,
                lane: Lane,
            ) -> Result<Discovery, Error> {
                let call = self.inner.discover_instances(http_name, service, query, lane);
                self.around(Operation::DiscoverInstances, lane, call).await
            }

            async fn set_custom_health(&self, service_id: &str, instance_id: &str, healthy: bool) -> Result<(), Error> {
                let call = self.inner.set_custom_health(service_id, instance_id, healthy);
                self.around(Operation::UpdateInstanceCustomHealthStatus, Lane::Instances, call).await
            }

            async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
                self.around(Operation::ListTagsForResource, Lane::Instances, self.inner.list_tags(arn)).await
            }

            async fn tag(&self, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error> {
                self.around(Operation::TagResource, Lane::Instances, self.inner.tag(arn, tags)).await
            }
        }
    };
}

decorate!(Limited);
decorate!(Counted);

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        NamespaceKind, Rates,
        fake::{Fake, Fault},
    };

    #[tokio::test(start_paused = true)]
    async fn only_a_success_or_a_refusal_that_is_no_denial_is_an_answer_of_aws() {
        let (fake, metrics) = (Fake::new(), Metrics::new(&prometheus::Registry::new()).unwrap());
        let counted = Counted::new(fake.clone(), metrics.clone());
        for (kind, answered) in [
            (None, true),
            (Some(ErrorKind::Throttled), true),
            (Some(ErrorKind::AccessDenied), false),
            (Some(ErrorKind::NotFound), true),
            (Some(ErrorKind::NoCredentials), false),
            (Some(ErrorKind::Unknown), false),
            // The connection was refused, or there is none.
            (Some(ErrorKind::Other), false),
        ] {
            if let Some(kind) = kind.clone() {
                fake.fault(Operation::ListNamespaces, Fault::Refused(kind));
            }
            assert_eq!(counted.list_namespaces(Lane::Instances).await.is_ok(), kind.is_none());
            assert_eq!(metrics.answers().last() == Some(Instant::now()), answered, "{kind:?}");
            let denied = metrics.answers().denied(Instant::now()).is_some();
            assert_eq!(denied, kind == Some(ErrorKind::AccessDenied), "{kind:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_wait_for_a_listing_of_the_namespaces_share_it_and_never_get_an_older_one() {
        let fake = Fake::new();
        let limited = Arc::new(Limited::new(fake.clone(), Limits::new(&Rates::default(), None)));
        let calls = || fake.registry().count(Operation::ListNamespaces);
        // Until the burst is used up.
        for _ in 0..4 {
            limited.list_namespaces(Lane::Instances).await.unwrap();
        }
        assert_eq!(calls(), 4, "one after the other they are listings of their own");
        fake.registry().add_namespace("shop", NamespaceKind::Http);
        let waiting: Vec<_> = (0..10)
            .map(|_| {
                let limited = limited.clone();
                tokio::spawn(async move { limited.list_namespaces(Lane::Instances).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        limited.list_namespaces(Lane::Ledger).await.unwrap();
        assert_eq!(calls(), 5, "the ledger waits for none of them");
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
        }
        assert_eq!(calls(), 6);
        fake.registry().add_namespace("later", NamespaceKind::Http);
        assert_eq!(limited.list_namespaces(Lane::Instances).await.unwrap().len(), 2);
    }
}
