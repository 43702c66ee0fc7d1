//! The port: domain verbs, plain types, sorted errors.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;

/// Attributes of an instance: at most 30, keys of at most 255 characters, values of at most 1,024, 5,000 characters
/// in all (Cloud Map `RegisterInstance`).
pub type Attributes = BTreeMap<String, String>;

/// Cloud Map in one account and region.
///
/// Every call has a deadline of a few seconds and is counted. Calls wait for the rate limit of their operation (see
/// [`Lane`]); a call that writes is retried by nobody below this port, because only the caller knows whether it may
/// still write.
///
/// # Errors
/// [`ErrorKind`] says what the caller can do. A write that ends in [`ErrorKind::Unknown`] may have happened, or may
/// still happen later.
#[async_trait]
pub trait CloudMap: Send + Sync + 'static {
    /// All namespaces of this account. Those that other accounts share with it (AWS RAM) are not among them: their calls take ARNs
    /// and the owner's account. AWS allows few such calls: whoever cannot do without goes first.
    async fn list_namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error>;

    async fn get_namespace(&self, id: &str) -> Result<Namespace, Error>;

    /// Starts to create an API-only namespace. The returned operation is asynchronous.
    async fn create_http_namespace(
        &self,
        name: &str,
        creator_request_id: &str,
        description: &str,
        tags: &BTreeMap<String, String>,
    ) -> Result<OperationId, Error>;

    /// Starts to delete a namespace, which must have no services.
    async fn delete_namespace(&self, id: &str) -> Result<OperationId, Error>;

    /// All services of a namespace. `creator_request_id` and `namespace_id` are not filled in by AWS here.
    async fn list_services(&self, namespace_id: &str) -> Result<Vec<Service>, Error>;

    async fn get_service(&self, id: &str) -> Result<Service, Error>;

    /// Creates a service; the only create-if-absent that Cloud Map has, and so the only claim.
    async fn create_service(&self, new: &NewService) -> Result<CreateService, Error>;

    /// Starts to replace the description, the records' TTLs and the Route 53 health check of a service. AWS deletes what it
    /// is not told of: all of `change` is what the service has afterwards. Services of API-only namespaces cannot be
    /// updated, kinds of records and routing policy never.
    async fn update_service(&self, id: &str, change: &ServiceChange) -> Result<OperationId, Error>;

    /// Deletes a service, which must have no instances ([`ErrorKind::InUse`]).
    async fn delete_service(&self, id: &str) -> Result<(), Error>;

    /// Starts an upsert of an instance. One operation per (service, instance) at a time: [`ErrorKind::Duplicate`].
    async fn register_instance(&self, service_id: &str, instance: &Instance, lane: Lane) -> Result<OperationId, Error>;

    async fn deregister_instance(&self, service_id: &str, instance_id: &str, lane: Lane) -> Result<OperationId, Error>;

    async fn operation(&self, id: &OperationId, lane: Lane) -> Result<OperationState, Error>;

    /// All instances as the control plane has them, page after page.
    async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error>;

    /// The instances of a service that fail its health check, page after page. None where it has no health check.
    async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error>;

    /// At most 1,000 instances as the discovery plane has them, whatever their health, filtered by equal attributes.
    /// `http_name` is the namespace's [`Namespace::http_name`].
    async fn discover_instances(
        &self,
        http_name: &str,
        service: &str,
        query: &BTreeMap<String, String>,
        lane: Lane,
    ) -> Result<Discovery, Error>;

    /// Sets the health of an instance of a service that has a custom health check.
    async fn set_custom_health(&self, service_id: &str, instance_id: &str, healthy: bool) -> Result<(), Error>;

    async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error>;

    async fn tag(&self, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error>;
}

/// Whose share of an operation's request rate a call spends. Ledger calls have a share of their own: ten thousand
/// instances in the queue never delay them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    Ledger,
    Instances,
}

/// Id of an asynchronous operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub Arc<str>);

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationState {
    /// Submitted or pending.
    Running,
    Succeeded {
        /// Ids by target type (`NAMESPACE`, `SERVICE`, `INSTANCE`).
        targets: BTreeMap<String, String>,
    },
    Failed {
        code: String,
        message: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    pub id: Arc<str>,
    pub arn: Arc<str>,
    pub name: Arc<str>,
    /// What `DiscoverInstances` takes: differs from `name` when a name was used before (AWS appends a hash).
    pub http_name: Arc<str>,
    pub kind: NamespaceKind,
    pub description: Option<String>,
    /// Milliseconds since 1970; the greatest number where AWS does not tell.
    pub created: i64,
}

impl Namespace {
    /// Order of namespaces that share a name, of which the first is used, by all clusters and leaders alike. It is the oldest: one
    /// that is made later, whatever its kind and its id, takes nothing away from it, and AWS deletes none that has services.
    pub fn precedence(&self) -> (i64, NamespaceKind, &str) {
        (self.created, self.kind, &self.id)
    }
}

/// In the order in which they come where several namespaces of one moment have one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceKind {
    Http,
    DnsPrivate,
    DnsPublic,
}

