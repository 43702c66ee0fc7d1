//! `coredns`: lets the CoreDNS of a cluster answer for the zone of the ClusterSet. It observes ([`crate::cluster::coredns`]),
//! plans, and applies.

mod corefile;
mod diff;
mod edit;
mod node_local;
mod plan;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_tests;

use std::io::{Read as _, Write};

use anyhow::Context as _;
use kube::Client;

pub(super) use self::plan::{Finding, check as findings};
use self::{edit::Edited, plan::Action};
use crate::{
    app::connect,
    cli::{CorednsCommand, CorednsPlace, CorednsWriteArgs},
    cluster::{
        coredns::{self, Corefile, Observed, Place},
        identity::AskError,
    },
};

/// What two CoreDNS of a cluster share.
const BINDING: &str = "ClusterRoleBinding cloudmap-mcs-coredns";

/// What is seen in a cluster that lacks nothing.
#[cfg(test)]
pub(super) fn whole() -> Observed {
    let corefile = edit::add(tests::EKS, "clusterset.local").map(|edited| edited.text);
    Observed::sample(&corefile.unwrap_or_default(), "coredns:v1.12.4")
}

pub(super) async fn coredns(command: CorednsCommand) -> anyhow::Result<()> {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    match command {
        CorednsCommand::Check(args) => {
            let (client, place) = connect(&args).await?;
            check(&coredns::observe(&client, &place).await?, &args, &mut out)
        }
        CorednsCommand::Apply(args) => write(Action::Apply, &args, &mut out, &mut err).await,
        CorednsCommand::Remove(args) => write(Action::Remove, &args, &mut out, &mut err).await,
    }
}

async fn connect(args: &CorednsPlace) -> anyhow::Result<(Client, Place)> {
    Ok((connect::cluster(&args.cluster).await?, place(args)))
}

fn place(args: &CorednsPlace) -> Place {
    let CorednsPlace { cluster: _, namespace, config_map, deployment, zone: _ } = args;
    Place { namespace: namespace.clone(), config_map: config_map.clone(), deployment: deployment.clone() }
}

fn check(observed: &Observed, args: &CorednsPlace, out: &mut dyn Write) -> anyhow::Result<()> {
    let zone = &args.zone;
    let findings = plan::check(observed, &place(args), zone, &args.cluster.flags());
    for finding in &findings {
        match finding {
            Finding::There(what) => writeln!(out, "ok       {what}")?,
            Finding::Unknown(what) => writeln!(out, "unknown  {what}")?,
            Finding::Missing { what, remedy } => writeln!(out, "missing  {what}\n         -> {remedy}")?,
        }
    }
    let missing = findings.iter().filter(|finding| matches!(finding, Finding::Missing { .. })).count();
    anyhow::ensure!(
        missing == 0,
        "names in {zone} do not resolve yet: {missing} of {} points are missing",
        findings.len()
    );
    Ok(())
}

