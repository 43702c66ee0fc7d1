//! ECS in memory behind the port. Each look at a service finds one task less or more, until there are as many as desired.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard},
};

use async_trait::async_trait;

use super::{Ecs, Error, Operation, Service};

/// What there is, and how it behaves.
#[derive(Debug, Default)]
pub struct State {
    /// All services.
    pub services: Vec<Service>,
    /// All calls, refused ones too.
    pub calls: Vec<Operation>,
    /// To this, something sets the desired count as soon as a service has no task any more.
    pub restored: Option<u32>,
    /// Whether tasks stay however few are desired.
    pub stuck: bool,
    /// Whether no call is answered.
    pub silent: bool,
    /// Clusters whose services nobody may list.
    pub unreadable: BTreeSet<String>,
    denied: BTreeSet<Operation>,
}

/// Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct FakeEcs(Arc<Mutex<State>>);

/// A service with two tasks that registers in this Cloud Map service.
pub fn mk_service(cluster: &str, name: &str, registry: &str) -> Service {
    Service {
        cluster: cluster.to_owned(),
        name: name.to_owned(),
        active: true,
        desired: 2,
        running: 2,
        registries: [registry.to_owned()].into(),
        ports: [8080].into(),
        ..Service::default()
    }
}

impl FakeEcs {
    /// ECS with these services.
    pub fn with(services: impl IntoIterator<Item = Service>) -> Self {
        let ecs = Self::default();
        ecs.state().services = services.into_iter().collect();
        ecs
    }

    /// The state, to look at and to change.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Denies an operation from now on.
    pub fn deny(&self, operation: Operation) {
        self.state().denied.insert(operation);
    }

    fn called(&self, operation: Operation) -> Result<MutexGuard<'_, State>, Error> {
        let mut state = self.state();
        state.calls.push(operation);
        if state.denied.contains(&operation) {
            let message = format!("access denied: {}", operation.action());
            return Err(Error { operation, message, answered: true });
        }
        if state.silent {
            return Err(Error { operation, message: "no usable answer".to_owned(), answered: false });
        }
        Ok(state)
    }
}

#[async_trait]
impl Ecs for FakeEcs {
    async fn clusters(&self) -> Result<Vec<String>, Error> {
        let state = self.called(Operation::ListClusters)?;
        let clusters: BTreeSet<_> = state.services.iter().map(|service| service.cluster.clone()).collect();
        Ok(clusters.into_iter().collect())
    }

    async fn services(&self, cluster: &str) -> Result<Vec<String>, Error> {
        let operation = Operation::ListServices;
        let state = self.called(operation)?;
        if state.unreadable.contains(cluster) {
            let message = format!("access denied: {}", operation.action());
            return Err(Error { operation, message, answered: true });
        }
        let those = state.services.iter().filter(|service| service.cluster == cluster);
        Ok(those.map(|service| service.name.clone()).collect())
    }

    async fn describe(&self, cluster: &str, services: &[String]) -> Result<Vec<Service>, Error> {
        let mut state = self.called(Operation::DescribeServices)?;
        let (restored, stuck) = (state.restored, state.stuck);
        let there = |service: &&mut Service| service.cluster == cluster && services.contains(&service.name);
        let mut found = Vec::new();
        for service in state.services.iter_mut().filter(there) {
            found.push(service.clone());
            if service.running > service.desired && !stuck {
                service.running -= 1;
            } else if service.running < service.desired {
                service.running += 1;
            }
            if let Some(restored) = restored.filter(|_| service.is_at_zero()) {
                service.desired = restored;
            }
        }
        Ok(found)
    }

    async fn set_desired_count(&self, cluster: &str, service: &str, count: u32) -> Result<(), Error> {
        let operation = Operation::UpdateService;
        let mut state = self.called(operation)?;
        let there = state.services.iter_mut().find(|there| there.cluster == cluster && there.name == service);
        let there = there.ok_or_else(|| Error {
            operation,
            message: format!("there is no service {service}"),
            answered: true,
        })?;
        there.desired = count;
        Ok(())
    }
}
