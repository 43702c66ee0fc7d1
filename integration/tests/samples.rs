//! Samples that are programs do what they say.
//!
//! `LUA` names Lua, and `MOTO_SERVER` moto's server, beside which is a Python with boto3. `make test` installs both.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints for whoever runs it"
)]

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn samples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("samples")
}

/// What a program prints that reads this.
fn output(command: &mut Command, input: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{command:?} failed with\n{input}");
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// A value as Lua writes it.
fn lua(value: &Value, text: &mut String) {
    match value {
        Value::Object(fields) => {
            *text += "{";
            for (name, value) in fields {
                write!(text, "[{name:?}] = ").unwrap();
                lua(value, text);
                *text += ", ";
            }
            *text += "}";
        }
        Value::Array(values) => {
            *text += "{";
            for value in values {
                lua(value, text);
                *text += ", ";
            }
            *text += "}";
        }
        Value::Null => *text += "nil",
        value => write!(text, "{value}").unwrap(),
    }
}

fn yaml(path: &Path) -> Value {
    serde_yaml_ng::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn argo_cd_s_health_checks_say_what_their_cases_say() {
    let program = std::env::var("LUA").expect("LUA names Lua 5.1 or later; LUA=skip leaves the health checks out");
    if program == "skip" {
        eprintln!("skipped: LUA=skip, the health checks are not run");
        return;
    }
    let mut cases = 0;
    for kind in ["ServiceExport", "ServiceImport"] {
        let folder = samples().join("argocd").join(kind);
        let check = fs::read_to_string(folder.join("health.lua")).unwrap();
        let tests = yaml(&folder.join("health_test.yaml"));
        let tests = tests["tests"].as_array().unwrap();
        assert_eq!(tests.len(), fs::read_dir(folder.join("testdata")).unwrap().count(), "cases of {kind}");
        for test in tests {
            let input = test["inputPath"].as_str().unwrap();
            let mut object = String::new();
            lua(&yaml(&folder.join(input)), &mut object);
            let script = format!(
                "local function check(obj)\n{check}\nend\nlocal health = check({object})\nprint(health.status)\nprint(health.message)"
            );
            let expected = &test["healthStatus"];
            let expected = [&expected["status"], &expected["message"]].map(|text| text.as_str().unwrap()).join("\n");
            assert_eq!(output(Command::new(&program).arg("-"), &script), expected, "{kind} {input}");
            cases += 1;
        }
    }
    assert!(cases > 10);
}

/// The stub of botocore compares requests and answers with AWS's definition of the API.
#[test]
fn the_client_with_boto3_asks_as_the_api_is_and_calls_a_pod() {
    let moto =
        std::env::var("MOTO_SERVER").expect("MOTO_SERVER names moto's server; MOTO_SERVER=skip leaves boto3 out");
    if moto == "skip" {
        eprintln!("skipped: MOTO_SERVER=skip, there is no boto3");
        return;
    }
    let script = r#"
import http.server, socket, threading
import discover
from botocore.stub import Stubber

class Pod(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"my-pod")
    def log_message(self, *_):
        pass

pod = http.server.HTTPServer(("127.0.0.1", 0), Pod)
threading.Thread(target=pod.serve_forever, daemon=True).start()
# Kept, or somebody else may get the port and listen.
gone = socket.socket()
gone.bind(("127.0.0.1", 0))
port = gone.getsockname()[1]
# A machine that stands still for longer than the sample waits decides nothing.
urlopen = discover.urllib.request.urlopen
discover.urllib.request.urlopen = lambda url, timeout: urlopen(url, timeout=100 * timeout)

def instance(name, port):
    return {"InstanceId": name, "NamespaceName": "example", "ServiceName": "my-service", "HealthStatus": "HEALTHY",
            "Attributes": {"AWS_INSTANCE_IPV4": "127.0.0.1", "AWS_INSTANCE_PORT": str(port)}}

request = {"NamespaceName": "example", "ServiceName": "my-service", "HealthStatus": "HEALTHY_OR_ELSE_ALL", "MaxResults": 1000}
with Stubber(discover.cloudmap) as stub:
    stub.add_response("discover_instances", {"Instances": [instance("a", port), instance("b", pod.server_port)]}, request)
    stub.add_response("discover_instances", {"Instances": []}, request)
    print(discover.handler({}, None))
    print(discover.handler({}, None))
"#;
    let python = Path::new(&moto).parent().unwrap().join("python");
    let mut command = Command::new(python);
    command
        .arg("-")
        .env("PYTHONPATH", samples().join("clients"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "*")
        .envs([("AWS_ACCESS_KEY_ID", "none"), ("AWS_SECRET_ACCESS_KEY", "none"), ("AWS_REGION", "eu-central-1")])
        .envs([("NAMESPACE", "example"), ("SERVICE", "my-service")]);
    let expected = "{'statusCode': 200, 'body': 'my-pod'}\n{'statusCode': 503, 'body': 'no pod answers'}";
    assert_eq!(output(&mut command, script), expected);
}
