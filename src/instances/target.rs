//! The Cloud Map service in which a Kubernetes Service is registered by default.

use std::sync::Arc;

use api::names::{ANNOTATION_TARGET_NAMESPACE, ANNOTATION_TARGET_SERVICE};
use model::{Excerpt, ServiceKey, Target, hosts};

/// TTL of the records of services that are created for exports, in seconds, as in ECS and the AWS controller.
pub const DEFAULT_TTL: u32 = 60;

/// Maximum length of the name of an API-only namespace (Cloud Map `CreateHttpNamespace`).
const MAX_NAMESPACE: usize = 1024;
/// Maximum length of the name of a service (Cloud Map `CreateService`). The longest `<service>.<namespace>` of
/// Kubernetes fits exactly.
const MAX_SERVICE: usize = 127;
/// Maximum length of a label in a service's name.
const MAX_LABEL: usize = 63;

/// The message for a target in a ledger.
const IN_LEDGER: &str = "names that begin with \"clusterset-\" belong to the ledgers of ClusterSets, in which nothing else may be \
                         registered; name another namespace with the annotation cloudmap-mcs/namespace (on a ServiceExport) or \
                         cloudmap.controller/namespace (on a Service)";

/// How implied targets are named.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Naming {
    /// Namespace and service have the names that they have in Kubernetes, so that an ECS task can use the names that it
    /// knows.
    #[default]
    PerNamespace,
    /// One Cloud Map namespace for all, with services named `<service>.<namespace>`.
    OneNamespace(Arc<str>),
}

impl Naming {
    /// The target of a Service that names none itself.
    pub fn implied(&self, service: &ServiceKey) -> Target {
        match self {
            Self::PerNamespace => Target { namespace: service.namespace.clone(), service: service.name.clone() },
            Self::OneNamespace(namespace) => Target {
                namespace: namespace.clone(),
                service: format!("{}.{}", service.name, service.namespace).into(),
            },
        }
    }
}

/// What the annotations of a ServiceExport name of its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    namespace: Option<&'a str>,
    service: Option<&'a str>,
}

impl<'a> Named<'a> {
    /// Reads the annotations. `value` returns the value of one; spaces around it do not count.
    pub fn read(value: impl Fn(&str) -> Option<&'a str>) -> Self {
        let [namespace, service] =
            [ANNOTATION_TARGET_NAMESPACE, ANNOTATION_TARGET_SERVICE].map(|name| value(name).map(str::trim));
        Self { namespace, service }
    }

    /// Whether they name any part of the target.
    pub const fn is_any(self) -> bool {
        self.namespace.is_some() || self.service.is_some()
    }

    /// Whether they name the whole target, so that nothing is implied.
    pub const fn is_all(self) -> bool {
        self.namespace.is_some() && self.service.is_some()
    }

    /// The target of an export. What its annotations do not name is implied.
    pub fn target(self, naming: &Naming, export: &ServiceKey) -> Target {
        let implied = naming.implied(export);
        Target {
            namespace: self.namespace.map_or(implied.namespace, Arc::from),
            service: self.service.map_or(implied.service, Arc::from),
        }
    }
}

/// A name that Cloud Map would refuse. The message has the name and the rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid Cloud Map {what} {}: {rule}{}", Excerpt(name), hosts::check(name).err().map_or_else(String::new, |no_host| no_host.hint()))]
pub struct InvalidTarget {
    what: &'static str,
    name: Arc<str>,
    rule: &'static str,
}

/// Checks the names of a target against Cloud Map's rules, and refuses ledgers ([`ledger::is_ledger`]), no matter who
/// chose the names.
///
/// # Errors
/// Which name is not valid, and why.
pub fn validate(target: &Target) -> Result<(), InvalidTarget> {
    let Target { namespace, service } = target;
    let refuse = |what, name: &Arc<str>, rule| Err(InvalidTarget { what, name: name.clone(), rule });
    if namespace.is_empty() || namespace.len() > MAX_NAMESPACE || !namespace.bytes().all(|c| c.is_ascii_graphic()) {
        return refuse("namespace", namespace, "it must have 1 to 1,024 printable ASCII characters and no spaces");
    }
    if namespace.starts_with("arn:") {
        return refuse("namespace", namespace, "it must be the name or the id of a namespace, not an ARN");
    }
    if ledger::is_ledger(namespace) {
        return refuse("namespace", namespace, IN_LEDGER);
    }
    if service.is_empty() || service.len() > MAX_SERVICE {
        return refuse("service name", service, "it must have 1 to 127 characters");
    }
    if !service.split('.').all(is_label) {
        return refuse(
            "service name",
            service,
            "it must be labels of letters, digits, '_' and '-' joined by dots, each of at most 63 characters and neither starting nor ending with '-'",
        );
    }
    Ok(())
}

