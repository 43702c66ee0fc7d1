mod manifests;
mod observed;
mod plans;
mod rooms;
mod tasks;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use clap::Parser as _;
use serde_json::{Value, json};

use super::{
    finish::{check, commands},
    observe::{counterpart, summed, there},
    plan::{Grade, plan, text},
    situation::{CloudMapService, Cluster, Counterpart, Pods, Room, Situation, Stop},
    *,
};
use crate::installed::Settings;
use api::CutoverSpec;
use cli::{Cli, Command};
use cloudmap::{
    Discovery, DnsConfig, DnsRecord, Instance, NamespaceKind, RecordType,
    fake::{Fake, mk_service},
};
use cluster::fake_api::FakeApi;
use ecs::{Found, fake};
use iam::{Mode, statements};
use instances::share::Others;
use model::Target;

const ARN: &str = "arn:aws:servicediscovery:eu-central-1:111122223333:service/srv-aaaaaaaaaaaaaaaa";

fn instance(id: &str, attributes: &[(&str, &str)]) -> Instance {
    let attributes = attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Instance { id: id.into(), attributes }
}

/// Cloud Map with so many tasks of ECS, and a pod that is not healthy.
fn registry(tasks: u8, ttl: u32) -> CloudMapService {
    let task = |n: u8| {
        let address = format!("192.0.2.{n}");
        let attributes = [
            ("AWS_INSTANCE_IPV4", &*address),
            ("AWS_INSTANCE_PORT", "8080"),
            ("ECS_CLUSTER_NAME", "prod"),
            ("ECS_SERVICE_NAME", "orders"),
        ];
        instance(&format!("task-{n}"), &attributes)
    };
    let mut instances: Vec<_> = (0..tasks).map(task).collect();
    instances.push(instance("pod", &[("AWS_INSTANCE_IPV4", "192.0.2.99"), ("CLOUDMAP_MCS_CLUSTER_UID", "u")]));
    instances.push(instance("ill", &[("AWS_INSTANCE_IPV4", "192.0.2.98"), ("ECS_SERVICE_NAME", "other")]));
    let discovery = Discovery { instances, unhealthy: ["ill".into(), "pod".into()].into(), truncated: false };
    let records = vec![DnsRecord { record_type: RecordType::A, ttl }];
    let dns = Some(DnsConfig { weighted: false, records });
    let (id, arn, instances) = ("srv-aaaaaaaaaaaaaaaa".into(), ARN.into(), Some(discovery.instances.len()));
    let service = cloudmap::Service { id, arn, dns, custom_health_check: true, instances, ..mk_service() };
    CloudMapService { room: Some(room(instances)), ..there(service, &discovery) }
}

/// A private namespace with so many instances.
fn room(instances: Option<usize>) -> Room {
    let namespace = cloudmap::Namespace {
        id: "ns-aaaaaaaaaaaaaaaa".into(),
        arn: "arn:aws:servicediscovery:eu-central-1:111122223333:namespace/ns-aaaaaaaaaaaaaaaa".into(),
        name: "internal".into(),
        http_name: "internal".into(),
        kind: NamespaceKind::DnsPrivate,
        description: None,
        created: 0,
        soa_ttl: Some(15),
        hosted_zone: Some("Z0123456789ABCDEFGHIJ".into()),
    };
    Room { namespace, instances }
}

fn pods(ready: usize) -> Pods {
    Pods {
        ready,
        addresses: ["192.0.2.101".parse().unwrap()].into(),
        gated: ready,
        containers: stopping([("orders", 120, None)]),
        grace: 150,
        workload: Some("deployment/orders".to_owned()),
        ..Pods::default()
    }
}

/// Containers by name, with how long each sleeps before it stops, and its handler if that is another one.
fn stopping<const N: usize>(containers: [(&str, u64, Option<&'static str>); N]) -> BTreeMap<String, Stop> {
    containers.map(|(name, after, handler)| (name.to_owned(), Stop { after, handler })).into()
}

/// The ECS service of these tasks.
fn ecs_service(tasks: u32) -> ecs::Service {
    ecs::Service { desired: tasks, running: tasks, ..fake::mk_service("prod", "orders", ARN) }
}

/// All of ECS was read, and these register there.
fn found(services: impl IntoIterator<Item = ecs::Service>) -> Found {
    Found { services: services.into_iter().collect(), unread: None }
}

/// One cluster of ECS could not be read, and these register there.
fn found_in_part(services: impl IntoIterator<Item = ecs::Service>) -> Found {
    let unread = Some("the ECS cluster test could not be read: denied".to_owned());
    Found { unread, ..found(services) }
}

fn settings(values: &[(&str, &str)]) -> Settings {
    let values = values.iter().map(|(variable, value)| ((*variable).to_owned(), (*value).to_owned())).collect();
    Settings { values, ..Settings::default() }
}

fn situation() -> Situation {
    let target = Target { namespace: "internal".into(), service: "orders".into() };
    let counterpart =
        Counterpart { kind: Some("ServiceExport"), target: Some(target), port: Some(8080), ..Counterpart::default() };
    Situation {
        key: ServiceKey::new("shop", "orders"),
        cutover: Ok(None),
        counterpart: Ok(counterpart),
        settings: Ok(settings(&[
            ("CLOUDMAP_MCS_CUTOVERS", "true"),
            ("CLOUDMAP_MCS_READINESS_GATES", "true"),
            ("CLOUDMAP_MCS_HIDE_TASKS", "true"),
        ])),
        pods: Ok(pods(12)),
        registry: Ok(registry(12, 60)),
        ecs: Ok(Some(found([ecs_service(12)]))),
        budgets: Ok(1),
        autoscalers: Ok(Vec::new()),
    }
}

/// What is wrong, by what it is about.
fn wrong(situation: &Situation) -> Vec<(&'static str, Grade)> {
    let plan = plan(situation, &[]);
    let bad = plan.findings.iter().filter(|finding| finding.grade != Grade::Ok);
    bad.map(|finding| {
        assert!(finding.remedy.as_ref().is_some_and(|remedy| !remedy.is_empty()), "{finding:?}");
        (finding.about, finding.grade)
    })
    .collect()
}
