//! `doctor`: checks an installation, from a workstation or in a cluster. It observes (each part may fail by itself), tries
//! the network with temporary pods, plans (pure), and prints. It changes nothing but the pods, which it deletes.

mod access;
mod checks;
mod gates;
mod observe;
mod probe;
mod registry;
mod report;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use futures::future::{BoxFuture, join_all};
use kube::Client;
use tokio::signal::unix::{SignalKind, signal};

use self::{
    observe::{Cluster, HERE, Observation, Seen},
    probe::Member,
    registry::Wanted,
    report::Report,
};
use crate::{
    asking::{aloud, until_well},
    table,
};
use app::connect;
use base::env;
use cli::{AwsArgs, ClusterArgs, DoctorArgs, ProbeArgs, ProbeCommand};
use iam::Mode;

/// The flags of the controller with a mode of their own.
const FLAGS: [(&str, Mode); 3] = [
    ("CLOUDMAP_MCS_READINESS_GATES", Mode::Gates),
    ("CLOUDMAP_MCS_AWS_MCS_COMPAT", Mode::AwsMcs),
    ("CLOUDMAP_MCS_HIDE_TASKS", Mode::Hiding),
];

/// How long `--wait` pauses between two reports.
const PAUSE: Duration = Duration::from_secs(15);

pub(super) async fn probe(command: ProbeCommand) -> anyhow::Result<()> {
    probe::run(command).await
}

