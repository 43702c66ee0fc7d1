//! How long an export may be on its way before its ServiceExport reports it. Publishing takes about two seconds, and a
//! shorter `Pending` would be a write on every ServiceExport that nobody reads.

use std::{collections::BTreeMap, time::Duration};

use crate::model::ServiceKey;

/// Maximum time that an export may be on its way without a report.
const UNSAID: Duration = Duration::from_secs(3);

/// Since when exports are on their way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    since: BTreeMap<ServiceKey, Duration>,
}

impl Pending {
    /// The export is on its way. Returns how long not to report it, if any longer.
    pub(super) fn wait(&mut self, key: &ServiceKey, now: Duration) -> Option<Duration> {
        let since = *self.since.entry(key.clone()).or_insert(now);
        Some((since + UNSAID).saturating_sub(now)).filter(|rest| !rest.is_zero())
    }

    /// The export has arrived, or there is no such export.
    pub(super) fn over(&mut self, key: &ServiceKey) {
        self.since.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_export_that_is_on_its_way_for_long_is_reported() {
        let mut pending = Pending::default();
        let (key, start) = (ServiceKey::new("ns", "a"), Duration::from_mins(5));
        assert_eq!(pending.wait(&key, start), Some(UNSAID));
        assert_eq!(pending.wait(&key, start + Duration::from_secs(1)), Some(Duration::from_secs(2)));
        assert_eq!(pending.wait(&key, start + UNSAID), None);
        assert_eq!(pending.wait(&key, start + UNSAID * 9), None);
        pending.over(&key);
        assert_eq!(pending.wait(&key, start + UNSAID * 9), Some(UNSAID));
    }
}
