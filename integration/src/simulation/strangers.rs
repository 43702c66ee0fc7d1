//! Objects of others in Kubernetes under names that imports use: written from `docs/imports.md` and
//! `docs/reference/conditions.md`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde_json::{Value, json};

use super::{
    expect::{Name, exports},
    users::{NAMES, Place, annotation, label},
    world::{Cluster, World, must},
};

/// Until a foreign import that is in the way is said to be so, even if a leader has just died.
const SAID: Duration = Duration::from_mins(2);

/// What others make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stranger {
    Import,
    /// A Service with the name of the derived one.
    Derived,
    Slice,
}

impl Stranger {
    pub(crate) const ALL: [Self; 3] = [Self::Import, Self::Derived, Self::Slice];
}

/// An object of others.
#[derive(Debug)]
pub(crate) struct Intruder {
    cluster: usize,
    /// The import that would have it.
    import: Name,
    plural: &'static str,
    key: Name,
    /// As they made it.
    object: Arc<Value>,
}

impl World {
    /// Others make an object under a name that the import of this name uses or would use. If there is one of ours, they
    /// delete it first.
    pub(crate) fn intrude(&mut self, step: usize, place: Place, what: Stranger) {
        let (namespace, service, _) = NAMES[place.name];
        let Cluster { api, site, .. } = &self.clusters[place.cluster];
        let ports = json!([{"name": "http", "port": 80, "protocol": "TCP"}]);
        let found = match what {
            Stranger::Import => {
                let spec = json!({"type": "ClusterSetIP", "ips": ["192.0.2.1"], "ports": ports});
                Some(("serviceimports", service.to_owned(), json!({"metadata": {}, "spec": spec})))
            }
            Stranger::Derived => {
                let import = api.get("serviceimports", namespace, service);
                let used =
                    import.as_deref().and_then(|it| annotation(it, "multicluster.kubernetes.io/derived-service"));
                let named = site.names_derived_services().then(|| format!("{service}-global"));
                let spec = json!({"selector": {"app": "theirs"}, "ports": ports});
                let object = json!({"metadata": {}, "spec": spec});
                used.map(str::to_owned).or(named).map(|name| ("services", name, object))
            }
            Stranger::Slice => {
                let is_of = |(key, slice): &(Name, Arc<Value>)| {
                    key.0 == namespace
                        && label(slice, "multicluster.kubernetes.io/service-name") == service
                        && label(slice, "endpointslice.kubernetes.io/managed-by") == "cloudmap-mcs"
                };
                let labels = json!({"kubernetes.io/service-name": "theirs"});
                let object =
                    json!({"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": [], "ports": []});
                let ours = api.list("endpointslices").into_iter().find(is_of);
                ours.map(|((_, name), _)| ("endpointslices", name, object))
            }
        };
        let Some((plural, name, mut object)) = found else { return };
        let key = (namespace.to_owned(), name);
        let is_same = |it: &Intruder| it.cluster == place.cluster && it.plural == plural && it.key == key;
        if self.strangers.values().any(is_same) {
            return;
        }
        drop(api.delete(plural, &key.0, &key.1));
        object["metadata"]["namespace"] = json!(key.0);
        object["metadata"]["name"] = json!(key.1);
        let object = must(api.put(plural, object));
        let import = (namespace.to_owned(), service.to_owned());
        self.strangers.insert(step, Intruder { cluster: place.cluster, import, plural, key, object });
    }

    /// They delete it.
    pub(crate) fn withdraw(&mut self, step: usize) {
        let Some(Intruder { cluster, import, plural, key, .. }) = self.strangers.remove(&step) else { return };
        let Cluster { api, uid, .. } = &self.clusters[cluster];
        drop(api.delete(plural, &key.0, &key.1));
        self.edited.insert((uid.clone(), import), self.began.elapsed());
    }

    /// Whether something of others has a name that an import of a cluster uses.
    pub(crate) fn is_intruded(&self, uid: &str, import: &Name) -> bool {
        self.strangers.values().any(|it| it.import == *import && self.clusters[it.cluster].uid == uid)
    }
}

/// What the check remembers.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    /// Since when each foreign import, by its step, has been in the way of an export.
    blocks: BTreeMap<usize, Duration>,
}

impl Strangers {
    /// An object of others that is not as they made it, or of which nobody says that it is in the way.
    pub(crate) fn look(&mut self, world: &World) -> Option<String> {
        let now = world.began.elapsed();
        self.blocks.retain(|step, _| world.strangers.contains_key(step));
        for (step, Intruder { cluster, import, plural, key, object }) in &world.strangers {
            let here = &world.clusters[*cluster];
            let there = here.api.get(plural, &key.0, &key.1);
            if there.as_ref() != Some(object) {
                return Some(format!("{}: {plural} {key:?} is {there:?}, and others made {object}", here.id));
            }
            if *plural != "serviceimports" || !exports(&world.clusters, here).contains_key(import) {
                self.blocks.remove(step);
                continue;
            }
            let since = *self.blocks.entry(*step).or_insert(now);
            let is_said = || {
                let events = here.api.list("events");
                let (reason, uid) = ("ForeignObject", &object["metadata"]["uid"]);
                events.values().any(|event| event["reason"] == reason && event["regarding"]["uid"] == *uid)
            };
            if now > since + SAID && !is_said() {
                return Some(format!("{}: nobody says that {plural} {key:?} is in the way since {since:.1?}", here.id));
            }
        }
        None
    }
}
