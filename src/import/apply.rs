//! The side effects of importing: brings the objects of one name to the planned state. Writes only what differs.

use std::{borrow::Cow, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::{
    derived::DerivedServices,
    objects::{
        ImportFacts, derived_service, derived_service_matches, endpoint_slice, import_status, prefer_dual_stack,
        service_import, service_import_matches, silence_status,
    },
    order::{KeptSlice, Order, Outcome, SliceStep, Step},
    plan::{Wanted, is_in_use},
};
use api::names::ANNOTATION_DERIVED_SERVICE;
use cluster::{
    ClusterWriter,
    apply::{Cause, Error, drop_node_hints},
    cache::Narrow,
    objects::{ImportStatus, ObjectKey, OwnSlice, Service, ServiceImport},
};
use model::{ClusterId, ClusterSetService, ServiceKey, ServiceType, Slice, family_of};

/// How long kube-proxy may take to learn of a new Service and its slices. Before that, a connection to its address hangs
/// or is refused.
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

/// How much of a plan is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The derived Service and the EndpointSlices.
    Endpoints,
    /// The ServiceImport as well, but not its status: all that clients need.
    Objects,
    /// Everything.
    All,
}

fn facts<'a>(wanted: &'a Wanted, pending: Option<&'a str>, slices: bool) -> ImportFacts<'a> {
    let (silent, change) = (wanted.silent.as_ref(), wanted.change.as_ref());
    let selection = wanted.selection.as_ref();
    let (out_of_reach, unreachable, excluded) = (&wanted.out_of_reach, &wanted.unreachable, &wanted.excluded);
    ImportFacts { pending, silent, out_of_reach, slices, change, selection, unreachable, excluded }
}

/// The derived Service that an import names, and the addresses that it shows.
#[derive(Debug)]
struct Address<'a> {
    derived: Option<&'a str>,
    ips: Vec<IpAddr>,
}

impl<'a> Address<'a> {
    fn of(service: Option<&'a Arc<Service>>) -> Self {
        Self {
            derived: service.map(|service| &*service.key.name),
            ips: service.map(|service| service.cluster_ips.to_vec()).unwrap_or_default(),
        }
    }
}

/// Applies a plan, in the order of `order.rs`. EndpointSlices are written before the ServiceImport that announces them,
/// and deleted after it. A refused slice delays no other slice and no removal, except a removal that would take away a
/// live address that this slice should have. What is not written is tried again, with the back-off of the name. If
/// everything is to be written, the import says why something is not.
///
/// # Errors
/// The first write that failed. Earlier writes stay. Applying the plan again completes it.
pub async fn apply(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    there: &There,
    wanted: &Wanted,
    extent: Extent,
    now: Timestamp,
) -> Result<(), Error> {
    let shown = Address::of(there.derived.shown(there.import.as_deref()));
    let present = Address::of(there.derived.there.as_ref().filter(|derived| derived.managed));
    let mut address = Address { derived: Some(&*there.derived.name), ..present };
    if let Some(import) = there.import.as_deref().filter(|import| import.managed)
        && !there.derived.is_used(Some(import))
    {
        // Somebody deleted its Service, which comes back with this address. Nothing else remembers it.
        address.ips = import.spec.ips.to_vec();
    }
    // Until another Service has taken over, the import shows the one that it shows. What is in the way is not ours.
    let mut keeps = wanted.former.is_some() || wanted.obstacle.is_some();
    let mut order = Order::new(there, wanted);
    // Whether slices of the Service to show were just written.
    let mut fresh = false;
    let mut result = Ok(());
    let mut refusal = wanted.obstacle.clone();
    while let Some(step) = order.next() {
        let written = match &step {
            Step::Service(service) => {
                derived_cluster_ips(writer, key, there, service).await.map(|ips| address.ips = ips)
            }
            Step::Slice(SliceStep { source, slice, existing, derived, .. }) => {
                let written = write_slice(writer, key, *derived, source, slice, *existing).await;
                written.map(|written| fresh |= written && *derived == address.derived)
            }
            Step::Import(_) if extent == Extent::Endpoints => break,
            Step::Import(service) => {
                let facts = (extent == Extent::All).then(|| facts(wanted, None, true));
                let announced = announce(writer, key, there, service, (&address, fresh), facts.as_ref(), now).await;
                keeps &= announced.is_err();
                announced
            }
            Step::Former(derived) => writer.delete_derived_service(&derived.key, &derived.uid).await,
            Step::Stale(slice) => writer.delete_endpoint_slice(&slice.key, &slice.uid).await,
            Step::Kept(KeptSlice { source, slice, existing }) => {
                write_slice(writer, key, existing.service.as_deref(), source, slice, Some(*existing)).await.map(drop)
            }
        };
        let outcome = match &written {
            Ok(()) => Outcome::Written,
            Err(error) if matches!(error.cause, Cause::NotLeader | Cause::Timeout) => Outcome::Over,
            Err(_) => Outcome::Refused,
        };
        order.done(&step, outcome);
        refusal = refusal.or_else(|| refused(written.as_ref().err()?, &step));
        result = result.and(written);
    }
    if let (Some(refusal), Some(service), Extent::All) = (&refusal, &wanted.service, extent) {
        // Repeating it does not help. People must see what would.
        let slices = match wanted.obstacle {
            Some(_) => is_in_use(there.import.as_deref(), &there.derived),
            None => !there.slices.is_empty(),
        };
        let address = if keeps { &shown } else { &address };
        announce(writer, key, there, service, (address, fresh), Some(&facts(wanted, Some(refusal), slices)), now)
            .await?;
    }
    if let (None, Some(silent), Extent::All) = (&wanted.service, &wanted.silent, extent)
        && let Some(import) = there.import.as_deref().filter(|import| import.managed)
        && let Some(status) = silence_status(import, silent, now)
    {
        writer.apply_import_status(key, &import.uid, &status).await?;
    }
    result
}

