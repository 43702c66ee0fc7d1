//! What the leader runs. It starts again for each identity and each term.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tracing::info;

use super::{
    credentials::{self, Credentials, News},
    metrics::LeaderMetrics,
};
use annotations::{Directory, Policy};
use api::events::EventReason;
use cli::RunArgs;
use cloudmap::CloudMap;
use cluster::{
    Caches, ClusterWriter, Leadership,
    events::{self, EventRecord},
    identity::{Identity, Known},
    keys::KeyStore,
    lease::Says,
    record::{HiddenObject, RecordObject},
};
use controller::{ImportRules, Inputs, Membership, Mode, Records, Targets};
use cutover::guard::{self, Outside};
use instances::Naming;
use ledger::{
    CLUSTERS,
    driver::{self, sessions::Network},
    limits::MIB,
    news::{News as MemberNews, What},
    trust::{SECRET, Trust},
};
use model::{ClusterId, IpFamily, addresses::Range};

/// How often it is looked what is to be said of other clusters. It is said the second time.
const LOOK: Duration = Duration::from_mins(1);
/// What lasts is said again after this time: the API server keeps an Event for an hour.
const SAY_AGAIN: Duration = Duration::from_mins(30);

pub(super) struct Leader {
    pub(super) args: RunArgs,
    pub(super) caches: Caches,
    pub(super) writer: Arc<dyn ClusterWriter>,
    pub(super) record: Arc<RecordObject>,
    pub(super) hidden: Arc<HiddenObject>,
    pub(super) keys: KeyStore,
    pub(super) cloudmap: Arc<dyn CloudMap>,
    pub(super) network: Option<Arc<dyn Network>>,
    pub(super) outside: Arc<dyn Outside>,
    pub(super) region: Option<String>,
    pub(super) leadership: Leadership,
    pub(super) identity: watch::Receiver<Known>,
    pub(super) uid: Arc<str>,
    pub(super) families: Vec<IpFamily>,
    pub(super) service_ranges: watch::Receiver<Arc<[Range]>>,
    pub(super) figures: LeaderMetrics,
    pub(super) metrics: controller::Metrics,
}

