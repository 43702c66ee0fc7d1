//! One question against the zones of one replica: no sockets, no clock.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::{Reply, names};
use crate::replicas::{Replica, Row, View};
use crate::requests::DnsConfig;
use crate::state::{Health, Namespace, NamespaceType};

/// `MULTIVALUE`: "Route 53 responds to DNS queries with IP addresses for up to eight healthy instances" (AWS API model,
/// `RoutingPolicy`).
const MOST_ANSWERS: usize = 8;
/// "Route 53 uses the TTL for the AWS resource that an alias record routes traffic to" (`DnsRecord`), which for load
/// balancers is 60 s.
const ALIAS_TTL: u32 = 60;
/// The fields that Route 53 gives the SOA record of a new zone: serial, refresh, retry, expire, minimum.
const SOA_NUMBERS: (u32, i32, i32, i32, u32) = (1, 7200, 900, 1_209_600, 86_400);
const PRIMARY: &str = "ns-1536.awsdns-00.co.uk.";
const CONTACT: &str = "awsdns-hostmaster.amazon.com.";
const NS_TTL: u32 = 172_800;

/// The zone of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Zone {
    name: Name,
    private: bool,
    created: Duration,
    pub(crate) soa_ttl: u32,
}

impl Zone {
    /// None for a namespace that is found by API calls only.
    pub(crate) fn of(namespace: &Namespace) -> Option<Self> {
        if namespace.r#type == NamespaceType::Http {
            return None;
        }
        Some(Self {
            name: names::zone(&namespace.name)?,
            private: namespace.r#type == NamespaceType::DnsPrivate,
            created: namespace.created,
            soa_ttl: namespace.soa_ttl.and_then(|ttl| u32::try_from(ttl).ok()).unwrap_or_default(),
        })
    }

    fn soa(&self) -> Record {
        let (serial, refresh, retry, expire, minimum) = SOA_NUMBERS;
        let soa = SOA::new(constant(PRIMARY), constant(CONTACT), serial, refresh, retry, expire, minimum);
        Record::from_rdata(self.name.clone(), self.soa_ttl, RData::SOA(soa))
    }

    /// "The TTL of this record is set from the minimum of the MINIMUM field of the SOA record and the TTL of the SOA
    /// itself, and indicates how long a resolver may cache the negative answer." (RFC 2308, section 3)
    fn negative(&self, code: ResponseCode) -> Reply {
        let mut soa = self.soa();
        soa.ttl = soa.ttl.min(SOA_NUMBERS.4);
        Reply { code, answers: Vec::new(), authorities: vec![soa], authoritative: true }
    }
}

fn constant(name: &str) -> Name {
    Name::from_ascii(name).expect("a constant is a name")
}

/// What Route 53 answers with what the replica knows.
pub(crate) fn look_up(
    replica: &Replica,
    load_balancers: &BTreeMap<String, Vec<IpAddr>>,
    name: &Name,
    kind: RecordType,
    rng: &mut StdRng,
) -> Reply {
    let zones = replica.zones().filter(|(_, zone)| zone.name.zone_of(name));
    let best = zones.max_by_key(|(_, zone)| (zone.name.num_labels(), zone.private, std::cmp::Reverse(zone.created)));
    let Some((namespace, zone)) = best else { return Reply::failure(ResponseCode::Refused) };
    if kind == RecordType::ANY {
        return Reply { authoritative: true, ..Reply::failure(ResponseCode::NotImp) };
    }
    let relative = names::relative(name, &zone.name);
    let mut found = Found { exists: relative.is_empty(), data: Vec::new() };
    if relative.is_empty() {
        match kind {
            RecordType::SOA => found.data.push((zone.soa_ttl, zone.soa().data)),
            RecordType::NS => found.data.push((NS_TTL, RData::NS(NS(constant(PRIMARY))))),
            _ => {}
        }
    }
    for (service, view) in replica.services(namespace) {
        let Some(dns) = &view.dns else { continue };
        Service { name: service, view, dns, zone: &zone.name, load_balancers }.find(&relative, kind, &mut found, rng);
    }
    if !found.exists {
        return zone.negative(ResponseCode::NXDomain);
    }
    if found.data.is_empty() {
        return zone.negative(ResponseCode::NoError);
    }
    let mut answers: Vec<Record> = Vec::new();
    for (ttl, data) in found.data {
        // Two instances with one address are one record: "servers should suppress such duplicates" (RFC 2181, section 5).
        if !answers.iter().any(|record| record.data == data) {
            answers.push(Record::from_rdata(name.clone(), ttl, data));
        }
    }
    Reply { code: ResponseCode::NoError, answers, authorities: Vec::new(), authoritative: true }
}

/// What there is at a name.
#[derive(Debug)]
struct Found {
    /// Whether anything is there, of any type, or below it: an empty name between others exists (RFC 4592, section
    /// 2.2.2).
    exists: bool,
    data: Vec<(u32, RData)>,
}

struct Service<'a> {
    name: &'a str,
    view: &'a View,
    dns: &'a DnsConfig,
    zone: &'a Name,
    load_balancers: &'a BTreeMap<String, Vec<IpAddr>>,
}

