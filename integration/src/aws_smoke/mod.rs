//! Checks on AWS itself what this project relies on (`make aws-smoke`). The same checks run against the emulator in
//! tests.
//!
//! [`facts`](facts::FACTS) is the table of what is checked, and where this project says it. A run works in namespaces of
//! its own, whose names and tags have the id of the run, and removes them at its end, whatever happens.

pub mod facts;
pub mod report;
pub mod verdict;

mod checks;
mod lab;
mod meter;
mod teardown;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use aws_config::SdkConfig;
use aws_sdk_servicediscovery::config::retry::RetryConfig;
use aws_sdk_servicediscovery::error::DisplayErrorContext;
use aws_sdk_servicediscovery::types::{NamespaceFilter, NamespaceFilterName};
use aws_sdk_servicediscovery::{Client, config};
use cloudmap::{AwsCloudMap, AwsSettings, Limits, Rates};
use rand::RngExt as _;

pub use lab::{PREFIX, TAG};
pub use meter::{Costs, Meter};
pub use teardown::teardown;

use facts::{Extra, FACTS, Fact, How};
use lab::Lab;
use report::{Finding, Report};
use verdict::Verdict;

use emulator::PlainHost;

impl Extra {
    /// The flag that gives it.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Vpc => "--vpc",
            Self::Many => "--many",
            Self::Throttling => "--provoke-throttling",
        }
    }
}

/// What a run may do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The twelve digits of the account that it has to be.
    pub account: String,
    /// In US dollars.
    pub budget: f64,
    /// For facts about DNS.
    pub vpc: Option<String>,
    /// Whether more than a thousand instances may be registered.
    pub many: bool,
    /// Whether the account may be throttled.
    pub throttling: bool,
    /// How long a wait lasts, at most.
    pub patience: Duration,
}

impl Plan {
    fn has(&self, extra: Extra) -> bool {
        match extra {
            Extra::Vpc => self.vpc.is_some(),
            Extra::Many => self.many,
            Extra::Throttling => self.throttling,
        }
    }

    /// The most that the run can cost.
    pub fn bound(&self) -> Costs {
        let wanted = FACTS.iter().filter(|fact| match fact.how {
            How::Always(_) => true,
            How::With(extra, _) => self.has(extra),
            How::Never(_) => false,
        });
        Costs::bound(wanted, u32::from(self.vpc.is_some()))
    }

    /// # Errors
    /// The run must not begin, and why.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.account.len() != 12 || !self.account.bytes().all(|byte| byte.is_ascii_digit()) {
            bail!("{:?} is no AWS account id: give twelve digits", self.account);
        }
        let bound = self.bound();
        if bound.usd() > self.budget {
            bail!(
                "the run can cost up to {:.2} USD ({} instances, if AWS bills each for a whole month, and {} discovery \
                 calls), more than the budget of {:.2} USD: nothing was done",
                bound.usd(),
                bound.registrations,
                bound.discoveries,
                self.budget
            );
        }
        Ok(())
    }
}

/// Calls of a run go here.
#[derive(Clone, Debug)]
pub struct Connection {
    /// With region and credentials.
    pub sdk: SdkConfig,
    /// An emulator, in the place of AWS.
    pub endpoint: Option<String>,
}

impl Connection {
    /// A client whose costs are counted.
    pub fn client(&self, meter: &Meter) -> Client {
        // The SDK's three attempts can be over within half a second. What other users of the account throttle, or the
        // check that provokes it, would leave facts without a check.
        let retries = RetryConfig::standard().with_max_attempts(10);
        let mut config = config::Builder::from(&self.sdk).retry_config(retries).interceptor(meter.clone());
        if let Some(endpoint) = &self.endpoint {
            config = config.endpoint_url(endpoint).interceptor(PlainHost);
        }
        Client::from_conf(config.build())
    }

    async fn adapter(&self) -> anyhow::Result<AwsCloudMap> {
        let settings = AwsSettings { endpoint: self.endpoint.clone(), ..AwsSettings::default() };
        Ok(AwsCloudMap::configured(&self.sdk, &settings, Limits::new(&Rates::default(), None)).await?)
    }
}

