//! Two drivers against a registry in memory, under paused time.

use std::{collections::BTreeMap, sync::Mutex};

use super::*;
use crate::{
    cloudmap::{
        CreateService, Discovery, Error, ErrorKind, Instance, Lane, Namespace, NamespaceKind, NewService, OperationId,
        OperationState, Service,
    },
    ledger::{
        Value,
        record::{Record, Version},
        writer::Stage,
    },
};

#[derive(Default)]
struct State {
    namespaces: Vec<Namespace>,
    services: Vec<Service>,
    instances: BTreeMap<(String, String), Instance>,
}

/// Cloud Map without delays: every operation is done when it is asked for.
#[derive(Default)]
struct Memory(Mutex<State>);

type Answer<T> = Result<T, Error>;

fn done() -> OperationId {
    OperationId("op".into())
}

fn missing(operation: &'static str) -> Error {
    Error { operation, kind: ErrorKind::NotFound, message: "no such thing".to_owned() }
}

#[async_trait]
impl CloudMap for Memory {
    async fn list_namespaces(&self) -> Answer<Vec<Namespace>> {
        Ok(self.0.lock().unwrap().namespaces.clone())
    }
    async fn create_http_namespace(
        &self,
        name: &str,
        _: &str,
        _: &str,
        _: &BTreeMap<String, String>,
    ) -> Answer<OperationId> {
        let mut state = self.0.lock().unwrap();
        let kind = NamespaceKind::Http;
        let http_name = format!("{name}-f00").into();
        let (id, arn) = ("ns-1".into(), "arn".into());
        state.namespaces.push(Namespace { id, arn, name: name.into(), http_name, kind, description: None });
        Ok(done())
    }
    async fn delete_namespace(&self, _: &str) -> Answer<OperationId> {
        Ok(done())
    }
    async fn list_services(&self, _: &str) -> Answer<Vec<Service>> {
        Ok(self.0.lock().unwrap().services.clone())
    }
    async fn get_service(&self, id: &str) -> Answer<Service> {
        let state = self.0.lock().unwrap();
        state.services.iter().find(|service| *service.id == *id).cloned().ok_or_else(|| missing("GetService"))
    }
    async fn create_service(&self, new: &NewService) -> Answer<CreateService> {
        let mut state = self.0.lock().unwrap();
        if let Some(service) = state.services.iter().find(|service| service.name == new.name) {
            let creator_request_id = service.creator_request_id.clone();
            return Ok(CreateService::Exists { id: service.id.clone(), creator_request_id });
        }
        let service = Service {
            id: format!("srv:{}", new.name).into(),
            arn: "arn".into(),
            name: new.name.clone(),
            namespace_id: Some(new.namespace_id.clone()),
            description: None,
            creator_request_id: Some(new.creator_request_id.clone()),
            dns: None,
            custom_health_check: false,
        };
        state.services.push(service.clone());
        Ok(CreateService::Created(service))
    }
    async fn delete_service(&self, _: &str) -> Answer<()> {
        Ok(())
    }
    async fn register_instance(&self, service: &str, instance: &Instance, _: Lane) -> Answer<OperationId> {
        let key = (service.to_owned(), instance.id.to_string());
        self.0.lock().unwrap().instances.insert(key, instance.clone());
        Ok(done())
    }
    async fn deregister_instance(&self, service: &str, id: &str, _: Lane) -> Answer<OperationId> {
        self.0.lock().unwrap().instances.remove(&(service.to_owned(), id.to_owned()));
        Ok(done())
    }
    async fn operation(&self, _: &OperationId, _: Lane) -> Answer<OperationState> {
        Ok(OperationState::Succeeded { targets: BTreeMap::new() })
    }
    async fn list_instances(&self, _: &str) -> Answer<Vec<Instance>> {
        Ok(Vec::new())
    }
    async fn discover_instances(
        &self,
        http_name: &str,
        service: &str,
        query: &BTreeMap<String, String>,
        _: Lane,
    ) -> Answer<Discovery> {
        assert!(http_name.ends_with("-f00"), "discovery takes the HttpName, not {http_name}");
        let state = self.0.lock().unwrap();
        let of = |((of, _), _): &(&(String, String), &Instance)| *of == format!("srv:{service}");
        let asked = |instance: &Instance| query.iter().all(|(key, value)| instance.attributes.get(key) == Some(value));
        let found = state.instances.iter().filter(of).map(|(_, instance)| instance.clone());
        Ok(Discovery { instances: found.filter(asked).collect(), truncated: false })
    }
    async fn set_custom_health(&self, _: &str, _: &str, _: bool) -> Answer<()> {
        Ok(())
    }
    async fn list_tags(&self, _: &str) -> Answer<BTreeMap<String, String>> {
        Ok(BTreeMap::new())
    }
    async fn tag(&self, _: &str, _: &BTreeMap<String, String>) -> Answer<()> {
        Ok(())
    }
}

