//! The state of the ledger for conditions, metrics and people.

use std::{collections::BTreeMap, sync::Arc};

use crate::ledger::{
    remote::RemoteFigures,
    term::Term,
    writer::{Figures, Stage},
};

/// The state of the ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// What the writer is doing.
    pub stage: Stage,
    /// What somebody must do about the stage, if anything.
    pub message: Option<String>,
    /// The last error of writing, of the record, or of reading the heads.
    pub error: Option<String>,
    /// The epoch.
    pub epoch: u64,
    /// Whether the record says that this cluster is leaving: withdraw all exports and instances, then publish an empty
    /// state.
    pub leaving: bool,
    /// Statistics of the writer.
    pub figures: Figures,
    /// Statistics of the other clusters, by cluster id.
    pub remotes: BTreeMap<Arc<str>, RemoteFigures>,
    /// Heads that are ignored, by cluster id, and why (R2).
    pub ignored: BTreeMap<Arc<str>, String>,
    /// Number of characters of attributes that discoveries returned since the term began.
    pub bytes_read: u64,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            stage: Stage::Claiming,
            message: None,
            error: None,
            epoch: 0,
            leaving: false,
            figures: Figures::default(),
            remotes: BTreeMap::new(),
            ignored: BTreeMap::new(),
            bytes_read: 0,
        }
    }
}

impl Status {
    pub(super) fn of(term: &Term, heads_error: Option<&String>, bytes_read: u64) -> Self {
        let stage = term.writer().stage();
        let message = match &stage {
            Stage::Refused { owner } => Some(format!(
                "the cluster id belongs to the cluster whose kube-system UID is {owner}; nothing is written until this \
                 cluster's id is changed (ClusterProperty cluster.clusterset.k8s.io)"
            )),
            Stage::Contested => Some(
                "another controller writes in the name of this cluster, with the same id and the same UID of the namespace \
                 kube-system, as after a restore from a backup while the original lives; nothing is written from here \
                 until it stops. Stop one of them, or create that cluster again"
                    .to_owned(),
            ),
            _ => None,
        };
        Self {
            stage,
            message,
            error: term.error().map(str::to_owned).or_else(|| heads_error.cloned()),
            epoch: term.writer().epoch(),
            leaving: term.record().is_some_and(|record| record.leaving),
            figures: term.writer().figures(),
            remotes: term.reader().figures(),
            ignored: term.reader().ignored().clone(),
            bytes_read,
        }
    }
}
