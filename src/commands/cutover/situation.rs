//! What is known about a name before it is moved.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::installed::Settings;
use api::Cutover;
use cloudmap::{Namespace, RecordType, Service};
use cluster::reader::Unread;
use cutover::{Settle, hiding::obstacle};
use instances::share::Others;
use model::{ServiceKey, Target};

/// What was read. A part that could not be read is an error, as a text for people.
#[derive(Debug, Clone)]
pub(super) struct Situation {
    pub(super) key: ServiceKey,
    /// `None`: there is none. The CRD may be missing, which is an error.
    pub(super) cutover: Result<Option<Cutover>, Unread>,
    pub(super) counterpart: Result<Counterpart, String>,
    /// What the flags of the controller are set to.
    pub(super) settings: Result<Settings, String>,
    pub(super) pods: Result<Pods, Unread>,
    pub(super) registry: Result<CloudMapService, String>,
    /// The ECS services that register in the Cloud Map service. `None`: ECS was not asked, because there is no such service or
    /// Cloud Map is an emulator.
    pub(super) ecs: Result<Option<ecs::Found>, String>,
    /// PodDisruptionBudgets that select the pods.
    pub(super) budgets: Result<usize, String>,
    /// Names of HorizontalPodAutoscalers of the pods' workload, and their minimum.
    pub(super) autoscalers: Result<Vec<(String, i32)>, String>,
}

/// What to do about a Cloud Map service that is only assumed.
pub(super) const ASSUMED: &str = "write cloudmap-mcs/namespace and cloudmap-mcs/service on the ServiceExport, or run this as \
                                  somebody who may read the settings of the controller (Role cloudmap-mcs-reader)";

impl Situation {
    /// The Cutover, if there is one and it was read.
    pub(super) fn there(&self) -> Option<&Cutover> {
        self.cutover.as_ref().ok().and_then(Option::as_ref)
    }

    /// The Cutover, if it hides tasks and can.
    pub(super) fn hides(&self) -> Option<&Cutover> {
        self.there().filter(|cutover| cutover.spec.hide_tasks && obstacle(cutover).is_none())
    }

    /// Why no task is hidden, if the Cutover is to hide some.
    pub(super) fn cannot_hide(&self) -> Option<&Condition> {
        self.there().filter(|cutover| cutover.spec.hide_tasks).and_then(obstacle)
    }

    /// Whether the controller runs with the flag of a variable; `None`: nobody knows.
    pub(super) fn has(&self, variable: &str) -> Option<bool> {
        self.settings.as_ref().ok().map(|settings| settings.has(variable))
    }

    /// By how much clients are late, by the flags of the controller.
    pub(super) fn settle(&self) -> Settle {
        self.settings.as_ref().map(Settings::settle).unwrap_or_default()
    }

    /// By how much clients are assumed to be late, and why; `None`: it is known.
    pub(super) fn assumed_settle(&self) -> Option<String> {
        let why = self.settings.as_ref().err()?;
        let settle = self.settle().as_secs();
        Some(format!(
            "it is assumed that clients are late by up to {settle} s beyond the TTL, as without --settle, because {why}"
        ))
    }

    /// Which Cloud Map service is assumed, and why; `None`: it is known, or there is none.
    pub(super) fn assumed(&self) -> Option<String> {
        let why = self.settings.as_ref().err()?;
        let counterpart = self.counterpart.as_ref().ok().filter(|counterpart| counterpart.is_implied)?;
        let target = counterpart.target.as_ref()?;
        Some(format!(
            "{target} is assumed to be its Cloud Map service, as without --instances-namespace, because {why}"
        ))
    }

    /// The ECS services that register in the Cloud Map service, as far as they are known.
    pub(super) fn ecs_services(&self) -> &[ecs::Service] {
        self.ecs.as_ref().ok().and_then(Option::as_ref).map(|found| &*found.services).unwrap_or_default()
    }

    /// Number of instances of others that have traffic, or would have it if they were not hidden. A task that the status
    /// calls hidden counts once, also if Cloud Map shows it: it may have been shown since, or be hidden again soon.
    pub(super) fn tasks(&self, registry: &CloudMapService) -> usize {
        let hidden = self.there().and_then(|cutover| cutover.status.as_ref()?.hidden);
        let hidden = hidden.and_then(|hidden| usize::try_from(hidden).ok()).unwrap_or_default();
        registry.others.whole + hidden.min(registry.ill)
    }
}

