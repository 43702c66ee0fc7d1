//! For how long an export may be on its way before its ServiceExport says so: publishing takes about two seconds, and a
//! `Pending` that lasts no longer is a write on every ServiceExport that nobody reads.

use std::{collections::BTreeMap, time::Duration};

use crate::model::ServiceKey;

/// Longest time that an export may be on its way unsaid.
const UNSAID: Duration = Duration::from_secs(3);

/// Since when exports are on their way.
#[derive(Debug, Default)]
pub(super) struct Pending {
    since: BTreeMap<ServiceKey, Duration>,
}

impl Pending {
    /// The export is on its way: how long that is to remain unsaid, if any longer.
    pub(super) fn wait(&mut self, key: &ServiceKey, now: Duration) -> Option<Duration> {
        let since = *self.since.entry(key.clone()).or_insert(now);
        Some((since + UNSAID).saturating_sub(now)).filter(|rest| !rest.is_zero())
    }

    /// It is so no more, or there is no such export.
    pub(super) fn over(&mut self, key: &ServiceKey) {
        self.since.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_soon_remains_unsaid_and_what_lasts_is_said() {
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
