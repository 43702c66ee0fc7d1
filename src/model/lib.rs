//! The domain: exports, endpoints, and the pure rules for them. This module uses no types of Kubernetes clients, no
//! network and no clock.

#![warn(missing_docs)]

pub mod addresses;
pub mod drain;
mod endpoint;
mod excerpt;
mod export;
#[cfg(any(test, feature = "testing"))]
pub mod fixtures;
pub mod hosts;
mod identity;
mod intern;
mod keys;
pub mod labels;
mod merge;
mod min_ready;
mod pairs;
mod slices;
mod target;
mod text;

pub use drain::Drain;
pub use endpoint::{Conditions, Endpoint, EndpointPort, some_of};
pub use excerpt::Excerpt;
pub use export::{
    DEFAULT_AFFINITY_TIMEOUT, Export, Exported, IpFamily, Protocol, ServicePort, ServiceType, SessionAffinity,
    TrafficPolicy, UNNAMED_PORT, is_port_name,
};
pub use identity::is_dns_label;
pub use identity::{ClusterId, ClusterSetId, InvalidClusterId, ServiceKey};
pub use intern::{MAX_SHARED, Pool};
pub use intern::{intern, intern_ports};
pub use keys::{InvalidKey, PublicKey, Signature, SigningKey};
pub use merge::{ClusterSetService, Conflict, ConflictReason, merge};
pub use min_ready::{MinReady, NoMinReady, number};
pub use pairs::Pairs;
pub use slices::{
    Hints, MAX_ENDPOINTS, PackedEndpoint, Placement, Proximity, Slice, SliceEndpoint, empty_slice, family_of, pack,
    packable, service_of_slice,
};
pub use target::{ClaimOwner, ClaimState, Registration, Target};
pub use text::capitalized;
