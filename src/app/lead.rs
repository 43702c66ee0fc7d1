//! What the leader runs. It starts again for each identity and each term.

mod reports;

use std::sync::Arc;

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tracing::info;

use self::reports::{LOOK_EVERY, Lasting, reason, rotated, troubles};
use super::{
    credentials::{self, Credentials, News},
    metrics::LeaderMetrics,
};
use annotations::{Directory, Policy};
use api::events::EventReason;
use cli::RunArgs;
use cluster::{
    Caches, ClusterWriter, Leadership,
    events::{self, EventRecord},
    identity::{Identity, Known},
    keys::KeyStore,
    lease::PeerReport,
    record::{HiddenObject, RecordObject},
};
use controller::{ImportRules, Inputs, Membership, Mode, Records, Targets};
use cutover::guard::{self, Outside};
use instances::Naming;
use ledger::{
    driver::{self, sessions::Network},
    limits::MIB,
    news::News as MemberNews,
    trust::{SECRET, Trust},
};
use model::{ClusterId, IpFamily, addresses::Range};
use reachability::{Connect, Probing, probe};

pub(super) struct Leader {
    pub(super) args: RunArgs,
    pub(super) caches: Caches,
    pub(super) writer: Arc<dyn ClusterWriter>,
    pub(super) record: Arc<RecordObject>,
    pub(super) hidden: Arc<HiddenObject>,
    pub(super) keys: KeyStore,
    pub(super) cloudmap: Arc<dyn cloudmap::Write>,
    pub(super) listings: Arc<cloudmap::Listings>,
    pub(super) registries: driver::Registries,
    pub(super) network: Option<Arc<dyn Network>>,
    pub(super) outside: Arc<dyn Outside>,
    /// How it connects to endpoints of other clusters.
    pub(super) endpoints: Arc<dyn Connect>,
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
                self.emit(EventReason::KeyRotated, "Sign", text).await;
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
            self.leadership.publish(PeerReport::default());
        }
    }

    /// Waits until other keys are stored than `known`. After a Secret was deleted and is there again, the term goes on.
    async fn other_keys(&self, known: &Result<Credentials, String>) {
        while credentials::changed(&self.keys, self.args.trust, known).await == News::Restored {
            let text = format!(
                "The Secret {SECRET} was deleted. The leader created it again with the same key. Find out who deleted \
                 it: if no leader runs meanwhile, the key is lost, and all other clusters must accept a new one."
            );
            self.emit(EventReason::KeyRestored, "Sign", text).await;
        }
    }

    /// One term with one identity. Everything that it starts ends with it.
    async fn term(&self, known: Known, credentials: &Result<Credentials, String>) -> &'static str {
        let (identity, membership) = match (known, credentials) {
            (None, _) => return std::future::pending().await,
            // Without its key, no cluster would accept its heads, and it could not distinguish its own head from a forged one.
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

    /// Emits an Event if something is unfavourable about the identity. Never ends.
    async fn warn_of_identity(&self, warning: Option<String>) -> &'static str {
        if let Some(text) = warning {
            self.emit(EventReason::DottedClusterId, "Identify", text).await;
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
                settings.registries = self.registries.clone();
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
                    () = self.publish_peers(status.clone()) => "the ledger",
                    () = self.emit_troubles(status) => "the ledger",
                    () = self.emit_member_news(news) => "the ledger",
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

    /// Publishes with the renewals of the Lease with whose leaders this one is connected, and which clusters are too large.
    async fn publish_peers(&self, mut status: watch::Receiver<Arc<driver::Status>>) {
        let mut published = None;
        // A status comes with every message, and another report only when somebody is connected, cut off or refused.
        loop {
            let is_new = |status: &driver::Status| {
                published.as_ref().is_none_or(|PeerReport { connected, refused }| {
                    (connected, refused) != (&status.connected, &status.refused)
                })
            };
            let news = status.wait_for(|status| is_new(status)).await;
            let Ok(news) = news.map(|status| Arc::clone(&status)) else { return };
            let report = PeerReport { connected: news.connected.clone(), refused: news.refused.clone() };
            self.leadership.publish(report.clone());
            published = Some(report);
        }
    }

    /// Emits Events on the Lease about troubles that no object of a user shows, as long as they last.
    async fn emit_troubles(&self, status: watch::Receiver<Arc<driver::Status>>) {
        let mut lasting = Lasting::default();
        loop {
            sleep(LOOK_EVERY).await;
            // Only a leader may emit Events.
            if !self.leadership.is_leader() {
                continue;
            }
            let troubles = troubles(&status.borrow(), self.args.stream_port);
            for (reason, text) in lasting.due(Instant::now(), troubles) {
                self.emit(reason, "Follow", text).await;
            }
        }
    }

    /// Emits Events on the Lease about clusters that joined, whose keys count, and that are gone.
    async fn emit_member_news(&self, news: Option<mpsc::UnboundedReceiver<MemberNews>>) {
        let Some(mut news) = news else { return std::future::pending().await };
        while let Some(news) = news.recv().await {
            self.emit(reason(&news.what), "Follow", news.to_string()).await;
        }
    }

    /// Emits an Event on the Lease.
    async fn emit(&self, reason: EventReason, action: &'static str, text: String) {
        let regarding = events::lease(&self.args.place.kube.controller.namespace);
        self.writer.emit(EventRecord { regarding, reason, action, text }).await;
    }

    /// Whether this cluster exchanges exports with AWS Cloud Map MCS Controllers.
    const fn is_aws_mcs(&self, identity: &instances::Owner) -> bool {
        self.args.aws_mcs_compat && identity.clusterset.is_some()
    }

    /// What the flags and the identity say of the controller.
    fn controller_settings(&self, identity: instances::Owner) -> controller::ControllerSettings {
        let aws_mcs = self.is_aws_mcs(&identity);
        let naming = match &self.args.instances_namespace {
            Some(namespace) => Naming::OneNamespace(namespace.as_str().into()),
            None => Naming::PerNamespace,
        };
        let import = ImportRules {
            default: self.args.import_from.clone().unwrap_or_default(),
            own: Some(self.args.place.kube.controller.namespace.as_str().into()),
            closed: self.args.closed_namespaces.clone().into(),
            home: self.args.place.aws.home.as_deref().map(Into::into),
            registries: self.registries.names(),
        };
        controller::ControllerSettings {
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
            cluster_selection: self.args.cluster_selectors.clone(),
            probe: self.args.probe == Probing::Auto,
        }
    }

    /// Runs the parts of a leader, until one of them ends. Returns its name.
    async fn control(&self, identity: instances::Owner, records: Records, membership: Membership) -> &'static str {
        let (desired, desired_receiver) = watch::channel(instances::sync::Desired::new());
        // Dropped with the term, which ends the task of the instances.
        let (_stop, stopped) = watch::channel(());
        let ledger = if let Records::Ledger(ledger) = &records { Some(ledger) } else { None };
        let authority = instances::sync::Authority {
            leadership: self.leadership.clone(),
            ledger: ledger.map(driver::LedgerHandle::status),
        };
        let mut settings = instances::sync::SyncSettings::new(identity.clone());
        settings.drift_budget = self.args.drift_calls_per_second;
        if let Some(vpc) = &self.args.create_dns_namespaces {
            settings.missing_namespaces = instances::MissingNamespaces::Private(vpc.clone());
        }
        let (cloudmap, listings) = (Arc::clone(&self.cloudmap), Arc::clone(&self.listings));
        let (hidden, mut stopped) = (Arc::clone(&self.hidden) as _, stopped);
        let stopped = async move { while stopped.changed().await.is_ok() {} };
        let registered =
            instances::sync::spawn(settings, cloudmap, listings, hidden, desired_receiver, authority, stopped);
        let (subscribed, subscribed_receiver) = watch::channel(Arc::default());
        let aws_mcs = self.is_aws_mcs(&identity);
        let calls_per_second = self.args.import_calls_per_second;
        let reader = discovery::DiscoverySettings { identity: identity.clone(), calls_per_second, aws_mcs };
        let others = self.registries.others.iter();
        let others = others.map(|(name, other)| (Arc::clone(name), discovery::Registry::new(Arc::clone(other))));
        let home = discovery::Registry { cloudmap: self.cloudmap.clone(), listings: self.listings.clone() };
        let home = (self.registries.home_name(), home);
        let read = discovery::spawn(&reader, home, others.collect(), subscribed_receiver);
        self.figures.follow(ledger, registered.figures(), read.figures());
        let settings = self.controller_settings(identity);
        let identified = records.mode() != Mode::Unidentified;
        let directory = identified.then(|| Directory::spawn(self.listings.clone()));
        let listing = directory.as_ref().map(Directory::known);
        let publishing = ledger.map(driver::LedgerHandle::status);
        let keeping = if let Records::Local(local) = &records { Some(local.kept()) } else { None };
        let lookups = gates::lookups::spawn(self.cloudmap.clone());
        let guards = guard::spawn(self.cloudmap.clone(), Arc::clone(&self.outside));
        let prober = probe::spawn(Arc::clone(&self.endpoints));
        let (answering, judging, probing) = (lookups.answers(), guards.answers(), prober.answers());
        let inputs = Inputs {
            caches: self.caches.clone(),
            writer: Arc::clone(&self.writer),
            directory,
            lookups,
            guards,
            prober,
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
            () = ended(Some(probing)) => "the connections to endpoints of other clusters",
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

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::objects::TargetId;
    use gates::Question;
    use model::Target;

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
