//! Protobuf messages of the pairs. Field numbers never change. Unknown fields are ignored on reading and never copied.
//!
//! Enumerations are plain numbers, so that a value of a newer version costs one field and not the record.

use std::collections::BTreeMap;

use ledger::claims::Target;

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Export {
    #[prost(string, tag = "1")]
    pub uid: String,
    #[prost(sint64, tag = "2")]
    pub created: i64,
    /// 1 ClusterSetIP, 2 Headless.
    #[prost(uint32, tag = "3")]
    pub service_type: u32,
    #[prost(message, repeated, tag = "4")]
    pub ports: Vec<Port>,
    /// 0 None, 1 ClientIP.
    #[prost(uint32, tag = "5")]
    pub affinity: u32,
    #[prost(uint32, optional, tag = "6")]
    pub affinity_timeout: Option<u32>,
    /// 0 Cluster, 1 Local.
    #[prost(uint32, tag = "7")]
    pub internal_traffic_policy: u32,
    #[prost(string, optional, tag = "8")]
    pub traffic_distribution: Option<String>,
    /// 4 or 6.
    #[prost(uint32, repeated, tag = "9")]
    pub families: Vec<u32>,
    #[prost(btree_map = "string, string", tag = "10")]
    pub labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "11")]
    pub annotations: BTreeMap<String, String>,
    #[prost(bool, tag = "12")]
    pub publish_not_ready_addresses: bool,
    #[prost(message, optional, tag = "13")]
    pub target: Option<Target>,
    #[prost(string, optional, tag = "14")]
    pub cluster_selection: Option<String>,
    #[prost(string, optional, tag = "15")]
    pub drain: Option<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
// The fields have their names in Kubernetes.
#[allow(clippy::struct_field_names)]
pub(crate) struct Port {
    #[prost(string, tag = "1")]
    pub name: String,
    /// 0 TCP, 1 UDP, 2 SCTP.
    #[prost(uint32, tag = "2")]
    pub protocol: u32,
    #[prost(uint32, tag = "3")]
    pub port: u32,
    #[prost(string, optional, tag = "4")]
    pub app_protocol: Option<String>,
}

/// Endpoints with dictionaries of what thousands of endpoints have in common.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Chunk {
    #[prost(message, repeated, tag = "1")]
    pub port_sets: Vec<PortSet>,
    #[prost(string, repeated, tag = "2")]
    pub zones: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub nodes: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    pub endpoints: Vec<Endpoint>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PortSet {
    /// Ports of the export: four times the number, plus the protocol. Their names and the rest are in the export.
    #[prost(uint32, repeated, tag = "1")]
    pub service_ports: Vec<u32>,
    /// The numbers on which the endpoints listen, in the same order.
    #[prost(uint32, repeated, tag = "2")]
    pub numbers: Vec<u32>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Endpoint {
    #[prost(fixed32, optional, tag = "1")]
    pub ipv4: Option<u32>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub ipv6: Option<Vec<u8>>,
    /// Index into `port_sets`.
    #[prost(uint32, tag = "3")]
    pub port_set: u32,
    /// Bits that differ from a ready endpoint: 1 not ready, 2 not serving, 4 terminating.
    #[prost(uint32, tag = "4")]
    pub conditions: u32,
    #[prost(string, optional, tag = "5")]
    pub hostname: Option<String>,
    /// Index into `zones` plus one; 0 is none.
    #[prost(uint32, tag = "6")]
    pub zone: u32,
    /// Index into `nodes` plus one; 0 is none.
    #[prost(uint32, tag = "7")]
    pub node: u32,
}
