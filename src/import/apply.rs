//! The side effects of importing: brings the objects of one name to the planned state. Writes only what differs.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    derived::DerivedServices,
    objects::{
        Facts, derived_port_name, derived_service, derived_service_matches, endpoint_slice, import_status,
        prefer_dual_stack, service_import, service_import_matches,
    },
    plan::Wanted,
};
use crate::{
    api,
    cluster::{
        ClusterWriter,
        apply::{Cause, Error, drop_node_hints},
        cache::Narrow,
        objects::{ImportStatus, ObjectKey, OwnSlice, Service, ServiceImport},
    },
    model::{ClusterSetService, EndpointPort, ServiceKey, ServiceType, Slice},
};

/// How long kube-proxy may take to learn of a new Service. A connection to its address before that hangs.
const PROGRAMMED: Duration = Duration::from_secs(1);

/// The objects of a name in the caches.
#[derive(Debug, Clone, Default)]
pub struct There {
    /// The ServiceImport.
    pub import: Option<Arc<ServiceImport>>,
    /// Its derived Services.
    pub derived: DerivedServices,
    /// The imported EndpointSlices.
    pub slices: Vec<Arc<OwnSlice>>,
}

/// Applies a plan. EndpointSlices are written before the ServiceImport that announces them, and deleted after it. A
/// derived Service that exists and stays is written between them: its ports then always have endpoints. If a slice is
/// refused, neither others nor removals are delayed, but for those that would take a live address away that only this
/// slice should have. What is not written is tried again, with the back-off of the name, and the import says why.
///
/// # Errors
/// The first write that failed. Earlier writes stay. Applying the plan again completes it.
pub async fn apply(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    there: &There,
    wanted: &Wanted,
    now: Timestamp,
) -> Result<(), Error> {
    let facts = |pending, slices| Facts { pending, silent: &wanted.silent, out_of_reach: &wanted.out_of_reach, slices };
    if let (Some(service), Some(obstacle)) = (&wanted.service, &wanted.obstacle) {
        return announce(writer, key, there, service, &[], &facts(Some(obstacle), false), now).await;
    }
    let Served { derives, cluster_ips, result: served } = serve(writer, key, there, wanted).await;
    if let Err(error) = served {
        // Repeating it does not help. People must see what would.
        if let (Cause::Invalid(cause) | Cause::Forbidden(cause), Some(service)) = (&error.cause, &wanted.service) {
            let pending =
                format!("The cluster refuses what the import needs: {error}: {cause}. The controller tries again.");
            announce(writer, key, there, service, &cluster_ips, &facts(Some(&pending), !there.slices.is_empty()), now)
                .await?;
        }
        return Err(error);
    }
    let mut result = Ok(());
    if let Some(service) = &wanted.service {
        result = announce(writer, key, there, service, &cluster_ips, &facts(None, true), now).await;
        let stays =
            |derived: &Service| derives && !service.ip_families.is_empty() && derived.key.name == there.derived.name;
        if result.is_ok() {
            for derived in there.derived.ours().filter(|derived| !stays(derived)) {
                result = result.and(writer.delete_derived_service(&derived.key, &derived.uid).await);
            }
        }
    }
    result.and(delete_stale(writer, there, wanted, &[]).await)
}

/// Writes what clients of a new import need before they can ask for it: the derived Service and the EndpointSlices.
///
/// # Errors
/// As for [`apply`], which also reports them.
pub async fn apply_endpoints(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    there: &There,
    wanted: &Wanted,
) -> Result<(), Error> {
    serve(writer, key, there, wanted).await.result
}

/// What became of the derived Service and the EndpointSlices.
struct Served {
    /// Whether the import has a derived Service.
    derives: bool,
    cluster_ips: Vec<IpAddr>,
    result: Result<(), Error>,
}

