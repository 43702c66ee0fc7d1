//! Conditions of ServiceExports, ServiceImports, Pods and Cutovers: the types and reasons of KEP-1645 and of this
//! project, in tables.

mod verdict;

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

pub use self::verdict::{Heading, SharedCondition, Verdict, already_say, conditions, find};
use super::{events::EventReason, names::CONDITION_REGISTERED};

/// Types of conditions on a ServiceExport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExportCondition {
    /// KEP-1645: the Service exists and has a type that can be exported.
    Valid,
    /// KEP-1645: the export has reached the source of truth for the other clusters, here the registry.
    Ready,
    /// KEP-1645: exports of one name differ between clusters.
    Conflict,
    /// Of this project: the endpoints are registered as Cloud Map instances.
    Registered,
    /// Of this project: importing clusters prefer the clusters that the export names. The condition is absent if it names none.
    ClusterSelection,
    /// Of this project: the endpoints leave the name, because others serve it. The condition is absent without a drain.
    Drained,
}

impl ExportCondition {
    /// All conditions that this project writes on a ServiceExport.
    pub const ALL: [Self; 6] =
        [Self::Valid, Self::Ready, Self::Conflict, Self::Registered, Self::ClusterSelection, Self::Drained];

    /// The `type` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Valid => "Valid",
            Self::Ready => "Ready",
            Self::Conflict => "Conflict",
            Self::Registered => "Registered",
            Self::ClusterSelection => "ClusterSelection",
            Self::Drained => "Drained",
        }
    }
}

/// Types of conditions on a ServiceImport.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ImportCondition {
    /// KEP-1645: the imported service can be used in this cluster.
    Ready,
    /// Of this project: exporting clusters have been silent for long. The condition is absent while none is silent.
    Stale,
    /// Of this project: the type of the import changes soon. The condition is absent otherwise.
    TypeChanges,
    /// Of this project: some clusters serve clients in this cluster before others. The condition is absent if all serve alike.
    ClusterSelection,
    /// Of this project: the network from this cluster to an exporting one is gone. The condition is absent otherwise.
    Unreachable,
    /// Of this project: an export, or endpoints of one, do not count in this cluster. The condition is absent otherwise.
    Excluded,
}

impl ImportCondition {
    /// The `type` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "Ready",
            Self::Stale => "Stale",
            Self::TypeChanges => "TypeChanges",
            Self::ClusterSelection => "ClusterSelection",
            Self::Unreachable => "Unreachable",
            Self::Excluded => "Excluded",
        }
    }
}

/// Types of conditions on a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodCondition {
    /// Of this project, and a readiness gate: clients of Cloud Map find the pod, or nothing waits for that any more.
    Registered,
}

impl PodCondition {
    /// The `type` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Registered => CONDITION_REGISTERED,
        }
    }
}

/// Types of conditions on a Cutover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CutoverCondition {
    /// Of this project: the traffic moves, or is where it should be in the end.
    Progressing,
    /// Of this project, with `spec.hideTasks`: no task remains to be hidden or shown.
    TasksHidden,
}

impl CutoverCondition {
    /// The `type` of the condition.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Progressing => "Progressing",
            Self::TasksHidden => "TasksHidden",
        }
    }
}

/// A row in the table of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// `type` of the condition.
    pub condition: &'static str,
    /// `status` of the condition.
    pub status: Status,
    /// `reason` of the condition, in CamelCase.
    pub reason: &'static str,
    /// `reason` of the Event that reports the change; `None` if the change is mere progress.
    pub event: Option<EventReason>,
    /// The meaning, in a few words.
    pub text: &'static str,
    /// What to do; empty if nothing is wrong.
    pub remedy: &'static str,
    /// What `docs/reference/conditions.md` says beside this, in Markdown: whole sentences, or nothing.
    pub more: &'static str,
}

