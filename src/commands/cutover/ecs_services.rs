//! The ECS services that register in a Cloud Map service: how they are read, and a pure judgement about them.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

use serde_json::json;

use super::{
    plan::{Finding, Findings, Grade},
    situation::{CloudMapService, Situation},
};
use ecs::{Choice, Controller, Ecs, Error, Found, Network, Service, all};

const ABOUT: &str = "ecs";
/// The task definition of the probe, which docs/moving-from-ecs.md shows how to make.
const PROBE: &str = "cloudmap-mcs-probe";

/// Reads ECS, and lists its services once at most.
pub(super) struct EcsReader {
    /// Why it cannot be asked; `None`: it is not to be asked.
    port: Result<Option<Arc<dyn Ecs>>, String>,
    choice: Choice,
    /// All services where the choice says, or why they are not known; `None`: nobody has asked yet.
    all: Option<Result<Found, Error>>,
}

impl EcsReader {
    pub(super) fn new(port: Result<Option<Arc<dyn Ecs>>, String>, choice: Choice) -> Self {
        Self { port, choice, all: None }
    }

    /// The ECS services that register their tasks in the Cloud Map service with this ARN, also those without a task. `named`:
    /// cluster and service, as the instances in it say them. They count where ECS cannot be searched.
    ///
    /// # Errors
    /// Why ECS could not be read.
    pub(super) async fn registering(
        &mut self,
        arn: &str,
        named: &BTreeSet<(String, String)>,
    ) -> Result<Option<Found>, String> {
        let Some(port) = self.port.clone()? else { return Ok(None) };
        let listed = match self.all.take() {
            Some(listed) => listed,
            None => all(&*port, &self.choice).await,
        };
        let listed = &*self.all.insert(listed);
        let mut found = match listed {
            Ok(all) => all.registering(arn),
            // It would take as long for each of hundreds of names.
            Err(error) if !error.answered => return Err(error.to_string()),
            Err(error) => Found { services: Vec::new(), unread: Some(format!("ECS could not be searched: {error}")) },
        };
        if found.unread.is_some() && self.choice == Choice::default() {
            for (cluster, name) in named {
                let known = found.services.iter().any(|there| there.cluster == *cluster && there.name == *name);
                // Anybody may have written the attributes of an instance. What ECS does not say does not count.
                if !known && let Ok(services) = port.describe(cluster, std::slice::from_ref(name)).await {
                    found.services.extend(Found { services, unread: None }.registering(arn).services);
                }
            }
        }
        match listed {
            Err(error) if found.services.is_empty() => Err(error.to_string()),
            _ => Ok(Some(found)),
        }
    }
}

/// What the ECS services mean for the move.
pub(super) fn judge(situation: &Situation, found: &mut Findings) {
    let Some((registry, arn)) =
        situation.registry.as_ref().ok().and_then(|registry| Some((registry, &registry.service.as_ref()?.arn)))
    else {
        return;
    };
    match &situation.ecs {
        Err(why) => {
            let remedy = "grant what `cloudmap-mcs iam --mode cutover` prints, or look yourself: a daemon, an external \
                          deployment controller and Service Connect block the move";
            found.add(Grade::Warning, ABOUT, format!("ECS could not be read: {why}"), remedy);
        }
        Ok(None) => {}
        Ok(Some(Found { services, unread })) => {
            for service in services {
                about(service, arn, found);
                callers(service, situation, registry, found);
            }
            if let Some(why) = unread {
                let remedy = "if a service there may register in the Cloud Map service, grant what `cloudmap-mcs iam --mode \
                              cutover` prints; otherwise name the cluster that counts with --ecs-cluster";
                found.add(Grade::Warning, ABOUT, why, remedy);
            }
            match registry.ecs.first() {
                _ if !services.is_empty() => {}
                None if unread.is_none() => found.ok(ABOUT, "no ECS service registers there"),
                None => {}
                Some((cluster, service)) => {
                    let text = format!(
                        "instances say that they are of the ECS service {cluster}/{service}, and no ECS service that was \
                         read registers there"
                    );
                    let remedy =
                        "look at --region and the account, and at --ecs-cluster and --ecs-service if you set them";
                    found.add(Grade::Warning, ABOUT, text, remedy);
                }
            }
        }
    }
}