async fn serve(writer: &dyn ClusterWriter, key: &ServiceKey, there: &There, wanted: &Wanted) -> Served {
    let managed_import = there.import.as_deref().filter(|import| import.managed);
    let service_type = match (&wanted.service, managed_import) {
        (Some(service), _) => service.service_type,
        (None, Some(import)) if import.spec.headless => ServiceType::Headless,
        (None, _) => ServiceType::ClusterSetIp,
    };
    let derives = there.derived.serves(service_type);
    let present = there.derived.ours().next();
    let mut cluster_ips = present.map(|derived| derived.cluster_ips.to_vec()).unwrap_or_default();
    let mut refused = None;
    // The slices belong to the Service that clients use until the desired one is there.
    let mut derived = present.map_or(&there.derived.name, |derived| &derived.key.name);
    let desired = wanted.service.as_ref().filter(|_| derives);
    // kube-proxy refuses connections to a port that no slice has. A Service that stays gets new ports after the slices.
    let staying = desired
        .zip(there.derived.there.as_deref())
        .filter(|(service, existing)| existing.managed && !is_remade(existing, service));
    if let Some(service) = desired.filter(|_| staying.is_none()) {
        match derived_cluster_ips(writer, key, there, service).await {
            Ok(ips) => (cluster_ips, derived) = (ips, &there.derived.name),
            // Clients use the existing Service. Its endpoints must not stay as they were when a change was refused.
            Err(error) if present.is_some() => refused = Some(error),
            Err(error) => return Served { derives, cluster_ips, result: Err(error) },
        }
    }
    let derived = derives.then_some(&**derived);
    let Unwritten { mut slices, error } = write_slices(writer, key, there, wanted, derived).await;
    let mut lags = refused.is_some();
    if let Some((service, existing)) = staying {
        lags = error.as_ref().is_some_and(is_over) || lacks_slices(existing, service, there, wanted, &slices);
        if !lags {
            match derived_cluster_ips(writer, key, there, service).await {
                Ok(ips) => cluster_ips = ips,
                Err(error) => (refused, lags) = (Some(error), true),
            }
        }
    }
    if lags {
        // The Service has the ports that it had. Their slices must stay while the endpoints live.
        slices = wanted.slices.values().flatten().collect();
    }
    let result = match refused.or(error) {
        None => Ok(()),
        Some(error) => {
            // If the removal fails as well, it is tried again with the rest.
            let _ = delete_stale(writer, there, wanted, &slices).await;
            Err(error)
        }
    };
    Served { derives, cluster_ips, result }
}

/// Whether the Service would give a port that clients use a name that only slices have that could not be written.
fn lacks_slices(
    existing: &Service,
    service: &ClusterSetService,
    there: &There,
    wanted: &Wanted,
    unwritten: &[&Slice],
) -> bool {
    let is_unwritten = |slice: &Slice| unwritten.iter().any(|one| one.name == slice.name);
    service.ports.iter().any(|port| {
        let name = derived_port_name(port);
        let has = |ports: &[EndpointPort]| ports.iter().any(|one| &*one.name == name && one.protocol == port.protocol);
        let mut same = existing.ports.iter().filter(|one| (one.port, one.protocol) == (port.port, port.protocol));
        same.any(|one| &*one.name != name)
            && unwritten.iter().any(|slice| has(&slice.ports))
            && !there.slices.iter().any(|slice| has(&slice.ports))
            && !wanted.slices.values().flatten().any(|slice| has(&slice.ports) && !is_unwritten(slice))
    })
}

/// Deletes what is stale. A slice with an address of a slice that clients cannot use yet (`unusable`) stays: that one
/// could not be written, or the Service does not have its ports. Otherwise clients would lose a live endpoint.
async fn delete_stale(
    writer: &dyn ClusterWriter,
    there: &There,
    wanted: &Wanted,
    unusable: &[&Slice],
) -> Result<(), Error> {
    let waiting: BTreeSet<IpAddr> =
        unusable.iter().flat_map(|slice| &slice.endpoints).map(|endpoint| endpoint.address).collect();
    let waits =
        |slice: &OwnSlice| slice.endpoints.iter().any(|row| row.address.is_some_and(|ip| waiting.contains(&ip)));
    let mut result = Ok(());
    for slice in there.slices.iter().filter(|slice| wanted.stale.contains(&slice.key.name) && !waits(slice)) {
        result = result.and(writer.delete_endpoint_slice(&slice.key, &slice.uid).await);
    }
    result
}

