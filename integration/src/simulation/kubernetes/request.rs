//! Requests as the Kubernetes API has them in HTTP.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, Uri, header};
use serde_json::Value;

use super::{log::Verb, refusal::Refusal, resources::Resource, selector::Selector};

/// A request that can be read.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) verb: Verb,
    pub(super) resource: &'static Resource,
    /// `None`: of all namespaces, or of none.
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) status: bool,
    pub(super) query: BTreeMap<String, String>,
    pub(super) selector: Selector,
    /// Only objects of this name are listed.
    pub(super) only: Option<String>,
    /// Only `metadata` is asked for.
    pub(super) metadata_only: bool,
    pub(super) body: Value,
}

impl Request {
    /// # Errors
    /// `None`: nothing is served at this path. Otherwise the request is wrong.
    pub(super) fn parse(method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Result<Self, Option<Refusal>> {
        let mut parts = uri.path().trim_matches('/').split('/');
        let group = match parts.next() {
            Some("api") => "",
            Some("apis") => parts.next().ok_or(None)?,
            _ => return Err(None),
        };
        let version = parts.next().ok_or(None)?;
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && !matches!(rest[0], "status" | "finalize") => {
                (Some((*namespace).to_owned()), rest)
            }
            rest => (None, rest),
        };
        let (plural, name, status) = match rest {
            [plural] => (plural, None, false),
            [plural, name] => (plural, Some((*name).to_owned()), false),
            [plural, name, "status"] => (plural, Some((*name).to_owned()), true),
            _ => return Err(None),
        };
        let resource = Resource::find(group, version, plural).ok_or(None)?;
        if status && !resource.status {
            return Err(None);
        }
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        let text =
            |name: header::HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let selector = Selector::parse(query.get("labelSelector").map_or("", String::as_str)).map_err(Some)?;
        let only = match query.get("fieldSelector").map_or("", String::as_str) {
            "" => None,
            fields => Some(fields.strip_prefix("metadata.name=").map(str::to_owned).ok_or_else(|| {
                Some(Refusal::bad_request("the simulated API server selects only the field metadata.name"))
            })?),
        };
        Ok(Self {
            verb: verb(method, name.is_some(), &query, text(header::CONTENT_TYPE))?,
            resource,
            namespace,
            name,
            status,
            selector,
            only,
            metadata_only: text(header::ACCEPT).contains("as=PartialObjectMetadata"),
            body: parse_body(body)?,
            query,
        })
    }

    /// `dryRun=All`, and its likes.
    pub(super) fn has(&self, parameter: &str, value: &str) -> bool {
        self.query.get(parameter).is_some_and(|given| given == value)
    }

    pub(super) fn number(&self, parameter: &str) -> Option<u64> {
        self.query.get(parameter)?.parse().ok()
    }
}

fn parse_body(body: &[u8]) -> Result<Value, Option<Refusal>> {
    if body.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(body).map_err(|error| Some(Refusal::bad_request(error.to_string())))
}

fn verb(
    method: &Method,
    named: bool,
    query: &BTreeMap<String, String>,
    content_type: &str,
) -> Result<Verb, Option<Refusal>> {
    let watches = query.get("watch").is_some_and(|watch| watch == "true" || watch == "1");
    match (method.as_str(), named) {
        ("GET", true) => Ok(Verb::Get),
        ("GET", false) if watches => Ok(Verb::Watch),
        ("GET", false) => Ok(Verb::List),
        ("POST", false) => Ok(Verb::Create),
        ("PUT", true) => Ok(Verb::Update),
        ("DELETE", true) => Ok(Verb::Delete),
        ("PATCH", true) if content_type.starts_with("application/apply-patch+yaml") => Ok(Verb::Apply),
        ("PATCH", true) if content_type.starts_with("application/merge-patch+json") => Ok(Verb::Patch),
        ("PATCH", true) => Err(Some(Refusal::unsupported(content_type))),
        _ => Err(Some(Refusal::bad_request(format!("the simulated API server does not serve {method} here")))),
    }
}
