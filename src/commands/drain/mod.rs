//! `drain`: sets what asks for a drain, and follows what the leader reports of it on the ServiceExports. It observes
//! ([`look`]), plans (pure: [`mod@report`]), and applies.

mod report;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, io::Write as _, process::ExitCode, time::Duration};

use anyhow::Context as _;
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use tokio::time::sleep;

use self::report::{Seen, State, Way};
use super::{
    asking::{aloud, until_well},
    cutover::choice,
};
use api::{
    ClusterProperty, ClusterPropertySpec, ServiceExport, ServiceImport,
    conditions::ImportCondition,
    drain::read as read_drain,
    names::{
        ANNOTATION_DRAIN, ANNOTATION_DRAIN_MIN_READY, DRAIN, FieldManager, PROPERTY_DRAIN, PROPERTY_DRAIN_MIN_READY,
    },
};
use app::connect;
use cli::DrainArgs;
use cluster::{
    client::Connection,
    reader::{Unread, each, read},
};
use model::{MinReady, ServiceKey};

/// How often it looks.
const LOOK: Duration = Duration::from_secs(2);

/// How many looks in a row may fail.
const FAILURES: usize = 30;

/// What is drained.
#[derive(Debug)]
enum Scope {
    Cluster,
    Names(Vec<ServiceKey>),
}