impl Leader {
    /// Leads whenever it may, until it is dropped. Returns the name of a part that has ended, which should never
    /// happen: a replica with a dead part must not continue.
    pub(super) async fn run(mut self) -> &'static str {
        loop {
            self.leadership.acquired().await;
            let leadership = self.leadership.clone();
            tokio::select! {
                biased;
                () = leadership.lost() => info!("lost the Lease; standing by"),
                part = self.lead() => return part,
            }
            self.figures.clear();
        }
    }

    /// Leads with the current identity of this cluster.
    async fn lead(&mut self) -> &'static str {
        info!("listing everything again before anything is written");
        self.caches.refresh().await;
        let mut before: Option<Credentials> = None;
        loop {
            let credentials = credentials::load(&self.keys, self.args.trust, before.as_ref()).await;
            if let Some(text) = rotated(before.as_ref(), credentials.as_ref().ok()) {
                self.say(EventReason::KeyRotated, "Sign", text).await;
            }
            let known = self.identity.borrow_and_update().clone();
            let mut identity = self.identity.clone();
            tokio::select! {
                biased;
                _ = identity.changed() => info!("the identity of this cluster changed; starting again with the new one"),
                () = self.other_keys(&credentials) => {
                    info!("the keys of the ledger changed; starting again with the new ones");
                }
                part = self.term(known, &credentials) => return part,
            }
            before = credentials.ok().or(before);
            self.figures.clear();
            self.leadership.say(Says::default());
        }
    }

    /// Waits until other keys are stored than `known`. After a Secret was deleted and is there again, the term goes on.
    async fn other_keys(&self, known: &Result<Credentials, String>) {
        while credentials::changed(&self.keys, self.args.trust, known).await == News::Restored {
            let text = format!(
                "The Secret {SECRET} was deleted. The leader created it again with the same key. Find out who deleted \
                 it: if no leader runs meanwhile, the key is lost, and all other clusters must accept a new one."
            );
            self.say(EventReason::KeyRestored, "Sign", text).await;
        }
    }

    /// One term with one identity. Everything that it starts ends with it.
    async fn term(&self, known: Known, credentials: &Result<Credentials, String>) -> &'static str {
        let (identity, membership) = match (known, credentials) {
            (None, _) => return std::future::pending().await,
            // Without its key nobody would believe this cluster, and it could not tell its own head from a forged one.
            (Some(Ok(Identity { clusterset: Some(_), .. })), Err(error)) => {
                (None, Some(Membership::Refused(format!("{error}."))))
            }
            (Some(Ok(identity)), _) => (Some(identity), None),
            (Some(Err(error)), _) => (None, Some(Membership::Refused(format!("{error}.")))),
        };
        let warning = identity.as_ref().and_then(Identity::warning);
        // The ledger does not wait for an API server that is slow to create Events.
        tokio::select! {
            biased;
            part = self.act(identity, membership, credentials.clone().unwrap_or_default()) => part,
            part = self.warn_of_identity(warning) => part,
        }
    }

    /// Says what is unfavourable about the identity. Never ends.
    async fn warn_of_identity(&self, warning: Option<String>) -> &'static str {
        if let Some(text) = warning {
            self.say(EventReason::DottedClusterId, "Identify", text).await;
        }
        std::future::pending().await
    }

    /// Runs what a cluster with this identity runs; without one, what says why there is none.
    async fn act(
        &self,
        identity: Option<Identity>,
        membership: Option<Membership>,
        Credentials { trust, keys, .. }: Credentials,
    ) -> &'static str {
        match identity {
            Some(Identity { cluster, clusterset: Some(clusterset), uid }) => {
                let mut settings = driver::LedgerSettings::new(cluster.clone(), clusterset.clone(), &*uid);
                settings.timing = settings.timing.with_tick(self.args.ledger_tick);
                settings.stale_ttl = self.args.stale_cluster_ttl;
                settings.limits.remote_bytes = self.args.remote_memory as usize * MIB;
                let trust = Trust { join: self.args.join, ..trust };
                (settings.trust, settings.keys, settings.network) = (trust, keys, self.network.clone());
                let mut ledger = driver::spawn(
                    settings,
                    Arc::clone(&self.cloudmap),
                    Arc::clone(&self.record) as _,
                    self.leadership.clone(),
                    std::future::pending(),
                );
                let membership = Membership::Joining("The controller is starting".to_owned());
                let identity = instances::Owner { clusterset: Some(clusterset), cluster, cluster_uid: uid };
                let (status, news) = (ledger.status(), ledger.take_news());
                tokio::select! {
                    biased;
                    part = self.control(identity, Records::Ledger(ledger), membership) => part,
                    () = self.say_of_others(status.clone()) => "the ledger",
                    () = self.tell(status) => "the ledger",
                    () = self.announce(news) => "the ledger",
                }
            }
            Some(Identity { cluster, clusterset: None, uid }) => {
                let remedy = "This cluster is in no ClusterSet. Create the ClusterProperty clusterset.k8s.io, or start \
                              the controller with --clusterset-id.";
                let identity = instances::Owner { clusterset: None, cluster, cluster_uid: uid };
                let (record, cloudmap) = (Arc::clone(&self.record) as _, Arc::clone(&self.cloudmap));
                let (leadership, properties) = (self.leadership.clone(), self.caches.properties.clone());
                let is_known = move || properties.trouble().is_none();
                let records = driver::local::spawn(record, leadership, cloudmap, &self.uid, keys, is_known);
                Box::pin(self.control(identity, Records::Local(records), Membership::Joining(remedy.to_owned()))).await
            }
            None => {
                let Ok(placeholder) = self.uid.parse::<ClusterId>() else { return std::future::pending().await };
                let identity =
                    instances::Owner { clusterset: None, cluster: placeholder, cluster_uid: self.uid.clone() };
                let refused = membership.unwrap_or(Membership::Refused(String::new()));
                Box::pin(self.control(identity, Records::Nowhere, refused)).await
            }
        }
    }

    /// Lets the renewals of the Lease say with whose leaders this one is connected, and which clusters are too large.
    async fn say_of_others(&self, mut status: watch::Receiver<Arc<driver::Status>>) {
        let mut said = None;
        // A status comes with every message, and another text only when somebody is connected, cut off or refused.
        loop {
            let is_new = |status: &driver::Status| {
                said.as_ref()
                    .is_none_or(|(connected, refused)| (connected, refused) != (&status.connected, &status.refused))
            };
            let news = status.wait_for(|status| is_new(status)).await;
            let Ok(news) = news.map(|status| Arc::clone(&status)) else { return };
            self.leadership.say(says(news.connected.as_ref(), &news.refused));
            said = Some((news.connected.clone(), news.refused.clone()));
        }
    }

    /// Says where an operator looks, as long as it lasts, what no object of a user shows.
    async fn tell(&self, status: watch::Receiver<Arc<driver::Status>>) {
        let mut told = Told::default();
        loop {
            sleep(LOOK).await;
            // Nobody would hear it.
            if !self.leadership.is_leader() {
                continue;
            }
            let news = news(&status.borrow(), self.args.stream_port);
            for (reason, text) in told.due(Instant::now(), news) {
                self.say(reason, "Follow", text).await;
            }
        }
    }

    /// Says where an operator looks who joined, whose key counts, and who is gone.
    async fn announce(&self, news: Option<mpsc::UnboundedReceiver<MemberNews>>) {
        let Some(mut news) = news else { return std::future::pending().await };
        while let Some(news) = news.recv().await {
            self.say(reason(&news.what), "Follow", news.to_string()).await;
        }
    }

    /// Emits an Event on the Lease.
    async fn say(&self, reason: EventReason, action: &'static str, text: String) {
        let regarding = events::lease(&self.args.place.kube.controller.namespace);
        self.writer.emit(EventRecord { regarding, reason, action, text }).await;
    }

    async fn control(&self, identity: instances::Owner, records: Records, membership: Membership) -> &'static str {
        let (desired, desired_receiver) = watch::channel(instances::sync::Desired::new());
        // Dropped with the term, which ends the task of the instances.
        let (_stop, stopped) = watch::channel(());
        let ledger = if let Records::Ledger(ledger) = &records { Some(ledger) } else { None };
        let permit = instances::sync::Permit {
            leadership: self.leadership.clone(),
            ledger: ledger.map(driver::LedgerHandle::status),
        };
        let mut settings = instances::sync::SyncSettings::new(identity.clone());
        settings.drift_budget = self.args.drift_calls_per_second;
        let (cloudmap, hidden) = (Arc::clone(&self.cloudmap), Arc::clone(&self.hidden) as _);
        let registered = instances::sync::spawn(settings, cloudmap, hidden, desired_receiver, permit, async move {
            let mut stopped = stopped;
            while stopped.changed().await.is_ok() {}
        });
        let (subscribed, subscribed_receiver) = watch::channel(Arc::default());
        let aws_mcs = self.args.aws_mcs_compat && identity.clusterset.is_some();
        let calls_per_second = self.args.import_calls_per_second;
        let reader = discovery::DiscoverySettings { identity: identity.clone(), calls_per_second, aws_mcs };
        let read = discovery::spawn(reader, Arc::clone(&self.cloudmap), subscribed_receiver);
        self.figures.follow(ledger, registered.figures(), read.figures());
        let naming = match &self.args.instances_namespace {
            Some(namespace) => Naming::OneNamespace(namespace.as_str().into()),
            None => Naming::PerNamespace,
        };
        let import = ImportRules {
            default: self.args.import_from.clone().unwrap_or_default(),
            own: Some(self.args.place.kube.controller.namespace.as_str().into()),
        };
        let settings = controller::ControllerSettings {
            import,
            cluster: identity.cluster.clone(),
            concurrency: usize::from(self.args.concurrency),
            targets: Targets {
                policy: self.args.instances,
                naming,
                identity,
                region: self.region.clone(),
                aws_mcs,
                zones: None,
            },
            annotations: annotations::AnnotationSettings {
                domain_filter: self.args.domain_filter.clone(),
                zone_kind: self.args.aws_zone_type,
                owner_id: self.args.txt_owner_id.clone(),
                upsert_only: self.args.policy == Policy::UpsertOnly,
                dry_run: self.args.dry_run,
            },
            registration: self.args.registration_policy,
            quota: self.args.namespace_quota,
            claim_delay: self.args.claim_delay,
            export_namespaces: self.args.export_namespaces.clone(),
            families: self.families.clone(),
            derived: self.args.derived_name.clone().unwrap_or_default(),
            gate_timeout: self.args.gate_timeout,
            hide_tasks: self.args.hide_tasks,
            settle: self.args.settle,
            type_notice: self.args.type_notice,
        };
        let identified = records.mode() != Mode::Unidentified;
        let directory = identified.then(|| Directory::spawn(Arc::clone(&self.cloudmap)));
        let listing = directory.as_ref().map(Directory::known);
        let publishing = ledger.map(driver::LedgerHandle::status);
        let keeping = if let Records::Local(local) = &records { Some(local.kept()) } else { None };
        let lookups = gates::lookups::spawn(Arc::clone(&self.cloudmap));
        let guards = guard::spawn(Arc::clone(&self.cloudmap), Arc::clone(&self.outside));
        let (answering, judging) = (lookups.answers(), guards.answers());
        let inputs = Inputs {
            caches: self.caches.clone(),
            writer: Arc::clone(&self.writer),
            directory,
            lookups,
            guards,
            records,
            membership,
            instances: desired,
            statuses: registered.status(),
            subscribed,
            found: read.found(),
            service_ranges: self.service_ranges.clone(),
            metrics: self.metrics.clone(),
        };
        tokio::select! {
            biased;
            () = ended(publishing) => "the ledger",
            () = ended(keeping) => "the record of registrations",
            () = ended(listing) => "the listing of Cloud Map namespaces",
            () = ended(Some(registered.status())) => "the registration of instances",
            () = ended(Some(read.figures())) => "the reading of discovered instances",
            () = ended(Some(answering)) => "the lookups for readiness gates",
            () = ended(Some(judging)) => "the guards of Cutovers",
            () = controller::run(settings, inputs) => "the controller",
        }
    }
}

