//! The port: methods in words of the domain, plain types, sorted errors.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;

use super::{HttpName, Operation, Permit};

/// Attributes of an instance: at most 30, names of at most 255 characters, values of at most 1,024, and 5,000
/// characters in total (Cloud Map `RegisterInstance`).
pub type Attributes = BTreeMap<String, String>;

/// What Cloud Map of one account and region tells. Whoever has only this can change nothing.
///
/// Every call has a deadline of a few seconds and is counted. Calls wait for the rate limit of their operation (see
/// [`Lane`]).
///
/// # Errors
/// [`ErrorKind`] says what the caller can do.
#[async_trait]
pub trait Read: Send + Sync + 'static {
    /// All namespaces of this account, without those that other accounts share with it (AWS RAM): whoever names one of
    /// those by its ARN gets it from [`Self::get_namespace`]. AWS allows few such calls, so the ledger goes first, and
    /// in the controller's process [`Listings`](super::Listings) makes all others, for whoever asks it.
    async fn list_namespaces(&self, lane: Lane) -> Result<Vec<Namespace>, Error>;

    /// One namespace, by id or ARN.
    async fn get_namespace(&self, id: &str) -> Result<Namespace, Error>;

    /// All services of a namespace, by id or ARN. AWS does not return `creator_request_id` and `namespace_id` here.
    async fn list_services(&self, namespace_id: &str, lane: Lane) -> Result<Vec<Service>, Error>;

    /// One service by id or ARN, with all fields.
    async fn get_service(&self, id: &str, lane: Lane) -> Result<Service, Error>;

    /// State of an operation.
    async fn operation(&self, id: &OperationId, lane: Lane) -> Result<OperationState, Error>;

    /// All instances of a service in the control plane. Reads all pages.
    async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error>;

    /// The instances of a service that fail its health check. Reads all pages. Empty if the service has no health
    /// check.
    async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error>;

    /// At most 1,000 instances in the discovery plane, healthy or not, that have the attributes in `query`. `namespace`
    /// is [`Namespace::in_discovery`].
    async fn discover_instances(
        &self,
        namespace: HttpName<'_>,
        service: &str,
        query: &BTreeMap<String, String>,
        lane: Lane,
    ) -> Result<Discovery, Error>;

    /// The tags of a service or namespace.
    async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error>;
}

/// What changes Cloud Map. Every call needs a [`Permit`], which an implementation checks as the last thing before it sends
/// anything, after all waiting. Nothing below this port retries a write of the controller, because only the caller knows
/// whether it may still write.
///
/// # Errors
/// Those of [`Read`], and [`ErrorKind::NoPermit`] if the permit has ended. A write that ends in [`ErrorKind::Unknown`]
/// may have happened, or may still happen.
#[async_trait]
pub trait Write: Read {
    /// Begins to create a namespace. The operation is asynchronous. That of a namespace with DNS also makes its hosted zone, and
    /// fails if Route 53 does not make it.
    async fn create_namespace(&self, permit: &Permit, new: &NewNamespace<'_>) -> Result<OperationId, Error>;

    /// Begins to delete a namespace, which must have no services. That of a namespace with DNS deletes its hosted zone.
    async fn delete_namespace(&self, permit: &Permit, id: &str) -> Result<OperationId, Error>;

    /// Creates a service. This is the only create-if-absent of Cloud Map, and therefore the only way to claim
    /// something.
    async fn create_service(&self, permit: &Permit, new: &NewService, lane: Lane) -> Result<CreateService, Error>;

    /// Begins to replace the description, the TTLs of the records and the Route 53 health check of a service. AWS
    /// deletes what the request omits: afterwards the service has exactly what `change` contains. Services in API-only
    /// namespaces cannot be updated. Types of records and the routing policy can never be changed.
    async fn update_service(&self, permit: &Permit, id: &str, change: &ServiceChange) -> Result<OperationId, Error>;

    /// Deletes a service, which must have no instances ([`ErrorKind::InUse`]).
    async fn delete_service(&self, permit: &Permit, id: &str) -> Result<(), Error>;

    /// Begins to create or update an instance. Only one operation per (service, instance) can run at a time
    /// ([`ErrorKind::Duplicate`]).
    async fn register_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance: &Instance,
        lane: Lane,
    ) -> Result<OperationId, Error>;