/// What the import says of a write that failed, if it will fail again until somebody changes something.
fn refused(error: &Error, step: &Step<'_>) -> Option<String> {
    let (cause, remedy) = match (&error.cause, step) {
        (Cause::Invalid(cause) | Cause::Forbidden(cause), Step::Service(_) | Step::Slice(_)) => (cause, ""),
        // Such as one of ours whose label `managed-by` somebody changed. Clients still find the endpoints that it has.
        (Cause::Conflict(cause), Step::Slice(SliceStep { existing: None, .. })) => {
            (cause, " Delete this EndpointSlice, which is not marked as one of this controller.")
        }
        _ => return None,
    };
    Some(format!("The cluster refuses what the import needs: {error}: {cause}.{remedy} The controller tries again."))
}

/// Writes a slice unless it is as it should be. Returns whether it did.
async fn write_slice(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    derived: Option<&str>,
    source: &ClusterId,
    slice: &Slice,
    existing: Option<&OwnSlice>,
) -> Result<bool, Error> {
    let mut object = endpoint_slice(key, derived, source, slice);
    if !writer.takes_node_hints() {
        drop_node_hints(&mut object);
    }
    let says = OwnSlice::narrow(object.clone());
    if existing.zip(says.as_ref()).is_some_and(|(there, wanted)| there.has_same_content(wanted)) {
        return Ok(false);
    }
    object.metadata.uid = existing.map(|there| there.uid.to_string());
    writer.apply_endpoint_slice(&object).await.map(|_| true)
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
/// its primary family for life. If somebody gave it a selector, Kubernetes made EndpointSlices for it. They would stay as
/// they are without the selector, but go with the Service, which owns them.
fn is_remade(existing: &Service, service: &ClusterSetService) -> bool {
    let lacks = |family| !existing.ip_families.is_empty() && !existing.ip_families.contains(family);
    existing.has_selector
        || existing.headless != (service.service_type == ServiceType::Headless)
        || matches!(service.ip_families.as_slice(), [one] if lacks(one))
}

/// The addresses by which clients know a Service that must be made: those of the Service that it replaces. If somebody
/// deleted that one, those that the import shows.
fn known_cluster_ips(there: &There, service: &ClusterSetService) -> Vec<String> {
    let import = there.import.as_deref().filter(|import| import.managed);
    let known = match (&there.derived.there, import) {
        (Some(derived), _) => &*derived.cluster_ips,
        // Otherwise they still belong to the former Service.
        (None, Some(import)) if there.derived.former.is_empty() => &*import.spec.ips,
        (None, _) => &[][..],
    };
    known.iter().filter(|ip| service.ip_families.contains(&family_of(**ip))).map(ToString::to_string).collect()
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
    let mut service = Cow::Borrowed(service);
    let refuses = |value: &str| !writer.takes_traffic_distribution(&key.namespace, value);
    if service.traffic_distribution.as_deref().is_some_and(refuses) {
        service.to_mut().traffic_distribution = None;
    }
    let service = &*service;
    if let Some(derived) = &there.derived.there
        && derived_service_matches(derived, key, service)
        && (derived.headless || !derived.cluster_ips.is_empty())
    {
        return Ok(derived.cluster_ips.to_vec());
    }
    let mut object = derived_service(key, &there.derived.name, service);
    let known = known_cluster_ips(there, service);
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
    if let Some(spec) = &mut object.spec
        && there.is_none()
        && service.service_type == ServiceType::ClusterSetIp
        && !known.is_empty()
    {
        (spec.cluster_ip, spec.cluster_ips) = (known.first().cloned(), Some(known));
    }
    let mut applied = writer.apply_derived_service(&object).await;
    if let (Err(Error { cause: Cause::Invalid(_) | Cause::Forbidden(_), .. }), Some(spec)) = (&applied, &mut object.spec)
        // Another Service may have the address by now, or the cluster other ranges, or a policy may forbid to ask for one.
        && spec.cluster_ips.take().is_some()
    {
        spec.cluster_ip = None;
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

/// Writes the ServiceImport, and its status if there are facts for it. `fresh`: slices of the Service that it names were
/// just written.
async fn announce(
    writer: &dyn ClusterWriter,
    key: &ServiceKey,
    there: &There,
    service: &ClusterSetService,
    (address, fresh): (&Address<'_>, bool),
    facts: Option<&ImportFacts<'_>>,
    now: Timestamp,
) -> Result<(), Error> {
    let derived = address.derived.filter(|_| there.derived.serves(service.service_type));
    let mut object = service_import(key, derived, service, &address.ips);
    let shown = derived.and_then(|name| there.derived.ours().find(|service| *service.key.name == *name));
    // Dates of creation have whole seconds.
    let is_young = |derived: &Arc<Service>| now.as_second() <= derived.created + PROGRAMMED.as_secs().cast_signed();
    // A headless one was just made anew.
    let is_new = |derived: &Arc<Service>| derived.headless || is_young(derived);
    let young = shown.is_none_or(is_new);
    let there = there.import.as_deref().filter(|import| import.managed);
    let names = |import: &ServiceImport| import.annotations.get(ANNOTATION_DERIVED_SERVICE) == derived;
    let is_shown = there.is_some_and(|import| !import.spec.headless && names(import));
    let waits_for_proxies = !object.spec.ips.is_empty() && (young || fresh && !is_shown);
    // Clients find the endpoints of a headless import until they can use an address.
    let pends = facts.is_some_and(|facts| facts.pending.is_some());
    let waits = pends && service.service_type == ServiceType::ClusterSetIp;
    let kept = there.filter(|import| waits && import.spec.headless);
    if let Some(import) = kept {
        object.spec.ip_families = import.spec.ip_families.iter().map(ToString::to_string).collect();
    }
    let applied;
    let (uid, generation, status) = match there {
        Some(import) if kept.is_some() || service_import_matches(import, &object) => {
            (import.uid.to_string(), import.generation, import.status.clone())
        }
        _ => {
            if there.is_some() && waits_for_proxies {
                // Clients have the name already, and go to the new address at once.
                tokio::time::sleep(PROGRAMMED).await;
            }
            object.metadata.uid = there.map(|import| import.uid.to_string());
            applied = writer.apply_service_import(&object).await?;
            of_applied(applied)
        }
    };
    let Some(facts) = facts else { return Ok(()) };
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
