//! A name that is broken: where it is held up first, and the remedy for that.

use super::*;

/// A breakage, and what the first wrong finding is about, says and advises.
type Case = (fn(&mut Cluster, &mut Name), &'static str, &'static str, &'static str);

/// Who leads, and as whom.
const LEADER: &[Case] = &[
    (|seen, _| seen.identity = Err(Unread::Forbidden("no".into())), "identity", "not read: no", "cloudmap-mcs-reader"),
    (
        |seen, _| {
            let identity = seen.identity.as_mut().unwrap().as_mut().unwrap();
            identity.clusterset = None;
        },
        "identity",
        "in no ClusterSet",
        "--clusterset-id",
    ),
    (
        |seen, _| {
            seen.identity.as_mut().unwrap().as_mut().unwrap().clusterset = None;
            let member = Some(Member { clusterset: "prod".to_owned(), cluster: "one".to_owned() });
            seen.record = Ok(Some(Record { member, ..Record::default() }));
        },
        "identity",
        "its controller was last in prod, as one",
        "--clusterset-id prod --cluster-id one",
    ),
    (
        |seen, _| {
            let member = Some(Member { clusterset: "prod".to_owned(), cluster: "blue".to_owned() });
            seen.record = Ok(Some(Record { member, ..Record::default() }));
        },
        "identity",
        "cluster one of the ClusterSet prod is what can be read here; its controller was last in prod, as blue",
        "--clusterset-id prod --cluster-id blue",
    ),
    (|seen, _| seen.lease = Ok(None), "leader", "no Lease", "--controller-namespace"),
    (
        |seen, _| seen.lease.as_mut().unwrap().as_mut().unwrap().renewed = Some(ago(400)),
        "leader",
        "pod-a has not renewed the Lease for 6m",
        "get pods",
    ),
    (
        |seen, _| seen.lease.as_mut().unwrap().as_mut().unwrap().yields = Some("Service is old".into()),
        "leader",
        "Service is old",
        "logs deployment/cloudmap-mcs",
    ),
    (
        |seen, _| seen.record = Ok(Some(Record { leaving: true, ..Record::default() })),
        "membership",
        "leaving",
        "--undo",
    ),
    (
        |seen, _| {
            let why = "the ConfigMap cloudmap-mcs-ledger has no valid record.json";
            seen.record = Err(StoreError::Failed(why.to_owned()));
        },
        "record",
        "no valid record.json",
        "nothing is exported or imported",
    ),
    (|seen, _| seen.record = Err(StoreError::Forbidden("no".into())), "record", "not read: no", "cloudmap-mcs-reader"),
];

/// The Service, its export and its endpoints in this cluster.
const HERE: &[Case] = &[
    (
        |_, name| name.service = Ok(None),
        "Service",
        "no Service of that name",
        "Create the Service, or delete the ServiceExport",
    ),
    (
        |_, name| {
            name.export = Ok(Some(parsed(export(&json!([condition("Valid", "False", "InvalidServiceType")])))));
        },
        "ServiceExport",
        "Valid=False InvalidServiceType: a Service of type ExternalName cannot be exported",
        "another type",
    ),
    (
        |_, name| {
            let conditions = [
                condition("Registered", "False", "ForeignOwner"),
                condition("Conflict", "True", "TypeConflict,PortConflict"),
            ];
            name.export = Ok(Some(parsed(export(&json!(conditions)))));
        },
        "ServiceExport",
        "TypeConflict,PortConflict: exports of this name differ",
        "until then the oldest export wins",
    ),
    (
        |_, name| name.export = Ok(Some(parsed(export(&json!([]))))),
        "ServiceExport",
        "no controller has reported",
        "who leads",
    ),
    (
        |_, name| name.export.as_mut().unwrap().as_mut().unwrap().metadata.generation = Some(2),
        "ServiceExport",
        "generation 1, not yet of 2",
        "who leads",
    ),
    (|_, name| name.local = Ok(Vec::new()), "endpoints here", "no endpoints", "get pods -l app=web"),
    (
        |_, name| name.local = Ok(vec![parsed(slice("", "IPv4", &[false]))]),
        "endpoints here",
        "0 of 1 endpoints ready",
        "get pods -l app=web",
    ),
    (
        |_, name| name.local = Ok(vec![parsed(of_pod("10.0.0.1", &[]))]),
        "ports here",
        "No endpoint of Service shop/web serves its port http (80/TCP)",
        "targetPort",
    ),
];

/// What the ledger says of the name.
const LEDGER: &[Case] = &[
    (
        |seen, _| seen.ledger.as_mut().unwrap()[0].catalog.exports.clear(),
        "ledger of one",
        "position 3.17: the export is not there",
        "conditions of the ServiceExport",
    ),
    (
        |seen, _| {
            let one = &mut seen.ledger.as_mut().unwrap()[0];
            (one.catalog, one.state, one.problems) = (Catalog::default(), None, vec!["page 3 is missing".into()]);
        },
        "ledger of one",
        "position 3.17: unverified, so it is not known whether the export is there: page 3 is missing",
        "logs deployment/cloudmap-mcs",
    ),
    (|seen, _| drop(seen.ledger.as_mut().unwrap().remove(0)), "ledger", "not in the ledger", "logs"),
    (|seen, _| seen.ledger = Err(Dark::NoLedger("no namespace".into())), "registry", "no namespace", "logs"),
    (
        |seen, _| seen.ledger.as_mut().unwrap()[1].age = Some(Duration::from_mins(6)),
        "ledger of two",
        "silent: 1 of 2 endpoints ready when",
        "Check the controller of the silent cluster",
    ),
    (
        |seen, _| sign_with_another_key(seen),
        "ledger of two",
        "its head is ignored: the key",
        "`cloudmap-mcs trust accept two`",
    ),
    (
        |seen, _| {
            sign_with_another_key(seen);
            let head = seen.ledger.as_mut().unwrap()[1].head.as_mut().unwrap();
            Arc::make_mut(head).signer = None;
        },
        "ledger of two",
        "its head is ignored: it has no valid signature",
        "--trust=open",
    ),
    (
        |seen, _| refuse_two(seen),
        "ledger of two",
        "it is refused: its state takes 40 MiB or more",
        "raise --remote-memory",
    ),
    (
        |seen, _| {
            let two = &mut seen.ledger.as_mut().unwrap()[1];
            two.catalog.exports.values_mut().for_each(|exported| exported.endpoints.clear());
        },
        "ledger of two",
        "0 of 0 endpoints ready",
        "`cloudmap-mcs status web -n shop` there",
    ),
    (
        |seen, _| {
            let two = &mut seen.ledger.as_mut().unwrap()[1];
            (two.catalog, two.state, two.problems) = (Catalog::default(), None, vec!["page 3 is missing".into()]);
        },
        "ledger of two",
        "page 3 is missing",
        "controller there",
    ),
];

/// The import, its objects, and DNS.
const IMPORT: &[Case] = &[
    (
        |_, name| (name.import, name.namespace) = (Ok(None), Ok(false)),
        "ServiceImport",
        "no namespace shop",
        "create namespace",
    ),
    (|_, name| name.import = Ok(None), "ServiceImport", "there is none", "get events"),
    (
        |_, name| name.import.as_mut().unwrap().as_mut().unwrap().metadata.labels = None,
        "ServiceImport",
        "did not create it",
        "Delete it",
    ),
    (
        |_, name| {
            name.import = Ok(Some(parsed(import(&json!([condition("Ready", "False", "IPFamilyNotSupported")])))));
        },
        "ServiceImport",
        "none of the IP families",
        "IP family of this cluster",
    ),
    (|_, name| name.derived = Ok(None), "derived Service", "no address", "get events"),
    (
        |_, name| name.derived = Ok(Some(parsed(service("derived-x", "10.96.0.10")))),
        "derived Service",
        "derived-x has 10.96.0.10, the ServiceImport 10.96.0.9",
        "get events",
    ),
    (
        |_, name| name.imported = Ok(vec![parsed(slice("one", "IPv4", &[true]))]),
        "EndpointSlices from two",
        "0 of 0 endpoints ready, but the ledger has 1 of 2",
        "involvedObject.name=web",
    ),
    (
        |_, name| {
            name.import.as_mut().unwrap().as_mut().unwrap().spec.ip_families = vec!["IPv6".to_owned()];
            name.imported = Ok(vec![parsed(slice("one", "IPv6", &[true]))]);
        },
        "EndpointSlices from two",
        "serves no IP family",
        "load balancer",
    ),
    (
        |seen, _| seen.ledger.as_mut().unwrap()[1].catalog.exports.clear(),
        "EndpointSlices from two",
        "no such export any more",
        "logs",
    ),
    (
        |seen, _| {
            sign_with_another_key(seen);
            seen.ledger.as_mut().unwrap()[1].catalog.exports.clear();
        },
        "EndpointSlices from two",
        "its head is ignored",
        "trust accept two",
    ),
    (|_, name| name.dns = Dns::Asked(Err("NXDOMAIN".into())), "DNS", "has no answer: NXDOMAIN", "coredns check"),
    (
        |_, name| name.dns = Dns::Asked(Ok(vec!["10.96.0.8".parse().unwrap()])),
        "DNS",
        "is 10.96.0.8, the ServiceImport has 10.96.0.9",
        "CoreDNS",
    ),
];

#[test]
fn a_name_is_broken_first_where_it_is_held_up_and_the_remedy_is_for_that() {
    for (breaks, about, text, remedy) in [LEADER, HERE, LEDGER, IMPORT].concat() {
        let (mut seen, mut name) = (cluster(), followed());
        breaks(&mut seen, &mut name);
        let report = name::plan(&seen, &name);
        let first = report.first_wrong().unwrap_or_else(|| panic!("nothing is wrong: {}", report.table()));
        assert_eq!(first.about, about, "{}", report.table());
        assert!(first.text.contains(text), "{text:?}: {first:?}");
        assert!(first.remedy.as_ref().unwrap().contains(remedy), "{remedy:?}: {first:?}");
    }
}