/// Waits until the task that writes this channel has ended, for any reason: nothing else would report it.
async fn ended<T>(channel: Option<watch::Receiver<T>>) {
    match channel {
        Some(mut channel) => while channel.changed().await.is_ok() {},
        None => std::future::pending().await,
    }
}

/// What the Lease says of other clusters: those that are connected, where leaders talk to each other, and those that are too
/// large.
fn says(connected: Option<&BTreeSet<Arc<str>>>, refused: &BTreeMap<Arc<str>, String>) -> Says {
    let lines: Vec<_> = refused.iter().take(REFUSED).map(|(id, why)| format!("{id}: {why}")).collect();
    Says {
        streams: connected.map(|connected| connected.iter().map(|id| &**id).collect::<Vec<_>>().join(" ")),
        refused: (!lines.is_empty()).then(|| lines.join("\n")),
    }
}

/// The reason of the Event that says it.
const fn reason(what: &What) -> EventReason {
    match what {
        What::Accepted(_) => EventReason::ClusterAccepted,
        What::Pinned { .. } => EventReason::KeyPinned,
        What::Left => EventReason::ClusterLeft,
        What::Forgotten => EventReason::ClusterForgotten,
        What::Rejected => EventReason::ClusterRejected,
    }
}

/// What is to be said if this cluster signs with another key than before.
fn rotated(before: Option<&Credentials>, now: Option<&Credentials>) -> Option<String> {
    let key = |of: Option<&Credentials>| Some(of?.keys.as_ref()?.current.public());
    let (before, now) = key(before).zip(key(now)).filter(|(before, now)| before != now)?;
    Some(format!(
        "This cluster signs with the key {now} from now on, and no more with {before}. If nobody rotated it (trust rotate), somebody          else wrote the Secret {SECRET}."
    ))
}

