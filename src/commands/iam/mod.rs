//! `iam`: prints the policies that each way of running needs, and trust policies.

mod print;
#[cfg(test)]
mod tests;
mod trust;

use std::{
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use cli::{IamArgs, IamCommand, PolicyArgs};
use iam::{Mode, Policy, Scope, statements};

/// How many managed policies a role may have, unless its quota is raised.
const ATTACHED: usize = 10;

/// What a command prints and writes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Printed {
    /// To be used as it is.
    output: String,
    /// Files for a folder that was named, with their names.
    files: Vec<(String, String)>,
    /// For people.
    note: Option<String>,
}

pub(super) fn iam(args: &IamArgs) -> anyhow::Result<()> {
    let Printed { mut output, files, note } = match &args.command {
        Some(IamCommand::Trust(args)) => trust::trust(args)?,
        None => policies(&args.policy)?,
    };
    if let Some(folder) = &args.policy.out {
        for path in written(folder, &files)? {
            output.extend([&*path.display().to_string(), "\n"]);
        }
    }
    if let Some(note) = note {
        writeln!(std::io::stderr(), "note: {note}")?;
    }
    write!(std::io::stdout(), "{output}")?;
    Ok(())
}

/// Writes files that are not there yet into a folder.
fn written(folder: &Path, files: &[(String, String)]) -> anyhow::Result<Vec<PathBuf>> {
    fs::create_dir_all(folder)
        .with_context(|| format!("failed to make the folder {}: name another one with --out", folder.display()))?;
    let mut paths = Vec::new();
    for (name, text) in files {
        let path = folder.join(name);
        File::create_new(&path).and_then(|mut file| file.write_all(text.as_bytes())).with_context(|| {
            format!("failed to write {}: remove it, or name another folder with --out", path.display())
        })?;
        paths.push(path);
    }
    Ok(paths)
}

fn policies(args: &PolicyArgs) -> anyhow::Result<Printed> {
    refuse_what_does_not_go_together(args)?;
    let scope = Scope {
        region: args.region.clone().unwrap_or_default(),
        account: args.account.clone().unwrap_or_default(),
        clusterset: args.clusterset.clone(),
        clusters: args.cluster_id.clone(),
        cluster_uid: args.cluster_uid.clone(),
        namespaces: args.cloudmap_namespaces.clone(),
        namespace_ids: args.cloudmap_namespace_ids.clone(),
        services: args.services.clone(),
        hosted_zones: args.hosted_zones.clone(),
        ecs_clusters: args.ecs_clusters.clone(),
        role: args.role_arn.clone(),
    };
    let policies = Policy::fitting(statements(&args.mode, &scope)?).map_err(|sid| {
        anyhow::anyhow!(
            "the statement {sid} alone has more than {} characters, the most that a managed policy may have: name fewer \
             resources, print several policies, and attach all of them",
            Policy::LONGEST
        )
    })?;
    let name = match &scope.clusterset {
        Some(clusterset) => format!("cloudmap-mcs-{clusterset}"),
        None => "cloudmap-mcs".to_owned(),
    };
    let count = policies.len();
    let files = print::policies(args.format, &name, &policies)?;
    let several =
        format!("these are {count} policies, because a managed policy may have {} characters", Policy::LONGEST);
    let quota = if count > ATTACHED {
        format!(
            ". A role may have {ATTACHED} unless you have the quota \"Managed policies attached to an IAM role\" raised; without \
             --services, the policy is for all services with the tag joined-by"
        )
    } else {
        String::new()
    };
    let note = (count > 1).then(|| format!("{several}: attach all of them{quota}"));
    if args.out.is_some() {
        return Ok(Printed { files, note, ..Printed::default() });
    }
    anyhow::ensure!(files.len() == 1, "{several}: name a folder for their files with --out{quota}");
    Ok(Printed { output: files.into_iter().map(|(_, text)| text).collect(), note, ..Printed::default() })
}

fn refuse_what_does_not_go_together(args: &PolicyArgs) -> anyhow::Result<()> {
    for (mode, whose) in [
        (Mode::People, "an administrator"),
        (Mode::Cutover, "people who move services from ECS"),
        (Mode::DenyOthers, "those who are no controllers"),
        (Mode::AssumeRole, "the clusters' roles, not for that of the registry"),
    ] {
        // Whoever removes instances from namespaces with DNS removes their records.
        let goes = |other: &Mode| *other == mode || (mode, *other) == (Mode::People, Mode::Dns);
        anyhow::ensure!(
            !args.mode.contains(&mode) || args.mode.iter().all(goes),
            "--mode {} is for {whose}: print it alone",
            mode.name()
        );
    }
    // What limits a policy, and is in none of its statements, limits nothing.
    let of_ledger = [Mode::Ledger, Mode::Instances, Mode::Imports, Mode::AwsMcs];
    // Where services are not named, their tag has the id.
    let by_tag: &[Mode] = if args.services.is_empty() { &[Mode::Joining, Mode::Hiding] } else { &[] };
    let of_clusterset =
        [&of_ledger[..], &[Mode::Reading, Mode::DnsNamespaces, Mode::Deny, Mode::People], by_tag].concat();
    let of_cluster = [&[Mode::Annotated], by_tag].concat();
    for (given, flag, modes) in [
        (args.clusterset.is_some(), "--clusterset", &of_clusterset[..]),
        (!args.cluster_id.is_empty(), "--cluster-id", &of_ledger[..]),
        (args.cluster_uid.is_some(), "--cluster-uid", &of_cluster[..]),
        (
            !args.cloudmap_namespaces.is_empty(),
            "--cloudmap-namespaces",
            &[Mode::Imports, Mode::AwsMcs, Mode::Gates, Mode::Reading],
        ),
        (!args.cloudmap_namespace_ids.is_empty(), "--cloudmap-namespace-ids", &[Mode::AwsMcs]),
        (!args.services.is_empty(), "--services", &[Mode::Joining, Mode::Hiding]),
        (!args.hosted_zones.is_empty(), "--hosted-zones", &[Mode::Dns, Mode::People]),
        (!args.ecs_clusters.is_empty(), "--ecs-clusters", &[Mode::Cutover]),
        (args.role_arn.is_some(), "--role-arn", &[Mode::AssumeRole]),
    ] {
        let names: Vec<_> = modes.iter().map(|mode| mode.name()).collect();
        anyhow::ensure!(
            !given || modes.iter().any(|mode| args.mode.contains(mode)),
            "{flag} is for --mode {}: add it, or leave the flag out",
            names.join(" or ")
        );
    }
    Ok(())
}
