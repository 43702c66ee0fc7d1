//! Instances as an ECS task finds them by DNS: the engine through the real SDK against the emulator, asked over real DNS.

#![expect(clippy::unwrap_used, reason = "a test ends there")]

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use aws_sdk_servicediscovery::{
    Client,
    config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider},
    types::{DnsConfig, DnsRecord, HealthCheckCustomConfig, OperationTargetType, RecordType},
};
use cloudmap::{AwsCloudMap, AwsSettings, Limited, Limits, Listings, Rates};
use cloudmap_mcs_integration::hidden::NothingHidden;
use cluster::Leadership;
use emulator::dns_client::{Answer, Client as Dns};
use emulator::{DnsServer, Emulator, EmulatorSettings, Latency};
use instances::{
    Consent, Custom, InstanceSpec, Owner, Source,
    records::{address_records, host_record},
    sync::{Authority, Creation, Desired, SyncHandle, SyncSettings, TargetDesired, TargetStatus, spawn},
};
use model::{Conditions, Endpoint, EndpointPort, IpFamily, Protocol, ServiceKey, ServicePort, Target};
use tokio::{sync::watch, time::Instant};

/// Nothing here is decided by it: only how long a test that fails waits.
const PATIENCE: Duration = Duration::from_mins(5);
const TASK: &str = "0db8dbd2185c4c0184e80f58fee8ba1d";
const NOT_READY: Conditions = Conditions { ready: false, serving: false, terminating: false };

/// A private namespace `internal` that is answered over DNS, and a running engine.
struct Bed {
    emulator: Emulator,
    people: Client,
    namespace: String,
    server: DnsServer,
    desired: watch::Sender<Desired>,
    handle: SyncHandle,
    _stop: tokio::sync::oneshot::Sender<()>,
}

