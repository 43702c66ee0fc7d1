//! Pods with the readiness gate that the controller does not watch, because they lack the label.

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use super::observe::Read;
use crate::asking::workload;
use api::names::{CONDITION_REGISTERED, LABEL_GATE};
use cluster::reader::each;

/// A pod whose gate nobody opens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unwatched {
    pub(super) namespace: String,
    pub(super) name: String,
    /// Kind and name of what made it, such as `Deployment web`.
    pub(super) owner: Option<String>,
}

/// Reads all pods without the label.
pub(super) async fn observe(client: &Client) -> Read<Vec<Unwatched>> {
    let pods: Api<Pod> = Api::all(client.clone());
    let without = ListParams::default().labels(&format!("!{LABEL_GATE}"));
    let mut found = Vec::new();
    each(&pods, without, |pod| found.extend(unwatched(&pod))).await?;
    Ok(found)
}

/// `None` if nobody has to open its gate.
fn unwatched(pod: &Pod) -> Option<Unwatched> {
    let gates = pod.spec.as_ref()?.readiness_gates.as_ref()?;
    if !gates.iter().any(|gate| gate.condition_type == CONDITION_REGISTERED) {
        return None;
    }
    let status = pod.status.as_ref();
    let mut conditions = status.and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let open = conditions.any(|it| it.type_ == CONDITION_REGISTERED && it.status == "True");
    let ended = status.and_then(|status| status.phase.as_deref()).is_some_and(|it| it == "Succeeded" || it == "Failed");
    if open || ended || pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let owner = workload(pod).map(|(kind, name)| format!("{kind} {name}"));
    Some(Unwatched { namespace: pod.namespace()?, name: pod.name_any(), owner })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use cluster::fake_api::FakeApi;

    fn pod(name: &str, gate: &str, status: &Value) -> Value {
        json!({
            "metadata": {
                "namespace": "shop", "name": name, "labels": {"pod-template-hash": "5d4f"},
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f", "uid": "u", "controller": true},
                ],
            },
            "spec": {"containers": [], "readinessGates": [{"conditionType": gate}]},
            "status": status,
        })
    }

    #[tokio::test]
    async fn pods_with_the_gate_and_without_the_label_are_found_on_every_page() {
        let api = FakeApi::default();
        let open = json!({"conditions": [{"type": CONDITION_REGISTERED, "status": "True"}]});
        let pages = [
            [pod("web-1", CONDITION_REGISTERED, &json!({})), pod("other", "example.com/lb", &json!({}))],
            [
                pod("opened", CONDITION_REGISTERED, &open),
                pod("ended", CONDITION_REGISTERED, &json!({"phase": "Succeeded"})),
            ],
            [pod("web-2", CONDITION_REGISTERED, &json!({"phase": "Running"})), json!({"metadata": {"name": "bare"}})],
        ];
        for (next, items) in ["a", "b", ""].into_iter().zip(pages) {
            let metadata = json!({"resourceVersion": "1", "continue": next});
            api.prepare(200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}));
        }
        let found = observe(&api.client()).await.unwrap();
        let names: Vec<_> = found.iter().map(|pod| &*pod.name).collect();
        assert_eq!(names, ["web-1", "web-2"]);
        assert_eq!((&*found[0].namespace, found[0].owner.as_deref()), ("shop", Some("Deployment web")));
        let requests = api.requests();
        assert_eq!(requests.len(), 3);
        let [selected, next] = [&requests[0].query, &requests[1].query];
        assert!(selected.contains("labelSelector=%21cloudmap-mcs%2Fgate"), "{selected}");
        assert!(next.contains("continue=a"), "{next}");
    }
}
