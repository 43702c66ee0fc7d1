//! The adapter and the instances through the real SDK, against the emulator.

#![expect(clippy::unwrap_used, reason = "a test ends there")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use aws_sdk_servicediscovery::config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider};
use cloudmap::{
    AwsCloudMap, AwsSettings, Counted, CreateService, ErrorKind, HttpName, Instance, Lane, Limited, Limits, Listings,
    Metrics, NamespaceKind, NewNamespace, NewService, Operation, OperationId, OperationState, Permit, Rates,
    Write as _,
};
use cloudmap_mcs_integration::hidden::NothingHidden;
use cluster::Leadership;
use emulator::{Effect, Emulator, EmulatorSettings, Fault, Latency};
use iam::{
    Mode, Scope,
    harmless::{self, Answer, Known},
    statements,
};
use instances::{
    Consent, Owner, Source,
    sync::{Authority, Desired, Outcome, SyncSettings, TargetDesired, spawn},
};
use model::{Conditions, Endpoint, EndpointPort, Protocol, ServiceKey, ServicePort, Target};
use prometheus::Registry;
use tokio::{sync::watch, time::Instant};

/// Nothing here is decided by it: only how long a test that fails waits, and a call while the machine stands still.
const PATIENCE: Duration = Duration::from_mins(5);

struct Bed {
    emulator: Emulator,
    cloudmap: Arc<dyn cloudmap::Write>,
    metrics: Metrics,
}

async fn adapter(emulator: &Emulator, deadline: Duration, limits: Arc<Limits>) -> AwsCloudMap {
    let sdk = aws_config::SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new("adapter", "dummy", None, None, "test")))
        .build();
    let settings = AwsSettings { endpoint: Some(emulator.endpoint()), deadline, ..AwsSettings::default() };
    AwsCloudMap::configured(&sdk, &settings, limits).await.unwrap()
}

async fn bed(settings: EmulatorSettings) -> Bed {
    let emulator = Emulator::start(settings).await.unwrap();
    let metrics = Metrics::new(&Registry::new()).unwrap();
    let limits = Limits::new(&Rates::default(), Some(metrics.clone()));
    let aws = adapter(&emulator, PATIENCE, limits.clone()).await;
    let cloudmap = Arc::new(Limited::new(Counted::new(aws, metrics.clone()), limits));
    Bed { emulator, cloudmap, metrics }
}

fn quick() -> EmulatorSettings {
    EmulatorSettings { operation_latency: Latency::millis(20), ..EmulatorSettings::unthrottled() }
}

fn instance(id: &str, address: &str) -> Instance {
    let attributes = [("AWS_INSTANCE_IPV4".to_owned(), address.to_owned())].into();
    Instance { id: id.into(), attributes }
}

fn new_namespace<'a>(
    name: &'a str,
    vpc: Option<&'a str>,
    creator_request_id: &'a str,
    tags: &'a BTreeMap<String, String>,
) -> NewNamespace<'a> {
    NewNamespace { name, vpc, creator_request_id, description: "for tests", tags }
}

impl Bed {
    async fn finish(&self, operation: OperationId) -> OperationState {
        loop {
            match self.cloudmap.operation(&operation, Lane::Ledger).await.unwrap() {
                OperationState::Running => tokio::time::sleep(Duration::from_millis(10)).await,
                state => return state,
            }
        }
    }

    async fn namespace(&self, name: &str) -> Arc<str> {
        let tags = [("team".to_owned(), "shop".to_owned())].into();
        let new = new_namespace(name, None, "us", &tags);
        let operation = self.cloudmap.create_namespace(&Permit::of_command(), &new).await.unwrap();
        let OperationState::Succeeded { targets } = self.finish(operation).await else { panic!("failed") };
        targets["NAMESPACE"].as_str().into()
    }

    fn new_service(namespace_id: &Arc<str>, name: &str, creator: &str) -> NewService {
        NewService {
            namespace_id: namespace_id.clone(),
            name: name.into(),
            creator_request_id: creator.to_owned(),
            description: None,
            dns: None,
            custom_health_check: false,
            tags: BTreeMap::new(),
        }
    }

    async fn service(&self, namespace_id: &Arc<str>, name: &str) -> Arc<str> {
        match self
            .cloudmap
            .create_service(&Permit::of_command(), &Self::new_service(namespace_id, name, "us"), Lane::Instances)
            .await
            .unwrap()
        {
            CreateService::Created(service) => service.id,
            CreateService::Exists { .. } => panic!("{name} exists"),
        }
    }

