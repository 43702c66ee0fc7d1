//! Pure: what a cluster lacks so that names of the ClusterSet resolve, what would change, and what stands in the way.

use anyhow::Context as _;
use serde_json::Value;

use super::{
    astray::{self, Astray},
    corefile,
    edit::{self, Edited},
    faults, keeper, node_local,
    syntax::Refusal,
};
use crate::apply_crds;
use api::names;
use cluster::coredns::{Corefile, Installation, Keeper, Observed};

/// The first CoreDNS with the option `multicluster`.
const SINCE: [u32; 3] = [1, 12, 2];

/// What should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    There(String),
    /// It is not known.
    Unknown(String),
    /// Some names do not resolve, or something may undo what is there.
    Warning {
        what: String,
        remedy: String,
    },
    Missing {
        what: String,
        remedy: String,
    },
}

/// What `apply` does, or `remove`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Apply,
    Remove,
}

/// The changes of both Corefiles.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Changes {
    pub(super) corefile: Edited,
    /// Those of NodeLocal DNSCache, in the order in which they were observed.
    pub(super) node_locals: Vec<Edited>,
    /// What is not known, and what stays wrong with these changes.
    pub(super) news: Vec<Finding>,
}

impl std::fmt::Display for Finding {
    /// In one line, or in two if there is something to do.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::There(what) => write!(f, "ok       {what}"),
            Self::Unknown(what) => write!(f, "unknown  {what}"),
            Self::Warning { what, remedy } => write!(f, "warning  {what}\n         -> {remedy}"),
            Self::Missing { what, remedy } => write!(f, "missing  {what}\n         -> {remedy}"),
        }
    }
}

impl Action {
    pub(super) fn edit(self, text: &str, zone: &str) -> Result<Edited, Refusal> {
        match self {
            Self::Apply => edit::add(text, zone),
            Self::Remove => edit::remove(text, zone),
        }
    }

    pub(super) fn edit_node_local(self, text: &str, corefile: &str, zone: &str) -> Result<Edited, Refusal> {
        match self {
            Self::Apply => node_local::add(text, &domains(corefile, text, zone)?, zone),
            Self::Remove => node_local::remove(text, zone),
        }
    }
}

/// The domains of the cluster. Where CoreDNS has them from an environment variable or from another file, the zones of
/// NodeLocal DNSCache may be it.
fn domains(corefile: &str, node_local: &str, zone: &str) -> Result<Vec<String>, Refusal> {
    match edit::cluster_domains(corefile, zone) {
        Ok(domains) if !domains.iter().any(|domain| corefile::is_variable(domain)) => Ok(domains),
        known => match node_local::domains(node_local, zone)? {
            zones if zones.is_empty() => known,
            zones => Ok(zones),
        },
    }
}

/// The version in the tag of an image, such as `coredns:v1.12.2-eksbuild.4`.
fn version(image: &str) -> Option<[u32; 3]> {
    let (_, tag) = image.split('@').next()?.rsplit_once(':')?;
    let digits = tag.trim_start_matches('v').split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let parts: Vec<u32> = digits.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    parts.try_into().ok()
}

fn words(version: [u32; 3]) -> String {
    version.map(|part| part.to_string()).join(".")
}

fn no_corefile(installation: &Installation) -> String {
    format!("there is no ConfigMap {}/{} with a Corefile", installation.namespace, installation.config_map)
}

const ELSEWHERE: &str = "if CoreDNS is installed in another way, name its ConfigMap with --config-map and --namespace. In EKS \
                         Auto Mode, whose Corefile nobody can change, set the controller's --derived-name, or run a CoreDNS \
                         of your own for the zone";

const ELSEWHERE_RUNS: &str = "name the Deployment or DaemonSet that runs CoreDNS with --deployment and --namespace";

/// The command for this CoreDNS. `flags` lead it to the cluster; what is the default needs no flag.
pub(super) fn command(action: Action, installation: &Installation, zone: &str, flags: &str) -> String {
    let verb = match action {
        Action::Apply => "apply",
        Action::Remove => "remove",
    };
    let Installation { namespace, config_map, deployment } = installation;
    let others = [
        ("namespace", namespace.as_str(), "kube-system"),
        ("config-map", config_map.as_str(), "coredns"),
        ("deployment", deployment.as_str(), "coredns"),
        ("zone", zone, names::ZONE),
    ];
    let others = others.into_iter().filter(|(_, value, default)| value != default);
    let others: Vec<_> = others.map(|(name, value, _)| format!(" --{name} {value}")).collect();
    format!("cloudmap-mcs coredns {verb}{flags}{}", others.concat())
}

fn missing(what: String, remedy: &str) -> Finding {
    Finding::Missing { what, remedy: remedy.to_owned() }
}

