use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

use super::*;
use crate::{derived_service, objects::tests::mk_service};
use api::{ServiceImportPort, ServiceImportSpec};
use cluster::{
    cache::Narrow,
    objects::{EndpointSlice, ImportStatus, ObjectKey, Service},
};
use model::{
    Conditions, EndpointPort, Pairs, Protocol, ServicePort, SessionAffinity, TrafficPolicy, addresses::Forbidden,
    fixtures,
};

fn key() -> ServiceKey {
    ServiceKey::new("ns", "svc")
}

pub(crate) fn id(name: &str) -> ClusterId {
    name.parse().unwrap()
}

fn mk_export(created: i64) -> Export {
    let port = ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
    Export { ports: vec![port], ..fixtures::mk_export(created) }
}

fn mk_ports() -> Arc<[EndpointPort]> {
    [EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None }].into()
}

fn mk_endpoint(ip: &str) -> Endpoint {
    Endpoint {
        ipv4: Some(ip.parse().unwrap()),
        ipv6: None,
        ports: mk_ports(),
        conditions: Conditions::READY,
        hostname: None,
        zone: None,
        node: Some("node-1".into()),
    }
}

pub(crate) fn mk_import(managed: bool, clusters: &[&str]) -> ServiceImport {
    ServiceImport {
        key: key(),
        uid: "uid".into(),
        generation: Some(1),
        deleting: false,
        managed,
        labels: Pairs::default(),
        annotations: Pairs::default(),
        spec: ImportSpec::from(&ServiceImportSpec::default()),
        status: ImportStatus {
            clusters: clusters.iter().map(|name| (*name).into()).collect(),
            ..ImportStatus::default()
        },
    }
}

pub(crate) fn mk_slice(name: &str, source: &str) -> Arc<OwnSlice> {
    Arc::new(OwnSlice(EndpointSlice {
        key: ObjectKey::new("ns", name),
        uid: "uid".into(),
        deleting: false,
        service: None,
        managed_by: None,
        service_import: Some("svc".into()),
        source_cluster: Some(source.into()),
        address_type: AddressType::V4,
        ports: mk_ports(),
        endpoints: [Row {
            address: Some("10.0.0.1".parse().unwrap()),
            conditions: Conditions::READY,
            target: None,
            about: Arc::default(),
        }]
        .into(),
    }))
}

pub(crate) struct Scene {
    exports: Vec<(ClusterId, Export, Vec<Endpoint>)>,
    pub(crate) namespace: bool,
    pub(crate) unknown: Unknown,
    settling: bool,
    pub(crate) families: Vec<IpFamily>,
    pub(crate) silent: BTreeMap<ClusterId, u64>,
    unheard: BTreeSet<ClusterId>,
    pub(crate) discovered: Picture,
    pub(crate) import: Option<ServiceImport>,
    derived: Option<Service>,
    former: Vec<Arc<Service>>,
    pub(crate) slices: Vec<Arc<OwnSlice>>,
    /// In seconds since 1970.
    now: i64,
}

const NOTICE: Duration = Duration::from_mins(15);

impl Scene {
    pub(crate) fn new(exports: &[(&str, i64, &[&str])]) -> Self {
        let export = |(name, created, ips): &(&str, i64, &[&str])| {
            (id(name), mk_export(*created), ips.iter().map(|ip| mk_endpoint(ip)).collect())
        };
        Self {
            exports: exports.iter().map(export).collect(),
            namespace: true,
            unknown: Unknown::Only(BTreeSet::new()),
            settling: false,
            families: vec![IpFamily::V4, IpFamily::V6],
            silent: BTreeMap::new(),
            unheard: BTreeSet::new(),
            discovered: Picture::nothing(),
            import: None,
            derived: None,
            former: vec![],
            slices: vec![],
            now: 0,
        }
    }

    fn unknown(mut self, clusters: &[&str]) -> Self {
        self.unknown = Unknown::Only(clusters.iter().map(|name| id(name)).collect());
        self
    }