    fn fault(&self, operation: Operation, effect: Effect) {
        self.emulator.control().add_fault(Fault::on(operation.name(), effect).times(1));
    }

    fn calls(&self, operation: Operation) -> u64 {
        self.emulator.control().counters().calls(operation.name())
    }
}

#[tokio::test]
async fn a_life_from_the_namespace_to_its_end() {
    let bed = bed(quick()).await;
    let namespace = bed.namespace("shop").await;
    let listed = bed.cloudmap.list_namespaces(Lane::Instances).await.unwrap();
    assert_eq!((&*listed[0].id, &*listed[0].name, &*listed[0].http_name), (&*namespace, "shop", "shop"));
    assert_eq!(bed.cloudmap.list_tags(&listed[0].arn).await.unwrap()["team"], "shop");

    let service = bed.service(&namespace, "web").await;
    let found = bed.cloudmap.get_service(&service, Lane::Instances).await.unwrap();
    assert_eq!(found.creator_request_id.as_deref(), Some("us"));
    assert_eq!((found.namespace_id.as_deref(), found.dns, found.description), (Some(&*namespace), None, None));
    bed.cloudmap.tag(&Permit::of_command(), &found.arn, &[("k".to_owned(), "v".to_owned())].into()).await.unwrap();
    assert_eq!(bed.cloudmap.list_tags(&found.arn).await.unwrap()["k"], "v");

    let taken = bed
        .cloudmap
        .create_service(&Permit::of_command(), &Bed::new_service(&namespace, "web", "them"), Lane::Instances)
        .await
        .unwrap();
    assert_eq!(taken, CreateService::Exists { id: service.clone(), creator_request_id: Some("us".to_owned()) });

    let pod = instance("pod-1", "10.0.0.1");
    let operation =
        bed.cloudmap.register_instance(&Permit::of_command(), &service, &pod, Lane::Instances).await.unwrap();
    assert!(matches!(bed.finish(operation).await, OperationState::Succeeded { .. }));
    assert_eq!(bed.cloudmap.list_instances(&service).await.unwrap(), std::slice::from_ref(&pod));
    let query = [("AWS_INSTANCE_IPV4".to_owned(), "10.0.0.1".to_owned())].into();
    let discovery = bed.cloudmap.discover_instances(HttpName::own("shop"), "web", &query, Lane::Ledger).await.unwrap();
    assert_eq!((discovery.instances.len(), discovery.truncated), (1, false));

    let in_use = bed.cloudmap.delete_service(&Permit::of_command(), &service).await.unwrap_err();
    assert_eq!(in_use.kind, ErrorKind::InUse);
    let operation =
        bed.cloudmap.deregister_instance(&Permit::of_command(), &service, "pod-1", Lane::Instances).await.unwrap();
    assert!(matches!(bed.finish(operation).await, OperationState::Succeeded { .. }));
    bed.cloudmap.delete_service(&Permit::of_command(), &service).await.unwrap();
    let operation = bed.cloudmap.delete_namespace(&Permit::of_command(), &namespace).await.unwrap();
    assert!(matches!(bed.finish(operation).await, OperationState::Succeeded { .. }));
    assert!(bed.cloudmap.list_namespaces(Lane::Instances).await.unwrap().is_empty());

    let calls = bed.metrics.snapshot();
    assert_eq!(calls.total(), bed.emulator.control().counters().total(), "every request is counted");
    assert!(calls.iter().any(|call| call == ("DeleteService", "in_use", 1)));
    bed.emulator.shutdown().await;
}

#[tokio::test]
async fn listings_go_on_to_the_last_page() {
    let bed = bed(quick()).await;
    let (one, two) = (bed.namespace("one").await, bed.namespace("two").await);
    let service = bed.service(&two, "web").await;
    for i in 0..20 {
        bed.service(&one, &format!("s-{i}")).await;
    }
    // AWS filters after paging: the one service of the second namespace may come after pages without any.
    let services = bed.cloudmap.list_services(&two, Lane::Instances).await.unwrap();
    assert_eq!(services.iter().map(|s| s.id.clone()).collect::<Vec<_>>(), std::slice::from_ref(&service));

    let registering = (0..250).map(|i| {
        let (cloudmap, service) = (bed.cloudmap.clone(), service.clone());
        let pod = instance(&format!("pod-{i}"), &format!("10.0.{}.{}", i / 250, i % 250));
        async move { cloudmap.register_instance(&Permit::of_command(), &service, &pod, Lane::Ledger).await.unwrap() }
    });
    for operation in futures::future::join_all(registering).await {
        bed.finish(operation).await;
    }
    let listed = bed.cloudmap.list_instances(&service).await.unwrap();
    assert_eq!(listed.iter().map(|i| &i.id).collect::<BTreeSet<_>>().len(), 250);
    assert_eq!(bed.calls(Operation::ListInstances), 3);
    assert_eq!(bed.metrics.snapshot().of(Operation::ListInstances), 3, "page by page");
    bed.emulator.shutdown().await;
}

