//! The state of the ledger for conditions, metrics and people.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::Registry;
use crate::{
    RegistryName,
    remote::RemoteFigures,
    term::Term,
    writer::{Stage, WriterFigures},
};

/// The state of the ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// What the writer is doing.
    pub stage: Stage,
    /// The last error of writing, of the record, or of reading the heads.
    pub error: Option<String>,
    /// The epoch.
    pub epoch: u64,
    /// Whether the record says that this cluster is leaving: withdraw all exports and instances, then publish an empty
    /// state.
    pub leaving: bool,
    /// Statistics of the writer.
    pub figures: WriterFigures,
    /// How often the heads of all clusters were read in this term.
    pub reads: u64,
    /// Number of heads in the last read that was answered: of all clusters, also of those that left. With 1,000 there may be
    /// more, and none of them counts.
    pub heads: usize,
    /// Whether the last read of the heads succeeded.
    pub readable: bool,
    /// The registries that are read beside the home, and why the last read failed, if it did.
    pub elsewhere: BTreeMap<RegistryName, Option<String>>,
    /// Statistics of the other clusters, by cluster id.
    pub remotes: BTreeMap<Arc<str>, RemoteFigures>,
    /// Heads that are ignored, by cluster id, and why (R2), also of clusters that are too large.
    pub ignored: BTreeMap<Arc<str>, String>,
    /// Of these, the clusters that are too large, and why, without the remedy ([`TOO_LARGE`](crate::reader::TOO_LARGE)).
    pub refused: BTreeMap<Arc<str>, String>,
    /// Clusters whose leaders are connected with this one, so that a whole state came from them; `None` where leaders do not
    /// talk to each other.
    pub connected: Option<BTreeSet<Arc<str>>>,
    /// Clusters whose leaders say where they are and could not be reached, or were cut off before a whole state came, and
    /// why.
    pub unreachable: BTreeMap<Arc<str>, String>,
    /// Whether it is known if this cluster may register (J5), and why it may not, with the remedy.
    pub judged: bool,
    /// See [`Self::judged`].
    pub barred: Option<String>,
    /// Number of characters of attributes that discoveries returned since the term began.
    pub bytes_read: u64,
}

impl Default for Status {
    fn default() -> Self {
        Self {
            stage: Stage::Claiming,
            error: None,
            epoch: 0,
            leaving: false,
            figures: WriterFigures::default(),
            reads: 0,
            heads: 0,
            readable: true,
            elsewhere: BTreeMap::new(),
            remotes: BTreeMap::new(),
            ignored: BTreeMap::new(),
            refused: BTreeMap::new(),
            connected: None,
            unreachable: BTreeMap::new(),
            judged: false,
            barred: None,
            bytes_read: 0,
        }
    }
}

impl Status {
    /// The epoch in which this cluster owns its id, if it does: who does not own it (any more) writes nothing at all (W0).
    pub fn owned_epoch(&self) -> Option<u64> {
        self.stage.owns_id().then_some(self.epoch)
    }

    pub(super) fn of(
        term: &Term,
        heads_error: Option<&String>,
        elsewhere: BTreeMap<RegistryName, Option<String>>,
        registry: &Registry,
    ) -> Self {
        Self {
            stage: term.owner().map_or_else(|| term.writer().stage(), Stage::OwnedElsewhere),
            error: term.error().map(str::to_owned).or_else(|| heads_error.cloned()),
            epoch: term.writer().epoch(),
            leaving: term.record().is_some_and(|record| record.leaving),
            figures: term.writer().figures(),
            reads: term.reader().reads(),
            // Where there are too many, the reader gets none, and that is when somebody must know.
            heads: registry.rows(),
            readable: heads_error.is_none(),
            elsewhere,
            remotes: term.readers().figures(),
            ignored: term.readers().ignored(),
            refused: term.readers().refused(),
            connected: term.stream().map(|_| term.connected()),
            unreachable: term.unconnected(),
            judged: term.standing().is_some(),
            barred: term.barred(),
            bytes_read: registry.bytes_read(),
        }
    }
}
