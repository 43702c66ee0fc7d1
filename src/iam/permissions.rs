//! The statements of one mode.

use std::collections::BTreeSet;

use super::{
    modes::{Mode, Needed},
    statement::{Scope, Statement, partition},
};
use cloudmap::{
    NamespaceArn,
    Operation::{
        self, CreateHttpNamespace, CreatePrivateDnsNamespace, CreateService, DeleteNamespace, DeleteService,
        DeregisterInstance, DiscoverInstances, GetInstancesHealthStatus, GetNamespace, GetOperation, GetService,
        ListInstances, ListNamespaces, ListServices, ListTagsForResource, RegisterInstance, TagResource,
        UpdateInstanceCustomHealthStatus, UpdateService,
    },
};
use instances::ownership::OWNER_TAG;
use ledger::{CLUSTER_TAG, CLUSTERSET_TAG};
use model::{ClusterId, ClusterSetId};

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

/// The name of the statement for namespaces that other accounts share.
pub const READ_SHARED: &str = "ReadWhatIsShared";
/// The tag of services that others created and that the controller may write in. An administrator sets it.
const JOINED_TAG: &str = "joined-by";

/// What Cloud Map does with the permissions of its caller before it writes records.
const FIND_ZONES: [&str; 2] = ["route53:GetHostedZone", "route53:ListHostedZonesByName"];

/// How the ECS service of a Cloud Map service is found.
const FIND: &[ecs::Operation] =
    &[ecs::Operation::ListClusters, ecs::Operation::ListServices, ecs::Operation::DescribeServices];

/// The statements of a mode, without those of the modes that it includes.
///
/// # Errors
/// If the mode lacks a fact.
pub(crate) fn of_mode(mode: Mode, scope: &Scope) -> Result<Vec<Statement>, Needed> {
    let permissions = Permissions { mode, scope };
    match mode {
        Mode::Ledger => permissions.ledger(),
        Mode::Reading => permissions.reading(),
        Mode::Instances => permissions.instances(),
        Mode::Imports => permissions.imports(),
        Mode::AwsMcs => permissions.aws_mcs(),
        Mode::Annotated => permissions.annotated(),
        Mode::Joining => permissions.joining(),
        Mode::Gates => permissions.gates(),
        Mode::Hiding => permissions.hiding(),
        Mode::Dns => permissions.dns(),
        Mode::DnsNamespaces => permissions.dns_namespaces(),
        Mode::Deny => permissions.deny(),
        Mode::DenyOthers => Ok(permissions.deny_others()),
        Mode::People => permissions.people(),
        Mode::Cutover => permissions.cutover(),
        Mode::AssumeRole => permissions.assume_role(),
    }
}

fn requested(key: &str) -> String {
    format!("aws:RequestTag/{key}")
}

fn tagged(key: &str) -> String {
    format!("aws:ResourceTag/{key}")
}

fn look(sid: &str) -> Statement {
    Statement::calls(sid, LOOK)
}

struct Permissions<'a> {
    mode: Mode,
    scope: &'a Scope,
}

