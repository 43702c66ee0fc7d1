//! A record store in memory, for tests.

use std::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
};

use async_trait::async_trait;

use super::{Record, RecordStore, ResourceVersion, StoreError};

/// The ledger's record with a `resourceVersion`, and whether the store refuses writes.
#[derive(Debug, Default)]
pub struct Stored(pub Mutex<Option<(Record, u64)>>, pub AtomicBool);

#[async_trait]
impl RecordStore for Stored {
    async fn load(&self) -> Result<Option<(Record, ResourceVersion)>, StoreError> {
        Ok(self.0.lock().unwrap().clone().map(|(record, version)| (record, Some(version.to_string()))))
    }

    async fn store(&self, record: &Record, expected: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        if self.1.load(Ordering::SeqCst) {
            return Err(StoreError::Failed("forbidden".to_owned()));
        }
        let mut held = self.0.lock().unwrap();
        let version = held.as_ref().map(|(_, version)| *version);
        if version.map(|version| version.to_string()) != *expected {
            return Err(StoreError::Conflict);
        }
        let next = version.unwrap_or(0) + 1;
        *held = Some((record.clone(), next));
        Ok(Some(next.to_string()))
    }
}
