//! Who wants which name in Cloud Map, by the users' objects, and what is there: written from the documents
//! (registrations.md, operations.md), not from the product's plans.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::ParseFloatError,
};

use serde_json::Value;

use super::{
    cutovers::in_force,
    expect::{Name, slices},
    kubernetes::ApiServer,
    users::{HOST, PYTHON, SHARE, TARGET, addresses, annotation, is_terminating},
    world::{Cluster, World},
};
use emulator::CloudMap;

/// Stands for the share of a cluster that is drained.
const DRAINED: &str = "drained";

/// A Service that is to be registered under a name, exported or annotated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Index of the cluster.
    pub(crate) cluster: usize,
    /// [`Cluster::group`]
    pub(crate) group: String,
    /// The Kubernetes name.
    pub(crate) owner: Name,
    /// By its export, for which Cloud Map namespaces are made.
    pub(crate) exported: bool,
    /// The ready ones, by one address each and the port.
    pub(crate) endpoints: BTreeSet<String>,
    /// By an annotation, so that it is registered in the service that is there.
    named: bool,
    /// What it requests of the traffic, verbatim.
    pub(crate) share: Option<String>,
    /// The cluster has left instances of another ClusterSet there, which have the ids of some endpoints.
    blocked: bool,
}

/// All claims, by the namespace and service in Cloud Map that they are to.
pub(crate) type Claims = BTreeMap<Name, Vec<Claim>>;

pub(crate) fn claims(clusters: &[Cluster]) -> Claims {
    let mut all = Claims::new();
    for (index, cluster) in clusters.iter().enumerate().filter(|(_, cluster)| !cluster.leaving) {
        for (owner, service) in cluster.api.list("services") {
            if is_terminating(&service) {
                continue;
            }
            let exported = exported(cluster, &owner).map(|target| (target, true));
            let targets = annotated(&service).into_iter().map(|target| (target, false)).chain(exported);
            let targets: Vec<_> = targets.collect();
            if targets.is_empty() {
                continue;
            }
            let endpoints = endpoints(&cluster.api, &owner, &service);
            let share = in_force(cluster, &owner).or_else(|| annotation(&service, SHARE).map(str::to_owned));
            let drained = || cluster.is_drained().then(|| DRAINED.to_owned());
            for (target, exported) in targets {
                let named = !exported || names_target(cluster, &owner);
                let (group, owner, endpoints) = (cluster.group(), owner.clone(), endpoints.clone());
                let share = share.clone().filter(|_| !exported).or_else(drained);
                all.entry(target).or_default().push(Claim {
                    cluster: index,
                    group,
                    owner,
                    exported,
                    endpoints,
                    named,
                    share,
                    blocked: false,
                });
            }
        }
    }
    all
}

/// The endpoints of a Service as instances have them: with the first port, and by IPv4 where they have both families.
fn endpoints(api: &ApiServer, name: &Name, service: &Value) -> BTreeSet<String> {
    let first = service["spec"]["ports"][0]["name"].as_str().unwrap_or_default();
    let slices = slices(api, name);
    let of = |family: &str| slices.iter().filter(|slice| slice["addressType"] == *family).collect::<Vec<_>>();
    let (v4, v6) = (of("IPv4"), of("IPv6"));
    let endpoints = |slice: &Value| {
        let mut ports = slice["ports"].as_array().into_iter().flatten();
        let port = ports.find(|port| port["name"] == first).map(|port| port["port"].to_string()).unwrap_or_default();
        addresses(slice).into_iter().map(move |address| format!("{address}:{port}"))
    };
    (if v4.is_empty() { v6 } else { v4 }).into_iter().flat_map(|slice| endpoints(slice)).collect()
}

