//! What goes wrong on the day of a move, and when. One thing follows the other: of two at once nothing is promised, except
//! where pods end and the leader is killed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use instances::Share;

use super::{
    CutoverPlan,
    course::{self, Course, Seen},
    leaders::Leaders,
    objects::Objects,
    pods::{Image, ZONES},
    shares::Shares,
};
use crate::bench::{
    figure::Figure,
    registry::{Registry, calls_between},
};

/// One service of so many gets a bad image.
const GUARDED: usize = 10;
/// Of the others, one of so many rolls at a time.
const ROUNDS: usize = 3;
/// Those that roll in this round have one pod more for a while.
const SCALED: usize = 1;
/// From the first new pod of a roll-out until the leader is killed: the first old pods were just deleted.
const MIDDLE: Duration = Duration::from_secs(3);
/// How long AWS throttles.
const THROTTLED: Duration = Duration::from_secs(75);
/// Leaders that are killed: one in a step, and one while tasks are hidden.
const KILLS: usize = 2;
/// How often pods are taken away.
const SCALED_IN: usize = 2;

impl CutoverPlan {
    /// Whether the Cutover of a service has a guard, and its pods get a bad image.
    pub(super) fn is_guarded(&self, service: usize) -> bool {
        self.trouble && service.is_multiple_of(GUARDED)
    }

    /// Number of services whose tasks stop: those without a bad image.
    pub(super) fn moved(&self) -> usize {
        (0..self.services).filter(|service| !self.is_guarded(*service)).count()
    }

    /// Whether the pods of a service roll in this round. Each service that moves does so in one of them.
    fn rolls(&self, service: usize, round: usize) -> bool {
        !self.is_guarded(service) && service % ROUNDS == round
    }

    /// Whether there can be trouble.
    ///
    /// # Errors
    /// What is too small, or too large.
    pub(super) fn allows_trouble(&self) -> Result<()> {
        ensure!(self.services > ROUNDS, "with trouble there have to be {} services or more", ROUNDS + 1);
        ensure!(self.pods >= ZONES.len(), "with trouble, a service has to have a pod in each of {} zones", ZONES.len());
        let first = self.steps.first().copied().unwrap_or_default();
        ensure!(
            Share::percent(first).number(self.tasks) <= self.pods,
            "at {first} % beside {} tasks, more than {} pods have traffic: then a bad one has it before the guard sees it. \
             Begin with a smaller step",
            self.tasks,
            self.pods
        );
        Ok(())
    }
}

/// What was done.
#[derive(Debug, Default)]
struct Done {
    rolled_out: usize,
    scaled_in: usize,
    drained: usize,
    stopped: usize,
    taken_back: usize,
    /// From the first bad pod until the last of the Cutovers was rolled back.
    guard: Duration,
    api_server_restarts: usize,
    api_server_away: Duration,
    /// How often AWS throttled, and how many calls of the controller it refused.
    throttled: usize,
    refused: u64,
}

/// What is to go wrong.
pub(super) struct Trouble<'a> {
    plan: &'a CutoverPlan,
    objects: &'a Objects,
    course: &'a Course,
    shares: &'a Shares,
    registry: Registry,
    leaders: Leaders,
    done: Done,
}

impl<'a> Trouble<'a> {
    /// Starts a second replica.
    pub(super) async fn new(
        plan: &'a CutoverPlan,
        objects: &'a Objects,
        course: &'a Course,
        shares: &'a Shares,
    ) -> Result<Self> {
        let (registry, leaders) = (Registry::new(&plan.registry)?, Leaders::new(plan).await?);
        Ok(Self { plan, objects, course, shares, registry, leaders, done: Done::default() })
    }

    /// While the steps go on.
    pub(super) async fn in_steps(&mut self) -> Result<()> {
        let (plan, objects, course) = (self.plan, self.objects, self.course);
        course.until("the first step lasts for all", plan.services, |seen| seen.has_lasted(1)).await?;
        tracing::info!("some services get one pod more, and some a bad image");
        objects.scale_out(|service| plan.rolls(service, SCALED), Image::Good).await?;
        self.bad_image().await?;
        tracing::info!("some services roll, and the leader is killed");
        let rolled = objects.roll_out(|service| plan.rolls(service, 0));
        let (rolled, ()) = tokio::try_join!(rolled, self.leaders.kill(MIDDLE))?;
        self.done.rolled_out += rolled;
        self.withdrawn().await?;
        tracing::info!("the API server is restarted");
        self.done.api_server_away = self.leaders.restart_api_server().await?;
        self.done.api_server_restarts += 1;

        let moved = |seen: &Seen| !seen.is_guarded() && seen.has_lasted(2);
        course.until("the second step lasts for all", plan.moved(), moved).await?;
        tracing::info!("some services have one pod less, and a zone is drained");
        self.done.scaled_in += objects.scale_in(|service| plan.rolls(service, SCALED)).await?;
        self.done.drained += objects.drain().await?;
        self.withdrawn().await?;
        self.throttle().await
    }

    /// While all tasks are hidden and run.
    pub(super) async fn with_hidden_tasks(&mut self) -> Result<()> {
        let (plan, objects) = (self.plan, self.objects);
        let hidden = |seen: &Seen| !seen.is_guarded() && seen.has_hidden(plan.tasks);
        self.course.until("all tasks are hidden", plan.moved(), hidden).await?;
        self.shares.pause(false);
        tracing::info!("the leader is killed, and some services roll");
        self.leaders.kill(Duration::ZERO).await?;
        self.done.rolled_out += objects.roll_out(|service| plan.rolls(service, 1)).await?;
        Ok(())
    }

