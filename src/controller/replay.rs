//! Shows that what the core decides follows from its inputs alone: what it got is replayed into a second core.
//!
//! This happens on simulated machines only, in every simulation and in every test with a whole controller. The replay comes
//! later and in one go. So a decision that also depended on a cache, a clock, an order in memory or chance would come out
//! differently.
//!
//! At times, the second core also derives everything from scratch. Nothing may follow from that: what is derived again
//! only after facts ([`dirty`](super::dirty)) is the same. Likewise for the work of each name since a worker got it.

use std::{
    collections::{BTreeMap, hash_map::DefaultHasher},
    fmt::Write as _,
    hash::{Hash, Hasher},
};

use super::{
    Membership, Mode,
    core::{Command, Core, Input, Now},
    runtime::ControllerSettings,
    work::Work,
};
use model::ServiceKey;

/// So many inputs are kept at most.
const MOST: usize = 200;

/// Everything is derived from scratch after so many ticks, and after more where there are many names.
const TICKS: usize = 7;

/// The second core, and what it has not got yet.
pub(super) struct Replay {
    core: Core,
    recorded: Vec<(Input, Now, u64)>,
    /// The work of each name as it was given to a worker, and when. Names that are to be reconciled since are not here.
    works: BTreeMap<ServiceKey, (Now, Box<Work>)>,
    ticks: usize,
}

impl Replay {
    pub(super) fn new(settings: ControllerSettings, mode: Mode, membership: Membership, now: Now) -> Self {
        let core = Core::new(settings, mode, membership, now);
        Self { core, recorded: Vec::new(), works: BTreeMap::new(), ticks: 0 }
    }

    /// Records what the first core got, and what it returned.
    pub(super) fn record(&mut self, input: Input, now: Now, commands: &[Command]) {
        self.recorded.push((input, now, digest(commands)));
        if self.recorded.len() >= MOST {
            self.catch_up();
        }
    }

    /// Replays what was recorded.
    ///
    /// # Panics
    ///
    /// If the second core returns anything else than the first one did, or if something else is derived from scratch.
    pub(super) fn catch_up(&mut self) {
        for (input, now, expected) in std::mem::take(&mut self.recorded) {
            let commands = self.core.handle(input.clone(), now);
            assert!(
                digest(&commands) == expected,
                "at {now:?}, a replay of {input:?} does not lead to the same: {commands:?}"
            );
            for command in commands {
                match command {
                    Command::Reconcile(key) => drop(self.works.remove(&key)),
                    Command::Apply(work) => drop(self.works.insert(work.key.clone(), (now, work))),
                    _ => {}
                }
            }
            if matches!(input, Input::Tick) {
                self.ticks += 1;
                if self.ticks.is_multiple_of(TICKS + self.core.sizes().names / 100) {
                    self.derive_from_scratch(now);
                }
            }
        }
    }

    /// Right after a tick, so that nothing changes with time alone. A copy of the core does it, because a look is also
    /// remembered: since when something waits, and what was said of it.
    fn derive_from_scratch(&self, now: Now) {
        let mut core = self.core.clone();
        let commands = core.derive_from_scratch(now);
        let targets: Vec<_> = self.core.instances.desired.difference(&core.instances.desired).collect();
        assert!(
            commands.is_empty(),
            "at {now:?}, more is derived from scratch than after facts: {targets:?}, {commands:?}"
        );
        for (key, (at, before)) in &self.works {
            let work = core.work(key, *at);
            let what = format!("at {now:?}, the work of {key} is another one than at {at:?}, and no fact led to it");
            assert_eq!(before.import, work.import, "{what}");
            assert_eq!(before.report, work.report, "{what}");
            assert_eq!(before.notes, work.notes, "{what}");
        }
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.catch_up();
        }
    }
}

/// Stands for commands, with their order.
fn digest(commands: &[Command]) -> u64 {
    /// Hashes a text without keeping it.
    struct Hashed(DefaultHasher);

    impl std::fmt::Write for Hashed {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            text.hash(&mut self.0);
            Ok(())
        }
    }

    let mut hashed = Hashed(DefaultHasher::new());
    write!(hashed, "{commands:?}").expect("a hash takes any text");
    hashed.0.finish()
}
