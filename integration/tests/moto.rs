//! One script of calls through the real SDK runs against the emulator and against moto, the Python mock of AWS, and both
//! have to answer alike.
//!
//! The script stays within what moto 5.2.5 does as AWS does. It leaves out, because moto is known to be wrong there and
//! the emulator's own tests quote the rule: registering an id again, revisions after a deregistration, names that are
//! taken, deleting what is not empty, ARNs as ids, every validation, quotas, paging and filters of lists other than
//! `ListInstances`, `ListOperations`, the initial health, health without a health check, the default of `MaxResults`, and
//! `UpdateService` in an HTTP namespace.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints for whoever runs it"
)]

use std::collections::{BTreeMap, HashMap};
use std::process::Stdio;
use std::time::Duration;

use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_servicediscovery::types::{
    CustomHealthStatus, DnsConfig, DnsConfigChange, DnsRecord, HealthCheckCustomConfig, HealthStatusFilter,
    HttpNamespaceChange, PublicDnsNamespaceChange, RecordType, RoutingPolicy, ServiceChange, Tag,
};
use emulator::{Emulator, EmulatorSettings, sdk_config};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

#[tokio::test]
async fn the_emulator_and_moto_answer_alike() {
    let program = std::env::var("MOTO_SERVER").expect(
        "MOTO_SERVER names moto's moto_server, which `make test` installs (integration/moto.sh does it by hand and prints \
         the path); MOTO_SERVER=skip leaves the comparison out",
    );
    if program == "skip" {
        eprintln!("skipped: MOTO_SERVER=skip, the emulator is not compared with moto");
        return;
    }
    let (mut moto, moto_endpoint) = start_moto(&program).await;
    // Custom health takes effect at once, as in moto.
    let settings = EmulatorSettings { health_delay: Duration::ZERO, ..EmulatorSettings::unthrottled() };
    let emulator = Emulator::start(settings).await.unwrap();

    let ours = Script::run(&emulator.endpoint()).await;
    let theirs = Script::run(&moto_endpoint).await;
    moto.kill().await.unwrap();

    assert!(ours.len() > 60, "the script has {} steps", ours.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "emulator on the left, moto on the right");
    }
    assert_eq!(ours.len(), theirs.len());
}

