use std::net::IpAddr;

use k8s_openapi::{api::core::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};

use super::{ObjectKey, TargetId, addresses, uid};
use crate::cache::Narrow;
use api::names::CONDITION_REGISTERED;
use model::intern;

/// The reason of a pod's condition `Ready` while the kubelet finds nothing wrong but a closed readiness gate.
const GATES_CLOSED: &str = "ReadinessGatesNotReady";

/// A pod with the readiness gate `cloudmap-mcs/registered` (`--readiness-gates`). Others are ignored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatedPod {
    /// Its key.
    pub key: ObjectKey,
    /// Its uid.
    pub uid: Box<str>,
    /// The addresses in `status.podIPs`.
    pub addresses: Box<[IpAddr]>,
    /// Whether it would take traffic if this gate were open: all containers and all other gates are ready, it is not being
    /// deleted, and its node is there.
    ///
    /// `ready` in its EndpointSlices cannot say this, because it waits for the gate.
    pub fit: bool,
    /// Since when it is, in seconds since 1970, by the clock of its node. `None` if its conditions do not say so.
    pub since: Option<i64>,
    /// Whether the gate is open.
    pub open: bool,
}

impl GatedPod {
    /// Whether the pod waits for nothing but its registration.
    pub const fn waits(&self) -> bool {
        self.fit && !self.open
    }
}

impl Narrow for GatedPod {
    type Kind = v1::Pod;
    /// The id that `targetRef` of an EndpointSlice contains.
    type Key = TargetId;

    const CACHE: &'static str = "GatedPod";

    fn key(metadata: &ObjectMeta) -> Option<TargetId> {
        TargetId::new(metadata.uid.as_deref()?)
    }

    fn narrow(object: v1::Pod) -> Option<Self> {
        let (metadata, status) = (&object.metadata, object.status.unwrap_or_default());
        let gates = object.spec.and_then(|spec| spec.readiness_gates).unwrap_or_default();
        if !gates.iter().any(|gate| gate.condition_type == CONDITION_REGISTERED) {
            return None;
        }
        let conditions = status.conditions.unwrap_or_default();
        let find = |wanted: &str| conditions.iter().find(|condition| condition.type_ == wanted);
        let holds = |wanted: &str| find(wanted).is_some_and(|condition| condition.status == "True");
        let others = gates.iter().map(|gate| &*gate.condition_type).filter(|gate| *gate != CONDITION_REGISTERED);
        let needed: Vec<_> = others.chain(["ContainersReady"]).collect();
        let open = holds(CONDITION_REGISTERED);
        // Once the gate is open, the kubelet says `Ready` a moment later. Whoever finds that the node is gone takes `Ready`
        // away, and nothing else.
        let only_gates = |ready: &v1::PodCondition| ready.reason.as_deref() == Some(GATES_CLOSED);
        let alive = !open || holds("Ready") || find("Ready").is_some_and(only_gates);
        let times = needed.iter().filter_map(|name| find(name)?.last_transition_time.as_ref());
        let ips: Vec<_> = status.pod_ips.into_iter().flatten().map(|ip| ip.ip).collect();
        Some(Self {
            key: ObjectKey::new(intern(metadata.namespace.as_deref()?), metadata.name.as_deref()?),
            uid: uid(metadata),
            addresses: addresses(&ips),
            fit: metadata.deletion_timestamp.is_none() && alive && needed.iter().all(|name| holds(name)),
            since: times.map(|time| time.0.as_second()).max(),
            open,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A pod with our gate and that of a load balancer, and conditions by type, status and reason.
    fn pod(conditions: &[(&str, &str, &str)], deleting: bool) -> GatedPod {
        let conditions: Vec<_> = conditions
            .iter()
            .enumerate()
            .map(|(n, (type_, status, reason))| {
                let time = format!("1970-01-01T00:00:{n:02}Z");
                json!({"type": type_, "status": status, "reason": reason, "lastTransitionTime": time})
            })
            .collect();
        let mut pod = json!({
            "metadata": {"namespace": "shop", "name": "web-0", "uid": "u"},
            "spec": {
                "containers": [],
                "readinessGates": [{"conditionType": "example.com/lb"}, {"conditionType": CONDITION_REGISTERED}],
            },
            "status": {"conditions": conditions, "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        });
        if deleting {
            pod["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:01:00Z");
        }
        GatedPod::narrow(serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn a_pod_waits_when_its_containers_and_all_other_gates_are_ready() {
        let (containers, lb) = (("ContainersReady", "True", ""), ("example.com/lb", "True", ""));
        let closed = ("Ready", "False", GATES_CLOSED);
        let waiting = pod(&[containers, lb, closed], false);
        assert_eq!((waiting.waits(), waiting.since, waiting.addresses.len()), (true, Some(1), 2));
        for not_yet in [&[containers, closed][..], &[lb], &[("ContainersReady", "False", ""), lb], &[]] {
            assert!(!pod(not_yet, false).fit, "{not_yet:?}");
        }
        assert!(!pod(&[containers, lb, closed], true).fit, "it terminates");
        assert!(pod(&[containers, lb, (CONDITION_REGISTERED, "False", "")], false).waits(), "somebody closed it");
    }

    /// The order of events when a gate opens, and when a node is lost.
    #[test]
    fn an_open_gate_says_nothing_about_a_pod_that_is_no_longer_ready() {
        let (containers, lb) = (("ContainersReady", "True", ""), ("example.com/lb", "True", ""));
        let (open, ready) = ((CONDITION_REGISTERED, "True", "Registered"), ("Ready", "True", ""));
        for (conditions, fit) in [
            (&[containers, lb, open, ("Ready", "False", GATES_CLOSED)][..], true),
            (&[containers, lb, open, ready], true),
            (&[containers, lb, open, ("Ready", "False", "")], false),
            (&[("ContainersReady", "False", ""), lb, open, ("Ready", "False", "ContainersNotReady")], false),
        ] {
            let pod = pod(conditions, false);
            assert_eq!((pod.open, pod.fit, pod.waits()), (true, fit, false), "{conditions:?}");
        }
    }

    #[test]
    fn a_pod_without_the_gate_is_ignored() {
        let pod = json!({"metadata": {"namespace": "shop", "name": "web-0", "uid": "u"}, "spec": {"containers": []}});
        assert_eq!(GatedPod::narrow(serde_json::from_value(pod).unwrap()), None);
    }
}
