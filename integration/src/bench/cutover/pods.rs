//! The pods of a Service. There is no kubelet and no controller manager: the pods are addresses of this process, and their
//! statuses and the EndpointSlice are written here, as a Deployment with `maxUnavailable: 0` has them.

use std::{
    collections::BTreeSet,
    net::SocketAddrV4,
    sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use cutover::course::lingers;
use k8s_openapi::api::{core::v1::Pod, discovery::v1::EndpointSlice};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::{runtime::Handle, sync::Mutex, task::JoinSet, time::sleep};

use super::{CutoverPlan, NAMESPACE, PORT, objects::put};
use crate::ecs::{Addresses, Server};

/// The first pods are in these, in turn.
pub(super) const ZONES: [&str; 2] = ["eu-central-1a", "eu-central-1b"];
/// From the creation of a pod until it is ready.
const STARTS: Duration = Duration::from_secs(2);
/// Between the end of the `preStop` hook and that of the grace period, in seconds.
const SPARE: u64 = 30;
/// For the API server, which may be away for a while, and between attempts.
const PATIENCE: Duration = Duration::from_mins(2);
const PAUSE: Duration = Duration::from_millis(500);

/// What a pod runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Image {
    /// A server that answers.
    Good,
    /// A process that listens nowhere. Without a readiness probe, its pod is ready all the same.
    Bad,
}

/// Where a pod is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Starts,
    Ready,
    /// It was deleted, and answers while its `preStop` hook sleeps.
    Ends,
}

/// A pod, which answers while this is there.
struct Running {
    name: String,
    address: SocketAddrV4,
    zone: &'static str,
    life: Life,
    _server: Option<Server>,
}

impl Running {
    async fn start(name: String, zone: &'static str, image: Image, addresses: &Addresses) -> Result<Self> {
        let address = SocketAddrV4::new(addresses.take(), PORT);
        let server = match image {
            Image::Good => Some(Server::start(&Handle::current(), address, "pod").await?),
            Image::Bad => None,
        };
        Ok(Self { name, address, zone, life: Life::Starts, _server: server })
    }

    /// As the EndpointSlice controller writes one.
    fn endpoint(&self) -> Value {
        let (ready, serving, terminating) = match self.life {
            Life::Starts => (false, false, false),
            Life::Ready => (true, true, false),
            Life::Ends => (false, true, true),
        };
        json!({
            "addresses": [self.address.ip()],
            "conditions": {"ready": ready, "serving": serving, "terminating": terminating},
            "zone": self.zone,
            "targetRef": {"kind": "Pod", "namespace": NAMESPACE, "name": self.name},
        })
    }

    /// As the kubelet writes one.
    fn status(&self) -> Value {
        let (address, ready) = (self.address.ip(), if self.life == Life::Ready { "True" } else { "False" });
        json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": ready}],
        }})
    }
}

/// The pods of a Service, and its EndpointSlice.
pub(super) struct Deployment {
    /// Of the Service.
    pub(super) name: String,
    client: Client,
    addresses: Addresses,
    /// How long a pod answers after it was deleted: its `preStop` hook sleeps.
    lingers: Duration,
    state: Mutex<State>,
}

struct State {
    /// The oldest first.
    pods: Vec<Running>,
    /// How many there ever were.
    started: usize,
}

impl Deployment {
    /// Starts the first pods, which are ready. They run until this is dropped.
    pub(super) async fn new(client: Client, name: String, plan: &CutoverPlan, addresses: Addresses) -> Result<Self> {
        let mut pods = Vec::new();
        for number in 0..plan.pods {
            let zone = ZONES[number % ZONES.len()];
            let pod = Running::start(format!("{name}-{number}"), zone, Image::Good, &addresses).await?;
            pods.push(Running { life: Life::Ready, ..pod });
        }
        let state = Mutex::new(State { pods, started: plan.pods });
        Ok(Self { name, client, addresses, lingers: lingers(plan.ttl, plan.settle), state })
    }