/// What blocks the move of any of these services, which register in the Cloud Map service with this ARN.
pub(super) fn blockers(services: &[Service], arn: &str) -> Vec<Finding> {
    let mut found = Findings::default();
    for service in services {
        about(service, arn, &mut found);
    }
    found.0.retain(|finding| finding.grade == Grade::Blocked);
    found.0
}

fn about(service: &Service, arn: &str, found: &mut Findings) {
    use Grade::{Blocked, Warning};
    let path = service.path();
    let Service { desired, running, .. } = service;
    if running == desired {
        found.ok(ABOUT, format!("{path}: {running} of {desired} tasks run"));
    } else {
        let text = format!("{path}: {running} of {desired} tasks run");
        found.add(Warning, ABOUT, text, "wait until they do, or repair them: the way back needs them");
    }
    let mut add = |grade: Grade, holds: bool, text: &str, remedy: &str| {
        if holds {
            found.add(grade, ABOUT, format!("{path}: {text}"), remedy);
        }
    };
    add(Warning, !service.active, "the service is being deleted", "create it again: the way back needs it");
    add(
        Blocked,
        service.daemon,
        "it has one task on each host (DAEMON), and no number of tasks that can be lowered to 0",
        "make a service with the strategy REPLICA of it first",
    );
    add(
        Blocked,
        service.controller == Controller::External,
        "an external deployment controller starts and stops its tasks, at any time",
        "move its tasks to a service that ECS deploys first",
    );
    add(
        Warning,
        service.controller == Controller::CodeDeploy,
        "CodeDeploy replaces all of its tasks at once",
        "start no deployment until the move is finished",
    );
    add(
        Blocked,
        service.service_connect,
        "Service Connect is enabled: clients in ECS go through its proxy and do not ask Cloud Map, so no share holds there",
        "let the clients use the name in DNS, and disable Service Connect for this service",
    );
    add(Warning, service.deploying, "a deployment is in progress", "wait until it is complete");
    add(
        Warning,
        service.spot,
        "tasks run on Fargate Spot: AWS stops them 120 s after it says so",
        "use FARGATE until the move is finished, or move in few and short steps",
    );
    let ports: Vec<_> = service.ports.iter().map(ToString::to_string).collect();
    let text = format!("it has several ports: {}", ports.join(", "));
    add(Warning, ports.len() > 1, &text, "look whether the pods serve all of them: only the registered one moves");
    if let Some(text) = serves_others(service, arn) {
        add(Warning, true, &text, "move these, too, before you stop the tasks");
    }
    let remedy = format!("look: {}", service.look_for_autoscaling());
    found.0.push(Finding {
        grade: Grade::Ok,
        about: ABOUT,
        text: format!("{path}: ECS does not say whether autoscaling changes the number of tasks"),
        remedy: Some(remedy),
    });
}

/// How clients in the network of the tasks see the pods. Subnets of a VPC have at most 2^16 addresses.
fn callers(service: &Service, situation: &Situation, registry: &CloudMapService, found: &mut Findings) {
    let (Some(network), Ok(pods)) = (&service.network, &situation.pods) else { return };
    let port = situation.counterpart.as_ref().ok().and_then(|counterpart| counterpart.port);
    let Some((pod, port)) = pods.addresses.first().zip(port.or_else(|| registry.ports.first().copied())) else {
        return;
    };
    let block = |ip: &Ipv4Addr| [ip.octets()[0], ip.octets()[1]];
    let of_tasks: BTreeSet<_> = registry.addresses.iter().map(block).collect();
    let is_near = |ip: &IpAddr| matches!(ip, IpAddr::V4(ip) if of_tasks.contains(&block(ip)));
    let apart = !of_tasks.is_empty() && !pods.addresses.iter().any(is_near);
    let groups = if network.security_groups.is_empty() { "default".to_owned() } else { list(&network.security_groups) };
    let (grade, prefers) = if apart {
        (Grade::Warning, "no pod is in one of these subnets, so clients there that use glibc stay with the tasks")
    } else {
        (Grade::Ok, "clients in one of these subnets that use glibc stay with the tasks if no pod is there")
    };
    let (path, subnets) = (service.path(), list(&network.subnets));
    let text = format!("{path}: tasks are in {subnets} (security groups: {groups}); {prefers}");
    let remedy = format!("try the way from there to a pod: {}", probe(service, network, *pod, port));
    found.add(grade, "callers", text, remedy);
}

