//! The lists of namespaces and services, for all parts of a process that need one.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared, WeakShared},
};

use super::{Error, Lane, Namespace, Read, Service};

/// Lists namespaces and services for everybody but the ledger, which has a lane of its own and waits for nobody.
///
/// AWS allows few of these calls: all namespaces can be listed once in two seconds. So there is one call for a list at a
/// time, and whoever asks while it is in progress shares the next one. A list therefore shows what was there when it was
/// asked for, or later. Nothing is kept, lists and failures alike, and nothing is tried again.
///
/// A call ends early only when nobody waits for it any more.
#[expect(missing_debug_implementations, reason = "the port is a trait object")]
pub struct Listings {
    cloudmap: Arc<dyn Read>,
    namespaces: Calls<(), Namespace>,
    /// By id of the namespace. None of them waits for another one, except for its turn at the request rate.
    services: Calls<Arc<str>, Service>,
}

impl Listings {
    /// Lists what `cloudmap` has, within its limits.
    pub fn new(cloudmap: Arc<dyn Read>) -> Arc<Self> {
        let (namespaces, services) = (Calls(Mutex::default()), Calls(Mutex::default()));
        Arc::new(Self { cloudmap, namespaces, services })
    }

    /// The namespaces, as [`Read::list_namespaces`] returns them.
    ///
    /// # Errors
    /// Those of the call, for all who share it.
    pub async fn namespaces(&self) -> Result<Arc<[Namespace]>, Error> {
        let cloudmap = Arc::clone(&self.cloudmap);
        self.namespaces.ask((), async move { cloudmap.list_namespaces(Lane::Instances).await }).await
    }

    /// The services of a namespace, as [`Read::list_services`] returns them.
    ///
    /// # Errors
    /// Those of the call, for all who share it.
    pub async fn services(&self, namespace_id: &Arc<str>) -> Result<Arc<[Service]>, Error> {
        let (cloudmap, id) = (Arc::clone(&self.cloudmap), Arc::clone(namespace_id));
        let list = async move { cloudmap.list_services(&id, Lane::Instances).await };
        self.services.ask(Arc::clone(namespace_id), list).await
    }
}

type Answer<T> = BoxFuture<'static, Result<Arc<[T]>, Error>>;

/// The last call for each list. Only those who wait for a call hold it, and each of them drives it.
struct Calls<K, T>(Mutex<BTreeMap<K, Call<T>>>);

struct Call<T> {
    answer: WeakShared<Answer<T>>,
    /// Whoever asks now may see less than there is.
    begun: Arc<AtomicBool>,
}

