//! W8: every few minutes the own ledger is read as a new reader would read it.

use std::{sync::Arc, time::Duration};

use super::{Now, Writer};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    fetch::{Fetch, Progress, UNEXPECTED},
    head::Head,
    verify::Cache,
};

#[derive(Debug)]
pub(super) struct Audit {
    next: Duration,
    fetch: Option<Fetch>,
    /// The head whose state is being read.
    head: Option<Arc<Head>>,
    failing_since: Option<Duration>,
    /// The call that counts the own services.
    count: Option<CallId>,
}

impl Audit {
    pub(super) fn new(next: Duration) -> Self {
        Self { next, fetch: None, head: None, failing_since: None, count: None }
    }
}

impl Writer {
    pub(super) fn audit(&mut self, now: Now, own: Option<&Arc<Head>>, out: &mut Outbox) {
        let audit = &mut self.run.audit;
        let Some(head) = own.filter(|head| head.is_live() && head.uid == self.me.uid) else { return };
        // What is written again already would begin anew, and never end where that takes longer than an audit may fail.
        let written_again = self.run.baseless || self.run.rewrite;
        if written_again || now.mono < audit.next || audit.fetch.is_some() {
            return;
        }
        // A former leader may have claimed services that this one does not know.
        audit.count = Some(out.call(Call::Claim { shard: 0 }));
        let mut fetch = Fetch::new(self.me.cluster.clone(), head.root.clone(), Cache::default());
        let progress = fetch.advance(out);
        audit.fetch = Some(fetch);
        audit.head = Some(head.clone());
        self.audited(now, &progress);
    }

    pub(super) fn audit_done(&mut self, now: Now, id: CallId, outcome: &Outcome, out: &mut Outbox) -> bool {
        if self.run.audit.count.take_if(|count| *count == id).is_some() {
            if let Outcome::Claimed { shards, .. } = outcome {
                self.learn_of(now, *shards);
            }
            return true;
        }
        let Some(fetch) = self.run.audit.fetch.as_mut().filter(|fetch| fetch.waits_for(id)) else { return false };
        let progress = fetch.on_outcome(outcome, out);
        self.audited(now, &progress);
        true
    }

    fn audited(&mut self, now: Now, progress: &Progress) {
        let audit = &mut self.run.audit;
        let differs = match (progress, &audit.head) {
            (Progress::Complete(read), Some(head)) => {
                !head.means(&self.me.clusterset, &Arc::new(head.delta.apply(&read.map)))
            }
            _ => false,
        };
        let progress = if differs { &Progress::Failed(UNEXPECTED) } else { progress };
        match progress {
            Progress::Waiting => {}
            Progress::Complete(_) => {
                *audit = Audit { count: audit.count, ..Audit::new(now.mono + self.timing.audit) };
            }
            // A read that failed proves nothing about the pages.
            Progress::Unread(_) => {
                audit.fetch = None;
                audit.failing_since = None;
                audit.next = now.mono + self.timing.backoff_max;
            }
            Progress::Failed(why) => {
                audit.fetch = None;
                audit.next = now.mono + self.timing.backoff_min;
                let since = *audit.failing_since.get_or_insert(now.mono);
                if now.mono.saturating_sub(since) > self.timing.audit_limit {
                    *audit = Audit::new(now.mono + self.timing.audit_limit);
                    self.error = Some(format!("the own ledger cannot be read ({why}); it is written again"));
                    (self.run.flush, self.run.compaction) = (None, None);
                    self.run.spare.clear();
                    self.run.rewrite = true;
                }
            }
        }
    }
}
