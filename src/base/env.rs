//! What a process gets from its machine besides the network and the monotonic clock (tokio's): the wall clock,
//! randomness, and tasks.
//!
//! Only the edges call these functions, and pass the results on. Nothing else in the product asks the operating system.
//! A process uses the real machine. A simulation gives each replica a [`Machine`] of its own with [`on`]: with a wall
//! clock that differs and jumps, seeded randomness, and tasks that stand still or end while other replicas continue.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use futures::{FutureExt as _, future::BoxFuture};
use k8s_openapi::jiff::Timestamp;
use tokio::task::JoinHandle;

/// A machine that replaces the real one.
pub trait Machine: Send + Sync + 'static {
    /// The time of its wall clock. It may go back.
    fn wall_clock(&self) -> SystemTime;

    /// A random number.
    fn random(&self) -> u64;

    /// Runs a task. Every task of the process passes through here once.
    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()>;
}

tokio::task_local! {
    static MACHINE: Arc<dyn Machine>;
}

/// Runs a task, and everything that it spawns through this module, on `machine`.
pub fn on(machine: &Arc<dyn Machine>, task: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
    let scoped = MACHINE.scope(Arc::clone(machine), task).boxed();
    machine.task(scoped)
}

fn machine() -> Option<Arc<dyn Machine>> {
    MACHINE.try_with(Arc::clone).ok()
}

/// Whether the machine of this task is no real one.
pub fn is_simulated() -> bool {
    machine().is_some()
}

/// Time since 1970, by the wall clock.
pub fn since_epoch() -> Duration {
    let now = machine().map_or_else(SystemTime::now, |machine| machine.wall_clock());
    now.duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The wall clock as Kubernetes writes it.
pub fn timestamp() -> Timestamp {
    Timestamp::UNIX_EPOCH.checked_add(since_epoch()).unwrap_or(Timestamp::MAX)
}

/// A random number.
pub fn random() -> u64 {
    machine().map_or_else(rand::random, |machine| machine.random())
}

/// Bytes that nobody can guess, for a private key.
pub fn secret() -> [u8; 32] {
    let Some(machine) = machine() else { return rand::random() };
    let mut bytes = [0; 32];
    for part in bytes.chunks_exact_mut(8) {
        part.copy_from_slice(&machine.random().to_be_bytes());
    }
    bytes
}

/// On a simulated machine, lets other tasks go on first, at random: a real one has other threads for them.
pub async fn interleave() {
    if machine().is_some_and(|machine| machine.random().is_multiple_of(4)) {
        tokio::task::yield_now().await;
    }
}

/// Like [`tokio::spawn`], on the machine of the calling task.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
    tokio::spawn(self::task(task))
}

/// Prepares a task that is spawned in another way, such as in a `JoinSet`, to run on the machine of the calling task.
pub fn task(task: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
    match machine() {
        Some(machine) => on(&machine, task),
        None => task.boxed(),
    }
}

/// The machine of a test. Its wall clock follows tokio's clock, starting in the first hour of 2026.
#[cfg(any(test, feature = "testing"))]
#[derive(Debug)]
pub struct Simulated {
    began: tokio::time::Instant,
    /// How far its wall clock is behind.
    behind: Duration,
}

#[cfg(any(test, feature = "testing"))]
impl Default for Simulated {
    fn default() -> Self {
        Self::behind(Duration::ZERO)
    }
}

#[cfg(any(test, feature = "testing"))]
impl Simulated {
    /// The machine, with its clocks in step.
    pub fn new() -> Self {
        Self::default()
    }

    /// The machine, with a wall clock that is so far behind.
    pub fn behind(behind: Duration) -> Self {
        Self { began: tokio::time::Instant::now(), behind }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Machine for Simulated {
    fn wall_clock(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_hours(490_896) + self.began.elapsed() - self.behind
    }

    fn random(&self) -> u64 {
        rand::random()
    }

    fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
        task
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[derive(Default)]
    struct Counting {
        tasks: AtomicU64,
    }

    impl Machine for Counting {
        fn wall_clock(&self) -> SystemTime {
            UNIX_EPOCH + Duration::from_secs(7)
        }

        fn random(&self) -> u64 {
            4
        }

        fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
            self.tasks.fetch_add(1, Ordering::Relaxed);
            task
        }
    }

    #[tokio::test]
    async fn spawned_tasks_run_on_the_machine_of_their_parent() {
        let machine = Arc::new(Counting::default());
        let dynamic: Arc<dyn Machine> = machine.clone();
        on(&dynamic, async {
            let inner = spawn(async { assert_eq!((since_epoch().as_secs(), random()), (7, 4)) });
            inner.await.unwrap();
            assert_eq!(timestamp().as_second(), 7);
        })
        .await;
        assert_eq!(machine.tasks.load(Ordering::Relaxed), 2);
        assert!(since_epoch().as_secs() > 7, "outside it is the real one");
    }
}
