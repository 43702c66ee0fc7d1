//! Exports made from the instances of the AWS controller, and joined with those of the ledger.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::Registered;
use model::{
    ClusterId, Conditions, Endpoint, EndpointPort, Export, Exported, IpFamily, ServicePort, SessionAffinity,
    TrafficPolicy,
};

/// The exports of one name, by cluster. An export has the oldest creation time of its instances, and the type of the
/// first one.
///
/// If two ports have one name, or one (protocol, number), the lower one counts. Both can be there only for a moment.
/// What instances cannot express has its default; see [`join`].
pub fn exports<'a>(instances: impl IntoIterator<Item = &'a Registered>) -> BTreeMap<ClusterId, Exported> {
    let mut clusters: BTreeMap<ClusterId, Vec<&Registered>> = BTreeMap::new();
    for instance in instances {
        clusters.entry(instance.cluster.clone()).or_default().push(instance);
    }
    clusters.into_iter().filter_map(|(cluster, instances)| Some((cluster, exported(&instances)?))).collect()
}

fn exported(instances: &[&Registered]) -> Option<Exported> {
    let first = instances.first()?;
    let ports: BTreeSet<&ServicePort> = instances.iter().map(|instance| &instance.port).collect();
    let mut kept: Vec<ServicePort> = Vec::new();
    for port in ports {
        let number = |port: &ServicePort| (port.protocol, port.port);
        if !kept.iter().any(|other| other.name == port.name || number(other) == number(port)) {
            kept.push(port.clone());
        }
    }
    // Instances do not have the order of the Service's ports.
    kept.sort_by_key(|port| (port.port, port.protocol));

    let mut endpoints: BTreeMap<IpAddr, (&Registered, BTreeSet<&EndpointPort>)> = BTreeMap::new();
    for instance in instances.iter().filter(|instance| kept.contains(&instance.port)) {
        let (_, ports) = endpoints.entry(instance.address).or_insert_with(|| (instance, BTreeSet::new()));
        ports.insert(&instance.served);
    }
    let families = [(IpFamily::V4, true), (IpFamily::V6, false)];
    let has = |v4| instances.iter().any(|instance| instance.address.is_ipv4() == v4);
    Some(Exported {
        export: Export {
            uid: "".into(),
            created: instances.iter().map(|instance| instance.created).min()?.div_euclid(1000),
            service_type: first.service_type,
            ports: kept,
            session_affinity: SessionAffinity::None,
            internal_traffic_policy: TrafficPolicy::Cluster,
            traffic_distribution: None,
            ip_families: families.into_iter().filter(|(_, v4)| has(*v4)).map(|(family, _)| family).collect(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            publish_not_ready_addresses: false,
            target: None,
            cluster_selection: None,
            drain: None,
        },
        endpoints: endpoints.into_values().map(|(instance, ports)| endpoint(instance, ports)).collect(),
    })
}

fn endpoint(instance: &Registered, ports: BTreeSet<&EndpointPort>) -> Endpoint {
    let ready = instance.ready && instance.healthy;
    let (ipv4, ipv6) = match instance.address {
        IpAddr::V4(address) => (Some(address), None),
        IpAddr::V6(address) => (None, Some(address)),
    };
    Endpoint {
        ipv4,
        ipv6,
        ports: ports.into_iter().cloned().collect(),
        conditions: Conditions { ready, serving: ready, terminating: false },
        hostname: instance.hostname.clone(),
        zone: None,
        node: None,
    }
}

/// Joins the ledger's exports of a name with those of AWS controllers.
///
/// If the ledger has a cluster's export of the name, that cluster has moved, and its instances do not count, because
/// they contain the same or something older. `skip` returns the clusters whose instances never count. What instances
/// cannot express comes from the oldest export that can, so that it causes no conflict.
pub fn join(
    told: &mut BTreeMap<ClusterId, Arc<Exported>>,
    instances: BTreeMap<ClusterId, Exported>,
    skip: impl Fn(&ClusterId) -> bool,
) {
    let oldest = told.iter().min_by_key(|(id, exported)| (exported.export.created, *id));
    let model = oldest.map(|(_, exported)| Arc::clone(exported));
    let others: Vec<_> =
        instances.into_iter().filter(|(cluster, _)| !told.contains_key(cluster) && !skip(cluster)).collect();
    for (cluster, mut exported) in others {
        if let Some(model) = &model {
            complete(&mut exported, &model.export);
        }
        told.insert(cluster, Arc::new(exported));
    }
}

fn complete(exported: &mut Exported, model: &Export) {
    let export = &mut exported.export;
    export.session_affinity = model.session_affinity;
    export.internal_traffic_policy = model.internal_traffic_policy;
    export.traffic_distribution.clone_from(&model.traffic_distribution);
    export.labels.clone_from(&model.labels);
    export.annotations.clone_from(&model.annotations);
    for port in &mut export.ports {
        let same =
            |other: &&ServicePort| (&other.name, other.protocol, other.port) == (&port.name, port.protocol, port.port);
        port.app_protocol = model.ports.iter().find(same).and_then(|same| same.app_protocol.clone());
    }
}

#[cfg(test)]
#[path = "export_tests.rs"]
mod tests;
