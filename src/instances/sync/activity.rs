//! What is going on with the instances of a service, by instance id.
//!
//! An id has one [`Activity`], or none. An id that waits for its turn has none either, unless its last call failed. So most
//! ids, also of a target with a long queue, have no entry.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use crate::attributes::Digest;
use cloudmap::OperationId;

/// Counts writes whose end is not known, in all targets.
#[derive(Debug, Default)]
pub(super) struct Running(Arc<()>);

impl Running {
    pub(super) fn count(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }

    /// Begins a write.
    pub(super) fn write(&self, effect: Option<Digest>, healthy: bool, since: Instant) -> Write {
        Write { effect, healthy, since, progress: Progress::Sent, _counted: Arc::clone(&self.0) }
    }
}

/// A write whose end is not known. It counts as long as it is kept.
#[derive(Debug)]
pub(super) struct Write {
    /// The digest of the instance if the write succeeds; `None` if the instance is then gone.
    pub(super) effect: Option<Digest>,
    /// The health with which it is registered.
    pub(super) healthy: bool,
    pub(super) since: Instant,
    pub(super) progress: Progress,
    _counted: Arc<()>,
}

/// How far a write is.
#[derive(Debug)]
pub(super) enum Progress {
    /// The request is in flight.
    Sent,
    /// AWS accepted it. `unpolled`: AWS denied to say what became of it, so that a reading must show that.
    Running { operation: OperationId, polls: u32, unpolled: bool },
    /// AWS refused it, because of somebody else's operation. When that ends, the id is [unsure](Activity::Unsure).
    InTheWay { operation: OperationId },
}

impl Write {
    /// The operation whose end is awaited; `None` while the request is in flight.
    pub(super) const fn operation(&self) -> Option<&OperationId> {
        match &self.progress {
            Progress::Sent => None,
            Progress::Running { operation, .. } | Progress::InTheWay { operation } => Some(operation),
        }
    }

    /// Whether only a reading can show what became of it.
    pub(super) const fn is_unpolled(&self) -> bool {
        matches!(self.progress, Progress::Running { unpolled: true, .. })
    }
}

/// What is going on with an instance id.
#[derive(Debug)]
enum Activity {
    Writing(Write),
    /// The call that sets its health is in flight.
    SettingHealth,
    /// Something was written there of which only a reading shows what became of it. The id is written after the reading, and
    /// not before this time.
    Unsure(Instant),
    /// The last call failed. It is tried again then. After that it waits for its turn, like an id without an entry.
    Failed(Instant),
}

#[derive(Debug)]
struct Entry {
    activity: Activity,
    /// Calls in a row that failed: at least one in [`Activity::Failed`].
    failures: u32,
}

/// What remains to be written, in this order. None of these ids has an activity, unless it failed and is due.
#[derive(Debug, Default)]
pub(super) struct Todo {
    pub(super) writes: VecDeque<Arc<str>>,
    /// The health status that these instances get before anything is written.
    pub(super) health: VecDeque<(Arc<str>, bool)>,
    /// Whether none of the desired instances is there yet. Then `writes` does not contain those that are no longer desired.
    /// Or whether pods of a share wait that are replaced, or an id waits until the endpoint that had it is registered under
    /// another one: the others are registered first.
    pub(super) waits_for_first: bool,
}

/// What is going on with the instances of a service, and what is to be done next.
#[derive(Debug, Default)]
pub(super) struct Activities {
    by_id: BTreeMap<Arc<str>, Entry>,
    /// Numbers of entries that are being written, and that have failed.
    writing: usize,
    failed: usize,
    /// `None` if it must be planned.
    todo: Option<Todo>,
}

impl Activities {
    /// Whether nothing is being written, waited for, or to be tried again.
    pub(super) fn at_rest(&self) -> bool {
        self.by_id.is_empty() && self.todo.as_ref().is_some_and(|todo| todo.writes.is_empty() && todo.health.is_empty())
    }

    pub(super) const fn is_planned(&self) -> bool {
        self.todo.is_some()
    }

    /// What remains to be written must be planned again.
    pub(super) fn plan_again(&mut self) {
        self.todo = None;
    }

    /// The same if other instances wait for a write that ended.
    pub(super) fn plan_after_first(&mut self) {
        drop(self.todo.take_if(|todo| todo.waits_for_first));
    }

    /// Takes what remains to be written. What is going on is planned again when it ends, and what failed when its time comes.
    /// What failed and is not among it is forgotten.
    pub(super) fn plan(&mut self, mut todo: Todo, now: Instant) {
        if self.has_any_failed() {
            let planned: BTreeSet<_> = todo.writes.iter().chain(todo.health.iter().map(|(id, _)| id)).collect();
            self.forgive(|id| planned.contains(id));
        }
        todo.health.retain(|(id, _)| self.is_free(id, now));
        let health: BTreeSet<_> = todo.health.iter().map(|(id, _)| id).collect();
        todo.writes.retain(|id| self.is_free(id, now) && !health.contains(id));
        self.todo = Some(todo);
    }

