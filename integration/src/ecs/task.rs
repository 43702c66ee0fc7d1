//! What a service's tasks are, what ECS says of them in Cloud Map, and what they see.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agent::Agent;
use crate::scenario::reach;

/// Dynamic host ports begin here, as the ephemeral range of Linux.
pub(crate) const FIRST_DYNAMIC_PORT: u16 = 32768;

/// How tasks get addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// `awsvpc`: each task is a host of its own.
    Awsvpc,
    /// `bridge`: two EC2 instances for each cluster, one in each zone, and a dynamic port for each task.
    Bridge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launch {
    Ec2,
    Fargate,
}

/// An ECS service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The ECS cluster: lower-case letters, digits and `-`. In bridge mode services of one cluster share its hosts.
    pub cluster: String,
    /// The ECS service and family of its tasks: not necessarily the name in Cloud Map.
    pub name: String,
    /// The id of the service in Cloud Map.
    pub registry: String,
    pub network: Network,
    pub launch: Launch,
    /// The port of the container; in bridge mode the host's is another.
    pub port: u16,
    /// Whether `AWS_INSTANCE_PORT` is registered; always where there are SRV records.
    pub registers_port: bool,
    /// Whether `AWS_INSTANCE_IPV6` is registered; needed where there are AAAA records.
    pub registers_ipv6: bool,
    pub region: String,
    /// Tasks are spread over them.
    pub zones: Vec<String>,
}

impl Definition {
    /// Fargate tasks in `awsvpc` mode on port 8080, which is registered, IPv4 only, in two zones of the testbed's region.
    pub fn new(cluster: &str, name: &str, registry: &str) -> Self {
        Self {
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            registry: registry.to_owned(),
            network: Network::Awsvpc,
            launch: Launch::Fargate,
            port: 8080,
            registers_port: true,
            registers_ipv6: false,
            region: "eu-central-1".to_owned(),
            zones: vec!["eu-central-1a".to_owned(), "eu-central-1b".to_owned()],
        }
    }

    /// On EC2 instances, with dynamic ports. The service in Cloud Map has SRV records, or none.
    #[must_use]
    pub fn in_bridge_mode(self) -> Self {
        Self { network: Network::Bridge, launch: Launch::Ec2, ..self }
    }
}

/// The id of a task as it is in its ARN: 32 hexadecimal digits.
pub(crate) fn new_task_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// What is kept with a task, so that another process can take its service over or clean up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Label {
    pub(crate) cluster: String,
    pub(crate) service: String,
    pub(crate) endpoint: String,
    pub(crate) registry: String,
    pub(crate) zone: String,
}

/// A task and what it can do.
#[derive(Clone, Debug)]
pub struct Task {
    /// The instance id in Cloud Map too.
    pub id: String,
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
    /// Where it listens: HTTP on TCP, `/hostname` answers its id; an echo server on UDP.
    pub port: u16,
    pub zone: String,
    pub(crate) host: String,
    pub(crate) agent: Agent,
    pub(crate) endpoint: String,
}

impl Task {
    /// The attributes that ECS registers. Documented are those with `ECS_`, `EC2_INSTANCE_ID` ("not for Fargate"), the
    /// address, the port, the zone and the region; `AWS_INIT_HEALTH_STATUS` is what accounts show beside them.
    pub fn attributes(&self, definition: &Definition) -> BTreeMap<String, String> {
        let Definition { cluster, name, launch, registers_port, registers_ipv6, region, .. } = definition;
        let mut attributes = BTreeMap::from(
            [
                ("AVAILABILITY_ZONE", self.zone.clone()),
                ("AWS_INIT_HEALTH_STATUS", "HEALTHY".to_owned()),
                ("AWS_INSTANCE_IPV4", self.ipv4.to_string()),
                ("ECS_CLUSTER_NAME", cluster.clone()),
                ("ECS_SERVICE_NAME", name.clone()),
                ("ECS_TASK_DEFINITION_FAMILY", name.clone()),
                ("REGION", region.clone()),
            ]
            .map(|(key, value)| (key.to_owned(), value)),
        );
        if *registers_port {
            attributes.insert("AWS_INSTANCE_PORT".to_owned(), self.port.to_string());
        }
        if *registers_ipv6 {
            attributes.insert("AWS_INSTANCE_IPV6".to_owned(), self.ipv6.to_string());
        }
        if *launch == Launch::Ec2 {
            attributes.insert("EC2_INSTANCE_ID".to_owned(), ec2_instance_id(&self.host));
        }
        attributes
    }

    /// Ends a task that [`Ecs::run_task`](super::Ecs::run_task) started.
    pub async fn stop(self) -> Result<()> {
        self.agent.stop(&self.id, Duration::from_secs(1)).await
    }

    /// What it printed last.
    pub async fn log(&self) -> Result<String> {
        self.agent.log(&self.id).await
    }

