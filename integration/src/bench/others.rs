//! How long other clients of an API server wait: one that replaces a small object ten times a second.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use tokio::{task::JoinHandle, time::MissedTickBehavior};

use super::figure::Latencies;

const EVERY: Duration = Duration::from_millis(100);
const NAME: &str = "bench-others";

/// The client. It ends when this is dropped.
pub(super) struct Others {
    latencies: Arc<Mutex<Vec<Duration>>>,
    client: JoinHandle<()>,
}

impl Drop for Others {
    fn drop(&mut self) {
        self.client.abort();
    }
}

impl Others {
    /// Starts it.
    pub(super) async fn start(cluster: &Client) -> anyhow::Result<Self> {
        let objects: Api<ConfigMap> = Api::namespaced(cluster.clone(), "default");
        let there = objects.get_opt(NAME).await?;
        let mut object = if let Some(object) = there {
            object
        } else {
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let object = ConfigMap { metadata, ..ConfigMap::default() };
            objects.create(&PostParams::default(), &object).await.context("failed to create a ConfigMap")?
        };
        let latencies = Arc::<Mutex<Vec<Duration>>>::default();
        let measured = Arc::clone(&latencies);
        let client = tokio::spawn(async move {
            let mut ticks = tokio::time::interval(EVERY);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            for number in 0_u64.. {
                ticks.tick().await;
                object.data = Some([("number".to_owned(), number.to_string())].into());
                let sent = Instant::now();
                match objects.replace(NAME, &PostParams::default(), &object).await {
                    Ok(written) => object = written,
                    Err(error) => tracing::warn!(%error, "another client of the API server failed"),
                }
                measured.lock().unwrap_or_else(PoisonError::into_inner).push(sent.elapsed());
            }
        });
        Ok(Self { latencies, client })
    }

    /// Those since the start, or since the last time they were taken.
    pub(super) fn take(&self) -> Latencies {
        std::mem::take(&mut *self.latencies.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect()
    }
}
