//! The calls of the ledger on top of the Cloud Map port: names become ids, and operations are awaited.

mod claims;
mod keys;
mod unlisted;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Mutex, Semaphore},
    time::{Instant, sleep},
};

use super::ParsedHeads;
use crate::{
    CLUSTERS, OWNER,
    call::{Failure, Outcome, Pages},
    cluster_of,
    head::Head,
    namespace_name,
    page::StoredPage,
    service_name, service_tags, tags,
    trust::{self, COPY_INSTANCE, KEY_INSTANCE, Keys, Scope},
    writer::Heads,
};
use cloudmap::{
    CloudMap, CreateService, Discovery, Error, ErrorKind, Instance, Lane, Looks, Namespace, NamespaceKind, NewService,
    OperationId, OperationState, Service,
};
use model::{ClusterId, ClusterSetId};

/// An operation that takes longer has an unknown outcome.
const OPERATION_LIMIT: Duration = Duration::from_mins(1);

/// How many calls delete at once.
const DELETING: usize = 8;

/// The ledger of one ClusterSet in Cloud Map.
pub(crate) struct Registry {
    cloudmap: Arc<dyn CloudMap>,
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

impl Registry {
    pub(crate) fn new(cloudmap: Arc<dyn CloudMap>, clusterset: &ClusterSetId) -> Self {
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

    async fn ensure_namespace(&self) -> Result<Namespace, Failure> {
        if let Some(namespace) = self.find_namespace().await? {
            return Ok(namespace);
        }
        let name = self.namespace_name();
        let description = format!("cloudmap-mcs: ledger of the ClusterSet {}", self.clusterset);
        let created = self.cloudmap.create_http_namespace(&name, OWNER, &description, &tags(&self.clusterset)).await;
        match created {
            Ok(operation) => self.wait_for(operation).await?,
            // Another cluster was first, or an earlier attempt of ours is still in progress.
            Err(Error { kind: ErrorKind::AlreadyExists { .. }, .. }) => {}
            Err(Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
                self.wait_for(operation).await?;
            }
            Err(error) => return Err(error.into()),
        }
        let found = self.find_namespace().await?;
        found.ok_or_else(|| failure(format!("the namespace {name} was created but is not listed yet")))
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

    async fn create_service(&self, name: String, creator: &str) -> Result<CreateService, Failure> {
        let namespace = self.ensure_namespace().await?;
        let new = NewService {
            namespace_id: namespace.id,
            name: name.as_str().into(),
            creator_request_id: creator.to_owned(),
            // external-dns crashes on services that have a description and no records.
            description: None,
            dns: None,
            custom_health_check: false,
            tags: service_tags(&self.clusterset, &name),
        };
        let created = match self.cloudmap.create_service(&new, Lane::Ledger).await {
            Ok(created) => created,
            Err(error) => {
                // The namespace may have been deleted since.
                if error.kind == ErrorKind::NotFound {
                    *self.namespace.lock().await = None;
                }
                return Err(error.into());
            }
        };
        let id = match &created {
            CreateService::Created(service) => service.id.clone(),
            CreateService::Exists { id, .. } => id.clone(),
        };
        self.services.lock().await.insert(name, id);
        Ok(created)
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
        let discovery = self.cloudmap.discover_instances(http_name, service, query, Lane::Ledger).await?;
        let size = |(key, value): (&String, &String)| key.len() + value.len();
        let bytes: usize = discovery.instances.iter().flat_map(|instance| instance.attributes.iter().map(size)).sum();
        self.bytes_read.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(discovery)
    }

    /// Writes a head, which may repeat what was said. `Taken` if the id turns out to belong to another cluster; then nothing was
    /// written.
    pub(crate) async fn put_head(&self, head: &Head, repeats: bool) -> Result<Outcome, Failure> {
        if self.me.is_some() && self.find_service(CLUSTERS).await?.is_none() {
            // Somebody purged the ledger. Its absence also shows that a cluster left.
            if !head.is_live() {
                return Ok(Outcome::Done);
            }
            // The own id must be claimed again before anything is written.
            match self.claim(0).await? {
                taken @ Outcome::Taken { .. } => return Ok(taken),
                Outcome::OldKey(why) => return Err(failure(why)),
                _ => {}
            }
        }
        if self.me.as_ref().is_some_and(|(me, _)| *head.cluster != *me.as_str()) {
            match self.announce_for(&head.cluster).await {
                Ok(None) => {}
                // That took a while, so the Lease comes first again: who marks a former id tries until it is marked.
                Ok(Some(written)) => return Ok(written),
                // Whoever knows the key already believes the head all the same.
                Err(Failure { message }) => {
                    tracing::warn!(error = message, cluster = %head.cluster, "cannot announce the key under a former id");
                }
            }
        }
        let instance = match &self.keys {
            Some(keys) => trust::sign(head, &keys.current, self.scope(&self.ensure_namespace().await?)),
            None => head.to_instance(),
        };
        self.register(CLUSTERS, &instance, repeats).await
    }

    fn scope<'a>(&'a self, namespace: &'a Namespace) -> Scope<'a> {
        Scope { clusterset: self.clusterset.as_str(), namespace: &namespace.id }
    }

    /// Writes a page, like [`put_head`](Self::put_head).
    pub(super) async fn put_page(&self, shard: u32, page: &StoredPage) -> Result<Outcome, Failure> {
        let Some((cluster, _)) = &self.me else { return Err(failure("read-only".to_owned())) };
        if let Some(taken) = self.taken(shard).await? {
            return Ok(taken);
        }
        self.register(&service_name(cluster.as_str(), shard), &page.to_instance(), false).await
    }

    async fn register(&self, service: &str, instance: &Instance, repeats: bool) -> Result<Outcome, Failure> {
        let id = self.service_id(service).await?;
        match self.cloudmap.register_instance(&id, instance, Lane::Ledger).await {
            Ok(operation) if repeats => self.wait(operation, &self.glances).await.map(|()| Outcome::Done),
            Ok(operation) => self.wait_for(operation).await.map(|()| Outcome::Done),
            Err(error) => {
                if error.kind == ErrorKind::NotFound {
                    self.forget_service(service).await;
                }
                Err(error.into())
            }
        }
    }

    /// Deletes a page, like [`put_head`](Self::put_head) also where the id is a former one.
    pub(crate) async fn delete_page(&self, cluster: &str, shard: u32, page: &str) -> Result<Outcome, Failure> {
        let name = service_name(cluster, shard);
        let own = self.me.as_ref().is_some_and(|(me, _)| me.as_str() == cluster);
        let taken = if own { self.taken(shard).await? } else { self.of_another(&name).await? };
        if let Some(taken) = taken {
            return Ok(taken);
        }
        let id = self.service_id(&name).await?;
        self.remove(&id, page).await
    }

    /// Deregisters an instance. One that is gone counts as a success.
    async fn remove(&self, service: &str, instance: &str) -> Result<Outcome, Failure> {
        let turn = self.deleting.acquire().await;
        let deregistered = self.cloudmap.deregister_instance(service, instance, Lane::Ledger).await;
        drop(turn);
        match deregistered {
            Ok(operation) => self.wait_for(operation).await.map(|()| Outcome::Done),
            Err(Error { kind: ErrorKind::NotFound, .. }) => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes the services and the head of an id that this cluster had, if it left and nobody else has the id now. Further
    /// services of somebody else stay. The head goes last: while it is there, the rest is tried again. The key must go
    /// before it, because the service of the key must be empty. But it goes after all else, because the head counts for
    /// nobody without its key.
    pub(super) async fn remove_former(&self, cluster: &str) -> Result<Outcome, Failure> {
        let Some((_, uid)) = &self.me else { return Err(failure("read-only".to_owned())) };
        let first = service_name(cluster, 0);
        let mut services = self.list_services().await?;
        services.retain(|service| cluster_of(&service.name) == Some(cluster));
        services.sort_by_key(|service| *service.name == *first);
        for service in services {
            match self.cloudmap.get_service(&service.id, Lane::Ledger).await {
                Err(error) if error.kind == ErrorKind::NotFound => continue,
                found if found.as_ref().is_ok_and(|found| found.creator_request_id.as_ref() != Some(uid)) => {
                    if *service.name == *first {
                        return Ok(Outcome::Done);
                    }
                    continue;
                }
                found => drop(found?),
            }
            let mut deleted = self.cloudmap.delete_service(&service.id).await;
            // AWS says first whether it would allow that. The key stays where it does not.
            if *service.name == *first && deleted.as_ref().is_err_and(|error| error.kind == ErrorKind::InUse) {
                self.remove(&service.id, KEY_INSTANCE).await?;
                self.remove(&service.id, COPY_INSTANCE).await?;
                deleted = self.cloudmap.delete_service(&service.id).await;
            }
            match deleted {
                Err(error) if error.kind != ErrorKind::NotFound => return Err(error.into()),
                _ => self.forget_service(&service.name).await,
            }
        }
        let heads = self.read_heads().await?.unwrap_or_default();
        let head = heads.get(cluster).and_then(|head| head.as_ref().ok());
        if head.is_none_or(|head| head.is_live() || *head.uid != **uid) {
            return Ok(Outcome::Done);
        }
        let clusters = self.service_id(CLUSTERS).await?;
        self.remove(&clusters, cluster).await
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

    /// Waits for the end of an operation that somebody waits for.
    async fn wait_for(&self, operation: OperationId) -> Result<(), Failure> {
        let began = Instant::now();
        self.wait(operation, &self.looks).await?;
        // It took hardly less than that, and operations that nobody waits for take as long.
        let mut glances = self.glances.lock().unwrap_or_else(PoisonError::into_inner);
        let (took, first) = (began.elapsed(), glances.first());
        glances.ended(took, took <= first);
        Ok(())
    }

    async fn wait(&self, operation: OperationId, looks: &std::sync::Mutex<Looks>) -> Result<(), Failure> {
        let deadline = Instant::now() + OPERATION_LIMIT;
        let began = Instant::now();
        let looks = || looks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pause = looks().first();
        let mut at_first = true;
        loop {
            sleep(pause).await;
            let looked = began.elapsed();
            match self.cloudmap.operation(&operation, Lane::Ledger).await {
                Ok(OperationState::Succeeded { .. }) => {
                    looks().ended(looked, at_first);
                    return Ok(());
                }
                Ok(OperationState::Failed { code, message }) => {
                    return Err(failure(format!("the operation {operation} failed with {code}: {message}")));
                }
                // Whoever may not ask learns from the next reading what became of it.
                Err(error) if error.kind == ErrorKind::AccessDenied || Instant::now() >= deadline => {
                    return Err(error.into());
                }
                Ok(OperationState::Running) | Err(_) => {}
            }
            if Instant::now() >= deadline {
                let message = format!("the operation {operation} is not finished after {OPERATION_LIMIT:?}");
                return Err(Failure { message });
            }
            at_first = false;
            pause = looks().again(began.elapsed());
        }
    }
}
