//! `purge --cloudmap-namespace`: deletes empty Cloud Map namespaces that the ClusterSet made. The controller keeps them,
//! and an account has 50.

use std::{io::Write, sync::Arc};

use super::{claimed, delete_namespace, is_forgotten};
use crate::asking::clusters_of;
use cloudmap::{Lane, Namespace, Permit};
use instances::{Owner, ownership};
use model::ClusterSetId;
use records::ClusterView;

/// Deletes the named namespaces that the ClusterSet created, if they are empty and no member has a claim in them.
///
/// # Errors
/// What stays, and why.
pub(super) async fn purge(
    cloudmap: Arc<dyn cloudmap::Write>,
    permit: &Permit,
    clusterset: &ClusterSetId,
    names: &[String],
    dry_run: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let views = clusters_of(cloudmap.clone(), clusterset).await?;
    let (empty, stays) = sort(&*cloudmap, clusterset, names, &views).await?;
    for namespace in &empty {
        writeln!(out, "namespace  {}", namespace.name)?;
    }
    let mut left = stays;
    for namespace in empty.iter().filter(|_| !dry_run) {
        if !delete_namespace(&*cloudmap, permit, namespace, out).await? {
            left.push(format!("{} is not empty", namespace.name));
        }
    }
    anyhow::ensure!(left.is_empty(), "not every namespace can be removed: {}", left.join("; "));
    if !dry_run {
        writeln!(out, "Removed.")?;
    }
    Ok(())
}

/// The namespaces that can go, and why the others stay.
async fn sort(
    cloudmap: &dyn cloudmap::Read,
    clusterset: &ClusterSetId,
    names: &[String],
    views: &[ClusterView],
) -> anyhow::Result<(Vec<Namespace>, Vec<String>)> {
    let is_member =
        |view: &&ClusterView| view.head.as_ref().is_none_or(|head| head.is_live() && !is_forgotten(head, views));
    if let Some(unread) = views.iter().filter(is_member).find(|view| view.state.is_none()) {
        anyhow::bail!(
            "cannot read what cluster {} claims: {}; run purge again. If it is gone for good, run `cloudmap-mcs forget {0}` first",
            unread.id,
            unread.problems.join("; ")
        );
    }
    let members = views.iter().filter(is_member).map(|view| Arc::clone(&view.id)).collect();
    let claims = claimed(views, &members);
    let identity = Owner { clusterset: Some(clusterset.clone()), cluster: "any".parse()?, cluster_uid: Arc::default() };
    let all = cloudmap.list_namespaces(Lane::Instances).await?;
    let (mut empty, mut stays) = (Vec::new(), Vec::new());
    for name in names {
        let Some(namespace) = Namespace::named(&all, name) else {
            stays.push(format!("there is no Cloud Map namespace {name}"));
            continue;
        };
        if !ownership::namespace_made_by_us(&cloudmap.list_tags(&namespace.arn).await?, &identity) {
            stays.push(format!("{name} was not made by the controllers of the ClusterSet {clusterset}"));
            continue;
        }
        let claim = claims.iter().find(|target| *target.namespace == **name);
        let services = cloudmap.list_services(&namespace.id, Lane::Instances).await?;
        match (claim, services.first()) {
            (Some(target), _) => stays.push(format!("a cluster claims {target}")),
            (None, Some(service)) => stays.push(format!("{name} has services, such as {}", service.name)),
            (None, None) => empty.push(namespace.clone()),
        }
    }
    Ok((empty, stays))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::purge::tests::{clusterset, member};
    use cloudmap::{
        NamespaceKind, Operation,
        fake::{Fake, Fault, permit},
    };

    /// Nobody else deletes them: others may resolve names there.
    #[tokio::test(start_paused = true)]
    async fn an_empty_namespace_with_dns_goes_with_its_zone_and_what_aws_refuses_is_said() {
        let fake = Fake::new();
        let member = member(&fake, "blue", "web").await;
        let identity =
            Owner { clusterset: Some(clusterset()), cluster: "blue".parse().unwrap(), cluster_uid: "uid".into() };
        for (name, tags) in [("ours", identity.tags()), ("theirs", BTreeMap::new())] {
            let id = fake.registry().add_namespace(name, NamespaceKind::DnsPrivate);
            fake.registry().tags.insert(format!("arn:{id}").into(), tags);
        }
        let names = ["ours", "theirs"].map(str::to_owned);
        let purge = async || {
            let cloudmap: Arc<dyn cloudmap::Write> = Arc::new(fake.clone());
            let purged = purge(cloudmap, &permit(), &clusterset(), &names, false, &mut Vec::new()).await;
            format!("{:#}", purged.unwrap_err())
        };
        let there = |name: &str| fake.registry().namespaces.iter().any(|it| &*it.name == name);
        fake.fault(Operation::DeleteNamespace, Fault::FailedLater("ACCESS_DENIED"));
        let said = purge().await;
        assert!(said.contains("route53:DeleteHostedZone") && said.contains("ACCESS_DENIED"), "{said}");
        assert!(there("ours"));
        let said = purge().await;
        assert!(said.contains("theirs was not made by"), "{said}");
        assert_eq!((there("ours"), there("theirs")), (false, true));
        drop(member);
    }
}