    /// Who answers at each address of a name: see [`reach`].
    pub async fn reach(&self, name: &str, port: u16) -> Result<BTreeSet<String>> {
        let output = self.exec(&["sh", "-c", &reach(name, port)]).await?;
        Ok(output.lines().map(ToOwned::to_owned).collect())
    }

    /// Runs a command on the task's host, with its resolver, and gives what it printed.
    ///
    /// # Errors
    /// Also if the command fails.
    pub async fn exec(&self, command: &[&str]) -> Result<String> {
        self.agent.exec(&self.id, command).await
    }

    /// The answers to `dig NAME TYPE` as the task's resolver gives them; none for NXDOMAIN.
    pub async fn dig(&self, name: &str, record: &str) -> Result<BTreeSet<String>> {
        let output = self.exec(&["dig", "+short", "+tries=1", "+time=3", name, record]).await?;
        Ok(output.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect())
    }

    /// What `curl URL` prints; names are resolved by the C library and the task's resolver.
    pub async fn curl(&self, url: &str) -> Result<String> {
        let output = self.exec(&["curl", "--silent", "--show-error", "--fail", "--max-time", "5", url]).await?;
        Ok(output.trim().to_owned())
    }

    /// What `DiscoverInstances` answers to the task: attributes of healthy instances by instance id. The request is the one
    /// that SDKs send.
    pub async fn discover(&self, namespace: &str, service: &str) -> Result<BTreeMap<String, BTreeMap<String, String>>> {
        let request =
            json!({"NamespaceName": namespace, "ServiceName": service, "MaxResults": 1000, "HealthStatus": "HEALTHY"});
        let output = self
            .exec(&[
                "curl",
                "--silent",
                "--show-error",
                "--fail",
                "--max-time",
                "5",
                &self.endpoint,
                "--header",
                "Content-Type: application/x-amz-json-1.1",
                "--header",
                "X-Amz-Target: Route53AutoNaming_v20170314.DiscoverInstances",
                "--header",
                "Authorization: AWS4-HMAC-SHA256 Credential=ecs-task/none",
                "--data",
                &request.to_string(),
            ])
            .await?;
        let answer: Value = serde_json::from_str(&output)?;
        let instances = answer["Instances"].as_array().context("the answer has no instances")?;
        let instance = |instance: &Value| {
            let id = instance["InstanceId"].as_str().context("an instance without id")?.to_owned();
            Ok((id, serde_json::from_value(instance["Attributes"].clone())?))
        };
        instances.iter().map(instance).collect()
    }
}

/// `i-` and 17 hexadecimal digits, the same for a host always.
fn ec2_instance_id(host: &str) -> String {
    let hash = host
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("i-0{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(port: u16) -> Task {
        Task {
            id: new_task_id(),
            ipv4: Ipv4Addr::new(10, 99, 1, 21),
            ipv6: Ipv6Addr::LOCALHOST,
            port,
            zone: "eu-central-1a".to_owned(),
            host: "ec2-prod-0".to_owned(),
            agent: Agent::detached(),
            endpoint: String::new(),
        }
    }

    fn keys(attributes: &BTreeMap<String, String>) -> Vec<&str> {
        attributes.keys().map(String::as_str).collect()
    }

    #[test]
    fn attributes_are_those_that_ecs_writes() {
        let definition = Definition::new("prod", "legacy", "srv-1").in_bridge_mode();
        let attributes = task(32768).attributes(&definition);
        let expected = [
            "AVAILABILITY_ZONE",
            "AWS_INIT_HEALTH_STATUS",
            "AWS_INSTANCE_IPV4",
            "AWS_INSTANCE_PORT",
            "EC2_INSTANCE_ID",
            "ECS_CLUSTER_NAME",
            "ECS_SERVICE_NAME",
            "ECS_TASK_DEFINITION_FAMILY",
            "REGION",
        ];
        assert_eq!(keys(&attributes), expected);
        assert_eq!(
            (attributes["AWS_INSTANCE_PORT"].as_str(), attributes["REGION"].as_str()),
            ("32768", "eu-central-1")
        );
        let machine = &attributes["EC2_INSTANCE_ID"];
        assert!(machine.starts_with("i-") && machine.len() == 19, "{machine}");
        let fargate = Definition { registers_port: false, ..Definition::new("prod", "orders", "srv-2") };
        let without: Vec<_> =
            expected.into_iter().filter(|key| !["AWS_INSTANCE_PORT", "EC2_INSTANCE_ID"].contains(key)).collect();
        assert_eq!(keys(&task(8080).attributes(&fargate)), without);
    }

    #[test]
    fn task_ids_are_32_hexadecimal_digits() {
        let id = new_task_id();
        assert!(id.len() == 32 && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{id}");
        assert_ne!(id, new_task_id());
    }
}
