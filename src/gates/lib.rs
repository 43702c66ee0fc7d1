//! Readiness gates of pods: a pod is ready when clients of Cloud Map find it, so that a roll-out does not stop old pods
//! before anybody knows the new ones.
//!
//! [`mod@plan`] decides when a gate opens, and why; it is pure. [`lookups`] asks the discovery plane for instances that
//! pods wait for. `docs/gates.md` says what users see.

#![warn(missing_docs)]

pub mod lookups;
pub mod plan;

pub use lookups::{Answers, Lookups, Question, Questions, Sought};
pub use plan::{Observed, Progress, Verdict, plan};
