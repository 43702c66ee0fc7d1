use super::*;
use crate::users::record::Kind;

fn line(name: &str, rest: &str) -> String {
    format!("[INFO] 192.0.2.7:50759 - 29008 \"A IN {name} udp 33 false 512\" {rest}")
}

#[test]
fn resolver_query_logs_say_who_asked_also_through_an_alias_or_an_endpoint() {
    let seen = read(RESOLVER);
    let query = || json!(["resolverQuery"]);
    let expected = [
        (json!({"kind": "ec2", "id": "i-0bbbbbbbbbbbbbbb2"}), query()),
        (json!({"kind": "resolverEndpoint", "id": "rslvr-in-0example"}), query()),
        (address("192.0.2.90"), query()),
        (json!({"kind": "ec2", "id": "i-0aaaaaaaaaaaaaaa1"}), query()),
    ];
    assert_eq!(users(&seen), expected);
    let broken = &seen.broken;
    assert_eq!((broken.records, broken.first[0].1.to_string()), (1, "line 6".to_owned()));
    let alias = seen.users.values().find(|of| !of.aliases.kept.is_empty()).unwrap();
    assert!(alias.aliases.kept.contains("api.example.com"));
    let machine = seen.users.values().map(|of| of.span).max_by_key(|span| span.last).unwrap();
    assert_eq!((machine.first, machine.last), (Some(at("2026-11-23T09:10:00.25Z")), Some(at("2026-11-24T07:00:00Z"))));
    assert_eq!(seen.coverage[&Kind::Resolver].records, 6);
}

#[test]
fn records_of_cloudwatch_logs_are_read_in_all_the_forms_in_which_it_gives_them() {
    let query = RESOLVER.lines().nth(1).unwrap();
    let expected = users(&read(query));
    assert_eq!(expected.len(), 1);
    let events = json!({"events": [{"logStreamName": "s", "timestamp": 1_795_420_800_000_i64, "message": query}], "searchedLogStreams": []});
    let pretty: String = serde_json::to_string_pretty(&events).unwrap();
    let indented: Value = serde_json::from_str(query).unwrap();
    for text in [
        format!("2026-11-23T09:10:01.000Z {query}"),
        format!("2026-11-23T09:10:01+00:00 vpc-0example {query}"),
        events.to_string(),
        pretty,
        format!("[{query}]"),
        serde_json::to_string_pretty(&indented).unwrap(),
    ] {
        let seen = read(&text);
        assert_eq!((users(&seen), seen.broken.records), (expected.clone(), 0), "{text}");
    }
    let flow = FLOW.lines().nth(1).unwrap();
    let events = json!({"events": [{"timestamp": 1, "message": flow}]});
    assert_eq!(users(&read(&events.to_string())), [(address("192.0.2.90"), json!(["connection"]))]);
}

#[test]
fn coredns_lines_are_read_with_what_others_put_before_them() {
    let query = line("orders.internal.", "NOERROR qr,rd,ra 64 0.001s");
    let time = "2026-11-23T08:00:00.123456789Z";
    let docker = json!({"log": format!("{query}\n"), "stream": "stdout", "time": time});
    // As the agents of EKS send it to CloudWatch Logs.
    let agent = json!({"log": query, "kubernetes": {"pod_name": "coredns-1"}});
    let event = |message: &Value| json!({"events": [{"timestamp": 1, "message": message.to_string()}]}).to_string();
    for (text, dated) in [
        (query.clone(), false),
        (format!("{time} {query}"), true),
        (format!("[pod/coredns-1/coredns] {time} {query}"), true),
        (format!("{time} stdout F {query}"), true),
        (format!("coredns-1 coredns {query}"), false),
        (docker.to_string(), true),
        (event(&docker), true),
        (format!("{time} coredns-1 {docker}"), true),
        (format!("{time} coredns-1 {agent}"), true),
        (agent.to_string(), false),
        (format!("{query} \"0\""), false),
        (query.replace("udp", "tcp").replace("orders.internal.", "ORDERS.Internal."), false),
    ] {
        let seen = read(&text);
        assert_eq!(users(&seen), [(address("192.0.2.7"), json!(["coreDnsQuery"]))], "{text}");
        let first = seen.users.values().next().unwrap().span.first;
        assert_eq!(first, dated.then(|| at(time)), "{text}");
        assert_eq!(seen.coverage[&Kind::CoreDns].undated, !dated, "{text}");
    }
    let ipv6 = query.replace("192.0.2.7:", "[2001:db8::7]:");
    assert_eq!(users(&read(&ipv6)), [(address("2001:db8::7"), json!(["coreDnsQuery"]))]);
    let mapped = query.replace("192.0.2.7:", "[::ffff:192.0.2.7]:");
    assert_eq!(users(&read(&mapped)), [(address("192.0.2.7"), json!(["coreDnsQuery"]))]);
}

