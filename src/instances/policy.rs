//! Who may register where. This is the one place that decides it. Tenants write Services, Ingresses and ServiceExports
//! in their own namespaces. Only administrators write Namespaces and the controller's flags.
//!
//! | question | rule |
//! |---|---|
//! | which of several claims gets a target | those of owners that are able, of these the claims of the namespace whose own name the target is ([`is_at_home`]), of these the oldest ([`Precedence`]) |
//! | may an object name a target at all | with `--registration-policy=open` yes; with `granted`, if the annotation `cloudmap-mcs/may-register` on its Namespace lists it |
//! | may it join a service that others made, or have their tasks hidden there | with both policies, if `cloudmap-mcs/may-register` lists the target |
//! | is a missing Cloud Map namespace made for an export | only the one that its name implies, and those that the annotation `cloudmap-mcs/may-create` on its Namespace lists |
//! | may an object take over from another controller | if `cloudmap-mcs/allow-adopt` on its Namespace, or `--txt-owner-id`, allows it |

use std::{collections::BTreeMap, sync::Arc};

use clap::ValueEnum;

use super::Adopt;
use api::names::{ANNOTATION_ADOPT, ANNOTATION_ALLOW_ADOPT, ANNOTATION_MAY_REGISTER};
use base::pattern::matches;
use cluster::objects::Namespace;
use model::{ClaimOwner, Registration, Target};

/// Which targets annotations may name (`--registration-policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum RegistrationPolicy {
    /// All, as in external-dns.
    #[default]
    Open,
    /// Those that annotations on the Namespace grant.
    Granted,
}

/// Whether the target is the owner's own name, in either form of naming and regardless of this cluster's flags, because
/// all clusters must come to the same result. These are all services of the Cloud Map namespace with the name of the
/// owner's Kubernetes namespace, and `<name>.<namespace>` in any Cloud Map namespace.
pub fn is_at_home(owner: &ClaimOwner, target: &Target) -> bool {
    let ClaimOwner { kind: _, namespace, name } = owner;
    target.namespace == *namespace
        || target.service.strip_suffix(&**namespace).and_then(|rest| rest.strip_suffix('.')) == Some(name)
}

/// Order of the claims to one target: the smallest gets it. The cluster's id and the owner follow, only to make the
/// order total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Precedence {
    /// The owner may not register, whoever else claims the target.
    unable: bool,
    /// The name is not the owner's own.
    away: bool,
    /// When it was claimed, in seconds since 1970.
    claimed: i64,
}

impl Precedence {
    /// The precedence of a claim.
    pub fn new(owner: &ClaimOwner, target: &Target, claimed: i64, unable: bool) -> Self {
        Self { unable, away: !is_at_home(owner, target), claimed }
    }

    /// The precedence of a registration record.
    pub fn of(registration: &Registration) -> Self {
        let Registration { target, owner, claimed, state: _ } = registration;
        Self::new(owner, target, *claimed, registration.is_unable())
    }

    /// Whether it wins over a claim that already holds the target. Only a claim to the owner's own name does, and every
    /// claim over one whose owner is unable.
    pub const fn evicts(self, held: Self) -> bool {
        match (self.unable, held.unable) {
            (false, true) => true,
            (true, false) => false,
            _ => !self.away && held.away,
        }
    }
}

/// Why a claim has a target, for the loser.
pub fn why_it_wins(winner: &ClaimOwner, loser: &ClaimOwner, target: &Target) -> &'static str {
    if is_at_home(winner, target) && !is_at_home(loser, target) { "whose own name it is" } else { "which was first" }
}

/// What the annotations on one Namespace allow to the objects in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Grants {
    /// Patterns of Cloud Map namespaces and of services.
    register: Vec<(Box<str>, Box<str>)>,
    /// Names of Cloud Map namespaces.
    create: Vec<Box<str>>,
    /// Values of [`ANNOTATION_ADOPT`], or `*`.
    adopt: Vec<Box<str>>,
}