impl Bed {
    async fn start() -> Self {
        let delays = EmulatorSettings { operation_latency: Latency::millis(20), ..EmulatorSettings::unthrottled() };
        let emulator =
            Emulator::start(EmulatorSettings { health_delay: Duration::from_millis(50), ..delays }).await.unwrap();
        let people = emulator.client("people");
        let created = people.create_private_dns_namespace().name("internal").vpc("vpc-1").send().await.unwrap();
        let namespace = loop {
            let asked = people.get_operation().operation_id(created.operation_id().unwrap()).send().await.unwrap();
            let targets = asked.operation.unwrap().targets.unwrap_or_default();
            match (targets.get(&OperationTargetType::Namespace), people.list_namespaces().send().await.unwrap()) {
                (Some(id), listed) if !listed.namespaces().is_empty() => break id.clone(),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let server = emulator.serve_dns(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let sdk = aws_config::SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("us-east-1"))
            .credentials_provider(SharedCredentialsProvider::new(Credentials::new("us", "dummy", None, None, "test")))
            .build();
        let limits = Limits::new(&Rates::default(), None);
        let endpoint = AwsSettings { endpoint: Some(emulator.endpoint()), ..AwsSettings::default() };
        let aws = AwsCloudMap::configured(&sdk, &endpoint, limits.clone()).await.unwrap();
        let (desired, receiver) = watch::channel(Desired::new());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let cloudmap = Arc::new(Limited::new(aws, limits));
        let handle = spawn(
            SyncSettings::new(identity()),
            cloudmap.clone(),
            Listings::new(cloudmap),
            Arc::new(NothingHidden),
            receiver,
            Authority { leadership: Leadership::manual(Some(Instant::now() + Duration::from_hours(1))), ledger: None },
            async { drop(stopped.await) },
        );
        Self { emulator, people, namespace, server, desired, handle, _stop: stop }
    }

    /// A service as ECS uses it: A records, a custom health check, and a task.
    async fn ecs_service(&self, name: &str) -> String {
        let record = DnsRecord::builder().r#type(RecordType::A).ttl(10).build().unwrap();
        let request = self.people.create_service().namespace_id(&self.namespace).name(name);
        let request = request.dns_config(DnsConfig::builder().dns_records(record).build().unwrap());
        let request = request.health_check_custom_config(HealthCheckCustomConfig::builder().build());
        let id = request.send().await.unwrap().service.unwrap().id.unwrap();
        let task = self.people.register_instance().service_id(&id).instance_id(TASK);
        let task = task.attributes("AWS_INSTANCE_IPV4", "10.9.0.1").attributes("AWS_INIT_HEALTH_STATUS", "HEALTHY");
        task.send().await.unwrap();
        id
    }

    fn desire(&self, service: &str, wanted: TargetDesired) {
        self.desired.send_replace([(target(service), Arc::new(wanted))].into());
    }

    async fn ask(&self, name: &str, kind: &str) -> Answer {
        Dns::new(self.server.address()).ask(name, kind).await.unwrap()
    }

    async fn until_answered(&self, name: &str, kind: &str, expected: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answered = self.ask(name, kind).await.data();
            if answered == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{name} {kind}: {answered:?}, not {expected:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn until(&self, service: &str, what: impl Fn(&TargetStatus) -> bool) {
        let (mut status, target) = (self.handle.status(), target(service));
        let said = status.wait_for(|all| all.get(&target).is_some_and(&what));
        tokio::time::timeout(PATIENCE, said).await.unwrap().unwrap();
    }
}

fn identity() -> Owner {
    let (clusterset, cluster) = (Some("prod".parse().unwrap()), "c1".parse().unwrap());
    Owner { clusterset, cluster, cluster_uid: "0b7a6c3e".into() }
}

fn target(service: &str) -> Target {
    Target { namespace: "internal".into(), service: service.into() }
}

/// Dual-stack pods by the last part of their addresses.
fn pods(service: &str, pods: &[(u8, Conditions)]) -> Arc<[InstanceSpec]> {
    let port = |port| ServicePort { name: "http".into(), protocol: Protocol::Tcp, port, app_protocol: None };
    let endpoint = |&(last, conditions): &(u8, Conditions)| Endpoint {
        ipv4: Some([10, 0, 0, last].into()),
        ipv6: Some(format!("fd00::{last}").parse().unwrap()),
        ports: [EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None }].into(),
        conditions,
        hostname: None,
        zone: Some("us-east-1a".into()),
        node: None,
    };
    let (identity, service, ports) = (identity(), ServiceKey::new("shop", service), [port(80)]);
    let source = Source { identity: &identity, service: &service, ports: &ports, region: Some("us-east-1") };
    source.instances(&pods.iter().map(endpoint).collect::<Vec<_>>()).unwrap().into()
}

fn wanted(instances: Arc<[InstanceSpec]>, creation: Creation) -> TargetDesired {
    let consent = Consent { named: true, ..Consent::default() };
    TargetDesired { active: true, decides: true, consent, creation, instances, ..TargetDesired::default() }
}

fn records(families: &[IpFamily], ttl: u32) -> Creation {
    let dns = address_records(families.iter().copied().collect(), ttl);
    Creation { dns, ttl: Some(ttl), ..Creation::default() }
}

#[tokio::test]
async fn a_pod_that_is_not_ready_is_out_of_dns_beside_ecs_tasks_and_comes_back() {
    let bed = Bed::start().await;
    let service = bed.ecs_service("orders").await;
    let before = bed.emulator.control().writes().len();
    let both = |second| wanted(pods("orders", &[(1, Conditions::READY), (2, second)]), Creation::default());
    bed.desire("orders", both(Conditions::READY));
    bed.until_answered("orders.internal", "A", &["10.0.0.1", "10.0.0.2", "10.9.0.1"]).await;
    bed.desire("orders", both(NOT_READY));
    bed.until_answered("orders.internal", "A", &["10.0.0.1", "10.9.0.1"]).await;
    let listed = bed.people.list_instances().service_id(&service).send().await.unwrap();
    assert_eq!(listed.instances().len(), 3, "it is unhealthy, not gone");
    bed.desire("orders", both(Conditions::READY));
    bed.until_answered("orders.internal", "A", &["10.0.0.1", "10.0.0.2", "10.9.0.1"]).await;
    bed.desire("orders", TargetDesired { retiring: true, ..TargetDesired::default() });
    bed.until_answered("orders.internal", "A", &["10.9.0.1"]).await;
    assert_eq!(bed.ask("orders.internal", "A").await.records()[0].ttl, 10, "the service is ECS'");
    let writes = bed.emulator.control().writes();
    assert!(writes[before..].iter().all(|write| write.instance.starts_with("k8s-")), "tasks are not written to");
}

#[tokio::test]
async fn a_ttl_that_changes_is_answered_for_both_families() {
    let bed = Bed::start().await;
    let both = |ttl| wanted(pods("web", &[(1, Conditions::READY)]), records(&[IpFamily::V4, IpFamily::V6], ttl));
    bed.desire("web", both(60));
    bed.until_answered("web.internal", "A", &["10.0.0.1"]).await;
    bed.until_answered("web.internal", "AAAA", &["fd00::1"]).await;
    bed.desire("web", both(5));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (four, six) = (bed.ask("web.internal", "A").await, bed.ask("web.internal", "AAAA").await);
        let ttls: BTreeSet<_> = four.records().into_iter().chain(six.records()).map(|record| record.ttl).collect();
        assert_eq!((four.data().len(), six.data().len()), (1, 1), "both records stay all the time");
        if ttls == [5].into() {
            break;
        }
        assert!(Instant::now() < deadline, "{ttls:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A load balancer gets an address in the place of its host name. AWS creates a service of the same name only when the former
/// is gone.
#[tokio::test]
async fn a_name_whose_host_name_becomes_an_address_is_answered_with_it_and_the_gap_is_said() {
    let bed = Bed::start().await;
    let (identity, service) = (identity(), ServiceKey::new("shop", "web"));
    let source = Source { identity: &identity, service: &service, ports: &[], region: None };
    let host = source.hosts([&Arc::from("lb.example.org")], &Custom::default()).unwrap();
    let alias = Creation { dns: Some(host_record(false, 60)), ..Creation::default() };
    bed.desire("web", wanted(host.into(), alias));
    bed.until_answered("web.internal", "CNAME", &["lb.example.org."]).await;
    bed.desire("web", wanted(pods("web", &[(1, Conditions::READY)]), records(&[IpFamily::V4], 60)));
    bed.until_answered("web.internal", "A", &["10.0.0.1"]).await;
    bed.until("web", |status| status.registered == 1 && !status.notices.is_empty()).await;
    let status = bed.handle.status().borrow()[&target("web")].clone();
    let said = &status.notices[0];
    assert_eq!(said.reason.as_str(), "ServiceRemade");
    assert!(said.message.contains("no answer for") && said.message.contains("up to 900 s"), "{}", said.message);
}

#[tokio::test]
async fn records_with_ports_name_the_pods_and_lead_to_their_addresses() {
    let bed = Bed::start().await;
    let records = vec![cloudmap::DnsRecord { record_type: cloudmap::RecordType::Srv, ttl: 60 }];
    let srv = Creation { dns: Some(cloudmap::DnsConfig { weighted: false, records }), ..Creation::default() };
    let instances = pods("web", &[(1, Conditions::READY)]);
    let pod = format!("{}.web.internal", instances[0].id());
    bed.desire("web", wanted(instances, srv));
    bed.until_answered("web.internal", "SRV", &[&format!("1 1 8080 {pod}.")]).await;
    bed.until_answered(&pod, "A", &["10.0.0.1"]).await;
    bed.until_answered(&pod, "AAAA", &["fd00::1"]).await;
}

#[tokio::test]
async fn of_more_than_eight_pods_dns_answers_eight_and_it_is_said() {
    let bed = Bed::start().await;
    let twelve: Vec<_> = (1..=12).map(|last| (last, Conditions::READY)).collect();
    bed.desire("web", wanted(pods("web", &twelve), records(&[IpFamily::V4], 60)));
    bed.until("web", |status| status.registered == 12 && !status.notices.is_empty()).await;
    let status = bed.handle.status().borrow()[&target("web")].clone();
    assert_eq!(status.notices[0].reason.as_str(), "DnsAnswersLimited");
    assert_eq!(bed.ask("web.internal", "A").await.data().len(), 8);
}
