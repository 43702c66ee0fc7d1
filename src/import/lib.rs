//! What this cluster imports. Every exported name of the ClusterSet becomes a ServiceImport, a derived Service and
//! EndpointSlices in the namespace of that name.

#![warn(missing_docs)]

mod addresses;
mod apply;
mod derived;
mod objects;
mod order;
mod packing;
mod plan;
pub mod policy;
mod registered;
mod selecting;
pub mod tiers;
mod type_notice;
mod unknown;
mod unreachable;
mod weights;

pub use addresses::{Unusable, usable};
pub use apply::{Extent, There, apply, remove};
pub use derived::{DerivedNaming, DerivedServices, InvalidDerivedName, hashed, is_shown};
pub use objects::{derived_service, endpoint_slice, import_status, service_import};
pub use packing::Former;
pub use plan::{Observed, Plan, Source, Wanted, is_system, plan};
pub use selecting::{Selected, Selecting, Serving, shown_selection};
pub use type_notice::TypeChange;
pub use unknown::Unknown;
pub use unreachable::{Unreachable, is_said_of};
