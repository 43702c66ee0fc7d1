//! W0: the ids of the own services in the record, which spare a new leader the listing.

use std::{collections::BTreeMap, sync::Arc};

use super::Registry;
use crate::{
    cloudmap::{ErrorKind, Lane},
    cluster::record::Record,
    ledger::{CLUSTERS, call::Failure, cluster_of, head::MAX_SHARDS, service_name},
    model::ClusterId,
};

impl Registry {
    /// Takes note of the services in a record of this membership.
    pub(in crate::ledger::driver) async fn remember(&self, record: &Record) {
        let (Some((cluster, _)), Some(member)) = (&self.me, &record.member) else { return };
        if member.clusterset == self.clusterset.as_str() && member.cluster == cluster.as_str() {
            *self.recorded.lock().await = record.services.clone();
        }
    }

    /// The record with the own services, once they are known.
    pub(in crate::ledger::driver) async fn with_services(&self, record: Record) -> Record {
        let Some((cluster, _)) = &self.me else { return record };
        let (known, owned) = (self.services.lock().await, self.owned.lock().await);
        let mine = |name: &str, id: &Arc<str>| cluster_of(name) == Some(cluster.as_str()) && owned.contains(id);
        let own = known.iter().filter(|&(name, id)| name == CLUSTERS || mine(name, id));
        let own: BTreeMap<_, _> = own.map(|(name, id)| (name.clone(), id.to_string())).collect();
        let services = if own.is_empty() { record.services } else { own };
        Record { services, ..record }
    }

    /// Looks at the services in the record. For a listing, AWS reads all services of the account, a hundred at a time
    /// and two times a second, and the leader before has just made some, too. `false`: only a listing can tell, because
    /// one of them is not known, or not what the record says.
    pub(super) async fn recall(&self, cluster: &ClusterId, uid: &str) -> Result<bool, Failure> {
        // What was found in this term is newer, and who claims again has a reason to doubt it.
        let found = !self.services.lock().await.is_empty();
        let recorded = self.recorded.lock().await.clone();
        let first = service_name(cluster.as_str(), 0);
        if found || !recorded.contains_key(CLUSTERS) || !recorded.contains_key(&first) {
            return Ok(false);
        }
        let Some(namespace) = self.find_namespace().await? else { return Ok(false) };
        let (mut services, mut owned) = (BTreeMap::new(), Vec::new());
        for (name, id) in recorded {
            let service = match self.cloudmap.get_service(&id, Lane::Ledger).await {
                Ok(service) => service,
                // A listing would use up more.
                Err(error) if error.kind == ErrorKind::Throttled => return Err(error.into()),
                Err(_) => return Ok(false),
            };
            if *service.name != *name || service.namespace_id.as_ref() != Some(&namespace.id) {
                return Ok(false);
            }
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
        let next = name(last + 1);
        match self.discover(&namespace.http_name, &next, &BTreeMap::new()).await {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            _ => return Ok(false),
        }
        self.owned.lock().await.extend(owned);
        *self.services.lock().await = services;
        Ok(true)
    }
}
