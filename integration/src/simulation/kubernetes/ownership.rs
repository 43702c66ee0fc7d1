//! Server-side apply, and who owns which field: the rules of sigs.k8s.io/structured-merge-diff, for JSON.

use serde_json::{Map, Value, json};

use super::{
    fields::{self, Fields},
    refusal::Refusal,
    resources::Resource,
};

/// Who writes, and how.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Author {
    pub(super) manager: String,
    /// A server-side apply, which owns what it says and gives up what it does not say any more.
    pub(super) applies: bool,
    /// Through `/status`.
    pub(super) status: bool,
}

/// An entry of `managedFields`.
#[derive(Debug, Clone)]
struct Entry {
    author: Author,
    fields: Fields,
    time: Value,
}

fn entries(object: &Value) -> Vec<Entry> {
    let entries = object["metadata"]["managedFields"].as_array();
    entries
        .into_iter()
        .flatten()
        .map(|entry| Entry {
            author: Author {
                manager: entry["manager"].as_str().unwrap_or_default().to_owned(),
                applies: entry["operation"] == "Apply",
                status: entry["subresource"] == "status",
            },
            fields: fields::from_json(&entry["fieldsV1"]),
            time: entry["time"].clone(),
        })
        .collect()
}

fn record(object: &mut Value, resource: &Resource, entries: &[Entry]) {
    let entries = entries.iter().filter(|entry| !entry.fields.is_empty()).map(|entry| {
        let mut json = json!({
            "manager": entry.author.manager,
            "operation": if entry.author.applies { "Apply" } else { "Update" },
            "apiVersion": resource.api_version(),
            "time": entry.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": fields::to_json(&entry.fields),
        });
        if entry.author.status {
            json["subresource"] = "status".into();
        }
        json
    });
    object["metadata"]["managedFields"] = Value::Array(entries.collect());
}

/// What a server-side apply of `config` makes of an object, its `managedFields` included.
///
/// # Errors
/// Without `force`: others own fields that it would change.
pub(super) fn apply(
    live: &Value,
    config: &Value,
    resource: &Resource,
    author: &Author,
    force: bool,
    now: &Value,
) -> Result<Value, Refusal> {
    let wanted = fields::of(config, resource);
    let mut entries = entries(live);
    let mut merged = live.clone();
    merge(&mut merged, config, "", resource);

    let mut conflicts = Vec::new();
    for entry in entries.iter_mut().filter(|entry| entry.author != *author) {
        let taken: Vec<_> = entry
            .fields
            .iter()
            .filter(|path| wanted.contains(*path) && fields::get(live, path) != fields::get(&merged, path))
            // The items of lists are shared; their fields are what one can differ about.
            .filter(|path| path.last().is_some_and(|step| step.starts_with("f:")))
            .cloned()
            .collect();
        for path in taken {
            conflicts.push((entry.author.manager.clone(), fields::words(&path)));
            entry.fields.remove(&path);
        }
    }
    if !force && !conflicts.is_empty() {
        return Err(Refusal::fields_owned(&conflicts));
    }

    let before = entries.iter().find(|entry| entry.author == *author).map(|entry| entry.fields.clone());
    let others: Fields =
        entries.iter().filter(|entry| entry.author != *author).flat_map(|entry| entry.fields.iter().cloned()).collect();
    // In order: an item of a list goes before the fields that tell which it is.
    for path in before.iter().flatten().filter(|path| !wanted.contains(*path)) {
        let needed = |path: &fields::Path| others.iter().any(|other| other.starts_with(path));
        if !needed(path) {
            fields::remove(&mut merged, path);
        }
    }
    own(&mut entries, author, wanted, now);
    record(&mut merged, resource, &entries);
    Ok(merged)
}

/// What the author has now, in place of what it had.
fn own(entries: &mut Vec<Entry>, author: &Author, fields: Fields, now: &Value) {
    match entries.iter_mut().find(|entry| entry.author == *author) {
        Some(entry) if entry.fields == fields => {}
        Some(entry) => (entry.fields, entry.time) = (fields, now.clone()),
        None => entries.push(Entry { author: author.clone(), fields, time: now.clone() }),
    }
}

fn merge(live: &mut Value, config: &Value, place: &str, resource: &Resource) {
    match config {
        Value::Object(config) if live.is_object() && !resource.is_whole(place) => {
            for (name, value) in config.iter().filter(|(_, value)| !value.is_null()) {
                let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                match live.get_mut(name) {
                    Some(live) => merge(live, value, &place, resource),
                    None => live[name] = value.clone(),
                }
            }
        }
        Value::Array(config) if live.is_array() => {
            let (Some(keys), Value::Array(live)) = (resource.keys(place), &mut *live) else {
                *live = Value::Array(config.clone());
                return;
            };
            for item in config {
                let key = fields::key(item, keys);
                match live.iter_mut().find(|live| fields::key(live, keys) == key) {
                    Some(live) => merge(live, item, place, resource),
                    None => live.push(item.clone()),
                }
            }
        }
        config => *live = config.clone(),
    }
}

