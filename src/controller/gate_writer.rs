//! What opens the gates that the core decided to open.

use super::{
    Metrics,
    status_writer::{All, Planned},
};
use api::{conditions::GateReason, events::EventReason};
use base::env;
use cluster::{
    ClusterWriter,
    apply::{Cause, Error},
    events::{self, EventRecord},
    objects::{ObjectKey, TargetId},
};

/// A gate that is to be opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) key: ObjectKey,
    pub(super) uid: Box<str>,
    pub(super) reason: GateReason,
    pub(super) message: String,
}

/// All gates that are to be opened, by the ids of their pods.
pub(super) type Openings = All<TargetId, Opening>;

impl Planned for Opening {
    const DOES: &'static str = "open a readiness gate";

    fn object(&self) -> String {
        self.key.to_string()
    }

    async fn write(&self, writer: &dyn ClusterWriter) -> Result<(), Error> {
        writer.open_gate(&self.key, &self.uid, self.reason, &self.message, env::timestamp()).await
    }

    fn written(&self, metrics: &Metrics) -> Vec<EventRecord> {
        metrics.gate_opened(self.reason);
        self.reason.row().event.map(|event| self.note(event, self.message.clone())).into_iter().collect()
    }

    fn refused(&self, cause: &Cause) -> Option<EventRecord> {
        let text = format!(
            "The condition cloudmap-mcs/registered cannot be set: {cause}. The controller tries again until it succeeds."
        );
        Some(self.note(EventReason::GateNotWritten, text))
    }
}

impl Opening {
    fn note(&self, reason: EventReason, text: String) -> EventRecord {
        EventRecord { regarding: events::pod(&self.key, &self.uid), reason, action: "Register", text }
    }
}
