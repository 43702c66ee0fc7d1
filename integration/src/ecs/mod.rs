//! ECS beside the clusters: services whose tasks are real processes on hosts of the testbed outside the clusters, with
//! addresses of their own, registered in Cloud Map as ECS registers them.
//!
//! It needs root and a testbed that is up (`integration/testbed/testbed up`), an emulator that the hosts reach, and, for
//! names, that emulator as their resolver: `--resolver-listen $TESTBED_HOST_IP:53`. Tasks of a process that ended are
//! stopped and deregistered by the next one that calls [`Ecs::connect`]; `testbed down` ends them too.
//!
//! The API of ECS itself ([`EcsApi`]) starts and stops the tasks of services that it is given ([`EcsApi::adopt`]). It needs no
//! testbed for services in memory, which have no tasks that run, nor for those of a [`Machine`], whose tasks are addresses of
//! this process.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use cloudmap_mcs_integration::ecs::{Definition, Ecs, Records};
//!
//! let ecs = Ecs::from_env().await?;
//! let namespace = ecs.cloud_map().private_namespace("internal", 15).await?;
//! let registry = ecs.cloud_map().service(&namespace, "orders", Records::A, 10).await?;
//! let mut orders = ecs.service(Definition::new("prod", "orders", &registry)).await?;
//! orders.scale(2).await?;
//! let task = &orders.tasks()[0];
//! assert_eq!(task.dig("orders.internal", "A").await?.len(), 2);
//! task.curl("http://orders.internal:8080/hostname").await?;
//! orders.stop().await?;
//! # Ok(())
//! # }
//! ```

mod agent;
mod api;
mod cloudmap;
mod local;
mod server;
mod service;
mod task;

use anyhow::{Context as _, Result};
use tokio::sync::OnceCell;

pub use agent::{Agent, Running};
pub use api::{EcsApi, Fleet, ManagedService, Model, Refusal};
pub use cloudmap::{CloudMap, Records};
pub use local::{LocalService, Machine, TASK};
pub use server::{Addresses, Server};
pub use service::Service;
pub use task::{Definition, Launch, Network, Task};

use task::{Label, new_task_id};

/// Tasks of earlier processes are looked for once.
static CLEAN: OnceCell<()> = OnceCell::const_new();

/// Takes in tasks that were to start: those that did. The error is that of the last one that did not.
fn add<T>(tasks: &mut Vec<T>, started: Vec<Result<T>>) -> Result<()> {
    let mut outcome = Ok(());
    for started in started {
        match started {
            Ok(task) => tasks.push(task),
            Err(error) => outcome = Err(error),
        }
    }
    outcome
}

/// Takes tasks in again that were to end: those that did not.
fn keep<T>(tasks: &mut Vec<T>, ending: Vec<T>, ended: Vec<Result<()>>) -> Result<()> {
    let mut outcome = Ok(());
    for (task, ended) in ending.into_iter().zip(ended) {
        if let Err(error) = ended {
            tasks.push(task);
            outcome = Err(error);
        }
    }
    outcome
}

/// The control plane of ECS.
#[derive(Clone, Debug)]
pub struct Ecs {
    agent: Agent,
    cloud_map: CloudMap,
}

impl Ecs {
    /// With the Cloud Map at an endpoint such as `http://10.200.0.1:8700`. Its tasks end with this process at the latest.
    ///
    /// # Errors
    /// If no testbed is up.
    pub async fn connect(endpoint: &str) -> Result<Self> {
        let ecs = Self { agent: Agent::owned_by(std::process::id()), cloud_map: CloudMap::new(endpoint) };
        CLEAN.get_or_try_init(|| ecs.remove_leftovers()).await?;
        Ok(ecs)
    }

    /// With the emulator of the scenarios, `MCS_E2E_EMULATOR`.
    ///
    /// # Errors
    /// If it is not set, or no testbed is up.
    pub async fn from_env() -> Result<Self> {
        let endpoint =
            std::env::var("MCS_E2E_EMULATOR").context("MCS_E2E_EMULATOR is not set: it takes the emulator's URL")?;
        Self::connect(endpoint.trim_end_matches('/')).await
    }

    /// With tasks that run on when this process has ended, until they are stopped or the testbed is down.
    pub fn detached(endpoint: &str) -> Self {
        Self { agent: Agent::detached(), cloud_map: CloudMap::new(endpoint) }
    }

    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Cloud Map as ECS calls it: the caller is `ecs`.
    pub fn cloud_map(&self) -> &CloudMap {
        &self.cloud_map
    }

    /// A service, with those of its tasks that run already.
    pub async fn service(&self, definition: Definition) -> Result<Service> {
        Service::open(self.agent.clone(), self.cloud_map.clone(), definition).await
    }

    /// A task of no service, as `RunTask` starts them, on a host of its own: not registered anywhere. Without a command it is the
    /// server that others are, on port 8080.
    pub async fn run_task(&self, command: &[&str]) -> Result<Task> {
        let (id, port) = (new_task_id(), 8080);
        let (ipv4, ipv6) = self.agent.run_command(&id, &id, port, "", command).await?;
        let (agent, endpoint) = (self.agent.clone(), self.cloud_map.endpoint().to_owned());
        Ok(Task { host: id.clone(), id, ipv4, ipv6, port, zone: String::new(), agent, endpoint })
    }

    /// Stops and deregisters the tasks of processes that have ended.
    async fn remove_leftovers(&self) -> Result<()> {
        for running in self.agent.list().await?.into_iter().filter(|task| task.orphaned) {
            if let Ok(label) = serde_json::from_str::<Label>(&running.label)
                && label.endpoint == self.cloud_map.endpoint()
            {
                // Neither service nor instance need be there: the emulator may be another one by now.
                let _ = self.cloud_map.deregister(&label.registry, &running.task).await;
            }
        }
        self.agent.reap().await
    }
}