/// What the annotations of a Service ask for. Others than headless ones are not registered by them.
fn annotated(service: &Value) -> BTreeSet<Name> {
    if service["spec"]["clusterIP"] != "None" {
        return BTreeSet::new();
    }
    let host = annotation(service, HOST).and_then(|host| host.split_once('.'));
    let host = host.map(|(service, namespace)| (namespace.to_owned(), service.to_owned()));
    let python = annotation(service, PYTHON[0]).zip(annotation(service, PYTHON[1]));
    let python = python.map(|(namespace, service)| (namespace.to_owned(), service.to_owned()));
    host.into_iter().chain(python).collect()
}

/// What the export of a Service is registered under, if there is one.
pub(crate) fn exported(cluster: &Cluster, name: &Name) -> Option<Name> {
    let export = cluster.api.get("serviceexports", &name.0, &name.1).filter(|export| !is_terminating(export))?;
    let target = named(&export).unwrap_or_else(|| name.clone());
    Some(target).filter(|_| cluster.membership().is_some())
}

/// What an export names by its annotations.
fn named(export: &Value) -> Option<Name> {
    let (namespace, service) = annotation(export, TARGET[0]).zip(annotation(export, TARGET[1]))?;
    Some((namespace.to_owned(), service.to_owned()))
}

/// Whether the export of a Service names what it is registered under.
fn names_target(cluster: &Cluster, name: &Name) -> bool {
    let export = cluster.api.get("serviceexports", &name.0, &name.1);
    export.is_some_and(|export| named(&export).is_some())
}

/// Whether a name is the owner's own, so that it comes before everybody else.
pub(crate) fn is_at_home(owner: &Name, target: &Name) -> bool {
    owner.0 == target.0 || target.1 == format!("{}.{}", owner.1, owner.0)
}

/// The Kubernetes names that may have a target, by what of them is to be registered. It is one of them: of several which one
/// depends on who came first.
pub(crate) fn candidates<'a>(
    target: &Name,
    claims: impl Iterator<Item = &'a Claim>,
) -> BTreeMap<&'a Name, BTreeSet<&'a str>> {
    let mut of: BTreeMap<&Name, BTreeSet<&str>> = BTreeMap::new();
    for Claim { owner, endpoints, .. } in claims {
        of.entry(owner).or_default().extend(endpoints.iter().map(String::as_str));
    }
    if of.keys().any(|owner| is_at_home(owner, target)) {
        of.retain(|owner, _| is_at_home(owner, target));
    }
    of
}

/// An own instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Instance {
    pub(crate) uid: String,
    /// The cluster's [`Cluster::group`] that the marks name: the one that it was registered in.
    pub(crate) group: String,
    pub(crate) owner: Name,
    pub(crate) address: String,
    /// With the port.
    pub(crate) endpoint: String,
}

/// A Cloud Map service.
#[derive(Debug, Default)]
pub(crate) struct TargetService {
    /// The group that it was made for; `None`: people made it, or others.
    pub(crate) made_for: Option<String>,
    of_external_dns: bool,
    pub(crate) instances: BTreeSet<Instance>,
    /// Number of instances that no cluster registered.
    pub(crate) others: usize,
}

impl TargetService {
    /// Whether it is somebody else's, as far as the cluster with this UID is concerned.
    pub(crate) fn refuses(&self, claim: &Claim, uid: &str) -> bool {
        let alone = alone(uid);
        self.of_external_dns
            || self.made_for.is_none() && !claim.named
            || self.made_for.as_ref().is_some_and(|maker| *maker != claim.group && *maker != alone)
    }
}

/// All Cloud Map services, by namespace and name.
pub(crate) type TargetServices = BTreeMap<Name, TargetService>;

