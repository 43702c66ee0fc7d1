//! Namespaces that one account shares with another (AWS RAM).
//!
//! From the documentation of Cloud Map ("Shared AWS Cloud Map namespaces") and of the API: consumers name what is shared by
//! its ARN, and in discovery and for operations by `OwnerAccount`; an invitation has to be accepted; a share that ends takes
//! all access "to the namespace and any services and instances associated with it", to those that consumers made too; what is
//! shared with an account can't be shared by it.
//!
//! Where the documentation is silent:
//! - Quotas, counters, writes and faults are those of the owner's registry; request rates are those of the consumer's.
//! - Consumers may change and remove what others have made. RAM can limit that, and [`Share::actions`] can.
//! - Who names an ARN that is not shared is denied; who names `OwnerAccount` finds nothing.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::OPERATIONS;
use super::accounts::check_account;
use super::requests::Authorized;
use super::sts::account_of;

/// What consumers may do, unless a share says otherwise. The documentation of ECS names most of them as what its permission
/// `AWSRAMPermissionCloudMapECSFullPermission` is for. Nobody but ECS may tag what is shared
/// (aws-cloudformation/cloudformation-coverage-roadmap, issue 2472), and the namespace itself stays as it is.
const CONSUMER: [&str; 17] = [
    "CreateService",
    "DeleteService",
    "DeleteServiceAttributes",
    "DeregisterInstance",
    "DiscoverInstances",
    "DiscoverInstancesRevision",
    "GetInstance",
    "GetInstancesHealthStatus",
    "GetNamespace",
    "GetOperation",
    "GetService",
    "GetServiceAttributes",
    "ListInstances",
    "RegisterInstance",
    "UpdateInstanceCustomHealthStatus",
    "UpdateService",
    "UpdateServiceAttributes",
];

/// A namespace that is shared with an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// The ARN of the namespace.
    pub namespace: String,
    /// The account that it is shared with: twelve digits.
    pub with: String,
    /// Whether that account has accepted. Within an organization, AWS can do without.
    #[serde(default)]
    pub accepted: bool,
    /// The operations that the account may call. Without any, they are all that make sense for a consumer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<String>,
}

impl Share {
    /// An invitation.
    pub fn new(namespace: &str, with: &str) -> Self {
        Self { namespace: namespace.to_owned(), with: with.to_owned(), accepted: false, actions: Vec::new() }
    }

    /// Needs no acceptance, as within an organization.
    #[must_use]
    pub fn accepted(self) -> Self {
        Self { accepted: true, ..self }
    }

    /// Says what is wrong with the share, naming the member. That there is such a namespace is another matter.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_account("with", &self.with)?;
        if account_of(&self.namespace) == self.with {
            return Err(format!("namespace `{}` is owned by {}", self.namespace, self.with));
        }
        match self.actions.iter().find(|action| !OPERATIONS.contains(&action.as_str())) {
            Some(unknown) => Err(format!("actions names `{unknown}`, which is no operation of Cloud Map")),
            None => Ok(()),
        }
    }

    /// Whether it lets an account into a namespace.
    fn lets_in(&self, account: &str, namespace: &str) -> bool {
        self.accepted && self.with == account && self.namespace == namespace
    }

    fn allows(&self, operation: &str) -> bool {
        if self.actions.is_empty() {
            CONSUMER.contains(&operation)
        } else {
            self.actions.iter().any(|action| action == operation)
        }
    }
}

/// All shares, by number.
#[derive(Debug, Default)]
pub(crate) struct Shares {
    by_id: BTreeMap<u64, Share>,
    last_id: u64,
}

impl Shares {
    pub(crate) fn add(&mut self, share: Share) -> u64 {
        self.last_id += 1;
        self.by_id.insert(self.last_id, share);
        self.last_id
    }

    /// Whether there is such a share.
    pub(crate) fn accept(&mut self, id: u64) -> bool {
        self.by_id.get_mut(&id).map(|share| share.accepted = true).is_some()
    }

    /// Whether there was such a share.
    pub(crate) fn revoke(&mut self, id: u64) -> bool {
        self.by_id.remove(&id).is_some()
    }

    pub(crate) fn list(&self) -> Vec<(u64, Share)> {
        self.by_id.iter().map(|(id, share)| (*id, share.clone())).collect()
    }

    /// Whether an account may call an operation in a namespace.
    pub(crate) fn allow(&self, account: &str, namespace: &str, operation: &str) -> bool {
        self.by_id.values().any(|share| share.lets_in(account, namespace) && share.allows(operation))
    }

    /// The ARNs of the namespaces that are shared with an account.
    pub(crate) fn with<'a>(&'a self, account: &'a str) -> impl Iterator<Item = &'a str> {
        let shares = self.by_id.values().filter(move |share| share.lets_in(account, &share.namespace));
        shares.map(|share| share.namespace.as_str())
    }
}

impl Authorized {
    /// The ARN in a request that is not of this account.
    pub(crate) fn foreign_arn(&self, account: &str) -> Option<&str> {
        let named = [&self.namespace, &self.service, &self.tagged];
        named.into_iter().map(String::as_str).find(|name| name.starts_with("arn:") && account_of(name) != account)
    }
}
