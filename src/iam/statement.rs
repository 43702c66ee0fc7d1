//! Statements and policies, in the words of IAM.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

use cloudmap::Operation;
use model::{ClusterId, ClusterSetId};

/// Where the registry is, and what is in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// AWS region.
    pub region: String,
    /// Id of the account.
    pub account: String,
    /// Id of the ClusterSet.
    pub clusterset: Option<ClusterSetId>,
    /// Id of the only cluster that has the role, and the one that it has next or had before; none if several have it.
    pub clusters: Vec<ClusterId>,
    /// UID of the namespace kube-system of a cluster that is in no ClusterSet.
    pub cluster_uid: Option<String>,
    /// Names of Cloud Map namespaces that are read. Imports also have ARNs of those that others share.
    pub namespaces: Vec<String>,
    /// Ids of Cloud Map namespaces in which services are created.
    pub namespace_ids: Vec<String>,
    /// Ids of Cloud Map services that others created.
    pub services: Vec<String>,
    /// Ids of the hosted zones of namespaces with DNS.
    pub hosted_zones: Vec<String>,
    /// Names of the ECS clusters whose tasks people stop.
    pub ecs_clusters: Vec<String>,
    /// The role of a registry in another account.
    pub role: Option<String>,
}

/// The partition of a region: ARNs begin with it.
pub fn partition(region: &str) -> &'static str {
    match region {
        region if region.starts_with("cn-") => "aws-cn",
        region if region.starts_with("us-gov-") => "aws-us-gov",
        region if region.starts_with("us-iso-") => "aws-iso",
        region if region.starts_with("us-isob-") => "aws-iso-b",
        region if region.starts_with("eu-isoe-") => "aws-iso-e",
        region if region.starts_with("us-isof-") => "aws-iso-f",
        region if region.starts_with("eusc-") => "aws-eusc",
        _ => "aws",
    }
}

/// The domain of AWS's endpoints in a region.
pub fn domain(region: &str) -> &'static str {
    match partition(region) {
        "aws-cn" => "amazonaws.com.cn",
        "aws-iso" => "c2s.ic.gov",
        "aws-iso-b" => "sc2s.sgov.gov",
        "aws-iso-e" => "cloud.adc-e.uk",
        "aws-iso-f" => "csp.hci.ic.gov",
        "aws-eusc" => "amazonaws.eu",
        _ => "amazonaws.com",
    }
}

impl Scope {
    /// ARN of something in Cloud Map.
    pub(super) fn arn(&self, what: &str) -> String {
        format!("arn:{}:servicediscovery:{}:{}:{what}", partition(&self.region), self.region, self.account)
    }
}

/// Whether a statement allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Effect {
    /// It allows.
    Allow,
    /// It denies, whatever others allow.
    Deny,
}

/// Values that IAM takes as one text or as a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values(pub Vec<String>);

impl Serialize for Values {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            several => several.serialize(serializer),
        }
    }
}

/// Operators, and in them condition keys with their values.
pub type Conditions = BTreeMap<String, BTreeMap<String, Values>>;

/// One statement.
#[must_use]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Statement {
    /// Its name, unique in a policy.
    pub sid: String,
    /// Whether it allows.
    pub effect: Effect,
    /// Who may, in trust policies: `Service`, `Federated` or `AWS`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub principal: BTreeMap<String, Values>,
    /// What: `servicediscovery:ListServices`.
    pub action: Values,
    /// On what; nothing in trust policies.
    #[serde(skip_serializing_if = "is_empty")]
    pub resource: Values,
    /// When.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub condition: Conditions,
}

fn is_empty(values: &Values) -> bool {
    values.0.is_empty()
}

fn texts(values: impl IntoIterator<Item = impl Into<String>>) -> Values {
    Values(values.into_iter().map(Into::into).collect())
}

impl Statement {
    /// A statement about Cloud Map, on everything.
    pub(super) fn calls(sid: &str, operations: &[Operation]) -> Self {
        let actions = operations.iter().map(|operation| format!("servicediscovery:{operation}"));
        Self::allow(sid, actions)
    }

