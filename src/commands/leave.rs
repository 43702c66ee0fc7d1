//! `leave`: asks the leader to withdraw everything, and waits for it.

use std::{collections::BTreeMap, fmt::Debug, io::Write as _, sync::Arc, time::Duration};

use anyhow::Context as _;
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Api, Client, Resource, ResourceExt as _, api::ListParams};
use serde::de::DeserializeOwned;
use tokio::time::{sleep, timeout};

use super::asking::{self, aloud, patiently};
use api::{ServiceImport, names};
use app::connect;
use cli::LeaveArgs;
use cluster::{
    identity::Identity,
    reader::{Unread, each},
    record::RecordObject,
};
use ledger::{
    CLUSTERS,
    record::{self, Member, Record, RecordStore as _},
    show,
    trust::{COPY_INSTANCE, KEY_INSTANCE},
};
use model::{ClusterId, ClusterSetId};
use records::read_all;

/// How often `leave` asks the registry whether the leader is done.
const POLL: Duration = Duration::from_secs(2);
/// How many looks at the registry in a row may fail.
const FAILURES: usize = 5;
const UNKNOWN: &str = "the flag is set, and the leader withdraws everything by itself, but whether it is done cannot be read: run \
                       this again later";
/// How many objects that are left are named.
const NAMED: usize = 5;

/// Sets the flag in the record, on which the leader acts, and waits until the registry and Kubernetes show the result.
pub(super) async fn leave(args: LeaveArgs) -> anyhow::Result<()> {
    let client = connect::kubernetes(&args.place.kube).await?;
    let record = RecordObject::new(client.clone(), &args.place.kube.controller.namespace);
    let mut out = std::io::stdout();
    if args.undo {
        flag(&record, false).await?;
        writeln!(out, "The cluster rejoins the ClusterSet: its leader exports again within seconds.")?;
        return Ok(());
    }
    let identity = asking::identity(&client, &args.place.identity).await?;
    let Record { member, services, registrations, .. } =
        record.load().await?.map(|(record, _)| record).unwrap_or_default();
    let clusterset = to_leave(&identity, member.as_ref(), registrations.len())?;
    let cloudmap = connect::registry_for_command(&args.place.aws).await?;
    refuse_elsewhere(&cloudmap, &clusterset, &identity.cluster, &services).await?;
    let news = if flag(&record, true).await? { "The flag is set" } else { "The flag was already set" };
    writeln!(
        out,
        "{news}. The leader withdraws the exports, the instances, the imports and the ledger of cluster {}.",
        identity.cluster
    )?;
    let waiting = Box::pin(wait(&client, &cloudmap, &clusterset, &identity.cluster, args.timeout));
    let here = aloud(&mut std::io::stderr(), "waiting for the leader", waiting).await?;
    if here.as_ref().is_some_and(|left| left.as_ref().is_ok_and(Vec::is_empty)) {
        writeln!(
            out,
            "Done: nothing of this cluster is left in the registry, and no import is left here. You can now remove the \
             controller."
        )?;
        return Ok(());
    }
    Err(anyhow::Error::msg(not_done(here.as_ref(), args.timeout, &args.place.kube.cluster.flags())))
}

/// Waits until nothing of the cluster is left in the registry, and then until no import is left here. Returns what is left of
/// imports; `None` if the leader is not done.
async fn wait(
    client: &Client,
    cloudmap: &Arc<dyn cloudmap::Read>,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
    patience: Duration,
) -> anyhow::Result<Option<Result<Vec<String>, Unread>>> {
    let (mut here, mut failures) = (None, 0);
    let looks = async {
        loop {
            let left = if here.is_some() { Ok(true) } else { has_left(cloudmap, clusterset, cluster).await };
            match left {
                Ok(true) => {
                    let left = Box::pin(imported(client)).await;
                    let is_known = left.as_ref().map_or_else(|why| matches!(why, Unread::Forbidden(_)), Vec::is_empty);
                    here = Some(left);
                    if is_known {
                        return Ok(());
                    }
                }
                Ok(false) => failures = 0,
                // AWS throttles everybody while a large cluster withdraws.
                Err(_) if failures < FAILURES => failures += 1,
                Err(error) => return Err(error.context(UNKNOWN)),
            }
            sleep(POLL).await;
        }
    };
    // Each look repeats throttled calls, for longer than somebody may want to wait.
    if let Ok(Err(error)) = timeout(patience, looks).await {
        return Err(error);
    }
    Ok(here)
}

