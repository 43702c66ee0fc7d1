//! The Lease as an object of the Kubernetes API.

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use futures::StreamExt as _;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{PostParams, WatchEvent, WatchParams},
};
use tokio::time::sleep;

use super::{Error, LEASE, LeaseStore, PeerReport, Record, Timing};
use api::names::{ANNOTATION_BID, ANNOTATION_BUILD, ANNOTATION_YIELDS};
use base::{env, release};

/// After so many seconds the API server ends a watch; it takes less than 300.
const WATCH_SECONDS: u32 = 290;
/// Time from the end of a watch to the next one. Meanwhile the Lease is looked at.
const WATCH_AGAIN: Duration = Duration::from_secs(5);

/// The Lease in Kubernetes.
#[derive(Debug, Clone)]
pub struct KubernetesLease {
    api: Api<Lease>,
}

impl KubernetesLease {
    /// The Lease in `namespace`, which is the controller's own.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { api: Api::namespaced(client, namespace) }
    }
}

#[async_trait]
impl LeaseStore for KubernetesLease {
    async fn read(&self) -> Result<Option<(Record, String)>, Error> {
        let lease = self.api.get_opt(LEASE).await.map_err(failed)?;
        Ok(lease.map(|mut lease| {
            let mut annotations = lease.metadata.annotations.take().unwrap_or_default();
            let holder = holder(&lease).cloned();
            let spec = lease.spec.unwrap_or_default();
            let record = Record {
                holder,
                duration: spec
                    .lease_duration_seconds
                    .and_then(|seconds| u64::try_from(seconds).ok())
                    .map_or(Timing::default().duration, Duration::from_secs),
                transitions: spec.lease_transitions.unwrap_or(0),
                acquired: spec.acquire_time.map_or(Timestamp::UNIX_EPOCH, |time| time.0),
                yields: annotations.remove(ANNOTATION_YIELDS),
                bid: annotations.remove(ANNOTATION_BID),
                peers: PeerReport::read(&annotations),
            };
            (record, version_of(lease.metadata))
        }))
    }

    async fn write(&self, record: &Record, version: Option<&str>) -> Result<String, Error> {
        // Who offers to lead instead writes its own until the next renewal.
        let build = record.holder.as_ref().map(|_| release::version().to_owned());
        let own = [
            (ANNOTATION_YIELDS, record.yields.clone()),
            (ANNOTATION_BID, record.bid.clone()),
            (ANNOTATION_BUILD, build),
        ];
        let annotations = own.into_iter().chain(record.peers.annotations());
        let annotations: BTreeMap<_, _> =
            annotations.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let (number, uid) = version.map_or(("", ""), |version| version.split_once('/').unwrap_or((version, "")));
        let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(LEASE.to_owned()),
                resource_version: known(number),
                uid: known(uid),
                annotations: (!annotations.is_empty()).then_some(annotations),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                // The API server refuses an empty holder, but not a missing one.
                holder_identity: record.holder.clone(),
                lease_duration_seconds: i32::try_from(record.duration.as_secs()).ok(),
                lease_transitions: Some(record.transitions),
                acquire_time: Some(MicroTime(record.acquired)),
                renew_time: Some(MicroTime(env::timestamp())),
                ..LeaseSpec::default()
            }),
        };
        let params = PostParams::default();
        let written = match version {
            Some(_) => match self.api.replace(LEASE, &params, &lease).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => return Err(Error::Conflict),
                replaced => replaced,
            },
            None => self.api.create(&params, &lease).await,
        };
        Ok(version_of(written.map_err(failed)?.metadata))
    }

    async fn released(&self) {
        let params = WatchParams::default().fields(&format!("metadata.name={LEASE}")).timeout(WATCH_SECONDS);
        loop {
            // From any version: the first event is the Lease as it is.
            if let Ok(events) = self.api.watch(&params, "0").await {
                let mut events = std::pin::pin!(events);
                while let Some(Ok(event)) = events.next().await {
                    match event {
                        WatchEvent::Deleted(_) => return,
                        WatchEvent::Added(lease) | WatchEvent::Modified(lease) if holder(&lease).is_none() => return,
                        WatchEvent::Error(_) => break,
                        _ => {}
                    }
                }
            }
            sleep(WATCH_AGAIN).await;
        }
    }
}

fn holder(lease: &Lease) -> Option<&String> {
    lease.spec.as_ref()?.holder_identity.as_ref().filter(|holder| !holder.is_empty())
}

/// The version of a Lease, with its uid: if it is gone, the API server creates it when it is to be replaced, whatever its
/// `resourceVersion`, and refuses only one that has the uid of the former Lease.
fn version_of(ObjectMeta { resource_version, uid, .. }: ObjectMeta) -> String {
    format!("{}/{}", resource_version.unwrap_or_default(), uid.unwrap_or_default())
}

fn failed(error: kube::Error) -> Error {
    match error {
        kube::Error::Api(status) if status.is_conflict() || status.is_already_exists() => Error::Conflict,
        error => Error::Api(Box::new(error)),
    }
}
