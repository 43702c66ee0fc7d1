//! Takes out of an object what looks secret. Pure.

use serde_json::Value;

/// What replaces a value.
pub(super) const REDACTED: &str = "REDACTED";

/// Parts of names that mean a secret, and whole words that do.
const PARTS: [&str; 10] =
    ["secret", "token", "passw", "credential", "private", "externalid", "cookie", "signature", "apikey", "accesskey"];
const WORDS: [&str; 6] = ["key", "keys", "auth", "authorization", "pass", "sig"];

/// Annotations that repeat the whole object as text, some of them compressed: of kubectl, kapp, Rancher and Banzai Cloud.
const REPEATING: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "kapp.k14s.io/original",
    "objectset.rio.cattle.io/applied",
    "banzaicloud.com/last-applied",
];
/// What comes before a secret in a header.
const SCHEMES: [&str; 2] = ["bearer", "basic"];

/// Whether a variable, flag, annotation or key of this name may hold a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let joined: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    PARTS.iter().any(|part| joined.contains(part)) || words.any(|word| WORDS.contains(&word))
}

/// Replaces the texts of fields, variables, flags and parameters whose names look secret, and user names and passwords in
/// URLs. Leaves out what only repeats the rest.
pub(super) fn redact(value: &mut Value) {
    redact_within(value, false);
}

/// With `nested`, a text may be an object as JSON: annotations and variables have such texts.
fn redact_within(value: &mut Value, nested: bool) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| name != "managedFields" && !REPEATING.contains(&name.as_str()));
            // A variable: its name is a value.
            if let (Some(Value::String(name)), true) = (fields.get("name"), fields.contains_key("value"))
                && is_secret(name)
            {
                fields.insert("value".to_owned(), REDACTED.into());
            }
            for (name, value) in fields {
                let nested = nested || name == "annotations" || name == "value";
                match value {
                    Value::String(text) if is_secret(name) => REDACTED.clone_into(text),
                    Value::Array(items) if is_secret(name) && items.iter().all(Value::is_string) => {
                        items.fill(REDACTED.into());
                    }
                    other => redact_within(other, nested),
                }
            }
        }
        Value::Array(items) => {
            let mut hides_next = false;
            for item in items {
                if let Value::String(text) = item {
                    let is_flag = text.starts_with('-');
                    let assigned = text.split_once('=').map(|(name, _)| name.to_owned());
                    let secret = |name: &str| !name.contains(char::is_whitespace) && is_secret(name);
                    match assigned {
                        Some(name) if secret(&name) => {
                            *text = format!("{name}={REDACTED}");
                            hides_next = false;
                        }
                        assigned => {
                            if hides_next && !is_flag {
                                REDACTED.clone_into(text);
                            }
                            hides_next = is_flag && assigned.is_none() && secret(text.as_str());
                        }
                    }
                }
                redact_within(item, nested);
            }
        }
        Value::String(text) => *text = if nested { redact_nested(text) } else { without_secrets(text) },
        _ => {}
    }
}

/// The text without secrets. It stays as it is if it is JSON that has none.
fn redact_nested(text: &str) -> String {
    let Some(before) = serde_json::from_str::<Value>(text).ok().filter(|value| value.is_object() || value.is_array())
    else {
        return without_secrets(text);
    };
    let mut after = before.clone();
    redact_within(&mut after, true);
    if after == before { text.to_owned() } else { after.to_string() }
}

/// A Corefile without what plugins such as `aws_access_key`, `credentials` and `secret` have after their name, and without
/// other secrets as in any text.
pub(super) fn redact_corefile(text: &str) -> String {
    text.split_inclusive('\n').map(redact_line).collect()
}

fn redact_line(line: &str) -> String {
    // What is commented out may still be valid.
    let start = line.trim_start_matches(|c: char| c == '#' || c.is_whitespace());
    let indentation = &line[..line.len() - start.len()];
    let word = start.split_whitespace().next().unwrap_or_default();
    let rest = start[word.len()..].trim_end();
    if rest.is_empty() || !is_secret(word) {
        return without_secrets(line);
    }
    // The brace of a block stays, so that the text can still be read as a Corefile.
    let end = if rest.ends_with('{') { " {" } else { "" };
    let newline = if line.ends_with('\n') { "\n" } else { "" };
    format!("{indentation}{word} {REDACTED}{end}{newline}")
}