impl<K: Ord, T: Send + Sync + 'static> Calls<K, T> {
    /// The call that has not begun yet. If there is none, `list` is the next one.
    fn ask(&self, key: K, list: impl Future<Output = Result<Vec<T>, Error>> + Send + 'static) -> Shared<Answer<T>> {
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        calls.retain(|_, call| call.answer.upgrade().is_some());
        let last = calls.get(&key).and_then(|call| Some((call.answer.upgrade()?, &call.begun)));
        let running = match last {
            Some((waiting, begun)) if !begun.load(Ordering::SeqCst) => return waiting,
            last => last.map(|(running, _)| running),
        };
        let begun = Arc::new(AtomicBool::new(false));
        let begins = Arc::clone(&begun);
        let call = async move {
            if let Some(running) = running {
                let _ = running.await;
            }
            begins.store(true, Ordering::SeqCst);
            list.await.map(Arc::from)
        };
        let call = call.boxed().shared();
        calls.extend(call.downgrade().map(|answer| (key, Call { answer, begun })));
        call
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{
        task::JoinHandle,
        time::{Instant, sleep},
    };

    use super::*;
    use crate::{
        ErrorKind, Limited, Limits, NamespaceKind, Operation, Rates,
        fake::{Fake, Fault},
    };

    /// Asks for the namespaces, in a task of its own that has begun to wait when this returns.
    async fn ask(listings: &Arc<Listings>) -> JoinHandle<Result<Arc<[Namespace]>, Error>> {
        let listings = Arc::clone(listings);
        let asking = tokio::spawn(async move { listings.namespaces().await });
        tokio::task::yield_now().await;
        asking
    }

    fn listed(fake: &Fake) -> usize {
        fake.registry().count(Operation::ListNamespaces)
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_while_a_listing_is_in_progress_shares_the_next_one_with_all_who_do() {
        let fake = Fake::new();
        let listings = Listings::new(Arc::new(fake.clone()));
        let first = ask(&listings).await;
        // Perhaps it is not in an answer that is on its way.
        fake.registry().add_namespace("shop", NamespaceKind::Http);
        let mut waiting = Vec::new();
        for _ in 0..10 {
            waiting.push(ask(&listings).await);
        }
        assert_eq!(listed(&fake), 1);
        first.await.unwrap().unwrap();
        let mut lists = Vec::new();
        for waiting in waiting {
            lists.push(waiting.await.unwrap().unwrap());
        }
        assert_eq!((listed(&fake), lists[0].len()), (2, 1));
        assert!(lists.iter().all(|list| Arc::ptr_eq(list, &lists[0])), "nobody gets a copy");
        fake.registry().add_namespace("later", NamespaceKind::Http);
        assert_eq!(listings.namespaces().await.unwrap().len(), 2, "none is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_reaches_all_who_wait_and_is_not_kept() {
        let fake = Fake::new();
        let listings = Listings::new(Arc::new(fake.clone()));
        let first = ask(&listings).await;
        fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::Throttled));
        let waiting = [ask(&listings).await, ask(&listings).await];
        first.await.unwrap().unwrap();
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap().unwrap_err().kind, ErrorKind::Throttled);
        }
        assert!(listings.namespaces().await.is_ok());
        assert_eq!(listed(&fake), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_gives_up_takes_the_listing_from_nobody() {
        let fake = Fake::new();
        let listings = Listings::new(Arc::new(fake.clone()));
        for gives_up in 0..3 {
            let before = listed(&fake);
            let mut asking = vec![ask(&listings).await, ask(&listings).await, ask(&listings).await];
            // The first one has begun its call. The others share the next one, which begins 20 ms later.
            sleep(Duration::from_millis(10)).await;
            asking.remove(gives_up).abort();
            sleep(Duration::from_millis(20)).await;
            for asking in asking {
                asking.await.unwrap().unwrap();
            }
            assert_eq!(listed(&fake), before + 2);
        }
        // If all give up, the call ends, too, and nobody waits for it.
        let last = ask(&listings).await;
        last.abort();
        assert!(last.await.unwrap_err().is_cancelled());
        let since = Instant::now();
        listings.namespaces().await.unwrap();
        assert_eq!(since.elapsed(), Duration::from_millis(20));
    }

    #[tokio::test(start_paused = true)]
    async fn the_ledger_and_other_lists_wait_for_none() {
        let fake = Fake::new();
        let limited = Arc::new(Limited::new(fake.clone(), Limits::new(&Rates::default(), None)));
        let listings = Listings::new(limited.clone());
        while listed(&fake) < 4 {
            listings.namespaces().await.unwrap();
        }
        let waiting = ask(&listings).await;
        let since = Instant::now();
        limited.list_namespaces(Lane::Ledger).await.unwrap();
        let ids = ["ns-1", "ns-2"].map(Arc::from);
        let (one, same, other) =
            tokio::join!(listings.services(&ids[0]), listings.services(&ids[0]), listings.services(&ids[1]));
        assert!(one.is_ok() && same.is_ok() && other.is_ok());
        assert!(since.elapsed() < Duration::from_millis(100) && !waiting.is_finished(), "{:?}", since.elapsed());
        assert_eq!(
            fake.registry().count(Operation::ListServices),
            3,
            "only those of one namespace wait for each other"
        );
        waiting.await.unwrap().unwrap();
        assert!(since.elapsed() > Duration::from_secs(1), "{:?}", since.elapsed());
    }
}
