//! What the election knows of the registry: whether AWS answers this replica.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    cloudmap::{self, CloudMap, ErrorKind, Lane, OUT_OF_REACH_AFTER},
    env,
};

/// How the text begins by which a leader yields because AWS does not answer. Standbys know the reason by it, so it stays
/// the same in all releases.
const UNANSWERED: &str = "AWS has answered none of its calls";

/// How often a standby asks AWS while the leader yields. A hundred clusters may do so in one account.
const ASK_EVERY: Duration = Duration::from_secs(30);

/// For so long a standby that AWS has answered waits for the leader. If AWS was away for all and is back, the leader has an
/// answer in this time: two of its calls are at most 8 s apart, one lasts 5 s, and a renewal follows within 3 s.
const PATIENCE: Duration = Duration::from_secs(20);

/// The registry, as this replica reaches it.
#[expect(missing_debug_implementations, reason = "the port is a trait object")]
pub struct Registry {
    cloudmap: Arc<dyn CloudMap>,
    calls: cloudmap::Metrics,
    /// When this replica last asked AWS whether it answers.
    asked: Option<Instant>,
    /// Whether AWS denied that call: who may not even list namespaces cannot do the work.
    denied: Arc<AtomicBool>,
}

impl Registry {
    /// `calls` are the metrics of all calls of `cloudmap`.
    pub fn new(cloudmap: Arc<dyn CloudMap>, calls: cloudmap::Metrics) -> Self {
        Self { cloudmap, calls, asked: None, denied: Arc::default() }
    }

    /// Why a leader yields: AWS does not answer it.
    pub(super) fn trouble(&self) -> Option<String> {
        let unanswered = self.calls.answers().unanswered(Instant::now())?;
        Some(format!("{UNANSWERED} for {} s", unanswered.as_secs()))
    }

    /// Whether a leader that says this yields because AWS does not answer it.
    pub(super) fn is_why(yields: &str) -> bool {
        yields.starts_with(UNANSWERED)
    }

    /// Whether AWS answers this replica and lets it in, although it does not answer the leader. Finds out with a free call.
    /// Call this again and again while the leader yields.
    pub(super) fn answers(&mut self) -> bool {
        let now = Instant::now();
        if self.asked.is_none_or(|asked| now.duration_since(asked) >= ASK_EVERY) {
            self.asked = Some(now);
            let (cloudmap, denied) = (Arc::clone(&self.cloudmap), Arc::clone(&self.denied));
            // The election does not wait for it: the Lease may expire meanwhile.
            env::spawn(async move {
                let listed = cloudmap.list_namespaces(Lane::Instances).await;
                let refused = matches!(&listed, Err(error) if error.kind == ErrorKind::AccessDenied);
                denied.store(refused, Ordering::Relaxed);
            });
        }
        if self.denied.load(Ordering::Relaxed) {
            return false;
        }
        let age = self.calls.answers().last().map(|last| now.duration_since(last));
        age.is_some_and(|age| (PATIENCE..OUT_OF_REACH_AFTER).contains(&age))
    }
}
