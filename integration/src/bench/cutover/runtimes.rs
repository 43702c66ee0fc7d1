//! Clients of other runtimes: programs that resolve as a C library, Go, Node or the JVM does, and open a connection for each
//! request, and those that resolve as gRPC, nginx and HAProxy do. `integration/clients` has their sources, and
//! `integration/cutover-bench.sh` says which run.

use std::{
    process::{ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{
    io::AsyncReadExt as _,
    process::{Child, Command},
    time::timeout,
};

use super::{CutoverPlan, PORT, ZONE, objects};
use crate::bench::figure::Figure;

/// Each sends this part of the requests that clients which resolve again send.
const PART: f64 = 0.1;
/// From the end of its input until a client has ended: longer than any request takes.
const PATIENCE: Duration = Duration::from_mins(2);

/// The clients that run. They end when they are dropped.
#[derive(Debug)]
pub(super) struct Runtimes {
    /// By the name of the runtime.
    running: Vec<(String, Child)>,
    /// Whether no request may fail.
    promised: bool,
}

impl Runtimes {
    /// Starts the programs of the folder, each of which has the name of its runtime.
    pub(super) fn start(plan: &CutoverPlan) -> Result<Self> {
        let mut running = Vec::new();
        let pause = Duration::from_secs_f64(1.0 / (PART * f64::from(plan.rate)));
        let arguments = [PORT.to_string(), pause.as_millis().to_string()];
        let names = (0..plan.services).map(|number| format!("{}.{ZONE}", objects::name(number)));
        let arguments: Vec<String> = arguments.into_iter().chain(names).collect();
        for entry in plan.clients.iter().map(std::fs::read_dir).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
            let entry = entry?;
            let mut program = Command::new(entry.path());
            program.args(&arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            let child = program.spawn().with_context(|| format!("failed to run {}", entry.path().display()))?;
            running.push((entry.file_name().to_string_lossy().into_owned(), child));
        }
        running.sort_by(|(left, _), (right, _)| left.cmp(right));
        Ok(Self { running, promised: plan.hide_tasks })
    }

    /// Ends them. Gives what became of their requests.
    pub(super) async fn stop(self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for (runtime, mut child) in self.running {
            drop(child.stdin.take());
            let ended = async {
                let mut printed = String::new();
                if let Some(output) = &mut child.stdout {
                    output.read_to_string(&mut printed).await?;
                }
                anyhow::Ok((child.wait().await?, printed))
            };
            let ended = timeout(PATIENCE, ended).await.with_context(|| format!("not within {PATIENCE:?}"));
            let (status, printed) = ended.flatten().with_context(|| format!("the client of {runtime} did not end"))?;
            let (requests, failed) = tally(status, &printed).with_context(|| format!("the client of {runtime}"))?;
            figures.push(Figure::for_scale(format!("{runtime}_requests"), f64::from(requests), "requests"));
            let target = self.promised.then_some(0.0);
            figures.push(Figure::new(format!("{runtime}_failed"), f64::from(failed), "requests", target));
        }
        Ok(figures)
    }
}

/// The numbers of requests and of those that failed, which a client printed.
fn tally(status: ExitStatus, printed: &str) -> Result<(u32, u32)> {
    ensure!(status.success(), "{status}");
    let (requests, failed) = printed.trim().split_once(' ').with_context(|| format!("it printed {printed:?}"))?;
    let (requests, failed) = (requests.parse()?, failed.parse()?);
    ensure!(requests > 0, "it sent no request");
    Ok((requests, failed))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_client_that_failed_or_sent_nothing_is_an_error() {
        let ended = |status: i32, printed| tally(ExitStatus::from_raw(status << 8), printed).ok();
        assert_eq!(ended(0, "120 3\n"), Some((120, 3)));
        for (status, printed) in [(1, "120 3\n"), (0, "0 0\n"), (0, ""), (0, "120"), (0, "many 0")] {
            assert_eq!(ended(status, printed), None, "{status} {printed:?}");
        }
    }
}
