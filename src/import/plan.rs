//! The pure step from all exports of one name and the observed objects to the desired objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;

use super::{
    addresses::{Unusable, usable},
    derived::DerivedServices,
    packing::{Former, Packing, offered},
    policy::{Excluded, Exclusion},
    registered,
    selecting::{Selected, Selecting, selected},
    tiers::Spill,
    type_notice::{self, TypeChange},
    unknown::{Unknown, concerns_unknown, import_concerns_unknown},
    unreachable::Unreachable,
};
use api::{
    conditions::{ImportCondition, find},
    names,
    selection::ClusterSelection,
};
use cluster::objects::{AddressType, Endpoint as Row, ImportSpec, OwnSlice, ServiceImport};
use discovery::Picture;
use model::{
    ClusterId, ClusterSetService, Endpoint, Export, Hints, IpFamily, PackedEndpoint, Placement, Proximity, ServiceKey,
    ServicePort, ServiceType, Slice, SliceEndpoint, UNNAMED_PORT, merge, packable,
};

/// One cluster's export of the name.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The export.
    pub export: &'a Export,
    /// Its endpoints.
    pub endpoints: &'a [Endpoint],
}

/// Everything on which the plan depends.
#[derive(Debug)]
pub struct Observed<'a> {
    /// The name.
    pub key: &'a ServiceKey,
    /// The id of this cluster.
    pub local: &'a ClusterId,
    /// Whether the namespace exists and is not terminating.
    pub namespace: bool,
    /// The exports of all known clusters, including this one.
    pub sources: &'a BTreeMap<ClusterId, Source<'a>>,
    /// Clusters that have not been read since the start. What they export is unknown, so nothing of theirs may be
    /// deleted, and nothing may change that their export may have decided.
    pub unknown: &'a Unknown,
    /// Whether the registry is still being read for the first time, so unknown clusters may become known at any moment.
    pub first_reading: bool,
    /// The IP families of this cluster.
    pub families: &'a [IpFamily],
    /// Clusters that have been silent for long, and since when (milliseconds since 1970). Their last exports count.
    pub silent: &'a BTreeMap<ClusterId, u64>,
    /// Clusters that were neither read nor silent for long in this term. An earlier leader may know more of them.
    pub unheard: &'a BTreeSet<ClusterId>,
    /// The discovered instances of the name.
    pub discovered: &'a Picture,
    /// The ServiceImport.
    pub import: Option<&'a ServiceImport>,
    /// Its derived Services.
    pub derived: &'a DerivedServices,
    /// The EndpointSlices of this project for the name.
    pub slices: &'a [Arc<OwnSlice>],
    /// What of other clusters' exports does not count here, and so is not among the sources.
    pub excluded: &'a [(ClusterId, Exclusion)],
    /// Which clusters this cluster prefers.
    pub selecting: Selecting<'a>,
    /// How long a change of type is said before it is done.
    pub notice: Duration,
    /// The time, by which that is measured.
    pub now: Timestamp,
}

/// What to do with a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Plan {
    /// Nothing: either everything is as desired, or too little is known.
    Keep,
    /// Nobody exports the name any more: delete our objects.
    Remove,
    /// A foreign ServiceImport blocks the import, and clients use nothing of ours by it. The message names it, and has the
    /// remedy.
    Blocked(String),
    /// These objects are desired, and no other slices of ours.
    Want(Box<Wanted>),
}

/// The desired objects of a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The merged service; `None` if the ServiceImport and the derived Service stay as they are, because a cluster that
    /// may have decided about them is unknown. Its IP families are those by which this cluster serves it; none if this
    /// cluster supports none of them. Its cluster selection is the one that is in force, if not all clusters serve alike.
    pub service: Option<ClusterSetService>,
    /// If the ServiceImport stays as it is, the derived Service that it names and that somebody deleted, as the import
    /// describes it.
    pub lost: Option<ClusterSetService>,
    /// A foreign object blocks the derived Service: which one, and the remedy. The ServiceImport reports this, unless it is
    /// that object. What clients use already stays, and its slices follow their endpoints; there are no others.
    pub obstacle: Option<String>,
    /// The exporting clusters among [`Observed::silent`], with those that the import names and of which nothing is known;
    /// `None` if there are none, and the import says nothing of silence, or some are among [`Observed::unheard`]: what it
    /// says stays.
    pub silent: Option<BTreeMap<ClusterId, u64>>,
    /// The Service to which the slices belong, if any.
    pub derived: Option<Arc<str>>,
    /// The slices by source cluster. Slices of unknown clusters are not included and must stay.
    pub slices: BTreeMap<ClusterId, Vec<Slice>>,
    /// The derived Service that clients use until that one takes over, and its slices.
    pub former: Option<Former>,
    /// Names of our slices that must be deleted.
    pub stale: Vec<Arc<str>>,
    /// Sources of endpoints none of which can be reached here.
    pub out_of_reach: OutOfReach,
    /// A change of the import's type that is said, and not made yet.
    pub change: Option<TypeChange>,
    /// How what the slices show differs from what they should show in the end.
    pub spill: Spill,
    /// Which clusters serve, if some are preferred.
    pub selection: Option<Selected>,
    /// The exporting clusters that cannot be reached from this one.
    pub unreachable: BTreeMap<ClusterId, Unreachable>,
    /// [`Observed::excluded`]
    pub excluded: Excluded,
    /// Addresses that were left out.
    pub skipped: Vec<(ClusterId, IpAddr, Unusable)>,
}

