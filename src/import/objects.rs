//! The Kubernetes objects of an import.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery},
    apimachinery::pkg::{
        apis::meta::v1::{Condition, ObjectMeta},
        util::intstr::IntOrString,
    },
    jiff::Timestamp,
};

use super::{
    plan::OutOfReach,
    policy::{self, Exclusion},
    selecting::Selected,
    type_notice::TypeChange,
    unreachable::{self, Unreachable},
};
use api::{
    ClientIpConfig, ClusterStatus, EndpointSliceObjects, ServiceImport, ServiceImportPort, ServiceImportSpec,
    ServiceImportStatus, ServiceImportType, SessionAffinityConfig,
    conditions::{
        ImportCondition, ImportExcludedReason, ImportReadyReason, ImportStaleReason, ImportTypeReason,
        ImportUnreachableReason, SharedCondition, Verdict, conditions, find,
    },
    names,
};
use cluster::objects;
use model::{
    ClusterId, ClusterSetService, Conditions, DEFAULT_AFFINITY_TIMEOUT, EndpointPort, Hints, IpFamily, ServiceKey,
    ServicePort, ServiceType, SessionAffinity, Slice, SliceEndpoint, UNNAMED_PORT, family_of,
    labels::{is_annotation_key, is_label_key, is_label_value},
};

/// The derived Service of an import. It has no selector; its endpoints are the imported EndpointSlices. Its cluster IPs
/// are the IPs of the ServiceImport; that of a headless import is headless as well.
pub fn derived_service(key: &ServiceKey, name: &str, service: &ClusterSetService) -> core::Service {
    let ports = service.ports.iter().map(|port| core::ServicePort {
        name: Some(derived_port_name(port).to_owned()),
        protocol: Some(port.protocol.to_string()),
        port: port.port.into(),
        target_port: Some(IntOrString::Int(port.port.into())),
        app_protocol: port.app_protocol.as_deref().map(str::to_owned),
        ..core::ServicePort::default()
    });
    let timeout = affinity_timeout(service.session_affinity);
    let mut derived = core::Service {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(key.namespace.to_string()),
            labels: Some(
                [
                    (names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned()),
                    (names::LABEL_SERVICE_NAME.to_owned(), key.name.to_string()),
                ]
                .into(),
            ),
            ..ObjectMeta::default()
        },
        spec: Some(core::ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            cluster_ip: (service.service_type == ServiceType::Headless).then(|| "None".to_owned()),
            ports: Some(ports.collect()),
            session_affinity: Some(affinity_name(service.session_affinity).to_owned()),
            session_affinity_config: timeout.map(|seconds| core::SessionAffinityConfig {
                client_ip: Some(core::ClientIPConfig { timeout_seconds: i32::try_from(seconds).ok() }),
            }),
            internal_traffic_policy: Some(service.internal_traffic_policy.to_string()),
            traffic_distribution: service.traffic_distribution.as_deref().map(str::to_owned),
            ..core::ServiceSpec::default()
        }),
        status: None,
    };
    match (service.ip_families.as_slice(), &mut derived.spec) {
        ([one], Some(spec)) => {
            spec.ip_family_policy = Some("SingleStack".to_owned());
            spec.ip_families = Some(vec![one.to_string()]);
        }
        _ => prefer_dual_stack(&mut derived),
    }
    derived
}

/// Requests both families as a preference: a single-stack cluster refuses a request for both by name, but never a
/// preference.
pub(super) fn prefer_dual_stack(derived: &mut core::Service) {
    if let Some(spec) = &mut derived.spec {
        spec.ip_family_policy = Some("PreferDualStack".to_owned());
        spec.ip_families = None;
    }
}

/// The name of a port in the derived Service. Slices list an unnamed port under both names, because readers that start from
/// the ServiceImport look for the port without a name.
pub(super) fn derived_port_name(port: &ServicePort) -> &str {
    if port.name.is_empty() { UNNAMED_PORT } else { &port.name }
}

/// Whether the existing derived Service already contains everything that [`derived_service`] would write.
pub(super) fn derived_service_matches(there: &objects::Service, key: &ServiceKey, service: &ClusterSetService) -> bool {
    let families = match service.ip_families.as_slice() {
        // A Service that also has the other family keeps its addresses. The import shows the desired ones.
        [one] => there.ip_families.contains(one),
        _ => there.ip_family_policy.as_deref() == Some("PreferDualStack"),
    };
    let affinity = match service.session_affinity {
        SessionAffinity::ClientIp { .. } => {
            SessionAffinity::ClientIp { timeout: affinity_timeout(service.session_affinity) }
        }
        SessionAffinity::None => SessionAffinity::None,
    };
    let comparable =
        |port: &ServicePort, name: &str| (name.to_owned(), port.protocol, port.port, port.app_protocol.clone());
    let mut wanted_ports: Vec<_> = service.ports.iter().map(|port| comparable(port, derived_port_name(port))).collect();
    let mut ports: Vec<_> = there.ports.iter().map(|port| comparable(port, &port.name)).collect();
    wanted_ports.sort();
    ports.sort();
    there.managed
        && !there.has_selector
        && there.kind == objects::ServiceKind::ClusterIp
        && there.headless == (service.service_type == ServiceType::Headless)
        && there.service_import.as_deref() == Some(&*key.name)
        && ports == wanted_ports
        && families
        && there.session_affinity == affinity
        && there.internal_traffic_policy == service.internal_traffic_policy
        && there.traffic_distribution == service.traffic_distribution
}

