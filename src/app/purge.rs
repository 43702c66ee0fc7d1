//! `purge`: finds, and removes, what a cluster or the whole ClusterSet left in AWS.

use std::{io::Write as _, sync::Arc};

use anyhow::Context as _;

use super::{commands::refuse_if_alive, connect};
use crate::{
    cli::PurgeArgs,
    cloudmap::{CloudMap, ErrorKind, Instance, Lane, Service},
    instances::attributes,
    ledger::show::{self, Belonging},
    model::{ClusterId, ClusterSetId},
};

/// Instances of a Cloud Map service that a cluster of the ClusterSet registered, by their own attributes.
struct Leftover {
    namespace: Arc<str>,
    service: Service,
    instances: Vec<Arc<str>>,
}

pub(super) async fn purge(args: PurgeArgs) -> anyhow::Result<()> {
    let clusterset = connect::clusterset(&args.place.kube, &args.place.identity).await?;
    let cloudmap = connect::registry_uncounted(&args.place.aws).await?;
    let cluster = args.cluster.as_ref();
    let ledger = match show::belongings(Arc::clone(&cloudmap), &clusterset, cluster).await {
        Ok(belongings) => belongings,
        Err(show::Error::NoLedger(_)) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let leftovers = leftovers(&*cloudmap, &clusterset, cluster).await?;
    let mut out = std::io::stdout();
    for Belonging { service, instances, .. } in &ledger {
        writeln!(out, "ledger     service {service}: {} instance(s)", instances.len())?;
    }
    for Leftover { namespace, service, instances } in &leftovers {
        writeln!(out, "instances  {namespace}/{}: {}", service.name, instances.join(" "))?;
    }
    let count: usize = leftovers.iter().map(|leftover| leftover.instances.len()).sum();
    writeln!(out, "{} service(s) of the ledger, {count} instance(s) in {} service(s)", ledger.len(), leftovers.len())?;
    if args.dry_run {
        return Ok(());
    }
    if !ledger.is_empty() {
        refuse_if_alive(&cloudmap, &clusterset, cluster).await?;
    }
    for Leftover { service, instances, .. } in &leftovers {
        for instance in instances {
            deregister(&*cloudmap, &service.id, instance).await?;
        }
    }
    for Belonging { service, service_id, instances, .. } in &ledger {
        for instance in instances {
            deregister(&*cloudmap, service_id, instance).await?;
        }
        // The service of all heads stays for the others.
        if cluster.is_none() || service.starts_with("exports-") {
            match cloudmap.delete_service(service_id).await {
                Ok(()) => {}
                // The deregistrations take a moment.
                Err(error) if error.kind == ErrorKind::InUse => {
                    writeln!(out, "service {service} is not empty yet: run purge again to delete it")?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    writeln!(out, "Removed.")?;
    Ok(())
}

async fn leftovers(
    cloudmap: &dyn CloudMap,
    clusterset: &ClusterSetId,
    cluster: Option<&ClusterId>,
) -> anyhow::Result<Vec<Leftover>> {
    let belongs = |instance: &Instance| {
        let says = |name: &str, value: &str| instance.attributes.get(name).is_some_and(|there| there == value);
        says(attributes::CLUSTERSET, clusterset.as_str())
            && cluster.is_none_or(|cluster| says(attributes::CLUSTER, cluster.as_str()))
    };
    let mut found = Vec::new();
    for namespace in cloudmap.list_namespaces().await? {
        for service in cloudmap.list_services(&namespace.id).await? {
            let instances = cloudmap
                .list_instances(&service.id)
                .await
                .with_context(|| format!("failed to look into {}/{}", namespace.name, service.name))?;
            let instances: Vec<_> =
                instances.into_iter().filter(|instance| belongs(instance)).map(|instance| instance.id).collect();
            if !instances.is_empty() {
                found.push(Leftover { namespace: namespace.name.clone(), service, instances });
            }
        }
    }
    Ok(found)
}

async fn deregister(cloudmap: &dyn CloudMap, service: &str, instance: &str) -> anyhow::Result<()> {
    match cloudmap.deregister_instance(service, instance, Lane::Instances).await {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Duplicate { .. }) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
