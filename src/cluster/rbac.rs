//! Which permissions requests need, as the API server's authorizer sees them, and which ones `config/rbac` grants.

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fs};

use k8s_openapi::api::rbac::v1::PolicyRule;

use crate::fake_api::Request;

/// The controller's namespace. Requests only in it need no more than a Role.
pub const OWN: &str = "cloudmap-mcs-system";

/// What authorizes a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// The namespace, unless the resource has none or all are asked for.
    pub namespace: Option<String>,
    /// The API group; empty for the core group.
    pub group: String,
    /// With its subresource, such as `services/status`.
    pub resource: String,
    /// The name, unless the request is for a collection.
    pub name: Option<String>,
}

impl Access {
    /// What the authorizer looks at.
    pub fn of(request: &Request) -> Self {
        let mut parts = request.path.trim_matches('/').split('/');
        let group = match parts.next() {
            Some("apis") => parts.next().unwrap_or_default().to_owned(),
            _ => String::new(),
        };
        let _version = parts.next();
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let resource = match rest {
            [resource, _, subresource, ..] => format!("{resource}/{subresource}"),
            [resource, ..] => (*resource).to_owned(),
            [] => String::new(),
        };
        Self { namespace, group, resource, name: rest.get(1).map(|name| (*name).to_owned()) }
    }
}

fn verbs(request: &Request, access: &Access) -> &'static [&'static str] {
    match (request.method.as_str(), &access.name) {
        ("GET", Some(_)) => &["get"],
        ("GET", None) if request.query.contains("watch=true") => &["watch"],
        ("GET", None) => &["list"],
        ("POST", _) => &["create"],
        ("PUT", _) => &["update"],
        ("DELETE", _) => &["delete"],
        // Server-side apply of a missing object needs `create`; a status is never created.
        ("PATCH", _) if request.content_type.contains("apply-patch") && !access.resource.contains('/') => {
            &["create", "patch"]
        }
        ("PATCH", _) => &["patch"],
        (method, _) => panic!("no verb for {method}"),
    }
}

/// (own namespace only, group, resource, verb)
pub type Permission = (bool, String, String, String);

/// The permissions that these requests need.
pub fn needed(requests: &[Request]) -> BTreeSet<Permission> {
    requests
        .iter()
        .flat_map(|request| {
            let access = Access::of(request);
            let own = access.namespace.as_deref() == Some(OWN);
            verbs(request, &access)
                .iter()
                .map(move |verb| (own, access.group.clone(), access.resource.clone(), (*verb).to_owned()))
        })
        .collect()
}

/// The permissions that rules grant, in the own namespace only or in all.
pub fn granted(own: bool, rules: Vec<PolicyRule>) -> BTreeSet<Permission> {
    let mut permissions = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    permissions.insert((own, group.clone(), resource.clone(), verb.clone()));
                }
            }
        }
    }
    permissions
}

/// An object of a file, by its path from `config/rbac`.
pub fn manifest<T: serde::de::DeserializeOwned>(file: &str) -> T {
    let path = base::repository().join("config/rbac").join(file);
    serde_yaml_ng::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}
