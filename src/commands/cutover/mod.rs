//! `cutover`: says whether a name is ready to be moved, writes Cutovers, says how far they are, and stops the tasks of ECS.
//! It observes, plans (pure: [`mod@plan`], [`ecs`], [`capacity`], [`edit`], [`mod@finish`], [`mod@back`], [`mod@status`]), and applies.

mod back;
mod capacity;
mod choice;
mod ecs;
mod edit;
mod facts;
mod finish;
mod observe;
mod plan;
mod scale;
mod status;
#[cfg(test)]
mod tests;

use std::{
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

use self::{
    ecs::EcsReader,
    edit::{Wish, Write},
    facts::{ASSUMED, Facts, Registry},
    observe::{Observer, Progress},
    plan::Grade,
};
use crate::{
    api::{Cutover, ServiceExport},
    app::connect,
    cli::{
        AwsArgs, ControllerArgs, CutoverBackArgs, CutoverChoice, CutoverCommand, CutoverEditArgs, CutoverFinishArgs,
        CutoverPlanArgs, CutoverStatusArgs, EcsArgs,
    },
    cloudmap::CloudMap,
    cluster::{
        client::Connection,
        reader::{Unread, read, version},
    },
    commands::{installed, table},
    ecs::{Choice, Ecs},
    env,
    instances::Naming,
    model::ServiceKey,
};

/// How often `status --watch` looks.
const LOOK: Duration = Duration::from_secs(2);

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

/// The names that a command is about. `before`: those that have no Cutover yet count, too.
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

async fn registry(aws: &AwsArgs) -> Result<Arc<dyn CloudMap>, String> {
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
    judge(args).await.or_else(|error| {
        writeln!(std::io::stderr(), "error: {error:#}")?;
        Ok(ExitCode::from(Grade::Blocked.status()))
    })
}

async fn judge(args: CutoverPlanArgs) -> anyhow::Result<ExitCode> {
    let Connection { client, namespace } = connect::connection(&args.choice.cluster).await?;
    let keys = chosen(&client, &args.choice, &namespace, true).await?;
    let ecs = EcsReader::new(ecs_of(&args.aws, &args.ecs).await, choice_of(&args.ecs));
    let mut observer = observer(client, &args.controller, &args.aws, ecs).await;
    let (mut plans, mut progress) = (Vec::new(), Progress::of(keys.len()));
    for key in keys {
        let facts = observer.observe(&key).await;
        progress.one_more(&mut std::io::stderr())?;
        plans.push((key.to_string(), plan::plan(&facts, &args.steps)));
    }
    table::print(args.output, || plan::text(&plans), || plan::json(&plans))?;
    let worst = plans.iter().map(|(_, plan)| plan.grade()).max().unwrap_or(Grade::Ok);
    Ok(ExitCode::from(worst.status()))
}

async fn finish(args: CutoverFinishArgs) -> anyhow::Result<ExitCode> {
    let CutoverFinishArgs { edit, controller, aws, ecs, force, scale_ecs, timeout } = args;
    let Connection { client, namespace } = connect::connection(&edit.choice.cluster).await?;
    let keys = chosen(&client, &edit.choice, &namespace, false).await?;
    let port = ecs_of(&aws, &ecs).await;
    let reader = EcsReader::new(port.clone(), choice_of(&ecs));
    let mut observer = observer(client.clone(), &controller, &aws, reader).await;
    let (mut facts, mut refused, mut progress) = (Vec::<Facts>::new(), 0, Progress::of(keys.len()));
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
            Ok(()) => facts.push(seen),
            Err(why) => {
                refused += 1;
                writeln!(std::io::stderr(), "{why}")?;
            }
        }
    }
    // What is finished stays so.
    let open = facts.iter().filter(|facts| !finish::is_finished(facts));
    let ready: Vec<_> = open.map(|facts| facts.key.clone()).collect();
    let written = each(&client, &ready, &Wish::Shift(100), &edit).await;
    let mut failed = Vec::new();
    if scale_ecs {
        let (ready, why) = stoppable(&client, &facts, force).await?;
        failed = why;
        match port {
            _ if edit.dry_run => {}
            Ok(Some(port)) => {
                let mut out = std::io::stdout();
                failed.extend(Box::pin(stop(&mut observer, &*port, ready, force, timeout, &mut out)).await?);
            }
            // Each name has said so.
            Ok(None) | Err(_) => {}
        }
    } else {
        for facts in &facts {
            write!(std::io::stdout(), "{}", finish::commands(facts, force))?;
        }
    }
    for why in &failed {
        writeln!(std::io::stderr(), "{why}")?;
    }
    anyhow::ensure!(refused == 0, "{refused} are not finished");
    anyhow::ensure!(failed.is_empty(), "the tasks of {} are not stopped", failed.len());
    written
}