/// The object that names the Cloud Map service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Counterpart {
    /// `ServiceExport`, `Service` or `Ingress`; `None`: there is none.
    pub(super) kind: Option<&'static str>,
    /// What its annotations name; `None`: they name nothing.
    pub(super) target: Option<Target>,
    /// Whether they name a part of it only. The rest is implied, and depends on the flags of the controller.
    pub(super) is_implied: bool,
    /// What its condition `Registered` says if that is not True: reason and message.
    pub(super) refused: Option<(String, String)>,
    /// The port of the Service that is registered, as its pods have it.
    pub(super) port: Option<u16>,
}

/// The pods of the Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Pods {
    pub(super) ready: usize,
    pub(super) unready: usize,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// How many have the readiness gate.
    pub(super) gated: usize,
    /// Other readiness gates: those of the template of their Deployment, or their own if it is not known.
    pub(super) gates: BTreeSet<String>,
    /// Their containers, by name.
    pub(super) containers: BTreeMap<String, Stop>,
    /// The names of those that are in the template of their Deployment; `None`: it is not known. Others are injected.
    pub(super) template: Option<BTreeSet<String>>,
    /// The shortest `terminationGracePeriodSeconds`.
    pub(super) grace: u64,
    /// What owns them, such as `deployment/orders`.
    pub(super) workload: Option<String>,
}

/// How a container stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Stop {
    /// The shortest `preStop` in any pod, in seconds, as far as it is a sleep; 0 where there is none.
    pub(super) after: u64,
    /// What its `preStop` is, if not `sleep`. The API server takes one handler.
    pub(super) handler: Option<&'static str>,
}

impl Pods {
    /// The shortest `preStop` of all, in seconds. Containers stop side by side: the one that serves may be any of them.
    pub(super) fn stops_after(&self) -> u64 {
        self.containers.values().map(|stop| stop.after).min().unwrap_or_default()
    }
}

/// What the controller of a cluster registered in a Cloud Map service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Cluster {
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The instances that are healthy.
    pub(super) healthy: Others,
    /// How many there are, healthy or not.
    pub(super) instances: usize,
}

impl Cluster {
    /// Whether it is the cluster of these pods, as far as one of them is registered.
    pub(super) fn is_of(&self, pods: &Pods) -> bool {
        !self.addresses.is_disjoint(&pods.addresses)
    }
}

/// The Cloud Map namespace of a service, as far as all its services share something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) namespace: Namespace,
    /// How many instances all its services have, whoever registered them. `None`: Cloud Map does not say it of each.
    pub(super) instances: Option<usize>,
}

impl Room {
    pub(super) fn of(namespace: &Namespace, services: &[Service]) -> Self {
        let instances = services.iter().map(|service| service.instances).sum();
        Self { namespace: namespace.clone(), instances }
    }
}

/// The Cloud Map service.
#[derive(Debug, Clone, Default)]
pub(super) struct CloudMapService {
    /// `None`: there is no such namespace.
    pub(super) room: Option<Room>,
    /// `None`: there is no such service.
    pub(super) service: Option<Service>,
    /// What others have there that is healthy.
    pub(super) others: Others,
    /// How many instances of others are not healthy; hidden tasks are among them.
    pub(super) ill: usize,
    /// How many of these are tasks of ECS.
    pub(super) tasks: usize,
    /// What controllers registered, by the UIDs of their clusters.
    pub(super) clusters: BTreeMap<String, Cluster>,
    /// IPv4 addresses of others.
    pub(super) addresses: BTreeSet<Ipv4Addr>,
    /// Ports of others.
    pub(super) ports: BTreeSet<u16>,
    /// ECS cluster and service of the tasks.
    pub(super) ecs: BTreeSet<(String, String)>,
}

impl CloudMapService {
    /// The TTL of the records; 0 without records.
    pub(super) fn ttl(&self) -> u32 {
        let dns = self.service.as_ref().and_then(|service| service.dns.as_ref());
        dns.and_then(|dns| dns.records.iter().map(|record| record.ttl).max()).unwrap_or_default()
    }

    /// How many instances the service has, whoever registered them.
    pub(super) fn instances(&self) -> usize {
        let pods: usize = self.clusters.values().map(|cluster| cluster.instances).sum();
        let listed = self.service.as_ref().and_then(|service| service.instances);
        listed.unwrap_or(self.others.count() + self.ill + pods)
    }

    /// The types of the records.
    pub(super) fn records(&self) -> BTreeSet<RecordType> {
        let dns = self.service.as_ref().and_then(|service| service.dns.as_ref());
        dns.into_iter().flat_map(|dns| &dns.records).map(|record| record.record_type).collect()
    }
}