/// The ServiceImport. It names its derived Service, if it has one, shows the cluster IPs of that Service (none for a headless
/// one), and says which cluster selection is in force, unless all clusters serve alike.
pub fn service_import(
    key: &ServiceKey,
    derived: Option<&str>,
    service: &ClusterSetService,
    cluster_ips: &[IpAddr],
) -> ServiceImport {
    let headless = service.service_type == ServiceType::Headless;
    // KEP-1645: the IPs are in the order of the families.
    let (families, ips): (Vec<IpFamily>, Vec<String>) = if headless {
        (service.ip_families.clone(), Vec::new())
    } else {
        service
            .ip_families
            .iter()
            .filter_map(|wanted| Some((*wanted, cluster_ips.iter().find(|ip| family_of(**ip) == *wanted)?.to_string())))
            .unzip()
    };
    let mut import = ServiceImport::new(
        &key.name,
        ServiceImportSpec {
            ports: service
                .ports
                .iter()
                .map(|port| ServiceImportPort {
                    name: (!port.name.is_empty()).then(|| port.name.to_string()),
                    protocol: Some(port.protocol.to_string()),
                    app_protocol: port.app_protocol.as_deref().map(str::to_owned),
                    port: port.port.into(),
                })
                .collect(),
            ips,
            type_: if headless { ServiceImportType::Headless } else { ServiceImportType::ClusterSetIp },
            session_affinity: Some(affinity_name(service.session_affinity).to_owned()),
            session_affinity_config: affinity_timeout(service.session_affinity).map(|seconds| SessionAffinityConfig {
                client_ip: Some(ClientIpConfig { timeout_seconds: i32::try_from(seconds).ok() }),
            }),
            ip_families: families.iter().map(ToString::to_string).collect(),
            internal_traffic_policy: Some(service.internal_traffic_policy.to_string()),
            traffic_distribution: service.traffic_distribution.as_deref().map(str::to_owned),
        },
    );
    let exported = |pairs: &BTreeMap<String, String>| -> BTreeMap<String, String> {
        pairs.iter().filter(|(name, _)| !names::is_reserved(name)).map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    // A well-behaved exporter already leaves these out. One bad pair must not prevent the import.
    let mut labels = exported(&service.labels);
    labels.retain(|name, value| is_label_key(name) && is_label_value(value));
    labels.insert(names::LABEL_MANAGED_BY.to_owned(), names::MANAGED_BY.to_owned());
    let mut annotations = exported(&service.annotations);
    annotations.retain(|name, _| is_annotation_key(name));
    if let Some(derived) = derived {
        annotations.insert(names::ANNOTATION_DERIVED_SERVICE.to_owned(), derived.to_owned());
    }
    if let Some(selection) = &service.cluster_selection {
        annotations.insert(names::ANNOTATION_CLUSTER_SELECTORS.to_owned(), selection.to_string());
    }
    import.metadata.namespace = Some(key.namespace.to_string());
    import.metadata.labels = Some(labels);
    import.metadata.annotations = Some(annotations).filter(|annotations| !annotations.is_empty());
    import
}

/// Whether the existing import already has everything that is desired, except for the status.
pub(super) fn service_import_matches(there: &objects::ServiceImport, wanted: &ServiceImport) -> bool {
    let same = |there: &model::Pairs, wanted: Option<&BTreeMap<String, String>>| {
        let wanted = wanted.into_iter().flatten();
        there.iter().eq(wanted.map(|(k, v)| (k.as_str(), v.as_str())))
    };
    there.managed
        && there.spec == objects::ImportSpec::from(&wanted.spec)
        && same(&there.labels, wanted.metadata.labels.as_ref())
        && same(&there.annotations, wanted.metadata.annotations.as_ref())
}

/// What determines the conditions of an import, besides its spec.
#[derive(Debug)]
pub struct ImportFacts<'a> {
    /// Why the service cannot be used yet, if so.
    pub pending: Option<&'a str>,
    /// Exporting clusters that have been silent for long, and since when (milliseconds since 1970). `None` if this is not
    /// known yet: what an earlier leader said of it stays.
    pub silent: Option<&'a BTreeMap<ClusterId, u64>>,
    /// Sources of endpoints none of which can be reached here.
    pub out_of_reach: &'a OutOfReach,
    /// Whether this cluster has, or would have, EndpointSlices.
    pub slices: bool,
    /// A change of the type that is not made yet.
    pub change: Option<&'a TypeChange>,
    /// Which clusters serve, if some are preferred.
    pub selection: Option<&'a Selected>,
    /// The exporting clusters that cannot be reached from this one.
    pub unreachable: &'a BTreeMap<ClusterId, Unreachable>,
    /// What of other clusters' exports does not count here.
    pub excluded: &'a [(ClusterId, Exclusion)],
}

