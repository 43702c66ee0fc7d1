//! A call from its arrival to its answer: counted, throttled, bent by fault rules, dispatched, recorded.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::discovery::Discovered;
use super::error::{Answer, ApiError};
use super::faults::Shaping;
use super::history::Write;
use super::requests::Subject;
use super::{CloudMap, OPERATIONS};

/// What was decided about a call at its arrival.
#[derive(Debug)]
pub struct Admission {
    operation: &'static str,
    caller: String,
    /// The account of the caller, if it is not the one that owns the registry.
    pub(crate) guest: Option<String>,
    pub(crate) refusal: Option<ApiError>,
    pub(crate) shaping: Shaping,
    /// How long the whole call takes; whoever passes the time has the effect happen halfway.
    pub latency: Duration,
}

/// How a call ends.
#[derive(Debug)]
pub enum Outcome {
    Answered(Result<Response, ApiError>),
    /// The connection is closed without an answer, whether the call had its effect or not.
    Dropped,
}

/// The body of a successful answer. It becomes text outside the lock of the registry.
#[derive(Debug)]
pub enum Response {
    Members(Value),
    Discovered(Discovered),
}

impl Response {
    pub fn into_json(self) -> Vec<u8> {
        match self {
            Self::Members(value) => value.to_string().into_bytes(),
            Self::Discovered(discovered) => discovered.into_json(),
        }
    }
}

/// What a handler knows of its call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) now: Duration,
    pub(crate) caller: &'a str,
    /// The account of the caller, if it is not the one that owns the registry.
    pub(crate) guest: Option<&'a str>,
    pub(crate) shaping: &'a Shaping,
}

impl CloudMap {
    /// A whole call in no time: `operation` such as `RegisterInstance`, `body` the members in JSON, `caller` the access
    /// key id. The latency of calls is left to callers that can wait; the one of operations is not.
    pub fn call(&mut self, now: Duration, caller: &str, operation: &str, body: &[u8]) -> Outcome {
        match self.admit(now, caller, operation, body) {
            Ok(admission) => self.execute(now, &admission, body),
            Err(error) => Outcome::Answered(Err(error)),
        }
    }

    /// Decides about a call at its arrival: throttling, fault rules, latency.
    ///
    /// # Errors
    /// `UnknownOperationException`.
    pub fn admit(&mut self, now: Duration, caller: &str, operation: &str, body: &[u8]) -> Result<Admission, ApiError> {
        let refusal = self.throttle(now, operation)?;
        self.admit_unthrottled(now, caller, operation, body, refusal)
    }

    /// Takes a call from the request rates, and gives the refusal if there are too many.
    ///
    /// # Errors
    /// `UnknownOperationException`.
    pub(crate) fn throttle(&mut self, now: Duration, operation: &str) -> Answer<Option<ApiError>> {
        self.advance(now);
        Ok(self.limits.admit(self.now, known(operation)?, &self.settings).err())
    }

    /// Decides about a call that request rates have refused, or not.
    ///
    /// # Errors
    /// `UnknownOperationException`.
    pub(crate) fn admit_unthrottled(
        &mut self,
        now: Duration,
        caller: &str,
        operation: &str,
        body: &[u8],
        mut refusal: Option<ApiError>,
    ) -> Answer<Admission> {
        self.advance(now);
        let operation = known(operation)?;
        let mut shaping = Shaping::default();
        if refusal.is_none() && !self.faults.is_empty() {
            let subject = self.subject(operation, body);
            shaping = self.faults.select(operation, caller, &subject, &mut self.rng);
            refusal = shaping.error.take();
        }
        let latency = self.settings.call_latency.sample(&mut self.rng) + shaping.latency;
        Ok(Admission { operation, caller: caller.to_owned(), guest: None, refusal, shaping, latency })
    }

    /// Does what was asked, unless the admission says otherwise; counts the call and records it.
    pub fn execute(&mut self, now: Duration, admission: &Admission, body: &[u8]) -> Outcome {
        self.advance(now);
        let Admission { operation, caller, guest, refusal, shaping, .. } = admission;
        let guest = guest.as_deref();
        let target = is_write(operation).then(|| self.subject(operation, body));
        let answer = match refusal {
            Some(error) => Some(Err(error.clone())),
            None if shaping.drop_request => None,
            None => Some(self.dispatch(&Call { now: self.now, caller, guest, shaping }, operation, body)),
        };
        let result = match &answer {
            None => "dropped",
            Some(Ok(_)) => "ok",
            Some(Err(error)) => &error.code,
        };
        self.counters.count(operation, caller, result);
        if let Some(target) = target {
            let sequence = self.next_sequence();
            let write = Write::new(sequence, self.now, caller, operation, target, result);
            self.writes.record(write, self.settings.history);
        }
        match answer {
            Some(answer) if !shaping.drop_response => Outcome::Answered(answer),
            _ => Outcome::Dropped,
        }
    }

