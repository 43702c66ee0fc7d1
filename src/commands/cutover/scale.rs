//! `finish --scale-ecs`: which ECS services may be stopped now (pure), and how they are.

use std::{collections::BTreeMap, io::Write, time::Duration};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use tokio::time::{Instant, sleep};

use super::{
    ecs_services::serves_others,
    situation::{ASSUMED, CloudMapService, Situation},
};
use api::{Cutover, CutoverPhase, conditions::HidingReason};
use cluster::reader::Unread;
use cutover::{Settle, hiding::stoppable_after};
use ecs::{Controller, Ecs, Error, Found, Service};
use model::ServiceKey;

/// Why no task of a name is stopped now, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    /// This passes by itself: time or the controller does it.
    #[error("{0}: run this again later")]
    Later(String),
    /// Somebody has to do something.
    #[error("{0}")]
    Never(String),
}

impl Refusal {
    /// Why no task is stopped while something is not read.
    pub(super) fn of_unread(why: &Unread, text: String) -> Self {
        if why.may_pass() { Self::Later(text) } else { Self::Never(text) }
    }
}

impl From<String> for Refusal {
    fn from(why: String) -> Self {
        Self::Never(why)
    }
}

/// How often ECS is asked whether tasks still run.
const LOOK: Duration = Duration::from_secs(5);
/// Until answers of ECS show a desired count that was set. AWS documents no bound.
const LAG: Duration = Duration::from_secs(30);

/// The ECS services of a name whose tasks may be stopped now; none if none runs a task. `now` is the time of the API server's
/// clock, or why it is not known.
///
/// # Errors
/// Why no task may be stopped, and what to do.
pub(super) fn stoppable(
    situation: &Situation,
    now: Result<Timestamp, &Unread>,
    force: bool,
) -> Result<Vec<Service>, Refusal> {
    let key = &situation.key;
    let registry = situation.registry.as_ref().map_err(|why| format!("{key}: no task is stopped: {why}"))?;
    let Some(there) = &registry.service else {
        return Err(format!("{key}: its Cloud Map service is not found, so nobody knows which tasks to stop").into());
    };
    // Tasks of another name may be in a service that is only assumed.
    if let Some(assumed) = situation.assumed() {
        return Err(format!("{key}: no task is stopped: {assumed}: {ASSUMED}").into());
    }
    let Found { services, unread } = match &situation.ecs {
        Err(why) => return Err(format!("{key}: no task is stopped, because ECS could not be read: {why}").into()),
        Ok(None) => {
            return Err(format!("{key}: ECS is not asked with --cloudmap-endpoint alone: add --ecs-endpoint").into());
        }
        Ok(Some(found)) => found,
    };
    if let Some(why) = unread.as_ref().filter(|_| services.is_empty()) {
        return Err(format!(
            "{key}: no task is stopped, because no ECS service that was read registers there, and {why}. Grant what \
             `cloudmap-mcs iam --mode cutover` prints, or name the cluster with --ecs-cluster"
        )
        .into());
    }
    if services.is_empty() && situation.tasks(registry) > 0 {
        return Err(format!(
            "{key}: no ECS service that was read registers there, and others have instances: look at --region, \
             --ecs-cluster and --ecs-service"
        )
        .into());
    }
    let running: Vec<_> = services.iter().filter(|service| !service.is_at_zero()).cloned().collect();
    for service in running.iter().filter(|service| service.active) {
        if let Some(why) = hindered(service, &there.arn, force) {
            return Err(format!("{key}: {} is not stopped: {why}", service.path()).into());
        }
    }
    is_due(situation, now)?;
    no_task_is_visible(situation, registry)?;
    if !running.is_empty() {
        some_pod_is_ready(situation)?;
        are_hidden_if_wanted(situation, force)?;
    }
    Ok(running)
}

/// Not by force either: nobody would have the traffic. What is Finished stays so when its pods fail.
///
/// # Errors
/// No pod is ready; the text says what to do.
fn some_pod_is_ready(situation: &Situation) -> Result<(), String> {
    let key = &situation.key;
    if situation.pods.as_ref().is_ok_and(|pods| pods.ready == 0) {
        return Err(format!("{key}: no task is stopped while no pod is ready: repair the pods, or scale them"));
    }
    Ok(())
}