/// Everything that has to be there, in the order in which it is needed. `flags` lead the commands of the remedies to the
/// cluster.
pub(crate) fn check(observed: &Observed, installation: &Installation, zone: &str, flags: &str) -> Vec<Finding> {
    let apply = command(Action::Apply, installation, zone, flags);
    let Installation { namespace, deployment, .. } = installation;
    let mut found = needs(observed, installation, flags);
    found.push(if observed.permitted {
        Finding::There("CoreDNS may read ServiceImports".to_owned())
    } else if observed.accounts.is_empty() {
        missing(
            format!(
                "nobody says as which service account CoreDNS runs: there is no Deployment or DaemonSet {namespace}/\
                     {deployment}, and no pod mounts the ConfigMap {}",
                installation.config_map
            ),
            ELSEWHERE_RUNS,
        )
    } else {
        missing("CoreDNS may not read ServiceImports".to_owned(), &apply)
    });
    let Some(corefile) = &observed.corefile else {
        found.push(missing(no_corefile(installation), ELSEWHERE));
        return found;
    };
    let remedy = match corefile.keeper {
        Some(Keeper::Eks) => format!("{apply} --addon-values FILE (coredns/README.md)"),
        _ => apply.clone(),
    };
    found.extend(in_coredns("the Corefile", &corefile.text, zone, &remedy));
    found.extend(kept(corefile, installation, &found));
    for node_local in &observed.node_locals {
        let name = match observed.node_locals.len() {
            1 => "the Corefile of NodeLocal DNSCache".to_owned(),
            _ => format!("the Corefile of NodeLocal DNSCache ({})", node_local.config_map),
        };
        let here = match domains(&corefile.text, &node_local.text, zone) {
            Ok(domains) => in_node_local(&name, &node_local.text, &domains, zone, &apply),
            Err(Refusal(why)) => vec![missing(format!("{name} cannot be edited by this command"), &why)],
        };
        let warns = kept(node_local, installation, &here);
        found.extend(here);
        found.extend(warns);
    }
    found
}

/// What CoreDNS needs to start with the zone.
fn needs(observed: &Observed, installation: &Installation, flags: &str) -> Vec<Finding> {
    let Installation { namespace, deployment, .. } = installation;
    let mut found = vec![if observed.defined {
        Finding::There("ServiceImports are defined".to_owned())
    } else {
        missing(
            "ServiceImports are not defined, and CoreDNS does not become ready while it cannot list them".into(),
            &apply_crds(flags),
        )
    }];
    found.push(match observed.workload.as_ref().map(|workload| (&workload.image, version(&workload.image))) {
        Some((_, Some(version))) if version >= SINCE => Finding::There(format!("CoreDNS is {}", words(version))),
        Some((_, Some(version))) => missing(
            format!("CoreDNS is {}, which has no option `multicluster`", words(version)),
            &format!("update it to {} or later", words(SINCE)),
        ),
        Some((image, None)) => Finding::Unknown(format!(
            "the version of CoreDNS cannot be told from its image {image}: it needs {}",
            words(SINCE)
        )),
        None => Finding::Unknown(format!(
            "there is no Deployment or DaemonSet {namespace}/{deployment}: CoreDNS needs {}",
            words(SINCE)
        )),
    });
    found
}

/// Says who overwrites what would have to be changed.
fn kept(corefile: &Corefile, installation: &Installation, found: &[Finding]) -> Option<Finding> {
    let changes = found.iter().any(|finding| matches!(finding, Finding::Missing { .. }));
    corefile
        .keeper
        .as_ref()
        .filter(|keeper| changes && **keeper != Keeper::Eks)
        .map(|it| keeper::warning(it, corefile, installation))
}

/// What the Corefile of CoreDNS lacks, and what is wrong in it. `name` is for people, `apply` mends what is missing.
pub(super) fn in_coredns(name: &str, text: &str, zone: &str, apply: &str) -> Vec<Finding> {
    let edited = || Action::Apply.edit(text, zone);
    in_corefile(name, text, zone, apply, edited, || astray::in_coredns(text, zone))
}

/// What the Corefile of NodeLocal DNSCache lacks, and what is wrong in it.
pub(super) fn in_node_local(name: &str, text: &str, domains: &[String], zone: &str, apply: &str) -> Vec<Finding> {
    let edited = || node_local::add(text, domains, zone);
    in_corefile(name, text, zone, apply, edited, || astray::in_node_local(text, domains, zone))
}

fn in_corefile(
    name: &str,
    text: &str,
    zone: &str,
    apply: &str,
    edited: impl Fn() -> Result<Edited, Refusal>,
    astray: impl Fn() -> Result<Vec<Astray>, Refusal>,
) -> Vec<Finding> {
    let mut found = Vec::new();
    match corefile::Corefile::parse(text) {
        Err(Refusal(why)) => return vec![missing(format!("CoreDNS does not load {name}"), &why)],
        Ok(corefile) => {
            for fault in faults::faults(&corefile) {
                found.push(missing(format!("CoreDNS does not load {name}: {}", fault.what), &fault.remedy));
            }
            if !found.is_empty() {
                return found;
            }
            found.extend(unknown_plugins(name, &corefile));
        }
    }
    let astray = astray().unwrap_or_default();
    match edited() {
        Ok(edited) if edited.changes.is_empty() && astray.iter().any(|it| it.all) => {}
        Ok(edited) if edited.changes.is_empty() => found.push(Finding::There(format!("{name} has {zone}"))),
        Ok(edited) => {
            found.extend(edited.changes.iter().map(|change| missing(format!("{name}, {change}"), apply)));
        }
        Err(Refusal(why)) => found.push(missing(format!("{name} cannot be edited by this command"), &why)),
    }
    found.extend(astray.into_iter().map(|Astray { what, remedy, all }| {
        let what = format!("{name}, {what}");
        if all { Finding::Missing { what, remedy } } else { Finding::Warning { what, remedy } }
    }));
    found
}

