//! What writes the statuses of Cutovers that the core planned.

use super::{
    Metrics,
    status_writer::{All, Planned},
};
use api::{CutoverStatus, events::EventReason};
use cluster::{
    ClusterWriter,
    apply::{Cause, Error},
    events::{self, EventRecord},
};
use model::ServiceKey;

/// A status that is to be written.
#[derive(Debug, PartialEq)]
pub(super) struct Progress {
    pub(super) key: ServiceKey,
    pub(super) uid: Box<str>,
    /// The version of the Cutover from which it was planned.
    pub(super) version: Box<str>,
    pub(super) status: CutoverStatus,
    /// The Events to emit when it is written.
    pub(super) news: Vec<(EventReason, String)>,
}

/// All statuses that are to be written.
pub(super) type Written = All<ServiceKey, Progress>;

impl Planned for Progress {
    const DOES: &'static str = "write the status of a Cutover";

    fn object(&self) -> String {
        self.key.to_string()
    }

    async fn write(&self, writer: &dyn ClusterWriter) -> Result<(), Error> {
        writer.apply_cutover_status(&self.key, &self.uid, &self.version, &self.status).await
    }

    fn written(&self, _: &Metrics) -> Vec<EventRecord> {
        self.news.iter().map(|(reason, text)| self.note(*reason, text.clone())).collect()
    }

    fn refused(&self, cause: &Cause) -> Option<EventRecord> {
        let text = format!(
            "The status cannot be written, so the share stays as it is: {cause}. The controller tries again until it succeeds."
        );
        Some(self.note(EventReason::CutoverNotWritten, text))
    }
}

impl Progress {
    fn note(&self, reason: EventReason, text: String) -> EventRecord {
        EventRecord { regarding: events::cutover(&self.key, &self.uid), reason, action: "Shift", text }
    }
}
