//! Everything about the emulator that can be set, with AWS's figures as defaults.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use rand::RngExt;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::limits::{Rate, default_rates};

/// How long something takes: drawn evenly from `min..=max`, in whole microseconds. In JSON `{"min_ms": 5, "max_ms": 20}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    #[serde(rename = "min_ms", with = "millis")]
    pub min: Duration,
    #[serde(rename = "max_ms", with = "millis")]
    pub max: Duration,
}

impl Latency {
    pub const ZERO: Self = Self::fixed(Duration::ZERO);

    pub const fn fixed(latency: Duration) -> Self {
        Self { min: latency, max: latency }
    }

    pub const fn range(min: Duration, max: Duration) -> Self {
        Self { min, max }
    }

    pub const fn millis(latency: u64) -> Self {
        Self::fixed(Duration::from_millis(latency))
    }

    pub(crate) fn sample(&self, rng: &mut StdRng) -> Duration {
        if self.max <= self.min {
            return self.min;
        }
        Duration::from_micros(rng.random_range(self.min.as_micros() as u64..=self.max.as_micros() as u64))
    }
}

/// `20ms`, `1.5s`, or a range: `1s-3s`.
impl FromStr for Latency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (min, max) = text.split_once('-').unwrap_or((text, text));
        let (min, max) = (parse_duration(min)?, parse_duration(max)?);
        if max < min {
            return Err(format!("`{text}` ends before it begins; write the smaller value first, such as 1s-3s"));
        }
        Ok(Self { min, max })
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write a number with ms or s, such as 20ms or 1.5s");
    let (number, seconds) = match text.strip_suffix("ms") {
        Some(number) => (number, 0.001),
        None => (text.strip_suffix('s').ok_or_else(wrong)?, 1.0),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

/// Numbers of resources, from the Service Quotas catalogue (codes in brackets).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quotas {
    /// 1,000 \[L-2DA90E5C\], not adjustable.
    pub instances_per_service: usize,
    /// 2,000 \[L-D95E8A57\], adjustable.
    pub instances_per_namespace: usize,
    /// 50 \[L-0FE3F50E\], adjustable.
    pub namespaces: usize,
    /// 30 \[L-D589BB26\], not adjustable.
    pub custom_attributes: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Self { instances_per_service: 1000, instances_per_namespace: 2000, namespaces: 50, custom_attributes: 30 }
    }
}

/// What `CreateService` answers to a name that the same `CreatorRequestId` took before. The documentation only says that
/// the id "allows failed requests to be retried without the risk of running the operation twice".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RepeatedCreate {
    /// `ServiceAlreadyExists`, which carries the `CreatorRequestId`.
    #[default]
    AlreadyExists,
    /// The existing service, as if it had just been created.
    Success,
}

/// The value of `HealthStatus` in `DiscoverInstances` (AWS API model, `HealthStatusFilter`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum HealthFilter {
    Healthy,
    Unhealthy,
    All,
    HealthyOrElseAll,
}

/// The settings. [`EmulatorSettings::default`] has AWS's quotas and request rates and answers at once; [`EmulatorSettings::unthrottled`]
/// has no request rates; [`EmulatorSettings::aws`] also takes AWS's time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmulatorSettings {
    /// The region in ARNs.
    pub region: String,
    /// The twelve digits of the account that owns everything.
    pub account: String,
    /// How long an answer takes, half of it before the call has its effect and half after.
    pub call_latency: Latency,
    /// From the submission of an asynchronous operation to its end.
    pub operation_latency: Latency,
    /// One entry for each replica of the discovery side: how much later than the control plane it learns of a change.
    /// A discovery call is answered by any of them, so that reads can go backwards. Never empty.
    pub discovery_lag: Vec<Latency>,
    /// The same for the DNS side: a query is answered by any of these replicas. Never empty.
    pub dns_lag: Vec<Latency>,
    /// What `AWS_ALIAS_DNS_NAME` leads to: addresses by the DNS name of a load balancer, in lower case.
    pub load_balancers: BTreeMap<String, Vec<IpAddr>>,
    /// How long a custom health status waits: "Cloud Map waits for approximately 30 seconds after receiving an
    /// `UpdateInstanceCustomHealthStatus` request before changing the status".
    #[serde(rename = "health_delay_ms", with = "millis")]
    pub health_delay: Duration,
    pub quotas: Quotas,
    /// Whether calls beyond [`rates`](Self::rates) are refused.
    pub throttling: bool,
    /// Calls a second by operation, for the whole account. An operation that is not named is not limited.
    pub rates: BTreeMap<String, Rate>,
    pub repeated_create: RepeatedCreate,
    /// The filter where `DiscoverInstances` names none. The documentation names no default; this one shows the least.
    pub default_health: HealthFilter,
    /// Whether an instance registered again with other attributes moves `InstancesRevision`. The documentation only says
    /// that it moves when an instance "is registered or deregistered", so that callers should not rely on it.
    pub revision_counts_updates: bool,
    /// Whether a service created under the name of a deleted one gets its id again, as users have reported.
    pub reuse_service_ids: bool,
    /// How many finished operations and recorded writes are remembered; each can take some 5 kB.
    pub history: usize,
    /// For reproducible ids, latencies, faults and orders. Read once, when the emulator starts or is reset.
    pub seed: Option<u64>,
}

