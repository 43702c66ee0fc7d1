//! What `doctor` sees of the registry.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::jiff::SignedDuration;

use crate::asking;
use base::env;
use cloudmap::{Access, Connected, Endpoint, Error, ErrorKind, HttpName, Lane, Namespace, Operation, Permit};
use iam::{
    Mode, Scope, Statement,
    harmless::{self, Answer, Known},
    statements,
};
use instances::ownership::OWNER_TAG;
use ledger::{CLUSTERSET_TAG, cluster_of, driver::Registries};
use model::{ClusterSetId, Target};
use records::ClusterView;

/// What runs, as the clusters say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wanted {
    /// If all clusters that were read agree.
    pub(super) clusterset: Option<ClusterSetId>,
    /// UID of kube-system of the only cluster, which is in no ClusterSet.
    pub(super) standalone: Option<String>,
    /// Some cluster registers instances.
    pub(super) instances: bool,
    /// Cloud Map namespaces that are imported everywhere, and all that are imported by their ARN.
    pub(super) imports: Vec<String>,
    /// The modes that flags of controllers add, and the known ids of the clusters that have these flags.
    pub(super) flags: BTreeMap<Mode, BTreeSet<String>>,
}

/// What was observed of the registry.
#[derive(Debug, Clone)]
pub(super) struct ObservedRegistry {
    pub(super) region: Option<String>,
    pub(super) endpoint: Endpoint,
    /// Number of Cloud Map namespaces, or the error of the first call.
    pub(super) namespaces: Result<usize, Error>,
    /// A call to the other address that AWS has for discovery.
    pub(super) discovery: Result<(), Error>,
    /// The account, which is known only from the ARN of a namespace.
    pub(super) account: Option<String>,
    pub(super) wanted: Wanted,
    pub(super) permissions: Vec<Permission>,
    pub(super) ledger: Result<Ledger, String>,
    /// What the ledgers in the other registries say, by the name of the registry.
    pub(super) others: BTreeMap<String, Result<Ledger, String>>,
}

/// A statement of the policy, and what was found about each operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Permission {
    pub(super) sid: String,
    /// The mode of the flag that needs it; `None` for a statement of [`Wanted::modes`].
    pub(super) flag: Option<Mode>,
    pub(super) answers: Vec<(Operation, Answer)>,
}

/// What the ledger says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Ledger {
    /// The age of each cluster's head by the clock here, and the UID that wrote it.
    pub(super) heads: BTreeMap<String, (SignedDuration, String)>,
    /// The clusters that left, and the UID that wrote it.
    pub(super) left: BTreeMap<String, String>,
    /// How many ready endpoints are to be registered in each target.
    pub(super) instances: BTreeMap<Target, usize>,
}

impl Wanted {
    /// What the role must be able to do.
    pub(super) fn modes(&self) -> Vec<Mode> {
        match (&self.clusterset, &self.standalone) {
            (Some(_), _) => {
                let of_exports = if self.instances { Mode::Instances } else { Mode::Ledger };
                [of_exports].into_iter().chain((!self.imports.is_empty()).then_some(Mode::Imports)).collect()
            }
            (None, Some(_)) if self.instances => vec![Mode::Annotated],
            _ => Vec::new(),
        }
    }

    /// The statements of the flags' modes of which reads show something, beyond those in `tried`. They hold for Cloud Map
    /// namespaces, and so they are tried in one in which a cluster with the flag registers.
    pub(super) fn of_flags(
        &self,
        tried: &[Statement],
        facts: &Scope,
        namespaces: &[Namespace],
        views: &[ClusterView],
    ) -> Vec<(Option<Mode>, Statement)> {
        let mut found = Vec::new();
        for (mode, clusters) in &self.flags {
            let own = views.iter().filter(|view| clusters.contains(&*view.id));
            let mut targets = own.flat_map(|view| view.catalog.registrations.keys());
            let Some(namespace) = targets.find_map(|target| Namespace::named(namespaces, &target.namespace)) else {
                continue;
            };
            let facts = Scope {
                namespaces: vec![namespace.http_name.to_string()],
                namespace_ids: vec![namespace.id.to_string()],
                ..facts.clone()
            };
            let reads = |it: &Statement| harmless::operations(it).iter().all(|of| of.access() == Access::Read);
            let of_mode = statements(&[*mode], &facts).unwrap_or_default();
            let new = of_mode.into_iter().filter(|it| reads(it) && !tried.contains(it));
            found.extend(new.map(|it| (Some(*mode), it)));
        }
        found
    }
}