/// Slices that could not be written, and why the first one could not.
#[derive(Default)]
struct Unwritten<'a> {
    slices: Vec<&'a Slice>,
    error: Option<Error>,
}

/// Whether the next write would also fail: nobody answers, or this replica no longer leads.
const fn is_over(error: &Error) -> bool {
    matches!(error.cause, Cause::NotLeader | Cause::Timeout)
}

fn has(slice: &Slice, ip: IpAddr) -> bool {
    slice.endpoints.iter().any(|endpoint| endpoint.address == ip)
}

/// Whether all slices that should have an address are among these.
fn is_only_in(slices: &[&Slice], wanted: &Wanted, ip: IpAddr) -> bool {
    let mut homes = wanted.slices.values().flatten().filter(|slice| has(slice, ip));
    !slices.is_empty() && homes.all(|home| slices.iter().any(|one| one.name == home.name))
}

async fn write_slices<'a>(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    there: &There,
    wanted: &'a Wanted,
    derived: Option<&str>,
) -> Unwritten<'a> {
    let mut unwritten = Unwritten::default();
    let endpoints = wanted.slices.values().flatten().flat_map(|slice| &slice.endpoints);
    let stays: BTreeSet<IpAddr> = endpoints.map(|endpoint| endpoint.address).collect();
    let mut all = Vec::new();
    for (source, slices) in &wanted.slices {
        for slice in slices {
            let existing = there.slices.iter().find(|there| there.key.name == slice.name);
            let had = existing.into_iter().flat_map(|there| there.endpoints.iter()).filter_map(|row| row.address);
            let given_up: Vec<_> = had.filter(|ip| !has(slice, *ip) && stays.contains(ip)).collect();
            all.push((source, slice, existing, given_up));
        }
    }
    // Who takes addresses over comes first. Otherwise a live endpoint would be in no slice between two writes.
    all.sort_by_key(|(.., given_up)| !given_up.is_empty());
    for (source, slice, existing, given_up) in all {
        let mut object = endpoint_slice(key, derived, source, slice);
        if !writer.takes_node_hints() {
            drop_node_hints(&mut object);
        }
        let says = OwnSlice::narrow(object.clone());
        if existing.zip(says.as_ref()).is_some_and(|(there, wanted)| there.says_the_same(wanted)) {
            continue;
        }
        object.metadata.uid = existing.map(|there| there.uid.to_string());
        let waits = unwritten.error.as_ref().is_some_and(is_over)
            || given_up.iter().any(|ip| is_only_in(&unwritten.slices, wanted, *ip));
        let result = if waits { Ok(()) } else { writer.apply_endpoint_slice(&object).await.map(drop) };
        if waits || result.is_err() {
            unwritten.slices.push(slice);
        }
        unwritten.error = unwritten.error.or(result.err());
    }
    unwritten
}

/// Deletes all objects of a name that this project created. An object that cannot be deleted does not delay the others.
///
/// # Errors
/// As for [`apply`].
pub async fn remove(writer: &dyn ClusterWriter, key: &ServiceKey, there: &There) -> Result<(), Error> {
    let mut result = Ok(());
    if let Some(import) = there.import.as_ref().filter(|import| import.managed) {
        result = writer.delete_service_import(key, &import.uid).await;
    }
    for derived in there.derived.ours() {
        result = result.and(writer.delete_derived_service(&derived.key, &derived.uid).await);
    }
    for slice in &there.slices {
        let key = ObjectKey::new(key.namespace.clone(), slice.key.name.clone());
        result = result.and(writer.delete_endpoint_slice(&key, &slice.uid).await);
    }
    result
}

/// Whether the existing Service must be deleted and made again. A Service is headless, or is not, for life, and keeps
/// its primary family for life.
fn is_remade(existing: &Service, service: &ClusterSetService) -> bool {
    let lacks = |family| !existing.ip_families.is_empty() && !existing.ip_families.contains(family);
    existing.headless != (service.service_type == ServiceType::Headless)
        || matches!(service.ip_families.as_slice(), [one] if lacks(one))
}

