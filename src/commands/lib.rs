//! What people type: one file or folder for each subcommand.

#![warn(missing_docs)]

mod asking;
mod coredns;
mod cutover;
mod doctor;
mod drain;
mod forget;
mod gather;
mod iam;
mod installed;
mod leave;
mod ledger_show;
mod manual;
mod page;
mod purge;
mod status;
mod table;
mod trust;
mod users;

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    process::ExitCode,
};

use anyhow::Context as _;

pub use self::{
    coredns::{checked_corefile, edited_corefile},
    doctor::report as doctor_report,
    users::users_in_log,
};
use app::connect;
use cli::{Command, LedgerCommand, RunArgs};

/// Threads that run tasks: what they do is mostly waiting.
const WORKERS: usize = 2;

/// Runs a command to its end, and returns its exit status: a report may say that something is wrong.
///
/// # Errors
/// The reason why it failed, with a remedy.
pub fn execute(command: Command) -> anyhow::Result<ExitCode> {
    // One for each processor of a large Node would only take memory.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    runtime.worker_threads(WORKERS).enable_all().build()?.block_on(complete(command))
}

/// Whether a command ended because nobody reads its output any more. An error of a connection is another type with this one
/// as its source.
pub fn reads_nobody(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

async fn complete(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Status(args) => return status::status(args).await,
        Command::Doctor(args) => return Box::pin(doctor::doctor(*args)).await,
        Command::Cutover(command) => return Box::pin(cutover::cutover(*command)).await,
        Command::Drain(args) => return Box::pin(drain::drain(args)).await,
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
        Command::Completions { shell } => manual::completions(shell, &mut std::io::stdout()).map_err(Into::into),
        Command::Man { folder } => {
            manual::man(&folder).with_context(|| format!("failed to write man pages to {}", folder.display()))
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// The controller, with the page beside it if that is wanted.
async fn run(args: RunArgs) -> anyhow::Result<()> {
    let Some(listen) = args.page_listen else { return Box::pin(app::run(args)).await };
    anyhow::ensure!(!collide(listen, args.listen), "--page-listen has the port of --listen: give it another one");
    let place = args.place.clone();
    let client = connect::kubernetes(&place.kube).await?;
    tokio::select! {
        ended = app::run(args) => ended,
        never = page::beside(client, listen, place) => match never {},
    }
}

/// Whether only one of two servers can have its address.
fn collide(one: SocketAddr, other: SocketAddr) -> bool {
    let overlap = one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified();
    overlap && one.port() == other.port() && one.port() != 0
}

/// The command that installs the definitions. `flags` lead it to the cluster.
fn apply_crds(flags: &str) -> String {
    format!("cloudmap-mcs crds | kubectl{flags} apply --server-side -f -")
}

fn crds() -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    for crd in api::crds() {
        writeln!(out, "---\n{}", serde_yaml_ng::to_string(&crd)?.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_output_that_nobody_reads_ends_a_command_quietly() {
        let (reader, mut writer) = io::pipe().unwrap();
        drop(reader);
        let closed = manual::completions(clap_complete::Shell::Bash, &mut writer).unwrap_err();
        assert!(reads_nobody(&anyhow::Error::from(closed).context("failed to print")));
        let refused = kube::Error::Service(Box::new(io::Error::from(io::ErrorKind::BrokenPipe)));
        assert!(!reads_nobody(&refused.into()), "a connection broke");
        assert!(!reads_nobody(&io::Error::from(io::ErrorKind::PermissionDenied).into()));
    }

    #[test]
    fn the_page_has_another_address_than_the_probes() {
        let collide = |one: &str, other: &str| collide(one.parse().unwrap(), other.parse().unwrap());
        assert!(collide("127.0.0.1:8080", "[::]:8080") && collide("0.0.0.0:8080", "[::1]:8080"));
        assert!(collide("127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(!collide("127.0.0.1:8090", "[::]:8080") && !collide("127.0.0.1:8080", "10.0.0.1:8080"));
        assert!(!collide("127.0.0.1:0", "[::]:0"), "the system chooses");
    }
}
