//! Checks facts of AWS Cloud Map in an account (`make aws-smoke`).

use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use aws_config::{BehaviorVersion, Region};
use clap::Parser;
use cloudmap_mcs_integration::aws_smoke::{self, Connection, Plan, report::Finding};
use k8s_openapi::jiff::Timestamp;
use tokio::signal::unix::{SignalKind, signal};

/// Checks in an AWS account what cloudmap-mcs relies on, writes a report, and removes what it made.
///
/// It works in API-only namespaces of its own, cloudmap-mcs-smoke-RUN-..., and touches nothing else. It takes some ten
/// minutes. The credentials are those of the SDK's default chain: environment, profile, role. They need every action of
/// servicediscovery:*, and with --vpc those of Route 53 and EC2 that AWS documents for private namespaces.
///
/// The exit status is 1 if a fact is refuted or differs, or something failed.
#[derive(Debug, Parser)]
#[command(name = "aws-smoke", version)]
struct Arguments {
    /// The account that it has to be: twelve digits. In any other account nothing is checked.
    #[arg(long, env = "ACCOUNT", value_name = "ID")]
    account: String,
    /// Maximum costs in US dollars. Without it, or with less than the run can cost, nothing is done, and the least budget
    /// is printed.
    #[arg(long, env = "BUDGET", value_name = "USD", default_value_t = 0.0)]
    budget: f64,
    /// AWS region [default: the SDK's].
    #[arg(long, env = "REGION", value_name = "REGION")]
    region: Option<String>,
    /// Also check facts about DNS, with a private namespace in this VPC.
    #[arg(long, env = "VPC", value_name = "ID")]
    vpc: Option<String>,
    /// Also check facts that need more than a thousand instances.
    #[arg(long)]
    many: bool,
    /// Also check how AWS throttles: other users of the account may be throttled, too.
    #[arg(long)]
    provoke_throttling: bool,
    /// Where the report goes.
    #[arg(long, env = "REPORT", value_name = "PATH", default_value = "docs/aws-report.md")]
    report: PathBuf,
    /// Only remove what a run has left that was killed.
    #[arg(long, value_name = "RUN_ID", value_parser = parse_run)]
    teardown: Option<String>,
    /// How long a wait lasts at most.
    #[arg(long, value_name = "SECONDS", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..))]
    patience: u64,
    /// URL of an emulator, in the place of AWS.
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
}

fn parse_run(text: &str) -> Result<String, String> {
    if aws_smoke::is_run(text) { Ok(text.to_owned()) } else { Err("a run id has ten letters and digits".to_owned()) }
}

#[tokio::main]
#[expect(clippy::print_stdout, reason = "the output of the program")]
async fn main() -> anyhow::Result<ExitCode> {
    let Arguments {
        account,
        budget,
        region,
        vpc,
        many,
        provoke_throttling,
        report: path,
        teardown,
        patience,
        endpoint,
    } = Arguments::parse();
    let plan =
        Plan { account, budget, vpc, many, throttling: provoke_throttling, patience: Duration::from_secs(patience) };
    let mut loader = aws_config::defaults(BehaviorVersion::latest());
    if let Some(region) = region {
        loader = loader.region(Region::new(region));
    }
    if teardown.is_none() {
        plan.check()?;
    }
    let connection = Connection { sdk: loader.load().await, endpoint };
    if let Some(run) = teardown {
        aws_smoke::remove(&connection, &plan, &run).await?;
        println!("nothing is left of the run {run}");
        return Ok(ExitCode::SUCCESS);
    }
    let run = aws_smoke::new_run();
    println!("run {run}: it costs up to {:.2} USD", plan.bound().usd());
    let tell = |finding: &Finding| {
        println!("{:9} {}: {}", finding.verdict.word(), finding.fact.id, finding.verdict.seen());
    };
    let (mut report, result) = aws_smoke::run(&connection, &plan, &run, interrupted(run.clone())?, tell).await;
    if !report.findings.is_empty() {
        report.date = Timestamp::now().strftime("%Y-%m-%d").to_string();
        std::fs::write(&path, report.markdown()).with_context(|| format!("cannot write {}", path.display()))?;
        println!("{}; written to {}", report.summary(), path.display());
    }
    result?;
    if let Some(why) = report.ended {
        anyhow::bail!("{why}; nothing is left of it");
    }
    let wrong = report.count("refuted") + report.count("differs");
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ends at the first Ctrl-C or SIGTERM. The second one ends the program.
#[expect(clippy::print_stderr, reason = "the output of the program")]
fn interrupted(run: String) -> anyhow::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        next().await;
        eprintln!("interrupted: removing what was made; again ends at once");
        let _ = sender.send(());
        next().await;
        eprintln!("what is left is removed with --teardown {run}");
        std::process::exit(130);
    });
    Ok(async {
        let _ = receiver.await;
    })
}