    /// Creates the objects of the first pods.
    pub(super) async fn create(&self) -> Result<()> {
        let state = self.state.lock().await;
        for pod in &state.pods {
            self.create_pod(pod).await?;
        }
        let endpoints: Vec<_> = state.pods.iter().map(Running::endpoint).collect();
        let slice = json!({
            "metadata": {
                "name": self.slice_name(),
                "labels": {
                    "kubernetes.io/service-name": self.name,
                    // A guard asks only pods that Kubernetes lists.
                    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
                },
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
        });
        put::<EndpointSlice>(&self.client, slice).await
    }

    fn slice_name(&self) -> String {
        format!("{}-slice", self.name)
    }

    /// Names and zones of the pods that are ready, the oldest first.
    async fn ready(&self) -> Vec<(String, &'static str)> {
        let state = self.state.lock().await;
        let ready = state.pods.iter().filter(|pod| pod.life == Life::Ready);
        ready.map(|pod| (pod.name.clone(), pod.zone)).collect()
    }

    /// Addresses of the pods that were deleted and answer still.
    pub(super) async fn ending(&self) -> BTreeSet<String> {
        let state = self.state.lock().await;
        let ending = state.pods.iter().filter(|pod| pod.life == Life::Ends);
        ending.map(|pod| pod.address.ip().to_string()).collect()
    }

    /// A pod more. It is ready when this returns.
    pub(super) async fn add(&self, zone: &'static str, image: Image) -> Result<()> {
        let mut state = self.state.lock().await;
        let name = format!("{}-{}", self.name, state.started);
        state.started += 1;
        let pod = Running::start(name.clone(), zone, image, &self.addresses).await?;
        self.create_pod(&pod).await?;
        state.pods.push(pod);
        self.write_slice(&state.pods).await?;
        drop(state);
        sleep(STARTS).await;
        let mut state = self.state.lock().await;
        for pod in state.pods.iter_mut().filter(|pod| pod.name == name) {
            pod.life = Life::Ready;
            self.write_status(pod).await?;
        }
        self.write_slice(&state.pods).await
    }

    /// Replaces all pods, one after the other.
    pub(super) async fn roll_out(self: &Arc<Self>, stopping: &Stopping) -> Result<()> {
        for (name, zone) in self.ready().await {
            self.add(zone, Image::Good).await?;
            stopping.delete(self, &name).await?;
        }
        Ok(())
    }

    /// Takes the newest pod away. Gives how many went.
    pub(super) async fn scale_in(self: &Arc<Self>, stopping: &Stopping) -> Result<usize> {
        let Some((name, _)) = self.ready().await.pop() else { return Ok(0) };
        stopping.delete(self, &name).await?;
        Ok(1)
    }

    /// Moves all pods of the last zone to the first one, at once. Gives their number.
    pub(super) async fn drain(self: &Arc<Self>, stopping: &Stopping) -> Result<usize> {
        let mut moved = self.ready().await;
        moved.retain(|(_, zone)| *zone == ZONES[ZONES.len() - 1]);
        for (name, _) in &moved {
            stopping.delete(self, name).await?;
        }
        for _ in &moved {
            self.add(ZONES[0], Image::Good).await?;
        }
        Ok(moved.len())
    }

    /// Deletes a pod: it is not ready any more.
    async fn delete(&self, name: &str) -> Result<()> {
        self.delete_pod(name, None).await?;
        let mut state = self.state.lock().await;
        state.pods.iter_mut().filter(|pod| pod.name == name).for_each(|pod| pod.life = Life::Ends);
        self.write_slice(&state.pods).await
    }

    /// Stops a pod that was just deleted, when its `preStop` hook has slept.
    async fn stop(&self, name: &str) -> Result<()> {
        sleep(self.lingers).await;
        let mut state = self.state.lock().await;
        // Its server ends with it.
        state.pods.retain(|pod| pod.name != name);
        self.write_slice(&state.pods).await?;
        drop(state);
        self.delete_pod(name, Some(0)).await
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create_pod(&self, pod: &Running) -> Result<()> {
        let seconds = self.lingers.as_secs();
        let object = json!({
            "metadata": {"name": pod.name, "labels": {"app": self.name}},
            "spec": {
                // Without a node, the object would go at once when it is deleted.
                "nodeName": format!("node-{}", pod.zone),
                "terminationGracePeriodSeconds": seconds + SPARE,
                "containers": [{
                    "name": "server",
                    "image": "server",
                    "lifecycle": {"preStop": {"sleep": {"seconds": seconds}}},
                }],
            },
        });
        put::<Pod>(&self.client, object).await?;
        self.write_status(pod).await
    }

    async fn write_status(&self, pod: &Running) -> Result<()> {
        let status = pod.status();
        let written = self.pods().patch_status(&pod.name, &PatchParams::default(), &Patch::Merge(&status)).await;
        written.with_context(|| format!("failed to write the status of the pod {}", pod.name))?;
        Ok(())
    }

    async fn write_slice(&self, pods: &[Running]) -> Result<()> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), NAMESPACE);
        let endpoints: Vec<_> = pods.iter().map(Running::endpoint).collect();
        let (name, patch) = (self.slice_name(), json!({"endpoints": endpoints}));
        let begun = Instant::now();
        while let Err(error) = slices.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            ensure!(begun.elapsed() < PATIENCE, "failed to write the EndpointSlice {name}: {error}");
            sleep(PAUSE).await;
        }
        Ok(())
    }

    async fn delete_pod(&self, name: &str, grace_period_seconds: Option<u32>) -> Result<()> {
        let params = DeleteParams { grace_period_seconds, ..DeleteParams::default() };
        let begun = Instant::now();
        while let Err(error) = self.pods().delete(name, &params).await {
            if matches!(&error, kube::Error::Api(status) if status.is_not_found()) {
                break;
            }
            ensure!(begun.elapsed() < PATIENCE, "failed to delete the pod {name}: {error}");
            sleep(PAUSE).await;
        }
        Ok(())
    }
}

