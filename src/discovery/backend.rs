//! One discovered instance as an endpoint.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::name;
use cloudmap::{Instance, RecordType, Service, attributes};
use instances::{Owner, ownership};
use model::{ClusterId, labels::is_label_value};

/// The first port that Linux, and therefore Docker, assigns dynamically.
const FIRST_DYNAMIC_PORT: u16 = 32_768;

/// Where a discovered instance can be reached. At least one address is present.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Where the endpoint comes from, such as `ecs-<ECS cluster>`.
    pub source: ClusterId,
    /// IPv4 address.
    pub ipv4: Option<Ipv4Addr>,
    /// IPv6 address.
    pub ipv6: Option<Ipv6Addr>,
    /// Number on which it listens, if it has one.
    pub port: Option<u16>,
    /// Whether a container runtime chose the port: each instance has another one each time.
    pub dynamic: bool,
    /// Zone.
    pub zone: Option<Arc<str>>,
    /// `false` only if the service has a health check and the instance fails it.
    pub healthy: bool,
}

/// Why an instance cannot be an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoEndpoint {
    /// It has only the name of a load balancer (`AWS_ALIAS_DNS_NAME`).
    Alias,
    /// It has only a host name (`AWS_INSTANCE_CNAME`).
    Cname,
    /// It is an EC2 instance for which AWS provides no address.
    Ec2WithoutAddress,
    /// It has no attribute with an address or name.
    NoAddress,
    /// Its address is not valid.
    InvalidAddress,
    /// Its port is not valid.
    InvalidPort,
    /// It belongs to an AWS Cloud Map MCS Controller of our ClusterSet, but lacks an attribute of the export.
    AwsMcs(awsmcs::Invalid),
}

impl NoEndpoint {
    /// All [`category`](Self::category) words.
    pub const CATEGORIES: [&'static str; 7] = [
        "alias",
        "cname",
        "ec2_without_address",
        "no_address",
        "invalid_address",
        "invalid_port",
        "invalid_aws_mcs_controller",
    ];

    /// A word for metrics, from [`CATEGORIES`](Self::CATEGORIES).
    pub const fn category(self) -> &'static str {
        let index = match self {
            Self::Alias => 0,
            Self::Cname => 1,
            Self::Ec2WithoutAddress => 2,
            Self::NoAddress => 3,
            Self::InvalidAddress => 4,
            Self::InvalidPort => 5,
            Self::AwsMcs(_) => 6,
        };
        Self::CATEGORIES[index]
    }
}

/// What is wrong, as a text that follows "it".
impl fmt::Display for NoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alias => "has only the name of a load balancer (AWS_ALIAS_DNS_NAME)",
            Self::Cname => "has only a host name (AWS_INSTANCE_CNAME)",
            Self::Ec2WithoutAddress => "has only the id of an EC2 instance (AWS_EC2_INSTANCE_ID)",
            Self::NoAddress => "has neither AWS_INSTANCE_IPV4 nor AWS_INSTANCE_IPV6",
            Self::InvalidAddress => "has an invalid address (AWS_INSTANCE_IPV4, AWS_INSTANCE_IPV6)",
            Self::InvalidPort => "has an invalid port (AWS_INSTANCE_PORT)",
            Self::AwsMcs(invalid) => {
                return write!(f, "belongs to the AWS Cloud Map MCS Controller, and {invalid}");
            }
        })
    }
}

impl Backend {
    /// Its addresses.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// Reads an instance of `service` in the Cloud Map namespace `namespace`.
    ///
    /// # Errors
    /// It cannot be an endpoint.
    pub fn read(instance: &Instance, healthy: bool, service: &Service, namespace: &str) -> Result<Self, NoEndpoint> {
        let attribute =
            |key: &str| instance.attributes.get(key).map(|value| value.trim()).filter(|value| !value.is_empty());
        let (ipv4, ipv6) = (attribute(attributes::IPV4), attribute(attributes::IPV6));
        let ipv4 = ipv4.map(str::parse).transpose().map_err(|_| NoEndpoint::InvalidAddress)?;
        let ipv6 = ipv6.map(str::parse).transpose().map_err(|_| NoEndpoint::InvalidAddress)?;
        if ipv4.is_none() && ipv6.is_none() {
            return Err(if attribute(attributes::ALIAS).is_some() {
                NoEndpoint::Alias
            } else if attribute(attributes::CNAME).is_some() {
                NoEndpoint::Cname
            } else if attribute(attributes::EC2_INSTANCE).is_some() {
                NoEndpoint::Ec2WithoutAddress
            } else {
                NoEndpoint::NoAddress
            });
        }
        let port: Option<u16> =
            attribute(attributes::PORT).map(str::parse).transpose().map_err(|_| NoEndpoint::InvalidPort)?;
        if port == Some(0) {
            return Err(NoEndpoint::InvalidPort);
        }
        let source = name::source(attribute(attributes::ECS_CLUSTER), namespace).ok_or(NoEndpoint::NoAddress)?;
        Ok(Self {
            source,
            ipv4,
            ipv6,
            port,
            dynamic: has_only_srv(service) && port.is_some_and(|port| port >= FIRST_DYNAMIC_PORT),
            // The zone becomes a hint.
            zone: attribute(attributes::ZONE).filter(|zone| is_label_value(zone)).map(Arc::from),
            healthy,
        })
    }
}