/// How many clusters that are too large the Lease names: it is written every few seconds.
const REFUSED: usize = 16;

/// From this number of heads on somebody must act: one read has room for 1,000.
const CROWDED: usize = 800;

/// What is said, and of which cluster.
type About = (EventReason, Arc<str>);

/// What was said of other clusters in this term.
#[derive(Debug, Default)]
struct Told {
    /// What was so at the last look.
    before: BTreeSet<About>,
    /// When it was said. What is over is not in it.
    at: BTreeMap<About, Instant>,
}

impl Told {
    /// What of the news is to be said now: what lasts, and was not said lately.
    fn due(&mut self, now: Instant, news: BTreeMap<About, String>) -> Vec<(EventReason, String)> {
        self.at.retain(|about, _| news.contains_key(about));
        let mut due = Vec::new();
        for (about, text) in &news {
            let lately = self.at.get(about).is_some_and(|at| now.duration_since(*at) < SAY_AGAIN);
            if self.before.contains(about) && !lately {
                self.at.insert(about.clone(), now);
                due.push((about.0, text.clone()));
            }
        }
        self.before = news.into_keys().collect();
        due
    }
}

/// What is to be said of other clusters, if it lasts.
fn news(status: &driver::Status, stream_port: u16) -> BTreeMap<About, String> {
    let unreachable = status.unreachable.iter().map(|(cluster, why)| {
        let text = format!(
            "The leader of cluster {cluster} cannot be reached ({why}), so that changes take seconds and not milliseconds. If \
             nothing answers, let security groups and NetworkPolicies pass TCP port {stream_port} between the controllers' pods, \
             in one direction at least, or set --stream=off. If a key is the reason, run `cloudmap-mcs trust list` in both \
             clusters."
        );
        ((EventReason::StreamUnreachable, Arc::clone(cluster)), text)
    });
    let ignored = status.ignored.iter().map(|(cluster, why)| {
        let text = format!(
            "The head of cluster {cluster} in the ledger is ignored, and what it said before stays: {why}. `cloudmap-mcs ledger \
             show` and `cloudmap-mcs trust list` say more."
        );
        ((EventReason::HeadIgnored, Arc::clone(cluster)), text)
    });
    let crowded = (status.heads >= CROWDED).then(|| {
        let text = format!(
            "The ledger has {} heads, of all clusters that ever joined. With 1,000 it cannot be read any more, and nothing \
             changes in any cluster. Remove those of clusters that left, which `cloudmap-mcs ledger show` lists, with \
             `cloudmap-mcs purge --cluster ID`.",
            status.heads
        );
        ((EventReason::LedgerCrowded, Arc::from(CLUSTERS)), text)
    });
    let barred = status.barred.clone().map(|text| ((EventReason::NotApproved, Arc::from(CLUSTERS)), text));
    unreachable.chain(ignored).chain(crowded).chain(barred).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::objects::TargetId;
    use gates::Question;
    use model::Target;

    #[test]
    fn what_no_object_shows_is_said_of_each_cluster() {
        let one = |cluster: &str, why: &str| [(Arc::from(cluster), why.to_owned())].into();
        let status = driver::Status {
            unreachable: one("b", "10.2.2.9:7946 timed out"),
            ignored: one("c", "it has no signature"),
            ..driver::Status::default()
        };
        let news = news(&status, 7_946);
        assert!(news[&(EventReason::StreamUnreachable, "b".into())].contains("(10.2.2.9:7946 timed out)"), "{news:?}");
        assert!(news[&(EventReason::StreamUnreachable, "b".into())].contains("trust list"), "{news:?}");
        assert!(news[&(EventReason::HeadIgnored, "c".into())].contains("stays: it has no signature."), "{news:?}");
        assert_eq!(news.len(), 2);
    }

    #[test]
    fn it_is_said_in_time_that_the_ledger_fills_with_heads() {
        let said = |heads| news(&driver::Status { heads, ..driver::Status::default() }, 7_946).into_values().next();
        assert_eq!(said(799), None);
        let text = said(800).unwrap();
        assert!(text.contains("800 heads") && text.contains("cloudmap-mcs purge --cluster ID"), "{text}");
    }

    #[test]
    fn what_lasts_is_said_again_and_what_recurs_is_said_anew() {
        let (began, mut told) = (Instant::now(), Told::default());
        let mut look = |minute: u32, clusters: &[&str]| -> Vec<String> {
            let of = |cluster: &&str| ((EventReason::HeadIgnored, Arc::from(*cluster)), (*cluster).to_owned());
            let due = told.due(began + LOOK * minute, clusters.iter().map(of).collect());
            due.into_iter().map(|(_, text)| text).collect()
        };
        assert!(look(0, &["b"]).is_empty(), "it may be over soon");
        assert_eq!(look(1, &["b"]), ["b"]);
        for minute in 2..31 {
            assert!(look(minute, &["b"]).is_empty(), "it was said {} minutes ago", minute - 1);
        }
        assert_eq!(look(31, &["b", "c"]), ["b"]);
        assert_eq!(look(32, &["c"]), ["c"], "each has its own time");
        assert!(look(33, &["b", "c"]).is_empty());
        assert_eq!(look(34, &["b", "c"]), ["b"], "it was over");
    }

    #[test]
    fn the_lease_lists_connected_clusters_only_where_leaders_talk() {
        let of = |connected: Option<BTreeSet<Arc<str>>>| says(connected.as_ref(), &BTreeMap::new()).streams;
        assert_eq!(of(None), None);
        assert_eq!(of(Some(BTreeSet::new())), Some(String::new()));
        assert_eq!(of(Some(["b".into(), "a".into()].into())), Some("a b".to_owned()));
    }

    #[test]
    fn the_lease_names_clusters_that_are_too_large_and_not_too_many() {
        let refused = |ids: &[&str]| {
            let refused = ids.iter().map(|id| (Arc::from(*id), "it is large".to_owned())).collect();
            says(None, &refused).refused
        };
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&["a", "b"]).as_deref(), Some("a: it is large\nb: it is large"));
        let many: Vec<_> = (0..1_000).map(|n| format!("cluster-{n}")).collect();
        assert!(refused(&many.iter().map(String::as_str).collect::<Vec<_>>()).unwrap().lines().count() <= REFUSED);
    }

    #[tokio::test]
    async fn a_task_that_panics_is_noticed() {
        let (sender, receiver) = watch::channel(0);
        let task = tokio::spawn(async move {
            sender.send_replace(1);
            tokio::task::yield_now().await;
            panic!("as a test");
        });
        ended(Some(receiver)).await;
        assert!(task.await.unwrap_err().is_panic());
        let lookups = gates::Lookups::start(|_, _| async { panic!("as a test") });
        let target = Target { namespace: "shop".into(), service: "web".into() };
        let sought = [(TargetId::new("pod").unwrap(), "i-1".into())].into();
        lookups.ask(Arc::new([(target, Question { http_name: "shop".into(), sought })].into()));
        ended(Some(lookups.answers())).await;
    }
}
