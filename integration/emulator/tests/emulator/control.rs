//! The control interface in the process and over HTTP, and the program.

use std::process::Stdio;

use cloudmap_emulator::dns_client::Client as Dns;
use cloudmap_emulator::sdk_config;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use super::*;

/// The status and body of a request of the control interface.
pub(super) async fn http(endpoint: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let (status, body) = raw(endpoint, method, &format!("/_emulator/{path}"), "", &body.to_string()).await;
    (status, serde_json::from_str(&body).unwrap())
}

pub(super) async fn raw(endpoint: &str, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
    let host = endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).await.unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

#[tokio::test]
async fn every_write_is_recorded_with_its_caller() {
    let f = Fixture::start().await;
    let control = f.emulator.control();
    let before = control.writes().last().unwrap().sequence;
    let other = f.emulator.client("other");
    f.register("a", "1").await;
    let register = other.register_instance().service_id(&f.service).instance_id("a").attributes("k", "2");
    register.send().await.unwrap();
    let refused = other.deregister_instance().service_id(&f.service).instance_id("none").send().await;
    assert_eq!(code(refused), "InstanceNotFound");
    other.list_instances().service_id(&f.service).send().await.unwrap();
    let writes = control.writes_since(before);
    let seen: Vec<_> = writes
        .iter()
        .map(|w| (w.caller.as_str(), w.operation.as_str(), w.instance.as_str(), w.result.as_str()))
        .collect();
    let expected = [
        ("tester", "RegisterInstance", "a", "ok"),
        ("other", "RegisterInstance", "a", "ok"),
        ("other", "DeregisterInstance", "none", "InstanceNotFound"),
    ];
    assert_eq!(seen, expected);
    assert_eq!((writes[1].namespace.as_str(), writes[1].service.as_str()), ("apps", "web"));
    assert_eq!(writes[1].attributes["k"], "2");
    assert_eq!(control.snapshot().service("apps", "web").unwrap().instances["a"].caller, "other");
    let counters = control.counters();
    assert_eq!((counters.calls("RegisterInstance"), counters.calls_by("other", "RegisterInstance")), (2, 1));
    assert_eq!(counters.errors("DeregisterInstance", "InstanceNotFound"), 1);
}

#[tokio::test]
async fn a_snapshot_can_be_put_back() {
    let f = Fixture::start().await;
    f.register("a", "1").await;
    let control = f.emulator.control();
    let snapshot = control.snapshot();
    f.register("b", "1").await;
    f.client.deregister_instance().service_id(&f.service).instance_id("a").send().await.unwrap();
    control.restore(snapshot);
    assert_eq!(f.discover().await, ["a"]);
    // Names and counts are right again.
    let again = f.client.create_service().namespace_id(&f.namespace).name("web").send().await;
    assert_eq!(code(again), "ServiceAlreadyExists");
    f.client.deregister_instance().service_id(&f.service).instance_id("a").send().await.unwrap();
    f.client.delete_service().id(&f.service).send().await.unwrap();
    f.client.delete_namespace().id(&f.namespace).send().await.unwrap();
    control.reset();
    assert_eq!(control.counters().total(), 0);
    assert!(control.writes().is_empty() && control.snapshot().namespaces.is_empty());
}

