//! The replicas of the controller: one leads, one stands by, and the one that leads is killed.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::CutoverPlan;
use crate::bench::{
    failover::{TAKEOVER, stand_by},
    host::Host,
    process,
    side::{LEADER, Side},
};

/// Two replicas.
pub(super) struct Leaders {
    host: Host,
    leader: Side,
    standby: Side,
    /// How many were started so far.
    started: usize,
    /// From each signal until the other one led.
    pub(super) takeovers: Vec<Duration>,
}

impl Leaders {
    /// Starts a replica beside the one that runs.
    pub(super) async fn new(plan: &CutoverPlan) -> Result<Self> {
        let host = Host::new(plan.host.as_deref())?;
        let leader = Side::new(&plan.controller).await?;
        let standby = stand_by(&host, &leader, 2).await?;
        Ok(Self { host, leader, standby, started: 2, takeovers: Vec::new() })
    }

    /// Kills the leader after a while. Returns when the other one leads and a new one stands by.
    pub(super) async fn kill(&mut self, after: Duration) -> Result<()> {
        // They may have changed places while the API server was away.
        if self.standby.gauge(LEADER).await? == Some(1.0) {
            std::mem::swap(&mut self.leader, &mut self.standby);
        }
        self.leader.leads(TAKEOVER).await?;
        tokio::time::sleep(after).await;
        tracing::info!("sending SIGKILL to the leader");
        let signalled = Instant::now();
        process::signal(self.leader.member.pid, "KILL").await?;
        self.standby.leads(TAKEOVER).await?;
        self.takeovers.push(signalled.elapsed());
        self.started += 1;
        let standby = stand_by(&self.host, &self.standby, self.started).await?;
        self.leader = std::mem::replace(&mut self.standby, standby);
        Ok(())
    }

    /// Restarts the API server, and gives how long it was away.
    pub(super) async fn restart_api_server(&self) -> Result<Duration> {
        let begun = Instant::now();
        self.host.restart_api_server().await?;
        Ok(begun.elapsed())
    }
}
