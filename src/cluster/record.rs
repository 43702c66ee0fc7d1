//! The ledger's record: a ConfigMap in the controller's namespace, written by compare-and-swap only.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use tokio::time::timeout;

use crate::ledger::record::{Record, RecordStore, StoreError, Version};

/// Name of the ConfigMap.
pub const RECORD: &str = "cloudmap-mcs-ledger";

/// Key of the JSON in it.
const KEY: &str = "record.json";

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Why the record could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The stored version is not the expected one (any more).
    #[error("somebody else wrote the record")]
    Conflict,
    /// A write may have taken effect.
    #[error("no answer within {} s", CALL_TIMEOUT.as_secs())]
    Timeout,
    /// A write may have taken effect.
    #[error("failed to reach the ConfigMap {RECORD}")]
    Api(#[source] Box<kube::Error>),
}

/// The record in Kubernetes. Reads are quorum reads, never from a cache.
#[derive(Debug, Clone)]
pub struct RecordObject {
    api: Api<ConfigMap>,
}

impl RecordObject {
    /// `namespace` is the controller's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }

    /// The JSON (empty if somebody emptied the object) and the version to give to [`Self::store`]; `None` if there is no
    /// record.
    pub async fn load(&self) -> Result<Option<(String, String)>, Error> {
        let object = call(self.api.get_opt(RECORD)).await?;
        Ok(object.map(|object| {
            let json = object.data.unwrap_or_default().remove(KEY).unwrap_or_default();
            (json, object.metadata.resource_version.unwrap_or_default())
        }))
    }

    /// Creates the record (`expected` is `None`) or replaces that version of it; returns the new version.
    pub async fn store(&self, json: String, expected: Option<&str>) -> Result<String, Error> {
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(RECORD.to_owned()),
                resource_version: expected.map(str::to_owned),
                annotations: Some(BTreeMap::from([(
                    "kubernetes.io/description".to_owned(),
                    "The epoch of this cluster's ledger and the positions that it has read. Deleting it can make this \
                     cluster go back to older states once."
                        .to_owned(),
                )])),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([(KEY.to_owned(), json)])),
            ..ConfigMap::default()
        };
        let params = PostParams::default();
        let written = match expected {
            Some(_) => call(self.api.replace(RECORD, &params, &object)).await?,
            None => call(self.api.create(&params, &object)).await?,
        };
        Ok(written.metadata.resource_version.unwrap_or_default())
    }
}

#[async_trait]
impl RecordStore for RecordObject {
    async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
        let Some((json, version)) = Self::load(self).await? else { return Ok(None) };
        let record = if json.is_empty() {
            Record::default()
        } else {
            serde_json::from_str(&json)
                .map_err(|error| StoreError::Failed(format!("the ConfigMap {RECORD} cannot be understood: {error}")))?
        };
        Ok(Some((record, Some(version))))
    }

    async fn store(&self, record: &Record, expected: &Version) -> Result<Version, StoreError> {
        let json = serde_json::to_string(record).map_err(|error| StoreError::Failed(error.to_string()))?;
        Ok(Some(Self::store(self, json, expected.as_deref()).await?))
    }
}

impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        match &error {
            Error::Conflict => Self::Conflict,
            Error::Timeout => Self::Failed(error.to_string()),
            Error::Api(source) => Self::Failed(format!("{error}: {source}")),
        }
    }
}

async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match timeout(CALL_TIMEOUT, request).await {
        Err(_) => Err(Error::Timeout),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status)))
            // A record that was expected and is gone has changed, too.
            if status.is_conflict() || status.is_already_exists() || status.is_not_found() =>
        {
            Err(Error::Conflict)
        }
        Ok(Err(error)) => Err(Error::Api(Box::new(error))),
    }
}
