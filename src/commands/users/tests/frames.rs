use flate2::{Compression, write::GzEncoder};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::users::frames::{Frame, Frames, LONGEST};

/// Each record: its place, and its bytes if it is whole.
fn cut(text: &[u8], buffer: usize) -> Vec<(String, Option<String>)> {
    let mut frames = Frames::new(BufReader::with_capacity(buffer, text));
    let mut found = Vec::new();
    while let Some((place, frame)) = frames.next().unwrap() {
        let whole = !matches!(frame, Frame::Broken(_));
        found.push((place.to_string(), whole.then(|| String::from_utf8_lossy(frames.bytes()).into_owned())));
    }
    found
}

fn whole(text: &str) -> Vec<String> {
    cut(text.as_bytes(), 4096).into_iter().map(|(_, bytes)| bytes.unwrap_or_else(|| "broken".to_owned())).collect()
}

#[test]
fn records_are_lines_objects_and_elements_of_lists() {
    for (text, expected) in [
        ("a\nb", vec!["a", "b"]),
        ("\n\n  a\r\n", vec!["a\r"]),
        ("{\"a\":1}\n{\"b\":\"}\\\"{\"}", vec!["{\"a\":1}", "{\"b\":\"}\\\"{\"}"]),
        ("{\"a\":1}{\"b\":2}", vec!["{\"a\":1}", "{\"b\":2}"]),
        ("{\n \"a\": [\n  {}\n ]\n}\nx", vec!["{\n \"a\": [\n  {}\n ]\n}", "x"]),
        ("{\"Records\":[{\"a\":1},{\"b\":2}]}", vec!["{\"a\":1}", "{\"b\":2}"]),
        ("{ \"Records\" :\n [\n{\"a\":1},\n{\"b\":2}\n]}\n{\"c\":3}", vec!["{\"a\":1}", "{\"b\":2}", "{\"c\":3}"]),
        ("{\"events\":[{\"a\":1}],\"searchedLogStreams\":[]}\nx", vec!["{\"a\":1}", "x"]),
        (
            "{\"messageType\":\"DATA_MESSAGE\",\"subscriptionFilters\":[\"a\"],\"logEvents\" : [{\"a\":1}]}{\"logEvents\":[]}\nx",
            vec!["{\"a\":1}", "x"],
        ),
        ("[{\"a\":1},{\"b\":2}]\nx", vec!["{\"a\":1}", "{\"b\":2}", "x"]),
        ("[INFO] a\n[pod/a/b] {\n", vec!["[INFO] a", "[pod/a/b] {"]),
        ("{\"Records\":[]}", vec![]),
        ("{\"Other\":[{\"a\":1}]}", vec!["{\"Other\":[{\"a\":1}]}"]),
    ] {
        assert_eq!(whole(text), expected, "{text}");
    }
}

#[test]
fn a_record_that_was_cut_off_takes_no_other_with_it() {
    for text in ["{\"a\":\"b\n{\"c\":1}", "{\"a\":1,\n{\"c\":1}", "{\"a\":[\n{\"c\":1}"] {
        assert_eq!(whole(text), ["broken", "{\"c\":1}"], "{text}");
    }
    assert_eq!(whole("{\"c\":1}\n{\"a\""), ["{\"c\":1}", "broken"]);
    let long = format!("{{\"a\":\"{0}\"}}\n{0}\nb", "x".repeat(LONGEST + 1));
    assert_eq!(whole(&long), ["broken", "broken", "b"]);
}

#[test]
fn places_are_lines_and_records_of_lists() {
    let places = |text: &str| cut(text.as_bytes(), 4096).into_iter().map(|(place, _)| place).collect::<Vec<_>>();
    assert_eq!(places("a\n\n{\n}\nb"), ["line 1", "line 3", "line 5"]);
    assert_eq!(places("{\"Records\":[{},\n{}]}"), ["line 1, record 1", "line 2, record 2"]);
}

