//! The benchmark: what it measures, and in which order.
//!
//! Two clusters with a controller each share the emulator as their registry. Cluster 1 exports, cluster 2 imports. All
//! that is measured is seen from outside: objects in the API servers, calls that the emulator and the API servers
//! counted, memory that the kernel reports. docs/benchmarks.md explains the method.

mod arrivals;
mod exposition;
mod figure;
mod http;
mod load;
mod process;
mod registry;
mod stages;
mod sustained;

pub use figure::Figure;
pub use stages::{Bench, Member, Plan, Stage};
