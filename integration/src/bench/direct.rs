//! The reference: EndpointSlices of one namespace are copied from the API server of one cluster to that of the other,
//! by a watch and a write with the credentials of both. Designs with a broker or a mesh do this at best.

use std::{collections::HashMap, pin::pin, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::{api::discovery::v1::EndpointSlice, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, PostParams},
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::task::JoinHandle;

use super::{
    arrivals::{Arrivals, LABEL_SERVICE_NAME, LABEL_SOURCE_CLUSTER},
    change,
    load::{self, Load},
    side::Side,
    stages::PATIENCE,
};

/// Namespace in both clusters.
const NAMESPACE: &str = "bench-direct";
/// In the place of a cluster id.
const SOURCE: &str = "direct";
/// Services of the namespace, which are not exported.
const SERVICES: usize = 100;
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// A running copier, with what it copies. It ends when this is dropped.
pub(super) struct Direct {
    load: Load,
    arrivals: Arrivals,
    copier: JoinHandle<()>,
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.copier.abort();
    }
}

impl Direct {
    /// Creates Services in the exporting cluster and copies their slices, until all have arrived.
    pub(super) async fn start(exporter: &Side, importer: &Side, endpoints: usize, seed: u64) -> anyhow::Result<Self> {
        for side in [exporter, importer] {
            load::create_namespace(&side.cluster, NAMESPACE).await?;
        }
        let load = Load::new(exporter.cluster.clone(), NAMESPACE, SERVICES, endpoints, seed);
        let arrivals = Arrivals::watch(importer.cluster.clone(), NAMESPACE, SOURCE);
        arrivals.expect(load.addresses()).await?;
        let copier = tokio::spawn(copy(exporter.cluster.clone(), importer.cluster.clone()));
        let direct = Self { load, arrivals, copier };
        direct.load.create_services().await?;
        direct.arrivals.complete(PATIENCE).await?;
        Ok(direct)
    }

    /// Replaces one endpoint, and returns how long it took to arrive.
    pub(super) async fn change(&mut self) -> anyhow::Result<Duration> {
        change::one(&mut self.load, &self.arrivals).await
    }
}

async fn copy(from: Client, to: Client) {
    let slices: Api<EndpointSlice> = Api::namespaced(from, NAMESPACE);
    let copies: Api<EndpointSlice> = Api::namespaced(to, NAMESPACE);
    // The version of each copy, so that a change is one write.
    let mut versions = HashMap::new();
    let mut events = pin!(watcher(slices, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        let result = match event {
            Ok(watcher::Event::Apply(slice) | watcher::Event::InitApply(slice)) => {
                write(&copies, &slice, &mut versions).await
            }
            Ok(watcher::Event::Delete(slice)) => {
                versions.remove(&slice.name_any());
                copies.delete(&slice.name_any(), &DeleteParams::default()).await.map(drop)
            }
            Ok(watcher::Event::Init | watcher::Event::InitDone) => Ok(()),
            Err(error) => {
                tracing::warn!(%error, "the watch of the reference failed and starts again");
                Ok(())
            }
        };
        if let Err(error) = result {
            tracing::warn!(%error, "the reference failed to write a copy");
        }
    }
}

async fn write(
    copies: &Api<EndpointSlice>,
    slice: &EndpointSlice,
    versions: &mut HashMap<String, Option<String>>,
) -> kube::Result<()> {
    let name = slice.name_any();
    let copy = copy_of(slice, versions.remove(&name).flatten());
    let written = match copy.metadata.resource_version {
        Some(_) => copies.replace(&name, &PostParams::default(), &copy).await?,
        None => copies.create(&PostParams::default(), &copy).await?,
    };
    versions.insert(name, written.metadata.resource_version);
    Ok(())
}

/// The copy, which replaces that of this version.
fn copy_of(slice: &EndpointSlice, version: Option<String>) -> EndpointSlice {
    let service = slice.labels().get(SERVICE_NAME).cloned().unwrap_or_default();
    let labels = [
        (SERVICE_NAME, &*service),
        ("endpointslice.kubernetes.io/managed-by", "cloudmap-mcs-bench"),
        (LABEL_SERVICE_NAME, &service),
        (LABEL_SOURCE_CLUSTER, SOURCE),
    ];
    EndpointSlice {
        metadata: ObjectMeta {
            name: slice.metadata.name.clone(),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            resource_version: version,
            ..Default::default()
        },
        address_type: slice.address_type.clone(),
        endpoints: slice.endpoints.clone(),
        ports: slice.ports.clone(),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::discovery::v1::Endpoint;

    use super::*;

    #[test]
    fn a_copy_has_the_endpoints_and_says_where_it_is_from() {
        let endpoint = Endpoint { addresses: vec!["10.16.0.1".into()], ..Default::default() };
        let slice = EndpointSlice {
            metadata: ObjectMeta {
                name: Some("web-1".into()),
                uid: Some("7".into()),
                resource_version: Some("40".into()),
                labels: Some([(SERVICE_NAME.to_owned(), "web".to_owned())].into()),
                ..Default::default()
            },
            address_type: "IPv4".into(),
            endpoints: vec![endpoint.clone()],
            ports: None,
        };
        let copy = copy_of(&slice, Some("5".into()));
        assert_eq!((copy.name_any(), copy.endpoints), ("web-1".to_owned(), vec![endpoint]));
        assert_eq!((copy.metadata.resource_version.as_deref(), &copy.metadata.uid), (Some("5"), &None));
        let labels = copy.metadata.labels.unwrap();
        assert_eq!((&*labels[LABEL_SERVICE_NAME], &*labels[LABEL_SOURCE_CLUSTER]), ("web", SOURCE));
    }
}