/// The pods that were deleted, until they stop.
#[derive(Debug, Default)]
pub(super) struct Stopping(StdMutex<JoinSet<Result<()>>>);

impl Stopping {
    fn lock(&self) -> MutexGuard<'_, JoinSet<Result<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes a pod, which stops by itself.
    async fn delete(&self, deployment: &Arc<Deployment>, name: &str) -> Result<()> {
        deployment.delete(name).await?;
        let (deployment, name) = (Arc::clone(deployment), name.to_owned());
        self.lock().spawn(async move { deployment.stop(&name).await });
        Ok(())
    }

    /// Waits until all have stopped. Gives their number.
    ///
    /// # Errors
    /// One could not be stopped.
    pub(super) async fn wait(&self) -> Result<usize> {
        let mut stopping = std::mem::take(&mut *self.lock());
        let mut stopped = 0;
        while let Some(outcome) = stopping.join_next().await {
            outcome??;
            stopped += 1;
        }
        Ok(stopped)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_pod_that_ends_is_not_ready_and_serves() {
        let pod = |life| Running {
            name: "orders-0".to_owned(),
            address: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), PORT),
            zone: ZONES[0],
            life,
            _server: None,
        };
        for (life, ready, serving, terminating) in
            [(Life::Starts, false, false, false), (Life::Ready, true, true, false), (Life::Ends, false, true, true)]
        {
            let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
            assert_eq!(pod(life).endpoint()["conditions"], conditions, "{life:?}");
        }
        assert_eq!(pod(Life::Starts).status()["status"]["conditions"][0]["status"], "False");
        assert_eq!(pod(Life::Ready).status()["status"]["conditions"][0]["status"], "True");
    }
}
