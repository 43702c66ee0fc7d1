//! What runs in the temporary pods.

use std::{
    collections::BTreeSet,
    fs,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use anyhow::Context as _;
use futures::future::join_all;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};

use app::admin;
use base::dns;
use cli::ProbeCommand;

const PATIENCE: Duration = Duration::from_secs(5);
/// The pod that listens may need a moment after its container runs.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// What the pod did.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(in crate::doctor) struct Tried {
    pub(in crate::doctor) connected: Vec<Connected>,
    /// The answers to the name, sorted, or why there are none.
    pub(in crate::doctor) resolved: Option<Result<BTreeSet<IpAddr>, String>>,
}

/// One attempt to connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::doctor) struct Connected {
    pub(in crate::doctor) address: SocketAddr,
    pub(in crate::doctor) outcome: Outcome,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::doctor) enum Outcome {
    /// The pod that was meant answered.
    Answered,
    /// Somebody else answered, with these first characters.
    Stranger(String),
    /// Nobody answered.
    TimedOut,
    /// Somebody refused, or there is no way.
    Failed(String),
}

/// Runs the program.
///
/// # Errors
/// If it cannot listen, or not write what happened.
pub(crate) async fn run(command: ProbeCommand) -> anyhow::Result<()> {
    match command {
        ProbeCommand::Serve { port, word } => {
            serve(admin::bind((Ipv6Addr::UNSPECIFIED, port).into()).await?, &word).await
        }
        ProbeCommand::Try { connect, resolve, output } => {
            let targets = connect.iter().map(|target| parse(target)).collect::<anyhow::Result<Vec<_>>>()?;
            let tried = attempt(targets, resolve.as_deref(), PATIENCE).await;
            fs::write(&output, serde_json::to_string(&tried)?)
                .with_context(|| format!("failed to write {}", output.display()))
        }
    }
}

fn parse(target: &str) -> anyhow::Result<(SocketAddr, String)> {
    let (address, word) = target.split_once('=').context("--connect takes ADDRESS:PORT=WORD")?;
    Ok((address.parse()?, word.to_owned()))
}

pub(super) async fn serve(listener: TcpListener, word: &str) -> anyhow::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        // Who hangs up early misses nothing.
        drop(timeout(PATIENCE, stream.write_all(word.as_bytes())).await);
    }
}

pub(super) async fn attempt(targets: Vec<(SocketAddr, String)>, name: Option<&str>, patience: Duration) -> Tried {
    let connected =
        join_all(targets.into_iter().map(|(address, word)| async move {
            Connected { address, outcome: connect(address, &word, patience).await }
        }));
    let resolved = async {
        match name {
            Some(name) => Some(dns::resolve(name, patience * 3).await),
            None => None,
        }
    };
    let (connected, resolved) = tokio::join!(connected, resolved);
    Tried { connected, resolved }
}

async fn connect(address: SocketAddr, word: &str, patience: Duration) -> Outcome {
    let mut outcome = Outcome::TimedOut;
    for _ in 0..ATTEMPTS {
        outcome = match timeout(patience, receive(address, word.len())).await {
            // As slow as this is nothing that only needs a moment.
            Err(_) => return Outcome::TimedOut,
            Ok(Ok(heard)) if heard == word => return Outcome::Answered,
            Ok(Ok(heard)) => return Outcome::Stranger(heard),
            Ok(Err(error)) => Outcome::Failed(error.to_string()),
        };
        sleep(PAUSE).await;
    }
    outcome
}

async fn receive(address: SocketAddr, length: usize) -> std::io::Result<String> {
    let mut heard = Vec::new();
    let stream = TcpStream::connect(address).await?;
    if length > 0 {
        // One byte more than is wanted tells a longer word from this one.
        stream.take(length as u64 + 1).read_to_end(&mut heard).await?;
    }
    Ok(String::from_utf8_lossy(&heard).chars().filter(|c| !c.is_control()).collect())
}
