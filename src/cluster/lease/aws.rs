//! What the election knows of the registry: whether AWS answers this replica, and lets it in.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use base::env;
use cloudmap::{Listings, OUT_OF_REACH_AFTER};

/// How the text begins by which a leader yields because AWS does not answer, or denies everything. Standbys know the reason
/// by it, so it stays the same in all releases.
const UNANSWERED: &str = "AWS has answered none of its calls";
const DENIED: &str = "AWS has denied all of its calls";

/// How often a standby asks AWS while the leader yields, and a leader whose calls are denied. A hundred clusters may do so in
/// one account.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// For so long a standby that AWS has answered waits for the leader. If AWS was away for all and is back, the leader has an
/// answer in this time: two of its calls are at most 8 s apart, one lasts 5 s, and a renewal follows within 3 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether AWS answers this replica.
#[expect(missing_debug_implementations, reason = "the port is a trait object")]
pub struct AwsAccess {
    listings: Arc<Listings>,
    calls: cloudmap::Metrics,
    /// When this replica last asked AWS whether it answers.
    asked: Option<Instant>,
}

impl AwsAccess {
    /// `calls` are the metrics of all calls of Cloud Map.
    pub fn new(listings: Arc<Listings>, calls: cloudmap::Metrics) -> Self {
        Self { listings, calls, asked: None }
    }

    /// Why a leader yields: AWS does not answer it, or denies everything. Call this with each renewal.
    pub(super) fn trouble(&mut self) -> Option<String> {
        let (now, answers) = (Instant::now(), self.calls.answers());
        if let Some(unanswered) = answers.unanswered(now) {
            return Some(format!("{UNANSWERED} for {} s", unanswered.as_secs()));
        }
        let denied = answers.denied(now)?;
        // If a role lacks one permission, it may happen that a leader makes no other calls. A standby with the same role would
        // be let in, and yield in its turn.
        if denied >= ASK_EVERY {
            self.ask(now);
        }
        (denied >= OUT_OF_REACH_AFTER).then(|| format!("{DENIED} for {} s", denied.as_secs()))
    }

    /// Whether a leader that says this yields because AWS does not answer it, or denies everything.
    pub(super) fn is_why(yields: &str) -> bool {
        [UNANSWERED, DENIED].iter().any(|why| yields.starts_with(*why))
    }

    /// Whether AWS answers this replica and lets it in, although it does not do so for the leader. Call this again and again
    /// while the leader yields.
    pub(super) fn answers(&mut self) -> bool {
        let now = Instant::now();
        self.ask(now);
        let age = self.calls.answers().last().map(|last| now.duration_since(last));
        age.is_some_and(|age| (PATIENCE..OUT_OF_REACH_AFTER).contains(&age))
    }

    /// Asks AWS with a free call, if it was not asked lately. A role that may not even list namespaces cannot do the work.
    fn ask(&mut self, now: Instant) {
        if self.asked.is_some_and(|asked| now.duration_since(asked) < ASK_EVERY) {
            return;
        }
        self.asked = Some(now);
        let listings = Arc::clone(&self.listings);
        // The election does not wait for it: the Lease may expire meanwhile.
        env::spawn(async move {
            let _ = listings.namespaces().await;
        });
    }
}
