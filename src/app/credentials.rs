//! The keys with which a leader signs, and those of others that it was told.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::warn;

use crate::{
    cluster::keys::{KeyStore, StoredKey, TRUSTED},
    env,
    ledger::trust::{self, Keys, Mode, Trust},
};

/// How often the stored keys are read again: somebody may have rotated the own one, or told another cluster's.
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

/// Reads the keys, and makes the own one if there is none.
///
/// # Errors
/// Why not, for people; the text contains no key.
pub(super) async fn load(store: &KeyStore, mode: Mode) -> Result<Credentials, String> {
    let mut attempt = 1;
    loop {
        match read(store, mode).await {
            Err(error) if attempt < ATTEMPTS => {
                warn!(error, "the keys of the ledger cannot be read yet");
                attempt += 1;
                sleep(SOON / ATTEMPTS).await;
            }
            result => return result,
        }
    }
}

async fn read(store: &KeyStore, mode: Mode) -> Result<Credentials, String> {
    if mode == Mode::Open {
        return Ok(Credentials::default());
    }
    let stored = store.ensure(env::secret()).await.map_err(|error| error.to_string())?;
    let keys = Keys::read(&stored)?;
    let pinned = if mode == Mode::Pinned {
        let told = store.trusted().await.map_err(|error| error.to_string())?;
        let told = told.ok_or_else(|| {
            format!("with --trust=pinned, the ConfigMap {TRUSTED} must have the keys of the other clusters: `cloudmap-mcs trust` prints them")
        })?;
        trust::read_pinned(&told)?
    } else {
        BTreeMap::new()
    };
    let trust = Trust { mode, pinned, ..Trust::default() };
    Ok(Credentials { trust, keys: Some(Arc::new(keys)), stored: Some(stored) })
}

/// Waits until others than `known` are stored. What cannot be read changes nothing.
pub(super) async fn changed(store: &KeyStore, mode: Mode, known: &Result<Credentials, String>) {
    loop {
        sleep(if known.is_ok() { AGAIN } else { SOON }).await;
        match read(store, mode).await {
            Ok(found) if known.as_ref() != Ok(&found) => return,
            Err(error) if known.is_ok() => warn!(error, "the keys of the ledger cannot be read; those known stay"),
            Ok(_) | Err(_) => {}
        }
    }
}
