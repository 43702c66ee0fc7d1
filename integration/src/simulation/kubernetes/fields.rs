//! Sets of fields, as `managedFields` has them: who wrote which.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::resources::Resource;

/// A field, by the steps that lead to it, in the words of `FieldsV1`: `f:spec`, `f:ports`, `k:{"port":80,...}`.
pub(super) type Path = Vec<String>;

/// Fields that somebody wrote.
pub(super) type Fields = BTreeSet<Path>;

/// What the API server sets in metadata by itself, or what only names the object: nobody owns it.
const UNOWNED: [&str; 9] = [
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "generateName",
];

/// The fields that an object has: its leaves, and the items of lists that are merged by keys.
pub(super) fn of(object: &Value, resource: &Resource) -> Fields {
    let mut fields = Fields::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        match name.as_str() {
            "apiVersion" | "kind" => {}
            "metadata" => {
                for (name, value) in value.as_object().into_iter().flatten() {
                    if !UNOWNED.contains(&name.as_str()) {
                        let path = vec!["f:metadata".to_owned(), format!("f:{name}")];
                        collect(value, &format!("metadata.{name}"), path, resource, &mut fields);
                    }
                }
            }
            _ => collect(value, name, vec![format!("f:{name}")], resource, &mut fields),
        }
    }
    fields
}

fn collect(value: &Value, place: &str, path: Path, resource: &Resource, fields: &mut Fields) {
    match value {
        Value::Null => {}
        Value::Object(map) if !map.is_empty() && !resource.is_whole(place) => {
            for (name, value) in map {
                let mut path = path.clone();
                path.push(format!("f:{name}"));
                collect(value, &format!("{place}.{name}"), path, resource, fields);
            }
        }
        Value::Array(items) if !items.is_empty() && resource.keys(place).is_some() => {
            let keys = resource.keys(place).unwrap_or_default();
            for item in items {
                let mut path = path.clone();
                path.push(key(item, keys));
                fields.insert(path.clone());
                for (name, value) in item.as_object().into_iter().flatten() {
                    let mut path = path.clone();
                    path.push(format!("f:{name}"));
                    collect(value, &format!("{place}.{name}"), path, resource, fields);
                }
            }
        }
        _ => {
            fields.insert(path);
        }
    }
}

/// The step to an item of a list that is merged by keys.
pub(super) fn key(item: &Value, keys: &[&str]) -> String {
    let values = keys.iter().map(|key| {
        let value = match (&item[*key], *key) {
            (Value::Null, "protocol") => "TCP".into(),
            (value, _) => value.clone(),
        };
        ((*key).to_owned(), value)
    });
    format!("k:{}", Value::Object(values.collect::<Map<_, _>>()))
}

fn item_at<'a>(items: &'a [Value], step: &str) -> Option<(usize, &'a Value)> {
    let wanted: Map<String, Value> = serde_json::from_str(step.strip_prefix("k:")?).ok()?;
    let keys: Vec<&str> = wanted.keys().map(String::as_str).collect();
    items.iter().enumerate().find(|(_, item)| key(item, &keys) == step)
}

/// The value of a field.
pub(super) fn get<'a>(object: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(object, |value, step| match step.strip_prefix("f:") {
        Some(name) => value.get(name),
        None => item_at(value.as_array()?, step).map(|(_, item)| item),
    })
}

/// Takes a field out, and what that leaves empty around it.
pub(super) fn remove(object: &mut Value, path: &[String]) {
    let Some((step, rest)) = path.split_first() else { return };
    if let Some(name) = step.strip_prefix("f:") {
        let Some(map) = object.as_object_mut() else { return };
        if let Some(inner) = map.get_mut(name).filter(|_| !rest.is_empty()) {
            remove(inner, rest);
            if !is_empty(inner) {
                return;
            }
        }
        map.remove(name);
    } else if let Some(items) = object.as_array_mut()
        && let Some((index, _)) = item_at(items, step)
    {
        if rest.is_empty() {
            items.remove(index);
        } else {
            remove(&mut items[index], rest);
        }
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// As `fieldsV1` has it.
pub(super) fn to_json(fields: &Fields) -> Value {
    let mut root = Map::new();
    for path in fields {
        let mut node = &mut root;
        for step in path {
            let next = node.entry(step.clone()).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(next) = next else { unreachable!("all nodes are objects") };
            node = next;
        }
        // Paths come sorted: the children of a member come after it.
        node.insert(".".to_owned(), Value::Object(Map::new()));
    }
    let mut root = Value::Object(root);
    tidy(&mut root);
    root
}

/// A leaf has no mark of its own.
fn tidy(node: &mut Value) {
    let Value::Object(map) = node else { return };
    if map.len() == 1 && map.contains_key(".") {
        map.clear();
    }
    map.iter_mut().filter(|(step, _)| *step != ".").for_each(|(_, node)| tidy(node));
}

/// From `fieldsV1`.
pub(super) fn from_json(node: &Value) -> Fields {
    let mut fields = Fields::new();
    read(node, &mut Vec::new(), &mut fields);
    fields
}

fn read(node: &Value, path: &mut Path, fields: &mut Fields) {
    let Value::Object(map) = node else { return };
    if map.is_empty() && !path.is_empty() {
        fields.insert(path.clone());
    }
    for (step, node) in map {
        if step == "." {
            fields.insert(path.clone());
        } else {
            path.push(step.clone());
            read(node, path, fields);
            path.pop();
        }
    }
}

/// As error messages have it: `.spec.ports[port=80,protocol="TCP"].name`.
pub(super) fn words(path: &[String]) -> String {
    path.iter().fold(String::new(), |text, step| {
        if let Some(name) = step.strip_prefix("f:") {
            return text + "." + name;
        }
        let keys: Map<String, Value> = serde_json::from_str(step.trim_start_matches("k:")).unwrap_or_default();
        let keys: Vec<_> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
        text + "[" + &keys.join(",") + "]"
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_written_as_the_api_server_writes_them_and_read_back() {
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web", "labels": {"app": "web"}},
            "spec": {"ports": [{"port": 80, "name": "http"}], "selector": {"app": "web"}, "ipFamilies": ["IPv4"]},
        });
        let fields = of(&service, Resource::named("services"));
        let expected = json!({
            "f:metadata": {"f:labels": {"f:app": {}}},
            "f:spec": {
                "f:ports": {"k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:name": {}, "f:port": {}}},
                "f:selector": {},
                "f:ipFamilies": {},
            },
        });
        assert_eq!(to_json(&fields), expected);
        assert_eq!(from_json(&expected), fields);
    }

    #[test]
    fn a_field_is_taken_out_with_what_it_leaves_empty() {
        let mut service = json!({
            "metadata": {"labels": {"app": "web"}, "name": "web"},
            "spec": {"ports": [{"port": 80, "name": "http"}, {"port": 81, "protocol": "UDP"}]},
        });
        remove(&mut service, &["f:metadata".to_owned(), "f:labels".to_owned(), "f:app".to_owned()]);
        let port = key(&json!({"port": 80}), &["port", "protocol"]);
        let path = ["f:spec".to_owned(), "f:ports".to_owned(), port];
        assert_eq!(get(&service, &path).unwrap()["name"], "http");
        assert_eq!(words(&path), ".spec.ports[port=80,protocol=\"TCP\"]");
        remove(&mut service, &path);
        assert_eq!(service, json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 81, "protocol": "UDP"}]}}));
    }
}