    pub(crate) fn plan(&self) -> Plan {
        let sources =
            self.exports.iter().map(|(id, export, endpoints)| (id.clone(), Source { export, endpoints })).collect();
        plan(
            &Observed {
                key: &key(),
                local: &id("here"),
                namespace: self.namespace,
                sources: &sources,
                unknown: &self.unknown,
                settling: self.settling,
                families: &self.families,
                silent: &self.silent,
                unheard: &self.unheard,
                discovered: &self.discovered,
                import: self.import.as_ref(),
                derived: &DerivedServices {
                    name: "derived-x".into(),
                    of_headless: false,
                    there: self.derived.clone().map(Arc::new),
                    former: self.former.clone(),
                },
                slices: &self.slices,
                notice: NOTICE,
                now: Timestamp::from_second(self.now).unwrap(),
            },
            |address| address.to_string() == "10.20.0.1",
        )
    }

    fn wanted(&self) -> Wanted {
        match self.plan() {
            Plan::Want(wanted) => *wanted,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_export_of_another_cluster_is_imported() {
    let wanted = Scene::new(&[("there", 1, &["10.0.0.1"]), ("here", 2, &["10.1.0.1"])]).wanted();
    assert_eq!(wanted.service.unwrap().clusters.len(), 2);
    assert_eq!(wanted.slices[&id("there")][0].endpoints[0].node, None);
    assert_eq!(
        wanted.slices[&id("here")][0].endpoints[0].node.as_deref(),
        Some("node-1"),
        "only local ones name nodes"
    );
}

#[test]
fn an_export_without_endpoints_is_an_import_without_slices() {
    let wanted = Scene::new(&[("there", 1, &[])]).wanted();
    assert!(wanted.service.is_some() && wanted.slices[&id("there")].is_empty());
}

#[test]
fn nothing_is_imported_without_the_namespace() {
    let mut scene = Scene::new(&[("there", 1, &[])]);
    scene.namespace = false;
    assert_eq!(scene.plan(), Plan::Keep);
}

#[test]
fn the_last_unexport_removes_our_objects() {
    let mut scene = Scene::new(&[]);
    scene.import = Some(mk_import(true, &["there"]));
    assert_eq!(scene.plan(), Plan::Remove);
    scene.import = Some(mk_import(false, &["there"]));
    assert_eq!(scene.plan(), Plan::Keep, "a foreign import is not touched");
    scene.import = None;
    assert_eq!(scene.plan(), Plan::Keep);
    scene.slices = vec![mk_slice("left-over", "there")];
    assert_eq!(scene.plan(), Plan::Remove, "slices alone, too");
}

#[test]
fn nothing_of_a_cluster_that_was_not_read_is_deleted() {
    let mut scene = Scene::new(&[]).unknown(&["there"]);
    scene.import = Some(mk_import(true, &["there"]));
    scene.slices = vec![mk_slice("s", "there")];
    assert_eq!(scene.plan(), Plan::Keep);
    scene.unknown = Unknown::All;
    assert_eq!(scene.plan(), Plan::Keep);
    scene.unknown = Unknown::Only([id("elsewhere")].into());
    assert_eq!(scene.plan(), Plan::Remove, "another unknown cluster does not matter");
}

#[test]
fn the_slices_of_an_unknown_cluster_stay_and_so_does_the_import() {
    let mut scene = Scene::new(&[("third", 5, &["10.2.0.1"])]).unknown(&["there"]);
    scene.import = Some(mk_import(true, &["there", "third"]));
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert_eq!(wanted.service, None, "the unknown export may be the oldest");
    assert_eq!(wanted.stale, ["t".into()]);
    assert_eq!(wanted.slices[&id("third")].len(), 1, "known endpoints go on being updated");
    scene.unknown = Unknown::All;
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.stale), (None, vec![]), "anybody may export it still");
}

/// Clients would get connections to pods that no longer exist, for as long as the other cluster cannot be read.
#[test]
fn the_endpoints_of_the_last_known_exporter_go_while_another_one_is_unknown() {
    let mut scene = Scene::new(&[]).unknown(&["there"]);
    scene.import = Some(mk_import(true, &["here", "there"]));
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "here")];
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.lost, wanted.slices.len()), (None, None, 0));
    assert_eq!(wanted.stale, ["t".into()]);
    scene.namespace = false;
    assert_eq!(scene.plan(), Plan::Keep, "it takes them along");
}

