//! The binary: parses the command line and reports failures, once.

use std::process::ExitCode;

use cloudmap_mcs::{cli::Cli, commands, telemetry};

/// Threads that run tasks: what they do is mostly waiting.
const WORKERS: usize = 2;

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
    // One for each processor of a large Node would only take memory.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(WORKERS).enable_all().build()?.block_on(commands::execute(cli.command))
}