pub(crate) fn places(cloudmap: &CloudMap) -> TargetServices {
    let mut places = TargetServices::new();
    for service in cloudmap.services() {
        let Some(namespace) = cloudmap.namespace(&service.namespace_id) else { continue };
        let instances = service.instances.values().filter_map(|instance| {
            let said = |name: &str| instance.attributes.get(&format!("CLOUDMAP_MCS_{name}")).cloned();
            let uid = said("CLUSTER_UID")?;
            let group = said("CLUSTERSET").map_or_else(|| alone(&uid), |set| format!("clusterset/{set}"));
            let owner = said("NAMESPACE").zip(said("SERVICE")).unwrap_or_default();
            let of = |name: &str| instance.attributes.get(&format!("AWS_INSTANCE_{name}")).cloned();
            let address = of("IPV4").or_else(|| of("IPV6")).unwrap_or_default();
            let endpoint = format!("{address}:{}", of("PORT").unwrap_or_default());
            Some(Instance { uid, group, owner, address, endpoint })
        });
        let place = TargetService {
            made_for: service.tags.get("cloudmap-mcs/made-for").cloned(),
            of_external_dns: service.description.as_ref().is_some_and(|text| text.contains("heritage=external-dns")),
            others: service.instances.len(),
            instances: instances.collect(),
        };
        let place = TargetService { others: place.others - place.instances.len(), ..place };
        places.insert((namespace.name.clone(), service.name.clone()), place);
    }
    places
}

/// What users want, and what there is.
pub(crate) struct Registrations<'a> {
    world: &'a World,
    claims: Claims,
    places: TargetServices,
    namespaces: BTreeSet<String>,
}

impl<'a> Registrations<'a> {
    pub(crate) fn observe(world: &'a World) -> Self {
        let (places, namespaces) = world.registry.with(|cloudmap, _| {
            (places(cloudmap), cloudmap.namespaces().map(|namespace| namespace.name.clone()).collect())
        });
        let mut claims = claims(&world.clusters);
        for (target, claims) in &mut claims {
            let there: Vec<_> = places.get(target).into_iter().flat_map(|place| &place.instances).collect();
            for Claim { cluster, group: own, endpoints, blocked, .. } in claims {
                let uid = &world.clusters[*cluster].uid;
                let taken = there.iter().filter(|instance| instance.uid == *uid && group_of(world, instance) != *own);
                let taken: BTreeSet<&str> = taken.map(|instance| &*instance.address).collect();
                let before = endpoints.len();
                endpoints.retain(|endpoint| !endpoint.rsplit_once(':').is_some_and(|(ip, _)| taken.contains(ip)));
                *blocked = endpoints.len() < before;
            }
        }
        Self { world, claims, places, namespaces }
    }

    /// Whether a Cloud Map service is somebody else's, as far as one cluster is concerned.
    fn is_refused(&self, target: &Name, claim: &Claim) -> bool {
        self.places.get(target).is_some_and(|place| place.refuses(claim, &self.world.clusters[claim.cluster].uid))
    }

    /// Whether this is what stays of a Kubernetes name of a group in a Cloud Map service that refuses it, because nobody else
    /// serves the name: no dead address.
    fn stays(&self, target: &Name, group: &str, owner: &Name, found: &BTreeSet<&str>) -> bool {
        let place = self.places.get(target);
        let alone = place.is_some_and(|place| {
            place.others == 0 && place.instances.iter().all(|instance| group_of(self.world, instance) == group)
        });
        let claims = self.claims.get(target).into_iter().flatten();
        let claims = claims.filter(|claim| claim.group == group && claim.owner == *owner);
        let (refused, used): (Vec<_>, Vec<_>) = claims.partition(|claim| self.is_refused(target, claim));
        let (stay, needed) = (endpoints_of(&refused), endpoints_of(&used));
        alone && !refused.is_empty() && needed.is_subset(found) && found.is_subset(&(&stay | &needed))
    }

    /// Whether a claim of a group is refused: it may be the first one, and nobody registers anything then.
    fn refuses(&self, target: &Name, group: &str) -> bool {
        let claims = self.claims.get(target).into_iter().flatten();
        claims.filter(|claim| claim.group == group).any(|claim| self.is_refused(target, claim))
    }

