//! What `cutover plan` and `cutover finish` read. Each part may fail by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::{
    apps::v1::Deployment,
    autoscaling::v2::HorizontalPodAutoscaler,
    core::v1::{Container, Pod, PodSpec, Service},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, Client,
    api::ListParams,
    core::{Selector, SelectorExt as _},
};
use tokio::time::Instant;

use super::{
    ecs_services::EcsReader,
    registry::RegistryReader,
    situation::{CloudMapService, Cluster, Counterpart, Pods, Situation, Stop},
};
use crate::{
    asking::{SAY, workload},
    installed::Settings,
};
use api::{
    Cutover, ServiceExport,
    conditions::{ExportCondition, RegisteredReason},
    names::{
        ANNOTATION_INSTANCE_PORT, ANNOTATION_PYTHON_HOSTNAME, ANNOTATION_PYTHON_NAMESPACE, ANNOTATION_SHARE,
        ANNOTATION_SHARE_OF_TRAFFIC, CONDITION_REGISTERED,
    },
};
use cloudmap::{Instance, attributes};
use cluster::reader::{Unread, read};
use instances::{Named, Naming, share::Others};
use model::{ServiceKey, Target};

/// The clusters and the registry that are asked.
pub(super) struct Observer {
    pub(super) client: Client,
    cloudmap: RegistryReader,
    ecs: EcsReader,
    /// What the flags of the controller are set to.
    settings: Result<Settings, String>,
}

impl Observer {
    pub(super) fn new(
        client: Client,
        cloudmap: Result<Arc<dyn cloudmap::Read>, String>,
        ecs: EcsReader,
        settings: Result<Settings, String>,
    ) -> Self {
        Self { client, cloudmap: RegistryReader::new(cloudmap), ecs, settings }
    }

    /// Everything about a name.
    pub(super) async fn observe(&mut self, key: &ServiceKey) -> Situation {
        let cutover = self.cutover(key).await;
        let service = Api::<Service>::namespaced(self.client.clone(), &key.namespace);
        let service = read(service.get_opt(&key.name)).await;
        let counterpart = self.counterpart(key, service.as_ref()).await;
        let labels = service.as_ref().ok().and_then(|service| service.as_ref()?.spec.as_ref()?.selector.clone());
        let pods = match service {
            Ok(_) => self.pods(key, labels.unwrap_or_default()).await,
            Err(why) => Err(why),
        };
        let registry = match &counterpart {
            Ok(Counterpart { target: Some(target), .. }) => self.registry(target).await,
            Ok(_) => Ok(CloudMapService::default()),
            Err(why) => Err(why.clone()),
        };
        let ecs = match registry.as_ref().ok().and_then(|registry| Some((registry.service.as_ref()?, &registry.ecs))) {
            Some((service, named)) => self.ecs.registering(&service.arn, named).await,
            None => Ok(None),
        };
        let template = pods.as_ref().ok().map(|(_, labels)| labels.clone()).unwrap_or_default();
        let workload = pods.as_ref().ok().and_then(|(pods, _)| pods.workload.clone());
        Situation {
            key: key.clone(),
            cutover,
            counterpart,
            settings: self.settings.clone(),
            pods: pods.map(|(pods, _)| pods),
            registry,
            ecs,
            budgets: self.budgets(key, &template).await,
            autoscalers: self.autoscalers(key, workload.as_deref()).await,
        }
    }

    /// The Cutover of a name, as it is now.
    pub(super) async fn cutover(&self, key: &ServiceKey) -> Result<Option<Cutover>, Unread> {
        let cutovers = Api::<Cutover>::namespaced(self.client.clone(), &key.namespace);
        read(cutovers.get_opt(&key.name)).await
    }

    async fn counterpart(
        &self,
        key: &ServiceKey,
        service: Result<&Option<Service>, &Unread>,
    ) -> Result<Counterpart, String> {
        let exports = Api::<ServiceExport>::namespaced(self.client.clone(), &key.namespace);
        let export = read(exports.get_opt(&key.name)).await.map_err(|why| why.to_string())?;
        let service = service.map_err(ToString::to_string)?.as_ref();
        let naming = self.settings.as_ref().map(Settings::naming).unwrap_or_default();
        Ok(counterpart(export.as_ref(), service, &naming))
    }

    /// The pods of a name, as they are now.
    pub(super) async fn pods_of(&self, key: &ServiceKey) -> Result<Pods, Unread> {
        let services = Api::<Service>::namespaced(self.client.clone(), &key.namespace);
        let service = read(services.get_opt(&key.name)).await?;
        let labels = service.and_then(|service| service.spec?.selector);
        Ok(self.pods(key, labels.unwrap_or_default()).await?.0)
    }

