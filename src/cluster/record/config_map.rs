//! The ledger's record as a ConfigMap in the controller's namespace.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use tokio::time::timeout;

use super::{Record, RecordStore, ResourceVersion, StoreError};
use crate::cluster::apply;

/// Name of the ConfigMap.
pub const RECORD: &str = "cloudmap-mcs-ledger";

/// Key of the JSON text in it.
const KEY: &str = "record.json";

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The record in Kubernetes. Reads are quorum reads, never from a cache. Writes compare the `resourceVersion`.
#[derive(Debug, Clone)]
pub struct RecordObject {
    api: Api<ConfigMap>,
}

impl RecordObject {
    /// The record in `namespace`, which is the controller's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }
}

#[async_trait]
impl RecordStore for RecordObject {
    async fn load(&self) -> Result<Option<(Record, ResourceVersion)>, StoreError> {
        let Some(object) = call(self.api.get_opt(RECORD)).await? else { return Ok(None) };
        let record = match object.data.unwrap_or_default().get(KEY) {
            // Somebody emptied it. This is like having no record, but the object exists and has a version to compare.
            None => Record::default(),
            Some(json) => serde_json::from_str(json).map_err(|error| {
                StoreError::Failed(format!(
                    "the ConfigMap {RECORD} has no valid {KEY}: {error}; restore it, or delete the ConfigMap; after that \
                     this cluster may once go back to older states of other clusters"
                ))
            })?,
        };
        Ok(Some((record, object.metadata.resource_version)))
    }

    async fn store(&self, record: &Record, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        let json = serde_json::to_string(record).map_err(|error| StoreError::Failed(error.to_string()))?;
        let object = ConfigMap {
            metadata: ObjectMeta {
                name: Some(RECORD.to_owned()),
                resource_version: expected.clone(),
                annotations: Some(BTreeMap::from([(
                    "kubernetes.io/description".to_owned(),
                    "The epoch of this cluster's ledger and the positions that it has read. If you delete it, this \
                     cluster may once go back to older states."
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
        Ok(written.metadata.resource_version)
    }
}

pub(super) async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, StoreError> {
    match timeout(CALL_TIMEOUT, request).await {
        Err(_) => Err(StoreError::Failed(format!("no answer within {} s", CALL_TIMEOUT.as_secs()))),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status)))
            // A record that was expected and is gone has changed, too.
            if status.is_conflict() || status.is_already_exists() || (status.is_not_found() && of_the_record(&status)) =>
        {
            Err(StoreError::Conflict)
        }
        Ok(Err(error)) => Err(StoreError::Failed(apply::words(&error))),
    }
}

/// Whether a "not found" is about the ConfigMap and not about the namespace in which it should be created.
fn of_the_record(status: &kube::core::Status) -> bool {
    status.details.as_ref().is_none_or(|details| details.kind != "namespaces")
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use serde_json::json;

    use super::*;
    use crate::cluster::{
        fake_api::FakeApi,
        record::{Accepted, Gone, Position},
    };

    fn store() -> (FakeApi, RecordObject) {
        let api = FakeApi::default();
        let store = RecordObject::new(api.client(), "cloudmap-mcs-system");
        (api, store)
    }

    fn record() -> Record {
        let position = Position { epoch: 3, seq: 4 };
        let accepted = Accepted { uid: "u".to_owned(), position, gone: Some(Gone::Left), key: None, written: 0 };
        Record { epoch: 7, accepted: [("c2".to_owned(), accepted)].into(), ..Record::default() }
    }

    #[tokio::test]
    async fn a_stored_record_is_loaded() {
        let (api, store) = store();
        store.store(&record(), &Some("5".to_owned())).await.unwrap();
        let mut written = api.requests()[0].body.clone();
        assert_eq!(written["metadata"]["resourceVersion"], "5", "compared by the API server");
        written["metadata"]["resourceVersion"] = "6".into();
        api.prepare(200, written);
        assert_eq!(store.load().await.unwrap(), Some((record(), Some("6".to_owned()))));
    }

    #[tokio::test]
    async fn the_first_record_is_created_only_if_there_is_none() {
        let (api, store) = store();
        api.refuse(404, "NotFound", "configmaps \"cloudmap-mcs-ledger\" not found");
        assert_eq!(store.load().await.unwrap(), None);
        store.store(&record(), &None).await.unwrap();
        assert_eq!(api.requests()[1].method, Method::POST);
        api.refuse(409, "AlreadyExists", "it exists");
        assert_eq!(store.store(&record(), &None).await, Err(StoreError::Conflict));
    }

    #[tokio::test]
    async fn a_changed_or_deleted_record_is_a_conflict() {
        let (api, store) = store();
        for (code, reason) in [(409, "Conflict"), (404, "NotFound")] {
            api.refuse(code, reason, "its words");
            assert_eq!(store.store(&record(), &Some("5".to_owned())).await, Err(StoreError::Conflict));
        }
        let status = json!({"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound",
            "message": "namespaces \"x\" not found", "details": {"kind": "namespaces", "name": "x"}});
        api.prepare(404, status);
        let failed = Err(StoreError::Failed("namespaces \"x\" not found".to_owned()));
        assert_eq!(store.store(&record(), &None).await, failed);
    }

    #[tokio::test]
    async fn an_unreadable_record_is_reported_and_never_treated_as_missing() {
        let (api, store) = store();
        api.prepare(200, json!({"metadata": {"name": RECORD, "resourceVersion": "1"}, "data": {KEY: "{oops"}}));
        let error = store.load().await.unwrap_err().to_string();
        assert!(error.contains(RECORD) && error.contains("delete the ConfigMap"), "{error}");
        api.prepare(200, json!({"metadata": {"name": RECORD, "resourceVersion": "1"}}));
        assert_eq!(store.load().await.unwrap(), Some((Record::default(), Some("1".to_owned()))));
    }
}