/// A user who hides tasks wants no request to fail. Steps go on while tasks cannot be hidden, but no task may be stopped then.
///
/// # Errors
/// Why the tasks cannot be hidden, and what to do.
fn are_hidden_if_wanted(situation: &Situation, force: bool) -> Result<(), String> {
    let Some(Condition { reason, message, .. }) = situation.cannot_hide().filter(|_| !force) else { return Ok(()) };
    let key = &situation.key;
    Err(format!(
        "{key}: no task is stopped, because the tasks cannot be hidden ({reason}): {message} With --force, they are stopped all \
         the same, and requests of clients that have just resolved fail"
    ))
}

/// Whether the Cutover is Finished, and no client uses hidden tasks any more, by what the Cutover says.
///
/// # Errors
/// Why no task may be stopped, and what to do.
pub(super) fn is_due(situation: &Situation, now: Result<Timestamp, &Unread>) -> Result<(), Refusal> {
    let key = &situation.key;
    match &situation.cutover {
        Err(why) => Err(Refusal::of_unread(why, format!("{key}: no task is stopped: {why}"))),
        Ok(Some(cutover)) if is_finished(cutover) => hidden_for_long_enough(situation, now),
        Ok(Some(cutover)) if finishes(cutover) => {
            Err(Refusal::Later(format!("{key}: no task is stopped before it is Finished")))
        }
        Ok(_) => Err(format!(
            "{key}: no task is stopped before it is Finished: look at `cloudmap-mcs cutover status`, and run this again when it \
             says so"
        )
        .into()),
    }
}

/// Whether the controller goes on by itself until it is Finished, once all traffic was asked for.
fn finishes(cutover: &Cutover) -> bool {
    use CutoverPhase::{Holding, Shifting, Waiting};
    let status = cutover.status.clone().unwrap_or_default();
    let goes_on = match status.phase {
        None | Some(Waiting | Shifting) => true,
        Some(Holding) => status.share_of_traffic == Some(100),
        Some(_) => false,
    };
    goes_on || status.observed_generation != cutover.metadata.generation
}

/// Whether it is Finished, by the spec that it has now.
pub(super) fn is_finished(cutover: &Cutover) -> bool {
    cutover.status.as_ref().is_some_and(|status| {
        status.phase == Some(CutoverPhase::Finished) && status.observed_generation == cutover.metadata.generation
    })
}

/// The command that waits until all tasks are hidden. By itself, kubectl gives up after 30 s.
pub(super) fn wait_until_hidden(key: &ServiceKey) -> String {
    let ServiceKey { namespace, name } = key;
    format!("kubectl wait cutovers/{name} --namespace {namespace} --for=condition=TasksHidden --timeout=10m")
}

/// Whether no client uses the hidden tasks any more.
fn hidden_for_long_enough(situation: &Situation, now: Result<Timestamp, &Unread>) -> Result<(), Refusal> {
    let Some(cutover) = situation.hides() else { return Ok(()) };
    let (key, status) = (&situation.key, cutover.status.clone().unwrap_or_default());
    let says = |reason: HidingReason| status.conditions.iter().any(|said| reason.row().explains(said));
    let since = status.hidden_since.as_ref().filter(|_| says(HidingReason::Hidden));
    if since.is_none() && !says(HidingReason::NoneToHide) {
        return Err(Refusal::Later(format!("{key}: its tasks are not hidden yet")));
    }
    let Some(since) = since else { return Ok(()) };
    let (settle, assumed) = match &situation.settings {
        Ok(settings) => (settings.settle(), String::new()),
        // What is stopped too early cannot be taken back.
        Err(why) => (
            Settle::LONGEST,
            format!(
                " (as with the longest --settle, {} s, because {why}; the condition TasksHidden has the time by the flag that \
                 is set)",
                Settle::LONGEST.as_secs()
            ),
        ),
    };
    let ttl = situation.registry.as_ref().map_or(0, CloudMapService::ttl);
    let wait = SignedDuration::try_from(stoppable_after(ttl, settle)).ok();
    let from = wait.and_then(|wait| since.0.checked_add(wait).ok()).unwrap_or(since.0);
    let waits = format!("{key}: its hidden tasks may be stopped from {from} on{assumed}");
    match now {
        Ok(now) if now >= from => Ok(()),
        Ok(_) => Err(Refusal::Later(format!("{waits}, by the API server's clock"))),
        Err(why) => {
            let text = format!(
                "{waits}, and the API server does not say what time it is: {why}. You may stop them yourself then, with the \
                 command that `finish` prints without --scale-ecs"
            );
            Err(Refusal::of_unread(why, text))
        }
    }
}