#[test]
fn other_messages_of_coredns_are_not_broken_but_cut_off_queries_are() {
    let seen = read(COREDNS);
    assert_eq!((seen.broken.records, seen.coverage[&Kind::CoreDns].records), (0, 5));
    assert_eq!(seen.suffixed.kept.len(), 2, "{:?}", seen.suffixed);
    for broken in [
        line("orders.internal.", ""),
        "[INFO] 192.0.2.7:50759 - 29008 \"A IN orders.int".to_owned(),
        "Something else".to_owned(),
        "{\"level\":\"info\"}".to_owned(),
        "{\"query_name\":".to_owned(),
    ] {
        let seen = read(&broken);
        assert_eq!((seen.broken.records, seen.users.len()), (1, 0), "{broken}");
    }
}

#[test]
fn cloudtrail_says_who_called_discover_instances() {
    let seen = read(CLOUDTRAIL);
    let call = || json!(["discoverInstances"]);
    let role = |name: &str| format!("arn:aws:iam::111122223333:role/{name}");
    let expected = [
        (json!({"kind": "lambda", "function": "report", "role": role("report-role")}), call()),
        (json!({"kind": "ours", "role": role("cloudmap-mcs")}), call()),
        (json!({"kind": "role", "arn": role("batch-role")}), call()),
    ];
    assert_eq!(users(&seen), expected);
    assert_eq!((seen.broken.records, seen.coverage[&Kind::CloudTrail].records), (0, 5));
    // One event for each line, as CloudWatch Logs has them; and the same for the other form of the name.
    let events: Value = serde_json::from_str(CLOUDTRAIL).unwrap();
    let lines: Vec<_> = events["Records"].as_array().unwrap().iter().map(Value::to_string).collect();
    assert_eq!(users(&read(&lines.join("\n"))), expected);
    let by_service =
        read_with(&Subject::new("internal/orders"), &Holders::default(), None, &[("x", CLOUDTRAIL.as_bytes())]);
    assert_eq!(users(&by_service), expected);
}

#[test]
fn principals_are_told_apart_and_a_call_without_a_service_is_said() {
    let event = |identity: Value, agent: &str, parameters: Value| {
        let event = json!({"eventSource": "servicediscovery.amazonaws.com", "eventName": "DiscoverInstances", "eventTime": "2026-11-23T08:00:00Z",
            "sourceIPAddress": "ecs.amazonaws.com", "userAgent": agent, "userIdentity": identity, "requestParameters": parameters});
        read(&event.to_string())
    };
    let named = || json!({"namespaceName": "internal", "serviceName": "orders"});
    let assumed = |session: &str| json!({"type": "AssumedRole", "arn": format!("arn:aws:sts::111122223333:assumed-role/r/{session}")});
    let role = "arn:aws:sts::111122223333:assumed-role/r";
    for (identity, agent, expected) in [
        (assumed("i-0ccc"), "", json!({"kind": "ec2", "id": "i-0ccc"})),
        (
            assumed("0123"),
            "x exec-env/AWS_ECS_FARGATE",
            json!({"kind": "task", "id": "0123", "ecsCluster": null, "ecsService": null}),
        ),
        (assumed("any"), "aws-cli", json!({"kind": "role", "arn": role})),
        (
            json!({"type": "AWSService", "invokedBy": "ecs.amazonaws.com"}),
            "",
            json!({"kind": "awsService", "name": "ecs.amazonaws.com"}),
        ),
        (
            json!({"type": "AWSAccount", "principalId": "AROAEXAMPLE:session-1", "accountId": "444455556666"}),
            "",
            json!({"kind": "principal", "arn": "444455556666:AROAEXAMPLE"}),
        ),
        (json!({"type": "Root", "accountId": "111122223333"}), "", json!({"kind": "principal", "arn": "111122223333"})),
    ] {
        assert_eq!(users(&event(identity, agent, named()))[0].0, expected);
    }
    assert_eq!(event(assumed("a"), "", Value::Null).unnamed, 1);
    assert_eq!(event(Value::Null, "", named()).named.records, 1);
}

#[test]
fn a_task_that_calls_and_connects_is_one_user() {
    let mut holders = Holders::default();
    let attributes =
        [("AWS_INSTANCE_IPV4", "192.0.2.90"), ("ECS_CLUSTER_NAME", "prod"), ("ECS_SERVICE_NAME", "billing")];
    holders.add_instance("internal", "billing", &instance("0123", &attributes));
    let call = json!({"eventSource": "servicediscovery.amazonaws.com", "eventName": "DiscoverInstances", "eventTime": "2026-11-23T08:00:00Z",
        "sourceIPAddress": "203.0.113.5", "userAgent": "x exec-env/AWS_ECS_FARGATE",
        "userIdentity": {"type": "AssumedRole", "arn": "arn:aws:sts::111122223333:assumed-role/r/0123"},
        "requestParameters": {"namespaceName": "internal", "serviceName": "orders"}});
    let flow = FLOW.lines().nth(1).unwrap();
    let seen = read_with(&orders(), &holders, None, &[("x", format!("{flow}\n{call}").as_bytes())]);
    let task = json!({"kind": "task", "id": "0123", "ecsCluster": "prod", "ecsService": "billing"});
    assert_eq!(users(&seen), [(task, json!(["discoverInstances", "connection"]))]);
}

