//! Whole controllers under simulated time.

pub mod kubernetes;
