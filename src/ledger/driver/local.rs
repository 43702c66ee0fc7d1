//! Registration records of a standalone cluster. There is no ledger, so they are in the record in Kubernetes.
//!
//! The rule is the same as in the ledger: what is *published* is stored, and only then instances are registered, so
//! that a leader that takes over after a crash knows where to look.

use std::{sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use tokio::{sync::watch, task::JoinHandle, time::sleep};
use tracing::warn;

use super::{Leadership, departure::depart, permit};
use crate::{
    Map,
    call::Failure,
    claims,
    record::{Member, Record, RecordStore, ResourceVersion, StoreError},
    trust::Keys,
};
use base::env;

/// First and longest pause after a failure.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(8);
/// How long a cluster that is no longer in a ClusterSet waits before it leaves the former one, and between attempts.
const LINGER: Duration = Duration::from_mins(10);
const DEPART_AGAIN: Duration = Duration::from_mins(1);

/// The stored registration records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Kept {
    /// The records; `None` until they were read. At first they are those of the previous leader.
    pub map: Option<Arc<Map>>,
    /// Why they repeatedly cannot be read or stored, if so.
    pub error: Option<String>,
    /// Whether the cluster was never in a ClusterSet, or has left all of them: nothing is imported then.
    pub outside: bool,
}

/// The running task. Dropping this stops it at once; the next leader continues from what is stored.
#[derive(Debug)]
pub struct LocalHandle {
    desired: watch::Sender<Option<Arc<Map>>>,
    kept: watch::Receiver<Kept>,
    task: JoinHandle<()>,
}

impl LocalHandle {
    /// The records to store. `None` until the first ones are known; nothing is stored before.
    pub fn desired(&self) -> &watch::Sender<Option<Arc<Map>>> {
        &self.desired
    }

    /// What is stored.
    pub fn kept(&self) -> watch::Receiver<Kept> {
        self.kept.clone()
    }
}

impl Drop for LocalHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a term of a standalone cluster, which has no other clusters and no state except for the registration records.
/// If the cluster was a member before, it leaves after a while, signed with `keys`: a ClusterProperty that is gone may
/// come back. It stays while `is_known` says that nobody knows which ClusterProperties there are.
pub fn spawn(
    record: Arc<dyn RecordStore>,
    leadership: impl Leadership,
    cloudmap: Arc<dyn cloudmap::Write>,
    uid: &str,
    keys: Option<Arc<Keys>>,
    is_known: impl Fn() -> bool + Send + Sync + 'static,
) -> LocalHandle {
    let (desired, desired_rx) = watch::channel(None);
    let (sender, kept) = watch::channel(Kept::default());
    let (leadership, is_known) = (Arc::new(leadership), Arc::new(is_known));
    let keeper = Keeper { record, leadership, cloudmap, uid: uid.into(), keys, is_known, kept: sender };
    LocalHandle { desired, kept, task: env::spawn(keeper.run(desired_rx)) }
}

struct Keeper<L> {
    record: Arc<dyn RecordStore>,
    leadership: Arc<L>,
    cloudmap: Arc<dyn cloudmap::Write>,
    uid: Arc<str>,
    keys: Option<Arc<Keys>>,
    is_known: Arc<dyn Fn() -> bool + Send + Sync>,
    kept: watch::Sender<Kept>,
}

/// The memberships that this cluster has to end.
fn memberships(record: &Record) -> Vec<Member> {
    record.member.iter().chain(&record.former).cloned().collect()
}

/// The record without that membership.
fn departed(record: &Record, from: &Member) -> Record {
    let mut record = record.clone();
    record.former.retain(|former| former != from);
    if record.member.as_ref() == Some(from) {
        (record.member, record.leaving) = (None, false);
        record.accepted.clear();
        record.streamed.clear();
        record.services.clear();
    }
    record
}

