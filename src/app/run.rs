//! `run`: one replica with the real Kubernetes and Cloud Map, the admin server, and the signals of its process.

use std::sync::Arc;

use anyhow::Context as _;
use prometheus::Registry;
use tokio::{sync::watch, task::JoinSet};

use super::{
    connect,
    replica::{Metrics, Replica},
};
use crate::admin::Admin;
use base::release;
use cli::RunArgs;
use cutover::guard::Net;
use ledger::{
    driver::sessions::{Network, Streaming, Tcp},
    head::MAX_ADDRESSES,
};
use model::addresses;

/// Runs the controller until a signal ends it.
///
/// # Errors
/// A flag does not fit, or Kubernetes, AWS or a port cannot be used.
pub async fn run(args: RunArgs) -> anyhow::Result<()> {
    let network = network(&args)?;
    let exposed = Registry::new();
    release::register(&exposed)?;
    let metrics = Metrics::new(&exposed)?;
    let registries = Box::pin(connect::registries(&args.place.aws, &exposed)).await?;
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
    let outside = Arc::new(Net::new(args.guard_prometheus.clone()));
    let endpoints = Arc::new(reachability::Tcp);
    let mut replica = Replica { args, pod, client, registry, registries, network, outside, endpoints, admin, metrics }
        .run(stop.clone());
    tokio::select! {
        result = &mut replica => result,
        ended = server.join_next() => {
            // The server also ends at the signal, and then the replica still has to release the Lease.
            ended.context("no admin server")???;
            if *stop.borrow() { replica.await } else { Ok(()) }
        }
    }
}

/// How other leaders reach this one: at the addresses of the flag, or of its pod. Outside a pod, they cannot.
///
/// # Errors
/// An address at which nobody can be, or too many of them.
fn network(args: &RunArgs) -> anyhow::Result<Option<Arc<dyn Network>>> {
    let told = &args.stream_addresses;
    anyhow::ensure!(told.len() <= MAX_ADDRESSES, "--stream-addresses has more than {MAX_ADDRESSES} addresses");
    for address in told {
        let wrong = |why: addresses::Forbidden| anyhow::anyhow!("--stream-addresses: {address} is {}", why.as_str());
        addresses::check(*address).map_err(wrong)?;
    }
    let pod = || {
        let addresses = std::env::var("POD_IPS").unwrap_or_default();
        addresses.split(',').filter_map(|address| address.trim().parse().ok()).collect()
    };
    let addresses = if told.is_empty() { pod() } else { told.clone() };
    let wanted = args.stream == Streaming::Auto && !addresses.is_empty();
    Ok(wanted.then(|| Arc::new(Tcp::new(&addresses, args.stream_port)) as _))
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

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use cli::{Cli, Command};

    fn addresses(flags: &[&str]) -> Result<Vec<String>, String> {
        let Command::Run(args) = Cli::parse_from(["cloudmap-mcs", "run"].iter().chain(flags)).command else {
            panic!("run is a command");
        };
        let network = network(&args).map_err(|error| error.to_string())?;
        Ok(network.iter().flat_map(|it| it.addresses().to_vec()).map(|address| address.to_string()).collect())
    }

    #[test]
    fn it_is_reached_where_it_was_told_unless_nobody_could_reach_it_there() {
        let told = ["--stream-addresses=10.1.2.3,2001:db8::7", "--stream-port=7000"];
        assert_eq!(addresses(&told), Ok(vec!["10.1.2.3:7000".to_owned(), "[2001:db8::7]:7000".to_owned()]));
        assert_eq!(addresses(&["--stream-addresses=10.1.2.3", "--stream=off"]), Ok(Vec::new()));
        assert_eq!(addresses(&[]), Ok(Vec::new()), "outside of a pod");
        let wrong = addresses(&["--stream-addresses=127.0.0.1"]).unwrap_err();
        assert!(wrong.contains("--stream-addresses") && wrong.contains("loopback"), "{wrong}");
        assert!(addresses(&["--stream-addresses=10.0.0.1,10.0.0.2,10.0.0.3,10.0.0.4,10.0.0.5"]).is_err());
    }
}