    /// The pods of a Service, and the labels of one of them.
    pub(super) async fn pods(
        &self,
        key: &ServiceKey,
        selector: BTreeMap<String, String>,
    ) -> Result<(Pods, BTreeMap<String, String>), Unread> {
        if selector.is_empty() {
            return Ok((Pods::default(), BTreeMap::new()));
        }
        let selector: Vec<_> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let pods = Api::<Pod>::namespaced(self.client.clone(), &key.namespace);
        let list = read(pods.list(&ListParams::default().labels(&selector.join(",")))).await?;
        let (mut pods, labels) = summed(&list.items);
        if let Some(template) = self.template(key, pods.workload.as_deref()).await {
            pods.gates = other_gates(&template).collect();
            pods.template = Some(template.containers.into_iter().map(|container| container.name).collect());
        }
        Ok((pods, labels))
    }

    /// The template of a Deployment; `None`: it is none, or cannot be read.
    async fn template(&self, key: &ServiceKey, workload: Option<&str>) -> Option<PodSpec> {
        let name = workload?.strip_prefix("deployment/")?;
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), &key.namespace);
        read(deployments.get_opt(name)).await.ok()??.spec?.template.spec
    }

    async fn budgets(&self, key: &ServiceKey, labels: &BTreeMap<String, String>) -> Result<usize, String> {
        let budgets = Api::<PodDisruptionBudget>::namespaced(self.client.clone(), &key.namespace);
        let list = read(budgets.list(&ListParams::default())).await.map_err(|why| why.to_string())?;
        let selects = |budget: &&PodDisruptionBudget| {
            let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selector = selector.and_then(|selector| Selector::try_from(selector.clone()).ok());
            selector.is_some_and(|selector| selector.matches(labels))
        };
        Ok(list.items.iter().filter(selects).count())
    }

    async fn autoscalers(&self, key: &ServiceKey, workload: Option<&str>) -> Result<Vec<(String, i32)>, String> {
        let Some((kind, name)) = workload.and_then(|workload| workload.split_once('/')) else { return Ok(Vec::new()) };
        let autoscalers = Api::<HorizontalPodAutoscaler>::namespaced(self.client.clone(), &key.namespace);
        let list = read(autoscalers.list(&ListParams::default())).await.map_err(|why| why.to_string())?;
        let of = |autoscaler: HorizontalPodAutoscaler| {
            let spec = autoscaler.spec?;
            let target = spec.scale_target_ref;
            let is_it = target.name == name && target.kind.eq_ignore_ascii_case(kind);
            is_it.then(|| (autoscaler.metadata.name.unwrap_or_default(), spec.min_replicas.unwrap_or(1)))
        };
        Ok(list.items.into_iter().filter_map(of).collect())
    }

    /// What Cloud Map has.
    pub(super) async fn registry(&mut self, target: &Target) -> Result<CloudMapService, String> {
        self.cloudmap.registry(target).await
    }
}

/// Says how many names are read, if that takes long.
pub(super) struct Progress {
    all: usize,
    read: usize,
    said: Instant,
}

impl Progress {
    pub(super) fn of(all: usize) -> Self {
        Self { all, read: 0, said: Instant::now() }
    }

    /// One more is read.
    pub(super) fn one_more(&mut self, out: &mut impl Write) -> io::Result<()> {
        self.read += 1;
        if self.said.elapsed() >= SAY && self.read < self.all {
            self.said = Instant::now();
            writeln!(out, "{} of {} names are read", self.read, self.all)?;
        }
        Ok(())
    }
}

