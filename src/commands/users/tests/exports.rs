//! What people have: logs as query tools, collectors and exports give them.

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::users::record::Kind;

const TIME: &str = "2026-11-23T08:00:05Z";

fn query(name: &str, rcode: &str) -> String {
    format!("192.0.2.7:50759 - 29008 \"A IN {name} udp 33 false 512\" {rcode} qr,rd,ra 64 0.001s")
}

fn info() -> String {
    format!("[INFO] {}", query("orders.internal.", "NOERROR"))
}

fn resolver() -> Value {
    json!({"version": "1.100000", "vpc_id": "vpc-0example", "query_timestamp": TIME, "query_name": "orders.internal.",
        "query_type": "A", "rcode": "NOERROR", "answers": [{"Rdata": "192.0.2.10", "Type": "A", "Class": "IN"}],
        "srcaddr": "192.0.2.7", "srcport": "1", "srcids": {}})
}

fn event() -> Value {
    json!({"eventVersion": "1.11", "eventTime": TIME, "eventSource": "servicediscovery.amazonaws.com",
        "eventName": "DiscoverInstances", "sourceIPAddress": "192.0.2.7", "userAgent": "aws-sdk-java/2.20",
        "userIdentity": {"type": "AssumedRole", "arn": "arn:aws:sts::111122223333:assumed-role/billing/s",
            "sessionContext": {"sessionIssuer": {"type": "Role", "arn": "arn:aws:iam::111122223333:role/billing"}}},
        "requestParameters": {"namespaceName": "internal", "serviceName": "orders"},
        "resources": [{"type": "AWS::ServiceDiscovery::Service", "ARN": "arn:aws:servicediscovery:::service/srv-1"}]})
}

const FLOW_LINE: &str = "2 1 eni-1 192.0.2.7 192.0.2.10 20641 8080 6 1 1 1795420805 1795420865 ACCEPT OK";

