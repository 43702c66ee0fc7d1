//! What `users` reads besides the logs: who has which address in the clusters and in Cloud Map. Each part may fail by
//! itself; the report says what was left out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, api::ListParams};
use tokio::time::timeout;

use super::{
    holders::{Holders, addresses},
    subject::Subject,
};
use crate::asking::{Progress, answered, in_time, is_away, patiently_counted};
use app::connect;
use cli::{ClusterArgs, TaskAddress, UsersArgs};
use cloudmap::{Lane, Namespace, Operation, attributes};
use cluster::reader::{Unread, each};

/// How many services are asked at once.
const AT_ONCE: usize = 8;
/// How long Cloud Map is read at most. Where AWS throttles, each of hundreds of services may take half a minute.
const LONGEST: Duration = Duration::from_mins(3);

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    pub(super) holders: Holders,
    /// What could not be read, or was not to be, with the reason.
    pub(super) left_out: Vec<String>,
}

/// Reads what can be reached, and adds to the subject what Cloud Map has under its name.
pub(super) async fn observe(args: &UsersArgs, subject: &mut Subject) -> Surroundings {
    let mut seen = Surroundings::default();
    if args.offline {
        seen.left_out.push("the cluster and Cloud Map, because of --offline: addresses have no names".to_owned());
        return seen;
    }
    let several = args.contexts.len() > 1;
    let contexts: Vec<_> = if args.contexts.is_empty() { vec![None] } else { args.contexts.iter().map(Some).collect() };
    for context in contexts {
        let place = ClusterArgs { kubeconfig: args.kubeconfig.clone(), context: context.cloned() };
        let name = context.filter(|_| several).map(String::as_str);
        match connect::cluster(&place).await {
            Ok(client) => cluster(&client, name, &mut seen).await,
            Err(error) => seen.left_out.push(format!("{}: {error:#}", titled("the cluster", name))),
        }
    }
    match connect::registry_for_status(&args.aws).await {
        Ok(cloudmap) => {
            let progress = Progress::default();
            patiently_counted(&progress, registry(&*cloudmap, subject, &mut seen, &progress)).await;
        }
        Err(error) => seen.left_out.push(format!("Cloud Map: {error:#}")),
    }
    seen
}

fn titled(what: &str, cluster: Option<&str>) -> String {
    cluster.map_or_else(|| what.to_owned(), |name| format!("{what} {name}"))
}

/// Adds the addresses of pods and Nodes.
pub(super) async fn cluster(client: &Client, name: Option<&str>, seen: &mut Surroundings) {
    let Surroundings { holders, left_out } = seen;
    let mut unread = |what: &str, why: Unread| {
        left_out.push(format!("{}: {why}", name.map_or_else(|| what.to_owned(), |name| format!("{what} of {name}"))));
    };
    let all = ListParams::default;
    if let Err(why) = each(&Api::<Pod>::all(client.clone()), all(), |pod| holders.add_pod(name, &pod)).await {
        unread("pods", why);
    }
    if let Err(why) = each(&Api::<Node>::all(client.clone()), all(), |node| holders.add_node(name, &node)).await {
        unread("Nodes", why);
    }
}

/// Adds the instances of the name's Cloud Map namespace: the tasks behind the name, and others that may use it. What takes
/// longer than [`LONGEST`] is left out: the logs are worth more than the names of all addresses.
pub(super) async fn registry(
    cloudmap: &dyn cloudmap::Read,
    subject: &mut Subject,
    seen: &mut Surroundings,
    progress: &Progress,
) {
    if timeout(LONGEST, registered(cloudmap, subject, seen, progress)).await.is_err() {
        seen.left_out.push(format!(
            "a part of Cloud Map: it was not read within {} s, because AWS throttles calls or has much to list; addresses of \
             the rest have no names. Try again when fewer others call Cloud Map",
            LONGEST.as_secs()
        ));
    }
}

async fn registered(
    cloudmap: &dyn cloudmap::Read,
    subject: &mut Subject,
    seen: &mut Surroundings,
    progress: &Progress,
) {
    let namespaces = match in_time(cloudmap.list_namespaces(Lane::Instances)).await {
        Ok(namespaces) => namespaces,
        Err(why) => return seen.left_out.push(format!("Cloud Map: {why}")),
    };
    let mut listed = true;
    for namespace in &namespaces {
        if !subject.may_be_in(&namespace.name) {
            continue;
        }
        match in_time(cloudmap.list_services(&namespace.id, Lane::Instances)).await {
            Ok(services) => {
                let services = services.into_iter().map(|service| service.name).collect();
                instances(cloudmap, namespace, services, (subject, seen), progress).await;
            }
            Err(why) => {
                listed = false;
                seen.left_out.push(format!("the Cloud Map namespace {}: {why}", namespace.name));
            }
        }
    }
    // A namespace that was not listed may have it.
    if listed && subject.found.is_empty() {
        seen.left_out.push(format!(
            "the tasks behind {}: Cloud Map shows no such service in this account and region",
            subject.dns
        ));
    }
}

async fn instances(
    cloudmap: &dyn cloudmap::Read,
    namespace: &Namespace,
    services: Vec<Arc<str>>,
    (subject, seen): (&mut Subject, &mut Surroundings),
    progress: &Progress,
) {
    let (all, mut asked) = (services.len(), 0);
    let wanted: Vec<_> = services.iter().filter(|service| subject.is(&namespace.name, service)).cloned().collect();
    subject.found.extend(wanted.iter().map(|service| (namespace.http_name.to_string(), service.to_string())));
    let none = BTreeMap::new();
    let none = &none;
    let mut answers = stream::iter(services)
        .map(async |service| {
            let call = cloudmap.discover_instances(namespace.in_discovery(), &service, none, Lane::Instances);
            let found = answered(Operation::DiscoverInstances, call).await;
            (service, found)
        })
        .buffered(AT_ONCE);
    while let Some((service, found)) = answers.next().await {
        asked += 1;
        progress.set(format!("asked for {asked} of {all} services of the namespace {}", namespace.name));
        let wanted = wanted.contains(&service);
        let discovery = match found {
            Ok(discovery) => discovery,
            // It would take as long for each of hundreds of services.
            Err(error) if is_away(&error) => {
                let namespace = &namespace.name;
                seen.left_out.push(format!(
                    "instances of the Cloud Map namespace {namespace}: {error} (`cloudmap-mcs doctor` says what is in the way)"
                ));
                return;
            }
            Err(why) => {
                seen.left_out.push(format!("the instances of {}/{service}: {why}", namespace.name));
                continue;
            }
        };
        if discovery.truncated {
            seen.left_out.push(format!("instances of {}/{service} beyond the first 1,000", namespace.name));
        }
        for instance in &discovery.instances {
            seen.holders.add_instance(&namespace.name, &service, instance);
            // Pods that were registered beside the tasks are no tasks.
            if wanted && !instance.attributes.contains_key(attributes::CLUSTER_UID) {
                let port = instance.attributes.get(attributes::PORT).and_then(|port| port.parse().ok());
                addresses(instance).for_each(|address| subject.add(TaskAddress { address, port }));
            }
        }
    }
}