#[test]
fn flow_logs_say_who_connects_to_tasks_and_not_where_tasks_connect() {
    let seen = read(FLOW);
    let expected =
        [(address("203.0.113.77"), json!(["refusedConnection"])), (address("192.0.2.90"), json!(["connection"]))];
    assert_eq!(users(&seen), expected);
    let span = seen.users.values().map(|of| of.span).min_by_key(|span| span.first).unwrap();
    assert_eq!((span.first, span.last), (Some(at("2026-11-23T08:00:00Z")), Some(at("2026-11-23T08:01:00Z"))));
    // Without its first line, with a time before each line, and only the answers of the task.
    let lines: Vec<_> = FLOW.lines().skip(1).collect();
    assert_eq!(users(&read(&lines.join("\n"))), expected);
    assert_eq!(users(&read(&format!("2026-11-23T08:02:00Z eni-0example1-all {}", lines[0]))), expected[1..]);
    assert_eq!(users(&read(lines[1])), expected[1..]);
}

#[test]
fn a_custom_format_is_known_by_its_first_line_or_by_the_flag() {
    let expected = [(address("2001:db8::55"), json!(["connection"]))];
    assert_eq!(users(&read(FLOW_CUSTOM)), expected);
    let (fields, data) = FLOW_CUSTOM.split_once('\n').unwrap();
    assert!(read(data).users.is_empty());
    let format: Vec<_> = fields.split(' ').map(|field| format!("${{{field}}}")).collect();
    let columns = Columns::new(&format.join(" ")).unwrap();
    let seen = read_with(&orders(), &Holders::default(), Some(&columns), &[("x", data.as_bytes())]);
    assert_eq!(users(&seen), expected);
    // Files after each other, as `cat` writes them.
    assert_eq!(users(&read(&format!("{FLOW}{FLOW_CUSTOM}"))).len(), 3);
    assert!(Columns::new("version dstaddr").unwrap_err().contains("srcaddr"));
    assert_eq!(read("version dstaddr start\n2 192.0.2.10 1").broken.records, 2);
}

#[test]
fn who_connects_to_a_pod_that_has_a_former_tasks_address_does_not_use_the_task() {
    // The flow from 192.0.2.90 begins at 08:00:00, the refused one at 08:01:40.
    for (started, expected, reused) in [
        ("2026-11-23T08:01:00Z", vec![(address("192.0.2.90"), json!(["connection"]))], true),
        ("2026-11-23T07:00:00Z", vec![], true),
        ("2026-11-23T09:00:00Z", users(&read(FLOW)), false),
    ] {
        let mut holders = Holders::default();
        holders.add_pod(None, &pod("orders-1", &["192.0.2.10"], started, &json!({})));
        let (subject, left_out) = (orders(), []);
        let seen = read_with(&subject, &holders, None, &[("x", FLOW.as_bytes())]);
        assert_eq!(users(&seen), expected, "{started}");
        let text = Report { subject: &subject, seen: &seen, holders: &holders, left_out: &left_out }.table();
        assert_eq!(text.contains("Not counted: connections to 192.0.2.10"), reused, "{text}");
    }
}

#[test]
fn where_no_port_is_known_the_lower_one_listens() {
    let mut subject = Subject::new("orders.internal");
    subject.add("192.0.2.10".parse().unwrap());
    let seen = read_with(&subject, &Holders::default(), None, &[("x", FLOW.as_bytes())]);
    assert_eq!(users(&seen).len(), 2, "{:?}", users(&seen));
    // gRPC's port is among those that clients have. A task of which more is known says that it is the tasks' port.
    let grpc = "2 1 eni-1 192.0.2.90 192.0.2.10 40000 50051 6 1 1 1 1 ACCEPT OK";
    for (other, expected) in [("192.0.2.11", 0), ("192.0.2.11:8080", 0), ("192.0.2.11:50051", 1)] {
        let mut subject = subject.clone();
        subject.add(other.parse().unwrap());
        let seen = read_with(&subject, &Holders::default(), None, &[("x", grpc.as_bytes())]);
        assert_eq!(users(&seen).len(), expected, "{other}");
    }
    let wrong = "2 1 eni-1 192.0.2.90 192.0.2.10 x 8080 6 1 1 1 1 ACCEPT OK\n2 1 eni-1 192.0.2.90 192.0.2.10 1";
    assert_eq!(read(wrong).broken.records, 2);
}
