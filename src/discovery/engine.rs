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
    entry::{self, Entry, Held, LAGS, LISTINGS},
    name,
    reader::{DiscoveryFigures, DiscoverySettings},
    reading::{Discovered, NamespaceFound, Reading, ServiceFound, Trouble},
    schedule::Schedule,
};
use cloudmap::{Error, ErrorKind, Namespace, NamespaceArn, Service};

/// Time between two listings of namespaces, while all subscribed ones exist.
const NAMESPACES: Duration = Duration::from_mins(1);
/// The same while one is missing, so a user who creates it does not wait longer.
const MISSING: Duration = Duration::from_secs(15);
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
/// The message for a subscription to a ledger.
const LEDGER: &str = "it is the ledger of a ClusterSet, from which nothing can be imported; remove it from the annotation \
                      cloudmap.controller/import-from";

/// A service: the name by which its namespace is subscribed, and the name of the ServiceImport.
pub(super) type ServiceKey = (Arc<str>, Arc<str>);

#[derive(Debug)]
pub(super) enum Call {
    Namespaces,
    Services {
        namespace: Arc<str>,
        id: Arc<str>,
    },
    /// The services of a namespace that is subscribed by its ARN, and the namespace itself.
    ByArn(Arc<str>),
    Instances(ServiceKey, Look),
}

/// A reading of one service.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) namespace: Namespace,
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
    ByArn {
        arn: Arc<str>,
        result: Result<(Namespace, Arc<[Service]>), Error>,
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

    /// Sets the subscribed namespaces, by name, id or ARN.
    pub(super) fn subscribe(&mut self, subscribed: &BTreeSet<Arc<str>>, now: Instant) {
        for (name, entry) in self.namespaces.extract_if(.., |name, _| !subscribed.contains(name)) {
            for label in entry.services.into_keys() {
                self.schedule.remove(&(name.clone(), label));
            }
            self.changed.insert(name);
        }
        for name in subscribed {
            if !self.namespaces.contains_key(name) {
                let entry = Entry::new(NamespaceArn::parse(name).is_some(), now);
                if !entry.by_arn {
                    self.namespaces_due = now;
                }
                self.namespaces.insert(name.clone(), entry);
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
                namespace: namespace.clone(),
                service: held.service.clone(),
                previous: held.found.clone(),
                gone: gone.map(|(id, _)| id.clone()).collect(),
            };
            return Some(Call::Instances(key, look));
        }
        None
    }

    fn next_listing(&self, now: Instant) -> Option<Call> {
        if self.listing {
            return None;
        }
        if self.namespaces_due().is_some_and(|due| due <= now) {
            return Some(Call::Namespaces);
        }
        let due = self.namespaces.iter().filter(|(_, entry)| entry.is_listed() && entry.due <= now);
        let (name, entry) = due.min_by_key(|(_, entry)| entry.due)?;
        match &entry.namespace {
            _ if entry.by_arn => Some(Call::ByArn(name.clone())),
            there => Some(Call::Services { namespace: name.clone(), id: there.as_ref()?.id.clone() }),
        }
    }

    /// When the namespaces of this account are to be listed, if anybody wants one of them.
    fn namespaces_due(&self) -> Option<Instant> {
        self.namespaces.values().any(|entry| !entry.by_arn).then_some(self.namespaces_due)
    }

    /// When to ask for the next call at the latest, unless something happens before.
    pub(super) fn wake(&self, now: Instant) -> Option<Instant> {
        let listed = self.namespaces.values().filter(|entry| entry.is_listed()).map(|entry| entry.due);
        let listing = listed.chain(self.namespaces_due()).min().filter(|_| !self.listing);
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
                match result {
                    Ok(services) => self.services_listed(&namespace, &services, now),
                    Err(error) => {
                        if error.kind == ErrorKind::NotFound {
                            self.namespaces_due = self.namespaces_due.min(now + RETRY);
                        }
                        self.listing_failed(&namespace, error.to_string(), now);
                    }
                }
            }
            Event::ByArn { arn, result } => {
                self.listing = false;
                match result {
                    Ok((found, _)) if ledger::is_ledger(&found.name) => {
                        self.listing_failed(&arn, LEDGER.to_owned(), now);
                    }
                    Ok((found, services)) => {
                        if let Some(entry) = self.namespaces.get_mut(&arn) {
                            entry.namespace = Some(found);
                        }
                        self.services_listed(&arn, &services, now);
                    }
                    Err(error) => self.listing_failed(&arn, entry::unreadable(&error), now),
                }
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
                for (name, entry) in self.namespaces.iter_mut().filter(|(_, entry)| !entry.is_listed()) {
                    entry.trouble = Some(Trouble::Failed(error.to_string()));
                    self.changed.insert(name.clone());
                }
                return;
            }
        };
        self.namespaces_failed = 0;
        for (name, entry) in self.namespaces.iter_mut().filter(|(_, entry)| !entry.by_arn) {
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
            if entry.is_deleted(&all, now) && !entry.is_known() {
                entry.listings = entry.sure();
                for label in std::mem::take(&mut entry.services).into_keys() {
                    self.schedule.remove(&(name.clone(), label));
                }
                self.changed.insert(name.clone());
            }
        }
        let missing = self.namespaces.values().any(|entry| !entry.is_listed());
        self.namespaces_due = now + if missing { MISSING } else { NAMESPACES };
    }

    /// Time from one listing of a namespace's services to the next.
    fn period(&self) -> Duration {
        let pages: usize = self.namespaces.values().filter(|entry| entry.is_listed()).map(|entry| entry.pages).sum();
        LISTING.max(Duration::from_secs_f64(pages as f64 / LISTED_PAGES_PER_SECOND))
    }

    fn listing_failed(&mut self, name: &Arc<str>, why: String, now: Instant) {
        let period = self.period();
        let Some(entry) = self.namespaces.get_mut(name) else { return };
        let pause = retry(entry.failed);
        // Anybody can write any number of ARNs. Each of them is asked for.
        entry.due = now + if entry.by_arn { pause.max(period) } else { pause };
        entry.failed = entry.failed.saturating_add(1);
        entry.services.values_mut().filter(|_| entry.by_arn).for_each(|held| held.missing = 0);
        let trouble = Some(Trouble::Failed(why));
        if entry.trouble != trouble {
            entry.trouble = trouble;
            self.changed.insert(name.clone());
        }
    }

    fn services_listed(&mut self, name: &Arc<str>, services: &[Service], now: Instant) {
        let period = self.period();
        let Some(entry) = self.namespaces.get_mut(name) else { return };
        if entry.trouble.take().is_some() || !entry.is_known() {
            self.changed.insert(name.clone());
        }
        (entry.failed, entry.pages) = (0, services.len().div_ceil(PAGE).max(1));
        entry.listings = entry.listings.saturating_add(1);
        entry.due = now + if entry.listings < LISTINGS { SECOND_LISTING } else { period };
        let mut listed = BTreeSet::new();
        for service in services {
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
        let sure = entry.sure();
        for (label, held) in entry.services.iter_mut().filter(|(label, _)| !listed.contains(*label)) {
            held.missing += 1;
            if held.missing >= sure {
                self.schedule.remove(&(name.clone(), label.clone()));
                self.changed.insert(name.clone());
            }
        }
        entry.services.retain(|_, held| held.missing < sure);
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
            let (listed, trouble) = (entry.is_known(), entry.trouble.clone());
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

fn retry(failed: u32) -> Duration {
    RETRY.saturating_mul(1 << failed.min(8)).min(LAST_RETRY)
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
