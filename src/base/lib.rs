//! What all other crates may use: clocks and random numbers that tests replace, and small tools that know nothing of
//! Kubernetes, of AWS or of the ledger.

#![warn(missing_docs)]

pub mod dns;
pub mod env;
pub mod guests;
pub mod inquiry;
pub mod metrics;
pub mod pattern;
pub mod queue;
pub mod release;
pub mod shared_map;
pub mod steps;

/// The folder of the repository, for tests that compare its files with the code.
#[cfg(any(test, feature = "testing"))]
pub fn repository() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}
