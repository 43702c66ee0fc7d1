//! What was written, by whom and when.

use std::{fmt, sync::Arc, time::Duration};

use serde_json::Value;

use super::store::Key;

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    /// A merge patch.
    Patch,
    /// A server-side apply.
    Apply,
    Delete,
}

impl Verb {
    pub const fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// A write that took effect. One that changed nothing has the same object before and after.
#[derive(Debug, Clone)]
pub struct Write {
    /// Since the server was started.
    pub at: Duration,
    /// The replica, or `user`.
    pub by: String,
    /// The field manager.
    pub manager: String,
    pub verb: Verb,
    /// `services`.
    pub resource: &'static str,
    /// Namespace and name.
    pub key: Key,
    /// Through the status subresource.
    pub status: bool,
    pub before: Option<Arc<Value>>,
    pub after: Option<Arc<Value>>,
}

impl Write {
    /// Whether the object is another one than before.
    pub fn changed(&self) -> bool {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => {
                before["metadata"]["resourceVersion"] != after["metadata"]["resourceVersion"]
            }
            (before, after) => before.is_some() || after.is_some(),
        }
    }
}

/// One line of a trace.
impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (namespace, name) = &self.key;
        let status = if self.status { "/status" } else { "" };
        let nothing = if self.changed() { "" } else { " (nothing changed)" };
        write!(
            f,
            "{:>9.3} s  {} {:?} {}{status} {namespace}/{name}{nothing}",
            self.at.as_secs_f64(),
            self.by,
            self.verb,
            self.resource
        )?;
        // What an Event says is often the only sign of a decision.
        match self.after.as_deref().filter(|_| self.resource == "events").map(|event| event["note"].as_str()) {
            Some(Some(note)) => write!(f, ": {note}"),
            _ => Ok(()),
        }
    }
}
