//! The right to write.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{Error, ErrorKind, Operation};

/// The right to write in Cloud Map, and until when. Whoever has none cannot even make the call, and a call is refused
/// once the permit has ended. Only the Lease and the commands that a person runs make permits (`src/tests/layers.rs` names
/// the two places). Clones are cheap, and end together.
#[derive(Clone)]
pub struct Permit {
    until: Arc<dyn Fn() -> Option<Instant> + Send + Sync>,
}

impl Permit {
    /// The permit of a leader. `until` says how long the Lease is held, and is asked at every write: a renewal prolongs the
    /// permit. It must return `None` for good once another process may have held the Lease. `None` if it is not held now.
    pub fn of_lease(until: impl Fn() -> Option<Instant> + Send + Sync + 'static) -> Option<Self> {
        Some(Self { until: Arc::new(until) }).filter(|permit| permit.lasts(Duration::ZERO))
    }

    /// The permit of a command that a person runs in order to write. It lasts as long as the command.
    pub fn of_command() -> Self {
        Self { until: Arc::new(|| Some(Instant::now() + Duration::from_hours(24))) }
    }

    /// The same, as long as something else holds, too.
    #[must_use]
    pub fn only_while(self, holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { until: Arc::new(move || (self.until)().filter(|_| holds())) }
    }

    /// Whether it counts now, and will for at least so long, unless something ends it early.
    pub fn lasts(&self, time: Duration) -> bool {
        let now = Instant::now();
        (self.until)().is_some_and(|until| until > now && until >= now + time)
    }

    /// Waits until its time is over, and was not prolonged.
    pub async fn ended(&self) {
        while let Some(until) = (self.until)().filter(|until| *until > Instant::now()) {
            sleep_until(until).await;
        }
    }

    /// To be called immediately before something is sent.
    ///
    /// # Errors
    /// [`ErrorKind::NoPermit`] if the permit has ended.
    pub fn check(&self, operation: Operation) -> Result<(), Error> {
        if self.lasts(Duration::ZERO) { Ok(()) } else { Err(Self::missing(operation)) }
    }

    /// The error of a write for which there is no permit.
    pub fn missing(operation: Operation) -> Error {
        let message = "this replica may no longer write, because it does not lead; nothing was sent".to_owned();
        Error { operation: operation.name(), kind: ErrorKind::NoPermit, message }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("until", &(self.until)()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use tokio::sync::watch;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_renewal_prolongs_a_permit_and_the_end_of_what_it_depends_on_ends_it() {
        let begun = Instant::now();
        assert!(Permit::of_lease(move || Some(begun)).is_none(), "it has just ended");
        let (lease, held) = watch::channel(Some(begun + 3 * SECOND));
        let owns = Arc::new(AtomicBool::new(true));
        let permit = Permit::of_lease(move || *held.borrow()).unwrap();
        let narrowed = permit.clone().only_while({
            let owns = owns.clone();
            move || owns.load(Ordering::Relaxed)
        });
        assert!(narrowed.lasts(3 * SECOND) && !narrowed.lasts(4 * SECOND));
        tokio::join!(permit.ended(), async {
            tokio::time::sleep(SECOND).await;
            lease.send_replace(Some(begun + 7 * SECOND));
        });
        assert_eq!(begun.elapsed(), 7 * SECOND);
        assert_eq!(permit.check(Operation::DeleteService).unwrap_err().kind, ErrorKind::NoPermit);
        lease.send_replace(Some(begun + 9 * SECOND));
        assert_eq!(narrowed.check(Operation::DeleteService), Ok(()), "nobody else held the Lease meanwhile");
        owns.store(false, Ordering::Relaxed);
        assert!(narrowed.check(Operation::DeleteService).is_err() && permit.check(Operation::DeleteService).is_ok());
    }
}
