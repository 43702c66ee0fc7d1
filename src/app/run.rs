//! `run`: every replica keeps its caches warm and answers probes; the one that holds the Lease leads.

use std::{sync::Arc, time::Duration};

use anyhow::Context as _;
use backon::{ExponentialBuilder, Retryable as _};
use k8s_openapi::jiff::Timestamp;
use prometheus::Registry;
use tokio::{sync::watch, task::JoinSet};
use tracing::{info, warn};

use super::{connect, figures::Figures, lead::Leader};
use crate::{
    admin::Admin,
    cli::RunArgs,
    cloudmap::{self, Connected},
    cluster,
    cluster::{
        Caches, KubernetesWriter,
        events::Publisher,
        identity,
        lease::{Elector, KubernetesLease, Timing},
        record::RecordObject,
    },
    controller,
};

/// Longest wait for what is under way when the process is told to stop.
const GRACE: Duration = Duration::from_secs(10);

pub(super) async fn run(args: RunArgs) -> anyhow::Result<()> {
    let registry = Registry::new();
    let cluster_metrics = cluster::Metrics::new(&registry)?;
    let cloudmap_metrics = cloudmap::Metrics::new(&registry)?;
    let controller_metrics = controller::Metrics::new(&registry)?;
    let figures = Figures::new(&registry, cloudmap_metrics.clone())?;

    let stop = stop_signal()?;
    let admin = Admin::new(registry);
    let mut tasks = JoinSet::new();
    tasks.spawn({
        let (admin, listen, mut stop) = (admin.clone(), args.listen, stop.clone());
        async move { admin.serve(listen, async move { drop(stop.wait_for(|stop| *stop).await) }).await }
    });

    let client = connect::kubernetes(&args.place.kube).await?;
    let Connected { cloudmap, region } = connect::registry(&args.place.aws, cloudmap_metrics).await?;
    let mut stopping = stop.clone();
    let ask = || async {
        let uid = identity::kube_system_uid(&client).await?;
        Ok::<_, identity::AskError>((uid, identity::ip_families(&client, &args.place.kube.namespace).await?))
    };
    let (uid, families) = tokio::select! {
        answers = ask
            .retry(ExponentialBuilder::default().with_max_delay(Duration::from_secs(10)).without_max_times())
            .notify(|error, after| warn!(error = error as &dyn std::error::Error, ?after, "the API server does not answer yet")) => answers?,
        _ = stopping.wait_for(|stop| *stop) => return Ok(()),
        ended = tasks.join_next() => return ended.context("no admin server")??,
    };

    let mut watches = JoinSet::new();
    let caches = Caches::start(&client, &cluster_metrics, args.instance_labels.as_ref(), &mut watches);
    let (known, identity) = watch::channel(None);
    watches.spawn(identity::follow(
        caches.properties.clone(),
        connect::flags(&args.place.identity),
        uid.clone(),
        known,
    ));

    // Unique to this process: a restarted container must not take its predecessor's claim for its own.
    let pod = std::env::var("POD_NAME").or_else(|_| std::env::var("HOSTNAME")).unwrap_or_else(|_| "local".to_owned());
    let holder = format!("{pod}_{:08x}", rand::random::<u32>() ^ Timestamp::now().subsec_nanosecond().unsigned_abs());
    let lease = KubernetesLease::new(client.clone(), &args.place.kube.namespace);
    let (elector, leadership) = Elector::new(lease, holder, Timing::default(), cluster_metrics.clone());

    let mut stopping = stop.clone();
    tokio::select! {
        () = caches.synced() => {}
        _ = stopping.wait_for(|stop| *stop) => return Ok(()),
        ended = tasks.join_next() => return ended.context("no admin server")??,
    }
    admin.set_ready(true);
    info!("caches are synced");
    // Only now: a replica that cannot act must not hold the Lease.
    let mut stopping = stop.clone();
    let election = tokio::spawn(elector.run(async move { drop(stopping.wait_for(|stop| *stop).await) }));

    let publisher = Publisher::new(client.clone(), &pod, cluster_metrics.clone());
    let leader = Leader {
        writer: Arc::new(KubernetesWriter::new(client.clone(), leadership.clone(), cluster_metrics, publisher)),
        record: Arc::new(RecordObject::new(client, &args.place.kube.namespace)),
        caches,
        cloudmap,
        region,
        leadership,
        identity,
        uid,
        families,
        figures,
        metrics: controller_metrics,
        args,
    };
    let mut stopping = stop.clone();
    tokio::select! {
        () = leader.run() => {}
        _ = stopping.wait_for(|stop| *stop) => info!("stopping"),
        ended = watches.join_next() => anyhow::bail!("a watch ended: {ended:?}"),
        ended = tasks.join_next() => return ended.context("no admin server")??,
    }
    // The Lease is released, so that the other replica goes on at once.
    if tokio::time::timeout(GRACE, election).await.is_err() {
        warn!("the Lease could not be released in time: it will expire");
    }
    Ok(())
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