/// Starts moto on a free port of the loopback interface; it is killed when the handle is dropped.
async fn start_moto(program: &str) -> (Child, String) {
    let mut child = Command::new(program)
        .args(["-H", "127.0.0.1", "-p", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("failed to start MOTO_SERVER={program}: {error}"));
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let endpoint = tokio::time::timeout(Duration::from_mins(10), async {
        let mut seen = Vec::new();
        while let Some(line) = lines.next_line().await.unwrap() {
            if let Some((_, address)) = line.split_once("Running on ") {
                return address.split_whitespace().next().unwrap().to_owned();
            }
            seen.push(line);
        }
        panic!("moto ended without serving: {}", seen.join("\n"));
    });
    let endpoint = endpoint.await.expect("moto serves within ten minutes");
    // It logs every request: what is not read would block it.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, endpoint)
}

/// Attributes to look for.
type Pairs<'a> = &'a [(&'a str, &'a str)];

/// A run of the script. Ids in the transcript are replaced by names.
struct Script {
    client: Client,
    names: BTreeMap<String, &'static str>,
    transcript: Vec<(&'static str, Value)>,
}

/// What a refused call says: its error code.
fn code<T: std::fmt::Debug, E: ProvideErrorMetadata + std::fmt::Debug>(answer: Result<T, SdkError<E>>) -> Value {
    match answer {
        Err(SdkError::ServiceError(error)) => json!(error.err().code()),
        Err(error) => panic!("no answer: {error:?}"),
        Ok(answer) => json!(format!("{answer:?}")),
    }
}

fn sorted<T: Into<Value>>(items: impl IntoIterator<Item = T>) -> Value {
    let mut items: Vec<Value> = items.into_iter().map(Into::into).collect();
    items.sort_by_key(ToString::to_string);
    Value::Array(items)
}

fn sorted_map(map: Option<&HashMap<String, String>>) -> Value {
    json!(map.map(|map| map.iter().collect::<BTreeMap<_, _>>()))
}

impl Script {
    async fn run(endpoint: &str) -> Vec<(&'static str, Value)> {
        let client = Client::from_conf(sdk_config(endpoint, "tester"));
        let mut script = Self { client, names: BTreeMap::new(), transcript: Vec::new() };
        script.namespaces().await;
        script.services().await;
        script.service_attributes().await;
        script.tags().await;
        script.instances().await;
        script.discovery().await;
        script.health().await;
        script.what_does_not_exist().await;
        script.deletion().await;
        script.transcript
    }

    fn note(&mut self, step: &'static str, value: Value) {
        self.transcript.push((step, value));
    }

    /// The id that was given a name.
    fn id(&self, name: &str) -> String {
        let found = self.names.iter().find(|(_, known)| **known == name);
        found.unwrap_or_else(|| panic!("{name} was not created")).0.clone()
    }

    fn name(&self, id: Option<&str>) -> Value {
        json!(id.map(|id| self.names.get(id).copied().unwrap_or("unknown")))
    }

    /// Notes type, status and targets of an operation. Targets are compared as far as moto has them.
    async fn operation(&mut self, step: &'static str, id: Option<&str>, target: &str) -> String {
        let operation = self.client.get_operation().operation_id(id.unwrap()).send().await.unwrap().operation.unwrap();
        let value = json!([operation.r#type().unwrap().as_str(), operation.status().unwrap().as_str()]);
        self.note(step, value);
        operation.targets().unwrap()[&target.into()].clone()
    }

    async fn namespace(&mut self, step: &'static str, name: &str) {
        let found = self.client.get_namespace().id(self.id(name)).send().await.unwrap().namespace.unwrap();
        let http_name = found.properties().and_then(|properties| properties.http_properties()?.http_name());
        let arn_ends_with_id = found.arn().unwrap().ends_with(&format!(":namespace/{}", found.id().unwrap()));
        let value = json!({
            "id": self.name(found.id()),
            "arn": arn_ends_with_id,
            "name": found.name(),
            "type": found.r#type().map(aws_sdk_servicediscovery::types::NamespaceType::as_str),
            "description": found.description(),
            "creator": found.creator_request_id(),
            "dated": found.create_date().is_some(),
            // moto gives private namespaces no HttpName.
            "http_name": http_name.filter(|_| found.r#type().unwrap().as_str() == "HTTP"),
        });
        self.note(step, value);
    }

    async fn namespaces(&mut self) {
        let create = self.client.create_http_namespace().name("apps").creator_request_id("me").description("first");
        let created = create.send().await.unwrap();
        let id = self.operation("create http", created.operation_id(), "NAMESPACE").await;
        self.names.insert(id, "apps");
        self.namespace("http namespace", "apps").await;
        let create = self.client.create_private_dns_namespace().name("local").vpc("vpc-1").creator_request_id("me");
        let created = create.description("second").send().await.unwrap();
        let id = self.operation("create private", created.operation_id(), "NAMESPACE").await;
        self.names.insert(id, "local");
        self.namespace("private namespace", "local").await;
        let create = self.client.create_public_dns_namespace().name("example.com").creator_request_id("me");
        let created = create.description("third").send().await.unwrap();
        let id = self.operation("create public", created.operation_id(), "NAMESPACE").await;
        self.names.insert(id, "public");
        self.namespace("public namespace", "public").await;

        let change = HttpNamespaceChange::builder().description("changed").build().unwrap();
        self.client.update_http_namespace().id(self.id("apps")).namespace(change).send().await.unwrap();
        self.namespace("changed http namespace", "apps").await;
        let change = PublicDnsNamespaceChange::builder().description("changed").build();
        let updated = self.client.update_public_dns_namespace().id(self.id("public")).namespace(change).send().await;
        self.operation("update public", updated.unwrap().operation_id(), "NAMESPACE").await;
        self.namespace("changed public namespace", "public").await;
        let listed = self.client.list_namespaces().send().await.unwrap();
        let found = listed.namespaces().iter().map(|found| {
            json!([self.name(found.id()), found.name(), found.r#type().unwrap().as_str(), found.description()])
        });
        let found = sorted(found);
        self.note("list namespaces", found);
    }

    async fn service(&mut self, step: &'static str, name: &str) {
        let found = self.client.get_service().id(self.id(name)).send().await.unwrap().service.unwrap();
        let dns = found.dns_config().filter(|dns| !dns.dns_records().is_empty()).map(|dns| {
            let records = dns.dns_records().iter().map(|record| json!([record.r#type().as_str(), record.ttl()]));
            json!([dns.routing_policy().unwrap().as_str(), sorted(records)])
        });
        let arn_ends_with_id = found.arn().unwrap().ends_with(&format!(":service/{}", found.id().unwrap()));
        let value = json!({
            "id": self.name(found.id()),
            "arn": arn_ends_with_id,
            "name": found.name(),
            "namespace": self.name(found.namespace_id()),
            "description": found.description(),
            "creator": found.creator_request_id(),
            "dns": dns,
            "route 53 check": found.health_check_config().is_some(),
            "custom check": found.health_check_custom_config().is_some(),
            "dated": found.create_date().is_some(),
        });
        self.note(step, value);
    }

    async fn services(&mut self) {
        let create = |namespace: &str, name: &str| {
            let request = self.client.create_service().namespace_id(self.id(namespace)).name(name);
            request.creator_request_id(format!("creator of {name}"))
        };
        let plain = create("apps", "plain").description("d").send().await.unwrap();
        let custom = HealthCheckCustomConfig::builder().build();
        let checked = create("apps", "checked").health_check_custom_config(custom).send().await.unwrap();
        let record = |kind, ttl| DnsRecord::builder().r#type(kind).ttl(ttl).build().unwrap();
        let config = DnsConfig::builder().routing_policy(RoutingPolicy::Weighted);
        let config = config.dns_records(record(RecordType::A, 60)).dns_records(record(RecordType::Aaaa, 30));
        let dns = create("local", "dns").dns_config(config.build().unwrap()).send().await.unwrap();
        let api_only = create("local", "api-only").r#type("HTTP".into()).send().await.unwrap();
        for (created, name) in [(plain, "plain"), (checked, "checked"), (dns, "dns"), (api_only, "api-only")] {
            self.names.insert(created.service.unwrap().id.unwrap(), name);
        }
        for name in ["plain", "checked", "dns", "api-only"] {
            self.service("service", name).await;
        }
        let listed = self.client.list_services().send().await.unwrap();
        let found = sorted(listed.services().iter().map(|found| json!([self.name(found.id()), found.name()])));
        self.note("list services", found);

        let records = DnsConfigChange::builder().dns_records(record(RecordType::A, 5)).build().unwrap();
        let change = ServiceChange::builder().description("changed").dns_config(records).build();
        let updated = self.client.update_service().id(self.id("dns")).service(change).send().await.unwrap();
        let target = self.operation("update service", updated.operation_id(), "SERVICE").await;
        let target = self.name(Some(&target));
        self.note("updated service", target);
        self.service("service with one record", "dns").await;
        let change = ServiceChange::builder().description("bare").build();
        self.client.update_service().id(self.id("dns")).service(change).send().await.unwrap();
        self.service("service without records", "dns").await;
    }

    async fn service_attributes(&mut self) {
        let id = self.id("plain");
        let update = |pairs: HashMap<String, String>| {
            self.client.update_service_attributes().service_id(&id).set_attributes(Some(pairs)).send()
        };
        let pairs = |range: std::ops::Range<u32>, value: &str| -> HashMap<_, _> {
            range.map(|n| (format!("key-{n}"), value.to_owned())).collect()
        };
        update(pairs(0..3, "old")).await.unwrap();
        update(pairs(2..5, "new")).await.unwrap();
        let too_many = code(update(pairs(5..31, "v")).await);
        let get = async || {
            let found = self.client.get_service_attributes().service_id(&id).send().await.unwrap();
            sorted_map(found.service_attributes().unwrap().attributes())
        };
        let merged = get().await;
        let delete = self.client.delete_service_attributes().service_id(&id).attributes("key-0").attributes("none");
        delete.send().await.unwrap();
        let left = get().await;
        self.note("too many service attributes", too_many);
        self.note("merged service attributes", merged);
        self.note("service attributes left", left);
    }

    async fn tags(&mut self) {
        let arn = self.client.get_service().id(self.id("plain")).send().await.unwrap().service.unwrap().arn.unwrap();
        let tag = |key: &str, value: &str| Tag::builder().key(key).value(value).build().unwrap();
        let add = self.client.tag_resource().resource_arn(&arn).tags(tag("a", "1")).tags(tag("b", ""));
        add.send().await.unwrap();
        self.client.tag_resource().resource_arn(&arn).tags(tag("a", "2")).send().await.unwrap();
        let list = async |client: &Client| {
            let found = client.list_tags_for_resource().resource_arn(&arn).send().await.unwrap();
            sorted(found.tags().iter().map(|tag| json!([tag.key(), tag.value()])))
        };
        let tags = list(&self.client).await;
        self.note("tags", tags);
        self.client.untag_resource().resource_arn(&arn).tag_keys("a").send().await.unwrap();
        let tags = list(&self.client).await;
        self.note("tags left", tags);
    }

    async fn register(&mut self, service: &str, instance: &str, attributes: &[(&str, &str)]) {
        let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let request = self.client.register_instance().service_id(self.id(service)).instance_id(instance);
        let request = request.set_attributes(Some(attributes)).creator_request_id(format!("creator of {instance}"));
        let registered = request.send().await.unwrap();
        let target = self.operation("register", registered.operation_id(), "INSTANCE").await;
        self.note("registered instance", json!(target));
    }

    async fn instances(&mut self) {
        let revision = self.revision("plain").await;
        self.register("plain", "a", &[("version", "v1"), ("zone", "1a")]).await;
        let moved = self.revision("plain").await > revision;
        self.note("a registration moves the revision", json!(moved));
        self.register("plain", "b", &[("version", "v1"), ("zone", "1b"), ("AWS_INSTANCE_PORT", "80")]).await;
        self.register("plain", "c", &[("version", "v2"), ("zone", "1a"), ("AWS_INSTANCE_IPV4", "192.0.2.1")]).await;
        for id in ["a", "b", "c"] {
            let found = self.client.get_instance().service_id(self.id("plain")).instance_id(id).send().await.unwrap();
            let found = found.instance.unwrap();
            let value = json!([found.id(), sorted_map(found.attributes()), found.creator_request_id()]);
            self.note("instance", value);
        }
        let mut pages =
            self.client.list_instances().service_id(self.id("plain")).max_results(2).into_paginator().send();
        let (mut sizes, mut found) = (Vec::new(), Vec::new());
        while let Some(page) = pages.try_next().await.unwrap() {
            sizes.push(page.instances().len());
            found.extend(page.instances().iter().map(|i| json!([i.id(), sorted_map(i.attributes())])));
        }
        self.note("list instances", json!([sizes, sorted(found)]));
    }

    async fn revision(&self, service: &str) -> i64 {
        let request = self.client.discover_instances_revision().namespace_name("apps").service_name(service);
        request.send().await.unwrap().instances_revision().unwrap()
    }

    async fn discovery(&mut self) {
        let cases: [(Pairs, Pairs); 7] = [
            (&[], &[]),
            (&[("version", "v1")], &[]),
            (&[("version", "v1"), ("zone", "1a")], &[]),
            (&[("version", "v3")], &[]),
            (&[("version", "v1")], &[("zone", "1b")]),
            (&[("version", "v2")], &[("zone", "1b")]),
            (&[], &[("zone", "1a")]),
        ];
        for (query, optional) in cases {
            let mut request = self.client.discover_instances().namespace_name("apps").service_name("plain");
            for (key, value) in query {
                request = request.query_parameters(*key, *value);
            }
            for (key, value) in optional {
                request = request.optional_parameters(*key, *value);
            }
            let request = request.health_status(HealthStatusFilter::All).max_results(1000);
            let found = request.send().await.unwrap();
            let found = found.instances().iter().map(|found| {
                let attributes = sorted_map(found.attributes());
                json!([found.instance_id(), found.namespace_name(), found.service_name(), attributes])
            });
            self.note("discover", json!([query, optional, sorted(found)]));
        }
        let some = self.client.discover_instances().namespace_name("apps").service_name("plain").max_results(2);
        let count = some.health_status(HealthStatusFilter::All).send().await.unwrap().instances().len();
        self.note("discover two", json!(count));
        let empty = self.client.discover_instances().namespace_name("local").service_name("dns").max_results(2);
        let count = empty.health_status(HealthStatusFilter::All).send().await.unwrap().instances().len();
        self.note("discover none", json!(count));
    }

    async fn health(&mut self) {
        self.register("checked", "up", &[("k", "v")]).await;
        self.register("checked", "down", &[("k", "v")]).await;
        self.filters("all are up").await;
        for (instance, step) in [("down", "one is down"), ("up", "both are down")] {
            let request = self.client.update_instance_custom_health_status().service_id(self.id("checked"));
            request.instance_id(instance).status(CustomHealthStatus::Unhealthy).send().await.unwrap();
            self.filters(step).await;
        }
        let request = self.client.update_instance_custom_health_status().service_id(self.id("checked"));
        request.instance_id("up").status(CustomHealthStatus::Healthy).send().await.unwrap();
        self.filters("one is up again").await;
        let one = self.client.get_instances_health_status().service_id(self.id("checked")).instances("down");
        let one = one.send().await.unwrap();
        let value = sorted(one.status().unwrap().iter().map(|(id, status)| json!([id, status.as_str()])));
        self.note("health of one", value);
    }

    async fn filters(&mut self, step: &'static str) {
        let all = self.client.get_instances_health_status().service_id(self.id("checked")).send().await.unwrap();
        let statuses = sorted(all.status().unwrap().iter().map(|(id, status)| json!([id, status.as_str()])));
        let mut found = Vec::new();
        for filter in ["ALL", "HEALTHY", "UNHEALTHY", "HEALTHY_OR_ELSE_ALL"] {
            let request = self.client.discover_instances().namespace_name("apps").service_name("checked");
            let discovered = request.health_status(filter.into()).max_results(10).send().await.unwrap();
            let instances = discovered.instances().iter();
            found.push(sorted(instances.map(|i| json!([i.instance_id(), i.health_status().unwrap().as_str()]))));
        }
        self.note(step, json!([statuses, found]));
    }

    async fn what_does_not_exist(&mut self) {
        let c = &self.client;
        let (plain, none) = (self.id("plain"), "srv-none");
        let change = HttpNamespaceChange::builder().description("d").build().unwrap();
        let discover = |namespace: &str, service: &str| {
            c.discover_instances().namespace_name(namespace).service_name(service).max_results(10).send()
        };
        let revision = |namespace: &str, service: &str| {
            c.discover_instances_revision().namespace_name(namespace).service_name(service).send()
        };
        let register = c.register_instance().service_id(none).instance_id("a").attributes("k", "v");
        let update = c.update_service().id(none).service(ServiceChange::builder().build());
        let status = c.update_instance_custom_health_status().service_id(self.id("checked")).instance_id("none");
        let attributes = c.update_service_attributes().service_id(none).attributes("k", "v");
        let wrong = c.discover_instances().namespace_name("apps").service_name("plain").health_status("SICK".into());
        let codes = [
            code(c.get_namespace().id("ns-none").send().await),
            code(c.delete_namespace().id("ns-none").send().await),
            code(c.update_http_namespace().id("ns-none").namespace(change).send().await),
            code(c.get_service().id(none).send().await),
            code(update.send().await),
            code(c.list_instances().service_id(none).send().await),
            code(register.send().await),
            code(c.deregister_instance().service_id(none).instance_id("a").send().await),
            code(c.deregister_instance().service_id(&plain).instance_id("none").send().await),
            code(c.get_instance().service_id(none).instance_id("a").send().await),
            code(c.get_instance().service_id(&plain).instance_id("none").send().await),
            code(c.get_instances_health_status().service_id(none).send().await),
            code(status.status(CustomHealthStatus::Healthy).send().await),
            code(c.get_service_attributes().service_id(none).send().await),
            code(attributes.send().await),
            code(c.delete_service_attributes().service_id(none).attributes("k").send().await),
            code(c.get_operation().operation_id("none").send().await),
            code(discover("none", "plain").await),
            code(discover("apps", "none").await),
            code(revision("none", "plain").await),
            code(revision("apps", "none").await),
            code(wrong.send().await),
        ];
        for code in codes {
            self.note("error", code);
        }
    }

    async fn deletion(&mut self) {
        for (service, instances) in [("plain", ["a", "b", "c"].as_slice()), ("checked", &["up", "down"])] {
            for instance in instances {
                let request = self.client.deregister_instance().service_id(self.id(service)).instance_id(*instance);
                let deregistered = request.send().await.unwrap();
                let target = self.operation("deregister", deregistered.operation_id(), "INSTANCE").await;
                let found = self.client.list_instances().service_id(self.id(service)).send().await.unwrap();
                let left = sorted(found.instances().iter().map(|found| json!(found.id())));
                self.note("deregistered", json!([target, left]));
            }
        }
        for service in ["plain", "checked", "dns", "api-only"] {
            self.client.delete_service().id(self.id(service)).send().await.unwrap();
            let gone = code(self.client.get_service().id(self.id(service)).send().await);
            self.note("deleted service", gone);
        }
        for namespace in ["apps", "local", "public"] {
            let deleted = self.client.delete_namespace().id(self.id(namespace)).send().await.unwrap();
            let target = self.operation("delete namespace", deleted.operation_id(), "NAMESPACE").await;
            let gone = code(self.client.get_namespace().id(self.id(namespace)).send().await);
            let value = json!([self.name(Some(&target)), gone]);
            self.note("deleted namespace", value);
        }
        let left = self.client.list_namespaces().send().await.unwrap().namespaces().len();
        self.note("namespaces left", json!(left));
    }
}
