use std::{
    net::IpAddr,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use k8s_openapi::{api::discovery::v1, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use sha2::{Digest, Sha256};

use super::{ObjectKey, is_managed_slice, label, uid};
use crate::cache::Narrow;
use api::names;
use model::{Conditions, EndpointPort, MAX_SHARED, Pool, Protocol, intern, intern_ports};

/// An EndpointSlice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointSlice {
    /// Its key.
    pub key: ObjectKey,
    /// Its uid. Only own slices keep it, because no others are deleted.
    pub uid: Box<str>,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// `kubernetes.io/service-name`: the Service to which the endpoints belong.
    pub service: Option<Arc<str>>,
    /// `endpointslice.kubernetes.io/managed-by`: the controller that writes it.
    pub managed_by: Option<Arc<str>>,
    /// `multicluster.kubernetes.io/service-name`: the ServiceImport, on slices of an MCS implementation.
    pub service_import: Option<Arc<str>>,
    /// `multicluster.kubernetes.io/source-cluster`: the cluster from which the endpoints come.
    pub source_cluster: Option<Arc<str>>,
    /// Type of the addresses.
    pub address_type: AddressType,
    /// The ports, sorted by name, protocol and number. Ports without a number are left out.
    pub ports: Arc<[EndpointPort]>,
    /// The endpoints.
    pub endpoints: Box<[Endpoint]>,
}

/// Type of the addresses in a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AddressType {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// Host names (deprecated by Kubernetes), or an unknown type. Such endpoints have no addresses here.
    Unsupported,
}

/// One endpoint of a slice. It is small, because there are tens of thousands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The first address, which is the one that consumers should use; `None` if it is no IP address, for example a host
    /// name.
    pub address: Option<IpAddr>,
    /// Whether it takes traffic.
    pub conditions: Conditions,
    /// The object behind the endpoint. It joins the two families of one pod.
    pub target: Option<TargetId>,
    /// What else is said of it, in memory once for all endpoints of which the same is said.
    pub about: Arc<About>,
}

impl std::ops::Deref for Endpoint {
    type Target = About;

    fn deref(&self) -> &About {
        &self.about
    }
}

/// What slices say of many endpoints in the same words.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct About {
    /// Whether it has more than one address.
    pub further_addresses: bool,
    /// Whether the object behind it is a pod of its namespace. Only slices of others say so.
    pub is_pod: bool,
    /// Host name in DNS, for pods of headless Services.
    pub hostname: Option<Arc<str>>,
    /// Name of its node.
    pub node: Option<Arc<str>>,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// `hints`. Only own slices keep them, because nobody exports them.
    pub hints: Option<Box<Hints>>,
}

impl About {
    /// The shared one that says the same.
    fn share(self) -> Arc<Self> {
        static POOL: LazyLock<Mutex<Pool<About>>> = LazyLock::new(Mutex::default);
        let Self { further_addresses: _, is_pod: _, hostname, node, zone, hints } = &self;
        let hints = hints.iter().flat_map(|hints| hints.zones.iter().chain(&hints.nodes));
        let texts = [hostname, node, zone].into_iter().flatten().chain(hints);
        // Anybody can write texts that are long, and the pool would keep them for a while.
        if texts.map(|text| text.len()).sum::<usize>() > MAX_SHARED {
            return Arc::new(self);
        }
        POOL.lock().unwrap_or_else(PoisonError::into_inner).share(self)
    }
}

/// Hints about which clients should use an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hints {
    /// Zones of the clients.
    pub zones: Box<[Arc<str>]>,
    /// Nodes of the clients.
    pub nodes: Box<[Arc<str>]>,
}

/// Identifies the object in `targetRef`: the 128 bits of its UID. Manually written slices may have another text as the
/// UID; then it is the first bits of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TargetId([u8; 16]);

impl TargetId {
    /// The id of the object with this UID; `None` for an empty UID, which identifies nothing.
    pub fn new(uid: &str) -> Option<Self> {
        let uuid = || {
            let digits: Vec<u8> = uid.bytes().filter(|byte| *byte != b'-').collect();
            let digits = std::str::from_utf8(&digits).ok().filter(|digits| digits.len() == 32 && uid.len() == 36)?;
            u128::from_str_radix(digits, 16).ok().map(u128::to_be_bytes)
        };
        let digest = || Sha256::digest(uid).first_chunk().copied().unwrap_or_default();
        (!uid.is_empty()).then(|| Self(uuid().unwrap_or_else(digest)))
    }
}

impl std::fmt::Display for TargetId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl EndpointSlice {
    /// Whether both are equal, except for what the API server assigns. Writing one over the other would then change
    /// nothing.
    pub fn has_same_content(&self, other: &Self) -> bool {
        let Self {
            key,
            uid: _,
            deleting: _,
            service,
            managed_by,
            service_import,
            source_cluster,
            address_type,
            ports,
            endpoints,
        } = self;
        *key == other.key
            && *service == other.service
            && *managed_by == other.managed_by
            && *service_import == other.service_import
            && *source_cluster == other.source_cluster
            && *address_type == other.address_type
            && *ports == other.ports
            && *endpoints == other.endpoints
    }

