//! The record of hidden tasks in memory, for tests.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;

use super::{Hidden, HiddenStore};
use ledger::record::{ResourceVersion, StoreError};

/// The record of hidden tasks, with the number of its writes, and whether the store refuses them.
#[derive(Debug, Default)]
pub struct StoredHidden(pub Mutex<(Hidden, u64)>, pub AtomicBool);

#[async_trait]
impl HiddenStore for StoredHidden {
    async fn load(&self) -> Result<(Hidden, ResourceVersion), StoreError> {
        let (hidden, version) = self.0.lock().unwrap().clone();
        Ok((hidden, (version > 0).then(|| version.to_string())))
    }

    async fn store(&self, hidden: &Hidden, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        if self.1.load(Ordering::SeqCst) {
            return Err(StoreError::Failed("forbidden".to_owned()));
        }
        let mut held = self.0.lock().unwrap();
        if (held.1 > 0).then(|| held.1.to_string()) != *expected {
            return Err(StoreError::Conflict);
        }
        *held = (hidden.clone(), held.1 + 1);
        Ok(Some(held.1.to_string()))
    }
}
