//! Logs that `users` reads.

use std::io::Cursor;

use cli::TaskAddress;
use commands::users_in_log;
use serde_json::json;

use super::{Target, Verdict, holds};

pub(super) const TARGETS: &[Target] = &[Target {
    name: "log",
    corpus,
    words: &[
        "orders.internal",
        "orders.internal.",
        "192.0.2.10",
        "192.0.2.7:52100",
        "[2001:db8::10]:8080",
        "{",
        "}",
        "[",
        "]",
        "{\"a\":",
        "[[",
        "\"",
        "\\\"",
        "{\"message\":\"",
        "\"}",
        "{\"log\":",
        "{\"Records\":[",
        "{\"events\":[",
        "\"results\":",
        "\"QueryResultRows\":",
        "\"logEvents\":",
        "a.",
        ".",
        "={",
        "={a=",
        "\"field\":\"@message\",\"value\":",
        "{\"Data\":[{\"VarCharValue\":\"",
        "version account-id srcaddr dstaddr",
        "@timestamp,@message\n",
        "\t",
        "\u{1f}\u{8b}\u{8}",
        "PAR1",
        "2026-11-23T08:00:05Z",
        "[INFO]",
        "\"A IN orders.internal. udp 33 false 512\" NOERROR qr,rd,ra 64 0.0011s",
        "\\u0000",
        "\\ud800",
        "1e999",
        "eventTime",
        "servicediscovery.amazonaws.com",
        "DiscoverInstances",
        "null",
        "true",
    ],
    longest: 64 << 10,
    quick: 800,
    check,
}];

/// The lines of all kinds of logs, whole files, and what collectors make of lines.
fn corpus() -> Vec<Vec<u8>> {
    macro_rules! files {
        ($($name:literal),+) => { [$(include_str!(concat!("../../../src/commands/users/tests/fixtures/", $name))),+] };
    }
    const TIME: &str = "2026-11-23T08:00:05.123Z";
    let files = files!["cloudtrail.json", "coredns.log", "flow-custom.log", "flow.log", "resolver.jsonl"];
    let line = "[INFO] 192.0.2.7:52100 - 103 \"A IN orders.internal. udp 33 false 512\" NOERROR qr,rd,ra 64 0.0011s";
    let cell = format!("\"{}\"", line.replace('"', "\"\""));
    let rows =
        json!([{"field": "@timestamp", "value": "2026-11-23 08:00:05.000"}, {"field": "@message", "value": line}]);
    let docker = json!({"log": format!("{line}\n"), "stream": "stdout", "time": TIME});
    let record = json!({"version": "1.100000", "vpc_id": "vpc-0example", "query_timestamp": TIME, "query_name": "orders.internal.",
        "query_type": "A", "query_class": "IN", "rcode": "NOERROR", "srcaddr": "192.0.2.7", "srcids": {"instance": "i-0abc"}});
    let lines = [
        format!("2026-11-23T08:00:05 {line}"),
        format!("[pod/coredns-1/coredns] {TIME} {docker}"),
        format!("@timestamp,@message\n2026-11-23 08:00:05.000,{cell}\n"),
        format!("{TIME} {{app=\"coredns\", pod=\"coredns-1\"}} {line}"),
        format!("[0] kube.coredns: [[1795420805.123456789, {{}}], {{\"log\"=>\"{}\"}}]", line.replace('"', "\\\"")),
        format!("EVENTS\t3771\t1795420805000\tcoredns-1\t{line}\t1795420805000"),
        format!("{TIME} [INFO] client=192.0.2.7 server=192.0.2.53 name=orders.internal. type=A rcode=NOERROR"),
    ];
    let objects = [
        json!({"results": [rows], "statistics": {"recordsMatched": 1.0}, "status": "Complete"}),
        json!({"events": [{"timestamp": 1_795_420_805_000_i64, "message": line, "logStreamName": "s"}]}),
        json!({"logEvents": [{"id": "1", "timestamp": 1_795_420_805_000_i64, "message": record.to_string()}], "messageType": "DATA_MESSAGE"}),
        json!({"status": "success", "data": {"resultType": "streams", "result": [{"stream": {}, "values": [["1795420805123456789", line]]}]}}),
        json!({"hits": {"hits": [{"_source": {"@timestamp": TIME, "message": line}}]}}),
        json!({"data": [{"attributes": {"timestamp": TIME, "attributes": {"client_ip": "192.0.2.7", "qname": "orders.internal."}}}]}),
        json!({"ResultSet": {"Rows": [{"Data": [{"VarCharValue": "query_name"}, {"VarCharValue": "srcaddr"}]},
            {"Data": [{"VarCharValue": "orders.internal."}, {"VarCharValue": "192.0.2.7"}]}]}}),
        json!({"query_name": "orders.internal.", "srcaddr": "192.0.2.7", "query_timestamp": TIME, "vpc_id": "vpc-0", "srcids.instance": "i-0abc"}),
        docker,
        record,
    ];
    let objects = objects.iter().flat_map(|one| [Some(one.to_string()), serde_json::to_string_pretty(one).ok()]);
    files.into_iter().map(str::to_owned).chain(lines).chain(objects.flatten()).map(String::into_bytes).collect()
}

fn check(input: &[u8]) -> Verdict {
    let tasks: Vec<TaskAddress> =
        ["192.0.2.10:8080", "[2001:db8::10]:8080"].iter().filter_map(|task| task.parse().ok()).collect();
    let Ok(report) = users_in_log(Cursor::new(input.to_vec()), "orders.internal", &tasks) else { return Ok(false) };
    let length = report.to_string().len();
    holds(length <= 20_000 + 40 * input.len(), || format!("a report of {length} bytes on a log of {}", input.len()))?;
    Ok(true)
}
