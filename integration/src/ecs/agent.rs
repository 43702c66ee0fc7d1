//! The container agent: `integration/testbed/ecs.sh`, which makes hosts and starts processes on them.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

/// For a command of the agent. Those of all scenarios that change hosts wait for each other.
const PATIENCE: Duration = Duration::from_mins(5);

/// Starts and stops tasks.
#[derive(Clone, Debug)]
pub struct Agent {
    script: PathBuf,
    /// The process that tasks belong to.
    owner: Option<u32>,
}

/// A task as the agent knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub task: String,
    pub host: String,
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
    pub port: u16,
    /// Whether any process of it is alive.
    pub alive: bool,
    /// Whether the process that it belongs to has ended.
    pub orphaned: bool,
    pub label: String,
}

impl Agent {
    /// Its tasks belong to a process that runs, by its id: when it has ended, [`Agent::reap`] stops them.
    pub fn owned_by(process: u32) -> Self {
        Self { owner: Some(process), ..Self::detached() }
    }

    /// Its tasks run until they are stopped or the testbed is down.
    pub fn detached() -> Self {
        Self { script: PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testbed/ecs.sh"), owner: None }
    }

    /// Starts an HTTP and UDP server whose `/hostname` answers the name of the task. Gives the addresses of its host.
    pub async fn run(&self, host: &str, task: &str, port: u16, label: &str) -> Result<(Ipv4Addr, Ipv6Addr)> {
        self.run_command(host, task, port, label, &[]).await
    }

    /// Starts a command, or without one the server of [`Agent::run`].
    pub async fn run_command(
        &self,
        host: &str,
        task: &str,
        port: u16,
        label: &str,
        command: &[&str],
    ) -> Result<(Ipv4Addr, Ipv6Addr)> {
        let (port, owner) = (port.to_string(), self.owner.map(|owner| owner.to_string()));
        let mut arguments = vec!["run", host, task, &port, "--label", label];
        if let Some(owner) = &owner {
            arguments.extend(["--owner", owner]);
        }
        if !command.is_empty() {
            arguments.push("--");
            arguments.extend(command);
        }
        let output = self.call(&arguments).await?;
        let (ipv4, ipv6) = output.trim().split_once(' ').context("the agent gave no addresses")?;
        Ok((ipv4.parse()?, ipv6.parse()?))
    }

    /// SIGTERM, and SIGKILL after the grace period; the host goes with its last task.
    pub async fn stop(&self, task: &str, grace: Duration) -> Result<()> {
        self.call(&["stop", task, &grace.as_secs().to_string()]).await.map(drop)
    }

    /// SIGKILL: as a task that crashes.
    pub async fn kill(&self, task: &str) -> Result<()> {
        self.call(&["kill", task]).await.map(drop)
    }

    /// Runs a command on the host of a task, with its resolver, and gives what it printed.
    ///
    /// # Errors
    /// Also if the command fails.
    pub async fn exec(&self, task: &str, command: &[&str]) -> Result<String> {
        let arguments: Vec<_> = ["exec", task, "--"].into_iter().chain(command.iter().copied()).collect();
        self.call(&arguments).await
    }

    /// What a task printed last.
    pub async fn log(&self, task: &str) -> Result<String> {
        self.call(&["log", task]).await
    }

    /// All tasks of this testbed, whoever started them.
    pub async fn list(&self) -> Result<Vec<Running>> {
        self.call(&["list"]).await?.lines().map(parse).collect()
    }

    /// Stops the tasks whose owners have ended.
    pub async fn reap(&self) -> Result<()> {
        self.call(&["reap"]).await.map(drop)
    }

    async fn call(&self, arguments: &[&str]) -> Result<String> {
        let what = || format!("failed to run ecs.sh {}", arguments.join(" "));
        let process = Command::new(&self.script).args(arguments).stdin(Stdio::null()).kill_on_drop(true).output();
        let output = match tokio::time::timeout(PATIENCE, process).await {
            Ok(output) => output.with_context(what)?,
            Err(_) => bail!("{}: it did not end within {PATIENCE:?}", what()),
        };
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}: {}", what(), output.status, errors.trim());
        Ok(String::from_utf8(output.stdout)?)
    }
}

fn parse(line: &str) -> Result<Running> {
    let fields: Vec<_> = line.splitn(8, '\t').collect();
    let [task, host, ipv4, ipv6, port, state, owned, label] = fields[..] else {
        bail!("the agent lists `{line}`, which is not a task");
    };
    Ok(Running {
        task: task.to_owned(),
        host: host.to_owned(),
        ipv4: ipv4.parse()?,
        ipv6: ipv6.parse()?,
        port: port.parse()?,
        alive: state == "running",
        orphaned: owned == "orphaned",
        label: label.to_owned(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_task() {
        let running =
            parse("5c1f\tec2-a\t10.200.0.100\tfd6d:6373::ec:100\t32768\tended\torphaned\t{\"a\": 1}").unwrap();
        assert_eq!(
            (running.task.as_str(), running.port, running.alive, running.orphaned),
            ("5c1f", 32768, false, true)
        );
        assert_eq!(running.label, "{\"a\": 1}");
        parse("5c1f\tec2-a").unwrap_err();
    }
}
