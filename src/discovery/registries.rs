//! Several registries: each has a reader of its own, so that one that is slow, throttled or away delays no other.
//!
//! A subscription names a namespace of the home, such as `internal`, or one of another registry, such as `us/internal`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use futures::future::select_all;
use tokio::sync::watch;

use super::{
    reader::{self, DiscoveryFigures, DiscoveryHandle, DiscoverySettings},
    reading::Discovered,
};
use base::env;
use cloudmap::Listings;

/// A registry from which can be imported.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "the port is a trait object")]
pub struct Registry {
    /// Its calls.
    pub cloudmap: Arc<dyn cloudmap::Read>,
    /// Its lists.
    pub listings: Arc<Listings>,
}

impl Registry {
    /// A registry that nobody else lists.
    pub fn new(cloudmap: Arc<dyn cloudmap::Read>) -> Self {
        Self { listings: Listings::new(Arc::clone(&cloudmap)), cloudmap }
    }
}

/// The registry that a subscription names, and the namespace there: `us` and `internal` of `us/internal`. `None` if it names
/// none of the registries: names of Cloud Map namespaces may contain slashes, too.
pub fn in_registry(subscription: &str, is_registry: impl Fn(&str) -> bool) -> Option<(&str, &str)> {
    subscription.split_once('/').filter(|(registry, _)| is_registry(registry))
}

/// Starts the tasks. They read the Cloud Map namespaces in `subscribed`, and write nothing. They end when that channel is
/// closed.
///
/// `home`: the own registry, and its name, if registries have names. `others`: the registries beside it, by name. Each has the
/// budget of calls that `settings` gives.
pub fn spawn(
    settings: &DiscoverySettings,
    (home_name, home): (Option<&str>, Registry),
    others: BTreeMap<Arc<str>, Registry>,
    subscribed: watch::Receiver<Arc<BTreeSet<Arc<str>>>>,
) -> DiscoveryHandle {
    if others.is_empty() && home_name.is_none() {
        return reader::spawn(settings.clone(), home.cloudmap, home.listings, subscribed);
    }
    let named = home_name.map(Arc::from).unwrap_or_default();
    let all = others.into_iter().chain([(Arc::clone(&named), home)]);
    let readers = all.map(|(name, Registry { cloudmap, listings })| {
        let (sender, receiver) = watch::channel(Arc::default());
        (name, Reader { subscribed: sender, handle: reader::spawn(settings.clone(), cloudmap, listings, receiver) })
    });
    let (found, found_receiver) = watch::channel(Arc::default());
    let (figures, figures_receiver) = watch::channel(DiscoveryFigures::default());
    env::spawn(run(Readers { home: named, by_name: readers.collect() }, subscribed, found, figures));
    DiscoveryHandle { found: found_receiver, figures: figures_receiver }
}

/// The reader of one registry.
struct Reader {
    subscribed: watch::Sender<Arc<BTreeSet<Arc<str>>>>,
    handle: DiscoveryHandle,
}

/// The readers of all registries.
struct Readers {
    home: Arc<str>,
    by_name: BTreeMap<Arc<str>, Reader>,
}

impl Readers {
    /// The reader of the registry of a subscription, and the namespace there.
    fn place<'a>(&self, subscription: &'a str) -> Option<(&Reader, &'a str)> {
        let named = in_registry(subscription, |registry| self.by_name.contains_key(registry));
        let (registry, namespace) = named.unwrap_or((&self.home, subscription));
        Some((self.by_name.get(registry)?, namespace))
    }

    /// Passes on to each reader what is subscribed in its registry.
    fn subscribe(&self, subscribed: &BTreeSet<Arc<str>>) {
        for reader in self.by_name.values() {
            let here = |subscription: &Arc<str>| {
                let (of, namespace) = self.place(subscription)?;
                std::ptr::eq(of, reader).then(|| Arc::from(namespace))
            };
            let here: BTreeSet<Arc<str>> = subscribed.iter().filter_map(here).collect();
            reader.subscribed.send_if_modified(|before| {
                let changed = **before != here;
                *before = Arc::new(here);
                changed
            });
        }
    }

    /// What all readers found, by subscription.
    fn found(&self, subscribed: &BTreeSet<Arc<str>>) -> Discovered {
        let found = |subscription: &Arc<str>| {
            let (reader, namespace) = self.place(subscription)?;
            let found = reader.handle.found.borrow().namespaces.get(namespace).cloned();
            Some((Arc::clone(subscription), found?))
        };
        Discovered { namespaces: subscribed.iter().filter_map(found).collect() }
    }

    fn figures(&self) -> DiscoveryFigures {
        let each = self.by_name.values().map(|reader| *reader.handle.figures.borrow());
        each.fold(DiscoveryFigures::default(), DiscoveryFigures::and)
    }

    /// Waits until a reader has something new, or has ended.
    async fn changed(&mut self) {
        let each = self.by_name.values_mut().map(|Reader { handle: DiscoveryHandle { found, figures }, .. }| {
            Box::pin(async move {
                tokio::select! {
                    changed = found.changed() => changed,
                    changed = figures.changed() => changed,
                }
            })
        });
        let (changed, ..) = select_all(each).await;
        if changed.is_err() {
            // It ends with its subscriptions, which are dropped with this task.
            std::future::pending::<()>().await;
        }
    }
}

async fn run(
    mut readers: Readers,
    mut subscribed: watch::Receiver<Arc<BTreeSet<Arc<str>>>>,
    found: watch::Sender<Arc<Discovered>>,
    figures: watch::Sender<DiscoveryFigures>,
) {
    loop {
        let names = Arc::clone(&subscribed.borrow_and_update());
        readers.subscribe(&names);
        let now = readers.found(&names);
        found.send_if_modified(|before| {
            let changed = !is_same(before, &now);
            *before = Arc::new(now);
            changed
        });
        let measured = readers.figures();
        figures.send_if_modified(|before| std::mem::replace(before, measured) != measured);
        tokio::select! {
            biased;
            changed = subscribed.changed() => if changed.is_err() { return },
            () = readers.changed() => {}
        }
    }
}

/// Whether nothing was read since.
fn is_same(before: &Discovered, now: &Discovered) -> bool {
    let [before, now] = [before, now].map(|discovered| &discovered.namespaces);
    before.len() == now.len()
        && before.iter().zip(now).all(|((one, found), (other, there))| one == other && Arc::ptr_eq(found, there))
}
