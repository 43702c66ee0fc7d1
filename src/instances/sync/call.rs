//! The calls that the engine requests, and their results.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::time::Instant;

use crate::Adopt;
use cloudmap::{CreateService, DnsConfig, DnsRecord, Error, Instance, Namespace, OperationId, OperationState, Service};
use cluster::record::Hidden;
use ledger::record::{ResourceVersion, StoreError};
use model::Target;

#[derive(Debug)]
pub(super) enum Call {
    ListNamespaces,
    CreateNamespace {
        name: Arc<str>,
    },
    ListServices {
        namespace_id: Arc<str>,
    },
    /// The same for the records alone.
    ListRecords {
        namespace_id: Arc<str>,
    },
    CreateService {
        target: Target,
        namespace_id: Arc<str>,
        dns: Option<DnsConfig>,
        custom_health_check: bool,
    },
    Inspect {
        target: Target,
        service_id: Arc<str>,
    },
    /// `health`: the service has a custom health check, whose results are read as well.
    Read {
        target: Target,
        service_id: Arc<str>,
        health: bool,
        begun: Instant,
    },
    Register {
        target: Target,
        service_id: Arc<str>,
        instance: Instance,
    },
    Deregister {
        target: Target,
        service_id: Arc<str>,
        id: Arc<str>,
    },
    SetHealth {
        target: Target,
        service_id: Arc<str>,
        id: Arc<str>,
        healthy: bool,
    },
    SetTtl {
        target: Target,
        service_id: Arc<str>,
        ttl: u32,
        adopt: Option<Adopt>,
    },
    Poll {
        target: Target,
        id: Arc<str>,
        operation: OperationId,
    },
    DeleteService {
        target: Target,
        service_id: Arc<str>,
    },
    /// Read the record of hidden tasks.
    Recall,
    /// Store it.
    Remember {
        hidden: Hidden,
        expected: ResourceVersion,
    },
    /// Hide a task of others, or show it; `target` is `None` if nobody has the service any more.
    Mark {
        target: Option<Target>,
        service_id: Arc<str>,
        id: Arc<str>,
        healthy: bool,
    },
}

#[derive(Debug)]
pub(super) enum Event {
    Namespaces(Result<Arc<[Namespace]>, Error>),
    /// The namespace; `None` if only a listing shows it.
    NamespaceCreated {
        name: Arc<str>,
        result: Result<Option<Namespace>, Error>,
    },
    Services {
        namespace_id: Arc<str>,
        result: Result<Arc<[Service]>, Error>,
    },
    Records(Result<Arc<[Service]>, Error>),
    ServiceCreated {
        target: Target,
        result: Result<CreateService, Error>,
    },
    Inspected {
        target: Target,
        result: Result<(Service, BTreeMap<String, String>), Error>,
    },
    Read {
        target: Target,
        begun: Instant,
        result: Result<Inventory, Error>,
    },
    Written {
        target: Target,
        service_id: Arc<str>,
        id: Arc<str>,
        result: Result<OperationId, Error>,
    },
    HealthSet {
        target: Target,
        id: Arc<str>,
        healthy: bool,
        result: Result<(), Error>,
    },
    /// The current records; `None` if we may not change the service.
    TtlSet {
        target: Target,
        result: Result<Option<Vec<DnsRecord>>, Error>,
    },
    Polled {
        target: Target,
        id: Arc<str>,
        operation: OperationId,
        result: Result<OperationState, Error>,
    },
    ServiceDeleted {
        target: Target,
        result: Result<(), Error>,
    },
    Recalled(Result<(Hidden, ResourceVersion), StoreError>),
    Remembered(Result<ResourceVersion, StoreError>),
    Marked {
        target: Option<Target>,
        service_id: Arc<str>,
        id: Arc<str>,
        healthy: bool,
        result: Result<(), Error>,
    },
}

impl Event {
    /// The target that it is about; `None`: it is about what targets share.
    pub(super) fn target(&self) -> Option<&Target> {
        match self {
            Self::Namespaces(_)
            | Self::NamespaceCreated { .. }
            | Self::Services { .. }
            | Self::Records(_)
            | Self::Recalled(_)
            | Self::Remembered(_) => None,
            Self::Marked { target, .. } => target.as_ref(),
            Self::ServiceCreated { target, .. }
            | Self::Inspected { target, .. }
            | Self::Read { target, .. }
            | Self::Written { target, .. }
            | Self::HealthSet { target, .. }
            | Self::TtlSet { target, .. }
            | Self::Polled { target, .. }
            | Self::ServiceDeleted { target, .. } => Some(target),
        }
    }
}

/// All instances of a service.
#[derive(Debug)]
pub(super) struct Inventory {
    pub(super) instances: Vec<Instance>,
    /// Instances that fail the custom health check; `None` if they were not read or could not be.
    pub(super) unhealthy: Option<BTreeSet<Arc<str>>>,
}
