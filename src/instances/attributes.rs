//! The attributes of an instance: those that everybody reads, and ours.
//!
//! | attribute | value |
//! |---|---|
//! | `AWS_INSTANCE_IPV4`, `AWS_INSTANCE_IPV6` | the endpoint's addresses; one instance has both |
//! | `AWS_INSTANCE_PORT` | the number of the Service's first port on this endpoint |
//! | `AWS_ALIAS_DNS_NAME`, `AWS_INSTANCE_CNAME` | a host name that replaces all of these: a load balancer, or another one |
//! | `PORT_<name>` | each further port: `<number>/<protocol>`, where `<name>` is the port's name or number |
//! | `AVAILABILITY_ZONE`, `REGION` | as ECS writes them, if they are known; no region if the zone is in another one |
//! | `CLOUDMAP_MCS_CLUSTERSET`, `CLOUDMAP_MCS_CLUSTER`, `CLOUDMAP_MCS_CLUSTER_UID` | the owner of the instance |
//! | `CLOUDMAP_MCS_NAMESPACE`, `CLOUDMAP_MCS_SERVICE` | the Kubernetes Service, for people |
//! | `AWS_INIT_HEALTH_STATUS` | `HEALTHY`, or `UNHEALTHY` while the pod is not ready; only in services with a custom health check |
//! | `CLOUDMAP_MCS_PARTIAL` | `true`, if only a part of the pods is registered ([`share`](super::share)) |
//! | any other name | attributes of users ([`Custom`]) |

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    num::NonZeroU64,
    sync::Arc,
};

use super::{custom::Custom, host::is_load_balancer, ownership::Owner, share::Families};
use cloudmap::{
    Attributes, DnsConfig, Instance, RecordType, Service,
    attributes::{
        ALIAS, CLUSTER, CLUSTER_UID, CLUSTERSET, CNAME, FURTHER_PORT, INIT_HEALTH, IPV4, IPV6, NAMESPACE, PARTIAL,
        PORT, REGION, SERVICE, ZONE,
    },
};
use model::{Endpoint, EndpointPort, Pairs, ServiceKey, ServicePort, intern};

/// How many attributes of an instance AWS allows. Ours are ten, which leaves room for twenty further ports.
const MAX_ATTRIBUTES: usize = 30;
/// How many characters in all names and values AWS allows.
const MAX_CHARACTERS: usize = 5000;
/// A Service cannot be registered at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Its instances would be too large for Cloud Map.
    #[error(
        "Service {service} has {ports} ports: an instance of it would have {attributes} attributes and {characters} \
         characters, and Cloud Map allows 30 and 5,000; export fewer ports, or add fewer attributes of your own"
    )]
    TooLarge {
        /// The Service.
        service: ServiceKey,
        /// Number of its ports.
        ports: usize,
        /// Number of attributes of an instance.
        attributes: usize,
        /// Number of characters in them.
        characters: usize,
    },
}

/// A desired instance. It is small, because there are many: everything that all instances of a Service have in common
/// is shared, and the attributes are written only for the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceSpec {
    id: Arc<str>,
    common: Arc<Pairs>,
    ipv4: Option<Ipv4Addr>,
    ipv6: Option<Ipv6Addr>,
    port: Option<u16>,
    zone: Option<Arc<str>>,
    /// Host name that replaces the addresses.
    host: Option<Arc<str>>,
    /// Whether the endpoint is ready. Otherwise the instance is registered only where a health check can mark it, and
    /// only if it was ready before.
    ready: bool,
    /// Whether it is one of those that are registered for a share of the traffic.
    partial: bool,
}

impl InstanceSpec {
    pub(super) fn of_host(id: Arc<str>, common: Arc<Pairs>, host: Arc<str>) -> Self {
        Self {
            id,
            common,
            ipv4: None,
            ipv6: None,
            port: None,
            zone: None,
            host: Some(host),
            ready: true,
            partial: false,
        }
    }

