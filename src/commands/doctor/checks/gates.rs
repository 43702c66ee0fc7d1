//! Readiness gates that nobody opens.

use std::collections::BTreeMap;

use super::super::{
    gates::Unwatched,
    observe::{Cluster, Seen},
    report::Finding,
};
use api::names::{CONDITION_REGISTERED, LABEL_GATE};
use cluster::reader::Unread;

const SUBJECT: &str = "gates";
/// How many workloads a finding names.
const NAMED: usize = 5;

/// `None` if the controller opens no gates.
pub(super) fn plan(cluster: &Cluster, seen: &Seen) -> Option<Finding> {
    let place = cluster.name.as_str();
    Some(match seen.unwatched.as_ref()? {
        Err(Unread::Forbidden(why)) => Finding::skip(
            place,
            SUBJECT,
            format!("not read: {why}"),
            "run this as somebody who may list the pods of all namespaces, which cloudmap-mcs-reader does not allow",
        ),
        Err(why) => Finding::unread(place, SUBJECT, why, &cluster.flags),
        Ok(pods) => match pods.first() {
            None => Finding::ok(place, SUBJECT, format!("all pods with {CONDITION_REGISTERED} have its label")),
            Some(first) => unlabelled(cluster, pods, first),
        },
    })
}

fn unlabelled(cluster: &Cluster, pods: &[Unwatched], first: &Unwatched) -> Finding {
    // One pod of each workload is enough to find the others.
    let mut examples = BTreeMap::new();
    for pod in pods {
        let workload = pod.owner.as_ref().unwrap_or(&pod.name);
        examples.entry((&pod.namespace, workload)).or_insert(pod);
    }
    let words = |pod: &Unwatched| {
        let owner = pod.owner.as_ref().map(|owner| format!(" of {owner}")).unwrap_or_default();
        format!("{}/{}{owner}", pod.namespace, pod.name)
    };
    let mut named: Vec<_> = examples.values().take(NAMED).map(|pod| words(pod)).collect();
    if examples.len() > NAMED {
        named.push(format!("pods of {} more workloads", examples.len() - NAMED));
    }
    let what = format!(
        "{} pod(s) have the readiness gate {CONDITION_REGISTERED} without the label {LABEL_GATE}, and so never become \
         ready: {}",
        pods.len(),
        named.join(", ")
    );
    let remedy = format!(
        "add the label {LABEL_GATE}: registered to the pod template, beside the gate (docs/gates.md); for a pod that \
         exists: kubectl{} -n {} label pod {} {LABEL_GATE}=registered",
        cluster.flags, first.namespace, first.name
    );
    Finding::fail(&cluster.name, SUBJECT, what, remedy)
}
