//! A cluster in memory, and what a test does and sees there.

use super::*;

pub(in crate::tests) struct Cluster {
    pub(in crate::tests) id: String,
    pub(super) uid: String,
    pub(in crate::tests) objects: Arc<MemoryCluster>,
    pub(super) caches: Caches,
    pub(super) fake: Fake,
    pub(super) registries: driver::Registries,
    pub(super) callers: Arc<Callers>,
    pub(in crate::tests) machine: Arc<dyn env::Machine>,
    pub(super) record: Arc<Stored>,
    pub(super) leader: Option<JoinHandle<()>>,
    /// Heeded by those that lead from now on.
    pub(in crate::tests) export_namespaces: Option<NamespaceSelector>,
    pub(in crate::tests) naming: DerivedNaming,
    pub(in crate::tests) stale_ttl: Option<Duration>,
    /// It has a ClusterSet id.
    pub(in crate::tests) member: bool,
    pub(in crate::tests) annotations: annotations::AnnotationSettings,
    pub(in crate::tests) instances: Selection,
    /// `--aws-mcs-compat`
    pub(in crate::tests) aws_mcs: bool,
    pub(in crate::tests) registration: RegistrationPolicy,
    pub(in crate::tests) quota: Quota,
    /// `--hide-tasks`
    pub(in crate::tests) hide_tasks: bool,
    /// `--create-dns-namespaces`
    pub(in crate::tests) missing_namespaces: instances::MissingNamespaces,
    /// `--settle`
    pub(in crate::tests) settle: Settle,
    pub(in crate::tests) hidden: Arc<StoredHidden>,
    pub(super) metrics: Metrics,
    /// What its process shows, whether it leads or not.
    pub(super) exposed: prometheus::Registry,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Cluster {
    /// Ends the process that leads, in the middle of whatever it does.
    pub(in crate::tests) fn kill(&mut self) {
        if let Some(leader) = self.leader.take() {
            leader.abort();
        }
    }

    /// Starts a process that leads with this home, and reads these registries beside it.
    pub(in crate::tests) fn move_to(&mut self, name: &str, home: &World, others: &[(&str, &World)]) {
        self.kill();
        let others = others.iter().map(|(name, at)| ((*name).into(), Arc::new(at.fake.clone()) as _)).collect();
        self.registries = driver::Registries { home: name.into(), others };
        self.fake = home.fake.clone();
        self.lead();
    }

    /// Starts a process that leads, as `app` does it.
    pub(in crate::tests) fn lead(&mut self) {
        let cluster = self.id.parse().unwrap();
        let clusterset = self.member.then(|| "prod".parse().unwrap());
        let identity = instances::Owner { clusterset, cluster, cluster_uid: self.uid.as_str().into() };
        let (annotations, policy) = (self.annotations.clone(), self.instances);
        let (objects, caches, fake, record) =
            (Arc::clone(&self.objects), self.caches.clone(), Arc::new(self.fake.clone()), Arc::clone(&self.record));
        let (export_namespaces, stale_ttl, member) = (self.export_namespaces.clone(), self.stale_ttl, self.member);
        let (callers, registries) = (Arc::clone(&self.callers), self.registries.clone());
        let all_registries = registries.clone();
        let (hide_tasks, hidden, metrics) = (self.hide_tasks, Arc::clone(&self.hidden), self.metrics.clone());
        let (settle, missing_namespaces) = (self.settle, self.missing_namespaces.clone());
        let (aws_mcs, registration, quota, derived) =
            (self.aws_mcs, self.registration, self.quota, self.naming.clone());
        self.leader = Some(tokio::spawn(env::on(&self.machine, async move {
            let leadership = Leadership::manual(Some(Instant::now() + Duration::from_hours(10_000)));
            let records = if let Some(clusterset) = identity.clusterset.clone() {
                let mut settings =
                    driver::LedgerSettings::new(identity.cluster.clone(), clusterset, &*identity.cluster_uid);
                (settings.stale_ttl, settings.registries) = (stale_ttl, registries);
                Records::Ledger(driver::spawn(settings, fake.clone(), record, leadership.clone(), pending()))
            } else {
                let uid = &identity.cluster_uid;
                Records::Local(driver::local::spawn(record, leadership.clone(), fake.clone(), uid, None, || true))
            };
            let ledger = if let Records::Ledger(ledger) = &records { Some(ledger.status()) } else { None };
            let (desired, receiver) = tokio::sync::watch::channel(instances::sync::Desired::new());
            let listings = Listings::new(fake.clone());
            let (_stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let registered = instances::sync::spawn(
                instances::sync::SyncSettings {
                    missing_namespaces,
                    ..instances::sync::SyncSettings::new(identity.clone())
                },
                fake.clone(),
                listings.clone(),
                hidden,
                receiver,
                instances::sync::Authority { leadership, ledger },
                async move { drop(stopped.await) },
            );
            let (subscribed, subscribed_receiver) = tokio::sync::watch::channel(Arc::default());
            let (_ranges, service_ranges) = tokio::sync::watch::channel([Range::parse("10.96.0.0/16").unwrap()].into());
            let reader =
                ::discovery::DiscoverySettings { aws_mcs, ..::discovery::DiscoverySettings::new(identity.clone()) };
            let others = all_registries.others.iter();
            let others = others.map(|(name, other)| (Arc::clone(name), ::discovery::Registry::new(Arc::clone(other))));
            let home = ::discovery::Registry { cloudmap: fake.clone(), listings: listings.clone() };
            let home = (all_registries.home_name(), home);
            let read = ::discovery::spawn(&reader, home, others.collect(), subscribed_receiver);
            let (naming, of) = (Naming::PerNamespace, identity.clone());
            let targets = Targets { policy, naming, identity: of, region: None, aws_mcs, zones: None };
            let inputs = Inputs {
                caches,
                writer: objects,
                membership: Membership::Joining(if member {
                    "The controller is starting.".to_owned()
                } else {
                    "This cluster is in no ClusterSet.".to_owned()
                }),
                records,
                directory: Some(annotations::Directory::spawn(listings)),
                guards: guard::spawn(fake.clone(), callers),
                prober: ::reachability::probe::spawn(Arc::new(::reachability::Tcp)),
                lookups: ::gates::lookups::spawn(fake),
                instances: desired,
                statuses: registered.status(),
                subscribed,
                found: read.found(),
                service_ranges,
                metrics,
            };
            let settings = ControllerSettings {
                cluster: identity.cluster,
                concurrency: 4,
                targets,
                annotations,
                registration,
                quota,
                claim_delay: Duration::from_secs(10),
                export_namespaces,
                import: ImportRules {
                    own: Some("cloudmap-mcs-system".into()),
                    closed: ["default".to_owned()].into(),
                    registries: all_registries.names(),
                    ..ImportRules::default()
                },
                families: vec![IpFamily::V4],
                derived,
                gate_timeout: Duration::from_mins(5),
                hide_tasks,
                settle,
                type_notice: Duration::from_mins(15),
                cluster_selection: api::selection::ClusterSelection::spread(),
                probe: true,
            };
            Box::pin(run(settings, inputs)).await;
        })));
    }

    /// Whether the metrics page has this line.
    pub(in crate::tests) fn shows(&self, line: &str) -> bool {
        let page = prometheus::TextEncoder::new().encode_to_string(&self.exposed.gather()).unwrap();
        page.lines().any(|there| there == line)
    }

    /// Waits until another cluster's head was read, by an export that comes and goes.
    pub(in crate::tests) async fn until_knows(&self, other: &Self) {
        other.export("known", 80, &[]);
        self.until_imports("known", &[]).await;
        other.objects.remove_export(&key("known"));
        until("it is gone", || self.is_clean("known")).await;
    }

    /// As `cloudmap-mcs leave` does it, or takes it back.
    pub(in crate::tests) fn set_leaving(&self, leaving: bool) {
        let mut held = self.record.0.lock().unwrap();
        let (record, version) = held.as_mut().unwrap();
        record.leaving = leaving;
        *version += 1;
    }

    /// Somebody deletes the ledger's record.
    pub(in crate::tests) fn lose_record(&self) {
        self.record.0.lock().unwrap().take();
    }

    /// Whether the API server refuses to store the ledger's record.
    pub(in crate::tests) fn refuse_record(&self, refuse: bool) {
        self.record.1.store(refuse, std::sync::atomic::Ordering::SeqCst);
    }

    pub(in crate::tests) fn put_service(&self, name: &str, port: u16) {
        let service: core::Service = serde_json::from_value(json!({
            "metadata": {"namespace": "shop", "name": name},
            "spec": {
                "clusterIP": "10.96.200.1", "clusterIPs": ["10.96.200.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "selector": {"app": name},
                "ports": [{"name": "http", "protocol": "TCP", "port": port}],
            },
        }))
        .unwrap();
        self.objects.put_service(service);
    }

    /// The endpoints of a Service, all ready.
    pub(in crate::tests) fn put_endpoints(&self, name: &str, addresses: &[&str]) {
        let endpoints: Vec<_> = addresses.iter().map(|&address| (address, true)).collect();
        self.put_readiness(name, &endpoints);
    }

    /// The endpoints of a Service, and whether they are ready.
    pub(in crate::tests) fn put_readiness(&self, name: &str, endpoints: &[(&str, bool)]) {
        let pod = |address: &str| json!({"kind": "Pod", "namespace": "shop", "name": address});
        let row = |(address, ready): &(&str, bool)| json!({"addresses": [address], "conditions": {"ready": ready}, "targetRef": pod(address)});
        let endpoints: Vec<_> = endpoints.iter().map(row).collect();
        let slice: discovery::EndpointSlice = serde_json::from_value(json!({
            "metadata": {
                "namespace": "shop", "name": format!("{name}-1"),
                "labels": {names::LABEL_KUBERNETES_SERVICE_NAME: name, names::LABEL_SLICE_MANAGED_BY: "endpointslice-controller.k8s.io"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
            "endpoints": endpoints,
        }))
        .unwrap();
        self.objects.put_slice(slice);
    }

    /// A ServiceExport; one that is there keeps its status, as an API server does it.
    pub(in crate::tests) fn put_export(&self, name: &str, annotations: &[(&str, &str)]) {
        let annotations: serde_json::Map<_, _> =
            annotations.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let export: api::ServiceExport = serde_json::from_value(json!({
            "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
            "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
        }))
        .unwrap();
        let status = self.objects.export(&key(name)).and_then(|there| there.status);
        self.objects.put_export(api::ServiceExport { status, ..export });
    }

    /// A Service with endpoints, and its ServiceExport.
    pub(in crate::tests) fn export(&self, name: &str, port: u16, addresses: &[&str]) {
        self.put_service(name, port);
        self.put_endpoints(name, addresses);
        self.put_export(name, &[]);
    }

    /// Status and reason of a condition of a ServiceExport.
    pub(in crate::tests) fn says(&self, name: &str, type_: &str) -> (String, String) {
        self.condition(name, type_).map(|condition| (condition.status, condition.reason)).unwrap_or_default()
    }

    pub(in crate::tests) fn condition(&self, name: &str, type_: &str) -> Option<Condition> {
        let conditions = self.objects.export(&key(name))?.status?.conditions;
        conditions.into_iter().find(|condition| condition.type_ == type_)
    }

    /// A condition of a ServiceImport.
    pub(in crate::tests) fn import_condition(&self, name: &str, type_: &str) -> Option<Condition> {
        let conditions = self.objects.import(&key(name))?.status?.conditions;
        conditions.into_iter().find(|condition| condition.type_ == type_)
    }

    /// The clusters that an import comes from, and those that its slices name as their sources.
    pub(in crate::tests) fn sources(&self, name: &str) -> [BTreeSet<String>; 2] {
        let status = self.objects.import(&key(name)).and_then(|import| import.status).unwrap_or_default();
        let label =
            |slice: discovery::EndpointSlice| slice.metadata.labels.unwrap()[names::LABEL_SOURCE_CLUSTER].clone();
        [status.clusters.into_iter().map(|status| status.cluster).collect(), self.slices(name).map(label).collect()]
    }

    pub(in crate::tests) async fn until_says(&self, name: &str, type_: &str, status: &str, reason: &str) {
        let what = format!("{} {name} {type_}={status} {reason}", self.id);
        let wanted = (status.to_owned(), reason.to_owned());
        until(&what, || {
            let said = self.says(name, type_);
            said == wanted
        })
        .await;
    }

    pub(in crate::tests) fn slices(&self, name: &str) -> impl Iterator<Item = discovery::EndpointSlice> {
        let is_of = move |slice: &discovery::EndpointSlice| {
            let labels = slice.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(names::LABEL_SERVICE_NAME)).is_some_and(|of| of == name)
        };
        self.objects.slices().into_iter().filter(is_of)
    }

    /// The addresses of a name's imported slices, sorted.
    pub(in crate::tests) fn imported(&self, name: &str) -> Vec<String> {
        let mut addresses: Vec<_> =
            self.slices(name).flat_map(|slice| slice.endpoints).flat_map(|endpoint| endpoint.addresses).collect();
        addresses.sort();
        addresses
    }

    /// Waits until a name is imported, with these addresses in its slices.
    pub(in crate::tests) async fn until_imports(&self, name: &str, addresses: &[&str]) {
        until(&format!("{} imports {name} with {addresses:?}", self.id), || {
            self.objects.import(&key(name)).is_some_and(|import| import.status.is_some())
                && self.imported(name) == addresses
        })
        .await;
    }

    pub(in crate::tests) fn derived(&self, name: &str) -> Option<core::Service> {
        let derived = hashed(&key(name));
        self.objects.services().into_iter().find(|service| service.metadata.name.as_ref() == Some(&derived))
    }

    /// Nothing of an import is there.
    pub(in crate::tests) fn is_clean(&self, name: &str) -> bool {
        self.objects.import(&key(name)).is_none() && self.derived(name).is_none() && self.imported(name).is_empty()
    }

    /// The uids of all that the import made for a name: equal ones mean that nothing was deleted and made again.
    pub(in crate::tests) fn uids(&self, name: &str) -> Vec<Option<String>> {
        let import = self.objects.import(&key(name)).map(|import| import.metadata.uid);
        let derived = self.derived(name).map(|service| service.metadata.uid);
        let slices = self.slices(name).map(|slice| slice.metadata.uid);
        import.into_iter().chain(derived).chain(slices).collect()
    }
}
