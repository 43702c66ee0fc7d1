//! One connection with another leader.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use super::{
    message::{Hello, Message},
    serve::{OwnState, Serving},
};
use model::PublicKey;

/// Time between two signs of life.
const ALIVE: Duration = Duration::from_secs(1);
/// A sign of life that is due this soon goes at once, so that a leader with many sessions wakes up for many of them together.
const EARLY: Duration = Duration::from_millis(100);
/// Who says nothing for this long may be gone (S10). It is more than two signs of life, so that one that comes late is no
/// reason to read the heads.
const LATE: Duration = Duration::from_millis(2_500);
/// Who says nothing for this long, or takes nothing, is gone.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// A connection whose keys are verified.
#[derive(Debug)]
pub(super) struct Session {
    /// The key of the other side.
    pub(super) key: PublicKey,
    /// Whom this cluster dialled; `None` if it was dialled.
    pub(super) dialled: Option<Arc<str>>,
    /// Who is there, once it said so.
    pub(super) peer: Option<Hello>,
    opened: Duration,
    received: Duration,
    sent: Duration,
    /// Since when a message is on its way to the socket.
    busy: Option<Duration>,
    queue: VecDeque<Message>,
    pub(super) serving: Option<Serving>,
}

impl Session {
    pub(super) fn new(now: Duration, key: PublicKey, dialled: Option<Arc<str>>, hello: Hello) -> Self {
        let queue = [Message::Hello(hello)].into();
        Self { key, dialled, peer: None, opened: now, received: now, sent: now, busy: None, queue, serving: None }
    }

    /// Whether the other side went on speaking: it neither refused this connection at once nor took it in silence. If it hears
    /// nothing itself, it speaks until it ends the connection for that.
    pub(super) fn lasted(&self) -> bool {
        self.received.saturating_sub(self.opened) > 2 * SILENCE
    }

    pub(super) fn receive(&mut self, now: Duration) {
        self.received = now;
    }

    /// Whether something came lately.
    pub(super) fn is_alive(&self, now: Duration) -> bool {
        now < self.received + LATE
    }

    /// The socket has taken the last message.
    pub(super) fn taken(&mut self) {
        self.busy = None;
    }

    /// Whether there is something to send but a sign of life.
    pub(super) fn has_more(&self, own: OwnState<'_>) -> bool {
        !self.queue.is_empty() || self.serving.as_ref().is_some_and(|serving| serving.has_more(own))
    }

    pub(super) fn enqueue(&mut self, message: Message) {
        self.queue.push_back(message);
    }

    /// When it counts as gone.
    pub(super) fn ends(&self) -> Duration {
        self.received.min(self.busy.unwrap_or(Duration::MAX)) + SILENCE
    }

    /// When it wants to be looked at.
    pub(super) fn wake(&self, now: Duration) -> Duration {
        let next = if self.busy.is_some() { self.ends() } else { self.ends().min(self.due()) };
        if self.is_alive(now) { next.min(self.received + LATE) } else { next }
    }

    /// When the next sign of life is due.
    fn due(&self) -> Duration {
        self.sent + ALIVE
    }

    /// The next message for the socket, if it has room.
    pub(super) fn next(&mut self, now: Duration, own: OwnState<'_>) -> Option<Message> {
        if self.busy.is_some() {
            return None;
        }
        let serving = self.serving.as_mut();
        let message = self.queue.pop_front().or_else(|| serving?.next(own));
        let message = message.or_else(|| (now + EARLY >= self.due()).then_some(Message::Alive))?;
        (self.busy, self.sent) = (Some(now), now);
        Some(message)
    }
}