/// The command that runs a task in the network of the tasks, or of another caller, which connects to a pod and ends.
fn probe(service: &Service, network: &Network, pod: IpAddr, port: u16) -> String {
    let Network { subnets, security_groups, public } = network;
    let groups =
        if security_groups.is_empty() { String::new() } else { format!(",securityGroups=[{}]", list(security_groups)) };
    let public = if *public { "ENABLED" } else { "DISABLED" };
    let connect = ["nc", "-z", "-v", "-w", "5", &pod.to_string(), &port.to_string()];
    let overrides = json!({"containerOverrides": [{"name": "probe", "command": connect}]});
    format!(
        "aws ecs run-task{} --cluster {} --task-definition {PROBE} --launch-type FARGATE --network-configuration \
         'awsvpcConfiguration={{subnets=[{}]{groups},assignPublicIp={public}}}' --overrides '{overrides}'",
        service.region_flag(),
        service.cluster,
        list(subnets),
    )
}

fn list(ids: &BTreeSet<String>) -> String {
    ids.iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

/// Says who finds the tasks other than by the Cloud Map service with this ARN: `None` if nobody does.
pub(super) fn serves_others(service: &Service, arn: &str) -> Option<String> {
    let others: Vec<_> = service.registries.iter().filter(|other| *other != arn).map(String::as_str).collect();
    let balancers = match service.load_balancers {
        0 => None,
        1 => Some("a load balancer".to_owned()),
        number => Some(format!("{number} load balancers")),
    };
    let registries = (!others.is_empty()).then(|| others.join(", "));
    let all: Vec<_> = registries.into_iter().chain(balancers).collect();
    (!all.is_empty()).then(|| format!("its tasks are also in {}", all.join(" and in ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecs::{
        Operation,
        fake::{FakeEcs, mk_service},
    };

    const ARN: &str = "arn:orders";

    fn reader(ecs: &FakeEcs, choice: Choice) -> EcsReader {
        EcsReader::new(Ok(Some(Arc::new(ecs.clone()))), choice)
    }

    /// What is wrong with a service.
    fn wrong(change: fn(&mut Service)) -> Vec<(Grade, String)> {
        let mut service = mk_service("prod", "orders", ARN);
        change(&mut service);
        let mut found = Findings::default();
        about(&service, ARN, &mut found);
        let bad = found.0.into_iter().filter(|finding| finding.grade != Grade::Ok);
        bad.map(|finding| {
            assert!(finding.remedy.is_some_and(|remedy| !remedy.is_empty()), "{}", finding.text);
            (finding.grade, finding.text)
        })
        .collect()
    }

    #[test]
    fn each_thing_that_hinders_a_move_is_found_with_its_grade() {
        use Grade::{Blocked, Warning};
        assert_eq!(wrong(|_| {}), []);
        for (change, grade, part) in [
            ((|it| it.daemon = true) as fn(&mut Service), Blocked, "DAEMON"),
            (|it| it.controller = Controller::External, Blocked, "external deployment controller"),
            (|it| it.service_connect = true, Blocked, "Service Connect"),
            (|it| it.controller = Controller::CodeDeploy, Warning, "CodeDeploy"),
            (|it| it.deploying = true, Warning, "in progress"),
            (|it| it.spot = true, Warning, "120 s"),
            (|it| it.running = 1, Warning, "1 of 2 tasks run"),
            (|it| it.active = false, Warning, "being deleted"),
            (|it| it.ports = [80, 8080].into(), Warning, "several ports: 80, 8080"),
            (|it| it.load_balancers = 2, Warning, "also in 2 load balancers"),
            (
                |it| {
                    it.registries.insert("arn:other".to_owned());
                    it.load_balancers = 1;
                },
                Warning,
                "also in arn:other and in a load balancer",
            ),
        ] {
            let found = wrong(change);
            assert!(
                matches!(&*found, [(there, text)] if *there == grade && text.starts_with("prod/orders: ") && text.contains(part)),
                "{part}: {found:?}"
            );
        }
    }

    #[test]
    fn autoscaling_cannot_be_seen_and_the_command_that_shows_it_is_said() {
        let mut found = Findings::default();
        about(&mk_service("prod", "orders", ARN), ARN, &mut found);
        let said = found.0.last().unwrap().remedy.clone().unwrap();
        assert!(said.ends_with("--service-namespace ecs --resource-ids service/prod/orders"), "{said}");
    }

    fn named(service: &str) -> BTreeSet<(String, String)> {
        [("prod".to_owned(), service.to_owned())].into()
    }

    fn paths(found: &Found) -> Vec<String> {
        found.services.iter().map(Service::path).collect()
    }

    #[tokio::test]
    async fn every_service_that_registers_there_is_found_whatever_the_instances_say() {
        // The first one has no instance.
        let services = [("blue", "orders", ARN), ("prod", "orders", ARN), ("prod", "carts", "arn:carts")];
        let ecs = FakeEcs::with(services.map(|(cluster, name, arn)| mk_service(cluster, name, arn)));
        let mut reader = reader(&ecs, Choice::default());
        for service in ["orders", "carts", "gone"] {
            let found = reader.registering(ARN, &named(service)).await.unwrap().unwrap();
            assert_eq!(paths(&found), ["blue/orders", "prod/orders"], "{service}");
        }
        // One listing is enough for all names.
        ecs.state().calls.clear();
        let found = reader.registering("arn:carts", &BTreeSet::new()).await.unwrap().unwrap();
        assert_eq!(paths(&found), ["prod/carts"]);
        assert_eq!(ecs.state().calls, []);
    }

    #[tokio::test]
    async fn where_ecs_cannot_be_searched_it_is_asked_for_what_the_instances_say() {
        for nothing_is_listed in [false, true] {
            let services = [("prod", "orders", ARN), ("prod", "carts", "arn:carts"), ("test", "web", "arn:web")];
            let ecs = FakeEcs::with(services.map(|(cluster, name, arn)| mk_service(cluster, name, arn)));
            if nothing_is_listed {
                ecs.deny(Operation::ListClusters);
            } else {
                ecs.state().unreadable.insert("prod".to_owned());
            }
            let mut reader = reader(&ecs, Choice::default());
            let found = reader.registering(ARN, &named("orders")).await.unwrap().unwrap();
            assert_eq!(paths(&found), ["prod/orders"]);
            let said = found.unread.unwrap();
            assert!(said.contains("access denied: ecs:List"), "{said}");
            match reader.registering(ARN, &named("carts")).await {
                Ok(found) => assert!(!nothing_is_listed && found.is_some_and(|found| found.services.is_empty())),
                Err(why) => assert!(nothing_is_listed && why.contains("ecs:ListClusters"), "{why}"),
            }
        }
    }

    #[tokio::test]
    async fn ecs_that_does_not_answer_is_asked_once_for_all_names() {
        let ecs = FakeEcs::with([mk_service("prod", "orders", ARN)]);
        ecs.state().silent = true;
        let mut reader = reader(&ecs, Choice::default());
        for arn in [ARN, "arn:carts"] {
            let why = reader.registering(arn, &named("orders")).await.unwrap_err();
            assert!(why.contains("no usable answer"), "{why}");
        }
        assert_eq!(ecs.state().calls, [Operation::ListClusters]);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_a_text_and_what_is_not_to_be_read_is_nothing() {
        let ecs = FakeEcs::default();
        ecs.deny(Operation::ListClusters);
        let why = reader(&ecs, Choice::default()).registering(ARN, &BTreeSet::new()).await.unwrap_err();
        assert!(why.contains("ecs:ListClusters"), "{why}");
        let mut none = EcsReader::new(Ok(None), Choice::default());
        assert_eq!(none.registering(ARN, &BTreeSet::new()).await, Ok(None));
        let mut unset = EcsReader::new(Err("no AWS region is set".to_owned()), Choice::default());
        assert_eq!(unset.registering(ARN, &BTreeSet::new()).await, Err("no AWS region is set".to_owned()));
    }
}
