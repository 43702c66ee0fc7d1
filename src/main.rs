//! The binary: parses the command line and reports failures, once.

use std::process::ExitCode;

use clap::Parser as _;
use cloudmap_mcs::{app, cli::Cli, telemetry};

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            #[expect(clippy::print_stderr, reason = "the one place where a command says why it failed")]
            {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<()> {
    telemetry::init(&cli.log)?;
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(app::execute(cli.command))
}