/// What others have in a service.
pub(super) fn there(service: cloudmap::Service, found: &cloudmap::Discovery) -> CloudMapService {
    let healthy = found.instances.iter().filter(|there| !found.unhealthy.contains(&there.id));
    let others: Vec<_> = healthy.filter(|there| !there.attributes.contains_key(attributes::CLUSTER_UID)).collect();
    let attribute =
        |name: &str| -> Vec<String> { others.iter().filter_map(|there| there.attributes.get(name).cloned()).collect() };
    let mut pods = BTreeMap::<&String, Vec<&Instance>>::new();
    for there in &found.instances {
        if let Some(uid) = there.attributes.get(attributes::CLUSTER_UID) {
            pods.entry(uid).or_default().push(there);
        }
    }
    let clusters = pods.into_iter().map(|(uid, pods)| (uid.clone(), cluster(&pods, &found.unhealthy)));
    // Hidden tasks are unhealthy.
    let of_others = found.instances.iter().filter(|there| !there.attributes.contains_key(attributes::CLUSTER_UID));
    let ill = of_others.clone().count() - others.len();
    let ecs = of_others.filter_map(|there| {
        let [cluster, service] =
            [attributes::ECS_CLUSTER, attributes::ECS_SERVICE].map(|name| there.attributes.get(name));
        Some((cluster?.clone(), service?.clone()))
    });
    CloudMapService {
        room: None,
        service: Some(service),
        others: Others::of(others.iter().copied()),
        ill,
        tasks: attribute(attributes::ECS_SERVICE).len(),
        clusters: clusters.collect(),
        addresses: attribute(attributes::IPV4).iter().filter_map(|address| address.parse().ok()).collect(),
        ports: attribute(attributes::PORT).iter().filter_map(|port| port.parse().ok()).collect(),
        ecs: ecs.collect::<BTreeSet<_>>(),
    }
}

/// What a cluster has in a service.
fn cluster(pods: &[&Instance], unhealthy: &BTreeSet<Arc<str>>) -> Cluster {
    let addresses = pods.iter().flat_map(|there| {
        [attributes::IPV4, attributes::IPV6]
            .map(|name| there.attributes.get(name).and_then(|it| it.parse::<IpAddr>().ok()))
    });
    let healthy = pods.iter().copied().filter(|there| !unhealthy.contains(&there.id));
    Cluster { addresses: addresses.flatten().collect(), healthy: Others::of(healthy), instances: pods.len() }
}

/// The Cloud Map service of an export, if an annotation names it, joins it or asks for a share in it. What none names is implied,
/// as by the controller.
pub(super) fn target_of(export: &ServiceExport, naming: &Naming) -> Option<Target> {
    let annotations = export.metadata.annotations.as_ref();
    let [joins, share] = values(annotations, [ANNOTATION_SHARE, ANNOTATION_SHARE_OF_TRAFFIC]);
    let named = named(export);
    if !named.is_any() && share.is_none() && joins != Some("true") {
        return None;
    }
    let own = |own: &Option<String>| own.clone().unwrap_or_default();
    Some(named.target(naming, &ServiceKey::new(own(&export.metadata.namespace), own(&export.metadata.name))))
}

fn named(export: &ServiceExport) -> Named<'_> {
    let annotations = export.metadata.annotations.as_ref();
    Named::read(|name| annotations?.get(name).map(String::as_str))
}

/// The object that names the Cloud Map service. `naming`: how the controller names what annotations do not.
pub(super) fn counterpart(export: Option<&ServiceExport>, service: Option<&Service>, naming: &Naming) -> Counterpart {
    let ports = service.and_then(|service| service.spec.as_ref()?.ports.as_ref());
    let [wanted] = values(export.and_then(|export| export.metadata.annotations.as_ref()), [ANNOTATION_INSTANCE_PORT]);
    let port = ports.and_then(|ports| {
        let named = wanted.and_then(|wanted| {
            ports.iter().find(|port| port.name.as_deref() == Some(wanted) || port.port.to_string() == wanted)
        });
        let port = named.or_else(|| ports.first())?;
        let number = match &port.target_port {
            Some(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(number)) => *number,
            // The name of a container's port, which only pods have.
            Some(_) => return None,
            None => port.port,
        };
        u16::try_from(number).ok()
    });
    if let Some(export) = export {
        let target = target_of(export, naming);
        let conditions = export.status.iter().flat_map(|status| &status.conditions);
        let registered = conditions.clone().find(|condition| condition.type_ == ExportCondition::Registered.as_str());
        let refused = registered.filter(|condition| condition.status != "True");
        let refused = refused.map(|condition| (condition.reason.clone(), condition.message.clone()));
        let refused = refused.or_else(|| {
            registered.is_none().then(|| {
                (RegisteredReason::Pending.as_str().to_owned(), "no controller has said what became of it".to_owned())
            })
        });
        let is_implied = !named(export).is_all();
        return Counterpart { kind: Some("ServiceExport"), target, is_implied, refused, port };
    }
    let annotations = service.and_then(|service| service.metadata.annotations.as_ref());
    match values(annotations, [ANNOTATION_PYTHON_NAMESPACE, ANNOTATION_PYTHON_HOSTNAME]) {
        [Some(namespace), Some(service)] => {
            let target = Some(Target { namespace: namespace.into(), service: service.into() });
            Counterpart { kind: Some("Service"), target, port, ..Counterpart::default() }
        }
        _ => Counterpart { port, ..Counterpart::default() },
    }
}