/// The status of the import, given the conditions that it has. `service` has the IP families that are served here.
pub fn import_status(
    current: &[SharedCondition],
    service: &ClusterSetService,
    import: &ServiceImport,
    facts: &ImportFacts<'_>,
    generation: Option<i64>,
    now: Timestamp,
) -> ServiceImportStatus {
    let supported = !import.spec.ip_families.is_empty();
    let mut verdicts = vec![match facts.pending {
        Some(message) => Verdict::new(ImportReadyReason::Pending, message),
        None if supported => Verdict::new(ImportReadyReason::Ready, usable_message(facts.out_of_reach)),
        None => Verdict::new(ImportReadyReason::IpFamilyNotSupported, unusable_message(facts.out_of_reach)),
    }];
    verdicts.extend(facts.silent.and_then(silence));
    verdicts.extend(out_of_touch(facts.unreachable));
    verdicts.extend(facts.change.map(|change| Verdict::new(ImportTypeReason::OldestExport, change.text())));
    verdicts.extend(facts.selection.map(|selected| Verdict::new(selected.reason(), &selected.message)));
    verdicts.extend(left_out(facts.excluded));
    let mut conditions = conditions(current, verdicts, generation, now);
    if facts.silent.is_none() {
        conditions.extend(find(current, ImportCondition::Stale.as_str()).map(Condition::from));
    }
    ServiceImportStatus {
        clusters: service.clusters.keys().map(|cluster| ClusterStatus { cluster: cluster.to_string() }).collect(),
        conditions,
        endpoint_slice_objects: Some(if supported && facts.slices {
            EndpointSliceObjects::Present
        } else {
            EndpointSliceObjects::Absent
        }),
    }
}

/// The status of an import that stays as it is but for what it says of silent clusters; `None` if it says that already.
pub(crate) fn silence_status(
    import: &objects::ServiceImport,
    silent: &BTreeMap<ClusterId, u64>,
    now: Timestamp,
) -> Option<ServiceImportStatus> {
    let objects::ImportStatus { clusters, conditions: current, endpoint_slice_objects } = &import.status;
    let stale = conditions(current, silence(silent), import.generation, now);
    if stale.first().map(SharedCondition::from).as_ref() == find(current, ImportCondition::Stale.as_str()) {
        return None;
    }
    let stays = [
        ImportCondition::Ready,
        ImportCondition::ClusterSelection,
        ImportCondition::Unreachable,
        ImportCondition::Excluded,
    ];
    let stays = stays.iter().filter_map(|type_| find(current, type_.as_str())).map(Condition::from);
    Some(ServiceImportStatus {
        clusters: clusters.iter().map(|cluster| ClusterStatus { cluster: cluster.to_string() }).collect(),
        conditions: stays.chain(stale).collect(),
        endpoint_slice_objects: endpoint_slice_objects.clone(),
    })
}

/// The condition `Stale` exists only while it is true. On every import and almost never true, it would cost a write for
/// each.
fn silence(silent: &BTreeMap<ClusterId, u64>) -> Option<Verdict> {
    let is_any = !silent.is_empty();
    is_any.then(|| Verdict::new(ImportStaleReason::ClusterSilent, stale_message(silent)))
}

/// The condition `Unreachable` exists only while it is true, as `Stale` does.
fn out_of_touch(clusters: &BTreeMap<ClusterId, Unreachable>) -> Option<Verdict> {
    let said = || Verdict::new(ImportUnreachableReason::NoAnswer, unreachable::said(clusters));
    (!clusters.is_empty()).then(said)
}

/// The condition `Excluded` exists only while it is true, as `Stale` does.
fn left_out(excluded: &[(ClusterId, Exclusion)]) -> Option<Verdict> {
    let said = || Verdict::new(ImportExcludedReason::NotAllowed, policy::message(excluded));
    (!excluded.is_empty()).then(said)
}

