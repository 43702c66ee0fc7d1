//! The only wiring: builds the parts from the command line and runs them.

mod commands;
mod connect;
mod figures;
mod lead;
mod purge;
pub mod replica;
mod run;
mod show;

use crate::cli::{Command, LedgerCommand};

/// Runs a command to its end.
///
/// # Errors
/// The reason why it failed, with a remedy.
pub async fn execute(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Run(args) => run::run(*args).await,
        Command::Crds => commands::crds(),
        Command::Ledger(LedgerCommand::Show(args)) => show::show(args).await,
        Command::Leave(args) => commands::leave(args).await,
        Command::Purge(args) => purge::purge(args).await,
        Command::Forget(args) => commands::forget(args).await,
    }
}