impl Permissions<'_> {
    fn needed(&self, flag: &'static str) -> Needed {
        Needed { mode: self.mode, flag }
    }

    fn clusterset(&self) -> Result<&ClusterSetId, Needed> {
        self.scope.clusterset.as_ref().ok_or(self.needed("--clusterset"))
    }

    fn several(&self, values: &[String], flag: &'static str) -> Result<Vec<String>, Needed> {
        if values.is_empty() { Err(self.needed(flag)) } else { Ok(values.to_vec()) }
    }

    /// The names of the Cloud Map namespaces, without ARNs.
    fn names(&self) -> Result<Vec<String>, Needed> {
        let named = self.scope.namespaces.iter().filter(|name| !NamespaceArn::is_meant(name));
        self.several(&named.cloned().collect::<Vec<_>>(), "--cloudmap-namespaces")
    }

    fn ledger(&self) -> Result<Vec<Statement>, Needed> {
        let services = self.scope.arn("service/*");
        let id = self.clusterset()?.as_str();
        let clusters: Vec<_> = self.scope.clusters.iter().map(ClusterId::as_str).collect();
        Ok(vec![
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
            self.read_the_ledger()?,
        ])
    }

    fn read_the_ledger(&self) -> Result<Statement, Needed> {
        // AWS may append a hash to the name by which a namespace is discovered.
        let name = format!("{}*", ledger::namespace_name(self.clusterset()?.as_str()));
        let statement = Statement::calls("ReadTheLedger", &[DiscoverInstances]);
        Ok(statement.when("StringLike", "servicediscovery:NamespaceName", [name]))
    }

    fn reading(&self) -> Result<Vec<Statement>, Needed> {
        let mut statements =
            vec![Statement::calls("Look", &[ListNamespaces, ListServices, GetService]), self.read_the_ledger()?];
        if !self.scope.namespaces.is_empty() {
            statements.push(Statement::calls("Look", &[ListInstances]));
            statements.extend(self.imports()?);
        }
        Ok(statements)
    }

    fn instances(&self) -> Result<Vec<Statement>, Needed> {
        let services = self.scope.arn("service/*");
        let owner = format!("clusterset/{}", self.clusterset()?);
        Ok(vec![
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
        ])
    }

    fn imports(&self) -> Result<Vec<Statement>, Needed> {
        let shared: Vec<_> = self.scope.namespaces.iter().filter_map(|name| NamespaceArn::parse(name)).collect();
        let mut statements = Vec::new();
        let names = self.names();
        if shared.is_empty() || names.is_ok() {
            let names = names?;
            let read = Statement::calls("ReadWhatIsImported", &[DiscoverInstances]);
            statements.push(read.when("StringEquals", "servicediscovery:NamespaceName", names));
            // For services with more than 1,000 instances, and where discovery lacks instances that are listed.
            statements
                .push(Statement::calls("ReadHealth", &[GetInstancesHealthStatus]).on([self.scope.arn("service/*")]));
        }
        if !shared.is_empty() {
            // AWS asks for the namespace and for the service, which are the owner's. What may be called of these, its
            // share says.
            let read = [GetNamespace, DiscoverInstances, GetInstancesHealthStatus];
            let resources: BTreeSet<_> =
                shared.iter().flat_map(|arn| [arn.as_str().to_owned(), arn.services()]).collect();
            statements.push(Statement::calls(READ_SHARED, &read).on(resources));
        }
        Ok(statements)
    }

    fn aws_mcs(&self) -> Result<Vec<Statement>, Needed> {
        let services = self.scope.arn("service/*");
        let names = self.names()?;
        let ids = self.several(&self.scope.namespace_ids, "--cloudmap-namespace-ids")?;
        Ok(vec![
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
                [self.clusterset()?.as_str()],
            ),
            // AWS asks for the namespace and for the service that is to be: whoever has only one of them has nothing.
            Statement::calls("CreateInItsNamespaces", &[CreateService])
                .on(ids.iter().map(|id| self.scope.arn(&format!("namespace/{id}"))).chain([services])),
        ])
    }

    fn annotated(&self) -> Result<Vec<Statement>, Needed> {
        let services = self.scope.arn("service/*");
        let uid = self.scope.cluster_uid.as_ref().ok_or(self.needed("--cluster-uid"))?;
        let owner = format!("cluster/{uid}");
        Ok(vec![
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
        ])
    }

    fn joining(&self) -> Result<Vec<Statement>, Needed> {
        let join = [RegisterInstance, DeregisterInstance, GetInstancesHealthStatus, UpdateInstanceCustomHealthStatus];
        Ok(vec![
            look("Look"),
            Statement::calls("Look", OWNERS),
            // The TTL of a service that is taken over follows annotations.
            self.of_others(Statement::calls("JoinServices", &[&join[..], &[UpdateService]].concat()))?,
        ])
    }

    fn gates(&self) -> Result<Vec<Statement>, Needed> {
        let names = self.names()?;
        Ok(vec![Statement::calls("SeeWhatIsRegistered", &[DiscoverInstances]).when(
            "StringEquals",
            "servicediscovery:NamespaceName",
            names,
        )])
    }

    fn hiding(&self) -> Result<Vec<Statement>, Needed> {
        // No condition covers a single instance: the controller marks only what has the attribute of ECS.
        let hide = [GetInstancesHealthStatus, UpdateInstanceCustomHealthStatus];
        Ok(vec![self.of_others(Statement::calls("HideTasks", &hide))?])
    }

    fn dns(&self) -> Result<Vec<Statement>, Needed> {
        let zones = self.several(&self.scope.hosted_zones, "--hosted-zones")?;
        let records = Statement::allow("WriteRecords", ["route53:ChangeResourceRecordSets"]);
        Ok(vec![Statement::allow("FindZones", FIND_ZONES), records.on(zones.iter().map(|zone| self.zone(zone)))])
    }

    /// The ids of the zones are not known before they are made.
    fn dns_namespaces(&self) -> Result<Vec<Statement>, Needed> {
        let owner = format!("clusterset/{}", self.clusterset()?);
        let make = ["route53:CreateHostedZone", "ec2:DescribeVpcs", "ec2:DescribeRegions"];
        Ok(vec![
            Statement::allow("MakeZones", make.into_iter().chain(FIND_ZONES)),
            // The tag in the request is authorized by `TagResource`.
            Statement::calls("CreateDnsNamespaces", &[CreatePrivateDnsNamespace, TagResource]).when(
                "StringEquals",
                &requested(OWNER_TAG),
                [owner],
            ),
            Statement::allow("WriteRecordsInNewZones", ["route53:ChangeResourceRecordSets"]).on([self.zone("*")]),
        ])
    }

    /// ARN of a hosted zone.
    fn zone(&self, id: &str) -> String {
        format!("arn:{}:route53:::hostedzone/{id}", partition(&self.scope.region))
    }

    fn deny(&self) -> Result<Vec<Statement>, Needed> {
        let services = self.scope.arn("service/*");
        let change = [UpdateService, UpdateInstanceCustomHealthStatus];
        let write = [&change[..], &[RegisterInstance, DeregisterInstance, DeleteService]].concat();
        Ok(vec![
            Statement::calls("NoOtherLedger", &write)
                .deny()
                .on([&services])
                .when("Null", &tagged(CLUSTERSET_TAG), ["false"])
                .when("StringNotEquals", &tagged(CLUSTERSET_TAG), [self.clusterset()?.as_str()]),
            Statement::calls("NoInstanceIsMadeInALedger", &change).deny().on([services]).when(
                "Null",
                &tagged(CLUSTERSET_TAG),
                ["false"],
            ),
        ])
    }

    fn deny_others(&self) -> Vec<Statement> {
        let services = self.scope.arn("service/*");
        let write =
            [RegisterInstance, DeregisterInstance, DeleteService, UpdateService, UpdateInstanceCustomHealthStatus];
        let tag = ["servicediscovery:TagResource", "servicediscovery:UntagResource"];
        vec![
            Statement::calls("NoLedger", &write).deny().on([services]).when("Null", &tagged(CLUSTERSET_TAG), ["false"]),
            Statement::allow("NoTagOfLedgers", tag).deny().when(
                "ForAnyValue:StringEquals",
                "aws:TagKeys",
                [CLUSTERSET_TAG],
            ),
        ]
    }

    fn people(&self) -> Result<Vec<Statement>, Needed> {
        let namespaces = self.scope.arn("namespace/*");
        let services = self.scope.arn("service/*");
        let id = self.clusterset()?.as_str();
        let zones: Vec<_> = self.scope.hosted_zones.iter().map(|zone| self.zone(zone)).collect();
        let of_zones = Statement::allow("RemoveZones", ["route53:DeleteHostedZone"]).on(zones.clone());
        let mut all =
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
            ];
        all.extend((!zones.is_empty()).then_some(of_zones));
        Ok(all)
    }

    fn cutover(&self) -> Result<Vec<Statement>, Needed> {
        let clusters = self.several(&self.scope.ecs_clusters, "--ecs-clusters")?;
        let (partition, region, account) = (partition(&self.scope.region), &self.scope.region, &self.scope.account);
        let arn = |cluster: &String| format!("arn:{partition}:ecs:{region}:{account}:service/{cluster}/*");
        Ok(vec![
            Statement::calls("LookForTasks", &[ListNamespaces, ListServices, DiscoverInstances]),
            // Listing takes no resource.
            Statement::allow("LookForEcsServices", FIND.iter().map(|operation| operation.action())),
            Statement::allow("StopTasks", [ecs::Operation::UpdateService.action()]).on(clusters.iter().map(arn)),
        ])
    }

    fn assume_role(&self) -> Result<Vec<Statement>, Needed> {
        let role = self.scope.role.clone().ok_or(self.needed("--role-arn"))?;
        // The session tags of EKS Pod Identity go on to the next role.
        Ok(vec![Statement::allow("UseTheRegistry", ["sts:AssumeRole", "sts:TagSession"]).on([role])])
    }

    /// Limits a statement to services that others created: those that are named, or all that have the tag.
    fn of_others(&self, statement: Statement) -> Result<Statement, Needed> {
        if !self.scope.services.is_empty() {
            return Ok(statement.on(self.scope.services.iter().map(|id| self.scope.arn(&format!("service/{id}")))));
        }
        let clusterset = self.scope.clusterset.as_ref().map(ClusterSetId::as_str);
        let by = clusterset.or(self.scope.cluster_uid.as_deref()).ok_or(Needed {
            mode: self.mode,
            flag: "--services; or --clusterset or --cluster-uid, for all services with the tag joined-by",
        })?;
        let tag = format!("aws:ResourceTag/{JOINED_TAG}");
        Ok(statement.on([self.scope.arn("service/*")]).when("StringEquals", &tag, [by]))
    }
}