/// Whether Cloud Map shows no task that is to be hidden. The condition follows what the controller read last, which may be a
/// minute ago.
fn no_task_is_visible(situation: &Situation, registry: &CloudMapService) -> Result<(), Refusal> {
    let (key, tasks) = (&situation.key, registry.tasks);
    if situation.hides().is_some() && tasks > 0 {
        return Err(Refusal::Later(format!("{key}: {tasks} of its tasks are visible in Cloud Map")));
    }
    Ok(())
}

/// Why the desired count of a service is not to be set to 0.
pub(super) fn hindered(service: &Service, arn: &str, force: bool) -> Option<String> {
    if service.daemon {
        return Some("it has one task on each host (DAEMON): delete it, or stop the hosts".to_owned());
    }
    if service.controller == Controller::External {
        return Some("its tasks belong to an external deployment controller: stop them there".to_owned());
    }
    if force {
        return None;
    }
    if service.service_connect {
        return Some("clients reach its tasks through Service Connect: move these first, or use --force".to_owned());
    }
    serves_others(service, arn).map(|text| format!("{text}: move these first, or use --force"))
}

/// A service whose tasks are being stopped.
pub(super) struct Stopping {
    key: ServiceKey,
    service: Service,
    /// Whether an answer had a desired count of 0.
    fell: bool,
    /// How many tasks ran, as it was said last.
    running: u32,
}

impl Stopping {
    /// What was done.
    pub(super) fn begun(&self) -> String {
        let Self { key, service, .. } = self;
        if service.active {
            return format!("{key}: {} is to have 0 tasks; it had {}", service.path(), service.desired);
        }
        format!("{key}: {} is being deleted, and ECS stops its tasks", service.path())
    }
}

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
enum Progress {
    Stops,
    Done,
    /// The desired count is this again.
    Back(u32),
    /// So many tasks are left after all patience.
    Late(u32),
}

/// What an answer of ECS means, so long after the desired count was set. `fell`: an answer had a desired count of 0. Without
/// an answer, the service was deleted.
fn progress(seen: Option<&Service>, fell: bool, waited: Duration, patience: Duration) -> Progress {
    match seen {
        None => Progress::Done,
        Some(seen) if seen.is_at_zero() => Progress::Done,
        Some(seen) if seen.active && seen.desired > 0 && (fell || waited > LAG) => Progress::Back(seen.desired),
        Some(seen) if waited >= patience => Progress::Late(seen.running + seen.pending),
        Some(_) => Progress::Stops,
    }
}

/// Sets the desired count of a service to 0.
///
/// # Errors
/// Why it is not set.
pub(super) async fn begin(ecs: &dyn Ecs, key: &ServiceKey, service: Service) -> Result<Stopping, String> {
    // ECS refuses to change one that is being deleted.
    if service.active {
        let set = ecs.set_desired_count(&service.cluster, &service.name, 0).await;
        set.map_err(|error| format!("{key}: {}: {error}", service.path()))?;
    }
    Ok(Stopping { key: key.clone(), running: service.running, service, fell: false })
}

