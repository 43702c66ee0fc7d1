//! The binary: parses the command line and reports failures, once.

use std::process::ExitCode;

use cloudmap_mcs::{cli::Cli, commands, telemetry};

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
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the one place where a command says why it failed")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    telemetry::init(&cli.log)?;
    commands::execute(cli.command)
}