#[tokio::test]
async fn health_is_told_by_discovery_and_page_by_page() {
    let bed = bed(quick()).await;
    let namespace = bed.namespace("shop").await;
    let checked = NewService { custom_health_check: true, ..Bed::new_service(&namespace, "web", "us") };
    let CreateService::Created(service) =
        bed.cloudmap.create_service(&Permit::of_command(), &checked, Lane::Instances).await.unwrap()
    else {
        panic!("it exists")
    };
    let registering = (0..120).map(|i| {
        let mut pod = instance(&format!("pod-{i}"), &format!("10.0.0.{i}"));
        let health = if i < 110 { "UNHEALTHY" } else { "HEALTHY" };
        pod.attributes.insert("AWS_INIT_HEALTH_STATUS".to_owned(), health.to_owned());
        let (cloudmap, service) = (bed.cloudmap.clone(), service.id.clone());
        async move { cloudmap.register_instance(&Permit::of_command(), &service, &pod, Lane::Ledger).await.unwrap() }
    });
    for operation in futures::future::join_all(registering).await {
        bed.finish(operation).await;
    }
    let unhealthy: BTreeSet<Arc<str>> = (0..110).map(|i| format!("pod-{i}").into()).collect();
    assert_eq!(bed.cloudmap.unhealthy_instances(&service.id).await.unwrap(), unhealthy);
    assert_eq!(bed.calls(Operation::GetInstancesHealthStatus), 2);
    let discovery =
        bed.cloudmap.discover_instances(HttpName::own("shop"), "web", &BTreeMap::new(), Lane::Instances).await.unwrap();
    assert_eq!((discovery.instances.len(), discovery.unhealthy), (120, unhealthy));

    let unchecked = bed.service(&namespace, "plain").await;
    let operation = bed
        .cloudmap
        .register_instance(&Permit::of_command(), &unchecked, &instance("pod", "10.0.0.1"), Lane::Ledger)
        .await
        .unwrap();
    bed.finish(operation).await;
    assert_eq!(bed.cloudmap.unhealthy_instances(&unchecked).await.unwrap(), BTreeSet::new());
    bed.emulator.shutdown().await;
}

#[tokio::test]
async fn a_namespace_with_dns_has_a_zone_and_a_second_one_of_its_name_in_the_vpc_fails_later() {
    let bed = bed(quick()).await;
    let tags: BTreeMap<_, _> = [("team".to_owned(), "shop".to_owned())].into();
    let create = async |creator: &str| {
        let new = new_namespace("shop", Some("vpc-0123456789abcdef0"), creator, &tags);
        bed.cloudmap.create_namespace(&Permit::of_command(), &new).await
    };
    let OperationState::Succeeded { targets } = bed.finish(create("us").await.unwrap()).await else { panic!("failed") };
    let made = bed.cloudmap.get_namespace(&targets["NAMESPACE"]).await.unwrap();
    assert_eq!((&*made.name, made.kind, made.hosted_zone.is_some()), ("shop", NamespaceKind::DnsPrivate, true));
    assert_eq!(made.description.as_deref(), Some("for tests"));
    assert_eq!(bed.cloudmap.list_tags(&made.arn).await.unwrap(), tags);
    let OperationState::Failed { code, message } = bed.finish(create("them").await.unwrap()).await else {
        panic!("made")
    };
    assert_eq!(code, "CANNOT_CREATE_HOSTED_ZONE");
    assert!(message.contains("vpc-0123456789abcdef0"), "{message}");
    let repeated = create("us").await.unwrap_err();
    assert_eq!(repeated.kind, ErrorKind::AlreadyExists { id: Some(made.id.to_string()) }, "{repeated}");
    bed.emulator.shutdown().await;
}

