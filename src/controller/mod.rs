//! Runs exporting and importing: takes what changed from the caches, the ledger and the instances ([`run`]), keeps what is
//! known in one place ([`Knowledge`]), publishes what this cluster exports at once, and puts every name that may need a
//! write into a queue that a few workers take from.

mod annotated;
mod claims;
mod foreign;
mod importing;
mod index;
mod knowledge;
mod membership;
mod metrics;
mod peers;
mod pending;
mod pods;
mod reconcile;
mod register;
mod shared;
mod targets;
#[cfg(test)]
mod tests;
mod watch;

pub use foreign::ImportRules;
pub use knowledge::{Asks, Concerned, Knowledge, Membership, Rules};
pub use metrics::Metrics;
pub use targets::{Asked, Targets};
pub use watch::{Inputs, Settings, run};
