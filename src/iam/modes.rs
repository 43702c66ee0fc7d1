//! The statements of each way of running.

use std::collections::BTreeSet;

use clap::ValueEnum;

use super::statement::{Facts, Statement, joined, partition};
use cloudmap::Operation::{
    self, CreateHttpNamespace, CreateService, DeleteNamespace, DeleteService, DeregisterInstance, DiscoverInstances,
    GetInstancesHealthStatus, GetNamespace, GetOperation, GetService, ListInstances, ListNamespaces, ListServices,
    ListTagsForResource, RegisterInstance, TagResource, UpdateInstanceCustomHealthStatus, UpdateService,
};
use instances::ownership::OWNER_TAG;
use ledger::{CLUSTER_TAG, CLUSTERSET_TAG};
use model::{ClusterId, ClusterSetId};

/// What runs with a role. The statements of several add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Mode {
    /// Exports and imports between clusters, without instances (`--instances=none`).
    Ledger,
    /// The same with instances, as `run` does by default. Also enough for annotated Services in a ClusterSet.
    Instances,
    /// Imports of what others registered in these Cloud Map namespaces (`--import-from`). Includes `ledger`.
    Imports,
    /// Beside AWS Cloud Map MCS Controllers (`--aws-mcs-compat`). Includes `instances`.
    AwsMcs,
    /// Annotated Services of a cluster that is in no ClusterSet.
    Annotated,
    /// Registering in services that others created, and that annotations name.
    Joining,
    /// Readiness gates of pods whose Services are in these Cloud Map namespaces (`--readiness-gates`), and guards of
    /// Cutovers there. Needed in addition to the mode that registers the pods.
    Gates,
    /// Hiding ECS tasks in services that others created (`--hide-tasks`). Needed in addition to `joining`.
    Hiding,
    /// Services in Cloud Map namespaces with DNS: Cloud Map writes to Route 53 with the permissions of its caller.
    Dns,
    /// For the controllers' role: denies every write in the services of other ClusterSets' ledgers. In all ledgers, it
    /// also denies the actions that no controller needs there (`UpdateService`, `UpdateInstanceCustomHealthStatus`).
    Deny,
    /// For all other principals, such as ECS, external-dns and people: denies every write in the services of ledgers,
    /// and adding or removing their tag.
    DenyOthers,
    /// `purge` and `forget`: for an administrator.
    People,
    /// `cutover plan`, `finish` and `back`: for people who move services from these ECS clusters.
    Cutover,
    /// Taking the role of a registry in another account. The cluster's own role then needs nothing else.
    AssumeRole,
}

impl Mode {
    /// The modes without which this one is of no use.
    const fn includes(self) -> &'static [Self] {
        match self {
            Self::Instances | Self::Imports => &[Self::Ledger],
            Self::AwsMcs => &[Self::Ledger, Self::Instances],
            _ => &[],
        }
    }

    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// A fact without which a mode has no statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("--mode {} needs {flag}", .mode.name())]
pub struct Needed {
    /// The mode.
    pub mode: Mode,
    /// The flag that gives the fact.
    pub flag: &'static str,
}

/// What everybody may look at. `ListInstances` is for `leave` and `forget` in the controller's pod.
const LOOK: &[Operation] = &[ListNamespaces, ListServices, GetService, GetOperation, ListInstances];
/// Who owns a service is in its tags and its creator. A listing does not say it if the service has no records.
const OWNERS: &[Operation] = &[ListTagsForResource];
/// `UpdateService` is for changes of a TTL, the last two are for services with a health check.
const INSTANCES: &[Operation] = &[
    RegisterInstance,
    DeregisterInstance,
    DeleteService,
    UpdateService,
    GetInstancesHealthStatus,
    UpdateInstanceCustomHealthStatus,
];

/// The tag of services that others created and that the controller may write in. An administrator sets it.
const JOINED_TAG: &str = "joined-by";

/// How the ECS service of a Cloud Map service is found.
const FIND: &[ecs::Operation] =
    &[ecs::Operation::ListClusters, ecs::Operation::ListServices, ecs::Operation::DescribeServices];

/// The statements of these modes, and of those that they include. Statements that differ in their actions only are joined.
///
/// # Errors
/// If a mode lacks a fact.
pub fn statements(modes: &[Mode], facts: &Facts) -> Result<Vec<Statement>, Needed> {
    let all: BTreeSet<Mode> = modes.iter().flat_map(|mode| mode.includes().iter().chain([mode])).copied().collect();
    let each = all.into_iter().map(|mode| of(mode, facts)).collect::<Result<Vec<_>, _>>()?;
    Ok(joined(each.into_iter().flatten()))
}

