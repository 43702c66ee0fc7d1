//! End-to-end tests of the controller, installed in two clusters: Cloud Map instances, and running the controller. What the
//! Multi-Cluster Services API asks for is in the conformance suite (`tests/conformance`). `make test` provides the clusters
//! and runs both; how to run them on other clusters is in `cloudmap_mcs_integration::scenario`.

mod chart;
mod claims;
mod derived_name;
mod diagnosis;
mod drain;
mod ecs;
mod families;
mod gates;
mod import_policies;
mod instances;
mod load;
mod operation;
mod page;
mod policies;
mod regions;
mod replaced;
mod stream;
mod traffic;
mod trust;
mod unreachable;