/// The unknown cluster has the oldest export, with which that of this cluster agrees and that of the other one does not.
#[test]
fn what_conflicts_with_a_known_export_stays_while_the_one_that_decides_is_unknown() {
    let mut scene = Scene::new(&[("here", 3, &["10.1.0.1"]), ("third", 2, &["10.2.0.1"])]).unknown(&["there"]);
    scene.exports[1].1.ports[0].name = "web".into();
    scene.exports[1].1.ip_families = vec![IpFamily::V6];
    let mut import = mk_import(true, &["here", "there", "third"]);
    import.spec = ImportSpec::from(&ServiceImportSpec {
        ports: vec![ServiceImportPort { name: Some("http".to_owned()), port: 80, ..Default::default() }],
        ip_families: vec!["IPv4".to_owned()],
        ..ServiceImportSpec::default()
    });
    scene.import = Some(import);
    assert_eq!(scene.wanted().slices[&id("here")].len(), 1);
    scene.unknown = Unknown::Only(BTreeSet::new());
    assert_eq!(scene.wanted().slices[&id("here")], [], "the older one counts once everything is known");
}

/// Such as `kubectl delete service --all`.
#[test]
fn a_derived_service_that_somebody_deleted_is_wanted_as_the_import_shows_it_while_an_exporter_is_unknown() {
    let mut scene = Scene::new(&[("third", 5, &["10.2.0.1"])]).unknown(&["there"]);
    let mut import = mk_import(true, &["there", "third"]);
    import.annotations = [(names::ANNOTATION_DERIVED_SERVICE, "derived-x")].into_iter().collect();
    import.spec = ImportSpec::from(&ServiceImportSpec {
        ports: vec![ServiceImportPort { name: Some("of-there".to_owned()), port: 80, ..Default::default() }],
        ip_families: vec!["IPv4".to_owned()],
        session_affinity: Some("ClientIP".to_owned()),
        internal_traffic_policy: Some("Local".to_owned()),
        ..ServiceImportSpec::default()
    });
    scene.import = Some(import);
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.derived.as_deref()), (None, Some("derived-x")));
    assert_eq!(wanted.slices[&id("third")].len(), 1);
    let lost = wanted.lost.unwrap();
    assert_eq!((&*lost.ports[0].name, lost.ports.len(), lost.ip_families), ("of-there", 1, vec![IpFamily::V4]));
    assert_eq!(lost.session_affinity, SessionAffinity::ClientIp { timeout: None });
    assert_eq!(lost.internal_traffic_policy, TrafficPolicy::Local);
    scene.exports.clear();
    assert!(scene.wanted().lost.is_some(), "even if no known cluster exports it");
    scene.derived = Some(mk_foreign("derived-x"));
    assert_eq!(scene.plan(), Plan::Keep, "somebody else has the name");
    (scene.derived, scene.unknown) = (None, Unknown::Only(BTreeSet::new()));
    assert_eq!(scene.plan(), Plan::Remove, "nobody exports it");
}

#[test]
fn hints_stay_while_the_export_that_decides_is_unknown() {
    let mut scene = Scene::new(&[("here", 3, &["10.1.0.1"])]).unknown(&["there"]);
    scene.exports[0].2[0].zone = Some("zone-a".into());
    let mut import = mk_import(true, &["here", "there"]);
    import.spec = ImportSpec::from(&ServiceImportSpec {
        ports: vec![ServiceImportPort { name: Some("http".to_owned()), port: 80, ..Default::default() }],
        traffic_distribution: Some("PreferClose".to_owned()),
        ..ServiceImportSpec::default()
    });
    scene.import = Some(import);
    let hinted = |scene: &Scene| scene.wanted().slices[&id("here")][0].endpoints[0].hints.zone.clone();
    assert_eq!(hinted(&scene).as_deref(), Some("zone-a"));
    scene.unknown = Unknown::Only(BTreeSet::new());
    assert_eq!(hinted(&scene), None, "the known export asks for none");
}

