//! What the tests of several crates ask of objects of Kubernetes.

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

/// What the type does not know of a value: a misspelt field would otherwise be ignored.
pub fn unknown<T: DeserializeOwned + Serialize>(value: &Value) -> Vec<String> {
    let typed: T = serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{error}: {value}"));
    let mut lost = Vec::new();
    missing(value, &serde_json::to_value(typed).unwrap(), "", &mut lost);
    lost
}

fn missing(given: &Value, kept: &Value, path: &str, lost: &mut Vec<String>) {
    match (given, kept) {
        (Value::Object(given), Value::Object(kept)) => {
            for (name, value) in given {
                missing(value, kept.get(name).unwrap_or(&Value::Null), &format!("{path}.{name}"), lost);
            }
        }
        (Value::Array(given), Value::Array(kept)) if given.len() == kept.len() => {
            for (given, kept) in given.iter().zip(kept) {
                missing(given, kept, &format!("{path}[]"), lost);
            }
        }
        _ if given == kept => {}
        _ => lost.push(path.to_owned()),
    }
}
