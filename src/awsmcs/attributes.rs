//! Names of the attributes that the AWS controller writes and reads, in addition to `AWS_INSTANCE_IPV4` and
//! `AWS_INSTANCE_PORT` (`pkg/model/types.go`).

/// `ClusterSetIP` or `Headless`.
pub const SERVICE_TYPE: &str = "SERVICE_TYPE";
/// Id of the exporting cluster.
pub const CLUSTER_ID: &str = "CLUSTER_ID";
/// Id of the ClusterSet.
pub const CLUSTERSET_ID: &str = "CLUSTERSET_ID";
/// Creation of the ServiceExport, in milliseconds since 1970.
pub const CREATED: &str = "SERVICE_EXPORT_CREATION_TIMESTAMP";
/// Name of the port in the EndpointSlice, which is the name of the Service's port; empty for an unnamed one.
pub const ENDPOINT_PORT_NAME: &str = "ENDPOINT_PORT_NAME";
/// Protocol of the endpoint's port.
pub const ENDPOINT_PROTOCOL: &str = "ENDPOINT_PROTOCOL";
/// Name of the Service's port; empty for an unnamed one.
pub const SERVICE_PORT_NAME: &str = "SERVICE_PORT_NAME";
/// Number of the Service's port.
pub const SERVICE_PORT: &str = "SERVICE_PORT";
/// `targetPort` of the Service: a number, or a name that the pods give to a port.
pub const SERVICE_TARGET_PORT: &str = "SERVICE_TARGET_PORT";
/// Protocol of the Service's port.
pub const SERVICE_PROTOCOL: &str = "SERVICE_PROTOCOL";
/// Whether the endpoint is ready: `true` or `false`.
pub const READY: &str = "READY";
/// Host name of the pod.
pub const HOSTNAME: &str = "HOSTNAME";
/// Name of the node.
pub const NODENAME: &str = "NODENAME";
/// Which controller wrote the instance, for people; no controller reads it.
pub const CONTROLLER: &str = "K8S_CONTROLLER";
