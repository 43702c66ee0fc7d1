//! Changes while the leaders cannot reach each other, and when they can again.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::{
    arrivals::Arrivals, change, exposition::Sample, figure::Figure, host::Host, load::Load, stages::Bench, targets,
};

/// Changes in each state: enough for a p50, and a p99 that is nearly the longest.
const CHANGES: usize = 50;
/// Longer than the longest pause between two attempts to connect.
const RECONNECTED: Duration = Duration::from_mins(1);
/// Whether the leader of another cluster is connected.
pub(super) const CONNECTED: &str = "cloudmap_mcs_stream_connected";

impl Bench {
    /// The first changes after the cut are among those that count: nobody has noticed yet.
    pub(super) async fn cut(&self, load: &mut Load, arrivals: &Arrivals) -> anyhow::Result<Vec<Figure>> {
        let host = Host::new(self.plan.host.as_deref())?;
        let changes = CHANGES.min(self.plan.changes);
        let connected = |samples: &[Sample<'_>]| samples.iter().any(|sample| sample.is_true(CONNECTED));
        self.exporter.until("a stream", RECONNECTED, connected).await?;
        tracing::info!("cutting the connections between the leaders, and replacing {changes} endpoints");
        host.cut().await?;
        let alone = change::several(load, arrivals, changes).await;
        let unnoticed =
            self.exporter.metrics().await.map(|page| connected(&super::exposition::samples(&page).collect::<Vec<_>>()));
        host.heal().await?;
        let healed = Instant::now();
        let alone = alone.context("changes do not arrive while the leaders are cut off")?;
        // Otherwise the figures would be those of the stream. With few changes nobody has noticed in 10 s.
        ensure!(changes < CHANGES || !unnoticed?, "the stream still works after it was cut");
        self.exporter.until("a stream again", RECONNECTED, connected).await?;
        let reconnected = healed.elapsed();
        let again = change::several(load, arrivals, changes).await?;
        let mut figures = alone.figures("cut", targets::change(false, self.plan.aws_times))?;
        figures.push(Figure::for_scale("cut_reconnected", reconnected.as_secs_f64(), "s"));
        figures.extend(again.figures("healed", targets::change(true, self.plan.aws_times))?);
        Ok(figures)
    }
}
