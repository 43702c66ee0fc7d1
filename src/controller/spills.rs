//! When farther clusters give connections back to nearer ones, step by step ([`import::tiers`]).

use std::{collections::BTreeMap, time::Duration};

use import::tiers::Spill;
use model::{ServiceKey, drain::STEPS};

/// How long a step lasts.
pub(super) const HOLD: Duration = Duration::from_secs(30);

/// The names of which farther clusters show more than they should. A new leader begins anew, from the EndpointSlices that there
/// are.
#[derive(Debug, Clone, Default)]
pub(super) struct Spills(BTreeMap<ServiceKey, Step>);

#[derive(Debug, Clone, Copy)]
struct Step {
    /// How many were taken.
    taken: u8,
    /// When the next one is due, as long as one is left.
    next: Duration,
}

impl Spills {
    /// How many steps farther clusters have gone back under a name.
    pub(super) fn taken(&self, key: &ServiceKey) -> u8 {
        self.0.get(key).map_or(0, |step| step.taken)
    }

    /// Whether farther clusters show more than they should under a name.
    pub(super) fn is_any(&self, key: &ServiceKey) -> bool {
        self.0.contains_key(key)
    }

    /// Takes in what the plan of a name shows.
    pub(super) fn note(&mut self, key: &ServiceKey, spill: Spill, now: Duration) {
        let first = Step { taken: 0, next: now + HOLD };
        match spill {
            Spill::Settled => drop(self.0.remove(key)),
            Spill::Excess => drop(self.0.entry(key.clone()).or_insert(first)),
            // Who just needed more does not give it back at once.
            Spill::Rising => drop(self.0.insert(key.clone(), first)),
        }
    }

    /// Takes the steps that are due. Returns the names to be planned again.
    pub(super) fn step(&mut self, now: Duration) -> Vec<ServiceKey> {
        let due = self.0.iter_mut().filter(|(_, step)| step.taken < STEPS && step.next <= now);
        let due = due.map(|(key, step)| {
            *step = Step { taken: step.taken + 1, next: now + HOLD };
            key.clone()
        });
        due.collect()
    }

    /// When the next step is due.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.0.values().filter(|step| step.taken < STEPS).map(|step| step.next).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_taken_one_by_one_and_begin_anew_when_more_is_needed() {
        let (mut spills, key) = (Spills::default(), ServiceKey::new("ns", "a"));
        let at = |n: u32| Duration::from_secs(5) + HOLD * n;
        spills.note(&key, Spill::Excess, at(0));
        assert_eq!((spills.taken(&key), spills.wake()), (0, Some(at(1))));
        assert!(spills.step(Duration::from_secs(34)).is_empty());
        assert_eq!((spills.step(at(1)), spills.taken(&key)), (vec![key.clone()], 1));
        spills.note(&key, Spill::Excess, at(1));
        assert_eq!((spills.taken(&key), spills.wake()), (1, Some(at(2))), "the plan does not begin it anew");
        spills.note(&key, Spill::Rising, at(1));
        assert_eq!((spills.taken(&key), spills.wake()), (0, Some(at(2))));
        for n in 2..6 {
            assert_eq!(spills.step(at(n)).len(), 1);
        }
        assert_eq!((spills.taken(&key), spills.wake(), spills.step(at(9))), (STEPS, None, vec![]));
        spills.note(&key, Spill::Settled, at(9));
        assert_eq!(spills.taken(&key), 0);
    }
}
