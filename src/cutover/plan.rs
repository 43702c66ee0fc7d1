//! The state machine of a Cutover.

use std::time::Duration;

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};

use super::{
    course::{Course, Settle},
    guard::{Guard, Judgement},
    hiding::{self, Tasks},
    standing::{Facing, spelled},
};
use api::{
    CutoverPhase, CutoverSpec, CutoverStatus, GuardFailure,
    conditions::{CutoverReason, SharedCondition, Verdict, conditions},
    events::EventReason,
    names::ANNOTATION_SHARE_OF_TRAFFIC,
};
use instances::{Share, Traffic};
use model::{Target, capitalized};

/// The time that is counted is written this often at least, in parts of the interval.
const PARTS: u32 = 4;

/// What is known beside the spec and the status.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    /// The generation of the spec.
    pub generation: Option<i64>,
    /// What the annotation requests, from which the Cutover goes on if it has no share yet.
    pub annotation: Traffic,
    /// What it is about.
    pub facing: &'a Facing,
    /// The name of a Cutover of a lower wave that is not finished.
    pub awaits: Option<&'a str>,
    /// What the guard says of the share of the status; `None` where it does not look ([`looks`]).
    pub guard: Option<&'a Judgement>,
    /// Whether the controller may hide tasks (`--hide-tasks`), and when it hid the last one ([`hiding::LastMark`]).
    pub may_hide: bool,
    /// A target in which no administrator allows that tasks of others are hidden.
    pub ungranted: Option<&'a Target>,
    /// By how much clients are late.
    pub settle: Settle,
    /// See `may_hide`.
    pub hidden_since: Option<Timestamp>,
    /// For how long the share of the status has been reached, and the guard found nothing wrong, by the leader's own clock.
    pub waited: Duration,
    /// The wall clock.
    pub now: Timestamp,
}

/// The next status, and the Events to emit when it is written.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The status.
    pub status: CutoverStatus,
    /// Reasons and texts.
    pub news: Vec<(EventReason, String)>,
}

/// Where a Cutover goes.
struct Next {
    share: Option<u8>,
    phase: CutoverPhase,
    reason: CutoverReason,
    message: String,
}

/// The next status. `None` if the present one is right, or if too little is known for another one.
///
/// - A step begins only when the share of the one before has been reached for its interval, in all targets, with pods that
///   are all ready. Only the status counts as begun, so no step is left out, whoever leads.
/// - What is invalid or missing raises no share.
/// - The share falls only because the user said so, or because the guard found something wrong.
pub fn plan(spec: &CutoverSpec, status: &CutoverStatus, observed: &Observed<'_>) -> Option<Planned> {
    let share = status.share_of_traffic.map(|share| u8::try_from(share.clamp(0, 100)).unwrap_or_default());
    let course = Course::read(spec);
    let failure = failure(spec, status, observed);
    let why = failure.as_ref().map(|failure| &*failure.message);
    let Next { share: next, phase, reason, message } = next(spec, status, observed, (share, why), course.as_ref());
    let moved = next != share;
    if !moved && !observed.facing.is_known() && status.observed_generation == observed.generation {
        return None;
    }
    let verdict = Verdict::new(reason, message);
    let before: Vec<_> = status.conditions.iter().map(SharedCondition::from).collect();
    let mut news: Vec<_> = verdict.news(&before).map(|event| (event, verdict.message.clone())).into_iter().collect();
    if let Some(next) = next.filter(|_| moved) {
        let before = share.map_or_else(String::new, |share| format!(", after {share} %"));
        news.insert(0, (EventReason::StepBegun, format!("{next} % of the traffic is requested{before}.")));
    }
    let Tasks { verdict: tasks, hidden, since } = hiding::tasks(spec, (status, next), observed, &before);
    news.extend(tasks.as_ref().and_then(|tasks| Some((tasks.news(&before)?, tasks.message.clone()))));
    let shares = observed.facing.reached();
    let (reached, reachable) = (shares.map(|(reached, _)| spelled(reached)), shares.map(|(_, most)| spelled(most)));
    let known = |said: Option<String>, before: &Option<String>| said.or_else(|| before.clone());
    let planned = CutoverStatus {
        observed_generation: observed.generation,
        phase: Some(phase),
        step: next.and_then(|share| i64::try_from(course.as_ref().ok()?.count(share)).ok()).or(status.step),
        share_of_traffic: next.map(i64::from),
        step_since: if moved {
            Timestamp::from_second(observed.now.as_second()).ok().map(Time)
        } else {
            status.step_since.clone()
        },
        waited_seconds: match course.as_ref().ok() {
            // Whatever brought it there, its guard has nothing left to look at.
            Some(course) if phase == CutoverPhase::Finished => {
                i64::try_from(course.interval(observed.facing.ttl(), observed.settle).as_secs()).ok()
            }
            _ if moved => None,
            course => counted(status, observed, course),
        },
        reached: known(reached, &status.reached),
        reachable: known(reachable, &status.reachable),
        hidden,
        hidden_since: since,
        guard_failure: failure,
        conditions: conditions(&before, [verdict].into_iter().chain(tasks), observed.generation, observed.now),
    };
    (planned != *status).then_some(Planned { status: planned, news })
}

