//! W8: every few minutes the own ledger is read as a new reader would read it.

use std::{sync::Arc, time::Duration};

use super::{
    Leader, Now,
    run::{Duty, Ground, Run},
};
use crate::{
    call::{Call, CallId, Outbox, Outcome},
    fetch::{Fetch, Progress, UNEXPECTED},
    head::Head,
    verify::{Cache, Verified},
};

/// The audits of an epoch.
#[derive(Debug)]
pub(super) struct Audit {
    step: Step,
    failing_since: Option<Duration>,
    /// The call that counts the own services.
    count: Option<CallId>,
}

#[derive(Debug)]
enum Step {
    /// The next one begins then.
    Waits(Duration),
    /// The state of this head is being read.
    Reads(Box<Fetch>, Arc<Head>),
}

impl Audit {
    pub(super) const fn new(next: Duration) -> Self {
        Self { step: Step::Waits(next), failing_since: None, count: None }
    }
}

impl Run {
    pub(super) fn audit(&mut self, leader: &mut Leader, now: Now, own: Option<&Arc<Head>>, out: &mut Outbox) {
        let Some(head) = own.filter(|head| head.is_live()) else { return };
        let due = matches!(self.audit.step, Step::Waits(next) if now.mono >= next);
        // What is written again already would begin anew, and never end where that takes longer than an audit may fail.
        if self.base.is_due() || !due {
            return;
        }
        // A former leader may have claimed services that this one does not know.
        self.audit.count = Some(out.call(Call::Claim { shard: 0 }));
        let mut fetch = Fetch::new(leader.me.cluster.clone(), head.root.clone(), Cache::default());
        let progress = fetch.advance(out);
        self.audit.step = Step::Reads(Box::new(fetch), head.clone());
        self.audited(leader, now, &progress);
    }

    pub(super) fn audit_done(
        &mut self,
        leader: &mut Leader,
        now: Now,
        id: CallId,
        outcome: &Outcome,
        out: &mut Outbox,
    ) -> bool {
        if self.audit.count.take_if(|count| *count == id).is_some() {
            if let Outcome::Claimed { shards, .. } = outcome
                && leader.services.learn(*shards)
            {
                self.garbage.expect(now.mono);
            }
            return true;
        }
        let Step::Reads(fetch, _) = &mut self.audit.step else { return false };
        let mine = fetch.waits_for(id);
        if mine {
            let progress = fetch.on_outcome(outcome, out);
            self.audited(leader, now, &progress);
        }
        mine
    }

    fn audited(&mut self, leader: &mut Leader, now: Now, progress: &Progress) {
        let (audit, timing) = (&mut self.audit, &leader.timing);
        let means = |read: &Verified| match &audit.step {
            Step::Reads(_, head) => head.means(&leader.me.clusterset, &Arc::new(head.delta.apply(&read.map))),
            Step::Waits(_) => true,
        };
        let why = match progress {
            Progress::Waiting => return,
            Progress::Complete(read) if means(read) => {
                *audit = Audit { count: audit.count, ..Audit::new(now.mono + timing.audit) };
                return;
            }
            // A read that failed proves nothing about the pages.
            Progress::Unread(_) => {
                *audit = Audit { count: audit.count, ..Audit::new(now.mono + timing.backoff_max) };
                return;
            }
            Progress::Complete(_) => UNEXPECTED,
            Progress::Failed(why) => why,
        };
        audit.step = Step::Waits(now.mono + timing.backoff_min);
        let since = *audit.failing_since.get_or_insert(now.mono);
        if now.mono.saturating_sub(since) > timing.audit_limit {
            *audit = Audit::new(now.mono + timing.audit_limit);
            leader.error = Some(format!("the own ledger cannot be read ({why}); it is written again"));
            self.base.ground = Ground::Rewritten;
            if let Duty::Publish(uploads) = &mut self.duty {
                uploads.forget();
            }
        }
    }
}
