//! Policy documents: what they may contain, and when a statement applies.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::condition::Condition;
use super::request::{Ask, Target};
use super::{arn_fits, fits, parts};

/// One statement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Statement {
    pub(super) allow: bool,
    /// In lower case: "The prefix and the action name are case insensitive."
    actions: Patterns,
    resources: Patterns,
    conditions: Vec<Condition>,
}

/// `Action` or `NotAction`, `Resource` or `NotResource`.
#[derive(Clone, Debug, PartialEq)]
struct Patterns {
    not: bool,
    any_of: Vec<String>,
}

impl Patterns {
    fn apply(&self, fits: impl Fn(&str) -> bool) -> bool {
        self.any_of.iter().any(|pattern| fits(pattern)) != self.not
    }
}

impl Statement {
    /// Whether it is about this action on this resource. All of its conditions have to hold.
    pub(super) fn applies(&self, ask: &Ask, target: &Target) -> bool {
        let action = ask.action.to_ascii_lowercase();
        self.actions.apply(|pattern| fits(pattern, &action))
            && self.resources.apply(|pattern| pattern == "*" || arn_fits(pattern, &target.arn))
            && self.conditions.iter().all(|condition| condition.holds(ask.values(target, &condition.key)))
    }

    fn parse(statement: &Value) -> Result<Self, String> {
        let members = object("Statement", statement)?;
        known("Statement", members, &["Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"])?;
        let allow = match members.get("Effect").and_then(Value::as_str) {
            Some("Allow") => true,
            Some("Deny") => false,
            _ => return Err("Effect must be Allow or Deny".to_owned()),
        };
        let mut actions = patterns(members, "Action", "NotAction")?;
        for action in &mut actions.any_of {
            action.make_ascii_lowercase();
            let vendor = action.split_once(':').is_some_and(|(vendor, _)| !vendor.is_empty() && !vendor.contains('*'));
            if !vendor && action != "*" {
                return Err(format!(
                    "action `{action}` has no vendor; write one such as servicediscovery:ListServices"
                ));
            }
        }
        let resources = patterns(members, "Resource", "NotResource")?;
        if let Some(wrong) = resources.any_of.iter().find(|pattern| *pattern != "*" && parts(pattern).is_none()) {
            return Err(format!("resource `{wrong}` must be in ARN format or \"*\""));
        }
        let mut conditions = Vec::new();
        if let Some(operators) = members.get("Condition") {
            for (operator, keys) in object("Condition", operators)? {
                for (key, values) in object(operator, keys)? {
                    conditions.push(Condition::parse(operator, key, texts(key, values)?)?);
                }
            }
        }
        Ok(Self { allow, actions, resources, conditions })
    }
}

/// The statements of a document.
pub(super) fn statements(document: &Value) -> Result<Vec<Statement>, String> {
    let members = object("the policy", document)?;
    known("the policy", members, &["Version", "Id", "Statement"])?;
    if members.get("Version").and_then(Value::as_str) != Some("2012-10-17") {
        return Err("Version must be 2012-10-17".to_owned());
    }
    let all = match members.get("Statement") {
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => return Err("Statement is missing".to_owned()),
    };
    let mut sids = BTreeSet::new();
    for sid in all.iter().filter_map(|statement| statement.get("Sid")) {
        let sid = sid.as_str().ok_or("Sid must be text")?;
        if !sid.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("Sid `{sid}` must be letters and digits"));
        }
        if !sids.insert(sid) {
            return Err(format!("Sid `{sid}` is there twice"));
        }
    }
    all.iter().map(Statement::parse).collect()
}

fn object<'a>(what: &str, value: &'a Value) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("{what} must be an object"))
}

fn known(what: &str, members: &Map<String, Value>, names: &[&str]) -> Result<(), String> {
    match members.keys().find(|name| !names.contains(&name.as_str())) {
        Some(unknown) => Err(format!("{what} has `{unknown}`, which identity-based policies do not have")),
        None => Ok(()),
    }
}

fn patterns(members: &Map<String, Value>, name: &str, opposite: &str) -> Result<Patterns, String> {
    let (not, values) = match (members.get(name), members.get(opposite)) {
        (Some(values), None) => (false, values),
        (None, Some(values)) => (true, values),
        _ => return Err(format!("a statement has either {name} or {opposite}")),
    };
    let any_of = texts(name, values)?;
    if any_of.is_empty() { Err(format!("{name} is empty")) } else { Ok(Patterns { not, any_of }) }
}

/// One text or several. Truth values and numbers are as good as the text that they are written as.
fn texts(what: &str, values: &Value) -> Result<Vec<String>, String> {
    let all = match values {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let text = |value: &Value| match value {
        Value::String(text) if text.contains("${") => {
            Err(format!("{what} has the policy variable `{text}`, and those are not evaluated here"))
        }
        Value::String(text) => Ok(text.clone()),
        Value::Bool(_) | Value::Number(_) => Ok(value.to_string()),
        _ => Err(format!("{what} must be text or a list of text")),
    };
    all.iter().map(text).collect()
}
