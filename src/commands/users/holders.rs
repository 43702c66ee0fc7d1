//! Who held an address, and when. An address of a pod or task goes to another one soon after it ended, so that the holder
//! of today need not be the one that a log shows.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
};

use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::ResourceExt as _;
use serde::Serialize;

use super::record::How;
use crate::asking::workload;
use cloudmap::{Instance, attributes};

/// Labels of the pods of the cluster's DNS, and what they run.
const DNS_LABEL: &str = "k8s-app";
const DNS_PODS: [(&str, &str); 2] = [("kube-dns", "CoreDNS"), ("node-local-dns", "NodeLocal DNSCache")];

/// Somebody who may use a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(super) enum Who {
    /// A pod.
    Pod {
        /// The context of its cluster, if there are several.
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        namespace: String,
        name: String,
        /// Such as `Deployment web`.
        workload: Option<String>,
        service_account: Option<String>,
    },
    /// The DNS servers of a cluster, which ask for its pods.
    ClusterDns {
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        name: String,
    },
    /// A Node itself, or a pod in its network.
    Node {
        #[serde(skip_serializing_if = "Option::is_none")]
        cluster: Option<String>,
        name: String,
    },
    /// An ECS task.
    Task { id: String, ecs_cluster: Option<String>, ecs_service: Option<String> },
    /// Any other instance in Cloud Map.
    Instance { id: String, namespace: String, service: String },
    /// An EC2 instance.
    Ec2 { id: String },
    /// A Lambda function.
    Lambda { function: String, role: String },
    /// A role; who has it is not known.
    Role { arn: String },
    /// Another principal of IAM.
    Principal { arn: String },
    /// A service of AWS.
    AwsService { name: String },
    /// A controller or command of this project.
    Ours { role: String },
    /// A Resolver endpoint, which asks for clients outside of the VPC.
    ResolverEndpoint { id: String },
    /// An address, of which no more is known.
    Address { address: IpAddr },
}

/// When somebody held an address.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hold {
    who: Who,
    /// `None` if it is not known.
    since: Option<Timestamp>,
    /// `None` while it still does.
    until: Option<Timestamp>,
}

