//! `cloudmap-mcs` connects Kubernetes clusters, ECS services and everything else in AWS Cloud Map: it implements the
//! Multi-Cluster Services API (KEP-1645) with Cloud Map as the registry.
//!
//! This is the binary: it parses the command line and reports failures, once. Each folder beside it is a crate. Data flows
//! in one direction, and only `cloudmap` and `cluster` touch the outside world (and `ecs`, for commands):
//!
//! ```text
//!     watches ─► caches ─► observe ─► plan (pure) ─► apply ─► Cloud Map
//!     cluster                export, model              ledger, instances
//!
//!     ServiceImport, derived Service, EndpointSlices,  ◄─ apply ◄─ plan (pure) ◄─ observe ◄─ heads, pages,
//!     conditions, Events                                  import, model      ledger, discovery instances
//! ```
//!
//! Start reading with `model` (the words), then `ledger` (how clusters exchange their exports).

use std::{io::Write as _, process::ExitCode};

use cli::{Cli, Command, telemetry};

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
