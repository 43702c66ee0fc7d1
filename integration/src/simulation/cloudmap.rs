//! Cloud Map of the simulation: the emulator's core behind the product's port, without a socket.

mod json;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use cloudmap::{
    CreateService, Discovery, Error, ErrorKind, HttpName, Instance, Lane, Namespace, NewNamespace, NewService,
    Operation, OperationId, OperationState, Permit, Read, Service, ServiceChange, Write, answered,
};
use serde_json::{Value, json};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use self::json::{namespace, records, service, strings, tag_list, text};
use super::{expect::Name, machine::EPOCH, trace::Trace};
use emulator::{ApiError, Outcome};

/// What the product's adapter waits for an answer.
const DEADLINE: Duration = Duration::from_secs(5);

/// Rows that one discovery call gives at most.
pub(crate) const ROWS: usize = 1000;
/// Entries of a page of a listing: fewer than AWS', so that there are several.
const PAGE: usize = 10;

type Answer = Result<Value, Failure>;

/// Why a call failed.
enum Failure {
    Refused(ApiError),
    /// No answer.
    Silence,
}

/// The one registry of all clusters. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Registry(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    trace: Trace,
    state: Mutex<State>,
}

struct State {
    cloudmap: emulator::CloudMap,
    crashes: Vec<Crash>,
    rows: usize,
    /// The IPv4 addresses of all instances that discovery has shown to anybody since their pods have them, and the Services
    /// for which they were registered.
    shown: BTreeSet<(String, Name)>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("cloudmap", &self.cloudmap).finish_non_exhaustive()
    }
}

/// Strikes at a write of a replica.
struct Crash {
    replica: String,
    /// Writes until it strikes.
    left: u32,
    /// The write takes effect.
    after: bool,
    then: Box<dyn FnOnce() + Send>,
}

impl Registry {
    pub(crate) fn new(began: Instant, trace: Trace, settings: emulator::EmulatorSettings) -> Self {
        let state = State {
            cloudmap: emulator::CloudMap::new(settings),
            crashes: Vec::new(),
            rows: ROWS,
            shown: BTreeSet::new(),
        };
        Self(Arc::new(Shared { began, trace, state: Mutex::new(state) }))
    }

    /// The port, as one replica has it.
    pub(crate) fn port(&self, replica: &str) -> Port {
        Port { registry: self.clone(), replica: replica.into() }
    }

    /// Looks into the registry, or changes it, with everything done that is due.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut emulator::CloudMap, Duration) -> R) -> R {
        let now = self.now();
        let mut state = self.state();
        state.cloudmap.advance(now);
        f(&mut state.cloudmap, now)
    }

    /// A call that nobody waits for and no fault hits: of writers that are not ours.
    pub(crate) fn call(&self, caller: &str, operation: &str, body: &Value) -> Option<Value> {
        self.with(|cloudmap, now| match cloudmap.call(now, caller, operation, body.to_string().as_bytes()) {
            Outcome::Answered(Ok(response)) => serde_json::from_slice(&response.into_json()).ok(),
            _ => None,
        })
    }

    /// Calls `then`, which must end the replica, at its `nth` write from now on (1: the next).
    pub(crate) fn crash_at_write(&self, replica: &str, nth: u32, after: bool, then: impl FnOnce() + Send + 'static) {
        let crash = Crash { replica: replica.to_owned(), left: nth.max(1), after, then: Box::new(then) };
        self.state().crashes.push(crash);
    }

    /// Lets discovery give no more than so many rows.
    pub(crate) fn set_rows(&self, rows: usize) {
        self.state().rows = rows;
    }

    /// Whether discovery has shown an instance of a Service with this IPv4 address to anybody, as healthy.
    pub(crate) fn has_shown(&self, address: &str, service: &Name) -> bool {
        self.state().shown.contains(&(address.to_owned(), service.clone()))
    }

    /// Another pod gets an IPv4 address: what discovery has shown was not this one.
    pub(crate) fn forget_shown(&self, address: &str) {
        self.state().shown.retain(|(shown, _)| shown != address);
    }

    pub(crate) fn forget_crashes(&self) {
        self.state().crashes.clear();
    }

    fn now(&self) -> Duration {
        EPOCH + self.0.began.elapsed()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The crash that strikes at this write, if one does.
    fn crash(&self, replica: &str) -> Option<Crash> {
        let mut state = self.state();
        state
            .crashes
            .iter_mut()
            .filter(|crash| crash.replica == replica)
            .for_each(|crash| crash.left = crash.left.saturating_sub(1));
        let struck = state.crashes.iter().position(|crash| crash.replica == replica && crash.left == 0)?;
        Some(state.crashes.remove(struck))
    }

    /// The way of a call, which goes on when the caller waits no more.
    async fn travel(self, replica: Arc<str>, operation: &'static str, body: Vec<u8>) -> Answer {
        let admission =
            self.state().cloudmap.admit(self.now(), &replica, operation, &body).map_err(Failure::Refused)?;
        sleep(admission.latency / 2).await;
        let outcome = self.state().cloudmap.execute(self.now(), &admission, &body);
        let said = match &outcome {
            Outcome::Answered(Ok(_)) => "ok".to_owned(),
            Outcome::Answered(Err(error)) => error.code.clone(),
            Outcome::Dropped => "dropped".to_owned(),
        };
        self.0.trace.line(|| format!("{replica} {operation} {} {said}", String::from_utf8_lossy(&body)));
        sleep(admission.latency / 2).await;
        match outcome {
            Outcome::Answered(Ok(response)) => {
                let answer: Value = serde_json::from_slice(&response.into_json()).map_err(|_| Failure::Silence)?;
                if operation == "DiscoverInstances" {
                    let found = answer["Instances"].as_array().into_iter().flatten();
                    let healthy = found.filter(|instance| instance["HealthStatus"] != "UNHEALTHY");
                    let ours = healthy.filter_map(|instance| {
                        let said = |name: &str| instance["Attributes"][name].as_str().map(str::to_owned);
                        let service = said("CLOUDMAP_MCS_NAMESPACE").zip(said("CLOUDMAP_MCS_SERVICE"))?;
                        Some((said("AWS_INSTANCE_IPV4")?, service))
                    });
                    self.state().shown.extend(ours);
                }
                Ok(answer)
            }
            Outcome::Answered(Err(error)) => Err(Failure::Refused(error)),
            Outcome::Dropped => Err(Failure::Silence),
        }
    }
}

