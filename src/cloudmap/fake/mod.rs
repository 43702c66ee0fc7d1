//! A registry in memory behind the port, for tests under simulated time. It has asynchronous operations, one at a time
//! per instance, quotas and injected faults, and it records all calls.

mod calls;
mod registry;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::time::{Instant, sleep};

use self::registry::Pending;
pub use self::registry::Registry;
use super::{Attributes, Error, ErrorKind, Operation, OperationId, Permit, Service};

/// What happens to the next matching call.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The call fails and has no effect.
    Refused(ErrorKind),
    /// The call fails, but has its effect.
    Lost(ErrorKind),
    /// The call is accepted, and its operation fails with this code of AWS.
    FailedLater(&'static str),
}

/// The registry. Clones share it.
#[derive(Debug, Clone)]
pub struct Fake {
    registry: Arc<Mutex<Registry>>,
    call: Duration,
    operation: Duration,
    quota: usize,
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            registry: Arc::default(),
            call: Duration::from_millis(20),
            operation: Duration::from_millis(1700),
            quota: 1000,
        }
    }
}

impl Fake {
    /// An empty registry. A call takes 20 ms, an operation 1.7 s; a service has room for 1,000 instances.
    pub fn new() -> Self {
        Self::default()
    }

    /// Allows so many instances in a service.
    #[must_use]
    pub fn with_quota(self, quota: usize) -> Self {
        Self { quota, ..self }
    }

    /// Sets how long each call takes.
    #[must_use]
    pub fn with_call(self, call: Duration) -> Self {
        Self { call, ..self }
    }

    /// The registry as it is now, to look at and to change.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        let mut registry = self.registry.lock().unwrap();
        registry.settle();
        registry
    }

    /// Lets a fault happen to the next call of the operation that has none yet.
    pub fn fault(&self, operation: Operation, fault: Fault) {
        self.registry().faults.entry(operation).or_default().push_back(fault);
    }

    async fn begin(&self, operation: Operation, subject: &str) -> Result<Option<Fault>, Error> {
        let fault = {
            let mut registry = self.registry();
            registry.calls.push((operation, subject.to_owned()));
            registry.in_flight += 1;
            registry.most_in_flight = registry.most_in_flight.max(registry.in_flight);
            registry.faults.get_mut(&operation).and_then(VecDeque::pop_front)
        };
        sleep(self.call).await;
        let mut registry = self.registry();
        registry.in_flight -= 1;
        if let Some(kind) = registry.failing.get(subject) {
            return Err(error(operation, kind.clone()));
        }
        match fault {
            Some(Fault::Refused(kind)) => Err(error(operation, kind)),
            fault => Ok(fault),
        }
    }

    /// Like [`begin`](Self::begin), if there is a permit. Nothing is sent and recorded without one.
    async fn begin_write(&self, permit: &Permit, operation: Operation, subject: &str) -> Result<Option<Fault>, Error> {
        permit.check(operation)?;
        self.begin(operation, subject).await
    }

    fn start(
        &self,
        operation: Operation,
        key: (Arc<str>, Arc<str>),
        effect: Option<Attributes>,
        fault: Option<Fault>,
    ) -> Result<OperationId, Error> {
        let mut registry = self.registry();
        if let Some((id, _)) = registry.later.running.iter().find(|(_, pending)| pending.key == key) {
            let id = Some(OperationId(id.clone()));
            return Err(error(operation, ErrorKind::Duplicate { operation: id }));
        }
        let id = registry.id("op");
        let until = Instant::now() + self.operation;
        let fails = if let Some(Fault::FailedLater(code)) = fault { Some(code) } else { None };
        let pending = Pending { until, key, effect, fails };
        registry.later.running.insert(id.clone(), pending);
        match fault {
            Some(Fault::Lost(kind)) => Err(error(operation, kind)),
            _ => Ok(OperationId(id)),
        }
    }
}

fn error(operation: Operation, kind: ErrorKind) -> Error {
    Error { operation: operation.name(), message: format!("injected {}", kind.category()), kind }
}

/// A permit that does not end.
pub fn permit() -> Permit {
    Permit::of_command()
}

/// The permit of a Lease that is not renewed after this time.
pub fn permit_until(until: Instant) -> Option<Permit> {
    Permit::of_lease(move || Some(until))
}

/// A service without records that nobody owns.
pub fn mk_service() -> Service {
    Service {
        id: "srv".into(),
        arn: "arn".into(),
        name: "web".into(),
        namespace_id: None,
        description: None,
        creator_request_id: None,
        dns: None,
        custom_health_check: false,
        health_check: None,
        created: 0,
        instances: None,
    }
}