    /// One more write, or health status to be set, comes first. It is for an id with which nothing is going on any more.
    pub(super) fn plan_more(&mut self, write: Option<Arc<str>>, health: Option<(Arc<str>, bool)>) {
        let Some(todo) = &mut self.todo else { return };
        match (write, health) {
            (_, Some(health)) => todo.health.push_back(health),
            (Some(id), None) => todo.writes.push_front(id),
            (None, None) => {}
        }
    }

    /// The next health status to set.
    pub(super) fn next_health(&self) -> Option<(Arc<str>, bool)> {
        self.todo.as_ref()?.health.front().cloned()
    }

    /// The next id to write. Skips `blocked` ones, which are planned again when whatever blocks them ends.
    pub(super) fn next_write(&mut self, blocked: impl Fn(&Arc<str>) -> bool) -> Option<Arc<str>> {
        let writes = &mut self.todo.as_mut()?.writes;
        while writes.front().is_some_and(&blocked) {
            writes.pop_front();
        }
        writes.front().cloned()
    }

    /// The next id to write is taken up. If it is not written, nothing follows.
    pub(super) fn take_write(&mut self) {
        self.todo.as_mut().map(|todo| todo.writes.pop_front());
    }

    /// The number of calls that wait for their turn, or for another attempt.
    pub(super) fn queued(&self) -> usize {
        self.failed + self.todo.as_ref().map_or(0, |todo| todo.writes.len() + todo.health.len())
    }

    pub(super) const fn is_any_written(&self) -> bool {
        self.writing > 0
    }

    pub(super) const fn has_any_failed(&self) -> bool {
        self.failed > 0
    }

    pub(super) fn is_any_unsure(&self) -> bool {
        self.by_id.values().any(|entry| matches!(entry.activity, Activity::Unsure(_)))
    }

    /// The writes whose end is not known.
    pub(super) fn writes(&self) -> impl Iterator<Item = (&Arc<str>, &Write)> {
        self.by_id.iter().filter_map(|(id, entry)| match &entry.activity {
            Activity::Writing(write) => Some((id, write)),
            _ => None,
        })
    }

    pub(super) fn write(&self, id: &str) -> Option<&Write> {
        match &self.by_id.get(id)?.activity {
            Activity::Writing(write) => Some(write),
            _ => None,
        }
    }

    pub(super) fn write_mut(&mut self, id: &str) -> Option<&mut Write> {
        match &mut self.by_id.get_mut(id)?.activity {
            Activity::Writing(write) => Some(write),
            _ => None,
        }
    }

    /// A write is sent.
    pub(super) fn begin(&mut self, id: &Arc<str>, write: Write) {
        self.change(id, Activity::Writing(write), self.failures(id));
    }

    /// A write ended. What follows from its result is up to the caller.
    pub(super) fn end(&mut self, id: &Arc<str>, now: Instant) {
        if self.write(id).is_some() {
            self.change(id, Activity::Failed(now), self.failures(id));
        }
    }

    /// The next health status is sent.
    pub(super) fn begin_health(&mut self) {
        if let Some((id, _)) = self.todo.as_mut().and_then(|todo| todo.health.pop_front()) {
            self.change(&id, Activity::SettingHealth, self.failures(&id));
        }
    }

    /// AWS took a health status, or refused it. Returns whether that was awaited.
    pub(super) fn end_health(&mut self, id: &Arc<str>, now: Instant) -> bool {
        let is_awaited = self.by_id.get(id).is_some_and(|entry| matches!(entry.activity, Activity::SettingHealth));
        if is_awaited {
            self.change(id, Activity::Failed(now), self.failures(id));
        }
        is_awaited
    }

    /// How often in a row the calls for an instance have failed.
    pub(super) fn failures(&self, id: &str) -> u32 {
        self.by_id.get(id).map_or(0, |entry| entry.failures)
    }

    /// The last call failed. It is tried again at that time.
    pub(super) fn fail(&mut self, id: &Arc<str>, at: Instant) {
        self.change(id, Activity::Failed(at), self.failures(id) + 1);
    }

    /// Only a reading shows what became of an instance.
    pub(super) fn doubt(&mut self, id: &Arc<str>, now: Instant) {
        let at = match self.by_id.get(id).map(|entry| &entry.activity) {
            Some(Activity::Failed(at) | Activity::Unsure(at)) => *at,
            _ => now,
        };
        self.change(id, Activity::Unsure(at), self.failures(id));
    }

    /// A reading shows what became of all instances but those.
    pub(super) fn were_read(&mut self, except: &BTreeSet<Arc<str>>) {
        self.change_all(|id, entry| match entry.activity {
            Activity::Unsure(at) if !except.contains(id) => entry.activity = Activity::Failed(at),
            _ => {}
        });
    }

