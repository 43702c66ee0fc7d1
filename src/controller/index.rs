//! Which EndpointSlices belong to which name.

use std::{collections::BTreeMap, sync::Arc};

use cluster::objects::EndpointSlice;
use model::{ServiceKey, intern, service_of_slice};

/// Slices by the name to which they belong. `T` is the type of one of the slice caches.
#[derive(Debug, Clone)]
pub(super) struct SliceIndex<T> {
    /// By the name that they belong to, and their own: one map, because most names have one slice.
    slices: BTreeMap<(ServiceKey, Arc<str>), Arc<T>>,
    name_of: fn(&EndpointSlice) -> Option<Arc<str>>,
}

impl<T: std::ops::Deref<Target = EndpointSlice>> SliceIndex<T> {
    /// An empty index. `name_of` returns the name to which a slice belongs.
    pub(super) fn new(name_of: fn(&EndpointSlice) -> Option<Arc<str>>) -> Self {
        Self { slices: BTreeMap::new(), name_of }
    }

    /// Takes in a change and returns the names that it concerns; a changed label concerns two names.
    pub(super) fn update(&mut self, old: Option<&Arc<T>>, new: Option<&Arc<T>>) -> Vec<ServiceKey> {
        let name = |slice: &EndpointSlice| Some(ServiceKey::new(slice.key.namespace.clone(), (self.name_of)(slice)?));
        let (before, after) = (old.and_then(|slice| name(slice)), new.and_then(|slice| name(slice)));
        if let Some((slice, key)) = old.zip(before.as_ref()) {
            self.slices.remove(&(key.clone(), slice.key.name.clone()));
        }
        if let Some((slice, key)) = new.zip(after.as_ref()) {
            self.slices.insert((key.clone(), slice.key.name.clone()), Arc::clone(slice));
        }
        let mut concerned: Vec<_> = before.into_iter().chain(after).collect();
        concerned.dedup();
        concerned
    }

    /// The slices of a name, sorted by their own names.
    pub(super) fn get(&self, key: &ServiceKey) -> Vec<Arc<T>> {
        let slices = self.slices.range((key.clone(), Arc::default())..).take_while(|((of, _), _)| of == key);
        slices.map(|(_, slice)| Arc::clone(slice)).collect()
    }

    /// The names in a namespace, as [`Self::names`].
    pub(super) fn names_in(&self, namespace: &Arc<str>) -> impl Iterator<Item = &ServiceKey> {
        let first = (ServiceKey::new(namespace.clone(), ""), Arc::default());
        let names = self.slices.range(first..).map(|((name, _), _)| name);
        distinct(names.take_while(move |name| name.namespace == *namespace))
    }

    /// Sorted, each once.
    pub(super) fn names(&self) -> impl Iterator<Item = &ServiceKey> {
        distinct(self.slices.keys().map(|(name, _)| name))
    }
}

/// The import to which a slice of this project belongs: the one of its label. If somebody took that away, its own name says
/// it; otherwise clients would keep endpoints that are gone.
pub(super) fn import_of(slice: &EndpointSlice) -> Option<Arc<str>> {
    slice.service_import.clone().or_else(|| service_of_slice(&slice.key.name).map(intern))
}

/// Each name once. A name with several slices comes several times, one after the other.
fn distinct<'a>(names: impl Iterator<Item = &'a ServiceKey>) -> impl Iterator<Item = &'a ServiceKey> {
    let mut last = None;
    names.filter(move |name| last.replace(*name) != Some(*name))
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use super::*;
    use cluster::objects::{AddressType, OwnSlice, SourceSlice};

    fn slice(namespace: &str, service: &str, name: &str) -> Arc<SourceSlice> {
        Arc::new(SourceSlice(EndpointSlice {
            key: ServiceKey::new(namespace, name).into(),
            uid: "u".into(),
            deleting: false,
            service: Some(service.into()),
            managed_by: None,
            service_import: None,
            source_cluster: None,
            address_type: AddressType::V4,
            ports: [].into(),
            endpoints: Box::default(),
        }))
    }

    /// Somebody took the label away.
    #[test]
    fn an_imported_slice_without_its_label_belongs_to_the_import_that_its_name_says() {
        let of_import = |service_import: Option<&str>, name: &str| {
            let SourceSlice(slice) = Arc::unwrap_or_clone(slice("shop", "derived-x", name));
            Arc::new(OwnSlice(EndpointSlice { service_import: service_import.map(Into::into), ..slice }))
        };
        let (web, mut index) = (ServiceKey::new("shop", "web-2"), SliceIndex::new(import_of));
        let name = "web-2-0123456789ab-10";
        let [with, without] = [Some("web-2"), None].map(|label| of_import(label, name));
        index.update(None, Some(&with));
        assert_eq!(index.update(Some(&with), Some(&without)), from_ref(&web));
        assert_eq!(index.get(&web), from_ref(&without));
        assert_eq!(index.update(Some(&without), None), from_ref(&web));
        assert!(index.get(&web).is_empty());
        assert!(index.update(None, Some(&of_import(None, "theirs"))).is_empty());
    }

    /// Whoever looks at all slices of each name would do so as many times as there are slices.
    #[test]
    fn a_name_comes_once_however_many_slices_it_has() {
        let mut index = SliceIndex::new(|slice| slice.service.clone());
        for (namespace, service) in [("shop", "web"), ("shop", "api"), ("blog", "web")] {
            for n in 0..3 {
                index.update(None, Some(&slice(namespace, service, &format!("{service}-{n}"))));
            }
        }
        let [blog, api, web] = [("blog", "web"), ("shop", "api"), ("shop", "web")].map(|(a, b)| ServiceKey::new(a, b));
        assert_eq!(index.names().collect::<Vec<_>>(), [&blog, &api, &web]);
        assert_eq!(index.names_in(&"shop".into()).collect::<Vec<_>>(), [&api, &web]);
        assert_eq!(index.get(&web).len(), 3);
    }
}
