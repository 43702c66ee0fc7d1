//! The Cloud Map namespace of a host name, and of a name or an id in an annotation.

use std::sync::Arc;

use clap::ValueEnum;

use super::AnnotationSettings;
use cloudmap::{Namespace, NamespaceKind};
use model::Target;

/// Kinds of DNS namespaces (`--aws-zone-type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ZoneKind {
    /// Public DNS namespaces.
    Public,
    /// Private DNS namespaces.
    Private,
}

/// The properties of a Cloud Map namespace that matter here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Zone {
    /// Its id, such as `ns-abcdefghij123456`.
    pub id: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// Its kind.
    pub kind: NamespaceKind,
}

/// Whether only the list of namespaces says which target an annotation means: the namespace may be an id, or capital
/// letters may not count.
pub fn needs_zones(target: &Target) -> bool {
    let has_capitals = |name: &str| name.bytes().any(|c| c.is_ascii_uppercase());
    is_id(&target.namespace) || has_capitals(&target.namespace) || has_capitals(&target.service)
}

/// Whether a name has the form of the id of a namespace.
pub fn is_id(name: &str) -> bool {
    let rest = name.strip_prefix("ns-").unwrap_or_default();
    !rest.is_empty() && rest.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
}

/// All namespaces of this account, sorted by name. If several have one name, the first one is used
/// ([`Namespace::precedence`]).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Zones(Vec<Zone>);

impl Zones {
    /// The zones of these namespaces.
    pub fn new(namespaces: &[Namespace]) -> Self {
        let mut sorted: Vec<&Namespace> = namespaces.iter().collect();
        sorted.sort_by_key(|namespace| (&namespace.name, namespace.precedence()));
        let zone = |namespace: &Namespace| Zone {
            id: namespace.id.clone(),
            name: namespace.name.clone(),
            kind: namespace.kind,
        };
        Self(sorted.into_iter().map(zone).collect())
    }

    /// The target that an annotation means, so that a service has one target however it is written. An id stands for the
    /// name of its namespace. In a DNS namespace, capital letters do not count; in an API-only one they do. What is not in
    /// the list stays as it is.
    ///
    /// # Errors
    /// The id is of a namespace whose name stands for another one, and the remedy.
    pub fn place(&self, target: Target) -> Result<Target, String> {
        let Target { namespace, service } = &target;
        let exact = self.0.iter().find(|zone| zone.name == *namespace);
        let by_id = || self.0.iter().find(|zone| zone.id == *namespace);
        let is_dns = |zone: &&Zone| zone.kind != NamespaceKind::Http;
        let alike = || self.0.iter().filter(is_dns).find(|zone| zone.name.eq_ignore_ascii_case(namespace));
        let Some(zone) = exact.or_else(by_id).or_else(alike) else { return Ok(target) };
        // Of several namespaces with one name, instances are written into the first.
        let used = self.0.iter().find(|other| other.name == zone.name).unwrap_or(zone);
        if zone.id == *namespace && used.id != zone.id {
            return Err(format!(
                "{namespace} is one of several Cloud Map namespaces with the name {:?}, of which only the oldest, {}, is used; \
                 name that one, or delete it",
                zone.name, used.id
            ));
        }
        let service = if is_dns(&used) { service.to_ascii_lowercase().into() } else { service.clone() };
        Ok(Target { namespace: used.name.clone(), service })
    }

