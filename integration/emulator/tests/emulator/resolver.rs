//! The resolver of a VPC: its cache is what applications see of DNS.

use std::time::Duration;

use aws_sdk_servicediscovery::types::RoutingPolicy::{Multivalue, Weighted};
use cloudmap_emulator::dns_client::{Answer, Client as Dns};
use cloudmap_emulator::{DNS_QUERY, DnsServer, Effect, Fault, RESOLVER_QUERY};
use serde_json::json;

use super::dns::{Zone, any_port};
use super::*;

struct Vpc {
    z: Zone,
    resolver: DnsServer,
}

impl Vpc {
    async fn start() -> Self {
        let z = Zone::start().await;
        let resolver = z.f.emulator.serve_resolver(any_port(), None).await.unwrap();
        Self { z, resolver }
    }

    async fn ask(&self, name: &str, kind: &str) -> Answer {
        Dns::new(self.resolver.address()).ask(name, kind).await.unwrap()
    }

    fn skip(&self, seconds: u64) {
        self.z.f.emulator.control().skip_time(Duration::from_secs(seconds));
    }

    fn asked_zones(&self, kind: &str, name: &str) -> u64 {
        self.z.f.emulator.control().counters().queries(DNS_QUERY, kind, name).queries
    }
}

#[tokio::test]
async fn an_answer_is_kept_for_its_ttl() {
    // TTL: "the time interval (in seconds) that the resource record may be cached before it should be discarded" (RFC 1035,
    // section 4.1.3).
    let v = Vpc::start().await;
    let web = v.z.service("web", &[RecordType::A], Multivalue).await;
    v.z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    let first = v.ask("web.internal", "A").await;
    assert!(first.message.metadata.recursion_available && !first.message.metadata.authoritative);
    assert_eq!((first.data(), first.records()[0].ttl), (vec!["10.0.0.1".to_owned()], 60));
    v.z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.2")]).await;
    v.skip(20);
    let old = v.ask("WEB.internal", "A").await;
    assert_eq!(old.data(), ["10.0.0.1"]);
    assert!(old.records()[0].ttl <= 40, "{:?}", old.records());
    assert_eq!(v.asked_zones("A", "web.internal"), 1);
    let counters = v.z.f.emulator.control().counters().queries(RESOLVER_QUERY, "A", "web.internal");
    assert_eq!((counters.queries, counters.cached), (2, 1));
    v.skip(40);
    assert_eq!(v.ask("web.internal", "A").await.data(), ["10.0.0.2"]);
}

#[tokio::test]
async fn the_absence_of_a_name_outlives_its_creation() {
    // The TTL of the SOA record "indicates how long a resolver may cache the negative answer" (RFC 2308, section 3): 15
    // minutes here. "A negative answer that resulted from a name error (NXDOMAIN) should be cached such that it can be
    // retrieved and returned in response to another query for the same <QNAME, QCLASS>" (section 5): whatever the type.
    let v = Vpc::start().await;
    let web = v.z.service("web", &[RecordType::A], Multivalue).await;
    assert_eq!(v.ask("web.internal", "A").await.code(), "NXDOMAIN");
    v.z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    v.skip(600);
    for kind in ["A", "AAAA"] {
        let absent = v.ask("web.internal", kind).await;
        assert_eq!(absent.code(), "NXDOMAIN", "{kind}");
        assert!(absent.authorities()[0].ttl <= 300, "{:?}", absent.authorities());
    }
    v.skip(300);
    assert_eq!(v.ask("web.internal", "A").await.data(), ["10.0.0.1"]);
    // NODATA is kept by type.
    assert_eq!(v.ask("web.internal", "AAAA").await.code(), "NOERROR");
    v.ask("web.internal", "AAAA").await;
    assert_eq!((v.asked_zones("AAAA", "web.internal"), v.asked_zones("A", "web.internal")), (1, 2));
}

#[tokio::test]
async fn the_cache_can_be_emptied() {
    let v = Vpc::start().await;
    let web = v.z.service("web", &[RecordType::A], Multivalue).await;
    assert_eq!(v.ask("web.internal", "A").await.code(), "NXDOMAIN");
    v.z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    v.z.f.emulator.control().forget_resolved();
    assert_eq!(v.ask("web.internal", "A").await.data(), ["10.0.0.1"]);
}

#[tokio::test]
async fn a_ttl_of_zero_is_not_kept() {
    // "Zero values are interpreted to mean that the RR can only be used for the transaction in progress, and should not be
    // cached." (RFC 1035, section 3.2.1)
    let v = Vpc::start().await;
    let record = DnsRecord::builder().r#type(RecordType::A).ttl(0).build().unwrap();
    let config = DnsConfig::builder().dns_records(record).build().unwrap();
    let created = v.z.f.client.create_service().namespace_id(&v.z.namespace).name("web").dns_config(config);
    let web = created.send().await.unwrap().service.unwrap().id.unwrap();
    for address in ["10.0.0.1", "10.0.0.2"] {
        v.z.register(&web, "a", &[("AWS_INSTANCE_IPV4", address)]).await;
        assert_eq!(v.ask("web.internal", "A").await.data(), [address]);
    }
}

