//! The benchmark: what it measures, and in which order.
//!
//! Two clusters with a controller each share the emulator as their registry. Cluster 1 exports, cluster 2 imports. All
//! that is measured is seen from outside: objects in the API servers, calls that the emulator and the API servers
//! counted, memory that the kernel reports. docs/benchmarks.md explains the method.

mod arrivals;
mod change;
mod clusters;
mod conditions;
mod cut;
mod cutover;
mod direct;
mod direct_arrival;
mod direct_kinds;
mod direct_objects;
mod direct_writer;
mod exposition;
mod failover;
mod figure;
mod fleet;
mod host;
mod http;
mod instance;
mod load;
mod others;
mod plan;
mod pods;
mod process;
mod registry;
mod rollout;
mod side;
mod sockets;
mod stages;
mod sustained;
mod targets;

pub use cutover::{CutoverBench, CutoverPlan};
pub use figure::{Figure, Verdict};
pub use plan::{Member, Plan, Stage};
pub use stages::Bench;