#[tokio::test]
async fn errors_are_sorted_by_what_can_be_done() {
    let bed = bed(quick()).await;
    let namespace = bed.namespace("shop").await;
    let service = bed.service(&namespace, "web").await;
    let register = async |id: &str| {
        bed.cloudmap.register_instance(&Permit::of_command(), &service, &instance(id, "10.0.0.1"), Lane::Ledger).await
    };

    let missing = bed.cloudmap.get_service("srv-nowhere", Lane::Instances).await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound, "{missing}");
    let missing = bed
        .cloudmap
        .discover_instances(HttpName::own("nowhere"), "web", &BTreeMap::new(), Lane::Ledger)
        .await
        .unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound, "{missing}");
    let (permit, none) = (Permit::of_command(), BTreeMap::new());
    let taken = bed.cloudmap.create_namespace(&permit, &new_namespace("shop", None, "them", &none)).await.unwrap_err();
    assert_eq!(taken.kind, ErrorKind::AlreadyExists { id: Some(namespace.to_string()) }, "{taken}");
    let invalid = register("no spaces").await.unwrap_err();
    assert_eq!(invalid.kind, ErrorKind::InvalidInput, "{invalid}");

    // It runs for longer than the test.
    bed.fault(Operation::RegisterInstance, Effect::OperationLatency { add: Duration::from_hours(1) });
    let running = register("pod-1").await.unwrap();
    let duplicate = register("pod-1").await.unwrap_err();
    assert_eq!(duplicate.kind, ErrorKind::Duplicate { operation: Some(running) }, "{duplicate}");

    for (code, status, kind) in [
        ("ThrottlingException", None, ErrorKind::Throttled),
        ("RequestLimitExceeded", None, ErrorKind::Throttled),
        ("ResourceLimitExceeded", None, ErrorKind::LimitExceeded),
        ("AccessDeniedException", None, ErrorKind::AccessDenied),
        ("ExpiredTokenException", None, ErrorKind::AccessDenied),
        ("InternalFailure", Some(500), ErrorKind::Unknown),
    ] {
        let effect = Effect::Error { code: code.to_owned(), message: "injected".to_owned(), status };
        bed.fault(Operation::RegisterInstance, effect);
        let error = register("pod-2").await.unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
    }
    for effect in [Effect::DropRequest, Effect::DropResponse] {
        bed.fault(Operation::RegisterInstance, effect);
        let error = register("pod-3").await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
    }
    bed.fault(Operation::DeregisterInstance, Effect::Latency { add: Duration::from_mins(2) });
    let limits = Limits::new(&Rates::default(), None);
    let controller = adapter(&bed.emulator, AwsSettings::default().deadline, limits).await;
    let late =
        controller.deregister_instance(&Permit::of_command(), &service, "pod-9", Lane::Ledger).await.unwrap_err();
    assert_eq!(late.kind, ErrorKind::Unknown, "{late}");
    assert_eq!(bed.calls(Operation::RegisterInstance), 11, "no write was repeated");
    bed.emulator.shutdown().await;
}

fn pod(last: u8) -> Endpoint {
    Endpoint {
        ipv4: Some([10, 0, 0, last].into()),
        ipv6: Some(format!("fd00::{last}").parse().unwrap()),
        ports: [EndpointPort { name: "http".into(), protocol: Protocol::Tcp, port: 8080, app_protocol: None }].into(),
        conditions: Conditions::READY,
        hostname: None,
        zone: Some("us-east-1a".into()),
        node: None,
    }
}

fn desired(web: &Target, pods: impl IntoIterator<Item = u8>, retiring: bool) -> Desired {
    let ports = [ServicePort { name: "http".into(), protocol: Protocol::Tcp, port: 80, app_protocol: None }];
    let (identity, service) = (identity(), ServiceKey::new("shop", "web"));
    let source = Source { identity: &identity, service: &service, ports: &ports, region: Some("us-east-1") };
    let instances = source.instances(&pods.into_iter().map(pod).collect::<Vec<_>>()).unwrap().into();
    let consent = Consent { named: true, ..Consent::default() };
    let wanted = TargetDesired { active: !retiring, retiring, consent, instances, ..TargetDesired::default() };
    [(web.clone(), Arc::new(wanted))].into()
}

fn identity() -> Owner {
    Owner { clusterset: Some("prod".parse().unwrap()), cluster: "c1".parse().unwrap(), cluster_uid: "0b7a6c3e".into() }
}