/// The guard of a Cutover, if it looks now: while the steps go on by themselves. `ttl`: of the records, in seconds, as far as it
/// is known. `settle`: by how much clients are late.
pub fn looks(
    spec: &CutoverSpec,
    status: &CutoverStatus,
    generation: Option<i64>,
    ttl: u32,
    settle: Settle,
) -> Option<Guard> {
    let by_user = spec.roll_back || spec.paused || spec.share_of_traffic.is_some();
    if by_user || known_failure(spec, status, generation).is_some() {
        return None;
    }
    let course = Course::read(spec).ok()?;
    // One that was finished, and blocked since, has counted the last interval: the tasks may be gone.
    let is_over =
        status.phase == Some(CutoverPhase::Finished) || counted_before(status) >= course.interval(ttl, settle);
    course.guard.filter(|_| !is_over || status.share_of_traffic != Some(100))
}

/// What the guard found earlier. It counts until the spec changes.
fn known_failure<'a>(
    spec: &CutoverSpec,
    status: &'a CutoverStatus,
    generation: Option<i64>,
) -> Option<&'a GuardFailure> {
    let failure = status.guard_failure.as_ref().filter(|_| !spec.roll_back && spec.guard.is_some())?;
    (failure.generation == generation.unwrap_or_default()).then_some(failure)
}

/// What the guard found earlier, or finds now.
fn failure(spec: &CutoverSpec, status: &CutoverStatus, observed: &Observed<'_>) -> Option<GuardFailure> {
    let generation = observed.generation;
    let found = match observed.guard {
        Some(Judgement::Failed(why)) => {
            Some(GuardFailure { generation: generation.unwrap_or_default(), message: why.clone() })
        }
        Some(Judgement::Passed | Judgement::Unknown(_)) | None => None,
    };
    known_failure(spec, status, generation).cloned().or(found)
}

/// The counted time that a status has.
fn counted_before(status: &CutoverStatus) -> Duration {
    Duration::from_secs(u64::try_from(status.waited_seconds.unwrap_or_default()).unwrap_or_default())
}

/// The counted time that the next status has: it is written now and then, and not each second.
fn counted(status: &CutoverStatus, observed: &Observed<'_>, course: Option<&Course>) -> Option<i64> {
    let interval = course?.interval(observed.facing.ttl(), observed.settle);
    let before = counted_before(status);
    let waited = observed.waited.min(interval);
    let due = waited >= before + interval / PARTS || waited == interval && before < interval;
    if due { i64::try_from(waited.as_secs()).ok() } else { status.waited_seconds }
}

/// What keeps a Cutover from moving any traffic, as a sentence.
fn obstacle(spec: &CutoverSpec, facing: &Facing, course: Result<&Course, &String>) -> Option<(CutoverReason, String)> {
    match (facing, course) {
        (Facing::NoObject, _) => {
            let why = "There is no ServiceExport, and no annotated Service or Ingress, of this name in the namespace: create \
                       one that names the Cloud Map service.";
            Some((CutoverReason::NoObject, why.to_owned()))
        }
        (Facing::NotRegistered(why), _) => Some((CutoverReason::NotRegistered, sentence(why))),
        (_, Err(why)) if !spec.roll_back => Some((CutoverReason::InvalidSpec, format!("{}.", capitalized(why)))),
        _ => None,
    }
}