#[tokio::test]
async fn failures_are_not_kept_and_a_cache_outlives_them() {
    let v = Vpc::start().await;
    let control = v.z.f.emulator.control();
    let web = v.z.service("web", &[RecordType::A], Multivalue).await;
    v.z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    // The resolver gets no answer, and says so.
    control.add_fault(Fault::on(DNS_QUERY, Effect::DropRequest).times(1));
    assert_eq!(v.ask("web.internal", "A").await.code(), "SERVFAIL");
    assert_eq!(v.ask("web.internal", "A").await.code(), "NOERROR");
    let rule = control.add_fault(Fault::on(DNS_QUERY, Effect::DropRequest));
    assert_eq!(v.ask("web.internal", "A").await.data(), ["10.0.0.1"]);
    control.remove_fault(rule);
    let refuse = Effect::Error { code: "REFUSED".into(), message: String::new(), status: None };
    control.add_fault(Fault::on(RESOLVER_QUERY, refuse).times(1));
    assert_eq!(v.ask("web.internal", "A").await.code(), "REFUSED");
}

#[tokio::test]
async fn aliases_are_followed() {
    // "Copy the CNAME RR into the answer section of the response, change QNAME to the canonical name in the CNAME RR, and go
    // back to step 1" (RFC 1034, section 4.3.2). The response code is that of the last name (RFC 6604, section 3).
    let v = Vpc::start().await;
    let old = v.z.service("old", &[RecordType::Cname], Weighted).await;
    let new = v.z.service("new", &[RecordType::A], Multivalue).await;
    v.z.register(&new, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    v.z.register(&old, "a", &[("AWS_INSTANCE_CNAME", "new.internal")]).await;
    let answer = v.ask("old.internal", "A").await;
    let kinds: Vec<_> = answer.records().into_iter().map(|record| (record.name, record.kind)).collect();
    let expected = [("old.internal", "CNAME"), ("new.internal", "A")].map(|(name, kind)| (name.into(), kind.into()));
    assert_eq!(kinds, expected);
    assert_eq!(v.ask("old.internal", "CNAME").await.data(), ["new.internal."]);
    let lost = v.z.service("lost", &[RecordType::Cname], Weighted).await;
    v.z.register(&lost, "a", &[("AWS_INSTANCE_CNAME", "none.internal")]).await;
    let answer = v.ask("lost.internal", "A").await;
    assert_eq!((answer.code().as_str(), answer.records().len()), ("NXDOMAIN", 1));
    let circle = v.z.service("circle", &[RecordType::Cname], Weighted).await;
    v.z.register(&circle, "a", &[("AWS_INSTANCE_CNAME", "circle.internal")]).await;
    assert_eq!(v.ask("circle.internal", "A").await.code(), "SERVFAIL");
}

#[tokio::test]
async fn other_names_are_somebody_elses() {
    let v = Vpc::start().await;
    assert_eq!(v.ask("web.elsewhere", "A").await.code(), "REFUSED");
    // Another emulator is the world outside.
    let outside = Fixture::start().await;
    let namespace = create_private_namespace(&outside.client, "elsewhere", "vpc-2").await;
    let created = outside.client.create_service().namespace_id(namespace).name("web");
    let created = created.dns_config(super::dns(&[RecordType::A], Multivalue)).send().await.unwrap();
    let service = created.service.unwrap().id.unwrap();
    let register = outside.client.register_instance().service_id(service).instance_id("a");
    register.attributes("AWS_INSTANCE_IPV4", "192.0.2.1").send().await.unwrap();
    let upstream = outside.emulator.serve_dns(any_port()).await.unwrap();
    let resolver = v.z.f.emulator.serve_resolver(any_port(), Some(upstream.address())).await.unwrap();
    let client = Dns::new(resolver.address());
    assert_eq!(client.ask("web.elsewhere", "A").await.unwrap().data(), ["192.0.2.1"]);
    // It is kept too.
    upstream.shutdown().await;
    assert_eq!(client.ask("web.elsewhere", "A").await.unwrap().data(), ["192.0.2.1"]);
    assert_eq!(client.ask("other.elsewhere", "A").await.unwrap().code(), "SERVFAIL");
}

#[tokio::test]
async fn the_clock_and_the_cache_are_there_over_http() {
    let v = Vpc::start().await;
    let endpoint = v.z.f.emulator.endpoint();
    assert_eq!(v.ask("web.internal", "A").await.code(), "NXDOMAIN");
    let web = v.z.service("web", &[RecordType::A], Multivalue).await;
    v.z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    let call = async |method: &str, path: &str, body| super::control::http(&endpoint, method, path, &body).await.0;
    assert_eq!(call("DELETE", "resolved", json!({})).await, 200);
    assert_eq!(v.ask("web.internal", "A").await.data(), ["10.0.0.1"]);
    v.z.deregister(&web, "a").await;
    assert_eq!(call("POST", "clock", json!({ "skip_ms": 60_000 })).await, 200);
    assert_eq!(v.ask("web.internal", "A").await.code(), "NXDOMAIN");
    assert_eq!(call("POST", "clock", json!({ "skip": 1 })).await, 400);
    let (_, counters) = super::control::http(&endpoint, "GET", "counters", &json!({})).await;
    assert_eq!(counters["queries"]["ResolverQuery"]["A web.internal"]["results"]["NXDOMAIN"], 2);
}