/// An id that no other run has: ten letters and digits.
pub fn new_run() -> String {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut rng = rand::rng();
    (0..10).map(|_| char::from(LETTERS[rng.random_range(0..LETTERS.len())])).collect()
}

/// Whether a text can be the id of a run.
pub fn is_run(text: &str) -> bool {
    text.len() == 10 && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

/// Checks every fact that the plan allows, and removes what that made. `stop` ends it early; `said` gets each finding at
/// once.
///
/// # Errors
/// The plan is refused, the account is another one, the first namespace cannot be made, or something is left. What was
/// found before is in the report.
pub async fn run(
    connection: &Connection,
    plan: &Plan,
    run: &str,
    stop: impl Future<Output = ()>,
    mut said: impl FnMut(&Finding),
) -> (Report, anyhow::Result<()>) {
    let region = connection.sdk.region().map_or_else(|| "unknown".to_owned(), ToString::to_string);
    let mut report = Report { region, ..Report::default() };
    if let Err(error) = plan.check() {
        return (report, Err(error));
    }
    let meter = Meter::new(plan.budget);
    let client = connection.client(&meter);
    if let Err(error) = verify_listed(&client, &plan.account).await {
        return (report, Err(error));
    }
    let findings = &mut report.findings;
    let checked = async {
        let namespace = lab::namespace(&client, run, "main", plan.patience).await?;
        verify(&namespace.arn, &plan.account)?;
        let lab = Lab {
            client: client.clone(),
            adapter: connection.adapter().await?,
            meter: meter.clone(),
            run: run.to_owned(),
            vpc: plan.vpc.clone(),
            patience: plan.patience,
            namespace,
        };
        for fact in FACTS {
            let begin = Instant::now();
            let verdict = check(&lab, plan, fact).await;
            let finding = Finding { fact: *fact, verdict, took: begin.elapsed() };
            said(&finding);
            findings.push(finding);
        }
        anyhow::Ok(())
    };
    let mut result = tokio::select! {
        result = checked => result,
        () = stop => {
            report.ended = Some("it was interrupted".to_owned());
            Ok(())
        }
    };
    if meter.reached() {
        report.ended = Some(format!("the budget of {:.2} USD was reached", plan.budget));
    }
    report.spent = meter.spent();
    let removed = teardown(&client, run, plan.patience).await;
    if let Err(error) = removed {
        result = match result {
            Ok(()) => Err(error),
            Err(first) => Err(first.context(format!("{error:#}"))),
        };
    }
    (report, result)
}

async fn check(lab: &Lab, plan: &Plan, fact: &Fact) -> Verdict {
    let check = match fact.how {
        How::Never(why) => return Verdict::Skipped(why.to_owned()),
        How::With(extra, _) if !plan.has(extra) => return Verdict::Skipped(format!("only with {}", extra.flag())),
        How::With(_, check) | How::Always(check) => check,
    };
    if lab.meter.reached() {
        return Verdict::Skipped("the budget is reached".to_owned());
    }
    match check(lab).await {
        Ok(verdict) => verdict,
        Err(error) => {
            let words = format!("{}", DisplayErrorContext(&*error));
            Verdict::Skipped(format!("it could not be checked: {words}"))
        }
    }
}

/// Refuses the account of namespaces that are there, before anything is made.
async fn verify_listed(client: &Client, account: &str) -> anyhow::Result<()> {
    let own = NamespaceFilter::builder().name(NamespaceFilterName::ResourceOwner).values("SELF").build()?;
    let listed = client.list_namespaces().filters(own).send().await.context("cannot list namespaces")?;
    listed.namespaces().iter().filter_map(|found| found.arn()).try_for_each(|arn| verify(arn, account))
}

fn verify(arn: &str, account: &str) -> anyhow::Result<()> {
    let real = lab::account(arn);
    if real != account {
        bail!("these are credentials of the account {real}, not of {account}");
    }
    Ok(())
}

/// Removes what a run has left.
///
/// # Errors
/// The account is another one, or something is left.
pub async fn remove(connection: &Connection, plan: &Plan, run: &str) -> anyhow::Result<()> {
    let client = connection.client(&Meter::new(0.0));
    verify_listed(&client, &plan.account).await?;
    teardown(&client, run, plan.patience).await
}