#[test]
fn a_new_import_waits_for_the_first_reading_but_not_for_a_broken_cluster() {
    let mut scene = Scene::new(&[("there", 1, &[])]).unknown(&["broken"]);
    scene.settling = true;
    assert_eq!(scene.plan(), Plan::Keep);
    scene.settling = false;
    assert!(scene.wanted().service.is_some());
    scene.unknown = Unknown::All;
    assert_eq!(scene.plan(), Plan::Keep);
}

/// An import that another controller created has no status of ours. Nobody knows its clusters until all were read.
#[test]
fn a_handed_over_import_is_not_removed_before_all_clusters_were_read() {
    let mut scene = Scene::new(&[]);
    scene.import = Some(mk_import(true, &[]));
    for unknown in [Unknown::All, Unknown::Only([id("there")].into()), Unknown::AllBut([id("here")].into())] {
        scene.unknown = unknown;
        assert_eq!(scene.plan(), Plan::Keep);
    }
    scene.unknown = Unknown::Only(BTreeSet::new());
    assert_eq!(scene.plan(), Plan::Remove);

    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]).unknown(&["broken"]);
    scene.import = Some(mk_import(true, &[]));
    scene.settling = true;
    assert_eq!(scene.wanted().service, None, "an older export may be among them");
    scene.settling = false;
    assert!(scene.wanted().service.is_some(), "one bad cluster never stops the others");
}

/// If a cluster may run the AWS Cloud Map MCS Controller, there are exports that are not in the ledger.
#[test]
fn clusters_that_are_not_known_at_all_may_export_as_well() {
    let mut scene = Scene::new(&[("there", 1, &["10.2.0.1"])]);
    scene.unknown = Unknown::AllBut([id("here"), id("there"), id("left")].into());
    scene.import = Some(mk_import(true, &["elsewhere", "there"]));
    scene.slices = vec![mk_slice("e", "elsewhere"), mk_slice("l", "left"), mk_slice("x", "ecs-prod")];
    let wanted = scene.wanted();
    assert_eq!((wanted.service, wanted.stale), (None, vec!["l".into(), "x".into()]));
    scene.import = Some(mk_import(true, &["there"]));
    assert!(scene.wanted().service.is_some(), "all that it comes from is known");
}

#[test]
fn a_foreign_import_blocks_the_import_and_is_named() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.import = Some(mk_import(false, &[]));
    let Plan::Blocked(message) = scene.plan() else { panic!() };
    assert!(message.contains("ServiceImport ns/svc"), "{message}");
    assert!(
        message.contains("kubectl label serviceimport -n ns svc cloudmap-mcs/managed-by=cloudmap-mcs"),
        "{message}"
    );
}

/// Clients have the address of the derived Service.
#[test]
fn the_slices_of_an_import_that_lost_our_label_follow_their_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.import = Some(mk_import(false, &["there"]));
    scene.derived = Some(Service::narrow(derived_service(&key(), "derived-x", &mk_service())).unwrap());
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("ServiceImport ns/svc"), "{:?}", wanted.obstacle);
    assert_eq!((wanted.service, wanted.stale), (None, vec!["t".into()]));
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len()), ("s", 2));
    scene.unknown = Unknown::All;
    assert!(matches!(scene.plan(), Plan::Blocked(_)));
}

