use super::*;
use crate::{
    api::{ServiceImportSpec, ServiceImportStatus},
    cluster::objects::{Endpoint as Row, EndpointSlice, ObjectKey},
    model::{Conditions, EndpointPort, Protocol, ServicePort, fixtures},
};

fn key() -> ServiceKey {
    ServiceKey::new("ns", "svc")
}

fn id(name: &str) -> ClusterId {
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

fn mk_import(managed: bool, clusters: &[&str]) -> ServiceImport {
    ServiceImport {
        key: key(),
        uid: "uid".into(),
        generation: Some(1),
        deleting: false,
        managed,
        labels: Default::default(),
        annotations: Default::default(),
        spec: ServiceImportSpec::default(),
        status: ServiceImportStatus {
            clusters: clusters.iter().map(|name| crate::api::ClusterStatus { cluster: (*name).to_owned() }).collect(),
            ..ServiceImportStatus::default()
        },
    }
}

fn mk_slice(name: &str, source: &str) -> Arc<OwnSlice> {
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
            addresses: ["10.0.0.1".parse().unwrap()].into(),
            conditions: Conditions::READY,
            hostname: None,
            node: None,
            zone: None,
            hint_zones: [].into(),
            target: None,
        }]
        .into(),
    }))
}

struct Scene {
    exports: Vec<(ClusterId, Export, Vec<Endpoint>)>,
    namespace: bool,
    unknown: Unknown,
    settling: bool,
    import: Option<ServiceImport>,
    slices: Vec<Arc<OwnSlice>>,
}

impl Scene {
    fn new(exports: &[(&str, i64, &[&str])]) -> Self {
        let export = |(name, created, ips): &(&str, i64, &[&str])| {
            (id(name), mk_export(*created), ips.iter().map(|ip| mk_endpoint(ip)).collect())
        };
        Self {
            exports: exports.iter().map(export).collect(),
            namespace: true,
            unknown: Unknown::Only(BTreeSet::new()),
            settling: false,
            import: None,
            slices: vec![],
        }
    }

    fn unknown(mut self, clusters: &[&str]) -> Self {
        self.unknown = Unknown::Only(clusters.iter().map(|name| id(name)).collect());
        self
    }

    fn plan(&self) -> Plan {
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
                import: self.import.as_ref(),
                derived: None,
                slices: &self.slices,
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
fn an_export_elsewhere_is_wanted_here() {
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
fn zero_endpoints_are_an_import_without_slices() {
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
fn the_last_unexport_removes_what_is_ours() {
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

#[test]
fn a_foreign_import_in_the_way_is_refused_by_name() {
    let mut scene = Scene::new(&[("there", 1, &["10.0.0.1"])]);
    scene.import = Some(mk_import(false, &[]));
    let Plan::Blocked(message) = scene.plan() else { panic!() };
    assert!(message.contains("ServiceImport ns/svc"), "{message}");
}

#[test]
fn a_bad_address_is_left_out_and_reported_but_never_its_slice() {
    let ips = ["10.0.0.1", "127.0.0.1", "169.254.169.254", "10.20.0.1"];
    let wanted = Scene::new(&[("there", 1, &ips)]).wanted();
    assert_eq!(wanted.slices[&id("there")][0].endpoints.len(), 1);
    let reasons: Vec<_> = wanted.skipped.iter().map(|(_, _, reason)| *reason).collect();
    assert_eq!(reasons, [Unusable::Loopback, Unusable::LinkLocal, Unusable::ClusterIp]);
}

#[test]
fn the_slices_of_a_cluster_that_exports_no_more_go() {
    let mut scene = Scene::new(&[("here", 1, &["10.1.0.1"])]);
    scene.slices = vec![mk_slice("s", "there")];
    assert_eq!(scene.wanted().stale, ["s".into()]);
}