    /// The instance of one port of an endpoint.
    pub(super) fn of_port(id: Arc<str>, common: Arc<Pairs>, endpoint: &Endpoint, number: u16) -> Self {
        // The rest is the same for all similar instances, or was decided before.
        let Endpoint { ipv4, ipv6, zone, ports: _, conditions: _, hostname: _, node: _ } = endpoint;
        let (port, zone) = (Some(number), zone.clone());
        Self { id, common, ipv4: *ipv4, ipv6: *ipv6, port, zone, host: None, ready: true, partial: false }
    }

    /// The id of the instance.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// The addresses of its endpoint; none if a host name replaces them.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ipv4.map(IpAddr::V4).into_iter().chain(self.ipv6.map(IpAddr::V6))
    }

    /// The port with which it is registered, if it has one.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The same instance as it is registered for a share of the traffic: marked as such, and with these families only.
    /// `None` if it has none of them.
    pub(super) fn as_part(&self, families: Families) -> Option<Self> {
        let (ipv4, ipv6) = (self.ipv4.filter(|_| families.v4), self.ipv6.filter(|_| families.v6));
        let stays = self.host.is_some() || ipv4.is_some() || ipv6.is_some();
        stays.then(|| Self { ipv4, ipv6, partial: true, ..self.clone() })
    }

    pub(super) fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// Lets new instances have the ids of those `before` in memory, where they are equal: what is known of each instance has
    /// its id. Both are sorted by id.
    pub fn share_ids(new: &mut Arc<[Self]>, before: &[Self]) {
        for spec in Arc::get_mut(new).into_iter().flatten() {
            if let Ok(at) = before.binary_search_by(|there| there.id.cmp(&spec.id)) {
                spec.id = Arc::clone(&before[at].id);
            }
        }
    }

    /// Whether its endpoint is ready.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether the instance belongs into `service`. If its endpoint is not ready, it belongs there only if it is
    /// already `registered` and a custom health check takes it out of the answers. Most pods become ready again.
    pub fn belongs(&self, service: ServiceTraits, registered: bool) -> bool {
        self.ready || service.custom_health_check && registered
    }

    /// The address or host name, for people.
    pub fn address(&self) -> String {
        match (self.ipv4, self.ipv6, &self.host) {
            (Some(ip), _, _) => ip.to_string(),
            (None, Some(ip), _) => ip.to_string(),
            (None, None, host) => host.as_deref().unwrap_or_default().to_owned(),
        }
    }

    /// The attributes that `service` can take.
    pub fn render(&self, service: ServiceTraits) -> Instance {
        let mut instance = Instance { id: self.id.clone(), attributes: self.attributes(service) };
        if service.custom_health_check {
            let health = if self.ready { "HEALTHY" } else { "UNHEALTHY" };
            instance.attributes.insert(INIT_HEALTH.to_owned(), health.to_owned());
        }
        instance
    }

    fn attributes(&self, service: ServiceTraits) -> Attributes {
        let Self { id: _, common, ipv4, ipv6, port, zone, host, ready: _, partial } = self;
        let common = common.iter().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let mut attributes: Attributes = common.collect();
        let mut set = |key: &str, value: Option<String>| value.map(|value| attributes.insert(key.to_owned(), value));
        set(IPV4, ipv4.map(|ip| ip.to_string()));
        set(IPV6, ipv6.map(|ip| ip.to_string()));
        set(PORT, port.map(|port| port.to_string()));
        set(ZONE, zone.as_deref().map(str::to_owned));
        if let Some(host) = host {
            // AWS takes an alias only where it answers with address records.
            let alias = is_load_balancer(host) && (service.records.a || service.records.aaaa);
            set(if alias { ALIAS } else { CNAME }, Some((**host).to_owned()));
        }
        // A cluster may be in another region than its registry. The name of a zone begins with that of its region.
        let elsewhere = |region: &String| zone.as_deref().is_some_and(|zone| !zone.starts_with(region.as_str()));
        if attributes.get(REGION).is_some_and(elsewhere) {
            attributes.remove(REGION);
        }
        // An instance that is full of attributes does without: others then count it as one of a whole cluster.
        if *partial && attributes.len() < MAX_ATTRIBUTES - 1 {
            attributes.insert(PARTIAL.to_owned(), "true".to_owned());
        }
        attributes
    }

    /// Equal for equal attributes in one service; see [`digest`].
    pub fn digest(&self, service: ServiceTraits) -> Digest {
        digest(&self.attributes(service))
    }

    /// What the records of a service require and this endpoint lacks; `None` if it fits.
    pub fn lacks(&self, service: ServiceTraits) -> Option<&'static str> {
        let records = service.records;
        if let Some(host) = &self.host {
            let addresses = records.a || records.aaaa;
            return if service.route53_health_check && !(addresses && is_load_balancer(host)) {
                Some("the service has a Route 53 health check, which checks only addresses")
            } else if records.srv || addresses && !is_load_balancer(host) {
                Some("a host name needs a service with a CNAME record, or without records")
            } else if addresses && !service.weighted {
                Some("the service answers with several addresses (MULTIVALUE), but a load balancer needs WEIGHTED")
            } else {
                None
            };
        }
        if records.cname {
            Some("the service has a CNAME record, which takes only host names")
        } else if records.a && self.ipv4.is_none() {
            Some("the service has an A record, but the endpoint has no IPv4 address")
        } else if records.aaaa && self.ipv6.is_none() {
            Some("the service has an AAAA record, but the endpoint has no IPv6 address")
        } else if records.srv && self.port.is_none() {
            Some("the service has an SRV record, but the endpoint does not serve the first port of the Service")
        } else if service.route53_health_check && self.port.is_none() {
            Some(
                "the service has a Route 53 health check, but the endpoint does not serve the first port of the Service",
            )
        } else {
            None
        }
    }
}

