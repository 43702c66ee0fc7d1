//! CloudTrail events. `DiscoverInstances` and `DiscoverInstancesRevision` are data events: a trail has them only if its
//! selectors ask for the resource type `AWS::ServiceDiscovery::Namespace` or `AWS::ServiceDiscovery::Service`.

use k8s_openapi::jiff::Timestamp;

use super::{
    fields::{self, Object, get, nested, text},
    record::{How, Kind, Meaning, Read, Sighting},
    subject::Subject,
};

const SOURCE: &str = "servicediscovery.amazonaws.com";
const CALLS: [&str; 2] = ["DiscoverInstances", "DiscoverInstancesRevision"];
/// The mark of this program and its controllers in the user agent of their calls.
const OURS: &str = "app/cloudmap-mcs";

/// Who called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Principal {
    /// A role, and the session that used it.
    Role { arn: String, bearer: Bearer },
    /// A user, the account itself, a federated user.
    Other(String),
    /// A service of AWS on somebody's behalf.
    Service(String),
    /// A controller or command of this project.
    Ours(String),
}

/// The session of a role.
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

/// The identity of the caller in an event.
#[derive(Debug, Default)]
struct Identity {
    r#type: Option<String>,
    arn: Option<String>,
    principal_id: Option<String>,
    account_id: Option<String>,
    invoked_by: Option<String>,
    /// The ARN of the role.
    issuer: Option<String>,
}

impl Identity {
    fn of(object: &Object) -> Self {
        let session = nested(object, "sessioncontext");
        let issuer = session.and_then(|session| nested(&session, "sessionissuer"));
        Self {
            r#type: text(object, "type"),
            arn: text(object, "arn"),
            principal_id: text(object, "principalid"),
            account_id: text(object, "accountid"),
            invoked_by: text(object, "invokedby"),
            issuer: issuer.and_then(|issuer| text(&issuer, "arn")),
        }
    }
}

/// Reads an event; `None` if the object is none.
pub(super) fn read(object: &Object, at: Option<Timestamp>, subject: &Subject) -> Option<Read> {
    let of = |said| Some(Read { kind: Kind::CloudTrail, at, said });
    if get(object, "digeststarttime").is_some() {
        return of(Meaning::Nothing);
    }
    let (source, name) = (text(object, "eventsource"), text(object, "eventname"));
    let is_call = name.as_deref().is_some_and(|name| CALLS.contains(&name));
    if !is_call && (get(object, "eventname").is_none() || get(object, "eventsource").is_none()) {
        return None;
    }
    if source.as_deref().is_some_and(|source| source != SOURCE) || (name.is_some() && !is_call) {
        return of(Meaning::Other);
    }
    let parameters = nested(object, "requestparameters");
    let named = parameters.and_then(|of| text(&of, "namespacename").zip(text(&of, "servicename")));
    let Some((namespace, service)) = named else { return of(Meaning::Unnamed) };
    if !subject.is(&namespace, &service) {
        return of(Meaning::Other);
    }
    let source = text(object, "sourceipaddress");
    let agent = text(object, "useragent").unwrap_or_default();
    let identity = nested(object, "useridentity").map(|identity| Identity::of(&identity)).unwrap_or_default();
    let Some(principal) = principal(identity, source.as_deref(), &agent) else {
        return of(Meaning::Named("somebody calls DiscoverInstances for the name, and the event has no userIdentity"));
    };
    of(Meaning::Use(Box::new(Sighting {
        address: source.as_deref().and_then(fields::address),
        principal: Some(principal),
        ..Sighting::new(How::DiscoverInstances, at)
    })))
}

fn principal(identity: Identity, source: Option<&str>, agent: &str) -> Option<Principal> {
    let Identity { r#type, arn, principal_id, account_id, invoked_by, issuer } = identity;
    if r#type.as_deref() == Some("AWSService") {
        return invoked_by.or_else(|| source.map(str::to_owned)).map(Principal::Service);
    }
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
