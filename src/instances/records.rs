//! The DNS records and the health check with which a service is created. AWS does not allow their types to change
//! later.

use std::collections::BTreeSet;

use super::sync::Creation;
use api::names::{ANNOTATION_HEALTH_CHECK, ANNOTATION_RECORDS, ANNOTATION_TTL};
use cloudmap::{DnsConfig, DnsRecord, RecordType};
use model::{Excerpt, IpFamily, Pairs};

/// Maximum TTL in DNS (RFC 2181), in seconds.
pub const MAX_TTL: u32 = 0x7fff_ffff;

/// A, AAAA or both, answered with up to eight healthy addresses (MULTIVALUE); `None` without a family.
pub fn address_records(families: BTreeSet<IpFamily>, ttl: u32) -> Option<DnsConfig> {
    let record = |family| match family {
        IpFamily::V4 => RecordType::A,
        IpFamily::V6 => RecordType::Aaaa,
    };
    records(families.into_iter().map(record).collect(), ttl)
}

fn records(types: Vec<RecordType>, ttl: u32) -> Option<DnsConfig> {
    let mut records: Vec<_> = types.into_iter().map(|record_type| DnsRecord { record_type, ttl }).collect();
    records.sort();
    (!records.is_empty()).then_some(DnsConfig { weighted: false, records })
}

/// Records for host names, of which one is the answer (WEIGHTED): A for load balancers of AWS, for which Route 53
/// answers with their addresses, or else CNAME. external-dns does the same.
pub fn host_record(load_balancers: bool, ttl: u32) -> DnsConfig {
    let record_type = if load_balancers { RecordType::A } else { RecordType::Cname };
    DnsConfig { weighted: true, records: vec![DnsRecord { record_type, ttl }] }
}

/// What annotations request for a service that is created.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Wishes {
    /// The types of records. If empty, the service can be discovered only through the API.
    types: Option<Vec<RecordType>>,
    ttl: Option<u32>,
    custom_health_check: bool,
}

impl Wishes {
    /// Parses annotations.
    ///
    /// # Errors
    /// The first invalid annotation, with a valid form.
    pub fn read(annotations: &Pairs) -> Result<Self, String> {
        let read = |name: &str| annotations.get(name).map(str::trim);
        let types = match read(ANNOTATION_RECORDS).map(|list| list.replace(' ', "").to_ascii_uppercase()).as_deref() {
            None => None,
            Some("NONE") => Some(vec![]),
            Some("A") => Some(vec![RecordType::A]),
            Some("AAAA") => Some(vec![RecordType::Aaaa]),
            Some("A,AAAA" | "AAAA,A") => Some(vec![RecordType::A, RecordType::Aaaa]),
            Some("SRV") => Some(vec![RecordType::Srv]),
            Some(other) => {
                return Err(format!(
                    "The annotation {ANNOTATION_RECORDS} is {}: write \"A\", \"AAAA\", \"A,AAAA\", \"SRV\" or \"none\".",
                    Excerpt(other)
                ));
            }
        };
        let ttl = match read(ANNOTATION_TTL).map(|text| (text, text.parse::<u32>())) {
            None => None,
            Some((_, Ok(ttl))) if ttl <= MAX_TTL => Some(ttl),
            Some((text, _)) => {
                return Err(format!(
                    "The annotation {ANNOTATION_TTL} is {}: write seconds, such as \"60\".",
                    Excerpt(text)
                ));
            }
        };
        let custom_health_check = match read(ANNOTATION_HEALTH_CHECK) {
            None | Some("none") => false,
            Some("custom") => true,
            Some(other) => {
                return Err(format!(
                    "The annotation {ANNOTATION_HEALTH_CHECK} is {other:?}: write \"custom\" or \"none\"."
                ));
            }
        };
        Ok(Self { types, ttl, custom_health_check })
    }

    /// The creation with these wishes. For host names, the requested types do not apply.
    #[must_use]
    pub fn apply(&self, creation: Creation) -> Creation {
        let Self { types, ttl, custom_health_check } = self;
        let mut dns = creation.dns;
        if let Some(types) = types.as_ref().filter(|_| dns.as_ref().is_none_or(|dns| !dns.weighted)) {
            let default = dns.and_then(|dns| Some(dns.records.first()?.ttl)).unwrap_or(super::target::DEFAULT_TTL);
            dns = records(types.clone(), default);
        }
        if let (Some(dns), Some(ttl)) = (&mut dns, ttl) {
            dns.records.iter_mut().for_each(|record| record.ttl = *ttl);
        }
        Creation { dns, custom_health_check: *custom_health_check, ttl: ttl.or(creation.ttl), ..creation }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(annotations: &[(&str, &str)]) -> Result<Wishes, String> {
        Wishes::read(&annotations.iter().copied().collect())
    }

    fn dual_stack() -> Creation {
        let dns = address_records([IpFamily::V4, IpFamily::V6].into(), 60);
        Creation { dns, ..Creation::default() }
    }

    #[test]
    fn records_follow_the_families_unless_annotations_request_others() {
        for (annotations, expected) in [
            (&[][..], &[(RecordType::A, 60), (RecordType::Aaaa, 60)][..]),
            (&[(ANNOTATION_TTL, "5")], &[(RecordType::A, 5), (RecordType::Aaaa, 5)]),
            (&[(ANNOTATION_RECORDS, "srv")], &[(RecordType::Srv, 60)]),
            (&[(ANNOTATION_RECORDS, "AAAA"), (ANNOTATION_TTL, "30")], &[(RecordType::Aaaa, 30)]),
            (&[(ANNOTATION_RECORDS, "A, AAAA")], &[(RecordType::A, 60), (RecordType::Aaaa, 60)]),
            (&[(ANNOTATION_RECORDS, "none")], &[]),
        ] {
            let creation = wishes(annotations).unwrap().apply(dual_stack());
            let records = creation.dns.into_iter().flat_map(|dns| dns.records);
            let found: Vec<_> = records.map(|record| (record.record_type, record.ttl)).collect();
            assert_eq!(found, expected, "{annotations:?}");
        }
        let alias = Creation { dns: Some(host_record(true, 300)), ..Creation::default() };
        let kept = wishes(&[(ANNOTATION_RECORDS, "SRV"), (ANNOTATION_HEALTH_CHECK, "custom")]).unwrap().apply(alias);
        assert_eq!(kept.dns, Some(host_record(true, 300)));
        assert!(kept.custom_health_check);
    }

    #[test]
    fn requests_that_cloud_map_cannot_fulfil_are_refused_with_the_alternatives() {
        for (annotation, value, hint) in [
            (ANNOTATION_RECORDS, "A,SRV", "\"SRV\""),
            (ANNOTATION_RECORDS, "CNAME", "\"A,AAAA\""),
            (ANNOTATION_TTL, "1m", "seconds"),
            (ANNOTATION_TTL, "2147483648", "seconds"),
            (ANNOTATION_HEALTH_CHECK, "http", "custom"),
        ] {
            let message = wishes(&[(annotation, value)]).unwrap_err();
            assert!(message.contains(annotation) && message.contains(hint), "{message}");
        }
    }
}
