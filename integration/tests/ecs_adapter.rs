//! The adapter of ECS through the real SDK, against an API of ECS over HTTP whose services are in memory.

#![expect(clippy::unwrap_used, reason = "a test ends there")]

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use aws_sdk_servicediscovery::config::{BehaviorVersion, Credentials, Region, SharedCredentialsProvider};
use cloudmap::{AwsSettings, ConnectError};
use cloudmap_mcs_integration::ecs::{Definition, EcsApi, Fleet, ManagedService, Model};
use ecs::{AwsEcs, Choice, Controller, Ecs, Found, Network, Operation, Service, all};

/// Nothing here is decided by it: only how long a test that fails waits, and a call while the machine stands still.
const PATIENCE: Duration = Duration::from_mins(5);
const ARN: &str = "arn:aws:servicediscovery:us-east-1:000000000000:service/srv-orders";

fn sdk() -> aws_config::SdkConfig {
    aws_config::SdkConfig::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("us-east-1"))
        .credentials_provider(SharedCredentialsProvider::new(Credentials::new("adapter", "dummy", None, None, "test")))
        .build()
}

async fn start(model: Model) -> (EcsApi, AwsEcs) {
    let api = EcsApi::start(model).await.unwrap();
    let settings = AwsSettings { deadline: PATIENCE, ..AwsSettings::default() };
    let ecs = AwsEcs::configured(&sdk(), &settings, Some(&api.endpoint())).await.unwrap();
    (api, ecs)
}

fn orders() -> Model {
    Model::default().with("prod", "orders", ManagedService::new(ARN))
}

/// The only service that registers there.
async fn found(ecs: &AwsEcs, choice: &Choice) -> Service {
    let Found { mut services, unread } = all(ecs, choice).await.unwrap().registering(ARN);
    assert_eq!((services.len(), unread), (1, None), "{services:?}");
    services.remove(0)
}

#[tokio::test]
async fn a_service_is_found_among_many_clusters_and_pages() {
    let mut model = Model { longest_page: 3, ..orders() };
    for number in 0..25 {
        model = model.with("prod", &format!("other-{number}"), ManagedService::new(&format!("arn:{number}")));
    }
    for number in 0..7 {
        model = model.with(&format!("test-{number}"), "orders", ManagedService::new("arn:elsewhere"));
    }
    let (api, ecs) = start(model).await;
    let service = found(&ecs, &Choice::default()).await;
    assert_eq!((service.path().as_str(), service.desired, service.running), ("prod/orders", 2, 2));
    assert_eq!(all(&ecs, &Choice::default()).await.unwrap().services.len(), 33);
    let calls = api.model().calls.clone();
    let count = |operation: Operation| calls.iter().filter(|call| **call == operation.name()).count();
    // 8 clusters in pages of 3; 9 pages and 7 of one service; 26 services in tens, and 7 alone: each twice.
    assert_eq!(count(Operation::ListClusters), 6);
    assert_eq!(count(Operation::ListServices), 2 * (9 + 7));
    assert_eq!(count(Operation::DescribeServices), 2 * (3 + 7));
}

#[tokio::test]
async fn what_ecs_says_of_a_service_is_read() {
    let service = ManagedService {
        registries: vec![ARN.to_owned(), "arn:other".to_owned()],
        load_balancers: vec![9090],
        daemon: true,
        controller: "EXTERNAL".to_owned(),
        deploying: true,
        service_connect: Some("arn:connected".to_owned()),
        spot: true,
        subnets: vec!["subnet-a".to_owned(), "subnet-b".to_owned()],
        running: 1,
        ..ManagedService::new(ARN)
    };
    let (_api, ecs) = start(Model::default().with("prod", "orders", service)).await;
    let network = Network {
        subnets: ["subnet-a", "subnet-b"].map(str::to_owned).into(),
        security_groups: ["sg-tasks".to_owned()].into(),
        public: false,
    };
    let expected = Service {
        cluster: "prod".to_owned(),
        name: "orders".to_owned(),
        active: true,
        desired: 2,
        running: 1,
        pending: 0,
        daemon: true,
        controller: Controller::External,
        deploying: true,
        service_connect: true,
        spot: true,
        registries: [ARN.to_owned(), "arn:other".to_owned()].into(),
        connected: ["arn:connected".to_owned()].into(),
        ports: [8080, 9090].into(),
        network: Some(network),
        load_balancers: 1,
    };
    assert_eq!(found(&ecs, &Choice::default()).await, expected);
    let plain = ManagedService { controller: "CODE_DEPLOY".to_owned(), ..ManagedService::new(ARN) };
    let (_api, ecs) = start(Model::default().with("prod", "orders", plain)).await;
    let read = found(&ecs, &Choice::default()).await;
    let facts = [read.daemon, read.deploying, read.service_connect, read.spot];
    assert_eq!((facts, read.controller, read.load_balancers), ([false; 4], Controller::CodeDeploy, 0));
}

#[tokio::test]
async fn a_refusal_names_the_action_and_who_names_the_service_needs_no_listing() {
    let (api, ecs) = start(orders()).await;
    api.model().denied.insert("ListClusters".to_owned());
    let error = all(&ecs, &Choice::default()).await.unwrap_err().to_string();
    assert!(error.contains("needs the action ecs:ListClusters") && error.contains("--mode cutover"), "{error}");
    api.model().calls.clear();
    let choice = Choice { cluster: Some("prod".to_owned()), services: vec!["orders".to_owned()] };
    assert_eq!(found(&ecs, &choice).await.name, "orders");
    assert_eq!(api.model().calls, ["DescribeServices"]);
    let wrong = Choice { cluster: Some("nowhere".to_owned()), services: vec!["orders".to_owned()] };
    let error = all(&ecs, &wrong).await.unwrap_err().to_string();
    assert!(error.contains("no such ECS cluster") && error.contains("--ecs-cluster"), "{error}");
    let gone = Choice { services: vec!["carts".to_owned()], ..choice };
    assert_eq!(all(&ecs, &gone).await.unwrap(), Found::default());
}

