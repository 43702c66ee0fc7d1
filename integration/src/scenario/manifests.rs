//! The objects that scenarios apply.

use std::net::SocketAddr;

use serde_json::{Value, json};

use super::agnhost_image;

/// Marks the namespaces of scenarios, so that a later run finds what a killed one left.
pub const LABEL_SCENARIO: &str = "cloudmap-mcs-e2e";

/// A namespace whose pods run as the restricted pod security standard has it.
pub fn namespace(name: &str, labels: &[(&str, &str)]) -> Value {
    let labels: serde_json::Map<_, _> = labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

/// A pod that waits for commands.
pub fn client(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [
            {"name": "client", "image": agnhost_image(), "command": ["/agnhost", "pause"]}]},
    })
}

/// Where nothing of a node can go.
#[derive(Debug, Clone)]
pub enum Blackhole {
    /// To an address.
    Address(String),
    /// To a TCP port.
    Port(SocketAddr),
}

impl Blackhole {
    /// The command that makes it (`add`) or ends it (`del`).
    fn command(&self, verb: &str) -> String {
        let (v6, what, to) = match self {
            Self::Address(address) => (address.contains(':'), "route", address.clone()),
            Self::Port(port) => (port.is_ipv6(), "rule", format!("to {} ipproto tcp dport {}", port.ip(), port.port())),
        };
        let family = if v6 { "-6" } else { "-4" };
        format!("chroot /node ip {family} {what} {verb} blackhole {to}")
    }
}

/// A pod in the network of its node, which keeps these as long as it runs. It uses the node's own `ip`.
pub fn blackhole(name: &str, node: &str, blackholes: &[Blackhole]) -> Value {
    let route =
        |verb: &str, joined: &str| blackholes.iter().map(|hole| hole.command(verb)).collect::<Vec<_>>().join(joined);
    let script = format!(
        "end() {{ {}; exit; }}; trap end TERM; {} && touch /tmp/ready || end; while true; do sleep 1 & wait; done",
        route("del", "; "),
        route("add", " && ")
    );
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeName": node, "hostNetwork": true, "terminationGracePeriodSeconds": 30, "restartPolicy": "Never",
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "node", "hostPath": {"path": "/"}}],
            "containers": [{
                "name": "router", "image": agnhost_image(), "command": ["sh", "-c", script],
                "securityContext": {"privileged": true, "runAsUser": 0},
                "volumeMounts": [{"name": "node", "mountPath": "/node"}],
                "readinessProbe": {"exec": {"command": ["cat", "/tmp/ready"]}, "periodSeconds": 1, "timeoutSeconds": 5},
            }],
        },
    })
}

/// A server of its pod's name: HTTP on 8080 at `/hostname`, UDP on 8081.
fn server() -> Value {
    json!({
        "terminationGracePeriodSeconds": 1,
        "containers": [{
            "name": "server", "image": agnhost_image(),
            "args": ["netexec", "--http-port=8080", "--udp-port=8081"],
            "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 5},
        }],
    })
}

/// Pods `name-...` that serve their names.
pub fn deployment(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": server()},
        },
    })
}

/// Pods `name-0`, `name-1`, ... that have host names in the headless Service `name`.
pub fn stateful_set(name: &str, replicas: u32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": server()},
        },
    })
}

/// A Deployment or StatefulSet whose pods serve HTTP on another port.
#[must_use]
pub fn on_port(mut manifest: Value, port: u16) -> Value {
    let container = &mut manifest["spec"]["template"]["spec"]["containers"][0];
    container["args"][1] = format!("--http-port={port}").into();
    container["readinessProbe"]["httpGet"]["port"] = port.into();
    manifest
}

/// The port of the HTTP server.
pub fn http(port: u16) -> Value {
    json!({"name": "http", "port": port, "targetPort": 8080, "protocol": "TCP"})
}

/// A Service for the pods of the Deployment or StatefulSet of its name, in both families where the cluster has both.
pub fn service(name: &str, ports: &[Value]) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": ports, "ipFamilyPolicy": "PreferDualStack"},
    })
}

/// A manifest with other fields in its spec.
#[must_use]
pub fn with_spec(mut manifest: Value, fields: &Value) -> Value {
    let spec = manifest["spec"].take();
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    spec.extend(fields.as_object().cloned().unwrap_or_default());
    manifest["spec"] = Value::Object(spec);
    manifest
}

/// A Service with one family only, the cluster's first: alike in clusters with one family and with two.
pub fn single_stack(name: &str, ports: &[Value]) -> Value {
    with_spec(service(name, ports), &json!({"ipFamilyPolicy": "SingleStack"}))
}

/// A Deployment or StatefulSet whose pods run on one node.
#[must_use]
pub fn on_node(mut manifest: Value, node: &str) -> Value {
    manifest["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    manifest
}

/// A headless Service for the pods of the Deployment of its name, which asks for a name in Cloud Map by annotations.
pub fn named(name: &str, namespace: &str, hostname: &str) -> Value {
    let headless = with_spec(service(name, &[http(8080)]), &json!({"clusterIP": "None"}));
    annotated(headless, &json!({"cloudmap.controller/namespace": namespace, "cloudmap.controller/hostname": hostname}))
}

/// A Service whose endpoints are written by hand.
pub fn service_without_selector(name: &str, ports: &[Value]) -> Value {
    let mut manifest = service(name, ports);
    if let Some(spec) = manifest["spec"].as_object_mut() {
        spec.remove("selector");
    }
    manifest
}

/// An EndpointSlice written by hand: one endpoint with one IPv4 address each, all ready, at port 8080.
pub fn endpoint_slice(name: &str, service: &str, addresses: &[String]) -> Value {
    let endpoints: Vec<_> =
        addresses.iter().map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
    endpoint_slice_of(name, service, &json!(endpoints))
}

/// An EndpointSlice of IPv4 endpoints that are given, at port 8080.
pub fn endpoint_slice_of(name: &str, service: &str, endpoints: &Value) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// An object with annotations.
#[must_use]
pub fn annotated(mut manifest: Value, annotations: &Value) -> Value {
    manifest["metadata"]["annotations"] = annotations.clone();
    manifest
}

/// A ServiceExport.
pub fn export(name: &str) -> Value {
    json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": {"name": name}})
}
