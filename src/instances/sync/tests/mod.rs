//! The task against a registry in memory, under simulated time.

mod adopting;
mod awaited;
mod cost;
mod denied;
mod drift;
mod engine;
mod foreign;
mod health;
mod hiding;
mod isolation;
mod lifecycle;
mod making;
mod remade;
mod shares;
mod storm;
mod succession;
mod trouble;
mod ttl;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Mutex,
};

use tokio::{sync::oneshot, time::sleep};

use super::*;
use crate::{Source, ownership::is_ours};
use base::steps;
use cloudmap::{
    ErrorKind, Instance, Lane, Limited, Limits, NamespaceKind, Operation, Rates, Service,
    fake::{Fake, Fault},
};
use cluster::{Leadership, record::memory::StoredHidden};
use ledger::{driver::Status, writer::Stage};
use model::{Conditions, Endpoint, ServiceKey, fixtures};

fn identity(uid: &str) -> Owner {
    Owner { clusterset: Some("prod".parse().unwrap()), cluster: "c1".parse().unwrap(), cluster_uid: uid.into() }
}

fn target(namespace: &str, service: &str) -> Target {
    Target { namespace: namespace.into(), service: service.into() }
}

fn specs(uid: &str, service: &str, addresses: impl IntoIterator<Item = u32>, zone: &str) -> Arc<[InstanceSpec]> {
    let endpoints: Vec<_> = addresses
        .into_iter()
        .map(|last| Endpoint { zone: Some(zone.into()), ..fixtures::mk_endpoint(0x0a00_0000 + last) })
        .collect();
    let (identity, service) = (identity(uid), ServiceKey::new("shop", service));
    let source = Source { identity: &identity, service: &service, ports: &[], region: None };
    source.instances(&endpoints).unwrap().into()
}

/// Pods of a service, by the last part of their addresses: ready, not ready, or terminating.
fn pods(service: &str, pods: &[(u32, Conditions)]) -> Arc<[InstanceSpec]> {
    let pod =
        |&(last, conditions): &(u32, Conditions)| Endpoint { conditions, ..fixtures::mk_endpoint(0x0a00_0000 + last) };
    let endpoints: Vec<_> = pods.iter().map(pod).collect();
    let (identity, service) = (identity("uid-1"), ServiceKey::new("shop", service));
    Source { identity: &identity, service: &service, ports: &[], region: None }.instances(&endpoints).unwrap().into()
}

fn active(instances: Arc<[InstanceSpec]>) -> TargetDesired {
    TargetDesired { active: true, instances, ..TargetDesired::default() }
}

fn retiring() -> TargetDesired {
    TargetDesired { retiring: true, released: true, ..TargetDesired::default() }
}

/// The user named the target.
fn named() -> Consent {
    Consent { named: true, ..Consent::default() }
}

fn ecs(id: u32) -> Instance {
    let attributes = [("AWS_INSTANCE_IPV4", format!("10.9.0.{id}")), ("ECS_SERVICE_NAME", "web".to_owned())];
    Instance { id: format!("{id:032x}").into(), attributes: attributes.map(|(k, v)| (k.to_owned(), v)).into() }
}

fn lease(held: bool) -> Option<Instant> {
    held.then(|| Instant::now() + Duration::from_hours(10_000))
}

/// To write for ever.
fn authority() -> Authority {
    Authority { leadership: Leadership::manual(lease(true)), ledger: None }
}

fn targets(targets: impl IntoIterator<Item = (Target, TargetDesired)>) -> Desired {
    targets.into_iter().map(|(target, desired)| (target, Arc::new(desired))).collect()
}

/// A running task with everything that a test controls.
struct World {
    fake: Fake,
    hidden: Arc<StoredHidden>,
    desired: watch::Sender<Desired>,
    leadership: Leadership,
    ledger: watch::Sender<Arc<Status>>,
    handle: SyncHandle,
    _shutdown: oneshot::Sender<()>,
}

impl World {
    fn new(fake: Fake) -> Self {
        Self::with(fake, &Rates::default(), SyncSettings::new(identity("uid-1")))
    }

    fn with(fake: Fake, rates: &Rates, settings: SyncSettings) -> Self {
        let (desired, receiver) = watch::channel(Desired::new());
        let (shutdown, stopped) = oneshot::channel();
        let (ledger, status) = watch::channel(Arc::new(Status { stage: Stage::Running, ..Status::default() }));
        let authority = Authority { ledger: Some(status), ..authority() };
        let leadership = authority.leadership.clone();
        let limited = Arc::new(Limited::new(fake.clone(), Limits::new(rates, None)));
        let listings = Listings::new(limited.clone());
        let hidden = Arc::new(StoredHidden::default());
        let handle = spawn(settings, limited, listings, hidden.clone(), receiver, authority, async {
            let _ = stopped.await;
        });
        Self { fake, hidden, desired, leadership, ledger, handle, _shutdown: shutdown }
    }

    fn desire(&self, targets: impl IntoIterator<Item = (Target, TargetDesired)>) {
        self.desired.send_replace(super::tests::targets(targets));
    }

    /// The Lease is, or is not, held in the same term.
    fn lead(&self, held: bool) {
        self.leadership.set(lease(held));
    }

    /// Another leader was elected, and then this one again.
    fn begin_term(&self) {
        self.ledger.send_modify(|status| Arc::make_mut(status).epoch += 1);
    }

    fn status(&self, target: &Target) -> TargetStatus {
        self.handle.status().borrow().get(target).cloned().unwrap_or_default()
    }

    /// Waits until a target has a status that `what` accepts; gives up after an hour of simulated time.
    async fn until(&self, target: &Target, what: impl Fn(&TargetStatus) -> bool) -> TargetStatus {
        let mut status = self.handle.status();
        let said = status.wait_for(|all| all.get(target).is_some_and(&what));
        let said = tokio::time::timeout(Duration::from_hours(1), said).await.map(|said| said.unwrap()[target].clone());
        said.unwrap_or_else(|_| panic!("{target} says {:?}", self.status(target)))
    }

    async fn registered(&self, target: &Target, count: usize) {
        self.until(target, |status| status.outcome == Outcome::Registered { count }).await;
    }

    async fn refused(&self, target: &Target, reason: Reason) -> String {
        let refused =
            |status: &TargetStatus| matches!(&status.outcome, Outcome::Refused { reason: r, .. } if *r == reason);
        match self.until(target, refused).await.outcome {
            Outcome::Refused { message, .. } => message,
            outcome => panic!("{outcome:?}"),
        }
    }

    /// Ids of the instances in a service, own and foreign.
    fn instances(&self, service: &str) -> Vec<Instance> {
        let registry = self.fake.registry();
        let id = registry.services.values().find(|s| &*s.name == service).map(|s| s.id.clone());
        let inside = registry.instances.iter().filter(|((s, _), _)| Some(s) == id.as_ref());
        inside.map(|((_, id), attributes)| Instance { id: id.clone(), attributes: attributes.clone() }).collect()
    }

    fn count(&self, operation: Operation) -> usize {
        self.fake.registry().count(operation)
    }

    /// The service with this name in the namespace `shop`.
    fn service(&self, name: &str) -> Service {
        self.fake.registry().services.values().find(|service| *service.name == *name).unwrap().clone()
    }

    fn writes(&self) -> usize {
        self.count(Operation::RegisterInstance) + self.count(Operation::DeregisterInstance)
    }
}
