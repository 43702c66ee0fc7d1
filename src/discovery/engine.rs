//! What is known about the subscribed Cloud Map namespaces, and which call comes next. Makes no calls and reads no
//! clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    backend::NoEndpoint,
    name,
    reader::{DiscoveryFigures, DiscoverySettings},
    reading::{Discovered, NamespaceFound, Reading, ServiceFound, Trouble},
    schedule::Schedule,
};
use cloudmap::{Error, ErrorKind, Namespace, Service};

/// Time between two listings of namespaces, while all subscribed ones exist.
const NAMESPACES: Duration = Duration::from_mins(1);
/// The same while one is missing, so a user who creates it does not wait longer.
const MISSING: Duration = Duration::from_secs(15);
/// For how long complete listings must lack a namespace until it counts as deleted.
const DELETED: Duration = Duration::from_mins(1);
/// Time to the second listing of a namespace's services. Only a service that two listings in a row lack does not exist.
const SECOND_LISTING: Duration = Duration::from_secs(5);
/// Minimum time between two listings of a namespace's services.
const LISTING: Duration = Duration::from_secs(10);
/// Maximum number of pages of services listed per second: a quarter of the rate of `ListServices`, which the instances
/// need, too.
const LISTED_PAGES_PER_SECOND: f64 = 0.5;
/// Number of services on a page.
const PAGE: usize = 100;
/// First pause after a failed listing. It doubles up to the last one.
const RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_mins(2);
/// Maximum number of services that are being read at the same time.
const IN_FLIGHT: usize = 64;
/// A service is reported after this many failed readings in a row. Short failures are not worth an Event.
const FAILURES: u32 = 3;
/// The message for a subscription to a ledger.
const LEDGER: &str = "it is the ledger of a ClusterSet, from which nothing can be imported; remove it from the annotation \
                      cloudmap.controller/import-from";
/// For so long after an instance went, discovery may still show it.
const LAGS: Duration = Duration::from_mins(1);
/// A service counts as gone after this many listings in a row without it.
const LISTINGS: u32 = 2;

/// A service: the name by which its namespace is subscribed, and the name of the ServiceImport.
pub(super) type ServiceKey = (Arc<str>, Arc<str>);

#[derive(Debug)]
pub(super) enum Call {
    Namespaces,
    Services { namespace: Arc<str>, id: Arc<str> },
    Instances(ServiceKey, Look),
}

/// A reading of one service.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) http_name: Arc<str>,
    pub(super) service: Arc<Service>,
    pub(super) previous: Arc<ServiceFound>,
    /// Instances that went a short time ago.
    pub(super) gone: BTreeSet<Arc<str>>,
}

#[derive(Debug)]
pub(super) enum Event {
    Namespaces(Result<Arc<[Namespace]>, Error>),
    Services {
        namespace: Arc<str>,
        result: Result<Arc<[Service]>, Error>,
    },
    Instances {
        key: ServiceKey,
        further_calls: u32,
        result: Result<Reading, Error>,
        /// Why the reading keeps instances that may be gone: the control plane did not answer.
        unlisted: Option<Error>,
    },
}

pub(super) struct Engine {
    namespaces: BTreeMap<Arc<str>, Entry>,
    namespaces_due: Instant,
    namespaces_failed: u32,
    /// Whether a listing of namespaces or services is in progress. There is one at a time.
    listing: bool,
    looking: usize,
    schedule: Schedule<ServiceKey>,
    found: Discovered,
    /// Namespaces that changed since the last [`take_changed`](Self::take_changed).
    changed: BTreeSet<Arc<str>>,
}

/// A subscribed Cloud Map namespace.
struct Entry {
    namespace: Option<Namespace>,
    /// What `namespace` was before it was missing, and since when its account and region have lacked it.
    lost: Option<(Namespace, Option<Instant>)>,
    trouble: Option<Trouble>,
    listings: u32,
    pages: usize,
    due: Instant,
    failed: u32,
    services: BTreeMap<Arc<str>, Held>,
}

struct Held {
    service: Arc<Service>,
    missing: u32,
    /// Number of readings that failed in a row.
    failed: u32,
    found: Arc<ServiceFound>,
    /// Instances that went, and when.
    gone: BTreeMap<Arc<str>, Instant>,
}

