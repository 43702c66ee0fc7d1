//! The conformance suite: every requirement of the Multi-Cluster Services API that can be seen from outside, on clusters
//! that have the controller installed. `make test` and `make conformance` run it; docs/conformance.md says how.
//!
//! | variable | what it says |
//! |---|---|
//! | `MCS_E2E_...` | see `cloudmap_mcs_integration::scenario` |
//! | `MCS_CONFORMANCE_DISRUPTIVE` | `1`: controllers may be stopped and ClusterProperties changed |
//! | `MCS_CONFORMANCE_COMPLETE` | `1`: the clusters have all that checks need, so that a check that is skipped fails |
//! | `MCS_CONFORMANCE_THREADS` | so many checks at once; by default 4 |
//! | `MCS_CONFORMANCE_REPORT` | where the report goes: `<this>.md` and `<this>.json` |
//! | `MCS_CONFORMANCE_COMMIT` | the commit that the report names; by default `unknown` |
//!
//! An argument selects the checks whose names contain it, or, as a number, those that show this requirement; `--list` names
//! them only. The exit status is 1 if a check failed.

mod check;
mod conditions;
mod conflicts;
mod dns;
mod export;
mod facts;
mod imports;
mod installation;
mod loss;
mod membership;
mod ports;
mod report;
mod requirement;
mod slices;
mod traffic;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use cloudmap_mcs_integration::scenario::contexts;
use futures::StreamExt as _;

use check::{Check, Clusters, Played, Stage};
use report::Report;
use requirement::REQUIREMENTS;

/// All checks. The long ones first, so that they end while others run.
fn checks() -> Vec<Check> {
    [
        traffic::CHECKS,
        slices::CHECKS,
        conflicts::CHECKS,
        ports::CHECKS,
        imports::CHECKS,
        dns::CHECKS,
        conditions::CHECKS,
        export::CHECKS,
        installation::CHECKS,
        membership::CHECKS,
        loss::CHECKS,
    ]
    .concat()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let filter = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let mut checks = checks();
    every_number_is_known(&checks)?;
    if let Some(filter) = &filter {
        let number: Option<u8> = filter.parse().ok();
        checks.retain(|check| match number {
            Some(number) => check.requirements.contains(&number),
            None => check.name.contains(filter.as_str()),
        });
        ensure!(!checks.is_empty(), "no check has {filter:?} in its name");
    }
    if std::env::args().any(|argument| argument == "--list") {
        report::list(&checks);
        return Ok(ExitCode::SUCCESS);
    }
    let is_set = |variable: &str| std::env::var(variable).is_ok_and(|value| value == "1");
    let stage = Stage {
        clusters: contexts()?.len(),
        disruptive: is_set("MCS_CONFORMANCE_DISRUPTIVE"),
        complete: is_set("MCS_CONFORMANCE_COMPLETE"),
    };
    let threads = match std::env::var("MCS_CONFORMANCE_THREADS") {
        Ok(threads) => threads.parse().context("MCS_CONFORMANCE_THREADS takes a number")?,
        Err(_) => 4,
    };
    let start = std::time::Instant::now();
    let played = play(&checks, stage, threads).await;
    let report = Report::new(played, report::Environment::ask().await?, start.elapsed(), filter.is_some());
    report.print();
    if let Ok(path) = std::env::var("MCS_CONFORMANCE_REPORT") {
        report.write(&path)?;
    }
    Ok(report.exit())
}

/// Checks that need three clusters come first. Then the third one is lost, while the others go on with two: beside each other,
/// and at last those that disturb the second one, alone.
async fn play(checks: &[Check], stage: Stage, threads: usize) -> Vec<Played> {
    let some = async |wanted: &[Clusters], threads: usize| {
        let some = checks.iter().filter(|check| wanted.contains(&check.clusters)).map(async |check| {
            let played = check.play(stage).await;
            report::progress(&played);
            played
        });
        futures::stream::iter(some).buffer_unordered(threads).collect::<Vec<_>>().await
    };
    let mut played = some(&[Clusters::All, Clusters::Three], threads).await;
    let with_two = async {
        let mut played = some(&[Clusters::Two], threads).await;
        played.extend(some(&[Clusters::Disturb], 1).await);
        played
    };
    let (with_two, lost) = tokio::join!(with_two, some(&[Clusters::Lose], 1));
    played.extend(with_two);
    played.extend(lost);
    played
}

/// Every requirement is shown by a check, or is known not to be.
fn every_number_is_known(checks: &[Check]) -> Result<()> {
    let shown: BTreeSet<u8> = checks.iter().flat_map(|check| check.requirements).copied().collect();
    for requirement in REQUIREMENTS {
        let unchecked = requirement::unchecked(requirement.number).is_some();
        ensure!(shown.contains(&requirement.number) != unchecked, "requirement {} has no check", requirement.number);
    }
    ensure!(shown.iter().all(|number| REQUIREMENTS.iter().any(|requirement| requirement.number == *number)));
    Ok(())
}
