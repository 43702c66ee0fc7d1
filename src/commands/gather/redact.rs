//! Takes out of an object what looks secret. Pure.

use serde_json::Value;

/// What replaces a value.
pub(super) const REDACTED: &str = "REDACTED";

/// Parts of names that mean a secret, and whole words that do.
const PARTS: [&str; 7] = ["secret", "token", "passw", "credential", "private", "externalid", "cookie"];
const WORDS: [&str; 5] = ["key", "keys", "auth", "authorization", "pass"];

/// An annotation that repeats the whole object as text.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Whether a variable, flag, annotation or key of this name may hold a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let joined: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    PARTS.iter().any(|part| joined.contains(part)) || words.any(|word| WORDS.contains(&word))
}

/// Replaces the texts of fields, variables and flags whose names look secret, and user names and passwords in URLs.
/// Leaves out what only repeats the rest.
pub(super) fn redact(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| name != "managedFields" && name != LAST_APPLIED);
            // A variable: its name is a value.
            if let (Some(Value::String(name)), true) = (fields.get("name"), fields.contains_key("value"))
                && is_secret(name)
            {
                fields.insert("value".to_owned(), REDACTED.into());
            }
            for (name, value) in fields {
                if value.is_string() && is_secret(name) {
                    *value = REDACTED.into();
                } else {
                    redact(value);
                }
            }
        }
        Value::Array(items) => {
            let mut hides_next = false;
            for item in items {
                if let Value::String(text) = item {
                    let flag =
                        text.strip_prefix("--").map(|flag| flag.split('=').next().unwrap_or_default().to_owned());
                    let (secret, complete) = (flag.as_deref().is_some_and(is_secret), text.contains('='));
                    match &flag {
                        Some(flag) if secret && complete => *text = format!("--{flag}={REDACTED}"),
                        None if hides_next => REDACTED.clone_into(text),
                        _ => {}
                    }
                    hides_next = secret && !complete;
                }
                redact(item);
            }
        }
        Value::String(text) => *text = without_userinfo(text),
        _ => {}
    }
}

/// A Corefile without what plugins such as `aws_access_key`, `credentials` and `secret` have after their name, and without
/// user names and passwords in URLs.
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
        return without_userinfo(line);
    }
    // The brace of a block stays, so that the text can still be read as a Corefile.
    let end = if rest.ends_with('{') { " {" } else { "" };
    let newline = if line.ends_with('\n') { "\n" } else { "" };
    format!("{indentation}{word} {REDACTED}{end}{newline}")
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
                "annotations": {LAST_APPLIED: "{\"password\":\"x\"}", "example.org/api-key": "x", "example.org/team": "a"},
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
}