/// Clusters, and other sources of endpoints, with their IP families: none of these is served in this cluster.
pub(super) type OutOfReach = BTreeMap<ClusterId, BTreeSet<IpFamily>>;

/// Whether nothing may ever be imported under a name, no matter who exports it. Other clusters must not create Services in
/// namespaces of Kubernetes (`kube-*`) or of this controller (`own`), or one that stands for the API server
/// (`default/kubernetes`).
pub fn is_system(key: &ServiceKey, own: Option<&str>) -> bool {
    key.namespace.starts_with("kube-")
        || Some(&*key.namespace) == own
        || (&*key.namespace, &*key.name) == ("default", "kubernetes")
}

/// Plans one name. `is_cluster_ip` returns whether an address is a cluster IP of this cluster.
pub fn plan(observed: &Observed<'_>, is_cluster_ip: impl Fn(IpAddr) -> bool + Copy) -> Plan {
    let exports: BTreeMap<ClusterId, &Export> =
        observed.sources.iter().map(|(id, source)| (id.clone(), source.export)).collect();
    let exported = merge(&exports);
    let is_exported = exported.is_some();
    let Some(service) = exported.or_else(|| registered::service(observed)) else {
        return without_exports(observed, is_cluster_ip);
    };
    if !observed.namespace {
        // Namespace sameness: without the namespace there is no import. A terminating namespace takes our objects
        // along.
        return Plan::Keep;
    }
    plan_import(observed, service, is_exported, &exports, is_cluster_ip)
}

