//! How much controllers write for what users change, where nothing else happens: only the objects of that name, and each of
//! them a few times. A controller that writes one thing now and another one then would converge in between.

use std::{collections::BTreeMap, time::Duration};

use super::{
    expect::Name,
    kubernetes::{Key, Write},
    users::label,
    world::Cluster,
};

/// Until everything is written that a change leads to, in Cloud Map and in conditions.
const DONE: Duration = Duration::from_mins(3);
/// How often an object may be written for one change: for the head of each cluster, for each operation in Cloud Map, and for
/// what the API server makes of it.
const MOST: u32 = 15;

/// Kinds that are written for users.
const WRITTEN: [&str; 4] = ["serviceexports", "serviceimports", "services", "endpointslices"];

/// What the check remembers.
#[derive(Debug, Default)]
pub(crate) struct Effort {
    /// When users, or the end of a namespace, changed a name anywhere last.
    names: BTreeMap<Name, Duration>,
    /// The same of a whole namespace.
    namespaces: BTreeMap<String, Duration>,
    /// How often replicas wrote an object of a cluster, by its UID, since that change.
    written: BTreeMap<(String, &'static str, Key), (Duration, u32)>,
}

impl Effort {
    /// Takes in a write. Gives one that nothing led to, or that was made too often, whether or not it changed anything.
    pub(crate) fn look(&mut self, cluster: &Cluster, write: &Write, by_replica: bool) -> Option<String> {
        if !by_replica && write.resource == "namespaces" {
            self.namespaces.insert(write.key.1.clone(), write.at);
        }
        if !WRITTEN.contains(&write.resource) {
            return None;
        }
        let name = concerned(write);
        if !by_replica {
            self.names.insert(name, write.at);
            return None;
        }
        let changed = self.names.get(&name).max(self.namespaces.get(&name.0)).copied();
        let Some(changed) = changed.filter(|at| write.at <= *at + DONE) else {
            return Some(format!("{} {write}: nobody changed {name:?} since {changed:.1?}", cluster.id));
        };
        let key = (cluster.uid.clone(), write.resource, write.key.clone());
        let (since, count) = self.written.entry(key).or_default();
        if *since != changed {
            (*since, *count) = (changed, 0);
        }
        *count += 1;
        (*count > MOST).then(|| format!("{} {write}: {count} times since {changed:.1?}", cluster.id))
    }
}

/// The name that is exported or imported.
fn concerned(write: &Write) -> Name {
    let (namespace, name) = &write.key;
    let object = write.after.as_ref().or(write.before.as_ref());
    let of = |by: &str| object.map(|object| label(object, by)).filter(|name| !name.is_empty());
    let slices = || of("kubernetes.io/service-name").filter(|_| write.resource == "endpointslices");
    let name = of("multicluster.kubernetes.io/service-name").or_else(slices).unwrap_or(name);
    (namespace.clone(), name.to_owned())
}
