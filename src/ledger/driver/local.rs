//! Registration records of a standalone cluster. There is no ledger, so they are in the record in Kubernetes.
//!
//! The rule is the same as in the ledger: what is *published* is stored, and only then instances are registered, so
//! that a leader that takes over after a crash knows where to look.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};
use tracing::warn;

use super::{LEASE_MARGIN, Leadership};
use crate::{
    env,
    ledger::{
        Map,
        record::{Record, RecordStore, StoreError, StoredRegistration, Version},
        records,
    },
    model::{ClaimOwner, Registration, Target},
};

/// First and longest pause after a failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(8);

/// The stored registration records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    /// The records; `None` until they were read. At first they are those of the previous leader.
    pub map: Option<Arc<Map>>,
    /// Why they repeatedly cannot be read or stored, if so.
    pub error: Option<String>,
}

/// The running task. Dropping this stops it at once; the next leader continues from what is stored.
#[derive(Debug)]
pub struct Handle {
    desired: watch::Sender<Option<Arc<Map>>>,
    kept: watch::Receiver<Kept>,
    task: JoinHandle<()>,
}

impl Handle {
    /// The records to store. `None` until the first ones are known; nothing is stored before.
    pub fn desired(&self) -> &watch::Sender<Option<Arc<Map>>> {
        &self.desired
    }

