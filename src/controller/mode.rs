//! What this cluster takes part in, which determines what is done at all.

/// Determined by the identity of the cluster, again for each term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// In a ClusterSet, or on the way into one: it exports, imports and registers.
    #[default]
    Member,
    /// In no ClusterSet: it only registers annotated objects, with their records in a ConfigMap.
    Standalone,
    /// Its identity is not known or contradictory: nothing is read or written, and conditions say why.
    Unidentified,
}
