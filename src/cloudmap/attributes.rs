//! Names of the attributes of instances: those of Cloud Map and ECS, and this project's own.

/// The IPv4 address; the value of the A record, if the service has one.
pub const IPV4: &str = "AWS_INSTANCE_IPV4";
/// The IPv6 address; the value of the AAAA record, if the service has one.
pub const IPV6: &str = "AWS_INSTANCE_IPV6";
/// The port number. If the service has SRV records, it becomes a part of them.
pub const PORT: &str = "AWS_INSTANCE_PORT";
/// Host name of a load balancer, instead of addresses.
pub const ALIAS: &str = "AWS_ALIAS_DNS_NAME";
/// Any other host name, instead of addresses.
pub const CNAME: &str = "AWS_INSTANCE_CNAME";
/// Attribute that is set instead of an address. In an API-only namespace AWS itself adds the IPv4 address.
pub const EC2_INSTANCE: &str = "AWS_EC2_INSTANCE_ID";
/// The ECS cluster of a task (ECS service discovery).
pub const ECS_CLUSTER: &str = "ECS_CLUSTER_NAME";
/// The ECS service of a task.
pub const ECS_SERVICE: &str = "ECS_SERVICE_NAME";
/// `HEALTHY` or `UNHEALTHY`: the initial health status, if the service has a custom health check.
pub const INIT_HEALTH: &str = "AWS_INIT_HEALTH_STATUS";
/// The availability zone, as ECS writes it.
pub const ZONE: &str = "AVAILABILITY_ZONE";
/// The AWS region, as ECS writes it.
pub const REGION: &str = "REGION";
/// ClusterSet id of the cluster that registered the instance; absent if that cluster was in no ClusterSet.
pub const CLUSTERSET: &str = "CLOUDMAP_MCS_CLUSTERSET";
/// Cluster id of the cluster that registered the instance.
pub const CLUSTER: &str = "CLOUDMAP_MCS_CLUSTER";
/// Cluster UID of the cluster that registered the instance. An instance is ours if this is ours.
pub const CLUSTER_UID: &str = "CLOUDMAP_MCS_CLUSTER_UID";
/// Namespace of the Kubernetes Service, for people.
pub const NAMESPACE: &str = "CLOUDMAP_MCS_NAMESPACE";
/// Name of the Kubernetes Service, for people.
pub const SERVICE: &str = "CLOUDMAP_MCS_SERVICE";
/// `true` on the instances of a cluster that registers only a part of its pods, for a share of the traffic. Other
/// clusters with a share count them apart.
pub const PARTIAL: &str = "CLOUDMAP_MCS_PARTIAL";
/// Prefix of the attributes for all ports but the first.
pub const FURTHER_PORT: &str = "PORT_";

/// Maximum length of a name, in characters (Cloud Map `RegisterInstance`).
const MAX_KEY: usize = 255;
/// Maximum length of a value, in characters (Cloud Map `RegisterInstance`).
pub const MAX_VALUE: usize = 1024;
/// Prefixes of names that have a meaning for AWS, ECS or this project.
const RESERVED: [&str; 4] = ["AWS_", "ECS_", "CLOUDMAP_MCS_", "PORT_"];
/// Whole names of that kind, including those by which the AWS Cloud Map MCS Controller recognises its instances.
const RESERVED_NAMES: [&str; 5] = ["AVAILABILITY_ZONE", "REGION", "EC2_INSTANCE_ID", "CLUSTER_ID", "CLUSTERSET_ID"];

/// Checks whether users may give an attribute this name.
///
/// # Errors
/// The reason why they may not.
pub fn check_name(key: &str) -> Result<(), &'static str> {
    let upper = key.to_ascii_uppercase();
    if RESERVED.iter().any(|begin| upper.starts_with(begin)) || RESERVED_NAMES.contains(&upper.as_str()) {
        return Err("the name is reserved for AWS, ECS or a controller");
    }
    if key.is_empty() || key.len() > MAX_KEY || !key.bytes().all(|c| c.is_ascii_graphic()) {
        return Err("a name has 1 to 255 printable ASCII characters and no spaces");
    }
    Ok(())
}
