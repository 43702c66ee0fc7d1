//! CloudTrail events. `DiscoverInstances` and `DiscoverInstancesRevision` are data events: a trail has them only if its
//! selectors ask for the resource type `AWS::ServiceDiscovery::Namespace` or `AWS::ServiceDiscovery::Service`.

use std::net::IpAddr;

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;

use super::{
    record::{How, Kind, Read, Said, Sighting, invalid},
    subject::Subject,
};

const SOURCE: &str = "servicediscovery.amazonaws.com";
const CALLS: [&str; 2] = ["DiscoverInstances", "DiscoverInstancesRevision"];
/// Where this program and its controllers say in their calls who they are.
const OURS: &str = "app/cloudmap-mcs";

/// Who called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Principal {
    /// A role, and what is known of the one who has it.
    Role { arn: String, bearer: Bearer },
    /// A user, the account itself, a federated user.
    Other(String),
    /// A service of AWS on somebody's behalf.
    Service(String),
    /// A controller or command of this project.
    Ours(String),
}

/// Who has a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Bearer {
    /// A Lambda function, by name.
    Lambda(String),
    /// An EC2 instance, by id.
    Instance(String),
    /// An ECS task.
    Task(String),
    Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "sourceIPAddress")]
    address: Option<String>,
    user_agent: Option<String>,
    user_identity: Option<Identity>,
    request_parameters: Option<Parameters>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Identity {
    r#type: Option<String>,
    arn: Option<String>,
    principal_id: Option<String>,
    account_id: Option<String>,
    invoked_by: Option<String>,
    session_context: Option<Session>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Session {
    session_issuer: Option<Issuer>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Issuer {
    arn: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Parameters {
    namespace_name: Option<String>,
    service_name: Option<String>,
}

/// Reads an event.
///
/// # Errors
/// Why it is none.
pub(super) fn read(bytes: &[u8], subject: &Subject) -> Result<Read, String> {
    // Parameters of other calls have other types.
    #[derive(Deserialize)]
    struct Call {
        #[serde(rename = "eventSource")]
        source: Option<String>,
        #[serde(rename = "eventName")]
        name: Option<String>,
        #[serde(rename = "eventTime")]
        time: Option<String>,
    }
    let call: Call = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
    let at: Option<Timestamp> = call.time.and_then(|time| time.parse().ok());
    let of = |said| Ok(Read { kind: Kind::CloudTrail, at, said });
    let (Some(source), Some(name)) = (call.source, call.name) else {
        return Err("it has no eventSource or eventName".to_owned());
    };
    if source != SOURCE || !CALLS.contains(&&*name) {
        return of(Said::Other);
    }
    let event: Event = serde_json::from_slice(bytes).map_err(|error| invalid(&error))?;
    let parameters = event.request_parameters;
    let Some((namespace, service)) = parameters.and_then(|it| it.namespace_name.zip(it.service_name)) else {
        return of(Said::Unnamed);
    };
    if !subject.is(&namespace, &service) {
        return of(Said::Other);
    }
    let address = event.address.as_deref().and_then(|address| address.parse::<IpAddr>().ok());
    let agent = event.user_agent.unwrap_or_default();
    let principal = principal(event.user_identity.unwrap_or_default(), event.address.as_deref(), &agent)
        .ok_or("it does not say who called: it has no userIdentity")?;
    of(Said::Use(Box::new(Sighting {
        address: address.map(|address| address.to_canonical()),
        principal: Some(principal),
        ..Sighting::new(How::DiscoverInstances, at)
    })))
}

fn principal(identity: Identity, source: Option<&str>, agent: &str) -> Option<Principal> {
    let Identity { r#type, arn, principal_id, account_id, invoked_by, session_context } = identity;
    if r#type.as_deref() == Some("AWSService") {
        return invoked_by.or_else(|| source.map(str::to_owned)).map(Principal::Service);
    }
    let issuer = session_context.and_then(|session| session.session_issuer).and_then(|issuer| issuer.arn);
    let session = arn.as_deref().filter(|arn| arn.contains(":assumed-role/")).and_then(|arn| arn.rsplit_once('/'));
    let role = issuer.or_else(|| session.map(|(role, _)| role.to_owned()));
    if agent.split_whitespace().any(|word| word == OURS) {
        return role.or(arn).map(Principal::Ours);
    }
    let Some(role) = role else {
        // Of a caller of another account there are only ids; the name of the session, of which there is no end, follows.
        let id = principal_id.map(|id| id.split(':').next().unwrap_or_default().to_owned());
        let ids: Vec<_> = account_id.into_iter().chain(id).collect();
        return arn.or((!ids.is_empty()).then(|| ids.join(":"))).map(Principal::Other);
    };
    let name = session.map(|(_, name)| name.to_owned()).unwrap_or_default();
    let runs_in = |environment: &str| agent.contains(&format!("exec-env/{environment}"));
    // Sessions of other roles have names without end: each of them would be a user of its own.
    let bearer = if runs_in("AWS_Lambda") && !name.is_empty() {
        Bearer::Lambda(name)
    } else if runs_in("AWS_ECS") && !name.is_empty() {
        Bearer::Task(name)
    } else if name.starts_with("i-") {
        Bearer::Instance(name)
    } else {
        Bearer::Unknown
    };
    Some(Principal::Role { arn: role, bearer })
}