    fn dispatch(&mut self, call: &Call, operation: &str, body: &[u8]) -> Answer<Response> {
        use super::state::NamespaceType::{DnsPrivate, DnsPublic, Http};
        let members = match operation {
            "DiscoverInstances" => return self.discover_instances(call, &parse(body)?).map(Response::Discovered),
            "DiscoverInstancesRevision" => self.discover_instances_revision(call, &parse(body)?),
            "CreateHttpNamespace" => self.create_namespace(call, Http, parse(body)?),
            "CreatePrivateDnsNamespace" => self.create_namespace(call, DnsPrivate, parse(body)?),
            "CreatePublicDnsNamespace" => self.create_namespace(call, DnsPublic, parse(body)?),
            "UpdateHttpNamespace" => self.update_namespace(call, Http, parse(body)?),
            "UpdatePrivateDnsNamespace" => self.update_namespace(call, DnsPrivate, parse(body)?),
            "UpdatePublicDnsNamespace" => self.update_namespace(call, DnsPublic, parse(body)?),
            "GetNamespace" => self.get_namespace(&parse(body)?),
            "DeleteNamespace" => self.delete_namespace(call, &parse(body)?),
            "ListNamespaces" => self.list_namespaces(&parse(body)?),
            "CreateService" => self.create_service(call, parse(body)?),
            "UpdateService" => self.update_service(call, parse(body)?),
            "GetService" => self.get_service(&parse(body)?),
            "DeleteService" => self.delete_service(call, &parse(body)?),
            "ListServices" => self.list_services(&parse(body)?),
            "RegisterInstance" => self.register_instance(call, parse(body)?),
            "DeregisterInstance" => self.deregister_instance(call, &parse(body)?),
            "GetInstance" => self.get_instance(&parse(body)?),
            "ListInstances" => self.list_instances(&parse(body)?),
            "GetInstancesHealthStatus" => self.get_instances_health_status(&parse(body)?),
            "UpdateInstanceCustomHealthStatus" => self.update_instance_custom_health_status(call, &parse(body)?),
            "GetOperation" => self.get_operation(call, &parse(body)?),
            "ListOperations" => self.list_operations(call, &parse(body)?),
            "GetServiceAttributes" => self.get_service_attributes(&parse(body)?),
            "UpdateServiceAttributes" => self.update_service_attributes(parse(body)?),
            "DeleteServiceAttributes" => self.delete_service_attributes(&parse(body)?),
            "TagResource" => self.tag_resource(parse(body)?),
            "UntagResource" => self.untag_resource(&parse(body)?),
            "ListTagsForResource" => self.list_tags_for_resource(&parse(body)?),
            _ => unreachable!("admitted operations are those of OPERATIONS"),
        };
        members.map(|members| Response::Members(without_nulls(members)))
    }

    /// Names in the request, with ids resolved, so that rules and records can speak of services by name.
    fn subject(&self, operation: &str, body: &[u8]) -> Subject {
        let mut subject: Subject = serde_json::from_slice(body).unwrap_or_default();
        if operation == "CreateService" {
            subject.service_name = subject.name.clone();
        } else if operation.ends_with("Namespace") && subject.namespace_name.is_empty() {
            subject.namespace_name = subject.name.clone();
            subject.namespace_id = subject.id.clone();
        } else if subject.service_id.is_empty() {
            subject.service_id = subject.id.clone();
        }
        if let Some(service) = self.resource_id("service", &subject.service_id).and_then(|id| self.services.get(id)) {
            subject.service_id.clone_from(&service.id);
            subject.service_name.clone_from(&service.name);
            subject.namespace_id.clone_from(&service.namespace_id);
        }
        let namespace = self.resource_id("namespace", &subject.namespace_id).and_then(|id| self.namespaces.get(id));
        if let Some(namespace) = namespace {
            subject.namespace_name.clone_from(&namespace.name);
        }
        subject
    }
}

fn known(operation: &str) -> Answer<&'static str> {
    let found = OPERATIONS.iter().find(|known| **known == operation).copied();
    found.ok_or_else(|| ApiError::new("UnknownOperationException", format!("No operation is named {operation}.")))
}

/// Whether the operation changes anything.
pub(crate) fn is_write(operation: &str) -> bool {
    !["Get", "List", "Discover"].iter().any(|read| operation.starts_with(read))
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Answer<T> {
    serde_json::from_slice(body).map_err(|error| ApiError::new("SerializationException", error.to_string()))
}

/// AWS leaves out members that have no value.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, without_nulls(value)))
                .collect(),
        ),
        Value::Array(values) => Value::Array(values.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
