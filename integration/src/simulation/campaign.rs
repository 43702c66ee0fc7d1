//! Many seeds of many scenarios on all cores, and the shortest schedule that still fails.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    Report, run,
    scenario::{Kind, Scenario},
};

/// How many failures of a campaign are shrunk: each costs as many runs as it has steps.
const SHRUNK: usize = 3;

/// What to run.
#[derive(Debug, Clone)]
pub struct Campaign {
    pub scenarios: Vec<&'static Scenario>,
    /// The first seed, and how many of each scenario.
    pub start: u64,
    pub seeds: u64,
    /// Runtimes side by side.
    pub threads: usize,
    /// No new run is begun after this time.
    pub limit: Option<Duration>,
    /// How long between lines of progress; `None`: none.
    pub progress: Option<Duration>,
}

impl Campaign {
    /// Runs it, and prints each failure with the command that repeats it, and a table as docs/testing.md has it. Gives the
    /// number of failures.
    #[expect(clippy::print_stdout, reason = "the result of a campaign")]
    pub fn run(&self) -> usize {
        let began = Instant::now();
        let total = self.seeds * self.scenarios.len() as u64;
        let (next, done) = (AtomicU64::new(0), Mutex::new((Vec::new(), began)));
        thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| self.work(&next, total, &done, began));
            }
        });
        let (mut reports, _) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        reports.sort_by_key(|report| (report.scenario, report.seed));
        let failed: Vec<&Report> = reports.iter().filter(|report| report.violation.is_some()).collect();
        for report in failed.iter().take(SHRUNK) {
            if let Some(scenario) = self.scenarios.iter().find(|scenario| scenario.name == report.scenario) {
                println!("{}\n  the steps that it takes:", describe(report));
                shrink(scenario, report).steps.iter().for_each(|step| println!("    {step}"));
            }
        }
        self.table(&reports).iter().for_each(|line| println!("{line}"));
        println!("{} passed, {} failed in {:.0?}", reports.len() - failed.len(), failed.len(), began.elapsed());
        failed.len()
    }

    fn table(&self, reports: &[Report]) -> Vec<String> {
        let mut lines = vec![
            "| scenario | seeds | failed | virtual time | time | converged after: median, 99 %, longest |".to_owned(),
            "|---|--:|--:|--:|--:|---|".to_owned(),
        ];
        for Scenario { name, .. } in &self.scenarios {
            let reports: Vec<_> = reports.iter().filter(|report| report.scenario == *name).collect();
            lines.push(row(&format!("`{name}`"), &reports));
        }
        lines.push(row("all", &reports.iter().collect::<Vec<_>>()));
        let mut kinds: BTreeMap<Kind, u64> = BTreeMap::new();
        for (kind, count) in reports.iter().flat_map(|report| &report.kinds) {
            *kinds.entry(*kind).or_default() += count;
        }
        let kinds: Vec<_> = kinds.iter().map(|(kind, count)| format!("{count} `{kind:?}`")).collect();
        lines.extend([String::new(), format!("Steps by kind: {}.", kinds.join(", ")), String::new()]);
        lines
    }

    /// `done`: the reports, and when progress was told last.
    #[expect(clippy::print_stdout, reason = "progress")]
    fn work(&self, next: &AtomicU64, total: u64, done: &Mutex<(Vec<Report>, Instant)>, began: Instant) {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= total || self.limit.is_some_and(|limit| began.elapsed() >= limit) {
                return;
            }
            // Seed by seed through all scenarios, so that a campaign that is cut short has some of each.
            let scenario = self.scenarios[number as usize % self.scenarios.len()];
            let seed = self.start + number / self.scenarios.len() as u64;
            let mut report = if cfg!(tokio_unstable) && seed == self.start {
                twice(scenario, seed)
            } else {
                run(scenario, seed, None, false)
            };
            if report.violation.is_some() {
                println!("{}", describe(&report));
            } else {
                report.steps.clear();
            }
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            let (reports, told) = &mut *done;
            reports.push(report);
            if self.progress.is_some_and(|every| told.elapsed() >= every) {
                *told = Instant::now();
                let failed = reports.iter().filter(|report| report.violation.is_some()).count();
                println!("{} of {total} seeds, {failed} failed, {:.0?}", reports.len(), began.elapsed());
            }
        }
    }
}

/// Runs a seed two times: the traces have to be the same, line by line.
pub fn twice(scenario: &'static Scenario, seed: u64) -> Report {
    let (mut first, second) = (run(scenario, seed, None, true), run(scenario, seed, None, true));
    let differs = first.trace.iter().zip(&second.trace).find(|(one, other)| one != other);
    let what = match differs {
        Some((one, other)) => Some(format!("once {one}, then {other}")),
        None => (first.trace.len() != second.trace.len()).then(|| "one of them went on".to_owned()),
    };
    if let Some(what) = what {
        first.violation = Some(("the same seed gives the same run", what));
    }
    first.trace.clear();
    first
}

/// A failure, and how to see it again.
pub fn describe(report: &Report) -> String {
    let Report { scenario, seed, lasted, .. } = report;
    let (invariant, what) = report.violation.clone().unwrap_or_default();
    format!(
        "{invariant}, at {:.1} s: {what}\n  replay: integration/soak.sh --scenario {scenario} --seed {seed} --trace",
        lasted.as_secs_f64()
    )
}

/// The same failure with as few steps as possible: one after the other is left out while it still fails.
pub fn shrink(scenario: &'static Scenario, report: &Report) -> Report {
    let mut best = report.clone();
    let mut kept: Vec<usize> = (0..report.steps.len()).collect();
    for number in (0..report.steps.len()).rev() {
        let fewer: Vec<usize> = kept.iter().copied().filter(|kept| *kept != number).collect();
        let shorter = run(scenario, report.seed, Some(&fewer), false);
        if shorter.violation.as_ref().map(|(invariant, _)| *invariant)
            == report.violation.as_ref().map(|(invariant, _)| *invariant)
        {
            (kept, best) = (fewer, shorter);
        }
    }
    best
}

/// What came of the seeds of a scenario, or of all.
fn row(name: &str, reports: &[&Report]) -> String {
    let mut converged: Vec<Duration> = reports.iter().filter_map(|report| report.converged).collect();
    converged.sort_unstable();
    let at = |share: usize| converged.get((converged.len() * share / 100).min(converged.len().saturating_sub(1)));
    let seconds = |time: Option<&Duration>| time.map_or("never".to_owned(), |time| format!("{} s", time.as_secs()));
    let sum = |time: fn(&Report) -> Duration| reports.iter().map(|report| time(report)).sum::<Duration>();
    format!(
        "| {name} | {} | {} | {:.1} h | {} s | {}, {}, {} |",
        reports.len(),
        reports.iter().filter(|report| report.violation.is_some()).count(),
        sum(|report| report.lasted).as_secs_f64() / 3600.0,
        sum(|report| report.took).as_secs(),
        seconds(at(50)),
        seconds(at(99)),
        seconds(converged.last()),
    )
}