/// Notes who owns what after an update: the author what it changed, nobody what is gone.
pub(super) fn update(live: &Value, new: &mut Value, resource: &Resource, author: &Author, now: &Value) {
    let (before, after) = (fields::of(live, resource), fields::of(new, resource));
    let changed: Fields = after
        .iter()
        .filter(|path| !before.contains(*path) || fields::get(live, path) != fields::get(new, path))
        // An item that stays is not a change, whatever its fields are.
        .filter(|path| !before.contains(*path) || path.last().is_some_and(|step| step.starts_with("f:")))
        .cloned()
        .collect();
    let mut entries = entries(live);
    let mut mine =
        entries.iter().find(|entry| entry.author == *author).map_or_else(Fields::new, |entry| entry.fields.clone());
    mine.extend(changed.iter().cloned());
    for entry in &mut entries {
        let others = entry.author != *author;
        entry.fields.retain(|path| after.contains(path) && !(others && changed.contains(path)));
    }
    mine.retain(|path| after.contains(path));
    own(&mut entries, author, mine, now);
    record(new, resource, &entries);
}

/// A JSON merge patch (RFC 7386).
pub(super) fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    for (name, value) in patch {
        if value.is_null() {
            target.as_object_mut().map(|target| target.remove(name));
        } else {
            merge_patch(&mut target[name], value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn author(manager: &str) -> Author {
        Author { manager: manager.to_owned(), applies: true, status: false }
    }

    fn applied(live: &Value, manager: &str, force: bool, config: &Value) -> Result<Value, Refusal> {
        apply(live, config, Resource::named("services"), &author(manager), force, &"now".into())
    }

    #[test]
    fn a_field_given_up_goes_unless_another_manager_owns_it() {
        let one = json!({"metadata": {"name": "web", "labels": {"a": "1", "b": "2"}}});
        let live = applied(&json!({"metadata": {"name": "web"}}), "one", false, &one).unwrap();
        let live = applied(&live, "two", false, &json!({"metadata": {"labels": {"b": "2"}}})).unwrap();
        let live = applied(&live, "one", false, &json!({"metadata": {"labels": {"c": "3"}}})).unwrap();
        assert_eq!(live["metadata"]["labels"], json!({"b": "2", "c": "3"}));
        let live = applied(&live, "two", false, &json!({"metadata": {}})).unwrap();
        assert_eq!(live["metadata"]["labels"], json!({"c": "3"}));
        let live = applied(&live, "one", false, &json!({"metadata": {}})).unwrap();
        assert_eq!(live["metadata"]["labels"], Value::Null);
        assert_eq!(live["metadata"]["managedFields"], json!([]));
    }

    #[test]
    fn a_field_of_somebody_else_is_a_conflict_and_taken_by_force() {
        let live = json!({"metadata": {"name": "web"}});
        let live = applied(&live, "one", false, &json!({"spec": {"type": "ClusterIP"}})).unwrap();
        let refusal = applied(&live, "two", false, &json!({"spec": {"type": "NodePort"}})).unwrap_err();
        assert_eq!(refusal.code, 409);
        assert_eq!(refusal.status()["message"], "Apply failed with 1 conflict(s): conflict with \"one\": .spec.type");
        applied(&live, "two", false, &json!({"spec": {"type": "ClusterIP"}})).expect("the same value is shared");
        let live = applied(&live, "two", true, &json!({"spec": {"type": "NodePort"}})).unwrap();
        assert_eq!(live["spec"]["type"], "NodePort");
        let live = applied(&live, "one", false, &json!({"spec": {}})).unwrap();
        assert_eq!(live["spec"]["type"], "NodePort", "it is not the first one's any more");
    }

    #[test]
    fn lists_are_merged_by_keys_where_the_schema_says_so_and_replaced_elsewhere() {
        let live = json!({"metadata": {"name": "web"}});
        let one = json!({"spec": {"ports": [{"port": 80, "name": "http"}], "ipFamilies": ["IPv4"]}});
        let live = applied(&live, "one", false, &one).unwrap();
        let two = json!({"spec": {"ports": [{"port": 81, "name": "more"}]}});
        let live = applied(&live, "two", false, &two).unwrap();
        assert_eq!(live["spec"]["ports"], json!([{"port": 80, "name": "http"}, {"port": 81, "name": "more"}]));
        let live = applied(&live, "one", false, &json!({"spec": {"ipFamilies": ["IPv6", "IPv4"]}})).unwrap();
        assert_eq!(live["spec"], json!({"ports": [{"port": 81, "name": "more"}], "ipFamilies": ["IPv6", "IPv4"]}));
    }

    #[test]
    fn an_update_owns_what_it_changes() {
        let service = Resource::named("services");
        let user = Author { applies: false, ..author("user") };
        let live =
            applied(&json!({"metadata": {"name": "web"}}), "one", false, &json!({"spec": {"type": "A", "x": 1}}));
        let live = live.unwrap();
        let mut new = live.clone();
        new["spec"] = json!({"type": "B"});
        update(&live, &mut new, service, &user, &"later".into());
        let owners: Vec<_> =
            entries(&new).into_iter().map(|entry| (entry.author.manager, entry.fields.len())).collect();
        assert_eq!(
            owners,
            [("one".to_owned(), 0), ("user".to_owned(), 1)].into_iter().filter(|o| o.1 > 0).collect::<Vec<_>>()
        );
        assert_eq!(applied(&new, "one", false, &json!({"spec": {"type": "A"}})).unwrap_err().code, 409);
    }

    #[test]
    fn a_merge_patch_removes_what_is_null() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge_patch(&mut target, &json!({"a": {"b": null, "e": 3}, "d": [2]}));
        assert_eq!(target, json!({"a": {"c": 2, "e": 3}, "d": [2]}));
    }
}
