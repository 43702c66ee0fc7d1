//! The ledger as people read it.

use std::sync::Arc;

use super::Catalog;
use ledger::{
    Map,
    show::{self, Error},
};
use model::ClusterSetId;

/// One cluster's entry in the ledger, decoded.
pub type ClusterView = show::ClusterView<Catalog>;

/// Every cluster of the ClusterSet, decoded. Only reads.
pub async fn read_all(cloudmap: Arc<dyn cloudmap::Read>, clusterset: &ClusterSetId) -> Result<Vec<ClusterView>, Error> {
    show::read_all(cloudmap, clusterset, decode).await
}

/// A state, and what is wrong with it.
pub(crate) fn decode(map: &Map) -> (Catalog, Vec<String>) {
    let catalog = Catalog::decode(map);
    let problems = catalog.problems.iter().map(|problem| format!("{}: {}", problem.key, problem.message));
    let problems = problems.collect();
    (catalog, problems)
}