/// CoreDNS finds them by the label that names the import.
#[test]
fn the_slices_of_a_headless_import_that_lost_our_label_follow_their_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.exports[0].1.service_type = ServiceType::Headless;
    let mut import = mk_import(false, &["there"]);
    import.spec.headless = true;
    scene.import = Some(import);
    assert!(matches!(scene.plan(), Plan::Blocked(_)), "nothing was imported");
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("ServiceImport ns/svc"), "{:?}", wanted.obstacle);
    assert_eq!((wanted.service, wanted.derived, wanted.stale), (None, None, vec!["t".into()]));
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len()), ("s", 2));
}

fn mk_foreign(name: &str) -> Service {
    let metadata = ObjectMeta { namespace: Some("ns".into()), name: Some(name.into()), ..ObjectMeta::default() };
    Service::narrow(k8s_openapi::api::core::v1::Service { metadata, ..Default::default() }).unwrap()
}

/// Clients have its address from the ServiceImport.
#[test]
fn the_slices_of_a_derived_service_that_lost_our_label_follow_their_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    let shown: IpAddr = "10.96.0.9".parse().unwrap();
    let mut import = mk_import(true, &["there"]);
    import.spec.ips = [shown].into();
    scene.import = Some(import);
    scene.derived = Some(Service { cluster_ips: [shown].into(), ..mk_foreign("derived-x") });
    scene.slices = vec![mk_slice("s", "there"), mk_slice("t", "gone")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("Service ns/derived-x"), "{:?}", wanted.obstacle);
    assert_eq!((wanted.derived, wanted.stale), (Some("derived-x".into()), vec!["t".into()]));
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len()), ("s", 2));
}

#[test]
fn a_foreign_service_with_the_derived_name_is_reported_and_gets_no_endpoints() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.derived = Some(mk_foreign("derived-x"));
    scene.slices = vec![mk_slice("s", "there")];
    let wanted = scene.wanted();
    assert!(wanted.obstacle.as_ref().unwrap().contains("Service ns/derived-x"), "{:?}", wanted.obstacle);
    assert!(wanted.service.is_some() && wanted.slices.is_empty() && wanted.stale.is_empty());
    scene.exports[0].1.service_type = ServiceType::Headless;
    assert_eq!(scene.wanted().obstacle, None, "a headless import needs no derived Service");
}

#[test]
fn the_slices_of_a_headless_import_follow_while_a_foreign_service_is_in_the_way_of_its_new_type() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.exports[0].1.ports[0].name = "".into();
    let unnamed: Arc<[EndpointPort]> = [EndpointPort { name: "".into(), ..mk_ports()[0].clone() }].into();
    scene.exports[0].2.iter_mut().for_each(|endpoint| endpoint.ports = unnamed.clone());
    let mut slice = mk_slice("s", "there").0.clone();
    slice.ports = unnamed;
    scene.slices = vec![Arc::new(OwnSlice(slice)), mk_slice("t", "gone")];
    scene.import = Some(mk_import(true, &["there"]));
    scene.import.as_mut().unwrap().spec.headless = true;
    scene.derived = Some(mk_foreign("derived-x"));
    let wanted = scene.wanted();
    assert!(wanted.obstacle.is_some() && wanted.service.is_some());
    let [slice] = &wanted.slices[&id("there")][..] else { panic!("{:?}", wanted.slices) };
    assert_eq!((&*slice.name, slice.endpoints.len(), wanted.stale), ("s", 2, vec!["t".into()]));

    // Nothing is in the way of one that stays headless until the cluster is known that decides.
    scene.exports[0].0 = id("third");
    scene.unknown = Unknown::Only([id("there")].into());
    let wanted = scene.wanted();
    assert_eq!((wanted.obstacle, wanted.service), (None, None));
    assert_eq!(wanted.slices[&id("third")][0].endpoints.len(), 2);
}

