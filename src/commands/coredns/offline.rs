//! The same without a cluster, for a Corefile in a file.

use std::io::Write;

use super::{
    diff,
    edit::Edited,
    node_local,
    plan::{self, Action, Finding},
    syntax::Refusal,
};

const APPLY: &str = "cloudmap-mcs coredns apply --corefile FILE";

/// What the Corefile lacks. That of NodeLocal DNSCache is known by what is in it.
pub(super) fn check(text: &str, zone: &str) -> Vec<Finding> {
    if !node_local::is_node_local(text) {
        return plan::in_coredns("the Corefile", text, zone, APPLY);
    }
    let name = "the Corefile of NodeLocal DNSCache";
    let domains = node_local::domains(text, zone).unwrap_or_default();
    plan::in_node_local(name, text, &domains, zone, APPLY)
}

pub(super) fn edited(action: Action, text: &str, zone: &str) -> Result<Edited, Refusal> {
    match action {
        Action::Apply if node_local::is_node_local(text) => {
            node_local::add(text, &node_local::domains(text, zone)?, zone)
        }
        Action::Remove if node_local::is_node_local(text) => node_local::remove(text, zone),
        _ => action.edit(text, zone),
    }
}

/// The changed Corefile. What people should know goes to `news`.
pub(super) fn edit(action: Action, text: &str, zone: &str, news: &mut dyn Write) -> anyhow::Result<String> {
    let edited = edited(action, text, zone)?;
    print_changes(action, text, &edited, zone, news)?;
    Ok(edited.text)
}

/// The changed configuration values of the managed add-on of EKS. If they have no Corefile, `default` counts.
///
/// # Errors
/// If the values cannot be read, or if nobody knows the Corefile.
pub(super) fn addon_values(
    action: Action,
    values: &str,
    default: Option<&str>,
    zone: &str,
    news: &mut dyn Write,
) -> anyhow::Result<String> {
    let (json, before, edited) = plan::addon_values(action, values, default, zone)?;
    print_changes(action, &before, &edited, zone, news)?;
    Ok(json)
}

fn print_changes(
    action: Action,
    before: &str,
    edited: &Edited,
    zone: &str,
    news: &mut dyn Write,
) -> anyhow::Result<()> {
    if action == Action::Apply {
        for finding in plan::stays(&check(before, zone)) {
            writeln!(news, "{finding}")?;
        }
    }
    for kept in &edited.kept {
        writeln!(news, "kept     {kept}")?;
    }
    write!(news, "{}", diff::unified("Corefile", before, &edited.text))?;
    if edited.changes.is_empty() {
        writeln!(news, "There is nothing to change.")?;
    }
    match action {
        Action::Apply => writeln!(
            news,
            "The cluster was not asked. CoreDNS also needs the CRDs, the role in coredns/rbac.yaml, and a version with the option \
             `multicluster`: `cloudmap-mcs coredns check` says what is missing."
        )?,
        Action::Remove => writeln!(
            news,
            "The cluster was not asked. When it has this Corefile, `cloudmap-mcs coredns remove` takes the role away."
        )?,
    }
    Ok(())
}
