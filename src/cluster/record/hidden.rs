//! The record of hidden tasks: instances of others that this cluster marked as unhealthy, or is about to mark.
//!
//! It is a ConfigMap of its own, because a task stays hidden whatever becomes of the Cutover, of the target and of the
//! ClusterSet.

use std::{collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use kube::Client;

use super::json::{About, JsonObject};
use ledger::record::{ResourceVersion, StoreError};

/// Name of the ConfigMap.
pub const HIDDEN: &str = "cloudmap-mcs-hidden-tasks";

const ABOUT: About = About {
    name: HIDDEN,
    key: "tasks.json",
    description: "The tasks of others that this cluster marked as unhealthy in Cloud Map, by service. If you delete it, nobody \
                  marks them as healthy again.",
    or_else: " and mark the tasks as healthy yourself",
};

/// Ids of hidden instances, by the id of their Cloud Map service, in the order in which they were hidden.
pub type Hidden = BTreeMap<Arc<str>, Vec<Arc<str>>>;

/// The same, as the JSON text has it.
type Stored = BTreeMap<String, Vec<String>>;

fn shared(stored: Stored) -> Hidden {
    let ids = |ids: Vec<String>| ids.into_iter().map(Arc::from).collect();
    stored.into_iter().map(|(service, tasks)| (Arc::from(service), ids(tasks))).collect()
}

fn texts(hidden: &Hidden) -> Stored {
    let ids = |ids: &[Arc<str>]| ids.iter().map(ToString::to_string).collect();
    hidden.iter().map(|(service, tasks)| (service.to_string(), ids(tasks))).collect()
}

/// Where the record of hidden tasks is stored.
#[async_trait]
pub trait HiddenStore: Send + Sync + 'static {
    /// The record with its version. It must come from the API server, not from a cache.
    async fn load(&self) -> Result<(Hidden, ResourceVersion), StoreError>;

    /// Stores the record if the stored version still is `expected` (`None` if nothing is stored), and returns the new
    /// version.
    async fn store(&self, hidden: &Hidden, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError>;
}

/// The record in Kubernetes.
#[derive(Debug, Clone)]
pub struct HiddenObject {
    object: JsonObject,
}

impl HiddenObject {
    /// The record in `namespace`, which is the controller's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { object: JsonObject::new(client, namespace, &ABOUT) }
    }
}

#[async_trait]
impl HiddenStore for HiddenObject {
    async fn load(&self) -> Result<(Hidden, ResourceVersion), StoreError> {
        let stored = self.object.load::<Stored>().await?;
        Ok(stored.map(|(stored, version)| (shared(stored), version)).unwrap_or_default())
    }

    async fn store(&self, hidden: &Hidden, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        self.object.store(&texts(hidden), expected).await
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    fn store() -> (FakeApi, HiddenObject) {
        let api = FakeApi::default();
        let store = HiddenObject::new(api.client(), "cloudmap-mcs-system");
        (api, store)
    }

    #[tokio::test]
    async fn a_stored_record_is_loaded_and_the_first_one_is_created() {
        let (api, store) = store();
        api.refuse(404, "NotFound", "configmaps \"cloudmap-mcs-hidden-tasks\" not found");
        assert_eq!(store.load().await.unwrap(), (Hidden::new(), None));
        let hidden: Hidden = [("srv-1".into(), vec!["b".into(), "a".into()])].into();
        store.store(&hidden, &None).await.unwrap();
        assert_eq!(api.requests()[1].method, Method::POST);
        store.store(&hidden, &Some("5".to_owned())).await.unwrap();
        let mut written = api.requests()[2].body.clone();
        assert_eq!(written["metadata"]["resourceVersion"], "5", "compared by the API server");
        written["metadata"]["resourceVersion"] = "6".into();
        api.prepare(200, written);
        assert_eq!(store.load().await.unwrap(), (hidden, Some("6".to_owned())), "in the same order");
    }

    #[tokio::test]
    async fn an_unreadable_record_is_reported_and_never_treated_as_missing() {
        let (api, store) = store();
        api.prepare(200, json!({"metadata": {"name": HIDDEN, "resourceVersion": "1"}, "data": {ABOUT.key: "{oops"}}));
        let error = store.load().await.unwrap_err().to_string();
        assert!(error.contains(HIDDEN) && error.contains("delete the ConfigMap"), "{error}");
        api.prepare(200, json!({"metadata": {"name": HIDDEN, "resourceVersion": "1"}}));
        assert_eq!(store.load().await.unwrap(), (Hidden::new(), Some("1".to_owned())));
    }
}