pub(super) async fn doctor(args: DoctorArgs) -> anyhow::Result<ExitCode> {
    let what = "checking the clusters and AWS, with temporary pods if they are wanted";
    let look = async || {
        if args.wait.is_some() && probes(&args) {
            // Pods for the network only where nothing else is in the way.
            let report = aloud(&mut std::io::stderr(), what, Box::pin(examine(&args, false))).await?;
            if report.first_failed().is_some() {
                return Ok(report);
            }
        }
        aloud(&mut std::io::stderr(), what, Box::pin(examine(&args, true))).await
    };
    let failed = |report: &Report| report.first_failed().map(|it| format!("{} {}: {}", it.place, it.subject, it.what));
    let report = until_well(&mut std::io::stderr(), args.wait, PAUSE, look, failed).await?;
    table::print(args.output, || report.table(), || report.json())?;
    Ok(if report.first_failed().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The report of `doctor -o json`.
///
/// # Errors
/// If it was interrupted.
pub fn report(args: &DoctorArgs) -> BoxFuture<'_, anyhow::Result<serde_json::Value>> {
    Box::pin(async { Ok(examine(args, true).await?.json()) })
}

/// Everything that `doctor` reads in a cluster without temporary pods.
#[cfg(test)]
pub(super) async fn read(client: &Client, own: &str) {
    drop(observe::observe(client, own).await);
}

/// Checks everything, with temporary pods if they are wanted and `probing`.
async fn examine(args: &DoctorArgs, probing: bool) -> anyhow::Result<Report> {
    let (clusters, clients): (Vec<_>, Vec<_>) =
        join_all(contexts(args).into_iter().map(|it| look(it, args))).await.into_iter().unzip();
    let registry = if args.no_aws {
        None
    } else {
        let connected = async {
            let others = connect::registries_for_command(&args.place.aws).await?;
            anyhow::Ok((connect::registry_to_examine(&args.place.aws).await?, others))
        };
        Some(match connected.await {
            Ok(((connected, permit), others)) => {
                Ok(registry::observe(connected, others, &permit, wanted(args, &clusters)).await)
            }
            Err(error) => Err(format!("{error:#}")),
        })
    };
    let probed = if probing && probes(args) {
        let run = format!("{:016x}", env::random());
        let members: Vec<_> = clusters
            .iter()
            .zip(clients)
            .filter_map(|(cluster, client)| member(cluster, client?, &args.probe, &run))
            .collect();
        match probe::probe(&members, args.probe.probe_port, stopped()?).await {
            Ok(probed) => Some(probed),
            Err(left) => return Err(anyhow::Error::msg(interrupted(&left, &clusters, &run))),
        }
    } else {
        None
    };
    Ok(checks::plan(&Observation { clusters, registry, probed }))
}

/// What is said after an interruption, with the clusters in which pods may be left, and why.
fn interrupted(left: &BTreeMap<String, String>, clusters: &[Cluster], run: &str) -> String {
    if left.is_empty() {
        return "interrupted; the temporary pods are deleted".to_owned();
    }
    let left = left.iter().map(|(name, why)| {
        let flags = clusters.iter().find(|cluster| cluster.name == *name).map_or("", |cluster| cluster.flags.as_str());
        format!("\n{name}: {why}\n  -> kubectl delete pods -A -l {}{flags}", probe::selector(run))
    });
    format!("interrupted; temporary pods may be left:{}", left.collect::<Vec<_>>().concat())
}

/// The names of the contexts; `None` is the one of the environment.
fn contexts(args: &DoctorArgs) -> Vec<Option<String>> {
    let named: BTreeSet<_> = args.contexts.iter().filter(|name| !name.is_empty()).cloned().collect();
    if named.is_empty() { vec![args.place.kube.cluster.context.clone()] } else { named.into_iter().map(Some).collect() }
}

/// The network is tried between clusters, or if somebody wants it.
fn probes(args: &DoctorArgs) -> bool {
    !args.probe.no_probe && (args.probe.probe || contexts(args).len() > 1)
}

async fn look(context: Option<String>, args: &DoctorArgs) -> (Cluster, Option<Client>) {
    let cluster = ClusterArgs { kubeconfig: args.place.kube.cluster.kubeconfig.clone(), context: context.clone() };
    let own = &args.place.kube.controller.namespace;
    let (seen, client) = match connect::cluster(&cluster).await {
        Ok(client) => (observe::observe(&client, own).await, Some(client)),
        Err(error) => (Err(format!("{error:#}")), None),
    };
    let name = context.unwrap_or_else(|| HERE.to_owned());
    (Cluster { name, flags: cluster.flags(), own: own.clone(), seen }, client)
}

/// What runs, according to the flags and the clusters.
fn wanted(args: &DoctorArgs, clusters: &[Cluster]) -> Wanted {
    let seen = || clusters.iter().filter_map(|cluster| cluster.seen.as_ref().ok());
    let identities: Vec<_> = seen().filter_map(|seen| seen.identity()?.ok()).collect();
    let clustersets: BTreeSet<_> = identities.iter().filter_map(|identity| identity.clusterset.clone()).collect();
    let agreed = if clustersets.len() == 1 { clustersets.into_iter().next() } else { None };
    let clusterset = args.place.identity.clusterset_id.clone().or(agreed);
    let standalone = match &*identities {
        [one] if clusterset.is_none() => Some(one.uid.to_string()),
        _ => None,
    };
    let off = |seen: &Seen| seen.setting("CLOUDMAP_MCS_INSTANCES") == Some("none");
    let imports = seen().filter_map(|seen| seen.setting("CLOUDMAP_MCS_IMPORT_FROM"));
    let imports = imports.flat_map(|names| names.split(',')).map(str::trim);
    let imports: BTreeSet<_> = imports.chain(seen().flat_map(|seen| &seen.shared).map(String::as_str)).collect();
    let mut flags = BTreeMap::<Mode, BTreeSet<String>>::new();
    for (variable, mode) in FLAGS {
        let has = |seen: &&Seen| matches!(&seen.controller, Ok(Some(it)) if it.settings.has(variable));
        for with in seen().filter(has) {
            let id = with.identity().and_then(Result::ok).map(|identity| identity.cluster.to_string());
            flags.entry(mode).or_default().extend(id);
        }
    }
    Wanted {
        flags,
        clusterset,
        standalone,
        instances: seen().next().is_none() || !seen().all(off),
        // Names with `{namespace}` are many.
        imports: imports
            .into_iter()
            .filter(|name| !name.is_empty() && !name.contains('{'))
            .filter_map(|name| at_home(&args.place.aws, name))
            .map(str::to_owned)
            .collect(),
    }
}

/// The Cloud Map namespace of the home that `--import-from` names; `None` if it is one of another registry.
fn at_home<'a>(aws: &AwsArgs, name: &'a str) -> Option<&'a str> {
    let is_other = |registry: &str| aws.others().any(|(other, _)| other == registry);
    match discovery::in_registry(name, |registry| aws.home.as_deref() == Some(registry) || is_other(registry)) {
        Some((registry, _)) if is_other(registry) => None,
        Some((_, namespace)) => Some(namespace),
        None => Some(name),
    }
}

/// Where the pods of a cluster come from; `None` if nothing is known of it.
fn member(cluster: &Cluster, client: Client, args: &ProbeArgs, run: &str) -> Option<Member> {
    let seen = cluster.seen.as_ref().ok()?;
    let controller = seen.controller.as_ref().ok().and_then(|it| it.as_ref());
    Some(Member {
        name: cluster.name.clone(),
        run: run.to_owned(),
        ahead: seen.ahead.unwrap_or_default(),
        client,
        namespace: args.namespace.clone().unwrap_or_else(|| cluster.own.clone()),
        image: args.probe_image.clone().or_else(|| Some(controller?.image.clone()))?,
        template: controller.map(|controller| controller.template.clone()).unwrap_or_default(),
        import: seen.imports.as_ref().ok().and_then(|imports| imports.first().cloned()),
        streams: seen.streams.as_ref().cloned().unwrap_or_default(),
    })
}

/// Ends at SIGINT or SIGTERM.
fn stopped() -> anyhow::Result<impl Future<Output = ()>> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
