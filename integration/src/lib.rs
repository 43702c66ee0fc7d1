//! What only the tests, the demo and the benchmarks of `cloudmap-mcs` need.

pub mod aws_smoke;
pub mod bench;
pub mod ecs;
pub mod fuzz;
pub mod hidden;
pub mod ledger_sim;
pub mod scenario;
pub mod simulation;
