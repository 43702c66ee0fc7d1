//! How the API server says no.

use serde_json::{Value, json};

use super::resources::Resource;

/// An answer that is an error: a `Status` of Kubernetes, in its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    reason: &'static str,
    message: String,
    details: Value,
    /// In seconds, for the header `Retry-After`.
    pub(super) retry_after: Option<u64>,
}

impl Refusal {
    fn new(code: u16, reason: &'static str, message: String, details: Value) -> Self {
        Self { code, reason, message, details, retry_after: None }
    }

    pub(super) fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::new(404, "NotFound", message, json!({"name": name, "group": resource.group, "kind": resource.plural}))
    }

    pub(super) fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::new(
            409,
            "AlreadyExists",
            message,
            json!({"name": name, "group": resource.group, "kind": resource.plural}),
        )
    }

    pub(super) fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::new(409, "Conflict", message, json!({"name": name, "group": resource.group, "kind": resource.plural}))
    }

    /// The object was changed since the caller read it.
    pub(super) fn outdated(resource: &Resource, name: &str) -> Self {
        let why = "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// A server-side apply without force of fields that others own: `(manager, field)` each.
    pub(super) fn fields_owned(conflicts: &[(String, String)]) -> Self {
        let fields = conflicts.iter().map(|(manager, field)| format!("conflict with {manager:?}: {field}"));
        let message =
            format!("Apply failed with {} conflict(s): {}", conflicts.len(), fields.collect::<Vec<_>>().join(", "));
        let causes: Vec<_> = conflicts
            .iter()
            .map(|(manager, field)| {
                json!({"reason": "FieldManagerConflict", "message": format!("conflict with {manager:?}"), "field": field})
            })
            .collect();
        Self::new(409, "Conflict", message, json!({"causes": causes}))
    }

    pub(super) fn invalid(resource: &Resource, name: &str, field: &str, why: &str) -> Self {
        let message = format!("{} {name:?} is invalid: {field}: {why}", resource.kind);
        let details = json!({
            "name": name, "group": resource.group, "kind": resource.kind,
            "causes": [{"reason": "FieldValueInvalid", "message": why, "field": field}],
        });
        Self::new(422, "Invalid", message, details)
    }

    /// A field that this version of Kubernetes does not have, in a server-side apply.
    pub(super) fn unknown_field(name: &str, resource: &Resource, field: &str) -> Self {
        let message = format!(
            "failed to create typed patch object ({name}; {}, Kind={}): {field}: field not declared in schema",
            resource.api_version(),
            resource.kind
        );
        Self::new(500, "", message, Value::Null)
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into(), Value::Null)
    }

    pub(super) fn unsupported(content_type: &str) -> Self {
        let message = format!("the body of the request was in an unknown format: {content_type}");
        Self::new(415, "UnsupportedMediaType", message, Value::Null)
    }

    /// Nothing can be created in a namespace that is being deleted.
    pub(super) fn terminating(resource: &Resource, name: &str, namespace: &str) -> Self {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        let message = format!("{} {name:?} is forbidden: {why}", resource.qualified());
        let cause = json!({"reason": "NamespaceTerminating", "message": why, "field": "metadata.namespace"});
        let details = json!({"name": name, "group": resource.group, "kind": resource.plural, "causes": [cause]});
        Self::new(403, "Forbidden", message, details)
    }

    /// A policy of the cluster's administrators.
    pub(super) fn denied(why: &str) -> Self {
        Self::new(
            403,
            "Forbidden",
            format!("admission webhook \"policy.example.com\" denied the request: {why}"),
            Value::Null,
        )
    }

    /// The versions asked for are not kept any more.
    pub(super) fn expired(version: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {version} ({oldest})"), Value::Null)
    }

    /// A list of a version that is not there yet.
    pub(super) fn too_large(version: u64, newest: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {version}, current: {newest}");
        let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
        Self::new(504, "Timeout", message, json!({"causes": [cause], "retryAfterSeconds": 1}))
    }

    pub(super) fn throttled(retry_after: u64) -> Self {
        let message = "Too many requests, please try again later.".to_owned();
        let refusal = Self::new(429, "TooManyRequests", message, json!({"retryAfterSeconds": retry_after}));
        Self { retry_after: Some(retry_after), ..refusal }
    }

    pub(super) fn unavailable() -> Self {
        let message = "the server is currently unable to handle the request".to_owned();
        Self::new(503, "ServiceUnavailable", message, Value::Null)
    }

    pub(super) fn status(&self) -> Value {
        let Self { code, reason, message, details, retry_after: _ } = self;
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": message, "reason": reason, "code": code,
        });
        if !details.is_null() {
            status["details"] = details.clone();
        }
        status
    }
}
