//! Whether AWS has room for tasks and pods at once, who resolves their namespace, and what both cost: pure judgements.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    plan::{Findings, Grade, Plan},
    situation::{CloudMapService, Room, Situation},
};
use cli::shell::quoted;
use cloudmap::{
    Namespace, NamespaceKind,
    quotas::{INSTANCES_PER_NAMESPACE, INSTANCES_PER_SERVICE, USD_PER_INSTANCE},
};
use ecs::region_flag;

/// How many instances the moves will add to each Cloud Map namespace, by its id.
#[derive(Debug, Default)]
pub(super) struct Coming(BTreeMap<Arc<str>, (Room, Arrivals)>);

/// What comes into one namespace.
#[derive(Debug, Clone, Copy, Default)]
struct Arrivals {
    names: usize,
    pods: usize,
}

impl Coming {
    /// One more name moves there, and so many pods of it are not registered yet.
    pub(super) fn add(&mut self, room: &Room, pods: usize) {
        let (_, arrivals) =
            self.0.entry(Arc::clone(&room.namespace.id)).or_insert_with(|| (room.clone(), Arrivals::default()));
        *arrivals = Arrivals { names: arrivals.names + 1, pods: arrivals.pods + pods };
    }

    /// The same, by what is known of the name. A service that does not exist takes nothing.
    pub(super) fn observed(&mut self, situation: &Situation) {
        let Ok(CloudMapService { room: Some(room), service: Some(_), .. }) = &situation.registry else { return };
        self.add(room, more(situation));
    }

    /// A judgement about each namespace.
    pub(super) fn plans(&self) -> Vec<(String, Plan)> {
        let plan = |(room, arrivals): &(Room, Arrivals)| {
            let name = format!("Cloud Map namespace {}", room.namespace.name);
            (name, Plan { findings: judge(room, *arrivals).0, steps: Vec::new(), patch: None })
        };
        self.0.values().map(plan).collect()
    }
}

/// How many pods are registered beside what is there now, if there are at least as many pods as tasks, as there should be.
fn more(situation: &Situation) -> usize {
    let Ok(registry) = &situation.registry else { return 0 };
    let tasks = situation.tasks(registry);
    let Ok(pods) = &situation.pods else { return tasks };
    let registered = registry.clusters.values().filter(|cluster| cluster.is_of(pods));
    let registered: usize = registered.map(|cluster| cluster.instances).sum();
    tasks.max(pods.ready + pods.unready).saturating_sub(registered)
}

fn judge(room: &Room, arrivals: Arrivals) -> Findings {
    let mut found = Findings::default();
    quota(room, arrivals, &mut found);
    zone(&room.namespace, &mut found);
    let Arrivals { pods, .. } = arrivals;
    let usd = pods as f64 * USD_PER_INSTANCE;
    let text = format!(
        "{pods} instances more cost about {usd:.2} USD a month while tasks and pods are registered, {USD_PER_INSTANCE:.2} USD \
         each"
    );
    found.ok("cost", text);
    found
}

fn quota(room: &Room, Arrivals { names, pods }: Arrivals, found: &mut Findings) {
    let (about, namespace) = ("quota", &room.namespace);
    let region = region_flag(&namespace.arn);
    let names = if names == 1 { "this name".to_owned() } else { format!("these {names} names") };
    let Some(now) = room.instances else {
        let text = format!("Cloud Map does not say how many instances the namespace has; {pods} more of {names} come");
        let remedy = format!(
            "see that they are at most {INSTANCES_PER_NAMESPACE} together: aws servicediscovery list-services{region} \
             --filters Name=NAMESPACE_ID,Values={} --query 'sum(Services[].InstanceCount)'",
            quoted(&namespace.id)
        );
        return found.add(Grade::Warning, about, text, remedy);
    };
    let at_once = now + pods;
    let text = format!(
        "{now} instances now and {pods} more for the pods of {names} are {at_once} at once, and AWS takes \
         {INSTANCES_PER_NAMESPACE} in a namespace unless it raised the quota"
    );
    if at_once <= INSTANCES_PER_NAMESPACE {
        return found.ok(about, text);
    }
    let of = format!("{region} --service-code AWSCloudMap --quota-code L-D95E8A57");
    let remedy = format!(
        "look whether it is raised: aws service-quotas get-service-quota{of}; otherwise ask for more: aws service-quotas \
         request-service-quota-increase{of} --desired-value {at_once}; or move in waves, and stop the tasks of each wave before \
         the next"
    );
    found.add(Grade::Warning, about, text, remedy);
}

/// Which VPCs resolve a private namespace. Only Route 53 says it, and nothing says in which VPC the cluster is.
fn zone(namespace: &Namespace, found: &mut Findings) {
    if namespace.kind != NamespaceKind::DnsPrivate {
        return;
    }
    let region = region_flag(&namespace.arn);
    let (zone, first) = match &namespace.hosted_zone {
        Some(zone) => (quoted(zone), String::new()),
        None => (
            "ZONE".to_owned(),
            format!(
                "aws servicediscovery get-namespace{region} --id {} --query \
                 Namespace.Properties.DnsProperties.HostedZoneId says the ZONE; ",
                quoted(&namespace.id)
            ),
        ),
    };
    let text = format!(
        "the namespace is private: only VPCs that are associated with its hosted zone ({zone}) resolve it, and whether that of \
         the cluster is one is not known here"
    );
    let remedy = format!(
        "if callers move, too, look for the VPC of the cluster: {first}aws route53 get-hosted-zone --id {zone} --query VPCs; if \
         it is not there: aws route53 associate-vpc-with-hosted-zone --hosted-zone-id {zone} --vpc \
         VPCRegion=REGION,VPCId=VPC"
    );
    found.add(Grade::Ok, "zone", text, remedy);
}

/// Whether one service takes its tasks and its pods at once.
pub(super) fn of_service(situation: &Situation, registry: &CloudMapService, found: &mut Findings) {
    let (about, now, more) = ("quota", registry.instances(), more(situation));
    let pods = situation.pods.as_ref().map_or(0, |pods| pods.ready + pods.unready);
    if registry.service.is_none() || now + more <= INSTANCES_PER_SERVICE {
        return;
    }
    let text = format!(
        "{now} instances now and {more} more for the pods are {} at once, and AWS takes {INSTANCES_PER_SERVICE} in a service",
        now + more
    );
    if pods > INSTANCES_PER_SERVICE {
        found.add(Grade::Blocked, about, text, "AWS does not raise this quota: run fewer and larger pods");
    } else {
        let remedy =
            "AWS does not raise this quota: run fewer and larger pods, or stop some of the tasks between the steps";
        found.add(Grade::Warning, about, text, remedy);
    }
}
