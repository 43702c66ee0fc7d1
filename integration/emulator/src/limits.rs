//! Request rates: a token bucket for each operation. "A token bucket per account per Region" is what the documentation
//! says of the discovery calls, with their figures; the rates of the control plane are unpublished.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::settings::EmulatorSettings;

/// Calls a second that an operation takes on the long run, and at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub per_second: f64,
    pub burst: f64,
}

/// `DiscoverInstances` 1,000 a second, burst 2,000 \[L-514A639A, L-76CF203B\]; `DiscoverInstancesRevision` 3,000 a second
/// \[L-0BA10AAE\]; the control plane as the limiter of the AWS Cloud Map MCS Controller has it ("default limits"), and
/// operations that it does not name as their nearest relatives.
pub(crate) fn default_rates() -> BTreeMap<String, Rate> {
    super::OPERATIONS
        .iter()
        .map(|operation| {
            let (per_second, burst) = match *operation {
                "DiscoverInstances" => (1000.0, 2000.0),
                "DiscoverInstancesRevision" => (3000.0, 3000.0),
                "GetOperation" => (100.0, 200.0),
                "ListServices" | "ListOperations" => (2.0, 10.0),
                operation if operation.contains("Namespace") && operation != "GetNamespace" => (0.5, 5.0),
                operation if operation.contains("Instance") => (50.0, 100.0),
                _ => (5.0, 50.0),
            };
            ((*operation).to_owned(), Rate { per_second, burst })
        })
        .collect()
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    filled_at: Duration,
}

/// The state of the buckets. `now` never goes back: an earlier one counts as no time passed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Limits {
    buckets: HashMap<&'static str, Bucket>,
}

impl Limits {
    /// Takes a token, or gives the error that AWS gives where there is none.
    pub(crate) fn admit(
        &mut self,
        now: Duration,
        operation: &'static str,
        settings: &EmulatorSettings,
    ) -> Result<(), ApiError> {
        if !settings.throttling {
            return Ok(());
        }
        let Some(rate) = settings.rates.get(operation) else { return Ok(()) };
        let bucket = self.buckets.entry(operation).or_insert(Bucket { tokens: rate.burst, filled_at: now });
        let passed = now.saturating_sub(bucket.filled_at).as_secs_f64();
        bucket.tokens = (bucket.tokens + passed * rate.per_second).min(rate.burst);
        bucket.filled_at = bucket.filled_at.max(now);
        if bucket.tokens >= 1.0 {
            bucket.tokens -= 1.0;
            return Ok(());
        }
        Err(if operation.starts_with("Discover") {
            ApiError::new("RequestLimitExceeded", "Request limit exceeded.")
        } else {
            ApiError::new("ThrottlingException", "Rate exceeded")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_takes_its_burst_and_then_its_rate() {
        let settings = EmulatorSettings::default();
        let mut limits = Limits::default();
        let start = Duration::from_secs(1000);
        for _ in 0..10 {
            limits.admit(start, "ListServices", &settings).unwrap();
        }
        assert_eq!(limits.admit(start, "ListServices", &settings).unwrap_err().code, "ThrottlingException");
        let later = start + Duration::from_millis(500);
        limits.admit(later, "ListServices", &settings).unwrap();
        assert!(limits.admit(later, "ListServices", &settings).is_err());
        // Other operations have buckets of their own.
        limits.admit(later, "GetService", &settings).unwrap();
    }

    #[test]
    fn discovery_says_request_limit_exceeded() {
        let mut settings = EmulatorSettings::default();
        settings.rates.insert("DiscoverInstances".into(), Rate { per_second: 1.0, burst: 1.0 });
        let mut limits = Limits::default();
        limits.admit(Duration::ZERO, "DiscoverInstances", &settings).unwrap();
        let error = limits.admit(Duration::ZERO, "DiscoverInstances", &settings).unwrap_err();
        assert_eq!(error.code, "RequestLimitExceeded");
    }
}
