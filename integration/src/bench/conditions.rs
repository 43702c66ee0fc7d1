//! When everything is imported, and when the conditions say so.
//!
//! `Registered` is not among them: how long instances take depends on the rates of AWS alone.

use std::{
    collections::BTreeSet,
    fmt::Debug,
    pin::pin,
    time::{Duration, Instant},
};

use anyhow::{Context as _, ensure};
use api::{ServiceExport, ServiceImport};
use futures::StreamExt as _;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinSet};

/// How many objects are as wanted, and since when there are so many.
#[derive(Debug, Clone, Copy)]
struct Ready {
    count: usize,
    since: Instant,
}

/// A watch of the ServiceExports of one cluster and the ServiceImports of the other. It ends when this is dropped.
pub(super) struct Conditions {
    exports: watch::Receiver<Ready>,
    imports: watch::Receiver<Ready>,
    /// Imports with an address.
    usable: watch::Receiver<Ready>,
    _watches: JoinSet<()>,
}

impl Conditions {
    pub(super) fn watch(exporter: &Client, importer: &Client, namespace: &str) -> Self {
        let mut watches = JoinSet::new();
        let exports: Api<ServiceExport> = Api::namespaced(exporter.clone(), namespace);
        let imports: Api<ServiceImport> = Api::namespaced(importer.clone(), namespace);
        let of_export =
            |export: &ServiceExport| export.status.as_ref().is_some_and(|status| is_ready(&status.conditions));
        let of_import =
            |import: &ServiceImport| import.status.as_ref().is_some_and(|status| is_ready(&status.conditions));
        let has_address = |import: &ServiceImport| !import.spec.ips.is_empty();
        let [exports] = follow(exports, [of_export], &mut watches);
        let [imports, usable] = follow(imports, [of_import, has_address], &mut watches);
        Self { exports, imports, usable, _watches: watches }
    }

    /// When so many imports had an address, which DNS answers with.
    ///
    /// # Errors
    /// If that takes longer than `limit`.
    pub(super) async fn usable(&self, count: usize, limit: Duration) -> anyhow::Result<Instant> {
        reached(self.usable.clone(), count, limit).await
    }

    /// When so many exports and imports were ready.
    ///
    /// # Errors
    /// If that takes longer than `limit` for one of them.
    pub(super) async fn ready(&self, count: usize, limit: Duration) -> anyhow::Result<Instant> {
        let exports = reached(self.exports.clone(), count, limit).await?;
        Ok(exports.max(reached(self.imports.clone(), count, limit).await?))
    }
}

/// When there were so many objects.
async fn reached(mut ready: watch::Receiver<Ready>, count: usize, limit: Duration) -> anyhow::Result<Instant> {
    let complete = ready.wait_for(|ready| ready.count == count);
    if let Ok(ended) = tokio::time::timeout(limit, complete).await {
        ended.context("a watch of conditions has ended")?;
    }
    let ready = *ready.borrow();
    ensure!(ready.count == count, "after {limit:?} {} of {count} objects are as wanted", ready.count);
    Ok(ready.since)
}

fn is_ready(conditions: &[Condition]) -> bool {
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Counts the objects that are as wanted, for each of several wishes, by one watch.
fn follow<K, const N: usize>(
    objects: Api<K>,
    wanted: [fn(&K) -> bool; N],
    watches: &mut JoinSet<()>,
) -> [watch::Receiver<Ready>; N]
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let published = wanted.map(|_| watch::Sender::new(Ready { count: 0, since: Instant::now() }));
    let ready = published.each_ref().map(watch::Sender::subscribe);
    watches.spawn(async move {
        let mut counted: Vec<_> = wanted.into_iter().zip(published).map(|each| (BTreeSet::new(), each)).collect();
        let mut events = pin!(watcher(objects, watcher::Config::default()).default_backoff());
        while let Some(event) = events.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    tracing::warn!(%error, "a watch of conditions failed and starts again");
                    continue;
                }
            };
            for (names, (is_wanted, publish)) in &mut counted {
                note(names, &event, *is_wanted);
                publish.send_if_modified(|ready| {
                    let changed = ready.count != names.len();
                    if changed {
                        *ready = Ready { count: names.len(), since: Instant::now() };
                    }
                    changed
                });
            }
        }
    });
    ready
}

/// Keeps the names of the objects that are ready.
fn note<K: Resource>(names: &mut BTreeSet<String>, event: &watcher::Event<K>, is_ready: impl Fn(&K) -> bool) {
    match event {
        watcher::Event::Init => names.clear(),
        watcher::Event::InitDone => {}
        watcher::Event::Apply(object) | watcher::Event::InitApply(object) if is_ready(object) => {
            names.insert(object.name_any());
        }
        watcher::Event::Apply(object) | watcher::Event::InitApply(object) | watcher::Event::Delete(object) => {
            names.remove(&object.name_any());
        }
    }
}

#[cfg(test)]
mod tests {
    use api::ServiceExportStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn export(name: &str, conditions: &[(&str, &str)]) -> ServiceExport {
        let condition = |&(type_, status): &(&str, &str)| Condition {
            type_: type_.into(),
            status: status.into(),
            last_transition_time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
            message: String::new(),
            observed_generation: None,
            reason: "Any".into(),
        };
        let mut export = ServiceExport::default();
        export.metadata.name = Some(name.into());
        export.status = Some(ServiceExportStatus { conditions: conditions.iter().map(condition).collect() });
        export
    }

    #[test]
    fn objects_count_while_their_condition_ready_is_true() {
        let ready = |export: &ServiceExport| is_ready(&export.status.as_ref().unwrap().conditions);
        let mut names = BTreeSet::new();
        let mut note = |event| {
            note(&mut names, &event, ready);
            names.len()
        };
        assert_eq!(note(watcher::Event::Apply(export("a", &[("Valid", "True")]))), 0);
        assert_eq!(note(watcher::Event::Apply(export("a", &[("Valid", "True"), ("Ready", "True")]))), 1);
        assert_eq!(note(watcher::Event::Apply(export("b", &[("Ready", "True")]))), 2);
        assert_eq!(note(watcher::Event::Apply(export("b", &[("Ready", "False")]))), 1);
        assert_eq!(note(watcher::Event::Delete(export("a", &[("Ready", "True")]))), 0);
        assert_eq!(note(watcher::Event::Apply(export("a", &[("Ready", "True")]))), 1);
        assert_eq!(note(watcher::Event::Init), 0);
    }
}
