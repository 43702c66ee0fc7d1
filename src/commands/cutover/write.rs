//! `cutover plan --write`: reads a whole Cloud Map namespace, and writes a file for each service of ECS.

use std::{
    collections::BTreeSet,
    fs::{self, File, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context as _;
use serde_json::json;

use super::{
    ecs_services::EcsReader,
    manifests::{Candidate, Manifest, Wishes, manifest},
    observe::Progress,
    plan::{self, Findings, Grade, Plan},
    registry::RegistryReader,
    room::Coming,
    situation::Room,
};
use crate::table;
use cli::{OutputFormat, shell::quoted};
use cloudmap::Namespace;
use model::Target;

/// Everybody may read a manifest: it has no secrets.
const MODE: u32 = 0o644;

/// What was read of a Cloud Map namespace.
pub(super) struct Survey {
    pub(super) room: Room,
    pub(super) candidates: Vec<Candidate>,
}

/// Reads a namespace, writes the files, and says on stderr what is left out, and on stdout what is written and what it means.
pub(super) async fn write(
    mut registry: RegistryReader,
    mut ecs: EcsReader,
    namespace: &str,
    folder: &Path,
    wishes: &Wishes,
    output: OutputFormat,
) -> anyhow::Result<ExitCode> {
    // Before calls that take minutes.
    free(folder)?;
    let survey = survey(&mut registry, &mut ecs, namespace, &mut io::stderr()).await.map_err(anyhow::Error::msg)?;
    let (manifests, left_out, others) = sorted(&survey, wishes);
    let mut errors = io::stderr();
    for why in &left_out {
        writeln!(errors, "left out: {why}")?;
    }
    if others > 0 {
        writeln!(errors, "{others} services have no tasks of ECS, and no file")?;
    }
    anyhow::ensure!(
        !manifests.is_empty(),
        "nothing is written: no service of ECS in {namespace:?} can be moved; look at --namespace, --region and the account"
    );
    let paths = written(folder, &manifests)?;
    let missing: BTreeSet<_> = manifests.iter().flat_map(|manifest| &manifest.missing).copied().collect();
    if !missing.is_empty() {
        let incomplete = manifests.iter().filter(|manifest| !manifest.missing.is_empty()).count();
        let flags = missing.into_iter().collect::<Vec<_>>().join(", ");
        writeln!(
            errors,
            "{incomplete} files have a TODO, and kubectl takes nothing of them until it is filled in: fill it in, or remove the folder \
             and write it again with {flags}"
        )?;
    }
    let rooms = rooms(&survey.room, &manifests, wishes);
    let shown: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let report = || format!("{}\n\n{}", shown.join("\n"), plan::text(&rooms));
    let fields = || {
        let mut all = plan::json(&[], &rooms);
        (all["written"], all["leftOut"]) = (json!(shown), json!(left_out));
        all
    };
    table::print(output, report, fields)?;
    let left = if left_out.is_empty() { Grade::Ok } else { Grade::Warning };
    let worst = rooms.iter().map(|(_, plan)| plan.grade()).chain([left]).max().unwrap_or(Grade::Ok);
    Ok(ExitCode::from(worst.status()))
}

/// Reads all services of a Cloud Map namespace, and says on `out` how far it is.
///
/// # Errors
/// There is no such namespace, or it cannot be read.
pub(super) async fn survey(
    registry: &mut RegistryReader,
    ecs: &mut EcsReader,
    namespace: &str,
    out: &mut impl Write,
) -> Result<Survey, String> {
    let all = registry.all_namespaces().await?;
    let Some(chosen) = Namespace::named(&all, namespace) else {
        let names: Vec<_> = all.iter().map(|namespace| &*namespace.name).collect();
        return Err(format!(
            "there is no Cloud Map namespace {namespace:?} in this account and region: look at --region and the account; there \
             are: {}",
            names.join(", ")
        ));
    };
    let services = registry.all_services(chosen).await?;
    // The name may stand for an older namespace of this name.
    let is_first = Namespace::named(&all, &chosen.name).is_some_and(|first| first.id == chosen.id);
    let named = if is_first { &chosen.name } else { &chosen.id };
    let (mut candidates, mut progress) = (Vec::new(), Progress::of(services.len()));
    for service in &*services {
        let target = Target { namespace: named.clone(), service: service.name.clone() };
        let seen = registry.registry(&target).await;
        let named = seen.as_ref().map(|registry| registry.ecs.clone()).unwrap_or_default();
        let ecs = ecs.registering(&service.arn, &named).await;
        candidates.push(Candidate { target, registry: seen, ecs });
        progress.one_more(out).map_err(|error| error.to_string())?;
    }
    candidates.sort_by(|one, other| one.target.cmp(&other.target));
    Ok(Survey { room: Room::of(chosen, &services), candidates })
}

/// The files, why services are left out, and how many services have no tasks of ECS.
pub(super) fn sorted(survey: &Survey, wishes: &Wishes) -> (Vec<Manifest>, Vec<String>, usize) {
    let (mut manifests, mut left_out, mut others) = (Vec::new(), Vec::new(), 0);
    for candidate in &survey.candidates {
        match manifest(candidate, wishes) {
            Ok(Some(manifest)) => manifests.push(manifest),
            Ok(None) => others += 1,
            Err(why) => left_out.push(why),
        }
    }
    (manifests, left_out, others)
}

/// What the move means for the namespace, and what to do next.
pub(super) fn rooms(room: &Room, manifests: &[Manifest], wishes: &Wishes) -> Vec<(String, Plan)> {
    let mut coming = Coming::default();
    for manifest in manifests {
        coming.add(room, manifest.pods);
    }
    let into = wishes.into.as_deref().unwrap_or("NAME");
    let targets: Vec<_> = manifests.iter().map(|manifest| manifest.target.to_string()).collect();
    let mut rooms = coming.plans();
    for (_, plan) in &mut rooms {
        let mut found = Findings(std::mem::take(&mut plan.findings));
        let grant = format!(
            "add them to what it has: kubectl annotate namespace {into} cloudmap-mcs/may-register={}",
            quoted(&targets.join(","))
        );
        let text = "an administrator lets the Kubernetes namespace join these services";
        found.add(Grade::Ok, "grant", text, grant);
        let text = "the Cutovers are paused, so nothing moves when the files are applied";
        let remedy = "run `cloudmap-mcs cutover plan --all`, delete `paused: true` in a file, and apply it again";
        found.add(Grade::Ok, "begin", text, remedy);
        plan.findings = found.0;
    }
    rooms
}

/// Whether files can be written into a folder without touching any.
fn free(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    match fs::read_dir(folder) {
        Ok(mut entries) => {
            anyhow::ensure!(entries.next().is_none(), "{shown} is not empty: name another folder with --write");
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("failed to read {shown}: name another folder with --write")),
    }
}

/// Writes the files. None of them is there before.
pub(super) fn written(folder: &Path, manifests: &[Manifest]) -> anyhow::Result<Vec<PathBuf>> {
    free(folder)?;
    fs::create_dir_all(folder)
        .with_context(|| format!("failed to make the folder {}: name another one with --write", folder.display()))?;
    let mut paths = Vec::new();
    for Manifest { name, text, .. } in manifests {
        let path = folder.join(format!("{name}.yaml"));
        let create = || -> io::Result<()> {
            let mut file: File = File::options().write(true).create_new(true).mode(MODE).open(&path)?;
            // Whatever the mask of the shell is: somebody else may apply the files.
            file.set_permissions(Permissions::from_mode(MODE))?;
            file.write_all(text.as_bytes())
        };
        create().with_context(|| format!("failed to write {}: name another folder with --write", path.display()))?;
        paths.push(path);
    }
    Ok(paths)
}
