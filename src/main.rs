//! The binary: parses the command line and reports failures, once.

use std::{io::Write as _, process::ExitCode};

use cloudmap_mcs::{
    cli::{Cli, Command},
    commands, telemetry,
};

/// The status of a command whose output nobody reads any more, as after `| head -1`: that of programs that SIGPIPE ends.
const NOBODY_READS: u8 = 128 + 13;

fn main() -> ExitCode {
    // A task that panicked would leave a controller that does half its work: better a restart. The profile `dist` aborts by
    // itself; `release` does not, because its tests would then compile every dependency a second time.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    match run(Cli::of(std::env::args_os()).unwrap_or_else(|error| error.exit())) {
        Ok(status) => status,
        Err(error) if commands::reads_nobody(&error) => ExitCode::from(NOBODY_READS),
        Err(error) => {
            // Nobody may read that either, and `eprintln!` would panic.
            drop(writeln!(std::io::stderr(), "error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    telemetry::init(&cli.log, matches!(cli.command, Command::Run(_)))?;
    commands::execute(cli.command)
}