/// The table of one condition: an enum with a row for each variant. `docs/reference/conditions.md` is made of it
/// (`make docs`).
macro_rules! condition {
    ($(#[$doc:meta])* $name:ident, $condition:expr;
     $($variant:ident => $status:ident, $reason:literal, $event:expr, $text:literal, $remedy:literal, $more:literal;)+) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $(
                #[doc = concat!(stringify!($status), ": ", $text, ".")]
                $variant,
            )+
        }

        impl $name {
            /// All reasons, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The row of this reason.
            pub const fn row(self) -> Row {
                match self {
                    $(Self::$variant => Row {
                        condition: $condition.as_str(),
                        status: Status::$status,
                        reason: $reason,
                        event: $event,
                        text: $text,
                        remedy: $remedy,
                        more: $more,
                    },)+
                }
            }

            /// The `reason` of the condition.
            pub const fn as_str(self) -> &'static str {
                self.row().reason
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl From<$name> for Row {
            fn from(reason: $name) -> Self {
                reason.row()
            }
        }
    };
}

condition! {
    /// Reasons of [`ExportCondition::Valid`].
    ValidReason, ExportCondition::Valid;
    Valid => True, "Valid", None, "the Service can be exported", "",
        "The message names exported labels and annotations that are left out: malformed ones, and those of `cloudmap-mcs` and \
         `multicluster.kubernetes.io/`.";
    NoService => False, "NoService", Some(EventReason::NoService),
        "this cluster has no Service of that name, or it is being deleted", "Create the Service, or delete the ServiceExport", "";
    InvalidServiceType => False, "InvalidServiceType", Some(EventReason::InvalidServiceType),
        "a Service of type ExternalName cannot be exported, nor can the derived Service of an import", "Give the Service another type, or delete the ServiceExport", "";
}

condition! {
    /// Reasons of [`ExportCondition::Ready`].
    ReadyReason, ExportCondition::Ready;
    Exported => True, "Exported", Some(EventReason::Exported), "the registry contains exactly this export", "", "";
    Pending => False, "Pending", None,
        "the export has been on its way for more than 3 s",
        "Wait. If the export stays on its way, find the leader with `cloudmap-mcs status`, and read the leader's log",
        "In the first 3 s, neither this nor an error is reported. The condition is also `Pending` while the cluster leaves its ClusterSet (`leave --undo` ends that).";
    Outside => False, "Pending", Some(EventReason::NoClusterSet),
        "the cluster is in no ClusterSet", "Create the ClusterProperty `clusterset.k8s.io`, or set `--clusterset-id`", "";
    Failed => False, "Failed", Some(EventReason::Failed),
        "the message says why", "Remove the cause in the message; the controller tries again by itself",
        "Possible causes: an error of AWS, in AWS's words; the cluster id belongs to another cluster; the identity is contradictory; the \
         namespace may not export (`--export-namespaces`), or has used up its [quota](../operations.md#quotas-of-namespaces); the AWS controller of this cluster still holds the export \
         (`--aws-mcs-compat`); a record is larger than 2,500 bytes (use fewer or shorter labels, annotations or ports; until \
         then the last version that fitted stays, with the current endpoints); or `Valid` is False.";
}

condition! {
    /// Reasons of [`ExportCondition::Conflict`]. If exports differ, the condition's `reason` is that of each
    /// [`ConflictReason`](model::ConflictReason) instead.
    ConflictState, ExportCondition::Conflict;
    NoConflicts => False, "NoConflicts", Some(EventReason::NoConflicts), "all exporting clusters agree", "", "";
    Conflict => True, "Conflict", Some(EventReason::Conflict),
        "exports of this name differ", "Make the exports equal; until then the oldest export wins",
        "The message has the field, the value in use, the cluster whose export wins, and how many clusters disagree. Then it says what \
         *this* cluster must change, or which other clusters differ. Several reasons are joined with commas.";
}