    /// What is stored.
    pub fn kept(&self) -> watch::Receiver<Kept> {
        self.kept.clone()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a term of a standalone cluster, which has no other clusters and no state except for the registration records.
pub fn spawn(record: Arc<dyn RecordStore>, leadership: impl Leadership) -> Handle {
    let (desired, desired_rx) = watch::channel(None);
    let (sender, kept) = watch::channel(Kept::default());
    let keeper = Keeper { record, leadership, kept: sender };
    Handle { desired, kept, task: env::spawn(keeper.run(desired_rx)) }
}

struct Keeper<L> {
    record: Arc<dyn RecordStore>,
    leadership: L,
    kept: watch::Sender<Kept>,
}

impl<L: Leadership> Keeper<L> {
    async fn run(self, mut desired: watch::Receiver<Option<Arc<Map>>>) {
        let (mut record, mut version) = self.load().await;
        self.says(Arc::new(decode(&record)));
        let mut wait = RETRY_FIRST;
        while desired.changed().await.is_ok() {
            let Some(wanted) = desired.borrow_and_update().clone() else { continue };
            loop {
                let next = Record { registrations: encode(&wanted), ..record.clone() };
                if next == record {
                    wait = RETRY_FIRST;
                    break self.says(wanted);
                }
                match self.store(&next, &version).await {
                    Ok(stored) => {
                        (record, version) = (next, stored);
                        wait = RETRY_FIRST;
                        break self.says(wanted);
                    }
                    Err(error) => {
                        warn!(%error, "cannot store the registration records; nothing new is registered until they are stored");
                        self.fails(&error, wait);
                        sleep(wait).await;
                        wait = (wait * 2).min(RETRY_LAST);
                        (record, version) = self.load().await;
                    }
                }
                if desired.has_changed().unwrap_or(false) {
                    break;
                }
            }
        }
        // Without a sender the records stay as they are.
        std::future::pending::<()>().await;
    }

    fn says(&self, map: Arc<Map>) {
        self.kept.send_replace(Kept { map: Some(map), error: None });
    }

    /// Reports an error once it is more than a short failure.
    fn fails(&self, error: &StoreError, wait: Duration) {
        if wait > RETRY_FIRST {
            self.kept.send_modify(|kept| kept.error = Some(error.to_string()));
        }
    }

    async fn store(&self, record: &Record, version: &Version) -> Result<Version, StoreError> {
        if self.leadership.is_leader_until().is_none_or(|until| until < Instant::now() + LEASE_MARGIN) {
            return Err(StoreError::Failed("the Lease is not held; nothing is written".to_owned()));
        }
        self.record.store(record, version).await
    }

    async fn load(&self) -> (Record, Version) {
        let mut wait = RETRY_FIRST;
        loop {
            match self.record.load().await {
                Ok(loaded) => return loaded.unwrap_or_default(),
                Err(error) => {
                    warn!(%error, "cannot read the registration records; nothing is registered until they are read");
                    self.fails(&error, wait);
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
    }
}

fn encode(map: &Map) -> Vec<StoredRegistration> {
    let stored = |registration: &Registration| {
        let Registration { target, owner, claimed, retiring } = registration;
        StoredRegistration {
            namespace: target.namespace.to_string(),
            service: target.service.to_string(),
            owner: [&owner.kind, &owner.namespace, &owner.name].map(ToString::to_string),
            claimed: *claimed,
            retiring: *retiring,
        }
    };
    records::registrations(map).values().map(stored).collect()
}

fn decode(record: &Record) -> Map {
    let registration = |stored: &StoredRegistration| {
        let StoredRegistration { namespace, service, owner, claimed, retiring } = stored.clone();
        let [kind, owner_namespace, name] = owner;
        Registration {
            target: Target { namespace: namespace.into(), service: service.into() },
            owner: ClaimOwner { kind: kind.into(), namespace: owner_namespace.into(), name: name.into() },
            claimed,
            retiring,
        }
    };
    let encoded = record.registrations.iter().filter_map(|stored| {
        // The names of namespaces and services are limited (by Cloud Map), so the record always fits.
        records::encode_registration(&registration(stored)).ok()
    });
    encoded.collect::<BTreeMap<_, _>>()
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;

    use super::*;
    use crate::ledger::record::memory::Stored;

    struct Leads(watch::Receiver<bool>);

    #[async_trait]
    impl Leadership for Leads {
        fn is_leader_until(&self) -> Option<Instant> {
            self.0.borrow().then(|| Instant::now() + Duration::from_secs(10))
        }

        async fn confirm(&self) -> bool {
            true
        }
    }

    fn map(service: &str, retiring: bool) -> Arc<Map> {
        let registration = Registration {
            target: Target { namespace: "internal".into(), service: service.into() },
            owner: ClaimOwner { kind: "Service".into(), namespace: "shop".into(), name: "web".into() },
            claimed: 7,
            retiring,
        };
        Arc::new([records::encode_registration(&registration).unwrap()].into())
    }

    async fn says(handle: &Handle, map: &Arc<Map>) {
        let mut kept = handle.kept();
        let waited = tokio::time::timeout(Duration::from_mins(5), kept.wait_for(|kept| kept.map.as_ref() == Some(map)));
        assert!(waited.await.is_ok(), "{:?}", kept.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn published_records_are_stored_and_found_by_the_next_leader() {
        let store = Arc::new(Stored::default());
        let (lead, leads) = watch::channel(true);
        let kept = Record { epoch: 3, ..Record::default() };
        store.store(&kept, &None).await.unwrap();

        let first = spawn(store.clone(), Leads(leads.clone()));
        says(&first, &Arc::default()).await;
        for (service, retiring) in [("web", false), ("web", true)] {
            first.desired().send_replace(Some(map(service, retiring)));
            says(&first, &map(service, retiring)).await;
        }
        drop(first);
        assert_eq!(store.0.lock().unwrap().as_ref().unwrap().0.epoch, 3, "what else is in the record stays");

        let second = spawn(store.clone(), Leads(leads));
        says(&second, &map("web", true)).await;
        // Another process wrote it meanwhile.
        store.0.lock().unwrap().as_mut().unwrap().1 += 1;
        second.desired().send_replace(Some(map("api", false)));
        says(&second, &map("api", false)).await;

        lead.send_replace(false);
        second.desired().send_replace(Some(map("db", false)));
        tokio::time::sleep(Duration::from_mins(1)).await;
        let kept = second.kept().borrow().clone();
        assert_eq!(kept.map, Some(map("api", false)), "who does not lead writes nothing");
        assert!(kept.error.is_some_and(|error| error.contains("Lease")));
        lead.send_replace(true);
        says(&second, &map("db", false)).await;
        assert_eq!(second.kept().borrow().error, None);
    }
}
