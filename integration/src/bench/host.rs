//! What only the machine can do: `integration/bench-host.sh` does it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use tokio::process::Command;

use super::plan::Member;

/// The script.
#[derive(Debug, Clone)]
pub(super) struct Host(PathBuf);

impl Host {
    /// # Errors
    /// No script was given.
    pub(super) fn new(script: Option<&Path>) -> anyhow::Result<Self> {
        Ok(Self(script.context("this figure needs --host: integration/bench-host.sh")?.to_owned()))
    }

    /// Starts another replica of the exporting cluster's controller, the `number`th.
    pub(super) async fn replica(&self, number: usize) -> anyhow::Result<Member> {
        let line = self.run(&["replica", "1", &number.to_string()]).await?;
        line.trim().parse().map_err(anyhow::Error::msg)
    }

    /// Loses all packets between leaders, until [`Self::heal`].
    pub(super) async fn cut(&self) -> anyhow::Result<()> {
        self.run(&["cut"]).await.map(drop)
    }

    pub(super) async fn heal(&self) -> anyhow::Result<()> {
        self.run(&["heal"]).await.map(drop)
    }

    /// Ends the exporting cluster's API server as a crash does, and starts it again. Returns when it is ready.
    pub(super) async fn restart_api_server(&self) -> anyhow::Result<()> {
        self.run(&["apiserver", "1"]).await.map(drop)
    }

    async fn run(&self, arguments: &[&str]) -> anyhow::Result<String> {
        let ran = Command::new(&self.0).args(arguments).stderr(std::process::Stdio::inherit()).output().await;
        let ran = ran.with_context(|| format!("failed to run {}", self.0.display()))?;
        ensure!(ran.status.success(), "{} {} failed", self.0.display(), arguments.join(" "));
        Ok(String::from_utf8(ran.stdout)?)
    }
}
