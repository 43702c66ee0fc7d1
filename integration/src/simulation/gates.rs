//! Pods behind the readiness gate, as the kubelet and the EndpointSlice controller have them, and what must hold of them.

use std::sync::Arc;

use api::names::{CONDITION_REGISTERED, LABEL_GATE};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    cloudmap::Registry,
    expect::Name,
    kubernetes::{ApiServer, Write},
    machine::EPOCH,
    slices::{address, ipv6},
    users::label,
    world::{Cluster, World, must},
};

/// The pods of a Service are these, and no others. Their containers are ready at once.
pub(super) fn put_pods(world: &World, cluster: &Cluster, service: &Name, pods: &[String]) {
    let (namespace, app) = service;
    let of_service = |name: &Name, pod: &Value| name.0 == *namespace && label(pod, "app") == app;
    for (name, pod) in cluster.api.list("pods") {
        if of_service(&name, &pod) && !pods.contains(&name.1) {
            must(cluster.api.delete("pods", &name.0, &name.1));
        }
    }
    let now = Timestamp::UNIX_EPOCH.saturating_add(EPOCH + world.began.elapsed()).unwrap_or(Timestamp::MAX);
    for pod in pods.iter().filter(|pod| cluster.api.get("pods", namespace, pod).is_none()) {
        must(cluster.api.put(
            "pods",
            json!({
                "metadata": {"namespace": namespace, "name": pod, "labels": {"app": app, LABEL_GATE: "registered"}},
                "spec": {"containers": [], "readinessGates": [{"conditionType": CONDITION_REGISTERED}]},
                "status": {
                    "podIPs": [{"ip": address(pod)}, {"ip": ipv6(pod)}],
                    "conditions": [
                        {"type": "ContainersReady", "status": "True", "lastTransitionTime": now.to_string()},
                    ],
                },
            }),
        ));
    }
}

/// The UID of a pod, and whether it is ready; `None` if there is no such pod, or none are kept.
pub(super) fn pod(api: &ApiServer, namespace: &str, name: &str) -> Option<(String, bool)> {
    let pod = api.get("pods", namespace, name)?;
    Some((pod["metadata"]["uid"].as_str()?.to_owned(), gate(&pod) == Some("True")))
}

/// The status of the condition that is the gate.
fn gate(pod: &Value) -> Option<&str> {
    condition(pod)?["status"].as_str()
}

fn condition(pod: &Value) -> Option<&Value> {
    pod["status"]["conditions"].as_array()?.iter().find(|said| said["type"] == CONDITION_REGISTERED)
}

/// Makes endpoints ready whose gates have opened.
pub(crate) fn follow(world: &World) {
    for Cluster { api, .. } in world.clusters.iter().filter(|cluster| cluster.site.has_gates()) {
        for (_, slice) in api.list("endpointslices") {
            let mut followed = Value::clone(&slice);
            for endpoint in followed["endpoints"].as_array_mut().into_iter().flatten() {
                let of = [&endpoint["targetRef"]["namespace"], &endpoint["targetRef"]["name"]].map(Value::as_str);
                let [Some(namespace), Some(name)] = of else { continue };
                if let Some((_, ready)) = pod(api, namespace, name) {
                    endpoint["conditions"] = json!({"ready": ready, "serving": ready});
                }
            }
            if followed != *slice {
                must(api.put("endpointslices", followed));
            }
        }
    }
}

/// A pod whose gate is closed.
pub(crate) fn closed(world: &World) -> Option<String> {
    world.clusters.iter().find_map(|Cluster { id, api, .. }| {
        let waits = |(_, pod): &(Name, Arc<Value>)| gate(pod) != Some("True");
        let (name, pod) = api.list("pods").into_iter().find(waits)?;
        Some(format!("{id} {}/{} waits: {}", name.0, name.1, pod["status"]))
    })
}

/// Why a replica must not have made this write of a pod.
pub(crate) fn wrong(registry: &Registry, write: &Write) -> Option<String> {
    let (Some(before), Some(after)) = (&write.before, &write.after) else { return Some("made or deleted".to_owned()) };
    let others = |pod: &Value| -> Vec<Value> {
        let all = pod["status"]["conditions"].as_array().into_iter().flatten();
        all.filter(|said| said["type"] != CONDITION_REGISTERED).cloned().collect()
    };
    if !write.status || others(before) != others(after) || before["spec"] != after["spec"] {
        return Some(format!("more than the gate of {before} became {after}"));
    }
    if gate(after) != Some("True") {
        return Some(format!("closed: {after}"));
    }
    let (namespace, pod) = &write.key;
    let service = (namespace.clone(), label(after, "app").to_owned());
    let by_success = condition(after).is_some_and(|said| said["reason"] == "Registered");
    let shown = registry.has_shown(address(pod), &service);
    (by_success && !shown).then(|| format!("{pod} was never discovered: {after}"))
}