    /// Whether a host name is left to others, such as an external-dns that writes it to Route 53: `--domain-filter`
    /// excludes it, and it is in no namespace.
    pub fn leaves(&self, host: &str, settings: &AnnotationSettings) -> bool {
        let host = host.to_ascii_lowercase();
        let takes = |zone: &Zone| {
            let rest = host.strip_suffix(&*zone.name.to_ascii_lowercase());
            rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        !settings.covers(&host) && !self.0.iter().any(takes)
    }

    /// The target of a host name: the longest namespace that is a suffix of it at a dot, with the rest as the name of
    /// the service. Ledgers take no host names. Names compare without case, as in DNS; the name of the service is in
    /// lower case.
    ///
    /// # Errors
    /// Why no namespace takes the name, and the remedy.
    pub fn target(&self, host: &str, settings: &AnnotationSettings) -> Result<Target, String> {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let service = |zone: &Zone| {
            let rest = host.strip_suffix(&*zone.name.to_ascii_lowercase())?;
            rest.strip_suffix('.').filter(|service| !service.is_empty()).map(str::to_owned)
        };
        let is_ledger = |zone: &Zone| ledger::is_ledger(&zone.name);
        let matching = || self.0.iter().filter(|zone| !is_ledger(zone)).filter_map(|zone| Some((zone, service(zone)?)));
        let found = matching().filter(|(zone, _)| settings.takes(zone)).max_by_key(|(zone, _)| zone.name.len());
        if let Some((zone, service)) = found {
            // A target is a name. If several namespaces have it, instances are written into the first one, no matter
            // which was meant.
            let used = self.0.iter().find(|other| other.name == zone.name).unwrap_or(zone);
            if !settings.takes(used) {
                return Err(format!(
                    "host name {host:?} belongs to several Cloud Map namespaces with the name {:?}, of which only the {} one is \
                     used, and --aws-zone-type excludes that one; delete that namespace, change the host name, or leave this \
                     host name to external-dns",
                    used.name,
                    used.kind.as_str()
                ));
            }
            return Ok(Target { namespace: zone.name.clone(), service: service.into() });
        }
        if let Some((zone, _)) = matching().max_by_key(|(zone, _)| zone.name.len()) {
            return Err(format!(
                "host name {host:?} belongs to Cloud Map namespace {:?}, which --domain-filter or --aws-zone-type excludes; \
                 change these flags of the controller, or the host name",
                zone.name
            ));
        }
        if let Some(zone) = self.0.iter().find(|zone| is_ledger(zone) && service(zone).is_some()) {
            return Err(format!(
                "host name {host:?} belongs to Cloud Map namespace {:?}, the ledger of a ClusterSet, in which nothing else may be \
                 registered; change the host name",
                zone.name
            ));
        }
        if self.0.iter().any(|zone| zone.name.eq_ignore_ascii_case(&host)) {
            return Err(format!(
                "host name {host:?} is the name of a Cloud Map namespace; put the name of a service before it"
            ));
        }
        Err(format!(
            "host name {host:?} is in no Cloud Map namespace; create a namespace that it ends with, or change the host name \
             (the controller creates none for a host name)"
        ))
    }
}

impl AnnotationSettings {
    /// Whether a namespace takes host names, by the rules of external-dns.
    fn takes(&self, zone: &Zone) -> bool {
        let kind = match self.zone_kind {
            None => true,
            Some(ZoneKind::Public) => zone.kind == NamespaceKind::DnsPublic,
            Some(ZoneKind::Private) => zone.kind == NamespaceKind::DnsPrivate,
        };
        kind && self.covers(&zone.name.to_ascii_lowercase())
    }

    /// Whether `--domain-filter` includes a name, in lower case. A filter means the domain and its subdomains, and with
    /// a leading dot only the subdomains.
    fn covers(&self, name: &str) -> bool {
        let within = |filter: &String| {
            let domain = filter.trim().trim_end_matches('.').to_ascii_lowercase();
            match domain.strip_prefix('.') {
                Some(parent) => name.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.')),
                None => name == domain || name.strip_suffix(&domain).is_some_and(|rest| rest.ends_with('.')),
            }
        };
        let mut filters = self.domain_filter.iter().filter(|filter| !filter.trim().is_empty()).peekable();
        filters.peek().is_none() || filters.any(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(names: &[(&str, NamespaceKind)]) -> Zones {
        let namespaces: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, (name, kind))| Namespace {
                id: format!("ns-{n}").into(),
                arn: "arn".into(),
                name: (*name).into(),
                http_name: (*name).into(),
                kind: *kind,
                description: None,
                created: 0,
                soa_ttl: None,
                hosted_zone: None,
            })
            .collect();
        Zones::new(&namespaces)
    }

