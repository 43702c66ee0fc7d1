//! The properties of a cluster: its ClusterProperties (KEP-2149), by which others prefer it or not.
//!
//! Others match them as labels, so a value is that of a label, and the rest is not published.

use std::{collections::BTreeMap, sync::Arc};

use ledger::{Map, Value};
use model::labels::{is_label_key, is_label_value};

/// With what the key of a property begins.
pub const PREFIX: char = '@';

/// Maximum number of properties that are published and read: the first ones by name.
pub const MAX_PROPERTIES: usize = 32;

/// Maximum length of a name that is published, in bytes.
const MAX_NAME: usize = 128;

/// Whether a property is published.
#[must_use]
pub fn is_published(name: &str, value: &str) -> bool {
    name.len() <= MAX_NAME && is_label_key(name) && !value.is_empty() && is_label_value(value)
}

/// The records of these properties, as far as they are published.
pub fn records<'a>(properties: impl IntoIterator<Item = (&'a str, &'a str)>) -> BTreeMap<Arc<str>, Value> {
    let published: BTreeMap<&str, &str> =
        properties.into_iter().filter(|(name, value)| is_published(name, value)).collect();
    let record = |(name, value): (&str, &str)| (key(name), Value::from(value.as_bytes().to_vec()));
    published.into_iter().take(MAX_PROPERTIES).map(record).collect()
}

/// The properties in a map. What cannot be one is left out.
#[must_use]
pub fn read(map: &Map) -> BTreeMap<String, String> {
    let properties = values(map).filter_map(|(name, value)| {
        let value = std::str::from_utf8(value).ok().filter(|value| is_published(name, value))?;
        Some((name.to_owned(), value.to_owned()))
    });
    properties.take(MAX_PROPERTIES).collect()
}

/// The value of a property in a map.
#[must_use]
pub fn value<'a>(map: &'a Map, name: &str) -> Option<&'a str> {
    std::str::from_utf8(map.get(&key(name))?).ok()
}

/// The keys of all properties in a map, readable or not.
#[must_use]
pub fn keys(map: &Map) -> Vec<Arc<str>> {
    values(map).map(|(name, _)| key(name)).collect()
}

/// Whether two maps differ in a property.
#[must_use]
pub fn differ(old: &Map, new: &Map) -> bool {
    !values(old).eq(values(new))
}

fn key(name: &str) -> Arc<str> {
    format!("{PREFIX}{name}").into()
}

fn values(map: &Map) -> impl Iterator<Item = (&str, &Value)> {
    let prefix = PREFIX.to_string();
    map.range_from(&*prefix).map_while(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(records: BTreeMap<Arc<str>, Value>) -> Map {
        records.into_iter().collect()
    }

    #[test]
    fn properties_come_back_as_they_were_published() {
        let properties = [("region.topology.k8s.io", "eu-central-1"), ("tier", "gold")];
        let there = map(records(properties));
        let expected = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!((read(&there), keys(&there).len()), (expected.into(), 2));
        assert!(differ(&Map::new(), &there) && !differ(&there, &there.clone()));
    }

    /// Others would have to refuse them, or match them by mistake.
    #[test]
    fn what_no_selector_could_match_is_neither_published_nor_read() {
        let long = "n".repeat(64);
        for (name, value) in [("tier", ""), ("tier", "a b"), ("tier", &*long), ("a b", "gold"), ("", "gold")] {
            assert!(records([(name, value)]).is_empty(), "{name:?}: {value:?}");
            let bytes = value.as_bytes().to_vec();
            assert!(read(&map([(key(name), Value::from(bytes))].into())).is_empty(), "{name:?}: {value:?}");
        }
        assert!(read(&map([(key("tier"), Value::from(vec![0xff]))].into())).is_empty());
    }

    #[test]
    fn no_cluster_publishes_or_makes_others_read_more_than_the_limit() {
        let names: Vec<_> = (0..100).map(|n| format!("p{n:03}")).collect();
        let published = records(names.iter().map(|name| (&**name, "v")));
        assert_eq!(published.len(), MAX_PROPERTIES);
        let all = names.iter().map(|name| (key(name), Value::from(b"v".to_vec())));
        assert_eq!(read(&map(all.collect())).len(), MAX_PROPERTIES);
    }
}
