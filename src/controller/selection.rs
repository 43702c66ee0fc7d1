//! Which clusters serve a name: the properties of this cluster and of the others.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{Mode, core::Core, world::World};
use api::{
    conditions::SelectionReason,
    names::{ANNOTATION_CLUSTER_WEIGHTS, CLUSTER_SELECTION, PROPERTIES, PROPERTY_CLUSTER_ID, PROPERTY_DRAIN},
    selection::{ClusterSelection, InvalidSelection, Properties},
    unreachable,
};
use cluster::objects::{ServiceExport, ServiceImport};
use import::{Source, shown_selection};
use model::{ClusterId, ClusterSetService, ServiceKey, ServiceType};

/// The cluster selection that an export names, if it names one.
///
/// # Errors
/// An annotation is invalid.
pub(super) fn asked(export: &ServiceExport) -> Result<Option<ClusterSelection>, InvalidSelection> {
    let annotations = CLUSTER_SELECTION.map(|name| export.annotations.get(name));
    ClusterSelection::read(annotations, CLUSTER_SELECTION)
}

/// The properties by which others prefer this cluster. The two of its identity are not among them: everybody knows its id, and
/// all have the same ClusterSet. Nor are those of a drain, which is published as far as it is in force, and what this cluster says
/// of others.
fn own_properties(world: &World) -> impl Iterator<Item = (&str, &str)> {
    let properties = world.properties.values().map(|property| (&*property.name, &*property.value));
    properties.filter(|(name, _)| !PROPERTIES.contains(name) && !unreachable::is_one(name))
}

impl Core {
    /// Puts the properties of this cluster into the map to publish.
    pub(super) fn plan_properties(&mut self) {
        if self.settings.mode == Mode::Member {
            let drain = self.cluster_drain().map(|drain| drain.to_string());
            let drain = drain.as_deref().map(|drain| (PROPERTY_DRAIN, drain));
            let verdicts = self.verdicts();
            let verdicts = verdicts.iter().map(|(name, value)| (&**name, &**value));
            self.knowledge.set_properties(own_properties(&self.world).chain(drain).chain(verdicts));
        }
    }