/// The values of annotations. Spaces around them do not count.
fn values<'a, const N: usize>(
    annotations: Option<&'a BTreeMap<String, String>>,
    names: [&str; N],
) -> [Option<&'a str>; N] {
    names.map(|name| Some(annotations?.get(name)?.trim()))
}

/// The sums of pods, and the labels of one of them.
pub(super) fn summed(pods: &[Pod]) -> (Pods, BTreeMap<String, String>) {
    let mut sums = Pods { grace: u64::MAX, ..Pods::default() };
    let mut labels = BTreeMap::new();
    // Those that were evicted, or whose Job is done, are not endpoints any more.
    let has_ended = |pod: &&Pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        matches!(phase, Some("Failed" | "Succeeded"))
    };
    let there = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none() && !has_ended(pod));
    for pod in there {
        let (spec, status) = (pod.spec.clone().unwrap_or_default(), pod.status.clone().unwrap_or_default());
        let ready = status.conditions.iter().flatten().any(|it| it.type_ == "Ready" && it.status == "True");
        if ready {
            sums.ready += 1;
        } else {
            sums.unready += 1;
        }
        sums.addresses.extend(status.pod_ips.iter().flatten().filter_map(|ip| ip.ip.parse::<IpAddr>().ok()));
        let gated = spec.readiness_gates.iter().flatten().any(|gate| gate.condition_type == CONDITION_REGISTERED);
        sums.gated += usize::from(gated);
        sums.gates.extend(other_gates(&spec));
        sums.grace =
            sums.grace.min(spec.termination_grace_period_seconds.and_then(|it| it.try_into().ok()).unwrap_or(30));
        // Sidecars among the init containers get their SIGTERM when all of these have stopped, so they need no hook.
        for container in &spec.containers {
            let stop = stop(container);
            let known = sums.containers.entry(container.name.clone()).or_insert(stop);
            *known = Stop { after: known.after.min(stop.after), handler: known.handler.or(stop.handler) };
        }
        sums.workload =
            sums.workload.or_else(|| workload(pod).map(|(kind, name)| format!("{}/{name}", kind.to_lowercase())));
        labels = pod.metadata.labels.clone().unwrap_or_default();
    }
    if sums.ready + sums.unready == 0 {
        sums.grace = 0;
    }
    (sums, labels)
}

/// The readiness gates that are not ours.
fn other_gates(spec: &PodSpec) -> impl Iterator<Item = String> {
    let gates = spec.readiness_gates.iter().flatten().map(|gate| gate.condition_type.clone());
    gates.filter(|gate| gate != CONDITION_REGISTERED)
}

fn stop(container: &Container) -> Stop {
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let handler = hook.and_then(|hook| {
        let others = [
            ("exec", hook.exec.is_some()),
            ("httpGet", hook.http_get.is_some()),
            ("tcpSocket", hook.tcp_socket.is_some()),
        ];
        others.into_iter().find_map(|(handler, is_there)| is_there.then_some(handler))
    });
    Stop { after: slept(container).unwrap_or_default(), handler }
}

/// How long a container sleeps before it stops, as far as that can be seen.
fn slept(container: &Container) -> Option<u64> {
    let hook = container.lifecycle.as_ref()?.pre_stop.as_ref()?;
    if let Some(sleep) = &hook.sleep {
        return u64::try_from(sleep.seconds).ok();
    }
    let command = hook.exec.as_ref()?.command.as_ref()?.join(" ");
    seconds(command.split_once("sleep ")?.1)
}

/// The seconds that the arguments of `sleep` add up to, as coreutils and busybox read them: `90`, `1.5m`, `1m 30s`.
fn seconds(arguments: &str) -> Option<u64> {
    let time = |word: &str| -> Option<f64> {
        let units = [('s', 1.0), ('m', 60.0), ('h', 3600.0), ('d', 86_400.0)];
        let (number, unit) = units
            .into_iter()
            .find_map(|(letter, unit)| Some((word.strip_suffix(letter)?, unit)))
            .unwrap_or((word, 1.0));
        Some(number.parse::<f64>().ok()? * unit)
    };
    // What follows in a shell is something else.
    let words = arguments.split(|c: char| !(c.is_ascii_alphanumeric() || c == '.' || c == ' ')).next()?;
    let times: Vec<f64> = words.split_whitespace().map_while(time).collect();
    if times.is_empty() {
        return None;
    }
    Some(Duration::try_from_secs_f64(times.iter().sum()).ok()?.as_secs())
}
