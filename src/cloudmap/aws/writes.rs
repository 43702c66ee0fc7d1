//! What changes Cloud Map. The permit is checked before each attempt, when the request is signed and ready.

use std::collections::BTreeMap;

use async_trait::async_trait;
use aws_sdk_servicediscovery::{
    config::{ConfigBag, Intercept, RuntimeComponents, interceptors::BeforeTransmitInterceptorContextRef},
    error::BoxError,
    operation::{
        create_http_namespace::CreateHttpNamespaceError, create_private_dns_namespace::CreatePrivateDnsNamespaceError,
        create_service::CreateServiceError, delete_namespace::DeleteNamespaceError,
        deregister_instance::DeregisterInstanceError, register_instance::RegisterInstanceError,
        update_service::UpdateServiceError,
    },
    types::{
        CustomHealthStatus, HealthCheckCustomConfig, ServiceTypeOption, Tag,
        error::{DuplicateRequest, NamespaceAlreadyExists},
    },
};

use super::{AwsCloudMap, convert, error, missing, unbuilt};
use crate::{
    CreateService, Error, ErrorKind, Instance, Lane, NewNamespace, NewService, Operation, OperationId, Permit,
    ServiceChange, Write,
};

/// Sends nothing once the permit has ended. Credentials and earlier attempts may have taken a while.
#[derive(Debug)]
struct Permitted(Permit, Operation);

impl Intercept for Permitted {
    fn name(&self) -> &'static str {
        "Permitted"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        Ok(self.0.check(self.1)?)
    }
}

fn operation_id(operation: Operation, id: Option<&str>) -> Result<OperationId, Error> {
    id.map(|id| OperationId(id.into())).ok_or_else(|| missing(operation, "operation id"))
}

fn duplicate(error: &DuplicateRequest) -> ErrorKind {
    ErrorKind::Duplicate { operation: error.duplicate_operation_id().map(|id| OperationId(id.into())) }
}

fn taken(error: &NamespaceAlreadyExists) -> ErrorKind {
    ErrorKind::AlreadyExists { id: error.namespace_id().map(str::to_owned) }
}

fn request_tags(operation: Operation, tags: &BTreeMap<String, String>) -> Result<Vec<Tag>, Error> {
    let tag = |(key, value): (&String, &String)| Tag::builder().key(key).value(value).build();
    tags.iter().map(tag).collect::<Result<_, _>>().map_err(|error| unbuilt(operation, &error))
}

#[async_trait]
impl Write for AwsCloudMap {
    async fn create_namespace(&self, permit: &Permit, new: &NewNamespace<'_>) -> Result<OperationId, Error> {
        let NewNamespace { name, vpc, creator_request_id, description, tags } = *new;
        let operation = new.operation();
        let (tags, permitted) = (Some(request_tags(operation, tags)?), Permitted(permit.clone(), operation));
        let Some(vpc) = vpc else {
            let request = self.client.create_http_namespace().name(name).creator_request_id(creator_request_id);
            let request = request.description(description).set_tags(tags).customize().interceptor(permitted);
            let answer = request.send().await.map_err(|e| {
                error::sort(operation, &e, |e| match e {
                    CreateHttpNamespaceError::NamespaceAlreadyExists(e) => Some(taken(e)),
                    CreateHttpNamespaceError::DuplicateRequest(e) => Some(duplicate(e)),
                    _ => None,
                })
            })?;
            return operation_id(operation, answer.operation_id());
        };
        let request = self.client.create_private_dns_namespace().name(name).creator_request_id(creator_request_id);
        let request = request.vpc(vpc).description(description).set_tags(tags).customize().interceptor(permitted);
        let answer = request.send().await.map_err(|e| {
            error::sort(operation, &e, |e| match e {
                CreatePrivateDnsNamespaceError::NamespaceAlreadyExists(e) => Some(taken(e)),
                CreatePrivateDnsNamespaceError::DuplicateRequest(e) => Some(duplicate(e)),
                _ => None,
            })
        })?;
        operation_id(operation, answer.operation_id())
    }

    async fn delete_namespace(&self, permit: &Permit, id: &str) -> Result<OperationId, Error> {
        let operation = Operation::DeleteNamespace;
        let answer = self
            .client
            .delete_namespace()
            .id(id)
            .customize()
            .interceptor(Permitted(permit.clone(), operation))
            .send()
            .await
            .map_err(|e| {
                error::sort(operation, &e, |e| match e {
                    DeleteNamespaceError::DuplicateRequest(e) => Some(duplicate(e)),
                    _ => None,
                })
            })?;
        operation_id(operation, answer.operation_id())
    }