impl Service<'_> {
    /// Adds what the service has at a name of its zone.
    fn find(&self, relative: &str, kind: RecordType, found: &mut Found, rng: &mut StdRng) {
        if self.view.instances.is_empty() {
            return;
        }
        let owner = names::owner(self.name);
        if relative == owner {
            found.exists = true;
            found.data.extend(self.route(kind, rng));
        }
        found.exists |= is_below(&owner, relative);
        if !self.has_record("SRV") {
            return;
        }
        for (id, row) in &self.view.instances {
            let target =
                if owner.is_empty() { id.to_ascii_lowercase() } else { format!("{id}.{owner}").to_ascii_lowercase() };
            if relative == target {
                // "Cloud Map automatically creates A and/or AAAA records that have the same name as the value of
                // service-hostname in the SRV record" (AWS API model, `DnsRecord`). They are of this instance alone, so
                // its health is no question.
                found.exists = true;
                let ttl = self.ttl("SRV");
                found.data.extend(address(row, kind).map(|data| (ttl, data)));
            }
            found.exists |= is_below(&target, relative);
        }
    }

    /// `WEIGHTED`: "Route 53 returns the applicable value from one randomly selected instance from among the healthy
    /// instances. If no instances are healthy, Route 53 responds to DNS queries as if all of the instances were healthy."
    /// `MULTIVALUE`: up to eight; "when all records are unhealthy, [...] with up to eight unhealthy records".
    fn route(&self, kind: RecordType, rng: &mut StdRng) -> Vec<(u32, RData)> {
        // Whatever is asked, the CNAME is the answer (RFC 1034, section 3.6.2).
        let kind = if self.has_record("CNAME") { RecordType::CNAME } else { kind };
        if !self.has_record(&kind.to_string()) {
            return Vec::new();
        }
        let all: Vec<_> = self.view.instances.iter().filter(|(_, row)| has_value(row, kind)).collect();
        let healthy: Vec<_> = all.iter().copied().filter(|(_, row)| row.health != Health::Unhealthy).collect();
        let candidates = if healthy.is_empty() { all } else { healthy };
        let most = if self.dns.routing_policy.as_deref() == Some("WEIGHTED") { 1 } else { MOST_ANSWERS };
        // In random order.
        let chosen: Vec<_> = candidates.sample(rng, most).copied().collect();
        chosen.into_iter().flat_map(|(id, row)| self.values(id, row, kind)).collect()
    }

    fn values(&self, id: &str, row: &Row, kind: RecordType) -> Vec<(u32, RData)> {
        let ttl = self.ttl(&kind.to_string());
        let attribute = |key: &str| row.attributes.get(key);
        if let Some(target) = attribute("AWS_ALIAS_DNS_NAME") {
            let target = target.trim_end_matches('.').to_ascii_lowercase();
            let addresses = self.load_balancers.get(&target).into_iter().flatten();
            return addresses.filter_map(|address| of_family(*address, kind)).map(|data| (ALIAS_TTL, data)).collect();
        }
        let data = match kind {
            RecordType::CNAME => attribute("AWS_INSTANCE_CNAME").and_then(|name| {
                let mut name = Name::from_ascii(name).ok()?;
                name.set_fqdn(true);
                Some(RData::CNAME(CNAME(name)))
            }),
            // "The values of priority and weight are both set to 1 and can't be changed." (`DnsRecord`)
            RecordType::SRV => attribute("AWS_INSTANCE_PORT").and_then(|port| {
                let target = names::srv_target(id, &names::owner(self.name), self.zone)?;
                Some(RData::SRV(SRV::new(1, 1, port.parse().ok()?, target)))
            }),
            kind => address(row, kind),
        };
        data.into_iter().map(|data| (ttl, data)).collect()
    }

    fn has_record(&self, kind: &str) -> bool {
        self.dns.dns_records.iter().any(|record| record.r#type == kind)
    }

    fn ttl(&self, kind: &str) -> u32 {
        let record = self.dns.dns_records.iter().find(|record| record.r#type == kind);
        record.and_then(|record| u32::try_from(record.ttl).ok()).unwrap_or_default()
    }
}

/// Whether the first name is below the second one.
fn is_below(name: &str, above: &str) -> bool {
    name.strip_suffix(above).is_some_and(|rest| rest.ends_with('.'))
}

/// Whether the instance has a record of the type.
fn has_value(row: &Row, kind: RecordType) -> bool {
    let has = |key: &str| row.attributes.contains_key(key);
    match kind {
        RecordType::A => has("AWS_INSTANCE_IPV4") || has("AWS_ALIAS_DNS_NAME"),
        RecordType::AAAA => has("AWS_INSTANCE_IPV6") || has("AWS_ALIAS_DNS_NAME"),
        RecordType::CNAME => has("AWS_INSTANCE_CNAME"),
        RecordType::SRV => has("AWS_INSTANCE_PORT"),
        _ => false,
    }
}

fn address(row: &Row, kind: RecordType) -> Option<RData> {
    let key = match kind {
        RecordType::A => "AWS_INSTANCE_IPV4",
        RecordType::AAAA => "AWS_INSTANCE_IPV6",
        _ => return None,
    };
    of_family(row.attributes.get(key)?.parse().ok()?, kind)
}

fn of_family(address: IpAddr, kind: RecordType) -> Option<RData> {
    match (address, kind) {
        (IpAddr::V4(address), RecordType::A) => Some(RData::A(A(address))),
        (IpAddr::V6(address), RecordType::AAAA) => Some(RData::AAAA(AAAA(address))),
        _ => None,
    }
}
