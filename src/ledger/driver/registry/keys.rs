//! R9: the own key and the copy of the own head, which are instances in a cluster's own service beside its pages.

use std::{collections::BTreeMap, sync::Arc};

use super::Registry;
use crate::{
    call::{Failure, Outcome},
    head::Head,
    service_name,
    trust::{self, Announced, COPY_INSTANCE, KEY_INSTANCE},
};
use cloudmap::{Error, ErrorKind, Instance, Permit, Read, Write};

impl<C: Read + ?Sized> Registry<C> {
    /// R9: the key that a cluster announces, if it can be read.
    pub(in crate::driver) async fn announced(&self, cluster: &str, uid: &str) -> Result<Option<Announced>, Failure> {
        let found = self.announcement(cluster, KEY_INSTANCE).await?;
        if let Some(id) = found.as_ref().and_then(|instance| instance.attributes.get(trust::SERVICE)) {
            self.announced.lock().await.insert(service_name(cluster, 0), id.clone());
        }
        Ok(found.and_then(|instance| Announced::from_instance(&instance, uid)))
    }

    /// R9: the copy of a cluster's head in its own service, if it can be read.
    pub(in crate::driver) async fn copy(&self, cluster: &str) -> Result<Option<Arc<Head>>, Failure> {
        let namespace = self.known_namespace().await?;
        let found = self.announcement(cluster, COPY_INSTANCE).await?;
        let head = found.and_then(|instance| trust::read_copy(&instance, cluster, self.scope(&namespace)));
        Ok(head.map(Arc::new))
    }

    /// One of the two instances in a cluster's own service that are no pages.
    async fn announcement(&self, cluster: &str, id: &str) -> Result<Option<Instance>, Failure> {
        let namespace = self.known_namespace().await?;
        let query = BTreeMap::from([("f".to_owned(), KEY_INSTANCE.to_owned())]);
        match self.discover(&namespace.http_name, &service_name(cluster, 0), &query).await {
            Err(Error { kind: ErrorKind::NotFound, .. }) => Ok(None),
            found => Ok(found?.instances.into_iter().find(|instance| *instance.id == *id)),
        }
    }
}

impl<C: Write + ?Sized> Registry<C> {
    /// Writes the copy of the own head. `Taken` like [`put_head`](Self::put_head).
    pub(in crate::driver) async fn put_copy(&self, permit: &Permit, head: &Head) -> Result<Outcome, Failure> {
        let (Some((cluster, _)), Some(keys)) = (&self.me, &self.keys) else { return Ok(Outcome::Done) };
        if let Some(taken) = self.taken(permit, 0).await? {
            return Ok(taken);
        }
        let signed = trust::sign(head, &keys.current, self.scope(&self.ensure_namespace(permit).await?));
        self.register(permit, &service_name(cluster.as_str(), 0), &trust::copy(signed), false).await
    }

    /// R9: announces the own key, unless it is there. `Taken` like [`put_head`](Self::put_head).
    pub(in crate::driver) async fn announce(&self, permit: &Permit) -> Result<Outcome, Failure> {
        let Some((cluster, _)) = &self.me else { return Ok(Outcome::Done) };
        Ok(self.announce_for(permit, cluster.as_str()).await?.unwrap_or(Outcome::Done))
    }

    /// The same for the own id or a former one, of which the caller knows whether it was ours. `None` if the key is there.
    pub(super) async fn announce_for(&self, permit: &Permit, cluster: &str) -> Result<Option<Outcome>, Failure> {
        let (Some((me, _)), Some(keys)) = (&self.me, &self.keys) else { return Ok(None) };
        let mut instance = keys.to_instance();
        if let Some(service) = self.known_service(&service_name(cluster, 0)).await {
            instance.attributes.insert(trust::SERVICE.to_owned(), service.to_string());
        }
        let found = self.announcement(cluster, KEY_INSTANCE).await?;
        if found.is_some_and(|found| {
            instance.attributes.iter().all(|(key, value)| found.attributes.get(key) == Some(value))
        }) {
            return Ok(None);
        }
        if me.as_str() == cluster
            && let Some(taken) = self.taken(permit, 0).await?
        {
            return Ok(Some(taken));
        }
        self.register(permit, &service_name(cluster, 0), &instance, false).await.map(Some)
    }
}
