//! W0 and R2 without a listing: services whose ids are known in this term, by the record, or by announced keys.

use std::{collections::BTreeMap, sync::Arc};

use super::Registry;
use crate::{CLUSTERS, call::Failure, cluster_of, head::MAX_SHARDS, record::Record, service_name};
use cloudmap::{ErrorKind, Lane, Namespace, Read, Service};
use model::ClusterId;

impl<C: Read + ?Sized> Registry<C> {
    /// Takes note of the services in a record of this membership.
    pub(in crate::driver) async fn remember(&self, record: &Record) {
        let (Some((cluster, _)), Some(member)) = (&self.me, &record.member) else { return };
        if member.clusterset == self.clusterset.as_str() && member.cluster == cluster.as_str() {
            *self.recorded.lock().await = record.services.clone();
        }
    }

    /// The record with the own services, once they are known.
    pub(in crate::driver) async fn with_services(&self, record: Record) -> Record {
        let Some((cluster, _)) = &self.me else { return record };
        let own = self.own(cluster).await;
        let services = if own.is_empty() { record.services } else { own };
        Record { services, ..record }
    }

    /// The ids of `clusters`, and of the exports services that this cluster provably created, as far as they are known.
    async fn own(&self, cluster: &ClusterId) -> BTreeMap<String, String> {
        let (known, owned) = (self.services.lock().await, self.owned.lock().await);
        let mine = |name: &str, id: &Arc<str>| cluster_of(name) == Some(cluster.as_str()) && owned.contains(id);
        let own = known.iter().filter(|&(name, id)| name == CLUSTERS || mine(name, id));
        own.map(|(name, id)| (name.clone(), id.to_string())).collect()
    }

    /// Looks at the own services that are known or in the record, instead of listing. For a listing, AWS reads all services
    /// of the account, a hundred at a time and two times a second, for all clusters together. `false`: only a listing can
    /// tell, because one of them is not known, or not what it was.
    pub(super) async fn recall(&self, cluster: &ClusterId, uid: &str) -> Result<bool, Failure> {
        let first = service_name(cluster.as_str(), 0);
        let suffices = |own: &BTreeMap<String, String>| own.contains_key(CLUSTERS) && own.contains_key(&first);
        let mut own = self.own(cluster).await;
        if !suffices(&own) {
            own = self.recorded.lock().await.clone();
        }
        let Some(namespace) = self.find_namespace().await?.filter(|_| suffices(&own)) else { return Ok(false) };
        let (mut services, mut owned) = (BTreeMap::new(), Vec::new());
        for (name, id) in own {
            let Some(service) = self.look_at(&namespace, &name, &id).await? else { return Ok(false) };
            if name != CLUSTERS {
                if service.creator_request_id.as_deref() != Some(uid) {
                    return Ok(false);
                }
                owned.push(service.id.clone());
            }
            services.insert(name, service.id);
        }
        // Services are claimed one by one, and a leader may have ended before it stored the record again.
        let name = |shard| service_name(cluster.as_str(), shard);
        let last = (0..MAX_SHARDS).rev().find(|&shard| services.contains_key(&name(shard))).unwrap_or_default();
        if !self.is_missing(&namespace, &name(last + 1)).await {
            return Ok(false);
        }
        self.owned.lock().await.extend(owned);
        self.services.lock().await.extend(services);
        Ok(true)
    }

    /// R2: the exports service with this name, if its cluster announces the id beside its key.
    pub(super) async fn announced_service(&self, name: &str) -> Result<Option<Service>, Failure> {
        let (namespace, id) = (self.known_namespace().await?, self.announced.lock().await.get(name).cloned());
        let Some(id) = id else { return Ok(None) };
        let service = self.look_at(&namespace, name, &id).await?;
        if let Some(service) = &service {
            self.services.lock().await.insert(name.to_owned(), service.id.clone());
        }
        Ok(service)
    }

    /// The service with this id, if it has this name in the ledger's namespace: then it is the only one.
    async fn look_at(&self, namespace: &Namespace, name: &str, id: &str) -> Result<Option<Service>, Failure> {
        let there = |service: &Service| *service.name == *name && service.namespace_id.as_ref() == Some(&namespace.id);
        match self.cloudmap.get_service(id, Lane::Ledger).await {
            Ok(service) => Ok(Some(service).filter(there)),
            // A listing would use up more.
            Err(error) if error.kind == ErrorKind::Throttled => Err(error.into()),
            Err(_) => Ok(None),
        }
    }

    /// Whether nobody has the own id yet, so that its service can be created without a listing. What an earlier leader
    /// created and could not record has no heads: those come after the record (W1).
    pub(super) async fn is_new(&self, cluster: &ClusterId) -> Result<bool, Failure> {
        let unknown = self.services.lock().await.is_empty() && self.recorded.lock().await.is_empty();
        match self.find_namespace().await?.filter(|_| unknown) {
            Some(namespace) => Ok(self.is_missing(&namespace, &service_name(cluster.as_str(), 0)).await),
            None => Ok(false),
        }
    }

    /// Whether discovery says that there is no such service.
    async fn is_missing(&self, namespace: &Namespace, name: &str) -> bool {
        let discovered = self.discover(&namespace.http_name, name, &BTreeMap::new()).await;
        discovered.is_err_and(|error| error.kind == ErrorKind::NotFound)
    }
}