impl Held {
    /// Remembers which instances are gone, now that this reading replaces the last one.
    fn remember(&mut self, reading: &Reading, now: Instant) {
        let there: BTreeSet<&Arc<str>> = reading.ids().collect();
        self.gone.retain(|id, at| now.duration_since(*at) < LAGS && !there.contains(id));
        let before = self.found.reading.iter().flat_map(Reading::ids);
        self.gone.extend(before.filter(|id| !there.contains(*id)).map(|id| (id.clone(), now)));
    }

    /// Takes the failure of a reading, if it failed. Returns what to report, if the failure lasts.
    fn report(&mut self, error: Option<&Error>) -> Option<String> {
        let Some(error) = error else {
            self.failed = 0;
            return None;
        };
        self.failed = self.failed.saturating_add(1);
        let lasts = match error.kind {
            ErrorKind::AccessDenied => true,
            // It was probably deleted, which the next listings will show.
            ErrorKind::NotFound => false,
            _ => self.failed >= FAILURES,
        };
        self.found.error.clone().or_else(|| lasts.then(|| error.to_string()))
    }
}

impl Engine {
    pub(super) fn new(settings: &DiscoverySettings, now: Instant) -> Self {
        Self {
            namespaces: BTreeMap::new(),
            namespaces_due: now,
            namespaces_failed: 0,
            listing: false,
            looking: 0,
            schedule: Schedule::new(settings.calls_per_second, now),
            found: Discovered::default(),
            changed: BTreeSet::new(),
        }
    }

    /// Sets the subscribed namespaces, by name or id.
    pub(super) fn subscribe(&mut self, subscribed: &BTreeSet<Arc<str>>, now: Instant) {
        for (name, entry) in self.namespaces.extract_if(.., |name, _| !subscribed.contains(name)) {
            for label in entry.services.into_keys() {
                self.schedule.remove(&(name.clone(), label));
            }
            self.changed.insert(name);
        }
        for name in subscribed {
            if !self.namespaces.contains_key(name) {
                self.namespaces.insert(
                    name.clone(),
                    Entry {
                        namespace: None,
                        lost: None,
                        trouble: None,
                        listings: 0,
                        pages: 1,
                        due: now,
                        failed: 0,
                        services: BTreeMap::new(),
                    },
                );
                self.namespaces_due = now;
                self.changed.insert(name.clone());
            }
        }
    }

    /// The next call, if one is due.
    pub(super) fn next(&mut self, now: Instant) -> Option<Call> {
        if let Some(call) = self.next_listing(now) {
            self.listing = true;
            return Some(call);
        }
        while self.looking < IN_FLIGHT {
            let key = self.schedule.next(now)?;
            let entry = self.namespaces.get(&key.0);
            let namespace = entry.and_then(|entry| entry.namespace.as_ref());
            let held = entry.and_then(|entry| entry.services.get(&key.1));
            let Some((namespace, held)) = namespace.zip(held) else {
                // The namespace does not exist (any more). A listing will show this.
                self.schedule.skipped(&key, now);
                continue;
            };
            self.looking += 1;
            let gone = held.gone.iter().filter(|(_, at)| now.duration_since(**at) < LAGS);
            let look = Look {
                http_name: namespace.http_name.clone(),
                service: held.service.clone(),
                previous: held.found.clone(),
                gone: gone.map(|(id, _)| id.clone()).collect(),
            };
            return Some(Call::Instances(key, look));
        }
        None
    }

    fn next_listing(&self, now: Instant) -> Option<Call> {
        if self.listing || self.namespaces.is_empty() {
            return None;
        }
        if self.namespaces_due <= now {
            return Some(Call::Namespaces);
        }
        let due = |entry: &Entry| entry.namespace.as_ref().filter(|_| entry.due <= now).map(|there| there.id.clone());
        let due = self.namespaces.iter().filter_map(|(name, entry)| Some((entry.due, name, due(entry)?)));
        let (_, name, id) = due.min()?;
        Some(Call::Services { namespace: name.clone(), id })
    }

    /// When to ask for the next call at the latest, unless something happens before.
    pub(super) fn wake(&self, now: Instant) -> Option<Instant> {
        let listed = self.namespaces.values().filter(|entry| entry.namespace.is_some()).map(|entry| entry.due);
        let subscribed = (!self.namespaces.is_empty()).then_some(self.namespaces_due);
        let listing = listed.chain(subscribed).min().filter(|_| !self.listing);
        let look = self.schedule.wake(now).filter(|_| self.looking < IN_FLIGHT);
        listing.into_iter().chain(look).min()
    }

