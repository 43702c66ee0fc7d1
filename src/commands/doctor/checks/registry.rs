//! The registry: the way there, the role, what is in it, and what it costs.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::super::{
    observe::{Cluster, Seen},
    registry::{Ledger, ObservedRegistry, Permission, is_denied_by_iam},
    report::Finding,
};
use cloudmap::{
    Error, ErrorKind,
    quotas::{INSTANCES_PER_NAMESPACE, INSTANCES_PER_SERVICE, NAMESPACES, USD_PER_INSTANCE},
};
use iam::{Mode, READ_SHARED, domain, harmless::Answer};
use ledger::limits::Timing;

const PLACE: &str = "registry";
const NETWORK: &str = "docs/install.md#what-the-network-must-allow";
/// The NetworkPolicy of the chart does not let the controller ask there.
const OF_NODE: &str =
    "for the role of the node, allow TCP 80 of 169.254.169.254, with networkPolicy.extraEgress in the chart's values";

/// Nothing can be asked.
pub(super) fn unusable(why: &str) -> Finding {
    Finding::fail(PLACE, "settings", why, "correct the setting; --no-aws leaves AWS out")
}

pub(super) fn plan(registry: &ObservedRegistry, clusters: &[(&Cluster, &Seen)]) -> Vec<Finding> {
    let mut found = vec![endpoint(registry)];
    found.extend(region(registry, clusters));
    let trouble = registry.namespaces.as_ref().err().filter(|error| !is_denied_by_iam(error));
    if let Some(error) = trouble {
        found.push(unanswered(registry, error));
        return found;
    }
    found.push(credentials(registry, clusters));
    found.extend(discovery(registry));
    found.extend(registry.permissions.iter().map(|permission| role(registry, permission)));
    found.extend(untried(registry));
    found.extend(others(registry, clusters));
    found.extend(heads(registry, clusters));
    found.extend(namespaces(registry));
    found.extend(instances(registry));
    found
}

fn endpoint(registry: &ObservedRegistry) -> Finding {
    let endpoint = &registry.endpoint;
    let region = registry.region.as_deref().unwrap_or("no region");
    let variants = [(endpoint.fips, "FIPS"), (endpoint.dual_stack, "dual-stack")];
    let variants: Vec<_> = variants.iter().filter(|(set, _)| *set).map(|(_, name)| *name).collect();
    match (&endpoint.url, variants.is_empty()) {
        (Some(url), false) => Finding::fail(
            PLACE,
            "endpoint",
            format!("{url} and {} exclude each other: the SDK refuses every call", variants.join(", ")),
            "unset AWS_USE_FIPS_ENDPOINT and AWS_USE_DUALSTACK_ENDPOINT, or the other address",
        ),
        (Some(url), true) => Finding::ok(PLACE, "endpoint", format!("{url} instead of AWS's own in {region}")),
        (None, true) => Finding::ok(PLACE, "endpoint", format!("AWS's own in {region}")),
        (None, false) => Finding::ok(PLACE, "endpoint", format!("AWS's own in {region}, {}", variants.join(", "))),
    }
}

/// The controllers may look elsewhere.
fn region(registry: &ObservedRegistry, clusters: &[(&Cluster, &Seen)]) -> Option<Finding> {
    let here = registry.region.as_deref()?;
    let all = clusters.iter().filter_map(|(_, seen)| seen.setting("CLOUDMAP_MCS_REGION"));
    // That they differ from each other is said elsewhere.
    let all: BTreeSet<&str> = all.collect();
    let there = all.first().filter(|there| all.len() == 1 && **there != here)?;
    let what = format!("{here} was asked, and the controllers use {there}");
    Some(Finding::warn(PLACE, "region", what, format!("run this with --region {there}")))
}

/// The name of AWS's endpoint for a service.
fn host(service: &str, registry: &ObservedRegistry) -> String {
    let region = registry.region.as_deref().unwrap_or("REGION");
    format!("{service}.{region}.{}", domain(region))
}

