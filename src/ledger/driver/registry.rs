//! The calls of the ledger on top of the Cloud Map port: names become ids, and operations are awaited.

mod claims;
mod keys;
mod unlisted;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::sync::{Mutex, Semaphore};

use crate::{
    CLUSTERS,
    call::{Failure, Pages},
    head::Head,
    namespace_name,
    page::StoredPage,
    service_name,
    trust::{self, Keys, Scope},
    writer::Heads,
};
use cloudmap::{Discovery, Error, ErrorKind, HttpName, Lane, Looks, Namespace, NamespaceKind, Read, Service};
use model::{ClusterId, ClusterSetId};

/// How many calls delete at once.
const DELETING: usize = 8;

/// The ledger of one ClusterSet in Cloud Map. Who has no more than a [`Read`] as `C` can only read it.
pub(crate) struct Registry<C: ?Sized = dyn cloudmap::Write> {
    cloudmap: Arc<C>,
    clusterset: ClusterSetId,
    me: Option<(ClusterId, String)>,
    /// What heads are signed with, if they are.
    keys: Option<Arc<Keys>>,
    namespace: Mutex<Option<Namespace>>,
    /// Service ids by name.
    services: Mutex<BTreeMap<String, Arc<str>>>,
    /// The same, as an earlier leader left them in the record, and as other clusters announce them.
    recorded: Mutex<BTreeMap<String, String>>,
    announced: Mutex<BTreeMap<String, String>>,
    /// Ids of exports services that this cluster provably created.
    owned: Mutex<BTreeSet<Arc<str>>>,
    /// Held while a service is looked at, so that only one of many page writes does it.
    proving: Mutex<()>,
    /// Held by calls that delete. Garbage comes by the dozen, nobody waits for it, and each call of a burst would open a
    /// connection.
    deleting: Semaphore,
    /// Whether the heads were read once.
    seen_heads: AtomicBool,
    heads: Mutex<ParsedHeads>,
    /// Heads that the last read returned, also if they may be only a part.
    rows: AtomicUsize,
    bytes_read: AtomicU64,
    looks: std::sync::Mutex<Looks>,
    /// The same for heads that repeat what was said: nobody waits for their operations.
    glances: std::sync::Mutex<Looks>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { message: error.to_string() }
    }
}

fn failure(message: String) -> Failure {
    Failure { message }
}

impl<C: Read + ?Sized> Registry<C> {
    pub(crate) fn new(cloudmap: Arc<C>, clusterset: &ClusterSetId) -> Self {
        Self {
            cloudmap,
            clusterset: clusterset.clone(),
            me: None,
            keys: None,
            namespace: Mutex::default(),
            services: Mutex::default(),
            recorded: Mutex::default(),
            announced: Mutex::default(),
            owned: Mutex::default(),
            proving: Mutex::default(),
            deleting: Semaphore::new(DELETING),
            seen_heads: AtomicBool::new(false),
            heads: Mutex::default(),
            rows: AtomicUsize::new(0),
            bytes_read: AtomicU64::new(0),
            looks: std::sync::Mutex::new(Looks::often()),
            glances: std::sync::Mutex::new(Looks::seldom()),
        }
    }

    pub(crate) fn owned_by(self, cluster: &ClusterId, uid: &str) -> Self {
        Self { me: Some((cluster.clone(), uid.to_owned())), ..self }
    }

