//! The keys with which a leader signs, and the configured keys of other clusters.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::warn;

use base::env;
use cluster::keys::KeyStore;
use ledger::trust::{self, Keys, Mode, SECRET, StoredKey, TRUSTED, Trust};

/// How often the stored keys are read again: somebody may have rotated the own one, or configured another cluster's.
const AGAIN: Duration = Duration::from_mins(1);
/// The same while they cannot be read.
const SOON: Duration = Duration::from_secs(5);
/// Attempts to read them before it is said that they cannot be read.
const ATTEMPTS: u32 = 3;

/// What a term of leadership begins with.
#[derive(Debug, Clone, Default)]
pub(super) struct Credentials {
    pub(super) trust: Trust,
    pub(super) keys: Option<Arc<Keys>>,
    stored: Option<StoredKey>,
}

impl PartialEq for Credentials {
    fn eq(&self, other: &Self) -> bool {
        (&self.trust, &self.stored) == (&other.trust, &other.stored)
    }
}

/// What [`changed`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// Other keys are stored than those known. A new term begins with them.
    Others,
    /// The own Secret was gone, and has the known key again. The term goes on.
    Restored,
}

/// Reads the keys, and makes the own one if there is none. What this leader knew `before` counts then: with another
/// key nobody would believe it.
///
/// # Errors
/// Why not, for people; the text contains no key.
pub(super) async fn load(store: &KeyStore, mode: Mode, before: Option<&Credentials>) -> Result<Credentials, String> {
    let mine = before.and_then(|before| before.stored.as_ref());
    let mut attempt = 1;
    loop {
        let found = match own(store, mode, mine).await {
            Ok((stored, _)) => read(store, mode, stored).await,
            Err(error) => Err(error),
        };
        match found {
            Err(error) if attempt < ATTEMPTS => {
                warn!(error, "the keys of the ledger cannot be read yet");
                attempt += 1;
                sleep(SOON / ATTEMPTS).await;
            }
            result => return result,
        }
    }
}

/// The own key, if this cluster signs, and whether its Secret was gone and has `mine` again.
async fn own(store: &KeyStore, mode: Mode, mine: Option<&StoredKey>) -> Result<(Option<StoredKey>, bool), String> {
    if mode == Mode::Open {
        return Ok((None, false));
    }
    let fresh = || StoredKey { seed: env::secret().to_vec(), former: Vec::new() };
    let key = mine.cloned().unwrap_or_else(fresh);
    let (stored, made) = store.ensure(key).await.map_err(|error| error.to_string())?;
    let restored = made && mine.is_some();
    if restored {
        warn!("somebody deleted the Secret {SECRET}; this leader created it again with the same key");
    }
    Ok((Some(stored), restored))
}

async fn read(store: &KeyStore, mode: Mode, stored: Option<StoredKey>) -> Result<Credentials, String> {
    let Some(stored) = stored else { return Ok(Credentials::default()) };
    let keys = Keys::read(&stored)?;
    let pinned = if mode == Mode::Pinned {
        let told = store.trusted().await.map_err(|error| error.to_string())?;
        let told = told.ok_or_else(|| {
            format!(
                "with --trust=pinned, the ConfigMap {TRUSTED} must have the keys of the other clusters: `cloudmap-mcs trust \
                 list` prints them"
            )
        })?;
        trust::read_pinned(&told)?
    } else {
        BTreeMap::new()
    };
    let trust = Trust { mode, pinned, ..Trust::default() };
    Ok(Credentials { trust, keys: Some(Arc::new(keys)), stored: Some(stored) })
}

/// Waits until others than `known` are stored, or until the known one is stored again. What cannot be read changes
/// nothing.
pub(super) async fn changed(store: &KeyStore, mode: Mode, known: &Result<Credentials, String>) -> News {
    let mine = known.as_ref().ok().and_then(|known| known.stored.as_ref());
    loop {
        sleep(if known.is_ok() { AGAIN } else { SOON }).await;
        let found = match own(store, mode, mine).await {
            Ok((_, true)) => return News::Restored,
            Ok((stored, false)) => read(store, mode, stored).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(found) if known.as_ref() != Ok(&found) => return News::Others,
            Err(error) if known.is_ok() => {
                warn!(error, "the keys of the ledger cannot be read; known keys still count");
            }
            Ok(_) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Method;
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde_json::{Value, json};
    use tokio::time::timeout;

    use super::*;
    use cluster::fake_api::FakeApi;

    /// A key that was rotated, so that there is a former one.
    fn rotated() -> StoredKey {
        let first = StoredKey { seed: vec![1; 32], former: Vec::new() };
        Keys::read(&first).unwrap().rotated("uid", [2; 32]).unwrap()
    }

    fn secret(key: &StoredKey) -> Value {
        let (seed, former) = (STANDARD.encode(&key.seed), STANDARD.encode(key.former.join("\n")));
        json!({"metadata": {"name": SECRET, "resourceVersion": "7"}, "data": {"seed": seed, "former": former}})
    }

    fn gone(api: &FakeApi) {
        api.refuse(404, "NotFound", "secrets \"cloudmap-mcs-key\" not found");
    }

    #[tokio::test(start_paused = true)]
    async fn a_secret_that_is_deleted_under_a_leader_comes_back_with_its_key() {
        let api = FakeApi::default();
        let store = KeyStore::new(api.client(), "cloudmap-mcs-system");
        let stored = secret(&rotated());
        api.prepare(200, stored.clone());
        let known = load(&store, Mode::Tofu, None).await;
        assert_eq!(known.as_ref().unwrap().stored, Some(rotated()));
        gone(&api);
        assert_eq!(changed(&store, Mode::Tofu, &known).await, News::Restored);
        let made = api.requests().pop().unwrap();
        assert_eq!((&made.method, &made.body["data"]), (&Method::POST, &stored["data"]), "with its former keys");
        // That is what the leader knows, so that its term goes on.
        api.prepare(200, stored);
        assert!(timeout(AGAIN + SOON, changed(&store, Mode::Tofu, &known)).await.is_err());
        // The same where its term begins anew meanwhile, for example because the cluster has another id.
        gone(&api);
        assert!(load(&store, Mode::Tofu, known.as_ref().ok()).await == known);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_somebody_else_stored_counts() {
        let api = FakeApi::default();
        let store = KeyStore::new(api.client(), "cloudmap-mcs-system");
        let first = StoredKey { seed: vec![1; 32], former: Vec::new() };
        api.prepare(200, secret(&first));
        let known = load(&store, Mode::Tofu, None).await;
        // It was deleted, and somebody creates another one at the same time.
        gone(&api);
        api.refuse(409, "AlreadyExists", "it exists");
        api.prepare(200, secret(&rotated()));
        assert_eq!(changed(&store, Mode::Tofu, &known).await, News::Others);
    }
}
