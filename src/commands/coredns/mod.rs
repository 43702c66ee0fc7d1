//! `coredns`: lets the CoreDNS of a cluster answer for the zone of the ClusterSet. It observes ([`cluster::coredns`]),
//! plans, and applies.

mod astray;
mod corefile;
mod diff;
mod edit;
mod faults;
#[cfg(test)]
mod field_tests;
mod keeper;
mod node_local;
mod offline;
mod plan;
mod proof;
mod rewrite;
mod syntax;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod write_tests;

use std::io::{Read as _, Write};

use anyhow::Context as _;
use kube::Client;

pub(super) use self::plan::{Finding, check as findings};
use self::{
    edit::Edited,
    plan::Action,
    proof::{Questions, Verdict},
};
use app::connect;
use cli::{CorednsCommand, CorednsPlace, CorednsWriteArgs};
use cluster::{
    coredns::{self, Ask, Corefile, Forwarded, Installation, Observed},
    identity::AskError,
};

/// What two CoreDNS of a cluster share.
const BINDING: &str = "ClusterRoleBinding cloudmap-mcs-coredns";

/// What is seen in a cluster that lacks nothing.
#[cfg(test)]
pub(super) fn whole() -> Observed {
    let corefile = edit::add(tests::EKS, "clusterset.local").map(|edited| edited.text);
    Observed::sample(&corefile.unwrap_or_default(), "coredns:v1.12.4")
}

/// The Corefile that `coredns apply` writes in place of this one, or `coredns remove`.
///
/// # Errors
/// It cannot be edited. The text says what to do.
pub fn edited_corefile(text: &str, zone: &str, applies: bool) -> Result<String, String> {
    let action = if applies { Action::Apply } else { Action::Remove };
    offline::edited(action, text, zone).map(|edited| edited.text).map_err(|refusal| refusal.to_string())
}

/// What `coredns check` says of a Corefile, a text for each point.
pub fn checked_corefile(text: &str, zone: &str) -> Vec<String> {
    offline::check(text, zone).iter().map(ToString::to_string).collect()
}

pub(super) async fn coredns(command: CorednsCommand) -> anyhow::Result<()> {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    match command {
        CorednsCommand::Check(args) => {
            if let Some(file) = &args.corefile {
                return report(&offline::check(&read(file)?, &args.zone), &args.zone, &mut out);
            }
            let (client, installation) = connect(&args).await?;
            check(&coredns::observe_pods(&client, &installation).await?, &args, &mut out)
        }
        CorednsCommand::Apply(args) => write(Action::Apply, &args, &mut out, &mut err).await,
        CorednsCommand::Remove(args) => write(Action::Remove, &args, &mut out, &mut err).await,
    }
}

async fn connect(args: &CorednsPlace) -> anyhow::Result<(Client, Installation)> {
    Ok((connect::cluster(&args.cluster).await?, installation(args)))
}

fn installation(args: &CorednsPlace) -> Installation {
    let CorednsPlace { cluster: _, namespace, config_map, deployment, zone: _, corefile: _ } = args;
    Installation { namespace: namespace.clone(), config_map: config_map.clone(), deployment: deployment.clone() }
}

fn check(observed: &Observed, args: &CorednsPlace, out: &mut dyn Write) -> anyhow::Result<()> {
    report(&plan::check(observed, &installation(args), &args.zone, &args.cluster.flags()), &args.zone, out)
}

fn report(findings: &[Finding], zone: &str, out: &mut dyn Write) -> anyhow::Result<()> {
    for finding in findings {
        writeln!(out, "{finding}")?;
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
    let zone = &args.place.zone;
    let corefile = args.place.corefile.as_deref().map(read).transpose()?;
    let values = args.addon_values.as_deref().map(read).transpose()?;
    // What goes to standard output is for a file, and the rest for people.
    let text = match (values, corefile) {
        (None, Some(corefile)) => offline::edit(action, &corefile, zone, err)?,
        (Some(values), Some(corefile)) => offline::addon_values(action, &values, Some(&corefile), zone, err)?,
        (None, None) => {
            let (client, installation) = connect(&args.place).await?;
            let asker = Forwarded::new(&client, &installation.namespace);
            let observed = coredns::observe_pods(&client, &installation).await?;
            let run = Run { client: &client, asker: &asker, action, args, installation: &installation };
            return run.write(&observed, None, out).await.map(drop);
        }
        (Some(values), None) => {
            let reached = async {
                let (client, installation) = connect(&args.place).await?;
                let observed = coredns::observe_pods(&client, &installation).await?;
                anyhow::Ok((client, installation, observed))
            };
            match reached.await {
                Ok((client, installation, observed)) => {
                    let asker = Forwarded::new(&client, &installation.namespace);
                    let run = Run { client: &client, asker: &asker, action, args, installation: &installation };
                    run.write(&observed, Some(&values), err).await?.unwrap_or_default()
                }
                Err(why) => {
                    let without = || format!("the cluster cannot be asked ({why:#}), and without it");
                    let text = offline::addon_values(action, &values, None, zone, err).with_context(without)?;
                    writeln!(err, "The cluster cannot be asked: {why:#}")?;
                    text
                }
            }
        }
    };
    write!(out, "{text}{}", if text.ends_with('\n') { "" } else { "\n" })?;
    Ok(())
}

/// One run of `apply` or `remove` in a cluster.
struct Run<'a> {
    client: &'a Client,
    asker: &'a dyn Ask,
    action: Action,
    args: &'a CorednsWriteArgs,
    installation: &'a Installation,
}

