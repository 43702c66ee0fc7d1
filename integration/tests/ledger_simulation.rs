//! The ledger under simulation: every scenario, many seeds.
//!
//! `LEDGER_SIM_SEEDS=<n>` runs n seeds of each scenario (default 90: about 2,000 in all, less than a minute), from `LEDGER_SIM_START` (default 0) on.
//! `LEDGER_SIM_SCENARIO=<name>` runs one scenario, and with `LEDGER_SIM_SEED=<k>` one seed of it, with a trace.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::{
    env,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use cloudmap_mcs_integration::ledger_sim::{
    Report, run,
    scenario::{SCENARIOS, Scenario},
};

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} must be a number or a scenario, not {value:?}")))
}

#[test]
fn every_scenario_holds_for_every_seed() {
    let only: Option<String> = setting("LEDGER_SIM_SCENARIO");
    let chosen: Vec<&Scenario> =
        SCENARIOS.iter().filter(|scenario| only.as_deref().is_none_or(|only| only == scenario.name)).collect();
    let names = SCENARIOS.iter().map(|scenario| scenario.name).collect::<Vec<_>>();
    assert!(!chosen.is_empty(), "LEDGER_SIM_SCENARIO must be one of {names:?}");
    if let Some(seed) = setting("LEDGER_SIM_SEED") {
        for scenario in chosen {
            let report = run(scenario, seed, true);
            assert!(report.violations.is_empty(), "{:#?}", report.violations);
        }
        return;
    }
    let (start, seeds) = (setting("LEDGER_SIM_START").unwrap_or(0), setting("LEDGER_SIM_SEEDS").unwrap_or(90));
    let mut failures = Vec::new();
    for scenario in chosen {
        let reports = run_seeds(scenario, start, seeds);
        println!("{}", summary(scenario.name, &reports));
        failures.extend(reports.into_iter().filter(|report| !report.violations.is_empty()));
    }
    let lines: Vec<String> = failures
        .iter()
        .map(|report| {
            let (at, invariant, what) = &report.violations[0];
            format!(
                "{invariant} at {at:.1} s: {what}\n  replay: LEDGER_SIM_SCENARIO={} LEDGER_SIM_SEED={} cargo test -p \
                 cloudmap-mcs-integration --test ledger_simulation -- --nocapture",
                report.scenario, report.seed
            )
        })
        .collect();
    assert!(lines.is_empty(), "{} runs failed:\n{}", lines.len(), lines[..lines.len().min(20)].join("\n"));
}

/// One thread per processor; the reports do not depend on how many there are.
fn run_seeds(scenario: &Scenario, start: u64, seeds: u64) -> Vec<Report> {
    let next = AtomicU64::new(start);
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let work = || {
            let mut reports = Vec::new();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= start + seeds {
                    return reports;
                }
                reports.push(run(scenario, seed, false));
            }
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn summary(name: &str, reports: &[Report]) -> String {
    let percentile = |mut values: Vec<f64>, share: f64| {
        values.sort_by(f64::total_cmp);
        values.get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1))).copied()
    };
    let converged: Vec<f64> = reports.iter().filter_map(|report| report.converged).collect();
    let delays: Vec<f64> = reports.iter().flat_map(|report| report.delays.iter().copied()).collect();
    let bad = reports.iter().filter(|report| !report.violations.is_empty()).count();
    let per_seed = |what: &str| {
        let sum: u64 = reports.iter().filter_map(|report| report.counts.get(what)).sum();
        sum / reports.len().max(1) as u64
    };
    format!(
        "{name:15} seeds {:5} failed {bad:4}  agreed p50 {:.0?} max {:.0?}  delay p50 {:.1?} p99 {:.1?}  heads {} pages {}",
        reports.len(),
        percentile(converged.clone(), 0.5),
        percentile(converged, 1.0),
        percentile(delays.clone(), 0.5),
        percentile(delays, 0.99),
        per_seed("head writes"),
        per_seed("page writes"),
    )
}
