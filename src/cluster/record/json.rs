//! A JSON text in a ConfigMap of the controller's namespace. Reads are quorum reads, never from a cache. Writes compare the
//! `resourceVersion`.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::timeout;

use crate::apply;
use ledger::record::{ResourceVersion, StoreError};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Which ConfigMap it is, and its description for people.
#[derive(Debug)]
pub(super) struct About {
    /// Name of the ConfigMap.
    pub(super) name: &'static str,
    /// Key of the JSON text in it.
    pub(super) key: &'static str,
    /// The annotation `kubernetes.io/description`.
    pub(super) description: &'static str,
    /// What to do when the text is not valid, after "restore it, or delete the ConfigMap".
    pub(super) or_else: &'static str,
}

/// The ConfigMap in Kubernetes.
#[derive(Debug, Clone)]
pub(super) struct JsonObject {
    api: Api<ConfigMap>,
    about: &'static About,
    /// The labels and annotations that it was last seen with. Those of others stay when it is written: backups may select it by
    /// a label.
    kept: Arc<Mutex<ObjectMeta>>,
}

impl JsonObject {
    pub(super) fn new(client: Client, namespace: &str, about: &'static About) -> Self {
        Self { api: Api::namespaced(client, namespace), about, kept: Arc::default() }
    }

    /// What is stored, with its version; `None` if there is no ConfigMap.
    pub(super) async fn load<T: DeserializeOwned + Default>(&self) -> Result<Option<(T, ResourceVersion)>, StoreError> {
        let About { name, key, or_else, .. } = self.about;
        let Some(object) = call(self.api.get_opt(name)).await? else {
            self.keep(ObjectMeta::default());
            return Ok(None);
        };
        let stored = match object.data.unwrap_or_default().get(*key) {
            // Somebody emptied it. This is like having none, but the object exists and has a version to compare.
            None => T::default(),
            Some(json) => serde_json::from_str(json).map_err(|error| {
                StoreError::Failed(format!(
                    "the ConfigMap {name} has no valid {key}: {error}; restore it, or delete the ConfigMap{or_else}"
                ))
            })?,
        };
        Ok(Some((stored, self.keep(object.metadata))))
    }

    /// Stores it if the stored version still is `expected` (`None` if there is no ConfigMap), and returns the new version.
    pub(super) async fn store(
        &self,
        content: &(impl Serialize + Sync),
        expected: &ResourceVersion,
    ) -> Result<ResourceVersion, StoreError> {
        let About { name, key, description, .. } = self.about;
        let json = serde_json::to_string(content).map_err(|error| StoreError::Failed(error.to_string()))?;
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut annotations = kept.annotations.unwrap_or_default();
        annotations.insert("kubernetes.io/description".to_owned(), (*description).to_owned());
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some((*name).to_owned()),
                resource_version: expected.clone(),
                annotations: Some(annotations),
                labels: kept.labels,
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([((*key).to_owned(), json)])),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let written = match expected {
            Some(_) => call(self.api.replace(name, &params, &object)).await?,
            None => call(self.api.create(&params, &object)).await?,
        };
        Ok(self.keep(written.metadata))
    }

    /// Remembers what stays when it is written, and returns its version.
    fn keep(&self, metadata: ObjectMeta) -> ResourceVersion {
        let ObjectMeta { labels, annotations, resource_version, .. } = metadata;
        let kept = ObjectMeta { labels, annotations, ..ObjectMeta::default() };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        resource_version
    }
}

async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, StoreError> {
    match timeout(CALL_TIMEOUT, request).await {
        Err(_) => Err(StoreError::Failed(format!("no answer within {} s", CALL_TIMEOUT.as_secs()))),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status)))
            // A record that was expected and is gone has changed, too.
            if status.is_conflict() || status.is_already_exists() || (status.is_not_found() && of_the_record(&status)) =>
        {
            Err(StoreError::Conflict)
        }
        Ok(Err(kube::Error::Api(status))) if status.is_forbidden() => Err(StoreError::Forbidden(status.message)),
        Ok(Err(error)) => Err(StoreError::Failed(apply::words(&error))),
    }
}

/// Whether a "not found" is about the ConfigMap and not about the namespace in which it should be created.
fn of_the_record(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_none_or(|details| details.kind != "namespaces")
}