    pub(crate) fn signed_with(self, keys: Option<Arc<Keys>>) -> Self {
        Self { keys, ..self }
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Number of heads in the last read that was answered, also if there were too many to be read.
    pub(super) fn rows(&self) -> usize {
        self.rows.load(Ordering::Relaxed)
    }

    /// The ledger's namespace, if it was found before. Every tick needs it, so this makes no call.
    async fn known_namespace(&self) -> Result<Namespace, Failure> {
        let known = self.namespace.lock().await.clone();
        known.ok_or_else(|| failure(format!("the namespace {} is not found yet", self.namespace_name())))
    }

    fn namespace_name(&self) -> String {
        namespace_name(self.clusterset.as_str())
    }

    /// Finds the namespace. The `HttpName` for discovery may differ from its name.
    pub(crate) async fn find_namespace(&self) -> Result<Option<Namespace>, Failure> {
        let mut known = self.namespace.lock().await;
        if known.is_none() {
            let name = self.namespace_name();
            let mut found = self.cloudmap.list_namespaces(Lane::Ledger).await?;
            found.retain(|namespace| namespace.kind == NamespaceKind::Http && *namespace.name == *name);
            // Several namespaces may have the name. All clusters must use the same one, and keep it.
            *known = found.into_iter().min_by(|a, b| a.precedence().cmp(&b.precedence()));
        }
        Ok(known.clone())
    }

    /// The services of the ledger.
    pub(crate) async fn list_services(&self) -> Result<Vec<Service>, Failure> {
        let Some(namespace) = self.find_namespace().await? else { return Ok(Vec::new()) };
        let listed = match self.cloudmap.list_services(&namespace.id, Lane::Ledger).await {
            Err(error) if error.kind == ErrorKind::NotFound => {
                // It was deleted since. Whoever writes next creates it again.
                *self.namespace.lock().await = None;
                self.services.lock().await.clear();
                return Ok(Vec::new());
            }
            listed => listed?,
        };
        let mut known = self.services.lock().await;
        *known = listed.iter().map(|service| (service.name.to_string(), service.id.clone())).collect();
        Ok(listed)
    }

    async fn find_service(&self, name: &str) -> Result<Option<Arc<str>>, Failure> {
        if let Some(id) = self.known_service(name).await {
            return Ok(Some(id));
        }
        self.list_services().await?;
        Ok(self.known_service(name).await)
    }

    async fn service_id(&self, name: &str) -> Result<Arc<str>, Failure> {
        self.find_service(name).await?.ok_or_else(|| failure(format!("the service {name} does not exist")))
    }

    async fn forget_service(&self, name: &str) {
        self.services.lock().await.remove(name);
    }

    /// R1: all heads. 1,000 rows may be a part, which proves nothing about the rest. `None` while the ledger does not
    /// exist yet; the claim reports why.
    pub(crate) async fn read_heads(&self) -> Result<Option<Heads>, Failure> {
        let Some(namespace) = self.namespace.lock().await.clone() else { return Ok(None) };
        let discovery = match self.discover(&namespace.http_name, CLUSTERS, &BTreeMap::new()).await {
            Err(Error { kind: ErrorKind::NotFound, .. }) if !self.seen_heads.load(Ordering::Relaxed) => {
                return Ok(None);
            }
            discovery => discovery?,
        };
        self.seen_heads.store(true, Ordering::Relaxed);
        self.rows.store(discovery.instances.len(), Ordering::Relaxed);
        if discovery.truncated {
            return Err(failure(format!(
                "reading {CLUSTERS} returned 1,000 rows, which may be only a part; nothing can be read until there are fewer. Clusters \
                 that left are listed by `cloudmap-mcs ledger show` and removed by `cloudmap-mcs purge --cluster ID`"
            )));
        }
        Ok(Some(self.heads.lock().await.parse(discovery.instances, self.scope(&namespace))))
    }

    /// [`Registry::read_heads`] in a registry to which this cluster does not write; `None` if it has no ledger of the ClusterSet.
    /// `again`: looks for its namespace again.
    pub(crate) async fn read_ledger(&self, again: bool) -> Result<Option<Heads>, Failure> {
        if again {
            *self.namespace.lock().await = None;
            self.services.lock().await.clear();
            self.seen_heads.store(false, Ordering::Relaxed);
        }
        self.find_namespace().await?;
        self.read_heads().await
    }

    /// The pages of a shard. A service that does not exist has none: a leader may have ended while it claimed services, and a
    /// service comes with its first page.
    pub(crate) async fn read_pages(&self, cluster: &str, shard: u32, flush: Option<&str>) -> Result<Pages, Failure> {
        let namespace = self.known_namespace().await?;
        let query = flush.map(|flush| ("f".to_owned(), flush.to_owned())).into_iter().collect();
        let discovery = match self.discover(&namespace.http_name, &service_name(cluster, shard), &query).await {
            Err(Error { kind: ErrorKind::NotFound, .. }) => return Ok(Pages::default()),
            discovery => discovery?,
        };
        let pages = discovery.instances.iter().filter_map(|instance| StoredPage::from_instance(instance).ok());
        Ok(Pages { pages: pages.map(Arc::new).collect(), truncated: discovery.truncated })
    }

    async fn discover(
        &self,
        http_name: &str,
        service: &str,
        query: &BTreeMap<String, String>,
    ) -> Result<Discovery, Error> {
        let discovery =
            self.cloudmap.discover_instances(HttpName::own(http_name), service, query, Lane::Ledger).await?;
        let size = |(key, value): (&String, &String)| key.len() + value.len();
        let bytes: usize = discovery.instances.iter().flat_map(|instance| instance.attributes.iter().map(size)).sum();
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(discovery)
    }

    fn scope<'a>(&'a self, namespace: &'a Namespace) -> Scope<'a> {
        Scope { clusterset: self.clusterset.as_str(), namespace: &namespace.id }
    }

    async fn known_service(&self, name: &str) -> Option<Arc<str>> {
        self.services.lock().await.get(name).cloned()
    }

    /// A listed service with its creator; `None` if it was not listed, or is gone since.
    async fn known_service_details(&self, name: &str) -> Result<Option<Service>, Failure> {
        let Some(id) = self.known_service(name).await else { return Ok(None) };
        match self.cloudmap.get_service(&id, Lane::Ledger).await {
            Ok(service) => Ok(Some(service)),
            Err(Error { kind: ErrorKind::NotFound, .. }) => {
                self.forget_service(name).await;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Heads that are parsed once per content, because most ticks change only one of them.
#[derive(Debug, Default)]
struct ParsedHeads(BTreeMap<Arc<str>, (cloudmap::Attributes, Arc<Head>)>);

impl ParsedHeads {
    fn parse(&mut self, instances: Vec<cloudmap::Instance>, scope: Scope<'_>) -> Heads {
        let mut before = std::mem::take(&mut self.0);
        let mut heads = Heads::new();
        for instance in instances {
            let parsed = match before.remove(&instance.id) {
                Some((attributes, head)) if attributes == instance.attributes => Ok(head),
                _ => Head::from_instance(&instance).map(|head| {
                    let signer = trust::signer(&instance.attributes, &head, scope);
                    Arc::new(Head { signer, ..head })
                }),
            };
            if let Ok(head) = &parsed {
                self.0.insert(instance.id.clone(), (instance.attributes, head.clone()));
            }
            heads.insert(instance.id, parsed);
        }
        heads
    }
}
