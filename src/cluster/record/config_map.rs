//! The ledger's record as a ConfigMap in the controller's namespace.

use async_trait::async_trait;
use kube::Client;

use super::json::{About, JsonObject};
use ledger::record::{Record, RecordStore, ResourceVersion, StoreError};

/// Name of the ConfigMap.
pub const RECORD: &str = "cloudmap-mcs-ledger";

const ABOUT: About = About {
    name: RECORD,
    key: "record.json",
    description: "The epoch of this cluster's ledger and the positions that it has read. If you delete it, this cluster may \
                  once go back to older states.",
    or_else: "; after that this cluster may once go back to older states of other clusters",
};

/// The record in Kubernetes.
#[derive(Debug, Clone)]
pub struct RecordObject {
    object: JsonObject,
}

impl RecordObject {
    /// The record in `namespace`, which is the controller's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { object: JsonObject::new(client, namespace, &ABOUT) }
    }
}

#[async_trait]
impl RecordStore for RecordObject {
    async fn load(&self) -> Result<Option<(Record, ResourceVersion)>, StoreError> {
        self.object.load().await
    }

    async fn store(&self, record: &Record, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        self.object.store(record, expected).await
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;
    use ledger::record::{Accepted, Gone, Position};

    fn store() -> (FakeApi, RecordObject) {
        let api = FakeApi::default();
        let store = RecordObject::new(api.client(), "cloudmap-mcs-system");
        (api, store)
    }

    fn record() -> Record {
        let position = Position { epoch: 3, seq: 4 };
        let accepted = Accepted { position, gone: Some(Gone::Left), ..Accepted::unread("u".to_owned(), None) };
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
    async fn labels_and_annotations_of_others_stay() {
        let (api, store) = store();
        let metadata =
            json!({"name": RECORD, "resourceVersion": "5", "labels": {"backup": "yes"}, "annotations": {"team": "a"}});
        api.prepare(200, json!({"metadata": metadata}));
        store.load().await.unwrap();
        store.store(&record(), &Some("5".to_owned())).await.unwrap();
        let requests = api.requests();
        let written = &requests[1].body["metadata"];
        assert_eq!((&written["labels"], &written["annotations"]["team"]), (&json!({"backup": "yes"}), &json!("a")));
        assert!(written["annotations"]["kubernetes.io/description"].is_string(), "{written}");
        // Of one that is gone nothing stays.
        api.refuse(404, "NotFound", "configmaps \"cloudmap-mcs-ledger\" not found");
        store.load().await.unwrap();
        store.store(&record(), &None).await.unwrap();
        assert!(api.requests()[3].body["metadata"]["labels"].is_null());
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
        api.prepare(200, json!({"metadata": {"name": RECORD, "resourceVersion": "1"}, "data": {ABOUT.key: "{oops"}}));
        let error = store.load().await.unwrap_err().to_string();
        assert!(error.contains(RECORD) && error.contains("delete the ConfigMap"), "{error}");
        api.refuse(403, "Forbidden", "its words");
        assert_eq!(store.load().await, Err(StoreError::Forbidden("its words".to_owned())));
        api.prepare(200, json!({"metadata": {"name": RECORD, "resourceVersion": "1"}}));
        assert_eq!(store.load().await.unwrap(), Some((Record::default(), Some("1".to_owned()))));
    }
}
