//! Changes at a rate, whether those before have arrived or not.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::{
    arrivals::Arrivals,
    exposition::samples,
    figure::{Figure, percentile},
    http,
    load::Load,
    registry,
    stages::Bench,
};

/// Pages that a change may cost.
const PAGES: f64 = 0.1;
/// After the last change: what has not arrived then is behind.
const GRACE: Duration = Duration::from_secs(30);

impl Bench {
    /// Replaces `rate` endpoints a second for so long.
    pub(super) async fn sustained(
        &self,
        load: &mut Load,
        arrivals: &Arrivals,
        rate: u16,
        duration: Duration,
    ) -> anyhow::Result<Vec<Figure>> {
        tracing::info!("replacing {rate} endpoints a second for {} s", duration.as_secs());
        let before = self.costs().await?;
        let exporter = &self.exporter.member.id;
        let last_head = self.registry.last_head(exporter).await?;
        let waits = self.quota_waits().await?;
        arrivals.record();
        let start = tokio::time::Instant::now();
        let changes = u32::from(rate) * duration.as_secs() as u32;
        let (mut requests, mut sent) = (JoinSet::new(), Vec::new());
        for change in 0..changes {
            tokio::time::sleep_until(start + Duration::from_secs(1) * change / u32::from(rate)).await;
            let replacement = load.draw_replacement();
            sent.push((replacement.address(), Instant::now()));
            let load = load.clone();
            requests.spawn(async move { load.replace(&replacement).await });
        }
        while let Some(answer) = requests.join_next().await {
            answer??;
        }
        let slow = start.elapsed().saturating_sub(duration);
        // An endpoint that was replaced again at once may never arrive.
        let missing = |seen: &HashMap<String, Instant>| {
            sent.iter().filter(|(address, _)| !seen.contains_key(address) && load.has(address)).count()
        };
        let deadline = Instant::now() + GRACE;
        let mut seen = arrivals.recorded();
        while missing(&seen) > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            seen = arrivals.recorded();
        }
        let behind = missing(&seen);
        let arrived = || sent.iter().filter_map(|(address, sent)| Some((*sent, *seen.get(address)?)));
        let mut latencies: Vec<f64> = arrived().map(|(sent, seen)| (seen - sent).as_secs_f64()).collect();
        let last = arrived().map(|(_, seen)| seen).max().context("nothing arrived")?;
        self.spent(&before, "sustained change").await?;
        latencies.sort_by(f64::total_cmp);
        let percentile = |percent| percentile(&latencies, percent).context("nothing arrived");
        let writes = self.registry.writes_since(last_head.saturating_sub(1)).await?;
        let ledger = registry::ledger_writes(&writes, exporter)?;
        let name = |figure: &str| format!("sustained_{rate}_{figure}");
        let end = start.into_std() + duration;
        Ok(vec![
            Figure::for_scale(name("p50"), percentile(50.0)?, "s"),
            Figure::for_scale(name("p99"), percentile(99.0)?, "s"),
            Figure::at_most(name("behind"), behind as f64, "changes", 0.0),
            Figure::for_scale(name("last_arrival"), last.saturating_duration_since(end).as_secs_f64(), "s"),
            Figure::for_scale(name("late_requests"), slow.as_secs_f64(), "s"),
            Figure::at_most(name("page_writes"), ledger.pages as f64 / f64::from(changes), "writes/change", PAGES),
            Figure::for_scale(name("head_writes"), ledger.changes as f64 / f64::from(changes), "writes/change"),
            Figure::for_scale(name("quota_waits"), self.quota_waits().await? - waits, "waits"),
        ])
    }

    async fn quota_waits(&self) -> anyhow::Result<f64> {
        let page = http::text(&self.exporter.admin, "/metrics").await?;
        let waits = samples(&page).filter(|sample| sample.name == "cloudmap_mcs_ledger_flush_quota_waits_total");
        Ok(waits.map(|sample| sample.value).sum())
    }
}