/// The properties of a Cloud Map service that determine the attributes of its instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServiceTraits {
    records: Records,
    weighted: bool,
    custom_health_check: bool,
    route53_health_check: bool,
}

impl ServiceTraits {
    /// The properties of a service that is created with these records.
    pub(super) fn of(dns: Option<&DnsConfig>, custom_health_check: bool) -> Self {
        let has = |wanted| dns.is_some_and(|dns| dns.records.iter().any(|record| record.record_type == wanted));
        let records = Records {
            a: has(RecordType::A),
            aaaa: has(RecordType::Aaaa),
            srv: has(RecordType::Srv),
            cname: has(RecordType::Cname),
        };
        let weighted = dns.is_some_and(|dns| dns.weighted);
        Self { records, weighted, custom_health_check, route53_health_check: false }
    }

    pub(super) const fn has_custom_health_check(self) -> bool {
        self.custom_health_check
    }

    /// Whether DNS answers with at most eight instances.
    pub(super) fn answers_eight(self) -> bool {
        let Records { a, aaaa, srv, cname } = self.records;
        !self.weighted && (a || aaaa || srv || cname)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "a set of record types")]
struct Records {
    a: bool,
    aaaa: bool,
    srv: bool,
    cname: bool,
}

impl From<&Service> for ServiceTraits {
    fn from(service: &Service) -> Self {
        let created = Self::of(service.dns.as_ref(), service.custom_health_check);
        Self { route53_health_check: service.health_check.is_some(), ..created }
    }
}

/// Hash of attributes, for comparison only within this process. It is never zero, so that none takes no more room than one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(NonZeroU64);

/// Hash of the attributes that we write. Other attributes with the prefix `AWS_` belong to AWS, such as the initial
/// health status, which AWS does not update.
pub fn digest(attributes: &Attributes) -> Digest {
    let mut hasher = DefaultHasher::new();
    for (key, value) in attributes {
        if belongs_to_us(key) {
            (key, value).hash(&mut hasher);
        }
    }
    Digest(NonZeroU64::new(hasher.finish()).unwrap_or(NonZeroU64::MIN))
}