impl NamespaceKind {
    /// A word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "API-only",
            Self::DnsPrivate => "private",
            Self::DnsPublic => "public",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    pub id: Arc<str>,
    pub arn: Arc<str>,
    pub name: Arc<str>,
    pub namespace_id: Option<Arc<str>>,
    pub description: Option<String>,
    /// Set by whoever created the service, for ever: our owner mark.
    pub creator_request_id: Option<String>,
    /// `None` for a service that is found by API only.
    pub dns: Option<DnsConfig>,
    pub custom_health_check: bool,
    /// Route 53 checks the instances (public DNS namespaces).
    pub health_check: Option<HealthCheck>,
}

/// What a service is to have, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceChange {
    pub description: Option<String>,
    /// The kinds that the service has, with their TTLs.
    pub records: Vec<DnsRecord>,
    pub health_check: Option<HealthCheck>,
}

/// A Route 53 health check, as AWS writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// `HTTP`, `HTTPS` or `TCP`.
    pub kind: String,
    pub path: Option<String>,
    pub failure_threshold: Option<i32>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsConfig {
    /// Answers with one random instance (WEIGHTED) instead of up to eight healthy ones (MULTIVALUE).
    pub weighted: bool,
    pub records: Vec<DnsRecord>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsRecord {
    pub record_type: RecordType,
    /// Seconds.
    pub ttl: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordType {
    A,
    Aaaa,
    Srv,
    Cname,
}

impl RecordType {
    /// As DNS spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Srv => "SRV",
            Self::Cname => "CNAME",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewService {
    pub namespace_id: Arc<str>,
    pub name: Arc<str>,
    /// At most 64 characters. Always set explicitly: the SDK would fill in a random one.
    pub creator_request_id: String,
    /// At most 1,024 characters, and not empty.
    pub description: Option<String>,
    /// `None` makes a service that is found by API only (`Type=HTTP` in a DNS namespace).
    pub dns: Option<DnsConfig>,
    pub custom_health_check: bool,
    pub tags: BTreeMap<String, String>,
}

/// Outcome of [`CloudMap::create_service`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateService {
    Created(Service),
    /// The name is taken: by whom, so that the loser knows the winner. AWS may answer this to a repeated request of
    /// the same creator, too: compare the creator with one's own.
    Exists {
        id: Arc<str>,
        creator_request_id: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// At most 64 characters of `[0-9a-zA-Z_/:.@-]`.
    pub id: Arc<str>,
    pub attributes: Attributes,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    pub instances: Vec<Instance>,
    /// The ids of those that fail the health check of their service; none where it has no health check.
    pub unhealthy: BTreeSet<Arc<str>>,
    /// Exactly 1,000 rows came back: there may be more, and AWS has no next page.
    pub truncated: bool,
}

/// A failed call: which operation, what kind, and the AWS error in words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Cloud Map {operation} failed: {message}")]
pub struct Error {
    pub operation: &'static str,
    pub kind: ErrorKind,
    pub message: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// The namespace, service, instance or operation is not there (or not there yet).
    NotFound,
    /// The name is taken (namespaces).
    AlreadyExists {
        id: Option<String>,
    },
    /// Another operation on the same instance is running.
    Duplicate {
        operation: Option<OperationId>,
    },
    /// `ResourceInUse`.
    InUse,
    /// A quota is reached.
    LimitExceeded,
    /// Too many requests: try again later.
    Throttled,
    AccessDenied,
    /// The request itself is wrong; repeating it cannot help.
    InvalidInput,
    /// Time-out or broken connection: the call may have taken effect, now or later.
    Unknown,
    /// Anything else AWS says.
    Other,
}

impl ErrorKind {
    /// A stable word for metrics and reasons.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists { .. } => "already_exists",
            Self::Duplicate { .. } => "duplicate",
            Self::InUse => "in_use",
            Self::LimitExceeded => "limit_exceeded",
            Self::Throttled => "throttled",
            Self::AccessDenied => "access_denied",
            Self::InvalidInput => "invalid_input",
            Self::Unknown => "unknown",
            Self::Other => "other",
        }
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
