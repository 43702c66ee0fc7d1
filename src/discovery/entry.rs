//! A subscribed Cloud Map namespace and its services, as the engine keeps them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::reading::{Reading, ServiceFound, Trouble};
use cloudmap::{Error, ErrorKind, Namespace, Service};

/// For how long complete listings must lack a namespace until it counts as deleted.
const DELETED: Duration = Duration::from_mins(1);
/// A service counts as gone after this many listings in a row without it.
pub(super) const LISTINGS: u32 = 2;
/// The same in a namespace that is named by its ARN. When sharing begins or ends, its list may be empty although no
/// call is denied.
const LISTINGS_BY_ARN: u32 = 6;
/// A service is reported after this many failed readings in a row. Short failures are not worth an Event.
const FAILURES: u32 = 3;
/// For so long after an instance went, discovery may still show it.
pub(super) const LAGS: Duration = Duration::from_mins(1);

/// A subscribed Cloud Map namespace.
pub(super) struct Entry {
    /// Whether it is subscribed by its ARN. Listings of this account's namespaces say nothing of it then.
    pub(super) by_arn: bool,
    pub(super) namespace: Option<Namespace>,
    /// What `namespace` was before it was missing, and since when its account and region have lacked it.
    pub(super) lost: Option<(Namespace, Option<Instant>)>,
    pub(super) trouble: Option<Trouble>,
    pub(super) listings: u32,
    pub(super) pages: usize,
    pub(super) due: Instant,
    pub(super) failed: u32,
    pub(super) services: BTreeMap<Arc<str>, Held>,
}

pub(super) struct Held {
    pub(super) service: Arc<Service>,
    pub(super) missing: u32,
    /// Number of readings that failed in a row.
    pub(super) failed: u32,
    pub(super) found: Arc<ServiceFound>,
    /// Instances that went, and when.
    pub(super) gone: BTreeMap<Arc<str>, Instant>,
}

impl Held {
    /// Remembers which instances are gone, now that this reading replaces the last one.
    pub(super) fn remember(&mut self, reading: &Reading, now: Instant) {
        let there: BTreeSet<&Arc<str>> = reading.ids().collect();
        self.gone.retain(|id, at| now.duration_since(*at) < LAGS && !there.contains(id));
        let before = self.found.reading.iter().flat_map(Reading::ids);
        self.gone.extend(before.filter(|id| !there.contains(*id)).map(|id| (id.clone(), now)));
    }

    /// Takes the failure of a reading, if it failed. Returns what to report, if the failure lasts.
    pub(super) fn report(&mut self, error: Option<&Error>) -> Option<String> {
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

impl Entry {
    pub(super) fn new(by_arn: bool, now: Instant) -> Self {
        Self {
            by_arn,
            namespace: None,
            lost: None,
            trouble: None,
            listings: 0,
            pages: 1,
            due: now,
            failed: 0,
            services: BTreeMap::new(),
        }
    }

    /// Whether its services are listed.
    pub(super) fn is_listed(&self) -> bool {
        self.by_arn || self.namespace.is_some()
    }

    /// After how many complete listings in a row a service that they lack does not exist.
    pub(super) fn sure(&self) -> u32 {
        if self.by_arn { LISTINGS_BY_ARN } else { LISTINGS }
    }

    /// Whether there were as many.
    pub(super) fn is_known(&self) -> bool {
        self.listings >= self.sure()
    }

    /// Whether its namespace was deleted, after a complete listing of the account's own namespaces. AWS deletes no
    /// namespace that has services, so they are gone as well. A listing of another account, by mistake, proves nothing.
    pub(super) fn is_deleted(&mut self, all: &[Namespace], now: Instant) -> bool {
        let Some((former, since)) = &mut self.lost else { return false };
        let of_its_place = all.iter().any(|there| there.is_beside(former));
        *since = since.or(Some(now)).filter(|_| of_its_place);
        since.is_some_and(|since| now.duration_since(since) >= DELETED)
    }
}

/// What to say if a namespace cannot be read by its ARN.
pub(super) fn unreadable(error: &Error) -> String {
    match error.kind {
        ErrorKind::AccessDenied | ErrorKind::NotFound | ErrorKind::InvalidInput => format!(
            "perhaps it is not shared (any more) with the account of the registry: its owner shares it by AWS RAM, in \
             the region of the registry, and somebody accepts the invitation. Or the controller's role lacks what \
             `cloudmap-mcs iam --mode imports` prints for this ARN ({error})"
        ),
        _ => error.to_string(),
    }
}
