//! Who wants which name in Cloud Map, by the users' objects, and what is there: written from the documents
//! (registrations.md, operations.md), not from the product's plans.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    cloudmap::Registry,
    expect::{Name, live},
    kubernetes::ApiServer,
    users::{HOST, PYTHON, TARGET, annotation, is_terminating},
    world::Cluster,
};

/// A Service that is to be registered under a name, exported or annotated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Index of the cluster.
    pub(crate) cluster: usize,
    /// The Kubernetes name.
    pub(crate) owner: Name,
    /// By its export, for which Cloud Map namespaces are made.
    pub(crate) exported: bool,
    /// Ready.
    pub(crate) addresses: BTreeSet<String>,
}

/// All claims, by the namespace and service in Cloud Map that they are to.
pub(crate) fn claims(clusters: &[Cluster]) -> BTreeMap<Name, Vec<Claim>> {
    let mut all: BTreeMap<Name, Vec<Claim>> = BTreeMap::new();
    for (cluster, Cluster { api, .. }) in clusters.iter().enumerate() {
        for (owner, service) in api.list("services") {
            if is_terminating(&service) {
                continue;
            }
            let exported = exported(api, &owner).map(|target| (target, true));
            let targets: Vec<_> =
                annotated(&service).into_iter().map(|target| (target, false)).chain(exported).collect();
            if targets.is_empty() {
                continue;
            }
            let addresses = live(api, &owner);
            for (target, exported) in targets {
                let claim = Claim { cluster, owner: owner.clone(), exported, addresses: addresses.clone() };
                all.entry(target).or_default().push(claim);
            }
        }
    }
    all
}

/// What the annotations of a headless Service ask for.
fn annotated(service: &Value) -> BTreeSet<Name> {
    let host = annotation(service, HOST).and_then(|host| host.split_once('.'));
    let host = host.map(|(service, namespace)| (namespace.to_owned(), service.to_owned()));
    let python = annotation(service, PYTHON[0]).zip(annotation(service, PYTHON[1]));
    let python = python.map(|(namespace, service)| (namespace.to_owned(), service.to_owned()));
    host.into_iter().chain(python).collect()
}

/// What the export of a Service is registered under, if there is one.
pub(crate) fn exported(api: &ApiServer, name: &Name) -> Option<Name> {
    let export = api.get("serviceexports", &name.0, &name.1).filter(|export| !is_terminating(export))?;
    let named = annotation(&export, TARGET[0]).zip(annotation(&export, TARGET[1]));
    let (namespace, service) = named.unwrap_or((&name.0, &name.1));
    Some((namespace.to_owned(), service.to_owned()))
}

/// Whether a name is the owner's own, so that it comes before everybody else.
pub(crate) fn is_at_home(owner: &Name, target: &Name) -> bool {
    owner.0 == target.0 || target.1 == format!("{}.{}", owner.1, owner.0)
}

/// The Kubernetes names that may have a target, by what of them is to be registered. It is one of them: of several which one
/// depends on who came first.
pub(crate) fn candidates<'a>(target: &Name, claims: &'a [Claim]) -> BTreeMap<&'a Name, BTreeSet<&'a str>> {
    let mut of: BTreeMap<&Name, BTreeSet<&str>> = BTreeMap::new();
    for Claim { owner, addresses, .. } in claims {
        of.entry(owner).or_default().extend(addresses.iter().map(String::as_str));
    }
    if of.keys().any(|owner| is_at_home(owner, target)) {
        of.retain(|owner, _| is_at_home(owner, target));
    }
    of
}

/// What is registered by this project: by namespace and service, Kubernetes name, and address.
pub(crate) type Registered = BTreeMap<Name, BTreeMap<Name, BTreeSet<String>>>;

pub(crate) fn registered(registry: &Registry) -> Registered {
    let mut found = Registered::new();
    registry.with(|cloudmap, _| {
        for service in cloudmap.services() {
            let namespace = cloudmap.namespace(&service.namespace_id).map(|namespace| namespace.name.clone());
            for attributes in service.instances.values().map(|instance| &instance.attributes) {
                let said = |name: &str| attributes.get(name).cloned();
                let (Some(namespace), Some(_)) = (&namespace, said("CLOUDMAP_MCS_CLUSTER")) else { continue };
                let owner = said("CLOUDMAP_MCS_NAMESPACE").zip(said("CLOUDMAP_MCS_SERVICE")).unwrap_or_default();
                let of = found.entry((namespace.clone(), service.name.clone())).or_default();
                of.entry(owner).or_default().extend(said("AWS_INSTANCE_IPV4"));
            }
        }
    });
    found
}

/// Who has each name: the one that is registered there, or the only one that may.
pub(crate) fn owners(claims: &BTreeMap<Name, Vec<Claim>>, registered: &Registered) -> BTreeMap<Name, Name> {
    let owner = |(target, claims): (&Name, &Vec<Claim>)| {
        let candidates = candidates(target, claims);
        let there = registered.get(target).and_then(|owners| owners.keys().next());
        let only = candidates.keys().next().copied().filter(|_| candidates.len() == 1);
        Some((target.clone(), there.or(only)?.clone()))
    };
    claims.iter().filter_map(owner).collect()
}

/// What is registered otherwise than it should be, if anything. `there`: whether there is a Cloud Map namespace of that name.
pub(crate) fn mismatch(
    claims: &BTreeMap<Name, Vec<Claim>>,
    registered: &Registered,
    there: impl Fn(&str) -> bool,
) -> Option<String> {
    for target in claims.keys().chain(registered.keys()) {
        let claims = claims.get(target).map(Vec::as_slice).unwrap_or_default();
        let mut candidates = candidates(target, claims);
        if !there(&target.0) && !claims.iter().any(|claim| claim.exported) {
            candidates.clear();
        }
        let found = registered.get(target);
        let right = match found {
            // One without ready endpoints may have it, or nobody wants it.
            None => candidates.is_empty() || candidates.values().any(BTreeSet::is_empty),
            Some(owners) => {
                let mut owners = owners.iter();
                let (one, more) = (owners.next(), owners.next());
                one.filter(|_| more.is_none()).is_some_and(|(owner, addresses)| {
                    candidates.get(owner).is_some_and(|wanted| wanted.iter().eq(addresses.iter()))
                })
            }
        };
        if !right {
            return Some(format!(
                "Cloud Map has {}/{} with {found:?}, not with one of {candidates:?}",
                target.0, target.1
            ));
        }
    }
    None
}
