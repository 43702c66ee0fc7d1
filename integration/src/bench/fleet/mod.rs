//! Many other clusters in this process: the real ledger of each, with its keys, its record and its sessions, without
//! Kubernetes.
//!
//! They are neighbours of the clusters that are measured, not of each other: each sees its own head and those of the
//! measured clusters, and says no address, so that only the measured ones are dialled. Otherwise a hundred clusters
//! that read a hundred clusters would be measured as well.

mod member;
mod narrow;

use model::ClusterSetId;
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::Mutex,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use member::Member;
use narrow::{Heads, Narrow};

use super::registry;

/// From the start of one cluster to the start of the next: each claims its id, for which the account has few calls.
const START: Duration = Duration::from_millis(500);

/// What all clusters of the fleet are like.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Address of the emulator.
    pub(super) registry: String,
    pub(super) clusterset: ClusterSetId,
    /// Ids of the clusters that are measured.
    pub(super) measured: Vec<String>,
    pub(super) services: usize,
    pub(super) endpoints: usize,
    pub(super) stream: bool,
    pub(super) seed: u64,
}

/// The clusters. They end when this is dropped.
pub(super) struct Fleet {
    shape: Shape,
    heads: Arc<Heads>,
    members: Arc<Mutex<Vec<Member>>>,
}

/// Changes that go on until this is dropped.
pub(super) struct Changing(JoinHandle<()>);

impl Drop for Changing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Fleet {
    pub(super) fn new(shape: Shape) -> Self {
        Self { shape, heads: Arc::default(), members: Arc::default() }
    }

    /// The namespace that the `number`th cluster exports from.
    pub(super) fn namespace(number: usize) -> String {
        format!("bench-fleet-{number:03}")
    }

    /// Starts clusters until there are so many, and waits until all have published everything.
    pub(super) async fn grow(&self, clusters: usize, limit: Duration) -> anyhow::Result<()> {
        let mut members = self.members.lock().await;
        for number in members.len()..clusters {
            let port = Narrow::new(self.port(number).await?, Arc::clone(&self.heads), &Member::id(number), &self.shape);
            members.push(Member::start(number, &self.shape, Arc::new(port))?);
            tokio::time::sleep(START).await;
        }
        let deadline = Instant::now() + limit;
        for member in members.iter() {
            member.published(deadline).await?;
        }
        Ok(())
    }

    /// Replaces one endpoint a second in each cluster, evenly over the second.
    pub(super) fn change(&self) -> Changing {
        let members = Arc::clone(&self.members);
        Changing(tokio::spawn(async move {
            let mut members = members.lock().await;
            let mut next = Instant::now();
            loop {
                let step = Duration::from_secs(1) / members.len().max(1) as u32;
                if members.is_empty() {
                    return;
                }
                for member in members.iter_mut() {
                    next += step;
                    sleep_until(next).await;
                    member.replace();
                }
            }
        }))
    }

    /// A cluster's own way to the registry, with the limits of its own and a name of its own.
    async fn port(&self, number: usize) -> anyhow::Result<Arc<dyn cloudmap::Write>> {
        registry::caller(&self.shape.registry, &Member::id(number)).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cloudmap::{HttpName, Lane, Read as _};
    use ledger::{CLUSTERS, namespace_name};

    use super::*;
    use emulator::{Emulator, EmulatorSettings};

    #[tokio::test]
    async fn clusters_publish_their_exports_and_see_only_their_own_head_and_those_that_are_measured() {
        let emulator = Emulator::start(EmulatorSettings::unthrottled()).await.unwrap();
        let shape = |measured: &str| Shape {
            registry: emulator.endpoint(),
            clusterset: "bench".parse().unwrap(),
            measured: vec![measured.to_owned()],
            services: 20,
            endpoints: 3,
            stream: true,
            seed: 1,
        };
        let fleet = Fleet::new(shape("fleet-002"));
        fleet.grow(3, Duration::from_mins(2)).await.unwrap();
        let port = Narrow::new(fleet.port(0).await.unwrap(), Arc::default(), "fleet-000", &fleet.shape);
        let ids = async || {
            let heads = port
                .discover_instances(HttpName::own(&namespace_name("bench")), CLUSTERS, &BTreeMap::new(), Lane::Ledger)
                .await;
            heads.unwrap().instances.into_iter().map(|head| head.id.to_string()).collect::<Vec<_>>()
        };
        let mut seen = ids().await;
        seen.sort();
        assert_eq!(seen, ["fleet-000", "fleet-002"]);

        let wanted = async || fleet.members.lock().await.iter().map(Member::wanted).collect::<Vec<_>>();
        let before = wanted().await;
        let deadline = Instant::now() + Duration::from_mins(2);
        loop {
            let changing = fleet.change();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            drop(changing);
            let after = wanted().await;
            if before.iter().zip(&after).all(|(before, after)| before != after) {
                break;
            }
            assert!(Instant::now() < deadline, "each cluster changes");
        }
        for member in fleet.members.lock().await.iter() {
            member.published(Instant::now() + Duration::from_mins(2)).await.unwrap();
        }
        emulator.shutdown().await;
    }
}
