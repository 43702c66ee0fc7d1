//! What others have in a Cloud Map namespace from which all clusters import: written from `docs/ecs.md`.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    expect::{Name, imported},
    users::MOST_TASKS,
    world::{Cluster, World, must},
};

/// The Cloud Map namespace and its one service. The Kubernetes namespace that imports from it has the same name.
pub(crate) const PLACE: (&str, &str) = ("legacy", "orders");

impl World {
    /// All clusters import from the namespace.
    pub(crate) fn import_orders(&self) {
        for cluster in &self.clusters {
            let annotations = json!({"cloudmap.controller/import-from": PLACE.0});
            must(cluster.api.put("namespaces", json!({"metadata": {"name": PLACE.0, "annotations": annotations}})));
        }
    }

    /// Somebody runs so many tasks, in a namespace and a service that they make where there are none; `None`: they delete
    /// everything. Both take effect later, so they do it again.
    pub(crate) fn run_orders(&self, tasks: Option<usize>) {
        let snapshot = self.registry.with(|cloudmap, _| cloudmap.snapshot());
        let call = |operation: &str, body: Value| self.registry.call("ecs", operation, &body);
        let Some(namespace) = snapshot.namespace(PLACE.0) else {
            if tasks.is_some() {
                call("CreateHttpNamespace", json!({"Name": PLACE.0}));
            }
            return;
        };
        let make = || {
            let made = call("CreateService", json!({"Name": PLACE.1, "NamespaceId": namespace.id, "Type": "HTTP"}))?;
            made["Service"]["Id"].as_str().map(str::to_owned)
        };
        let known = snapshot.service(PLACE.0, PLACE.1).map(|service| service.id.clone());
        let service = known.or_else(|| tasks.and_then(|_| make()));
        if let Some(id) = &service {
            for n in 0..MOST_TASKS {
                let mut body = json!({"ServiceId": id, "InstanceId": format!("orders-{n}")});
                let runs = tasks.is_some_and(|tasks| n < tasks);
                if runs {
                    let address = format!("172.16.3.{}", n + 1);
                    body["Attributes"] = json!({"AWS_INSTANCE_IPV4": address, "AWS_INSTANCE_PORT": "8080"});
                }
                call(if runs { "RegisterInstance" } else { "DeregisterInstance" }, body);
            }
        }
        if tasks.is_none() {
            // Cloud Map refuses it as long as there is anything in them.
            if let Some(id) = &service {
                call("DeleteService", json!({"Id": id}));
            }
            call("DeleteNamespace", json!({"Id": namespace.id}));
        }
    }
}

/// An import from the namespace that is not as it should be. One whose service has lost its instances stays, without endpoints.
pub(crate) fn mismatch(world: &World) -> Option<String> {
    let there = world.registry.with(|cloudmap, _| cloudmap.snapshot());
    let service = there.service(PLACE.0, PLACE.1);
    let instances = service.into_iter().flat_map(|service| service.instances.values());
    let wanted: BTreeSet<String> =
        instances.filter_map(|instance| instance.attributes.get("AWS_INSTANCE_IPV4").cloned()).collect();
    let name: Name = (PLACE.0.to_owned(), PLACE.1.to_owned());
    world.clusters.iter().find_map(|Cluster { id, api, .. }| {
        let found = imported(api).remove(&name);
        let right = match &found {
            Some(found) => service.is_some() && found.addresses() == wanted,
            None => wanted.is_empty(),
        };
        (!right).then(|| format!("{id} imports {}/{} as {found:?}, not with {wanted:?}", name.0, name.1))
    })
}
