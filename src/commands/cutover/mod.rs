//! `cutover`: says whether a name is ready to be moved, writes Cutovers, says how far they are, and stops the tasks of ECS.
//! It observes, plans (pure: [`mod@plan`], [`ecs`], [`capacity`], [`edit`], [`mod@finish`], [`mod@back`], [`mod@status`]), and applies.

mod back;
mod capacity;
pub(crate) mod choice;
mod ecs_services;
mod edit;
mod finish;
mod manifests;
mod observe;
mod plan;
mod registry;
mod room;
mod scale;
mod situation;
mod status;
mod stopping;
#[cfg(test)]
mod tests;
mod write;
mod yaml;

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};
use tokio::time::{Instant, sleep};

use self::{
    ecs_services::EcsReader,
    edit::{Wish, Write},
    manifests::Wishes,
    observe::{Observer, Progress},
    plan::Grade,
    registry::RegistryReader,
    room::Coming,
    scale::Refusal,
    situation::{ASSUMED, CloudMapService, Situation},
};
use crate::{installed, table};
use api::{Cutover, ServiceExport};
use app::connect;
use base::env;
use cli::{
    AwsArgs, ControllerArgs, CutoverBackArgs, CutoverChoice, CutoverCommand, CutoverEditArgs, CutoverFinishArgs,
    CutoverPlanArgs, CutoverStatusArgs, EcsArgs,
};
use cluster::{
    client::Connection,
    reader::{Unread, read, version},
};
use ecs::{Choice, Ecs};
use instances::Naming;
use model::ServiceKey;

/// How often `status --watch` looks.
const LOOK: Duration = Duration::from_secs(2);
/// How often `finish --scale-ecs` looks whether tasks may be stopped.
const AGAIN: Duration = Duration::from_secs(5);

pub(super) async fn cutover(command: CutoverCommand) -> anyhow::Result<ExitCode> {
    let (edit, wish) = match command {
        CutoverCommand::Plan(args) => return Box::pin(plan(args)).await,
        CutoverCommand::Status(args) => return status(args).await,
        CutoverCommand::Finish(args) => return Box::pin(finish(args)).await,
        CutoverCommand::Back(args) => return Box::pin(back(args)).await,
        CutoverCommand::Start(args) => {
            args.course().map_err(anyhow::Error::msg)?;
            let (spec, omitted) = (args.spec(), args.omitted());
            (args.edit, Wish::Start(spec, omitted))
        }
        CutoverCommand::Shift(args) => (args.edit, Wish::Shift(args.to)),
        CutoverCommand::Pause(edit) => (edit, Wish::Pause),
        CutoverCommand::Resume(edit) => (edit, Wish::Resume),
    };
    let Connection { client, namespace } = connect::connection(&edit.choice.cluster).await?;
    let keys = chosen(&client, &edit.choice, &namespace, matches!(wish, Wish::Start(..))).await?;
    each(&client, &keys, &wish, &edit).await
}

/// The names that a command is about. `before`: also those without a Cutover.
async fn chosen(
    client: &Client,
    choice: &CutoverChoice,
    namespace: &str,
    before: bool,
) -> anyhow::Result<Vec<ServiceKey>> {
    let namespace = choice.namespace.as_deref().unwrap_or(namespace);
    let keys = if choice.all {
        let names = if before { exported(client, namespace).await? } else { listed(client, namespace).await? };
        choice::names(names.iter().map(String::as_str), namespace)
    } else {
        let text = choice.from_file.as_deref().map(file).transpose()?.unwrap_or_default();
        choice::names(choice.names.iter().map(String::as_str).chain(choice::lines(&text)), namespace)
    };
    let keys = keys.map_err(anyhow::Error::msg)?;
    anyhow::ensure!(!keys.is_empty(), "{}", choice::nothing(choice.all, before, namespace));
    Ok(keys)
}

