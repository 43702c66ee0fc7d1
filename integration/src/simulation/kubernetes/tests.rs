//! Against real clients of kube, under paused time.

mod faults;
mod objects;
mod product;
mod watches;

use k8s_openapi::api::core::v1;
use kube::Api;
use serde_json::{Value, json};

use super::{ApiServer, ApiServerSettings};

fn server() -> ApiServer {
    let server = ApiServer::new(ApiServerSettings::default());
    server.put("namespaces", json!({"metadata": {"name": "shop"}})).unwrap();
    server
}

fn service(name: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}]},
    })
}

fn services(server: &ApiServer, replica: &str) -> Api<v1::Service> {
    Api::namespaced(server.client(replica, "shop"), "shop")
}