/// The plan of a name that has an import: `service` is what its exports, or else the discovered instances, make of it.
fn plan_import(
    observed: &Observed<'_>,
    mut service: ClusterSetService,
    is_exported: bool,
    exports: &BTreeMap<ClusterId, &Export>,
    is_cluster_ip: impl Fn(IpAddr) -> bool + Copy,
) -> Plan {
    service.ip_families = service.families_in(observed.families);
    let change = type_notice::waiting(observed, exports);
    if let Some(change) = &change {
        service.service_type = change.from;
    }
    let out_of_reach = out_of_reach(observed, &service.ip_families);
    let excluded = observed.excluded.to_vec();
    let silent = silent(observed, &service.clusters);
    let decided = !import_concerns_unknown(observed) && (is_exported || registered::decides(observed));
    if !decided && observed.import.is_none() {
        return Plan::Keep;
    }
    let foreign = foreign_import(observed);
    let is_foreign = foreign.is_some();
    if let Some(message) = foreign.clone().filter(|_| !decided || !lost_our_label(observed)) {
        return Plan::Blocked(message);
    }

    // The slices belong to the import that exists, or will exist. What the known exports alone would make of it takes
    // nothing away: a cluster that is unknown may be the one that decides.
    let present = observed.import.map(|import| &import.spec).filter(|_| !decided);
    let service_type = present.map_or(service.service_type, type_of);
    let obstacle = foreign.or_else(|| obstacle(observed, service_type));
    if obstacle.is_some() && !is_foreign && !is_in_use(observed.import, observed.derived) {
        let service = decided.then_some(service);
        let nothing = Wanted { service, obstacle, silent, out_of_reach, change, excluded, ..Wanted::default() };
        return Plan::Want(Box::new(nothing));
    }
    // While something is in the way of another type, clients keep the import that they have.
    let kept = observed.import.map(|import| &import.spec).filter(|_| obstacle.is_some() && !is_foreign);
    let service_type = kept.map_or(service_type, type_of);
    let unnamed_alias = (service_type == ServiceType::ClusterSetIp).then_some(UNNAMED_PORT);
    let derives = obstacle.is_none() && observed.derived.serves(service_type);
    let makes = derives && decided && !service.ip_families.is_empty();
    let mut packing = Packing::new(observed, derives, makes, &service.ports);
    if let Some(spec) = present {
        keep_form(observed, spec, &mut service);
    }
    let distribution = present.map_or(&service.traffic_distribution, |spec| &spec.traffic_distribution);
    let proximity = Proximity::of(distribution.as_deref());
    let mut skipped = Vec::new();
    let mut placed = BTreeMap::new();
    let mut place = |source: &ClusterId, endpoints: &[Endpoint], families: &[IpFamily], carried: &[Arc<str>], kept| {
        let local = source == observed.local;
        let mut packed = packable(endpoints, &Placement { source, local, families, carried, unnamed_alias, proximity });
        packed.extend(kept);
        // Our own endpoints were checked when they were planned. They may have cluster IPs, because nothing else in
        // this cluster points to them.
        if !local {
            leave_out(source, &mut packed, is_cluster_ip, &mut skipped);
        }
        placed.insert(source.clone(), packed);
    };
    for (cluster, source) in observed.sources {
        let carried = service.clusters.get(cluster).map_or(&[][..], Vec::as_slice);
        place(cluster, source.endpoints, &service.ip_families, carried, Vec::new());
    }
    let (families, fitted) = registered::fit(observed, decided.then_some(&service));
    let mut unread = registered::unread(observed);
    for (source, endpoints) in &fitted.endpoints {
        let carried = carried_ports(endpoints);
        place(source, endpoints, &families, &carried, unread.remove(source).unwrap_or_default());
        service.clusters.insert(source.clone(), carried);
    }
    for (source, rows) in unread {
        place(&source, &[], &[], &[], rows);
    }
    let selection = observed.selecting.in_force(service.cluster_selection.as_deref());
    // Peers of a StatefulSet need each other's names, and clients of these names choose by themselves (KEP-5939).
    let selection = selection.filter(|_| service_type == ServiceType::ClusterSetIp);
    // Of what no cluster exports, no cluster is preferred.
    let selection = selection.filter(|_| is_exported || import_concerns_unknown(observed));
    service.cluster_selection =
        selection.as_ref().filter(|selection| !selection.is_spread()).map(ClusterSelection::published);
    let (mut spill, mut said, mut unreachable) = (Spill::Settled, None, BTreeMap::new());
    let mut offers = BTreeMap::new();
    if let Some(selection) = selection {
        let exporters = placed.iter().filter(|(source, _)| observed.sources.contains_key(*source));
        offers.extend(exporters.map(|(source, endpoints)| (source.clone(), offered(endpoints))));
        unreachable.clone_from(observed.selecting.unreachable);
        unreachable.retain(|cluster, _| placed.contains_key(cluster));
        let who;
        (placed, spill, who) = selected(observed, &selection, placed);
        said = Some(who);
    }
    for (source, endpoints) in &placed {
        packing.place(source, endpoints, offers.get(source));
    }
    skipped.extend(fitted.misfits.into_iter().map(|(source, ip, misfit)| (source, ip, Unusable::Misfit(misfit))));
    let stale = packing.stale();
    let Packing { derived, slices, former, .. } = packing;
    let service = (decided && !is_foreign).then_some(service);
    let lost = lost(observed).filter(|_| !decided);
    let reports = Wanted { silent, out_of_reach, change, unreachable, excluded, skipped, ..Wanted::default() };
    let shown = Wanted { derived, slices, former, stale, spill, selection: said, ..reports };
    Plan::Want(Box::new(Wanted { service, lost, obstacle, ..shown }))
}

/// The plan of a name that nobody exports, as far as is known.
fn without_exports(observed: &Observed<'_>, is_cluster_ip: impl Fn(IpAddr) -> bool + Copy) -> Plan {
    let ours = observed.import.is_some_and(|import| import.managed)
        || observed.derived.ours().next().is_some()
        || !observed.slices.is_empty();
    let stays = concerns_unknown(observed) || registered::stays(observed);
    match (ours, stays) {
        (true, false) => Plan::Remove,
        (true, true) if observed.namespace => without_endpoints(observed, is_cluster_ip),
        _ => Plan::Keep,
    }
}

