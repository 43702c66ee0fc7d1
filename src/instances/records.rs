//! The DNS records that a service is made with; AWS lets nobody change their types later.

use std::collections::BTreeSet;

use crate::{
    cloudmap::{DnsConfig, DnsRecord, RecordType},
    model::IpFamily,
};

/// A, AAAA, or both, answered with up to eight healthy addresses (MULTIVALUE). `None`: without a family there is none.
pub fn address_records(families: BTreeSet<IpFamily>, ttl: u32) -> Option<DnsConfig> {
    let record = |family| DnsRecord {
        record_type: match family {
            IpFamily::V4 => RecordType::A,
            IpFamily::V6 => RecordType::Aaaa,
        },
        ttl,
    };
    let mut records: Vec<_> = families.into_iter().map(record).collect();
    records.sort();
    (!records.is_empty()).then_some(DnsConfig { weighted: false, records })
}

/// For host names, one of which answers (WEIGHTED): A where they are load balancers of AWS, whose addresses Route 53 gives
/// in place of their names, else CNAME. As external-dns does it.
pub fn host_record(load_balancers: bool, ttl: u32) -> DnsConfig {
    let record_type = if load_balancers { RecordType::A } else { RecordType::Cname };
    DnsConfig { weighted: true, records: vec![DnsRecord { record_type, ttl }] }
}
