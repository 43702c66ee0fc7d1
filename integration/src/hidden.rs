//! The record of hidden tasks, for engines that hide none.

use async_trait::async_trait;
use cluster::record::{Hidden, HiddenStore};
use ledger::record::{ResourceVersion, StoreError};

/// An empty record, which refuses to be written.
#[derive(Debug, Clone, Copy)]
pub struct NothingHidden;

#[async_trait]
impl HiddenStore for NothingHidden {
    async fn load(&self) -> Result<(Hidden, ResourceVersion), StoreError> {
        Ok((Hidden::new(), None))
    }

    async fn store(&self, _: &Hidden, _: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        Err(StoreError::Failed("nothing is hidden here".to_owned()))
    }
}
