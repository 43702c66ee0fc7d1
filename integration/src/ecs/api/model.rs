//! Services of ECS in memory, and what its API answers about them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

const REGION: &str = "us-east-1";
const ACCOUNT: &str = "000000000000";
/// "You may specify up to 10 services to describe in a single operation" (`DescribeServices`).
const MOST_DESCRIBED: usize = 10;

/// A service. Without tasks that run, each look at it finds one less or more, until there are as many as desired.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact that the API answers with")]
pub struct ManagedService {
    pub desired: i64,
    pub running: i64,
    /// Tasks that are being started.
    pub pending: i64,
    /// Those of the running tasks that are of an older deployment.
    pub old: i64,
    /// How often tasks could not be started or stopped.
    pub failed: i64,
    /// Whether its tasks run, so that somebody counts them.
    pub has_tasks: bool,
    /// The port of its container.
    pub port: u16,
    /// ARNs of Cloud Map services in which its tasks are registered, with that port.
    pub registries: Vec<String>,
    /// Ports of target groups.
    pub load_balancers: Vec<u16>,
    pub daemon: bool,
    /// `ECS`, `CODE_DEPLOY` or `EXTERNAL`.
    pub controller: String,
    /// Whether an older deployment still has tasks, or is to be replaced.
    pub deploying: bool,
    /// Whether Service Connect is enabled; the ARN is that of the Cloud Map service that it keeps.
    pub service_connect: Option<String>,
    pub spot: bool,
    /// The subnets of its tasks, if these have interfaces of their own.
    pub subnets: Vec<String>,
    /// Whether it is deleted. `DescribeServices` shows such a service for some time.
    pub inactive: bool,
    /// As autoscaling with this minimum: the desired count is raised to it as soon as no task is left.
    pub minimum: i64,
}

impl ManagedService {
    /// A replica service with two tasks that registers in a Cloud Map service.
    pub fn new(registry: &str) -> Self {
        Self {
            desired: 2,
            running: 2,
            pending: 0,
            old: 0,
            failed: 0,
            has_tasks: false,
            port: 8080,
            registries: vec![registry.to_owned()],
            load_balancers: Vec::new(),
            daemon: false,
            controller: "ECS".to_owned(),
            deploying: false,
            service_connect: None,
            spot: false,
            subnets: Vec::new(),
            inactive: false,
            minimum: 0,
        }
    }

    fn follow(&mut self) {
        if !self.has_tasks {
            self.running += (self.desired - self.running).signum();
            self.raise();
        }
    }

    /// What autoscaling does.
    pub(super) fn raise(&mut self) {
        if self.running == 0 && self.desired < self.minimum {
            self.desired = self.minimum;
        }
    }

    fn members(&self, cluster: &str, name: &str) -> Value {
        let registry = |arn: &String| json!({"registryArn": arn, "containerName": name, "containerPort": self.port});
        let group = format!("arn:aws:elasticloadbalancing:{REGION}:{ACCOUNT}:targetgroup/{name}/1");
        let balancer = |port: &u16| json!({"targetGroupArn": group, "containerName": name, "containerPort": port});
        let connect = json!({"enabled": self.service_connect.is_some()});
        let resource = |arn: &String| json!({"discoveryName": name, "discoveryArn": arn});
        let resources: Vec<_> = self.service_connect.iter().map(resource).collect();
        let deployment = |status: &str, state: &str, running: i64, pending: i64| {
            json!({
                "id": format!("ecs-svc/{status}"), "status": status, "rolloutState": state,
                "desiredCount": self.desired, "runningCount": running, "pendingCount": pending,
                "failedTasks": self.failed,
                "serviceConnectConfiguration": connect, "serviceConnectResources": resources,
            })
        };
        let new = self.running - self.old;
        let deployments = if self.deploying {
            vec![
                deployment("PRIMARY", "IN_PROGRESS", new, self.pending),
                deployment("ACTIVE", "COMPLETED", self.old, 0),
            ]
        } else {
            vec![deployment("PRIMARY", "COMPLETED", new, self.pending)]
        };
        let mut members = json!({
            "serviceArn": service_arn(cluster, name), "serviceName": name, "clusterArn": cluster_arn(cluster),
            "status": if self.inactive { "INACTIVE" } else { "ACTIVE" },
            "desiredCount": self.desired, "runningCount": self.running, "pendingCount": self.pending,
            "schedulingStrategy": if self.daemon { "DAEMON" } else { "REPLICA" },
            "deploymentController": {"type": self.controller},
            "deployments": deployments,
            "serviceRegistries": self.registries.iter().map(registry).collect::<Vec<_>>(),
            "loadBalancers": self.load_balancers.iter().map(balancer).collect::<Vec<_>>(),
            "events": [],
        });
        if self.spot {
            members["capacityProviderStrategy"] = json!([
                {"capacityProvider": "FARGATE", "weight": 1, "base": 1},
                {"capacityProvider": "FARGATE_SPOT", "weight": 3, "base": 0},
            ]);
        } else {
            members["launchType"] = json!("FARGATE");
        }
        if !self.subnets.is_empty() {
            let interfaces =
                json!({"subnets": self.subnets, "securityGroups": ["sg-tasks"], "assignPublicIp": "DISABLED"});
            members["networkConfiguration"] = json!({"awsvpcConfiguration": interfaces});
        }
        members
    }
}

