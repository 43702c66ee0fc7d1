//! Calls that show what a role may do, and that can change nothing: reads, and writes that AWS has to refuse even to those
//! who may write. If the refusal is about the arguments, the role has the permission.
//!
//! Each write has arguments that Cloud Map's API model rules out: ids that AWS never gives out, instance ids with a
//! character that no instance can have, and more tags than a resource can have. In which order AWS looks at arguments and at
//! permissions is not documented, so an answer that only says that the arguments are invalid does not prove a permission.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::time::timeout;

use super::{Statement, statement::Values};
use cloudmap::{
    Access, CreateService, Error, ErrorKind, HttpName, Instance, Lane, NamespaceArn, NewNamespace, NewService,
    Operation, OperationId, Permit, ServiceChange, quotas,
};

/// AWS gives out ids of letters and digits after the prefix.
const NO_NAMESPACE: &str = "ns-cloudmap-mcs-doctor";
const NO_SERVICE: &str = "srv-cloudmap-mcs-doctor";
const NO_VPC: &str = "vpc-cloudmap-mcs-doctor";
const NO_OPERATION: &str = "cloudmap-mcs-doctor";
/// Instance ids have no spaces.
const NO_INSTANCE: &str = "cloudmap-mcs doctor";
/// As many tags as a request can have, and far more than a resource can have.
const TOO_MANY_TAGS: usize = 200;
const _: () = assert!(TOO_MANY_TAGS > quotas::TAGS);

const PATIENCE: Duration = Duration::from_secs(10);

/// What is there, on which reads and refused writes are tried.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Known {
    /// A service with a tag, by the key of the tag.
    pub tagged: BTreeMap<String, Arc<str>>,
    /// Id of the ledger's namespace.
    pub ledger: Option<Arc<str>>,
    /// The ARN of any namespace of the account.
    pub arn: Option<Arc<str>>,
}

/// What a call says about a permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The role has it.
    Allowed,
    /// The arguments were refused, and IAM may not have been asked.
    NotDenied,
    /// The role lacks it, in AWS's words.
    Denied(String),
    /// It is not known, and why.
    Unknown(String),
}

/// The operations that a statement allows.
pub fn operations(statement: &Statement) -> Vec<Operation> {
    let named = |action: &String| {
        let name = action.strip_prefix("servicediscovery:")?;
        Operation::ALL.iter().copied().find(|operation| operation.name() == name)
    };
    statement.action.0.iter().filter_map(named).collect()
}

/// Tries whether the role has the permission for an operation that a statement gives. Changes nothing.
pub async fn try_out(
    cloudmap: &dyn cloudmap::Write,
    permit: &Permit,
    statement: &Statement,
    operation: Operation,
    known: &Known,
) -> Answer {
    let tag = value_of(statement, "aws:ResourceTag/").map(|(key, _)| key);
    let service = tag.and_then(|key| known.tagged.get(key)).or_else(|| match tag {
        None => known.tagged.values().next(),
        Some(_) => None,
    });
    let target = service.map_or(NO_SERVICE, |id| &**id);
    // Nobody has a permission by tag on something that does not exist.
    let inconclusive = tag.is_some() && (service.is_none() || only_on_nothing(operation));
    let Ok(answer) = timeout(PATIENCE, call(cloudmap, permit, statement, operation, known, target)).await else {
        return Answer::Unknown(format!("no answer within {} s", PATIENCE.as_secs()));
    };
    match answer {
        Err(None) => Answer::Unknown("there is no namespace or service yet on which it could be tried".to_owned()),
        Ok(()) => Answer::Allowed,
        Err(Some(error)) => match error.kind {
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists { .. }
            | ErrorKind::Duplicate { .. }
            | ErrorKind::InUse
            | ErrorKind::LimitExceeded => Answer::Allowed,
            ErrorKind::InvalidInput => Answer::NotDenied,
            ErrorKind::AccessDenied if inconclusive => {
                Answer::Unknown("it holds for services with a tag, and could be tried on none".to_owned())
            }
            ErrorKind::AccessDenied => Answer::Denied(error.message),
            ErrorKind::Throttled
            | ErrorKind::NoCredentials
            | ErrorKind::NoPermit
            | ErrorKind::NoZone
            | ErrorKind::Unknown
            | ErrorKind::Other => Answer::Unknown(error.message),
        },
    }
}

/// Writes that AWS would carry out on a service that exists.
const fn only_on_nothing(operation: Operation) -> bool {
    matches!(operation, Operation::DeleteService | Operation::UpdateService)
}

/// The first condition key with a prefix, without it, and its value.
fn value_of<'a>(statement: &'a Statement, prefix: &str) -> Option<(&'a str, &'a str)> {
    let mut all = statement.condition.values().flatten();
    all.find_map(|(key, Values(values))| Some((key.strip_prefix(prefix)?, values.first()?.as_str())))
}

/// A read of a namespace that another account may share. `Err(None)`: the call cannot be made.
async fn by_arn(
    cloudmap: &dyn cloudmap::Write,
    operation: Operation,
    arn: NamespaceArn<'_>,
) -> Result<(), Option<Error>> {
    // Also if AWS says that it does not exist: an id that nobody gave out would be another matter.
    let hidden = |error: Error| match error.kind {
        ErrorKind::NotFound => Error { kind: ErrorKind::AccessDenied, ..error },
        _ => error,
    };
    let namespace = cloudmap.get_namespace(arn.as_str()).await.map_err(hidden)?;
    match operation {
        Operation::DiscoverInstances => {
            let (place, none) = (namespace.in_discovery(), BTreeMap::new());
            cloudmap.discover_instances(place, ledger::CLUSTERS, &none, Lane::Instances).await.map(drop)?;
        }
        Operation::GetInstancesHealthStatus => {
            let services = cloudmap.list_services(arn.as_str(), Lane::Instances).await?;
            cloudmap.unhealthy_instances(&services.first().ok_or(None)?.id).await.map(drop)?;
        }
        _ => {}
    }
    Ok(())
}