/// Gives the merged Service the IP families and the ports of the import that exists.
fn keep_form(observed: &Observed<'_>, spec: &ImportSpec, service: &mut ClusterSetService) {
    if !spec.ip_families.is_empty() {
        service.ip_families = spec.ip_families.to_vec();
    }
    let identity = |port: &ServicePort| (port.name.clone(), port.protocol, port.port);
    let there: BTreeSet<_> = spec.ports.iter().map(identity).collect();
    for (cluster, source) in observed.sources {
        let kept = source.export.ports.iter().filter(|port| there.contains(&identity(port)));
        service.clusters.entry(cluster.clone()).or_default().extend(kept.map(|port| port.name.clone()));
    }
}

/// The import of a name that no known cluster exports, and of which no registered instance is known to exist: a cluster that
/// is unknown may export it, or a service of others is empty or was not read. What is known to be gone goes.
fn without_endpoints(observed: &Observed<'_>, is_cluster_ip: impl Fn(IpAddr) -> bool + Copy) -> Plan {
    let mut skipped = Vec::new();
    let service_type = observed.import.map_or(ServiceType::ClusterSetIp, |import| type_of(&import.spec));
    let derives = observed.derived.serves(service_type) && obstacle(observed, service_type).is_none();
    let mut packing = Packing::new(observed, derives, false, &[]);
    for (source, mut rows) in registered::unread(observed) {
        leave_out(&source, &mut rows, is_cluster_ip, &mut skipped);
        packing.place(&source, &rows, None);
    }
    let stale = packing.stale();
    let Packing { derived, slices, former, .. } = packing;
    let lost = lost(observed);
    let silent = silent(observed, &BTreeMap::new());
    if lost.is_none() && slices.is_empty() && stale.is_empty() && silent.is_none() {
        return Plan::Keep;
    }
    Plan::Want(Box::new(Wanted { lost, silent, derived, slices, former, stale, skipped, ..Wanted::default() }))
}

/// See [`Wanted::silent`]. `known`: the clusters that are known to export the name.
fn silent(observed: &Observed<'_>, known: &BTreeMap<ClusterId, Vec<Arc<str>>>) -> Option<BTreeMap<ClusterId, u64>> {
    let import = observed.import.filter(|import| import.managed);
    let named = |cluster: &ClusterId| {
        import.is_some_and(|import| import.status.clusters.iter().any(|named| **named == *cluster.as_str()))
    };
    let counts = |cluster: &ClusterId| {
        known.contains_key(cluster) || observed.unknown.contains(cluster.as_str()) && named(cluster)
    };
    let silent = observed.silent.iter().filter(|&(cluster, _)| counts(cluster));
    let silent: BTreeMap<_, _> = silent.map(|(cluster, since)| (cluster.clone(), *since)).collect();
    let is_heard = *observed.unknown != Unknown::All && !observed.unheard.iter().any(counts);
    let is_said = || {
        let conditions = observed.import.map(|import| &*import.status.conditions).unwrap_or_default();
        find(conditions, ImportCondition::Stale.as_str()).is_some()
    };
    (!silent.is_empty() || is_heard && is_said()).then_some(silent)
}

fn out_of_reach(observed: &Observed<'_>, served: &[IpFamily]) -> OutOfReach {
    let mut sources = OutOfReach::new();
    for (cluster, source) in observed.sources {
        sources.insert(cluster.clone(), source.export.ip_families.iter().copied().collect());
    }
    for backend in &observed.discovered.backends {
        let families = sources.entry(backend.source.clone()).or_default();
        families.extend(backend.ipv4.map(|_| IpFamily::V4));
        families.extend(backend.ipv6.map(|_| IpFamily::V6));
    }
    sources.retain(|_, families| served.iter().all(|family| !families.contains(family)));
    sources
}

/// Leaves out the addresses that cannot be endpoints in this cluster, including those in slices that stay.
fn leave_out(
    source: &ClusterId,
    endpoints: &mut Vec<PackedEndpoint>,
    is_cluster_ip: impl Fn(IpAddr) -> bool + Copy,
    skipped: &mut Vec<(ClusterId, IpAddr, Unusable)>,
) {
    endpoints.retain(|candidate| match usable(candidate.endpoint.address, is_cluster_ip) {
        Ok(()) => true,
        Err(reason) => {
            skipped.push((source.clone(), candidate.endpoint.address, reason));
            false
        }
    });
}

