//! One changed endpoint at a time, by the controllers and by the reference.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::{
    arrivals::Arrivals,
    direct::Direct,
    figure::{Figure, Latencies},
    load::Load,
    registry,
    stages::{Bench, PATIENCE},
    targets,
};

/// The ledger is read once a second: a pause drawn from a whole period starts the next change at any phase of it.
const PAUSE: std::ops::Range<f64> = 0.3..1.3;
/// How many times as long as the reference a change may take.
const BY_DIRECT: f64 = 2.5;

/// Replaces one endpoint, and returns how long it took to arrive.
pub(super) async fn one(load: &mut Load, arrivals: &Arrivals) -> anyhow::Result<Duration> {
    let replacement = load.draw_replacement();
    arrivals.expect(load.addresses_after(&replacement)).await?;
    let sent = Instant::now();
    load.slices().replace(&replacement).await?;
    let arrived = arrivals.complete(PATIENCE).await.context("a changed endpoint has not arrived")?;
    Ok(arrived - sent)
}

/// Replaces so many endpoints, each after a pause.
pub(super) async fn several(load: &mut Load, arrivals: &Arrivals, changes: usize) -> anyhow::Result<Latencies> {
    let mut latencies = Vec::new();
    for _ in 0..changes {
        tokio::time::sleep(load.draw_pause(&PAUSE)).await;
        latencies.push(one(load, arrivals).await?);
    }
    Ok(latencies.into_iter().collect())
}

impl Bench {
    /// With a reference, one of its changes is in the middle of each pause: what slows the machine slows both.
    pub(super) async fn change(
        &self,
        load: &mut Load,
        arrivals: &Arrivals,
        mut direct: Option<&mut Direct>,
    ) -> anyhow::Result<Vec<Figure>> {
        let changes = self.plan.changes;
        tracing::info!("replacing {changes} endpoints, one at a time");
        let before = self.costs().await?;
        let exporter = &self.exporter.member.id;
        let last_head = self.registry.last_head(exporter).await?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..changes {
            let pause = load.draw_pause(&PAUSE) / 2;
            tokio::time::sleep(pause).await;
            if let Some(direct) = &mut direct {
                theirs.push(direct.change().await?);
            }
            tokio::time::sleep(pause).await;
            ours.push(one(load, arrivals).await?);
        }
        let spent = self.spent(&before, "changing").await?;
        let (ours, theirs): (Latencies, Latencies) = (ours.into_iter().collect(), theirs.into_iter().collect());
        let mut figures = ours.figures("change", targets::change(self.plan.stream, self.plan.aws_times))?;
        if direct.is_some() {
            figures.extend(theirs.figures("direct", None)?);
            let times = |percent| anyhow::Ok(ours.percentile(percent)? / theirs.percentile(percent)?);
            let target = self.plan.stream.then_some(BY_DIRECT);
            figures.push(Figure::new("change_p50_by_direct", times(50.0)?, "times", target));
            figures.push(Figure::for_scale("change_p99_by_direct", times(99.0)?, "times"));
        }
        for (side, spent) in self.sides().into_iter().zip(&spent) {
            figures.push(spent.per_thousand("change", &side.member.id, changes));
        }
        if self.plan.peer {
            return Ok(figures);
        }
        let writes = self.registry.writes_since(last_head.saturating_sub(1)).await?;
        let ledger = registry::ledger_writes(&writes, exporter)?;
        let per_change = |writes: usize| writes as f64 / changes as f64;
        figures.extend([
            Figure::at_most("change_head_writes", per_change(ledger.changes), "writes/change", 1.0),
            Figure::for_scale("change_page_writes", per_change(ledger.pages), "writes/change"),
            Figure::for_scale("change_flushes", ledger.flushes as f64, "flushes"),
            Figure::for_scale("change_heartbeats", ledger.heartbeats as f64, "writes"),
        ]);
        Ok(figures)
    }
}
