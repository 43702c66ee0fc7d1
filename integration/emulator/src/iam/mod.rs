//! IAM: whether the policies of a user or role allow a call.
//!
//! Identity-based policies only. The rules are those of the IAM User Guide ("Policy evaluation logic", "IAM JSON policy
//! elements"), and what each action takes is in the service authorization reference. What neither says is marked where it
//! is decided. A document is refused if it has something that is not evaluated here, so that no test passes by mistake:
//! policy variables, other operators, other global condition keys.

mod condition;
mod document;
mod reference;
mod request;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use request::Ask;

use document::Statement;

use super::error::ApiError;
use super::sts::Identity;

/// A policy document, as `iam:PutRolePolicy` takes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Value", into = "Value")]
pub struct Policy {
    document: Value,
    statements: Vec<Statement>,
}

impl Policy {
    /// Reads the JSON of a document.
    ///
    /// # Errors
    /// What IAM would refuse, and what is not evaluated here.
    pub fn parse(text: &str) -> Result<Self, String> {
        let document: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        Self::try_from(document)
    }
}

impl TryFrom<Value> for Policy {
    type Error = String;

    fn try_from(document: Value) -> Result<Self, String> {
        let statements = document::statements(&document)?;
        Ok(Self { document, statements })
    }
}

impl From<Policy> for Value {
    fn from(policy: Policy) -> Self {
        policy.document
    }
}

/// Whether policies allow what a call asks for: every one of its resources has to be allowed. "An explicit deny in any of
/// these policies overrides the allow."
///
/// # Errors
/// `AccessDeniedException` with the message that the IAM User Guide shows ("Troubleshoot access denied error messages").
pub(crate) fn decide(policies: &[Policy], caller: &Identity, ask: &Ask) -> Result<(), ApiError> {
    for target in &ask.targets {
        let applies = |allow: bool| {
            let mut statements = policies.iter().flat_map(|policy| &policy.statements);
            statements.any(|statement| statement.allow == allow && statement.applies(ask, target))
        };
        let why = if applies(false) {
            "with an explicit deny in an identity-based policy".to_owned()
        } else if applies(true) {
            continue;
        } else {
            format!("because no identity-based policy allows the {} action", ask.action)
        };
        return Err(denied(caller, &ask.action, &target.arn, &why));
    }
    Ok(())
}

/// The error with the reason `why`.
pub(crate) fn denied(caller: &Identity, action: &str, resource: &str, why: &str) -> ApiError {
    let message = format!("User: {} is not authorized to perform: {action} on resource: {resource} {why}", caller.arn);
    ApiError::new("AccessDeniedException", message)
}

/// Whether text fits a pattern in which `*` is any text and `?` any one character.
fn fits(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where the last star was, and how far it reaches: if the rest does not fit, it reaches one further.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match star {
                Some((at, reach)) => {
                    (p, t) = (at + 1, reach + 1);
                    star = Some((at, reach + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The six parts of an ARN.
fn parts(arn: &str) -> Option<[&str; 6]> {
    let parts: Vec<&str> = arn.splitn(6, ':').collect();
    (parts[0] == "arn").then(|| parts.try_into().ok()).flatten()
}

/// Whether an ARN fits a pattern. "You can use wildcard characters within any ARN segment": none reaches over a colon
/// but in the last one.
fn arn_fits(pattern: &str, arn: &str) -> bool {
    let (Some(pattern), Some(arn)) = (parts(pattern), parts(arn)) else { return false };
    pattern.iter().zip(arn).all(|(pattern, part)| fits(pattern, part))
}

#[cfg(test)]
mod tests;
