//! What ECS does for services whose tasks run: it starts and stops tasks until there are as many as desired, replaces those
//! that have died, and reports to Cloud Map whether they are healthy.
//!
//! All of it happens on one thread of its own: a scenario that computes or waits does not hold ECS up.

use std::io;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use async_trait::async_trait;
use tokio::runtime::Builder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{LocalSet, spawn_local};

use super::model::ManagedService;
use super::{Shared, lock};
use crate::ecs::Definition;

/// How often the desired count is looked at.
const PAUSE: Duration = Duration::from_millis(250);
/// How often dead tasks are looked for. AWS documents nothing.
const LOOK: Duration = Duration::from_secs(5);

/// The tasks of a service.
#[async_trait(?Send)]
pub trait Fleet: Send {
    /// The service.
    fn definition(&self) -> &Definition;

    /// Forgets the tasks that have died. Gives the number of the others.
    async fn alive(&mut self) -> Result<usize>;

    /// Starts or stops tasks, until there are so many.
    async fn scale(&mut self, desired: usize) -> Result<()>;

    /// Starts so many tasks, and then stops those that were there before.
    async fn replace(&mut self, desired: usize) -> Result<()>;

    /// Reports to Cloud Map whether each task is healthy.
    async fn report(&mut self) -> Result<()>;
}

/// Cluster and name of a service.
pub(super) type Key = (String, String);

/// A service that has tasks.
pub(super) struct Driven {
    pub(super) key: Key,
    pub(super) fleet: Box<dyn Fleet>,
    /// How often their health is reported.
    pub(super) reports: Option<Duration>,
}

/// Starts the thread. It ends, wherever it is, when what this gives is dropped.
pub(super) fn start(model: Shared) -> io::Result<UnboundedSender<Driven>> {
    let (sender, receiver) = unbounded_channel();
    let runtime = Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("ecs".to_owned()).spawn(move || {
        let local = LocalSet::new();
        local.block_on(&runtime, receive(model, receiver));
    })?;
    Ok(sender)
}

async fn receive(model: Shared, mut receiver: UnboundedReceiver<Driven>) {
    while let Some(driven) = receiver.recv().await {
        spawn_local(drive(Arc::clone(&model), driven));
    }
}

/// Until the service is not there any more.
async fn drive(model: Shared, Driven { key, mut fleet, reports }: Driven) {
    let (mut running, mut looked, mut reported) = (0, None::<Instant>, Instant::now());
    while let Some((desired, deploying)) = wanted(&model, &key) {
        if deploying || running != desired || looked.is_none_or(|at| at.elapsed() >= LOOK) {
            match follow(&model, &key, &mut *fleet, desired, deploying).await {
                Ok(number) => running = number,
                Err(error) => {
                    tracing::warn!(cluster = key.0.as_str(), service = key.1.as_str(), "tasks: {error:#}");
                    change(&model, &key, |service| service.failed += 1);
                    tokio::time::sleep(LOOK).await;
                }
            }
            looked = Some(Instant::now());
        }
        if reports.is_some_and(|every| reported.elapsed() >= every) {
            reported = Instant::now();
            if let Err(error) = fleet.report().await {
                tracing::warn!(cluster = key.0.as_str(), service = key.1.as_str(), "health: {error:#}");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// How many tasks there are to be, and whether all are to be replaced.
fn wanted(model: &Shared, key: &Key) -> Option<(usize, bool)> {
    let mut model = lock(model);
    let service = model.services.get_mut(key)?;
    service.raise();
    Some((usize::try_from(service.desired).unwrap_or_default(), service.deploying))
}

fn change(model: &Shared, key: &Key, change: impl FnOnce(&mut ManagedService)) {
    if let Some(service) = lock(model).services.get_mut(key) {
        change(service);
    }
}

/// Does what is to be done, and says how far it is. Gives the number of tasks.
async fn follow(model: &Shared, key: &Key, fleet: &mut dyn Fleet, desired: usize, deploying: bool) -> Result<usize> {
    let mut there = fleet.alive().await?;
    if deploying {
        let (old, new) = (number(there), number(desired));
        change(model, key, |service| (service.running, service.pending, service.old) = (old, new, old));
        let replaced = fleet.replace(desired).await;
        there = fleet.alive().await?;
        let done = replaced.is_ok();
        change(model, key, |service| {
            (service.running, service.pending) = (number(there), 0);
            if done {
                (service.old, service.deploying) = (0, false);
            }
        });
        return replaced.map(|()| there);
    }
    if there != desired {
        // A task that is being stopped does not run any more (`DEACTIVATING`).
        let (running, pending) = (number(there.min(desired)), number(desired.saturating_sub(there)));
        change(model, key, |service| (service.running, service.pending) = (running, pending));
        let scaled = fleet.scale(desired).await;
        there = fleet.alive().await?;
        change(model, key, |service| (service.running, service.pending) = (number(there), 0));
        return scaled.map(|()| there);
    }
    change(model, key, |service| (service.running, service.pending) = (number(there), 0));
    Ok(there)
}

fn number(tasks: usize) -> i64 {
    i64::try_from(tasks).unwrap_or(i64::MAX)
}