/// A line as a table of one row would have it.
fn cell(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn role() -> Value {
    json!({"kind": "role", "arn": "arn:aws:iam::111122223333:role/billing"})
}

/// Each text has one use of the name, by `who`, at [`TIME`].
fn is_seen(texts: &[String], who: &Value, kind: Kind) {
    for text in texts {
        let seen = read(text);
        let found: Vec<_> = users(&seen).into_iter().map(|(who, _)| who).collect();
        assert_eq!(found, std::slice::from_ref(who), "{text}\n{seen:?}");
        assert_eq!((seen.broken.records, seen.named.records), (0, 0), "{text}\n{seen:?}");
        assert_eq!(seen.coverage[&kind].records, 1, "{text}");
        let span = seen.users.values().next().unwrap().span;
        assert_eq!(span.first.map(k8s_openapi::jiff::Timestamp::as_second), Some(at(TIME).as_second()), "{text}");
    }
}

#[test]
fn lines_of_coredns_are_found_in_all_that_people_export() {
    let line = info();
    let rows = |message: &str| json!([{"field": "@timestamp", "value": "2026-11-23 08:00:05.000"}, {"field": "@message", "value": message}, {"field": "@ptr", "value": "CmE"}]);
    let docker = json!({"log": format!("{line}\n"), "stream": "stdout", "time": TIME}).to_string();
    let insights = |message: &str| json!({"results": [rows(message)], "statistics": {"recordsMatched": 1.0}, "status": "Complete"});
    let texts = [
        // kubectl, CRI, compose, journald
        format!("{TIME} {line}"),
        format!("{TIME} stdout F {line}"),
        format!("coredns-1  | {TIME} {line}"),
        format!("2026/11/23 08:00:05 {line}"),
        docker.clone(),
        // CloudWatch Logs
        format!("2026-11-23T08:00:05 {line}"),
        format!("2026-11-23T08:00:05.123000+00:00 coredns-1 {line}"),
        format!("2026-11-23T08:00:05 {}", json!({"log": line, "kubernetes": {"pod_ip": "192.0.2.53"}})),
        format!("2026-11-23T08:00:05+00:00 s {{\n    \"log\": {},\n    \"kubernetes\": {{}}\n}}", json!(line)),
        insights(&line).to_string(),
        serde_json::to_string_pretty(&insights(&docker)).unwrap(),
        json!({"events": [{"timestamp": 1_795_420_805_000_i64, "message": line, "logStreamName": "s"}]}).to_string(),
        format!("@timestamp,@message\n2026-11-23 08:00:05.000,{}\n", cell(&line)),
        format!("@timestamp,@message,@logStream\r\n2026-11-23 08:00:05.000,{},coredns-1\r\n", cell(&docker)),
        // Loki
        json!({"labels": {"app": "coredns", "instance": "192.0.2.53:9153"}, "line": line, "timestamp": TIME}).to_string(),
        format!("{TIME} {{app=\"coredns\", pod=\"coredns-1\"}} {line}"),
        json!({"status": "success", "data": {"resultType": "streams", "result": [{"stream": {"app": "coredns"}, "values": [["1795420805123456789", line]]}]}}).to_string(),
        format!("{TIME} {{app=\"coredns\"}} {docker}"),
        format!("[pod/coredns-1/coredns] {TIME} {docker}"),
        // Datadog
        json!({"data": [{"id": "x", "type": "log", "attributes": {"message": line, "timestamp": TIME, "host": "ip-192-0-2-1", "tags": ["pod_name:coredns-1"]}}]}).to_string(),
        format!("Date,Host,Service,Content\n\"{TIME}\",\"ip-192-0-2-1\",\"coredns\",{}\n", cell(&line)),
        // Fluent Bit, Filebeat, Vector
        json!({"date": 1_795_420_805.25, "log": line, "stream": "stdout", "kubernetes": {"host": "192.0.2.1", "pod_ip": "192.0.2.53"}}).to_string(),
        format!("[0] kube.coredns: [[1795420805.123456789, {{}}], {{\"log\"=>\"{}\"}}]", line.replace('"', "\\\"")),
        json!({"@timestamp": TIME, "message": line, "host": {"ip": ["192.0.2.1", "fe80::1"]}, "log": {"file": {"path": "/var/log/x"}, "offset": 7}, "input": {"type": "container"}}).to_string(),
        json!({"timestamp": TIME, "message": line, "source_type": "kubernetes_logs", "kubernetes": {"pod_ips": ["192.0.2.53"]}}).to_string(),
        json!({"hits": {"hits": [{"_index": "logs", "_source": {"@timestamp": TIME, "message": line}}]}}).to_string(),
        format!("time=\"{TIME}\" level=info msg=\"{}\"", query("orders.internal.", "NOERROR").replace('"', "\\\"")),
        format!("EVENTS\t3771\t1795420805000\tcoredns-1\t{line}\t1795420805000"),
        format!("2026-11-23 08:00:05.000000000 +0000 kube.coredns: {}", json!({"log": line})),
        json!({"time": 1_795_420_805.5, "host": "192.0.2.1", "event": line}).to_string(),
        json!({"preview": false, "result": {"_raw": line, "_time": "2026-11-23T08:00:05.000+00:00"}}).to_string(),
        json!({"MESSAGE": line, "__REALTIME_TIMESTAMP": "1795420805123456"}).to_string(),
        format!("\"@timestamp\",message\n\"Nov 23, 2026 @ 08:00:05.123\",{}\n", cell(&line)),
        // Its own JSON
        json!({"time": TIME, "level": "INFO", "msg": query("orders.internal.", "NOERROR"), "plugin": "log"}).to_string(),
        json!([{"time": TIME, "message": line}]).to_string(),
        json!([format!("{TIME} {line}")]).to_string(),
    ];
    is_seen(&texts, &address("192.0.2.7"), Kind::CoreDns);
}

#[test]
fn lines_of_other_formats_say_who_asked_as_far_as_they_do() {
    let texts = [
        format!("{TIME} [INFO] 192.0.2.7 orders.internal. A NOERROR"),
        format!("{TIME} [INFO] client=192.0.2.7 server=192.0.2.53 name=orders.internal. type=A rcode=NOERROR"),
        format!("{TIME} [INFO] \"ORDERS.internal.\" from [192.0.2.7]:5353 (A)"),
        format!("{TIME} [INFO] {{\"remoteIp\":\"192.0.2.7\",\"queryName\":\"orders.internal.\",\"responseCode\":\"NOERROR\"}}"),
        json!({"ts": TIME, "client": {"ip": "192.0.2.7", "port": 5}, "server_ip": "192.0.2.53", "dns": {"question": {"name": "orders.internal"}}}).to_string(),
        json!({"@timestamp": TIME, "client_ip": "192.0.2.7:5353", "qname": "orders.internal.", "qtype": "A", "rcode": "NOERROR"}).to_string(),
        json!({"time": TIME, "src_endpoint": {"ip": "192.0.2.7"}, "query": {"hostname": "orders.internal.", "type": "A"}, "answers": [{"rdata": "192.0.2.99"}]}).to_string(),
        json!({"data": [{"id": "x", "attributes": {"timestamp": TIME, "attributes": {"client_ip": "192.0.2.7", "qname": "orders.internal.", "rcode": "NOERROR"}}}]}).to_string(),
        json!({"ts": TIME, "client": "192.0.2.7", "qname": "orders.internal.", "answers": [{"name": "orders.internal.", "type": "A", "data": "192.0.2.10"}]}).to_string(),
        json!({"timestamp": TIME, "message": "{\"src\":\"192.0.2.7\",\"q\":\"orders.internal.\",\"t\":\"A\"}"}).to_string(),
    ];
    is_seen(&texts, &address("192.0.2.7"), Kind::CoreDns);
    for text in [
        "[INFO] udp Request: orders.internal. A 29008",
        "[INFO] 192.0.2.7 192.0.2.53 orders.internal. A",
        "{\"queryName\":\"orders.internal.\",\"responseCode\":\"NOERROR\"}",
        "[ERROR] plugin/errors: 2 orders.internal. A: read udp 192.0.2.53:3344->192.0.2.2:53: i/o timeout",
        "{\"query_name\":\"orders.internal.\",\"vpc_id\":\"vpc-0\"}",
    ] {
        let seen = read(text);
        assert_eq!((seen.named.records, seen.users.len()), (1, 0), "{text}");
    }
    // Those for other names are understood, those without a name are not.
    for (text, broken) in [
        ("[INFO] 192.0.2.7 carts.internal. A NOERROR", 0),
        ("{\"remoteIp\":\"192.0.2.7\",\"queryName\":\"carts.internal.\",\"responseCode\":\"NOERROR\"}", 0),
        ("[INFO] 192.0.2.7 A NOERROR", 1),
        ("[INFO] plugin/reload: Running configuration SHA512 = 8d1c", 0),
        ("W1123 08:00:05.123456       1 reflector.go:561] failed to list *v1.Service", 0),
    ] {
        assert_eq!(read(text).broken.records, broken, "{text}");
    }
}

#[test]
fn records_of_the_resolver_are_found_in_all_that_people_export() {
    let record = resolver();
    let message = record.to_string();
    let insights = json!({"results": [[{"field": "@timestamp", "value": "2026-11-23 08:00:05.000"}, {"field": "@message", "value": message}]], "status": "Complete"});
    let row = |field: &str, value: &str| json!({"field": field, "value": value});
    let selected = json!({"results": [[row("@timestamp", "2026-11-23 08:00:05.000"), row("query_name", "orders.internal."), row("srcaddr", "192.0.2.7")]], "status": "Complete"});
    let texts = [
        message.clone(),
        format!("2026-11-23T08:00:06 {message}"),
        format!("2026-11-23T08:00:06+00:00 vpc-0 {}", serde_json::to_string_pretty(&record).unwrap()),
        serde_json::to_string_pretty(&insights).unwrap(),
        selected.to_string(),
        format!("@timestamp,@message\n2026-11-23 08:00:05.000,{}\n", cell(&message)),
        "@timestamp,query_name,rcode,srcaddr,srcids.instance,answers.0.Rdata\n2026-11-23 08:00:05.000,orders.internal.,NOERROR,192.0.2.7,,192.0.2.10".to_owned(),
        format!("\"query_timestamp\",\"query_name\",\"answers\",\"srcaddr\",\"srcids\"\n\"{TIME}\",\"orders.internal.\",\"[{{rdata=192.0.2.10, type=A, class=IN}}]\",\"192.0.2.7\",\"{{instance=null, resolver_endpoint=null}}\""),
        json!({"logEvents": [{"id": "1", "timestamp": 1_795_420_805_000_i64, "message": message}], "messageType": "DATA_MESSAGE"}).to_string(),
        json!({"ResultSet": {"Rows": [
            {"Data": [{"VarCharValue": "query_timestamp"}, {"VarCharValue": "query_name"}, {"VarCharValue": "srcaddr"}]},
            {"Data": [{"VarCharValue": TIME}, {"VarCharValue": "orders.internal."}, {"VarCharValue": "192.0.2.7"}]},
        ]}}).to_string(),
        json!({"@timestamp": TIME, "fields": {"json": record}}).to_string(),
        format!("EVENTS\t3771\t1795420805000\tvpc-0\t{message}\t1795420805000"),
        json!({"version": "0", "detail-type": "x", "time": TIME, "detail": record}).to_string(),
    ];
    is_seen(&texts, &address("192.0.2.7"), Kind::Resolver);
    let instance = "\"query_timestamp\",\"query_name\",\"srcids\"\n\"2026-11-23T08:00:05Z\",\"orders.internal.\",\"{instance=i-0abc, resolver_endpoint=null}\"";
    assert_eq!(users(&read(instance))[0].0, json!({"kind": "ec2", "id": "i-0abc"}));
}

#[test]
fn events_of_cloudtrail_are_found_in_all_that_people_export() {
    let event = event();
    let lake: Vec<_> = [
        ("eventTime", "2026-11-23 08:00:05.000"),
        ("eventName", "DiscoverInstances"),
        ("eventSource", "servicediscovery.amazonaws.com"),
        ("userIdentity", "{type=AssumedRole, arn=arn:aws:sts::111122223333:assumed-role/billing/s, sessioncontext={attributes={mfaauthenticated=false}, sessionissuer={type=Role, arn=arn:aws:iam::111122223333:role/billing}}}"),
        ("requestParameters", "{namespaceName=internal, serviceName=orders}"),
        ("sourceIPAddress", "192.0.2.7"),
    ].into_iter().collect();
    let cells: Vec<_> = lake.iter().map(|(field, value)| json!({*field: *value})).collect();
    let (fields, values): (Vec<_>, Vec<_>) =
        lake.iter().map(|(field, value)| ((*field).to_owned(), cell(value))).unzip();
    let mut selected = event.clone();
    for field in ["eventSource", "eventVersion"] {
        selected.as_object_mut().unwrap().remove(field);
    }
    let texts = [
        json!({"version": "0", "detail-type": "AWS API Call via CloudTrail", "source": "aws.servicediscovery", "time": TIME, "resources": [], "detail": event}).to_string(),
        json!({"Records": [event]}).to_string(),
        json!({"QueryStatus": "FINISHED", "QueryStatistics": {"BytesScanned": 1}, "QueryResultRows": [cells]}).to_string(),
        json!({"QueryStatus": "FINISHED", "QueryResultRows": [[{"eventJson": event.to_string()}]]}).to_string(),
        format!("{}\n{}\n", fields.join(","), values.join(",")),
        format!("{}\n{}\n", fields.join(",").to_ascii_lowercase(), values.join(",").replace("{namespaceName=internal, serviceName=orders}", "{\"\"namespaceName\"\":\"\"internal\"\",\"\"serviceName\"\":\"\"orders\"\"}")),
        json!({"Events": [{"EventName": "DiscoverInstances", "EventSource": "servicediscovery.amazonaws.com", "CloudTrailEvent": event.to_string()}]}).to_string(),
        selected.to_string(),
        format!("eventTime,eventName,userIdentity.sessionContext.sessionIssuer.arn,userIdentity.arn,requestParameters.namespaceName,requestParameters.serviceName\n{TIME},DiscoverInstances,arn:aws:iam::111122223333:role/billing,arn:aws:sts::111122223333:assumed-role/billing/s,internal,orders"),
    ];
    is_seen(&texts, &role(), Kind::CloudTrail);
    // Without the parameters nobody knows of which service.
    let cut = format!("eventTime,eventName,userIdentity.arn\n{TIME},DiscoverInstances,arn:aws:iam::1:user/a");
    assert_eq!(read(&cut).unnamed, 1);
}

#[test]
fn flows_are_found_in_all_that_people_export() {
    let header = "\"version\",\"account_id\",\"interface_id\",\"srcaddr\",\"dstaddr\",\"srcport\",\"dstport\",\"protocol\",\"packets\",\"bytes\",\"start\",\"end\",\"action\",\"log_status\"";
    let quoted: Vec<_> = FLOW_LINE.split(' ').map(cell).collect();
    let texts = [
        FLOW_LINE.to_owned(),
        format!("2026-11-23T08:01:05 {FLOW_LINE}"),
        format!("2026-11-23T08:01:05.000000+00:00 eni-1-all {FLOW_LINE}"),
        format!("{header}\n{}\n", quoted.join(",")),
        format!("@timestamp,@message\n2026-11-23 08:01:05.000,{FLOW_LINE}\n"),
        format!("@timestamp,srcAddr,dstAddr,srcPort,dstPort,action\n{TIME},192.0.2.7,192.0.2.10,20641,8080,ACCEPT\n"),
        json!({"results": [[{"field": "@timestamp", "value": "2026-11-23 08:01:05.000"}, {"field": "@message", "value": FLOW_LINE}]]}).to_string(),
        json!({"timestamp": TIME, "srcaddr": "192.0.2.7", "dstaddr": "192.0.2.10", "srcport": 20641, "dstport": 8080, "action": "ACCEPT"}).to_string(),
        "pkt-srcaddr pkt-dstaddr srcport dstport start\n192.0.2.7 192.0.2.10 20641 8080 1795420805\n".to_owned(),
        json!({"labels": {"job": "vpc"}, "line": FLOW_LINE, "timestamp": "2026-11-23T08:01:05Z"}).to_string(),
    ];
    is_seen(&texts, &address("192.0.2.7"), Kind::Flow);
    let skipped = read("2 1 eni-1 - - - - - - - 1795420805 1795420865 - SKIPDATA");
    assert_eq!(skipped.skipped, 1);
}

fn answer(text: &str) -> String {
    let (subject, holders) = (orders(), Holders::default());
    let seen = read(text);
    Report { subject: &subject, seen: &seen, holders: &holders, left_out: &[] }.table()
}

#[test]
fn a_name_of_a_search_path_that_is_answered_may_mean_the_name() {
    let line = |client: &str, name: &str, rcode: &str| {
        format!("{TIME} [INFO] {}", query(name, rcode).replace("192.0.2.7", client))
    };
    let path = "orders.internal.shop.svc.cluster.local.";
    let hinted = answer(&line("192.0.2.21", path, "NOERROR"));
    for words in ["1 user was seen", "192.0.2.21 (?)", "that may mean orders.internal", "plugin `autopath`"] {
        assert!(hinted.contains(words), "{words}: {hinted}");
    }
    assert!(!hinted.contains("Not counted"), "{hinted}");
    // It asks on, or asks for a Service of Kubernetes.
    for text in
        [line("192.0.2.22", path, "NXDOMAIN"), line("192.0.2.22", "orders.internal.svc.cluster.local.", "NOERROR")]
    {
        let tried = answer(&text);
        assert!(tried.starts_with("orders.internal: nobody was seen\n") && tried.contains("Not counted"), "{tried}");
    }
    let both = answer(&format!(
        "{}\n{}",
        line("192.0.2.21", path, "NOERROR"),
        line("192.0.2.21", "orders.internal.", "NOERROR")
    ));
    assert!(both.contains("192.0.2.21") && !both.contains("(?) "), "{both}");
}

#[test]
fn nobody_was_seen_is_said_only_if_everything_was_understood() {
    let other = format!("{TIME} [INFO] {}", query("carts.internal.", "NOERROR"));
    assert!(answer(&other).starts_with("orders.internal: nobody was seen\n"));
    for (text, words) in [
        ("[INFO] udp Request: orders.internal. A 29008", "1 record has the name and does not say who asked"),
        ("[INFO] 192.0.2.7 A", "1 record was not understood"),
        ("who knows what this is", "1 record was not understood"),
        ("{\"query_name\":\"orders.inter", "1 record was not understood"),
        ("2 1 eni-1 - - - - - - - 1795420805 1795420865 - SKIPDATA", "flows are missing"),
        (
            "{\"eventSource\":\"servicediscovery.amazonaws.com\",\"eventName\":\"DiscoverInstances\"}",
            "of which service",
        ),
        ("{\"results\":[], \"status\":\"Running\"}", "1 record was not understood"),
        ("{\"events\":[], \"nextToken\":\"x\"}", "1 record was not understood"),
    ] {
        let said = answer(&format!("{other}\n{text}"));
        assert!(!said.contains("nobody was seen") && said.contains(words), "{text}: {said}");
        let seen = answer(&format!("{}\n{text}", info()));
        assert!(seen.contains("1 user was seen, and there may be more: "), "{seen}");
    }
    let silent = answer("CoreDNS-1.12.1\n[INFO] plugin/reload: Running configuration SHA512 = 8d1c");
    assert!(silent.contains("who uses it is not known: the logs have no query"), "{silent}");
}

#[test]
fn a_name_by_hand_whose_answer_is_a_task_leads_to_the_name() {
    let mut record = resolver();
    record["query_name"] = "shop.example.com.".into();
    let seen = read(&record.to_string());
    assert_eq!(users(&seen)[0].0, address("192.0.2.7"));
    assert!(seen.users.values().all(|of| of.aliases.kept.contains("shop.example.com")));
    let mut holders = Holders::default();
    holders.add_pod(None, &pod("orders-1", &["192.0.2.10"], "2026-11-23T07:00:00Z", &json!({})));
    let seen = read_with(&orders(), &holders, None, &[("x", record.to_string().as_bytes())]);
    assert!(seen.users.is_empty() && seen.reused.kept.len() == 1, "{seen:?}");
}

/// What may be around a name or an address in a log.
fn around() -> impl Strategy<Value = String> {
    let parts = vec![
        "[INFO] ",
        "[ERROR] ",
        "{\"message\":\"",
        "{\"a\":",
        "\"",
        "}",
        "[",
        "]",
        " ",
        "=",
        ",",
        ": ",
        "A",
        "NOERROR",
        "\t",
        "2026-11-23T08:00:05Z ",
        "client",
        "CoreDNS-1 ",
        "plugin/x: ",
        "{\"log\":",
        "srcaddr ",
        "@message,b",
        "I1123 08:00:05.1 ",
        ".:53",
        "{\"digestStartTime\":1,\"x\":\"",
        "{\"eventName\":\"A\",\"eventSource\":\"",
        "query_name",
    ];
    vec(prop::sample::select(parts), 0..6).prop_map(|parts| parts.concat())
}

proptest! {
    /// Whatever a line looks like: with the name in it, it is a use, a hint, a name of a search path, or said.
    #[test]
    fn no_line_with_the_name_counts_as_nothing(before in around(), after in around(), second in any::<bool>()) {
        let name = "orders.internal";
        let begins = before.chars().next_back().is_none_or(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
        let ends = after.chars().next().is_none_or(|c| !c.is_ascii_alphanumeric() && !"-_.".contains(c));
        prop_assume!(begins && ends);
        let text = format!("{}{before}{name}{after}", if second { "[INFO] plugin/x: y\n" } else { "" });
        let seen = read(&text);
        let said = seen.named.records + seen.broken.records + seen.unnamed;
        prop_assert!(said > 0 || !seen.users.is_empty() || !seen.suffixed.kept.is_empty(), "{}\n{:?}", text, seen);
        let said = answer(&text);
        prop_assert!(!said.contains("nobody was seen"), "{said}");
    }

    /// The same with an address of a task, which only a flow can have without a use: where a task connects to others.
    #[test]
    fn no_line_with_the_address_of_a_task_counts_as_nothing(before in around(), after in around()) {
        let mark = |c: char| c.is_whitespace() || "\"'(),;{}<>|=\\`".contains(c);
        prop_assume!(before.chars().next_back().is_none_or(mark) && after.chars().next().is_none_or(mark));
        let seen = read(&format!("{before}192.0.2.10{after}"));
        let understood = seen.coverage.values().any(|of| of.records > 0);
        let said = seen.named.records + seen.broken.records + seen.unnamed;
        prop_assert!(said > 0 || understood || !seen.users.is_empty(), "{}192.0.2.10{}\n{:?}", before, after, seen);
    }
}
