//! The calls that the engine requests.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    engine::{Call, Event, Look, ServiceKey},
    reader::DiscoverySettings,
    reading::Reading,
};
use cloudmap::{Discovery, Error, Instance, Lane, Listings, Namespace, NamespaceArn, Service};

/// Number of instances on a page of a listing.
const PAGE: usize = 100;

/// Makes a call. All calls only read.
pub(super) async fn perform(
    cloudmap: Arc<dyn cloudmap::Read>,
    listings: Arc<Listings>,
    settings: Arc<DiscoverySettings>,
    call: Call,
) -> Event {
    match call {
        Call::Namespaces => Event::Namespaces(listings.namespaces().await),
        Call::Services { namespace, id } => Event::Services { namespace, result: listings.services(&id).await },
        Call::ByArn(arn) => {
            let result = by_arn(&*cloudmap, &listings, &arn).await;
            Event::ByArn { arn, result }
        }
        Call::Instances(key, look) => {
            let (mut further_calls, mut unlisted) = (0, None);
            let result = look_at(&*cloudmap, &settings, &key, &look, &mut further_calls, &mut unlisted).await;
            Event::Instances { key, further_calls, result, unlisted }
        }
    }
}

/// Lists the services of a namespace, and reads the namespace.
///
/// The ARN is only a filter of the listing, which may be empty because nobody shares the namespace (any more). So it
/// counts only if the namespace can be read afterwards.
async fn by_arn(
    cloudmap: &dyn cloudmap::Read,
    listings: &Listings,
    arn: &Arc<str>,
) -> Result<(Namespace, Arc<[Service]>), Error> {
    let services = listings.services(arn).await?;
    Ok((cloudmap.get_namespace(arn).await?, services))
}

/// Reads one service.
///
/// The discovery plane answers from replicas, may truncate an answer, and has no second page. An instance therefore
/// counts as gone only when the control plane, which is free but slow, does not list it either. The first reading asks
/// both. And an instance that went is there again only if the control plane lists it: replicas lag, each by another time,
/// and a later answer may be an older one.
///
/// If the control plane does not answer, `unlisted` says so, and the reading contains what may be gone.
async fn look_at(
    cloudmap: &dyn cloudmap::Read,
    settings: &DiscoverySettings,
    (namespace, _): &ServiceKey,
    look: &Look,
    further_calls: &mut u32,
    unlisted: &mut Option<Error>,
) -> Result<Reading, Error> {
    let Look { namespace: place, service, previous, gone } = look;
    // Whose it is, is nothing for the labels of objects.
    let namespace = NamespaceArn::parse(namespace).map_or(&**namespace, |arn| arn.id());
    let previous = previous.reading.as_ref();
    let none = BTreeMap::new();
    let Discovery { instances, mut unhealthy, truncated } =
        cloudmap.discover_instances(place.in_discovery(), &service.name, &none, Lane::Instances).await?;
    let mut instances: BTreeMap<Arc<str>, Instance> =
        instances.into_iter().map(|instance| (instance.id.clone(), instance)).collect();
    let reading = |instances: &BTreeMap<Arc<str>, Instance>, unhealthy: &_| {
        let instances: Vec<Instance> = instances.values().cloned().collect();
        Reading::of(&instances, unhealthy, service, namespace, &settings.identity, settings.aws_mcs())
    };
    let seen_all = previous.is_some_and(|previous| previous.ids().all(|id| instances.contains_key(id)));
    if seen_all && !truncated && !instances.keys().any(|id| gone.contains(id)) {
        return Ok(reading(&instances, &unhealthy));
    }
    instances.retain(|id, _| !gone.contains(id));
    *further_calls += 1;
    let listed = match (cloudmap.list_instances(&service.id).await, previous) {
        (Ok(listed), _) => listed,
        (Err(error), None) => return Err(error),
        (Err(error), Some(previous)) => {
            let mut partial = reading(&instances, &unhealthy);
            partial.keep(previous);
            *unlisted = Some(error);
            return Ok(partial);
        }
    };
    *further_calls += pages(listed.len()) - 1;
    let before = instances.len();
    for instance in listed {
        instances.entry(instance.id.clone()).or_insert(instance);
    }
    if instances.len() > before {
        *further_calls += pages(instances.len());
        match cloudmap.unhealthy_instances(&service.id).await {
            Ok(failing) => unhealthy.extend(failing),
            Err(_) => unhealthy.extend(previous.into_iter().flat_map(Reading::unhealthy)),
        }
    }
    Ok(reading(&instances, &unhealthy))
}

/// Number of calls for a listing of this many instances.
fn pages(instances: usize) -> u32 {
    u32::try_from(instances.div_ceil(PAGE)).unwrap_or(u32::MAX).max(1)
}