#[derive(Default)]
struct Stored(Mutex<Option<(Record, u64)>>);

#[async_trait]
impl RecordStore for Stored {
    async fn load(&self) -> Result<Option<(Record, Version)>, StoreError> {
        Ok(self.0.lock().unwrap().clone().map(|(record, version)| (record, Some(version.to_string()))))
    }
    async fn store(&self, record: &Record, expected: &Version) -> Result<Version, StoreError> {
        let mut held = self.0.lock().unwrap();
        let version = held.as_ref().map(|(_, version)| *version);
        if version.map(|version| version.to_string()) != *expected {
            return Err(StoreError::Conflict);
        }
        let next = version.unwrap_or(0) + 1;
        *held = Some((record.clone(), next));
        Ok(Some(next.to_string()))
    }
}

struct Always;

#[async_trait]
impl Leadership for Always {
    fn is_leader_until(&self) -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(10))
    }
    async fn confirm(&self) -> bool {
        true
    }
}

fn start(cloudmap: &Arc<Memory>, cluster: &str, uid: &str) -> Handle {
    let settings = Settings::new(cluster.parse().unwrap(), "prod".parse().unwrap(), uid);
    spawn(settings, cloudmap.clone(), Arc::<Stored>::default(), Always, std::future::pending())
}

fn state(pairs: u32) -> Arc<Map> {
    Arc::new((0..pairs).map(|pair| (Arc::from(format!("ns/{pair}")), Value::from([7; 300]))).collect())
}

async fn sees(reader: &Handle, cluster: &str, map: &Arc<Map>) {
    let mut remotes = reader.remotes();
    let id: ClusterId = cluster.parse().unwrap();
    let there = |remotes: &Arc<Remotes>| {
        remotes.clusters.get(&id).and_then(|remote| remote.state.as_ref()).is_some_and(|state| state == map)
    };
    let seen = tokio::time::timeout(Duration::from_secs(120), remotes.wait_for(there)).await;
    assert!(seen.is_ok(), "the state of {cluster} did not arrive: {:?}", reader.status().borrow());
}

#[tokio::test(start_paused = true)]
async fn a_state_reaches_the_other_cluster_and_follows_its_changes() {
    let cloudmap = Arc::<Memory>::default();
    let (blue, green) = (start(&cloudmap, "blue", "uid-blue"), start(&cloudmap, "green", "uid-green"));
    // The second needs pages, the others do not.
    for pairs in [3, 400, 399, 0] {
        blue.desired().send_replace(Some(state(pairs)));
        sees(&green, "blue", &state(pairs)).await;
    }
    assert_eq!(blue.status().borrow().stage, Stage::Running);
    assert_eq!(**blue.published().borrow().as_ref().unwrap(), Map::new());
}

#[tokio::test(start_paused = true)]
async fn who_does_not_own_the_id_writes_nothing_and_says_whose_it_is() {
    let cloudmap = Arc::<Memory>::default();
    let owner = start(&cloudmap, "blue", "uid-1");
    owner.desired().send_replace(Some(state(1)));
    let mut published = owner.published();
    published.wait_for(Option::is_some).await.unwrap();
    let second = start(&cloudmap, "blue", "uid-2");
    second.desired().send_replace(Some(state(2)));
    let refused = Stage::Refused { owner: "uid-1".to_owned() };
    let mut status = second.status();
    let said = tokio::time::timeout(Duration::from_secs(60), status.wait_for(|status| status.stage == refused)).await;
    assert!(said.unwrap().unwrap().message.as_ref().unwrap().contains("uid-1"));
    assert!(second.published().borrow().is_none());
    sees(&second, "blue", &state(1)).await;
}