/// The text without user names and passwords in URLs, without the values of parameters, variables and flags whose names look
/// secret, and without what comes after `Bearer`. Spaces stay as they are.
pub(super) fn without_secrets(text: &str) -> String {
    let mut hides_next = false;
    let mut clean = String::with_capacity(text.len());
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        if !word.is_empty() {
            let bare = word.trim_matches(['"', '\'', '\\']);
            let hidden = hides_next && !bare.starts_with('-');
            let scheme = SCHEMES.contains(&bare.to_ascii_lowercase().as_str());
            hides_next = scheme || bare.starts_with('-') && !bare.contains('=') && is_secret(bare);
            if hidden && !scheme {
                clean += REDACTED;
            } else {
                clean += &without_assigned(&without_userinfo(word));
            }
        }
        clean += &piece[word.len()..];
    }
    clean
}

/// The word with `token=REDACTED` for `token=x`, also in the parameters of a URL.
fn without_assigned(word: &str) -> String {
    let mut clean = String::with_capacity(word.len());
    let mut rest = word;
    while let Some((before, after)) = rest.split_once('=') {
        let name = before.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).next().unwrap_or_default();
        clean += before;
        clean.push('=');
        rest = after;
        if is_secret(name) {
            let value = after.trim_start_matches(['"', '\'', '\\']);
            let end = value.find(['&', ';', ',', '"', '\'', '\\', ')', '|']).unwrap_or(value.len());
            clean += &after[..after.len() - value.len()];
            if end > 0 {
                clean += REDACTED;
            }
            rest = &value[end..];
        }
    }
    clean + rest
}

