//! A service: as many tasks as are desired, each registered while it runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use aws_sdk_servicediscovery::types::CustomHealthStatus;
use futures::future::join_all;
use tokio::net::TcpStream;

use super::agent::Agent;
use super::api::Fleet;
use super::cloudmap::CloudMap;
use super::task::{Definition, FIRST_DYNAMIC_PORT, Label, Network, Task, new_task_id};
use super::{add, keep};
use crate::scenario::eventually;

/// For a process to take connections.
const START: Duration = Duration::from_mins(3);
/// ECS gives containers 30 s between SIGTERM and SIGKILL (`stopTimeout`); these need none of it.
const GRACE: Duration = Duration::from_secs(2);
/// For a health check to be answered.
const HEALTH: Duration = Duration::from_secs(2);

/// A service of ECS. What is not stopped runs on until its owner's end is noticed, see [`super::Ecs`].
#[derive(Debug)]
pub struct Service {
    definition: Definition,
    agent: Agent,
    cloud_map: CloudMap,
    tasks: Vec<Task>,
}

impl Service {
    pub(crate) async fn open(agent: Agent, cloud_map: CloudMap, definition: Definition) -> Result<Self> {
        let mut service = Self { definition, agent, cloud_map, tasks: Vec::new() };
        for running in service.agent.list().await? {
            let Ok(label) = serde_json::from_str::<Label>(&running.label) else { continue };
            if service.label(&label.zone) == label {
                let (id, host) = (running.task, running.host);
                service.tasks.push(service.task(id, host, (running.ipv4, running.ipv6), running.port, label.zone));
            }
        }
        Ok(service)
    }

    pub fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Those that were started and not stopped, the oldest first.
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Replaces tasks that have died, and starts or stops as many as are missing or too many, the newest first. Returns when
    /// Cloud Map has taken it all in.
    ///
    /// # Errors
    /// If a task can't be started or stopped; the others are then, and the next call tries again.
    pub async fn scale(&mut self, desired: usize) -> Result<()> {
        self.bury().await?;
        let surplus = self.tasks.split_off(desired.min(self.tasks.len()));
        self.end_all(surplus).await?;
        let places = self.places(desired.saturating_sub(self.tasks.len())).await?;
        let started = join_all(places.into_iter().map(|place| self.start(place))).await;
        add(&mut self.tasks, started)
    }

    /// Replaces all tasks, as a deployment does that may double them: starts so many, and then stops those that were there.
    ///
    /// # Errors
    /// If a task can't be started or stopped.
    pub async fn replace(&mut self, desired: usize) -> Result<()> {
        self.bury().await?;
        let before: BTreeSet<_> = self.tasks.iter().map(|task| task.id.clone()).collect();
        self.scale(before.len() + desired).await?;
        let (old, new): (Vec<_>, Vec<_>) = self.tasks.drain(..).partition(|task| before.contains(&task.id));
        self.tasks = new;
        self.end_all(old).await
    }

    /// Stops all tasks.
    pub async fn stop(mut self) -> Result<()> {
        self.scale(0).await
    }

    /// Ends a task's process as a crash does. Cloud Map has the instance until the next [`Service::scale`], which is what
    /// ECS does when it notices.
    pub async fn crash(&self, task: &Task) -> Result<()> {
        self.agent.kill(&task.id).await
    }

    /// Reports what a container's health check says.
    pub async fn set_health(&self, task: &Task, status: CustomHealthStatus) -> Result<()> {
        self.cloud_map.set_health(&self.definition.registry, &task.id, status).await
    }

    /// Reports for each task whether it takes connections, as ECS reports what containers' health checks say.
    pub async fn report(&self) -> Result<()> {
        for task in &self.tasks {
            let connected = tokio::time::timeout(HEALTH, TcpStream::connect((task.ipv4, task.port))).await;
            let healthy = connected.is_ok_and(|connected| connected.is_ok());
            let status = if healthy { CustomHealthStatus::Healthy } else { CustomHealthStatus::Unhealthy };
            self.set_health(task, status).await?;
        }
        Ok(())
    }

    /// The ARN of its Cloud Map service.
    pub async fn registry_arn(&self) -> Result<String> {
        self.cloud_map.arn(&self.definition.registry).await
    }

    /// Ends tasks that are among the service's no more. Those that can't be ended are again.
    async fn end_all(&mut self, tasks: Vec<Task>) -> Result<()> {
        let ended = join_all(tasks.iter().map(|task| self.end(task))).await;
        keep(&mut self.tasks, tasks, ended)
    }

