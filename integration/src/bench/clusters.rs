//! What many clusters cost one that reads them.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::{
    arrivals::Arrivals,
    change,
    cut::CONNECTED,
    exposition::Sample,
    figure::{Figure, Latencies},
    fleet::{Fleet, Shape},
    load::{self, Load},
    process,
    sockets::Sockets,
    stages::Bench,
};

/// For this number of clusters: percent of a core, and MB, of one that reads them.
const STATED: (usize, f64, f64) = (100, 10.0, 120.0);
/// The ClusterSet of the controllers (`integration/bench-host.sh`).
const CLUSTERSET: &str = "bench";
/// Until all clusters have published everything, and are read. The account allows 50 pages a second.
const KNOWN: Duration = Duration::from_mins(20);
/// Changes go on for so long before they are measured.
const WARM: Duration = Duration::from_secs(15);
/// Of the exporting cluster, too.
const CHANGE_EVERY: Duration = Duration::from_secs(1);
/// The emulator's port, and those at which leaders listen (`integration/bench-host.sh`).
const REGISTRY_PORT: u16 = 8700;
const STREAM_PORTS: std::ops::Range<u16> = 7940..8000;

impl Bench {
    /// The clusters are the exporting one, the importing one, and as many as are needed in this process. In each but
    /// the importing one an endpoint is replaced every second.
    pub(super) async fn clusters(&self, load: &mut Load, arrivals: &Arrivals) -> anyhow::Result<Vec<Figure>> {
        self.rest(load, arrivals).await?;
        let fleet = Fleet::new(Shape {
            registry: self.plan.registry.clone(),
            clusterset: CLUSTERSET.parse()?,
            measured: self.sides().map(|side| side.member.id.clone()).to_vec(),
            services: self.plan.services,
            endpoints: self.plan.endpoints,
            stream: self.plan.stream,
            seed: self.plan.seed,
        });
        for number in 0..self.plan.imported {
            load::create_namespace(&self.importer.cluster, &Fleet::namespace(number)).await?;
        }
        let mut figures = Vec::new();
        for &clusters in &self.plan.clusters {
            figures.extend(self.cost_of(clusters, &fleet, load, arrivals).await?);
        }
        Ok(figures)
    }

    async fn cost_of(
        &self,
        clusters: usize,
        fleet: &Fleet,
        load: &mut Load,
        arrivals: &Arrivals,
    ) -> anyhow::Result<Vec<Figure>> {
        tracing::info!("starting clusters until there are {clusters}");
        let started = Instant::now();
        let others = clusters.saturating_sub(2);
        fleet.grow(others, KNOWN).await?;
        let names = (others + 1) * self.plan.services;
        let sessions = if self.plan.stream { others + 1 } else { 0 };
        self.importer
            .until(&format!("read {clusters} clusters"), KNOWN, |samples| knows(samples, names, sessions))
            .await?;
        let known = started.elapsed();
        tracing::info!("{clusters} clusters are known; one change a second in each");
        let changing = fleet.change();
        self.one_a_second(load, arrivals, WARM).await?;
        let pid = self.importer.member.pid;
        let (before, sockets) = (self.costs().await?, Sockets::of(pid).await?);
        let latencies = self.one_a_second(load, arrivals, self.plan.clusters_for).await?;
        let [_, spent] = self.spent(&before, &format!("a change a second in {clusters} clusters")).await?;
        let (after, memory) = (Sockets::of(pid).await?, process::resident_memory(pid)?);
        drop(changing);
        let name = |figure: &str| format!("clusters_{clusters}_{figure}");
        let stated = |target: f64| (clusters == STATED.0).then_some(target);
        let a_second = |bytes: u64| bytes as f64 / 1e3 / spent.seconds;
        let of_stream = |end: &str| port(end).is_some_and(|port| STREAM_PORTS.contains(&port));
        let mut figures = vec![
            Figure::for_scale(name("known"), known.as_secs_f64(), "s"),
            Figure::new(name("processor"), 100.0 * spent.processor_seconds / spent.seconds, "%", stated(STATED.1)),
            Figure::new(name("memory"), memory as f64 / 1e6, "MB", stated(STATED.2)),
            Figure::for_scale(
                name("registry_bytes"),
                a_second(after.since(&sockets, |end| port(end) == Some(REGISTRY_PORT))),
                "kB/s",
            ),
            Figure::for_scale(name("stream_bytes"), a_second(after.since(&sockets, of_stream)), "kB/s"),
            Figure::for_scale(name("calls"), spent.calls.values().sum::<u64>() as f64 / spent.seconds, "1/s"),
        ];
        figures.extend(latencies.figures(&name("change"), None)?);
        Ok(figures)
    }

    /// Replaces one endpoint of the exporting cluster a second.
    async fn one_a_second(
        &self,
        load: &mut Load,
        arrivals: &Arrivals,
        duration: Duration,
    ) -> anyhow::Result<Latencies> {
        let start = tokio::time::Instant::now();
        let (mut next, mut latencies) = (start, Vec::new());
        while next < start + duration {
            tokio::time::sleep_until(next).await;
            latencies.push(change::one(load, arrivals).await.context("a change of the exporting cluster")?);
            next += CHANGE_EVERY;
        }
        tokio::time::sleep_until(start + duration).await;
        Ok(latencies.into_iter().collect())
    }
}

/// Whether so many names are known, every cluster was read, and there are so many sessions.
fn knows(samples: &[Sample<'_>], names: usize, sessions: usize) -> bool {
    let value = |name: &str| samples.iter().find(|sample| sample.name == name).map(|sample| sample.value);
    let connected = samples.iter().filter(|sample| sample.is_true(CONNECTED));
    value("cloudmap_mcs_services").is_some_and(|known| known >= names as f64)
        && value("cloudmap_mcs_unverified_clusters") == Some(0.0)
        && connected.count() >= sessions
}

/// The port of `10.0.0.1:8700` or `[::1]:8700`.
fn port(end: &str) -> Option<u16> {
    end.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::exposition::samples;

    #[test]
    fn clusters_are_known_when_all_names_are_read_and_all_sessions_are_there() {
        let page = "\
cloudmap_mcs_services 2000
cloudmap_mcs_unverified_clusters 0
cloudmap_mcs_stream_connected{remote_cluster=\"a\"} 1
cloudmap_mcs_stream_connected{remote_cluster=\"b\"} 0
";
        let samples: Vec<Sample<'_>> = samples(page).collect();
        assert!(knows(&samples, 2000, 1));
        assert!(!knows(&samples, 2001, 1), "names are missing");
        assert!(!knows(&samples, 2000, 2), "a session is missing");
        assert!(!knows(&[], 0, 0), "nothing is known yet");
    }

    #[test]
    fn the_port_of_an_address_is_behind_its_last_colon() {
        assert_eq!((port("10.0.0.1:8700"), port("[::ffff:10.0.0.1]:7942"), port("x")), (Some(8700), Some(7942), None));
    }
}
