#[path = "apply_tests/others.rs"]
mod others;
#[path = "apply_tests/renaming.rs"]
mod renaming;
#[path = "apply_tests/steps.rs"]
mod steps;

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::discovery::v1 as discovery;

use super::*;
use crate::{DerivedNaming, Observed, Plan, Source, Unknown, hashed, plan};
use ::discovery::Picture;
use api::{ServiceImportSpec, ServiceImportType, names};
use cluster::{Caches, memory::MemoryCluster};
use model::{
    ClusterId, Conditions, Endpoint, EndpointPort, Export, IpFamily, Protocol, ServicePort, SessionAffinity,
    TrafficPolicy,
};

fn key() -> ServiceKey {
    ServiceKey::new("ns", "svc")
}

fn mk_export(service_type: ServiceType) -> Export {
    Export {
        uid: "uid".into(),
        created: 1,
        service_type,
        ports: vec![ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None }],
        session_affinity: SessionAffinity::None,
        internal_traffic_policy: TrafficPolicy::Cluster,
        traffic_distribution: None,
        ip_families: vec![IpFamily::V4],
        labels: [("team".to_owned(), "a".to_owned())].into(),
        annotations: BTreeMap::new(),
        publish_not_ready_addresses: false,
        target: None,
        cluster_selection: None,
        drain: None,
    }
}

fn mk_endpoint(ip: u32) -> Endpoint {
    let port = EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None };
    Endpoint {
        ipv4: Some((0x0a01_0000 + ip).into()),
        ipv6: None,
        ports: [port].into(),
        conditions: Conditions::READY,
        hostname: None,
        zone: None,
        node: None,
    }
}

/// A cluster that imports what another one exports.
struct Scene {
    cluster: Arc<MemoryCluster>,
    caches: Caches,
    from: &'static str,
    export: Option<Export>,
    endpoints: Vec<Endpoint>,
    unknown: Unknown,
    silent: BTreeMap<ClusterId, u64>,
    families: Vec<IpFamily>,
    naming: DerivedNaming,
    now: Timestamp,
}

impl Scene {
    fn new() -> Self {
        let (cluster, caches) = MemoryCluster::new();
        cluster.add_namespace("ns");
        Self {
            cluster,
            caches,
            from: "there",
            export: Some(mk_export(ServiceType::ClusterSetIp)),
            endpoints: (0..250).map(mk_endpoint).collect(),
            unknown: Unknown::Only([].into()),
            silent: BTreeMap::new(),
            families: vec![IpFamily::V4, IpFamily::V6],
            naming: DerivedNaming::Hash,
            now: Timestamp::UNIX_EPOCH,
        }
    }

    fn derived(&self) -> DerivedServices {
        let services: Vec<_> = self.caches.services.read(|services| services.values().cloned().collect());
        let name = self.naming.name(&key(), |_| false).0;
        let (there, former) = services.into_iter().partition::<Vec<_>, _>(|service| service.key.name == name);
        let of_headless = self.naming.serves(ServiceType::Headless);
        DerivedServices { name, of_headless, there: there.into_iter().next(), former }
    }

    fn there(&self) -> There {
        There {
            import: self.caches.imports.get(&key()),
            derived: self.derived(),
            slices: self.caches.imported_slices.snapshot(),
        }
    }

    /// One reconciliation, as a worker does it.
    async fn reconcile(&self) -> Result<Plan, Error> {
        let there = self.there();
        let source = |export| (self.from.parse::<ClusterId>().unwrap(), Source { export, endpoints: &self.endpoints });
        let sources = self.export.iter().map(source).collect();
        let observed = Observed {
            key: &key(),
            local: &"here".parse().unwrap(),
            namespace: true,
            sources: &sources,
            unknown: &self.unknown,
            first_reading: false,
            families: &self.families,
            silent: &self.silent,
            unheard: &BTreeSet::new(),
            discovered: &Picture::nothing(),
            import: there.import.as_deref(),
            derived: &there.derived,
            slices: &there.slices,
            excluded: &[],
            selecting: crate::Selecting {
                of_namespace: None,
                default: &api::selection::ClusterSelection::spread(),
                properties: &BTreeMap::new(),
                drains: &BTreeMap::new(),
                unreachable: &BTreeMap::new(),
                step: 0,
            },
            notice: std::time::Duration::ZERO,
            now: self.now,
        };
        let plan = plan(&observed, |_| false);
        match &plan {
            Plan::Want(wanted) => {
                apply(&*self.cluster, &key(), &there, wanted, Extent::All, self.now).await?;
            }
            Plan::Remove => remove(&*self.cluster, &key(), &there).await?,
            Plan::Keep | Plan::Blocked(_) => {}
        }
        Ok(plan)
    }