condition! {
    /// Reasons of [`ExportCondition::ClusterSelection`].
    SelectionReason, ExportCondition::ClusterSelection;
    InForce => True, "InForce", None, "importing clusters prefer clusters as the export says", "",
        "The message has the [cluster selection](../traffic.md), and the tiers that it makes in this cluster.";
    InvalidClusterSelector => False, "InvalidClusterSelector", Some(EventReason::InvalidAnnotation),
        "an annotation of the cluster selection is invalid", "The message says what to write, and where",
        "The last valid cluster selection stays in force. The reason is that of the draft KEP-5939, which has it in the condition `Valid`.";
    ClusterSelectorsConflict => False, "ClusterSelectorsConflict", Some(EventReason::Conflict),
        "exports of this name differ in their cluster selection", "Make the annotations equal; until then the oldest export wins",
        "An export without these annotations differs, too. The reason is that of the draft KEP-5939, which has it in the condition `Conflict`.";
    InvalidServiceType => False, "InvalidServiceType", Some(EventReason::InvalidServiceType),
        "clients of a headless Service choose endpoints by themselves", "Remove the annotation, or export a Service that is not headless",
        "All endpoints of a headless import stay, because peers of a StatefulSet need each other's names.";
    UnknownProperty => False, "UnknownProperty", Some(EventReason::UnknownProperty),
        "a selector names a property that no cluster has", "Create that ClusterProperty in the clusters, or correct its name in the annotation",
        "The selection is in force all the same. The message names the property.";
    UnknownCluster => False, "UnknownCluster", Some(EventReason::UnknownCluster),
        "a weight is that of a cluster that does not export the name", "Correct the id in the annotation `cloudmap-mcs/cluster-weights`, or export the Service from that cluster",
        "The weights are in force all the same. What the cluster would get goes to the others.";
}

condition! {
    /// Reasons of [`ExportCondition::Drained`].
    DrainReason, ExportCondition::Drained;
    Drained => True, "Drained", None, "no client of an import uses the endpoints of this cluster", "",
        "The message says who serves. See [upgrading a cluster](../upgrading-a-cluster.md).";
    Leaving => False, "Leaving", None, "the endpoints of this cluster leave the name step by step", "", "";
    Returning => False, "Returning", None, "the endpoints of this cluster come back step by step", "", "";
    Stays => False, "Stays", Some(EventReason::DrainStays),
        "nobody else can serve the name well enough, so endpoints of this cluster stay",
        "The message says why. Export the Service from another cluster that is not drained, or get its pods ready",
        "If a cluster selection allows clients of this cluster no other, they keep its endpoints, too.";
    InvalidDrain => False, "InvalidDrain", Some(EventReason::InvalidAnnotation),
        "an annotation or a ClusterProperty that asks for the drain is invalid", "The message says what to write, and where",
        "What was valid before stays in force.";
}