/// The first call had no useful answer, and so would all others.
fn unanswered(registry: &ObservedRegistry, error: &Error) -> Finding {
    match error.kind {
        ErrorKind::AccessDenied => Finding::fail(
            PLACE,
            "credentials",
            error.message.clone(),
            format!(
                "give this machine credentials (`aws sts get-caller-identity` says whose they are); in a pod, the role of its \
                 service account (docs/install.md#the-role-in-aws), or {OF_NODE}; --no-aws leaves AWS out"
            ),
        ),
        ErrorKind::NoCredentials => Finding::fail(
            PLACE,
            "credentials",
            error.message.clone(),
            format!(
                "whoever gives them does not answer, or fails: allow HTTPS to {} ({NETWORK}), or look whether the EKS Pod \
                 Identity Agent runs on this node; {OF_NODE}",
                host("sts", registry)
            ),
        ),
        ErrorKind::Throttled => Finding::warn(
            PLACE,
            "endpoint",
            error.message.clone(),
            "run this again later: others use up the account's request rate",
        ),
        _ => Finding::fail(
            PLACE,
            "endpoint",
            error.message.clone(),
            if let Some(url) = &registry.endpoint.url {
                format!("look whether {url} resolves and is reached from here ({NETWORK})")
            } else {
                format!(
                    "allow HTTPS to {}, or set AWS_ENDPOINT_URL_SERVICEDISCOVERY for PrivateLink ({NETWORK})",
                    host("servicediscovery", registry)
                )
            },
        ),
    }
}

fn credentials(registry: &ObservedRegistry, clusters: &[(&Cluster, &Seen)]) -> Finding {
    let roles = clusters.iter().filter_map(|(_, seen)| seen.setting("CLOUDMAP_MCS_ASSUME_ROLE_ARN"));
    let mut roles = roles.filter_map(|arn| Some((arn.split(':').nth(4)?, arn)));
    // Clusters of the registry's own account need no other role.
    if let Some(here) = registry.account.as_deref()
        && let Some((there, arn)) = roles.find(|(there, _)| *there != here)
    {
        let what = format!("the account {here} was asked, and the controllers use the registry of {there}");
        let remedy = format!("run this with --assume-role-arn {arn}, or with credentials of that account");
        return Finding::warn(PLACE, "credentials", what, remedy);
    }
    let account = registry.account.as_deref().map(|id| format!(" of the account {id}")).unwrap_or_default();
    Finding::ok(PLACE, "credentials", format!("accepted; what follows is about the role{account} that they belong to"))
}

/// Discovery calls go to an address of their own.
fn discovery(registry: &ObservedRegistry) -> Option<Finding> {
    let error = registry.discovery.as_ref().err()?;
    // The policy is a subject of its own.
    if is_denied_by_iam(error) {
        return None;
    }
    let remedy = match &registry.endpoint.url {
        Some(url) => format!(
            "the SDK puts `data-` before the host of {url}: create a private DNS name for it, too, or use \
             --cloudmap-endpoint, which goes without"
        ),
        None => format!("allow HTTPS to {}", host("data-servicediscovery", registry)),
    };
    Some(Finding::fail(PLACE, "endpoint", format!("discovery is not reached: {}", error.message), remedy))
}

/// The command that prints the policy, or the part for the mode of a flag.
fn command(registry: &ObservedRegistry, of_flag: Option<Mode>) -> String {
    let modes = of_flag.map_or_else(|| registry.wanted.modes(), |mode| vec![mode]);
    let modes: Vec<_> = modes.into_iter().map(Mode::name).collect();
    let flag = |name: &str, value: Option<&str>, unknown: &str| format!(" --{name} {}", value.unwrap_or(unknown));
    let mut text = format!("cloudmap-mcs iam --mode {}", modes.join(","));
    if let Some(clusterset) = &registry.wanted.clusterset {
        text += &flag("clusterset", Some(clusterset.as_str()), "");
    }
    if let Some(uid) = &registry.wanted.standalone {
        text += &flag("cluster-uid", Some(uid), "");
    }
    match of_flag {
        None if registry.wanted.imports.is_empty() => {}
        None => text += &flag("cloudmap-namespaces", Some(&registry.wanted.imports.join(",")), ""),
        Some(Mode::Hiding) => text += " --services IDS",
        Some(Mode::AwsMcs) => text += " --cloudmap-namespaces NAMES --cloudmap-namespace-ids IDS",
        Some(_) => text += " --cloudmap-namespaces NAMES",
    }
    text += &flag("account", registry.account.as_deref(), "ACCOUNT");
    text + &flag("region", registry.region.as_deref(), "REGION")
}

