//! A faithful AWS Cloud Map in memory, for tests, the demo, benchmarks and anyone without an account.
//!
//! [`CloudMap`] is the registry itself: it opens no socket and reads no clock, `now` is passed in. [`Emulator`] serves
//! it over HTTP in the wire format of the AWS SDKs (`awsJson1_1`), with the routes of the control interface beside it.
//!
//! Where the documentation of AWS is silent the emulator does what is hardest on a client, or has a setting; each such
//! choice is named at its place. DNS namespaces are answered over DNS ([`Emulator::serve_dns`]), and to whole networks as by
//! the resolver of a VPC ([`Emulator::serve_resolver`]). Other accounts and regions have registries of their own once
//! [`Accounts`] say so; DNS answers from the first one. The probing of Route 53 health checks is left out.
//!
//! ```no_run
//! # async fn example() -> anyhow::Result<()> {
//! use cloudmap_emulator::{Effect, Emulator, Fault, EmulatorSettings};
//!
//! let emulator = Emulator::start(EmulatorSettings::unthrottled()).await?;
//! let client = emulator.client("cluster-1");
//! emulator.control().add_fault(Fault::on("RegisterInstance", Effect::DropResponse).times(1));
//! client.create_http_namespace().name("example").send().await?;
//! assert_eq!(emulator.control().counters().calls("CreateHttpNamespace"), 1);
//! emulator.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod accounts;
mod attributes;
mod calls;
#[cfg(feature = "client")]
mod client;
mod cloud;
mod control;
mod discovery;
mod dns;
pub mod dns_client;
mod error;
mod faults;
mod health;
mod history;
mod iam;
mod instances;
mod limits;
mod namespaces;
mod operations;
mod paging;
mod ram;
mod replicas;
mod requests;
mod server;
mod services;
mod settings;
mod snapshot;
mod state;
mod sts;
mod tags;
mod validate;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use accounts::{AccessKey, Accounts, Role};
pub use calls::{Admission, Outcome, Response};
#[cfg(feature = "client")]
pub use client::{PlainHost, patient_sdk_config, sdk_config};
pub use control::Control;
pub use dns::{DNS_QUERY, DnsServer, RESOLVER_QUERY};
pub use error::ApiError;
pub use faults::{Effect, Fault};
pub use history::{Counters, OperationCounters, QueryCounters, Write};
pub use iam::Policy;
pub use limits::Rate;
pub use ram::Share;
pub use requests::{DnsConfig, DnsRecord, HealthCheckConfig, HealthCheckCustomConfig, Tag};
pub use server::Emulator;
pub use settings::{EmulatorSettings, HealthFilter, Latency, Quotas, RepeatedCreate};
pub use state::{Health, Instance, Namespace, NamespaceType, Service, Snapshot};
pub use sts::ASSUME_ROLE;

use faults::Faults;
use history::Writes;
use limits::Limits;
use operations::Operations;
use replicas::{Change, Replica, Topic};

/// Every operation of the API, version 2017-03-14.
pub const OPERATIONS: [&str; 30] = [
    "CreateHttpNamespace",
    "CreatePrivateDnsNamespace",
    "CreatePublicDnsNamespace",
    "CreateService",
    "DeleteNamespace",
    "DeleteService",
    "DeleteServiceAttributes",
    "DeregisterInstance",
    "DiscoverInstances",
    "DiscoverInstancesRevision",
    "GetInstance",
    "GetInstancesHealthStatus",
    "GetNamespace",
    "GetOperation",
    "GetService",
    "GetServiceAttributes",
    "ListInstances",
    "ListNamespaces",
    "ListOperations",
    "ListServices",
    "ListTagsForResource",
    "RegisterInstance",
    "TagResource",
    "UntagResource",
    "UpdateHttpNamespace",
    "UpdateInstanceCustomHealthStatus",
    "UpdatePrivateDnsNamespace",
    "UpdatePublicDnsNamespace",
    "UpdateService",
    "UpdateServiceAttributes",
];

/// What happens by itself at a later time.
#[derive(Clone, Debug)]
enum Event {
    Finish { operation: u64 },
    ChangeHealth { service: String, instance: String },
    Replicate { replica: usize, change: Change },
}

/// Namespaces and their services, as they are in the registry of another account.
#[derive(Debug, Default)]
struct Shared {
    namespaces: BTreeMap<String, Namespace>,
    services: BTreeMap<String, Service>,
}

