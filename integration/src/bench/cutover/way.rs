//! The way there and back, as a user goes it.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::{
    CutoverBench, CutoverPlan,
    course::{self, Course, Seen},
    objects,
    program::Program,
    trouble::Trouble,
};
use crate::ecs::EcsApi;

/// How long each part took.
pub(super) type Times = Vec<(&'static str, Duration)>;

impl CutoverBench {
    /// All traffic goes to the pods, and the tasks stop.
    pub(super) async fn there(
        &self,
        program: &Program,
        course: &Course,
        mut trouble: Option<&mut Trouble<'_>>,
    ) -> Result<Times> {
        let plan = &self.plan;
        let mut times = Times::new();
        let begun = Instant::now();
        program.run("plan", &["--all"], &[0, 1]).await?;
        times.push(("plan", begun.elapsed()));

        let begun = Instant::now();
        plan.start(program).await?;
        let finished = async {
            let finished = |seen: &Seen| !seen.is_guarded() && seen.is("Finished");
            course.until("all are Finished", plan.moved(), finished).await?;
            anyhow::Ok(begun.elapsed())
        };
        let time = match &mut trouble {
            Some(trouble) => tokio::try_join!(finished, Box::pin(trouble.in_steps()))?.0,
            None => finished.await?,
        };
        times.push(("start_to_finished", time));

        let stop = Instant::now();
        if let Some(trouble) = &mut trouble {
            Box::pin(trouble.with_hidden_tasks()).await?;
        }
        self.stop_tasks(program, course, begun, &mut times).await?;
        times.push(("finished_to_stopped", stop.elapsed()));
        if let Some(trouble) = &mut trouble {
            trouble.without_tasks().await?;
        }
        // Clients that noticed nothing yet have the time to do so.
        tokio::time::sleep(Duration::from_secs(plan.ttl.into()) + course::SETTLE).await;
        Ok(times)
    }

    /// Stops the tasks when they may be stopped.
    async fn stop_tasks(&self, program: &Program, course: &Course, begun: Instant, times: &mut Times) -> Result<()> {
        let plan = &self.plan;
        if plan.hide_tasks {
            let hidden = |seen: &Seen| !seen.is_guarded() && seen.has_hidden(plan.tasks);
            course.until("all tasks are hidden", plan.moved(), hidden).await?;
            course.wait_until_stoppable(plan.ttl, plan.settle).await?;
        }
        times.push(("start_to_stoppable", begun.elapsed()));
        let mut flags = plan.chosen(false);
        flags.push("--scale-ecs".to_owned());
        // Tasks that ECS reported as healthy meanwhile were hidden again, and clients may still use them: it waits for these.
        program.run("finish", &flags, &[0]).await
    }

    /// All traffic goes to tasks again.
    pub(super) async fn back(&self, program: &Program, course: &Course, api: &EcsApi) -> Result<Times> {
        let begun = Instant::now();
        self.raise(api).await?;
        program.run("back", &["--all"], &[0]).await?;
        course.until("all are RolledBack", self.plan.services, |seen| seen.is("RolledBack")).await?;
        let time = begun.elapsed();
        tokio::time::sleep(Duration::from_secs(self.plan.ttl.into()) + course::SETTLE).await;
        Ok(vec![("back", time)])
    }
}

impl CutoverPlan {
    /// Begins all Cutovers.
    async fn start(&self, program: &Program) -> Result<()> {
        let steps = self.steps.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let every = format!("{}s", self.every.as_secs());
        let hide = self.hide_tasks.then(|| "--hide-tasks".to_owned());
        let mut flags = vec!["--steps".to_owned(), steps, "--every".to_owned(), every];
        flags.extend(hide);
        let mut arguments = self.chosen(false);
        arguments.extend_from_slice(&flags);
        program.run("start", &arguments, &[0]).await?;
        if self.trouble {
            let mut arguments = self.chosen(true);
            arguments.extend(flags);
            arguments.push("--guard".to_owned());
            program.run("start", &arguments, &[0]).await?;
        }
        Ok(())
    }

    /// The arguments that choose the Cutovers without a guard, or those with one.
    fn chosen(&self, guarded: bool) -> Vec<String> {
        if !self.trouble {
            return vec!["--all".to_owned()];
        }
        let chosen = (0..self.services).filter(|service| self.is_guarded(*service) == guarded);
        chosen.map(objects::name).collect()
    }
}
