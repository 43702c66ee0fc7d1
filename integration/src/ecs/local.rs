//! Services whose tasks are addresses of this process, for hundreds of services on one machine.

use std::net::{Ipv6Addr, SocketAddrV4};
use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use aws_sdk_servicediscovery::types::CustomHealthStatus;
use futures::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::agent::Agent;
use super::api::Fleet;
use super::cloudmap::CloudMap;
use super::server::{Addresses, Server};
use super::task::{Definition, Task, new_task_id};
use super::{add, keep};

/// What a task answers to each line.
pub const TASK: &str = "task";
/// So many tasks are registered or deregistered at once. AWS allows 50 calls a second, and operations take seconds.
const AT_ONCE: usize = 40;

/// What all such services share. Clones are the same.
#[derive(Clone, Debug)]
pub struct Machine {
    cloud_map: CloudMap,
    addresses: Addresses,
    /// Where the tasks run.
    runtime: Handle,
    writes: Arc<Semaphore>,
}

impl Machine {
    /// Its tasks run in the runtime that this is called in, and register at a Cloud Map such as `http://10.200.0.1:8700`.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(endpoint: &str, addresses: Addresses) -> Self {
        let (cloud_map, runtime) = (CloudMap::new(endpoint), Handle::current());
        Self { cloud_map, addresses, runtime, writes: Arc::new(Semaphore::new(AT_ONCE)) }
    }

    /// Cloud Map as ECS calls it: the caller is `ecs`.
    pub fn cloud_map(&self) -> &CloudMap {
        &self.cloud_map
    }

    /// A service without tasks.
    pub fn service(&self, definition: Definition) -> LocalService {
        LocalService { machine: self.clone(), definition, tasks: Vec::new() }
    }
}

/// Such a service. Its tasks end when it is dropped.
#[derive(Debug)]
pub struct LocalService {
    machine: Machine,
    definition: Definition,
    /// The oldest first.
    tasks: Vec<(Task, Server)>,
}

impl LocalService {
    async fn start(&self, number: usize) -> Result<(Task, Server)> {
        let Self { machine, definition, .. } = self;
        let Definition { port, zones, .. } = definition;
        let task = Task {
            id: new_task_id(),
            ipv4: machine.addresses.take(),
            ipv6: Ipv6Addr::UNSPECIFIED,
            port: *port,
            zone: zones.get(number % zones.len().max(1)).cloned().unwrap_or_default(),
            host: String::new(),
            agent: Agent::detached(),
            endpoint: machine.cloud_map.endpoint().to_owned(),
        };
        let server = Server::start(&machine.runtime, SocketAddrV4::new(task.ipv4, *port), TASK).await?;
        let _permit = machine.writes.acquire().await?;
        machine.cloud_map.register(&definition.registry, &task.id, task.attributes(definition)).await?;
        Ok((task, server))
    }

    /// Starts so many tasks more. Those that cannot be started are left out.
    async fn start_all(&mut self, number: usize) -> Result<()> {
        let there = self.tasks.len();
        let started = join_all((there..there + number).map(|number| self.start(number))).await;
        add(&mut self.tasks, started)
    }

    /// Deregisters tasks, and then stops them. Those that can't be deregistered stay.
    async fn end_all(&mut self, tasks: Vec<(Task, Server)>) -> Result<()> {
        let (machine, registry) = (&self.machine, &self.definition.registry);
        let ended = join_all(tasks.iter().map(|(task, _)| async move {
            let _permit = machine.writes.acquire().await?;
            machine.cloud_map.deregister(registry, &task.id).await
        }))
        .await;
        keep(&mut self.tasks, tasks, ended)
    }
}

#[async_trait(?Send)]
impl Fleet for LocalService {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    async fn alive(&mut self) -> Result<usize> {
        Ok(self.tasks.len())
    }

    async fn scale(&mut self, desired: usize) -> Result<()> {
        let surplus = self.tasks.split_off(desired.min(self.tasks.len()));
        self.end_all(surplus).await?;
        self.start_all(desired.saturating_sub(self.tasks.len())).await
    }

    async fn replace(&mut self, desired: usize) -> Result<()> {
        let before = self.tasks.len();
        self.start_all(desired).await?;
        let new = self.tasks.split_off(before);
        let old = std::mem::replace(&mut self.tasks, new);
        self.end_all(old).await
    }

    async fn report(&mut self) -> Result<()> {
        for (task, _) in &self.tasks {
            let _permit = self.machine.writes.acquire().await?;
            let registry = &self.definition.registry;
            self.machine.cloud_map.set_health(registry, &task.id, CustomHealthStatus::Healthy).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpStream;

    use super::*;
    use crate::ecs::Records;
    use emulator::{Emulator, EmulatorSettings};

    #[tokio::test]
    async fn tasks_answer_while_they_are_registered_and_no_longer() {
        let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
        // Other processes on this machine may run this test, too: each has loopback addresses of its own.
        let own = Ipv4Addr::from_bits(0x7f00_0001 | ((std::process::id() << 4) & 0x00ff_ffff));
        let machine = Machine::new(&emulator.endpoint(), Addresses::beginning_at(own));
        let registry = machine.cloud_map().private_service("internal", "orders", Records::A).await.unwrap();
        let definition = Definition { port: 18_080, ..Definition::new("prod", "orders", &registry) };
        let mut orders = machine.service(definition);
        orders.scale(2).await.unwrap();
        let registered = async || {
            let listed = machine.cloud_map().client().list_instances().service_id(&registry).send().await.unwrap();
            listed.instances().len()
        };
        assert_eq!(registered().await, 2);
        let address = (orders.tasks[1].0.ipv4, 18_080);
        let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
        let mut said = String::new();
        stream.write_all(b"?\n").await.unwrap();
        stream.read_line(&mut said).await.unwrap();
        assert_eq!(said, "task\n");
        orders.scale(1).await.unwrap();
        assert_eq!(registered().await, 1);
        said.clear();
        // The connection ends, one way or the other.
        assert_eq!(stream.read_line(&mut said).await.unwrap_or(0), 0);
        orders.replace(3).await.unwrap();
        assert_eq!((orders.alive().await.unwrap(), registered().await), (3, 3));
        orders.report().await.unwrap();
    }
}
