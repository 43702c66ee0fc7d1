//! What Route 53 answers for Cloud Map, over real DNS.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use aws_sdk_servicediscovery::types::{
    CustomHealthStatus, DnsConfigChange, HealthCheckCustomConfig, PrivateDnsNamespaceChange,
    PrivateDnsNamespacePropertiesChange, PrivateDnsPropertiesMutableChange, ServiceChange, ServiceTypeOption,
    SoaChange,
};
use cloudmap_emulator::dns_client::{Answer, Client as Dns, Transport};
use cloudmap_emulator::{DNS_QUERY, DnsServer, Effect, Fault, Latency};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

/// A private namespace `internal` that is answered over DNS.
pub(super) struct Zone {
    pub(super) f: Fixture,
    pub(super) namespace: String,
    server: DnsServer,
}

impl Zone {
    pub(super) async fn start() -> Self {
        Self::start_with(EmulatorSettings {
            health_delay: std::time::Duration::ZERO,
            ..EmulatorSettings::unthrottled()
        })
        .await
    }

    pub(super) async fn start_with(settings: EmulatorSettings) -> Self {
        let f = Fixture::start_with(settings).await;
        let namespace = create_private_namespace(&f.client, "internal", "vpc-1").await;
        let server = f.emulator.serve_dns(any_port()).await.unwrap();
        Self { f, namespace, server }
    }

    /// A service with a custom health check.
    pub(super) async fn service(&self, name: &str, kinds: &[RecordType], policy: RoutingPolicy) -> String {
        let request = self.f.client.create_service().namespace_id(&self.namespace).name(name);
        let request = request.dns_config(dns(kinds, policy));
        let request = request.health_check_custom_config(HealthCheckCustomConfig::builder().build());
        request.send().await.unwrap().service.unwrap().id.unwrap()
    }

    pub(super) async fn register(&self, service: &str, id: &str, attributes: &[(&str, &str)]) {
        let mut request = self.f.client.register_instance().service_id(service).instance_id(id);
        for (key, value) in attributes {
            request = request.attributes(*key, *value);
        }
        request.send().await.unwrap();
    }

    pub(super) async fn deregister(&self, service: &str, id: &str) {
        self.f.client.deregister_instance().service_id(service).instance_id(id).send().await.unwrap();
    }

    async fn set_health(&self, service: &str, id: &str, status: CustomHealthStatus) {
        let request = self.f.client.update_instance_custom_health_status().service_id(service).instance_id(id);
        request.status(status).send().await.unwrap();
    }

    async fn ask(&self, name: &str, kind: &str) -> Answer {
        Dns::new(self.server.address()).ask(name, kind).await.unwrap()
    }

    async fn data(&self, name: &str, kind: &str) -> Vec<String> {
        let answer = self.ask(name, kind).await;
        assert_eq!(answer.code(), "NOERROR", "{name} {kind}");
        answer.data()
    }
}

pub(super) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

const MULTIVALUE: RoutingPolicy = RoutingPolicy::Multivalue;
const WEIGHTED: RoutingPolicy = RoutingPolicy::Weighted;

#[tokio::test]
async fn an_instance_is_a_record_of_its_service() {
    // "When you register service instances, Cloud Map creates DNS records in the hosted zone that have names in the
    // following format: service-name.namespace-name" (Cloud Map Developer Guide).
    let z = Zone::start().await;
    let web = z.service("Web", &[RecordType::A, RecordType::Aaaa], MULTIVALUE).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_IPV6", "fd00::1")]).await;
    for name in ["web.internal", "WEB.Internal."] {
        assert_eq!(z.data(name, "A").await, ["10.0.0.1"]);
        assert_eq!(z.data(name, "AAAA").await, ["fd00::1"]);
    }
    let answer = z.ask("web.internal", "A").await;
    assert!(answer.message.metadata.authoritative && !answer.message.metadata.recursion_available);
    // "TTL: The amount of time, in seconds, that you want DNS resolvers to cache the settings for this record."
    assert_eq!(answer.records()[0].ttl, 60);
    assert_eq!(answer.records()[0].name, "web.internal");
}