    fn all() -> Zones {
        zones(&[
            ("internal", NamespaceKind::DnsPrivate),
            ("prod.internal", NamespaceKind::DnsPrivate),
            ("example.org", NamespaceKind::DnsPublic),
            ("test-namespace", NamespaceKind::Http),
        ])
    }

    #[test]
    fn the_namespace_with_the_longest_suffix_at_a_dot_takes_the_name() {
        let settings = AnnotationSettings::default();
        for (host, target) in [
            ("web.internal", Some("internal/web")),
            ("web.prod.internal", Some("prod.internal/web")),
            ("a.b.prod.internal.", Some("prod.internal/a.b")),
            ("web.xprod.internal", Some("internal/web.xprod")),
            ("Web.Example.ORG", Some("example.org/web")),
            // The reason why people left external-dns: an API-only namespace that is no domain.
            ("nginx-service.test-namespace", Some("test-namespace/nginx-service")),
            ("web.example.com", None),
            ("example.org", None),
            ("internal", None),
            ("", None),
        ] {
            let found = all().target(host, &settings).ok().map(|target| target.to_string());
            assert_eq!(found.as_deref(), target, "{host}");
        }
        // A namespace is no service of a namespace above it, unless that one exists.
        assert_eq!(all().target("prod.internal", &settings).unwrap().to_string(), "internal/prod");
    }

    #[test]
    fn a_target_is_the_same_however_its_namespace_and_service_are_written() {
        let zones = zones(&[
            ("internal", NamespaceKind::DnsPrivate),
            ("Example.org", NamespaceKind::DnsPublic),
            ("Shop", NamespaceKind::Http),
            ("Both", NamespaceKind::Http),
            ("both", NamespaceKind::DnsPrivate),
            ("clusterset-prod", NamespaceKind::Http),
        ]);
        for (namespace, service, expected) in [
            ("internal", "web", "internal/web"),
            ("Internal", "web", "internal/web"),
            ("INTERNAL", "Web", "internal/web"),
            ("ns-0", "WEB", "internal/web"),
            ("example.ORG", "web", "Example.org/web"),
            ("ns-1", "web", "Example.org/web"),
            // In API-only namespaces, capitals count.
            ("Shop", "Web", "Shop/Web"),
            ("SHOP", "web", "SHOP/web"),
            ("ns-2", "Web", "Shop/Web"),
            ("Both", "Web", "Both/Web"),
            ("BOTH", "Web", "both/web"),
            // The caller refuses ledgers.
            ("ns-5", "web", "clusterset-prod/web"),
            // Not in the list.
            ("ns-9", "Web", "ns-9/Web"),
            ("Missing", "web", "Missing/web"),
        ] {
            let target = Target { namespace: namespace.into(), service: service.into() };
            assert_eq!(zones.place(target).unwrap().to_string(), expected, "{namespace}/{service}");
        }
        for (namespace, service, needed) in [
            ("internal", "web", false),
            ("ns-team.internal", "web", false),
            ("ns-", "web", false),
            ("ns-abcdefghij123456", "web", true),
            ("Internal", "web", true),
            ("internal", "wEb", true),
        ] {
            let target = Target { namespace: namespace.into(), service: service.into() };
            assert_eq!(needs_zones(&target), needed, "{target}");
        }
    }

    #[test]
    fn an_id_whose_name_stands_for_an_older_namespace_is_refused_with_the_id_that_is_used() {
        let zones = zones(&[("internal", NamespaceKind::DnsPrivate), ("internal", NamespaceKind::Http)]);
        let place = |namespace: &str| zones.place(Target { namespace: namespace.into(), service: "web".into() });
        // Both are as old, so the kind decides.
        assert_eq!(place("ns-1").unwrap().to_string(), "internal/web");
        let message = place("ns-0").unwrap_err();
        assert!(message.contains("ns-0") && message.contains("ns-1") && message.contains("\"internal\""), "{message}");
    }

