//! Makes missing namespaces.

use std::{sync::Arc, time::Duration};

use super::performer::Performer;
use crate::missing::{MissingNamespaces, VpcId};
use base::env;
use cloudmap::{Error, ErrorKind, Namespace, NewNamespace};

/// How long it may take, as in Terraform's provider: AWS documents no bound.
const PATIENCE: Duration = Duration::from_mins(5);
/// The type of target in operations that create a namespace.
const NAMESPACE: &str = "NAMESPACE";

impl Performer {
    /// Creates a namespace, waits until it exists, and gets it, because AWS allows few listings. `None` if only a
    /// listing can show it.
    ///
    /// Two clusters may do it at once. For AWS the second request is a duplicate of the first, or one for a name that exists.
    pub(super) async fn create_namespace(&self, name: &Arc<str>) -> Result<Option<Namespace>, Error> {
        let vpc = match &self.missing {
            MissingNamespaces::Leave => return Ok(None),
            MissingNamespaces::ApiOnly => None,
            MissingNamespaces::Private(vpc) => Some(vpc),
        };
        let made = self.make(name, vpc.map(VpcId::as_str)).await;
        let id = made.map_err(|error| if let Some(vpc) = vpc { with_remedy(error, vpc) } else { error })?;
        let Some(id) = id else { return Ok(None) };
        let found = self.cloudmap.get_namespace(&id).await;
        Ok(found.ok().filter(|found| found.name == *name))
    }

    /// The id of the namespace, if AWS says it.
    async fn make(&self, name: &str, vpc: Option<&str>) -> Result<Option<String>, Error> {
        let (creator, description) = (self.identity.creator_request_id(env::random()), self.identity.description());
        let (creator_request_id, description, tags) = (&*creator, &*description, &self.identity.tags());
        let new = NewNamespace { name, vpc, creator_request_id, description, tags };
        let permit = self.permit_in(name, new.operation())?;
        match self.cloudmap.create_namespace(&permit, &new).await {
            Ok(id) | Err(Error { kind: ErrorKind::Duplicate { operation: Some(id) }, .. }) => {
                Ok(self.finished(new.operation(), &id, PATIENCE).await?.remove(NAMESPACE))
            }
            Err(Error { kind: ErrorKind::AlreadyExists { id }, .. }) => Ok(id),
            Err(error) => Err(error),
        }
    }
}

/// What it means that an operation failed, by the codes in the documentation of Cloud Map's `Operation`.
pub(super) fn kind_of_failure(code: &str) -> ErrorKind {
    match code {
        "ACCESS_DENIED" => ErrorKind::AccessDenied,
        "CANNOT_CREATE_HOSTED_ZONE" => ErrorKind::NoZone,
        "THROTTLED_REQUEST" => ErrorKind::Throttled,
        _ => ErrorKind::Other,
    }
}

/// Says what is missing for a namespace with DNS. What AWS says names neither the flag nor the policy.
fn with_remedy(error: Error, vpc: &VpcId) -> Error {
    let remedy = match error.kind {
        ErrorKind::NoZone => format!(
            "; if {vpc} has a hosted zone with this name (`aws route53 list-hosted-zones-by-vpc`), delete it, or disassociate it from \
             the VPC; otherwise correct --create-dns-namespaces; or create the Cloud Map namespace yourself, or name another one"
        ),
        ErrorKind::AccessDenied => {
            "; Cloud Map makes the hosted zone with the permissions of the controller's role: grant what `cloudmap-mcs iam --mode \
             dns-namespaces` prints"
                .to_owned()
        }
        ErrorKind::InvalidInput => {
            format!("; {vpc} of --create-dns-namespaces must be a VPC of the registry's account and region")
        }
        _ => return error,
    };
    Error { message: error.message + &remedy, ..error }
}
