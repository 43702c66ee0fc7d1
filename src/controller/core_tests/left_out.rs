//! What an export leaves out is said on it, once.

use super::*;
use api::events::EventReason;

fn put_slice(bench: &Bench, name: &str, address_type: &str, address: &str) {
    let slice = json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {LABEL_KUBERNETES_SERVICE_NAME: "web"}},
        "addressType": address_type, "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        "endpoints": [{"addresses": [address]}],
    });
    bench.objects.put_slice(serde_json::from_value(slice).unwrap());
}

/// What is said on an export by the uid.
fn said(commands: Vec<Command>) -> Vec<(String, String)> {
    let emitted = commands.into_iter().filter_map(|c| if let Command::Emit(note) = c { Some(note) } else { None });
    let note = |note: EventRecord| {
        assert_eq!((note.reason, note.regarding.kind.as_deref()), (EventReason::AddressSkipped, Some("ServiceExport")));
        (note.regarding.uid.unwrap(), note.text)
    };
    emitted.map(note).collect()
}

#[test]
fn slices_of_host_names_are_said_once_and_disturb_nothing() {
    let mut bench = Bench::member();
    bench.export("web", &[]);
    let before = published(&bench.observe(at(1))).unwrap();
    put_slice(&bench, "names", "FQDN", "db.example.org");
    let commands = bench.observe(at(2));
    assert!(published(&commands).is_none(), "the other endpoints stay as they are");
    let notes = said(commands);
    let [(_, text)] = notes.as_slice() else { panic!("{notes:?}") };
    assert!(text.contains("Left out EndpointSlices of Service shop/web") && text.contains("shop/names"), "{text}");
    assert!(text.contains("addressType IPv4 or IPv6"), "{text}");
    // Neither another host name in it, nor an endpoint, is news.
    put_slice(&bench, "names", "FQDN", "db2.example.org");
    put_slice(&bench, "web-2", "IPv4", "10.0.0.2");
    let commands = bench.observe(at(3));
    assert!(published(&commands).is_some_and(|after| after != before));
    assert!(said(commands).is_empty());
    // An address that cannot be an endpoint is another matter.
    put_slice(&bench, "web-2", "IPv4", "127.0.0.1");
    let notes = said(bench.observe(at(4)));
    assert!(notes.len() == 1 && notes[0].1.contains("127.0.0.1"), "{notes:?}");

    put_slice(&bench, "web-3", "IPv4", "127.0.0.2");
    assert_eq!(said(bench.observe(at(4))), notes, "an Event with the same text is not created again");

    put_slice(&bench, "web-3", "IPv4", "10.0.0.4");
    put_slice(&bench, "names", "IPv4", "10.0.0.3");
    put_slice(&bench, "web-2", "IPv4", "10.0.0.2");
    assert!(said(bench.observe(at(5))).is_empty());
    put_slice(&bench, "names", "FQDN", "db.example.org");
    assert_eq!(said(bench.observe(at(6))).len(), 1, "it was over");
}

/// What was said on the former one, nobody finds on this one.
#[test]
fn an_export_that_was_made_again_at_once_is_told_again() {
    let mut bench = Bench::member();
    bench.export("web", &[]);
    put_slice(&bench, "names", "FQDN", "db.example.org");
    put_slice(&bench, "web-2", "IPv4", "127.0.0.1");
    let before = said(bench.observe(at(1)));
    bench.objects.remove_export(&key("web"));
    bench.export("web", &[]);
    let after = said(bench.observe(at(2)));
    let texts = |notes: &[(String, String)]| notes.iter().map(|(_, text)| text.clone()).collect::<Vec<_>>();
    assert_eq!((before.len(), texts(&after)), (2, texts(&before)));
    assert!(before.iter().zip(&after).all(|((former, _), (uid, _))| former != uid), "{after:?}");
}
