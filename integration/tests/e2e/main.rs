//! End-to-end tests of the controller, installed in two clusters. `make test` provides the clusters and runs them; how to
//! run them on other clusters is in `cloudmap_mcs_integration::scenario`.

mod conflicts;
mod ecs;
mod endpoints;
mod export;
mod instances;
mod operation;
mod service_types;