impl Grants {
    fn read(namespace: &Namespace) -> Self {
        let list = |text: &Option<Arc<str>>| -> Vec<Box<str>> {
            let items = text.as_deref().unwrap_or_default().split(',').map(str::trim);
            items.filter(|item| !item.is_empty()).map(Box::from).collect()
        };
        // An invalid pattern grants nothing.
        let pattern =
            |item: Box<str>| item.split_once('/').map(|(namespace, service)| (namespace.into(), service.into()));
        Self {
            register: list(&namespace.may_register).into_iter().filter_map(pattern).collect(),
            create: list(&namespace.may_create),
            adopt: list(&namespace.allow_adopt),
        }
    }
}

/// The decision of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is allowed.
    Allowed,
    /// The Namespace is not known yet, so nothing may be concluded.
    Unknown,
    /// It is not allowed. The text says what, and what an administrator can do.
    Refused(String),
}

/// The rules of this cluster: the policy, and the grants of its Namespaces.
#[derive(Debug, Clone, Default)]
pub struct Rights {
    policy: RegistrationPolicy,
    /// By Kubernetes namespace. Namespaces that are not in here are not known.
    grants: BTreeMap<Arc<str>, Grants>,
}

impl Rights {
    /// The rules before any Namespace is known.
    pub fn new(policy: RegistrationPolicy) -> Self {
        Self { policy, grants: BTreeMap::new() }
    }

    /// Notes that a Kubernetes namespace appeared, changed or disappeared. Returns whether its grants changed.
    pub fn namespace_changed(&mut self, name: &Arc<str>, namespace: Option<&Namespace>) -> bool {
        let grants = namespace.map(Grants::read);
        if self.grants.get(name) == grants.as_ref() {
            return false;
        }
        match grants {
            Some(grants) => self.grants.insert(name.clone(), grants),
            None => self.grants.remove(name),
        };
        true
    }

    /// Whether an object in this Kubernetes namespace may register in a target that it names or shares. An implied
    /// target needs no grant: of existing services, only those that the ClusterSet created are used.
    pub fn register(&self, namespace: &str, target: &Target) -> Verdict {
        if self.policy == RegistrationPolicy::Open || self.is_granted(namespace, target) {
            return Verdict::Allowed;
        }
        if !self.grants.contains_key(namespace) {
            return Verdict::Unknown;
        }
        Verdict::Refused(format!(
            "Cloud Map service {target} is not granted to Kubernetes namespace {namespace}, and this cluster registers only granted \
             names (--registration-policy=granted); ask an administrator for the annotation {ANNOTATION_MAY_REGISTER}: \
             \"{target}\" on the Namespace, or name a granted service"
        ))
    }

    /// Whether an administrator has granted a target to this Kubernetes namespace, whatever the policy is. Who joins a service
    /// that others made gets a part of its traffic, and who hides their tasks there gets more.
    pub fn is_granted(&self, namespace: &str, target: &Target) -> bool {
        let granted = |(namespaces, services): &(Box<str>, Box<str>)| {
            matches(namespaces, &target.namespace) && matches(services, &target.service)
        };
        self.grants.get(namespace).is_some_and(|grants| grants.register.iter().any(granted))
    }

    /// Whether a missing Cloud Map namespace is made for exports of this Kubernetes namespace, although their names do not
    /// imply it. An account has only 50, so a grant has no patterns: it is for as many as it lists.
    pub fn creates(&self, namespace: &str, cloudmap_namespace: &str) -> bool {
        let grants = self.grants.get(namespace);
        grants.is_some_and(|grants| grants.create.iter().any(|granted| **granted == *cloudmap_namespace))
    }

    /// Whether an object in this Kubernetes namespace may take over from the controller in its annotation.
    pub fn adopt(&self, namespace: &str, adopt: &Adopt) -> Verdict {
        let Some(grants) = self.grants.get(namespace) else { return Verdict::Unknown };
        let adopt = adopt.to_string();
        if grants.adopt.iter().any(|granted| **granted == *"*" || **granted == *adopt) {
            return Verdict::Allowed;
        }
        Verdict::Refused(format!(
            "{ANNOTATION_ADOPT} requests to take over from {adopt}, but Kubernetes namespace {namespace} may not; ask an \
             administrator for the annotation {ANNOTATION_ALLOW_ADOPT}: \"{adopt}\" on the Namespace, or remove {ANNOTATION_ADOPT}"
        ))
    }
}

