//! The only wiring of the controller: builds the parts from the command line and runs them.

#![warn(missing_docs)]

pub mod admin;
pub mod connect;
mod credentials;
mod lead;
mod metrics;
pub mod replica;
mod run;

pub use run::run;
