//! `status`: what is wrong, where, and what to do. It observes (each part may fail by itself), plans (pure), and prints.

mod name;
mod observe;
mod overview;
mod report;
#[cfg(test)]
pub(in crate::commands) mod tests;

use std::process::ExitCode;

pub(super) use self::{
    observe::{Cluster, Leader, Objects, Observer},
    overview::{since, stream},
    report::{Report, State},
};
use crate::{app::connect, cli::StatusArgs, commands::table, model::ServiceKey};

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

pub(super) async fn status(args: StatusArgs) -> anyhow::Result<ExitCode> {
    let StatusArgs { place, name, namespace, output } = args;
    let connection = connect::connection(&place.kube.cluster).await?;
    let observer = Observer::new(connection.client, &place).await;
    let report = if let Some(name) = name {
        let cluster = observer.cluster().await;
        let key = ServiceKey::new(namespace.unwrap_or(connection.namespace), name);
        follow(&observer, &cluster, &key).await
    } else {
        overview(&observer, namespace.as_deref()).await.2
    };
    table::print(output, || report.table(), || report.json())?;
    Ok(if report.first_wrong().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