impl Run<'_> {
    /// Says what it does. Returns the configuration values for the add-on, if there are such values.
    async fn write(
        &self,
        observed: &Observed,
        values: Option<&str>,
        news: &mut dyn Write,
    ) -> anyhow::Result<Option<String>> {
        let Self { action, args, installation, .. } = *self;
        let (zone, flags) = (&args.place.zone, &args.place.cluster.flags());
        let changes = plan::changes(action, observed, installation, zone, flags)?;
        for finding in &changes.news {
            writeln!(news, "{finding}")?;
        }
        let corefile = observed.corefile.as_ref().context("no Corefile")?;
        let mut pending: Vec<(&Corefile, &Edited)> = Vec::new();
        let values = if let Some(values) = values {
            let (json, before, edited) = plan::addon_values(action, values, Some(&corefile.text), zone)?;
            write!(news, "{}", diff::unified("corefile", &before, &edited.text))?;
            Some(json)
        } else {
            pending.push((corefile, &changes.corefile));
            None
        };
        pending.extend(observed.node_locals.iter().zip(&changes.node_locals));
        for (corefile, edited) in &pending {
            for kept in &edited.kept {
                writeln!(news, "kept     {}/{}, {kept}", installation.namespace, corefile.config_map)?;
            }
        }
        pending.retain(|(_, edited)| !edited.changes.is_empty());
        for (corefile, edited) in &pending {
            let name = format!("{}/{}", installation.namespace, corefile.config_map);
            write!(news, "{}", diff::unified(&name, &corefile.text, &edited.text))?;
        }
        let permission = permission(action, observed, &changes.corefile.text, values.is_some());
        if pending.is_empty() && permission.is_none() && values.is_none() {
            writeln!(news, "There is nothing to change.")?;
            return Ok(None);
        }
        if args.dry_run {
            writeln!(news, "Nothing is written, because of --dry-run.")?;
            if let Some(done) = permission {
                writeln!(news, "Without it: {done}.")?;
            }
            return Ok(values);
        }
        for (corefile, edited) in pending.iter().filter(|_| !args.write_managed) {
            plan::refuse_managed(action, corefile, edited, installation, zone, flags)?;
        }
        self.put_all(observed, permission, &pending, news).await?;
        Ok(values)
    }

    /// CoreDNS must have the permission for as long as it has the zone.
    async fn put_all(
        &self,
        observed: &Observed,
        permission: Option<&str>,
        pending: &[(&Corefile, &Edited)],
        news: &mut dyn Write,
    ) -> anyhow::Result<()> {
        if let (Action::Apply, Some(done)) = (self.action, permission) {
            unless_faster(coredns::permit(self.client, observed).await, BINDING)?;
            writeln!(news, "{done}.")?;
        }
        for (corefile, edited) in pending {
            let questions = if corefile.daemon_set.is_none() { self.questions(observed, edited) } else { None };
            let asked = match &questions {
                Some(questions) => Some(proof::before(self.asker, questions).await),
                None => None,
            };
            let written = self.put(observed, corefile, edited, news).await?;
            match asked {
                None => {}
                Some(Err(why)) => writeln!(news, "unknown  whether CoreDNS answers with the change: {why}")?,
                Some(Ok(questions)) => self.prove(&questions, corefile, &written, news).await?,
            }
        }
        if let (Action::Remove, Some(done)) = (self.action, permission) {
            unless_faster(coredns::forbid(self.client, observed).await, BINDING)?;
            writeln!(news, "{done}.")?;
        }
        Ok(())
    }

    async fn put(
        &self,
        observed: &Observed,
        corefile: &Corefile,
        edited: &Edited,
        news: &mut dyn Write,
    ) -> anyhow::Result<Corefile> {
        let (installation, flags) = (self.installation, self.args.place.cluster.flags());
        let name = format!("{}/{}", installation.namespace, corefile.config_map);
        let written = coredns::write(self.client, installation, corefile, &edited.text).await;
        let written = unless_faster(written, &format!("ConfigMap {name}"))?;
        let effect = if edit::reloads(&edited.text) {
            "It is read within about a minute (plugin `reload`).".to_owned()
        } else {
            let workload = observed.workload.as_ref().filter(|workload| workload.kind != "pod");
            let workload = match (&corefile.daemon_set, workload) {
                (Some(name), _) => format!("daemonset {name}"),
                (None, Some(workload)) => format!("{} {}", workload.kind, workload.name),
                (None, None) => format!("deployment {}", installation.deployment),
            };
            format!(
                "It has no plugin `reload`: kubectl{flags} -n {} rollout restart {workload}",
                installation.namespace
            )
        };
        writeln!(news, "ConfigMap {name}: written. {effect}")?;
        Ok(written)
    }

    /// What can be asked after `apply`; nothing if the change is read only after a restart.
    fn questions(&self, observed: &Observed, edited: &Edited) -> Option<Questions> {
        let zone = &self.args.place.zone;
        if self.action != Action::Apply || self.args.no_wait || !edit::reloads(&edited.text) {
            return None;
        }
        let domain = edit::cluster_domains(&edited.text, zone).ok()?.into_iter().next()?;
        Some(Questions {
            pods: observed.pods.clone(),
            port: edit::port(&edited.text, zone),
            everywhere: format!("kubernetes.default.svc.{domain}"),
            version: format!("dns-version.{zone}"),
        })
    }

    /// Waits until CoreDNS has read the change, and takes it back if names of the cluster do not resolve any more.
    async fn prove(
        &self,
        questions: &Questions,
        before: &Corefile,
        written: &Corefile,
        news: &mut dyn Write,
    ) -> anyhow::Result<()> {
        let (installation, zone) = (self.installation, &self.args.place.zone);
        let name = format!("{}/{}", installation.namespace, before.config_map);
        match proof::after(self.asker, questions).await {
            Verdict::Answers(pods) => writeln!(news, "CoreDNS answers for {zone}. Pods that were asked: {pods}.")?,
            Verdict::NotYet(why) => {
                let (flags, pod) = (self.args.place.cluster.flags(), questions.pods.join(" "));
                let remedy = format!("kubectl{flags} -n {} logs {pod}", installation.namespace);
                let what = format!("CoreDNS has not read the change within {} s: {why}", proof::PATIENCE.as_secs());
                writeln!(news, "{}", Finding::Warning { what, remedy })?;
            }
            Verdict::Worse(why) => {
                let back = coredns::write(self.client, installation, written, &before.text).await;
                unless_faster(back, &format!("ConfigMap {name}")).with_context(|| {
                    format!("the cluster's DNS is worse with the change ({why}), and it is not taken back: run `coredns remove`")
                })?;
                anyhow::bail!(
                    "the cluster's DNS was worse with the change: {why}. So the ConfigMap {name} is as it was before. The logs of \
                     CoreDNS say more"
                );
            }
        }
        Ok(())
    }
}