/// An EndpointSlice belongs to one Service.
#[test]
fn a_former_derived_service_has_slices_of_its_own_until_the_import_shows_another_one() {
    let ours = |name: &str| Service::narrow(derived_service(&key(), name, &mk_service())).unwrap();
    let of = |service: &str, name: &str, ip: &str| {
        let mut slice = mk_slice(name, "there").0.clone();
        slice.service = Some(service.into());
        slice.endpoints[0].address = Some(ip.parse().unwrap());
        Arc::new(OwnSlice(slice))
    };
    let named = |slices: &BTreeMap<ClusterId, Vec<Slice>>| {
        let slices = &slices[&id("there")];
        assert!(slices.iter().all(|slice| slice.endpoints.len() == 2), "{slices:?}");
        slices.iter().map(|slice| slice.name.to_string()).collect::<Vec<_>>()
    };
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1", "10.0.0.2"])]);
    scene.import = Some(mk_import(true, &["there"]));
    scene.former = vec![Arc::new(ours("former"))];
    scene.slices = vec![of("former", "a", "10.0.0.1"), of("former", "gone", "10.9.9.9")];
    let wanted = scene.wanted();
    let former = wanted.former.as_ref().unwrap();
    assert_eq!((&*former.derived, wanted.derived.as_deref()), ("former", Some("derived-x")));
    assert_eq!((named(&former.slices), &wanted.stale), (vec!["a".to_owned()], &vec!["gone".into()]));
    let present = named(&wanted.slices);
    assert!(present.len() == 1 && present[0] != "a", "{present:?}");

    // The other Service and its slice are there.
    scene.derived = Some(ours("derived-x"));
    scene.slices.push(of("derived-x", &present[0], "10.0.0.1"));
    assert_eq!(scene.wanted(), wanted);

    // The import shows it.
    let annotations = [(names::ANNOTATION_DERIVED_SERVICE, "derived-x")];
    scene.import.as_mut().unwrap().annotations = annotations.into_iter().collect();
    let wanted = scene.wanted();
    assert_eq!((&wanted.former, named(&wanted.slices)), (&None, present));
    assert_eq!(wanted.stale, ["a".into(), "gone".into()]);

    // Nobody makes another one.
    (scene.derived, scene.slices) = (None, vec![of("former", "s", "10.0.0.1")]);
    scene.exports[0].1.service_type = ServiceType::Headless;
    let wanted = scene.wanted();
    assert_eq!((wanted.derived.as_deref(), &wanted.former), (Some("former"), &None));
    assert_eq!((named(&wanted.slices), wanted.stale.len()), (vec!["s".to_owned()], 0));
}

/// Nobody writes that Service any more, so a port that gets another name keeps its former one there.
#[test]
fn the_slices_of_a_former_service_have_the_ports_that_it_has() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.import = Some(mk_import(true, &["there"]));
    let former = derived_service(&key(), "former", &mk_service());
    scene.former = vec![Arc::new(Service::narrow(former).unwrap())];
    let names = |slices: &BTreeMap<ClusterId, Vec<Slice>>, source: &str| {
        let [slice] = &slices[&id(source)][..] else { panic!("{slices:?}") };
        slice.ports.iter().map(|port| port.name.to_string()).collect::<Vec<_>>()
    };
    for (name, of_former, present) in [
        ("http", vec!["http"], vec!["http"]),
        ("web", vec!["http"], vec!["web"]),
        // It has the number of another port.
        ("admin", vec!["http"], vec!["admin"]),
        ("", vec!["", "http"], vec!["", UNNAMED_PORT]),
    ] {
        scene.exports[0].1.ports[0].name = name.into();
        let port = EndpointPort { name: name.into(), ..mk_ports()[0].clone() };
        scene.exports[0].2[0].ports = [port].into();
        let wanted = scene.wanted();
        assert_eq!(names(&wanted.slices, "there"), present);
        assert_eq!(names(&wanted.former.unwrap().slices, "there"), of_former);
    }
    // Nobody makes another one.
    scene.unknown = Unknown::Only([id("there")].into());
    scene.exports[0].0 = id("third");
    let wanted = scene.wanted();
    assert_eq!((wanted.derived.as_deref(), &wanted.former), (Some("former"), &None));
    assert_eq!(names(&wanted.slices, "third"), ["", "http"]);
}