    async fn create_service(&self, permit: &Permit, new: &NewService, _lane: Lane) -> Result<CreateService, Error> {
        let operation = Operation::CreateService;
        let mut request = self
            .client
            .create_service()
            .namespace_id(&*new.namespace_id)
            .name(&*new.name)
            .creator_request_id(&new.creator_request_id)
            .set_description(new.description.clone())
            .set_tags(Some(request_tags(operation, &new.tags)?).filter(|tags| !tags.is_empty()));
        request = match &new.dns {
            Some(dns) => request.dns_config(convert::dns_request(dns).map_err(|e| unbuilt(operation, &e))?),
            None => request.r#type(ServiceTypeOption::Http),
        };
        if new.custom_health_check {
            request = request.health_check_custom_config(HealthCheckCustomConfig::builder().build());
        }
        match request.customize().interceptor(Permitted(permit.clone(), operation)).send().await {
            Ok(answer) => {
                let service = answer.service().ok_or_else(|| missing(operation, "service"))?;
                Ok(CreateService::Created(convert::service(service, &new.namespace_id)))
            }
            Err(failed) => {
                if let Some(CreateServiceError::ServiceAlreadyExists(taken)) = failed.as_service_error()
                    && let Some(id) = taken.service_id()
                {
                    let creator_request_id = taken.creator_request_id().map(str::to_owned);
                    return Ok(CreateService::Exists { id: id.into(), creator_request_id });
                }
                Err(error::sort(operation, &failed, |_| None))
            }
        }
    }

    async fn update_service(&self, permit: &Permit, id: &str, change: &ServiceChange) -> Result<OperationId, Error> {
        let operation = Operation::UpdateService;
        let change = convert::service_change(change).map_err(|e| unbuilt(operation, &e))?;
        let request = self.client.update_service().id(id).service(change);
        let answer =
            request.customize().interceptor(Permitted(permit.clone(), operation)).send().await.map_err(|e| {
                error::sort(operation, &e, |e| match e {
                    UpdateServiceError::DuplicateRequest(e) => Some(duplicate(e)),
                    _ => None,
                })
            })?;
        operation_id(operation, answer.operation_id())
    }

    async fn delete_service(&self, permit: &Permit, id: &str) -> Result<(), Error> {
        let operation = Operation::DeleteService;
        self.client
            .delete_service()
            .id(id)
            .customize()
            .interceptor(Permitted(permit.clone(), operation))
            .send()
            .await
            .map_err(|e| error::sort(operation, &e, |_| None))?;
        Ok(())
    }

    async fn register_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance: &Instance,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        let operation = Operation::RegisterInstance;
        let attributes = instance.attributes.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let request = self
            .client
            .register_instance()
            .service_id(service_id)
            .instance_id(&*instance.id)
            .set_attributes(Some(attributes));
        let answer =
            request.customize().interceptor(Permitted(permit.clone(), operation)).send().await.map_err(|e| {
                error::sort(operation, &e, |e| match e {
                    RegisterInstanceError::DuplicateRequest(e) => Some(duplicate(e)),
                    _ => None,
                })
            })?;
        operation_id(operation, answer.operation_id())
    }

    async fn deregister_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        let operation = Operation::DeregisterInstance;
        let request = self.client.deregister_instance().service_id(service_id).instance_id(instance_id);
        let answer =
            request.customize().interceptor(Permitted(permit.clone(), operation)).send().await.map_err(|e| {
                error::sort(operation, &e, |e| match e {
                    DeregisterInstanceError::DuplicateRequest(e) => Some(duplicate(e)),
                    _ => None,
                })
            })?;
        operation_id(operation, answer.operation_id())
    }

    async fn set_custom_health(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        healthy: bool,
    ) -> Result<(), Error> {
        let operation = Operation::UpdateInstanceCustomHealthStatus;
        let status = if healthy { CustomHealthStatus::Healthy } else { CustomHealthStatus::Unhealthy };
        let request = self
            .client
            .update_instance_custom_health_status()
            .service_id(service_id)
            .instance_id(instance_id)
            .status(status);
        request
            .customize()
            .interceptor(Permitted(permit.clone(), operation))
            .send()
            .await
            .map_err(|e| error::sort(operation, &e, |_| None))?;
        Ok(())
    }

    async fn tag(&self, permit: &Permit, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error> {
        let operation = Operation::TagResource;
        let request = self.client.tag_resource().resource_arn(arn).set_tags(Some(request_tags(operation, tags)?));
        request
            .customize()
            .interceptor(Permitted(permit.clone(), operation))
            .send()
            .await
            .map_err(|e| error::sort(operation, &e, |_| None))?;
        Ok(())
    }
}