/// Waits until no task runs, for `patience` at most. What fails stops nothing else. Gives what failed, as texts.
///
/// # Errors
/// `out` cannot be written.
pub(super) async fn wait(
    ecs: &dyn Ecs,
    mut open: Vec<Stopping>,
    patience: Duration,
    out: &mut impl Write,
) -> anyhow::Result<Vec<String>> {
    let (mut failed, begun) = (Vec::new(), Instant::now());
    while !open.is_empty() {
        sleep(LOOK).await;
        let waited = begun.elapsed();
        let answers = look(ecs, &open).await;
        let mut rest = Vec::new();
        for mut stopping in open {
            let (key, path) = (&stopping.key, stopping.service.path());
            let answer = match answers.get(&stopping.service.cluster) {
                Some(Err(error)) if waited >= patience => {
                    failed.push(format!("{key}: {path}: {error}. It is to have 0 tasks; look yourself"));
                    continue;
                }
                Some(Ok(there)) => there.iter().find(|there| there.name == stopping.service.name),
                // It is asked again.
                Some(Err(_)) | None => {
                    rest.push(stopping);
                    continue;
                }
            };
            stopping.fell |= answer.is_some_and(|there| there.desired == 0);
            match progress(answer, stopping.fell, waited, patience) {
                Progress::Done => {
                    let look = stopping.service.look_for_autoscaling();
                    writeln!(
                        out,
                        "{key}: {path} has no task any more. Whether autoscaling would bring them back: {look}"
                    )?;
                }
                Progress::Back(count) => failed.push(came_back(key, &stopping.service, count)),
                Progress::Late(left) => failed.push(format!(
                    "{key}: {path} still has {left} tasks after {} s. ECS continues by itself: look at the events of the \
                     service, at stopTimeout of its containers and at the draining of its load balancers",
                    waited.as_secs()
                )),
                Progress::Stops => {
                    let running = answer.map_or(0, |there| there.running);
                    if running != stopping.running {
                        writeln!(out, "{key}: {path}: {running} tasks run")?;
                    }
                    rest.push(Stopping { running, ..stopping });
                }
            }
        }
        open = rest;
    }
    Ok(failed)
}

fn came_back(key: &ServiceKey, service: &Service, count: u32) -> String {
    format!(
        "{key}: something set the desired count of {} to {count} again: autoscaling, Terraform or a deployment. Look with \
         `{}`, set its minimum to 0 or change what deploys it, and run this again",
        service.path(),
        service.look_for_autoscaling()
    )
}

/// What ECS says of the services, by cluster.
async fn look(ecs: &dyn Ecs, open: &[Stopping]) -> BTreeMap<String, Result<Vec<Service>, Error>> {
    let mut clusters = BTreeMap::<String, Vec<String>>::new();
    for Stopping { service, .. } in open {
        clusters.entry(service.cluster.clone()).or_default().push(service.name.clone());
    }
    let mut answers = BTreeMap::new();
    for (cluster, names) in clusters {
        let answer = ecs.describe(&cluster, &names).await;
        answers.insert(cluster, answer);
    }
    answers
}

#[cfg(test)]
mod tests {
    use super::*;
    use ecs::{
        Operation,
        fake::{FakeEcs, mk_service},
    };

    const PATIENCE: Duration = Duration::from_mins(10);

