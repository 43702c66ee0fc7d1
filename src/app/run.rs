//! `run`: one replica with the real Kubernetes and Cloud Map, the admin server, and the signals of its process.

use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use tokio::{sync::watch, task::JoinSet};

use super::{
    connect,
    replica::{Metrics, Replica},
};
use crate::{
    admin::Admin,
    cli::RunArgs,
    ledger::driver::sessions::{Network, Streaming, Tcp},
    release,
};

pub(crate) async fn run(args: RunArgs) -> anyhow::Result<()> {
    let exposed = Registry::new();
    release::register(&exposed)?;
    let metrics = Metrics::new(&exposed)?;
    let stop = stop_signal()?;
    let admin = Admin::new(exposed);
    let mut server = JoinSet::new();
    server.spawn({
        let (admin, listen, mut stop) = (admin.clone(), args.listen, stop.clone());
        async move { admin.serve(listen, async move { drop(stop.wait_for(|stop| *stop).await) }).await }
    });
    let client = connect::kubernetes(&args.place.kube).await?;
    let registry = connect::registry(&args.place.aws, metrics.cloudmap.clone()).await?;
    let pod = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "local".to_owned());
    let network = network(&args);
    let mut replica = Box::pin(Replica { args, pod, client, registry, network, admin, metrics }.run(stop.clone()));
    tokio::select! {
        result = &mut replica => result,
        ended = server.join_next() => {
            // The server also ends at the signal, and then the replica still has to release the Lease.
            ended.context("no admin server")???;
            if *stop.borrow() { replica.await } else { Ok(()) }
        }
    }
}

/// How the leader is reached: at the addresses that it was told, or those of its pod. Outside a pod it is not.
fn network(args: &RunArgs) -> Option<Arc<dyn Network>> {
    let pod = || {
        let addresses = std::env::var("POD_IPS").unwrap_or_default();
        addresses.split(',').filter_map(|address| address.trim().parse().ok()).collect()
    };
    let addresses = if args.stream_addresses.is_empty() { pod() } else { args.stream_addresses.clone() };
    let wanted = args.stream == Streaming::Auto && !addresses.is_empty();
    wanted.then(|| Arc::new(Tcp::new(&addresses, args.stream_port)) as _)
}

/// Becomes true at SIGTERM or SIGINT. The second signal ends the process at once.
fn stop_signal() -> anyhow::Result<watch::Receiver<bool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        for _ in 0..2 {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if sender.send_replace(true) {
                std::process::abort();
            }
        }
    });
    Ok(receiver)
}