#[test]
fn only_families_of_this_cluster_are_served_if_need_be_those_of_a_younger_export() {
    use IpFamily::{V4, V6};
    for (oldest, younger, here, expected) in [
        (vec![V4], vec![V4], vec![V4], vec![V4]),
        (vec![V6, V4], vec![V4], vec![V4, V6], vec![V6, V4]),
        (vec![V6, V4], vec![V4], vec![V4], vec![V4]),
        (vec![V4], vec![V4, V6], vec![V4, V6], vec![V4]),
        (vec![V6], vec![V4], vec![V4], vec![V4]),
        (vec![V6], vec![V6], vec![V4], vec![]),
    ] {
        for service_type in [ServiceType::ClusterSetIp, ServiceType::Headless] {
            let mut scene = Scene::new(&[("old", 1, &["10.0.0.1"]), ("young", 2, &["10.1.0.1"])]);
            for (_, export, endpoints) in &mut scene.exports {
                export.service_type = service_type;
                endpoints[0].ipv6 = Some("fd00::1".parse().unwrap());
            }
            (scene.exports[0].1.ip_families, scene.exports[1].1.ip_families) = (oldest.clone(), younger.clone());
            scene.families.clone_from(&here);
            let wanted = scene.wanted();
            assert_eq!(wanted.service.unwrap().ip_families, expected);
            let slices: BTreeSet<_> = wanted.slices[&id("old")].iter().map(|slice| slice.family).collect();
            assert_eq!(slices, expected.iter().copied().collect(), "{oldest:?} {younger:?} {here:?}");
        }
    }
}

#[test]
fn exports_without_a_family_that_is_served_here_are_out_of_reach() {
    use IpFamily::{V4, V6};
    let v4: OutOfReach = [(id("old"), [V4].into())].into();
    for (oldest, younger, here, expected) in [
        (vec![V4], vec![V4, V6], vec![V6], v4.clone()),
        (vec![V4], vec![V4, V6], vec![V4, V6], [].into()),
        (vec![V4], vec![V6], vec![V4, V6], [(id("young"), [V6].into())].into()),
        (vec![V4], vec![V4], vec![V6], [(id("old"), [V4].into()), (id("young"), [V4].into())].into()),
    ] {
        let mut scene = Scene::new(&[("old", 1, &["10.0.0.1"]), ("young", 2, &["10.1.0.1"])]);
        (scene.exports[0].1.ip_families, scene.exports[1].1.ip_families) = (oldest, younger);
        scene.families = here;
        assert_eq!(scene.wanted().out_of_reach, expected);
    }
}

#[test]
fn silence_is_reported_on_the_imports_of_the_silent_cluster() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.silent = [(id("there"), 5), (id("third"), 6)].into();
    scene.unheard = [id("there")].into();
    assert_eq!(scene.wanted().silent, Some([(id("there"), 5)].into()));
    scene.silent.clear();
    assert_eq!(scene.wanted().silent, None, "an earlier leader may know more");
    scene.unheard = [id("third")].into();
    assert_eq!(scene.wanted().silent, Some(BTreeMap::new()));
}

/// Such as one whose head was purged before a new leader could read it: its endpoints stay.
#[test]
fn silence_of_a_cluster_of_which_nothing_is_known_is_reported_on_the_imports_that_name_it() {
    for mut scene in [Scene::new(&[("here", 2, &["10.1.0.1"])]), Scene::new(&[])] {
        scene.unknown = Unknown::Only([id("there"), id("third")].into());
        scene.import = Some(mk_import(true, &["here", "there"]));
        scene.slices = vec![mk_slice("s", "there")];
        scene.silent = [(id("there"), 5), (id("third"), 6)].into();
        let wanted = scene.wanted();
        assert_eq!((wanted.service, wanted.silent), (None, Some([(id("there"), 5)].into())));
        assert!(wanted.stale.is_empty());

        scene.silent.clear();
        scene.unheard = [id("there")].into();
        let says = |scene: &Scene| matches!(scene.plan(), Plan::Want(wanted) if wanted.silent.is_some());
        assert!(!says(&scene), "an earlier leader may know more");
        (scene.unheard, scene.unknown) = (BTreeSet::new(), Unknown::All);
        assert!(!says(&scene), "nothing was read yet");
    }
}