#[tokio::test]
async fn instances_live_beside_ecs_tasks_and_leave_them_alone() {
    let bed = bed(quick()).await;
    let namespace = bed.namespace("shop").await;
    let service = bed.service(&namespace, "web").await;
    let task = instance("0db8dbd2185c4c0184e80f58fee8ba1d", "10.9.0.1");
    let registering =
        bed.cloudmap.register_instance(&Permit::of_command(), &service, &task, Lane::Ledger).await.unwrap();
    bed.finish(registering).await;
    let before = bed.emulator.control().writes().len();

    let web = Target { namespace: "shop".into(), service: "web".into() };
    let (sender, receiver) = watch::channel(desired(&web, 1..=5, false));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let handle = spawn(
        SyncSettings::new(identity()),
        bed.cloudmap.clone(),
        Listings::new(bed.cloudmap.clone()),
        Arc::new(NothingHidden),
        receiver,
        Authority { leadership: Leadership::manual(Some(Instant::now() + Duration::from_hours(1))), ledger: None },
        async {
            let _ = stopped.await;
        },
    );
    let until = async |count: usize| {
        let mut status = handle.status();
        let registered = Outcome::Registered { count };
        let said = status.wait_for(|all| all.get(&web).is_some_and(|status| status.outcome == registered));
        tokio::time::timeout(PATIENCE, said).await.unwrap().unwrap();
    };
    until(5).await;
    let ours = |instance: &&Instance| instance.id.starts_with("k8s-");
    let listed = bed.cloudmap.list_instances(&service).await.unwrap();
    let one = listed.iter().find(|instance| instance.id.ends_with("-10-0-0-1")).unwrap();
    assert_eq!(one.attributes["AWS_INSTANCE_IPV6"], "fd00::1");
    assert_eq!(one.attributes["AWS_INSTANCE_PORT"], "8080");

    sender.send_replace(desired(&web, 4..=6, false));
    until(3).await;
    sender.send_replace(desired(&web, [], true));
    let withdrawn = async {
        while bed.cloudmap.list_instances(&service).await.unwrap() != std::slice::from_ref(&task) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, withdrawn).await.unwrap();

    assert_eq!(listed.iter().filter(ours).count(), 5);
    let writes = bed.emulator.control().writes();
    for write in &writes[before..] {
        assert!(write.instance.starts_with("k8s-"), "{write:?} is not ours");
    }
    drop(stop);
    handle.stopped().await;
    bed.emulator.shutdown().await;
}

/// What `doctor` calls to learn what its role may do. The emulator refuses what the API model rules out, as AWS does.
#[tokio::test]
async fn calls_that_show_permissions_change_nothing() {
    let bed = bed(quick()).await;
    let (ledger, shop) = (bed.namespace("clusterset-prod").await, bed.namespace("shop").await);
    let (clusters, web) = (bed.service(&ledger, "clusters").await, bed.service(&shop, "web").await);
    let one = instance("one", "10.0.0.1");
    let operation = bed.cloudmap.register_instance(&Permit::of_command(), &web, &one, Lane::Instances).await.unwrap();
    bed.finish(operation).await;
    let facts = Scope {
        clusterset: Some("prod".parse().unwrap()),
        cluster_uid: Some("uid".to_owned()),
        namespaces: vec!["shop".to_owned()],
        services: vec![web.to_string()],
        ..Scope::default()
    };
    let modes = [Mode::Ledger, Mode::Instances, Mode::Imports, Mode::Annotated, Mode::Joining];
    let modes = [&modes[..], &[Mode::DnsNamespaces, Mode::People]].concat();
    let arn = bed.cloudmap.get_namespace(&shop).await.unwrap().arn;
    let tagged = [("cloudmap-mcs/clusterset".to_owned(), clusters), ("cloudmap-mcs/made-for".to_owned(), web)].into();
    let content = || serde_json::to_value(bed.emulator.control().snapshot()).unwrap();
    let before = content();
    for known in [Known::default(), Known { tagged, ledger: Some(ledger), arn: Some(arn) }] {
        let mut tried = BTreeSet::new();
        for statement in statements(&modes, &facts).unwrap() {
            for operation in harmless::operations(&statement) {
                let answer =
                    harmless::try_out(&*bed.cloudmap, &Permit::of_command(), &statement, operation, &known).await;
                let told = matches!(answer, Answer::Allowed | Answer::NotDenied) || known.arn.is_none();
                assert!(told, "{operation}: {answer:?}");
                tried.insert(operation);
            }
        }
        assert_eq!(tried.len(), Operation::ALL.len(), "{tried:?}");
    }
    // Whatever operation a call began has ended by then.
    bed.emulator.control().skip_time(Duration::from_hours(1));
    assert_eq!(content(), before);
    bed.emulator.shutdown().await;
}
