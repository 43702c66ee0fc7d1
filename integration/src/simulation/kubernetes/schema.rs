//! The schemas of this project's CRDs, held against custom resources: fields that are not in them are dropped, and what
//! they forbid is refused. Patterns and formats are not looked at.

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::Value;

use super::{refusal::Refusal, resources::Resource};

/// By plural name.
static SCHEMAS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
    let crds = api::crds().into_iter();
    crds.filter_map(|crd| {
        let stored = crd.spec.versions.into_iter().find(|version| version.storage)?;
        let schema = serde_json::to_value(stored.schema?.open_api_v3_schema?).ok()?;
        Some((crd.spec.names.plural, schema))
    })
    .collect()
});

/// # Errors
/// The first thing that the schema forbids.
pub(super) fn conform(object: &mut Value, resource: &Resource) -> Result<(), Refusal> {
    let Some(schema) = SCHEMAS.get(resource.plural) else { return Ok(()) };
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
        if !["apiVersion", "kind", "metadata"].contains(&field.as_str())
            && let Some(value) = object.get_mut(field)
        {
            prune(value, schema);
            if let Some((path, why)) = wrong(value, schema, field) {
                return Err(Refusal::invalid(resource, &name, &path, &why));
            }
        }
    }
    Ok(())
}

fn prune(value: &mut Value, schema: &Value) {
    match value {
        Value::Object(map) => {
            if let Some(inner) = schema.get("additionalProperties").filter(|inner| inner.is_object()) {
                map.values_mut().for_each(|value| prune(value, inner));
                return;
            }
            map.retain(|field, _| schema["properties"].get(field).is_some());
            map.iter_mut().for_each(|(field, value)| prune(value, &schema["properties"][field.as_str()]));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| prune(item, &schema["items"])),
        _ => {}
    }
}

/// Where a value is not what it should be, and why.
fn wrong(value: &Value, schema: &Value, path: &str) -> Option<(String, String)> {
    let here = |why: String| Some((path.to_owned(), why));
    if value.is_null() && schema["nullable"] == true {
        return None;
    }
    let fits = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("boolean") => value.is_boolean(),
        _ => true,
    };
    if !fits {
        return here(format!("Invalid value: {value} is no {}", schema["type"]));
    }
    if let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.contains(value)) {
        return here(format!("Unsupported value: {value}: supported values: {allowed:?}"));
    }
    let bound = |name: &str| schema[name].as_f64();
    let (size, most, least) = match value {
        Value::Object(map) => {
            for field in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !map.contains_key(field) {
                    return Some((format!("{path}.{field}"), "Required value".to_owned()));
                }
            }
            let schema_of = |field: &str| schema["properties"].get(field).unwrap_or(&schema["additionalProperties"]);
            let inner = |(field, value): (&String, _)| wrong(value, schema_of(field), &format!("{path}.{field}"));
            if let Some(found) = map.iter().find_map(inner) {
                return Some(found);
            }
            (map.len() as f64, bound("maxProperties"), bound("minProperties"))
        }
        Value::Array(items) => {
            let inner = |(index, item)| wrong(item, &schema["items"], &format!("{path}[{index}]"));
            if let Some(found) = items.iter().enumerate().find_map(inner) {
                return Some(found);
            }
            (items.len() as f64, bound("maxItems"), bound("minItems"))
        }
        Value::String(text) => (text.chars().count() as f64, bound("maxLength"), bound("minLength")),
        Value::Number(number) => (number.as_f64().unwrap_or(0.0), bound("maximum"), bound("minimum")),
        _ => return None,
    };
    if most.is_some_and(|most| size > most) {
        return here(format!("Too long or too large: may not be more than {}", most.unwrap_or_default()));
    }
    if least.is_some_and(|least| size < least) {
        return here(format!("Too short or too small: must be at least {}", least.unwrap_or_default()));
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn custom_resources_are_held_to_their_schema() {
        let import = |spec: Value| json!({"metadata": {"name": "web"}, "spec": spec});
        let port = |number: i32| json!([{"port": number, "protocol": "TCP"}]);
        let resource = Resource::named("serviceimports");
        for (spec, field) in [
            (json!({"type": "ClusterSetIP", "ports": port(80)}), None),
            (json!({"type": "NodePort", "ports": port(80)}), Some("spec.type")),
            (json!({"type": "Headless", "ports": [{"protocol": "TCP"}]}), Some("spec.ports[0].port")),
            (json!({"type": "Headless", "ports": port(80), "ips": ["a", "b", "c"]}), Some("spec.ips")),
            (json!({"type": "Headless", "ports": "many"}), Some("spec.ports")),
        ] {
            let refusal = conform(&mut import(spec.clone()), resource).err();
            let message = refusal.map(|refusal| refusal.status()["details"]["causes"][0]["field"].clone());
            assert_eq!(message, field.map(Value::from), "{spec}");
        }
        let mut unknown = import(json!({"type": "Headless", "ports": port(80), "colour": "red"}));
        conform(&mut unknown, resource).unwrap();
        assert_eq!(unknown["spec"].get("colour"), None);
    }
}