#[tokio::test]
async fn the_search_goes_on_without_a_cluster_that_is_denied_or_gone() {
    let model = orders().with("test", "orders", ManagedService::new(ARN));
    let (api, ecs) = start(model).await;
    for (code, part) in
        [("AccessDeniedException", "needs the action ecs:ListServices"), ("ClusterNotFoundException", "--ecs-cluster")]
    {
        api.model().unreadable = [("test".to_owned(), code)].into();
        let Found { services, unread } = all(&ecs, &Choice::default()).await.unwrap();
        assert_eq!(services.iter().map(Service::path).collect::<Vec<_>>(), ["prod/orders"], "{code}");
        let said = unread.unwrap();
        assert!(said.starts_with("the ECS cluster test could not be read: ") && said.contains(part), "{said}");
    }
    let only = Choice { cluster: Some("test".to_owned()), services: Vec::new() };
    all(&ecs, &only).await.unwrap_err();
}

#[tokio::test]
async fn tasks_go_when_the_desired_count_is_zero_and_come_back_by_autoscaling() {
    let (api, ecs) = start(orders()).await;
    let names = ["orders".to_owned()];
    ecs.set_desired_count("prod", "orders", 0).await.unwrap();
    let mut running = Vec::new();
    for _ in 0..3 {
        let seen = ecs.describe("prod", &names).await.unwrap();
        assert_eq!(seen[0].desired, 0);
        running.push(seen[0].running);
    }
    assert_eq!(running, [2, 1, 0]);
    api.model().service("prod", "orders").unwrap().minimum = 2;
    let seen = [ecs.describe("prod", &names).await.unwrap(), ecs.describe("prod", &names).await.unwrap()];
    assert_eq!(seen.map(|seen| seen[0].desired), [0, 2]);
    let error = ecs.set_desired_count("prod", "gone", 0).await.unwrap_err();
    assert_eq!(error.operation, Operation::UpdateService);
    assert!(error.message.contains("--ecs-service"), "{error}");
    api.model().service("prod", "orders").unwrap().daemon = true;
    let error = ecs.set_desired_count("prod", "orders", 0).await.unwrap_err();
    assert!(error.message.contains("daemon scheduling strategy"), "{error}");
}

/// Tasks that are a number.
struct Counted {
    definition: Definition,
    tasks: Arc<Mutex<usize>>,
    /// How often all were replaced.
    replaced: Arc<Mutex<usize>>,
}

#[async_trait(?Send)]
impl Fleet for Counted {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    async fn alive(&mut self) -> anyhow::Result<usize> {
        Ok(*self.tasks.lock().unwrap())
    }

    async fn scale(&mut self, desired: usize) -> anyhow::Result<()> {
        *self.tasks.lock().unwrap() = desired;
        Ok(())
    }

    async fn replace(&mut self, desired: usize) -> anyhow::Result<()> {
        *self.replaced.lock().unwrap() += 1;
        self.scale(desired).await
    }

    async fn report(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Waits until a service is so.
async fn until(ecs: &AwsEcs, what: &str, is_so: impl Fn(&Service) -> bool) {
    let begun = Instant::now();
    loop {
        let seen = ecs.describe("prod", &["orders".to_owned()]).await.unwrap().remove(0);
        if is_so(&seen) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {seen:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn tasks_that_run_follow_the_desired_count_and_are_replaced_when_they_die() {
    let (api, ecs) = start(Model::default()).await;
    let (tasks, replaced) = (Arc::new(Mutex::new(2)), Arc::new(Mutex::new(0)));
    let definition = Definition { port: 9090, ..Definition::new("prod", "orders", "srv-orders") };
    let fleet = Counted { definition, tasks: Arc::clone(&tasks), replaced: Arc::clone(&replaced) };
    api.adopt(ARN, fleet, None).await.unwrap();
    let service = found(&ecs, &Choice::default()).await;
    assert_eq!((service.desired, service.running, service.ports), (2, 2, [9090].into()));
    ecs.set_desired_count("prod", "orders", 0).await.unwrap();
    until(&ecs, "none is left", Service::is_at_zero).await;
    // ECS says so just before it ends them.
    until(&ecs, "all have ended", |_| *tasks.lock().unwrap() == 0).await;
    ecs.set_desired_count("prod", "orders", 3).await.unwrap();
    until(&ecs, "three run", |service| service.running == 3 && service.pending == 0).await;
    *tasks.lock().unwrap() = 1;
    until(&ecs, "ECS notices", |_| *tasks.lock().unwrap() == 3).await;
    assert_eq!(*replaced.lock().unwrap(), 0);
    api.model().service("prod", "orders").unwrap().deploying = true;
    until(&ecs, "they are deployed", |service| !service.deploying && service.running == 3).await;
    assert_eq!(*replaced.lock().unwrap(), 1);
}

#[tokio::test]
async fn settings_that_cannot_work_are_refused() {
    let nowhere = aws_config::SdkConfig::builder().behavior_version(BehaviorVersion::latest()).build();
    let refused = AwsEcs::configured(&nowhere, &AwsSettings::default(), None).await.unwrap_err();
    assert_eq!(refused, ConnectError::NoRegion);
}