/// The registry: one account in one region. Every method that takes `now`, the time since the Unix epoch, first lets
/// happen what is due by then; a `now` that goes back counts as the latest one seen.
#[derive(Debug)]
pub struct CloudMap {
    settings: EmulatorSettings,
    rng: StdRng,
    now: Duration,
    /// Numbers events, operations and revisions.
    sequence: u64,
    namespaces: BTreeMap<String, Namespace>,
    services: BTreeMap<String, Service>,
    /// What other accounts share with this one, while it is listed.
    shared: Shared,
    /// Creations under way, by type, name and VPC.
    creating: HashMap<(NamespaceType, String, String), u64>,
    operations: Operations,
    queue: BTreeMap<(Duration, u64), Event>,
    /// Those of discovery, then those of DNS, in the order of [`EmulatorSettings::lags`].
    replicas: Vec<Replica>,
    /// When the last change to what has a name arrives at each replica. Names outlive what they named: a late change of a
    /// service that is gone must not come after the first one of its successor.
    arrivals: HashMap<Topic, Vec<Duration>>,
    /// Ids of deleted services by namespace and name, for `EmulatorSettings::reuse_service_ids`.
    retired: HashMap<(String, String), String>,
    limits: Limits,
    faults: Faults,
    counters: Counters,
    writes: Writes,
}

impl CloudMap {
    /// An empty registry.
    ///
    /// # Panics
    /// If [`EmulatorSettings::check`] fails.
    pub fn new(settings: EmulatorSettings) -> Self {
        settings.check().expect("settings of the emulator");
        let rng = settings.seed.map_or_else(|| StdRng::from_rng(&mut rand::rng()), StdRng::seed_from_u64);
        Self {
            replicas: vec![Replica::default(); settings.lags().count()],
            settings,
            rng,
            now: Duration::ZERO,
            sequence: 0,
            namespaces: BTreeMap::new(),
            services: BTreeMap::new(),
            shared: Shared::default(),
            creating: HashMap::new(),
            operations: Operations::default(),
            queue: BTreeMap::new(),
            arrivals: HashMap::new(),
            retired: HashMap::new(),
            limits: Limits::default(),
            faults: Faults::default(),
            counters: Counters::default(),
            writes: Writes::default(),
        }
    }

    /// Lets everything happen that is due by `now`.
    pub fn advance(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(entry) = self.queue.first_entry() {
            let at = entry.key().0;
            if at > self.now {
                break;
            }
            match entry.remove() {
                Event::Finish { operation } => self.finish(operation, at),
                Event::ChangeHealth { service, instance } => self.change_health(&service, &instance, at),
                Event::Replicate { replica, change } => self.replicas[replica].apply(change),
            }
        }
        if self.queue.is_empty() {
            self.arrivals.clear();
        }
    }

    /// When the next thing happens by itself, for simulations that jump in time.
    pub fn next_event(&self) -> Option<Duration> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn schedule(&mut self, at: Duration, event: Event) {
        let sequence = self.next_sequence();
        self.queue.insert((at, sequence), event);
    }

    /// Lets each replica learn of a change, a lag after `at`. Changes to what has one name arrive in their order.
    fn replicate(&mut self, at: Duration, change: &Change) {
        let arrivals = self.arrivals.entry(change.topic()).or_default();
        arrivals.resize(self.replicas.len(), Duration::ZERO);
        for (replica, (arrival, lag)) in arrivals.iter_mut().zip(self.settings.lags()).enumerate() {
            *arrival = (*arrival).max(at + lag.sample(&mut self.rng));
            self.sequence += 1;
            let event = Event::Replicate { replica, change: change.clone() };
            self.queue.insert((*arrival, self.sequence), event);
        }
    }

    /// A random string of lower-case letters and digits, as ids on AWS are.
    fn random_id(&mut self, length: usize) -> String {
        const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        (0..length).map(|_| char::from(ALPHABET[self.rng.random_range(0..ALPHABET.len())])).collect()
    }

    fn arn(&self, kind: &str, id: &str) -> String {
        let EmulatorSettings { region, account, .. } = &self.settings;
        format!("arn:aws:servicediscovery:{region}:{account}:{kind}/{id}")
    }

    /// The id in an id or ARN of the given kind (`namespace` or `service`). An ARN of another kind, region or account is
    /// nothing that exists here.
    fn resource_id<'a>(&self, kind: &str, id_or_arn: &'a str) -> Option<&'a str> {
        if !id_or_arn.starts_with("arn:") {
            return Some(id_or_arn);
        }
        let (prefix, id) = id_or_arn.rsplit_once('/')?;
        (prefix == self.arn(kind, "").trim_end_matches('/')).then_some(id)
    }
}

/// A time as AWS writes it: seconds since the Unix epoch, "accurate to milliseconds".
fn timestamp(time: Duration) -> f64 {
    time.as_millis() as f64 / 1000.0
}
