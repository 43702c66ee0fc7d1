//! Decides what is exported, imported and registered. A core without a clock, a channel or a task takes changes in and
//! returns what follows ([`core`]). A runtime around it owns the channels, the queue of names, and the workers, which
//! write what the core planned for one name ([`run`], [`work`]).

#![warn(missing_docs)]

mod annotated;
mod claims;
mod core;
mod cutover_writer;
mod cutovers;
mod derived;
mod dirty;
mod drains;
mod exports;
mod gate_writer;
mod gates;
mod idle_shares;
mod imports;
mod index;
mod knowledge;
mod left_out;
mod membership;
mod metrics;
mod mode;
mod names;
mod orphans;
mod peers;
mod pending;
mod pods;
mod policies;
mod policy_writer;
mod reachability;
mod registrations;
mod replay;
mod runtime;
mod selection;
mod spills;
mod status_writer;
mod subscriptions;
mod subset;
mod targets;
#[cfg(test)]
mod tests;
mod work;
mod world;

pub use knowledge::{Asks, Concerned, Knowledge, Membership, Rules, Wants};
pub use metrics::Metrics;
pub use mode::Mode;
pub use runtime::{ControllerSettings, Inputs, Records, run};
pub use subscriptions::ImportRules;
pub use targets::{Asked, Targets};