    pub(super) fn done(&mut self, event: Event, now: Instant) {
        match event {
            Event::Namespaces(result) => {
                self.listing = false;
                self.namespaces_listed(result, now);
            }
            Event::Services { namespace, result } => {
                self.listing = false;
                self.services_listed(&namespace, result, now);
            }
            Event::Instances { key, further_calls, result, unlisted } => {
                self.looking -= 1;
                self.looked(key, further_calls, result.map(|reading| (reading, unlisted)), now);
            }
        }
    }

    fn namespaces_listed(&mut self, result: Result<Arc<[Namespace]>, Error>, now: Instant) {
        let all = match result {
            Ok(all) => all,
            Err(error) => {
                // If AWS throttles, the next call already waits for its turn.
                let longest = if error.kind == ErrorKind::Throttled { MISSING } else { LAST_RETRY };
                self.namespaces_due = now + retry(self.namespaces_failed).min(longest);
                self.namespaces_failed = self.namespaces_failed.saturating_add(1);
                for (name, entry) in self.namespaces.iter_mut().filter(|(_, entry)| entry.namespace.is_none()) {
                    entry.trouble = Some(Trouble::Failed(error.to_string()));
                    self.changed.insert(name.clone());
                }
                return;
            }
        };
        self.namespaces_failed = 0;
        for (name, entry) in &mut self.namespaces {
            // If several have one name, the choice must not change.
            let found = Namespace::named(&all, name).cloned();
            // For an id, only this shows the owner.
            let (found, ledger) = match found {
                Some(found) if ledger::is_ledger(&found.name) => (None, true),
                found => (found, false),
            };
            let trouble = match &found {
                None if ledger => Some(Trouble::Failed(LEDGER.to_owned())),
                None => Some(Trouble::NotFound),
                Some(_) if entry.namespace.is_none() => None,
                Some(_) => entry.trouble.clone(),
            };
            let id = |namespace: &Option<Namespace>| namespace.as_ref().map(|namespace| namespace.id.clone());
            if id(&found) != id(&entry.namespace) {
                (entry.listings, entry.due, entry.failed) = (0, now, 0);
            }
            if (id(&found), &trouble) != (id(&entry.namespace), &entry.trouble) {
                self.changed.insert(name.clone());
            }
            let lost = entry.namespace.take().map(|former| (former, None)).or_else(|| entry.lost.take());
            entry.lost = lost.filter(|_| found.is_none());
            (entry.namespace, entry.trouble) = (found, trouble);
            if entry.is_deleted(&all, now) && entry.listings < LISTINGS {
                entry.listings = LISTINGS;
                for label in std::mem::take(&mut entry.services).into_keys() {
                    self.schedule.remove(&(name.clone(), label));
                }
                self.changed.insert(name.clone());
            }
        }
        let missing = self.namespaces.values().any(|entry| entry.namespace.is_none());
        self.namespaces_due = now + if missing { MISSING } else { NAMESPACES };
    }

    fn services_listed(&mut self, name: &Arc<str>, result: Result<Arc<[Service]>, Error>, now: Instant) {
        let listed = self.namespaces.values().filter(|entry| entry.namespace.is_some());
        let pages: usize = listed.map(|entry| entry.pages).sum();
        let period = LISTING.max(Duration::from_secs_f64(pages as f64 / LISTED_PAGES_PER_SECOND));
        let Some(entry) = self.namespaces.get_mut(name) else { return };
        let services = match result {
            Ok(services) => services,
            Err(error) => {
                entry.due = now + retry(entry.failed);
                entry.failed = entry.failed.saturating_add(1);
                if error.kind == ErrorKind::NotFound {
                    self.namespaces_due = self.namespaces_due.min(now + RETRY);
                }
                let trouble = Some(Trouble::Failed(error.to_string()));
                if entry.trouble != trouble {
                    entry.trouble = trouble;
                    self.changed.insert(name.clone());
                }
                return;
            }
        };
        if entry.trouble.take().is_some() || entry.listings < LISTINGS {
            self.changed.insert(name.clone());
        }
        (entry.failed, entry.pages) = (0, services.len().div_ceil(PAGE).max(1));
        entry.listings = entry.listings.saturating_add(1);
        entry.due = now + if entry.listings < LISTINGS { SECOND_LISTING } else { period };
        let mut listed = BTreeSet::new();
        for service in &*services {
            let label: Arc<str> = name::label(&service.name).into();
            listed.insert(label.clone());
            let key = (name.clone(), label.clone());
            let held = entry.services.entry(label).or_insert_with(|| {
                self.schedule.insert(key, now);
                self.changed.insert(name.clone());
                let found = Arc::new(ServiceFound { name: service.name.clone(), reading: None, error: None });
                Held { service: Arc::new(service.clone()), missing: 0, failed: 0, found, gone: BTreeMap::new() }
            });
            held.missing = 0;
            if *held.service != *service {
                held.service = Arc::new(service.clone());
            }
        }
        for (label, held) in entry.services.iter_mut().filter(|(label, _)| !listed.contains(*label)) {
            held.missing += 1;
            if held.missing >= LISTINGS {
                self.schedule.remove(&(name.clone(), label.clone()));
                self.changed.insert(name.clone());
            }
        }
        entry.services.retain(|_, held| held.missing < LISTINGS);
    }

