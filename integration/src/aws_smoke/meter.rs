//! What a run costs: the bound before it, and the count while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use aws_sdk_servicediscovery::config::interceptors::{
    BeforeTransmitInterceptorContextMut, FinalizerInterceptorContextRef,
};
use aws_sdk_servicediscovery::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_servicediscovery::error::BoxError;
use aws_smithy_runtime_api::client::interceptors::dyn_dispatch_hint;
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use cloudmap::{Plane, quotas::USD_PER_INSTANCE};

use super::{facts::Fact, lab::POLLS};

/// Price of a private hosted zone and month. AWS documents that a zone that is deleted within 12 hours is free.
const USD_PER_ZONE: f64 = 0.50;
/// Discovery calls that a check makes beside its waits.
const OTHER_DISCOVERIES: u32 = 100;

/// What costs money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Costs {
    /// RegisterInstance calls. Each counts as an instance that is paid for a whole month, because how AWS bills an hour is
    /// not known here.
    pub registrations: u32,
    /// Discovery calls.
    pub discoveries: u32,
    /// Hosted zones.
    pub zones: u32,
}

impl Costs {
    /// The most that checking these facts can cost.
    pub fn bound<'a>(facts: impl IntoIterator<Item = &'a Fact>, zones: u32) -> Self {
        facts.into_iter().fold(Self { zones, ..Self::default() }, |sum, fact| {
            let own = Self::of(fact);
            let (registrations, discoveries) = (own.registrations, own.discoveries);
            Self { registrations: sum.registrations + registrations, discoveries: sum.discoveries + discoveries, ..sum }
        })
    }

    /// The most that one fact can cost.
    pub fn of(fact: &Fact) -> Self {
        Self { registrations: fact.instances, discoveries: fact.waits * POLLS + OTHER_DISCOVERIES, zones: 0 }
    }

    /// In US dollars.
    pub fn usd(self) -> f64 {
        f64::from(self.registrations) * USD_PER_INSTANCE
            + f64::from(self.discoveries) * Plane::Discovery.usd_per_million_calls() / 1e6
            + f64::from(self.zones) * USD_PER_ZONE
    }
}

/// Counts every request of a client, and lets none pass that would cost more than the budget.
#[derive(Clone, Debug)]
pub struct Meter {
    budget: f64,
    spent: Arc<Mutex<(Costs, bool)>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the budget of {0:.2} USD is reached")]
struct Reached(f64);

impl Meter {
    /// `budget` in US dollars.
    pub fn new(budget: f64) -> Self {
        Self { budget, spent: Arc::default() }
    }

    pub fn spent(&self) -> Costs {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether something was not done for the budget.
    pub fn reached(&self) -> bool {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    /// Counts what is about to be done.
    pub(super) fn admit(&self, more: Costs) -> anyhow::Result<()> {
        let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
        let sum = Costs {
            registrations: spent.0.registrations + more.registrations,
            discoveries: spent.0.discoveries + more.discoveries,
            zones: spent.0.zones + more.zones,
        };
        if sum.usd() > self.budget {
            spent.1 = true;
            return Err(Reached(self.budget).into());
        }
        spent.0 = sum;
        Ok(())
    }
}

#[dyn_dispatch_hint]
impl Intercept for Meter {
    fn name(&self) -> &'static str {
        "Meter"
    }

    // Once for all attempts: AWS charges none that it refused.
    fn modify_before_retry_loop(
        &self,
        _: &mut BeforeTransmitInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        costs(config).map_or(Ok(()), |costs| self.admit(costs).map_err(Into::into))
    }

    // AWS keeps, and charges, no instance and no zone that it refused.
    fn read_after_execution(
        &self,
        context: &FinalizerInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let refused = context.response().is_some() && context.output_or_error().is_some_and(|result| result.is_err());
        if let Some(costs) = costs(config).filter(|_| refused) {
            let mut spent = self.spent.lock().unwrap_or_else(PoisonError::into_inner);
            spent.0.registrations = spent.0.registrations.saturating_sub(costs.registrations);
            spent.0.zones = spent.0.zones.saturating_sub(costs.zones);
        }
        Ok(())
    }
}

/// What a call costs, if it costs anything.
fn costs(config: &ConfigBag) -> Option<Costs> {
    match config.load::<Metadata>().map(Metadata::name) {
        Some("RegisterInstance") => Some(Costs { registrations: 1, ..Costs::default() }),
        Some("DiscoverInstances" | "DiscoverInstancesRevision") => Some(Costs { discoveries: 1, ..Costs::default() }),
        Some("CreatePrivateDnsNamespace") => Some(Costs { zones: 1, ..Costs::default() }),
        _ => None,
    }
}
