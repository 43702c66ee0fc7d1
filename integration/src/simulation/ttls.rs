//! The TTL of records, which people change by hand in Cloud Map.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    claims::{claims, places},
    world::World,
};
use emulator::Service;

/// No object asks for this one.
const TTL: i64 = 7_777;

/// Until it is set back: a listing every 10 minutes, and a change.
pub(crate) const REPAIR: Duration = Duration::from_mins(11);

/// Gives the records of a service another TTL.
pub(crate) fn change(world: &mut World, id: &str) {
    let records: Option<Value> = world.registry.with(|cloudmap, _| {
        let service = cloudmap.services().find(|service| service.id == id)?;
        let records = service.dns_config.iter().flat_map(|dns| &dns.dns_records);
        Some(records.map(|record| json!({"Type": record.r#type, "TTL": TTL})).collect())
    });
    let body = json!({"Id": id, "Service": {"DnsConfig": {"DnsRecords": records}}});
    world.registry.call("people", "UpdateService", &body);
    world.retimed = Some(world.began.elapsed());
}

/// A service that still has it, although those who may have the name all have endpoints: whoever is the first of them asks for
/// another one.
pub(crate) fn changed(world: &World) -> Option<String> {
    let claims = claims(&world.clusters);
    world.registry.with(|cloudmap, _| {
        let is_changed = |service: &Service| {
            service.dns_config.iter().flat_map(|dns| &dns.dns_records).any(|record| record.ttl == TTL)
        };
        let places = places(cloudmap);
        let mut names = cloudmap.services().filter(|service| is_changed(service)).filter_map(|service| {
            Some((cloudmap.namespace(&service.namespace_id)?.name.clone(), service.name.clone()))
        });
        let is_served = |name: &(String, String)| {
            let claims = claims.get(name).map(Vec::as_slice).unwrap_or_default();
            claims.iter().all(|claim| !claim.endpoints.is_empty())
                && places.get(name).is_some_and(|place| !place.instances.is_empty())
        };
        let (namespace, service) = names.find(is_served)?;
        Some(format!("{namespace}/{service} has a TTL of {TTL} s"))
    })
}
