//! `purge`: finds and removes what a cluster or the whole ClusterSet left behind in AWS.

mod namespaces;

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use tokio::time::{Instant, sleep};

use super::{
    asking::{self, AllLedgers, Progress, patiently, patiently_counted},
    forget::refuse_if_alive,
};
use app::connect;
use cli::PurgeArgs;
use cloudmap::{
    ErrorKind, Instance, Lane, Namespace, NamespaceKind, Operation, OperationId, OperationState, Permit, Service,
    attributes,
};
use instances::{Owner, ownership};
use ledger::{
    head::Head,
    show::{self, Belonging},
};
use model::{ClusterId, ClusterSetId, Target};
use records::{ClusterView, read_all};

/// How often operations are polled, and how long they and what depends on them may take.
const POLL: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_mins(1);
/// How often the ledger is read again, and when, if the state of a member cannot be read. Its leader may just replace pages.
const REREADS: usize = 3;
const REREAD_PAUSE: Duration = Duration::from_secs(5);
/// How many deregistrations run at the same time.
const BATCH: usize = 50;

/// A Cloud Map service with instances that, according to their attributes, a cluster of the ClusterSet registered; or a
/// service without instances that the ClusterSet created.
struct Leftover {
    namespace: Arc<str>,
    service: Service,
    instances: Vec<Arc<str>>,
    /// The ClusterSet created the service, it is empty once the instances are gone, and no remaining cluster has a
    /// claim to it.
    superfluous: bool,
}

/// Everything that is to be removed.
struct Remains {
    ledger: Vec<Belonging>,
    /// The ledger's namespace, if no cluster remains in it.
    ledger_namespace: Option<Namespace>,
    leftovers: Vec<Leftover>,
    /// Namespaces that the ClusterSet created and in which nothing else exists.
    namespaces: Vec<Namespace>,
    /// Members that remain in the ledger.
    staying: BTreeSet<Arc<str>>,
    /// Whether the head of the cluster concerned says that it is a member.
    held: bool,
    /// Whether something belongs to a cluster that has no head, which proves nothing.
    headless: bool,
}

pub(super) async fn purge(args: PurgeArgs) -> anyhow::Result<()> {
    let clusterset = asking::clusterset(&args.place.kube, &args.place.identity).await?;
    let (cloudmap, permit) = connect::registry_to_write(&args.place.aws).await?;
    let reading: Arc<dyn cloudmap::Read> = cloudmap.clone();
    let mut out = std::io::stdout();
    if !args.cloudmap_namespace.is_empty() {
        let names = &args.cloudmap_namespace;
        return patiently(namespaces::purge(cloudmap, &permit, &clusterset, names, args.dry_run, &mut out)).await;
    }
    let cluster = args.cluster.as_ref();
    let progress = Progress::default();
    let mut remains = patiently_counted(&progress, Remains::find(&reading, &clusterset, cluster, &progress)).await?;
    if let Some(cluster) = cluster.filter(|_| remains.held && args.place.aws.registries.is_some()) {
        remains.held = !has_moved(&AllLedgers::read(&args.place.aws, &clusterset).await?, cluster);
    }
    remains.list(&mut out)?;
    if args.dry_run {
        return Ok(());
    }
    remains.refuse_if_held(cluster)?;
    if remains.headless || !remains.ledger.is_empty() {
        refuse_if_alive(&reading, &clusterset, cluster, remains.headless).await?;
    }
    progress.set(String::new());
    patiently_counted(&progress, remains.remove(&*cloudmap, &permit, &mut out, &progress)).await
}

/// Whether a cluster has another home now: what the home of this command has of it is older.
fn has_moved(ledgers: &AllLedgers, cluster: &ClusterId) -> bool {
    let of = ledgers.clusters().filter(|(_, view)| *view.id == *cluster.as_str());
    let heads = of.filter_map(|(registry, view)| Some((registry, view.head.as_ref()?, view.creator.as_ref()?)));
    let (there, here): (Vec<_>, Vec<_>) = heads.partition(|(registry, ..)| registry.is_some());
    let newer = |head: &Head| {
        let same = |(_, other, creator): &&(_, &Arc<Head>, &String)| other.uid == head.uid && *other.uid == ***creator;
        there.iter().filter(same).any(|(_, other, _)| other.position > head.position)
    };
    !here.is_empty() && here.iter().all(|(_, head, _)| newer(head))
}

