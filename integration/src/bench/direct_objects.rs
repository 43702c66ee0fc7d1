//! What the reference of arrivals writes for an exported Service: the objects of the controller, marked so that the
//! controllers leave them alone. ServiceExports and ServiceImports are of a group of its own, with the same schemas.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use anyhow::Context as _;
use api::{
    ClusterStatus, EndpointSliceObjects, ServiceExport, ServiceImportStatus,
    conditions::{ImportReadyReason, RegisteredReason, Verdict, conditions},
    names,
};
use export::{ExportFacts, Publication};
use k8s_openapi::{
    api::{core::v1::Service, discovery::v1::EndpointSlice},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::PostParams,
    core::{ApiResource, DynamicObject},
    runtime::wait::{await_condition, conditions::is_crd_established},
};
use model::{
    ClusterId, ClusterSetService, Conditions, EndpointPort, Hints, IpFamily, Protocol, ServiceKey, ServicePort,
    ServiceType, SessionAffinity, Slice, SliceEndpoint, TrafficPolicy,
};
use serde_json::json;

use super::{load, pods::Pods};

/// In the place of a cluster id.
pub(super) const SOURCE: &str = "direct";
/// In the place of `cloudmap-mcs`, and the field manager.
pub(super) const MANAGED_BY: &str = "cloudmap-mcs-bench";
const GROUP: &str = "direct.cloudmap-mcs.io";
const VERSION: &str = "v1beta1";

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource {
        group: GROUP.to_owned(),
        version: VERSION.to_owned(),
        api_version: format!("{GROUP}/{VERSION}"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Its ServiceExports.
pub(super) fn exports() -> ApiResource {
    resource("ServiceExport", "serviceexports")
}

/// Its ServiceImports.
pub(super) fn imports() -> ApiResource {
    resource("ServiceImport", "serviceimports")
}

/// The definitions of both, which are those of the standard in another group.
fn definitions() -> Vec<CustomResourceDefinition> {
    let mut definitions = api::crds();
    definitions.retain(|definition| ["ServiceExport", "ServiceImport"].contains(&&*definition.spec.names.kind));
    for definition in &mut definitions {
        GROUP.clone_into(&mut definition.spec.group);
        let name = format!("{}.{GROUP}", definition.spec.names.plural);
        definition.metadata = ObjectMeta { name: Some(name), ..ObjectMeta::default() };
        definition.spec.names.short_names = None;
        definition.spec.names.categories = None;
    }
    definitions
}

/// Creates the definitions, and waits until the API server serves them.
pub(super) async fn define(cluster: &Client) -> anyhow::Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.clone());
    for definition in definitions() {
        let name = definition.metadata.name.clone().unwrap_or_default();
        api.create(&PostParams::default(), &definition).await.with_context(|| format!("failed to define {name}"))?;
        await_condition(api.clone(), &name, is_crd_established()).await?;
    }
    Ok(())
}

/// The same objects in another group.
fn in_group(object: &impl serde::Serialize) -> anyhow::Result<DynamicObject> {
    let mut object = serde_json::to_value(object)?;
    object["apiVersion"] = json!(format!("{GROUP}/{VERSION}"));
    Ok(serde_json::from_value(object)?)
}

fn mark(labels: &mut Option<BTreeMap<String, String>>, name: &str) {
    labels.get_or_insert_default().insert(name.to_owned(), MANAGED_BY.to_owned());
}

/// The objects of each Service of one namespace.
#[derive(Debug)]
pub(super) struct Objects {
    source: ClusterId,
    namespace: String,
    pods: Pods,
    endpoints: usize,
    service: ClusterSetService,
}

