//! What writes the statuses of ClusterImportPolicies.

use std::sync::Arc;

use super::{
    Metrics,
    status_writer::{All, Planned},
};
use api::ClusterImportPolicyStatus;
use cluster::{
    ClusterWriter,
    apply::{Cause, Error},
    events::EventRecord,
};

/// A status that is to be written.
#[derive(Debug, PartialEq)]
pub(super) struct PolicyStatus {
    pub(super) name: Arc<str>,
    pub(super) uid: Box<str>,
    pub(super) status: ClusterImportPolicyStatus,
}

/// All statuses that are to be written.
pub(super) type Written = All<Arc<str>, PolicyStatus>;

impl Planned for PolicyStatus {
    const DOES: &'static str = "write the status of a ClusterImportPolicy";

    fn object(&self) -> String {
        self.name.to_string()
    }

    async fn write(&self, writer: &dyn ClusterWriter) -> Result<(), Error> {
        writer.apply_import_policy_status(&self.name, &self.uid, &self.status).await
    }

    fn written(&self, _: &Metrics) -> Vec<EventRecord> {
        Vec::new()
    }

    /// Events about objects without a namespace would be in `default`, where nobody looks for them. The policy is in force
    /// whatever its status says.
    fn refused(&self, _: &Cause) -> Option<EventRecord> {
        None
    }
}
