//! What people type: one file or folder for each subcommand.

mod asking;
mod coredns;
mod cutover;
mod doctor;
mod forget;
mod gather;
mod iam;
mod leave;
mod ledger_show;
mod page;
mod pages;
mod purge;
mod status;
mod table;
mod trust;
mod users;

use std::{io::Write as _, process::ExitCode};

use anyhow::Context as _;

pub use self::doctor::report as doctor_report;
use crate::{
    api, app,
    cli::{Command, LedgerCommand, RunArgs},
};

/// Runs a command to its end, and returns its exit status: a report may say that something is wrong.
///
/// # Errors
/// The reason why it failed, with a remedy.
pub async fn execute(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Status(args) => return status::status(args).await,
        Command::Doctor(args) => return Box::pin(doctor::doctor(*args)).await,
        Command::Cutover(command) => return Box::pin(cutover::cutover(*command)).await,
        Command::Users(args) => return Box::pin(users::users(*args)).await,
        Command::Probe(command) => doctor::probe(command).await,
        Command::Gather(args) => Box::pin(gather::gather(args)).await,
        Command::Run(args) => Box::pin(run(*args)).await,
        Command::Page(args) => page::page(args).await,
        Command::Crds => crds(),
        Command::Ledger(LedgerCommand::Show(args)) => ledger_show::show(args).await,
        Command::Trust(command) => trust::trust(command).await,
        Command::Leave(args) => leave::leave(args).await,
        Command::Purge(args) => purge::purge(args).await,
        Command::Forget(args) => forget::forget(args).await,
        Command::Coredns(command) => coredns::coredns(command).await,
        Command::Iam(args) => iam::iam(&args),
        Command::Completions { shell } => {
            pages::completions(shell, &mut std::io::stdout());
            Ok(())
        }
        Command::Man { folder } => {
            pages::man(&folder).with_context(|| format!("failed to write man pages to {}", folder.display()))
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The controller, with the page beside it if that is wanted.
async fn run(args: RunArgs) -> anyhow::Result<()> {
    let Some(listen) = args.page_listen else { return app::run(args).await };
    let place = args.place.clone();
    let say = |address| {
        tracing::info!(%address, "serving the page");
        Ok(())
    };
    tokio::select! {
        ended = app::run(args) => ended,
        ended = page::serve(listen, place, say) => ended,
    }
}

fn crds() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in api::crds() {
        writeln!(out, "---\n{}", serde_yaml_ng::to_string(&crd)?.trim_end())?;
    }
    Ok(())
}
