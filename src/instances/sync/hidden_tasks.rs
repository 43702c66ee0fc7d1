//! The hidden tasks of one service: which are recorded, which should be hidden, and what was said of each. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{HidingTrouble, TargetTasks, failure::back_off};
use crate::{
    Share,
    share::hiding::{choose, visible},
};
use cloudmap::{Error, ErrorKind, LATEST_EFFECT};
use model::Target;

/// For so long after a mark, a reading may show what was before: AWS takes about 30 s.
pub(super) const SHOWN_WITHIN: Duration = Duration::from_secs(45);
/// So long after a task was marked, it is not hidden again.
const AGAIN: Duration = Duration::from_mins(1);
/// So long at most, own instances wait until tasks are shown.
const SHOWS: Duration = Duration::from_mins(2);
/// Pause after AWS denied a mark.
const DENIED: Duration = Duration::from_mins(1);
/// Number of failures in a row of one mark, or of the record, that are not reported.
pub(super) const HICCUPS: u32 = 2;

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Say that this task is healthy, or that it is not.
    Mark(Arc<str>, bool),
    Wait(Instant),
    Nothing,
}

/// What was said of a task.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// The last thing that AWS took, and when it was sent.
    said: Option<(bool, Instant)>,
    /// When the call in flight was sent.
    sent: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
    /// Until when a call that hides it, and whose end nobody saw, may take effect.
    late_until: Option<Instant>,
}

impl Mark {
    /// Whether AWS took that the task is healthy, and nothing that was sent before can hide it any more.
    fn is_shown(&self) -> bool {
        let said = self.said.filter(|_| self.sent.is_none());
        said.is_some_and(|(healthy, at)| healthy && self.late_until.is_none_or(|late| at >= late))
    }
}

/// The tasks that readings show.
#[derive(Debug, Default)]
enum Tasks {
    #[default]
    Unread,
    /// No reading had their health yet.
    WithoutHealth,
    /// Those of the last complete reading with health, when it began, and whether each was healthy.
    Read(Instant, BTreeMap<Arc<str>, bool>),
}

impl Tasks {
    const fn read(&self) -> Option<(Instant, &BTreeMap<Arc<str>, bool>)> {
        match self {
            Self::Read(begun, tasks) => Some((*begun, tasks)),
            Self::Unread | Self::WithoutHealth => None,
        }
    }

    const fn read_mut(&mut self) -> Option<&mut BTreeMap<Arc<str>, bool>> {
        match self {
            Self::Read(_, tasks) => Some(tasks),
            Self::Unread | Self::WithoutHealth => None,
        }
    }
}

/// The tasks of a service.
#[derive(Debug, Default)]
pub(super) struct HiddenTasks {
    /// The target with this service; `None` if there is none, or none is known yet.
    pub(super) target: Option<Target>,
    /// Whether its target hides tasks.
    pub(super) hides: bool,
    /// What the record says, in the order in which it was hidden.
    pub(super) recorded: Vec<Arc<str>>,
    /// What should be hidden; `None` while that is not known.
    wanted: Option<Vec<Arc<str>>>,
    /// Recorded ids that are to be taken out: they were shown, or are gone.
    released: BTreeSet<Arc<str>>,
    /// Ids that this term put into the record, and that nobody has marked.
    fresh: BTreeSet<Arc<str>>,
    /// Recorded ids that somebody else took out of the record: they are put back.
    lost: BTreeSet<Arc<str>>,
    tasks: Tasks,
    marks: BTreeMap<Arc<str>, Mark>,
    /// How many tasks this term has marked as unhealthy.
    count: u64,
    /// Since when tasks are being shown.
    showing: Option<Instant>,
    /// Why AWS refuses marks, and until when none is tried.
    refused: Option<(HidingTrouble, String)>,
    denied_until: Option<Instant>,
    /// Whether the record is full.
    pub(super) full: bool,
    /// When to look again.
    pub(super) wakes_at: Option<Instant>,
}

/// What decides how many tasks are hidden.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// The share that the pods should have.
    pub(super) share: Option<Share>,
    /// Numbers of pods: those that are ready, so that they could be registered, those that are registered and not
    /// ready, and those that are registered and healthy.
    pub(super) ready: usize,
    pub(super) ill: usize,
    pub(super) registered: usize,
    /// Number of healthy instances of others, with the hidden ones.
    pub(super) others: usize,
}