/// An error that ECS answers with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: &'static str,
    pub message: String,
}

impl Refusal {
    fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// All services of an account and region, and the calls about them.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// By cluster and name.
    pub services: BTreeMap<(String, String), ManagedService>,
    /// Operations that IAM denies.
    pub denied: BTreeSet<String>,
    /// Clusters whose services cannot be listed, and the code of the error that says so.
    pub unreadable: BTreeMap<String, &'static str>,
    /// The longest page, whatever a request asks for; 0: as long as it asks for.
    pub longest_page: usize,
    /// All calls, refused ones too.
    pub calls: Vec<String>,
}

fn cluster_arn(cluster: &str) -> String {
    format!("arn:aws:ecs:{REGION}:{ACCOUNT}:cluster/{cluster}")
}

fn service_arn(cluster: &str, name: &str) -> String {
    format!("arn:aws:ecs:{REGION}:{ACCOUNT}:service/{cluster}/{name}")
}

/// The name in an ARN, or the name itself.
fn name_of(text: &str) -> String {
    text.rsplit('/').next().unwrap_or_default().to_owned()
}

impl Model {
    /// Adds a service, or replaces it.
    #[must_use]
    pub fn with(mut self, cluster: &str, name: &str, service: ManagedService) -> Self {
        self.services.insert((cluster.to_owned(), name.to_owned()), service);
        self
    }

    /// A service, to be looked at and changed.
    pub fn service(&mut self, cluster: &str, name: &str) -> Option<&mut ManagedService> {
        self.services.get_mut(&(cluster.to_owned(), name.to_owned()))
    }

    /// Answers a call: `operation` such as `ListClusters`, `request` its members.
    ///
    /// # Errors
    /// Those of ECS.
    pub fn call(&mut self, operation: &str, request: &Value) -> Result<Value, Refusal> {
        self.calls.push(operation.to_owned());
        if self.denied.contains(operation) {
            let message =
                format!("User: arn:aws:iam::{ACCOUNT}:user/tester is not authorized to perform: ecs:{operation}");
            return Err(Refusal::new("AccessDeniedException", message));
        }
        match operation {
            "ListClusters" => {
                let clusters: BTreeSet<_> = self.services.keys().map(|(cluster, _)| cluster_arn(cluster)).collect();
                self.page("clusterArns", &clusters.into_iter().collect::<Vec<_>>(), request, 100)
            }
            "ListServices" => {
                let cluster = self.cluster(request)?;
                if let Some(&code) = self.unreadable.get(&cluster) {
                    return Err(Refusal::new(code, format!("The services of {cluster} cannot be listed.")));
                }
                let those = self.services.iter().filter(|((of, _), service)| *of == cluster && !service.inactive);
                let arns: Vec<_> = those.map(|((cluster, name), _)| service_arn(cluster, name)).collect();
                self.page("serviceArns", &arns, request, 10)
            }
            "DescribeServices" => self.describe(request),
            "UpdateService" => self.update(request),
            _ => Err(Refusal::new("UnknownOperationException", format!("No operation is named {operation}."))),
        }
    }