#[test]
fn a_bad_address_is_left_out_and_reported_but_never_its_slice() {
    let ips = ["10.0.0.1", "127.0.0.1", "169.254.169.254", "10.20.0.1"];
    let wanted = Scene::new(&[("there", 1, &ips)]).wanted();
    assert_eq!(wanted.slices[&id("there")][0].endpoints.len(), 1);
    let reasons: Vec<_> = wanted.skipped.iter().map(|(_, _, reason)| *reason).collect();
    let forbidden = [Forbidden::Loopback, Forbidden::LinkLocal].map(Unusable::Forbidden);
    assert_eq!(reasons, [&forbidden[..], &[Unusable::ClusterIp]].concat());
}

#[test]
fn the_slices_of_a_cluster_that_no_longer_exports_go() {
    let mut scene = Scene::new(&[("here", 1, &["10.1.0.1"])]);
    scene.slices = vec![mk_slice("s", "there")];
    assert_eq!(scene.wanted().stale, ["s".into()]);
}

/// An import of this type, as it is in use, that says since this time that its type changes.
fn mk_typed(headless: bool, says: Option<i64>) -> ServiceImport {
    let mut import = mk_import(true, &["here", "there"]);
    import.spec.headless = headless;
    let said = says.map(|since| Condition {
        last_transition_time: Time(Timestamp::from_second(since).unwrap()),
        message: String::new(),
        observed_generation: None,
        reason: "OldestExport".to_owned(),
        status: "True".to_owned(),
        type_: ImportCondition::TypeChanges.as_str().to_owned(),
    });
    import.status.conditions = said.iter().map(Into::into).collect();
    import
}

#[test]
fn a_change_of_type_by_another_export_is_said_before_it_is_done_and_for_how_long() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"]), ("here", 2, &["10.1.0.1"])]);
    scene.exports[0].1.service_type = ServiceType::Headless;
    let mut at = |now: i64, says: Option<i64>, headless: bool| {
        (scene.now, scene.import) = (now, Some(mk_typed(headless, says)));
        let wanted = scene.wanted();
        (wanted.service.unwrap().service_type, wanted.change)
    };
    let change = |at: i64| TypeChange {
        from: ServiceType::ClusterSetIp,
        to: ServiceType::Headless,
        by: id("there"),
        at: Timestamp::from_second(at).unwrap(),
    };
    assert_eq!(at(1_000, None, false), (ServiceType::ClusterSetIp, Some(change(1_900))));
    assert_eq!(at(1_899, Some(1_000), false), (ServiceType::ClusterSetIp, Some(change(1_900))), "another leader");
    assert_eq!(at(1_900, Some(1_000), false), (ServiceType::Headless, None));
    assert_eq!(at(1_901, Some(1_000), true), (ServiceType::Headless, None), "it is done");
    assert_eq!(at(1_000, Some(9_999), false), (ServiceType::ClusterSetIp, Some(change(1_900))), "a clock was set back");
}

#[test]
fn a_type_that_no_export_has_any_more_and_a_new_import_wait_for_nothing() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"]), ("here", 2, &["10.1.0.1"])]);
    for (_, export, _) in &mut scene.exports {
        export.service_type = ServiceType::Headless;
    }
    let mut of = |import: Option<ServiceImport>| {
        scene.import = import;
        let wanted = scene.wanted();
        (wanted.service.unwrap().service_type, wanted.change)
    };
    assert_eq!(of(None), (ServiceType::Headless, None));
    assert_eq!(of(Some(mk_typed(false, None))), (ServiceType::Headless, None), "all exports changed");
}