    /// The number of writes that one reconciliation makes.
    async fn writes(&self) -> usize {
        let before = self.cluster.writes();
        self.reconcile().await.unwrap();
        self.cluster.writes() - before
    }

    fn addresses(&self) -> usize {
        self.cluster.slices().iter().map(|slice| slice.endpoints.len()).sum()
    }

    /// Whether each endpoint is in a slice.
    fn has_all(&self) -> bool {
        let slices = self.cluster.slices();
        let there: Vec<_> = slices.iter().flat_map(|slice| &slice.endpoints).map(|row| &row.addresses[0]).collect();
        self.endpoints.iter().all(|endpoint| there.contains(&&endpoint.ipv4.unwrap().to_string()))
    }

    /// An import of one type, whose exporter has just got the other.
    async fn retyped(naming: &DerivedNaming, from: ServiceType, to: ServiceType) -> Self {
        let mut scene = Self::new();
        scene.naming = naming.clone();
        scene.export = Some(mk_export(from));
        scene.reconcile().await.unwrap();
        scene.export = Some(mk_export(to));
        scene
    }

    /// Whether the name leads to endpoints: to their addresses, or to that of a Service that has them.
    fn answers(&self) -> bool {
        let spec = self.cluster.import(&key()).unwrap().spec;
        if spec.type_ == ServiceImportType::Headless {
            return self.has_all();
        }
        let slices = self.cluster.slices();
        self.cluster.services().iter().any(|service| {
            let name = service.metadata.name.as_ref();
            let mut labels = slices.iter().filter_map(|slice| slice.metadata.labels.as_ref());
            service.spec.as_ref().unwrap().cluster_ips.as_ref() == Some(&spec.ips)
                && labels.any(|labels| labels.get(names::LABEL_KUBERNETES_SERVICE_NAME) == name)
        })
    }

    /// The number of endpoints of the Service whose address the import shows.
    fn served(&self) -> usize {
        let ips = self.cluster.import(&key()).unwrap().spec.ips;
        let mut services = self.cluster.services().into_iter();
        let shown = services.find(|service| service.spec.as_ref().unwrap().cluster_ips.as_ref() == Some(&ips)).unwrap();
        let label = |slice: &discovery::EndpointSlice| {
            slice.metadata.labels.as_ref()?.get(names::LABEL_KUBERNETES_SERVICE_NAME).cloned()
        };
        let slices = self.cluster.slices().into_iter().filter(|slice| label(slice) == shown.metadata.name);
        slices.map(|slice| slice.endpoints.len()).sum()
    }

    /// Somebody else makes a Service that has the derived name by the default.
    fn put_foreign_service(&self) -> k8s_openapi::api::core::v1::Service {
        let mut service = k8s_openapi::api::core::v1::Service::default();
        service.metadata.name = Some(hashed(&key()));
        service.metadata.namespace = Some("ns".to_owned());
        service.spec.get_or_insert_default();
        self.cluster.put_service(service.clone());
        service
    }

    /// The Services to which the slices belong.
    fn labels(&self) -> BTreeSet<Option<String>> {
        let slices = self.cluster.slices().into_iter();
        slices.map(|slice| slice.metadata.labels?.remove(names::LABEL_KUBERNETES_SERVICE_NAME)).collect()
    }

    /// The exporter gives its only port another name.
    fn rename_port(&mut self, name: &str) {
        self.export.as_mut().unwrap().ports[0].name = name.into();
        for endpoint in &mut self.endpoints {
            let port = EndpointPort { name: name.into(), ..endpoint.ports[0].clone() };
            endpoint.ports = [port].into();
        }
    }

    /// The ports of the derived Service for which no slice has endpoints.
    fn ports_without_endpoints(&self) -> Vec<String> {
        let slices = self.cluster.slices();
        let serves = |name: &str| {
            let mut full = slices.iter().filter(|slice| !slice.endpoints.is_empty());
            full.any(|slice| slice.ports.iter().flatten().any(|port| port.name.as_deref() == Some(name)))
        };
        let services = self.cluster.services().into_iter();
        let ports = services.flat_map(|service| service.spec.unwrap().ports.unwrap());
        ports.map(|port| port.name.unwrap()).filter(|name| !serves(name)).collect()
    }
}

