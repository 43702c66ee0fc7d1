//! One instance that somebody else registered, as an endpoint.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use super::name;
use crate::{
    awsmcs,
    cloudmap::{Instance, RecordType, Service, attributes},
    instances::{Identity, ownership},
    model::{ClusterId, labels::is_label_value},
};

/// The ECS cluster of a task (ECS service discovery).
const ECS_CLUSTER: &str = "ECS_CLUSTER_NAME";
/// Set instead of an address; in an API-only namespace AWS fills `AWS_INSTANCE_IPV4` in itself.
const EC2_INSTANCE: &str = "AWS_EC2_INSTANCE_ID";
/// The first port that Linux, and so Docker, gives out by itself.
const FIRST_DYNAMIC_PORT: u16 = 32_768;

/// Where a foreign instance can be reached. At least one address is present.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    pub source: ClusterId,
    pub ipv4: Option<Ipv4Addr>,
    pub ipv6: Option<Ipv6Addr>,
    pub port: Option<u16>,
    /// The port is one that a container runtime chose: it is another one for each instance and each time.
    pub dynamic: bool,
    pub zone: Option<Arc<str>>,
    /// `false` only where the service has a health check that the instance fails.
    pub healthy: bool,
}

/// Why an instance cannot be an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoEndpoint {
    /// Only a load balancer's name (`AWS_ALIAS_DNS_NAME`).
    Alias,
    /// Only a host name (`AWS_INSTANCE_CNAME`).
    Cname,
    /// An EC2 instance of which AWS gives no address.
    Ec2WithoutAddress,
    /// No attribute that says where it is.
    NoAddress,
    InvalidAddress,
    InvalidPort,
    /// It is of an AWS Cloud Map MCS Controller of our ClusterSet, but lacks what tells its export.
    AwsMcs(awsmcs::Invalid),
}

impl NoEndpoint {
    pub const CATEGORIES: [&'static str; 7] = [
        "alias",
        "cname",
        "ec2_without_address",
        "no_address",
        "invalid_address",
        "invalid_port",
        "invalid_aws_mcs_controller",
    ];

    /// A word for metrics: one of [`CATEGORIES`](Self::CATEGORIES).
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

/// What is wrong, to follow "it".
impl fmt::Display for NoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alias => "has only the name of a load balancer (AWS_ALIAS_DNS_NAME)",
            Self::Cname => "has only a host name (AWS_INSTANCE_CNAME)",
            Self::Ec2WithoutAddress => "has only the id of an EC2 instance (AWS_EC2_INSTANCE_ID)",
            Self::NoAddress => "has neither AWS_INSTANCE_IPV4 nor AWS_INSTANCE_IPV6",
            Self::InvalidAddress => "has an address that is none (AWS_INSTANCE_IPV4, AWS_INSTANCE_IPV6)",
            Self::InvalidPort => "has a port that is none (AWS_INSTANCE_PORT)",
            Self::AwsMcs(invalid) => {
                return write!(f, "is of the AWS Cloud Map MCS Controller, and {invalid}");
            }
        })
    }
}

impl Backend {
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// Reads an instance of `service` in the Cloud Map namespace `namespace`.
    ///
    /// # Errors
    /// If it cannot be an endpoint.
    pub(super) fn read(
        instance: &Instance,
        healthy: bool,
        service: &Service,
        namespace: &str,
    ) -> Result<Self, NoEndpoint> {
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
            } else if attribute(EC2_INSTANCE).is_some() {
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
        let source = name::source(attribute(ECS_CLUSTER), namespace).ok_or(NoEndpoint::NoAddress)?;
        Ok(Self {
            source,
            ipv4,
            ipv6,
            port,
            dynamic: has_only_srv(service) && port.is_some_and(|port| port >= FIRST_DYNAMIC_PORT),
            // It becomes a hint.
            zone: attribute(attributes::ZONE).filter(|zone| is_label_value(zone)).map(Arc::from),
            healthy,
        })
    }
}

/// Whether an instance was registered by somebody else than our ClusterSet.
pub(super) fn is_foreign(instance: &Instance, identity: &Identity) -> bool {
    !ownership::is_of_our_set(instance, identity)
}

/// ECS gives a service of tasks in bridge or host mode SRV records only, because their ports differ.
fn has_only_srv(service: &Service) -> bool {
    let records = service.dns.as_ref().map(|dns| dns.records.as_slice()).unwrap_or_default();
    !records.is_empty() && records.iter().all(|record| record.record_type == RecordType::Srv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloudmap::{DnsConfig, DnsRecord, fake::mk_service};

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

    /// As ECS registers a task: on EC2 with its own network interface, on Fargate, and in bridge mode.
    #[test]
    fn reads_what_ecs_writes() {
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
            source: ClusterId::foreign("ecs-prod").unwrap(),
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
    fn what_cannot_be_an_endpoint_says_why() {
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
    fn other_writers_belong_to_the_namespace_and_may_have_both_families() {
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