/// Brings the derived Service to its desired state and returns its cluster IPs, which are those of the import. There
/// are none if this cluster supports none of the families.
async fn derived_cluster_ips(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    there: &There,
    service: &ClusterSetService,
) -> Result<Vec<IpAddr>, Error> {
    if service.ip_families.is_empty() {
        return Ok(Vec::new());
    }
    if let Some(derived) = &there.derived.there
        && derived_service_matches(derived, key, service)
        && (derived.headless || !derived.cluster_ips.is_empty())
    {
        return Ok(derived.cluster_ips.to_vec());
    }
    let mut object = derived_service(key, &there.derived.name, service);
    let mut there = there.derived.there.as_ref();
    if let Some(derived) = there.filter(|derived| is_remade(derived, service)) {
        writer.delete_derived_service(&derived.key, &derived.uid).await?;
        there = None;
    }
    if service.ip_families.len() == 1 && there.is_some_and(|derived| derived.ip_families.len() > 1) {
        // Dropping the other family would lose an address that may be wanted again, or that is the primary one.
        prefer_dual_stack(&mut object);
    }
    object.metadata.uid = there.map(|derived| derived.uid.to_string());
    let mut applied = writer.apply_derived_service(&object).await;
    // Older API servers refuse values that they do not know. kube-proxy uses only the hints in the slices.
    if let (Err(Error { cause: Cause::Invalid(message), .. }), Some(spec)) = (&applied, &mut object.spec)
        && message.contains("trafficDistribution")
        && spec.traffic_distribution.take().is_some()
    {
        applied = writer.apply_derived_service(&object).await;
    }
    match applied {
        Ok(applied) => Ok(Service::narrow(applied).map(|service| service.cluster_ips.to_vec()).unwrap_or_default()),
        // A single-stack cluster refuses a Service of the other family, and names the field.
        Err(Error { cause: Cause::Invalid(message), .. })
            if there.is_none() && service.ip_families.len() == 1 && message.contains("ipFamilies") =>
        {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// Writes the ServiceImport and its status.
async fn announce(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    there: &There,
    service: &ClusterSetService,
    cluster_ips: &[IpAddr],
    facts: &Facts<'_>,
    now: Timestamp,
) -> Result<(), Error> {
    let derived = Some(&*there.derived.name).filter(|_| there.derived.serves(service.service_type));
    let mut object = service_import(key, derived, service, cluster_ips);
    // Dates of creation have whole seconds.
    let is_young = |derived: &Arc<Service>| now.as_second() <= derived.created + PROGRAMMED.as_secs().cast_signed();
    let young = !cluster_ips.is_empty() && there.derived.there.as_ref().is_none_or(is_young);
    let there = there.import.as_deref().filter(|import| import.managed);
    let applied;
    let (uid, generation, status) = match there {
        Some(import) if service_import_matches(import, &object) => {
            (import.uid.to_string(), import.generation, import.status.clone())
        }
        _ => {
            if there.is_some() && young {
                // Clients have the name already, and go to the new address at once.
                tokio::time::sleep(PROGRAMMED).await;
            }
            object.metadata.uid = there.map(|import| import.uid.to_string());
            applied = writer.apply_service_import(&object).await?;
            of_applied(applied)
        }
    };
    let wanted = import_status(&status.conditions, service, &object, facts, generation, now);
    if ImportStatus::from(&wanted) != status {
        writer.apply_import_status(key, &uid, &wanted).await?;
    }
    Ok(())
}

fn of_applied(import: api::ServiceImport) -> (String, Option<i64>, ImportStatus) {
    let status = import.status.as_ref().map(ImportStatus::from).unwrap_or_default();
    (import.metadata.uid.unwrap_or_default(), import.metadata.generation, status)
}

#[cfg(test)]
#[path = "apply_tests.rs"]
mod tests;
