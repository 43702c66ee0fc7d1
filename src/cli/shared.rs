//! Flags that several commands share: how to reach the cluster and the registry, and the format of the output.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, ValueEnum};

use super::{
    registries::{Registries, RegistryPlace},
    shell::quoted,
    values::{http_url, parsed},
};
use model::{ClusterId, ClusterSetId};

/// The cluster and the registry.
#[derive(Debug, Clone, Args)]
pub struct PlaceArgs {
    /// How to reach the cluster, and where the controller is in it.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// The identity of the cluster.
    #[command(flatten)]
    pub identity: IdentityArgs,
    /// How to reach the registry.
    #[command(flatten)]
    pub aws: AwsArgs,
}

/// How to reach the cluster.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// Kubeconfig file. Without it: $KUBECONFIG, or ~/.kube/config, or the pod's own service account.
    #[arg(long, env = "CLOUDMAP_MCS_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. Without it: the current one.
    #[arg(long, env = "CLOUDMAP_MCS_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
}

impl ClusterArgs {
    /// What leads another command, also of kubectl, to the same cluster: flags, each after a space.
    pub fn flags(&self) -> String {
        let Self { kubeconfig, context } = self;
        let kubeconfig =
            kubeconfig.as_ref().map(|file| format!(" --kubeconfig {}", quoted(&file.display().to_string())));
        let context = context.as_ref().map(|name| format!(" --context {}", quoted(name)));
        kubeconfig.into_iter().chain(context).collect()
    }
}

/// How to reach the cluster, and where the controller is in it.
#[derive(Debug, Clone, Args)]
pub struct KubeArgs {
    /// How to reach the cluster.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Where the controller is in it.
    #[command(flatten)]
    pub controller: ControllerArgs,
}

/// Where the controller is in its cluster.
#[derive(Debug, Clone, Args)]
pub struct ControllerArgs {
    /// The controller's own namespace, which contains its Lease and its ledger record.
    #[arg(
        id = "controller_namespace",
        long = "controller-namespace",
        env = "CLOUDMAP_MCS_CONTROLLER_NAMESPACE",
        value_name = "NAME",
        default_value = "cloudmap-mcs-system"
    )]
    pub namespace: String,
}

/// The identity of the cluster, if ClusterProperties do not set it.
#[derive(Debug, Clone, Args)]
pub struct IdentityArgs {
    /// Id of this cluster if no ClusterProperty `cluster.clusterset.k8s.io` sets it. Without either, the UID of the
    /// namespace kube-system. A flag that contradicts the property is an error.
    #[arg(long, env = "CLOUDMAP_MCS_CLUSTER_ID", value_name = "ID", value_parser = parsed::<ClusterId>)]
    pub cluster_id: Option<ClusterId>,
    /// Id of the ClusterSet if no ClusterProperty `clusterset.k8s.io` sets it.
    #[arg(long, env = "CLOUDMAP_MCS_CLUSTERSET_ID", value_name = "ID", value_parser = parsed::<ClusterSetId>)]
    pub clusterset_id: Option<ClusterSetId>,
}

/// How to reach the registry.
#[derive(Debug, Clone, Args)]
pub struct AwsArgs {
    /// AWS region of the registry. Without it: the SDK's default chain ($AWS_REGION, profile, instance metadata).
    ///
    /// It is also the value of the attribute `REGION` of instances.
    #[arg(long, env = "CLOUDMAP_MCS_REGION", value_name = "REGION")]
    pub region: Option<String>,
    /// Role to assume for all Cloud Map calls, with the credentials of the SDK's default chain (IRSA, Pod Identity, ...).
    #[arg(long, env = "CLOUDMAP_MCS_ASSUME_ROLE_ARN", value_name = "ARN")]
    pub assume_role_arn: Option<String>,
    /// External id for --assume-role-arn.
    #[arg(long, env = "CLOUDMAP_MCS_ASSUME_ROLE_EXTERNAL_ID", value_name = "ID", requires = "assume_role_arn")]
    pub assume_role_external_id: Option<String>,
    /// Another address for Cloud Map, such as an emulator. Discovery calls go there without the host prefix `data-`.
    /// For PrivateLink set $AWS_ENDPOINT_URL_SERVICEDISCOVERY instead.
    #[arg(long, env = "CLOUDMAP_MCS_CLOUDMAP_ENDPOINT", value_name = "URL", value_parser = http_url)]
    pub cloudmap_endpoint: Option<String>,
    /// The registries of the ClusterSet, if it has several: YAML, or `@` and the path of a file with it. It is the same for all
    /// clusters. Instead of --region, --assume-role-arn and --cloudmap-endpoint.
    ///
    /// Each name has a `region`, and if it needs them a `roleArn`, an `externalId` and an `endpoint`, as these flags.
    #[arg(long, env = "CLOUDMAP_MCS_REGISTRIES", value_name = "YAML", value_parser = parsed::<Registries>, requires = "home",
        conflicts_with_all = ["region", "assume_role_arn", "cloudmap_endpoint"])]
    pub registries: Option<Registries>,
    /// The registry of this cluster among --registries: it writes its ledger and its instances there.
    #[arg(long, env = "CLOUDMAP_MCS_HOME", value_name = "NAME", requires = "registries")]
    pub home: Option<String>,
}

impl AwsArgs {
    /// The home: its name, which is empty if registries have no names, and how to reach it.
    ///
    /// # Errors
    /// `--home` names none of the registries.
    pub fn home(&self) -> anyhow::Result<(String, RegistryPlace)> {
        let Some(registries) = &self.registries else {
            let Self { region, assume_role_arn, assume_role_external_id, cloudmap_endpoint, .. } = self.clone();
            let (role_arn, external_id, endpoint) = (assume_role_arn, assume_role_external_id, cloudmap_endpoint);
            return Ok((String::new(), RegistryPlace { region, role_arn, external_id, endpoint }));
        };
        let name = self.home.clone().unwrap_or_default();
        let known = || registries.iter().map(|(name, _)| name).collect::<Vec<_>>().join(", ");
        let place = registries.iter().find(|(other, _)| **other == *name).map(|(_, place)| place.clone());
        let place = place.with_context(|| format!("--home is {name}, but --registries has {}", known()))?;
        Ok((name, place))
    }

    /// The registries beside the home.
    pub fn others(&self) -> impl Iterator<Item = (&str, &RegistryPlace)> {
        let all = self.registries.iter().flat_map(Registries::iter);
        all.filter(|(name, _)| Some(*name) != self.home.as_deref())
    }
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Tables for people.
    Table,
    /// JSON with all fields.
    Json,
}