/// Names of the ports that any of the endpoints serves.
fn carried_ports(endpoints: &[Endpoint]) -> Vec<Arc<str>> {
    let names: BTreeSet<&Arc<str>> =
        endpoints.iter().flat_map(|endpoint| &*endpoint.ports).map(|port| &port.name).collect();
    names.into_iter().cloned().collect()
}

/// The type of an import.
pub(super) fn type_of(spec: &ImportSpec) -> ServiceType {
    if spec.headless { ServiceType::Headless } else { ServiceType::ClusterSetIp }
}

/// The derived Service that the import names, if there is none any more, as the import describes it.
fn lost(observed: &Observed<'_>) -> Option<ClusterSetService> {
    let import = observed.import.filter(|import| import.managed)?;
    import.annotations.get(names::ANNOTATION_DERIVED_SERVICE)?;
    let spec = &import.spec;
    let service_type = type_of(spec);
    let is_gone = observed.derived.there.is_none() && observed.derived.former.is_empty();
    (is_gone && observed.derived.serves(service_type)).then(|| ClusterSetService {
        cluster_selection: None,
        selection_conflict: None,
        service_type,
        ports: spec.ports.to_vec(),
        session_affinity: spec.session_affinity,
        internal_traffic_policy: spec.internal_traffic_policy,
        traffic_distribution: spec.traffic_distribution.clone(),
        ip_families: spec.ip_families.to_vec(),
        other_families: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        clusters: BTreeMap::new(),
        conflicts: Vec::new(),
    })
}

/// Whether clients find the endpoints of the present slices: by a derived Service, or by a headless import.
pub(super) fn is_in_use(import: Option<&ServiceImport>, derived: &DerivedServices) -> bool {
    derived.is_used(import) || import.is_some_and(|import| import.managed && import.spec.headless)
}

/// Whether somebody took our label from the foreign ServiceImport, so that clients still use what was imported: a derived
/// Service, or the slices of a headless import.
fn lost_our_label(observed: &Observed<'_>) -> bool {
    let is_headless = observed.import.is_some_and(|import| import.spec.headless);
    observed.derived.ours().next().is_some() || is_headless && !observed.slices.is_empty()
}

/// A foreign ServiceImport: which one, and the remedy.
fn foreign_import(observed: &Observed<'_>) -> Option<String> {
    observed.import.filter(|import| !import.managed).map(|_| {
        format!(
            "ServiceImport {} was not created by cloudmap-mcs and blocks the import. Stop whatever creates it, then \
             delete it, or hand it over: kubectl label serviceimport -n {} {} {}={}",
            observed.key,
            observed.key.namespace,
            observed.key.name,
            names::LABEL_MANAGED_BY,
            names::MANAGED_BY,
        )
    })
}

/// A foreign Service with the derived name, if an import of this type has a derived Service.
fn obstacle(observed: &Observed<'_>, service_type: ServiceType) -> Option<String> {
    let derived = observed.derived.there.as_ref().filter(|derived| !derived.managed)?;
    observed.derived.serves(service_type).then(|| {
        format!(
            "Service {} was not created by cloudmap-mcs and has the name of the derived Service of ServiceImport {}. \
             Delete it.",
            derived.key, observed.key
        )
    })
}

pub(super) fn of_cluster<'a>(
    slices: &'a [Arc<OwnSlice>],
    cluster: &'a ClusterId,
) -> impl Iterator<Item = &'a OwnSlice> {
    slices
        .iter()
        .filter(|slice| slice.source_cluster.as_deref() == Some(cluster.as_str()) && !slice.deleting)
        .map(|slice| &**slice)
}

/// An existing slice in the form of the domain.
pub(super) fn slice(slice: &OwnSlice) -> Option<Slice> {
    let family = match slice.address_type {
        AddressType::V4 => IpFamily::V4,
        AddressType::V6 => IpFamily::V6,
        AddressType::Unsupported => return None,
    };
    let endpoints = slice.endpoints.iter().filter_map(endpoint).collect();
    Some(Slice { name: slice.key.name.clone(), family, ports: slice.ports.clone(), endpoints })
}

/// An endpoint of an existing slice in the form of the domain.
pub(super) fn endpoint(row: &Row) -> Option<SliceEndpoint> {
    let hints = row.hints.as_ref();
    Some(SliceEndpoint {
        address: row.address?,
        conditions: row.conditions,
        hostname: row.hostname.clone(),
        zone: row.zone.clone(),
        node: row.node.clone(),
        hints: hints
            .map(|hints| Hints { zone: hints.zones.first().cloned(), node: hints.nodes.first().cloned() })
            .unwrap_or_default(),
    })
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