/// Whether it is a single letter or digit, or 2 to 63 characters without a hyphen at either end.
fn is_label(label: &str) -> bool {
    let edge = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
    match label.as_bytes() {
        [] => false,
        [only] => only.is_ascii_alphanumeric(),
        [first, inner @ .., last] => {
            label.len() <= MAX_LABEL && edge(*first) && edge(*last) && inner.iter().all(|&c| edge(c) || c == b'-')
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn target(namespace: &str, service: &str) -> Target {
        Target { namespace: namespace.into(), service: service.into() }
    }

    #[test]
    fn names_are_those_of_kubernetes_unless_one_namespace_is_for_all() {
        let web = ServiceKey::new("shop", "web");
        assert_eq!(Naming::default().implied(&web), target("shop", "web"));
        assert_eq!(Naming::OneNamespace("internal".into()).implied(&web), target("internal", "web.shop"));
    }

    #[test]
    fn what_annotations_do_not_name_is_implied_and_spaces_around_names_do_not_count() {
        let (web, one) = (ServiceKey::new("shop", "web"), Naming::OneNamespace("internal".into()));
        for (namespace, service, per_namespace, in_one) in [
            (None, None, target("shop", "web"), target("internal", "web.shop")),
            (Some(" ecs"), None, target("ecs", "web"), target("ecs", "web.shop")),
            (None, Some("www "), target("shop", "www"), target("internal", "www")),
            (Some("ecs"), Some("www"), target("ecs", "www"), target("ecs", "www")),
        ] {
            let value = |name: &str| if name == ANNOTATION_TARGET_NAMESPACE { namespace } else { service };
            let named = Named::read(value);
            assert_eq!(named.target(&Naming::PerNamespace, &web), per_namespace);
            assert_eq!(named.target(&one, &web), in_one);
            assert_eq!(named.is_any(), namespace.or(service).is_some());
            assert_eq!(named.is_all(), namespace.and(service).is_some());
        }
    }

    #[test]
    fn accepts_what_cloud_map_accepts() {
        for (namespace, service) in [
            ("shop", "web"),
            ("my-ns.internal", "a"),
            ("Shop_1", "_http._tcp"),
            ("clusterset", "clusters"),
            ("my-clusterset-prod", "clusters"),
            ("x", "web.shop"),
            (&*"n".repeat(1024), &*format!("{0}.{0}", "s".repeat(63))),
        ] {
            validate(&target(namespace, service)).unwrap();
        }
    }

    #[test]
    fn refuses_what_cloud_map_refuses_and_gives_the_rule() {
        for (namespace, service, named) in [
            ("", "web", "namespace \"\""),
            ("a b", "web", "namespace \"a b\""),
            ("grün", "web", "namespace"),
            ("arn:aws:servicediscovery:x", "web", "ARN"),
            ("clusterset-prod", "clusters", "ledgers"),
            ("ClusterSet-any.example", "web", "ledgers"),
            ("clusterset-", "web", "cloudmap-mcs/namespace"),
            (&*"n".repeat(1025), "web", "1,024"),
            ("shop", "", "service name \"\""),
            ("shop", "-web", "service name \"-web\""),
            ("shop", "web-", "service name"),
            ("shop", "web..x", "service name"),
            ("shop", "_", "service name"),
            ("shop", "we b", "service name"),
            ("shop", &*"s".repeat(64), "63 characters"),
            ("shop", &*format!("{0}.{0}a", "s".repeat(63)), "127"),
        ] {
            let error = validate(&target(namespace, service)).unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }

    /// What people write into a field that takes one name.
    #[test]
    fn several_names_and_names_in_other_scripts_get_a_hint() {
        for (namespace, service, hint) in [
            ("shop test", "web", "several names; write one"),
            ("shop", "web\napi", "several names; write one"),
            ("shop", "web,api", "several names; write one"),
            ("shop", "bücher", "\"xn--bcher-kva\""),
            ("例え", "web", "\"xn--r8jz45g\""),
            ("shop", "web:80", "write only \"web\""),
            ("shop", "https://web.shop/", "write only \"web.shop\""),
        ] {
            let error = validate(&target(namespace, service)).unwrap_err().to_string();
            assert!(error.contains(hint), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_kubernetes_service_has_a_valid_target(
            namespace in "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
            name in "[a-z]([a-z0-9-]{0,61}[a-z0-9])?",
        ) {
            let service = ServiceKey::new(namespace, name);
            let implied = Naming::PerNamespace.implied(&service);
            prop_assert_eq!(validate(&implied).is_ok(), !implied.namespace.starts_with("clusterset-"));
            prop_assert!(validate(&Naming::OneNamespace("all".into()).implied(&service)).is_ok());
        }
    }
}