condition! {
    /// Reasons of [`ExportCondition::Registered`].
    RegisteredReason, ExportCondition::Registered;
    Registered => True, "Registered", None, "the ready endpoints are instances", "",
        "With a [share of the traffic](../shares.md), only some of them are, and the message has the requested share, the chosen one \
         and the next. The message also has remarks: [limits](../instances.md#limits), attributes that are left out, a \
         TTL that cannot be changed, records of other types than requested.";
    Pending => False, "Pending", None,
        "the registration is under way, or it waits for what the message names",
        "Wait, or look for the older claim with `cloudmap-mcs ledger show`",
        "A new claim to a target that an annotation names must be visible to the other clusters for `--claim-delay`. Or a cluster that \
         cannot be read may have an older claim. The condition is also `Pending` while the cluster leaves its ClusterSet or is in none.";
    Disabled => False, "Disabled", None, "no instances are requested, because of the annotation `cloudmap-mcs/instances` or of `--instances=annotated`", "",
        "With `--instances=none` there is no such condition.";
    NameConflict => False, "NameConflict", Some(EventReason::NameConflict),
        "another claim holds the target", "Name another Cloud Map service with the annotation `cloudmap-mcs/service`, or have the other claim removed",
        "The other claim is older, or it is of the Kubernetes namespace whose own name the target is. The message names it.";
    ForeignOwner => False, "ForeignOwner", Some(EventReason::ForeignOwner),
        "the Cloud Map service belongs to somebody else",
        "Join the service with the annotation `cloudmap-mcs/share` or `cloudmap-mcs/service`, and have an administrator list it in \
         `cloudmap-mcs/may-register` on the Namespace; or name another service",
        "Without [that grant](../operations.md#annotations-on-a-namespace), nothing joins a service that others made. A service of another ClusterSet needs `cloudmap-mcs/share`. A service of external-dns needs `cloudmap-mcs/share`, or \
         `cloudmap-mcs/adopt` if that is [allowed](../operations.md#annotations-on-a-namespace). A service of ECS Service \
         Connect is never joined. Instances from before [stay](../registrations.md#sync) as long as nobody else is registered \
         there. The controller looks again every 5 minutes.";
    NotApproved => False, "NotApproved", Some(EventReason::NotApproved),
        "this cluster has not joined the ClusterSet yet, or a member rejected it",
        "Run the commands in the message: members of the ClusterSet that run with `--join=approve` must accept this cluster",
        "[Joining](../trust.md#joining) has the rules. Exports reach the clusters that accept this cluster all the same.";
    NoNamespace => False, "NoNamespace", Some(EventReason::NoNamespace),
        "the Cloud Map namespace does not exist, and the controller does not or cannot create it",
        "Create the Cloud Map namespace, name another one with the annotation `cloudmap-mcs/namespace`, or have an administrator allow it with \
         `cloudmap-mcs/may-create` on the Namespace",
        "The controller makes only the namespace that an export has without the annotation, and those that \
         [`cloudmap-mcs/may-create`](../operations.md#annotations-on-a-namespace) lists. With `--create-dns-namespaces`, Route 53 may \
         refuse the [hosted zone](../instances.md#namespaces-with-dns): the message says why, and the controller tries again at least \
         once a minute.";
    QuotaExceeded => False, "QuotaExceeded", Some(EventReason::QuotaExceeded),
        "the Kubernetes namespace has used up its quota, or the cluster has no room for more records",
        "Remove exports, names or endpoints in that namespace, or ask an administrator for the annotation `cloudmap-mcs/quota` on the Namespace",
        "See [quotas](../operations.md#quotas-of-namespaces). What was there before stays. If some endpoints are left out, the others \
         are kept up to date. `Ready` is `Failed` with the same message.";
    LimitExceeded => False, "LimitExceeded", Some(EventReason::LimitExceeded),
        "a Cloud Map quota is exhausted", "Have AWS raise the quota, or spread the instances over several services",
        "The controller tries again every minute.";
    InvalidAnnotation => False, "InvalidAnnotation", Some(EventReason::InvalidAnnotation),
        "an annotation is invalid", "The message says what to write, and where",
        "Or the [Namespace](../operations.md#annotations-on-a-namespace) does not allow it. If the annotation says how to \
         register (`adopt`, `dns-...`, `health-check`, `share-of-traffic`), existing instances stay and are kept up to date. If `instance-port` \
         names a port that the Service does not have, existing instances keep their port, and new ones get the first port.";
    AddressFamilyMissing => False, "AddressFamilyMissing", Some(EventReason::AddressFamilyMissing),
        "endpoints lack what the service's DNS records require",
        "Give the Service that IP family, or name a Cloud Map service with other records",
        "Or somebody else has registered instances with their ids. The message has the number of endpoints.";
    PortNotServed => False, "PortNotServed", Some(EventReason::PortNotServed),
        "the ready endpoints are instances, but no endpoint serves a port of the Service, so nobody gets through there",
        "Give `targetPort` of the port the number of a container's port, or the name that a container of the pods gives a port of this protocol; or take the port out of the Service",
        "The EndpointSlice controller of Kubernetes leaves a port out where a pod has no container port of that name and protocol. \
         The message names the ports. The condition appears after 10 s, and only if the Service has endpoints. A port that some \
         endpoints serve is no fault: `status` counts them.";
    Throttled => False, "Throttled", Some(EventReason::Throttled),
        "AWS has throttled the calls for this export for some time",
        "Wait; or find what else in the account and region makes many calls (CloudTrail), and have it make fewer",
        "All callers in an account and region share AWS's request rates, such as one `ListNamespaces` in two seconds. The message \
         names the operation. Existing instances stay, and the controller tries again every few seconds.";
    Failed => False, "Failed", Some(EventReason::Failed),
        "AWS refused a call, or the instances would have too many attributes", "Remove the cause in the message: grant the permission, or set fewer attributes",
        "The message has AWS's words, or says which [attributes](../instances.md#what) are too many. Existing instances stay. The controller \
         tries again, at least once a minute.";
}

