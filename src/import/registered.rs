//! Discovered instances of a name, in addition to the exports of Kubernetes clusters.

use std::collections::BTreeMap;

use super::plan::{Observed, of_cluster, slice};
use cluster::objects::{OwnSlice, ServiceImport};
use discovery::{Fitted, Front, Numbers};
use model::{ClusterId, ClusterSetService, EndpointPort, IpFamily, PackedEndpoint, ServiceType};

/// The service of a name that no cluster exports.
pub(super) fn service(observed: &Observed<'_>) -> Option<ClusterSetService> {
    discovery::service(&observed.discovered.backends, present(observed).as_ref())
}

/// Whether the import of a name that nobody exports any more stays: others registered it, and a service with that name
/// still exists (possibly empty), or this is not known.
pub(super) fn stays(observed: &Observed<'_>) -> bool {
    let of_others = |import: &&ServiceImport| {
        import.managed && import.status.clusters.iter().any(|cluster| ClusterId::is_discovered(cluster))
    };
    observed.import.as_ref().is_some_and(of_others) && (observed.discovered.exists || !observed.discovered.complete)
}

/// Whether the discovered instances determine the service. If not, an existing import stays as it is.
pub(super) fn decides(observed: &Observed<'_>) -> bool {
    observed.discovered.complete || present(observed).is_none()
}

/// The endpoints that fit the service, and its families: those of the decided service, or else those of the import.
pub(super) fn fit(observed: &Observed<'_>, decided: Option<&ClusterSetService>) -> (Vec<IpFamily>, Fitted) {
    let Some(front) = decided.map(Front::of).or_else(|| present(observed)) else { return Default::default() };
    let exported = observed.sources.iter().flat_map(|(cluster, source)| {
        let is_heard = !observed.silent.contains_key(cluster);
        source.endpoints.iter().map(move |endpoint| (endpoint, is_heard))
    });
    let fitted = discovery::fit(&front, exported, &observed.discovered.backends, &served(observed));
    (front.ip_families, fitted)
}

/// The numbers on which discovered endpoints are served until now. One that is the number of the import's own port does
/// not count: it was perhaps only the last resort, and must not stay when the port gets another number.
fn served(observed: &Observed<'_>) -> Numbers {
    let own = observed.import.map_or(&[][..], |import| &*import.spec.ports);
    let is_own = |served: &EndpointPort| own.iter().any(|own| (&own.name, own.port) == (&served.name, served.port));
    let is_discovered = |slice: &OwnSlice| slice.source_cluster.as_deref().is_some_and(ClusterId::is_discovered);
    let slices = observed.slices.iter().filter(|slice| !slice.deleting && is_discovered(slice));
    let mut numbers = Numbers::new();
    for port in slices.flat_map(|slice| slice.ports.iter()).filter(|port| !is_own(port)) {
        numbers.entry(port.name.clone()).or_default().insert(port.port);
    }
    numbers
}

/// Endpoints in slices of discovered sources that were never read, while not everything was read.
pub(super) fn unread(observed: &Observed<'_>) -> BTreeMap<ClusterId, Vec<PackedEndpoint>> {
    let mut kept: BTreeMap<ClusterId, Vec<PackedEndpoint>> = BTreeMap::new();
    if observed.discovered.complete {
        return kept;
    }
    let sources = observed.slices.iter().filter_map(|slice| ClusterId::discovered(slice.source_cluster.as_deref()?));
    for source in sources {
        if kept.contains_key(&source) {
            continue;
        }
        let slices = of_cluster(observed.slices, &source).filter_map(slice);
        let rows = slices.flat_map(|slice| {
            let ports = slice.ports;
            slice.endpoints.into_iter().map(move |endpoint| PackedEndpoint { endpoint, ports: ports.clone() })
        });
        let rows = rows.filter(|row| !observed.discovered.seen.contains(&row.endpoint.address)).collect();
        kept.insert(source, rows);
    }
    kept
}

/// The service as the import describes it.
fn present(observed: &Observed<'_>) -> Option<Front> {
    let spec = &observed.import.filter(|import| import.managed)?.spec;
    Some(Front {
        service_type: if spec.headless { ServiceType::Headless } else { ServiceType::ClusterSetIp },
        ports: spec.ports.to_vec(),
        ip_families: spec.ip_families.to_vec(),
    })
}

#[cfg(test)]
#[path = "registered_tests.rs"]
mod tests;