fn next(
    spec: &CutoverSpec,
    status: &CutoverStatus,
    observed: &Observed<'_>,
    (share, failure): (Option<u8>, Option<&str>),
    course: Result<&Course, &String>,
) -> Next {
    let facing = observed.facing;
    // Down is possible whatever else is wrong: pods may be registered all the same.
    let down = if spec.roll_back || failure.is_some() {
        Some(0)
    } else {
        course.ok().and_then(|course| course.held).filter(|held| share.is_some_and(|share| *held <= share))
    };
    let share = down.or(share);
    if let Some((reason, why)) = obstacle(spec, facing, course) {
        let counts = down.map_or_else(
            || "The share stays as it is.".to_owned(),
            |down| format!("{down} % of the traffic is requested all the same."),
        );
        return Next { share, phase: CutoverPhase::Blocked, reason, message: format!("{why} {counts}") };
    }
    if spec.roll_back {
        let mut next = back(facing);
        if next.phase == CutoverPhase::RolledBack {
            next.message.push_str(" Without spec.rollBack, the first step begins.");
        }
        return next;
    }
    let Ok(course) = course else { return back(facing) };
    // What is finished stays so, whatever pods come and go.
    let stays_finished = status.phase == Some(CutoverPhase::Finished) && share == Some(100);
    let stays = |phase, reason, message| Next { share, phase, reason, message };
    if let Some(held) = course.held {
        let said = format!("{held} % holds, because spec.shareOfTraffic is set. {}", sentence(&facing.text()));
        if held == 100 && (stays_finished || facing.stands_at(100).is_ok()) {
            return finished(observed);
        }
        return Next { share: Some(held), phase: CutoverPhase::Holding, reason: CutoverReason::Held, message: said };
    }
    if let Some(why) = failure {
        let Next { share, phase, message, .. } = back(facing);
        let message = format!(
            "The guard took the traffic back: {} {message} The steps begin again when the spec changes: repair what is wrong, \
             then `cloudmap-mcs cutover resume`.",
            sentence(why)
        );
        return Next { share, phase, reason: CutoverReason::GuardFailed, message };
    }
    if stays_finished {
        return finished(observed);
    }
    if spec.paused {
        let message = format!("Paused, because spec.paused is set. {}", sentence(&facing.text()));
        return stays(CutoverPhase::Paused, CutoverReason::Paused, message);
    }
    let more = course.next(share.unwrap_or_default()).is_some();
    if let Some(name) = observed.awaits.filter(|_| more) {
        let message = format!(
            "Waiting until Cutover {name} is Finished, which has a lower wave. Finish it, delete it, or change one of the waves."
        );
        return stays(CutoverPhase::Waiting, CutoverReason::AwaitsWave, message);
    }
    step(course, observed, share)
}

/// Towards 0 %.
fn back(facing: &Facing) -> Next {
    let at = |phase, reason, message| Next { share: Some(0), phase, reason, message };
    match facing.stands_at(0) {
        Ok(()) => {
            let message = "No pod of this Service is registered any more.".to_owned();
            at(CutoverPhase::RolledBack, CutoverReason::RolledBack, message)
        }
        Err(_) if facing.is_known() && !facing.targets().is_empty() && facing.others() + facing.hidden() == 0 => {
            let message =
                "Nobody else has a healthy instance, and the name must not be empty: the registered pods keep the traffic. \
                           Start the tasks again."
                    .to_owned();
            at(CutoverPhase::RollingBack, CutoverReason::LastInstance, message)
        }
        Err((_, why)) => at(CutoverPhase::RollingBack, CutoverReason::RollingBack, why),
    }
}