    /// Who of a group may have a target, as [`candidates`].
    fn candidates(&self, target: &Name, group: &str) -> BTreeMap<&Name, BTreeSet<&str>> {
        let claims = self.claims.get(target).into_iter().flatten();
        let claims = claims.filter(|claim| claim.group == group && !self.is_refused(target, claim));
        if !self.namespaces.contains(&target.0) && !claims.clone().any(|claim| claim.exported) {
            return BTreeMap::new();
        }
        candidates(target, claims)
    }

    /// What a group has registered, by Kubernetes name. What a cluster left behind when it left its ClusterSet counts where
    /// it is wanted.
    fn registered(&self, target: &Name, group: &str) -> BTreeMap<&Name, BTreeSet<&str>> {
        let wanted = self.candidates(target, group);
        let mut registered: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for instance in self.places.get(target).into_iter().flat_map(|place| &place.instances) {
            let Instance { uid, owner, endpoint, .. } = instance;
            let is_wanted = || wanted.get(owner).is_some_and(|wanted| wanted.contains(endpoint.as_str()));
            let abandoned = self.world.abandoned.contains(&(uid.clone(), group.to_owned()));
            if group_of(self.world, instance) == group && (!abandoned || is_wanted()) {
                registered.entry(owner).or_default().insert(endpoint.as_str());
            }
        }
        registered
    }

    /// Whether what a group has registered is what is wanted. With shares it is a part of that, as shares.md says.
    fn is_right(&self, target: &Name, group: &str, wanted: &BTreeSet<&str>, found: &BTreeSet<&str>) -> bool {
        let claims = self.claims.get(target).into_iter().flatten().filter(|claim| claim.group == group);
        if !claims.clone().any(|claim| claim.share.is_some()) {
            return wanted == found;
        }
        let Some(place) = self.places.get(target) else { return found.is_empty() };
        let of = |claim: &Claim| {
            let uid = &self.world.clusters[claim.cluster].uid;
            place.instances.iter().filter(|instance| instance.uid == *uid).map(|instance| &*instance.endpoint).collect()
        };
        let counted: Vec<(&Claim, BTreeSet<&str>)> = claims.map(|claim| (claim, of(claim))).collect();
        let is_drained = |claim: &Claim| claim.share.as_deref() == Some(DRAINED);
        let asks = |claim: &Claim| claim.share.as_deref().map(|share| share.trim_end_matches('%').parse::<f64>());
        let count = |wanted: fn(&Option<Result<f64, ParseFloatError>>) -> bool| {
            let counts = |claim: &Claim| !is_drained(claim) && wanted(&asks(claim));
            counted.iter().filter(|(claim, _)| counts(claim)).map(|(_, ours)| ours.len()).sum::<usize>()
        };
        let (whole, all) = (count(Option::is_none) + place.others, place.others + place.instances.len());
        // Before the annotation that cannot be read, there may have been none.
        let wholes = [whole, whole + count(|asked| matches!(asked, Some(Err(_))))];
        let right = |claim: &Claim, ours: &BTreeSet<&str>, whole: usize| {
            let ready = claim.endpoints.len();
            match asks(claim) {
                // All stay if nobody else serves who is not drained, too.
                _ if is_drained(claim) => ours.len() == if whole == 0 { ready } else { 0 },
                None => ours.len() == ready,
                // The last valid one stays, or the number. Those that are there stay while there is nobody else.
                Some(Err(_)) => true,
                Some(Ok(0.0)) => whole == 0 || ours.is_empty(),
                Some(Ok(_)) if whole == 0 => ours.len() == ready,
                Some(Ok(share)) => {
                    let fits = |k: &usize| 100.0 * *k as f64 <= share * (k + all - ours.len()) as f64;
                    ours.len() == (0..=ready).rev().find(fits).unwrap_or_default().max(1).min(ready)
                }
            }
        };
        found.is_subset(wanted)
            && counted.iter().all(|(claim, ours)| wholes.iter().any(|whole| right(claim, ours, *whole)))
    }