impl Objects {
    pub(super) fn new(namespace: &str, endpoints: usize, seed: u64) -> anyhow::Result<Self> {
        let source: ClusterId = SOURCE.parse()?;
        let name = "http";
        let port = ServicePort { name: name.into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
        let service = ClusterSetService {
            service_type: ServiceType::ClusterSetIp,
            ports: vec![port],
            session_affinity: SessionAffinity::None,
            internal_traffic_policy: TrafficPolicy::Cluster,
            traffic_distribution: None,
            ip_families: vec![IpFamily::V4],
            other_families: Vec::new(),
            cluster_selection: None,
            selection_conflict: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            clusters: [(source.clone(), vec![name.into()])].into(),
            conflicts: Vec::new(),
        };
        Ok(Self { source, namespace: namespace.to_owned(), pods: Pods::new(seed), endpoints, service })
    }

    fn key(&self, service: usize) -> ServiceKey {
        ServiceKey::new(&*self.namespace, load::name(service))
    }

    fn numbers(&self, service: usize) -> impl Iterator<Item = u32> {
        let first = service * self.endpoints;
        (first..first + self.endpoints).map(|pod| pod as u32)
    }

    /// The addresses of a Service.
    pub(super) fn addresses(&self, service: usize) -> impl Iterator<Item = Ipv4Addr> {
        self.numbers(service).map(|pod| self.pods.address(pod))
    }

    /// Name of the derived Service. The controllers look closer at Services whose names begin with `derived-`.
    pub(super) fn derived_name(&self, service: usize) -> String {
        import::hashed(&self.key(service)).replacen("derived", "written", 1)
    }

    /// Name of the EndpointSlice.
    pub(super) fn slice_name(service: usize) -> String {
        format!("{}-{SOURCE}-x7k2q", load::name(service))
    }

    pub(super) fn derived(&self, service: usize) -> Service {
        let mut derived = import::derived_service(&self.key(service), &self.derived_name(service), &self.service);
        mark(&mut derived.metadata.labels, names::LABEL_MANAGED_BY);
        derived
    }

    /// `own`: in the exporting cluster, where the nodes of the endpoints are.
    pub(super) fn slice(&self, service: usize, own: bool) -> EndpointSlice {
        let endpoint = |pod| SliceEndpoint {
            address: self.pods.address(pod).into(),
            conditions: Conditions::READY,
            hostname: None,
            zone: Some(self.pods.zone(pod).into()),
            node: own.then(|| self.pods.node(pod).into()),
            hints: Hints::default(),
        };
        let port = EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None };
        let slice = Slice {
            name: Self::slice_name(service).into(),
            family: IpFamily::V4,
            ports: [port].into(),
            endpoints: self.numbers(service).map(endpoint).collect(),
        };
        let derived = self.derived_name(service);
        let mut slice = import::endpoint_slice(&self.key(service), Some(&derived), &self.source, &slice);
        mark(&mut slice.metadata.labels, names::LABEL_SLICE_MANAGED_BY);
        slice
    }

    pub(super) fn import(&self, service: usize, ips: &[IpAddr]) -> anyhow::Result<DynamicObject> {
        let derived = self.derived_name(service);
        in_group(&import::service_import(&self.key(service), Some(&derived), &self.service, ips))
    }

    pub(super) fn import_status(&self) -> ServiceImportStatus {
        let ready = Verdict::new(ImportReadyReason::Ready, "The service can be used in this cluster.");
        ServiceImportStatus {
            clusters: vec![ClusterStatus { cluster: self.source.to_string() }],
            conditions: conditions(&[], [ready], Some(1), Timestamp::now()),
            endpoint_slice_objects: Some(EndpointSliceObjects::Present),
        }
    }

    pub(super) fn export(&self, service: usize) -> anyhow::Result<DynamicObject> {
        let metadata = ObjectMeta {
            name: Some(load::name(service)),
            namespace: Some(self.namespace.clone()),
            ..ObjectMeta::default()
        };
        in_group(&ServiceExport { metadata, ..ServiceExport::default() })
    }

    /// All conditions of an export that is not registered yet.
    pub(super) fn export_conditions(&self) -> Vec<Condition> {
        let facts = ExportFacts {
            local: &self.source,
            refusal: None,
            remarks: None,
            publication: Publication::Published,
            conflicts: Some(&[]),
            registered: Some((RegisteredReason::Pending, "The endpoints are being registered.".to_owned())),
            selection: None,
            drained: None,
        };
        conditions(&[], export::verdicts(&facts), Some(1), Timestamp::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controllers_do_not_take_the_objects_for_their_own() {
        let objects = Objects::new("ns", 2, 1).unwrap();
        let (derived, slice) = (objects.derived(3), objects.slice(3, false));
        assert_eq!(derived.metadata.labels.unwrap()[names::LABEL_MANAGED_BY], MANAGED_BY);
        assert!(!derived.metadata.name.unwrap().starts_with("derived-"));
        assert_eq!(slice.metadata.labels.unwrap()[names::LABEL_SLICE_MANAGED_BY], MANAGED_BY);
        let (import, export) = (objects.import(3, &[]).unwrap(), objects.export(3).unwrap());
        assert!(
            [import, export]
                .into_iter()
                .all(|object| object.types.unwrap().api_version == "direct.cloudmap-mcs.io/v1beta1")
        );
    }

    #[test]
    fn a_slice_has_the_addresses_of_its_service() {
        let objects = Objects::new("ns", 2, 1).unwrap();
        let listed: Vec<String> = objects.slice(3, true).endpoints.into_iter().flat_map(|it| it.addresses).collect();
        let addresses: Vec<String> = objects.addresses(3).map(|address| address.to_string()).collect();
        assert_eq!((listed.len(), listed), (2, addresses));
    }

    #[test]
    fn the_definitions_differ_from_those_of_the_standard_in_their_group() {
        let names = definitions().into_iter().map(|definition| definition.metadata.name.unwrap());
        let expected = ["serviceexports.direct.cloudmap-mcs.io", "serviceimports.direct.cloudmap-mcs.io"];
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }
}