/// `Err(None)`: the call cannot be made.
async fn call(
    cloudmap: &dyn cloudmap::Write,
    permit: &Permit,
    statement: &Statement,
    operation: Operation,
    known: &Known,
    service: &str,
) -> Result<(), Option<Error>> {
    let wanted = value_of(statement, "aws:RequestTag/").map(|(key, value)| (key.to_owned(), value.to_owned()));
    let tags: BTreeMap<String, String> = wanted.clone().into_iter().collect();
    let padding = (tags.len()..TOO_MANY_TAGS).map(|n| (format!("cloudmap-mcs-doctor-{n}"), String::new()));
    let too_many: BTreeMap<_, _> = tags.clone().into_iter().chain(padding).collect();
    let shared: Vec<_> = statement.resource.0.iter().filter_map(|it| NamespaceArn::parse(it)).collect();
    if !shared.is_empty() && operation.access() == Access::Read {
        for arn in shared {
            by_arn(cloudmap, operation, arn).await?;
        }
        return Ok(());
    }
    let namespace = known.ledger.as_deref().filter(|_| tags.contains_key(ledger::CLUSTERSET_TAG));
    let nothing =
        known.arn.as_deref().and_then(|arn| Some(format!("{}:service/{NO_SERVICE}", arn.rsplit_once(':')?.0)));
    match operation {
        // The first call of all: whoever comes here has its answer. AWS allows few of them.
        Operation::ListNamespaces => {}
        Operation::GetNamespace => cloudmap.get_namespace(NO_NAMESPACE).await.map(drop)?,
        Operation::ListServices => {
            cloudmap.list_services(namespace.unwrap_or(NO_NAMESPACE), Lane::Instances).await.map(drop)?;
        }
        Operation::GetService => cloudmap.get_service(NO_SERVICE, Lane::Instances).await.map(drop)?,
        Operation::GetOperation => {
            cloudmap.operation(&OperationId(NO_OPERATION.into()), Lane::Instances).await.map(drop)?;
        }
        Operation::ListInstances => cloudmap.list_instances(NO_SERVICE).await.map(drop)?,
        Operation::GetInstancesHealthStatus => cloudmap.unhealthy_instances(service).await.map(drop)?,
        Operation::ListTagsForResource => cloudmap.list_tags(known.arn.as_deref().ok_or(None)?).await.map(drop)?,
        Operation::DiscoverInstances => {
            let (_, name) = value_of(statement, "servicediscovery:NamespaceName").unwrap_or(("", NO_NAMESPACE));
            let (name, none) = (name.trim_end_matches('*'), BTreeMap::new());
            cloudmap
                .discover_instances(HttpName::own(name), ledger::CLUSTERS, &none, Lane::Instances)
                .await
                .map(drop)?;
        }
        Operation::CreateHttpNamespace | Operation::CreatePrivateDnsNamespace => {
            let (_, value) = wanted.unwrap_or_default();
            let new = NewNamespace {
                name: &ledger::namespace_name(value.trim_start_matches("clusterset/")),
                vpc: (operation == Operation::CreatePrivateDnsNamespace).then_some(NO_VPC),
                creator_request_id: NO_OPERATION,
                description: NO_OPERATION,
                tags: &too_many,
            };
            cloudmap.create_namespace(permit, &new).await.map(drop)?;
        }
        Operation::CreateService => {
            let new = NewService {
                namespace_id: namespace.unwrap_or(NO_NAMESPACE).into(),
                name: ledger::CLUSTERS.into(),
                creator_request_id: NO_OPERATION.to_owned(),
                description: None,
                dns: None,
                custom_health_check: false,
                tags: too_many,
            };
            match cloudmap.create_service(permit, &new, Lane::Instances).await? {
                CreateService::Created(_) | CreateService::Exists { .. } => {}
            }
        }
        Operation::TagResource => cloudmap.tag(permit, nothing.as_deref().ok_or(None)?, &tags).await?,
        Operation::RegisterInstance => {
            let instance = Instance { id: NO_INSTANCE.into(), attributes: BTreeMap::new() };
            cloudmap.register_instance(permit, service, &instance, Lane::Instances).await.map(drop)?;
        }
        Operation::DeregisterInstance => {
            cloudmap.deregister_instance(permit, service, NO_INSTANCE, Lane::Instances).await.map(drop)?;
        }
        Operation::UpdateInstanceCustomHealthStatus => {
            cloudmap.set_custom_health(permit, service, NO_INSTANCE, true).await?;
        }
        Operation::UpdateService => {
            let change = ServiceChange { description: None, records: Vec::new(), health_check: None };
            cloudmap.update_service(permit, NO_SERVICE, &change).await.map(drop)?;
        }
        Operation::DeleteService => cloudmap.delete_service(permit, NO_SERVICE).await?,
        Operation::DeleteNamespace => cloudmap.delete_namespace(permit, NO_NAMESPACE).await.map(drop)?,
    }
    Ok(())
}