/// One replica's way to the registry.
#[derive(Debug, Clone)]
pub(crate) struct Port {
    registry: Registry,
    replica: Arc<str>,
}

/// A failed call with the members that the answer had beside its code.
struct Failed {
    error: Error,
    code: String,
    members: BTreeMap<&'static str, String>,
}

impl Failed {
    fn member(&self, name: &str) -> Option<String> {
        self.members.get(name).cloned()
    }

    /// With what only the typed answers of AWS say.
    fn sorted(mut self) -> Error {
        self.error.kind = match &*self.code {
            "DuplicateRequest" => {
                let operation = self.member("DuplicateOperationId").map(|id| OperationId(id.into()));
                ErrorKind::Duplicate { operation }
            }
            "NamespaceAlreadyExists" => ErrorKind::AlreadyExists { id: self.member("NamespaceId") },
            _ => self.error.kind,
        };
        self.error
    }
}

impl Port {
    async fn call(&self, operation: Operation, body: Value) -> Result<Value, Failed> {
        let name = operation.name();
        let writes = !["Get", "List", "Discover"].iter().any(|read| name.starts_with(read));
        let crash = writes.then(|| self.registry.crash(&self.replica)).flatten();
        if let Some(Crash { after: false, then, .. }) = crash {
            then();
            sleep(DEADLINE).await;
            return Err(silence(name));
        }
        let (tell, told) = oneshot::channel();
        let travel = self.registry.clone().travel(Arc::clone(&self.replica), name, body.to_string().into_bytes());
        tokio::spawn(async move { drop(tell.send(travel.await)) });
        if let Some(Crash { then, .. }) = crash {
            drop(told.await);
            then();
            sleep(DEADLINE).await;
            return Err(silence(name));
        }
        let answer = timeout(DEADLINE, told).await.ok().and_then(Result::ok).unwrap_or(Err(Failure::Silence));
        answer.map_err(|failure| match failure {
            Failure::Refused(ApiError { code, message, status, members }) => {
                let (kind, message) = answered(operation, Some(&code), Some(&message), status);
                Failed { error: Error { operation: name, kind, message }, code, members }
            }
            Failure::Silence => silence(name),
        })
    }

    /// All pages of a listing.
    async fn pages(&self, operation: Operation, body: Value, member: &str) -> Result<Vec<Value>, Error> {
        let (mut all, mut body) = (Vec::new(), body);
        body["MaxResults"] = json!(PAGE);
        loop {
            let mut page = self.call(operation, body.clone()).await.map_err(Failed::sorted)?;
            all.extend(page[member].as_array_mut().map(std::mem::take).unwrap_or_default());
            match page["NextToken"].as_str() {
                Some(token) if !token.is_empty() => body["NextToken"] = json!(token),
                _ => return Ok(all),
            }
        }
    }

    async fn write(&self, permit: &Permit, operation: Operation, body: Value) -> Result<Value, Failed> {
        permit.check(operation).map_err(|error| Failed { error, code: String::new(), members: BTreeMap::new() })?;
        self.call(operation, body).await
    }