    /// A statement on everything.
    pub fn allow(sid: &str, actions: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            sid: sid.to_owned(),
            effect: Effect::Allow,
            principal: BTreeMap::new(),
            action: texts(actions),
            resource: texts(["*"]),
            condition: Conditions::new(),
        }
    }

    pub(super) fn deny(self) -> Self {
        Self { effect: Effect::Deny, ..self }
    }

    /// Limits it to resources.
    pub(super) fn on(self, resources: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { resource: texts(resources), ..self }
    }

    /// Whom it trusts.
    pub fn by(self, kind: &str, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { principal: [(kind.to_owned(), texts(names))].into(), resource: Values::default(), ..self }
    }

    /// Lets it write only what is tagged with one of these values or has no such tag, in addition to the conditions that
    /// it has. Without values, it is not limited.
    pub(super) fn only_with_tag(self, key: &str, values: &[&str]) -> Self {
        if values.is_empty() { self } else { self.when("StringEqualsIfExists", key, values.iter().copied()) }
    }

    /// Cuts it into so many parts that together say the same: between its resources, or else between the values of a condition,
    /// of which any one is enough; `None` if it has fewer.
    fn cut(&self, count: usize) -> Option<Vec<Self>> {
        let named = |(number, part): (usize, Self)| match number {
            1 => part,
            number => Self { sid: format!("{}{number}", self.sid), ..part },
        };
        let chunks = |values: &Values| -> Option<Vec<Values>> {
            let size = values.0.len().div_ceil(count).max(1);
            (count <= values.0.len()).then(|| values.0.chunks(size).map(|chunk| Values(chunk.to_vec())).collect())
        };
        if count == 1 {
            return Some(vec![self.clone()]);
        }
        if self.resource.0.len() > 1 {
            let parts = chunks(&self.resource)?.into_iter().map(|resource| Self { resource, ..self.clone() });
            return Some((1..).zip(parts).map(named).collect());
        }
        // A statement that denies holds where all of its conditions do not.
        let any_is_enough =
            |operator: &str| self.effect == Effect::Allow && ["StringEquals", "StringLike"].contains(&operator);
        let (operator, key, values) = self
            .condition
            .iter()
            .filter(|(operator, _)| any_is_enough(operator))
            .flat_map(|(operator, keys)| keys.iter().map(move |(key, values)| (operator, key, values)))
            .max_by_key(|(_, _, values)| values.0.len())?;
        let parts = chunks(values)?.into_iter().map(|values| self.clone().when(operator, key, values.0));
        Some((1..).zip(parts).map(named).collect())
    }

    /// Limits it by a condition, in addition to those that it has.
    pub fn when(mut self, operator: &str, key: &str, values: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.condition.entry(operator.to_owned()).or_default().insert(key.to_owned(), texts(values));
        self
    }
}

/// A policy document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct Policy {
    version: &'static str,
    /// What it says.
    pub statement: Vec<Statement>,
}

impl Policy {
    /// The longest managed policy that IAM takes. White space does not count.
    pub const LONGEST: usize = 6144;

    /// A policy of these statements.
    pub fn new(statement: Vec<Statement>) -> Self {
        Self { version: "2012-10-17", statement }
    }

    /// How many characters it has for IAM.
    pub fn length(&self) -> usize {
        let text = serde_json::to_string(self).unwrap_or_default();
        text.chars().filter(|c| !c.is_whitespace()).count()
    }

    /// As few policies as these statements fit into, in their order. A statement that is too long alone is several.
    ///
    /// # Errors
    /// The name of a statement that is too long and cannot be cut.
    pub fn fitting(statements: Vec<Statement>) -> Result<Vec<Self>, String> {
        let mut policies: Vec<Self> = Vec::new();
        for statement in statements {
            for part in Self::parts(statement)? {
                match policies.last_mut() {
                    Some(last) => {
                        last.statement.push(part);
                        if last.length() > Self::LONGEST
                            && let Some(part) = last.statement.pop()
                        {
                            policies.push(Self::new(vec![part]));
                        }
                    }
                    None => policies.push(Self::new(vec![part])),
                }
            }
        }
        Ok(policies)
    }

    /// A statement as several that together say the same, each short enough for a policy.
    fn parts(statement: Statement) -> Result<Vec<Statement>, String> {
        for count in 1.. {
            let Some(parts) = statement.cut(count) else { break };
            if parts.iter().all(|part| Self::new(vec![part.clone()]).length() <= Self::LONGEST) {
                return Ok(parts);
            }
        }
        Err(statement.sid)
    }
}

/// Joins statements that differ in their actions only, under the name of the first one.
pub(super) fn joined(statements: impl IntoIterator<Item = Statement>) -> Vec<Statement> {
    let mut all: Vec<Statement> = Vec::new();
    for statement in statements {
        let same = |other: &&mut Statement| {
            (other.effect, &other.principal, &other.resource, &other.condition)
                == (statement.effect, &statement.principal, &statement.resource, &statement.condition)
        };
        match all.iter_mut().find(same) {
            Some(there) => {
                let known: BTreeSet<_> = there.action.0.iter().cloned().collect();
                there.action.0.extend(statement.action.0.into_iter().filter(|action| !known.contains(action)));
            }
            None => all.push(statement),
        }
    }
    all
}
