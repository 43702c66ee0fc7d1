//! Why a write failed.

use std::error::Error as _;

/// The beginning of the internal error with which API servers answer a server-side apply that has an unknown field.
const UNKNOWN_FIELD: &str = "failed to create typed patch object";

/// A write failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to {verb} {kind} {object}")]
pub struct Error {
    /// The kind of write, such as `apply`.
    pub verb: &'static str,
    /// The kind of object.
    pub kind: &'static str,
    /// `<namespace>/<name>` of the object.
    pub object: String,
    /// The reason.
    #[source]
    pub cause: Cause,
}

/// Why a write failed. The text is the API server's, if there is one.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// This replica does not lead.
    #[error("this replica is not the leader")]
    NotLeader,
    /// No answer came in time. The write may have taken effect.
    #[error("no answer in time; the write may have taken effect")]
    Timeout,
    /// The object, its namespace or its CRD does not exist.
    #[error("{0}")]
    NotFound(String),
    /// Another object has the name, or other writers own the fields.
    #[error("{0}")]
    Conflict(String),
    /// The namespace is being deleted, so nothing can be created in it.
    #[error("{0}")]
    NamespaceTerminating(String),
    /// RBAC does not allow the write, or a quota or an admission policy does not.
    #[error("{}", with_remedy(.0))]
    Forbidden(String),
    /// The object was refused by validation or an admission policy, or has a field that this API server does not know.
    /// Repeating the write does not help.
    #[error("{0}")]
    Invalid(String),
    /// No connection, overload, or an unreadable answer. The write may have taken effect.
    #[error("{0}")]
    Unavailable(String),
}

/// The text of a refusal, with the remedy if a permission is missing. Quotas and admission policies say themselves what is wrong.
pub(crate) fn with_remedy(words: &str) -> String {
    // `services is forbidden: User "..." cannot create resource "services" in API group "" in the namespace "..."`.
    if words.contains("User \"") && words.contains("\" cannot ") {
        format!(
            "{words}; check that the service account has the permissions in config/rbac (for pods: config/components/readiness-gates, for Cutovers: config/components/cutovers)"
        )
    } else {
        words.to_owned()
    }
}

impl Cause {
    /// A fixed word for metrics.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::NotLeader => "not_leader",
            Self::Timeout => "timeout",
            Self::NotFound(_) => "not_found",
            Self::Conflict(_) => "conflict",
            Self::NamespaceTerminating(_) => "namespace_terminating",
            Self::Forbidden(_) => "forbidden",
            Self::Invalid(_) => "invalid",
            Self::Unavailable(_) => "unavailable",
        }
    }
}

impl From<kube::Error> for Cause {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = &error else { return Self::Unavailable(words(&error)) };
        let message = words(&error);
        let causes = status.details.iter().flat_map(|details| &details.causes);
        if causes.clone().any(|cause| cause.reason == "NamespaceTerminating") {
            Self::NamespaceTerminating(message)
        } else if status.is_not_found() {
            Self::NotFound(message)
        } else if status.is_conflict()
            || status.is_already_exists()
            // The uid in the request is not that of the object: the API server calls the field immutable.
            || causes.clone().any(|cause| cause.field == "metadata.uid")
        {
            Self::Conflict(message)
        } else if status.is_forbidden() {
            Self::Forbidden(message)
        } else if status.is_invalid() || status.code == 400 || message.contains(UNKNOWN_FIELD) {
            Self::Invalid(message)
        } else {
            Self::Unavailable(message)
        }
    }
}

/// The text of a kube error: that of the API server if there is one, else the error with all its causes.
pub(crate) fn words(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return status.message.clone();
    }
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // kube already includes some causes in the text.
        if !text.ends_with(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
