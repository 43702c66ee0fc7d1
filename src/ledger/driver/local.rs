//! Registration records of a cluster in no ClusterSet: there is no ledger to keep them, so the record in Kubernetes does.
//!
//! The same promise as the ledger's: what is *published* is stored, and only then instances are registered, so that a
//! leader that takes over after a crash knows where to look.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tracing::warn;

use super::{Handle, LEASE_MARGIN, Leadership, Status};
use crate::{
    env,
    ledger::{
        Map,
        record::{Record, RecordStore, StoreError, StoredRegistration, Version},
        records,
    },
    model::{ClaimOwner, Registration, Target},
};

/// First and longest wait after a failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(8);

/// Starts a term outside any ClusterSet. No other clusters, and no state but the registration records.
pub fn spawn(record: Arc<dyn RecordStore>, leadership: impl Leadership) -> Handle {
    let (desired, desired_rx) = watch::channel(None);
    let (own_tx, own) = watch::channel(None);
    let (published_tx, published) = watch::channel(None);
    let (read_back_tx, read_back) = watch::channel(None);
    // Never changes: nobody else is there.
    let (_, remotes) = watch::channel(Arc::default());
    let (status_tx, status) = watch::channel(Arc::default());
    let keeper = Keeper { record, leadership, published: published_tx, read_back: read_back_tx, status: status_tx };
    let task = env::spawn(keeper.run(desired_rx, own_tx));
    Handle { desired, own, published, read_back, remotes, status, task }
}

struct Keeper<L> {
    record: Arc<dyn RecordStore>,
    leadership: L,
    published: watch::Sender<Option<Arc<Map>>>,
    read_back: watch::Sender<Option<Arc<Map>>>,
    /// Only its error is ever set.
    status: watch::Sender<Arc<Status>>,
}

impl<L: Leadership> Keeper<L> {
    async fn run(self, mut desired: watch::Receiver<Option<Arc<Map>>>, own: watch::Sender<Option<Arc<Map>>>) {
        let (mut record, mut version) = self.load().await;
        let inherited = Arc::new(decode(&record));
        own.send_replace(Some(Arc::clone(&inherited)));
        self.says(inherited);
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
                        warn!(%error, "cannot keep the registration records: nothing new is registered until then");
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
        self.status.send_if_modified(|status| std::mem::take(status).error.is_some());
        self.published.send_replace(Some(Arc::clone(&map)));
        self.read_back.send_replace(Some(map));
    }

    /// Says an error, once it is more than a hiccup.
    fn fails(&self, error: &StoreError, wait: Duration) {
        if wait > RETRY_FIRST {
            self.status.send_replace(Arc::new(Status { error: Some(error.to_string()), ..Status::default() }));
        }
    }

    async fn store(&self, record: &Record, version: &Version) -> Result<Version, StoreError> {
        if self.leadership.is_leader_until().is_none_or(|until| until < Instant::now() + LEASE_MARGIN) {
            return Err(StoreError::Failed("the Lease is not held: nothing is written".to_owned()));
        }
        self.record.store(record, version).await
    }

    async fn load(&self) -> (Record, Version) {
        let mut wait = RETRY_FIRST;
        loop {
            match self.record.load().await {
                Ok(loaded) => return loaded.unwrap_or_default(),
                Err(error) => {
                    warn!(%error, "cannot read the registration records: nothing is registered until then");
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
        // Names of namespaces and services are bounded (cloudmap limits), so that the record always fits.
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

    async fn says(channel: &mut watch::Receiver<Option<Arc<Map>>>, map: &Arc<Map>) {
        let waited = tokio::time::timeout(Duration::from_mins(5), channel.wait_for(|held| held.as_ref() == Some(map)));
        assert!(waited.await.is_ok(), "{:?}", channel.borrow());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_published_is_stored_and_found_by_the_next_leader() {
        let store = Arc::new(Stored::default());
        let (lead, leads) = watch::channel(true);
        let kept = Record { epoch: 3, ..Record::default() };
        store.store(&kept, &None).await.unwrap();

        let first = spawn(store.clone(), Leads(leads.clone()));
        says(&mut first.own(), &Arc::default()).await;
        for (service, retiring) in [("web", false), ("web", true)] {
            first.desired().send_replace(Some(map(service, retiring)));
            says(&mut first.published(), &map(service, retiring)).await;
        }
        drop(first);
        assert_eq!(store.0.lock().unwrap().as_ref().unwrap().0.epoch, 3, "what else is in the record stays");

        let second = spawn(store.clone(), Leads(leads));
        says(&mut second.own(), &map("web", true)).await;
        // Somebody else wrote it meanwhile.
        store.0.lock().unwrap().as_mut().unwrap().1 += 1;
        second.desired().send_replace(Some(map("api", false)));
        says(&mut second.read_back(), &map("api", false)).await;

        lead.send_replace(false);
        second.desired().send_replace(Some(map("db", false)));
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(*second.published().borrow(), Some(map("api", false)), "who does not lead writes nothing");
        assert!(second.status().borrow().error.as_ref().is_some_and(|error| error.contains("Lease")));
        lead.send_replace(true);
        says(&mut second.published(), &map("db", false)).await;
        assert_eq!(second.status().borrow().error, None);
    }
}
