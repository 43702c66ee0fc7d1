//! The key with which this cluster signs, in a Secret; and the keys of others that an administrator configured, in a ConfigMap.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    ByteString,
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use tokio::time::timeout;

use super::apply;
use ledger::trust::{SECRET, StoredKey, TRUSTED};

/// Keys in the Secret.
const SEED: &str = "seed";
const FORMER: &str = "former";

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The key could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It changed meanwhile.
    #[error("failed to store the key of this cluster: the Secret {SECRET} changed meanwhile; try again")]
    Conflict,
    /// The Secret is there, without a key.
    #[error(
        "failed to read the key of this cluster: the Secret {SECRET} has no {SEED}; restore it, or delete it, after which the \
             other clusters must accept a new key (docs/trust.md)"
    )]
    Empty,
    /// Any other error.
    #[error("failed to access the {0}: {1}")]
    Failed(String, String),
}

/// The Secret and the ConfigMap. All reads are quorum reads.
#[derive(Debug, Clone)]
pub struct KeyStore {
    secrets: Api<Secret>,
    maps: Api<ConfigMap>,
}

impl KeyStore {
    /// Those in `namespace`, which is the controller's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { secrets: Api::namespaced(client.clone(), namespace), maps: Api::namespaced(client, namespace) }
    }

    /// The key, and the version of its Secret; `None` if there is none.
    pub async fn load(&self) -> Result<Option<(StoredKey, Option<String>)>, KeyError> {
        let Some(secret) = call(SECRET, self.secrets.get_opt(SECRET)).await? else { return Ok(None) };
        let mut data = secret.data.unwrap_or_default();
        let Some(ByteString(seed)) = data.remove(SEED) else { return Err(KeyError::Empty) };
        let former = data.remove(FORMER).map(|ByteString(text)| String::from_utf8_lossy(&text).into_owned());
        let former = former.unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        Ok(Some((StoredKey { seed, former }, secret.metadata.resource_version)))
    }

    /// Stores a key if the Secret still has the version `expected`; `None` creates it.
    pub async fn store(&self, key: &StoredKey, expected: Option<String>) -> Result<(), KeyError> {
        let text = "The key with which this cluster signs its ledger. If it is lost, the other clusters must accept a new one.";
        let creates = expected.is_none();
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(SECRET.to_owned()),
                resource_version: expected,
                annotations: Some(BTreeMap::from([("kubernetes.io/description".to_owned(), text.to_owned())])),
                ..ObjectMeta::default()
            },
            data: Some(BTreeMap::from([
                (SEED.to_owned(), ByteString(key.seed.clone())),
                (FORMER.to_owned(), ByteString(key.former.join("\n").into_bytes())),
            ])),
            ..Secret::default()
        };
        if creates {
            call(SECRET, self.secrets.create(&PostParams::default(), &secret)).await?;
        } else {
            // Labels and annotations of others stay: backups may select it by a label.
            call(SECRET, self.secrets.patch(SECRET, &PatchParams::default(), &Patch::Merge(&secret))).await?;
        }
        Ok(())
    }

    /// The key, and whether it was stored just now: where there is none, `key` is stored. Where another leader was
    /// first, that one's counts.
    pub async fn ensure(&self, key: StoredKey) -> Result<(StoredKey, bool), KeyError> {
        if let Some((stored, _)) = self.load().await? {
            return Ok((stored, false));
        }
        match self.store(&key, None).await {
            Ok(()) => Ok((key, true)),
            Err(KeyError::Conflict) => Ok((self.load().await?.ok_or(KeyError::Conflict)?.0, false)),
            Err(error) => Err(error),
        }
    }

    /// The configured keys of other clusters, as they are written; `None` if there is no ConfigMap.
    pub async fn trusted(&self) -> Result<Option<BTreeMap<String, String>>, KeyError> {
        let map = call(TRUSTED, self.maps.get_opt(TRUSTED)).await?;
        Ok(map.map(|map| map.data.unwrap_or_default()))
    }
}

async fn call<T>(name: &str, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, KeyError> {
    let kind = if name == SECRET { "Secret" } else { "ConfigMap" };
    let failed = |why| Err(KeyError::Failed(format!("{kind} {name}"), why));
    match timeout(CALL_TIMEOUT, request).await {
        Err(_) => failed(format!("no answer within {} s", CALL_TIMEOUT.as_secs())),
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(kube::Error::Api(status))) if status.is_conflict() || status.is_already_exists() => {
            Err(KeyError::Conflict)
        }
        Ok(Err(error)) => failed(apply::words(&error)),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde_json::json;

    use super::*;
    use crate::fake_api::FakeApi;

    fn store() -> (FakeApi, KeyStore) {
        let api = FakeApi::default();
        let store = KeyStore::new(api.client(), "cloudmap-mcs-system");
        (api, store)
    }

    fn secret(seed: &[u8]) -> serde_json::Value {
        json!({"metadata": {"name": SECRET, "resourceVersion": "7"}, "data": {SEED: STANDARD.encode(seed)}})
    }

    #[tokio::test]
    async fn the_first_leader_makes_the_key_and_the_others_read_it() {
        let (api, store) = store();
        api.refuse(404, "NotFound", "secrets \"cloudmap-mcs-key\" not found");
        let mine = StoredKey { seed: vec![1; 32], former: Vec::new() };
        assert_eq!(store.ensure(mine.clone()).await, Ok((mine.clone(), true)));
        let requests = api.requests();
        assert_eq!(
            (&requests[1].method, requests[1].path.as_str()),
            (&Method::POST, "/api/v1/namespaces/cloudmap-mcs-system/secrets")
        );
        // Another leader was first.
        api.refuse(404, "NotFound", "secrets \"cloudmap-mcs-key\" not found");
        api.refuse(409, "AlreadyExists", "it exists");
        api.prepare(200, secret(&[2; 32]));
        let theirs = StoredKey { seed: vec![2; 32], former: Vec::new() };
        assert_eq!(store.ensure(mine).await, Ok((theirs, false)));
    }

    #[tokio::test]
    async fn a_secret_without_a_key_is_never_replaced() {
        let (api, store) = store();
        api.prepare(200, json!({"metadata": {"name": SECRET, "resourceVersion": "7"}}));
        let mine = StoredKey { seed: vec![1; 32], former: Vec::new() };
        assert_eq!(store.ensure(mine).await, Err(KeyError::Empty));
        assert_eq!(api.requests().len(), 1);
    }

    #[tokio::test]
    async fn a_key_is_replaced_only_in_the_version_that_was_read_and_never_printed() {
        let (api, store) = store();
        api.prepare(200, secret(&[65; 32]));
        let (key, version) = store.load().await.unwrap().unwrap();
        assert_eq!((key.seed.as_slice(), version.as_deref()), ([65; 32].as_slice(), Some("7")));
        assert_eq!(format!("{key:?}"), "StoredKey(former: 0)");
        store.store(&key, version).await.unwrap();
        let requests = api.requests();
        assert_eq!(requests[1].body["metadata"]["resourceVersion"], "7");
        assert_eq!(requests[1].content_type, "application/merge-patch+json", "what others wrote stays");
    }
}
