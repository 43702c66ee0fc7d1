//! Decorators of the port: [`Limited`] waits for the request rate, [`Counted`] counts and times calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::Arc,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    CreateService, Discovery, Error, ErrorKind, HttpName, Instance, Lane, Limits, Metrics, Namespace, NewNamespace,
    NewService, Operation, OperationId, OperationState, Permit, Read, Service, ServiceChange, Write, answers::Answer,
};

/// Makes every call wait for its turn, and slows down the instances lane when AWS throttles. Retries nothing.
#[derive(Debug)]
pub struct Limited<C> {
    inner: C,
    limits: Arc<Limits>,
}

impl<C: Read> Limited<C> {
    /// Limits the calls of `inner` to the rates of `limits`.
    pub fn new(inner: C, limits: Arc<Limits>) -> Self {
        Self { inner, limits }
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

/// Counts every call by operation and outcome, measures its duration, and notes whether AWS answered. What is not sent for
/// lack of a permit is no call.
#[derive(Debug)]
pub struct Counted<C> {
    inner: C,
    metrics: Metrics,
}

impl<C: Read> Counted<C> {
    /// Counts the calls of `inner` in `metrics`.
    pub fn new(inner: C, metrics: Metrics) -> Self {
        Self { inner, metrics }
    }

    async fn around<T>(
        &self,
        operation: Operation,
        _lane: Lane,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        let since = Instant::now();
        let result = call.await;
        if matches!(&result, Err(Error { kind: ErrorKind::NoPermit, .. })) {
            return result;
        }
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
        impl<C: Read> Read for $decorator<C> {
            async fn list_namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error> {
                self.around(Operation::ListNamespaces, lane, self.inner.list_namespaces(lane)).await
            }

            async fn get_namespace(&self, id: &str) -> Result<Namespace, Error> {
                self.around(Operation::GetNamespace, Lane::Instances, self.inner.get_namespace(id)).await
            }

            async fn list_services(&self, namespace_id: &str, lane: Lane) -> Result<Vec<Service>, Error> {
                self.around(Operation::ListServices, lane, self.inner.list_services(namespace_id, lane)).await
            }

            async fn get_service(&self, id: &str, lane: Lane) -> Result<Service, Error> {
                self.around(Operation::GetService, lane, self.inner.get_service(id, lane)).await
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
                namespace: HttpName<'_>,
                service: &str,
                query: &BTreeMap<String, String>,
                lane: Lane,
            ) -> Result<Discovery, Error> {
                let call = self.inner.discover_instances(namespace, service, query, lane);
                self.around(Operation::DiscoverInstances, lane, call).await
            }

            async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
                self.around(Operation::ListTagsForResource, Lane::Instances, self.inner.list_tags(arn)).await
            }
        }

        #[async_trait]
        impl<C: Write> Write for $decorator<C> {
            async fn create_namespace(&self, permit: &Permit, new: &NewNamespace<'_>) -> Result<OperationId, Error> {
                self.around(new.operation(), Lane::Instances, self.inner.create_namespace(permit, new)).await
            }

            async fn delete_namespace(&self, permit: &Permit, id: &str) -> Result<OperationId, Error> {
                self.around(Operation::DeleteNamespace, Lane::Instances, self.inner.delete_namespace(permit, id)).await
            }

            async fn create_service(
                &self,
                permit: &Permit,
                new: &NewService,
                lane: Lane,
            ) -> Result<CreateService, Error> {
                self.around(Operation::CreateService, lane, self.inner.create_service(permit, new, lane)).await
            }

            async fn update_service(
                &self,
                permit: &Permit,
                id: &str,
                change: &ServiceChange,
            ) -> Result<OperationId, Error> {
                let call = self.inner.update_service(permit, id, change);
                self.around(Operation::UpdateService, Lane::Instances, call).await
            }

            async fn delete_service(&self, permit: &Permit, id: &str) -> Result<(), Error> {
                self.around(Operation::DeleteService, Lane::Instances, self.inner.delete_service(permit, id)).await
            }

            async fn register_instance(
                &self,
                permit: &Permit,
                service_id: &str,
                instance: &Instance,
                lane: Lane,
            ) -> Result<OperationId, Error> {
                let call = self.inner.register_instance(permit, service_id, instance, lane);
                self.around(Operation::RegisterInstance, lane, call).await
            }

            async fn deregister_instance(
                &self,
                permit: &Permit,
                service_id: &str,
                instance_id: &str,
                lane: Lane,
            ) -> Result<OperationId, Error> {
                let call = self.inner.deregister_instance(permit, service_id, instance_id, lane);
                self.around(Operation::DeregisterInstance, lane, call).await
            }

            async fn set_custom_health(
                &self,
                permit: &Permit,
                service_id: &str,
                instance_id: &str,
                healthy: bool,
            ) -> Result<(), Error> {
                let call = self.inner.set_custom_health(permit, service_id, instance_id, healthy);
                self.around(Operation::UpdateInstanceCustomHealthStatus, Lane::Instances, call).await
            }

            async fn tag(&self, permit: &Permit, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error> {
                self.around(Operation::TagResource, Lane::Instances, self.inner.tag(permit, arn, tags)).await
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
        Rate, Rates,
        fake::{Fake, Fault, permit_until},
        limited,
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

    /// The queue of an operation may be long while AWS throttles.
    #[tokio::test(start_paused = true)]
    async fn a_write_whose_permit_ends_while_it_waits_for_its_turn_is_not_sent() {
        let (fake, metrics) = (Fake::new(), Metrics::new(&prometheus::Registry::new()).unwrap());
        let rates = Rates::default().with(Operation::TagResource, Rate::new(0.1, 1.0, 0.0));
        let limited = limited(fake.clone(), &rates, metrics.clone());
        let permit = permit_until(Instant::now() + Duration::from_secs(5)).unwrap();
        let tag = async || limited.tag(&permit, "arn", &BTreeMap::new()).await.unwrap_err().kind;
        assert_eq!(tag().await, ErrorKind::NotFound);
        assert_eq!(tag().await, ErrorKind::NoPermit);
        assert_eq!((fake.registry().count(Operation::TagResource), metrics.snapshot().total()), (1, 1));
    }
}
