//! What reaches beyond Kubernetes and Cloud Map.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use async_trait::async_trait;

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
    /// It does not accept the connection, or answers with another status than 200 to 399. The text is for the user.
    async fn probe(&self, at: SocketAddr, path: Option<&str>) -> Result<(), String>;

    /// The value of a query for Prometheus.
    ///
    /// # Errors
    /// It has none, or several, or Prometheus does not answer. The text is for the user.
    async fn query(&self, expression: &str) -> Result<f64, String>;
}
