#[path = "plan_tests/foreign.rs"]
mod foreign;
#[path = "plan_tests/selection.rs"]
mod selection;
#[path = "plan_tests/unknown.rs"]
mod unknown;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};

use super::*;
use crate::{Selecting, derived_service, objects::tests::mk_service};
use api::{
    ServiceImportPort, ServiceImportSpec,
    selection::{ClusterSelection, Properties},
};
use cluster::{
    cache::Narrow,
    objects::{EndpointSlice, ImportStatus, ObjectKey, Service},
};
use model::{
    Conditions, Drain, EndpointPort, Pairs, Protocol, ServicePort, SessionAffinity, TrafficPolicy,
    addresses::Forbidden, fixtures,
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
    first_reading: bool,
    pub(crate) families: Vec<IpFamily>,
    pub(crate) silent: BTreeMap<ClusterId, u64>,
    unheard: BTreeSet<ClusterId>,
    pub(crate) discovered: Picture,
    pub(crate) import: Option<ServiceImport>,
    derived: Option<Service>,
    former: Vec<Arc<Service>>,
    pub(crate) slices: Vec<Arc<OwnSlice>>,
    of_namespace: Option<ClusterSelection>,
    default: ClusterSelection,
    properties: BTreeMap<ClusterId, Properties>,
    drains: BTreeMap<ClusterId, Drain>,
    unreachable: BTreeMap<ClusterId, Unreachable>,
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
            first_reading: false,
            families: vec![IpFamily::V4, IpFamily::V6],
            silent: BTreeMap::new(),
            unheard: BTreeSet::new(),
            discovered: Picture::nothing(),
            import: None,
            derived: None,
            former: vec![],
            slices: vec![],
            of_namespace: None,
            default: ClusterSelection::spread(),
            properties: BTreeMap::new(),
            drains: BTreeMap::new(),
            unreachable: BTreeMap::new(),
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
                first_reading: self.first_reading,
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
                excluded: &[],
                selecting: Selecting {
                    of_namespace: self.of_namespace.as_ref(),
                    default: &self.default,
                    properties: &self.properties,
                    drains: &self.drains,
                    unreachable: &self.unreachable,
                    step: 0,
                },
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

fn mk_foreign(name: &str) -> Service {
    let metadata = ObjectMeta { namespace: Some("ns".into()), name: Some(name.into()), ..ObjectMeta::default() };
    Service::narrow(k8s_openapi::api::core::v1::Service { metadata, ..Default::default() }).unwrap()
}

/// Clients have its address from the ServiceImport.
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
    assert_eq!(scene.wanted().silent, None, "the import says nothing of silence");
    let mut import = mk_import(true, &["there"]);
    import.status.conditions = [(&mk_said(ImportCondition::Stale, 5)).into()].into();
    scene.import = Some(import);
    assert_eq!(scene.wanted().silent, Some(BTreeMap::new()), "it says what is over");
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

/// A condition that an import has since this time.
fn mk_said(condition: ImportCondition, since: i64) -> Condition {
    Condition {
        last_transition_time: Time(Timestamp::from_second(since).unwrap()),
        message: String::new(),
        observed_generation: None,
        reason: "OldestExport".to_owned(),
        status: "True".to_owned(),
        type_: condition.as_str().to_owned(),
    }
}

/// An import of this type, as it is in use, that says since this time that its type changes.
fn mk_typed(headless: bool, says: Option<i64>) -> ServiceImport {
    let mut import = mk_import(true, &["here", "there"]);
    import.spec.headless = headless;
    let said = says.map(|since| mk_said(ImportCondition::TypeChanges, since));
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