fn unknown_plugins(name: &str, corefile: &corefile::Corefile) -> Vec<Finding> {
    // That of the AWS controller is known, and makes way.
    let plugins = faults::unknown(corefile).into_iter().filter(|(_, plugin)| *plugin != "multicluster");
    let say = |(line, plugin)| {
        Finding::Unknown(format!(
            "{name}, line {line}: stock CoreDNS has no plugin `{plugin}`, and does not load a Corefile with it"
        ))
    };
    plugins.map(say).collect()
}

/// What would change.
///
/// # Errors
/// If something stands in the way. The error has the remedy; `flags` are those of its command.
pub(super) fn changes(
    action: Action,
    observed: &Observed,
    installation: &Installation,
    zone: &str,
    flags: &str,
) -> anyhow::Result<Changes> {
    let corefile = observed.corefile.as_ref().with_context(|| format!("{}: {ELSEWHERE}", no_corefile(installation)))?;
    let mut news = Vec::new();
    if action == Action::Apply {
        // Otherwise a Corefile would be written with which CoreDNS does not start.
        for finding in needs(observed, installation, flags) {
            match finding {
                Finding::Missing { what, remedy } => anyhow::bail!("{what}. First: {remedy}"),
                Finding::Unknown(_) => news.push(finding),
                Finding::There(_) | Finding::Warning { .. } => {}
            }
        }
        anyhow::ensure!(
            observed.permitted || !observed.accounts.is_empty(),
            "nobody says as which service account CoreDNS runs, so nobody can be allowed to read ServiceImports: {ELSEWHERE_RUNS}"
        );
    }
    let mut changes = Changes { corefile: action.edit(&corefile.text, zone)?, ..Changes::default() };
    for node_local in &observed.node_locals {
        changes.node_locals.push(action.edit_node_local(&node_local.text, &corefile.text, zone)?);
    }
    if action == Action::Apply {
        news.extend(stays(&check(observed, installation, zone, flags)));
    }
    Ok(Changes { news, ..changes })
}

/// The findings that `apply` does not mend. (Those that it mends are shown as a difference.)
pub(super) fn stays(found: &[Finding]) -> Vec<Finding> {
    let mut found = found.to_vec();
    found.retain(|finding| match finding {
        Finding::Warning { .. } => true,
        Finding::Unknown(what) => what.contains("no plugin"),
        Finding::Missing { remedy, .. } => !remedy.contains("coredns apply"),
        Finding::There(_) => false,
    });
    found
}

/// Refuses to write what somebody else will overwrite.
pub(super) fn refuse_managed(
    action: Action,
    corefile: &Corefile,
    edited: &Edited,
    installation: &Installation,
    zone: &str,
    flags: &str,
) -> anyhow::Result<()> {
    let Some(keeper) = corefile.keeper.as_ref().filter(|_| !edited.changes.is_empty()) else { return Ok(()) };
    keeper::refuse(keeper, corefile, installation, &command(action, installation, zone, flags))
}

/// The configuration values of the managed add-on with the changed Corefile, as JSON; and the Corefile before and after.
/// The values that it has come as the AWS CLI prints them: JSON, YAML, or `None`.
pub(super) fn addon_values(
    action: Action,
    values: &str,
    default: Option<&str>,
    zone: &str,
) -> anyhow::Result<(String, String, Edited)> {
    let values = Some(values.trim()).filter(|text| !["", "None", "null"].contains(text)).unwrap_or("{}");
    let mut values: Value = serde_yaml_ng::from_str(values)
        .context("--addon-values is neither JSON nor YAML: it takes configurationValues")?;
    let map = values.as_object_mut().context(
        "--addon-values takes configurationValues, a JSON object: `--query addon.configurationValues --output text` prints it",
    )?;
    anyhow::ensure!(
        !map.contains_key("addon") && !map.contains_key("configurationValues"),
        "--addon-values takes only configurationValues: add `--query addon.configurationValues --output text` to \
         `aws eks describe-addon`"
    );
    // Without one of its own, the add-on keeps the default that is in the cluster.
    let own = map.get("corefile").and_then(Value::as_str).map(str::to_owned);
    let is_default = own.is_none();
    let before = own
        .or_else(|| default.map(str::to_owned))
        .context("the values have no `corefile`, and then that of the add-on counts: give it with --corefile")?;
    let edited = action.edit(&before, zone)?;
    // The default of a later version counts only while there is none.
    if action == Action::Apply || !is_default {
        map.insert("corefile".to_owned(), edited.text.clone().into());
    }
    Ok((serde_json::to_string_pretty(&values)?, before, edited))
}