    async fn submit(&self, permit: &Permit, operation: Operation, body: Value) -> Result<OperationId, Error> {
        let answer = self.write(permit, operation, body).await.map_err(Failed::sorted)?;
        Ok(OperationId(text(&answer["OperationId"])))
    }
}

/// No answer came. A crash ends here as well where another process runs in the place of the one that it was meant for.
fn silence(operation: &'static str) -> Failed {
    let error =
        Error { operation, kind: ErrorKind::Unknown, message: "no answer in time or connection lost".to_owned() };
    Failed { error, code: String::new(), members: BTreeMap::new() }
}

#[async_trait]
impl Read for Port {
    async fn list_namespaces(&self, _lane: Lane) -> Result<Vec<Namespace>, Error> {
        let found = self.pages(Operation::ListNamespaces, json!({}), "Namespaces").await?;
        Ok(found.iter().map(namespace).collect())
    }

    async fn get_namespace(&self, id: &str) -> Result<Namespace, Error> {
        let answer = self.call(Operation::GetNamespace, json!({"Id": id})).await.map_err(Failed::sorted)?;
        Ok(namespace(&answer["Namespace"]))
    }

    async fn list_services(&self, namespace_id: &str, _lane: Lane) -> Result<Vec<Service>, Error> {
        let filter = json!([{"Name": "NAMESPACE_ID", "Values": [namespace_id]}]);
        let found = self.pages(Operation::ListServices, json!({"Filters": filter}), "Services").await?;
        Ok(found.iter().map(service).collect())
    }

    async fn get_service(&self, id: &str, _lane: Lane) -> Result<Service, Error> {
        let answer = self.call(Operation::GetService, json!({"Id": id})).await.map_err(Failed::sorted)?;
        Ok(service(&answer["Service"]))
    }

    async fn operation(&self, id: &OperationId, _lane: Lane) -> Result<OperationState, Error> {
        let answer = self.call(Operation::GetOperation, json!({"OperationId": &*id.0})).await;
        let operation = &answer.map_err(Failed::sorted)?["Operation"];
        let said = |member: &str| operation[member].as_str().unwrap_or("UNKNOWN").to_owned();
        Ok(match operation["Status"].as_str() {
            Some("SUCCESS") => OperationState::Succeeded { targets: strings(&operation["Targets"]) },
            Some("FAIL") => OperationState::Failed { code: said("ErrorCode"), message: said("ErrorMessage") },
            _ => OperationState::Running,
        })
    }

    async fn list_instances(&self, service_id: &str) -> Result<Vec<Instance>, Error> {
        let found = self.pages(Operation::ListInstances, json!({"ServiceId": service_id}), "Instances").await?;
        let instance = |value: &Value| Instance { id: text(&value["Id"]), attributes: strings(&value["Attributes"]) };
        Ok(found.iter().map(instance).collect())
    }

    async fn unhealthy_instances(&self, service_id: &str) -> Result<BTreeSet<Arc<str>>, Error> {
        let operation = Operation::GetInstancesHealthStatus;
        let answer = self.call(operation, json!({"ServiceId": service_id, "MaxResults": 100})).await;
        match answer.map_err(Failed::sorted) {
            Ok(answer) => {
                let statuses = strings(&answer["Status"]).into_iter();
                Ok(statuses.filter(|(_, status)| status == "UNHEALTHY").map(|(id, _)| id.into()).collect())
            }
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::InvalidInput) => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }

    async fn discover_instances(
        &self,
        namespace: HttpName<'_>,
        service: &str,
        query: &BTreeMap<String, String>,
        _lane: Lane,
    ) -> Result<Discovery, Error> {
        let rows = self.registry.state().rows;
        let mut body = json!({"NamespaceName": namespace.name, "ServiceName": service, "MaxResults": rows,
            "HealthStatus": "ALL"});
        if let Some(owner) = namespace.owner {
            body["OwnerAccount"] = json!(owner);
        }
        if !query.is_empty() {
            body["QueryParameters"] = json!(query);
        }
        let answer = self.call(Operation::DiscoverInstances, body).await.map_err(Failed::sorted)?;
        let found = answer["Instances"].as_array().map(Vec::as_slice).unwrap_or_default();
        let unhealthy = found.iter().filter(|instance| instance["HealthStatus"] == "UNHEALTHY");
        let instance =
            |value: &Value| Instance { id: text(&value["InstanceId"]), attributes: strings(&value["Attributes"]) };
        Ok(Discovery {
            unhealthy: unhealthy.map(|instance| text(&instance["InstanceId"])).collect(),
            instances: found.iter().map(instance).collect(),
            truncated: found.len() >= rows,
        })
    }