impl Ledger {
    /// With what another registry has. A cluster that moved is in both: it writes in one of them.
    pub(super) fn beside(mut self, other: &Self) -> Self {
        for (id, head) in &other.heads {
            if self.heads.get(id).is_none_or(|(age, _)| head.0 < *age) {
                self.left.remove(id);
                self.heads.insert(id.clone(), head.clone());
            }
        }
        self
    }

    /// `now` is a time since 1970.
    pub(super) fn of(views: &[ClusterView], now: Duration) -> Self {
        let since = |written: u64| i64::try_from(now.as_millis()).unwrap_or(i64::MAX).saturating_sub_unsigned(written);
        let mut ledger = Self::default();
        for view in views {
            if let Some(head) = &view.head {
                let (id, uid) = (view.id.to_string(), head.uid.to_string());
                if head.is_live() {
                    ledger.heads.insert(id, (SignedDuration::from_millis(since(head.written)), uid));
                } else {
                    ledger.left.insert(id, uid);
                }
            }
            for (target, count) in view.catalog.instances() {
                *ledger.instances.entry(target.clone()).or_default() += count;
            }
        }
        ledger
    }
}

/// Looks at the registry, and reads the ledgers in the others. Changes nothing.
pub(super) async fn observe(
    connected: Connected,
    others: Registries,
    permit: &Permit,
    wanted: Wanted,
) -> ObservedRegistry {
    let Connected { cloudmap, region, endpoint } = connected;
    let namespaces = asking::answered(Operation::ListNamespaces, cloudmap.list_namespaces(Lane::Instances)).await;
    let clusterset = wanted.clusterset.as_ref();
    let ledger_name = ledger::namespace_name(clusterset.map_or("", ClusterSetId::as_str));
    let discovery = {
        let none = BTreeMap::new();
        let call = cloudmap.discover_instances(HttpName::own(&ledger_name), ledger::CLUSTERS, &none, Lane::Instances);
        match asking::answered(Operation::DiscoverInstances, call).await {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(()),
            answer => answer.map(drop),
        }
    };
    let found = namespaces.as_deref().unwrap_or_default();
    let arn = found.first().map(|namespace| Arc::clone(&namespace.arn));
    let account = arn.as_ref().and_then(|arn| arn.split(':').nth(4)).map(str::to_owned);
    let reached = namespaces.as_ref().err().is_none_or(is_denied_by_iam);
    let began = env::since_epoch();
    let views = match clusterset {
        Some(clusterset) if reached => read_ledger(cloudmap.clone(), clusterset).await,
        Some(_) => Err("the registry does not answer".to_owned()),
        None => Err("no ClusterSet is known".to_owned()),
    };
    let mut elsewhere = BTreeMap::new();
    if let Some(clusterset) = clusterset {
        for (name, cloudmap) in others.others {
            let views = read_ledger(cloudmap, clusterset).await;
            elsewhere.insert(name.to_string(), views.map(|views| Ledger::of(&views, began)));
        }
    }
    let mut permissions = Vec::new();
    if reached {
        let of_ledger = found.iter().find(|it| *it.name == *ledger_name).map(|it| Arc::clone(&it.id));
        let tagged = tagged(&*cloudmap, found, of_ledger.as_ref(), views.as_deref().unwrap_or_default()).await;
        let known = Known { tagged, ledger: of_ledger, arn };
        let facts = Scope {
            region: region.clone().unwrap_or_default(),
            account: account.clone().unwrap_or_default(),
            clusterset: wanted.clusterset.clone(),
            cluster_uid: wanted.standalone.clone(),
            namespaces: wanted.imports.clone(),
            ..Scope::default()
        };
        let of_modes = statements(&wanted.modes(), &facts).unwrap_or_default();
        let of_flags = wanted.of_flags(&of_modes, &facts, found, views.as_deref().unwrap_or_default());
        for (flag, statement) in of_modes.into_iter().map(|it| (None, it)).chain(of_flags) {
            let mut answers = Vec::new();
            for operation in harmless::operations(&statement) {
                // When the ledger is there, nobody needs to create its namespace.
                let superfluous = operation == Operation::CreateHttpNamespace
                    && statement.sid == "CreateTheLedger"
                    && known.ledger.is_some();
                if operation == Operation::ListNamespaces {
                    answers.push((operation, first(&namespaces)));
                } else if !superfluous {
                    answers
                        .push((operation, harmless::try_out(&*cloudmap, permit, &statement, operation, &known).await));
                }
            }
            permissions.push(Permission { sid: statement.sid, flag, answers });
        }
    }
    ObservedRegistry {
        region,
        endpoint,
        discovery,
        account,
        permissions,
        ledger: views.map(|views| Ledger::of(&views, began)),
        namespaces: namespaces.map(|found| found.len()),
        others: elsewhere,
        wanted,
    }
}