#[tokio::test]
async fn an_address_registered_again_replaces_the_former_one() {
    // "If you specify an existing InstanceId and ServiceId, Cloud Map updates the existing DNS records, if any."
    let z = Zone::start().await;
    let web = z.service("web", &[RecordType::A], MULTIVALUE).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.2")]).await;
    // Two records with "label, class, type and data all equal": "servers should suppress such duplicates" (RFC 2181,
    // section 5).
    z.register(&web, "b", &[("AWS_INSTANCE_IPV4", "10.0.0.2")]).await;
    assert_eq!(z.data("web.internal", "A").await, ["10.0.0.2"]);
    // "Deletes the Amazon Route 53 DNS records [...] that Cloud Map created for the specified instance."
    z.deregister(&web, "a").await;
    z.deregister(&web, "b").await;
    assert_eq!(z.ask("web.internal", "A").await.code(), "NXDOMAIN");
}

#[tokio::test]
async fn absence_is_a_name_or_a_type() {
    // "Name errors (NXDOMAIN) are indicated by the presence of "Name Error" in the RCODE field"; "NODATA is indicated by an
    // answer with the RCODE set to NOERROR and no relevant answers in the answer section" (RFC 2308, section 2).
    let z = Zone::start().await;
    let web = z.service("web.shop", &[RecordType::A], MULTIVALUE).await;
    // A service without instances has no record sets, so there is no such name.
    assert_eq!(z.ask("web.shop.internal", "A").await.code(), "NXDOMAIN");
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_IPV6", "fd00::1")]).await;
    for (name, kind, code) in [
        // It has an address, and the service no such record.
        ("web.shop.internal", "AAAA", "NOERROR"),
        ("web.shop.internal", "TXT", "NOERROR"),
        // "Empty non-terminals are domain names that own no resource records but have subdomains that do" (RFC 4592,
        // section 2.2.2).
        ("shop.internal", "A", "NOERROR"),
        ("internal", "A", "NOERROR"),
        ("other.internal", "A", "NXDOMAIN"),
        ("a.web.shop.internal", "A", "NXDOMAIN"),
    ] {
        let answer = z.ask(name, kind).await;
        assert_eq!((answer.code().as_str(), answer.records()), (code, vec![]), "{name} {kind}");
        let soa = &answer.authorities()[0];
        assert_eq!((soa.kind.as_str(), soa.name.as_str()), ("SOA", "internal"), "{name} {kind}");
        // Route 53 gives the SOA record of a new zone 15 minutes: the lesser of that and its minimum, a day.
        assert_eq!(soa.ttl, 900, "{name} {kind}");
    }
    assert_eq!(z.ask("internal", "SOA").await.records()[0].ttl, 900);
    assert_eq!(z.ask("internal", "NS").await.records()[0].kind, "NS");
}

#[tokio::test]
async fn the_ttl_of_absence_can_be_changed() {
    // SOA TTL: "The time to live (TTL) for purposes of negative caching."
    let z = Zone::start().await;
    let soa = SoaChange::builder().ttl(5).build().unwrap();
    let dns = PrivateDnsPropertiesMutableChange::builder().soa(soa).build();
    let properties = PrivateDnsNamespacePropertiesChange::builder().dns_properties(dns).build();
    let change = PrivateDnsNamespaceChange::builder().properties(properties).build();
    z.f.client.update_private_dns_namespace().id(&z.namespace).namespace(change).send().await.unwrap();
    assert_eq!(z.ask("none.internal", "A").await.authorities()[0].ttl, 5);
}

