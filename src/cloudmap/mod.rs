//! AWS Cloud Map behind a narrow port: [`CloudMap`] has the verbs that this project needs, with errors sorted by what
//! the caller can do about them. Everything above speaks to the port, so that it also runs against a simulated
//! registry under simulated time.
//!
//! [`connect`] builds what the product runs on: the AWS adapter, counted, and limited to the request rates that AWS
//! allows, with a share that is the ledger's alone.

pub mod attributes;
mod aws;
#[cfg(test)]
pub(crate) mod fake;
mod limited;
mod limits;
mod metrics;
mod operation;
mod port;

use std::sync::Arc;

pub use aws::{AwsCloudMap, AwsSettings, ConnectError, answered};
pub use limited::{Counted, Limited};
pub use limits::{Limits, Rate, Rates};
pub use metrics::{Calls, Estimate, Metrics};
pub use operation::{Access, Operation, Plane};
pub use port::{
    Attributes, CloudMap, CreateService, Discovery, DnsConfig, DnsRecord, Error, ErrorKind, HealthCheck, Instance,
    Lane, Namespace, NamespaceKind, NewService, OperationId, OperationState, RecordType, Service, ServiceChange,
};

/// Cloud Map, and where it is.
#[expect(missing_debug_implementations, reason = "the port is a trait object")]
pub struct Connected {
    pub cloudmap: Arc<dyn CloudMap>,
    /// As the flag, the environment, a profile or instance metadata gave it.
    pub region: Option<String>,
}

/// Cloud Map as the product uses it: limited to `rates` and counted in `metrics`.
///
/// # Errors
/// If the settings cannot be used; no call is made yet.
pub async fn connect(settings: &AwsSettings, rates: &Rates, metrics: Metrics) -> Result<Connected, ConnectError> {
    let limits = Limits::new(rates, Some(metrics.clone()));
    let aws = AwsCloudMap::connect(settings, limits.clone()).await?;
    let region = aws.region();
    Ok(Connected { cloudmap: counted(aws, limits, metrics), region })
}

/// Any Cloud Map, limited and counted as the product's is.
pub fn limited(cloudmap: impl CloudMap, rates: &Rates, metrics: Metrics) -> Arc<dyn CloudMap> {
    let limits = Limits::new(rates, Some(metrics.clone()));
    counted(cloudmap, limits, metrics)
}

fn counted(cloudmap: impl CloudMap, limits: Arc<Limits>, metrics: Metrics) -> Arc<dyn CloudMap> {
    Arc::new(Limited::new(Counted::new(cloudmap, metrics), limits))
}
