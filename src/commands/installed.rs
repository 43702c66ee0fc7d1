//! How the controller is installed in a cluster: its Deployment, and what its flags are set to.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Container},
};
use kube::{Api, Client};

use cluster::{
    coredns,
    reader::{Unread, read},
};
use cutover::Settle;
use instances::Naming;

/// The Deployment of the controller.
pub(super) const DEPLOYMENT: &str = "cloudmap-mcs";

/// What the flags of the controller are set to, by their variables, as far as arguments, ConfigMaps and values have it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) values: BTreeMap<String, String>,
    /// Why a ConfigMap was not read, if so.
    pub(super) unread: Option<String>,
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

    /// How the controller names implied targets.
    pub(super) fn naming(&self) -> Naming {
        self.get("CLOUDMAP_MCS_INSTANCES_NAMESPACE")
            .map_or(Naming::PerNamespace, |namespace| Naming::OneNamespace(namespace.into()))
    }

    /// By how much clients are late. The controller does not start with a value that it cannot read.
    pub(super) fn settle(&self) -> Settle {
        self.get("CLOUDMAP_MCS_SETTLE").and_then(|settle| settle.parse().ok()).unwrap_or_default()
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

/// What the arguments of a container set, by the variables of the flags.
fn arguments(container: &Container) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut arguments = container.args.iter().flatten().peekable();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--") else { continue };
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (flag, arguments.next_if(|next| !next.starts_with('-')).cloned()),
        };
        let variable = format!("CLOUDMAP_MCS_{}", flag.replace('-', "_").to_ascii_uppercase());
        found.insert(variable, value.unwrap_or_else(|| "true".to_owned()));
    }
    found
}

/// The settings of a container. Its arguments take precedence over its values, these over ConfigMaps, and later ConfigMaps over
/// earlier ones.
pub(super) async fn settings(client: &Client, own: &str, container: &Container) -> Settings {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), own);
    let mut settings = Settings::default();
    for name in config_maps(container) {
        match read(maps.get_opt(name)).await {
            Ok(map) => settings.values.extend(map.and_then(|map| map.data).unwrap_or_default()),
            Err(why) => settings.unread = Some(format!("the ConfigMap {own}/{name} cannot be read: {why}")),
        }
    }
    let values = container.env.iter().flatten().filter_map(|it| Some((it.name.clone(), it.value.clone()?)));
    settings.values.extend(values);
    settings.values.extend(arguments(container));
    settings
}

/// The settings of the controller in the namespace `own`.
///
/// # Errors
/// Why they are not known.
pub(super) async fn known_settings(client: &Client, own: &str) -> Result<Settings, String> {
    let found = deployment(client, own).await;
    let found = found.map_err(|why| format!("the Deployment {own}/{DEPLOYMENT} cannot be read: {why}"))?;
    let deployment = found.ok_or_else(|| {
        format!("there is no Deployment {own}/{DEPLOYMENT}: --controller-namespace names another namespace")
    })?;
    let pod = deployment.spec.and_then(|spec| spec.template.spec).unwrap_or_default();
    let settings = settings(client, own, &pod.containers.into_iter().next().unwrap_or_default()).await;
    match settings.unread {
        Some(why) => Err(why),
        None => Ok(settings),
    }
}

/// Where the cluster's DNS has its Corefile, unless it is another one.
pub(super) fn kube_dns() -> coredns::Installation {
    coredns::Installation {
        namespace: "kube-system".into(),
        config_map: "coredns".into(),
        deployment: "coredns".into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cluster::fake_api::FakeApi;

    #[tokio::test]
    async fn settings_are_known_only_if_all_of_them_were_read() {
        let sources = ["first", "second"].map(|name| json!({"configMapRef": {"name": name}}));
        let container = json!({"name": "controller", "envFrom": sources, "env": [{"name": "C", "value": "value"}]});
        let deployment = json!({
            "metadata": {"name": DEPLOYMENT},
            "spec": {"selector": {}, "template": {"spec": {"containers": [container]}}},
        });
        let api = FakeApi::default();
        let known = async || known_settings(&api.client(), "own").await;
        api.prepare(200, deployment.clone());
        api.prepare(200, json!({"metadata": {"name": "first"}, "data": {"A": "1", "B": "1", "C": "1"}}));
        api.prepare(200, json!({"metadata": {"name": "second"}, "data": {"B": "2"}}));
        let settings = known().await.unwrap();
        assert_eq!(["A", "B", "C"].map(|name| settings.get(name)), [Some("1"), Some("2"), Some("value")]);

        api.prepare(200, deployment);
        api.refuse(403, "Forbidden", "configmaps are forbidden");
        let why = known().await.unwrap_err();
        assert_eq!(why, "the ConfigMap own/first cannot be read: configmaps are forbidden");
        api.refuse(403, "Forbidden", "deployments are forbidden");
        let why = known().await.unwrap_err();
        assert_eq!(why, "the Deployment own/cloudmap-mcs cannot be read: deployments are forbidden");
        api.refuse(404, "NotFound", "there is none");
        let why = known().await.unwrap_err();
        assert!(why.starts_with("there is no Deployment own/cloudmap-mcs: --controller-namespace"), "{why}");
    }

    #[tokio::test]
    async fn arguments_take_precedence_over_variables() {
        let args = ["run", "--cutovers", "--instances-namespace=internal", "--instances", "none", "--hide-tasks"];
        let env = json!([{"name": "CLOUDMAP_MCS_INSTANCES", "value": "all"}]);
        let container: Container =
            serde_json::from_value(json!({"name": "controller", "args": args, "env": env})).unwrap();
        let settings = settings(&FakeApi::default().client(), "own", &container).await;
        assert!(settings.has("CLOUDMAP_MCS_CUTOVERS") && settings.has("CLOUDMAP_MCS_HIDE_TASKS"), "{settings:?}");
        assert_eq!(settings.get("CLOUDMAP_MCS_INSTANCES"), Some("none"));
        assert_eq!(settings.naming(), Naming::OneNamespace("internal".into()));
    }

    #[test]
    fn by_how_much_clients_are_late_is_a_setting() {
        let settle = |value: &str| {
            let values = [("CLOUDMAP_MCS_SETTLE".to_owned(), value.to_owned())].into();
            Settings { values, ..Settings::default() }.settle().as_secs()
        };
        assert_eq!(Settings::default().settle(), Settle::default());
        assert_eq!(["", "soon", "3s", "5m"].map(settle), [30, 30, 3, 300]);
    }

    #[test]
    fn where_implied_targets_belong_is_a_setting() {
        let naming = |value: &str| {
            let values = [("CLOUDMAP_MCS_INSTANCES_NAMESPACE".to_owned(), value.to_owned())].into();
            Settings { values, ..Settings::default() }.naming()
        };
        assert_eq!([Settings::default().naming(), naming("")], [Naming::PerNamespace, Naming::PerNamespace]);
        assert_eq!(naming("internal"), Naming::OneNamespace("internal".into()));
    }
}