#[tokio::test]
async fn all_of_it_is_there_over_http() {
    let f = Fixture::start().await;
    f.register("a", "1").await;
    let call = async |method: &str, path: &str, body: Value| http(&f.emulator.endpoint(), method, path, &body).await;
    assert_eq!(call("GET", "health", json!({})).await, (200, json!("ok")));
    let (_, counters) = call("GET", "counters", json!({})).await;
    assert_eq!(counters["operations"]["RegisterInstance"]["ok"], 1);
    assert_eq!(counters["callers"]["tester"]["RegisterInstance"], 1);
    let (_, writes) = call("GET", "writes", json!({})).await;
    assert_eq!(writes[2]["instance"], "a");
    let after = format!("writes?since={}", writes[1]["sequence"]);
    assert_eq!(call("GET", &after, json!({})).await.1.as_array().unwrap().len(), 1);

    let fault = json!({ "operation": "GetService", "count": 1, "effect": { "error": { "code": "InternalFailure", "status": 500 } } });
    let (_, added) = call("POST", "faults", fault).await;
    let (_, rules) = call("GET", "faults", json!({})).await;
    assert_eq!((&rules[0]["id"], &rules[0]["fault"]["operation"]), (&added["id"], &json!("GetService")));
    assert_eq!(code(f.client.get_service().id(&f.service).send().await), "InternalFailure");
    assert_eq!(call("GET", "faults", json!({})).await.1, json!([]));
    for effect in [json!("stale"), json!("drop_request"), json!({ "latency": { "add_ms": 5 } })] {
        let (status, added) = call("POST", "faults", json!({ "effect": effect })).await;
        assert_eq!(status, 200, "{added}");
        let path = format!("faults/{}", added["id"]);
        assert_eq!(call("DELETE", &path, json!({})).await.0, 200);
        assert_eq!(call("DELETE", &path, json!({})).await.0, 404);
    }
    let (status, error) = call("POST", "faults", json!({ "operation": "Nonsense", "effect": "stale" })).await;
    assert!(status == 400 && error["error"].as_str().unwrap().contains("Nonsense"), "{error}");
    assert_eq!(call("DELETE", "faults", json!({})).await.0, 200);

    let (_, settings) = call("PUT", "settings", json!({ "quotas": { "namespaces": 7 } })).await;
    assert_eq!(
        (&settings["quotas"]["namespaces"], &settings["quotas"]["instances_per_service"]),
        (&json!(7), &json!(1000))
    );
    assert_eq!(f.emulator.control().settings().quotas.namespaces, 7);
    assert_eq!(call("PUT", "settings", json!({ "account": "1" })).await.0, 400);
    assert_eq!(call("PUT", "settings", json!({ "nonsense": 1 })).await.0, 400);

    let (_, snapshot) = call("GET", "snapshot", json!({})).await;
    assert_eq!(snapshot["services"][0]["instances"]["a"]["attributes"], json!({ "k": "1" }));
    assert_eq!(call("POST", "reset", json!({})).await.0, 200);
    assert_eq!(call("GET", "snapshot", json!({})).await.1, json!({ "namespaces": [], "services": [] }));
    assert_eq!(call("POST", "snapshot", snapshot).await.0, 200);
    assert_eq!(f.discover().await, ["a"]);
    assert_eq!(call("GET", "nonsense", json!({})).await.0, 404);
}

#[tokio::test]
async fn what_is_not_cloud_map_gets_the_errors_of_the_front_end() {
    let f = Fixture::start().await;
    let post = async |target: &str, body: &str| {
        let header = format!("X-Amz-Target: {target}\r\n");
        let (status, body) = raw(&f.emulator.endpoint(), "POST", "/", &header, body).await;
        (status, serde_json::from_str::<Value>(&body).unwrap()["__type"].as_str().unwrap_or_default().to_owned())
    };
    let expected = |code: &str| (400, code.to_owned());
    assert_eq!(post("DynamoDB_20120810.GetItem", "{}").await, expected("UnknownOperationException"));
    assert_eq!(post("Route53AutoNaming_v20170314.Nonsense", "{}").await, expected("UnknownOperationException"));
    assert_eq!(post("Route53AutoNaming_v20170314.GetService", "{").await, expected("SerializationException"));
    assert_eq!(post("Route53AutoNaming_v20170314.GetService", r#"{"Id":1}"#).await, expected("SerializationException"));
    assert_eq!(post("Route53AutoNaming_v20170314.GetService", "{}").await, expected("InvalidInput"));
}

#[tokio::test]
async fn the_program_prints_its_address_and_stops_when_asked() {
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_cloudmap-emulator"))
        .args(["--listen", "127.0.0.1:0", "--no-throttling", "--max-namespaces", "3", "--operation-latency", "1ms-2ms"])
        .args(["--dns-listen", "127.0.0.1:0", "--resolver-listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let endpoint = lines.next_line().await.unwrap().unwrap();
    let client = Client::from_conf(sdk_config(&endpoint, "tester"));
    client.create_http_namespace().name("apps").send().await.unwrap();
    let (_, settings) = http(&endpoint, "GET", "settings", &json!({})).await;
    assert_eq!((&settings["throttling"], &settings["quotas"]["namespaces"]), (&json!(false), &json!(3)));
    assert_eq!(settings["operation_latency"], json!({ "min_ms": 1.0, "max_ms": 2.0 }));
    for recursive in [false, true] {
        let address = lines.next_line().await.unwrap().unwrap().parse().unwrap();
        let answer = Dns::new(address).ask("web.apps", "A").await.unwrap();
        assert_eq!((answer.code().as_str(), answer.message.metadata.recursion_available), ("REFUSED", recursive));
    }
    let id = program.id().unwrap().to_string();
    assert!(tokio::process::Command::new("kill").arg(id).status().await.unwrap().success());
    assert!(program.wait().await.unwrap().success());
}

#[tokio::test]
async fn stopping_closes_the_connections() {
    for shut_down in [true, false] {
        let emulator = Emulator::start(EmulatorSettings::default()).await.unwrap();
        let mut connection = TcpStream::connect(emulator.address()).await.unwrap();
        if shut_down {
            emulator.shutdown().await;
        } else {
            drop(emulator);
        }
        // A reset is a closed connection too.
        let left = connection.read(&mut [0; 1]).await;
        assert!(!matches!(left, Ok(1..)), "{left:?}");
    }
}
