//! How commands read Cloud Map: listings once for all names, because AWS allows few of them a second.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    observe::there,
    situation::{CloudMapService, Room},
};
use crate::asking::{answered, is_away};
use cloudmap::{Error, ErrorKind, Lane, Namespace, Operation, Service};
use model::Target;

/// Cloud Map, and what it has said so far.
pub(super) struct RegistryReader {
    /// Why it cannot be asked, if so.
    cloudmap: Result<Arc<dyn cloudmap::Read>, String>,
    /// The Cloud Map namespaces, or why they are not known, once that is known.
    namespaces: Option<Result<Vec<Namespace>, Error>>,
    /// The same of the services of Cloud Map namespaces, by their ids.
    services: BTreeMap<Arc<str>, Result<Arc<[Service]>, Error>>,
}

impl RegistryReader {
    pub(super) fn new(cloudmap: Result<Arc<dyn cloudmap::Read>, String>) -> Self {
        Self { cloudmap, namespaces: None, services: BTreeMap::new() }
    }

    /// What a Cloud Map service has.
    ///
    /// # Errors
    /// Why it could not be read.
    pub(super) async fn registry(&mut self, target: &Target) -> Result<CloudMapService, String> {
        let cloudmap = self.cloudmap.clone()?;
        let seen = self.look(&*cloudmap, target).await;
        seen.map_err(|error| self.remember(&error))
    }

    /// All Cloud Map namespaces.
    ///
    /// # Errors
    /// Why they could not be read.
    pub(super) async fn all_namespaces(&mut self) -> Result<Vec<Namespace>, String> {
        let cloudmap = self.cloudmap.clone()?;
        self.namespaces(&*cloudmap).await.map_err(|error| self.remember(&error))
    }

    /// All services of a Cloud Map namespace.
    ///
    /// # Errors
    /// Why they could not be read.
    pub(super) async fn all_services(&mut self, namespace: &Namespace) -> Result<Arc<[Service]>, String> {
        let cloudmap = self.cloudmap.clone()?;
        self.services(&*cloudmap, namespace).await.map_err(|error| self.remember(&error))
    }

    /// Why there is no answer. What is away is not asked again: it would take as long for each of hundreds of names.
    fn remember(&mut self, error: &Error) -> String {
        if !is_away(error) {
            return error.to_string();
        }
        let why = format!("{error} (it is not asked again now: `cloudmap-mcs doctor` says what is in the way)");
        self.cloudmap = Err(why.clone());
        why
    }

    async fn namespaces(&mut self, cloudmap: &dyn cloudmap::Read) -> Result<Vec<Namespace>, Error> {
        if let Some(known) = &self.namespaces {
            return known.clone();
        }
        let listed = answered(Operation::ListNamespaces, cloudmap.list_namespaces(Lane::Instances)).await;
        self.namespaces = Some(listed.clone()).filter(stays);
        listed
    }

    async fn services(
        &mut self,
        cloudmap: &dyn cloudmap::Read,
        namespace: &Namespace,
    ) -> Result<Arc<[Service]>, Error> {
        if let Some(known) = self.services.get(&namespace.id) {
            return known.clone();
        }
        let call = cloudmap.list_services(&namespace.id, Lane::Instances);
        let listed = answered(Operation::ListServices, call).await.map(Arc::from);
        if stays(&listed) {
            self.services.insert(Arc::clone(&namespace.id), listed.clone());
        }
        listed
    }

    async fn look(&mut self, cloudmap: &dyn cloudmap::Read, target: &Target) -> Result<CloudMapService, Error> {
        let namespaces = self.namespaces(cloudmap).await?;
        let Some(namespace) = Namespace::named(&namespaces, &target.namespace) else {
            return Ok(CloudMapService::default());
        };
        let services = self.services(cloudmap, namespace).await?;
        let room = Some(Room::of(namespace, &services));
        let is_it = |there: &Service| namespace.kind.is_same_service(&there.name, &target.service);
        let Some(service) = services.iter().find(|service| is_it(service)).cloned() else {
            return Ok(CloudMapService { room, ..CloudMapService::default() });
        };
        let none = BTreeMap::new();
        let call = cloudmap.discover_instances(namespace.in_discovery(), &service.name, &none, Lane::Instances);
        let found = answered(Operation::DiscoverInstances, call).await?;
        Ok(CloudMapService { room, ..there(service, &found) })
    }
}

/// Whether an answer is the same for the next name. Throttling passes.
fn stays<T>(answer: &Result<T, Error>) -> bool {
    answer.as_ref().err().is_none_or(|error| error.kind != ErrorKind::Throttled)
}
