//! How long a changed endpoint takes to become an instance, for readers outside of Kubernetes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use aws_sdk_servicediscovery::{Client, types::HealthStatusFilter};

use super::{
    arrivals::Arrivals,
    figure::{Figure, Latencies},
    load::Load,
    stages::{Bench, PATIENCE},
};
use emulator::sdk_config;

/// Changes that are timed at most.
const CHANGES: usize = 100;
/// Between two looks, beside what a call takes: one caller of the 1,000 calls a second of an account.
const LOOK: Duration = Duration::from_millis(5);
/// Between two changes.
const PAUSE: std::ops::Range<f64> = 0.3..1.3;
/// Who asks, in the emulator's books.
const CALLER: &str = "bench";
/// The greatest number of instances in an answer. Without it, there are 100.
const ROWS: i32 = 1000;

impl Bench {
    /// From the patch of an EndpointSlice until `DiscoverInstances` shows the address.
    pub(super) async fn instance(&self, load: &mut Load, arrivals: &Arrivals) -> anyhow::Result<Vec<Figure>> {
        let client = Client::from_conf(sdk_config(&self.plan.registry, CALLER));
        let changes = CHANGES.min(self.plan.changes);
        tracing::info!("replacing {changes} endpoints, one at a time, and looking for their instances");
        let mut latencies = Vec::new();
        for _ in 0..changes {
            tokio::time::sleep(load.draw_pause(&PAUSE)).await;
            let replacement = load.draw_replacement();
            arrivals.expect(load.addresses_after(&replacement)).await?;
            let (service, address) = (replacement.service_name(), load.new_address(&replacement));
            let sent = Instant::now();
            load.slices().replace(&replacement).await?;
            while !has(&client, load.namespace(), &service, &address).await? {
                ensure!(sent.elapsed() < PATIENCE, "{address} is no instance of {service} after {PATIENCE:?}");
                tokio::time::sleep(LOOK).await;
            }
            latencies.push(sent.elapsed());
            arrivals.complete(PATIENCE).await.context("a changed endpoint has not arrived")?;
        }
        latencies.into_iter().collect::<Latencies>().figures("instance", None)
    }
}

/// Whether discovery shows the address.
async fn has(client: &Client, namespace: &str, service: &str, address: &str) -> anyhow::Result<bool> {
    let request = client.discover_instances().namespace_name(namespace).service_name(service).max_results(ROWS);
    let found = request.health_status(HealthStatusFilter::All).send().await;
    let found = found.with_context(|| format!("failed to discover the instances of {service}"))?;
    let shown = |attributes: &std::collections::HashMap<String, String>| {
        attributes.get("AWS_INSTANCE_IPV4").is_some_and(|shown| shown == address)
    };
    Ok(found.instances().iter().filter_map(|instance| instance.attributes()).any(shown))
}