    /// It no longer matters what failed, except for these ids.
    pub(super) fn forgive(&mut self, except: impl Fn(&Arc<str>) -> bool) {
        if self.has_any_failed() {
            self.change_all(|id, entry| entry.failures *= u32::from(except(id)));
        }
    }

    /// What would be tried again then is tried again now.
    pub(super) fn hurry(&mut self, until: Instant, now: Instant) {
        self.change_all(|_, entry| match &mut entry.activity {
            Activity::Failed(at) if *at == until => *at = now,
            _ => {}
        });
    }

    /// Whether nothing is going on with an id, so that it can be written.
    fn is_free(&self, id: &str, now: Instant) -> bool {
        self.by_id.get(id).is_none_or(|entry| matches!(entry.activity, Activity::Failed(at) if at <= now))
    }

    fn change_all(&mut self, change: impl Fn(&Arc<str>, &mut Entry)) {
        self.by_id.retain(|id, entry| {
            change(id, entry);
            !entry.is_over()
        });
        self.failed = self.by_id.values().filter(|entry| entry.failures > 0).count();
    }

    /// Changes what is going on with an id, and the number of failures in a row.
    fn change(&mut self, id: &Arc<str>, activity: Activity, failures: u32) {
        self.over(id);
        let entry = Entry { activity, failures };
        if !entry.is_over() {
            self.writing += usize::from(matches!(entry.activity, Activity::Writing(_)));
            self.failed += usize::from(failures > 0);
            self.by_id.insert(Arc::clone(id), entry);
        }
    }

    /// The last call succeeded, or there is nothing to try again.
    pub(super) fn over(&mut self, id: &Arc<str>) {
        let Some(entry) = self.by_id.remove(id) else { return };
        self.writing -= usize::from(matches!(entry.activity, Activity::Writing(_)));
        self.failed -= usize::from(entry.failures > 0);
        if self.by_id.is_empty() {
            // An emptied map keeps its memory, and there are many targets.
            self.by_id = BTreeMap::new();
        }
    }
}

impl Entry {
    /// Whether nothing is going on any more.
    const fn is_over(&self) -> bool {
        self.failures == 0 && matches!(self.activity, Activity::Failed(_))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn ids() -> [Arc<str>; 3] {
        ["a", "b", "c"].map(Arc::from)
    }

    proptest! {
        /// Whatever happens, in whatever order: nothing that is in flight waits for its turn as well.
        #[test]
        fn an_id_is_in_one_state(steps in prop::collection::vec((0..9_u8, 0..3_usize), 1..60)) {
            let (mut activities, running) = (Activities::default(), Running::default());
            let mut now = Instant::now();
            for (step, at) in steps {
                let id = ids()[at].clone();
                match step {
                    0 => {
                        let health = [(ids()[at].clone(), true)].into();
                        activities.plan(Todo { writes: ids().into(), health, waits_for_first: at == 0 }, now);
                    }
                    1 => if let Some(id) = activities.next_write(|_| false) {
                        activities.take_write();
                        activities.begin(&id, running.write(None, true, now));
                    }
                    2 => activities.begin_health(),
                    3 if activities.write(&id).is_some() => {
                        activities.end(&id, now);
                        activities.over(&id);
                    }
                    4 if activities.write(&id).is_some() => {
                        activities.end(&id, now);
                        activities.fail(&id, now + Duration::from_secs(1));
                        activities.doubt(&id, now);
                    }
                    5 => if activities.end_health(&id, now) {
                        activities.fail(&id, now + Duration::from_secs(1));
                    }
                    6 => activities.were_read(&[id].into()),
                    7 => activities.forgive(|other| *other == id),
                    _ => now += Duration::from_secs(1),
                }
                let todo = activities.todo.iter();
                let waiting = todo.flat_map(|todo| todo.writes.iter().chain(todo.health.iter().map(|(id, _)| id)));
                for id in waiting {
                    prop_assert!(activities.is_free(id, now), "{} waits beside {:?}", id, activities.by_id.get(id));
                }
                prop_assert_eq!((activities.writing, running.count()), (activities.writes().count(), activities.writing));
                prop_assert_eq!(activities.failed, activities.by_id.values().filter(|entry| entry.failures > 0).count());
                let failed = |entry: &Entry| entry.failures > 0 || !matches!(entry.activity, Activity::Failed(_));
                prop_assert!(activities.by_id.values().all(failed));
            }
        }
    }

    #[test]
    fn a_service_that_is_lost_takes_no_room() {
        let (mut activities, running) = (Activities::default(), Running::default());
        activities.begin(&ids()[0], running.write(None, true, Instant::now()));
        assert_eq!(running.count(), 1);
        drop(activities);
        assert_eq!(running.count(), 0);
    }
}
