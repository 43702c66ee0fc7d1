//! `cloudmap-mcs` connects Kubernetes clusters, ECS services and everything else in AWS Cloud Map: it implements the
//! Multi-Cluster Services API (KEP-1645) with Cloud Map as the registry.
//!
//! Data flows in one direction, and only [`cloudmap`] and [`cluster`] touch the outside world (and [`ecs`], for commands):
//!
//! ```text
//!     watches ─► caches ─► observe ─► plan (pure) ─► apply ─► Cloud Map
//!     cluster                export, model              ledger, instances
//!
//!     ServiceImport, derived Service, EndpointSlices,  ◄─ apply ◄─ plan (pure) ◄─ observe ◄─ heads, pages,
//!     conditions, Events                                  import, model      ledger, discovery instances
//! ```
//!
//! Start reading with [`model`] (the words), then [`ledger`] (how clusters exchange their exports).

#![warn(missing_docs)]

pub mod admin;
pub mod annotations;
pub mod api;
pub mod app;
pub mod awsmcs;
pub mod cli;
pub mod cloudmap;
pub mod cluster;
pub mod commands;
pub mod controller;
pub mod cutover;
pub mod discovery;
pub mod dns;
pub mod ecs;
pub mod env;
pub mod export;
pub mod gates;
mod guests;
pub mod iam;
pub mod import;
pub mod inquiry;
pub mod instances;
pub mod ledger;
pub mod metrics;
pub mod model;
pub mod queue;
pub mod release;
pub mod shared_map;
mod steps;
pub mod telemetry;

#[cfg(test)]
mod tests;