/// The text with `https://REDACTED@host` for `https://user:password@host`.
fn without_userinfo(text: &str) -> String {
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c == '/' || c == '"' || c == '\'' || c.is_whitespace()).unwrap_or(part.len());
        let (authority, rest) = part.split_at(end);
        clean += "://";
        if let Some((_, host)) = authority.rsplit_once('@') {
            clean += REDACTED;
            clean += "@";
            clean += host;
        } else {
            clean += authority;
        }
        clean += rest;
    }
    clean
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_that_look_secret_are_known_and_others_are_not() {
        for name in [
            "AWS_SECRET_ACCESS_KEY",
            "AWS_ACCESS_KEY_ID",
            "AWS_SESSION_TOKEN",
            "DB_PASSWORD",
            "api-key",
            "apiKey",
            "NEW_RELIC_APIKEY",
            "accessKeyId",
            "apiToken",
            "Authorization",
            "CLOUDMAP_MCS_ASSUME_ROLE_EXTERNAL_ID",
            "assume-role-external-id",
            "example.org/credentials",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "CLOUDMAP_MCS_REGION",
            "CLOUDMAP_MCS_REGISTRATION_POLICY",
            "cloudmap-mcs/share",
            "app.kubernetes.io/name",
            "author",
            "monkey",
            "passive",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn secrets_of_plugins_are_taken_out_of_a_corefile() {
        let text = "\
.:53 {
    route53 example.org.:Z1 {
        aws_access_key AKIA x/y
    }
\tetcd {
        credentials me x
        endpoint https://me:x@etcd:2379
    }
    tsig {
        secret name. x
    }
    # aws_access_key AKIA x/y
    acme_token x {
    }
    secret
    kubernetes cluster.local clusterset.local {
      multicluster clusterset.local
    }
}
credentials me x";
        let expected = "\
.:53 {
    route53 example.org.:Z1 {
        aws_access_key REDACTED
    }
\tetcd {
        credentials REDACTED
        endpoint https://REDACTED@etcd:2379
    }
    tsig {
        secret REDACTED
    }
    # aws_access_key REDACTED
    acme_token REDACTED {
    }
    secret
    kubernetes cluster.local clusterset.local {
      multicluster clusterset.local
    }
}
credentials REDACTED";
        assert_eq!(redact_corefile(text), expected);
    }

    #[test]
    fn variables_annotations_and_flags_that_look_secret_are_replaced() {
        let mut object = json!({
            "metadata": {
                "managedFields": [{}],
                "annotations": {REPEATING[0]: "{\"password\":\"x\"}", REPEATING[2]: "H4sI", "example.org/api-key": "x", "example.org/team": "a"},
            },
            "spec": {"containers": [{
                "args": ["run", "--token=x", "--password", "x", "--region", "eu-central-1", "--secret", "--dry-run"],
                "env": [
                    {"name": "AWS_SECRET_ACCESS_KEY", "value": "x"},
                    {"name": "FROM_SECRET_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "optional": true}}},
                    {"name": "PROXY", "value": "http://me:x@proxy:3128/path and https://b@c"},
                    {"name": "REGION", "value": "eu-central-1"},
                ],
            }]},
            "data": {"CLOUDMAP_MCS_ASSUME_ROLE_EXTERNAL_ID": "x", "CLOUDMAP_MCS_POLICY": "sync"},
        });
        redact(&mut object);
        assert_eq!(
            object,
            json!({
                "metadata": {"annotations": {"example.org/api-key": REDACTED, "example.org/team": "a"}},
                "spec": {"containers": [{
                    "args": ["run", "--token=REDACTED", "--password", REDACTED, "--region", "eu-central-1", "--secret", "--dry-run"],
                    "env": [
                        {"name": "AWS_SECRET_ACCESS_KEY", "value": REDACTED},
                        {"name": "FROM_SECRET_KEY", "valueFrom": {"secretKeyRef": {"name": "s", "optional": true}}},
                        {"name": "PROXY", "value": "http://REDACTED@proxy:3128/path and https://REDACTED@c"},
                        {"name": "REGION", "value": "eu-central-1"},
                    ],
                }]},
                "data": {"CLOUDMAP_MCS_ASSUME_ROLE_EXTERNAL_ID": REDACTED, "CLOUDMAP_MCS_POLICY": "sync"},
            })
        );
    }

    #[test]
    fn secrets_inside_of_texts_are_replaced_and_the_rest_stays() {
        for (text, expected) in [
            ("https://x/a?b=1&token=x&c=2#d", "https://x/a?b=1&token=REDACTED&c=2#d"),
            ("https://x/?X-Amz-Signature=0a&sig=b", "https://x/?X-Amz-Signature=REDACTED&sig=REDACTED"),
            ("export TOKEN=\"x\";  run\n -password x -v", "export TOKEN=\"REDACTED\";  run\n -password REDACTED -v"),
            ("--set=auth.token=x,region=y", "--set=auth.token=REDACTED,region=y"),
            ("Authorization: Bearer x.y.z", "Authorization: Bearer REDACTED"),
            ("postgres://me:x@db/a?sslmode=off", "postgres://REDACTED@db/a?sslmode=off"),
        ] {
            assert_eq!(without_secrets(text), expected);
        }
        for plain in ["app=web,tier in (a, b)", "a = b", "key", "--private", "a==", "kubectl get pods -l app=web"] {
            assert_eq!(without_secrets(plain), plain);
        }
    }

    #[test]
    fn secrets_in_nested_objects_and_in_commands_are_replaced() {
        let applied = json!({"spec": {"containers": [{"env": [{"name": "API_TOKEN", "value": "x"}]}]}});
        let redacted = json!({"spec": {"containers": [{"env": [{"name": "API_TOKEN", "value": REDACTED}]}]}});
        let mut object = json!({
            "metadata": {"annotations": {"example.org/applied": applied.to_string(), "example.org/plain": "{ \"a\": 1 }"}},
            "spec": {
                "env": [{"name": "CONFIG", "value": "{\"keys\": [\"x\"], \"n\": 1}"}],
                "command": ["env", "DB_PASSWORD=x y", "sh", "-c", "run --token x"],
                "args": ["-password", "x", "-v", "2", "--header", "Authorization: Bearer x"],
            },
            "data": {"record": "{\"key\":\"public\"}"},
        });
        redact(&mut object);
        assert_eq!(
            object,
            json!({
                "metadata": {"annotations": {"example.org/applied": redacted.to_string(), "example.org/plain": "{ \"a\": 1 }"}},
                "spec": {
                    "env": [{"name": "CONFIG", "value": "{\"keys\":[\"REDACTED\"],\"n\":1}"}],
                    "command": ["env", "DB_PASSWORD=REDACTED", "sh", "-c", "run --token REDACTED"],
                    "args": ["-password", REDACTED, "-v", "2", "--header", "Authorization: Bearer REDACTED"],
                },
                "data": {"record": "{\"key\":\"public\"}"},
            })
        );
    }
}