fn role(registry: &ObservedRegistry, permission: &Permission) -> Finding {
    let of = |wanted: fn(&Answer) -> bool| -> Vec<&str> {
        permission.answers.iter().filter(|(_, answer)| wanted(answer)).map(|(operation, _)| operation.name()).collect()
    };
    let denied = of(|answer| matches!(answer, Answer::Denied(_)));
    let sid = &permission.sid;
    if let Some(Answer::Denied(words)) =
        permission.answers.iter().map(|(_, answer)| answer).find(|answer| matches!(answer, Answer::Denied(_)))
    {
        let what = format!("{sid}: {} denied ({words})", denied.join(", "));
        let unshared = if sid == READ_SHARED {
            "let its owner share it with this account by AWS RAM, and accept the invitation \
             (docs/ecs.md#namespaces-of-other-accounts); or "
        } else {
            ""
        };
        let policy = command(registry, permission.flag);
        return Finding::fail(
            PLACE,
            "role",
            what,
            format!("{unshared}add the statement {sid} to the role's policy: {policy}"),
        );
    }
    let unknown = permission.answers.iter().find_map(|(_, answer)| match answer {
        Answer::Unknown(why) => Some(why),
        _ => None,
    });
    let parts = [
        (of(|answer| *answer == Answer::Allowed), "allowed"),
        (of(|answer| *answer == Answer::NotDenied), "not denied"),
        (of(|answer| matches!(answer, Answer::Unknown(_))), "cannot be told"),
    ];
    let said: Vec<_> =
        parts.iter().filter(|(all, _)| !all.is_empty()).map(|(all, is)| format!("{} {is}", all.join(", "))).collect();
    let what = format!("{sid}: {}", said.join("; "));
    match unknown {
        Some(why) if parts[0].0.is_empty() => {
            Finding::skip(PLACE, "role", format!("{what} ({why})"), "run this again after the first export")
        }
        Some(why) => Finding::ok(PLACE, "role", format!("{what} ({why})")),
        None => Finding::ok(PLACE, "role", what),
    }
}

/// What was not tried of the modes of flags, because no read shows it.
fn untried(registry: &ObservedRegistry) -> Vec<Finding> {
    let untried = |mode: &Mode| {
        let tried = registry.permissions.iter().any(|permission| permission.flag == Some(*mode));
        let what = match mode {
            Mode::Hiding => "not tried, because it holds for single services that others created",
            Mode::AwsMcs if tried => "JoinItsServices, CreateInItsNamespaces not tried, because only writes show them",
            _ if tried => return None,
            _ => "not tried, because no Cloud Map namespace is known in which a cluster with this flag registers",
        };
        let remedy = format!("compare the role's policy with what this prints: {}", command(registry, Some(*mode)));
        Some(Finding::skip(PLACE, "role", format!("{}: {what}", mode.name()), remedy))
    };
    registry.wanted.flags.keys().filter_map(untried).collect()
}

/// The registries beside the home, which the controllers read.
fn others(registry: &ObservedRegistry, clusters: &[(&Cluster, &Seen)]) -> Vec<Finding> {
    let mut found: Vec<_> = registry
        .others
        .iter()
        .map(|(name, ledger)| match ledger {
            Ok(ledger) => {
                let what = format!("the registry {name} can be read: {} clusters", ledger.heads.len());
                Finding::ok(PLACE, "registries", what)
            }
            Err(why) => Finding::fail(
                PLACE,
                "registries",
                format!("the registry {name} cannot be read: {why}"),
                "give the role that --registries names for it what `cloudmap-mcs iam --mode reading` prints \
                 (docs/regions.md#set-it-up)",
            ),
        })
        .collect();
    let several = clusters.iter().find(|(_, seen)| seen.setting("CLOUDMAP_MCS_REGISTRIES").is_some());
    if let Some((cluster, _)) = several.filter(|_| registry.others.is_empty()) {
        let what = format!("the controllers of {} read several registries, and one of them was asked", cluster.name);
        let remedy = "run this with the --registries and the --home of the controllers (docs/regions.md#set-it-up)";
        found.push(Finding::warn(PLACE, "registries", what, remedy));
    }
    found
}

/// A head that is young proves that its controller's role may write.
fn heads(registry: &ObservedRegistry, clusters: &[(&Cluster, &Seen)]) -> Vec<Finding> {
    registry.wanted.clusterset.as_ref().map_or_else(Vec::new, |clusterset| {
        let ledger = match &registry.ledger {
            Ok(ledger) => ledger,
            Err(why) => {
                let remedy = "correct what was found before, and run this again";
                return vec![Finding::skip(PLACE, "ledger", format!("not read: {why}"), remedy)];
            }
        };
        let others = registry.others.values().filter_map(|ledger| ledger.as_ref().ok());
        let ledger = others.fold(ledger.clone(), Ledger::beside);
        clusters.iter().filter_map(|(cluster, seen)| head(&ledger, clusterset.as_str(), cluster, seen)).collect()
    })
}

