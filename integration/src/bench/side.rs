//! A cluster as the benchmark sees it, and what it costs.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use kube::{Client, Config, config::KubeConfigOptions};

use super::{
    exposition::{Sample, api_writes, samples},
    figure::Figure,
    http,
    plan::Member,
    process,
    registry::{self, Registry},
};
use emulator::Counters;

/// Whether a replica holds the Lease.
pub(super) const LEADER: &str = "cloudmap_mcs_leader";

/// A cluster and the replica that leads it.
#[derive(Clone)]
pub(super) struct Side {
    pub(super) member: Member,
    pub(super) cluster: Client,
    admin: Client,
}

impl Side {
    pub(super) async fn new(member: &Member) -> anyhow::Result<Self> {
        let options = KubeConfigOptions { context: Some(member.context.clone()), ..Default::default() };
        let config = Config::from_kubeconfig(&options)
            .await
            .with_context(|| format!("failed to read the kubeconfig's context {}", member.context))?;
        Ok(Self { member: member.clone(), cluster: Client::try_from(config)?, admin: http::client(&member.admin)? })
    }

    /// Its controller's metrics page.
    pub(super) async fn metrics(&self) -> anyhow::Result<String> {
        http::text(&self.admin, "/metrics").await
    }

    /// A gauge or counter of its controller; `None` without one of that name.
    pub(super) async fn gauge(&self, name: &str) -> anyhow::Result<Option<f64>> {
        let page = self.metrics().await?;
        Ok(samples(&page).find(|sample| sample.name == name).map(|sample| sample.value))
    }

    /// Waits until its controller's metrics are so.
    pub(super) async fn until(
        &self,
        what: &str,
        limit: Duration,
        holds: impl Fn(&[Sample<'_>]) -> bool,
    ) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            // A replica that was just started does not answer yet.
            let page = self.metrics().await.unwrap_or_default();
            if holds(&samples(&page).collect::<Vec<_>>()) {
                return Ok(());
            }
            process::resident_memory(self.member.pid)?;
            ensure!(started.elapsed() < limit, "after {limit:?} {} still has not {what}", self.member.id);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Waits until its replica could lead: all its caches are complete.
    pub(super) async fn ready(&self, limit: Duration) -> anyhow::Result<()> {
        let started = Instant::now();
        while http::text(&self.admin, "/readyz").await.is_err() {
            process::resident_memory(self.member.pid)?;
            ensure!(started.elapsed() < limit, "after {limit:?} a replica of {} is not ready", self.member.id);
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        Ok(())
    }

    /// Waits until its replica leads.
    pub(super) async fn leads(&self, limit: Duration) -> anyhow::Result<()> {
        let leads = |samples: &[Sample<'_>]| samples.iter().any(|sample| sample.is_true(LEADER));
        self.until("a leader", limit, leads).await
    }

    /// Writes that its API server has counted.
    async fn api_writes(&self) -> anyhow::Result<BTreeMap<String, f64>> {
        Ok(api_writes(&http::text(&self.cluster, "/metrics").await?))
    }

    /// Processor time of its API server and etcd.
    pub(super) fn server_time(&self) -> anyhow::Result<f64> {
        self.member.servers.iter().map(|pid| process::processor_time(*pid)).sum()
    }

    pub(super) async fn costs(&self, registry: &Registry) -> anyhow::Result<Costs> {
        Ok(Costs {
            kubernetes_writes: self.api_writes().await?,
            processor_seconds: process::processor_time(self.member.pid)?,
            server_seconds: self.server_time()?,
            calls: registry.counters().await?,
            at: Instant::now(),
        })
    }

    /// What the cluster cost since `before`; told on the way, because it says why a figure is what it is.
    pub(super) async fn spent(&self, registry: &Registry, before: &Costs, stage: &str) -> anyhow::Result<Spent> {
        let now = self.costs(registry).await?;
        let written = |(key, count): (&String, &f64)| {
            let more = count - before.kubernetes_writes.get(key).copied().unwrap_or(0.0);
            (more > 0.0).then(|| (key.clone(), more))
        };
        let spent = Spent {
            seconds: (now.at - before.at).as_secs_f64(),
            kubernetes_writes: now.kubernetes_writes.iter().filter_map(written).collect(),
            calls: registry::calls_between(&before.calls, &now.calls, &self.member.id),
            processor_seconds: now.processor_seconds - before.processor_seconds,
            server_seconds: now.server_seconds - before.server_seconds,
        };
        tracing::info!(
            "{stage} took {:.1} s and cost {}: processor {:.2} s and {:.2} s of its servers, Cloud Map {:?}, Kubernetes {:?}",
            spent.seconds,
            self.member.id,
            spent.processor_seconds,
            spent.server_seconds,
            spent.calls,
            spent.kubernetes_writes
        );
        Ok(spent)
    }
}

/// What a cluster has cost so far.
pub(super) struct Costs {
    at: Instant,
    kubernetes_writes: BTreeMap<String, f64>,
    calls: Counters,
    processor_seconds: f64,
    server_seconds: f64,
}

/// What a cluster cost from one look to the next.
#[derive(Debug, Default)]
pub(super) struct Spent {
    pub(super) seconds: f64,
    /// By verb and resource.
    pub(super) kubernetes_writes: BTreeMap<String, f64>,
    /// Calls of Cloud Map by operation.
    pub(super) calls: BTreeMap<String, u64>,
    pub(super) processor_seconds: f64,
    /// Of its API server and etcd.
    pub(super) server_seconds: f64,
}

impl Spent {
    /// Processor time per 1,000 changes of a stage, with everything else that the leader did meanwhile.
    pub(super) fn per_thousand(&self, stage: &str, id: &str, changes: usize) -> Figure {
        let seconds = self.processor_seconds / changes.max(1) as f64 * 1000.0;
        Figure::for_scale(format!("{stage}_processor_{id}"), seconds, "s/1000 changes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_counts_per_thousand_changes() {
        let spent = Spent { seconds: 60.0, processor_seconds: 1.5, ..Spent::default() };
        assert_eq!(
            spent.per_thousand("change", "a", 300),
            Figure::for_scale("change_processor_a", 5.0, "s/1000 changes")
        );
    }
}
