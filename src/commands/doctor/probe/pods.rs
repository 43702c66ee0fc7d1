//! Pure: the temporary pods, and what is to be said of one that does not run.

use std::{net::SocketAddr, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::{DEADLINE, Member};
use api::names;

/// Kubernetes shows what a container writes here in the pod's status, up to 4,096 bytes.
const MESSAGE: &str = "/dev/termination-log";

pub(super) fn listener(member: &Member, port: u16) -> Pod {
    let port = port.to_string();
    pod(member, &["probe", "serve", "--port", &port, "--word", &member.name])
}

pub(super) fn client(member: &Member, targets: &[(SocketAddr, String)]) -> Pod {
    let mut args = vec!["probe".to_owned(), "try".to_owned(), "--output".to_owned(), MESSAGE.to_owned()];
    args.extend(targets.iter().map(|(address, word)| format!("--connect={address}={word}")));
    if let Some(import) = &member.import {
        // With the last dot, so that no search domain is tried.
        args.push(format!("--resolve={}.", names::dns_name(&import.key)));
    }
    pod(member, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What Pod Security calls restricted, and nothing that the service account may do.
fn pod(member: &Member, args: &[&str]) -> Pod {
    let template = &member.template;
    let seconds = |time: Duration| i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    let security: Value = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
    });
    let container = json!({
        "name": "probe", "image": member.image, "imagePullPolicy": "IfNotPresent", "args": args,
        "terminationMessagePath": MESSAGE, "securityContext": security,
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
    });
    let pod = json!({
        "metadata": {"generateName": "cloudmap-mcs-doctor-", "labels": {names::LABEL_DOCTOR: member.run}},
        "spec": {
            "containers": [container], "restartPolicy": "Never", "automountServiceAccountToken": false,
            "enableServiceLinks": false, "activeDeadlineSeconds": seconds(DEADLINE),
            "terminationGracePeriodSeconds": 1, "imagePullSecrets": template.image_pull_secrets,
            "nodeSelector": template.node_selector, "tolerations": template.tolerations,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532,
                "seccompProfile": {"type": "RuntimeDefault"}},
        },
    });
    serde_json::from_value(pod).expect("a pod")
}

/// Why a pod does not run yet.
pub(super) fn state(pod: &Pod) -> String {
    let Some(status) = &pod.status else { return "it has no status".to_owned() };
    let waiting = status.container_statuses.iter().flatten().find_map(|it| it.state.as_ref()?.waiting.as_ref());
    let unscheduled = status.conditions.iter().flatten().find(|it| it.type_ == "PodScheduled" && it.status == "False");
    let reason = match (waiting, unscheduled) {
        (Some(waiting), _) => [&waiting.reason, &waiting.message].map(|it| it.clone().unwrap_or_default()).join(" "),
        (None, Some(it)) => it.message.clone().unwrap_or_default(),
        (None, None) => status.message.clone().unwrap_or_default(),
    };
    let phase = status.phase.as_deref().unwrap_or("Pending");
    if reason.trim().is_empty() { format!("it is {phase}") } else { format!("it is {phase}: {}", reason.trim()) }
}
