//! W0 and R2: whose the exports services are.

use super::{Registry, failure};
use crate::{
    CLUSTERS, OWNER,
    call::{Created, Failure, Outcome},
    head::MAX_SHARDS,
    service_name,
    trust::SECRET,
};
use cloudmap::{CreateService, Lane, Permit, Read, Service, Write};
use model::ClusterId;

/// The creator of a service of which AWS does not say who created it.
const UNKNOWN: &str = "unknown";

impl<C: Read + ?Sized> Registry<C> {
    /// W0: [`Outcome::OldKey`] if the key of this cluster handed over to another one, which is announced: then the Secret is
    /// older than the rotation. The others believe only the newer key, and with the older one this leader would take the own
    /// last head for a forged one. Only who had the older key can have signed that.
    async fn replaced_key(&self, cluster: &ClusterId, uid: &str) -> Result<Option<Outcome>, Failure> {
        let Some(keys) = &self.keys else { return Ok(None) };
        let own = keys.current.public();
        let announced = self.announced(cluster.as_str(), uid).await?;
        let newer = announced.filter(|announced| announced.key != own && announced.follows(&own));
        Ok(newer.map(|newer| {
            Outcome::OldKey(format!(
                "the Secret {SECRET} has the key {own}, which this cluster replaced by {} (trust rotate): it was restored from a \
                 backup that is older. Restore the Secret with the newer key. If that is lost: scale the controller to 0, delete \
                 the Secret, scale it up again, and run `cloudmap-mcs trust accept {cluster}` in each of the other clusters",
                newer.key
            ))
        }))
    }

    /// The shard of the last own service before one of somebody else: of a former cluster with this id, something may be left.
    async fn last_own(&self, cluster: &ClusterId, uid: &str) -> Result<u32, Failure> {
        let mut last = 0;
        for shard in 1..MAX_SHARDS {
            match self.proven_creator(&service_name(cluster.as_str(), shard), uid).await? {
                None => {}
                Some(creator) if creator == uid => last = shard,
                Some(_) => break,
            }
        }
        Ok(last)
    }

    /// Whether a service of a former id belongs to another cluster, which may have claimed a further one there.
    pub(super) async fn of_another(&self, name: &str) -> Result<Option<Outcome>, Failure> {
        let Some((_, uid)) = &self.me else { return Ok(None) };
        let _proving = self.proving.lock().await;
        self.service_id(name).await?;
        let creator = self.proven_creator(name, uid).await?;
        Ok(creator.filter(|creator| creator != uid).map(|owner| Outcome::Taken { owner }))
    }

    /// Who created a listed service. That of this cluster, with this `uid`, is asked for once. `None` if there is no such
    /// service.
    async fn proven_creator(&self, name: &str, uid: &str) -> Result<Option<String>, Failure> {
        let Some(id) = self.known_service(name).await else { return Ok(None) };
        if self.owned.lock().await.contains(&id) {
            return Ok(Some(uid.to_owned()));
        }
        let Some(service) = self.known_service_details(name).await? else { return Ok(None) };
        let creator = service.creator_request_id.unwrap_or_else(|| UNKNOWN.to_owned());
        if creator == uid {
            self.owned.lock().await.insert(id);
        }
        Ok(Some(creator))
    }

    /// R2: who created the exports service of a cluster id, and when.
    pub(crate) async fn creator(&self, cluster: &str) -> Result<Option<Created>, Failure> {
        let name = service_name(cluster, 0);
        let created =
            |service: Service| Some(Created { by: service.creator_request_id?, at: service.created.div_euclid(1_000) });
        if self.known_service(&name).await.is_none()
            && let Some(service) = self.announced_service(&name).await?
        {
            return Ok(created(service));
        }
        if self.find_service(&name).await?.is_none() {
            return Ok(None);
        }
        Ok(self.known_service_details(&name).await?.and_then(created))
    }
}

impl<C: Write + ?Sized> Registry<C> {
    /// W0: claims the own exports service, which belongs to its creator. An existing one is looked at, not created
    /// again. What is known, the record or a listing shows which exist.
    pub(crate) async fn claim(&self, permit: &Permit, shard: u32) -> Result<Outcome, Failure> {
        let Some((cluster, uid)) = &self.me else { return Err(failure("read-only".to_owned())) };
        // First: each of the following would list the namespaces again, as long as this one is missing.
        self.ensure_namespace(permit).await?;
        if shard == 0 && self.recall(cluster, uid).await? {
            if let Some(old) = self.replaced_key(cluster, uid).await? {
                return Ok(old);
            }
            return Ok(Outcome::Claimed { created: false, shards: self.last_own(cluster, uid).await? + 1 });
        }
        let new = shard == 0 && self.is_new(cluster).await?;
        if !new || self.create_service(permit, CLUSTERS.to_owned(), OWNER).await.is_err() {
            self.list_services().await?;
        }
        if self.known_service(CLUSTERS).await.is_none() {
            self.create_service(permit, CLUSTERS.to_owned(), OWNER).await?;
        }
        let name = service_name(cluster.as_str(), shard);
        let (created, id, creator) = match self.known_service_details(&name).await? {
            Some(service) => (false, service.id, service.creator_request_id),
            None => match self.create_service(permit, name, uid).await? {
                CreateService::Created(service) => {
                    (true, service.id, service.creator_request_id.or_else(|| Some(uid.clone())))
                }
                CreateService::Exists { id, creator_request_id: Some(creator) } => (false, id, Some(creator)),
                CreateService::Exists { id, creator_request_id: None } => {
                    let creator = self.cloudmap.get_service(&id, Lane::Ledger).await?.creator_request_id;
                    (false, id, creator)
                }
            },
        };
        if creator.as_ref() != Some(uid) {
            return Ok(Outcome::Taken { owner: creator.unwrap_or_else(|| UNKNOWN.to_owned()) });
        }
        if shard == 0
            && !created
            && let Some(old) = self.replaced_key(cluster, uid).await?
        {
            return Ok(old);
        }
        self.owned.lock().await.insert(id);
        Ok(Outcome::Claimed { created, shards: self.last_own(cluster, uid).await?.max(shard) + 1 })
    }

    /// Whether an own exports service belongs to another cluster: somebody may have purged it, and another cluster may
    /// have claimed the id since.
    pub(super) async fn taken(&self, permit: &Permit, shard: u32) -> Result<Option<Outcome>, Failure> {
        let Some((cluster, _)) = &self.me else { return Ok(None) };
        let _proving = self.proving.lock().await;
        if let Some(id) = self.known_service(&service_name(cluster.as_str(), shard)).await
            && self.owned.lock().await.contains(&id)
        {
            return Ok(None);
        }
        Ok(Some(self.claim(permit, shard).await?).filter(|outcome| matches!(outcome, Outcome::Taken { .. })))
    }
}
