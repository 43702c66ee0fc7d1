//! The Cloud Map namespaces that there are, listed again from time to time while anybody asks for host names.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tracing::{info, warn};

use super::Zones;
use crate::cloudmap::CloudMap;

/// How often namespaces are listed; a new one takes names from then on.
const PERIOD: Duration = Duration::from_mins(1);
/// First and longest wait after a failure.
const RETRY: Duration = Duration::from_secs(2);

/// A running listing, one call a minute. Dropping it stops it.
#[derive(Debug)]
pub struct Directory {
    wanted: watch::Sender<bool>,
    zones: watch::Receiver<Option<Arc<Zones>>>,
    task: JoinHandle<()>,
}

impl Directory {
    pub fn spawn(cloudmap: Arc<dyn CloudMap>) -> Self {
        let (wanted, asked) = watch::channel(false);
        let (known, zones) = watch::channel(None);
        Self { wanted, zones, task: tokio::spawn(follow(cloudmap, asked, known)) }
    }

    /// Whether anybody needs the list.
    pub fn want(&self, wanted: bool) {
        self.wanted.send_if_modified(|held| std::mem::replace(held, wanted) != wanted);
    }

    /// The last complete list: `None` until there was one. It stays when a later listing fails.
    pub fn zones(&self) -> watch::Receiver<Option<Arc<Zones>>> {
        self.zones.clone()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn follow(
    cloudmap: Arc<dyn CloudMap>,
    mut asked: watch::Receiver<bool>,
    known: watch::Sender<Option<Arc<Zones>>>,
) {
    let mut failures = 0u32;
    loop {
        if asked.wait_for(|wanted| *wanted).await.is_err() {
            return;
        }
        let begun = Instant::now();
        match cloudmap.list_namespaces().await {
            Ok(namespaces) => {
                failures = 0;
                let zones = Arc::new(Zones::new(&namespaces));
                known.send_if_modified(|held| {
                    let changed = held.as_ref() != Some(&zones);
                    if changed {
                        info!(namespaces = namespaces.len(), "Cloud Map namespaces that take host names");
                        *held = Some(Arc::clone(&zones));
                    }
                    changed
                });
                sleep_until(begun + PERIOD).await;
            }
            Err(error) => {
                failures += 1;
                warn!(%error, "cannot list the Cloud Map namespaces: annotated host names are left as they are");
                sleep(RETRY.saturating_mul(1 << failures.min(5)).min(PERIOD)).await;
            }
        }
    }
}
