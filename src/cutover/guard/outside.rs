//! What reaches beyond Kubernetes and Cloud Map.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use async_trait::async_trait;

/// Why a probe failed. Everybody who may write a Cutover can read it, so it has no part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It does not accept the connection.
    Refused,
    /// There is no answer in time, or none that is HTTP.
    NoAnswer,
    /// It answers with another status than 200 to 399.
    WrongStatus,
}

impl Failure {
    /// A text that completes "because".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "it refused the connection",
            Self::NoAnswer => "it did not answer",
            Self::WrongStatus => "the status of its answer is not 200 to 399",
        }
    }
}

/// What guards ask of DNS, pods and Prometheus. Each call ends within some seconds.
#[async_trait]
pub trait Outside: Send + Sync + 'static {
    /// The addresses of a DNS name.
    ///
    /// # Errors
    /// There are none, or no answer. The text is for the user.
    async fn resolve(&self, name: &str) -> Result<BTreeSet<IpAddr>, String>;

    /// Connects to a pod by TCP, or sends it a GET for `path`.
    ///
    /// # Errors
    /// The kind of the failure.
    async fn probe(&self, at: SocketAddr, path: Option<&str>) -> Result<(), Failure>;

    /// The value of a query for Prometheus.
    ///
    /// # Errors
    /// It has none, or several, or Prometheus does not answer. The text is for the user.
    async fn query(&self, expression: &str) -> Result<f64, String>;
}