/// What is said when `leave` waits no longer. `here` is what is left of imports, once the registry has nothing of the cluster.
fn not_done(here: Option<&Result<Vec<String>, Unread>>, after: Duration, flags: &str) -> String {
    let after = after.as_secs();
    match here {
        None => format!(
            "the leader is not done after {after} s. If there is one, which `cloudmap-mcs status{flags}` says, it continues by \
             itself: look at its logs, and at `cloudmap-mcs purge --dry-run`"
        ),
        Some(Ok(left)) => {
            let more = left.len().saturating_sub(NAMED);
            let more = if more > 0 { format!(", and {more} more") } else { String::new() };
            format!(
                "nothing of this cluster is left in the registry, but after {after} s these objects of imports are left here: \
                 {}{more}. The leader continues by itself: its logs say what refuses to delete them. Run this again before you \
                 remove the controller, or delete them as docs/leaving.md#uninstalled-without-leaving says",
                left.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join(", ")
            )
        }
        Some(Err(why)) => format!(
            "nothing of this cluster is left in the registry. Whether imports are left here was not read: {why}. Before you \
             remove the controller, look whether `kubectl{flags} get serviceimports,services -A -l {label}={ours}` and \
             `kubectl{flags} get endpointslices -A -l {slice_label}={ours}` find nothing",
            label = names::LABEL_MANAGED_BY,
            slice_label = names::LABEL_SLICE_MANAGED_BY,
            ours = names::MANAGED_BY,
        ),
    }
}

/// The objects of imports that are still in this cluster, each with its kind. Nobody deletes them once the controller is gone.
async fn imported(client: &Client) -> Result<Vec<String>, Unread> {
    let mut left = Vec::new();
    add::<ServiceImport>(&mut left, client, names::LABEL_MANAGED_BY).await?;
    add::<Service>(&mut left, client, names::LABEL_MANAGED_BY).await?;
    add::<EndpointSlice>(&mut left, client, names::LABEL_SLICE_MANAGED_BY).await?;
    Ok(left)
}

/// Adds the objects of a kind that this project created. If there is no such kind, there are none.
async fn add<K>(left: &mut Vec<String>, client: &Client, label: &str) -> Result<(), Unread>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::all(client.clone());
    let ours = ListParams::default().labels(&format!("{label}={}", names::MANAGED_BY));
    let keep = |object: K| {
        let namespace = object.namespace().unwrap_or_default();
        left.push(format!("{} {namespace}/{}", K::kind(&()), object.name_any()));
    };
    match each(&api, ours, keep).await {
        Err(Unread::NoSuchKind) => Ok(()),
        read => read,
    }
}

/// The ClusterSet that the cluster is to leave. `registered` is the number of Cloud Map services in which annotated objects of a
/// standalone cluster are registered.
///
/// Fails if the controller was last in another ClusterSet, or had another id there: the registry has nothing of the wrong id, so
/// the cluster would seem to have left at once. Fails also outside a ClusterSet.
fn to_leave(identity: &Identity, member: Option<&Member>, registered: usize) -> anyhow::Result<ClusterSetId> {
    let Identity { cluster, clusterset, uid: _ } = identity;
    if let Some(Member { clusterset: set, cluster: id }) =
        member.filter(|member| !member.is_of(identity.clusterset.as_ref(), &identity.cluster))
    {
        let here = clusterset.as_ref().map_or_else(|| "no ClusterSet".to_owned(), ToString::to_string);
        anyhow::bail!(
            "the controller of this cluster was last in {set}, as {id}, and here the cluster is {cluster} in {here}: nothing is \
             changed. Run this in the controller's pod (kubectl exec), or with the flags of the controller: --clusterset-id \
             {set} --cluster-id {id}. If the ids were changed just now, try again in a minute"
        );
    }
    clusterset.clone().with_context(|| {
        let nothing = "this cluster is in no ClusterSet, so there is nothing to leave";
        if registered == 0 {
            return nothing.to_owned();
        }
        format!(
            "{nothing}. But its annotated Services and Ingresses are registered in {registered} Cloud Map service(s), and nobody \
             withdraws that once the controller is gone: start the controller with --instances=none and without --dry-run, and \
             remove it when `cloudmap-mcs leave` no longer says this"
        )
    })
}

/// Fails if this is another ledger than the one that the controller writes, for example in another region: it has nothing of the
/// cluster, so the cluster would seem to have left at once. `services` are the ids of the ledger's services in the record.
async fn refuse_elsewhere(
    cloudmap: &Arc<dyn cloudmap::Read>,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
    services: &BTreeMap<String, String>,
) -> anyhow::Result<()> {
    let Some(written) = services.get(CLUSTERS) else { return Ok(()) };
    let there = match patiently(show::belongings(Arc::clone(cloudmap), clusterset, Some(cluster))).await {
        // The check whether the cluster has left reports it.
        Err(show::Error::NoLedger(_)) => return Ok(()),
        there => there?,
    };
    // The ledger may have been created anew since the record was written.
    let is_it = there.iter().any(|it| *it.service_id == **written || it.cluster.is_some() || !it.instances.is_empty());
    anyhow::ensure!(
        is_it,
        "the ledger of the ClusterSet {clusterset} in this account and region has nothing of cluster {cluster}, and is not the one \
         that its controller writes: nothing is changed. Run this in the controller's pod (kubectl exec), or with the flags \
         of the controller: --region and --assume-role-arn"
    );
    Ok(())
}