    /// While there is no task any more.
    pub(super) async fn without_tasks(&mut self) -> Result<()> {
        let (plan, objects) = (self.plan, self.objects);
        tracing::info!("some services roll, and some have one pod less");
        self.done.rolled_out += objects.roll_out(|service| plan.rolls(service, 2)).await?;
        self.done.scaled_in += objects.scale_in(|service| plan.rolls(service, SCALED)).await?;
        self.done.stopped = objects.stopped().await?;
        self.done.taken_back = self.course.count(Seen::was_taken_back);
        Ok(())
    }

    /// Pods with a bad image come and are ready. The old ones stay, as `minReadySeconds` of a Deployment has it. The guard
    /// takes the traffic back, and then somebody takes the image back.
    async fn bad_image(&mut self) -> Result<()> {
        let (plan, begun) = (self.plan, Instant::now());
        let is_guarded = |service| plan.is_guarded(service);
        self.objects.scale_out(is_guarded, Image::Bad).await?;
        let guarded = plan.services - plan.moved();
        self.course.until("the guard took the traffic back", guarded, Seen::was_taken_back).await?;
        self.done.guard = begun.elapsed();
        self.objects.scale_in(is_guarded).await.map(drop)
    }

    /// Waits until no pod that ends is registered any more.
    async fn withdrawn(&self) -> Result<()> {
        course::until("no pod that ends is registered", async || {
            let registered = self.registry.addresses().await?;
            Ok(self.objects.ending().await.is_disjoint(&registered))
        })
        .await
    }

    /// AWS refuses all calls of the controller for a while, and some services have one pod more meanwhile.
    async fn throttle(&mut self) -> Result<()> {
        let (plan, caller) = (self.plan, self.plan.controller.id.as_str());
        tracing::info!("AWS throttles for {THROTTLED:?}");
        // Until all is registered, the Cutovers say what is wanted, and clients do not find it yet.
        self.shares.pause(true);
        self.registry.throttle(caller).await?;
        let before = self.registry.counters().await?;
        self.objects.scale_out(|service| plan.rolls(service, SCALED), Image::Good).await?;
        tokio::time::sleep(THROTTLED).await;
        let after = self.registry.counters().await?;
        self.registry.relieve().await?;
        self.done.refused = calls_between(&before, &after, caller).values().sum();
        self.done.throttled += usize::from(self.done.refused > 0);
        Ok(())
    }

    /// What was done, which has to be all of it.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let (plan, done) = (self.plan, &self.done);
        let all = |name: &str, number: usize, unit: &'static str, expected: usize| {
            Figure::exactly(name, number as f64, unit, expected as f64)
        };
        let scaled = (0..plan.services).filter(|service| plan.rolls(*service, SCALED)).count();
        let (guarded, takeovers) = (plan.services - plan.moved(), &self.leaders.takeovers);
        let longest = takeovers.iter().max().copied().unwrap_or_default();
        vec![
            all("trouble_rollouts", done.rolled_out, "services", plan.moved()),
            all("trouble_scaled_in", done.scaled_in, "pods", SCALED_IN * scaled),
            all("trouble_drained", done.drained, "pods", plan.services * (plan.pods / ZONES.len())),
            Figure::for_scale("trouble_pods_stopped", done.stopped as f64, "pods"),
            all("rolled_back_by_guard", done.taken_back, "services", guarded),
            Figure::for_scale("guard_took", done.guard.as_secs_f64(), "s"),
            all("leaders_killed", takeovers.len(), "leaders", KILLS),
            Figure::for_scale("takeover_longest", longest.as_secs_f64(), "s"),
            all("api_server_restarts", done.api_server_restarts, "restarts", 1),
            Figure::for_scale("api_server_away", done.api_server_away.as_secs_f64(), "s"),
            all("registry_throttled", done.throttled, "times", 1),
            Figure::for_scale("calls_throttled", done.refused as f64, "calls"),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, path::PathBuf};

    use cutover::Settle;

    use super::*;

    fn mk_plan(services: usize, tasks: usize, steps: &[u8]) -> CutoverPlan {
        CutoverPlan {
            controller: "id=a,context=b,pid=1,admin=http://127.0.0.1:1".parse().unwrap(),
            registry: String::new(),
            resolver: Ipv4Addr::LOCALHOST.into(),
            program: PathBuf::new(),
            first_address: Ipv4Addr::LOCALHOST,
            services,
            tasks,
            pods: 2,
            ttl: 10,
            steps: steps.to_vec(),
            every: Duration::ZERO,
            hide_tasks: true,
            settle: Settle::default(),
            reports: None,
            rate: 1,
            seed: 1,
            trouble: true,
            clients: None,
            host: None,
        }
    }

    #[test]
    fn each_service_that_moves_rolls_once_and_one_with_a_bad_image_never() {
        let plan = mk_plan(20, 2, &[25, 100]);
        let rolls = |service| (0..ROUNDS).filter(|round| plan.rolls(service, *round)).count();
        for service in 0..plan.services {
            assert_eq!(rolls(service), usize::from(!plan.is_guarded(service)), "{service}");
        }
        assert_eq!(plan.moved(), 18);
        assert_eq!(CutoverPlan { trouble: false, ..plan }.moved(), 20);
    }

    #[test]
    fn a_bad_pod_must_not_have_traffic_at_the_first_step() {
        for (tasks, first, allowed) in [(2, 25, true), (2, 50, true), (2, 67, false), (8, 25, true), (8, 50, false)] {
            let plan = mk_plan(20, tasks, &[first, 100]);
            assert_eq!(plan.allows_trouble().is_ok(), allowed, "{first} % beside {tasks}");
        }
        assert!(mk_plan(20, 2, &[100]).allows_trouble().is_err());
        assert!(mk_plan(3, 2, &[25, 100]).allows_trouble().is_err());
    }
}