    #[test]
    fn a_ledger_takes_no_host_name() {
        let settings = AnnotationSettings::default();
        let zones = |names: &[&str]| zones(&names.iter().map(|name| (*name, NamespaceKind::Http)).collect::<Vec<_>>());
        for host in ["clusters.clusterset-prod", "exports-0.red.ClusterSet-prod", "a.clusterset-prod.example.org"] {
            let message =
                zones(&["clusterset-prod", "clusterset-prod.example.org"]).target(host, &settings).unwrap_err();
            assert!(message.contains("ledger") && message.contains("change the host name"), "{message}");
        }
        // Below a domain it is a name like any other.
        let found =
            zones(&["clusterset-prod.example.org", "example.org"]).target("a.clusterset-prod.example.org", &settings);
        assert_eq!(found.unwrap().to_string(), "example.org/a.clusterset-prod");
    }

    #[test]
    fn flags_exclude_namespaces() {
        let filtered = |filter: &[&str], zone_kind| AnnotationSettings {
            domain_filter: filter.iter().map(|&filter| filter.to_owned()).collect(),
            zone_kind,
            ..AnnotationSettings::default()
        };
        for (settings, host, target) in [
            (filtered(&["prod.internal"], None), "web.prod.internal", Some("prod.internal/web")),
            (filtered(&["internal"], None), "web.prod.internal", Some("prod.internal/web")),
            (filtered(&[".internal"], None), "web.prod.internal", Some("prod.internal/web")),
            (filtered(&[".internal"], None), "web.internal", None),
            (filtered(&["ternal"], None), "web.internal", None),
            (filtered(&["example.org", " Internal. "], None), "web.internal", Some("internal/web")),
            (filtered(&[""], None), "web.internal", Some("internal/web")),
            // An excluded namespace does not take names from a shorter one.
            (filtered(&[], Some(ZoneKind::Private)), "web.prod.internal", Some("prod.internal/web")),
            (filtered(&[], Some(ZoneKind::Private)), "web.example.org", None),
            (filtered(&[], Some(ZoneKind::Public)), "web.example.org", Some("example.org/web")),
            (filtered(&[], Some(ZoneKind::Private)), "web.test-namespace", None),
        ] {
            let found = all().target(host, &settings);
            assert_eq!(found.as_ref().ok().map(ToString::to_string).as_deref(), target, "{host} {settings:?}");
            if let Err(message) = found {
                assert!(message.contains("--domain-filter") || target.is_some(), "{message}");
            }
        }
    }

    #[test]
    fn if_namespaces_share_a_name_the_used_one_must_be_of_the_requested_kind() {
        use NamespaceKind::{DnsPrivate, DnsPublic, Http};
        let of = |zone_kind| AnnotationSettings { zone_kind, ..AnnotationSettings::default() };
        for (kinds, zone_kind, used) in [
            (&[DnsPublic, DnsPrivate][..], Some(ZoneKind::Public), Err("private")),
            (&[DnsPublic, DnsPrivate], Some(ZoneKind::Private), Ok(())),
            (&[DnsPublic, DnsPrivate], None, Ok(())),
            (&[DnsPublic, Http], Some(ZoneKind::Public), Err("API-only")),
            (&[DnsPrivate, Http], Some(ZoneKind::Private), Err("API-only")),
            (&[DnsPublic, DnsPublic], Some(ZoneKind::Public), Ok(())),
        ] {
            let names: Vec<_> = kinds.iter().map(|&kind| ("example.org", kind)).collect();
            // A shorter name does not take it instead.
            let zones = zones(&[names, vec![("org", DnsPublic), ("org", DnsPrivate)]].concat());
            match (zones.target("web.Example.org", &of(zone_kind)), used) {
                (Ok(target), Ok(())) => assert_eq!(target.to_string(), "example.org/web"),
                (Err(message), Err(kind)) => {
                    assert!(message.contains(kind) && message.contains("--aws-zone-type"), "{message}");
                }
                (found, _) => panic!("{kinds:?} {zone_kind:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_refusal_has_the_host_name_and_the_remedy() {
        let settings = AnnotationSettings::default();
        let message = all().target("web.example.com", &settings).unwrap_err();
        assert!(message.contains("\"web.example.com\"") && message.contains("create a namespace"), "{message}");
        assert!(all().target("example.org", &settings).unwrap_err().contains("put the name of a service"));
    }
}
