//! Cutovers: the traffic of a Cloud Map service moves to the pods of a Service, step by step and back.
//!
//! [`mod@plan`] is a state machine: from the spec, the status and what is observed to the next status. It is pure. The
//! status is the memory: what the API server shows of it is in force, so a leader that dies in between loses nothing.
//! [`standing`] judges whether a share is reached, [`course`] reads the spec, and [`stopwatch`] counts how long a share has
//! been reached. [`guard`] looks whether all is well, and [`hiding`] says what became of hidden tasks. `docs/cutover.md` says
//! what users see.

#![warn(missing_docs)]

pub mod course;
pub mod guard;
pub mod hiding;
pub mod plan;
pub mod standing;
pub mod stopwatch;

pub use course::{Course, Settle};
pub use plan::{Observed, Planned, plan};
pub use standing::{Facing, TargetStanding};
pub use stopwatch::Stopwatch;

#[cfg(test)]
mod tests;