#[tokio::test]
async fn creates_all_objects_and_then_writes_nothing() {
    let scene = Scene::new();
    assert_eq!(scene.writes().await, 1 + 3 + 2, "derived Service, three slices, the import and its status");
    let import = scene.cluster.import(&key()).unwrap();
    let derived = scene.caches.services.get(&ServiceKey::new("ns", "derived-".to_owned() + &hashed(&key())[8..]));
    assert_eq!(import.spec.ips, [derived.unwrap().cluster_ips[0].to_string()]);
    assert_eq!(import.metadata.labels.unwrap()["team"], "a");
    let status = import.status.unwrap();
    assert_eq!(status.clusters[0].cluster, "there");
    assert_eq!((status.conditions[0].type_.as_str(), status.conditions[0].status.as_str()), ("Ready", "True"));
    for slice in scene.cluster.slices() {
        let labels = slice.metadata.labels.unwrap();
        assert_eq!(labels[names::LABEL_KUBERNETES_SERVICE_NAME], hashed(&key()));
        assert_eq!(labels[names::LABEL_SOURCE_CLUSTER], "there");
    }
    assert_eq!(scene.addresses(), 250);
    assert_eq!(scene.writes().await, 0);
}

#[tokio::test]
async fn one_changed_endpoint_is_one_write() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.endpoints[7].conditions.ready = false;
    assert_eq!(scene.writes().await, 1);
    scene.endpoints.remove(120);
    assert_eq!(scene.writes().await, 1);
    scene.endpoints.push(mk_endpoint(999));
    assert_eq!(scene.writes().await, 1);
    assert_eq!((scene.addresses(), scene.cluster.slices().len()), (250, 3));
}

#[tokio::test]
async fn a_headless_service_has_no_derived_service_and_its_slices_belong_to_no_service() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.export = Some(mk_export(ServiceType::Headless));
    scene.reconcile().await.unwrap();
    assert!(scene.cluster.services().is_empty());
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    assert!(import.spec.ips.is_empty() && import.metadata.annotations.unwrap_or_default().is_empty());
    for slice in scene.cluster.slices() {
        assert!(!slice.metadata.labels.unwrap().contains_key(names::LABEL_KUBERNETES_SERVICE_NAME));
    }
    assert_eq!(scene.writes().await, 0);
    scene.export = Some(mk_export(ServiceType::ClusterSetIp));
    scene.reconcile().await.unwrap();
    assert_eq!((scene.cluster.services().len(), scene.writes().await), (1, 0));
}

#[tokio::test]
async fn another_family_gets_a_new_derived_service() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    let before = scene.cluster.services()[0].metadata.uid.clone();
    scene.export.as_mut().unwrap().ip_families = vec![IpFamily::V6];
    scene.reconcile().await.unwrap();
    let service = &scene.cluster.services()[0];
    assert_ne!(service.metadata.uid, before, "the API server refuses another primary family");
    assert_eq!(scene.cluster.import(&key()).unwrap().spec.ips, service.spec.clone().unwrap().cluster_ips.unwrap());
    assert_eq!(scene.writes().await, 0);
}

#[tokio::test]
async fn an_address_stays_when_the_other_family_comes_and_goes() {
    use IpFamily::{V4, V6};
    let mut scene = Scene::new();
    let mut shown = Vec::new();
    for families in [vec![V4], vec![V4, V6], vec![V4], vec![V6], vec![V6, V4]] {
        let export = scene.export.as_mut().unwrap();
        // Something else changes as well, so that the derived Service is written.
        (export.ip_families, export.ports[0].port) = (families.clone(), export.ports[0].port + 1);
        scene.reconcile().await.unwrap();
        let spec = scene.cluster.import(&key()).unwrap().spec;
        assert_eq!(spec.ip_families, families.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(spec.ips.len(), families.len());
        shown.push(spec.ips);
        assert_eq!(scene.writes().await, 0);
    }
    let [v4, both, again, v6, reversed] = shown.as_slice() else { panic!("five") };
    assert_eq!((&both[..1], again, v6.as_slice()), (v4.as_slice(), v4, &both[1..]));
    assert_eq!((&reversed[0], &reversed[1]), (&both[1], &both[0]));
}

#[tokio::test]
async fn a_cluster_without_the_family_reports_that_on_the_import() {
    let mut scene = Scene::new();
    scene.export.as_mut().unwrap().ip_families = vec![IpFamily::V6];
    let refused = "Service \"derived\" is invalid: spec.ipFamilies[0]: Invalid value: \"IPv6\": not configured";
    scene.cluster.fail_next(Cause::Invalid(refused.to_owned()));
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    assert!(import.spec.ips.is_empty());
    assert_eq!(import.status.unwrap().conditions[0].reason, "IPFamilyNotSupported");
    // Another reason is an error.
    scene.cluster.fail_next(Cause::Invalid("spec.ports: Required value".to_owned()));
    assert!(scene.reconcile().await.is_err());
}

#[tokio::test]
async fn the_last_unexport_removes_everything_that_is_not_foreign() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    let mut foreign = scene.cluster.slices()[0].clone();
    foreign.metadata.name = Some("foreign".to_owned());
    let labels = foreign.metadata.labels.as_mut().unwrap();
    labels.insert(names::LABEL_SLICE_MANAGED_BY.to_owned(), "somebody".to_owned());
    scene.cluster.put_slice(foreign);
    scene.export = None;
    assert_eq!(scene.reconcile().await.unwrap(), Plan::Remove);
    assert!(scene.cluster.import(&key()).is_none() && scene.cluster.services().is_empty());
    assert_eq!(scene.cluster.slices().len(), 1);
    assert_eq!(scene.writes().await, 0);
}

