//! Many seeds of many scenarios on all cores, and the shortest schedule that still fails.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use super::{
    Report, run,
    scenario::{Kind, Scenario},
};

/// How many failures of a campaign are shrunk: each costs as many runs as it has steps.
const SHRUNK: usize = 3;
/// A run that takes longer does not end: a loop that never waits cannot be stopped, and virtual time does not go on. A run costs
/// about a second, but a campaign may have the lowest priority on a machine that is busy.
const ENDLESS: Duration = Duration::from_mins(10);
/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(200);

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
    /// number of failures. A run that does not end is one; its thread is left behind, until the process ends.
    #[expect(clippy::print_stdout, reason = "the result of a campaign")]
    pub fn run(&self) -> usize {
        let began = Instant::now();
        let start = self.start;
        let mut reports = self.reports(ENDLESS, move |scenario, seed| {
            if cfg!(tokio_unstable) && seed == start { twice(scenario, seed) } else { run(scenario, seed, None, false) }
        });
        reports.sort_by_key(|report| (report.scenario, report.seed));
        let failed: Vec<&Report> = reports.iter().filter(|report| report.violation.is_some()).collect();
        // What does not end has no steps to tell.
        for report in failed.iter().filter(|report| !report.steps.is_empty()).take(SHRUNK) {
            if let Some(scenario) = self.scenarios.iter().find(|scenario| scenario.name == report.scenario) {
                println!("{}\n  the steps that it takes:", describe(report));
                shrink(scenario, report).steps.iter().for_each(|step| println!("    {step}"));
            }
        }
        self.table(&reports).iter().for_each(|line| println!("{line}"));
        println!("{} passed, {} failed in {:.0?}", reports.len() - failed.len(), failed.len(), began.elapsed());
        failed.len()
    }

    /// What `one` says of each scenario and seed. Who does not say anything within `endless` is given up.
    fn reports<F>(&self, endless: Duration, one: F) -> Vec<Report>
    where
        F: Fn(&'static Scenario, u64) -> Report + Send + Sync + 'static,
    {
        let began = Instant::now();
        let progress = Progress { next: 0, running: BTreeMap::new(), reports: Vec::new(), told: began, workers: 0 };
        let shared = Arc::new(Shared { campaign: self.clone(), began, progress: Mutex::new(progress) });
        let one = Arc::new(one);
        for _ in 0..self.threads.max(1) {
            Shared::work(&shared, &one);
        }
        loop {
            thread::sleep(LOOK);
            let given_up = shared.progress().give_up(endless);
            for _ in 0..given_up {
                Shared::work(&shared, &one);
            }
            let mut progress = shared.progress();
            if progress.workers == 0 {
                return std::mem::take(&mut progress.reports);
            }
        }
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
}

/// What the threads of a campaign share.
struct Shared {
    campaign: Campaign,
    began: Instant,
    progress: Mutex<Progress>,
}

/// How far a campaign is.
struct Progress {
    next: u64,
    /// The runs that have begun, by number, and since when.
    running: BTreeMap<u64, Run>,
    reports: Vec<Report>,
    /// When progress was told last.
    told: Instant,
    /// Threads that were not given up.
    workers: usize,
}

#[derive(Clone, Copy)]
struct Run {
    scenario: &'static Scenario,
    seed: u64,
    since: Instant,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread that runs one seed after the other.
    fn work<F>(shared: &Arc<Self>, one: &Arc<F>)
    where
        F: Fn(&'static Scenario, u64) -> Report + Send + Sync + 'static,
    {
        let (shared, one) = (Arc::clone(shared), Arc::clone(one));
        shared.progress().workers += 1;
        thread::spawn(move || {
            while let Some((number, Run { scenario, seed, .. })) = shared.begin() {
                let report = one(scenario, seed);
                if !shared.end(number, report) {
                    return;
                }
            }
            shared.progress().workers -= 1;
        });
    }

    /// The next run; `None`: there is none, or none is to begin any more.
    fn begin(&self) -> Option<(u64, Run)> {
        let Campaign { scenarios, start, seeds, limit, .. } = &self.campaign;
        let mut progress = self.progress();
        let (number, count) = (progress.next, scenarios.len() as u64);
        if number >= seeds * count || limit.is_some_and(|limit| self.began.elapsed() >= limit) {
            return None;
        }
        progress.next += 1;
        // Seed by seed through all scenarios, so that a campaign that is cut short has some of each.
        let scenario = scenarios[(number % count) as usize];
        let run = Run { scenario, seed: start + number / count, since: Instant::now() };
        progress.running.insert(number, run);
        Some((number, run))
    }

    /// A run has ended. `false`: it was given up before, and so was its thread.
    fn end(&self, number: u64, mut report: Report) -> bool {
        let mut progress = self.progress();
        if progress.running.remove(&number).is_none() {
            return false;
        }
        if report.violation.is_none() {
            report.steps.clear();
        }
        progress.add(report);
        let total = self.campaign.seeds * self.campaign.scenarios.len() as u64;
        progress.print_progress(self.campaign.progress, total, self.began);
        true
    }
}

impl Progress {
    #[expect(clippy::print_stdout, reason = "a failure is told at once")]
    fn add(&mut self, report: Report) {
        if report.violation.is_some() {
            println!("{}", describe(&report));
        }
        self.reports.push(report);
    }

    #[expect(clippy::print_stdout, reason = "progress")]
    fn print_progress(&mut self, every: Option<Duration>, total: u64, began: Instant) {
        if every.is_some_and(|every| self.told.elapsed() >= every) {
            self.told = Instant::now();
            let failed = self.reports.iter().filter(|report| report.violation.is_some()).count();
            println!("{} of {total} seeds, {failed} failed, {:.0?}", self.reports.len(), began.elapsed());
        }
    }

    /// Gives up runs that do not end, and their threads. Gives how many.
    fn give_up(&mut self, endless: Duration) -> usize {
        let stuck: Vec<_> = self.running.extract_if(.., |_, run| run.since.elapsed() >= endless).collect();
        for (_, Run { scenario, seed, .. }) in &stuck {
            let what = format!("it did not within {endless:.0?} of real time");
            let violation = Some(("a run ends", what));
            self.add(Report { scenario: scenario.name, seed: *seed, violation, ..Report::default() });
        }
        self.workers -= stuck.len();
        stuck.len()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::scenario::SCENARIOS;

    #[test]
    fn a_run_that_does_not_end_is_a_failure_and_all_others_are_made() {
        let scenarios: Vec<_> = SCENARIOS.iter().take(2).collect();
        let endless = scenarios[1];
        let campaign = Campaign { scenarios, start: 7, seeds: 3, threads: 1, limit: None, progress: None };
        let mut reports = campaign.reports(Duration::from_secs(10), move |scenario, seed| {
            if scenario.name == endless.name && seed == 8 {
                loop {
                    thread::park();
                }
            }
            Report { scenario: scenario.name, seed, ..Report::default() }
        });
        reports.sort_by_key(|report| (report.seed, report.scenario != endless.name));
        let failed: Vec<_> = reports.iter().map(|report| (report.seed, report.violation.is_some())).collect();
        assert_eq!(failed, [(7, false), (7, false), (8, true), (8, false), (9, false), (9, false)]);
    }
}
