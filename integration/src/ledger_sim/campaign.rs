//! Many seeds of many scenarios, and what came of them.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use super::{Report, run, scenario::Scenario};

/// Runs `seeds` seeds of each scenario from `start` on, printing a table with a line for each, and each failure; returns
/// the failures, with how to replay them.
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "the result of a campaign")]
pub fn campaign(scenarios: &[&Scenario], start: u64, seeds: u64) -> Vec<String> {
    let mut failures = Vec::new();
    println!(
        "| scenario | seeds | failed | agreed after: median, longest | a change applied after: median, 99 % | heads, pages per seed |"
    );
    println!("|---|--:|--:|---|---|---|");
    for scenario in scenarios {
        let reports = run_seeds(scenario, start, seeds);
        println!("{}", row(scenario.name, &reports));
        for failure in reports.iter().filter(|report| !report.violations.is_empty()).map(describe) {
            eprintln!("{failure}");
            failures.push(failure);
        }
    }
    failures
}

fn describe(report: &Report) -> String {
    let (at, invariant, what) = &report.violations[0];
    format!(
        "{invariant} at {at:.1} s: {what}\n  replay: cargo run --package cloudmap-mcs-integration --bin ledger-simulation -- \
         --scenario {} --seed {}",
        report.scenario, report.seed
    )
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

fn row(name: &str, reports: &[Report]) -> String {
    let percentile = |mut values: Vec<f64>, share: f64| {
        values.sort_by(f64::total_cmp);
        let found = values.get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)));
        found.map_or("never".to_owned(), |seconds| format!("{seconds:.1} s"))
    };
    let converged: Vec<f64> = reports.iter().filter_map(|report| report.converged).collect();
    let delays: Vec<f64> = reports.iter().flat_map(|report| report.delays.iter().copied()).collect();
    let bad = reports.iter().filter(|report| !report.violations.is_empty()).count();
    let per_seed = |what: &str| {
        let sum: u64 = reports.iter().filter_map(|report| report.counts.get(what)).sum();
        sum / reports.len().max(1) as u64
    };
    format!(
        "| `{name}` | {} | {bad} | {}, {} | {}, {} | {}, {} |",
        reports.len(),
        percentile(converged.clone(), 0.5),
        percentile(converged, 1.0),
        percentile(delays.clone(), 0.5),
        percentile(delays, 0.99),
        per_seed("head writes"),
        per_seed("page writes"),
    )
}
