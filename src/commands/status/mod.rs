//! `status`: what is wrong, where, and what to do. It observes (each part may fail by itself), plans (pure), and prints.

mod name;
mod observe;
mod overview;
mod report;
#[cfg(test)]
pub(crate) mod tests;

use std::{process::ExitCode, time::Duration};

pub(super) use self::{
    observe::{Cluster, Leader, Objects, Observer},
    overview::{since, stream},
    report::{Report, State},
};
use crate::{asking::until_well, table};
use app::connect;
use cli::StatusArgs;
use model::ServiceKey;

/// The report on the whole ClusterSet, or on one Kubernetes namespace, with what it is made from.
pub(super) async fn overview(observer: &Observer<'_>, namespace: Option<&str>) -> (Cluster, Objects, Report) {
    let (cluster, objects) = (observer.cluster().await, observer.objects(namespace).await);
    let report = overview::plan(&cluster, &objects);
    (cluster, objects, report)
}

/// The report on one name.
pub(super) async fn follow(observer: &Observer<'_>, cluster: &Cluster, key: &ServiceKey) -> Report {
    name::plan(cluster, &Box::pin(observer.name(key, &cluster.ledger)).await)
}

/// How long `--wait` pauses between two looks: the ledger, the controllers and the user share AWS' rates.
const PAUSE: Duration = Duration::from_secs(5);

pub(super) async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let StatusArgs { place, name, namespace, wait, output } = args;
    let connection = connect::connection(&place.kube.cluster).await?;
    let observer = Observer::new(connection.client, &place).await;
    let key = name.map(|name| ServiceKey::new(namespace.clone().unwrap_or(connection.namespace), name));
    let look = async || {
        Ok(match &key {
            Some(key) => follow(&observer, &observer.cluster().await, key).await,
            None => overview(&observer, namespace.as_deref()).await.2,
        })
    };
    let wrong = |report: &Report| report.first_wrong().map(|first| format!("{}: {}", first.about, first.text));
    let report = until_well(&mut std::io::stderr(), wait, PAUSE, look, wrong).await?;
    table::print(output, || report.table(), || report.json())?;
    Ok(if report.first_wrong().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
