//! Tries changed inputs on everything that decodes what others wrote.

use std::{env, fs::File, path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, builder::PossibleValuesParser};
use cloudmap_mcs_integration::fuzz::{
    Target,
    campaign::{Plan, run},
    supervisor, targets,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Tries changed inputs on everything that decodes what others wrote: heads, pages, messages, records, instances, annotations,
/// logs, Corefiles, answers of AWS. Prints a row for each target, and the first input that fails. Ends with 1 if one did.
#[derive(Debug, Parser)]
struct Args {
    /// Only this target; may be repeated.
    #[arg(long, value_parser = PossibleValuesParser::new(targets().iter().map(|target| target.name)))]
    target: Vec<String>,
    /// For how long each target is tried.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many inputs of each target are tried, instead of as many as the time allows.
    #[arg(long)]
    inputs: Option<u64>,
    /// The seed of all inputs, instead of one by chance.
    #[arg(long)]
    seed: Option<u64>,
    /// Tries this one input.
    #[arg(long, requires = "target", requires = "seed", conflicts_with = "inputs")]
    number: Option<u64>,
    /// Where to write which inputs are tried, for the process that watches this one.
    #[arg(long, hide = true)]
    positions: Option<PathBuf>,
}

impl Args {
    fn plan(&self, seed: u64, positions: Option<File>) -> Plan {
        let time = Some(Duration::from_secs(self.seconds)).filter(|_| self.inputs.is_none());
        let plan = Plan { inputs: self.inputs, time, positions, ..Plan::of(seed, 0) };
        match self.number {
            Some(first) => Plan { first, inputs: Some(1), time: None, threads: 1, ..plan },
            None => plan,
        }
    }

    /// The same for a process that this one watches.
    fn rest(&self) -> Vec<String> {
        let mut rest = vec!["--seconds".to_owned(), self.seconds.to_string()];
        for (flag, number) in [("--inputs", self.inputs), ("--number", self.number)] {
            rest.extend(number.into_iter().flat_map(|number| [flag.to_owned(), number.to_string()]));
        }
        rest
    }
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a command")]
fn report(target: &Target, seed: u64, plan: &Plan) -> bool {
    let report = run(target, plan);
    let rate = report.inputs as f64 / report.elapsed.as_secs_f64().max(1e-3);
    println!("| {} | {} | {rate:.0} | {} | {seed} |", target.name, report.inputs, report.accepted);
    if let Some(failure) = &report.failure {
        eprintln!("{}", failure.text(target.name, seed));
    }
    report.failure.is_none()
}

#[expect(clippy::print_stdout, reason = "a command")]
fn main() -> std::io::Result<ExitCode> {
    let args = Args::parse();
    let seed = args.seed.unwrap_or_else(|| rand::random::<u32>().into());
    let chosen =
        targets().into_iter().filter(|it| args.target.is_empty() || args.target.iter().any(|name| name == it.name));
    let mut well = true;
    if let Some(positions) = &args.positions {
        for target in chosen {
            well &= report(&target, seed, &args.plan(seed, Some(File::options().write(true).open(positions)?)));
        }
    } else {
        let positions = env::temp_dir().join(format!("cloudmap-mcs-fuzz-{}", std::process::id()));
        println!("| target | inputs | per second | accepted | seed |");
        println!("|---|--:|--:|--:|--:|");
        for target in chosen {
            well &= supervisor::supervise(target, seed, &args.rest(), &positions)?;
        }
        std::fs::remove_file(positions)?;
    }
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