    fn looked(
        &mut self,
        key: ServiceKey,
        further_calls: u32,
        result: Result<(Reading, Option<Error>), Error>,
        now: Instant,
    ) {
        let entry = self.namespaces.get_mut(&key.0);
        let Some(held) = entry.and_then(|entry| entry.services.get_mut(&key.1)) else { return };
        let before = held.found.clone();
        let (reading, error) = match result {
            Ok((reading, unlisted)) => {
                let changed = before.reading.as_ref().is_some_and(|before| *before != reading);
                self.schedule.done(&key, changed, further_calls, now);
                if changed {
                    held.remember(&reading, now);
                }
                (Some(reading), unlisted)
            }
            Err(error) => {
                self.schedule.failed(&key, further_calls, now);
                (before.reading.clone(), Some(error))
            }
        };
        let found = ServiceFound { name: before.name.clone(), reading, error: held.report(error.as_ref()) };
        if *before != found {
            held.found = Arc::new(found);
            self.changed.insert(key.0);
        }
    }

    pub(super) fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// The discovered state, if it changed since the last call of this function.
    pub(super) fn take_changed(&mut self) -> Option<Discovered> {
        if self.changed.is_empty() {
            return None;
        }
        for name in std::mem::take(&mut self.changed) {
            let Some(entry) = self.namespaces.get(&name) else {
                self.found.namespaces.remove(&name);
                continue;
            };
            let services = entry.services.iter().map(|(label, held)| (label.clone(), held.found.clone())).collect();
            let (listed, trouble) = (entry.listings >= LISTINGS, entry.trouble.clone());
            self.found.namespaces.insert(name, Arc::new(NamespaceFound { services, listed, trouble }));
        }
        Some(self.found.clone())
    }

    pub(super) fn figures(&self, now: Instant) -> DiscoveryFigures {
        let periods = self.schedule.periods(now);
        let mut figures = DiscoveryFigures {
            namespaces: self.namespaces.len(),
            unreadable_namespaces: self.namespaces.values().filter(|entry| entry.trouble.is_some()).count(),
            idle_period: periods.idle,
            active_period: periods.active,
            calls_per_second: periods.per_second,
            ..DiscoveryFigures::default()
        };
        for held in self.namespaces.values().flat_map(|entry| entry.services.values()) {
            figures.services += 1;
            figures.unreadable_services += usize::from(held.found.error.is_some());
            if let Some(reading) = &held.found.reading {
                figures.instances += reading.backends().count() + reading.exported().count();
                for rejected in reading.rejected() {
                    let index = NoEndpoint::CATEGORIES
                        .iter()
                        .position(|category| *category == rejected.why.category())
                        .unwrap_or_default();
                    figures.rejected[index] += 1;
                }
            }
        }
        figures
    }
}

impl Entry {
    /// Whether its namespace was deleted, after a complete listing of the account's own namespaces. AWS deletes no
    /// namespace that has services, so they are gone as well. A listing of another account, by mistake, proves nothing.
    fn is_deleted(&mut self, all: &[Namespace], now: Instant) -> bool {
        let Some((former, since)) = &mut self.lost else { return false };
        let of_its_place = all.iter().any(|there| there.is_beside(former));
        *since = since.or(Some(now)).filter(|_| of_its_place);
        since.is_some_and(|since| now.duration_since(since) >= DELETED)
    }
}

fn retry(failed: u32) -> Duration {
    RETRY.saturating_mul(1 << failed.min(8)).min(LAST_RETRY)
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