condition! {
    /// Reasons of [`ImportCondition::Ready`].
    ImportReadyReason, ImportCondition::Ready;
    Ready => True, "Ready", None, "the service can be used in this cluster", "",
        "The message names the clusters whose endpoints have [no IP family](../imports.md#ip-families) that this cluster serves.";
    Pending => False, "Pending", None,
        "the derived Service or an EndpointSlice cannot be written",
        "Remove the cause in the message: delete the foreign Service, or allow the write",
        "A foreign Service has the name of the derived Service, or the API server refuses the write.";
    IpFamilyNotSupported => False, "IPFamilyNotSupported", None,
        "this cluster supports none of the IP families that the service is exported with",
        "Export the service also with an IP family of this cluster, from a cluster that has this family, or use a load balancer \
         that has both",
        "The message has the families of each export; see [IP families](../imports.md#ip-families).";
}

condition! {
    /// Reasons of [`ImportCondition::Stale`], which is absent while no cluster is silent.
    ImportStaleReason, ImportCondition::Stale;
    ClusterSilent => True, "ClusterSilent", Some(EventReason::ClusterSilent),
        "the clusters named in the message have been silent for 5 minutes or more",
        "Check the controller of the silent cluster and its access to AWS. If the cluster is gone for good, remove it with `cloudmap-mcs forget`",
        "Their endpoints stay, unless `--stale-cluster-ttl` is set. The condition is absent while no cluster is silent.";
}

condition! {
    /// Reasons of [`ImportCondition::ClusterSelection`], which is absent while all clusters serve alike.
    ImportSelectionReason, ImportCondition::ClusterSelection;
    InForce => True, "InForce", None, "clients in this cluster use the clusters that the message names", "",
        "The message has the [cluster selection](../traffic.md), the clusters that serve now, and those that would serve next.";
    NoneAllowed => False, "NoneAllowed", None,
        "no cluster that the cluster selection allows has a ready endpoint",
        "Start pods in a cluster that the message names, or allow others to serve: `local-first` instead of `local-only`, or the fallback policy `AllClusters`", "";
}

condition! {
    /// Reasons of [`ImportCondition::Unreachable`], which is absent while every exporting cluster can be reached.
    ImportUnreachableReason, ImportCondition::Unreachable;
    NoAnswer => True, "NoAnswer", Some(EventReason::ClusterUnreachable),
        "the network from this cluster to the clusters named in the message is gone, so their endpoints serve only if no others do",
        "Look at what is between the two clusters: peering or transit gateway, routes, security groups, network policies. `cloudmap-mcs doctor` tries the network",
        "The message says who judged, by what, and since when; see [unreachable clusters](../unreachable.md).";
}

condition! {
    /// Reasons of [`ImportCondition::TypeChanges`], which is absent while no change waits.
    ImportTypeReason, ImportCondition::TypeChanges;
    OldestExport => True, "OldestExport", Some(EventReason::TypeChanges),
        "the oldest export has another type than the import, which follows at the time in the message",
        "If the change is a mistake, undo it in the cluster that the message names: give the Service the type that it had, or delete the ServiceExport",
        "The time is `--type-notice` after the condition appeared. The import keeps its type until then, as long as another export has that type.";
}