/// What the choice of pods depends on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct HiddenNow {
    /// Numbers of tasks that are hidden, and that are going to be.
    pub(super) hidden: usize,
    pub(super) to_hide: usize,
    /// Until when at most own instances wait, if they do so until tasks are shown.
    pub(super) until: Option<Instant>,
}

impl HiddenTasks {
    /// Decides anew if `decide` is set, and returns what follows for the choice of pods.
    pub(super) fn look(&mut self, wish: Wish, decide: bool, now: Instant) -> HiddenNow {
        if decide {
            self.decide(wish);
        }
        let until = self.shows_until(now);
        let TargetTasks { hidden, to_hide, trouble, .. } = self.status(false, None);
        let to_hide = if trouble.is_some() { 0 } else { to_hide };
        HiddenNow { hidden, to_hide, until }
    }

    /// Decides which tasks should be hidden. None without a healthy pod, and no others before all pods are registered.
    ///
    /// Registered pods that are not ready count as well. Otherwise each pod that is ready and not in turn would hide tasks and
    /// show them. Beside so many tasks the ready pods have less than the share, and never more.
    fn decide(&mut self, Wish { share, ready, ill, registered, others }: Wish) {
        let shown = share.filter(|_| registered > 0).map_or(others, |share| visible(share, ready + ill, others));
        let mut number = others - shown;
        if registered < ready {
            number = number.min(self.recorded.len());
        }
        if number == 0 {
            return self.want(Vec::new());
        }
        let Some((_, tasks)) = self.tasks.read() else { return };
        let hidden: Vec<_> = self.recorded.iter().filter(|id| !self.released.contains(*id)).cloned().collect();
        self.want(choose(&hidden, tasks, number));
    }

    /// Sets what should be hidden.
    pub(super) fn want(&mut self, wanted: Vec<Arc<str>>) {
        self.released.retain(|id| !wanted.contains(id));
        self.wanted = Some(wanted);
    }

