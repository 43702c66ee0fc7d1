//! Whole controllers in one process: clusters in memory that meet in one Cloud Map in memory.

mod annotated;
mod aws_mcs;
mod conformance;
mod cutovers;
mod discovered;
mod faults;
mod gates;
mod handover;
mod hindered;
mod iam;
mod load_balancers;
mod named;
mod ports;
mod quotas;
mod registered;
mod replaced;
mod replayed;
mod restless;
mod selection;
mod shares;
mod sharing;
mod succession;
mod system;
mod tenants;
mod unfit;
mod world;
