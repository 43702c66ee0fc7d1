//! How long something may be so before it is reported on a ServiceExport, or an annotated Service. What is over before would
//! be a write on each of them that nobody reads.

use std::{collections::BTreeMap, time::Duration};

use super::left_out::LeftOut;
use model::ServiceKey;

/// How long an export may be on its way without a report. Publishing takes about two seconds.
pub(super) const ON_ITS_WAY: Duration = Duration::from_secs(3);
/// How long no endpoint may serve a port without a report. The EndpointSlice controller follows a Service within about a
/// second, and later where the API server is busy.
pub(super) const UNSERVED: Duration = Duration::from_secs(10);

/// What is reported once it has lasted, or only once.
#[derive(Debug, Clone)]
pub(super) struct Reports {
    /// Exports that are on their way.
    pub(super) pending: Pending,
    /// Exports with a port that no endpoint serves, and annotated Services with such a port.
    pub(super) unserved: Pending,
    pub(super) unserved_annotated: Pending,
    /// When names are looked at again whose imports somebody else's object blocks.
    pub(super) blocked: BTreeMap<ServiceKey, Duration>,
    pub(super) left_out: LeftOut,
}

impl Default for Reports {
    fn default() -> Self {
        let [unserved, unserved_annotated] = [UNSERVED; 2].map(Pending::new);
        let (pending, blocked, left_out) = (Pending::new(ON_ITS_WAY), BTreeMap::new(), LeftOut::default());
        Self { pending, unserved, unserved_annotated, blocked, left_out }
    }
}

/// Since when it is so, by export or Service.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    unsaid: Duration,
    since: BTreeMap<ServiceKey, Duration>,
}

impl Pending {
    /// Nothing is so yet. It is reported after the time `unsaid`.
    pub(super) const fn new(unsaid: Duration) -> Self {
        Self { unsaid, since: BTreeMap::new() }
    }

    /// It is so. Returns how long not to report it, if any longer.
    pub(super) fn wait(&mut self, key: &ServiceKey, now: Duration) -> Option<Duration> {
        let since = *self.since.entry(key.clone()).or_insert(now);
        Some((since + self.unsaid).saturating_sub(now)).filter(|rest| !rest.is_zero())
    }

    /// It is over, or there is no such object.
    pub(super) fn over(&mut self, key: &ServiceKey) {
        self.since.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_export_that_is_on_its_way_for_long_is_reported() {
        const UNSAID: Duration = ON_ITS_WAY;
        let mut pending = Pending::new(UNSAID);
        let (key, start) = (ServiceKey::new("ns", "a"), Duration::from_mins(5));
        assert_eq!(pending.wait(&key, start), Some(UNSAID));
        assert_eq!(pending.wait(&key, start + Duration::from_secs(1)), Some(Duration::from_secs(2)));
        assert_eq!(pending.wait(&key, start + UNSAID), None);
        assert_eq!(pending.wait(&key, start + UNSAID * 9), None);
        pending.over(&key);
        assert_eq!(pending.wait(&key, start + UNSAID * 9), Some(UNSAID));
    }
}