/// Whether another cluster says that this one is gone for good.
fn is_forgotten(head: &Head, views: &[ClusterView]) -> bool {
    let said = |view: &ClusterView| view.catalog.forgotten.get(&head.cluster).cloned();
    views.iter().filter_map(said).any(|said| said.is_about(&head.uid, head.position))
}

impl Remains {
    async fn find(
        cloudmap: &Arc<dyn cloudmap::Read>,
        clusterset: &ClusterSetId,
        cluster: Option<&ClusterId>,
        progress: &Progress,
    ) -> anyhow::Result<Self> {
        let (all, mut views) = match show::belongings(Arc::clone(cloudmap), clusterset, None).await {
            Ok(all) => (all, read_all(Arc::clone(cloudmap), clusterset).await?),
            Err(show::Error::NoLedger(_)) => (Vec::new(), Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let concerned = |id: &str| cluster.is_none_or(|cluster| cluster.as_str() == id);
        // If the whole ClusterSet is concerned, no head changes anything.
        let of_heads = all.iter().filter(|belonging| cluster.is_some() && *belonging.service == *ledger::CLUSTERS);
        let heads: Vec<_> = of_heads.flat_map(|belonging| &belonging.instances).cloned().collect();
        // What a member claims must not be taken for superfluous.
        let mut reads = 0;
        while let Some(message) = unread(&views, &heads, concerned) {
            anyhow::ensure!(reads < REREADS, "{message}");
            reads += 1;
            sleep(REREAD_PAUSE).await;
            views = read_all(Arc::clone(cloudmap), clusterset).await?;
        }
        // A head that is missing or unreadable proves nothing. Only a cluster whose head says `left` has nothing to
        // lose.
        let left: BTreeSet<&str> = views
            .iter()
            .filter(|view| view.head.as_ref().is_some_and(|head| !head.is_live() || is_forgotten(head, &views)))
            .map(|view| &*view.id)
            .collect();
        let members = views.iter().map(|view| &*view.id).chain(all.iter().filter_map(|b| b.cluster.as_deref()));
        let staying: BTreeSet<Arc<str>> =
            members.filter(|id| !concerned(id) && !left.contains(id)).map(Arc::from).collect();
        let last = staying.is_empty();
        let says_live =
            |view: &ClusterView| view.head.as_ref().is_some_and(|head| head.is_live() && !is_forgotten(head, &views));
        let held = !last && views.iter().any(|view| concerned(&view.id) && says_live(view));
        let ledger = all
            .into_iter()
            .filter(|belonging| last || belonging.cluster.as_deref().is_none_or(concerned))
            .map(|belonging| {
                let heads = belonging.cluster.is_none();
                let instances = belonging.instances.into_iter().filter(|id| last || !heads || concerned(id)).collect();
                Belonging { instances, ..belonging }
            })
            .collect();
        let mut remains = Self {
            ledger,
            ledger_namespace: None,
            leftovers: Vec::new(),
            namespaces: Vec::new(),
            staying,
            held,
            headless: false,
        };
        let claimed = claimed(&views, &remains.staying);
        remains.look_around(&**cloudmap, (clusterset, cluster), &claimed, progress).await?;
        let has_none = |id: &str| !views.iter().any(|view| *view.id == *id);
        let registered = remains.leftovers.iter().any(|leftover| !leftover.instances.is_empty());
        remains.headless = remains.ledger.iter().filter_map(|belonging| belonging.cluster.as_deref()).any(has_none)
            || registered && cluster.map_or(views.is_empty(), |cluster| has_none(cluster.as_str()));
        Ok(remains)
    }

    /// Clusters drop the exports of a cluster that has left, never those of one that is merely absent.
    fn refuse_if_held(&self, cluster: Option<&ClusterId>) -> anyhow::Result<()> {
        let Some(cluster) = cluster.filter(|_| self.held) else { return Ok(()) };
        anyhow::bail!(
            "{cluster} has not left, according to its ledger. Without the ledger, the others would keep its exports forever. Run \
             `cloudmap-mcs forget {cluster}` first, then run purge again"
        )
    }

    /// Looks into every namespace of the account.
    async fn look_around(
        &mut self,
        cloudmap: &dyn cloudmap::Read,
        (clusterset, cluster): (&ClusterSetId, Option<&ClusterId>),
        claimed: &BTreeSet<Target>,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        // Instances name their cluster. Services and namespaces belong to the ClusterSet as a whole.
        let identity = Owner {
            clusterset: Some(clusterset.clone()),
            cluster: cluster.cloned().unwrap_or("any".parse()?),
            cluster_uid: "".into(),
        };
        let ledger_name = ledger::namespace_name(clusterset.as_str());
        let (namespaces, mut looked) = (cloudmap.list_namespaces(Lane::Instances).await?, 0);
        let all = namespaces.len();
        for (done, namespace) in namespaces.into_iter().enumerate() {
            let services = cloudmap.list_services(&namespace.id, Lane::Instances).await?;
            if *namespace.name == *ledger_name {
                let removed: BTreeSet<&str> = self.ledger.iter().map(|belonging| &*belonging.service_id).collect();
                if self.staying.is_empty()
                    && services.iter().all(|service| removed.contains(&*service.id))
                    && ledger::is_namespace_of(&cloudmap.list_tags(&namespace.arn).await?, clusterset)
                {
                    self.ledger_namespace = Some(namespace);
                }
                continue;
            }
            let mut stays = services.iter().map(|service| service.id.clone()).collect::<BTreeSet<_>>();
            for service in services {
                progress.set(format!("looked into {looked} services, in {done} of {all} namespaces"));
                looked += 1;
                let instances = match cloudmap.list_instances(&service.id).await {
                    // Others delete services meanwhile: this takes minutes in an account with many.
                    Err(error) if error.kind == ErrorKind::NotFound => continue,
                    listed => {
                        listed.with_context(|| format!("failed to look into {}/{}", namespace.name, service.name))?
                    }
                };
                let (ours, others): (Vec<_>, Vec<_>) =
                    instances.into_iter().partition(|instance| belongs(instance, clusterset, cluster));
                let target = Target { namespace: namespace.name.clone(), service: service.name.clone() };
                let superfluous = others.is_empty()
                    && !claimed.contains(&target)
                    && match cloudmap.get_service(&service.id, Lane::Instances).await {
                        Err(error) if error.kind == ErrorKind::NotFound => false,
                        service => ownership::made_by_us(&service?, &identity),
                    };
                if superfluous {
                    stays.remove(&service.id);
                }
                if superfluous || !ours.is_empty() {
                    let instances = ours.into_iter().map(|instance| instance.id).collect();
                    let namespace = namespace.name.clone();
                    self.leftovers.push(Leftover { namespace, service, instances, superfluous });
                }
            }
            if stays.is_empty()
                && !claimed.iter().any(|target| target.namespace == namespace.name)
                && ownership::namespace_made_by_us(&cloudmap.list_tags(&namespace.arn).await?, &identity)
            {
                self.namespaces.push(namespace);
            }
        }
        Ok(())
    }

    fn list(&self, out: &mut impl Write) -> anyhow::Result<()> {
        for Belonging { service, instances, .. } in &self.ledger {
            writeln!(out, "ledger     service {service}: {} instance(s)", instances.len())?;
        }
        for Leftover { namespace, service, instances, superfluous } in &self.leftovers {
            let made = if *superfluous { ", and the service" } else { "" };
            let instances = if instances.is_empty() { "none".to_owned() } else { instances.join(" ") };
            writeln!(out, "instances  {namespace}/{}: {instances}{made}", service.name)?;
        }
        for namespace in self.namespaces.iter().chain(&self.ledger_namespace) {
            writeln!(out, "namespace  {}", namespace.name)?;
        }
        let count: usize = self.leftovers.iter().map(|leftover| leftover.instances.len()).sum();
        writeln!(
            out,
            "{} service(s) of the ledger, {count} instance(s) in {} service(s), {} namespace(s)",
            self.ledger.len(),
            self.leftovers.len(),
            self.namespaces.len() + usize::from(self.ledger_namespace.is_some()),
        )?;
        if !self.staying.is_empty() {
            let staying: Vec<&str> = self.staying.iter().map(AsRef::as_ref).collect();
            writeln!(out, "The ledger itself stays, because {} did not leave the ClusterSet", staying.join(", "))?;
        }
        Ok(())
    }

    async fn remove(
        &self,
        cloudmap: &dyn cloudmap::Write,
        permit: &Permit,
        out: &mut impl Write,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let registered = self.leftovers.iter().flat_map(|l| l.instances.iter().map(|id| (&l.service.id, id)));
        let recorded = self.ledger.iter().flat_map(|b| b.instances.iter().map(|id| (&b.service_id, id)));
        let instances: Vec<_> = registered.chain(recorded).collect();
        for (done, batch) in instances.chunks(BATCH).enumerate() {
            progress.set(format!("deregistered {} of {} instances", done * BATCH, instances.len()));
            deregister(cloudmap, permit, batch).await?;
        }
        let superfluous = self.leftovers.iter().filter(|leftover| leftover.superfluous);
        let emptied = superfluous.map(|l| (format!("{}/{}", l.namespace, l.service.name), &*l.service.id));
        // The service of all heads stays for the remaining clusters.
        let of_ledger = self.ledger.iter().filter(|b| b.cluster.is_some() || self.staying.is_empty());
        let of_ledger = of_ledger.map(|b| (b.service.to_string(), &*b.service_id));
        let mut left = Vec::new();
        for (name, id) in emptied.chain(of_ledger) {
            progress.set(format!("deleting the service {name}"));
            if !delete(out, "service", &name, async || cloudmap.delete_service(permit, id).await).await? {
                left.push(format!("the service {name}"));
            }
        }
        for namespace in self.namespaces.iter().chain(&self.ledger_namespace) {
            if !delete_namespace(cloudmap, permit, namespace, out).await? {
                left.push(format!("the namespace {}", namespace.name));
            }
        }
        anyhow::ensure!(left.is_empty(), "not everything is removed: {} is left; run purge again", left.join(", "));
        writeln!(out, "Removed.")?;
        Ok(())
    }
}

/// Says which remaining cluster may have claims that could not be read, if there is one; or which cluster may be a member.
/// `heads` are those that the control plane lists: discovery may not show one of them for a while.
fn unread(views: &[ClusterView], heads: &[Arc<str>], concerned: impl Fn(&str) -> bool) -> Option<String> {
    let stays = |head: &Arc<Head>| head.is_live() && !is_forgotten(head, views);
    let staying = views.iter().filter(|view| !concerned(&view.id) && view.head.as_ref().is_none_or(stays));
    let mut unread = staying.filter(|view| view.state.is_none()).map(|view| (&view.id, view.problems.join("; ")));
    let mut hidden = heads.iter().filter(|id| views.iter().all(|view| view.id != **id));
    let (id, problems) =
        unread.next().or_else(|| Some((hidden.next()?, "discovery does not show its head".to_owned())))?;
    Some(format!(
        "cannot read what cluster {id} claims: {problems}; run purge again. If {id} is gone for good, run \
         `cloudmap-mcs forget {id}` first"
    ))
}

/// The targets for which remaining clusters have a registration record.
fn claimed(views: &[ClusterView], staying: &BTreeSet<Arc<str>>) -> BTreeSet<Target> {
    let staying = views.iter().filter(|view| staying.contains(&view.id));
    staying.flat_map(|view| view.catalog.registrations.keys().cloned()).collect()
}

fn belongs(instance: &Instance, clusterset: &ClusterSetId, cluster: Option<&ClusterId>) -> bool {
    let says = |name: &str, value: &str| instance.attributes.get(name).is_some_and(|there| there == value);
    says(attributes::CLUSTERSET, clusterset.as_str())
        && cluster.is_none_or(|cluster| says(attributes::CLUSTER, cluster.as_str()))
}

/// Deregisters instances, and waits until they are gone.
async fn deregister(
    cloudmap: &dyn cloudmap::Write,
    permit: &Permit,
    instances: &[(&Arc<str>, &Arc<str>)],
) -> anyhow::Result<()> {
    let mut operations: BTreeMap<OperationId, &Arc<str>> = BTreeMap::new();
    for (service, instance) in instances {
        match cloudmap.deregister_instance(permit, service, instance, Lane::Instances).await {
            Ok(operation) | Err(cloudmap::Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
                operations.insert(operation, instance);
            }
            Err(error) if matches!(error.kind, ErrorKind::NotFound | ErrorKind::Duplicate { .. }) => {}
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("failed to deregister the instance {instance} of the Cloud Map service {service}")
                });
            }
        }
    }
    let deadline = Instant::now() + PATIENCE;
    while let Some((operation, instance)) = operations.pop_first() {
        match cloudmap.operation(&operation, Lane::Instances).await {
            Ok(OperationState::Running) => {
                anyhow::ensure!(
                    Instant::now() < deadline,
                    "AWS has not deregistered {instance} within {} s; run purge again later",
                    PATIENCE.as_secs()
                );
                operations.insert(operation, instance);
                sleep(POLL).await;
            }
            Ok(OperationState::Failed { code, message }) => {
                anyhow::bail!("AWS failed to deregister {instance} ({code}: {message}); run purge again")
            }
            Ok(OperationState::Succeeded { .. }) => {}
            Err(error) if error.kind == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("failed to see whether {instance} is deregistered"));
            }
        }
    }
    Ok(())
}