    fn is_wanted(&self, id: &Arc<str>) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.contains(id))
    }

    /// Takes the tasks of a complete reading; `None` if their health could not be read. What was known then stays.
    pub(super) fn read(&mut self, begun: Instant, tasks: Option<BTreeMap<Arc<str>, bool>>) {
        match (tasks, &self.tasks) {
            (Some(tasks), _) => self.tasks = Tasks::Read(begun, tasks),
            (None, Tasks::Unread) => self.tasks = Tasks::WithoutHealth,
            (None, _) => {}
        }
    }

    /// Only these instances are there.
    pub(super) fn only(&mut self, is_there: impl Fn(&Arc<str>) -> bool) {
        let Self { recorded, released, marks, .. } = self;
        marks.retain(|id, mark| mark.sent.is_some() || is_there(id));
        released.extend(recorded.iter().filter(|id| !is_there(id) && !marks.contains_key(*id)).cloned());
        if let Some(tasks) = self.tasks.read_mut() {
            tasks.retain(|id, _| is_there(id));
        }
        self.forgive();
    }

    /// What AWS refused matters only as long as a task is there for which it did.
    fn forgive(&mut self) {
        if self.marks.values().all(|mark| mark.failures == 0) {
            (self.refused, self.denied_until) = (None, None);
        }
    }

    fn reads(&self, id: &Arc<str>) -> Option<(Instant, bool)> {
        let (begun, tasks) = self.tasks.read()?;
        tasks.get(id).map(|healthy| (begun, *healthy))
    }

    fn said(&self, id: &Arc<str>) -> Option<(bool, Instant)> {
        self.marks.get(id)?.said
    }

    /// Whether clients do not find a recorded task, as far as is known. One that was shown counts as found when a reading
    /// says so; what an earlier leader recorded counts as hidden until the first reading.
    fn is_hidden(&self, id: &Arc<str>) -> bool {
        match (self.said(id), self.reads(id)) {
            (Some((false, at)), reads) if reads.is_none_or(|(begun, _)| begun < at + SHOWN_WITHIN) => true,
            (None, None) => self.tasks.read().is_none(),
            (_, reads) => reads.is_some_and(|(_, healthy)| !healthy),
        }
    }

    /// Tasks that a reading that began then may show as ill because of us: they are recorded, or were until a moment ago.
    pub(super) fn ill_by_us(&self, begun: Instant) -> impl Iterator<Item = &Arc<str>> {
        let marked =
            self.marks.iter().filter(move |(_, mark)| mark.said.is_some_and(|(_, at)| begun < at + SHOWN_WITHIN));
        self.recorded.iter().chain(marked.map(|(id, _)| id))
    }

    /// Number of tasks that clients do not find because of us: recorded ones, and those that were shown a moment ago.
    fn hidden(&self) -> usize {
        let is_shown_soon = |id: &Arc<str>, at: Instant| {
            !self.recorded.contains(id)
                && self.reads(id).is_some_and(|(begun, healthy)| !healthy && begun < at + SHOWN_WITHIN)
        };
        let shown = self.marks.iter().filter(|(id, mark)| mark.said.is_some_and(|(_, at)| is_shown_soon(id, at)));
        self.recorded.iter().filter(|id| self.is_hidden(id)).count() + shown.count()
    }

    /// Whether tasks are being shown, so that clients may not find them yet.
    fn is_showing(&self, now: Instant) -> bool {
        let is_shown = |id: &Arc<str>, at: Instant| {
            now >= at + SHOWN_WITHIN || self.reads(id).is_some_and(|(begun, healthy)| healthy && begun >= at)
        };
        let unwanted =
            |id: &&Arc<str>| !self.is_wanted(id) && !self.released.contains(*id) && !self.fresh.contains(*id);
        let waits = |id: &Arc<str>| !matches!(self.said(id), Some((true, _)));
        self.recorded.iter().filter(unwanted).any(waits)
            || self.marks.iter().any(|(id, mark)| matches!(mark.said, Some((true, at)) if !is_shown(id, at)))
    }

    /// Until when own instances wait, if tasks are being shown.
    pub(super) fn shows_until(&mut self, now: Instant) -> Option<Instant> {
        self.showing = self.is_showing(now).then(|| self.showing.unwrap_or(now));
        // Marks that AWS denies would be looked at without a pause.
        self.showing.map(|since| since + SHOWS).filter(|until| *until > now)
    }

    /// Whether own instances wait until tasks are shown.
    pub(super) fn shows_first(&self, now: Instant) -> bool {
        self.is_showing(now) && self.showing.is_none_or(|since| now < since + SHOWS)
    }

    /// Whether anything of it matters.
    pub(super) fn is_empty(&self) -> bool {
        let wants = self.wanted.as_ref().is_none_or(|wanted| !wanted.is_empty());
        self.recorded.is_empty() && !wants && self.marks.is_empty() && !self.hides
    }

    /// Takes out what nobody wants and nobody has marked, or what is shown already: it was wanted again for a moment. Forgets
    /// what is over. Returns whether the record changes.
    pub(super) fn tidy(&mut self) -> bool {
        let is_shown = |id: &Arc<str>| self.marks.get(id).is_some_and(Mark::is_shown);
        let over = |id: &&Arc<str>| !self.is_wanted(id) && (self.fresh.contains(*id) || is_shown(id));
        let over: Vec<_> = self.recorded.iter().filter(over).cloned().collect();
        self.released.extend(over);
        let Self { recorded, wanted, marks, tasks, .. } = self;
        marks.retain(|id, mark| {
            let matters = recorded.contains(id) || wanted.as_ref().is_some_and(|wanted| wanted.contains(id));
            let read = tasks.read().map(|(begun, _)| begun);
            matters
                || mark.sent.is_some()
                || mark.said.is_some_and(|(_, at)| read.is_none_or(|begun| begun < at + SHOWN_WITHIN))
        });
        !self.released.is_empty()
            || self.wanted.as_ref().is_some_and(|wanted| wanted.iter().any(|id| !self.recorded.contains(id)))
    }

    /// Number of recorded ids that stay.
    pub(super) fn kept(&self) -> usize {
        self.recorded.iter().filter(|id| !self.released.contains(*id)).count()
    }

    /// What the record should say, with so many new ids at most.
    pub(super) fn content(&self, room: &mut usize, full: &mut bool) -> Vec<Arc<str>> {
        let mut ids: Vec<_> = self.recorded.iter().filter(|id| !self.released.contains(*id)).cloned().collect();
        for id in self.wanted.iter().flatten().filter(|id| !self.recorded.contains(id)) {
            if *room == 0 {
                *full = true;
                break;
            }
            *room -= 1;
            ids.push(Arc::clone(id));
        }
        ids
    }

    /// These ids are about to be recorded.
    pub(super) fn is_recorded_soon(&mut self, ids: &[Arc<str>]) {
        let is_new = |id: &&Arc<str>| !self.recorded.contains(*id) && !self.marks.contains_key(*id);
        self.fresh.extend(ids.iter().filter(is_new).cloned());
    }

    /// These ids are recorded now.
    pub(super) fn stored(&mut self, ids: Vec<Arc<str>>) {
        self.recorded = ids;
        self.lost.clear();
        let Self { recorded, released, fresh, .. } = self;
        released.retain(|id| recorded.contains(id));
        fresh.retain(|id| recorded.contains(id));
    }

    /// What the stored record says.
    pub(super) fn in_record(&self) -> Vec<Arc<str>> {
        self.recorded.iter().filter(|id| !self.lost.contains(*id)).cloned().collect()
    }

    /// Takes the ids that were read in the record. Of ids that others put there, calls may take effect until
    /// `late_until`. What this term has marked, or found there before, stays recorded even if somebody deleted it.
    pub(super) fn loaded(&mut self, mut ids: Vec<Arc<str>>, late_until: Instant) {
        for id in ids.iter().filter(|id| !self.recorded.contains(id) && !self.fresh.contains(*id)) {
            self.marks.entry(Arc::clone(id)).or_default().late_until = Some(late_until);
        }
        let stays = |id: &&Arc<str>| !self.released.contains(*id) && self.marks.contains_key(*id) && !ids.contains(id);
        let lost: BTreeSet<_> = self.recorded.iter().filter(stays).cloned().collect();
        ids.extend(lost.iter().cloned());
        self.stored(ids);
        self.lost = lost;
    }

    /// The next mark. `is_safe`: the record names a task, and goes on to do so.
    pub(super) fn next(&self, is_safe: impl Fn(&Arc<str>) -> bool, now: Instant) -> Next {
        let mut wait: Option<Instant> = None;
        let mut later = |at: Instant| wait = Some(wait.map_or(at, |before| before.min(at)));
        if let Some(until) = self.denied_until.filter(|until| *until > now) {
            return Next::Wait(until);
        }
        for id in self.recorded.iter().filter(|id| !self.released.contains(*id)) {
            let mark = self.marks.get(id).copied().unwrap_or_default();
            if mark.sent.is_some() {
                continue;
            }
            let due = if self.is_wanted(id) { self.hides_at(id, mark, &is_safe, now) } else { shows_at(mark, now) };
            match due.map(|at| mark.not_before.map_or(at, |not_before| at.max(not_before))) {
                Some(at) if at > now => later(at),
                Some(_) => return Next::Mark(Arc::clone(id), !self.is_wanted(id)),
                None => {}
            }
        }
        wait.map_or(Next::Nothing, Next::Wait)
    }

    /// From when on a task is to be hidden; `None`: as far as is known, never.
    fn hides_at(
        &self,
        id: &Arc<str>,
        mark: Mark,
        is_safe: impl Fn(&Arc<str>) -> bool,
        now: Instant,
    ) -> Option<Instant> {
        let wanted = self.wanted.as_ref().is_some_and(|wanted| wanted.contains(id));
        let (begun, healthy) = self.reads(id)?;
        if !wanted || !healthy || !is_safe(id) || self.lost.contains(id) {
            return None;
        }
        match mark.said {
            // AWS may not show it yet.
            Some((_, at)) if begun < at + SHOWN_WITHIN => None,
            Some((_, at)) => Some(at + AGAIN),
            None => Some(now),
        }
    }

    /// A call that marks a task is sent.
    pub(super) fn marks(&mut self, id: &Arc<str>, healthy: bool, now: Instant) {
        if !healthy {
            self.fresh.remove(id);
        }
        self.marks.entry(Arc::clone(id)).or_default().sent = Some(now);
    }

    /// It was answered.
    pub(super) fn marked(&mut self, id: &Arc<str>, healthy: bool, result: Result<(), Error>, now: Instant) {
        let Some(mark) = self.marks.get_mut(id) else { return };
        let Some(sent) = mark.sent.take() else { return };
        match result {
            Ok(()) => {
                let late = mark.late_until;
                *mark = Mark { said: Some((healthy, sent)), late_until: late, ..Mark::default() };
                (self.refused, self.denied_until) = (None, None);
                if !healthy {
                    self.count += 1;
                } else if mark.is_shown() {
                    self.released.insert(Arc::clone(id));
                }
            }
            // Neither the instance nor its health is there any more.
            Err(error)
                if matches!(error.kind, ErrorKind::NotFound) || healthy && error.kind == ErrorKind::InvalidInput =>
            {
                self.marks.remove(id);
                if healthy {
                    self.released.insert(Arc::clone(id));
                } else if let Some(tasks) = self.tasks.read_mut() {
                    tasks.remove(id);
                }
                self.forgive();
            }
            Err(error) => {
                if !healthy && error.kind.may_come_late() {
                    mark.late_until = Some(now + LATEST_EFFECT);
                }
                mark.failures += 1;
                mark.not_before = Some(now + back_off(mark.failures));
                let denied = error.kind == ErrorKind::AccessDenied;
                if denied {
                    self.denied_until = Some(now + DENIED);
                    self.refused = Some((HidingTrouble::AccessDenied, error.to_string()));
                } else if mark.failures > HICCUPS {
                    self.refused = Some((HidingTrouble::Failed, format!("task {id}: {error}")));
                }
            }
        }
    }

    /// What became of it. `unchecked`: tasks should be hidden, and the service has no custom health check. `unrecorded`: why
    /// the record cannot be read or stored.
    pub(super) fn status(&self, unchecked: bool, unrecorded: Option<&str>) -> TargetTasks {
        let trouble = match (unrecorded, &self.refused) {
            _ if unchecked => Some((HidingTrouble::NoHealthCheck, String::new())),
            (Some(error), _) => Some((HidingTrouble::NotRecorded, error.to_owned())),
            (_, Some(refused)) => Some(refused.clone()),
            _ if self.full => Some((HidingTrouble::RecordFull, String::new())),
            _ if matches!(self.tasks, Tasks::WithoutHealth) => Some((HidingTrouble::Unread, String::new())),
            _ => None,
        };
        let hidden = self.hidden();
        let wanted = self.wanted.as_deref().unwrap_or_default();
        let is_hidden = |id: &Arc<str>| self.recorded.contains(id) && self.is_hidden(id);
        let all = self.wanted.is_some() && wanted.iter().all(is_hidden);
        let shown = self.recorded.iter().all(|id| self.is_wanted(id) || self.released.contains(id));
        TargetTasks {
            hidden,
            to_hide: wanted.iter().filter(|id| !is_hidden(id)).count(),
            showing: self.showing.is_some(),
            complete: all && shown && self.showing.is_none(),
            hides: self.count,
            trouble,
        }
    }
}

/// From when on a task is to be shown; `None`: it was.
fn shows_at(mark: Mark, now: Instant) -> Option<Instant> {
    if mark.is_shown() {
        return None;
    }
    // If it was shown, it may be hidden once more by a call whose end nobody saw.
    Some(mark.late_until.filter(|_| matches!(mark.said, Some((true, _)))).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It stayed in the record, and the next leader would have called it healthy, whatever ECS says.
    #[test]
    fn a_task_that_is_wanted_again_for_a_moment_before_the_record_is_stored_leaves_the_record() {
        let (id, now) = (Arc::<str>::from("task"), Instant::now());
        let mut tasks = HiddenTasks::default();
        tasks.loaded(vec![id.clone()], now);
        tasks.want(Vec::new());
        assert_eq!(tasks.next(|_| true, now), Next::Mark(id.clone(), true));
        tasks.marks(&id, true, now);
        tasks.marked(&id, true, Ok(()), now);
        tasks.want(vec![id]);
        tasks.want(Vec::new());
        assert!(tasks.tidy());
        assert!(tasks.content(&mut 1, &mut false).is_empty());
    }
}
