//! The errors that Cloud Map answers with, in the form in which they go over the wire.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// An error answer. `code` is the `__type` of the body, as in the AWS API model; every one is HTTP status 400 but faults
/// that say otherwise.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{code}: {message}")]
pub struct ApiError {
    pub code: String,
    pub message: String,
    pub status: u16,
    /// Members beside `Message`, such as `DuplicateOperationId`.
    pub members: BTreeMap<&'static str, String>,
}

/// What a handler gives back: the members of the answer, or an error.
pub(crate) type Answer<T = Value> = Result<T, ApiError>;

impl ApiError {
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), status: 400, members: BTreeMap::new() }
    }

    #[must_use]
    pub fn with(mut self, member: &'static str, value: impl Into<String>) -> Self {
        self.members.insert(member, value.into());
        self
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new("InvalidInput", message)
    }

    pub(crate) fn namespace_not_found(id: &str) -> Self {
        Self::new("NamespaceNotFound", format!("Could not find namespace: {id}."))
    }

    pub(crate) fn service_not_found(id: &str) -> Self {
        Self::new("ServiceNotFound", format!("Could not find service: {id}."))
    }

    pub(crate) fn instance_not_found(service: &str, instance: &str) -> Self {
        Self::new("InstanceNotFound", format!("Could not find instance {instance} in service {service}."))
    }

    pub(crate) fn operation_not_found(id: &str) -> Self {
        Self::new("OperationNotFound", format!("Could not find operation: {id}."))
    }

    pub(crate) fn resource_not_found(arn: &str) -> Self {
        Self::new("ResourceNotFoundException", format!("Could not find resource: {arn}."))
    }

    pub(crate) fn resource_in_use(message: impl Into<String>) -> Self {
        Self::new("ResourceInUse", message)
    }

    pub(crate) fn limit_exceeded(message: impl Into<String>) -> Self {
        Self::new("ResourceLimitExceeded", message)
    }

    pub(crate) fn duplicate_request(operation: &str) -> Self {
        Self::new("DuplicateRequest", format!("Another operation is in progress: {operation}."))
            .with("DuplicateOperationId", operation)
    }

    /// The body of the answer. Errors of the model say `Message`, those of AWS's front end `message`.
    pub(crate) fn body(&self) -> Value {
        let member = match self.code.as_str() {
            "ThrottlingException"
            | "SerializationException"
            | "UnknownOperationException"
            | "ExpiredTokenException"
            | "UnrecognizedClientException" => "message",
            _ => "Message",
        };
        let mut body = json!({ "__type": self.code, member: self.message });
        for (name, value) in &self.members {
            body[*name] = json!(value);
        }
        body
    }
}
