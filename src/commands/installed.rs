//! How the controller is installed in a cluster: its Deployment, and what its flags are set to.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Container},
};
use kube::{Api, Client};

use crate::cluster::{
    coredns,
    reader::{Unread, read},
};

/// The Deployment of the controller.
pub(super) const DEPLOYMENT: &str = "cloudmap-mcs";

/// What the flags of the controller are set to, by their variables, as far as ConfigMaps and values have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) values: BTreeMap<String, String>,
}

impl Settings {
    pub(super) fn get(&self, variable: &str) -> Option<&str> {
        self.values.get(variable).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether the flag of a variable is set. The words are those that turn a flag off.
    pub(super) fn has(&self, variable: &str) -> bool {
        let off = |value: &str| ["false", "f", "no", "n", "off", "0"].contains(&value.to_ascii_lowercase().as_str());
        self.get(variable).is_some_and(|value| !off(value))
    }
}

/// The Deployment of the controller in the namespace `own`; `None`: there is none.
///
/// # Errors
/// Why it was not read.
pub(super) async fn deployment(client: &Client, own: &str) -> Result<Option<Deployment>, Unread> {
    read(Api::<Deployment>::namespaced(client.clone(), own).get_opt(DEPLOYMENT)).await
}

/// The ConfigMaps from which a container takes variables, in their order.
pub(super) fn config_maps(container: &Container) -> Vec<&str> {
    let sources = container.env_from.iter().flatten();
    sources.filter_map(|source| source.config_map_ref.as_ref().map(|source| source.name.as_str())).collect()
}

/// The settings of a container. Its values take precedence over ConfigMaps, and later ConfigMaps over earlier ones.
pub(super) async fn settings(client: &Client, own: &str, container: &Container) -> Settings {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), own);
    let mut settings = Settings::default();
    for name in config_maps(container) {
        if let Ok(Some(map)) = read(maps.get_opt(name)).await {
            settings.values.extend(map.data.unwrap_or_default());
        }
    }
    let values = container.env.iter().flatten().filter_map(|it| Some((it.name.clone(), it.value.clone()?)));
    settings.values.extend(values);
    settings
}

/// Where the cluster's DNS has its Corefile, unless it is another one.
pub(super) fn kube_dns() -> coredns::Place {
    coredns::Place { namespace: "kube-system".into(), config_map: "coredns".into(), deployment: "coredns".into() }
}