/// IAM refused this call, and therefore credentials and network are well.
///
/// The kind alone does not say it, because the controller treats credentials that AWS rejects, and a proxy that answers with
/// 403, in the same way. The code of AWS is not in the error, so the text decides, and a test holds the adapter to it.
pub(super) fn is_denied_by_iam(error: &Error) -> bool {
    error.kind == ErrorKind::AccessDenied && error.message.starts_with("access denied")
}

fn first(namespaces: &Result<Vec<Namespace>, Error>) -> Answer {
    match namespaces {
        Ok(_) => Answer::Allowed,
        Err(error) => Answer::Denied(error.message.clone()),
    }
}

async fn read_ledger(cloudmap: Arc<dyn cloudmap::Read>, clusterset: &ClusterSetId) -> Result<Vec<ClusterView>, String> {
    asking::in_time(Box::pin(asking::clusters_of(cloudmap, clusterset))).await
}

/// A service of each tag, on which permissions that depend on the tag are tried.
async fn tagged(
    cloudmap: &dyn cloudmap::Read,
    namespaces: &[Namespace],
    ledger: Option<&Arc<str>>,
    views: &[ClusterView],
) -> BTreeMap<String, Arc<str>> {
    let mut tagged = BTreeMap::new();
    let in_ledger = match ledger {
        Some(id) => cloudmap.list_services(id, Lane::Instances).await.unwrap_or_default(),
        None => Vec::new(),
    };
    // That of all heads, if it is there: a role may have no access to services of other clusters.
    if let Some(service) = in_ledger.into_iter().min_by_key(|service| cluster_of(&service.name).is_some()) {
        tagged.insert(CLUSTERSET_TAG.to_owned(), service.id);
    }
    let targets: BTreeSet<_> = views.iter().flat_map(|view| view.catalog.registrations.keys()).collect();
    if let Some(target) = targets.first()
        && let Some(namespace) = Namespace::named(namespaces, &target.namespace)
    {
        let services = cloudmap.list_services(&namespace.id, Lane::Instances).await.unwrap_or_default();
        // A service that was joined has no such tag.
        if let Some(service) = services.into_iter().find(|service| service.name == target.service)
            && cloudmap.list_tags(&service.arn).await.is_ok_and(|tags| tags.contains_key(OWNER_TAG))
        {
            tagged.insert(OWNER_TAG.to_owned(), service.id);
        }
    }
    tagged
}
