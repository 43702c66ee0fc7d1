//! Instances with host names instead of addresses: load balancers, and everything else without an address of its own.

use std::sync::Arc;

use super::{
    attributes::{InstanceSpec, Source, Unfit, shared_by_all},
    custom::Custom,
    ownership::short_hash,
};

/// Number of bytes of a host name's hash in the id of its instance.
const HOST_HASH: usize = 10;

/// Whether Route 53 can answer with the addresses of this host instead of its name (`AWS_ALIAS_DNS_NAME`). It can only
/// for names of Elastic Load Balancing, `<name>.<region>.elb.amazonaws.com` and `<name>.elb.<region>.amazonaws.com`.
pub fn is_load_balancer(host: &str) -> bool {
    let host = host.strip_suffix(".cn").unwrap_or(host);
    let Some(rest) = host.strip_suffix(".amazonaws.com") else { return false };
    match rest.rsplit_once('.') {
        Some((name, "elb")) => !name.is_empty(),
        Some((before, _region)) => before.strip_suffix(".elb").is_some_and(|name| !name.is_empty()),
        None => false,
    }
}

impl Source<'_> {
    /// One instance for each host name, with attributes of users, sorted by id:
    /// `k8s-<hash of the cluster's UID>-<hash of the name>`, with a letter that no address has.
    ///
    /// # Errors
    /// [`Unfit`], as for endpoints.
    pub fn hosts<'h>(
        &self,
        hosts: impl IntoIterator<Item = &'h Arc<str>>,
        custom: &Custom,
    ) -> Result<Vec<InstanceSpec>, Unfit> {
        let prefix = self.identity.id_prefix();
        let common = shared_by_all(&self.common(&[], &custom.service));
        let spec = |host: &Arc<str>| {
            let id = format!("{prefix}-h{}", short_hash(host, HOST_HASH)).into();
            let spec = InstanceSpec::of_host(id, Arc::clone(&common), Arc::clone(host));
            self.check(&spec).map(|()| spec)
        };
        let mut specs = hosts.into_iter().map(spec).collect::<Result<Vec<_>, _>>()?;
        specs.sort_by(|a, b| a.id().cmp(b.id()));
        specs.dedup_by(|a, b| a.id() == b.id());
        Ok(specs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Owner, attributes::ServiceTraits, ownership::is_ours};
    use cloudmap::{DnsConfig, DnsRecord, RecordType, Service, attributes, fake::mk_service};
    use model::ServiceKey;

    const ELB: &str = "web-1234.eu-west-1.elb.amazonaws.com";
    const OTHER: &str = "db.example.org";

    fn identity() -> Owner {
        Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() }
    }

    fn spec(host: &str) -> InstanceSpec {
        let (identity, service) = (identity(), ServiceKey::new("shop", "web"));
        let source = Source { identity: &identity, service: &service, ports: &[], region: None };
        source.hosts([&Arc::from(host)], &Custom::default()).unwrap().remove(0)
    }

    fn traits(record: Option<RecordType>, weighted: bool) -> ServiceTraits {
        let dns = record.map(|record_type| DnsConfig { weighted, records: vec![DnsRecord { record_type, ttl: 60 }] });
        ServiceTraits::from(&Service { dns, ..mk_service() })
    }

    #[test]
    fn load_balancers_are_recognised_by_their_names() {
        for name in [
            ELB,
            "a.elb.eu-west-1.amazonaws.com",
            "dualstack.x.us-east-1.elb.amazonaws.com",
            "a.elb.cn-north-1.amazonaws.com.cn",
        ] {
            assert!(is_load_balancer(name), "{name}");
        }
        for name in [OTHER, "elb.amazonaws.com", "bucket.s3.amazonaws.com", "a.elb.amazonaws.com.example.org", ""] {
            assert!(!is_load_balancer(name), "{name}");
        }
    }

    /// AWS: an alias excludes all `AWS_INSTANCE_` attributes, and needs address records and WEIGHTED. A CNAME excludes
    /// all other records.
    #[test]
    fn a_host_name_is_an_alias_or_a_cname_depending_on_the_service() {
        let a = traits(Some(RecordType::A), true);
        let alias = spec(ELB).render(a);
        assert_eq!(alias.attributes.get(attributes::ALIAS).map(String::as_str), Some(ELB));
        assert!(alias.attributes.keys().all(|key| !key.starts_with("AWS_INSTANCE_")));
        assert!(is_ours(&alias, &identity()) && alias.id.len() <= 64);
        let cname = traits(Some(RecordType::Cname), true);
        for host in [ELB, OTHER] {
            let instance = spec(host).render(cname);
            assert_eq!(instance.attributes.get(attributes::CNAME).map(String::as_str), Some(host));
            assert!(!instance.attributes.contains_key(attributes::ALIAS));
        }
        let api_only = spec(ELB).render(traits(None, false));
        assert_eq!(api_only.attributes.get(attributes::CNAME).map(String::as_str), Some(ELB), "AWS refuses an alias");
        assert!(!api_only.attributes.contains_key(attributes::ALIAS));
        for (host, record, weighted, fits) in [
            (ELB, Some(RecordType::A), true, true),
            (ELB, Some(RecordType::Aaaa), true, true),
            (ELB, Some(RecordType::A), false, false),
            (ELB, Some(RecordType::Srv), true, false),
            (ELB, Some(RecordType::Cname), true, true),
            (ELB, None, false, true),
            (OTHER, Some(RecordType::A), true, false),
            (OTHER, Some(RecordType::Cname), true, true),
            (OTHER, None, false, true),
        ] {
            let lacks = spec(host).lacks(traits(record, weighted));
            assert_eq!(lacks.is_none(), fits, "{host} {record:?} {weighted} {lacks:?}");
        }
    }

    #[test]
    fn a_change_of_the_name_or_its_kind_is_a_difference() {
        let (a, cname) = (traits(Some(RecordType::A), true), traits(Some(RecordType::Cname), true));
        assert_ne!(spec(ELB).digest(a), spec(ELB).digest(cname));
        assert_ne!(spec(ELB).id(), spec(OTHER).id());
    }
}