/// A Namespace `shop` without annotations.
#[cfg(any(test, feature = "testing"))]
pub fn mk_namespace() -> Namespace {
    Namespace {
        name: "shop".into(),
        uid: "uid".into(),
        terminating: false,
        labels: BTreeMap::new(),
        import_from: None,
        accept_clusters: None,
        may_register: None,
        may_create: None,
        allow_adopt: None,
        quota: None,
        cluster_selection: Default::default(),
    }
}

/// The rules with a Namespace `shop` that has these annotations.
///
/// # Panics
/// The rules do not know whether there is news.
#[cfg(any(test, feature = "testing"))]
pub fn mk_rights(policy: RegistrationPolicy, may_register: Option<&str>, allow_adopt: Option<&str>) -> Rights {
    let mut rights = Rights::new(policy);
    let [may_register, allow_adopt] = [may_register, allow_adopt].map(|text| text.map(Arc::from));
    let namespace = Namespace { may_register, allow_adopt, ..mk_namespace() };
    assert!(rights.namespace_changed(&namespace.name, Some(&namespace)));
    assert!(!rights.namespace_changed(&namespace.name, Some(&namespace)), "no news");
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(target: &str) -> Target {
        let (namespace, service) = target.split_once('/').unwrap();
        Target { namespace: namespace.into(), service: service.into() }
    }

    fn owner(kind: &str, key: &str) -> ClaimOwner {
        let (namespace, name) = key.split_once('/').unwrap();
        ClaimOwner { kind: kind.into(), namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn a_name_belongs_to_the_namespace_that_implies_it() {
        for (owner, target, expected) in [
            (owner("ServiceExport", "shop/payments"), "shop/payments", true),
            (owner("ServiceExport", "shop/other"), "shop/payments", true),
            (owner("Service", "shop/web"), "shop/payments", true),
            (owner("Service", "evil/payments"), "shop/payments", false),
            (owner("ServiceExport", "shop/payments"), "internal/payments.shop", true),
            (owner("ServiceExport", "shop/other"), "internal/payments.shop", false),
            (owner("ServiceExport", "evil/payments"), "internal/payments.shop", false),
            (owner("ServiceExport", "shop/payments"), "internal/payments", false),
            (owner("ServiceExport", "shop/payments"), "internal/x.payments.shop", false),
            (owner("ServiceExport", "shop/payments"), "internal/paymentsshop", false),
        ] {
            assert_eq!(is_at_home(&owner, &self::target(target)), expected, "{owner} {target}");
        }
    }

    #[test]
    fn the_own_name_comes_before_age_and_age_before_everything_else() {
        let claim = |key, claimed| Precedence::new(&owner("Service", key), &target("shop/payments"), claimed, false);
        let (own, other, evil) = (claim("shop/payments", 9), claim("shop/web", 5), claim("evil/payments", 1));
        let mut all = [evil, own, other];
        all.sort();
        assert_eq!(all, [other, own, evil], "within a namespace the older one");
        assert!(own.evicts(evil) && other.evicts(evil));
        assert!(!other.evicts(own) && !own.evicts(other) && !evil.evicts(own) && !evil.evicts(claim("bad/web", 2)));
    }

    /// Else whoever may not register could take a name away from those who serve it.
    #[test]
    fn who_is_unable_comes_after_everybody_who_is_able_and_evicts_nobody_who_is() {
        let claim =
            |key, claimed, unable| Precedence::new(&owner("Service", key), &target("shop/pay"), claimed, unable);
        let (home, away) = (claim("shop/pay", 1, true), claim("evil/pay", 9, false));
        assert!(away < home && !home.evicts(away) && away.evicts(home));
        let (other, younger) = (claim("evil/pay", 5, true), claim("bad/pay", 6, true));
        assert!(home < other && home.evicts(other) && !other.evicts(home), "among themselves, it is as ever");
        assert!(other < younger && !other.evicts(younger) && !younger.evicts(other));
    }

    #[test]
    fn who_may_register_where() {
        use RegistrationPolicy::{Granted, Open};
        for (policy, may_register, named, allowed) in [
            (Open, None, "internal/payments", true),
            (Granted, None, "internal/payments", false),
            (Granted, Some(""), "internal/payments", false),
            (Granted, Some("internal/payments"), "internal/payments", true),
            (Granted, Some("internal/payments"), "Internal/payments", true),
            (Granted, Some("internal/payments"), "internal/payments-2", false),
            (Granted, Some("internal/pay*"), "internal/payments", true),
            (Granted, Some("internal/*-db"), "internal/orders-db", true),
            (Granted, Some("internal/*-db"), "internal/orders-db-2", false),
            (Granted, Some("internal/a*a"), "internal/a", false),
            (Granted, Some("internal/a*b*c"), "internal/a1b2c", true),
            (Granted, Some("other/x, internal/*"), "internal/a.b", true),
            (Granted, Some("*/*"), "internal/payments", true),
            (Granted, Some("*.org/web"), "example.org/web", true),
            (Granted, Some("internal"), "internal/payments", false),
            (Granted, Some("*"), "internal/payments", false),
        ] {
            let verdict = mk_rights(policy, may_register, None).register("shop", &target(named));
            assert_eq!(verdict == Verdict::Allowed, allowed, "{policy:?} {may_register:?} {named}: {verdict:?}");
            if let Verdict::Refused(why) = verdict {
                assert!(why.contains(named) && why.contains("may-register") && why.contains("shop"), "{why}");
            }
            let granted = mk_rights(policy, may_register, None).is_granted("shop", &target(named));
            assert_eq!(granted, allowed && may_register.is_some(), "{policy:?} {may_register:?} {named}");
        }
        let elsewhere = mk_rights(Granted, Some("*/*"), Some("*")).register("evil", &target("internal/payments"));
        assert_eq!(elsewhere, Verdict::Unknown, "a namespace that is not known allows and refuses nothing");
    }

    #[test]
    fn a_cloud_map_namespace_is_made_only_for_whom_its_exact_name_is_granted() {
        let namespace =
            |may_create: Option<&str>| Namespace { may_create: may_create.map(Arc::from), ..mk_namespace() };
        for (may_create, named, expected) in [
            (None, "team", false),
            (Some(""), "team", false),
            (Some("team"), "team", true),
            (Some("other, team "), "team", true),
            (Some("team"), "Team", false),
            (Some("team-1"), "team", false),
            (Some("*"), "team", false),
            (Some("te*"), "team", false),
        ] {
            let mut rights = Rights::default();
            rights.namespace_changed(&"shop".into(), Some(&namespace(may_create)));
            assert_eq!(rights.creates("shop", named), expected, "{may_create:?} {named}");
            assert!(!rights.creates("evil", named), "the Namespace is not known");
        }
    }

    #[test]
    fn who_may_take_over_from_whom() {
        for (allow_adopt, adopt, allowed) in [
            (None, "external-dns/eks", false),
            (Some("external-dns/eks"), "external-dns/eks", true),
            (Some("external-dns/eks"), "external-dns/eks-prod", false),
            (Some("external-dns/eks"), "cloudmap-controller", false),
            (Some("cloudmap-controller, external-dns/a"), "cloudmap-controller", true),
            (Some("*"), "external-dns/eks", true),
            (Some("external-dns/*"), "external-dns/eks", false),
        ] {
            let verdict = mk_rights(RegistrationPolicy::Open, None, allow_adopt).adopt("shop", &adopt.parse().unwrap());
            assert_eq!(verdict == Verdict::Allowed, allowed, "{allow_adopt:?} {adopt}: {verdict:?}");
            if let Verdict::Refused(why) = verdict {
                assert!(why.contains(adopt) && why.contains("allow-adopt") && why.contains("shop"), "{why}");
            }
        }
        let unknown = Rights::default().adopt("shop", &"external-dns/eks".parse().unwrap());
        assert_eq!(unknown, Verdict::Unknown);
    }
}
