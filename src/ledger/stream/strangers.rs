//! Who comes with a key that no live cluster has (S10). It may be a cluster that joins, whose head is visible soon, so the
//! ledger is read often for a while. But anybody who reaches the port can come with any key, and a cluster that was
//! forgotten goes on dialling.

use std::{collections::BTreeMap, time::Duration};

use model::PublicKey;

/// All strangers together cause so much time of frequent reads, which comes back within [`RECOVERY`].
const MOST: Duration = Duration::from_mins(5);
/// See [`MOST`].
const RECOVERY: u32 = 12;
/// A key that came again and again counts once in this time.
const LONGEST: Duration = Duration::from_hours(1);
/// Keys that are remembered.
const KEYS: usize = 64;

/// The strangers that came.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    /// From when a key counts again, and for how long it does not after that.
    keys: BTreeMap<PublicKey, (Duration, Duration)>,
    until: Option<Duration>,
    /// The time that they caused and that has not come back at `at`.
    caused: Duration,
    at: Duration,
}

impl Strangers {
    /// Somebody came with this key. The ledger is to be read often for `window`, unless that happened enough.
    pub(super) fn came(&mut self, now: Duration, window: Duration, key: PublicKey) {
        self.caused = self.caused.saturating_sub(now.saturating_sub(self.at) / RECOVERY);
        self.at = now;
        let (next, pause) = self.keys.get(&key).copied().unwrap_or((now, window));
        let until = now + window;
        let more = until.saturating_sub(self.until.unwrap_or_default().max(now));
        if now < next || self.caused + more > MOST {
            return;
        }
        self.caused += more;
        self.until = Some(until);
        self.keys.insert(key, (now + pause, LONGEST.min(pause * 2)));
        if self.keys.len() > KEYS {
            let soonest = self.keys.iter().min_by_key(|(_, (next, _))| *next).map(|(key, _)| *key);
            soonest.and_then(|key| self.keys.remove(&key));
        }
    }

    /// Whether somebody came a moment ago whom the ledger may show soon.
    pub(super) fn come(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(20);

    fn key(n: u64) -> PublicKey {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_bytes(bytes)
    }

    /// The seconds of an hour in which the ledger is read often, if a key comes each second.
    fn often(key: impl Fn(u64) -> PublicKey) -> Vec<u64> {
        let mut strangers = Strangers::default();
        let busy = |second: &u64| {
            let now = Duration::from_secs(*second);
            strangers.came(now, WINDOW, key(*second));
            assert!(strangers.keys.len() <= KEYS);
            strangers.come(now)
        };
        (0..3_600).filter(busy).collect()
    }

    #[test]
    fn a_cluster_that_joins_has_its_time_and_one_that_goes_on_dialling_comes_rarely() {
        let seconds = often(|_| key(1));
        assert_eq!(seconds[..41], (0..=40).collect::<Vec<_>>(), "whose head takes longer is expected once more");
        assert!(seconds.len() < 200, "{}", seconds.len());
    }

    #[test]
    fn however_many_keys_somebody_has_the_ledger_is_read_rarely_most_of_the_time() {
        let seconds = often(key);
        assert!((300..700).contains(&seconds.len()), "{}", seconds.len());
        assert_eq!(seconds[..300], (0..300).collect::<Vec<_>>(), "many may join one after another");
    }

    #[test]
    fn what_was_used_up_comes_back() {
        let mut strangers = Strangers::default();
        for second in 0..600 {
            strangers.came(Duration::from_secs(second), WINDOW, key(second));
        }
        let later = Duration::from_mins(70);
        assert!(!strangers.come(later));
        strangers.came(later, WINDOW, key(0));
        assert!(strangers.come(later + WINDOW));
    }
}
