//! W5: a new tree takes the place of the tree and of the runs that were appended to it.

use std::collections::BTreeMap;

use super::{
    Now, Writer,
    upload::{Progress, Upload},
};
use crate::{
    Map,
    call::Outbox,
    page::PageId,
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

impl Compaction {
    pub(super) fn has(&self, page: &PageId) -> bool {
        self.upload.has(page)
    }
}

impl Writer {
    /// Begins when the runs are as large as the tree, or earlier when nothing changes any more. Flushes go on meanwhile.
    pub(super) fn compact(&mut self, now: Now, out: &mut Outbox) {
        let Some(compaction) = &mut self.run.compaction else { return self.start_compaction(now, out) };
        // Changes go first.
        let (most, garbage) = ((self.limits.flush_concurrency / 2).max(1), &mut self.run.garbage);
        match compaction.upload.advance(now, most, &self.timing, &self.me.cluster, garbage, out) {
            Progress::Working => {}
            Progress::Seen => self.finish_compaction(now, out),
            Progress::Stuck => {
                let stuck = self.run.compaction.take().map(|compaction| compaction.upload);
                self.abandon(stuck);
                self.run.next_compaction = now.mono + self.timing.collect;
            }
        }
    }

    fn start_compaction(&mut self, now: Now, out: &mut Outbox) {
        if self.run.baseless || self.run.rewrite {
            return;
        }
        let (runs, tree) = (self.run.layout.runs.len(), self.run.layout.tree.data_pages());
        let quiet_at = self.changed_at + self.timing.quiet;
        if runs <= self.limits.runs.max(tree) {
            if runs <= (self.limits.runs / 4).max(tree / 4) {
                return;
            }
            if now.mono < quiet_at {
                return out.wake_at(quiet_at);
            }
        }
        if now.mono < self.run.next_compaction {
            return out.wake_at(self.run.next_compaction);
        }
        let Some(mut free) = self.free(now) else { return self.run.garbage.expect(now.mono) };
        self.run.next_compaction = now.mono + self.timing.collect;
        let id = self.flush_id();
        let layout = &self.run.layout;
        let written = |shard, digest| self.run.spare.get(&(digest, shard)).cloned();
        // The largest power of two of shards that all are this cluster's.
        let usable = self.strange.first().map_or(self.shards, |strange| self.shards.min(*strange));
        let shards = 1 << usable.ilog2();
        let plan = tree::plan(Some((&layout.tree, &layout.base)), written, &self.run.base, &id, shards, &self.limits);
        let Plan { tree, shards, pages } = match plan {
            Ok(plan) => plan,
            Err(error) => {
                self.error = Some(error.to_string());
                return;
            }
        };
        if tree.pages().count() > self.limits.root_pages {
            // The runs say the same in fewer pages.
            self.run.next_compaction = now.mono + self.timing.quiet;
            return;
        }
        if shards > self.shards {
            return self.want_shards(shards);
        }
        if shards > usable {
            let service = crate::service_name(&self.me.cluster, usable);
            self.error =
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
            self.wait_for_room(now);
            return;
        }
        self.run.compaction = Some(Compaction {
            upload: Upload::new(id, pages, now.mono),
            tree,
            map: (*self.run.base).clone(),
            mark: layout.runs.mark(),
        });
        self.compact(now, out);
    }

    /// The tree is visible: the root names it instead of the former one and of the runs that it contains. The state is the
    /// same.
    fn finish_compaction(&mut self, now: Now, out: &mut Outbox) {
        let Some(Compaction { tree, map, mark, .. }) = self.run.compaction.take() else { return };
        self.run.spare.clear();
        let mut layout = self.run.layout.clone();
        layout.shards = self.shards.next_power_of_two();
        (layout.tree, layout.base) = (tree.into(), map);
        layout.runs.drop_until(mark);
        if layout.pages().count() > self.limits.root_pages {
            self.run.figures.flushes_abandoned += 1;
            return;
        }
        self.run.layout = layout;
        self.run.figures.compactions += 1;
        self.rebased(now, out);
    }
}
