//! `cloudmap-mcs cutover`, as a user runs it.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::{CutoverPlan, NAMESPACE, OPERATOR};
use crate::ecs::EcsApi;

/// The program, and where it works.
#[derive(Debug)]
pub(super) struct Program {
    path: PathBuf,
    context: String,
    registry: String,
    ecs: String,
}

impl Program {
    pub(super) fn new(plan: &CutoverPlan, api: &EcsApi) -> Self {
        Self {
            path: plan.program.clone(),
            context: plan.controller.context.clone(),
            registry: plan.registry.clone(),
            ecs: api.endpoint(),
        }
    }

    /// Runs a command and logs what it prints.
    ///
    /// # Errors
    /// Its exit status is none of these.
    pub(super) async fn run(&self, command: &str, arguments: &[impl AsRef<str>], statuses: &[i32]) -> Result<()> {
        let arguments: Vec<&str> = arguments.iter().map(AsRef::as_ref).collect();
        tracing::info!("cloudmap-mcs cutover {command} {}", arguments.join(" "));
        let mut process = Command::new(&self.path);
        process.args(["cutover", command, "--namespace", NAMESPACE, "--context", &self.context]).args(arguments);
        // `start` does not ask Cloud Map.
        if command != "start" {
            process.args(["--cloudmap-endpoint", &self.registry, "--ecs-endpoint", &self.ecs]);
            process.args(["--region", "eu-central-1"]);
        }
        process.env("AWS_ACCESS_KEY_ID", OPERATOR).env("AWS_SECRET_ACCESS_KEY", "none").env("NO_PROXY", "*");
        process.stdin(Stdio::null()).kill_on_drop(true);
        let ran = process.output().await.with_context(|| format!("failed to run {}", self.path.display()))?;
        let said = String::from_utf8_lossy(&ran.stdout);
        tracing::debug!("it printed:\n{said}");
        let is_good = ran.status.code().is_some_and(|status| statuses.contains(&status));
        let errors = String::from_utf8_lossy(&ran.stderr);
        ensure!(is_good, "cutover {command}: {}: {}\n{}", ran.status, errors.trim(), end(&said));
        Ok(())
    }
}

/// The last lines, where what went wrong is.
fn end(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}