/// Deletes a namespace that should be empty, waits until it is gone, and returns whether it is. If it has DNS, AWS also deletes
/// its hosted zone, with the permissions of whoever runs this.
async fn delete_namespace(
    cloudmap: &dyn cloudmap::Write,
    permit: &Permit,
    namespace: &Namespace,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let attempt = async || match cloudmap.delete_namespace(permit, &namespace.id).await {
        Ok(operation) | Err(cloudmap::Error { kind: ErrorKind::Duplicate { operation: Some(operation) }, .. }) => {
            namespace_deleted(cloudmap, &operation).await
        }
        Err(error) => Err(error),
    };
    let deleted = delete(out, "namespace", &namespace.name, attempt).await;
    if namespace.kind == NamespaceKind::Http {
        return deleted;
    }
    deleted
        .context("to delete a namespace with DNS takes the permission route53:DeleteHostedZone as well (docs/iam.md)")
}

/// Waits until the operation that deletes a namespace has ended.
async fn namespace_deleted(cloudmap: &dyn cloudmap::Write, id: &OperationId) -> Result<(), cloudmap::Error> {
    let failed = |kind, message| Err(cloudmap::Error { operation: Operation::DeleteNamespace.name(), kind, message });
    let deadline = Instant::now() + PATIENCE;
    loop {
        match cloudmap.operation(id, Lane::Instances).await {
            Ok(OperationState::Running) if Instant::now() < deadline => sleep(POLL).await,
            Ok(OperationState::Running) => {
                let message = format!("AWS has not finished it within {} s; run purge again later", PATIENCE.as_secs());
                return failed(ErrorKind::Unknown, message);
            }
            Ok(OperationState::Failed { code, message }) => {
                return failed(ErrorKind::Other, format!("{code}: {message}"));
            }
            Ok(OperationState::Succeeded { .. }) => return Ok(()),
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Deletes something that should be empty, and returns whether it is gone. AWS may notice only after a moment that it is empty.
async fn delete(
    out: &mut impl Write,
    what: &str,
    name: &str,
    attempt: impl AsyncFn() -> Result<(), cloudmap::Error>,
) -> anyhow::Result<bool> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt().await {
            Ok(()) => return Ok(true),
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(true),
            Err(error) if error.kind == ErrorKind::InUse && Instant::now() < deadline => sleep(POLL).await,
            Err(error) if error.kind == ErrorKind::InUse => {
                writeln!(out, "the {what} {name} is not empty: somebody else uses it, or you need to run purge again")?;
                return Ok(false);
            }
            Err(error) => return Err(error).with_context(|| format!("failed to delete the {what} {name}")),
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
