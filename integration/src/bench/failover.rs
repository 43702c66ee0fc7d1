//! The leader of the exporting cluster ends, and a replica that stands by goes on.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::{
    arrivals::Arrivals,
    figure::Figure,
    host::Host,
    load::Load,
    process,
    side::{LEADER, Side},
    stages::{Bench, PATIENCE},
};

/// How the leader ends: the signal, the name of the figure, and the target in seconds.
const ENDS: [(&str, &str, f64); 2] = [("KILL", "failover_killed", 20.0), ("TERM", "failover_terminated", 2.0)];
/// From the signal to the change. A leader that is killed has not seen it.
const CHANGE_AFTER: Duration = Duration::from_millis(100);
/// From the start of a replica until it could lead, and from the end of a leader until another one leads.
pub(super) const TAKEOVER: Duration = Duration::from_mins(1);
/// How long both replicas and the registry come to rest before a leader ends.
const REST: Duration = Duration::from_secs(5);

impl Bench {
    /// Ends the leader as often as planned by each signal. The exporting side is the last replica afterwards.
    pub(super) async fn failover(&mut self, load: &mut Load, arrivals: &Arrivals) -> anyhow::Result<Vec<Figure>> {
        let host = Host::new(self.plan.host.as_deref())?;
        self.rest(load, arrivals).await?;
        let (mut figures, mut replica) = (Vec::new(), 1);
        for (signal, name, target) in ENDS {
            let mut longest = Duration::ZERO;
            for _ in 0..self.plan.failovers {
                replica += 1;
                longest = longest.max(self.end_leader(&host, signal, replica, load, arrivals).await?);
            }
            figures.push(Figure::at_most(name, longest.as_secs_f64(), "s", target));
        }
        Ok(figures)
    }

    /// Time from the signal until a change that was made after it was seen.
    async fn end_leader(
        &mut self,
        host: &Host,
        signal: &str,
        replica: usize,
        load: &mut Load,
        arrivals: &Arrivals,
    ) -> anyhow::Result<Duration> {
        let standby = stand_by(host, &self.exporter, replica).await?;
        tracing::info!("sending SIG{signal} to the leader of {}", self.exporter.member.id);
        let signalled = Instant::now();
        process::signal(self.exporter.member.pid, signal).await?;
        tokio::time::sleep(CHANGE_AFTER).await;
        let replacement = load.draw_replacement();
        arrivals.expect(load.addresses_after(&replacement)).await?;
        load.slices().replace(&replacement).await?;
        let seen = arrivals.complete(PATIENCE).await.context("no change arrives after the end of the leader")?;
        standby.leads(TAKEOVER).await?;
        self.exporter = standby;
        Ok(seen - signalled)
    }
}

/// Starts the `number`th replica, which stands by for a leader, and waits until it could lead and both are at rest.
///
/// # Errors
/// Another replica leads than this one.
pub(super) async fn stand_by(host: &Host, leader: &Side, number: usize) -> anyhow::Result<Side> {
    let standby = Side::new(&host.replica(number).await?).await?;
    standby.ready(TAKEOVER).await?;
    tokio::time::sleep(REST).await;
    leader.leads(TAKEOVER).await?;
    ensure!(standby.gauge(LEADER).await? == Some(0.0), "the standby leads already");
    Ok(standby)
}
