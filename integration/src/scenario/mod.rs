//! End-to-end scenarios: real clusters, the controller installed as users install it, and what a user sees of it.
//!
//! Scenarios know clusters by the contexts of a kubeconfig and objects by their JSON, as kubectl does, so they neither
//! share the product's types (a wrong field name would go unnoticed) nor care who provides the clusters.
//!
//! | variable | what it says |
//! |---|---|
//! | `MCS_E2E_CONTEXTS` | two contexts of the kubeconfig or more: `a,b,c`. The testbed has five |
//! | `MCS_E2E_IPV6_CONTEXT` | the context of a further cluster, which has IPv6 only; where there is none, only the scenarios about IP families need it |
//! | `MCS_E2E_EMULATOR` | the emulator that the controllers use, if they do, as this process reaches it: `http://...` |
//! | `MCS_E2E_OTHER_EMULATOR` | another one, for clusters in another region; where there is none, no scenario has several registries |
//! | `MCS_E2E_THREADS` | so many scenarios at once; by default 6 |
//! | `MCS_E2E_DNS_HOST` | the address where that emulator answers DNS: the zones at port 5300, the resolver at port 53 |
//! | `MCS_E2E_RESTART_API_SERVER` | the command that ends the API server of a context, which comes behind it, and starts it again after so many seconds, which come behind that; where there is none, the API servers go on |
//! | `MCS_E2E_AWAY` | for how many seconds something is away in the scenario `unreachable`; by default 45 |
//! | `MCS_E2E_AGNHOST_IMAGE` | the image of servers and clients; by default the public one |
//! | `MCS_E2E_SYSTEM_NAMESPACE` | where the controller is installed; by default `cloudmap-mcs-system` |

mod blackholes;
mod cluster;
mod controller;
pub mod manifests;
mod names;
mod network;
mod registry;
mod stage;
mod standstill;
mod steps;
mod wait;
mod world;

pub use cluster::{
    ADMISSION_POLICY, ADMISSION_POLICY_BINDING, CLUSTER_PROPERTY, CLUSTER_ROLE, CLUSTER_ROLE_BINDING, CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION, CUTOVER, Cluster, DEPLOYMENT, ENDPOINT_SLICE, EVENT, IMPORT_POLICY, INGRESS, Kind,
    LEASE, NAMESPACE, NODE, POD, ROLE_BINDING, SERVICE, SERVICE_ACCOUNT, SERVICE_EXPORT, SERVICE_IMPORT,
    SERVICE_IMPORT_V1ALPHA1, STATEFUL_SET,
};
pub use controller::Controller;
pub use names::Names;
pub use network::{Load, reach};
pub use registry::{Instances, Registry};
pub use steps::condition;
pub use wait::{NAMES, PODS, PROPAGATION, eventually, holds, holds_for, measured, yaml};
pub use world::{Deviation, Skip, World, contexts, explained, members, name_of};

/// The image of servers and clients: it has dig, curl and a shell beside its servers.
pub fn agnhost_image() -> String {
    setting("MCS_E2E_AGNHOST_IMAGE", "registry.k8s.io/e2e-test-images/agnhost:2.56")
}

/// The namespace of the controller.
pub fn system_namespace() -> String {
    setting("MCS_E2E_SYSTEM_NAMESPACE", "cloudmap-mcs-system")
}

/// The value of a variable of the environment; the default, if it is empty or not set.
pub fn setting(variable: &str, default: &str) -> String {
    std::env::var(variable).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_owned())
}
