//! Pure: what a cluster lacks so that names of the ClusterSet resolve, what would change, and what stands in the way.

use anyhow::Context as _;
use serde_json::Value;

use super::{
    corefile::Refusal,
    edit::{self, Edited},
    node_local,
};
use crate::{
    api::names,
    cluster::coredns::{Corefile, Keeper, NODE_LOCAL, Observed, Place},
    commands::apply_crds,
};

/// The first CoreDNS with the option `multicluster`.
const SINCE: [u32; 3] = [1, 12, 2];

/// What should be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::commands) enum Finding {
    There(String),
    /// It cannot be told.
    Unknown(String),
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
    /// `None`: the cluster has no NodeLocal DNSCache.
    pub(super) node_local: Option<Edited>,
    /// What CoreDNS needs to start with this Corefile, and cannot be told.
    pub(super) unknown: Vec<String>,
}

impl Action {
    pub(super) fn edit(self, text: &str, zone: &str) -> Result<Edited, Refusal> {
        match self {
            Self::Apply => edit::add(text, zone),
            Self::Remove => edit::remove(text, zone),
        }
    }

    fn edit_node_local(self, text: &str, corefile: &str, zone: &str) -> Result<Edited, Refusal> {
        match self {
            Self::Apply => node_local::add(text, &edit::cluster_domains(corefile, zone)?, zone),
            Self::Remove => node_local::remove(text, zone),
        }
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

fn no_corefile(place: &Place) -> String {
    format!("there is no ConfigMap {}/{} with a Corefile", place.namespace, place.config_map)
}

const ELSEWHERE: &str = "if CoreDNS is installed in another way, name its ConfigMap with --config-map and --namespace. In EKS \
                         Auto Mode, whose Corefile nobody can change, set the controller's --derived-name, or run a CoreDNS \
                         of your own for the zone";

/// The command for this CoreDNS. `flags` lead it to the cluster; what is the default needs no flag.
fn command(action: Action, place: &Place, zone: &str, flags: &str) -> String {
    let verb = match action {
        Action::Apply => "apply",
        Action::Remove => "remove",
    };
    let Place { namespace, config_map, deployment } = place;
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

/// Everything that has to be there, in the order in which it is needed. `flags` lead the commands of the remedies to the
/// cluster.
pub(in crate::commands) fn check(observed: &Observed, place: &Place, zone: &str, flags: &str) -> Vec<Finding> {
    let missing = |what: String, remedy: &str| Finding::Missing { what, remedy: remedy.to_owned() };
    let apply = command(Action::Apply, place, zone, flags);
    let Place { namespace, deployment, .. } = place;
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
        None => {
            Finding::Unknown(format!("there is no Deployment {namespace}/{deployment}: CoreDNS needs {}", words(SINCE)))
        }
    });
    found.push(if observed.permitted {
        Finding::There("CoreDNS may read ServiceImports".to_owned())
    } else {
        missing("CoreDNS may not read ServiceImports".to_owned(), &apply)
    });
    let Some(corefile) = &observed.corefile else {
        found.push(missing(no_corefile(place), ELSEWHERE));
        return found;
    };
    let remedy = match corefile.keeper {
        Some(Keeper::Eks) => format!("{apply} --addon-values FILE (coredns/README.md)"),
        _ => apply.clone(),
    };
    let mut corefiles = vec![("the Corefile", Action::Apply.edit(&corefile.text, zone), remedy)];
    if let Some(node_local) = &observed.node_local {
        let edited = Action::Apply.edit_node_local(&node_local.text, &corefile.text, zone);
        corefiles.push(("the Corefile of NodeLocal DNSCache", edited, apply));
    }
    for (name, edited, remedy) in corefiles {
        match edited {
            Ok(edited) if edited.changes.is_empty() => found.push(Finding::There(format!("{name} has {zone}"))),
            Ok(edited) => {
                found.extend(edited.changes.iter().map(|change| missing(format!("{name}, {change}"), &remedy)));
            }
            Err(refusal) => found.push(missing(format!("{name} cannot be edited by this command"), &refusal.0)),
        }
    }
    found
}

/// What would change.
///
/// # Errors
/// What stands in the way, with its remedy, whose command `flags` lead to the cluster.
pub(super) fn changes(
    action: Action,
    observed: &Observed,
    place: &Place,
    zone: &str,
    flags: &str,
) -> anyhow::Result<Changes> {
    let corefile = observed.corefile.as_ref().with_context(|| format!("{}: {ELSEWHERE}", no_corefile(place)))?;
    let mut unknown = Vec::new();
    if action == Action::Apply {
        // Otherwise a Corefile would be written with which CoreDNS does not start.
        for finding in check(observed, place, zone, flags).into_iter().take(2) {
            match finding {
                Finding::Missing { what, remedy } => anyhow::bail!("{what}. First: {remedy}"),
                Finding::Unknown(what) => unknown.push(what),
                Finding::There(_) => {}
            }
        }
    }
    let node_local = observed.node_local.as_ref();
    Ok(Changes {
        corefile: action.edit(&corefile.text, zone)?,
        node_local: node_local.map(|it| action.edit_node_local(&it.text, &corefile.text, zone)).transpose()?,
        unknown,
    })
}

/// Refuses to write what somebody else will overwrite.
pub(super) fn refuse_managed(
    action: Action,
    corefile: &Corefile,
    edited: &Edited,
    place: &Place,
    zone: &str,
    flags: &str,
) -> anyhow::Result<()> {
    let Some(keeper) = corefile.keeper.filter(|_| !edited.changes.is_empty()) else { return Ok(()) };
    let object = format!("{}/{}", place.namespace, corefile.config_map);
    let command = command(action, place, zone, flags);
    match keeper {
        Keeper::Eks if corefile.config_map != NODE_LOCAL => anyhow::bail!(
            "the managed add-on of EKS keeps the ConfigMap {object}, and its next update overwrites it. Give the Corefile to the \
             add-on:\n  aws eks describe-addon --cluster-name CLUSTER --addon-name coredns --query \
             addon.configurationValues --output text > values\n  {command} --addon-values values > \
             values.json\n  aws eks update-addon --cluster-name CLUSTER --addon-name coredns --configuration-values \
             file://values.json --resolve-conflicts OVERWRITE\nIf the add-on is there no more, pass --write-managed"
        ),
        Keeper::Eks => Ok(()),
        Keeper::Helm => anyhow::bail!(
            "a Helm release keeps the ConfigMap {object}, and its next upgrade overwrites it. Make the changes that --dry-run \
             shows in the values of the chart; or pass --write-managed, and run this again after each upgrade"
        ),
        Keeper::K3s => anyhow::bail!(
            "k3s keeps the ConfigMap {object}, and writes it anew when it starts. Start it with --disable=coredns and a CoreDNS \
             of your own; or pass --write-managed, and run this again after each start"
        ),
    }
}

/// The configuration values of the managed add-on with the changed Corefile, as JSON; and the Corefile before and after.
/// The values that it has come as the AWS CLI prints them: JSON, YAML, or `None`.
pub(super) fn addon_values(
    action: Action,
    values: &str,
    corefile: &str,
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
    let before = own.unwrap_or_else(|| corefile.to_owned());
    let edited = action.edit(&before, zone)?;
    // The default of a later version counts only while there is none.
    if action == Action::Apply || !is_default {
        map.insert("corefile".to_owned(), edited.text.clone().into());
    }
    Ok((serde_json::to_string_pretty(&values)?, before, edited))
}