fn usable_message(out_of_reach: &OutOfReach) -> String {
    if out_of_reach.is_empty() {
        return "The service can be used in this cluster.".to_owned();
    }
    format!(
        "The service can be used in this cluster, but not its endpoints in {}, which have none of the IP families that are \
         served here.",
        sources_text(out_of_reach)
    )
}

fn unusable_message(out_of_reach: &OutOfReach) -> String {
    format!(
        "This cluster supports none of the IP families that the service is exported with{}{}. Export it from a cluster that \
         has a family of this one, too, or give clients here a load balancer that has both families.",
        if out_of_reach.is_empty() { "" } else { ": " },
        sources_text(out_of_reach)
    )
}

/// `"blue" (IPv4) and "red" (IPv4, IPv6)`
fn sources_text(sources: &OutOfReach) -> String {
    let source = |(id, families): (&ClusterId, &BTreeSet<IpFamily>)| {
        let families: Vec<_> = families.iter().map(ToString::to_string).collect();
        format!("\"{id}\" ({})", families.join(", "))
    };
    sources.iter().map(source).collect::<Vec<_>>().join(" and ")
}

fn stale_message(silent: &BTreeMap<ClusterId, u64>) -> String {
    let since = |milliseconds: u64| {
        let seconds = i64::try_from(milliseconds / 1000).unwrap_or_default();
        Timestamp::from_second(seconds).unwrap_or_default()
    };
    let clusters: Vec<_> =
        silent.iter().map(|(cluster, silent)| format!("\"{cluster}\" (noticed at {})", since(*silent))).collect();
    format!(
        "Silent clusters: {}. Their endpoints stay as they were, and may be gone. Check the controllers there and their \
         access to AWS. If a cluster is gone for good: cloudmap-mcs forget <cluster>.",
        clusters.join(", ")
    )
}

/// An imported EndpointSlice of a derived Service. Without one (headless imports) it belongs to no Service; CoreDNS
/// finds it by its own labels.
pub fn endpoint_slice(
    key: &ServiceKey,
    derived: Option<&str>,
    source: &ClusterId,
    slice: &Slice,
) -> discovery::EndpointSlice {
    let mut labels: BTreeMap<String, String> = [
        (names::LABEL_SLICE_MANAGED_BY, names::MANAGED_BY),
        (names::LABEL_SERVICE_NAME, &*key.name),
        (names::LABEL_SOURCE_CLUSTER, source.as_str()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    if let Some(derived) = derived {
        labels.insert(names::LABEL_KUBERNETES_SERVICE_NAME.to_owned(), derived.to_owned());
    }
    let Slice { name, family, ports, endpoints } = slice;
    let endpoints = endpoints.iter().map(|endpoint| {
        let SliceEndpoint { address, conditions, hostname, zone, node, hints } = endpoint;
        let Conditions { ready, serving, terminating } = *conditions;
        let Hints { zone: for_zone, node: for_node } = hints;
        discovery::Endpoint {
            addresses: vec![address.to_string()],
            conditions: Some(discovery::EndpointConditions {
                ready: Some(ready),
                serving: Some(serving),
                terminating: Some(terminating),
            }),
            hostname: hostname.as_deref().map(str::to_owned),
            node_name: node.as_deref().map(str::to_owned),
            zone: zone.as_deref().map(str::to_owned),
            hints: (*hints != Hints::default()).then(|| discovery::EndpointHints {
                for_zones: for_zone.as_deref().map(|zone| vec![discovery::ForZone { name: zone.to_owned() }]),
                for_nodes: for_node.as_deref().map(|node| vec![discovery::ForNode { name: node.to_owned() }]),
            }),
            ..discovery::Endpoint::default()
        }
    });
    let ports = ports.iter().map(|EndpointPort { name, protocol, port, app_protocol }| discovery::EndpointPort {
        name: Some(name.to_string()),
        protocol: Some(protocol.to_string()),
        port: Some((*port).into()),
        app_protocol: app_protocol.as_deref().map(str::to_owned),
    });
    discovery::EndpointSlice {
        metadata: ObjectMeta {
            name: Some(name.to_string()),
            namespace: Some(key.namespace.to_string()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        address_type: family.to_string(),
        endpoints: endpoints.collect(),
        ports: Some(ports.collect()),
    }
}

const fn affinity_name(affinity: SessionAffinity) -> &'static str {
    match affinity {
        SessionAffinity::None => "None",
        SessionAffinity::ClientIp { .. } => "ClientIP",
    }
}

fn affinity_timeout(affinity: SessionAffinity) -> Option<u32> {
    match affinity {
        SessionAffinity::None => None,
        SessionAffinity::ClientIp { timeout } => Some(timeout.unwrap_or(DEFAULT_AFFINITY_TIMEOUT)),
    }
}

#[cfg(test)]
#[path = "objects_tests.rs"]
pub(super) mod tests;
