//! The guard of a Cutover: looks whether what the steps do to the traffic is good.
//!
//! The controller asks ([`Question`]), a task looks ([`watcher`]) with what reaches beyond Kubernetes and Cloud Map
//! ([`outside`]), and [`judge`] makes a [`Judgement`] of what it saw. The guard decides nothing: [`plan`](super::plan()) does.

pub mod outside;

mod judge;
mod net;
mod pods;
mod prometheus;
mod watcher;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
};

use axum::http::uri::PathAndQuery;
pub use net::Net;
pub use outside::{Failure, Outside};
pub use pods::Pods;
pub use watcher::{Watcher, spawn};

use api::CutoverGuard;
use model::{Excerpt, ServiceKey};

/// So many pods are probed at most, those that are registered first.
pub const MOST_PODS: usize = 10;

/// What a guard looks at, as the spec of its Cutover has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Guard {
    /// The HTTP path that pods have to answer; without it, they have to accept a TCP connection.
    pub path: Option<String>,
    /// The port of the pods, which the Service has to have; without it, the one with which they are registered.
    pub port: Option<u16>,
    /// What Prometheus is asked.
    pub query: Option<Query>,
}

/// A query for Prometheus.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// The query.
    pub expression: String,
    /// The highest good value.
    pub max: f64,
}

impl Guard {
    /// What a spec says.
    ///
    /// # Errors
    /// The CRD is another one, and it is invalid. The text names the field and the remedy.
    pub fn read(spec: &CutoverGuard) -> Result<Self, String> {
        let CutoverGuard { path, port, query, max } = spec;
        let is_path = |path: &str| path.starts_with('/') && path.parse::<PathAndQuery>().is_ok();
        if let Some(path) = path.as_deref().filter(|path| !is_path(path)) {
            return Err(format!("spec.guard.path is {}: write a path such as /healthz", Excerpt(path)));
        }
        let port = port.map(|port| {
            let port = u16::try_from(port).ok().filter(|port| *port > 0);
            port.ok_or_else(|| "spec.guard.port is no port: write a number from 1 to 65535".to_owned())
        });
        let query = match (query, max) {
            (None, None) => None,
            (Some(expression), Some(max)) => {
                let max = max
                    .parse()
                    .ok()
                    .filter(|max: &f64| max.is_finite())
                    .ok_or_else(|| format!("spec.guard.max is {}: write a number such as 0.01", Excerpt(max)))?;
                Some(Query { expression: expression.clone(), max })
            }
            _ => return Err("spec.guard has only one of query and max: write both, or none".to_owned()),
        };
        Ok(Self { path: path.clone(), port: port.transpose()?, query })
    }
}

/// What a guard is asked.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    /// The share that is in force, in percent; `None` before the first step.
    pub share: Option<u8>,
    /// What it looks at.
    pub guard: Guard,
    /// The Cloud Map services.
    pub services: Vec<Registered>,
    /// Where the ready pods are probed, [`MOST_PODS`] of them at most.
    pub pods: BTreeSet<SocketAddr>,
}

/// What is registered in a Cloud Map service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registered {
    /// The name by which `DiscoverInstances` knows the namespace.
    pub http_name: Arc<str>,
    /// The name of the service.
    pub service: Arc<str>,
    /// Its DNS name, if that has addresses.
    pub domain: Option<String>,
    /// The instances of registered pods.
    pub instances: BTreeSet<Arc<str>>,
}

impl Question {
    /// Whether a judgement about `other` is one about this: pods come and go, and another share has to be looked at anew.
    pub fn is_about(&self, other: &Self) -> bool {
        self.share == other.share && self.guard == other.guard
    }
}

/// The judgement of a guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// All is well.
    Passed,
    /// It cannot say yet. The text completes "because": no sentence.
    Unknown(String),
    /// Something is wrong for so long that it is no accident. The text is no sentence.
    Failed(String),
}

/// The question to the guard of each Cutover. A Cutover that is not in it is not looked at.
pub type Questions = BTreeMap<ServiceKey, Arc<Question>>;

/// The last judgement, with its question.
pub type Judgements = BTreeMap<ServiceKey, (Arc<Question>, Judgement)>;

/// The judgement about a question.
pub fn judgement(judgements: &Judgements, key: &ServiceKey, question: &Question) -> Judgement {
    match judgements.get(key) {
        Some((asked, judgement)) if question.is_about(asked) => judgement.clone(),
        _ => Judgement::Unknown("it has not looked at this share yet".to_owned()),
    }
}
