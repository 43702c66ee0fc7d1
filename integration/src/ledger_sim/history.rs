//! What happened in a run, as far as the checks compare later events with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ledger::{
    hash::{Hashes, StateHash},
    record::Version,
};

/// What the checks remember.
#[derive(Default)]
pub(super) struct History {
    /// The newest version of each cluster that another one has applied, by both.
    pub(super) delivered: BTreeMap<(Arc<str>, Arc<str>), usize>,
    /// When each state of a cluster was made, by UID.
    pub(super) state_times: BTreeMap<(Arc<str>, usize), u64>,
    /// The hashes in all heads that were committed, by cluster id.
    pub(super) committed: BTreeSet<(Arc<str>, StateHash)>,
    /// The hashes of each version, by UID with id.
    pub(super) summaries: BTreeMap<(Arc<str>, Version), Hashes>,
    /// The hashes of the claims in the newest heads, by cluster id.
    pub(super) claims: BTreeMap<Arc<str>, StateHash>,
    /// The newest version, by UID, epoch and term.
    pub(super) newest: BTreeMap<(Arc<str>, u64, u64), Version>,
}