    /// Deregisters tasks whose processes have ended.
    async fn bury(&mut self) -> Result<()> {
        let alive: BTreeMap<_, _> =
            self.agent.list().await?.into_iter().map(|running| (running.task, running.alive)).collect();
        let (living, dead): (Vec<_>, Vec<_>) =
            self.tasks.drain(..).partition(|task| alive.get(&task.id).copied().unwrap_or(false));
        self.tasks = living;
        for task in dead {
            self.cloud_map.deregister(&self.definition.registry, &task.id).await?;
            if alive.contains_key(&task.id) {
                self.agent.stop(&task.id, Duration::ZERO).await?;
            }
        }
        Ok(())
    }

    /// "ACTIVATING": "for tasks that have service discovery configured, the service discovery resources must be created"
    /// after the task is launched (ECS task lifecycle).
    async fn start(&self, Assignment { id, host, port, zone }: Assignment) -> Result<Task> {
        let label = serde_json::to_string(&self.label(&zone))?;
        let addresses = self.agent.run(&host, &id, port, &label).await?;
        let task = self.task(id, host, addresses, port, zone);
        let activate = async {
            eventually("the task takes connections", START, async || {
                TcpStream::connect((task.ipv4, port)).await.map(drop).context("it takes none")
            })
            .await?;
            self.cloud_map.register(&self.definition.registry, &task.id, task.attributes(&self.definition)).await
        };
        if let Err(error) = activate.await {
            self.end(&task).await?;
            return Err(error);
        }
        Ok(task)
    }

    /// "DEACTIVATING": what has to be done "before the task is stopped", then SIGTERM (ECS task lifecycle).
    async fn end(&self, task: &Task) -> Result<()> {
        self.cloud_map.deregister(&self.definition.registry, &task.id).await?;
        self.agent.stop(&task.id, GRACE).await
    }

    /// Where new tasks go: zones take turns; in bridge mode each has one host, and ports are those that are free there.
    async fn places(&self, count: usize) -> Result<Vec<Assignment>> {
        let Definition { cluster, network, port, zones, .. } = &self.definition;
        let mut taken: Vec<(String, u16)> =
            self.agent.list().await?.into_iter().map(|running| (running.host, running.port)).collect();
        let mut places = Vec::new();
        for number in self.tasks.len()..self.tasks.len() + count {
            let id = new_task_id();
            let zone = number % zones.len().max(1);
            let (host, port) = match network {
                Network::Awsvpc => (id.clone(), *port),
                Network::Bridge => {
                    let host = format!("ec2-{cluster}-{zone}");
                    let free = |port: &u16| !taken.iter().any(|(on, used)| *on == host && used == port);
                    let port = (FIRST_DYNAMIC_PORT..=u16::MAX).find(free).context("no port is free")?;
                    taken.push((host.clone(), port));
                    (host, port)
                }
            };
            places.push(Assignment { id, host, port, zone: zones.get(zone).cloned().unwrap_or_default() });
        }
        Ok(places)
    }

    fn label(&self, zone: &str) -> Label {
        Label {
            cluster: self.definition.cluster.clone(),
            service: self.definition.name.clone(),
            endpoint: self.cloud_map.endpoint().to_owned(),
            registry: self.definition.registry.clone(),
            zone: zone.to_owned(),
        }
    }

    fn task(
        &self,
        id: String,
        host: String,
        (ipv4, ipv6): (std::net::Ipv4Addr, std::net::Ipv6Addr),
        port: u16,
        zone: String,
    ) -> Task {
        let (agent, endpoint) = (self.agent.clone(), self.cloud_map.endpoint().to_owned());
        Task { id, ipv4, ipv6, port, zone, host, agent, endpoint }
    }
}

#[async_trait(?Send)]
impl Fleet for Service {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    async fn alive(&mut self) -> Result<usize> {
        self.bury().await?;
        Ok(self.tasks.len())
    }

    async fn scale(&mut self, desired: usize) -> Result<()> {
        Self::scale(self, desired).await
    }

    async fn replace(&mut self, desired: usize) -> Result<()> {
        Self::replace(self, desired).await
    }

    async fn report(&mut self) -> Result<()> {
        Self::report(self).await
    }
}

/// A task that is to be started.
#[derive(Debug)]
struct Assignment {
    id: String,
    host: String,
    port: u16,
    zone: String,
}