#[test]
fn gzip_is_unpacked_in_all_its_parts_and_what_was_cut_off_is_said() {
    let pack = |text: &str| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        std::io::Write::write_all(&mut encoder, text.as_bytes()).unwrap();
        encoder.finish().unwrap()
    };
    let (first, second) = COREDNS.split_at(COREDNS.find("[pod").unwrap());
    let packed = [pack(first), pack(second)].concat();
    let read = |bytes: &[u8]| read_with(&orders(), &Holders::default(), None, &[("a.gz", bytes)]);
    assert_eq!(read(&packed), read(COREDNS.as_bytes()));
    // Random bytes, so that a half of the archive holds about a half of the lines.
    let lines = (0..4000_u32).map(|n| {
        let (hash, host) = (n.wrapping_mul(2_654_435_761), n % 200);
        let port = 1 + hash % 60_000;
        format!("[INFO] 192.0.2.{host}:{port} - {hash} \"A IN orders.internal. udp 33 false 512\" NOERROR qr 64 0.1s")
    });
    let packed = pack(&lines.collect::<Vec<_>>().join("\n"));
    let half = read(&packed[..packed.len() / 2]);
    assert!(!half.users.is_empty());
    assert_eq!(half.unread.files, 1, "{:?}", half.unread);
}

#[test]
fn what_is_no_text_says_what_to_do() {
    for (bytes, hint) in [(&b"PAR1xxxx"[..], "as text"), (b"\x28\xb5\x2f\xfdxxx", "unpack"), (b"\xff\xfe[\0", "UTF-8")]
    {
        let seen = read_with(&orders(), &Holders::default(), None, &[("x", bytes)]);
        assert!(seen.unread.first[0].1.contains(hint), "{:?}", seen.unread);
    }
    let with_mark = format!("\u{feff}{RESOLVER}");
    assert_eq!(read(&with_mark), read(RESOLVER));
}

/// Parts of logs, so that what is tried is near to what is valid.
fn near() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        vec(any::<u8>(), 0..20),
        prop::sample::select(vec![
            "{\"Records\":[",
            "{\"query_name\":\"orders.internal.\"",
            ",\"srcaddr\":\"192.0.2.1\"",
            "}",
            "]",
            "[",
            "\"",
            "\\",
            "\n",
            "{\"message\":\"",
            "{\"log\":\"{\\\"message\\\":1}\"}",
            "2 1 eni-1 192.0.2.1 192.0.2.10 1 8080 6 1 1 1 1 ACCEPT OK",
            "srcaddr dstaddr start end",
            "[INFO] 192.0.2.1:1 - 1 \"A IN orders.internal. udp 1 false 1\" NOERROR",
            "2026-11-23T08:00:00Z ",
            "{\"eventSource\":\"servicediscovery.amazonaws.com\",\"eventName\":\"DiscoverInstances\"",
            "9223372036854775807",
            "é",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    vec(part, 0..30).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn no_input_panics_and_the_size_of_the_buffer_changes_nothing(bytes in near(), buffer in 1_usize..40) {
        prop_assert_eq!(cut(&bytes, buffer), cut(&bytes, 4096));
        let seen = read_with(&orders(), &Holders::default(), None, &[("x", &bytes)]);
        let (subject, holders) = (orders(), Holders::default());
        let report = Report { subject: &subject, seen: &seen, holders: &holders, left_out: &[] };
        prop_assert!(!report.table().is_empty());
        prop_assert!(report.json().is_object());
    }

    #[test]
    fn each_line_of_a_log_counts_wherever_broken_ones_are(broken in vec(prop::sample::select(vec!["{\"a", "x", "{]", "[{", "\"", "[INFO] 1 - 2 \"x\""]), 0..8)) {
        let good: Vec<_> = RESOLVER.lines().filter(|line| line.ends_with('}')).collect();
        let mut lines = Vec::new();
        for (n, line) in good.iter().enumerate() {
            lines.extend(broken.iter().skip(n % 2).copied());
            lines.push(line);
        }
        let seen = read(&lines.join("\n"));
        prop_assert_eq!(users(&seen), users(&read(&good.join("\n"))));
    }
}

/// Each line of a cell, and each quote of a line, was compared with all that is before it: megabytes took hours.
#[test]
fn long_cells_and_lines_of_quotes_are_read_in_time_in_proportion_to_their_length() {
    let cell = format!("@timestamp,@message\n2026-11-23 08:00:05.000,\"{}\"\n", "\n".repeat(1 << 18));
    let quotes = format!("x {}", "\"".repeat(1 << 18));
    assert_eq!((read(&cell).broken.records, read(&quotes).broken.records), (1, 1));
}

#[test]
fn a_name_of_many_parts_stays_one_name() {
    let record = format!("{{\"{}\": 1, \"query_name\": \"orders.internal.\"}}", "a.".repeat(1 << 18));
    assert_eq!(read(&record).named.records, 1);
}
