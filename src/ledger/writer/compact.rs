//! W5: a new tree takes the place of the tree and of the runs that were appended to it.

use std::collections::BTreeMap;

use super::{
    Leader, Now,
    run::{Duty, Run},
    upload::{Progress, Upload},
};
use crate::{
    Map,
    call::Outbox,
    tree::{self, Plan, Tree},
};

/// A tree on its way into the registry.
#[derive(Debug)]
pub(super) struct Compaction {
    pub upload: Upload,
    tree: Tree,
    /// What the tree says.
    map: Map,
    /// The runs that it contains: see [`crate::runs::Runs::mark`].
    mark: u64,
}

impl Run {
    /// Begins when the runs are as large as the tree, or earlier when nothing changes any more. Flushes go on meanwhile.
    pub(super) fn compact(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        let Duty::Publish(uploads) = &mut self.duty else { return };
        let Some(compaction) = &mut uploads.compaction else { return self.start_compaction(leader, now, out) };
        // Changes go first.
        let (most, garbage) = ((leader.limits.flush_concurrency / 2).max(1), &mut self.garbage);
        match compaction.upload.advance(now, most, &leader.timing, &leader.me.cluster, garbage, out) {
            Progress::Working => {}
            Progress::Seen => self.finish_compaction(leader, now, out),
            Progress::Stuck => {
                if let Some(compaction) = uploads.compaction.take() {
                    uploads.abandon(compaction.upload, &mut self.figures, leader);
                }
                uploads.next_compaction = now.mono + leader.timing.collect;
            }
        }
    }

    fn start_compaction(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        let Duty::Publish(uploads) = &mut self.duty else { return };
        let layout = &self.base.layout;
        if self.base.is_due() {
            return;
        }
        let (runs, tree) = (layout.runs.len(), layout.tree.data_pages());
        let quiet_at = leader.desired.changed_at() + leader.timing.quiet;
        if runs <= leader.limits.runs.max(tree) {
            if runs <= (leader.limits.runs / 4).max(tree / 4) {
                return;
            }
            if now.mono < quiet_at {
                return out.wake_at(quiet_at);
            }
        }
        if now.mono < uploads.next_compaction {
            return out.wake_at(uploads.next_compaction);
        }
        let Some(mut free) = self.garbage.free(leader, now) else { return self.garbage.expect(now.mono) };
        uploads.next_compaction = now.mono + leader.timing.collect;
        let id = self.figures.id(self.epoch, &mut leader.ids);
        let written = |shard, digest| uploads.spare.get(&(digest, shard)).cloned();
        // The largest power of two of shards that all are this cluster's.
        let usable = leader.services.unbroken();
        let shards = 1 << usable.ilog2();
        let previous = Some((&*layout.tree, &layout.base));
        let plan = tree::plan(previous, written, &self.base.map, &id, shards, &leader.limits);
        let Plan { tree, shards, pages } = match plan {
            Ok(plan) => plan,
            Err(error) => {
                leader.error = Some(error.to_string());
                return;
            }
        };
        if tree.pages().count() > leader.limits.root_pages {
            // The runs say the same in fewer pages.
            uploads.next_compaction = now.mono + leader.timing.quiet;
            return;
        }
        if shards > leader.services.count() {
            return self.growth.want(shards);
        }
        if shards > usable {
            let service = crate::service_name(&leader.me.cluster, usable);
            leader.error =
                Some(format!("the ledger has no room for its pages: the service {service} is another cluster's"));
            return;
        }
        let mut new = BTreeMap::<u32, usize>::new();
        pages
            .iter()
            .filter(|(_, page)| page.id.flush == id)
            .for_each(|(shard, _)| *new.entry(*shard).or_default() += 1);
        if new.iter().any(|(shard, pages)| free.remove(shard).unwrap_or_default() < *pages) {
            // Flushes go on while there is room for them, so this is no error of this cluster's exports.
            self.figures.quota_waits += 1;
            uploads.wait_for_room(leader, now, &mut self.garbage, &mut self.growth);
            return;
        }
        let (map, mark) = ((*self.base.map).clone(), layout.runs.mark());
        uploads.compaction = Some(Compaction { upload: Upload::new(id, pages, now.mono), tree, map, mark });
        self.compact(leader, now, out);
    }

    /// The tree is visible: the root names it instead of the former one and of the runs that it contains. The state is the
    /// same.
    fn finish_compaction(&mut self, leader: &mut Leader, now: Now, out: &mut Outbox) {
        let Duty::Publish(uploads) = &mut self.duty else { return };
        let Some(Compaction { tree, map, mark, .. }) = uploads.compaction.take() else { return };
        uploads.spare.clear();
        let mut layout = self.base.layout.clone();
        layout.shards = leader.services.shards();
        (layout.tree, layout.base) = (tree.into(), map);
        layout.runs.drop_until(mark);
        if layout.pages().count() > leader.limits.root_pages {
            self.figures.abandoned += 1;
            return;
        }
        self.base.layout = layout;
        self.figures.compactions += 1;
        self.rebased(leader, now, out);
    }
}
