use super::*;
use cloudmap::{Instance, Service, fake::mk_service};
use instances::{Owner, policy::mk_namespace};
use model::ClusterSetId;

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

pub(crate) fn instance(cluster: &str, ip: &str, changes: &[(&str, &str)]) -> Instance {
    let attributes = [
        ("AWS_INSTANCE_IPV4", ip),
        ("AWS_INSTANCE_PORT", "8080"),
        ("CLUSTERSET_ID", "prod"),
        ("CLUSTER_ID", cluster),
        ("ENDPOINT_PORT_NAME", ""),
        ("ENDPOINT_PROTOCOL", "TCP"),
        ("READY", "true"),
        ("SERVICE_EXPORT_CREATION_TIMESTAMP", "1000"),
        ("SERVICE_PORT", "80"),
        ("SERVICE_PORT_NAME", ""),
        ("SERVICE_PROTOCOL", "TCP"),
        ("SERVICE_TARGET_PORT", "8080"),
        ("SERVICE_TYPE", "ClusterSetIP"),
    ];
    let attributes = attributes.iter().chain(changes).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    Instance { id: format!("tcp-{ip}").into(), attributes }
}

pub(crate) fn reading(instances: &[Instance]) -> Reading {
    let set: ClusterSetId = "prod".parse().unwrap();
    let identity = Owner { clusterset: Some(set.clone()), cluster: "here".parse().unwrap(), cluster_uid: "uid".into() };
    Reading::of(instances, &BTreeSet::new(), &Service { ..mk_service() }, "shop", &identity, Some(&set))
}

pub(crate) fn found(services: &[(&str, Option<Reading>)], listed: bool, trouble: Option<Trouble>) -> Arc<Discovered> {
    let service = |(name, reading): &(&str, Option<Reading>)| {
        let found = ServiceFound { name: (*name).into(), reading: reading.clone(), error: None };
        (Arc::from(label(name)), Arc::new(found))
    };
    let namespace = NamespaceFound { services: services.iter().map(service).collect(), listed, trouble };
    Arc::new(Discovered { namespaces: [("shop".into(), Arc::new(namespace))].into() })
}

/// In a cluster with a namespace, with the flag or without it.
fn mk_with(enabled: bool) -> Peers {
    let mut peers = Peers::new(enabled);
    peers.namespace_changed(&"shop".into(), Some(&mk_namespace()));
    peers
}

fn mk_peers() -> Peers {
    let peers = mk_with(true);
    assert_eq!(peers.subscribed().map(|name| &**name).collect::<Vec<_>>(), ["shop"]);
    peers
}

fn clusters(peers: &Peers, name: &str, live: bool) -> Vec<String> {
    peers.exports_of(&key(name), |_| live).exports.keys().map(ToString::to_string).collect()
}

#[test]
fn instances_of_the_clusterset_are_exports_of_their_clusters_and_nobody_elses() {
    let mut peers = mk_peers();
    let ours = [("CLOUDMAP_MCS_CLUSTERSET", "prod"), ("CLOUDMAP_MCS_CLUSTER_UID", "other")];
    let web = reading(&[
        instance("c1", "10.0.0.1", &[]),
        instance("moved", "10.0.0.2", &ours),
        instance("here", "10.0.0.3", &[]),
        instance("c2", "10.0.0.4", &[("CLUSTERSET_ID", "test")]),
        instance("c3", "10.0.0.5", &[("READY", "maybe")]),
    ]);
    let consequences = peers.adopt(found(&[("web", Some(web)), ("idle", Some(reading(&[])))], true, None));
    assert_eq!(consequences.names, [key("idle"), key("web")].into());
    assert_eq!(consequences.rejected.len(), 1);
    let (of, rejected) = &consequences.rejected[0];
    assert_eq!((of, &*rejected[0].instance), (&key("web"), "tcp-10.0.0.5"));
    assert!(rejected[0].why.to_string().contains("READY"));
    // A cluster that moves over is told by its instances until its ledger tells it, as long as it lives.
    assert_eq!(clusters(&peers, "web", true), ["c1", "moved"]);
    assert_eq!(clusters(&peers, "web", false), ["c1"]);
    assert_eq!(peers.names().collect::<Vec<_>>(), [key("web")]);
}

#[test]
fn nothing_follows_from_what_was_not_read() {
    let mut peers = mk_peers();
    assert!(!peers.is_complete(&key("web")), "nothing was read");
    assert!(
        !peers.has_first_reading()
            && peers.end_first_reading()
            && !peers.end_first_reading()
            && peers.has_first_reading()
    );
    peers.adopt(found(&[("web", None)], false, None));
    assert!(!peers.is_complete(&key("web")) && !peers.is_complete(&key("api")));
    let denied = || found(&[("web", Some(reading(&[])))], false, Some(Trouble::Failed("denied".to_owned())));
    let notes = peers.adopt(denied()).notes;
    assert!(notes.len() == 1 && notes[0].text.contains("denied"), "{notes:?}");
    assert_eq!(notes[0].regarding.kind.as_deref(), Some("Namespace"));
    assert!(peers.adopt(denied()).notes.is_empty(), "it is said once");
    assert!(peers.is_complete(&key("web")) && !peers.is_complete(&key("api")));
    let consequences = peers.adopt(found(&[], true, None));
    assert!(peers.is_complete(&key("web")) && consequences.namespaces.contains("shop"));
    peers.adopt(found(&[], false, Some(Trouble::NotFound)));
    assert!(peers.is_complete(&key("web")), "what does not exist has nothing in it");
    assert!(peers.is_complete(&ServiceKey::new("elsewhere", "web")), "no such Kubernetes namespace");
}

#[test]
fn without_the_flag_nothing_is_read() {
    let peers = mk_with(false);
    assert!(peers.subscribed().next().is_none() && peers.has_first_reading() && peers.is_complete(&key("web")));
}

#[test]
fn names_are_found_by_the_addresses_of_their_instances() {
    let mut peers = mk_peers();
    let [web, api] = ["10.0.0.1", "10.0.0.2"].map(|ip| Some(reading(&[instance("c1", ip, &[])])));
    peers.adopt(found(&[("web", web), ("api", api), ("unread", None)], true, None));
    let names_with = |address: &str| peers.names_with(&[address.parse().unwrap()].into());
    assert_eq!(names_with("10.0.0.1"), [key("web")].into());
    assert_eq!(names_with("10.0.0.3"), [].into());
}
