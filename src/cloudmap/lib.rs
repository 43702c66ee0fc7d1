//! AWS Cloud Map behind a narrow port. [`Read`] and [`Write`] have the methods that this project needs, with errors sorted
//! by what the caller can do about them. A write needs a [`Permit`]. All other code uses the port, so it also runs against a simulated registry under
//! simulated time.
//!
//! [`connect`] builds what the product uses: the AWS adapter, with counted calls, limited to the request rates that AWS
//! allows. A part of each rate is only for the ledger.

#![warn(missing_docs)]

mod answers;
pub mod attributes;
mod aws;
#[cfg(any(test, feature = "testing"))]
#[allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a fake fails by panicking")]
pub mod fake;
mod limited;
mod limits;
mod listings;
mod looks;
mod metrics;
mod operation;
mod permit;
mod port;
pub mod quotas;
mod shared;

use std::sync::Arc;

pub use answers::{Answers, OUT_OF_REACH_AFTER};
pub use aws::{AwsCloudMap, AwsSettings, ConnectError, Endpoint, answered};
pub use aws::{chain, identified, is_denied, load, of_credentials, retries, unsigned, words};
pub use limited::{Counted, Limited};
pub use limits::{Limits, Rate, Rates};
pub use listings::Listings;
pub use looks::Looks;
pub use metrics::{Calls, Estimate, Metrics};
pub use operation::{Access, LATEST_EFFECT, Operation, Plane};
pub use permit::Permit;
pub use port::{
    Attributes, CreateService, Discovery, DnsConfig, DnsRecord, Error, ErrorKind, HealthCheck, Instance, Lane,
    Namespace, NamespaceKind, NewNamespace, NewService, OperationId, OperationState, Read, RecordType, Service,
    ServiceChange, Write,
};
pub use shared::{HttpName, NamespaceArn};

/// Cloud Map and its region.
#[expect(missing_debug_implementations, reason = "the port is a trait object")]
pub struct Connected {
    /// The port. Whoever only reads gets it as a [`Read`].
    pub cloudmap: Arc<dyn Write>,
    /// The region, from the flag, the environment, a profile or the instance metadata.
    pub region: Option<String>,
    /// Where calls go.
    pub endpoint: Endpoint,
}

/// Cloud Map as the product uses it: limited to `rates` and counted in `metrics`.
///
/// # Errors
/// The settings cannot be used. No call is made yet.
pub async fn connect(settings: &AwsSettings, rates: &Rates, metrics: Metrics) -> Result<Connected, ConnectError> {
    let limits = Limits::new(rates, Some(metrics.clone()));
    let aws = AwsCloudMap::connect(settings, limits.clone()).await?;
    let (region, endpoint) = (aws.region(), aws.endpoint().clone());
    Ok(Connected { cloudmap: counted(aws, limits, metrics), region, endpoint })
}

/// Limits and counts the calls of any Cloud Map, as [`connect`] does.
pub fn limited(cloudmap: impl Write, rates: &Rates, metrics: Metrics) -> Arc<dyn Write> {
    let limits = Limits::new(rates, Some(metrics.clone()));
    counted(cloudmap, limits, metrics)
}

fn counted(cloudmap: impl Write, limits: Arc<Limits>, metrics: Metrics) -> Arc<dyn Write> {
    Arc::new(Limited::new(Counted::new(cloudmap, metrics), limits))
}
