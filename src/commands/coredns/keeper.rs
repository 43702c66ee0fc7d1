//! Pure: who overwrites a ConfigMap, and how they get the change instead.

use super::plan::Finding;
use cluster::coredns::{Corefile, Installation, Keeper};

/// Who keeps it, what overwrites the change, and how to give them the change.
struct Words {
    who: String,
    /// Such as `upgrade`.
    when: &'static str,
    how: String,
}

const SHOWN: &str = "make the changes that `coredns apply --dry-run` shows";

fn words(keeper: &Keeper, corefile: &Corefile, installation: &Installation) -> Words {
    let Installation { namespace, .. } = installation;
    let map = &corefile.config_map;
    let (who, when, how) = match keeper {
        Keeper::Eks => ("the managed add-on of EKS".to_owned(), "update", String::new()),
        Keeper::Helm(release) => {
            let values = if release.is_empty() { String::new() } else { format!(" (helm -n {namespace} get values {release})") };
            let who = if release.is_empty() { "a Helm release".to_owned() } else { format!("the Helm release {release}") };
            (who, "upgrade", format!("{SHOWN} in the values of the chart{values}"))
        }
        Keeper::K3s => (
            "k3s".to_owned(),
            "start",
            "give the zone a server block of its own in the ConfigMap coredns-custom (coredns/README.md), or start k3s with \
             --disable=coredns and a CoreDNS of your own"
                .to_owned(),
        ),
        Keeper::ArgoCd(application) => (
            if application.is_empty() { "Argo CD".to_owned() } else { format!("the application {application} of Argo CD") },
            "sync",
            format!("{SHOWN} in the repository that the application reads"),
        ),
        Keeper::Flux(object) => (
            format!("the {object} of Flux"),
            "reconciliation",
            format!("{SHOWN} in the source of that object (flux trace configmap {map} -n {namespace})"),
        ),
        Keeper::AddonManager => (
            "the addon manager of the control plane".to_owned(),
            "round",
            "give the zone a server block of its own where the manager lets you: in AKS, in the ConfigMap coredns-custom \
             (coredns/README.md)"
                .to_owned(),
        ),
        Keeper::Tool(tool) => (tool.clone(), "run", format!("{SHOWN} in what {tool} reads")),
        Keeper::Operator(operator) => (
            format!("an operator ({operator})"),
            "reconciliation",
            "give the change to the operator, in the object that it reads; if it has no installation for it, run a CoreDNS of your own \
             for the zone, and let the operator's forward the zone to it"
                .to_owned(),
        ),
        Keeper::Program(manager) => (
            format!("the field manager {manager} has written the Corefile, and"),
            "write",
            format!("find out what {manager} is; if it is a program that comes again, {SHOWN} there"),
        ),
    };
    Words { who, when, how }
}

/// What `check` says of it.
pub(super) fn warning(keeper: &Keeper, corefile: &Corefile, installation: &Installation) -> Finding {
    let Words { who, when, how } = words(keeper, corefile, installation);
    let object = format!("{}/{}", installation.namespace, corefile.config_map);
    let what = if keeper.is_certain() {
        format!("{who} keeps the ConfigMap {object}: its next {when} overwrites what `apply` would write there")
    } else {
        format!(
            "{who} perhaps keeps the ConfigMap {object}: then its next {when} overwrites what `apply` would write there"
        )
    };
    Finding::Warning { what, remedy: how }
}

/// Refuses to write what its keeper overwrites. `command` is the one that was given.
pub(super) fn refuse(
    keeper: &Keeper,
    corefile: &Corefile,
    installation: &Installation,
    command: &str,
) -> anyhow::Result<()> {
    let Words { who, when, how } = words(keeper, corefile, installation);
    let object = format!("{}/{}", installation.namespace, corefile.config_map);
    match keeper {
        Keeper::Eks if corefile.daemon_set.is_some() => Ok(()),
        Keeper::Program(_) => Ok(()),
        Keeper::Eks => anyhow::bail!(
            "the managed add-on of EKS keeps the ConfigMap {object}, and its next update overwrites it. Give the Corefile to the \
             add-on:\n  aws eks describe-addon --cluster-name CLUSTER --addon-name coredns --query \
             addon.configurationValues --output text > values\n  {command} --addon-values values > \
             values.json\n  aws eks update-addon --cluster-name CLUSTER --addon-name coredns --configuration-values \
             file://values.json --resolve-conflicts OVERWRITE\nIf the add-on is there no more, pass --write-managed"
        ),
        _ => anyhow::bail!(
            "{who} keeps the ConfigMap {object}, and its next {when} overwrites it. So {how}; or pass --write-managed, and run \
             this again after each {when}"
        ),
    }
}
