//! Flags that several commands share: how to reach the cluster and the registry, and the format of the output.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{
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
}

/// Format of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Tables for people.
    Table,
    /// JSON with all fields.
    Json,
}
