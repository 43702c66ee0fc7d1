//! What changes the ledger. Each call needs a permit, and waits until its operation has ended.

use std::{sync::PoisonError, time::Duration};

use tokio::time::{Instant, sleep};

use super::{Registry, failure};
use crate::{
    CLUSTERS, OWNER,
    call::{Failure, Outcome},
    cluster_of,
    head::Head,
    page::StoredPage,
    service_name, service_tags, tags,
    trust::{self, COPY_INSTANCE, KEY_INSTANCE},
};
use cloudmap::{
    CreateService, Error, ErrorKind, Instance, Lane, Looks, Namespace, NewNamespace, NewService, OperationId,
    OperationState, Permit, Write,
};

/// An operation that takes longer has an unknown outcome.
const OPERATION_LIMIT: Duration = Duration::from_mins(1);

impl<C: Write + ?Sized> Registry<C> {
    pub(super) async fn ensure_namespace(&self, permit: &Permit) -> Result<Namespace, Failure> {
        if let Some(namespace) = self.find_namespace().await? {
            return Ok(namespace);
        }
        let name = self.namespace_name();
        let description = format!("cloudmap-mcs: ledger of the ClusterSet {}", self.clusterset);
        let (vpc, tags) = (None, tags(&self.clusterset));
        let new = NewNamespace { name: &name, vpc, creator_request_id: OWNER, description: &description, tags: &tags };
        match self.cloudmap.create_namespace(permit, &new).await {
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

    pub(super) async fn create_service(
        &self,
        permit: &Permit,
        name: String,
        creator: &str,
    ) -> Result<CreateService, Failure> {
        let namespace = self.ensure_namespace(permit).await?;
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
        let created = match self.cloudmap.create_service(permit, &new, Lane::Ledger).await {
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

    /// Writes a head, which may repeat what was said. `Taken` if the id turns out to belong to another cluster; then nothing was
    /// written.
    pub(crate) async fn put_head(&self, permit: &Permit, head: &Head, repeats: bool) -> Result<Outcome, Failure> {
        if self.me.is_some() && self.find_service(CLUSTERS).await?.is_none() {
            // Somebody purged the ledger. Its absence also shows that a cluster left.
            if !head.is_live() {
                return Ok(Outcome::Done);
            }
            // The own id must be claimed again before anything is written.
            match self.claim(permit, 0).await? {
                taken @ Outcome::Taken { .. } => return Ok(taken),
                Outcome::OldKey(why) => return Err(failure(why)),
                _ => {}
            }
        }
        if self.me.as_ref().is_some_and(|(me, _)| *head.cluster != *me.as_str()) {
            match self.announce_for(permit, &head.cluster).await {
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
            Some(keys) => trust::sign(head, &keys.current, self.scope(&self.ensure_namespace(permit).await?)),
            None => head.to_instance(),
        };
        self.register(permit, CLUSTERS, &instance, repeats).await
    }

    /// Writes a page, like [`put_head`](Self::put_head).
    pub(in crate::driver) async fn put_page(
        &self,
        permit: &Permit,
        shard: u32,
        page: &StoredPage,
    ) -> Result<Outcome, Failure> {
        let Some((cluster, _)) = &self.me else { return Err(failure("read-only".to_owned())) };
        if let Some(taken) = self.taken(permit, shard).await? {
            return Ok(taken);
        }
        self.register(permit, &service_name(cluster.as_str(), shard), &page.to_instance(), false).await
    }

    pub(super) async fn register(
        &self,
        permit: &Permit,
        service: &str,
        instance: &Instance,
        repeats: bool,
    ) -> Result<Outcome, Failure> {
        let id = self.service_id(service).await?;
        match self.cloudmap.register_instance(permit, &id, instance, Lane::Ledger).await {
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
    pub(crate) async fn delete_page(
        &self,
        permit: &Permit,
        cluster: &str,
        shard: u32,
        page: &str,
    ) -> Result<Outcome, Failure> {
        let name = service_name(cluster, shard);
        let own = self.me.as_ref().is_some_and(|(me, _)| me.as_str() == cluster);
        let taken = if own { self.taken(permit, shard).await? } else { self.of_another(&name).await? };
        if let Some(taken) = taken {
            return Ok(taken);
        }
        let id = self.service_id(&name).await?;
        self.remove(permit, &id, page).await
    }

    /// Deregisters an instance. One that is gone counts as a success.
    async fn remove(&self, permit: &Permit, service: &str, instance: &str) -> Result<Outcome, Failure> {
        let turn = self.deleting.acquire().await;
        let deregistered = self.cloudmap.deregister_instance(permit, service, instance, Lane::Ledger).await;
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
    pub(in crate::driver) async fn remove_former(&self, permit: &Permit, cluster: &str) -> Result<Outcome, Failure> {
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
            let mut deleted = self.cloudmap.delete_service(permit, &service.id).await;
            // AWS says first whether it would allow that. The key stays where it does not.
            if *service.name == *first && deleted.as_ref().is_err_and(|error| error.kind == ErrorKind::InUse) {
                self.remove(permit, &service.id, KEY_INSTANCE).await?;
                self.remove(permit, &service.id, COPY_INSTANCE).await?;
                deleted = self.cloudmap.delete_service(permit, &service.id).await;
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
        self.remove(permit, &clusters, cluster).await
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
