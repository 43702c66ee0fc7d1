//! Fault rules: what goes wrong, for which calls, how often.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::dns::{DNS_QUERY, RESOLVER_QUERY, response_code};
use super::error::ApiError;
use super::replicas::Replica;
use super::requests::Subject;
use super::settings::millis;
use super::sts::ASSUME_ROLE;

/// What a rule does to a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Effect {
    /// The call takes this much longer.
    Latency {
        #[serde(rename = "add_ms", with = "millis")]
        add: Duration,
    },
    /// The call has no effect and answers with an error. `status` is 400 unless given; the SDK retries 500 and 503.
    Error {
        code: String,
        #[serde(default)]
        message: String,
        #[serde(default)]
        status: Option<u16>,
    },
    /// The connection is closed and the call has no effect.
    DropRequest,
    /// The call has its effect, and then the connection is closed without an answer.
    DropResponse,
    /// The operation that the call starts ends as `FAIL` and has no effect. Codes: `ACCESS_DENIED`, `INTERNAL_FAILURE`,
    /// `THROTTLED_REQUEST`, ...
    FailOperation {
        code: String,
        #[serde(default)]
        message: String,
    },
    /// The operation that the call starts takes this much longer.
    OperationLatency {
        #[serde(rename = "add_ms", with = "millis")]
        add: Duration,
    },
    /// `DiscoverInstances` gives each instance with this probability only.
    Partial { keep: f64 },
    /// Discovery answers with what the first replica knew when the rule was added.
    Stale,
}

/// A rule: every condition that is given has to hold. Rules are tried in the order in which they were added, and all
/// that match apply; of two errors the first counts.
///
/// DNS queries know the effects `Latency`, `DropRequest`, `Stale` and `Error`, whose code is then a response code such as
/// `SERVFAIL`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// An operation such as `RegisterInstance`; none is any. DNS queries have to be named: `DnsQuery`, `ResolverQuery`; so
    /// has `AssumeRole`, which is one of STS.
    #[serde(default)]
    pub operation: Option<String>,
    /// Part of the name of the service; its whole id does too. For DNS queries, part of the name that is asked for; for
    /// `AssumeRole`, part of the ARN of the role.
    #[serde(default)]
    pub service: Option<String>,
    /// Part of the instance id.
    #[serde(default)]
    pub instance: Option<String>,
    /// The access key id of the caller; for DNS queries, the address of the client.
    #[serde(default)]
    pub caller: Option<String>,
    /// With which probability a call that matches is hit.
    #[serde(default = "certain")]
    pub probability: f64,
    /// How many calls that would be hit are let through first.
    #[serde(default)]
    pub skip: u64,
    /// How many calls are hit before the rule is spent; none is no end.
    #[serde(default)]
    pub count: Option<u64>,
    pub effect: Effect,
}

fn certain() -> f64 {
    1.0
}

impl Fault {
    /// A rule for one operation, for every call of it.
    pub fn on(operation: &str, effect: Effect) -> Self {
        Self { operation: Some(operation.to_owned()), ..Self::on_any(effect) }
    }

    /// A rule for every call.
    pub fn on_any(effect: Effect) -> Self {
        Self {
            operation: None,
            service: None,
            instance: None,
            caller: None,
            probability: 1.0,
            skip: 0,
            count: None,
            effect,
        }
    }

    #[must_use]
    pub fn for_service(mut self, part: &str) -> Self {
        self.service = Some(part.to_owned());
        self
    }

    #[must_use]
    pub fn for_instance(mut self, part: &str) -> Self {
        self.instance = Some(part.to_owned());
        self
    }

    #[must_use]
    pub fn for_caller(mut self, access_key_id: &str) -> Self {
        self.caller = Some(access_key_id.to_owned());
        self
    }

    #[must_use]
    pub fn with_probability(mut self, probability: f64) -> Self {
        self.probability = probability;
        self
    }