/// All that is left is what others have. When the Cutover is deleted, the annotation counts.
fn finished(Observed { facing, annotation, .. }: &Observed<'_>) -> Next {
    let stays_all = [Traffic::All, Traffic::Share(Share::percent(100))].contains(annotation);
    let (reason, message) = match (facing.others(), facing.hidden()) {
        (0, 0) => {
            let end = if stays_all {
                "The Cutover may be deleted.".to_owned()
            } else {
                format!(
                    "Remove the annotation {ANNOTATION_SHARE_OF_TRAFFIC} before you delete the Cutover: its share would count \
                     again."
                )
            };
            let message = format!("All ready pods are registered, and nobody else has a healthy instance. {end}");
            (CutoverReason::Finished, message)
        }
        (_, 1..) if facing.tasks().any(|tasks| tasks.showing) => (
            CutoverReason::OthersServe,
            format!(
                "All ready pods are registered. {} The hidden tasks are being shown again, and then have a part of the traffic.",
                sentence(&facing.text())
            ),
        ),
        (_, 1..) => (
            CutoverReason::OthersServe,
            format!(
                "All ready pods are registered. {} The condition TasksHidden says from when on the tasks may be stopped; without \
                 this Cutover they would be shown again.",
                sentence(&facing.text())
            ),
        ),
        _ => (
            CutoverReason::OthersServe,
            format!(
                "All ready pods are registered. {} Stop the tasks when no client needs them: `cloudmap-mcs cutover finish` \
                 prints how.",
                sentence(&facing.text())
            ),
        ),
    };
    Next { share: Some(100), phase: CutoverPhase::Finished, reason, message }
}

/// From step to step.
fn step(course: &Course, observed: &Observed<'_>, share: Option<u8>) -> Next {
    let facing = observed.facing;
    let at = |share, phase, reason, message| Next { share: Some(share), phase, reason, message };
    let begin = |share: u8| {
        let message = format!("{share} % of the traffic is requested, {}.", numbered(course, share));
        at(share, CutoverPhase::Shifting, CutoverReason::Registering, message)
    };
    let before = share;
    let share = match (share, observed.annotation) {
        (Some(share), _) => share,
        // What the annotation requested stays, and the steps go on from there.
        (None, Traffic::Share(asked)) if asked.whole_percent() > 0 => return begin(asked.whole_percent()),
        (None, _) => 0,
    };
    let next = course.next(share);
    let unclear = |why: &str| {
        let message = format!("The guard has not found that all is well: {} The share stays as it is.", sentence(why));
        let reason = CutoverReason::GuardUnclear;
        Next { share: before, phase: CutoverPhase::Shifting, reason, message }
    };
    if let (0, Some(first)) = (share, next) {
        // No pod gets traffic before it was looked at.
        return match observed.guard {
            Some(Judgement::Unknown(why)) => unclear(why),
            _ => begin(first),
        };
    }
    if let Err((reason, why)) = facing.stands_at(share) {
        let message = format!("{}: {why}", capitalized(&numbered(course, share)));
        return at(share, CutoverPhase::Shifting, reason, message);
    }
    if let Some(Judgement::Unknown(why)) = observed.guard {
        return unclear(why);
    }
    let interval = course.interval(facing.ttl(), observed.settle);
    let then = match next {
        None if share < 100 => {
            let message = format!("The last step is reached. {}", sentence(&facing.text()));
            return at(share, CutoverPhase::Holding, CutoverReason::LastStep, message);
        }
        None if observed.guard.is_none() || observed.waited >= interval => return finished(observed),
        None => {
            format!(
                "The Cutover is finished {} after this step is reached, if the guard finds nothing wrong.",
                words(interval)
            )
        }
        Some(next) if observed.waited >= interval => return begin(next),
        Some(next) => {
            let raised = if interval > course.interval {
                format!(
                    " The interval of {} is too short: the TTL of {} s plus {} s counts instead.",
                    words(course.interval),
                    facing.ttl(),
                    observed.settle.as_secs()
                )
            } else {
                String::new()
            };
            format!("The next step, {next} %, begins {} after this one is reached.{raised}", words(interval))
        }
    };
    let message = format!("{}: {} {then}", capitalized(&numbered(course, share)), sentence(&facing.text()));
    at(share, CutoverPhase::Shifting, CutoverReason::Shifting, message)
}

fn numbered(course: &Course, share: u8) -> String {
    match course.count(share) {
        0 => "before the first step".to_owned(),
        number => format!("step {number} of {}", course.steps.len()),
    }
}

fn sentence(text: &str) -> String {
    if text.is_empty() || text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

fn words(time: Duration) -> String {
    SignedDuration::try_from(time).map_or_else(|_| String::new(), |time| format!("{time:#}"))
}
