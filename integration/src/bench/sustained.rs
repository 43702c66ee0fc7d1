//! Changes at a rate, whether those before have arrived or not.

use std::{
    collections::{BTreeSet, HashMap},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::task::JoinSet;

use super::{
    arrivals::Arrivals,
    exposition::samples,
    figure::{Figure, Latencies},
    load::Load,
    registry,
    stages::Bench,
};

/// Pages that a change may cost.
const PAGES: f64 = 0.1;
/// How long 99 of 100 changes may take at most, in seconds, with the stream.
const MOST: f64 = 0.5;
/// AWS takes 50 registrations a second, heads and pages among them, and 50 deregistrations.
const WRITES_PER_SECOND: usize = 120;
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
        // Writes that were forgotten would be missing among those that count.
        self.registry.remember(WRITES_PER_SECOND * (duration + GRACE).as_secs() as usize).await?;
        let before = self.costs().await?;
        let exporter = &self.exporter.member.id;
        let last_head = self.registry.last_head(exporter).await?;
        let waits = self.quota_waits().await?;
        arrivals.record();
        let start = tokio::time::Instant::now();
        let changes = u32::from(rate) * duration.as_secs() as u32;
        let (mut requests, mut sent, mut busy) = (JoinSet::new(), Vec::new(), BTreeSet::new());
        for change in 0..changes {
            tokio::time::sleep_until(start + Duration::from_secs(1) * change / u32::from(rate)).await;
            // Two writes of one slice in flight could change places.
            while let Some(answer) = requests.try_join_next() {
                busy.remove(&answer??);
            }
            let replacement = loop {
                match load.draw_replacement_unless(|service| busy.contains(&service)) {
                    Some(replacement) => break replacement,
                    None => busy.remove(&requests.join_next().await.context("nothing is being written")???),
                };
            };
            let service = replacement.service;
            busy.insert(service);
            sent.push((load.new_address(&replacement), Instant::now()));
            let slices = load.slices();
            requests.spawn(async move { slices.replace(&replacement).await.map(|()| service) });
        }
        while let Some(answer) = requests.join_next().await {
            answer??;
        }
        let slow = start.elapsed().saturating_sub(duration);
        // An endpoint that was replaced again at once may never arrive.
        let present = load.present();
        let missing = |seen: &HashMap<String, Instant>| {
            sent.iter().filter(|(address, _)| !seen.contains_key(address) && present.contains(address)).count()
        };
        let deadline = Instant::now() + GRACE;
        let mut seen = arrivals.recorded();
        while missing(&seen) > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(200)).await;
            seen = arrivals.recorded();
        }
        let behind = missing(&seen);
        let arrived = || sent.iter().filter_map(|(address, sent)| Some((*sent, *seen.get(address)?)));
        let latencies: Latencies = arrived().map(|(sent, seen)| seen - sent).collect();
        let last = arrived().map(|(_, seen)| seen).max().context("nothing arrived")?;
        let spent = self.spent(&before, "sustained change").await?;
        let writes = self.registry.writes_since(last_head.saturating_sub(1)).await?;
        let ledger = registry::ledger_writes(&writes, exporter)?;
        let name = |figure: &str| format!("sustained_{rate}_{figure}");
        let end = start.into_std() + duration;
        let target = self.plan.stream.then_some(MOST);
        let mut figures = vec![
            Figure::for_scale(name("p50"), latencies.percentile(50.0)?, "s"),
            Figure::new(name("p99"), latencies.percentile(99.0)?, "s", target),
            Figure::at_most(name("behind"), behind as f64, "changes", 0.0),
            Figure::for_scale(name("last_arrival"), last.saturating_duration_since(end).as_secs_f64(), "s"),
            Figure::for_scale(name("late_requests"), slow.as_secs_f64(), "s"),
            Figure::at_most(name("page_writes"), ledger.pages as f64 / f64::from(changes), "writes/change", PAGES),
            Figure::for_scale(name("head_writes"), ledger.changes as f64 / f64::from(changes), "writes/change"),
            Figure::for_scale(name("quota_waits"), self.quota_waits().await? - waits, "waits"),
        ];
        for (side, spent) in self.sides().into_iter().zip(&spent) {
            figures.push(spent.per_thousand(&format!("sustained_{rate}"), &side.member.id, changes as usize));
        }
        Ok(figures)
    }

    async fn quota_waits(&self) -> anyhow::Result<f64> {
        let page = self.exporter.metrics().await?;
        let waits = samples(&page).filter(|sample| sample.name == "cloudmap_mcs_ledger_flush_quota_waits_total");
        Ok(waits.map(|sample| sample.value).sum())
    }
}
