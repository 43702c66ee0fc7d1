//! The statements of each way of running.

use std::collections::BTreeSet;

use clap::ValueEnum;

use super::{
    permissions::of_mode,
    statement::{Scope, Statement, joined},
};

/// What runs with a role. The statements of several add up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum Mode {
    /// Exports and imports between clusters, without instances (`--instances=none`).
    Ledger,
    /// Reading the ledger in a registry that is not the home (`--registries`), and what is imported from there: for a role
    /// there.
    Reading,
    /// `ledger` with instances, as `run` does by default. Also enough for annotated Services in a ClusterSet.
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
    /// Creation of private Cloud Map namespaces with DNS (`--create-dns-namespaces`), and services in them. Needed in addition
    /// to `instances`.
    DnsNamespaces,
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

/// The statements of these modes, and of those that they include. Statements that differ in their actions only are joined.
///
/// # Errors
/// If a mode lacks a fact.
pub fn statements(modes: &[Mode], scope: &Scope) -> Result<Vec<Statement>, Needed> {
    let all: BTreeSet<Mode> = modes.iter().flat_map(|mode| mode.includes().iter().chain([mode])).copied().collect();
    let each = all.into_iter().map(|mode| of_mode(mode, scope)).collect::<Result<Vec<_>, _>>()?;
    Ok(joined(each.into_iter().flatten()))
}
