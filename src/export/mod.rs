//! What this cluster exports: observed from its caches, planned without a client, published by the ledger.

mod desired;
mod endpoints;
mod plan;
mod status;

pub use desired::{Exports, Local};
pub use plan::{Refusal, left_out, permit, plan};
pub use status::{Facts, Publication, verdicts};
