//! The only wiring of the controller: builds the parts from the command line and runs them.

pub(crate) mod connect;
mod credentials;
mod lead;
mod metrics;
pub mod replica;
mod run;

pub(crate) use run::run;
