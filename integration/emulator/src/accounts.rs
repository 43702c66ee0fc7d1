//! Accounts and regions: whose access key a call is signed with, and which registry therefore answers it.
//!
//! Nothing is configured by default. Every call is then of the account in the settings, whatever its access key and its
//! region are, and one registry answers all of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::iam::Policy;
use super::settings::millis;
use super::sts::{Identity, account_of};

/// Who may call, and which registries there are. [`Control::set_accounts`](super::Control::set_accounts) and
/// `PUT /_emulator/accounts` put one in the place of the last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Accounts {
    /// Whether each region has a registry of its own. A call is for the region in the credential scope of its signature
    /// (AWS Signature Version 4), and for the region in the settings if it has no signature.
    pub separate_regions: bool,
    /// Access keys by their ids. A key that is not named belongs to the account in the settings.
    pub keys: BTreeMap<String, AccessKey>,
    /// Roles by their ARNs, for `AssumeRole`.
    pub roles: BTreeMap<String, Role>,
    /// No session of a role is longer, whatever is asked for. AWS gives 15 minutes or more, which tests cannot wait for.
    #[serde(rename = "longest_session_ms", with = "millis")]
    pub longest_session: Duration,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            separate_regions: false,
            keys: BTreeMap::new(),
            roles: BTreeMap::new(),
            longest_session: Duration::from_hours(12),
        }
    }
}

/// Whose an access key is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessKey {
    /// Twelve digits.
    pub account: String,
    /// The ARN of the user or role. Without one, it is a user that is named as the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arn: Option<String>,
    /// Its identity-based policies. Without any, it may do everything; with one, only what they allow.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
}

/// A role that can be taken with `AssumeRole`. Its account is the one in its ARN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Role {
    /// Whom it trusts: ids of accounts, and ARNs of users and roles. If there are none, everybody.
    pub trusted: Vec<String>,
    /// The external id without which nobody is let in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// `MaxSessionDuration`, which is an hour on AWS unless somebody changes it.
    pub max_session_seconds: u64,
    /// As of [`AccessKey::policies`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<Policy>,
}

impl Default for Role {
    fn default() -> Self {
        Self { trusted: Vec::new(), external_id: None, max_session_seconds: 3600, policies: Vec::new() }
    }
}

impl Role {
    /// Trusts an account, a user or a role, in addition to those that it trusts already.
    #[must_use]
    pub fn trusting(mut self, whom: &str) -> Self {
        self.trusted.push(whom.to_owned());
        self
    }

    /// Asks for an external id.
    #[must_use]
    pub fn external_id(self, id: &str) -> Self {
        Self { external_id: Some(id.to_owned()), ..self }
    }

    /// Adds a policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }
}

impl Accounts {
    /// Gives each region a registry of its own.
    #[must_use]
    pub fn with_regions(self) -> Self {
        Self { separate_regions: true, ..self }
    }

    /// Adds an access key.
    #[must_use]
    pub fn with_key(mut self, id: &str, key: AccessKey) -> Self {
        self.keys.insert(id.to_owned(), key);
        self
    }

    /// Adds a role.
    #[must_use]
    pub fn with_role(mut self, arn: &str, role: Role) -> Self {
        self.roles.insert(arn.to_owned(), role);
        self
    }

    /// Whether there is anything that names an account.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.roles.is_empty()
    }

    /// The policies of who calls with an access key. If there are none, everything is allowed.
    pub(crate) fn policies(&self, access_key: &str, caller: &Identity) -> &[Policy] {
        match &caller.role {
            Some(role) => self.roles.get(role).map_or(&[], |role| &role.policies),
            None => self.keys.get(access_key).map_or(&[], |key| &key.policies),
        }
    }

    /// Says what is wrong, naming the member.
    pub fn check(&self) -> Result<(), String> {
        for (id, key) in &self.keys {
            check_account(&format!("keys.{id}.account"), &key.account)?;
            if let Some(arn) = &key.arn
                && account_of(arn) != key.account
            {
                return Err(format!("keys.{id}.arn `{arn}` is not of account {}", key.account));
            }
        }
        for arn in self.roles.keys() {
            if !arn.starts_with("arn:") || !arn.contains(":role/") {
                return Err(format!(
                    "roles names `{arn}`; give an ARN such as arn:aws:iam::111111111111:role/registry"
                ));
            }
            check_account(&format!("roles.{arn}: account"), account_of(arn))?;
        }
        Ok(())
    }
}

impl AccessKey {
    /// A key of an account, of a user that is named as the key.
    pub fn of(account: &str) -> Self {
        Self { account: account.to_owned(), arn: None, policies: Vec::new() }
    }

    /// Says which user or role it is.
    #[must_use]
    pub fn arn(self, arn: &str) -> Self {
        Self { arn: Some(arn.to_owned()), ..self }
    }

    /// Adds a policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policies.push(policy);
        self
    }
}

/// An account has twelve digits. `what` names it in the message.
pub(crate) fn check_account(what: &str, account: &str) -> Result<(), String> {
    if account.len() == 12 && account.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(());
    }
    Err(format!("{what} `{account}` is not an AWS account id; give twelve digits"))
}

/// Who calls, as the headers of the request say it. No signature is checked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Caller<'a> {
    /// Empty where there is no signature.
    pub(crate) access_key: &'a str,
    /// Of the credential scope.
    pub(crate) region: Option<&'a str>,
    /// Of temporary keys, from the header `X-Amz-Security-Token`.
    pub(crate) token: Option<&'a str>,
}

impl<'a> Caller<'a> {
    /// From `AWS4-HMAC-SHA256 Credential=<access key id>/<date>/<region>/<service>/aws4_request, ...`.
    pub(crate) fn parse(authorization: &'a str) -> Self {
        let Some((_, credential)) = authorization.split_once("Credential=") else { return Self::default() };
        let mut parts = credential.split([',', ' ']).next().unwrap_or_default().split('/');
        let access_key = parts.next().unwrap_or_default();
        Self { access_key, region: parts.nth(1).filter(|region| !region.is_empty()), token: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_names_the_key_and_the_region() {
        let header = "AWS4-HMAC-SHA256 Credential=AKIA/20300101/eu-west-1/servicediscovery/aws4_request, Signature=00";
        let caller = Caller::parse(header);
        assert_eq!((caller.access_key, caller.region), ("AKIA", Some("eu-west-1")));
        for (header, key) in [("Bearer token", ""), ("AWS4-HMAC-SHA256 Credential=AKIA, Signature=00", "AKIA")] {
            let caller = Caller::parse(header);
            assert_eq!((caller.access_key, caller.region), (key, None), "{header}");
        }
    }

    #[test]
    fn what_cannot_be_an_account_is_refused() {
        let wrong = Accounts::default().with_key("AKIA", AccessKey::of("12345"));
        assert!(wrong.check().unwrap_err().contains("keys.AKIA.account"));
        let foreign = AccessKey::of("111111111111").arn("arn:aws:iam::222222222222:user/other");
        assert!(Accounts::default().with_key("AKIA", foreign).check().is_err());
    }
}
