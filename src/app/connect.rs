//! Connections to Kubernetes and Cloud Map, from the command line.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Context as _;
use backon::{ExponentialBuilder, Retryable as _};
use kube::Client;
use prometheus::Registry;

use base::metrics::Register;
use cli::{AwsArgs, ClusterArgs, EcsArgs, IdentityArgs, KubeArgs, RegistryPlace};
use cloudmap::{AwsSettings, Connected, Permit, Rates};
use cluster::{
    client::{self, Connection, Options},
    identity::{self, Flags, Identity},
};
use ecs::{AwsEcs, Ecs};
use ledger::driver::Registries;
use model::ClusterSetId;

/// A client, and the namespace of this pod or of the kubeconfig's context.
pub async fn connection(args: &ClusterArgs) -> anyhow::Result<Connection> {
    let ClusterArgs { kubeconfig, context } = args;
    let options = Options { kubeconfig: kubeconfig.clone(), context: context.clone() };
    Ok(client::connect(&options).await?)
}

/// A client, as flags and environment say.
pub async fn kubernetes(args: &KubeArgs) -> anyhow::Result<Client> {
    cluster(&args.cluster).await
}

/// For commands that have nothing to do with the controller's namespace.
pub async fn cluster(args: &ClusterArgs) -> anyhow::Result<Client> {
    Ok(connection(args).await?.client)
}

/// How often a command repeats a call: for about half a minute.
const REPEAT: u32 = 24;
/// How often `status`, the page, `cutover` and `users` repeat a call. All give an answer half a minute, and why calls fail must
/// be known before.
const REPEAT_STATUS: u32 = 8;

fn settings(place: RegistryPlace) -> AwsSettings {
    let RegistryPlace { region, role_arn, external_id, endpoint } = place;
    AwsSettings { region, assume_role_arn: role_arn, external_id, endpoint, ..AwsSettings::default() }
}

/// The home.
pub(crate) async fn registry(args: &AwsArgs, metrics: cloudmap::Metrics) -> anyhow::Result<Connected> {
    let (_, place) = args.home()?;
    Ok(cloudmap::connect(&settings(place), &Rates::default(), metrics).await?)
}

/// The registries beside the home, which are only read.
pub(crate) async fn registries(args: &AwsArgs, metrics: &impl Register) -> anyhow::Result<Registries> {
    others(args, 0, |name| cloudmap::Metrics::of(metrics, name)).await
}

/// The same for commands that read and end soon.
pub async fn registries_for_command(args: &AwsArgs) -> anyhow::Result<Registries> {
    others(args, REPEAT_STATUS, |_| cloudmap::Metrics::new(&Registry::new())).await
}

async fn others(
    args: &AwsArgs,
    repeat: u32,
    metrics: impl Fn(&str) -> prometheus::Result<cloudmap::Metrics>,
) -> anyhow::Result<Registries> {
    let mut others = BTreeMap::new();
    for (name, place) in args.others() {
        let settings = AwsSettings { repeat, ..settings(place.clone()) };
        let connected = cloudmap::connect(&settings, &Rates::default(), metrics(name)?).await;
        let connected = connected.with_context(|| format!("the registry {name}"))?;
        others.insert(name.into(), connected.cloudmap as Arc<dyn cloudmap::Read>);
    }
    Ok(Registries { home: args.home()?.0.into(), others })
}

/// For commands that read and end soon. Nobody reads their metrics. They repeat throttled calls, because they share the
/// account's rates with the controllers.
pub async fn registry_for_command(args: &AwsArgs) -> anyhow::Result<Arc<dyn cloudmap::Read>> {
    Ok(repeating(args, REPEAT).await?.cloudmap)
}

/// The same for commands that a person runs in order to write.
pub async fn registry_to_write(args: &AwsArgs) -> anyhow::Result<(Arc<dyn cloudmap::Write>, Permit)> {
    Ok((repeating(args, REPEAT).await?.cloudmap, Permit::of_command()))
}

/// The same for `status`, the page, `cutover` and `users`.
pub async fn registry_for_status(args: &AwsArgs) -> anyhow::Result<Arc<dyn cloudmap::Read>> {
    Ok(repeating(args, REPEAT_STATUS).await?.cloudmap)
}

/// For a look at the registry itself, where an answer that does not come is a finding. It also makes writes that AWS has to
/// refuse.
pub async fn registry_to_examine(args: &AwsArgs) -> anyhow::Result<(Connected, Permit)> {
    Ok((repeating(args, 2).await?, Permit::of_command()))
}

async fn repeating(args: &AwsArgs, repeat: u32) -> anyhow::Result<Connected> {
    let settings = AwsSettings { repeat, ..settings(args.home()?.1) };
    let metrics = cloudmap::Metrics::new(&Registry::new())?;
    Ok(cloudmap::connect(&settings, &Rates::default(), metrics).await?)
}

/// How often a command repeats a call of ECS. What it says is of use without ECS, so it does not wait for long.
const REPEAT_ECS: u32 = 4;

/// ECS, with the credentials, the region and the role with which Cloud Map is called. `None`: Cloud Map is an emulator, and
/// nothing is known of an ECS that belongs to it.
pub async fn ecs_for_command(aws: &AwsArgs, ecs: &EcsArgs) -> anyhow::Result<Option<Arc<dyn Ecs>>> {
    let (_, place) = aws.home()?;
    if place.endpoint.is_some() && ecs.ecs_endpoint.is_none() {
        return Ok(None);
    }
    let settings = AwsSettings { repeat: REPEAT_ECS, ..settings(place) };
    Ok(Some(Arc::new(AwsEcs::connect(&settings, ecs.ecs_endpoint.as_deref()).await?)))
}

/// What the flags say about who this is.
pub fn flags(args: &IdentityArgs) -> Flags {
    let IdentityArgs { cluster_id, clusterset_id } = args;
    Flags { cluster: cluster_id.clone(), clusterset: clusterset_id.clone() }
}

/// The current identity, for commands.
pub async fn identity(client: &Client, args: &IdentityArgs) -> anyhow::Result<Identity> {
    let ask = || async {
        let uid = identity::kube_system_uid(client).await?;
        Ok::<_, identity::AskError>((uid, identity::properties(client).await?))
    };
    // A command ends soon: three more attempts within seconds.
    let (uid, properties) = ask.retry(ExponentialBuilder::default()).await?;
    Ok(identity::resolve(&properties, &flags(args), &uid)?)
}

/// The ClusterSet of a command: from the flag, so that no cluster is needed, or else from the cluster.
pub async fn clusterset(kube: &KubeArgs, args: &IdentityArgs) -> anyhow::Result<ClusterSetId> {
    if let Some(id) = &args.clusterset_id {
        return Ok(id.clone());
    }
    let client = kubernetes(kube).await.context("the cluster is needed, because --clusterset-id is not set")?;
    identity(&client, args).await?.clusterset.context(
        "this cluster is in no ClusterSet: set --clusterset-id, or create the ClusterProperty clusterset.k8s.io",
    )
}