    /// Begins to deregister an instance.
    async fn deregister_instance(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        lane: Lane,
    ) -> Result<OperationId, Error>;

    /// Sets the health status of an instance, in a service with a custom health check.
    async fn set_custom_health(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        healthy: bool,
    ) -> Result<(), Error>;

    /// Adds tags to a service or namespace.
    async fn tag(&self, permit: &Permit, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error>;
}

/// Whose turn at an operation a call waits for. The ledger has a queue of its own, which does not slow down while AWS
/// throttles. Of the operations that it calls often, a part of the rate is its own, too. So ten thousand queued instances
/// never delay it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Calls of the ledger.
    Ledger,
    /// All other calls.
    Instances,
}

/// Id of an asynchronous operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub Arc<str>);

/// State of an asynchronous operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OperationState {
    /// Submitted or pending.
    Running,
    /// It succeeded.
    Succeeded {
        /// Ids by type of target (`NAMESPACE`, `SERVICE`, `INSTANCE`).
        targets: BTreeMap<String, String>,
    },
    /// It failed.
    Failed {
        /// AWS's error code.
        code: String,
        /// AWS's text.
        message: String,
    },
}

/// A Cloud Map namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Id, such as `ns-abcdefghij123456`; the ARN, if it was asked for by that.
    pub id: Arc<str>,
    /// Amazon Resource Name.
    pub arn: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// The name that `DiscoverInstances` takes. It differs from `name` if the name was used before (AWS appends a
    /// hash).
    pub http_name: Arc<str>,
    /// Whether it has DNS.
    pub kind: NamespaceKind,
    /// Text for people.
    pub description: Option<String>,
    /// Time of creation in milliseconds since 1970; the greatest number if AWS does not return it.
    pub created: i64,
    /// TTL of the SOA record of its zone, in seconds: so long resolvers keep at most that a name does not exist. `None`
    /// without DNS, or if AWS does not return it.
    pub soa_ttl: Option<u32>,
    /// Id of its hosted zone in Route 53. `None` without DNS, or if AWS does not return it.
    pub hosted_zone: Option<Arc<str>>,
}

impl Namespace {
    /// Sort key for namespaces with one name. All clusters and leaders use the first one. It is the oldest, so a
    /// namespace that is created later takes nothing away from it, whatever its kind and id; and AWS never deletes a
    /// namespace that has services.
    pub fn precedence(&self) -> (i64, NamespaceKind, &str) {
        (self.created, self.kind, &self.id)
    }

    /// Whether this and the other one are in one account and region.
    pub fn is_beside(&self, other: &Self) -> bool {
        self.place().is_some() && self.place() == other.place()
    }

    /// `arn:aws:servicediscovery:eu-central-1:111122223333` of an ARN that goes on with `:namespace/`.
    fn place(&self) -> Option<&str> {
        self.arn.rsplit_once(':').map(|(place, _)| place)
    }

    /// The one of these that a name or an id stands for: of several with the name, the first one by [`Self::precedence`].
    /// The names of DNS namespaces have no case.
    pub fn named<'a>(all: &'a [Self], name: &str) -> Option<&'a Self> {
        let first = |is_it: &dyn Fn(&Self) -> bool| {
            all.iter().filter(|there| is_it(there)).min_by_key(|there| there.precedence())
        };
        let alike = |there: &Self| there.kind != NamespaceKind::Http && there.name.eq_ignore_ascii_case(name);
        first(&|there| *there.name == *name || *there.id == *name).or_else(|| first(&alike))
    }
}