pub(super) async fn drain(args: DrainArgs) -> anyhow::Result<ExitCode> {
    let Connection { client, namespace } = connect::connection(&args.cluster).await?;
    let scope = if args.all {
        Scope::Cluster
    } else {
        let namespace = args.namespace.as_deref().unwrap_or(&namespace);
        Scope::Names(choice::names(args.names.iter().map(String::as_str), namespace).map_err(anyhow::Error::msg)?)
    };
    let way = if args.back { Way::Back } else { Way::Out };
    match way {
        Way::Out => ask(&client, &scope, args.min_ready).await?,
        Way::Back => take_back(&client, &scope).await?,
    }
    let (mut failures, mut before) = (0, None);
    let look = async || match look(&client, &scope, way).await {
        Ok(seen) => {
            failures = 0;
            // What it shows first may be of what was before.
            let is_same = before.replace(seen.clone()).is_some_and(|before| before == seen);
            Ok((seen, is_same))
        }
        Err(why) if why.may_pass() && failures < FAILURES => {
            failures += 1;
            Ok((Seen::unread(why.to_string()), false))
        }
        Err(why) => Err(anyhow::anyhow!("failed to read ServiceExports: {why}")),
    };
    let wrong = |(seen, is_same): &(Seen, bool)| {
        seen.waits(way).or_else(|| (!is_same).then(|| "whether what the leader reports stays so".to_owned()))
    };
    let (seen, _) = until_well(&mut std::io::stderr(), Some(args.timeout), LOOK, look, wrong).await?;
    if let Some(why) = seen.invalid() {
        anyhow::bail!("{why}");
    }
    if let Some(waits) = seen.waits(way) {
        anyhow::bail!(
            "after {} s, {waits}. The controllers continue by themselves: run this again to wait longer. `cloudmap-mcs status{}` says \
             whether there is a leader",
            args.timeout.as_secs(),
            args.cluster.flags()
        );
    }
    let mut out = std::io::stdout();
    if way == Way::Back {
        write!(out, "{}", seen.back())?;
        return Ok(ExitCode::SUCCESS);
    }
    let settling = Box::pin(sleep(args.settle));
    aloud(&mut std::io::stderr(), "no import uses the endpoints; waiting for connections to end", settling).await;
    let what = match &scope {
        Scope::Cluster => "--all".to_owned(),
        Scope::Names(keys) => keys.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    };
    let back = format!("cloudmap-mcs drain{} {what} --back", args.cluster.flags());
    write!(out, "{}", seen.drained(&back))?;
    Ok(if seen.any_stays() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Asks for a drain.
async fn ask(client: &Client, scope: &Scope, min_ready: Option<MinReady>) -> anyhow::Result<()> {
    match scope {
        Scope::Cluster => {
            if let Some(share) = min_ready {
                set(client, PROPERTY_DRAIN_MIN_READY, &share.to_string()).await?;
            }
            set(client, PROPERTY_DRAIN, "true").await
        }
        Scope::Names(keys) => {
            let share = min_ready.map(|share| (ANNOTATION_DRAIN_MIN_READY, json!(share.to_string())));
            let annotations = share.into_iter().chain([(ANNOTATION_DRAIN, json!("true"))]);
            annotate(client, keys, &annotations.map(|(name, value)| (name.to_owned(), value)).collect()).await
        }
    }
}

/// Asks for it no more.
async fn take_back(client: &Client, scope: &Scope) -> anyhow::Result<()> {
    match scope {
        Scope::Cluster => {
            for name in [PROPERTY_DRAIN, PROPERTY_DRAIN_MIN_READY] {
                let deleted = Api::<ClusterProperty>::all(client.clone()).delete(name, &DeleteParams::default()).await;
                match deleted {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    deleted => drop(deleted.with_context(|| format!("failed to delete ClusterProperty {name}"))?),
                }
            }
            Ok(())
        }
        Scope::Names(keys) => {
            let annotations = [ANNOTATION_DRAIN, ANNOTATION_DRAIN_MIN_READY];
            annotate(client, keys, &annotations.map(|name| (name.to_owned(), Value::Null)).into_iter().collect())
                .await?;
            // Who may annotate exports may not be allowed to read this.
            let all = read(Api::<ClusterProperty>::all(client.clone()).get_opt(PROPERTY_DRAIN)).await.ok().flatten();
            anyhow::ensure!(
                !is_asked(all.as_ref().map(|property| property.spec.value.as_str())),
                "the names are asked back, and still drained, because the cluster is (ClusterProperty {PROPERTY_DRAIN}). All of it comes \
                 back with: cloudmap-mcs drain --all --back"
            );
            Ok(())
        }
    }
}

/// Whether a value asks for a drain.
fn is_asked(value: Option<&str>) -> bool {
    matches!(read_drain([value, None], DRAIN), Ok(Some(_)))
}

/// Sets a ClusterProperty. Another field manager may hold the same value, and not another one.
async fn set(client: &Client, name: &str, value: &str) -> anyhow::Result<()> {
    let property = ClusterProperty::new(name, ClusterPropertySpec { value: value.to_owned() });
    let params = PatchParams::apply(FieldManager::Drain.as_str());
    Api::<ClusterProperty>::all(client.clone())
        .patch(name, &params, &Patch::Apply(property))
        .await
        .with_context(|| format!("failed to set ClusterProperty {name} to {value:?}"))?;
    Ok(())
}

/// Sets annotations of all these ServiceExports, once it is known that there are all of them.
async fn annotate(
    client: &Client,
    keys: &[ServiceKey],
    annotations: &serde_json::Map<String, Value>,
) -> anyhow::Result<()> {
    for key in keys {
        let there = read(Api::<ServiceExport>::namespaced(client.clone(), &key.namespace).get_opt(&key.name)).await;
        let there = there.with_context(|| format!("failed to read ServiceExport {key}"))?;
        anyhow::ensure!(
            there.is_some(),
            "there is no ServiceExport {key} in this cluster: look at the name and at --namespace"
        );
    }
    for key in keys {
        let params =
            PatchParams { field_manager: Some(FieldManager::Drain.as_str().to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        let api = Api::<ServiceExport>::namespaced(client.clone(), &key.namespace);
        api.patch(&key.name, &params, &patch)
            .await
            .with_context(|| format!("failed to annotate ServiceExport {key}"))?;
    }
    Ok(())
}

/// What the leader reports now.
async fn look(client: &Client, scope: &Scope, way: Way) -> Result<Seen, Unread> {
    let mut seen = Seen::default();
    let exports: Api<ServiceExport> = Api::all(client.clone());
    let mut take = |export: ServiceExport| {
        let key = ServiceKey::new(export.namespace().unwrap_or_default(), export.name_any());
        let by_itself = is_asked(export.annotations().get(ANNOTATION_DRAIN).map(String::as_str));
        if way == Way::Back && by_itself {
            return seen.by_themselves.push(key);
        }
        let conditions = export.status.map(|status| status.conditions).unwrap_or_default();
        seen.exports.push((key, State::of(&conditions, way)));
    };
    match scope {
        Scope::Cluster => each(&exports, ListParams::default(), take).await?,
        Scope::Names(keys) => {
            for key in keys {
                let api = Api::<ServiceExport>::namespaced(client.clone(), &key.namespace);
                // One that was deleted meanwhile has no endpoints.
                read(api.get_opt(&key.name)).await?.into_iter().for_each(&mut take);
            }
        }
    }
    let mut silent = BTreeSet::new();
    let imports: Api<ServiceImport> = Api::all(client.clone());
    each(&imports, ListParams::default(), |import| {
        let conditions = import.status.map(|status| status.conditions).unwrap_or_default();
        let stale = conditions.into_iter().find(|condition| condition.type_ == ImportCondition::Stale.as_str());
        silent.extend(stale.map(|condition| condition.message));
    })
    .await?;
    seen.silent = silent.into_iter().collect();
    Ok(seen)
}