    #[must_use]
    pub fn after(mut self, skip: u64) -> Self {
        self.skip = skip;
        self
    }

    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.count = Some(count);
        self
    }

    /// Says what is wrong with the rule, naming the field.
    pub fn check(&self) -> Result<(), String> {
        if let Some(operation) = &self.operation
            && !super::OPERATIONS.contains(&operation.as_str())
            && !self.is_for_queries()
            && operation != ASSUME_ROLE
        {
            return Err(format!("operation `{operation}` is none of Cloud Map's; leave it out for any operation"));
        }
        let probability = |field: &str, value: f64| {
            let valid = (0.0..=1.0).contains(&value);
            if valid { Ok(()) } else { Err(format!("{field} is {value}; give a number from 0 to 1")) }
        };
        probability("probability", self.probability)?;
        match &self.effect {
            Effect::Error { code, .. } if self.is_for_queries() && response_code(code).is_none() => {
                Err(format!("code `{code}` is no response code of DNS; give one such as SERVFAIL or REFUSED"))
            }
            Effect::FailOperation { .. } | Effect::OperationLatency { .. } | Effect::Partial { .. }
                if self.is_for_queries() =>
            {
                Err("DNS queries know the effects latency, error, drop_request and stale only".to_owned())
            }
            Effect::Partial { keep } => probability("keep", *keep),
            Effect::Error { status: Some(status), .. } if !(400..=599).contains(status) => {
                Err(format!("status is {status}; give an HTTP status from 400 to 599"))
            }
            _ => Ok(()),
        }
    }

    fn is_for_queries(&self) -> bool {
        self.operation.as_deref().is_some_and(is_query)
    }

    fn matches(&self, operation: &str, caller: &str, subject: &Subject) -> bool {
        let holds = |wanted: &Option<String>, holds: &dyn Fn(&str) -> bool| wanted.as_deref().is_none_or(holds);
        self.operation.as_deref().map_or(!is_query(operation) && operation != ASSUME_ROLE, |wanted| wanted == operation)
            && holds(&self.caller, &|wanted| wanted == caller)
            && holds(&self.service, &|part| subject.service_name.contains(part) || subject.service_id == part)
            && holds(&self.instance, &|part| subject.instance_id.contains(part))
    }
}

fn is_query(operation: &str) -> bool {
    [DNS_QUERY, RESOLVER_QUERY].contains(&operation)
}

/// What the rules make of one call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shaping {
    pub(crate) latency: Duration,
    pub(crate) operation_latency: Duration,
    pub(crate) error: Option<ApiError>,
    pub(crate) drop_request: bool,
    pub(crate) drop_response: bool,
    pub(crate) fail_operation: Option<(String, String)>,
    pub(crate) partial: Option<f64>,
    pub(crate) stale: Option<Arc<Replica>>,
}

#[derive(Clone, Debug)]
struct Rule {
    id: u64,
    fault: Fault,
    kept: Option<Arc<Replica>>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
    last_id: u64,
}

impl Faults {
    /// Adds a rule; `kept` is the replica that stale answers come from.
    pub(crate) fn add(&mut self, fault: Fault, kept: &Replica) -> u64 {
        self.last_id += 1;
        let kept = (fault.effect == Effect::Stale).then(|| Arc::new(kept.clone()));
        self.rules.push(Rule { id: self.last_id, fault, kept });
        self.last_id
    }

    pub(crate) fn remove(&mut self, id: u64) -> bool {
        let before = self.rules.len();
        self.rules.retain(|rule| rule.id != id);
        self.rules.len() < before
    }

    pub(crate) fn clear(&mut self) {
        self.rules.clear();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules that are not spent, with what is left of their counts.
    pub(crate) fn list(&self) -> Vec<(u64, Fault)> {
        self.rules.iter().map(|rule| (rule.id, rule.fault.clone())).collect()
    }

    pub(crate) fn select(&mut self, operation: &str, caller: &str, subject: &Subject, rng: &mut StdRng) -> Shaping {
        let mut shaping = Shaping::default();
        for rule in &mut self.rules {
            let fault = &mut rule.fault;
            if !fault.matches(operation, caller, subject) || !rng.random_bool(fault.probability) {
                continue;
            }
            if fault.skip > 0 {
                fault.skip -= 1;
                continue;
            }
            if let Some(count) = &mut fault.count {
                *count = count.saturating_sub(1);
            }
            match &fault.effect {
                Effect::Latency { add } => shaping.latency += *add,
                Effect::OperationLatency { add } => shaping.operation_latency += *add,
                Effect::Error { code, message, status } => {
                    let error = ApiError { status: status.unwrap_or(400), ..ApiError::new(code, message) };
                    shaping.error.get_or_insert(error);
                }
                Effect::DropRequest => shaping.drop_request = true,
                Effect::DropResponse => shaping.drop_response = true,
                Effect::FailOperation { code, message } => {
                    shaping.fail_operation.get_or_insert_with(|| (code.clone(), message.clone()));
                }
                Effect::Partial { keep } => shaping.partial = Some(*keep),
                Effect::Stale => shaping.stale.clone_from(&rule.kept),
            }
        }
        self.rules.retain(|rule| rule.fault.count != Some(0));
        shaping
    }
}
