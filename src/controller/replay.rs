//! Shows that what the core decides follows from its inputs alone: what it got is replayed into a second core.
//!
//! This happens on simulated machines only, in every simulation and in every test with a whole controller. The replay comes
//! later and in one go. So a decision that also depended on a cache, a clock, an order in memory or chance would come out
//! differently.

use std::{
    collections::hash_map::DefaultHasher,
    fmt::Write as _,
    hash::{Hash, Hasher},
};

use super::{
    Membership, Mode,
    core::{Command, Core, Input, Now},
    runtime::ControllerSettings,
};

/// So many inputs are kept at most.
const MOST: usize = 200;

/// The second core, and what it has not got yet.
pub(super) struct Replay {
    core: Core,
    recorded: Vec<(Input, Now, u64)>,
}

impl Replay {
    pub(super) fn new(settings: ControllerSettings, mode: Mode, membership: Membership, now: Now) -> Self {
        Self { core: Core::new(settings, mode, membership, now), recorded: Vec::new() }
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
    /// If the second core returns anything else than the first one did.
    pub(super) fn catch_up(&mut self) {
        for (input, now, expected) in std::mem::take(&mut self.recorded) {
            let commands = self.core.handle(input.clone(), now);
            assert!(
                digest(&commands) == expected,
                "at {now:?}, a replay of {input:?} does not lead to the same: {commands:?}"
            );
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