    /// The cluster selection that counts in a Kubernetes namespace, whatever exports say. One that is invalid leaves in force what
    /// `import`, the import of a name in it, says.
    pub(super) fn namespace_selection(
        &self,
        namespace: &str,
        import: Option<&ServiceImport>,
    ) -> Option<Cow<'_, ClusterSelection>> {
        match self.importing.selections.get(namespace)? {
            Some(selection) => Some(Cow::Borrowed(selection)),
            None => shown_selection(import).map(Cow::Owned),
        }
    }

    /// The properties of this cluster and of these sources; nothing if no cluster is preferred, so that nobody asks for them.
    pub(super) fn properties_of(
        &self,
        sources: &BTreeMap<ClusterId, Source<'_>>,
        of_namespace: Option<&ClusterSelection>,
    ) -> BTreeMap<ClusterId, Properties> {
        let here = self.knowledge.local();
        let nobody_asks = of_namespace.unwrap_or(&self.settings.cluster_selection).is_spread()
            && sources.values().all(|source| source.export.cluster_selection.is_none());
        if nobody_asks {
            return BTreeMap::new();
        }
        sources.keys().chain([here]).map(|cluster| (cluster.clone(), self.properties(cluster))).collect()
    }

    /// The properties of a cluster, with its id.
    fn properties(&self, cluster: &ClusterId) -> Properties {
        let mut properties = if cluster == self.knowledge.local() {
            own_properties(&self.world).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        } else {
            self.knowledge.properties(cluster)
        };
        properties.insert(PROPERTY_CLUSTER_ID.to_owned(), cluster.to_string());
        properties
    }

    /// The cluster selection with which an export is published. Instead of an invalid one, the last valid one stays.
    pub(super) fn exported_selection(&self, export: &ServiceExport) -> Option<Arc<str>> {
        match asked(export) {
            Ok(selection) => selection.map(|selection| selection.published()),
            Err(_) => self.last_selection(&export.key),
        }
    }

    /// The cluster selection that was published last.
    fn last_selection(&self, key: &ServiceKey) -> Option<Arc<str>> {
        let said = || self.knowledge.exports()?.said(key)?.export.cluster_selection;
        match self.knowledge.planned(key) {
            Some(Ok(planned)) if planned.export.cluster_selection.is_some() => planned.export.cluster_selection.clone(),
            _ => said(),
        }
    }

    /// Exports whose cluster selection is invalid: what was published last depends on the own ledger.
    pub(super) fn invalid_selections(&self) -> impl Iterator<Item = &ServiceKey> {
        self.world.exports.values().filter(|export| asked(export).is_err()).map(|export| &export.key)
    }

    /// What the condition `ClusterSelection` of an export says. `merged`: what all known exports of the name make of it.
    pub(super) fn report_selection(
        &self,
        export: &ServiceExport,
        merged: Option<&ClusterSetService>,
    ) -> Option<(SelectionReason, String)> {
        let here = self.knowledge.local();
        let selection = match asked(export) {
            Ok(selection) => selection,
            Err(why) => {
                let last = self.last_selection(&export.key);
                let stays = last.map_or_else(
                    || "Until then there is none.".to_owned(),
                    |last| format!("Until then, {last} stays in force."),
                );
                return Some((SelectionReason::InvalidClusterSelector, format!("The annotation {why}. {stays}")));
            }
        };
        if let Some(conflict) = merged.and_then(|merged| merged.selection_conflict.as_ref()) {
            return Some((SelectionReason::ClusterSelectorsConflict, conflict.message(here)));
        }
        let (selection, merged) = selection.zip(merged)?;
        if merged.service_type == ServiceType::Headless {
            let text = "Clients of a headless Service choose endpoints by themselves, so all of them are shown. Remove the annotation, or \
                        export a Service that is not headless.";
            return Some((SelectionReason::InvalidServiceType, text.to_owned()));
        }
        let clusters = merged.clusters.keys().filter(|cluster| !ClusterId::is_discovered(cluster.as_str()));
        let properties: BTreeMap<_, _> =
            clusters.chain([here]).map(|cluster| (cluster, self.properties(cluster))).collect();
        let has = |name: &str| properties.values().any(|properties| properties.contains_key(name));
        if selection != ClusterSelection::local_first()
            && let Some(unknown) = selection.property_names().find(|name| !has(name))
        {
            let text = format!(
                "No cluster that exports this name has the ClusterProperty {unknown}: create it in each of them, or correct its name in the \
                 annotation."
            );
            return Some((SelectionReason::UnknownProperty, text));
        }
        let exports = |cluster: &&ClusterId| merged.clusters.contains_key(*cluster);
        if let Some(unknown) = selection.weights().clusters().find(|cluster| !exports(cluster)) {
            let text = format!(
                "No cluster {unknown} exports this name: correct the id in the annotation {ANNOTATION_CLUSTER_WEIGHTS}, or export the \
                 Service there. Its part of the connections goes to the others."
            );
            return Some((SelectionReason::UnknownCluster, text));
        }
        // In this cluster, its Namespace counts first.
        let import = self.world.imports.get(&export.key);
        let overruled =
            self.namespace_selection(&export.key.namespace, import.as_deref()).filter(|there| **there != selection);
        let in_force = overruled.as_deref().unwrap_or(&selection);
        let tiers = in_force.for_importer(&properties[here]);
        let mut by_tier = BTreeMap::<Option<usize>, BTreeSet<&str>>::new();
        for cluster in merged.clusters.keys().filter(|cluster| !ClusterId::is_discovered(cluster.as_str())) {
            // Those that never serve come last.
            by_tier.entry(tiers.of(&properties[cluster])).or_default().insert(cluster.as_str());
        }
        let never = by_tier.remove(&None);
        let names = |clusters: &BTreeSet<&str>| clusters.iter().copied().collect::<Vec<_>>().join(", ");
        let order = by_tier.values().map(names).collect::<Vec<_>>().join("; then ");
        let order = if order.is_empty() { "no cluster serves".to_owned() } else { order };
        let never = never.map(|clusters| format!("; never: {}", names(&clusters))).unwrap_or_default();
        let by = match &overruled {
            None => format!("By {selection}"),
            Some(there) => format!("By {there}, which the Namespace in this cluster says instead of {selection}"),
        };
        Some((SelectionReason::InForce, format!("{by}, clients in this cluster use {order}{never}.")))
    }
}