#[tokio::test]
async fn a_traffic_distribution_that_the_api_server_does_not_know_is_left_out_and_causes_no_further_writes() {
    let mut scene = Scene::new();
    scene.cluster.refuse_traffic_distribution();
    scene.export.as_mut().unwrap().traffic_distribution = Some("PreferSameNode".into());
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!((import.spec.ips.len(), import.spec.traffic_distribution.as_deref()), (1, Some("PreferSameNode")));
    assert_eq!(scene.cluster.services()[0].spec.as_ref().unwrap().traffic_distribution, None);
    let hints = scene.cluster.slices()[0].endpoints[0].hints.clone().unwrap();
    assert_eq!(hints.for_nodes.unwrap()[0].name, "there.clusterset.invalid");
    assert_eq!(scene.writes().await, 0);
}

#[tokio::test]
async fn unknown_node_hints_are_left_out_and_cause_no_further_writes() {
    let mut scene = Scene::new();
    scene.cluster.refuse_node_hints();
    scene.export.as_mut().unwrap().traffic_distribution = Some("PreferSameNode".into());
    scene.reconcile().await.unwrap();
    let slices = scene.cluster.slices();
    let hints = slices.iter().flat_map(|slice| &slice.endpoints).filter_map(|endpoint| endpoint.hints.as_ref());
    assert!(hints.into_iter().all(|hints| hints.for_nodes.is_none()));
    assert_eq!((scene.addresses(), scene.writes().await), (250, 0));
}

#[tokio::test]
async fn an_import_that_this_cluster_cannot_serve_has_no_derived_service_and_says_so() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    scene.families = vec![IpFamily::V4];
    scene.export.as_mut().unwrap().ip_families = vec![IpFamily::V6];
    scene.reconcile().await.unwrap();
    let import = scene.cluster.import(&key()).unwrap();
    assert!(import.spec.ips.is_empty() && import.spec.ip_families.is_empty());
    let status = import.status.unwrap();
    assert_eq!(status.conditions[0].reason, "IPFamilyNotSupported");
    assert_eq!(status.endpoint_slice_objects.unwrap().as_str(), "Absent");
    assert_eq!((scene.cluster.services().len(), scene.addresses(), scene.writes().await), (0, 0, 0));
}

#[tokio::test]
async fn while_an_exporter_is_unknown_the_import_stays_as_it_is() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    let before = (scene.cluster.import(&key()), scene.cluster.services());
    scene.unknown = Unknown::Only(["there".parse().unwrap()].into());
    scene.from = "third";
    scene.export = Some(mk_export(ServiceType::Headless));
    scene.endpoints = (1000..1010).map(mk_endpoint).collect();
    scene.reconcile().await.unwrap();
    assert_eq!((scene.cluster.import(&key()), scene.cluster.services()), before);
    assert_eq!(scene.addresses(), 260, "endpoints that are known follow, the others stay");
    for slice in scene.cluster.slices() {
        let labels = slice.metadata.labels.unwrap();
        assert_eq!(labels[names::LABEL_KUBERNETES_SERVICE_NAME], hashed(&key()), "it is not headless yet");
    }
    assert_eq!(scene.writes().await, 0);

    scene.export = None;
    scene.reconcile().await.unwrap();
    assert_eq!((scene.cluster.import(&key()), scene.cluster.services()), before);
    assert_eq!(scene.addresses(), 250, "what is known to be gone goes");
    assert_eq!(scene.reconcile().await.unwrap(), Plan::Keep);

    // Somebody deletes the Service.
    scene.cluster.remove_service(&ServiceKey::new("ns", hashed(&key())));
    assert!(!scene.answers());
    scene.reconcile().await.unwrap();
    assert_eq!((scene.cluster.import(&key()), scene.answers(), scene.addresses()), (before.0, true, 250));
    assert_eq!(scene.writes().await, 0);
}

