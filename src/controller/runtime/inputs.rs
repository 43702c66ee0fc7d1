//! Where inputs come from: the caches of the watches, and the channels of the other parts.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{core::Input, world::Batch};
use annotations::Known;
use cluster::{Caches, cache::Changes, watched_kinds};
use cutover::guard::Judgements;
use discovery::Discovered;
use gates::Answers;
use instances::sync::Statuses;
use ledger::{
    Map,
    driver::{Status, local},
    remote::Remotes,
    writer::Inherited,
};
use model::addresses::Range;
use reachability::Verdicts;

/// A channel that never changes.
pub(super) fn never<T: Default>() -> watch::Receiver<T> {
    watch::channel(T::default()).1
}

macro_rules! watched {
    ($($(#[$doc:meta])* $kind:ident: $type:ty,)*) => {
        /// The changes in Kubernetes.
        pub(crate) struct Watched {
            $($kind: Changes<$type>,)*
        }

        impl Watched {
            pub(crate) fn new(caches: &Caches) -> Self {
                Self { $($kind: caches.$kind.subscribe(),)* }
            }

            /// All changes that there are. The first ones are everything in the caches, before anything else: an index that is
            /// only half filled would read as "no endpoints", and exports that are not planned yet as withdrawn. The registry is
            /// not read before this either, so nothing is deleted because a namespace does not seem to import anything.
            pub(crate) fn take(&mut self) -> Batch {
                Batch { $($kind: self.$kind.take(),)* }
            }

            /// Waits for changes, and takes those of all kinds. Cancel-safe.
            async fn next(&mut self) -> Input {
                tokio::select! {
                    biased;
                    $(() = self.$kind.some() => {})*
                }
                Input::Objects(Box::new(self.take()))
            }
        }
    };
}

watched_kinds!(watched);

/// The changes in the registry and in the records of this cluster. Without a ledger or record, their channels never
/// change.
pub(super) struct Channels {
    pub(super) own: watch::Receiver<Option<Arc<Inherited>>>,
    pub(super) published: watch::Receiver<Option<Arc<Map>>>,
    pub(super) read_back: watch::Receiver<Option<Arc<Map>>>,
    pub(super) remotes: watch::Receiver<Arc<Remotes>>,
    pub(super) status: watch::Receiver<Arc<Status>>,
    pub(super) kept: watch::Receiver<local::Kept>,
    pub(super) zones: watch::Receiver<Known>,
    pub(super) answers: watch::Receiver<Arc<Answers>>,
    pub(super) judged: watch::Receiver<Arc<Judgements>>,
    pub(super) reached: watch::Receiver<Arc<Verdicts>>,
    pub(super) statuses: watch::Receiver<Statuses>,
    pub(super) found: watch::Receiver<Arc<Discovered>>,
    pub(super) service_ranges: watch::Receiver<Arc<[Range]>>,
}

impl Channels {
    pub(super) fn ranges(&mut self) -> Input {
        Input::Ranges(Arc::clone(&self.service_ranges.borrow_and_update()))
    }

    /// The next change. What others said comes before the own state that was read at the same time: they may have older claims.
    /// Cancel-safe.
    async fn next(&mut self) -> Input {
        tokio::select! {
            biased;
            Ok(()) = self.own.changed() => Input::Resumed(self.own.borrow_and_update().clone()),
            Ok(()) = self.remotes.changed() => Input::Remotes(Arc::clone(&self.remotes.borrow_and_update())),
            Ok(()) = self.published.changed() => Input::Published(self.published.borrow_and_update().clone()),
            Ok(()) = self.read_back.changed() => Input::ReadBack(self.read_back.borrow_and_update().clone()),
            Ok(()) = self.status.changed() => Input::Ledger(Arc::clone(&self.status.borrow_and_update())),
            Ok(()) = self.kept.changed() => Input::Kept(self.kept.borrow_and_update().clone()),
            Ok(()) = self.zones.changed() => Input::Zones(self.zones.borrow_and_update().clone()),
            Ok(()) = self.answers.changed() => Input::Answers(Arc::clone(&self.answers.borrow_and_update())),
            Ok(()) = self.judged.changed() => Input::Judged(Arc::clone(&self.judged.borrow_and_update())),
            Ok(()) = self.reached.changed() => Input::Reached(Arc::clone(&self.reached.borrow_and_update())),
            Ok(()) = self.statuses.changed() => Input::Statuses(self.statuses.borrow_and_update().clone()),
            Ok(()) = self.found.changed() => Input::Discovered(Arc::clone(&self.found.borrow_and_update())),
            Ok(()) = self.service_ranges.changed() => self.ranges(),
            else => std::future::pending().await,
        }
    }
}

/// The next change: Kubernetes and the registry take turns, so that neither starves. Cancel-safe.
pub(super) async fn next(objects: &mut Watched, registry: &mut Channels, turn: bool) -> Input {
    if turn {
        tokio::select! { biased; input = objects.next() => input, input = registry.next() => input }
    } else {
        tokio::select! { biased; input = registry.next() => input, input = objects.next() => input }
    }
}