    /// The name of the cluster that a request is about.
    fn cluster(&self, request: &Value) -> Result<String, Refusal> {
        let name = name_of(request["cluster"].as_str().unwrap_or("default"));
        let there = self.services.keys().any(|(cluster, _)| *cluster == name);
        if there { Ok(name) } else { Err(Refusal::new("ClusterNotFoundException", "Cluster not found.")) }
    }

    /// A page of a listing; its token is the number of the first row.
    fn page(&self, member: &str, all: &[String], request: &Value, default: usize) -> Result<Value, Refusal> {
        let asked = request["maxResults"].as_u64().and_then(|size| usize::try_from(size).ok()).unwrap_or(default);
        if !(1..=100).contains(&asked) {
            return Err(Refusal::new("InvalidParameterException", "maxResults must be from 1 to 100."));
        }
        let size = if self.longest_page == 0 { asked } else { asked.min(self.longest_page) };
        let token = request["nextToken"].as_str().unwrap_or("0");
        let Ok(first) = token.parse::<usize>() else {
            return Err(Refusal::new("InvalidParameterException", "Invalid token."));
        };
        let rows: Vec<_> = all.iter().skip(first).take(size).collect();
        let mut answer = json!({ member: rows });
        if first + size < all.len() {
            answer["nextToken"] = json!((first + size).to_string());
        }
        Ok(answer)
    }

    fn describe(&mut self, request: &Value) -> Result<Value, Refusal> {
        let cluster = self.cluster(request)?;
        let asked: Vec<String> =
            request["services"].as_array().into_iter().flatten().filter_map(Value::as_str).map(name_of).collect();
        if asked.is_empty() || asked.len() > MOST_DESCRIBED {
            return Err(Refusal::new("InvalidParameterException", "Services must have from 1 to 10 members."));
        }
        let (mut services, mut failures) = (Vec::new(), Vec::new());
        for name in asked {
            match self.service(&cluster, &name) {
                Some(service) => {
                    services.push(service.members(&cluster, &name));
                    service.follow();
                }
                None => failures.push(json!({"arn": service_arn(&cluster, &name), "reason": "MISSING"})),
            }
        }
        Ok(json!({"services": services, "failures": failures}))
    }

    fn update(&mut self, request: &Value) -> Result<Value, Refusal> {
        let cluster = self.cluster(request)?;
        let name = name_of(request["service"].as_str().unwrap_or_default());
        let count = request["desiredCount"].as_i64();
        let Some(service) = self.service(&cluster, &name) else {
            return Err(Refusal::new("ServiceNotFoundException", "Service not found."));
        };
        if service.inactive {
            return Err(Refusal::new("ServiceNotActiveException", "Service was not ACTIVE."));
        }
        if service.daemon && count.is_some() {
            let message = "The daemon scheduling strategy does not support a desired count for services.";
            return Err(Refusal::new("InvalidParameterException", message));
        }
        if let Some(count) = count {
            service.desired = count;
        }
        if service.has_tasks && request["forceNewDeployment"] == true {
            service.deploying = true;
        }
        Ok(json!({"service": service.members(&cluster, &name)}))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn running_follows_desired_one_task_a_look() {
        let mut model = Model::default().with("prod", "orders", ManagedService::new("arn"));
        model.call("UpdateService", &json!({"cluster": "prod", "service": "orders", "desiredCount": 0})).unwrap();
        let look = json!({"cluster": cluster_arn("prod"), "services": [service_arn("prod", "orders")]});
        let seen =
            [(); 3].map(|()| model.call("DescribeServices", &look).unwrap()["services"][0]["runningCount"].clone());
        assert_eq!(seen, [json!(2), json!(1), json!(0)]);
    }

    #[test]
    fn what_there_is_not_is_a_failure_or_an_error() {
        let mut model = Model::default().with("prod", "orders", ManagedService::new("arn"));
        let look = json!({"cluster": "prod", "services": ["carts"]});
        assert_eq!(model.call("DescribeServices", &look).unwrap()["failures"][0]["reason"], "MISSING");
        let elsewhere = json!({"cluster": "test", "services": ["orders"]});
        assert_eq!(model.call("DescribeServices", &elsewhere).unwrap_err().code, "ClusterNotFoundException");
        let update = json!({"cluster": "prod", "service": "carts", "desiredCount": 0});
        assert_eq!(model.call("UpdateService", &update).unwrap_err().code, "ServiceNotFoundException");
    }
}