/// Whether somebody outside of our ClusterSet registered an instance.
pub(super) fn is_discovered(instance: &Instance, identity: &Owner) -> bool {
    !ownership::is_of_our_set(instance, identity)
}

/// Whether the service has only SRV records. ECS creates services of tasks in bridge or host mode this way, because
/// their ports differ.
fn has_only_srv(service: &Service) -> bool {
    let records = service.dns.as_ref().map(|dns| dns.records.as_slice()).unwrap_or_default();
    !records.is_empty() && records.iter().all(|record| record.record_type == RecordType::Srv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cloudmap::{DnsConfig, DnsRecord, fake::mk_service};

    fn service(records: &[RecordType]) -> Service {
        let records: Vec<_> = records.iter().map(|&record_type| DnsRecord { record_type, ttl: 60 }).collect();
        Service {
            name: "orders".into(),
            dns: Some(DnsConfig { weighted: false, records }).filter(|dns| !dns.records.is_empty()),
            ..mk_service()
        }
    }

    fn read(attributes: &[(&str, &str)], records: &[RecordType]) -> Result<Backend, NoEndpoint> {
        let attributes = attributes.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        Backend::read(&Instance { id: "i".into(), attributes }, true, &service(records), "internal")
    }

    /// Instances as ECS registers tasks: on EC2 with their own network interface, on Fargate, and in bridge mode.
    #[test]
    fn reads_instances_of_ecs() {
        let task = [
            ("AVAILABILITY_ZONE", "ap-south-1a"),
            ("AWS_INIT_HEALTH_STATUS", "HEALTHY"),
            ("AWS_INSTANCE_IPV4", "10.99.1.21"),
            ("AWS_INSTANCE_PORT", "8080"),
            ("EC2_INSTANCE_ID", "i-0123456789abcdef0"),
            ("ECS_CLUSTER_NAME", "prod"),
            ("ECS_SERVICE_NAME", "orders"),
            ("ECS_TASK_DEFINITION_FAMILY", "orders"),
            ("REGION", "ap-south-1"),
        ];
        let expected = Backend {
            source: ClusterId::discovered("ecs-prod").unwrap(),
            ipv4: Some("10.99.1.21".parse().unwrap()),
            ipv6: None,
            port: Some(8080),
            dynamic: false,
            zone: Some("ap-south-1a".into()),
            healthy: true,
        };
        assert_eq!(read(&task, &[RecordType::A]), Ok(expected.clone()));
        let fargate: Vec<_> = task.iter().copied().filter(|(key, _)| !key.contains("PORT")).collect();
        assert_eq!(read(&fargate, &[RecordType::A]), Ok(Backend { port: None, ..expected.clone() }));
        let mut bridge = task;
        bridge[3].1 = "32768";
        let dynamic = |records: &[RecordType]| read(&bridge, records).map(|backend| (backend.port, backend.dynamic));
        assert_eq!(dynamic(&[RecordType::Srv]), Ok((Some(32768), true)));
        for fixed in [&[RecordType::A][..], &[RecordType::A, RecordType::Srv], &[]] {
            assert_eq!(dynamic(fixed), Ok((Some(32768), false)), "a task of its own address listens where it wants");
        }
    }

    #[test]
    fn an_instance_that_cannot_be_an_endpoint_has_a_reason() {
        for (attributes, expected) in [
            (&[("AWS_ALIAS_DNS_NAME", "lb.example.com")][..], NoEndpoint::Alias),
            (&[("AWS_INSTANCE_CNAME", "db.example.com")], NoEndpoint::Cname),
            (&[("AWS_EC2_INSTANCE_ID", "i-1")], NoEndpoint::Ec2WithoutAddress),
            (&[("version", "1")], NoEndpoint::NoAddress),
            (&[("AWS_INSTANCE_IPV4", "10.0.0")], NoEndpoint::InvalidAddress),
            (&[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_IPV6", "x")], NoEndpoint::InvalidAddress),
            (&[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_PORT", "0")], NoEndpoint::InvalidPort),
            (&[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_PORT", "http")], NoEndpoint::InvalidPort),
        ] {
            assert_eq!(read(attributes, &[]), Err(expected), "{attributes:?}");
        }
        let categories: std::collections::BTreeSet<_> = NoEndpoint::CATEGORIES.into();
        assert_eq!(categories.len(), NoEndpoint::CATEGORIES.len());
    }

    #[test]
    fn instances_of_other_writers_have_the_namespace_as_source_and_may_have_both_families() {
        let both =
            [("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_IPV6", "fd00::1"), ("AVAILABILITY_ZONE", "no zone")];
        let backend = read(&both, &[]).unwrap();
        assert_eq!(
            (backend.source.as_str(), &backend.zone, backend.addresses().count()),
            ("cloudmap-internal", &None, 2)
        );
        let ec2 = [("AWS_EC2_INSTANCE_ID", "i-1"), ("AWS_INSTANCE_IPV4", "10.0.0.9")];
        assert_eq!(read(&ec2, &[]).unwrap().port, None);
    }
}