/// Whether an attribute of our instances is ours to keep: all but those that AWS sets.
pub(super) fn belongs_to_us(name: &str) -> bool {
    !name.starts_with("AWS_") || [IPV4, IPV6, PORT, ALIAS, CNAME].contains(&name)
}

/// Attributes as instances share them.
pub(super) fn shared_by_all(attributes: &Attributes) -> Arc<Pairs> {
    Arc::new(attributes.iter().map(|(key, value)| (intern(key), intern(value))).collect())
}

/// A Service whose endpoints become instances.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Our identity, which becomes the owner marks.
    pub identity: &'a Owner,
    /// The Service.
    pub service: &'a ServiceKey,
    /// Its ports, in the order of the Service. The first one becomes `AWS_INSTANCE_PORT`.
    pub ports: &'a [ServicePort],
    /// AWS region, if known.
    pub region: Option<&'a str>,
}

impl Source<'_> {
    /// Like [`instances_with`](Self::instances_with) without attributes of users.
    ///
    /// # Errors
    /// [`Unfit`].
    pub fn instances<'e>(&self, endpoints: impl IntoIterator<Item = &'e Endpoint>) -> Result<Vec<InstanceSpec>, Unfit> {
        self.instances_with(endpoints, &Custom::default())
    }

    /// One instance for each endpoint that is not terminating, sorted by id. [`InstanceSpec::belongs`] handles
    /// endpoints that are not ready.
    ///
    /// The id of an address never changes: `k8s-<hash of the cluster's UID>-<address>`, with dashes for the dots. An
    /// IPv6 address, which is used if there is no IPv4 address, has 32 digits. Ids are DNS labels, because they become
    /// targets of SRV records. No scheme of ECS (32 digits), of the AWS controller (`tcp-...`), of external-dns (the
    /// address) or of the Python controller (the address with dashes) creates such ids. If endpoints share an address
    /// (pods on the host network), all but the one with the lowest port have their port appended. If they differ only in
    /// their IPv6 address (a load balancer), all but the first one have an id of that address.
    ///
    /// # Errors
    /// [`Unfit`]: if one instance would be too large, all instances of the Service are refused.
    pub fn instances_with<'e>(
        &self,
        endpoints: impl IntoIterator<Item = &'e Endpoint>,
        custom: &Custom,
    ) -> Result<Vec<InstanceSpec>, Unfit> {
        let prefix = self.identity.id_prefix();
        let stays = |endpoint: &&Endpoint| endpoint.conditions.ready || !endpoint.conditions.terminating;
        let mut staying: Vec<_> = endpoints.into_iter().filter(stays).collect();
        // Sorted by the address in the id, then by port. Of duplicates, the one that is ready counts.
        staying.sort_by_key(|endpoint| {
            let only_ipv6 = endpoint.ipv6.filter(|_| endpoint.ipv4.is_none());
            (endpoint.ipv4, only_ipv6, self.first_port(&endpoint.ports), !endpoint.conditions.ready, endpoint.ipv6)
        });

        let mut shared: Vec<(&[EndpointPort], Attributes, Arc<Pairs>)> = Vec::new();
        let mut last: Option<(String, Option<u16>, Option<Ipv6Addr>)> = None;
        let mut specs = Vec::with_capacity(staying.len());
        for endpoint in staying {
            // These instances have neither host name nor node.
            let Endpoint { ipv4, ipv6, ports, conditions, zone, hostname: _, node: _ } = endpoint;
            let port = self.first_port(ports);
            let base = match (ipv4, ipv6) {
                (Some(ip), _) => format!("{prefix}-{}", ip.to_string().replace('.', "-")),
                (None, Some(ip)) => format!("{prefix}-{:032x}", ip.to_bits()),
                (None, None) => continue,
            };
            let another = |before: Option<Ipv6Addr>| conditions.ready && before.is_some() && *ipv6 != before;
            let id: Arc<str> = match (&last, ipv6) {
                // There are more IPv6 addresses than IPv4 addresses.
                (Some((address, at, before)), Some(ip)) if *address == base && *at == port && another(*before) => {
                    format!("{prefix}-{:032x}", ip.to_bits()).into()
                }
                // The same address and port is the same endpoint, which two slices list for a moment.
                (Some((address, at, _)), _) if *address == base && *at == port => continue,
                (Some((address, ..)), _) if *address == base => format!("{base}-{}", port.unwrap_or_default()).into(),
                _ => base.as_str().into(),
            };
            last = Some((base, port, *ipv6));
            let added = custom.of(endpoint);
            let same =
                |(shared, custom, _): &&(&[EndpointPort], Attributes, _)| **shared == **ports && *custom == added;
            let known = shared.iter().find(same).map(|(_, _, common)| Arc::clone(common));
            let common = known.unwrap_or_else(|| {
                let common = shared_by_all(&self.common(ports, &added));
                shared.push((ports, added, Arc::clone(&common)));
                common
            });
            let (ipv4, ipv6, zone, ready) = (*ipv4, *ipv6, zone.clone(), conditions.ready);
            let spec = InstanceSpec { id, common, ipv4, ipv6, port, zone, host: None, ready, partial: false };
            self.check(&spec)?;
            specs.push(spec);
        }
        specs.sort_by(|a, b| a.id.cmp(&b.id));
        specs.dedup_by(|a, b| a.id == b.id);
        Ok(specs)
    }

    /// The number of the Service's first port on an endpoint.
    fn first_port(&self, ports: &[EndpointPort]) -> Option<u16> {
        self.ports.first().and_then(|first| resolve(first, ports))
    }

    pub(super) fn common(&self, ports: &[EndpointPort], custom: &Attributes) -> Attributes {
        let Owner { clusterset, cluster, cluster_uid } = self.identity;
        let mut attributes = custom.clone();
        let mut set = |key: &str, value: &str| attributes.insert(key.to_owned(), value.to_owned());
        if let Some(clusterset) = clusterset {
            set(CLUSTERSET, clusterset.as_str());
        }
        set(CLUSTER, cluster.as_str());
        set(CLUSTER_UID, cluster_uid);
        set(NAMESPACE, &self.service.namespace);
        set(SERVICE, &self.service.name);
        if let Some(region) = self.region {
            set(REGION, region);
        }
        for port in self.ports.iter().skip(1) {
            if let Some(number) = resolve(port, ports) {
                // A Service with several ports names all of them. A Service that does not comes from another source.
                let name = if port.name.is_empty() { port.port.to_string() } else { port.name.to_string() };
                set(&format!("{FURTHER_PORT}{name}"), &format!("{number}/{}", port.protocol));
            }
        }
        attributes
    }

    pub(super) fn check(&self, spec: &InstanceSpec) -> Result<(), Unfit> {
        let attributes = spec.attributes(ServiceTraits::default());
        // The health check may add one attribute, and so may a share. A share does without it in an instance that is
        // full.
        let count = attributes.len() + 1;
        let added = INIT_HEALTH.len() + "UNHEALTHY".len() + PARTIAL.len() + "true".len();
        let characters: usize = attributes.iter().map(|(key, value)| key.chars().count() + value.chars().count()).sum();
        if count > MAX_ATTRIBUTES || characters > MAX_CHARACTERS - added {
            let (service, ports) = (self.service.clone(), self.ports.len());
            return Err(Unfit::TooLarge { service, ports, attributes: count, characters });
        }
        Ok(())
    }
}

/// The number of a Service port on an endpoint. EndpointSlices link the two by name and protocol.
pub(super) fn resolve(port: &ServicePort, ports: &[EndpointPort]) -> Option<u16> {
    ports.iter().find(|p| p.name == port.name && p.protocol == port.protocol).map(|p| p.port)
}

#[cfg(test)]
#[path = "attributes_tests.rs"]
mod tests;
