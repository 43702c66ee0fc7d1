//! What this cluster exports: observed in its caches, planned without a client, published by the ledger.

#![warn(missing_docs)]

mod accounts;
mod desired;
mod endpoints;
mod plan;
mod ports;
mod quota;
mod registrations;
mod status;

pub use accounts::{Accounts, Need, Used};
pub use desired::{Encoded, Exports, Shortened, need_of_target};
pub use endpoints::{forbidden, host_names, join};
pub use plan::{Given, Refusal, hand_over, permit, plan, remarks};
pub use ports::{Served, partly_served, port_text, unserved, unserved_begins, unserved_in};
pub use quota::{Exceeded, Extent, Limit, Quota, Resource, Usage};
pub use registrations::Dates;
pub use status::{ExportFacts, Publication, verdicts};