    /// The key of a slice, from its metadata.
    pub fn key(metadata: &ObjectMeta) -> Option<ObjectKey> {
        Some(ObjectKey::new(intern(metadata.namespace.as_deref()?), intern(metadata.name.as_deref()?)))
    }

    fn narrow(object: v1::EndpointSlice, own: bool) -> Option<Self> {
        let metadata = &object.metadata;
        let share = |name| label(metadata, name).map(intern);
        let (service, managed_by) = (share(names::LABEL_KUBERNETES_SERVICE_NAME), share(names::LABEL_SLICE_MANAGED_BY));
        let (service_import, source_cluster) = (share(names::LABEL_SERVICE_NAME), share(names::LABEL_SOURCE_CLUSTER));
        let mut ports: Vec<EndpointPort> = object.ports.iter().flatten().filter_map(endpoint_port).collect();
        ports.sort();
        Some(Self {
            key: Self::key(metadata)?,
            uid: if own { uid(metadata) } else { Box::default() },
            deleting: metadata.deletion_timestamp.is_some(),
            service,
            managed_by,
            service_import,
            source_cluster,
            address_type: match object.address_type.as_str() {
                "IPv4" => AddressType::V4,
                "IPv6" => AddressType::V6,
                _ => AddressType::Unsupported,
            },
            ports: intern_ports(&ports),
            endpoints: {
                let namespace = metadata.namespace.as_deref();
                object.endpoints.into_iter().map(|endpoint| narrow_endpoint(endpoint, namespace, own)).collect()
            },
        })
    }
}

fn narrow_endpoint(endpoint: v1::Endpoint, namespace: Option<&str>, own: bool) -> Endpoint {
    let conditions = endpoint.conditions.unwrap_or_default();
    let hints = endpoint.hints.filter(|_| own).map(|hints| {
        Box::new(Hints {
            zones: hints.for_zones.iter().flatten().map(|zone| intern(&zone.name)).collect(),
            nodes: hints.for_nodes.iter().flatten().map(|node| intern(&node.name)).collect(),
        })
    });
    let is_pod = endpoint.target_ref.as_ref().is_some_and(|target| {
        target.kind.as_deref() == Some("Pod")
            && (target.namespace.is_none() || target.namespace.as_deref() == namespace)
    });
    Endpoint {
        address: endpoint.addresses.first().and_then(|address| address.parse().ok()),
        conditions: Conditions {
            ready: conditions.ready.unwrap_or(true),
            serving: conditions.serving.unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(false),
        },
        target: endpoint.target_ref.and_then(|target| TargetId::new(target.uid.as_deref()?)),
        about: About {
            further_addresses: endpoint.addresses.len() > 1,
            is_pod,
            hostname: endpoint.hostname.map(|name| intern(&name)),
            node: endpoint.node_name.map(|name| intern(&name)),
            zone: endpoint.zone.map(|name| intern(&name)),
            hints,
        }
        .share(),
    }
}

/// `None` for a port without a number, which means "all ports" and cannot be served.
fn endpoint_port(port: &v1::EndpointPort) -> Option<EndpointPort> {
    Some(EndpointPort {
        name: intern(port.name.as_deref().unwrap_or_default()),
        protocol: Protocol::parse(port.protocol.as_deref())?,
        port: u16::try_from(port.port?).ok()?,
        app_protocol: port.app_protocol.as_deref().map(intern),
    })
}

/// A slice that this controller does not write: endpoints of a Service in this cluster, which may be exported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceSlice(pub EndpointSlice);

/// A slice that this controller writes: imported endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnSlice(pub EndpointSlice);

macro_rules! slice_cache {
    ($name:ident, $cache:literal, $accepts:expr) => {
        impl Narrow for $name {
            type Kind = v1::EndpointSlice;
            type Key = ObjectKey;

            const CACHE: &'static str = $cache;

            fn key(metadata: &ObjectMeta) -> Option<ObjectKey> {
                EndpointSlice::key(metadata)
            }

            fn narrow(object: v1::EndpointSlice) -> Option<Self> {
                // The label selector of the watch already ensures this, but those of tests and fakes may not.
                let own = is_managed_slice(&object.metadata);
                if own != $accepts {
                    return None;
                }
                EndpointSlice::narrow(object, own).map(Self)
            }
        }

        impl std::ops::Deref for $name {
            type Target = EndpointSlice;

            fn deref(&self) -> &EndpointSlice {
                &self.0
            }
        }
    };
}

slice_cache!(SourceSlice, "EndpointSlice", false);
slice_cache!(OwnSlice, "ImportedEndpointSlice", true);