/// Whether the cluster has left: it has no pages, and its head is gone or says `left`, which the controller writes only after
/// the last instance is gone.
async fn has_left(
    cloudmap: &Arc<dyn cloudmap::Read>,
    clusterset: &ClusterSetId,
    cluster: &ClusterId,
) -> anyhow::Result<bool> {
    let views = read_all(Arc::clone(cloudmap), clusterset).await?;
    let head = views.iter().find(|view| *view.id == *cluster.as_str()).and_then(|view| view.head.clone());
    if head.as_ref().is_some_and(|head| head.is_live()) {
        return Ok(false);
    }
    let belongings = show::belongings(Arc::clone(cloudmap), clusterset, Some(cluster)).await?;
    Ok(belongings.iter().all(|belonging| match belonging.cluster {
        // That one discovery does not show the head, or that it cannot be read, says nothing.
        None => head.is_some() || belonging.instances.is_empty(),
        // The key proves what the head says, and the copy says it as well.
        Some(_) => belonging.instances.iter().all(|id| [KEY_INSTANCE, COPY_INSTANCE].contains(&&**id)),
    }))
}

/// Returns whether the flag changed.
async fn flag(record: &RecordObject, leaving: bool) -> anyhow::Result<bool> {
    let set = |record: &mut Record| std::mem::replace(&mut record.leaving, leaving) != leaving;
    let changed = record::update(record, set).await?;
    changed.context(
        "this cluster has no ledger record: its controller has never led, or is not in the namespace that \
         --controller-namespace says",
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cloudmap::{
        Attributes, ErrorKind, NamespaceKind, Operation,
        fake::{Fake, Fault},
    };
    use cluster::{fake_api::FakeApi, record::RECORD};

    /// The namespace of the ledger may be in another region, too.
    #[tokio::test(start_paused = true)]
    async fn a_cluster_leaves_only_where_its_controller_writes() {
        let fake = Fake::new();
        let namespace = fake.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
        let heads = fake.registry().add_service(&namespace, CLUSTERS, "cloudmap-mcs", "");
        let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
        let (clusterset, blue) = ("prod".parse().unwrap(), "blue".parse().unwrap());
        let refused = async |id: Option<&str>| {
            let services = id.map(|id| (CLUSTERS.to_owned(), id.to_owned())).into_iter().collect();
            refuse_elsewhere(&cloudmap, &clusterset, &blue, &services).await.err().map(|error| error.to_string())
        };
        assert_eq!(refused(None).await, None, "its controller has written nowhere");
        assert_eq!(refused(Some(&*heads)).await, None);
        let error = refused(Some("srv-elsewhere")).await.unwrap();
        assert!(error.contains("nothing of cluster blue") && error.contains("--region"), "{error}");
        fake.registry().instances.insert((heads, "blue".into()), Attributes::new());
        assert_eq!(refused(Some("srv-elsewhere")).await, None, "the ledger was created anew");
    }

    /// Its instances may still be there, and nobody removes them once the controller is gone.
    #[tokio::test(start_paused = true)]
    async fn a_cluster_whose_head_is_not_shown_or_cannot_be_read_has_not_left() {
        let fake = Fake::new();
        let namespace = fake.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
        let heads = fake.registry().add_service(&namespace, CLUSTERS, "cloudmap-mcs", "");
        let head = (heads, "blue".into());
        fake.registry().instances.insert(head.clone(), Attributes::new());
        let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
        let (clusterset, blue) = ("prod".parse().unwrap(), "blue".parse().unwrap());
        let left = async || has_left(&cloudmap, &clusterset, &blue).await.unwrap();
        assert!(!left().await, "it cannot be read");
        fake.registry().undiscovered.insert(head.clone());
        assert!(!left().await, "it is not shown");
        fake.registry().instances.remove(&head);
        assert!(left().await, "it was purged");
    }

    /// Each call to a throttled registry is repeated for half a minute.
    #[tokio::test(start_paused = true)]
    async fn waiting_for_the_leader_ends_in_time_and_outlasts_some_failures() {
        let fake = Fake::new();
        let namespace = fake.registry().add_namespace("clusterset-prod", NamespaceKind::Http);
        let heads = fake.registry().add_service(&namespace, CLUSTERS, "cloudmap-mcs", "");
        fake.registry().instances.insert((heads, "blue".into()), Attributes::new());
        let cloudmap: Arc<dyn cloudmap::Read> = Arc::new(fake.clone());
        let (api, clusterset, blue) = (FakeApi::default(), "prod".parse().unwrap(), "blue".parse().unwrap());
        let wait = async |seconds| {
            let (begun, client) = (tokio::time::Instant::now(), api.client());
            let waited = wait(&client, &cloudmap, &clusterset, &blue, Duration::from_secs(seconds)).await;
            (waited, begun.elapsed().as_secs())
        };
        let (here, took) = wait(7).await;
        assert!(here.unwrap().is_none() && took == 7, "it took {took} s");
        for _ in 0..1_000 {
            fake.fault(Operation::ListNamespaces, Fault::Refused(ErrorKind::Throttled));
        }
        let (failed, took) = wait(600).await;
        let error = format!("{:#}", failed.unwrap_err());
        assert!(error.contains("by itself") && error.contains("run this again later") && took < 60, "{took}: {error}");
    }

    /// Its id may come from a flag of the controller, which a workstation does not have.
    #[test]
    fn a_cluster_leaves_only_as_its_controller_was_last_a_member() {
        let identity = |clusterset: Option<&str>| Identity {
            cluster: "blue".parse().unwrap(),
            clusterset: clusterset.map(|id| id.parse().unwrap()),
            uid: "uid".into(),
        };
        let member = |cluster: &str| Member { clusterset: "prod".to_owned(), cluster: cluster.to_owned() };
        let prod = identity(Some("prod"));
        for member in [None, Some(&member("blue"))] {
            assert_eq!(to_leave(&prod, member, 0).unwrap().as_str(), "prod");
        }
        for (identity, member) in
            [(&prod, member("green")), (&identity(Some("test")), member("blue")), (&identity(None), member("blue"))]
        {
            let error = to_leave(identity, Some(&member), 0).unwrap_err().to_string();
            assert!(error.contains(&format!("--clusterset-id prod --cluster-id {}", member.cluster)), "{error}");
        }
        // Outside a ClusterSet, instances of annotated objects would stay.
        for (registered, remains) in [(0, false), (2, true)] {
            let error = to_leave(&identity(None), None, registered).unwrap_err().to_string();
            assert!(error.contains("nothing to leave"), "{error}");
            assert_eq!(
                error.contains("2 Cloud Map service(s)") && error.contains("--instances=none"),
                remains,
                "{error}"
            );
        }
    }

    /// The API server may refuse to delete them, and nobody else does it once the controller is gone.
    #[tokio::test]
    async fn imports_that_are_left_are_found_and_named_with_the_remedy() {
        let api = FakeApi::default();
        let list = |name: &str| json!({"metadata": {}, "items": [{"metadata": {"namespace": "shop", "name": name}}]});
        api.refuse(404, "NotFound", "the server could not find the requested resource");
        for name in ["derived-x", "derived-x-1"] {
            api.prepare(200, list(name));
        }
        let left = imported(&api.client()).await;
        assert_eq!(left.as_ref().unwrap(), &["Service shop/derived-x", "EndpointSlice shop/derived-x-1"]);
        assert!(api.requests().iter().all(|request| request.query.contains("managed-by%3Dcloudmap-mcs")));
        let said = |here: Option<&Result<Vec<String>, Unread>>| not_done(here, Duration::from_mins(10), " --context a");
        let text = said(Some(&left));
        assert!(
            text.contains("left here: Service shop/derived-x, EndpointSlice shop/derived-x-1. The leader"),
            "{text}"
        );
        let many = Ok(vec!["Service shop/web".to_owned(); NAMED + 2]);
        assert!(said(Some(&many)).contains("Service shop/web, and 2 more. "), "{}", said(Some(&many)));
        api.refuse(403, "Forbidden", "you may not list them");
        let text = said(Some(&imported(&api.client()).await));
        assert!(
            text.contains("you may not list them") && text.contains("kubectl --context a get serviceimports,services"),
            "{text}"
        );
        let text = said(None);
        assert!(text.contains("purge --dry-run") && text.contains("`cloudmap-mcs status --context a`"), "{text}");
        assert_eq!(imported(&api.client()).await, Ok(Vec::new()));
    }

    #[tokio::test]
    async fn undo_without_a_record_fails() {
        let api = FakeApi::default();
        let store = RecordObject::new(api.client(), "elsewhere");
        for leaving in [true, false] {
            api.refuse(404, "NotFound", "configmaps \"cloudmap-mcs-ledger\" not found");
            let error = flag(&store, leaving).await.unwrap_err().to_string();
            assert!(error.contains("--controller-namespace"), "{error}");
        }
        api.prepare(200, json!({"metadata": {"name": RECORD, "resourceVersion": "1"}}));
        assert!(!flag(&store, false).await.unwrap(), "it was not leaving");
    }
}
