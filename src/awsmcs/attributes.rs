//! Names of the attributes that the AWS controller writes and reads, beside `AWS_INSTANCE_IPV4` and `AWS_INSTANCE_PORT`
//! (`pkg/model/types.go`).

/// `ClusterSetIP` or `Headless`.
pub const SERVICE_TYPE: &str = "SERVICE_TYPE";
pub const CLUSTER_ID: &str = "CLUSTER_ID";
pub const CLUSTERSET_ID: &str = "CLUSTERSET_ID";
/// Milliseconds since 1970.
pub const CREATED: &str = "SERVICE_EXPORT_CREATION_TIMESTAMP";
/// Name of the port in the EndpointSlice, which is that of the Service's port; empty for an unnamed one.
pub const ENDPOINT_PORT_NAME: &str = "ENDPOINT_PORT_NAME";
pub const ENDPOINT_PROTOCOL: &str = "ENDPOINT_PROTOCOL";
pub const SERVICE_PORT_NAME: &str = "SERVICE_PORT_NAME";
pub const SERVICE_PORT: &str = "SERVICE_PORT";
/// The Service's `targetPort`: a number, or a name that the pods give a port.
pub const SERVICE_TARGET_PORT: &str = "SERVICE_TARGET_PORT";
pub const SERVICE_PROTOCOL: &str = "SERVICE_PROTOCOL";
/// `true` or `false`.
pub const READY: &str = "READY";
pub const HOSTNAME: &str = "HOSTNAME";
pub const NODENAME: &str = "NODENAME";
/// Who wrote the instance, for people: nobody reads it.
pub const CONTROLLER: &str = "K8S_CONTROLLER";