#[tokio::test]
async fn silence_of_an_unknown_exporter_is_said_once_and_the_import_stays_as_it_is() {
    let mut scene = Scene::new();
    scene.reconcile().await.unwrap();
    let before = scene.cluster.import(&key()).unwrap();
    scene.unknown = Unknown::Only(["there".parse().unwrap()].into());
    scene.export = None;
    assert_eq!(scene.writes().await, 0);
    scene.silent = [("there".parse().unwrap(), 5)].into();
    assert_eq!((scene.writes().await, scene.writes().await), (1, 0));
    let import = scene.cluster.import(&key()).unwrap();
    let status = import.status.unwrap();
    let says = |type_: &str| status.conditions.iter().any(|condition| condition.type_ == type_);
    assert!(says("Ready") && says("Stale"), "{:?}", status.conditions);
    assert_eq!((import.spec, status.clusters.len(), scene.addresses()), (before.spec, 1, 250));

    scene.silent.clear();
    assert_eq!((scene.writes().await, scene.writes().await), (1, 0));
    assert_eq!(scene.cluster.import(&key()).unwrap().status, before.status);
}

#[tokio::test(start_paused = true)]
async fn a_derived_service_with_another_name_takes_over_before_the_former_one_goes() {
    let mut scene = Scene::new();
    let began = tokio::time::Instant::now();
    scene.reconcile().await.unwrap();
    assert_eq!(began.elapsed(), Duration::ZERO, "nobody waits for the first one");
    scene.naming = "{name}-global".parse().unwrap();
    scene.cluster.fail_next(Cause::Invalid("no more addresses".to_owned()));
    scene.endpoints.truncate(10);
    assert!(scene.reconcile().await.is_err());
    let names = |scene: &Scene| {
        let services = scene.cluster.services().into_iter().filter_map(|service| service.metadata.name);
        services.collect::<Vec<_>>()
    };
    assert_eq!(names(&scene), [hashed(&key())], "it serves as long as the other one cannot be made");
    assert_eq!(scene.addresses(), 10);

    scene.reconcile().await.unwrap();
    assert!(began.elapsed() >= PROGRAMMED, "clients go to the new address when kube-proxy knows it");
    assert_eq!(names(&scene), ["svc-global"]);
    let import = scene.cluster.import(&key()).unwrap();
    assert_eq!(import.metadata.annotations.unwrap()[names::ANNOTATION_DERIVED_SERVICE], "svc-global");
    assert_eq!(import.spec.ips, scene.cluster.services()[0].spec.as_ref().unwrap().cluster_ips.clone().unwrap());
    for slice in scene.cluster.slices() {
        assert_eq!(slice.metadata.labels.unwrap()[names::LABEL_KUBERNETES_SERVICE_NAME], "svc-global");
    }
    assert_eq!(scene.writes().await, 0);

    scene.export = Some(mk_export(ServiceType::Headless));
    scene.reconcile().await.unwrap();
    assert_eq!(names(&scene), ["svc-global"], "any DNS server answers for headless imports, too");
    assert_eq!(scene.cluster.services()[0].spec.as_ref().unwrap().cluster_ip.as_deref(), Some("None"));
    assert!(scene.cluster.import(&key()).unwrap().spec.ips.is_empty());
    assert_eq!(scene.writes().await, 0);

    scene.naming = DerivedNaming::Hash;
    scene.reconcile().await.unwrap();
    assert_eq!(names(&scene), [""; 0]);
    scene.reconcile().await.unwrap();
    for slice in scene.cluster.slices() {
        assert!(!slice.metadata.labels.unwrap().contains_key(names::LABEL_KUBERNETES_SERVICE_NAME));
    }
    assert_eq!(scene.writes().await, 0);

    scene.export = None;
    scene.reconcile().await.unwrap();
    assert!(scene.cluster.services().is_empty() && scene.cluster.slices().is_empty());
}
