//! What people do by hand to the objects that controllers made in Kubernetes.

use serde_json::{Value, json};

use super::{expect::Name, users::label, world::World};

/// What they do to one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edit {
    DeletesImport,
    DeletesDerived,
    DeletesSlice,
    /// They give an import another type.
    AltersImport,
    /// They give a derived Service session affinity, or a selector.
    AltersDerived,
    /// They take all endpoints out of an EndpointSlice.
    EmptiesSlice,
}

impl Edit {
    pub(crate) const ALL: [Self; 6] = [
        Self::DeletesImport,
        Self::DeletesDerived,
        Self::DeletesSlice,
        Self::AltersImport,
        Self::AltersDerived,
        Self::EmptiesSlice,
    ];

    const fn plural(self) -> &'static str {
        match self {
            Self::DeletesImport | Self::AltersImport => "serviceimports",
            Self::DeletesDerived | Self::AltersDerived => "services",
            Self::DeletesSlice | Self::EmptiesSlice => "endpointslices",
        }
    }

    /// The change; `None`: the object is deleted. `which` decides about it.
    fn patch(self, which: usize) -> Option<Value> {
        match self {
            Self::DeletesImport | Self::DeletesDerived | Self::DeletesSlice => None,
            Self::AltersImport => Some(json!({"spec": {"type": "Headless"}})),
            Self::AltersDerived if which < 500 => Some(json!({"spec": {"selector": {"app": "web"}}})),
            Self::AltersDerived => Some(json!({"spec": {"sessionAffinity": "ClientIP"}})),
            Self::EmptiesSlice => Some(json!({"endpoints": []})),
        }
    }
}

impl World {
    /// Changes an object that the controllers of a cluster made, if there is one. `which`, below 1000, decides about it.
    pub(crate) fn edit(&mut self, cluster: usize, which: usize, edit: Edit) {
        let (cluster, plural) = (&self.clusters[cluster], edit.plural());
        let made: Vec<_> = cluster.api.list(plural).into_iter().filter(|(_, object)| is_made_here(object)).collect();
        let Some(((namespace, name), object)) = made.get(which % made.len().max(1)) else { return };
        match edit.patch(which) {
            Some(patch) => drop(cluster.api.patch(plural, namespace, name, &patch)),
            None => drop(cluster.api.delete(plural, namespace, name)),
        }
        let imported = match plural {
            "serviceimports" => name.clone(),
            _ => label(object, "multicluster.kubernetes.io/service-name").to_owned(),
        };
        let name: Name = (namespace.clone(), imported);
        self.edited.insert((cluster.uid.clone(), name), self.began.elapsed());
    }
}

/// Whether a controller made an object.
fn is_made_here(object: &Value) -> bool {
    ["cloudmap-mcs/managed-by", "endpointslice.kubernetes.io/managed-by"]
        .iter()
        .any(|by| label(object, by) == "cloudmap-mcs")
}