/// Kinds of namespaces, in the order of precedence if several were created at the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NamespaceKind {
    /// API-only.
    Http,
    /// With private DNS names.
    DnsPrivate,
    /// With public DNS names.
    DnsPublic,
}

impl NamespaceKind {
    /// Whether two names in a namespace are those of one service. AWS allows no two names in a DNS namespace that differ only
    /// by case.
    pub fn is_same_service(self, one: &str, other: &str) -> bool {
        if self == Self::Http { one == other } else { one.eq_ignore_ascii_case(other) }
    }

    /// A word for people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "API-only",
            Self::DnsPrivate => "private",
            Self::DnsPublic => "public",
        }
    }
}

/// A Cloud Map service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Id, such as `srv-abcdefghij123456`; the ARN, if it or its namespace was asked for by that.
    pub id: Arc<str>,
    /// Amazon Resource Name.
    pub arn: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Id of its namespace. Listings do not return it.
    pub namespace_id: Option<Arc<str>>,
    /// Text that this project uses as an owner mark, if there are records.
    pub description: Option<String>,
    /// Set by the creator and never changed: our owner mark. Listings do not return it.
    pub creator_request_id: Option<String>,
    /// The records; `None` if the service can be discovered only through the API.
    pub dns: Option<DnsConfig>,
    /// Whether instances have a custom health status.
    pub custom_health_check: bool,
    /// The Route 53 health check of its instances (public DNS namespaces).
    pub health_check: Option<HealthCheck>,
    /// When it was created, in milliseconds since 1970. `i64::MAX` if AWS does not say it.
    pub created: i64,
    /// How many instances it has, whoever registered them, as the control plane counts. `None` if AWS does not say it.
    pub instances: Option<usize>,
}

/// The complete new state of a service's variable parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceChange {
    /// The description.
    pub description: Option<String>,
    /// The types of records that the service has, with their TTLs.
    pub records: Vec<DnsRecord>,
    /// The Route 53 health check.
    pub health_check: Option<HealthCheck>,
}

/// A Route 53 health check in AWS's terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthCheck {
    /// `HTTP`, `HTTPS` or `TCP`.
    pub kind: String,
    /// Path for HTTP and HTTPS.
    pub path: Option<String>,
    /// Number of failed checks in a row after which an instance is unhealthy.
    pub failure_threshold: Option<i32>,
}

/// DNS configuration of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsConfig {
    /// Whether DNS answers with one random instance (WEIGHTED) instead of up to eight healthy ones (MULTIVALUE).
    pub weighted: bool,
    /// The types of records.
    pub records: Vec<DnsRecord>,
}

/// One type of record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DnsRecord {
    /// The type.
    pub record_type: RecordType,
    /// TTL in seconds.
    pub ttl: u32,
}

/// Type of a DNS record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RecordType {
    /// IPv4 address.
    A,
    /// IPv6 address.
    Aaaa,
    /// Port and host.
    Srv,
    /// Another host name.
    Cname,
}

impl RecordType {
    /// The spelling of DNS.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Srv => "SRV",
            Self::Cname => "CNAME",
        }
    }
}

/// A namespace to be created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewNamespace<'a> {
    /// Name.
    pub name: &'a str,
    /// The VPC, of the account and region, in which it has DNS by a private hosted zone; `None` creates an API-only namespace.
    pub vpc: Option<&'a str>,
    /// Owner mark of at most 64 characters.
    pub creator_request_id: &'a str,
    /// Text of at most 1,024 characters.
    pub description: &'a str,
    /// Tags for the namespace.
    pub tags: &'a BTreeMap<String, String>,
}

impl NewNamespace<'_> {
    /// The operation that creates it.
    pub const fn operation(&self) -> Operation {
        match self.vpc {
            None => Operation::CreateHttpNamespace,
            Some(_) => Operation::CreatePrivateDnsNamespace,
        }
    }
}

