//! Names of the attributes of instances: those that Cloud Map and ECS give a meaning to, and ours.

/// The IPv4 address; an A record where the service has them.
pub const IPV4: &str = "AWS_INSTANCE_IPV4";
/// The IPv6 address; an AAAA record where the service has them.
pub const IPV6: &str = "AWS_INSTANCE_IPV6";
/// The port number; with an address and SRV records, part of these.
pub const PORT: &str = "AWS_INSTANCE_PORT";
/// Host name of a load balancer, in place of addresses.
pub const ALIAS: &str = "AWS_ALIAS_DNS_NAME";
/// Any other host name, in place of addresses.
pub const CNAME: &str = "AWS_INSTANCE_CNAME";
/// `HEALTHY` or `UNHEALTHY`: where the service has a custom health check, the status from the registration on.
pub const INIT_HEALTH: &str = "AWS_INIT_HEALTH_STATUS";
/// As ECS writes it.
pub const ZONE: &str = "AVAILABILITY_ZONE";
/// As ECS writes it.
pub const REGION: &str = "REGION";
/// ClusterSet id of who registered the instance; absent where the cluster was in none.
pub const CLUSTERSET: &str = "CLOUDMAP_MCS_CLUSTERSET";
/// Cluster id of who registered the instance.
pub const CLUSTER: &str = "CLOUDMAP_MCS_CLUSTER";
/// Cluster UID of who registered the instance: by it alone an instance is ours.
pub const CLUSTER_UID: &str = "CLOUDMAP_MCS_CLUSTER_UID";
/// Namespace of the Kubernetes Service, for people.
pub const NAMESPACE: &str = "CLOUDMAP_MCS_NAMESPACE";
/// Name of the Kubernetes Service, for people.
pub const SERVICE: &str = "CLOUDMAP_MCS_SERVICE";
/// Begin of the names of attributes for all ports but the first.
pub const FURTHER_PORT: &str = "PORT_";

/// Most characters of a name (Cloud Map `RegisterInstance`).
const MAX_KEY: usize = 255;
/// Most characters of a value (Cloud Map `RegisterInstance`).
pub const MAX_VALUE: usize = 1024;
/// Begins of the names that AWS, ECS and this project give a meaning to.
const RESERVED: [&str; 4] = ["AWS_", "ECS_", "CLOUDMAP_MCS_", "PORT_"];
/// Whole names of that kind, those by which the AWS Cloud Map MCS Controller knows its instances among them.
const RESERVED_NAMES: [&str; 5] = ["AVAILABILITY_ZONE", "REGION", "EC2_INSTANCE_ID", "CLUSTER_ID", "CLUSTERSET_ID"];

/// Whether users may give an attribute this name.
///
/// # Errors
/// Why not.
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
