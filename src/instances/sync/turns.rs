//! Whose turn it is, and what is due when.

use std::collections::{BTreeMap, VecDeque, btree_map::OccupiedEntry};

use tokio::time::Instant;

use model::Target;

/// Kinds of calls. Each has places of its own, so that no kind waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Resolve,
    /// Looks at services to find their owners: hundreds at the beginning of a term. Nothing that is created waits for
    /// them.
    Inspect,
    Read,
    Write,
    /// Changes of services, which take AWS seconds.
    Change,
}

impl Class {
    const ALL: [Self; 5] = [Self::Resolve, Self::Inspect, Self::Read, Self::Write, Self::Change];

    /// Maximum number of calls in flight. It is small, because calls that wait for a request rate wait in their order,
    /// and something urgent can overtake the backlog only here.
    pub(super) const fn places(self) -> usize {
        match self {
            Self::Resolve | Self::Inspect | Self::Change => 4,
            Self::Read => 8,
            Self::Write => 16,
        }
    }
}

/// The queues of targets: by the kind of the next call, and urgent ones before others.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queues: BTreeMap<(Class, bool), VecDeque<Target>>,
    in_flight: BTreeMap<Class, usize>,
}

impl Turns {
    /// The queues from which a call may be taken, in their order.
    pub(super) fn free(&self) -> impl Iterator<Item = (Class, bool)> + use<> {
        let free = Class::ALL.map(|class| (class, self.in_flight(class) < class.places()));
        free.into_iter().filter(|(_, free)| *free).flat_map(|(class, _)| [(class, true), (class, false)])
    }

    pub(super) fn push(&mut self, queue: (Class, bool), target: Target) {
        self.queues.entry(queue).or_default().push_back(target);
    }

    pub(super) fn pop(&mut self, queue: (Class, bool)) -> Option<Target> {
        let next = self.queues.get_mut(&queue)?.pop_front();
        if next.is_none() {
            // An emptied queue keeps its memory.
            self.queues.remove(&queue);
        }
        next
    }

    /// Number of calls in flight.
    pub(super) fn in_flight(&self, class: Class) -> usize {
        self.in_flight.get(&class).copied().unwrap_or_default()
    }

    /// A call is sent.
    pub(super) fn began(&mut self, class: Class) {
        *self.in_flight.entry(class).or_default() += 1;
    }

    /// It was answered.
    pub(super) fn ended(&mut self, class: Class) {
        if let Some(count) = self.in_flight.get_mut(&class) {
            *count = count.saturating_sub(1);
        }
    }

    /// Number of entries in memory.
    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum::<usize>() + self.in_flight.values().sum::<usize>()
    }
}

/// What is due when. Of what is due at the same time, what was added first comes first.
#[derive(Debug)]
pub(super) struct Timers<T> {
    due: BTreeMap<(Instant, u64), T>,
    added: u64,
}

impl<T> Default for Timers<T> {
    fn default() -> Self {
        Self { due: BTreeMap::new(), added: 0 }
    }
}

impl<T> Timers<T> {
    pub(super) fn add(&mut self, at: Instant, what: T) {
        self.added += 1;
        self.due.insert((at, self.added), what);
    }

    /// When something is due next.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// The next of what is due now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<T> {
        self.due.first_entry().filter(|entry| entry.key().0 <= now).map(OccupiedEntry::remove)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.due.len()
    }
}

/// A round over everything of a kind, one after the other.
#[derive(Debug)]
pub(super) struct Round<K> {
    /// When the next one has its turn.
    pub(super) at: Instant,
    /// Who had it last.
    pub(super) last: Option<K>,
}

impl<K> Round<K> {
    pub(super) const fn new(at: Instant) -> Self {
        Self { at, last: None }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn target(service: &str) -> Target {
        Target { namespace: "shop".into(), service: service.into() }
    }

    #[test]
    fn urgent_targets_come_first_and_a_kind_of_calls_without_a_free_place_waits() {
        let mut turns = Turns::default();
        turns.push((Class::Read, false), target("backlog"));
        turns.push((Class::Read, true), target("change"));
        let next = |turns: &mut Turns| turns.free().find_map(|queue| turns.pop(queue).map(|target| target.service));
        assert_eq!(next(&mut turns).as_deref(), Some("change"));
        for _ in 0..Class::Read.places() {
            turns.began(Class::Read);
        }
        assert_eq!(next(&mut turns), None);
        turns.ended(Class::Read);
        assert_eq!(next(&mut turns).as_deref(), Some("backlog"));
        assert_eq!(turns.kept(), Class::Read.places() - 1, "nothing but calls in flight");
    }

    #[test]
    fn what_is_due_at_the_same_time_comes_in_its_order() {
        let (mut timers, now) = (Timers::default(), Instant::now());
        timers.add(now + Duration::from_secs(1), "later");
        timers.add(now, "first");
        timers.add(now, "second");
        assert_eq!([timers.pop(now), timers.pop(now), timers.pop(now)], [Some("first"), Some("second"), None]);
        assert_eq!((timers.wake(), timers.len()), (Some(now + Duration::from_secs(1)), 1));
    }
}