/// What is known about a name, and an ECS service whose tasks may stop for it.
type Stoppable<'a> = (&'a Facts, crate::ecs::Service);

/// The ECS services that may be stopped now, and why others may not. Says what to know before.
async fn stoppable<'a>(
    client: &Client,
    facts: &'a [Facts],
    force: bool,
) -> anyhow::Result<(Vec<Stoppable<'a>>, Vec<String>)> {
    let (mut out, now) = (std::io::stdout(), time(client).await);
    let (mut ready, mut failed) = (Vec::new(), Vec::new());
    for facts in facts {
        let key = &facts.key;
        match scale::stoppable(facts, now.as_ref().copied(), force) {
            Err(why) => failed.push(why),
            Ok(services) if services.is_empty() => writeln!(out, "{key}: no task of ECS is left to stop")?,
            Ok(services) => {
                let ttl = facts.registry.as_ref().map_or(0, Registry::ttl);
                write!(out, "{}", finish::before_tasks_stop(facts, ttl))?;
                for service in services {
                    writeln!(out, "# {key}: {}: desired count {} -> 0", service.path(), service.desired)?;
                    ready.push((facts, service));
                }
            }
        }
    }
    Ok((ready, failed))
}

/// The time of the API server's clock. The one here may be wrong, and then tasks would stop that clients still use.
///
/// # Errors
/// Why it is not known.
async fn time(client: &Client) -> Result<Timestamp, String> {
    let (_, time) = version(client).await.map_err(|why| why.to_string())?;
    time.ok_or_else(|| "its answers have no date".to_owned())
}

/// Stops the tasks of ECS services, and waits for them. Gives why some are not stopped.
async fn stop(
    observer: &mut Observer,
    ecs: &dyn Ecs,
    ready: Vec<Stoppable<'_>>,
    force: bool,
    patience: Duration,
    out: &mut impl std::io::Write,
) -> anyhow::Result<Vec<String>> {
    let (mut open, mut failed) = (Vec::new(), Vec::new());
    for (facts, service) in ready {
        let begun = match still_stoppable(observer, facts, force).await {
            Ok(()) => scale::begin(ecs, &facts.key, service).await,
            Err(why) => Err(why),
        };
        match begun {
            Ok(stopping) => {
                writeln!(out, "{}", stopping.begun())?;
                open.push(stopping);
            }
            Err(why) => failed.push(why),
        }
    }
    failed.extend(scale::wait(ecs, open, patience, out).await?);
    Ok(failed)
}

/// Whether the Cutover, Cloud Map and the pods still say so. To observe hundreds of names takes minutes: meanwhile somebody may
/// have taken one back, ECS may have started tasks or brought back a hidden one, or pods may have failed.
///
/// # Errors
/// Why no task may be stopped, and what to do.
async fn still_stoppable(observer: &mut Observer, facts: &Facts, force: bool) -> Result<(), String> {
    let key = &facts.key;
    let now = time(&observer.client).await;
    let api: Api<Cutover> = Api::namespaced(observer.client.clone(), &key.namespace);
    let cutover = read(api.get_opt(&key.name)).await.map_err(|why| why.to_string());
    let registry = match facts.counterpart.as_ref().map(|counterpart| &counterpart.target) {
        Ok(Some(target)) => observer.registry(target).await,
        _ => facts.registry.clone(),
    };
    let mut seen = Facts { cutover, registry, ..facts.clone() };
    let registry = seen.registry.as_ref().map_err(|why| format!("{key}: no task is stopped: {why}"))?;
    scale::may_stop(&seen, registry, now.as_ref().copied())?;
    scale::are_hidden_if_wanted(&seen, force)?;
    seen.pods = observer.pods_of(key).await;
    finish::check(&seen, force)?;
    scale::some_pod_is_ready(&seen)
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
            // At first, what is forbidden or not installed is nothing to wait for.
            Err(why) if args.watch && (!shown.is_empty() || matches!(why, Unread::Failed(_))) => {
                if !std::mem::replace(&mut failing, true) {
                    writeln!(std::io::stderr(), "cannot list Cutovers, and tries again: {why}")?;
                }
                tokio::time::sleep(LOOK).await;
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
        tokio::time::sleep(LOOK).await;
    }
}
