//! The state of the ledger for conditions, metrics and people.

use std::{collections::BTreeMap, sync::Arc};

use crate::ledger::{
    remote::RemoteFigures,
    term::Term,
    writer::{Figures, Stage},
};

#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub stage: Stage,
    /// What the stage means, where somebody must do something about it.
    pub message: Option<String>,
    /// The last error of writing, of the record, or of reading the heads.
    pub error: Option<String>,
    pub epoch: u64,
    /// The record says that this cluster is leaving: withdraw all exports and instances, then publish an empty state.
    pub leaving: bool,
    pub figures: Figures,
    /// By cluster id.
    pub remotes: BTreeMap<Arc<str>, RemoteFigures>,
    /// Heads that are ignored, by cluster id, and why (R2).
    pub ignored: BTreeMap<Arc<str>, String>,
    /// Characters of attributes that discoveries returned since the start of the term.
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
                 kube-system, as after a restore from a backup while the original goes on; nothing is written from here \
                 until it stops. Stop one of them, or make that cluster anew"
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