condition! {
    /// Reasons of [`ImportCondition::Excluded`], which is absent while everything counts.
    ImportExcludedReason, ImportCondition::Excluded;
    NotAllowed => True, "NotAllowed", Some(EventReason::ImportExcluded),
        "of the clusters named in the message, this cluster does not take the export, or not all endpoints", "",
        "If they should count, have an administrator change what the message names: the annotation `cloudmap-mcs/accept-clusters` on the Namespace, or the ClusterImportPolicy. \
         See [import policies](../import-policies.md). Conflicts and claims are judged over all clusters all the same.";
}

condition! {
    /// Reasons of [`PodCondition::Registered`], which is never taken back.
    GateReason, PodCondition::Registered;
    Registered => True, "Registered", None,
        "the pod is registered in Cloud Map, and discovery shows it", "", "";
    HeldBack => True, "HeldBack", None,
        "the pod is not registered, because fewer pods are enough for the share of the traffic that the Service requests",
        "If the pod should be registered, raise `cloudmap-mcs/share-of-traffic`",
        "The pod is registered when another pod goes, or when a larger share is requested.";
    NotRegistered => True, "NotRegistered", Some(EventReason::NotRegistered),
        "no Service of the pod is registered in Cloud Map by this cluster",
        "If the pod should be registered, create the ServiceExport or the annotation; otherwise remove the gate from the pod template",
        "The same holds if the Service is no longer registered. The gate opens 10 s after the pod began to wait only for it.";
    Refused => True, "Refused", Some(EventReason::Refused),
        "the pod cannot be registered; the message says why", "Follow the message, and see the Service or ServiceExport",
        "The gate opens 10 s after the pod began to wait only for it, because more waiting would not help.";
    TimedOut => True, "TimedOut", Some(EventReason::TimedOut),
        "the pod waited for `--gate-timeout`, and Cloud Map does not show it yet; the message says what it waited for",
        "Look at the condition `Registered` of the ServiceExport, or at the Events of the annotated Service",
        "The pod is registered as soon as that is possible.";
}

// Below the macro, which it uses.
mod cutover;
mod import_policy;
pub use self::{
    cutover::{CutoverReason, HidingReason},
    import_policy::{PolicyCondition, PolicyReason},
};

/// The rows of a ServiceExport.
pub fn export_rows() -> Vec<Row> {
    let valid = ValidReason::ALL.iter().map(|reason| reason.row());
    let ready = ReadyReason::ALL.iter().map(|reason| reason.row());
    let conflict = ConflictState::ALL.iter().map(|state| state.row());
    let selection = SelectionReason::ALL.iter().map(|reason| reason.row());
    let registered = RegisteredReason::ALL.iter().map(|reason| reason.row());
    let drain = DrainReason::ALL.iter().map(|reason| reason.row());
    valid.chain(ready).chain(conflict).chain(registered).chain(selection).chain(drain).collect()
}

/// The rows of a ServiceImport.
pub fn import_rows() -> Vec<Row> {
    let ready = ImportReadyReason::ALL.iter().map(|reason| reason.row());
    let stale = ImportStaleReason::ALL.iter().map(|reason| reason.row());
    let selection = ImportSelectionReason::ALL.iter().map(|reason| reason.row());
    let unreachable = ImportUnreachableReason::ALL.iter().map(|reason| reason.row());
    let changes = ImportTypeReason::ALL.iter().map(|reason| reason.row());
    let excluded = ImportExcludedReason::ALL.iter().map(|reason| reason.row());
    ready.chain(stale).chain(unreachable).chain(changes).chain(selection).chain(excluded).collect()
}

impl Row {
    /// Whether a condition of an object has the content of this row. Of two rows with the same reason, both have it.
    pub fn explains(&self, condition: &Condition) -> bool {
        let conflict = *self == ConflictState::Conflict.row();
        self.condition == condition.type_
            && self.status.as_str() == condition.status
            && (conflict || self.reason == condition.reason)
    }
}

/// `status` of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// It is not known whether the condition holds.
    Unknown,
}

impl Status {
    /// The spelling of the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}
