//! Runs whole controllers through simulated faults, as many seeds as asked for.

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use cloudmap_mcs_integration::simulation::{
    campaign::{Campaign, describe, shrink, twice},
    note_panics, run,
    scenario::{SCENARIOS, Scenario},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs whole controllers through simulated faults. Ends with 1 if an invariant was violated.
#[derive(Debug, Parser)]
struct Args {
    /// Seeds of each scenario.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Only this scenario.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(SCENARIOS.iter().map(|scenario| scenario.name)))]
    scenario: Option<String>,
    /// Runs this one seed.
    #[arg(long, requires = "scenario")]
    seed: Option<u64>,
    /// Of that seed only these steps, by number.
    #[arg(long, requires = "seed", value_delimiter = ',')]
    steps: Option<Vec<usize>>,
    /// Prints what happens in it, each request and each write.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Runs it two times and compares all that happens.
    #[arg(long, requires = "seed")]
    twice: bool,
    /// Looks for the shortest schedule that fails in the same way.
    #[arg(long, requires = "seed")]
    shrink: bool,
    /// Runtimes side by side; as many as there are processors without it.
    #[arg(long)]
    threads: Option<usize>,
    /// Begins no run after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    limit: Option<u64>,
    /// Logs of the product, such as `info` or `cloudmap_mcs_controller=debug`, on the standard error.
    #[arg(long, requires = "seed", value_name = "FILTER")]
    log: Option<String>,
}

#[expect(clippy::print_stdout, reason = "a command")]
fn main() -> ExitCode {
    let Args { seeds, start, scenario, seed, steps, trace, shrink: shrunk, twice: again, threads, limit, log } =
        Args::parse();
    if let Some(filter) = log {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    }
    note_panics();
    let scenarios: Vec<&'static Scenario> =
        SCENARIOS.iter().filter(|one| scenario.as_deref().is_none_or(|name| name == one.name)).collect();
    let Some(seed) = seed else {
        let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
        let (limit, progress) = (limit.map(Duration::from_secs), Some(Duration::from_secs(10)));
        let failed = Campaign { scenarios, start, seeds, threads, limit, progress }.run();
        return if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    };
    let mut report = if again { twice(scenarios[0], seed) } else { run(scenarios[0], seed, steps.as_deref(), trace) };
    report.trace.iter().for_each(|line| println!("{line}"));
    if shrunk && report.violation.is_some() {
        report = shrink(scenarios[0], &report);
    }
    report.steps.iter().for_each(|step| println!("{step}"));
    if report.violation.is_none() {
        println!("passed, converged after {:.0?}", report.converged.unwrap_or_default());
        return ExitCode::SUCCESS;
    }
    println!("{}", describe(&report));
    ExitCode::FAILURE
}
