//! Carries out the calls of a term. Each write asks for a permit first.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{Leadership, Registry, departure::depart};
use crate::{
    RegistryName,
    call::{Call, CallId, Failure, Outcome},
    record::{RecordStore, StoreError},
    trust::Keys,
};
use cloudmap::Permit;

/// A write is made only if the Lease is held for at least this much longer. No call takes longer to be sent and
/// answered (the adapter's deadline).
const LEASE_MARGIN: Duration = Duration::from_secs(5);

/// The permit for a call, if the Lease is held for as long as one may take. To be asked for immediately before each.
pub(super) fn permit(leadership: &dyn Leadership) -> Result<Permit, Failure> {
    let permit = leadership.permit().filter(|permit| permit.lasts(LEASE_MARGIN));
    permit.ok_or_else(|| Failure { message: "the Lease is not held; nothing is written".to_owned() })
}

/// All connections to the outside.
pub(super) struct Ports {
    pub(super) cloudmap: Arc<dyn cloudmap::Write>,
    pub(super) uid: String,
    pub(super) keys: Option<Arc<Keys>>,
    pub(super) registry: Registry,
    /// The registries that are read beside it.
    pub(super) elsewhere: BTreeMap<RegistryName, Arc<Registry<dyn cloudmap::Read>>>,
    pub(super) record: Arc<dyn RecordStore>,
    pub(super) leadership: Box<dyn Leadership>,
}

impl Ports {
    pub(super) async fn make(self: Arc<Self>, id: CallId, call: Call) -> (CallId, Outcome) {
        (id, self.perform(call).await.unwrap_or_else(Outcome::Failed))
    }

    /// Makes a write while the Lease is held, and gives it up when that ends: it may have to wait long for its turn.
    async fn write<F>(&self, write: impl FnOnce(Permit) -> F) -> Result<Outcome, Failure>
    where
        F: Future<Output = Result<Outcome, Failure>>,
    {
        let permit = permit(&*self.leadership)?;
        tokio::select! {
            biased;
            // The Lease is renewed every few seconds.
            () = permit.ended() => {
                let message = "the Lease ran out meanwhile; it is not known whether this was written".to_owned();
                Err(Failure { message })
            }
            outcome = write(permit.clone()) => outcome,
        }
    }

    async fn perform(&self, call: Call) -> Result<Outcome, Failure> {
        let registry = &self.registry;
        match call {
            Call::ConfirmLease => Ok(Outcome::Lease { held: self.leadership.confirm().await }),
            Call::LoadRecord => match self.record.load().await {
                Ok(loaded) => {
                    let (record, version) = loaded.unwrap_or_default();
                    registry.remember(&record).await;
                    Ok(Outcome::Loaded { record: Box::new(record), version })
                }
                Err(error) => Err(Failure { message: error.to_string() }),
            },
            Call::StoreRecord { record, expected } => {
                let store = |_| async move {
                    let record = registry.with_services(*record).await;
                    match self.record.store(&record, &expected).await {
                        Ok(version) => Ok(Outcome::Stored { version }),
                        Err(StoreError::Conflict) => Ok(Outcome::Conflict),
                        Err(error) => Err(Failure { message: error.to_string() }),
                    }
                };
                self.write(store).await
            }
            Call::Claim { shard } => self.write(|permit| async move { registry.claim(&permit, shard).await }).await,
            Call::PutHead { head, repeats } => {
                self.write(|permit| async move { registry.put_head(&permit, &head, repeats).await }).await
            }
            Call::PutPage { shard, page } => {
                self.write(|permit| async move { registry.put_page(&permit, shard, &page).await }).await
            }
            Call::DeletePage { cluster, shard, page } => {
                let page = page.to_string();
                self.write(|permit| async move { registry.delete_page(&permit, &cluster, shard, &page).await }).await
            }
            Call::Depart { from } => {
                // It asks for the permit of each of its calls.
                let depart = depart(&self.cloudmap, &from, &self.uid, self.keys.clone(), &*self.leadership);
                self.write(|_| depart).await
            }
            Call::RemoveFormer { cluster } => {
                self.write(|permit| async move { registry.remove_former(&permit, &cluster).await }).await
            }
            Call::PutCopy { head } => self.write(|permit| async move { registry.put_copy(&permit, &head).await }).await,
            Call::Announce => self.write(|permit| async move { registry.announce(&permit).await }).await,
            Call::Elsewhere { registry, call } => match self.elsewhere.get(&registry) {
                Some(registry) => read(registry, *call).await,
                None => Err(Failure { message: format!("there is no registry {registry}") }),
            },
            call @ (Call::ReadPages { .. } | Call::Copy { .. } | Call::Announced { .. } | Call::Creator { .. }) => {
                read(registry, call).await
            }
        }
    }
}

/// Makes a call that only reads the ledger.
async fn read<C: cloudmap::Read + ?Sized>(registry: &Registry<C>, call: Call) -> Result<Outcome, Failure> {
    match call {
        Call::ReadPages { cluster, shard, flush } => {
            let read = registry.read_pages(&cluster, shard, flush.as_deref()).await;
            read.map(|pages| Outcome::Pages(Arc::new(pages)))
        }
        Call::Copy { cluster } => registry.copy(&cluster).await.map(Outcome::Copy),
        Call::Announced { cluster, uid } => registry.announced(&cluster, &uid).await.map(Outcome::Announced),
        Call::Creator { cluster } => registry.creator(&cluster).await.map(Outcome::Creator),
        call => Err(Failure { message: format!("{call:?} reads no ledger") }),
    }
}
