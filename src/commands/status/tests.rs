mod broken;
mod reading;
mod summary;

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    name,
    observe::{Cluster, Dark, Dns, Instances, Leader, Name, Objects},
    overview,
    report::{Report, State},
};
use cli::STREAM_PORT;
use cluster::{identity::Identity, lease::PeerReport, reader::Unread};
use ledger::{
    hash::Summary,
    head::{FORMAT, Head, Presence, Root},
    record::{Accepted, Member, Position, Record, StoreError},
};
use model::{
    ClaimOwner, Exported, PublicKey, Registration, ServiceKey, Target,
    fixtures::{mk_endpoint, mk_export},
};
use records::{Catalog, ClusterView};

const DAY: i64 = 86_400;

fn now() -> Timestamp {
    Timestamp::from_second(100 * DAY).unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    Timestamp::from_second(100 * DAY - seconds).unwrap()
}

fn key() -> ServiceKey {
    ServiceKey::new("shop", "web")
}

fn target() -> Target {
    Target { namespace: "shop".into(), service: "web".into() }
}

pub(crate) fn parsed<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

pub(crate) fn condition(kind: &str, status: &str, reason: &str) -> Value {
    json!({"type": kind, "status": status, "reason": reason, "message": "", "observedGeneration": 1,
        "lastTransitionTime": ago(600).to_string()})
}

/// A cluster of the ledger with two endpoints of the name, one of them ready, and a claim.
pub(crate) fn view(id: &str) -> ClusterView {
    let mut endpoints = vec![mk_endpoint([10, 0, 0, 1]), mk_endpoint([10, 0, 0, 2])];
    endpoints[1].conditions.ready = false;
    let claim = Registration {
        target: target(),
        owner: ClaimOwner::export(&key()),
        claimed: ago(4 * DAY).as_second(),
        state: model::ClaimState::Serves,
    };
    let catalog = Catalog {
        exports: [(key(), Exported { export: mk_export(1), endpoints })].into(),
        registrations: [(target(), claim)].into(),
        ..Catalog::default()
    };
    let uid = format!("uid-{id}");
    let head = Head {
        cluster: id.into(),
        reads: FORMAT,
        uid: uid.as_str().into(),
        position: Position { epoch: 3, seq: 17 },
        presence: Presence::Live,
        root: Root::empty(1),
        delta: Arc::default(),
        summary: Summary::default(),
        addresses: [([10, 0, 1, 9], STREAM_PORT).into()].into(),
        lease: Duration::from_mins(5),
        written: 0,
        signer: None,
    };
    ClusterView {
        id: id.into(),
        head: Some(Arc::new(head)),
        creator: Some(uid),
        state: Some(Arc::default()),
        catalog,
        pages: 2,
        age: Some(Duration::from_secs(2)),
        problems: Vec::new(),
    }
}

pub(crate) fn cluster() -> Cluster {
    let identity =
        Identity { cluster: "one".parse().unwrap(), clusterset: Some("prod".parse().unwrap()), uid: "uid-one".into() };
    let leader = Leader {
        holder: Some("pod-a".to_owned()),
        acquired: Some(ago(DAY)),
        renewed: Some(ago(2)),
        transitions: 3,
        yields: None,
        peers: PeerReport { connected: Some(["two".into()].into()), ..PeerReport::default() },
        build: None,
    };
    Cluster {
        now: now(),
        own: "cloudmap-mcs-system".to_owned(),
        flags: String::new(),
        identity: Ok(Ok(identity)),
        lease: Ok(Some(leader)),
        record: Ok(Some(Record::default())),
        ledger: Ok(vec![view("one"), view("two")]),
    }
}

/// As after cluster two was rebuilt: it has a new key.
fn sign_with_another_key(seen: &mut Cluster) {
    let [pinned, signs] = [1, 2].map(|byte| PublicKey::from_bytes([byte; 32]));
    let accepted = [("two".to_owned(), Accepted::unread("uid-two".to_owned(), Some(pinned)))].into();
    seen.record = Ok(Some(Record { accepted, ..Record::default() }));
    let head = seen.ledger.as_mut().unwrap()[1].head.as_mut().unwrap();
    Arc::make_mut(head).signer = Some(signs);
}

