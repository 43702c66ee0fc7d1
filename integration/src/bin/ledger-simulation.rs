//! Runs the state machines of the ledger through simulated faults, as many seeds as asked for.

use std::process::ExitCode;

use clap::Parser;
use cloudmap_mcs_integration::ledger_sim::{
    campaign::campaign,
    run,
    scenario::{SCENARIOS, Scenario},
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs the state machines of the ledger through simulated faults. Ends with 1 if an invariant was violated.
#[derive(Debug, Parser)]
struct Args {
    /// Seeds of each scenario.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    start: u64,
    /// Only this scenario.
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(SCENARIOS.iter().map(|scenario| scenario.name)))]
    scenario: Option<String>,
    /// Runs this one seed and prints what happens.
    #[arg(long, requires = "scenario")]
    seed: Option<u64>,
}

#[expect(clippy::print_stdout, reason = "a command")]
fn main() -> ExitCode {
    let Args { seeds, start, scenario, seed } = Args::parse();
    let chosen: Vec<&Scenario> =
        SCENARIOS.iter().filter(|one| scenario.as_deref().is_none_or(|name| name == one.name)).collect();
    let (runs, failed) = match seed {
        Some(seed) => {
            let violations: Vec<_> = chosen.iter().flat_map(|scenario| run(scenario, seed, true).violations).collect();
            for (at, invariant, what) in &violations {
                println!("{invariant} at {at:.1} s: {what}");
            }
            (1, violations.len())
        }
        None => (seeds * chosen.len() as u64, campaign(&chosen, start, seeds).len()),
    };
    println!("{} passed, {failed} failed", runs - failed.min(runs as usize) as u64);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