/// Who held an address at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Held<'a> {
    /// This one did.
    By(&'a Who),
    /// This one has it now, and may have had it then.
    Perhaps(&'a Who),
    /// This one has it, but only since later.
    Later(&'a Who, Timestamp),
    /// No holder is known, or several clusters have one.
    Unknown,
}

/// All addresses that are known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Holders {
    of: HashMap<IpAddr, Vec<Hold>>,
    /// The ECS tasks, by id.
    pub(super) tasks: BTreeMap<String, Who>,
    /// The Nodes on EC2 instances, by id.
    pub(super) nodes: BTreeMap<String, String>,
}

impl Holders {
    fn add(&mut self, address: IpAddr, hold: Hold) {
        let holds = self.of.entry(address.to_canonical()).or_default();
        if !holds.contains(&hold) {
            holds.push(hold);
        }
    }

    /// Adds the addresses of a pod. One in its Node's network has none of its own, and one that ended no longer has any.
    pub(super) fn add_pod(&mut self, cluster: Option<&str>, pod: &Pod) {
        let (Some(spec), Some(status)) = (&pod.spec, &pod.status) else { return };
        let cluster = cluster.map(str::to_owned);
        let dns = pod.labels().get(DNS_LABEL).and_then(|app| DNS_PODS.iter().find(|(label, _)| label == app));
        let who = match dns {
            Some((_, name)) => Who::ClusterDns { cluster, name: (*name).to_owned() },
            None if spec.host_network == Some(true) => return,
            None => Who::Pod {
                cluster,
                namespace: pod.namespace().unwrap_or_default(),
                name: pod.name_any(),
                workload: workload(pod).map(|(kind, name)| format!("{kind} {name}")),
                service_account: spec.service_account_name.clone(),
            },
        };
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        let until = if ended {
            let containers = status.container_statuses.iter().flatten();
            let ends = containers.filter_map(|container| {
                container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|Time(end)| *end)
            });
            // Without an end, it is not known how long it had its address.
            let Some(end) = ends.max() else { return };
            Some(end)
        } else {
            None
        };
        let since = status.start_time.as_ref().map(|Time(start)| *start);
        let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str()).chain(status.pod_ip.as_deref());
        for address in all.filter_map(|ip| ip.parse().ok()) {
            self.add(address, Hold { who: who.clone(), since, until });
        }
    }

    /// Adds the addresses of a Node.
    pub(super) fn add_node(&mut self, cluster: Option<&str>, node: &Node) {
        let name = node.name_any();
        let provider = node.spec.as_ref().and_then(|spec| spec.provider_id.as_deref());
        // `aws:///eu-central-1a/i-0123456789abcdef0`.
        if let Some(id) = provider.and_then(|id| id.rsplit('/').next()).filter(|id| id.starts_with("i-")) {
            self.nodes.insert(id.to_owned(), name.clone());
        }
        let who = Who::Node { cluster: cluster.map(str::to_owned), name };
        let since = node.metadata.creation_timestamp.as_ref().map(|Time(created)| *created);
        let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
        for address in addresses.filter_map(|address| address.address.parse().ok()) {
            self.add(address, Hold { who: who.clone(), since, until: None });
        }
    }

    /// Adds the addresses of an instance in Cloud Map, which does not say since when it is registered.
    pub(super) fn add_instance(&mut self, namespace: &str, service: &str, instance: &Instance) {
        let attribute = |key: &str| instance.attributes.get(key).cloned();
        let id = instance.id.to_string();
        let who = if let Some(id) = attribute(attributes::EC2_INSTANCE) {
            Who::Ec2 { id }
        } else if let Some(cluster) = attribute(attributes::ECS_CLUSTER) {
            let service = attribute(attributes::ECS_SERVICE);
            let task = Who::Task { id: id.clone(), ecs_cluster: Some(cluster), ecs_service: service };
            self.tasks.insert(id, task.clone());
            task
        } else {
            Who::Instance { id, namespace: namespace.to_owned(), service: service.to_owned() }
        };
        for address in addresses(instance) {
            self.add(address, Hold { who: who.clone(), since: None, until: None });
        }
    }

    /// Who held an address at the time `then`, when `how` was seen. A holder with a known beginning is preferred to one
    /// without, and the later of two to the earlier.
    pub(super) fn at(&self, address: IpAddr, then: Option<Timestamp>, how: How) -> Held<'_> {
        let holds = self.of.get(&address.to_canonical()).map(Vec::as_slice).unwrap_or_default();
        let now = || holds.iter().filter(|hold| hold.until.is_none());
        let Some(then) = then else {
            return best(now(), how, Held::Perhaps).unwrap_or(Held::Unknown);
        };
        let covers = |hold: &&Hold| {
            hold.since.is_some_and(|since| since <= then) && hold.until.is_none_or(|until| then <= until)
        };
        if let Some(held) = best(holds.iter().filter(covers), how, Held::By) {
            return held;
        }
        // The address changed hands since. A registration without a date may belong to the later holder.
        let later = now().filter_map(|hold| hold.since.map(|since| (since, hold)));
        if let Some((since, hold)) = later.filter(|(since, _)| *since > then).min_by_key(|(since, _)| *since) {
            return Held::Later(&hold.who, since);
        }
        let undated = now().find(|hold| hold.since.is_none());
        undated.map_or(Held::Unknown, |hold| Held::Perhaps(&hold.who))
    }

    /// Whether somebody has or had an address in each of several clusters.
    pub(super) fn is_in_several_clusters(&self, address: IpAddr) -> bool {
        let holds = self.of.get(&address.to_canonical()).into_iter().flatten();
        holds.filter_map(|hold| cluster(&hold.who)).collect::<BTreeSet<_>>().len() > 1
    }
}

/// The one that says the most, as `found`. Where the ranges of two clusters overlap, one of each may hold an address at once.
fn best<'a>(holds: impl Iterator<Item = &'a Hold>, how: How, found: fn(&'a Who) -> Held<'a>) -> Option<Held<'a>> {
    let holds: Vec<&'a Hold> = holds.collect();
    let best = holds.iter().copied().max_by_key(|hold| (is_specific(&hold.who, how), hold.since))?;
    let says_as_much = |hold: &&Hold| is_specific(&hold.who, how) == is_specific(&best.who, how);
    let mut clusters = holds.iter().copied().filter(says_as_much).filter_map(|hold| cluster(&hold.who));
    let is_elsewhere = clusters.any(|other| cluster(&best.who).is_some_and(|own| own != other));
    Some(if is_elsewhere { Held::Unknown } else { found(&best.who) })
}

/// The cluster of somebody in Kubernetes, if there are several.
fn cluster(who: &Who) -> Option<&str> {
    match who {
        Who::Pod { cluster, .. } | Who::ClusterDns { cluster, .. } | Who::Node { cluster, .. } => cluster.as_deref(),
        _ => None,
    }
}

/// How exactly a holder names the user of an address: a pod more than the Node whose address it shares, and an entry in
/// Cloud Map less than a pod. NodeLocal DNSCache
/// shares its Node's address, too: queries are its own, connections to tasks are not.
fn is_specific(who: &Who, how: How) -> u8 {
    match who {
        Who::Pod { .. } => 2,
        Who::ClusterDns { .. } if how.is_query() => 2,
        Who::Node { .. } => 1,
        _ => 0,
    }
}

/// The addresses of an instance.
pub(super) fn addresses(instance: &Instance) -> impl Iterator<Item = IpAddr> {
    let of = |key: &str| instance.attributes.get(key).and_then(|text| text.trim().parse::<IpAddr>().ok());
    [attributes::IPV4, attributes::IPV6].into_iter().filter_map(of)
}