async fn write(
    action: Action,
    args: &CorednsWriteArgs,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<()> {
    let (client, place) = connect(&args.place).await?;
    let values = args.addon_values.as_deref().map(read).transpose()?;
    let Some(values) = values else { return write_to(&client, action, args, &place, None, out).await.map(drop) };
    // What goes to standard output is the add-on's alone.
    let values = write_to(&client, action, args, &place, Some(&values), err).await?;
    writeln!(out, "{}", values.unwrap_or_default())?;
    Ok(())
}

/// Says what it does. Returns the configuration values for the add-on, if there are such values.
async fn write_to(
    client: &Client,
    action: Action,
    args: &CorednsWriteArgs,
    place: &Place,
    values: Option<&str>,
    news: &mut dyn Write,
) -> anyhow::Result<Option<String>> {
    let (zone, flags) = (&args.place.zone, &args.place.cluster.flags());
    let observed = &coredns::observe(client, place).await?;
    let changes = plan::changes(action, observed, place, zone, flags)?;
    for what in &changes.unknown {
        writeln!(news, "unknown  {what}")?;
    }
    let corefile = observed.corefile.as_ref().context("no Corefile")?;
    let mut pending: Vec<(&Corefile, &Edited)> = Vec::new();
    let values = if let Some(values) = values {
        let (json, before, edited) = plan::addon_values(action, values, &corefile.text, zone)?;
        write!(news, "{}", diff::unified("corefile", &before, &edited.text))?;
        Some(json)
    } else {
        pending.push((corefile, &changes.corefile));
        None
    };
    pending.extend(observed.node_local.as_ref().zip(changes.node_local.as_ref()));
    pending.retain(|(_, edited)| !edited.changes.is_empty());
    for (corefile, edited) in &pending {
        let name = format!("{}/{}", place.namespace, corefile.config_map);
        write!(news, "{}", diff::unified(&name, &corefile.text, &edited.text))?;
    }
    let shared = observed.is_shared();
    let permission = match action {
        Action::Apply => (!observed.permitted).then_some(if shared {
            "ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: written. Others keep the permission"
        } else {
            "ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: created"
        }),
        // Until the add-on has the values, CoreDNS still reads ServiceImports; and as long as it has another such zone.
        Action::Remove => (observed.revocable && values.is_none() && !edit::is_multicluster(&changes.corefile.text))
            .then_some(if shared {
                "ClusterRoleBinding cloudmap-mcs-coredns: written. Others keep the permission"
            } else {
                "ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: deleted"
            }),
    };
    if pending.is_empty() && permission.is_none() && values.is_none() {
        writeln!(news, "There is nothing to change.")?;
        return Ok(None);
    }
    if args.dry_run {
        writeln!(news, "Nothing is written, because of --dry-run.")?;
        if let Some(done) = permission {
            writeln!(news, "Without it: {done}.")?;
        }
    } else {
        for (corefile, edited) in pending.iter().filter(|_| !args.write_managed) {
            plan::refuse_managed(action, corefile, edited, place, zone, flags)?;
        }
        // CoreDNS must have the permission for as long as it has the zone.
        if let (Action::Apply, Some(done)) = (action, permission) {
            unless_faster(coredns::permit(client, observed).await, BINDING)?;
            writeln!(news, "{done}.")?;
        }
        for (corefile, edited) in &pending {
            put(client, place, corefile, edited, flags, news).await?;
        }
        if let (Action::Remove, Some(done)) = (action, permission) {
            unless_faster(coredns::forbid(client, observed).await, BINDING)?;
            writeln!(news, "{done}.")?;
        }
    }
    Ok(values)
}

/// Says what to do if somebody else has written an object in the meantime.
fn unless_faster(written: Result<(), AskError>, what: &str) -> anyhow::Result<()> {
    match written {
        Err(error) if coredns::is_conflict(&error) => {
            anyhow::bail!("somebody else has written the {what} just now: run this again")
        }
        written => Ok(written?),
    }
}

async fn put(
    client: &Client,
    place: &Place,
    corefile: &Corefile,
    edited: &Edited,
    flags: &str,
    news: &mut dyn Write,
) -> anyhow::Result<()> {
    let name = format!("{}/{}", place.namespace, corefile.config_map);
    unless_faster(coredns::write(client, place, corefile, &edited.text).await, &format!("ConfigMap {name}"))?;
    let effect = if edit::reloads(&edited.text) {
        "It is read within about a minute (plugin `reload`).".to_owned()
    } else if corefile.config_map == coredns::NODE_LOCAL {
        format!(
            "It has no plugin `reload`: kubectl{flags} -n {} rollout restart daemonset node-local-dns",
            place.namespace
        )
    } else {
        format!(
            "It has no plugin `reload`: kubectl{flags} -n {} rollout restart deployment {}",
            place.namespace, place.deployment
        )
    };
    writeln!(news, "ConfigMap {name}: written. {effect}")?;
    Ok(())
}

fn read(file: &str) -> anyhow::Result<String> {
    if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("failed to read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("failed to read {file}"))
}