impl<L: Leadership> Keeper<L> {
    async fn run(self, mut desired: watch::Receiver<Option<Arc<Map>>>) {
        let (mut record, mut version) = self.load().await;
        let mut wanted = Arc::new(claims::of_stored(&record.registrations));
        self.report(Arc::clone(&wanted), &record);
        let mut wait = RETRY_FIRST;
        let mut left: Option<Member> = None;
        let mut departing = self.depart(memberships(&record), LINGER);
        loop {
            tokio::select! {
                biased;
                changed = desired.changed() => {
                    if changed.is_err() {
                        // Without a sender the records stay as they are.
                        return std::future::pending().await;
                    }
                    let Some(map) = desired.borrow_and_update().clone() else { continue };
                    wanted = map;
                }
                from = &mut departing => {
                    departing = futures::future::pending().boxed();
                    left = Some(from);
                }
            }
            loop {
                let next = left.as_ref().map_or_else(|| record.clone(), |left| departed(&record, left));
                let next = Record { registrations: claims::stored(&wanted), ..next };
                let stored = if next == record { Ok(version.clone()) } else { self.store(&next, &version).await };
                match stored {
                    Ok(stored) => {
                        (record, version) = (next, stored);
                        wait = RETRY_FIRST;
                        if left.take().is_some() {
                            departing = self.depart(memberships(&record), Duration::ZERO);
                        }
                        break self.report(Arc::clone(&wanted), &record);
                    }
                    Err(error) => {
                        warn!(%error, "cannot store the registration records; nothing new is registered until they are stored");
                        self.report_error(&error, wait);
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
    }

    /// Ends one of these memberships, however often that must be tried, and returns it. One that cannot be ended stops no
    /// other.
    fn depart(&self, from: Vec<Member>, after: Duration) -> BoxFuture<'static, Member> {
        if from.is_empty() {
            return futures::future::pending().boxed();
        }
        let (cloudmap, uid, keys) = (Arc::clone(&self.cloudmap), Arc::clone(&self.uid), self.keys.clone());
        let (leadership, is_known) = (Arc::clone(&self.leadership), Arc::clone(&self.is_known));
        async move {
            sleep(after).await;
            // Whoever deletes the CRD of the properties deletes all of them, and seldom wants this cluster to leave.
            while !is_known() {
                sleep(LINGER).await;
            }
            let mut attempts = 0;
            loop {
                let next = &from[attempts % from.len()];
                let Err(Failure { message }) = depart(&cloudmap, next, &uid, keys.clone(), &*leadership).await else {
                    return next.clone();
                };
                warn!(
                    error = message,
                    clusterset = next.clusterset,
                    "cannot tell the former ClusterSet yet that this cluster left"
                );
                // Clusters that leave at the same time must not meet at the limits of their account each time.
                sleep(DEPART_AGAIN + Duration::from_millis(env::random() % 30_000)).await;
                attempts += 1;
            }
        }
        .boxed()
    }

    fn report(&self, map: Arc<Map>, record: &Record) {
        self.kept.send_replace(Kept { map: Some(map), error: None, outside: memberships(record).is_empty() });
    }

    /// Reports an error once it is more than a short failure.
    fn report_error(&self, error: &StoreError, wait: Duration) {
        if wait > RETRY_FIRST {
            self.kept.send_modify(|kept| kept.error = Some(error.to_string()));
        }
    }

    async fn store(&self, record: &Record, version: &ResourceVersion) -> Result<ResourceVersion, StoreError> {
        permit(&*self.leadership).map_err(|Failure { message }| StoreError::Failed(message))?;
        self.record.store(record, version).await
    }

    async fn load(&self) -> (Record, ResourceVersion) {
        let mut wait = RETRY_FIRST;
        loop {
            match self.record.load().await {
                Ok(loaded) => return loaded.unwrap_or_default(),
                Err(error) => {
                    warn!(%error, "cannot read the registration records; nothing is registered until they are read");
                    self.report_error(&error, wait);
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(RETRY_LAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        fixtures::claim,
        record::{StoredRegistration, Streamed, Version, memory::Stored},
    };
    use cloudmap::{
        Permit,
        fake::{Fake, permit_until},
    };

    struct Leads(watch::Receiver<bool>);

    #[async_trait]
    impl Leadership for Leads {
        fn permit(&self) -> Option<Permit> {
            permit_until(Instant::now() + Duration::from_secs(10)).filter(|_| *self.0.borrow())
        }

        async fn confirm(&self) -> bool {
            true
        }
    }

    fn map(claim: StoredRegistration) -> Arc<Map> {
        Arc::new(claims::of_stored(&[claim]))
    }

    async fn says(handle: &LocalHandle, map: &Arc<Map>) {
        let mut kept = handle.kept();
        let waited = tokio::time::timeout(Duration::from_mins(5), kept.wait_for(|kept| kept.map.as_ref() == Some(map)));
        assert!(waited.await.is_ok(), "{:?}", kept.borrow());
    }

    #[test]
    fn who_left_remembers_nothing_of_the_others_and_keeps_its_epoch() {
        let from = Member { clusterset: "prod".into(), cluster: "blue".into() };
        let streamed = Streamed { uid: "uid-green".into(), version: Version { epoch: 7, nonce: 1, n: 2 } };
        let record = Record { epoch: 3, ..Record::default() };
        let member = Record {
            member: Some(from.clone()),
            streamed: [("green".to_owned(), streamed)].into(),
            services: [("clusters".to_owned(), "srv-1".to_owned())].into(),
            ..record.clone()
        };
        assert_eq!(departed(&member, &from), record);
    }

    #[tokio::test(start_paused = true)]
    async fn published_records_are_stored_and_found_by_the_next_leader() {
        let store = Arc::new(Stored::default());
        let (lead, leads) = watch::channel(true);
        let kept = Record { epoch: 3, ..Record::default() };
        store.store(&kept, &None).await.unwrap();

        let first = spawn(store.clone(), Leads(leads.clone()), Arc::new(Fake::new()), "uid", None, || true);
        says(&first, &Arc::default()).await;
        let unable = StoredRegistration { unable: true, ..claim("web") };
        let retires = StoredRegistration { retiring: true, ..claim("web") };
        for said in [claim("web"), unable, retires.clone()] {
            first.desired().send_replace(Some(map(said.clone())));
            says(&first, &map(said)).await;
        }
        drop(first);
        assert_eq!(store.0.lock().unwrap().as_ref().unwrap().0.epoch, 3, "what else is in the record stays");

        let second = spawn(store.clone(), Leads(leads), Arc::new(Fake::new()), "uid", None, || true);
        says(&second, &map(retires)).await;
        // Another process wrote it meanwhile.
        store.0.lock().unwrap().as_mut().unwrap().1 += 1;
        second.desired().send_replace(Some(map(claim("api"))));
        says(&second, &map(claim("api"))).await;

        lead.send_replace(false);
        second.desired().send_replace(Some(map(claim("db"))));
        tokio::time::sleep(Duration::from_mins(1)).await;
        let kept = second.kept().borrow().clone();
        assert_eq!(kept.map, Some(map(claim("api"))), "who does not lead writes nothing");
        assert!(kept.error.is_some_and(|error| error.contains("Lease")));
        lead.send_replace(true);
        says(&second, &map(claim("db"))).await;
        assert_eq!(second.kept().borrow().error, None);
    }
}