/// A service to be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewService {
    /// Id of its namespace.
    pub namespace_id: Arc<str>,
    /// Name.
    pub name: Arc<str>,
    /// Owner mark of at most 64 characters. It is always set; otherwise the SDK would send a random one.
    pub creator_request_id: String,
    /// Text of 1 to 1,024 characters.
    pub description: Option<String>,
    /// The records; `None` creates a service that can be discovered only through the API (`Type=HTTP` in a DNS
    /// namespace).
    pub dns: Option<DnsConfig>,
    /// Whether instances have a custom health status.
    pub custom_health_check: bool,
    /// Tags for the service.
    pub tags: BTreeMap<String, String>,
}

/// Outcome of [`Write::create_service`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateService {
    /// The service was created.
    Created(Service),
    /// The name is taken, with the creator, so that the loser knows the winner. AWS may return this also to a repeated
    /// request of the same creator, so compare the creator with your own.
    Exists {
        /// Id of the existing service.
        id: Arc<str>,
        /// Its creator, if AWS returns it.
        creator_request_id: Option<String>,
    },
}

/// A Cloud Map instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Instance {
    /// At most 64 characters of `[0-9a-zA-Z_/:.@-]`.
    pub id: Arc<str>,
    /// The attributes.
    pub attributes: Attributes,
}

/// Result of [`Read::discover_instances`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Discovery {
    /// The instances.
    pub instances: Vec<Instance>,
    /// Ids of the instances that fail the health check of their service; empty if it has none.
    pub unhealthy: BTreeSet<Arc<str>>,
    /// Exactly 1,000 rows were returned. There may be more, and AWS has no next page.
    pub truncated: bool,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("Cloud Map {operation} failed: {message}")]
pub struct Error {
    /// Name of the operation.
    pub operation: &'static str,
    /// What the caller can do about it.
    pub kind: ErrorKind,
    /// The error in AWS's words.
    pub message: String,
}

/// Kinds of errors, by what the caller can do about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErrorKind {
    /// The namespace, service, instance or operation does not exist (or not yet).
    NotFound,
    /// A namespace with this name exists.
    AlreadyExists {
        /// Id of the existing namespace, if AWS returns it.
        id: Option<String>,
    },
    /// Another operation on the same instance is running.
    Duplicate {
        /// The running operation, if AWS returns it.
        operation: Option<OperationId>,
    },
    /// `ResourceInUse`: the namespace or service is not empty.
    InUse,
    /// Route 53 does not make the hosted zone of a namespace: the VPC has one with this name, or AWS knows no such VPC.
    NoZone,
    /// A quota is exhausted.
    LimitExceeded,
    /// Too many requests: try again later.
    Throttled,
    /// IAM does not allow the call.
    AccessDenied,
    /// Whoever gives the credentials does not answer, or fails. The call itself, or its last attempt, was not sent.
    NoCredentials,
    /// The [`Permit`] has ended. The call itself, or its last attempt, was not sent.
    NoPermit,
    /// The request itself is wrong. Repeating it does not help.
    InvalidInput,
    /// Timeout or broken connection: the call may have taken effect, or may still do so.
    Unknown,
    /// Any other error.
    Other,
}

impl ErrorKind {
    /// Whether the write, or an earlier attempt at it, may have taken effect or may still do so.
    pub const fn may_come_late(&self) -> bool {
        matches!(self, Self::NoCredentials | Self::NoPermit | Self::Unknown | Self::Other)
    }

    /// A fixed word for metrics and reasons.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::AlreadyExists { .. } => "already_exists",
            Self::Duplicate { .. } => "duplicate",
            Self::InUse => "in_use",
            Self::NoZone => "no_zone",
            Self::LimitExceeded => "limit_exceeded",
            Self::Throttled => "throttled",
            Self::AccessDenied => "access_denied",
            Self::NoCredentials => "no_credentials",
            Self::NoPermit => "no_permit",
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
