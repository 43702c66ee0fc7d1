//! YAML for manifests. A serializer that knows only YAML 1.2 leaves `on` and `no` without quotes, and kubectl, which reads YAML
//! 1.1, takes them for booleans: a Cloud Map service may have such a name.

use serde_json::Value;

/// Words that some version of YAML takes for something else than a text.
const WORDS: [&str; 10] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan"];

/// A value as a block, each line of it with so many spaces before it.
pub(super) fn block(value: &Value, indent: usize) -> String {
    let spaces = " ".repeat(indent);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let field = |(name, value): (&String, &Value)| match value {
                Value::Object(_) | Value::Array(_) if !is_short(value) => {
                    // A list may begin in the column of its name.
                    let deeper = indent + if value.is_array() { 0 } else { 2 };
                    format!("{spaces}{}:\n{}", scalar(name), block(value, deeper))
                }
                _ => format!("{spaces}{}: {}\n", scalar(name), short(value)),
            };
            fields.iter().map(field).collect()
        }
        Value::Array(values) if !is_short(value) => {
            // The first line of each gets the mark instead of two spaces.
            let item = |value| format!("{spaces}- {}", &block(value, indent + 2)[indent + 2..]);
            values.iter().map(item).collect()
        }
        _ => format!("{spaces}{}\n", short(value)),
    }
}

/// Whether a value fits behind its name.
fn is_short(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(values) => values.iter().all(|value| !value.is_object() && !value.is_array()),
        _ => true,
    }
}

fn short(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        Value::Array(values) => format!("[{}]", values.iter().map(short).collect::<Vec<_>>().join(", ")),
        // Numbers, booleans, and what is empty: as in JSON.
        _ => value.to_string(),
    }
}

/// A text, in the quotes of JSON unless it is plain without doubt.
fn scalar(text: &str) -> String {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    let is_plain = begins && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
    if is_plain && !WORDS.contains(&text.to_ascii_lowercase().as_str()) {
        return text.to_owned();
    }
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_block_reads_as_people_write_it() {
        let value = json!({
            "kind": "Cutover",
            "metadata": {"annotations": {"cloudmap-mcs/share-of-traffic": "0%"}},
            "spec": {"paused": true, "ports": [{"port": 80, "targetPort": 8080}, {"port": 81}], "steps": [5, 100]},
            "status": {},
        });
        assert_eq!(
            block(&value, 0),
            "kind: Cutover\nmetadata:\n  annotations:\n    cloudmap-mcs/share-of-traffic: \"0%\"\nspec:\n  paused: true\n  ports:\n  \
             - port: 80\n    targetPort: 8080\n  - port: 81\n  steps: [5, 100]\nstatus: {}\n"
        );
    }

    #[test]
    fn every_text_stays_that_text() {
        for text in [
            "orders",
            "on",
            "No",
            "y",
            "null",
            "true",
            "1e3",
            "0x1f",
            "12",
            "1_000",
            "2026-11-28",
            "~",
            "",
            " a ",
            "a: b",
            "#a",
            "a #b",
            "@a",
            "*",
            "&a",
            "!a",
            "%a",
            "'",
            "\"",
            "a\nb: c",
            "a\\b",
            "é",
            "-",
            "- a",
            "[a]",
            "{a}",
            "---",
            "NaN",
            ".inf",
        ] {
            let written = block(&json!({text: {"value": text, "list": [text]}}), 0);
            let read: Value = serde_yaml_ng::from_str(&written).unwrap();
            assert_eq!(read, json!({text: {"value": text, "list": [text]}}), "{written}");
        }
        // No test here reads YAML 1.1.
        for word in ["on", "OFF", "yes", "No", "y", "N"] {
            assert!(scalar(word).starts_with('"'), "{word}");
        }
    }
}