/// As after cluster two exported more than all clusters may take in memory here.
fn refuse_two(seen: &mut Cluster) {
    let why = "its state takes 40 MiB or more, it is the largest, and all other clusters together may take 32 MiB";
    seen.lease.as_mut().unwrap().as_mut().unwrap().peers.refused = [("two".into(), why.to_owned())].into();
}

/// As after cluster one lost the network to cluster two.
fn lose_two(seen: &mut Cluster) {
    let name = "unreachable.cloudmap-mcs.io/two".to_owned();
    seen.ledger.as_mut().unwrap()[0].catalog.properties = [(name, ago(60).as_second().to_string())].into();
}

pub(crate) fn report(seen: &Cluster, objects: &Objects) -> Report {
    overview::plan(seen, objects)
}

fn metadata(name: &str) -> Value {
    json!({"namespace": "shop", "name": name, "generation": 1, "creationTimestamp": ago(5 * DAY).to_string(),
        "labels": {"cloudmap-mcs/managed-by": "cloudmap-mcs"}})
}

fn service(name: &str, ip: &str) -> Value {
    json!({"metadata": metadata(name), "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip],
        "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}})
}

fn export(conditions: &Value) -> Value {
    json!({"metadata": metadata("web"), "status": {"conditions": conditions}})
}

pub(crate) fn exported() -> Value {
    export(&json!([
        condition("Valid", "True", "Valid"),
        condition("Ready", "True", "Exported"),
        condition("Conflict", "False", "NoConflicts"),
        condition("Registered", "False", "Disabled"),
    ]))
}

pub(crate) fn import(conditions: &Value) -> Value {
    json!({"metadata": metadata("web"),
        "spec": {"type": "ClusterSetIP", "ips": ["10.96.0.9"], "ports": [{"port": 80, "protocol": "TCP"}]},
        "status": {"clusters": [{"cluster": "one"}, {"cluster": "two"}], "conditions": conditions}})
}

fn slice(source: &str, family: &str, ready: &[bool]) -> Value {
    let endpoint =
        |(n, ready): (usize, &bool)| json!({"addresses": [format!("address-{n}")], "conditions": {"ready": ready}});
    let endpoints: Vec<_> = ready.iter().enumerate().map(endpoint).collect();
    let fields = json!([{"manager": "cloudmap-mcs-import", "operation": "Apply", "time": ago(3 * 3600).to_string()}]);
    json!({"metadata": {"name": source, "managedFields": fields, "labels": {
            "endpointslice.kubernetes.io/managed-by": "cloudmap-mcs",
            "multicluster.kubernetes.io/source-cluster": source}},
        "addressType": family, "endpoints": endpoints})
}

/// What the EndpointSlice controller writes for a pod.
fn of_pod(address: &str, ports: &[&str]) -> Value {
    let ports: Vec<_> = ports.iter().map(|name| json!({"name": name, "port": 8080, "protocol": "TCP"})).collect();
    json!({"metadata": {"namespace": "shop", "name": format!("web-{address}")}, "addressType": "IPv4",
        "ports": ports, "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]})
}

/// Everything is well, seen from a pod.
fn followed() -> Name {
    let both = |source| [slice(source, "IPv4", &[true, false]), slice(source, "IPv6", &[true])];
    Name {
        key: key(),
        namespace: Ok(true),
        service: Ok(Some(parsed(service("web", "10.96.0.1")))),
        export: Ok(Some(parsed(exported()))),
        local: Ok(vec![parsed(slice("", "IPv4", &[true, false]))]),
        targets: vec![(
            target(),
            Ok(Some(Instances { registered: [("one".to_owned(), 1)].into(), ..Instances::default() })),
        )],
        import: Ok(Some(parsed(import(&json!([condition("Ready", "True", "Ready")]))))),
        derived: Ok(Some(parsed(service("derived-x", "10.96.0.9")))),
        imported: Ok(both("one").into_iter().chain(both("two")).map(parsed).collect()),
        dns: Dns::Asked(Ok(vec!["10.96.0.9".parse().unwrap()])),
    }
}

#[test]
fn a_name_that_is_well_says_so_at_every_stage() {
    let report = name::plan(&cluster(), &followed());
    let table = report.table();
    assert_eq!(report.first_wrong(), None, "{table}");
    assert!(table.starts_with("shop/web as seen by one in the ClusterSet prod: nothing is wrong\n"), "{table}");
    for line in [
        "leader                    ok      2s    pod-a leads for 24h; the leader has changed 3 times",
        "Service                   ok      5d    ClusterIP 10.96.0.1, ports http:80/TCP",
        "ServiceExport             ok      5d    Valid, Exported, NoConflicts, Registered=False Disabled",
        "endpoints here            ok      3h    1 of 2 endpoints ready",
        "ledger of one             ok      2s    position 3.17: 1 of 2 endpoints ready",
        "ledger of two             ok      2s    ClusterSetIP, 1 of 2 endpoints ready",
        "Cloud Map shop/web        ok      4d    claimed by one, claimed by two; instances: 1 of one",
        "ServiceImport             ok      5d    ClusterSetIP 10.96.0.9, ports 80/TCP, from one, two",
        "derived Service           ok      5d    derived-x 10.96.0.9",
        "EndpointSlices from two   ok      3h    1 of 2 endpoints ready",
        "connections               ok            by cluster one 50 % (1 of 2), two 50 % (1 of 2)",
        "DNS                       ok            web.shop.svc.clusterset.local is 10.96.0.9",
    ] {
        assert!(table.lines().any(|there| there == line), "{line}\nis not in\n{table}");
    }
}

#[test]
fn what_each_cluster_and_zone_gets_is_said_with_what_decides_it() {
    let mut name = followed();
    let slices = name.imported.as_mut().unwrap();
    for endpoint in slices.iter_mut().flat_map(|slice| &mut slice.endpoints) {
        endpoint.conditions.as_mut().unwrap().ready = Some(true);
    }
    for slice in slices.iter_mut().filter(|slice| slice.metadata.name.as_deref() == Some("one")) {
        slice.endpoints.truncate(1);
        slice.endpoints[0].zone = Some("eu-central-1a".to_owned());
    }
    let mut conditions = vec![condition("Ready", "True", "Ready")];
    let mut selection = condition("ClusterSelection", "True", "InForce");
    selection["message"] = "By local-first, these serve: one, two.".into();
    conditions.push(selection);
    name.import = Ok(Some(parsed(import(&json!(conditions)))));
    let said = |name: &Name| {
        let findings = name::plan(&cluster(), name).findings;
        findings.into_iter().find(|finding| finding.about == "connections").map(|finding| finding.text)
    };
    let text = "by cluster two 67 % (2 of 3), one 33 % (1 of 3); by zone unknown 67 % (2 of 3), eu-central-1a 33 % (1 of 3). By \
                local-first, these serve: one, two.";
    assert_eq!(said(&name).as_deref(), Some(text));
    name.imported = Ok(Vec::new());
    assert_eq!(said(&name), None);
}

#[test]
fn who_cannot_be_reached_is_wrong_and_shows_nothing_here() {
    let mut seen = cluster();
    let mut name = followed();
    name.imported.as_mut().unwrap().retain(|slice| slice.metadata.name.as_deref() == Some("one"));
    let of_two = |seen: &Cluster, name: &Name, about: &str| {
        let findings = name::plan(seen, name).findings;
        let finding = findings.into_iter().find(|finding| finding.about == about).unwrap();
        (finding.state, finding.text.contains("the network to it is gone"))
    };
    assert_eq!(of_two(&seen, &name, "EndpointSlices from two"), (State::Wrong, false), "slices are missing");
    lose_two(&mut seen);
    assert_eq!(of_two(&seen, &name, "EndpointSlices from two"), (State::Wrong, true));
    let overview = overview::ledger(&seen);
    let two = overview.iter().find(|finding| finding.about == "cluster two").unwrap();
    assert!(two.state == State::Wrong && two.text.contains("the network from here to it is gone since"), "{two:?}");
    assert!(two.remedy.as_ref().unwrap().contains("peering"), "{two:?}");
    // What the other one says of this cluster is not about the way from here.
    let views = seen.ledger.as_mut().unwrap();
    views[0].catalog.properties.clear();
    views[1].catalog.properties = [("unreachable.cloudmap-mcs.io/one".to_owned(), "60".to_owned())].into();
    assert!(overview::ledger(&seen).iter().all(|finding| finding.state == State::Well));
}

/// As with mail, where some pods serve one port and some another.
#[test]
fn ports_that_only_some_endpoints_serve_are_counted_and_nothing_is_wrong() {
    let mut name = followed();
    let slices = [of_pod("10.0.0.1", &["http"]), of_pod("10.0.0.2", &["http"]), of_pod("10.0.0.3", &["other"])];
    name.local = Ok(slices.into_iter().map(parsed).collect());
    let report = name::plan(&cluster(), &name);
    let ports = report.findings.iter().find(|finding| finding.about == "ports here").unwrap();
    assert_eq!((ports.state, &*ports.text), (State::Well, "served http (80/TCP) by 2 of 3 endpoints"));
    assert_eq!(report.first_wrong(), None);
}

/// Its conditions would say it of an export; an annotated Service has only Events.
#[test]
fn a_port_of_an_annotated_service_that_no_endpoint_serves_is_wrong() {
    let mut seen = cluster();
    seen.ledger.as_mut().unwrap().iter_mut().for_each(|view| view.catalog = Catalog::default());
    let mut name = Name { export: Ok(None), import: Ok(None), derived: Ok(None), ..followed() };
    (name.imported, name.targets, name.local) = (Ok(Vec::new()), Vec::new(), Ok(vec![parsed(of_pod("10.0.0.1", &[]))]));
    let mut annotated = service("web", "10.96.0.1");
    annotated["metadata"]["annotations"] = json!({"external-dns.alpha.kubernetes.io/hostname": "web.internal"});
    name.service = Ok(Some(parsed(annotated)));
    let report = name::plan(&seen, &name);
    let first = report.first_wrong().unwrap();
    assert_eq!(first.about, "ports here", "{}", report.table());
    assert!(first.text.contains("its port http (80/TCP)"), "{first:?}");
    name.local = Ok(vec![parsed(of_pod("10.0.0.1", &["http"]))]);
    let report = name::plan(&seen, &name);
    assert!(report.findings.iter().all(|finding| finding.about != "ports here"), "{}", report.table());
}

/// While a derived Service with another name takes over, each of the two has slices of its own.
#[test]
fn an_endpoint_that_several_slices_list_counts_once() {
    let mut name = followed();
    let slices = |source| [slice(source, "IPv4", &[true, false]), slice(source, "IPv4", &[true, false])];
    name.imported = Ok(slices("one").into_iter().chain(slices("two")).map(parsed).collect());
    let table = name::plan(&cluster(), &name).table();
    assert_eq!(table.matches("1 of 2 endpoints ready").count(), 5, "{table}");
    assert!(!table.contains(" of 4 "), "{table}");
}

/// The example of the document.
#[test]
fn the_document_shows_what_is_printed() {
    let mut seen = cluster();
    seen.ledger.as_mut().unwrap()[1].age = Some(Duration::from_mins(9));
    let mut refused = export(&json!([condition("Valid", "False", "NoService")]));
    refused["metadata"]["name"] = "cart".into();
    let objects = Objects {
        namespace: None,
        exports: Ok(vec![parsed(exported()), parsed(refused)]),
        imports: Ok(vec![parsed(import(&json!([condition("Ready", "True", "Ready")])))]),
    };
    let document = include_str!("../../../docs/operations.md");
    for table in [name::plan(&seen, &followed()).table(), overview::plan(&seen, &objects).table()] {
        let indented: String =
            table.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("    {line}\n") }).collect();
        assert!(document.contains(&indented), "{indented}");
    }
}

#[test]
fn a_stage_is_as_old_as_its_last_change_and_what_does_not_say_it_has_no_age() {
    let age_of = |seen: &Cluster, name: &Name, about: &str| {
        let findings = name::plan(seen, name).findings;
        findings.into_iter().find(|finding| finding.about == about).unwrap().age
    };
    let (mut seen, mut name) = (cluster(), followed());
    let changes = name.imported.as_mut().unwrap()[0].metadata.managed_fields.as_mut().unwrap();
    changes.push(parsed(json!({"manager": "kubectl-label", "operation": "Update", "time": ago(7).to_string()})));
    assert_eq!(age_of(&seen, &name, "EndpointSlices from one"), Some(Duration::from_secs(7)));
    let claims = &mut seen.ledger.as_mut().unwrap()[1].catalog.registrations;
    claims.get_mut(&target()).unwrap().claimed = ago(60).as_second();
    assert_eq!(age_of(&seen, &name, "Cloud Map shop/web"), Some(Duration::from_mins(1)), "the newest claim");

    name.local.as_mut().unwrap()[0].metadata.managed_fields = None;
    for about in ["endpoints here", "DNS"] {
        assert_eq!(age_of(&seen, &name, about), None, "{about}");
    }
}

#[test]
fn what_cannot_be_seen_from_here_is_said_and_is_not_wrong() {
    let (mut seen, mut name) = (cluster(), followed());
    seen.ledger = Err(Dark::Unseen("no credentials".into()));
    name.targets.clear();
    name.dns = Dns::NotAsked;
    let report = name::plan(&seen, &name);
    let (table, json) = (report.table(), report.json());
    assert_eq!(report.first_wrong(), None, "{table}");
    assert!(table.contains("nothing is wrong (not everything can be seen from here)"), "{table}");
    assert!(table.contains("not read from here: no credentials") && table.contains("exec deployment/cloudmap-mcs"));
    assert!(table.contains("nslookup web.shop.svc.clusterset.local."), "{table}");
    assert_eq!(json["well"], true);
    let registry = json["findings"].as_array().unwrap().iter().find(|finding| finding["about"] == "registry").unwrap();
    assert_eq!(registry["state"], "not seen");
}

#[test]
fn a_headless_import_without_ready_endpoints_has_no_answer_and_coredns_is_not_to_blame() {
    let (seen, mut name) = (cluster(), followed());
    let import = name.import.as_mut().unwrap().as_mut().unwrap();
    (import.spec.type_, import.spec.ips) = (api::ServiceImportType::Headless, Vec::new());
    name.dns = Dns::Asked(Err("NXDOMAIN".into()));
    let table = name::plan(&seen, &name).table();
    assert!(table.contains("has no answer: NXDOMAIN"), "{table}");
    name.imported = Ok(vec![parsed(slice("two", "IPv4", &[false]))]);
    let table = name::plan(&seen, &name).table();
    assert!(table.contains("has no answer while no endpoint is ready"), "{table}");
}

#[test]
fn a_finding_is_one_line_and_nothing_is_claimed_of_an_import_that_was_not_read() {
    let (mut seen, mut name) = (cluster(), followed());
    seen.ledger = Err(Dark::Unseen("no credentials:\n  Environment: not set\n".into()));
    name.import = Err(Unread::Failed("no answer".into()));
    let report = name::plan(&seen, &name);
    assert!(report.table().contains("no credentials: Environment: not set\n"), "{}", report.table());
    assert_eq!(report.findings.last().unwrap().state, State::Unseen, "{}", report.table());
}

#[test]
fn of_a_state_that_was_not_read_nothing_is_said_to_be_withdrawn() {
    let (mut seen, name) = (cluster(), followed());
    let two = &mut seen.ledger.as_mut().unwrap()[1];
    (two.catalog, two.state, two.problems) = (Catalog::default(), None, vec!["page 3 is missing".into()]);
    let report = name::plan(&seen, &name);
    let wrong: Vec<_> = report.findings.iter().filter(|finding| finding.state == State::Wrong).collect();
    assert!(matches!(&*wrong, [only] if only.about == "ledger of two"), "{}", report.table());
}

#[test]
fn a_name_that_nobody_exports_is_said_to_be_so() {
    let mut seen = cluster();
    seen.ledger.as_mut().unwrap().iter_mut().for_each(|view| view.catalog = Catalog::default());
    let mut name = Name { service: Ok(None), export: Ok(None), import: Ok(None), derived: Ok(None), ..followed() };
    (name.imported, name.targets) = (Ok(Vec::new()), Vec::new());
    let report = name::plan(&seen, &name);
    let first = report.first_wrong().unwrap();
    assert_eq!((&*first.about, &*first.text), ("ServiceExport", "no cluster exports this name"));
}