    /// Stops all, and gives what was printed and what failed.
    async fn stopped(ecs: &FakeEcs) -> (String, Vec<String>) {
        let services = ecs.state().services.clone();
        let (mut out, mut open, mut failed) = (Vec::<u8>::new(), Vec::new(), Vec::new());
        for service in services {
            match begin(ecs, &ServiceKey::new("shop", &*service.name), service).await {
                Ok(stopping) => {
                    writeln!(out, "{}", stopping.begun()).unwrap();
                    open.push(stopping);
                }
                Err(why) => failed.push(why),
            }
        }
        failed.extend(wait(ecs, open, PATIENCE, &mut out).await.unwrap());
        (String::from_utf8(out).unwrap(), failed)
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_are_stopped_and_waited_for() {
        let ecs = FakeEcs::with([mk_service("prod", "orders", "a"), mk_service("test", "carts", "b")]);
        let (said, failed) = stopped(&ecs).await;
        assert_eq!(failed, [""; 0]);
        assert!(ecs.state().services.iter().all(Service::is_at_zero), "{:?}", ecs.state());
        for part in [
            "shop/orders: prod/orders is to have 0 tasks; it had 2\n",
            "prod/orders: 1 tasks run\n",
            "shop/carts: test/carts has no task any more",
            "describe-scalable-targets",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_is_being_deleted_is_only_waited_for() {
        let ecs = FakeEcs::with([Service { active: false, desired: 0, ..mk_service("prod", "orders", "a") }]);
        let (said, failed) = stopped(&ecs).await;
        assert_eq!(failed, [""; 0]);
        assert!(said.contains("prod/orders is being deleted") && said.contains("has no task any more"), "{said}");
        assert!(!ecs.state().calls.contains(&Operation::UpdateService), "ECS would refuse it");
    }

    #[tokio::test(start_paused = true)]
    async fn what_brings_tasks_back_is_said_with_its_remedy() {
        let ecs = FakeEcs::with([mk_service("prod", "orders", "a")]);
        ecs.state().restored = Some(2);
        let (_, failed) = stopped(&ecs).await;
        assert!(failed[0].contains("prod/orders to 2 again: autoscaling") && failed[0].contains("set its minimum"));
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_do_not_stop_are_not_waited_for_forever() {
        let ecs = FakeEcs::with([mk_service("prod", "orders", "a")]);
        ecs.state().stuck = true;
        let begun = Instant::now();
        let (_, failed) = stopped(&ecs).await;
        assert!(failed[0].contains("still has 2 tasks after 600 s") && begun.elapsed() < PATIENCE * 2, "{failed:?}");
        // One that is refused leaves the others alone.
        let ecs = FakeEcs::with([mk_service("prod", "orders", "a")]);
        ecs.deny(Operation::UpdateService);
        let (said, failed) = stopped(&ecs).await;
        assert!(said.is_empty() && failed[0].contains("ecs:UpdateService"), "{failed:?}");
        assert_eq!(ecs.state().calls, [Operation::UpdateService]);
    }

    #[test]
    fn an_answer_from_before_is_not_taken_for_somebody_who_raised_the_count() {
        let service = |desired, running| Service { desired, running, ..mk_service("prod", "orders", "a") };
        let after =
            |seconds, fell, service: &Service| progress(Some(service), fell, Duration::from_secs(seconds), PATIENCE);
        assert_eq!(after(5, false, &service(2, 2)), Progress::Stops);
        assert_eq!(after(35, false, &service(2, 2)), Progress::Back(2));
        assert_eq!(after(5, true, &service(3, 0)), Progress::Back(3));
        assert_eq!(after(5, true, &service(0, 1)), Progress::Stops);
        assert_eq!(after(600, true, &service(0, 1)), Progress::Late(1));
        assert_eq!(after(5, true, &service(0, 0)), Progress::Done);
        assert_eq!(progress(None, true, Duration::ZERO, PATIENCE), Progress::Done, "it was deleted");
        let deleted = |running| Service { active: false, ..service(2, running) };
        assert_eq!(after(35, false, &deleted(1)), Progress::Stops, "its desired count says nothing");
        assert_eq!(after(35, false, &deleted(0)), Progress::Done);
    }

    #[test]
    fn what_serves_others_or_has_no_number_of_tasks_is_left_alone() {
        let with = |change: fn(&mut Service), force| {
            let mut service = mk_service("prod", "orders", "a");
            change(&mut service);
            hindered(&service, "a", force)
        };
        assert_eq!(with(|_| {}, false), None);
        for (change, part, even_by_force) in [
            ((|it| it.daemon = true) as fn(&mut Service), "DAEMON", true),
            (|it| it.controller = Controller::External, "external", true),
            (|it| it.service_connect = true, "Service Connect", false),
            (|it| it.load_balancers = 1, "a load balancer", false),
        ] {
            let why = with(change, false).unwrap();
            assert!(why.contains(part) && why.contains("--force") != even_by_force, "{why}");
            assert_eq!(with(change, true).is_some(), even_by_force, "{part}");
        }
    }
}