/// What becomes of the permission: `None` for nothing. `corefile` is the one to come.
fn permission(action: Action, observed: &Observed, corefile: &str, for_addon: bool) -> Option<&'static str> {
    let shared = observed.is_shared();
    match action {
        Action::Apply if observed.permitted => None,
        Action::Apply if shared => {
            Some("ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: written. Others keep the permission")
        }
        Action::Apply => Some("ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: created"),
        // Until the add-on has the values, CoreDNS still reads ServiceImports; and as long as it has another such zone.
        Action::Remove if !observed.revocable || for_addon || edit::is_multicluster(corefile) => None,
        Action::Remove if shared => {
            Some("ClusterRoleBinding cloudmap-mcs-coredns: written. Others keep the permission")
        }
        Action::Remove => Some("ClusterRole and ClusterRoleBinding cloudmap-mcs-coredns: deleted"),
    }
}

/// Says what to do if somebody else has written an object in the meantime.
fn unless_faster<T>(written: Result<T, AskError>, what: &str) -> anyhow::Result<T> {
    match written {
        Err(error) if coredns::is_conflict(&error) => {
            anyhow::bail!("somebody else has written the {what} just now: run this again")
        }
        written => Ok(written?),
    }
}

fn read(file: &str) -> anyhow::Result<String> {
    if file == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("failed to read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("failed to read {file}"))
}