impl Default for EmulatorSettings {
    fn default() -> Self {
        Self {
            region: "us-east-1".into(),
            account: "123456789012".into(),
            call_latency: Latency::ZERO,
            operation_latency: Latency::ZERO,
            discovery_lag: vec![Latency::ZERO],
            dns_lag: vec![Latency::ZERO],
            load_balancers: BTreeMap::new(),
            health_delay: Duration::from_secs(30),
            quotas: Quotas::default(),
            throttling: true,
            rates: default_rates(),
            repeated_create: RepeatedCreate::default(),
            default_health: HealthFilter::Healthy,
            revision_counts_updates: false,
            reuse_service_ids: false,
            history: 20_000,
            seed: None,
        }
    }
}

impl EmulatorSettings {
    /// No request rates: for tests that are not about them.
    pub fn unthrottled() -> Self {
        Self { throttling: false, ..Self::default() }
    }

    /// Latencies as seen on AWS: calls take some 20 ms and operations a few seconds; three replicas each of discovery
    /// and DNS lag up to 5 s.
    pub fn aws() -> Self {
        let seconds = Duration::from_secs;
        Self {
            call_latency: Latency::range(Duration::from_millis(10), Duration::from_millis(30)),
            operation_latency: Latency::range(seconds(1), seconds(3)),
            discovery_lag: vec![Latency::range(Duration::ZERO, seconds(5)); 3],
            dns_lag: vec![Latency::range(Duration::ZERO, seconds(5)); 3],
            ..Self::default()
        }
    }

    /// How much later than the control plane each replica learns of a change: those of discovery, then those of DNS.
    pub(crate) fn lags(&self) -> impl Iterator<Item = &Latency> {
        self.discovery_lag.iter().chain(&self.dns_lag)
    }

    /// Says what is wrong with the settings, naming the field.
    pub fn check(&self) -> Result<(), String> {
        if self.discovery_lag.is_empty() {
            return Err("discovery_lag is empty; give one latency for each replica, at least one".into());
        }
        if self.dns_lag.is_empty() {
            return Err("dns_lag is empty; give one latency for each replica, at least one".into());
        }
        if let Some(name) = self.load_balancers.keys().find(|name| name.bytes().any(|b| b.is_ascii_uppercase())) {
            return Err(format!("load_balancers names `{name}`; give names in lower case"));
        }
        if self.account.len() != 12 || !self.account.bytes().all(|b| b.is_ascii_digit()) {
            return Err(format!("account `{}` is not an AWS account id; give twelve digits", self.account));
        }
        for latency in self.lags().chain([&self.call_latency, &self.operation_latency]) {
            if latency.max < latency.min {
                return Err(format!("latency {latency:?} ends before it begins; give min <= max"));
            }
        }
        for (operation, rate) in &self.rates {
            if !super::OPERATIONS.contains(&operation.as_str()) {
                return Err(format!("rates names `{operation}`, which is no operation of Cloud Map"));
            }
            if !(rate.per_second > 0.0 && rate.burst >= 1.0) {
                return Err(format!("rate of {operation} is {rate:?}; give per_second > 0 and burst >= 1"));
            }
        }
        Ok(())
    }
}

/// Durations as milliseconds in JSON.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_micros() as f64 / 1000.0)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let millis = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(millis / 1000.0).map_err(serde::de::Error::custom)
    }
}