fn file(path: &std::path::Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if path.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).context("failed to read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(path).with_context(|| format!("failed to read {}", path.display()))
}

/// The ServiceExports whose annotations say that a Cloud Map service is theirs.
async fn exported(client: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let exports: Api<ServiceExport> = Api::namespaced(client.clone(), namespace);
    let list = read(exports.list(&ListParams::default())).await.context("failed to list ServiceExports")?;
    let named = list.items.into_iter().filter(|export| observe::target_of(export, &Naming::PerNamespace).is_some());
    Ok(named.filter_map(|export| export.metadata.name).collect())
}

async fn listed(client: &Client, namespace: &str) -> anyhow::Result<Vec<String>> {
    let cutovers: Api<Cutover> = Api::namespaced(client.clone(), namespace);
    let list = read(cutovers.list(&ListParams::default())).await.context("failed to list Cutovers")?;
    Ok(list.items.into_iter().filter_map(|cutover| cutover.metadata.name).collect())
}

/// Fulfils a wish for each name. One that fails stops no other.
async fn each(client: &Client, keys: &[ServiceKey], wish: &Wish, args: &CutoverEditArgs) -> anyhow::Result<ExitCode> {
    let mut failed = 0;
    for key in keys {
        if let Err(error) = fulfil(client, key, wish, args.dry_run).await {
            failed += 1;
            writeln!(std::io::stderr(), "{key}: {error:#}")?;
        }
    }
    anyhow::ensure!(failed == 0, "{failed} of {} were not written, or are still held", keys.len());
    if args.dry_run {
        writeln!(std::io::stdout(), "Nothing is written, because of --dry-run.")?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn fulfil(client: &Client, key: &ServiceKey, wish: &Wish, dry_run: bool) -> anyhow::Result<()> {
    let api: Api<Cutover> = Api::namespaced(client.clone(), &key.namespace);
    let there = read(api.get_opt(&key.name)).await.context("failed to read the Cutover")?;
    let mut last = None;
    for Write { manager, object } in edit::writes(key, there.as_ref(), wish).map_err(anyhow::Error::msg)? {
        writeln!(std::io::stdout(), "---\n{}", serde_yaml_ng::to_string(&object)?.trim_end())?;
        if !dry_run {
            // Without force: what Git or somebody else wrote otherwise is a conflict, and said.
            let params = PatchParams::apply(manager.as_str());
            let written = read(api.patch(&key.name, &params, &Patch::Apply(&object))).await;
            last = Some(written.context("failed to write the Cutover")?);
        }
    }
    // It is written, and does not do what was wanted: no script may take that for done.
    last.as_ref().and_then(|after| edit::still_held(wish, after)).map_or(Ok(()), |said| Err(anyhow::Error::msg(said)))
}

async fn registry(aws: &AwsArgs) -> Result<Arc<dyn cloudmap::Read>, String> {
    connect::registry_for_status(aws).await.map_err(|error| format!("Cloud Map: {error:#}"))
}

/// What reads all that is known of names. The controller's flags say how it names what annotations do not.
async fn observer(client: Client, controller: &ControllerArgs, aws: &AwsArgs, ecs: EcsReader) -> Observer {
    let settings = installed::known_settings(&client, &controller.namespace).await;
    Observer::new(client, registry(aws).await, ecs, settings)
}

async fn ecs_of(aws: &AwsArgs, args: &EcsArgs) -> Result<Option<Arc<dyn Ecs>>, String> {
    connect::ecs_for_command(aws, args).await.map_err(|error| format!("{error:#}"))
}

fn choice_of(args: &EcsArgs) -> Choice {
    Choice { cluster: args.ecs_cluster.clone(), services: args.ecs_service.clone() }
}

async fn plan(args: CutoverPlanArgs) -> anyhow::Result<ExitCode> {
    // 1 stands for warnings, which scripts may accept.
    Box::pin(judge(args)).await.or_else(|error| {
        writeln!(std::io::stderr(), "error: {error:#}")?;
        Ok(ExitCode::from(Grade::Blocked.status()))
    })
}

async fn judge(args: CutoverPlanArgs) -> anyhow::Result<ExitCode> {
    if let (Some(folder), Some(namespace)) = (&args.write.write, &args.choice.namespace) {
        let reader = RegistryReader::new(registry(&args.aws).await);
        let ecs = EcsReader::new(ecs_of(&args.aws, &args.ecs).await, choice_of(&args.ecs));
        let wishes = Wishes::of(&args.write, &args.steps)?;
        return Box::pin(write::write(reader, ecs, namespace, folder, &wishes, args.output)).await;
    }
    let Connection { client, namespace } = connect::connection(&args.choice.cluster).await?;
    let keys = chosen(&client, &args.choice, &namespace, true).await?;
    let ecs = EcsReader::new(ecs_of(&args.aws, &args.ecs).await, choice_of(&args.ecs));
    let mut observer = observer(client, &args.controller, &args.aws, ecs).await;
    let (mut plans, mut coming, mut progress) = (Vec::new(), Coming::default(), Progress::of(keys.len()));
    for key in keys {
        let situation = observer.observe(&key).await;
        progress.one_more(&mut std::io::stderr())?;
        coming.observed(&situation);
        plans.push((key.to_string(), plan::plan(&situation, &args.steps)));
    }
    let rooms = coming.plans();
    table::print(args.output, || plan::text(&plans) + &plan::text(&rooms), || plan::json(&plans, &rooms))?;
    let worst = plans.iter().chain(&rooms).map(|(_, plan)| plan.grade()).max().unwrap_or(Grade::Ok);
    Ok(ExitCode::from(worst.status()))
}

async fn finish(args: CutoverFinishArgs) -> anyhow::Result<ExitCode> {
    let CutoverFinishArgs { edit, controller, aws, ecs, force, scale_ecs, timeout } = args;
    let Connection { client, namespace } = connect::connection(&edit.choice.cluster).await?;
    let keys = chosen(&client, &edit.choice, &namespace, false).await?;
    let port = ecs_of(&aws, &ecs).await;
    let reader = EcsReader::new(port.clone(), choice_of(&ecs));
    let mut observer = observer(client.clone(), &controller, &aws, reader).await;
    let (mut situation, mut refused, mut progress) = (Vec::<Situation>::new(), 0, Progress::of(keys.len()));
    for key in keys {
        let seen = observer.observe(&key).await;
        progress.one_more(&mut std::io::stderr())?;
        if let Some(assumed) = seen.assumed() {
            writeln!(std::io::stderr(), "{key}: {assumed}: {ASSUMED}")?;
        }
        // The controller itself says from when on hidden tasks may be stopped.
        if let Some(assumed) = seen.assumed_settle().filter(|_| seen.hides().is_none()) {
            writeln!(std::io::stderr(), "{key}: {assumed}")?;
        }
        match finish::check(&seen, force) {
            Ok(()) => situation.push(seen),
            Err(why) => {
                refused += 1;
                writeln!(std::io::stderr(), "{why}")?;
            }
        }
    }
    // What is finished stays so.
    let open = situation.iter().filter(|situation| !finish::is_finished(situation));
    let ready: Vec<_> = open.map(|situation| situation.key.clone()).collect();
    let written = each(&client, &ready, &Wish::Shift(100), &edit).await;
    let mut failed = 0;
    if scale_ecs {
        // Without ECS, each name says so.
        let port = port.ok().flatten();
        let ecs = port.as_deref().filter(|_| !edit.dry_run);
        let (mut out, mut errors) = (std::io::stdout(), std::io::stderr());
        failed = Box::pin(stop(&mut observer, ecs, situation, force, timeout, &mut out, &mut errors)).await?;
    } else {
        for situation in &situation {
            write!(std::io::stdout(), "{}", finish::commands(situation, force))?;
        }
    }
    anyhow::ensure!(refused == 0, "{refused} are not finished");
    anyhow::ensure!(failed == 0, "the tasks of {failed} are not stopped");
    written
}

/// The time of the API server's clock. The one here may be wrong, and then tasks would stop that clients still use.
///
/// # Errors
/// Why it is not known.
async fn time(client: &Client) -> Result<Timestamp, Unread> {
    let (_, time) = version(client).await?;
    time.ok_or_else(|| Unread::Failed("its answers have no date".to_owned()))
}

/// Stops the tasks of each name as soon as they may be stopped, and waits for them. Waits for `patience` until they may be, and
/// for as long again until they are stopped. Gives how many are not; `errors` says why. Without `ecs`, `out` says what would be
/// done.
async fn stop(
    observer: &mut Observer,
    ecs: Option<&dyn Ecs>,
    mut open: Vec<Situation>,
    force: bool,
    patience: Duration,
    out: &mut impl std::io::Write,
    errors: &mut impl std::io::Write,
) -> anyhow::Result<usize> {
    let (mut stopping, mut failed, mut said) = (Vec::new(), 0, BTreeSet::new());
    let begun = Instant::now();
    while !open.is_empty() {
        let waits = ecs.is_some() && begun.elapsed() < patience;
        let (now, mut rest) = (time(&observer.client).await, Vec::new());
        for mut situation in open {
            let services = match stoppable(observer, &mut situation, now.as_ref().copied(), force).await {
                Ok(services) => services,
                Err(Refusal::Later(why)) if waits => {
                    if said.insert(why.clone()) {
                        writeln!(errors, "{why}: waiting")?;
                    }
                    rest.push(situation);
                    continue;
                }
                Err(refusal) => {
                    failed += 1;
                    writeln!(errors, "{refusal}")?;
                    continue;
                }
            };
            let key = &situation.key;
            if services.is_empty() {
                writeln!(out, "{key}: no task of ECS is left to stop")?;
                continue;
            }
            let ttl = situation.registry.as_ref().map_or(0, CloudMapService::ttl);
            write!(out, "{}", finish::before_tasks_stop(&situation, ttl))?;
            for service in services {
                writeln!(out, "# {key}: {}: desired count {} -> 0", service.path(), service.desired)?;
                let Some(ecs) = ecs else { continue };
                match scale::begin(ecs, key, service).await {
                    Ok(begun) => {
                        writeln!(out, "{}", begun.begun())?;
                        stopping.push(begun);
                    }
                    Err(why) => {
                        failed += 1;
                        writeln!(errors, "{why}")?;
                    }
                }
            }
        }
        open = rest;
        if !open.is_empty() {
            sleep(AGAIN).await;
        }
    }
    let Some(ecs) = ecs else { return Ok(failed) };
    for why in scale::wait(ecs, stopping, patience, out).await? {
        failed += 1;
        writeln!(errors, "{why}")?;
    }
    Ok(failed)
}

/// The ECS services of a name whose tasks may be stopped, after everything was read again. The first observation may be minutes
/// old if there are hundreds of names: a user may have taken one back since, ECS may have started tasks or shown a hidden one
/// again, or pods may have failed.
///
/// # Errors
/// Why no task may be stopped, and what to do.
async fn stoppable(
    observer: &mut Observer,
    situation: &mut Situation,
    now: Result<Timestamp, &Unread>,
    force: bool,
) -> Result<Vec<ecs::Service>, Refusal> {
    situation.cutover = observer.cutover(&situation.key).await;
    // Hundreds of names may wait, so Cloud Map and the pods are looked at only when it is time. What would still be in the way
    // then is said at once.
    if scale::is_due(situation, now).is_err() {
        return scale::stoppable(situation, now, force);
    }
    if let Ok(Some(target)) = situation.counterpart.as_ref().map(|counterpart| &counterpart.target) {
        situation.registry = observer.registry(target).await;
    }
    situation.pods = observer.pods_of(&situation.key).await;
    if let Some(why) = situation.pods.as_ref().err().filter(|why| why.may_pass()) {
        return Err(Refusal::of_unread(why, format!("{}: no task is stopped: {why}", situation.key)));
    }
    let services = scale::stoppable(situation, now, force)?;
    if !services.is_empty() {
        finish::check(situation, force)?;
    }
    Ok(services)
}

async fn back(args: CutoverBackArgs) -> anyhow::Result<ExitCode> {
    let CutoverBackArgs { edit, controller, aws, ecs } = args;
    let Connection { client, namespace } = connect::connection(&edit.choice.cluster).await?;
    let keys = chosen(&client, &edit.choice, &namespace, false).await?;
    // The way back waits for nothing. What ECS has is said afterwards.
    let written = each(&client, &keys, &Wish::Back, &edit).await;
    let reader = EcsReader::new(ecs_of(&aws, &ecs).await, choice_of(&ecs));
    let mut observer = observer(client, &controller, &aws, reader).await;
    let mut progress = Progress::of(keys.len());
    for key in &keys {
        let seen = observer.observe(key).await;
        progress.one_more(&mut std::io::stderr())?;
        if let Some(assumed) = seen.assumed() {
            writeln!(std::io::stderr(), "{key}: {assumed}: {ASSUMED}")?;
        }
        if let Some(said) = back::remark(&seen) {
            writeln!(std::io::stderr(), "{key}: {said}")?;
        }
    }
    written
}

async fn status(args: CutoverStatusArgs) -> anyhow::Result<ExitCode> {
    let Connection { client, namespace } = connect::connection(&args.cluster).await?;
    let namespace = args.namespace.clone().unwrap_or(namespace);
    let api: Api<Cutover> = if args.all_namespaces { Api::all(client) } else { Api::namespaced(client, &namespace) };
    follow(&api, &namespace, &args).await
}

/// Says how far Cutovers are, and with `--watch` goes on until all are at their end.
async fn follow(api: &Api<Cutover>, namespace: &str, args: &CutoverStatusArgs) -> anyhow::Result<ExitCode> {
    let (mut shown, mut failing) = (String::new(), false);
    loop {
        let list = match read(api.list(&ListParams::default())).await {
            // If the first read is forbidden, or the kind is not installed, waiting does not help.
            Err(why) if args.watch && (!shown.is_empty() || matches!(why, Unread::Failed(_))) => {
                if !std::mem::replace(&mut failing, true) {
                    writeln!(std::io::stderr(), "cannot list Cutovers, and tries again: {why}")?;
                }
                sleep(LOOK).await;
                continue;
            }
            list => list.context("failed to list Cutovers")?,
        };
        failing = false;
        let mut cutovers = list.items;
        if !args.names.is_empty() {
            let name = |cutover: &Cutover| cutover.metadata.name.clone().unwrap_or_default();
            if let Some(missing) = args.names.iter().find(|wanted| !cutovers.iter().any(|it| name(it) == **wanted)) {
                anyhow::bail!(
                    "there is no Cutover {namespace}/{missing}: look at the name, and give the namespace with --namespace"
                );
            }
            cutovers.retain(|cutover| args.names.contains(&name(cutover)));
        }
        // Ages alone are no news.
        let news: Vec<_> = cutovers.iter().map(|cutover| (&cutover.spec, &cutover.status)).collect();
        let news = serde_json::to_string(&news)?;
        if news != shown {
            table::print(args.output, || status::table(&cutovers, env::timestamp()), || status::json(&cutovers))?;
            shown = news;
        }
        if !args.watch || cutovers.iter().all(status::is_at_its_end) {
            let bad = cutovers.iter().any(status::needs_somebody);
            return Ok(if bad { ExitCode::FAILURE } else { ExitCode::SUCCESS });
        }
        sleep(LOOK).await;
    }
}