#[tokio::test]
async fn what_dns_does_not_find_is_refused_or_not_there() {
    // CreateHttpNamespace: "can be discovered using a DiscoverInstances request but can't be discovered using DNS".
    let z = Zone::start().await;
    z.f.register("a", "v").await;
    assert_eq!(z.ask("web.apps", "A").await.code(), "REFUSED");
    assert_eq!(z.ask("example.com", "A").await.code(), "REFUSED");
    // Type HTTP: "If present, specifies that the service instances are only discoverable using the DiscoverInstances API
    // operation. No DNS records is registered for the service instances."
    let api = z.f.client.create_service().namespace_id(&z.namespace).name("api").r#type(ServiceTypeOption::Http);
    let api = api.send().await.unwrap().service.unwrap().id.unwrap();
    z.register(&api, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    assert_eq!(z.ask("api.internal", "A").await.code(), "NXDOMAIN");
    let other = z.ask("web.internal", "ANY").await;
    assert_eq!(other.code(), "NOTIMP");
}

#[tokio::test]
async fn the_most_specific_zone_answers_and_a_private_one_first() {
    let z = Zone::start().await;
    let client = &z.f.client;
    let address = async |namespace: &str, address: &str| {
        let request = client.create_service().namespace_id(namespace).name("web");
        let service = request.dns_config(dns(&[RecordType::A], MULTIVALUE)).send().await.unwrap().service.unwrap();
        z.register(service.id().unwrap(), "a", &[("AWS_INSTANCE_IPV4", address)]).await;
    };
    let public = client.create_public_dns_namespace().name("example.com").send().await.unwrap();
    let public = namespace_of(client, public.operation_id().unwrap()).await;
    address(&public, "192.0.2.1").await;
    assert_eq!(z.data("web.example.com", "A").await, ["192.0.2.1"]);
    let private = create_private_namespace(client, "example.com", "vpc-1").await;
    address(&private, "10.0.0.1").await;
    assert_eq!(z.data("web.example.com", "A").await, ["10.0.0.1"]);
    let below = create_private_namespace(client, "web.example.com", "vpc-1").await;
    assert_eq!(z.ask("web.example.com", "A").await.authorities()[0].name, "web.example.com");
    address(&below, "10.0.0.2").await;
    assert_eq!(z.data("web.web.example.com", "A").await, ["10.0.0.2"]);
}

#[tokio::test]
async fn multivalue_answers_up_to_eight_in_random_choice() {
    // "Route 53 responds to DNS queries with IP addresses for up to eight healthy instances." "If you have more than eight
    // healthy records, Route 53 responds to different DNS resolvers with different combinations of healthy records."
    let z = Zone::start().await;
    let web = z.service("web", &[RecordType::A], MULTIVALUE).await;
    for n in 0..20 {
        z.register(&web, &format!("i-{n}"), &[("AWS_INSTANCE_IPV4", &format!("10.0.0.{n}"))]).await;
    }
    let mut seen = BTreeSet::new();
    for _ in 0..60 {
        let data = z.data("web.internal", "A").await;
        assert_eq!(data.len(), 8);
        seen.extend(data);
    }
    assert_eq!(seen.len(), 20);
}

#[tokio::test]
async fn only_the_healthy_answer_while_there_are_any() {
    // "If fewer than eight instances are healthy, Route 53 responds to every DNS query with the IP addresses for all of the
    // healthy instances." "When all records are unhealthy, Route 53 responds to DNS queries with up to eight unhealthy
    // records."
    let z = Zone::start().await;
    for (name, policy) in [("many", MULTIVALUE), ("one", WEIGHTED)] {
        let service = z.service(name, &[RecordType::A], policy.clone()).await;
        let name = format!("{name}.internal");
        for (id, status) in [("1", "HEALTHY"), ("2", "HEALTHY"), ("3", "UNHEALTHY")] {
            let address = format!("10.0.0.{id}");
            let attributes = [("AWS_INSTANCE_IPV4", address.as_str()), ("AWS_INIT_HEALTH_STATUS", status)];
            z.register(&service, id, &attributes).await;
        }
        let addresses = async || {
            let mut seen = BTreeSet::new();
            for _ in 0..40 {
                let data = z.data(&name, "A").await;
                assert!(policy == MULTIVALUE || data.len() == 1, "{data:?}");
                seen.extend(data);
            }
            seen.into_iter().map(|address| address.replace("10.0.0.", "")).collect::<String>()
        };
        assert_eq!(addresses().await, "12", "{name}");
        z.set_health(&service, "3", CustomHealthStatus::Healthy).await;
        z.set_health(&service, "1", CustomHealthStatus::Unhealthy).await;
        assert_eq!(addresses().await, "23", "{name}");
        for id in ["2", "3"] {
            z.set_health(&service, id, CustomHealthStatus::Unhealthy).await;
        }
        assert_eq!(addresses().await, "123", "{name}");
    }
}

#[tokio::test]
async fn a_status_reaches_dns_after_its_delay() {
    // "Cloud Map waits for approximately 30 seconds after receiving an UpdateInstanceCustomHealthStatus request before
    // changing the status of the instance."
    let z = Zone::start_with(EmulatorSettings::unthrottled()).await;
    let web = z.service("web", &[RecordType::A], MULTIVALUE).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    z.register(&web, "b", &[("AWS_INSTANCE_IPV4", "10.0.0.2")]).await;
    z.set_health(&web, "a", CustomHealthStatus::Unhealthy).await;
    assert_eq!(z.data("web.internal", "A").await.len(), 2);
    z.f.emulator.control().skip_time(std::time::Duration::from_secs(30));
    assert_eq!(z.data("web.internal", "A").await, ["10.0.0.2"]);
}

#[tokio::test]
async fn srv_names_the_instance_and_its_port() {
    // "priority weight port service-hostname": "The values of priority and weight are both set to 1 and can't be changed",
    // service-hostname is "The value that you specify for InstanceId", the name of the service and of the namespace. "Cloud
    // Map automatically creates A and/or AAAA records that have the same name as the value of service-hostname".
    let z = Zone::start().await;
    let legacy = z.service("legacy", &[RecordType::Srv], MULTIVALUE).await;
    let (v4, v6) = (("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_IPV6", "fd00::2"));
    z.register(&legacy, "i-1", &[v4, ("AWS_INSTANCE_PORT", "32768")]).await;
    z.register(&legacy, "I-2", &[v6, ("AWS_INSTANCE_PORT", "32769")]).await;
    let records = z.data("legacy.internal", "SRV").await;
    assert_eq!(records, ["1 1 32768 i-1.legacy.internal.", "1 1 32769 I-2.legacy.internal."]);
    assert_eq!(z.data("i-1.legacy.internal", "A").await, ["10.0.0.1"]);
    assert_eq!(z.data("i-2.legacy.internal", "AAAA").await, ["fd00::2"]);
    assert_eq!(z.data("i-1.legacy.internal", "AAAA").await, [""; 0]);
    assert_eq!(z.data("legacy.internal", "A").await, [""; 0]);
    // Of one instance alone, so its health changes nothing.
    z.set_health(&legacy, "i-1", CustomHealthStatus::Unhealthy).await;
    assert_eq!(z.data("legacy.internal", "SRV").await.len(), 1);
    assert_eq!(z.data("i-1.legacy.internal", "A").await, ["10.0.0.1"]);
    z.deregister(&legacy, "i-1").await;
    assert_eq!(z.ask("i-1.legacy.internal", "A").await.code(), "NXDOMAIN");
}

#[tokio::test]
async fn a_service_with_a_and_srv_records_answers_both() {
    let z = Zone::start().await;
    let api = z.service("api", &[RecordType::A, RecordType::Srv], MULTIVALUE).await;
    z.register(&api, "i-1", &[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_PORT", "8080")]).await;
    assert_eq!(z.data("api.internal", "A").await, ["10.0.0.1"]);
    assert_eq!(z.data("api.internal", "SRV").await, ["1 1 8080 i-1.api.internal."]);
    assert_eq!(z.data("i-1.api.internal", "A").await, ["10.0.0.1"]);
}

#[tokio::test]
async fn an_instance_id_that_is_no_label_can_have_no_srv_record() {
    // "Each label can be up to 63 bytes long" (Route 53), and an instance id has up to 64: INVALID_CHANGE_BATCH.
    let z = Zone::start().await;
    let legacy = z.service("legacy", &[RecordType::Srv], MULTIVALUE).await;
    let request = z.f.client.register_instance().service_id(&legacy).instance_id("x".repeat(64));
    let request = request.attributes("AWS_INSTANCE_IPV4", "10.0.0.1").attributes("AWS_INSTANCE_PORT", "80");
    let operation = request.send().await.unwrap().operation_id.unwrap();
    let operation = z.f.client.get_operation().operation_id(operation).send().await.unwrap().operation.unwrap();
    assert_eq!(operation.error_code(), Some("INVALID_CHANGE_BATCH"));
    assert!(operation.error_message().unwrap().contains("63"));
    assert_eq!(z.ask("legacy.internal", "SRV").await.code(), "NXDOMAIN");
}

#[tokio::test]
async fn a_cname_answers_for_every_type() {
    // "If a CNAME RR is present at a node, no other data should be present" (RFC 1034, section 3.6.2).
    let z = Zone::start().await;
    let old = z.service("old", &[RecordType::Cname], WEIGHTED).await;
    z.register(&old, "a", &[("AWS_INSTANCE_CNAME", "host.example.com")]).await;
    for kind in ["CNAME", "A"] {
        assert_eq!(z.data("old.internal", kind).await, ["host.example.com."], "{kind}");
    }
    z.register(&old, "b", &[("AWS_INSTANCE_CNAME", "other.example.com")]).await;
    assert_eq!(z.data("old.internal", "CNAME").await.len(), 1);
}

#[tokio::test]
async fn an_alias_answers_as_its_load_balancer() {
    // "If you want Cloud Map to create an Amazon Route 53 alias record that routes traffic to an Elastic Load Balancing load
    // balancer, specify the DNS name that is associated with the load balancer." "Alias records don't include a TTL because
    // Route 53 uses the TTL for the AWS resource", 60 s for load balancers.
    let load_balancers =
        [("lb.example.com".to_owned(), vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()])];
    let z =
        Zone::start_with(EmulatorSettings { load_balancers: load_balancers.into(), ..EmulatorSettings::unthrottled() })
            .await;
    let front = z.service("front", &[RecordType::A, RecordType::Aaaa], WEIGHTED).await;
    z.register(&front, "a", &[("AWS_ALIAS_DNS_NAME", "LB.example.com.")]).await;
    let answer = z.ask("front.internal", "A").await;
    assert_eq!((answer.data(), answer.records()[0].ttl), (vec!["192.0.2.1".to_owned()], 60));
    assert_eq!(z.data("front.internal", "AAAA").await, ["2001:db8::1"]);
    // One that is not known has no addresses.
    z.register(&front, "a", &[("AWS_ALIAS_DNS_NAME", "none.example.com")]).await;
    assert_eq!(z.data("front.internal", "A").await, [""; 0]);
}

#[tokio::test]
async fn a_changed_ttl_counts_and_records_left_out_are_deleted() {
    // "If you omit any existing DnsRecords [...] configurations from an UpdateService request, the configurations are deleted
    // from the service."
    let z = Zone::start().await;
    let web = z.service("web", &[RecordType::A, RecordType::Aaaa], MULTIVALUE).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_IPV6", "fd00::1")]).await;
    let record = DnsRecord::builder().r#type(RecordType::A).ttl(7).build().unwrap();
    let change = ServiceChange::builder().dns_config(DnsConfigChange::builder().dns_records(record).build().unwrap());
    z.f.client.update_service().id(&web).service(change.build()).send().await.unwrap();
    assert_eq!(z.ask("web.internal", "A").await.records()[0].ttl, 7);
    assert_eq!(z.data("web.internal", "AAAA").await, [""; 0]);
}

#[tokio::test]
async fn what_does_not_fit_into_udp_comes_over_tcp() {
    // "Messages carried by UDP are restricted to 512 bytes [...]. Longer messages are truncated and the TC bit is set in the
    // header." (RFC 1035, section 4.2.1); EDNS allows more (RFC 6891, section 6.2.3).
    let z = Zone::start().await;
    let legacy = z.service("legacy", &[RecordType::Srv], MULTIVALUE).await;
    for n in 0..8 {
        let id = format!("{n}{}", "x".repeat(60));
        z.register(&legacy, &id, &[("AWS_INSTANCE_IPV4", "10.0.0.1"), ("AWS_INSTANCE_PORT", "80")]).await;
    }
    let client = Dns::new(z.server.address());
    let cut = client.without_edns().over(Transport::Udp).ask("legacy.internal", "SRV").await.unwrap();
    assert!(cut.message.metadata.truncation && cut.records().is_empty());
    for client in [client.without_edns(), client.over(Transport::Udp), client.over(Transport::Tcp)] {
        let answer = client.ask("legacy.internal", "SRV").await.unwrap();
        assert!(!answer.message.metadata.truncation);
        assert_eq!(answer.records().len(), 8);
    }
}

#[tokio::test]
async fn what_is_no_query_gets_an_error() {
    let z = Zone::start().await;
    let mut stream = TcpStream::connect(z.server.address()).await.unwrap();
    // Two on one connection: a header that promises a question and has none, and a status request.
    for (message, code) in [([1u8, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0], 1), ([3, 4, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0], 4)] {
        stream.write_all(&[&[0, 12], &message[..]].concat()).await.unwrap();
        let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!((&answer[..2], answer[3] & 15), (&message[..2], code));
    }
}

#[tokio::test]
async fn dns_lags_by_itself() {
    let lag = Latency::fixed(std::time::Duration::from_mins(1));
    let z = Zone::start_with(EmulatorSettings { dns_lag: vec![lag], ..EmulatorSettings::unthrottled() }).await;
    let web = z.service("web", &[RecordType::A], MULTIVALUE).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    let found = z.f.client.discover_instances().namespace_name("internal").service_name("web").send().await.unwrap();
    assert_eq!(found.instances().len(), 1);
    assert_eq!(z.ask("web.internal", "A").await.code(), "REFUSED");
    z.f.emulator.control().skip_time(std::time::Duration::from_mins(1));
    assert_eq!(z.data("web.internal", "A").await, ["10.0.0.1"]);
}

#[tokio::test]
async fn queries_are_counted_and_can_fail() {
    let z = Zone::start().await;
    let control = z.f.emulator.control();
    let web = z.service("web", &[RecordType::A], MULTIVALUE).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    // A rule for any operation is for calls.
    control.add_fault(Fault::on_any(Effect::DropRequest));
    let fail = |code: &str| Effect::Error { code: code.into(), message: String::new(), status: None };
    control.add_fault(Fault::on(DNS_QUERY, fail("SERVFAIL")).for_service("web.int").times(1));
    assert_eq!(z.ask("other.internal", "A").await.code(), "NXDOMAIN");
    assert_eq!(z.ask("Web.internal", "A").await.code(), "SERVFAIL");
    assert_eq!(z.data("web.internal", "A").await, ["10.0.0.1"]);
    assert_eq!(z.data("web.internal", "AAAA").await, [""; 0]);
    control.add_fault(Fault::on(DNS_QUERY, Effect::DropRequest).times(1));
    // Over TCP the connection is closed, so that nobody has to wait.
    Dns::new(z.server.address()).over(Transport::Tcp).ask("web.internal", "A").await.unwrap_err();
    let counters = control.counters();
    let a = counters.queries(DNS_QUERY, "A", "web.internal");
    assert_eq!(a.queries, 3);
    let results: Vec<_> = a.results.iter().map(|(result, count)| (result.as_str(), *count)).collect();
    assert_eq!(results, [("NOERROR", 1), ("SERVFAIL", 1), ("dropped", 1)]);
    assert_eq!(counters.queries(DNS_QUERY, "AAAA", "web.internal").results["NODATA"], 1);
    let wrong = Fault::on(DNS_QUERY, fail("InternalFailure")).check().unwrap_err();
    assert!(wrong.contains("SERVFAIL"), "{wrong}");
    assert!(Fault::on(DNS_QUERY, Effect::Partial { keep: 0.5 }).check().is_err());
}

#[tokio::test]
async fn a_snapshot_has_its_names() {
    let z = Zone::start().await;
    let control = z.f.emulator.control();
    let web = z.service("web", &[RecordType::A], MULTIVALUE).await;
    z.register(&web, "a", &[("AWS_INSTANCE_IPV4", "10.0.0.1")]).await;
    let snapshot = control.snapshot();
    control.reset();
    assert_eq!(z.ask("web.internal", "A").await.code(), "REFUSED");
    control.restore(snapshot);
    assert_eq!(z.data("web.internal", "A").await, ["10.0.0.1"]);
    control.update_settings(|settings| settings.dns_lag = vec![Latency::ZERO; 3]);
    assert_eq!(z.data("web.internal", "A").await, ["10.0.0.1"]);
}

#[tokio::test]
async fn stopping_closes_the_port() {
    let z = Zone::start().await;
    let address = z.server.address();
    let client = Dns::new(address).over(Transport::Tcp);
    client.ask("internal", "SOA").await.unwrap();
    z.server.shutdown().await;
    client.ask("internal", "SOA").await.unwrap_err();
}