fn of(mode: Mode, facts: &Facts) -> Result<Vec<Statement>, Needed> {
    let needed = |flag| Needed { mode, flag };
    let clusterset = || facts.clusterset.as_ref().ok_or(needed("--clusterset"));
    let several = |values: &[String], flag| if values.is_empty() { Err(needed(flag)) } else { Ok(values.to_vec()) };
    let requested = |key: &str| format!("aws:RequestTag/{key}");
    let tagged = |key: &str| format!("aws:ResourceTag/{key}");
    let (services, namespaces) = (facts.arn("service/*"), facts.arn("namespace/*"));
    let look = |sid| Statement::calls(sid, LOOK);
    Ok(match mode {
        Mode::Ledger => {
            let id = clusterset()?.as_str();
            let clusters: Vec<_> = facts.clusters.iter().map(ClusterId::as_str).collect();
            vec![
                look("Look"),
                Statement::calls("CreateTheLedger", &[CreateHttpNamespace, CreateService, TagResource])
                    .when("StringEquals", &requested(CLUSTERSET_TAG), [id])
                    .only_with_tag(&requested(CLUSTER_TAG), &clusters),
                // The service of all heads has no tag of a cluster. A cluster that gets another id deletes the services
                // of its former id.
                Statement::calls("WriteTheLedger", &[RegisterInstance, DeregisterInstance, DeleteService])
                    .on([&services])
                    .when("StringEquals", &tagged(CLUSTERSET_TAG), [id])
                    .only_with_tag(&tagged(CLUSTER_TAG), &clusters),
                // AWS may append a hash to the name by which a namespace is discovered.
                Statement::calls("ReadTheLedger", &[DiscoverInstances]).when(
                    "StringLike",
                    "servicediscovery:NamespaceName",
                    [format!("{}*", ledger::namespace_name(id))],
                ),
            ]
        }
        Mode::Instances => {
            let owner = format!("clusterset/{}", clusterset()?);
            vec![
                Statement::calls("Look", OWNERS),
                Statement::calls("Look", &[GetNamespace]),
                Statement::calls("CreateForInstances", &[CreateHttpNamespace, CreateService, TagResource]).when(
                    "StringEquals",
                    &requested(OWNER_TAG),
                    [&owner],
                ),
                Statement::calls("WriteInstances", INSTANCES).on([services]).when(
                    "StringEquals",
                    &tagged(OWNER_TAG),
                    [owner],
                ),
            ]
        }
        Mode::Imports => {
            let names = several(&facts.namespaces, "--cloudmap-namespaces")?;
            vec![
                Statement::calls("ReadWhatIsImported", &[DiscoverInstances]).when(
                    "StringEquals",
                    "servicediscovery:NamespaceName",
                    names,
                ),
                // For services with more than 1,000 instances, and where discovery lacks instances that are listed.
                Statement::calls("ReadHealth", &[GetInstancesHealthStatus]).on([services]),
            ]
        }
        Mode::AwsMcs => {
            let names = several(&facts.namespaces, "--cloudmap-namespaces")?;
            let ids = several(&facts.namespace_ids, "--cloudmap-namespace-ids")?;
            vec![
                Statement::calls("ReadItsExports", &[DiscoverInstances]).when(
                    "StringEquals",
                    "servicediscovery:NamespaceName",
                    names,
                ),
                Statement::calls("ReadHealth", &[GetInstancesHealthStatus]).on([&services]),
                // What it created has no tags: an administrator tags it for the time of the move.
                Statement::calls("JoinItsServices", &[RegisterInstance, DeregisterInstance]).on([&services]).when(
                    "StringEquals",
                    &tagged(JOINED_TAG),
                    [clusterset()?.as_str()],
                ),
                // AWS asks for the namespace and for the service that is to be: whoever has only one of them has nothing.
                Statement::calls("CreateInItsNamespaces", &[CreateService])
                    .on(ids.iter().map(|id| facts.arn(&format!("namespace/{id}"))).chain([services])),
            ]
        }
        Mode::Annotated => {
            let uid = facts.cluster_uid.as_ref().ok_or(needed("--cluster-uid"))?;
            let owner = format!("cluster/{uid}");
            vec![
                look("Look"),
                Statement::calls("Look", OWNERS),
                Statement::calls("CreateForAnnotations", &[CreateService, TagResource]).when(
                    "StringEquals",
                    &requested(OWNER_TAG),
                    [&owner],
                ),
                Statement::calls("WriteForAnnotations", INSTANCES).on([services]).when(
                    "StringEquals",
                    &tagged(OWNER_TAG),
                    [owner],
                ),
            ]
        }
        Mode::Joining => {
            let join =
                [RegisterInstance, DeregisterInstance, GetInstancesHealthStatus, UpdateInstanceCustomHealthStatus];
            vec![
                look("Look"),
                Statement::calls("Look", OWNERS),
                // The TTL of a service that is taken over follows annotations.
                of_others(Statement::calls("JoinServices", &[&join[..], &[UpdateService]].concat()), mode, facts)?,
            ]
        }
        Mode::Gates => {
            let names = several(&facts.namespaces, "--cloudmap-namespaces")?;
            vec![Statement::calls("SeeWhatIsRegistered", &[DiscoverInstances]).when(
                "StringEquals",
                "servicediscovery:NamespaceName",
                names,
            )]
        }
        Mode::Hiding => {
            // No condition covers a single instance: the controller marks only what has the attribute of ECS.
            let hide = [GetInstancesHealthStatus, UpdateInstanceCustomHealthStatus];
            vec![of_others(Statement::calls("HideTasks", &hide), mode, facts)?]
        }
        Mode::Dns => {
            let zones = several(&facts.hosted_zones, "--hosted-zones")?;
            let arn = |zone: &String| format!("arn:{}:route53:::hostedzone/{zone}", partition(&facts.region));
            vec![
                Statement::allow("FindZones", ["route53:GetHostedZone", "route53:ListHostedZonesByName"]),
                Statement::allow("WriteRecords", ["route53:ChangeResourceRecordSets"]).on(zones.iter().map(arn)),
            ]
        }
        Mode::Deny => {
            let change = [UpdateService, UpdateInstanceCustomHealthStatus];
            let write = [&change[..], &[RegisterInstance, DeregisterInstance, DeleteService]].concat();
            vec![
                Statement::calls("NoOtherLedger", &write)
                    .deny()
                    .on([&services])
                    .when("Null", &tagged(CLUSTERSET_TAG), ["false"])
                    .when("StringNotEquals", &tagged(CLUSTERSET_TAG), [clusterset()?.as_str()]),
                Statement::calls("NoInstanceIsMadeInALedger", &change).deny().on([services]).when(
                    "Null",
                    &tagged(CLUSTERSET_TAG),
                    ["false"],
                ),
            ]
        }
        Mode::DenyOthers => {
            let write =
                [RegisterInstance, DeregisterInstance, DeleteService, UpdateService, UpdateInstanceCustomHealthStatus];
            let tag = ["servicediscovery:TagResource", "servicediscovery:UntagResource"];
            vec![
                Statement::calls("NoLedger", &write).deny().on([services]).when(
                    "Null",
                    &tagged(CLUSTERSET_TAG),
                    ["false"],
                ),
                Statement::allow("NoTagOfLedgers", tag).deny().when(
                    "ForAnyValue:StringEquals",
                    "aws:TagKeys",
                    [CLUSTERSET_TAG],
                ),
            ]
        }
        Mode::People => {
            let id = clusterset()?.as_str();
            vec![
                look("Look"),
                Statement::calls("Look", OWNERS),
                Statement::calls("Look", &[DiscoverInstances]),
                Statement::calls("SpeakForADeadCluster", &[RegisterInstance, DeregisterInstance, DeleteService])
                    .on([&services])
                    .when("StringEquals", &tagged(CLUSTERSET_TAG), [id]),
                Statement::calls("RemoveTheLedger", &[DeleteNamespace]).on([&namespaces]).when(
                    "StringEquals",
                    &tagged(CLUSTERSET_TAG),
                    [id],
                ),
                Statement::calls("RemoveWhatIsEmpty", &[DeleteService, DeleteNamespace])
                    .on([&services, &namespaces])
                    .when("StringEquals", &tagged(OWNER_TAG), [format!("clusterset/{id}")]),
                // Without a condition, because instances may be in joined services.
                Statement::calls("RemoveInstances", &[DeregisterInstance]).on([services]),
            ]
        }
        Mode::Cutover => {
            let clusters = several(&facts.ecs_clusters, "--ecs-clusters")?;
            let (partition, region, account) = (partition(&facts.region), &facts.region, &facts.account);
            let arn = |cluster: &String| format!("arn:{partition}:ecs:{region}:{account}:service/{cluster}/*");
            vec![
                Statement::calls("LookForTasks", &[ListNamespaces, ListServices, DiscoverInstances]),
                // Listing takes no resource.
                Statement::allow("LookForEcsServices", FIND.iter().map(|operation| operation.action())),
                Statement::allow("StopTasks", [ecs::Operation::UpdateService.action()]).on(clusters.iter().map(arn)),
            ]
        }
        Mode::AssumeRole => {
            let role = facts.role.clone().ok_or(needed("--role-arn"))?;
            // The session tags of EKS Pod Identity go on to the next role.
            vec![Statement::allow("UseTheRegistry", ["sts:AssumeRole", "sts:TagSession"]).on([role])]
        }
    })
}

/// Limits a statement to services that others created: those that are named, or all that have the tag.
fn of_others(statement: Statement, mode: Mode, facts: &Facts) -> Result<Statement, Needed> {
    if !facts.services.is_empty() {
        return Ok(statement.on(facts.services.iter().map(|id| facts.arn(&format!("service/{id}")))));
    }
    let clusterset = facts.clusterset.as_ref().map(ClusterSetId::as_str);
    let by = clusterset.or(facts.cluster_uid.as_deref()).ok_or(Needed {
        mode,
        flag: "--services; or --clusterset or --cluster-uid, for all services with the tag joined-by",
    })?;
    let tag = format!("aws:ResourceTag/{JOINED_TAG}");
    Ok(statement.on([facts.arn("service/*")]).when("StringEquals", &tag, [by]))
}