fn head(ledger: &Ledger, clusterset: &str, cluster: &Cluster, seen: &Seen) -> Option<Finding> {
    let identity = seen.identity()?.ok()?;
    identity.clusterset.as_ref()?;
    let look = format!(
        "kubectl{} -n {} logs deployment/cloudmap-mcs: its role and its way to AWS",
        cluster.flags, cluster.own
    );
    let id = identity.cluster.as_str();
    let place = cluster.name.as_str();
    if ledger.left.get(id).is_some_and(|uid| **uid == *identity.uid) {
        let what = format!("{id} has left {clusterset}: nothing of it is exported, and nothing imported");
        let remedy = format!("if that is not wanted: cloudmap-mcs leave --undo{}", cluster.flags);
        return Some(Finding::fail(place, "ledger", what, remedy));
    }
    Some(match ledger.heads.get(id) {
        None => Finding::fail(place, "ledger", format!("{id} is not in the ledger of {clusterset}"), look),
        Some((_, uid)) if *uid != *identity.uid => Finding::fail(
            place,
            "ledger",
            format!("the id {id} belongs to another cluster in the ledger, with the UID {uid} of kube-system"),
            format!(
                "give this cluster another id; if the other one is gone for good, run `cloudmap-mcs forget {id}` in another \
                 member, and then `cloudmap-mcs purge --cluster {id}`"
            ),
        ),
        Some((age, _)) => {
            // By the clock of the cluster: the one here may be wrong.
            let age = Duration::try_from(*age + seen.ahead.unwrap_or_default()).unwrap_or_default();
            if age > Timing::default().lease {
                Finding::fail(place, "ledger", format!("{id} last wrote {} s ago", age.as_secs()), look)
            } else {
                Finding::ok(place, "ledger", format!("{id} wrote {} s ago, so its role may write", age.as_secs()))
            }
        }
    })
}

/// A finding if a quota is nearly used up: at four fifths.
fn quota(what: &str, used: usize, quota: usize, remedy: &str) -> Option<Finding> {
    (used * 5 >= quota * 4).then(|| Finding::warn(PLACE, "quota", format!("{used} of {quota} {what}"), remedy))
}

fn namespaces(registry: &ObservedRegistry) -> Option<Finding> {
    let used = *registry.namespaces.as_ref().ok()?;
    let what = format!("{used} of {NAMESPACES} namespaces, unless AWS raised the quota");
    let remedy = "ask AWS to raise the quota L-0FE3F50E, or register in one namespace with --instances-namespace";
    let nearly = quota("namespaces, unless AWS raised the quota", used, NAMESPACES, remedy);
    Some(nearly.unwrap_or_else(|| Finding::ok(PLACE, "quota", what)))
}

fn instances(registry: &ObservedRegistry) -> Vec<Finding> {
    let Ok(ledger) = &registry.ledger else { return Vec::new() };
    let off = "--instances=none turns them off, --instances=annotated chooses (docs/costs.md)";
    if !registry.wanted.instances {
        return vec![Finding::ok(PLACE, "cost", "no instances are registered (--instances=none)")];
    }
    let total: usize = ledger.instances.values().sum();
    let cost = USD_PER_INSTANCE * total as f64;
    let mut found = vec![Finding::ok(
        PLACE,
        "cost",
        format!(
            "{total} instances for exported pods: about {cost:.2} USD a month, {USD_PER_INSTANCE:.2} USD for each; at most \
             {INSTANCES_PER_SERVICE} of one name and {INSTANCES_PER_NAMESPACE} in a namespace; {off}"
        ),
    )];
    let mut of_namespaces: BTreeMap<&str, usize> = BTreeMap::new();
    for (target, count) in &ledger.instances {
        *of_namespaces.entry(&target.namespace).or_default() += count;
        if *count > INSTANCES_PER_SERVICE {
            let what = format!("{count} instances for {target}, and Cloud Map takes {INSTANCES_PER_SERVICE}");
            let remedy =
                "export fewer pods under one name, or annotate the exports with cloudmap-mcs/instances: \"false\"";
            found.push(Finding::fail(PLACE, "quota", what, remedy));
        } else {
            let what = format!("instances for {target}");
            let remedy = "AWS does not raise this quota: export further pods under another name";
            found.extend(quota(&what, *count, INSTANCES_PER_SERVICE, remedy));
        }
    }
    for (namespace, count) in of_namespaces {
        let what = format!("instances in the namespace {namespace}, unless AWS raised the quota");
        found.extend(quota(
            &what,
            count,
            INSTANCES_PER_NAMESPACE,
            "ask AWS to raise the quota L-D95E8A57, or turn instances off for some exports",
        ));
    }
    found
}