    async fn list_tags(&self, arn: &str) -> Result<BTreeMap<String, String>, Error> {
        let answer = self.call(Operation::ListTagsForResource, json!({"ResourceARN": arn})).await;
        let answer = answer.map_err(Failed::sorted)?;
        let tags = answer["Tags"].as_array().into_iter().flatten();
        Ok(tags.map(|tag| (text(&tag["Key"]).to_string(), text(&tag["Value"]).to_string())).collect())
    }
}

#[async_trait]
impl Write for Port {
    async fn create_namespace(&self, permit: &Permit, new: &NewNamespace<'_>) -> Result<OperationId, Error> {
        let mut body = json!({"Name": new.name, "CreatorRequestId": new.creator_request_id, "Description": new.description,
            "Tags": tag_list(new.tags)});
        if let Some(vpc) = new.vpc {
            body["Vpc"] = vpc.into();
        }
        self.submit(permit, new.operation(), body).await
    }

    async fn delete_namespace(&self, permit: &Permit, id: &str) -> Result<OperationId, Error> {
        self.submit(permit, Operation::DeleteNamespace, json!({"Id": id})).await
    }

    async fn create_service(&self, permit: &Permit, new: &NewService, _lane: Lane) -> Result<CreateService, Error> {
        let NewService { namespace_id, name, creator_request_id, description, dns, custom_health_check, tags } = new;
        let mut body = json!({"Name": &**name, "NamespaceId": &**namespace_id, "CreatorRequestId": creator_request_id,
            "Tags": tag_list(tags)});
        if let Some(description) = description {
            body["Description"] = json!(description);
        }
        match dns {
            Some(dns) => {
                let policy = if dns.weighted { "WEIGHTED" } else { "MULTIVALUE" };
                body["DnsConfig"] = json!({"RoutingPolicy": policy, "DnsRecords": records(&dns.records)});
            }
            None => body["Type"] = json!("HTTP"),
        }
        if *custom_health_check {
            body["HealthCheckCustomConfig"] = json!({});
        }
        match self.write(permit, Operation::CreateService, body).await {
            Ok(answer) => Ok(CreateService::Created(service(&answer["Service"]))),
            Err(failed) => match failed.member("ServiceId") {
                Some(id) if failed.code == "ServiceAlreadyExists" => {
                    let creator_request_id = failed.member("CreatorRequestId");
                    Ok(CreateService::Exists { id: id.into(), creator_request_id })
                }
                _ => Err(failed.sorted()),
            },
        }
    }

    async fn update_service(&self, permit: &Permit, id: &str, change: &ServiceChange) -> Result<OperationId, Error> {
        let mut service = json!({"DnsConfig": {"DnsRecords": records(&change.records)}});
        if let Some(description) = &change.description {
            service["Description"] = json!(description);
        }
        if let Some(check) = &change.health_check {
            service["HealthCheckConfig"] = json!({"Type": check.kind, "ResourcePath": check.path,
                "FailureThreshold": check.failure_threshold});
        }
        self.submit(permit, Operation::UpdateService, json!({"Id": id, "Service": service})).await
    }

    async fn delete_service(&self, permit: &Permit, id: &str) -> Result<(), Error> {
        self.write(permit, Operation::DeleteService, json!({"Id": id})).await.map_err(Failed::sorted)?;
        Ok(())
    }

    async fn register_instance(
        &self,
        permit: &Permit,
        service: &str,
        instance: &Instance,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        let body = json!({"ServiceId": service, "InstanceId": &*instance.id, "Attributes": instance.attributes});
        self.submit(permit, Operation::RegisterInstance, body).await
    }

    async fn deregister_instance(
        &self,
        permit: &Permit,
        service: &str,
        instance: &str,
        _lane: Lane,
    ) -> Result<OperationId, Error> {
        self.submit(permit, Operation::DeregisterInstance, json!({"ServiceId": service, "InstanceId": instance})).await
    }

    async fn set_custom_health(
        &self,
        permit: &Permit,
        service_id: &str,
        instance_id: &str,
        healthy: bool,
    ) -> Result<(), Error> {
        let status = if healthy { "HEALTHY" } else { "UNHEALTHY" };
        let body = json!({"ServiceId": service_id, "InstanceId": instance_id, "Status": status});
        self.write(permit, Operation::UpdateInstanceCustomHealthStatus, body).await.map_err(Failed::sorted)?;
        Ok(())
    }

    async fn tag(&self, permit: &Permit, arn: &str, tags: &BTreeMap<String, String>) -> Result<(), Error> {
        let body = json!({"ResourceARN": arn, "Tags": tag_list(tags)});
        self.write(permit, Operation::TagResource, body).await.map_err(Failed::sorted)?;
        Ok(())
    }
}
