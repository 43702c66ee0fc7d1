//! What this cluster takes part in, which decides what is done at all.

/// Decided by the identity of the cluster, anew for each term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In a ClusterSet, or on the way into one: it exports, imports and registers.
    #[default]
    Member,
    /// In no ClusterSet: only annotated objects are registered, which a ConfigMap keeps the records of.
    Standalone,
    /// Its identity is not known, or contradicts itself: nothing is read or written, and the conditions say why.
    Unidentified,
}