    /// What the condition `Registered` of an export may be.
    pub(crate) fn condition(&self, cluster: &Cluster, name: &Name) -> &'static [(&'static str, &'static str)] {
        let Some(target) = exported(cluster, name) else { return &[] };
        let mut claims = self.claims.get(&target).into_iter().flatten();
        let uid = |claim: &Claim| &self.world.clusters[claim.cluster].uid;
        let Some(claim) = claims.find(|claim| *uid(claim) == cluster.uid && claim.exported && claim.owner == *name)
        else {
            return &[];
        };
        if self.is_refused(&target, claim) {
            // Who waits behind another one of its cluster hears of that one, and is not looked at.
            let all: BTreeSet<&Name> = self.claims[&target].iter().map(|other| &other.owner).collect();
            return match all.len() {
                1 => &[("False", "ForeignOwner")],
                _ => &[("False", "ForeignOwner"), ("False", "NameConflict")],
            };
        }
        let candidates = self.candidates(&target, &claim.group);
        let registered = self.registered(&target, &claim.group);
        let only = candidates.keys().next().filter(|_| candidates.len() == 1 && !self.refuses(&target, &claim.group));
        match registered.keys().next().or(only) {
            Some(owner) if *owner == name && claim.blocked => {
                &[("True", "Registered"), ("False", "AddressFamilyMissing")]
            }
            Some(owner) if *owner == name => &[("True", "Registered")],
            Some(_) => &[("False", "NameConflict")],
            None if claim.blocked => {
                &[("True", "Registered"), ("False", "AddressFamilyMissing"), ("False", "NameConflict")]
            }
            // Whose it is cannot be seen: the one that has it has no endpoints.
            None => &[("True", "Registered"), ("False", "NameConflict")],
        }
    }

    /// What is registered otherwise than it should be, if anything.
    pub(crate) fn mismatch(&self) -> Option<String> {
        let wanted = self.claims.values().flatten().map(|claim| claim.group.clone());
        let there =
            self.places.values().flat_map(|place| &place.instances).map(|instance| group_of(self.world, instance));
        let groups: BTreeSet<String> = wanted.chain(there).collect();
        for target in self.claims.keys().chain(self.places.keys()) {
            for group in &groups {
                let (candidates, found) = (self.candidates(target, group), self.registered(target, group));
                let mut owners = found.iter();
                let right = match (owners.next(), owners.next()) {
                    // One without ready endpoints may have it, or nobody wants it.
                    (None, _) => {
                        candidates.is_empty()
                            || candidates.values().any(|wanted| self.is_right(target, group, wanted, &BTreeSet::new()))
                            || self.refuses(target, group)
                    }
                    (Some((owner, addresses)), None) => {
                        candidates.get(*owner).is_some_and(|wanted| self.is_right(target, group, wanted, addresses))
                            || self.stays(target, group, owner, addresses)
                    }
                    (Some(_), Some(_)) => false,
                };
                if !right {
                    return Some(format!(
                        "Cloud Map has {}/{} for {group} with {found:?}, not with one of {candidates:?}",
                        target.0, target.1
                    ));
                }
            }
        }
        None
    }
}

/// The group that an instance is of: one from before its cluster was in any ClusterSet is still the cluster's own.
fn group_of(world: &World, instance: &Instance) -> String {
    let cluster = world.clusters.iter().find(|cluster| cluster.uid == instance.uid);
    let joined = cluster.filter(|_| instance.group == alone(&instance.uid));
    joined.map_or_else(|| instance.group.clone(), Cluster::group)
}

/// The endpoints of several claims.
fn endpoints_of<'a>(claims: &[&'a Claim]) -> BTreeSet<&'a str> {
    claims.iter().flat_map(|claim| &claim.endpoints).map(String::as_str).collect()
}

/// The group of a cluster in no ClusterSet.
fn alone(uid: &str) -> String {
    format!("cluster/{uid}")
}
