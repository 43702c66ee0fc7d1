//! Takes out of an object what looks secret. Pure.

use serde_json::Value;

/// What replaces a value.
pub(super) const REDACTED: &str = "REDACTED";

/// Parts of names that mean a secret, and whole words that do.
const PARTS: [&str; 26] = [
    "secret",
    "token",
    "passw",
    "passphrase",
    "passcode",
    "pwd",
    "credential",
    "private",
    "externalid",
    "cookie",
    "signature",
    "apikey",
    "accesskey",
    "accountkey",
    "sharedkey",
    "masterkey",
    "signingkey",
    "encryptionkey",
    "sshkey",
    "licensekey",
    "sessionkey",
    "bearer",
    "jwt",
    "connectionstring",
    "connstr",
    "dockerconfigjson",
];
const WORDS: [&str; 8] = ["key", "keys", "auth", "authorization", "pass", "sig", "dsn", "creds"];

/// Annotations that repeat the whole object as text, some of them compressed: of kubectl, kapp, Rancher and Banzai Cloud.
const REPEATING: [&str; 4] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "kapp.k14s.io/original",
    "objectset.rio.cattle.io/applied",
    "banzaicloud.com/last-applied",
];
/// What comes before a secret in a header.
const SCHEMES: [&str; 2] = ["bearer", "basic"];
/// How secrets begin whose issuers let them begin so: keys of AWS, tokens of GitHub, GitLab, Slack and Stripe. How long they
/// are at least.
const KNOWN: [(&str, usize); 12] = [
    ("AKIA", 20),
    ("ASIA", 20),
    ("ghp_", 30),
    ("gho_", 30),
    ("ghs_", 30),
    ("github_pat_", 30),
    ("glpat-", 20),
    ("xoxb-", 20),
    ("xoxp-", 20),
    ("sk_live_", 20),
    ("rk_live_", 20),
    // A JSON Web Token: the begin of `{"` in base64.
    ("eyJ", 40),
];
/// How blocks in the format PEM begin and end.
const PEM: [&str; 3] = ["-----BEGIN ", "-----END ", "-----"];

/// Whether a variable, flag, annotation or key of this name may hold a secret.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let joined: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let mut words = name.split(|c: char| !c.is_ascii_alphanumeric());
    PARTS.iter().any(|part| joined.contains(part)) || joined.ends_with("dsn") || words.any(|word| WORDS.contains(&word))
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

/// The text without user names and passwords in URLs, without the values of parameters, variables, fields and flags whose names
/// look secret, without what comes after `Bearer`, and without what is known by its form. Spaces stay as they are.
pub(super) fn without_secrets(text: &str) -> String {
    let text = without_known(text);
    let mut hides_next = false;
    let mut clean = String::with_capacity(text.len());
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        if !word.is_empty() {
            let bare = word.trim_matches(['"', '\'', '\\']);
            let hidden = hides_next && !bare.starts_with('-');
            let scheme = SCHEMES.contains(&bare.to_ascii_lowercase().as_str());
            let flag = bare.starts_with('-') && !bare.contains('=') && is_secret(bare);
            hides_next = scheme || flag || is_field(word);
            if hidden && !scheme {
                let begin = word.len() - word.trim_start_matches(['"', '\'', '\\']).len();
                let end = word.trim_end_matches(['"', '\'', '\\', ',', '}', ']']).len().max(begin);
                clean.extend([&word[..begin], REDACTED, &word[end..]]);
            } else {
                clean += &without_assigned(&without_assigned(word, '='), ':');
            }
        }
        clean += &piece[word.len()..];
    }
    clean
}

/// Whether a word is the name of a field whose value follows: `password:`.
fn is_field(word: &str) -> bool {
    let Some(name) = word.trim_start_matches(['{', ',', '"', '\'', '\\']).strip_suffix(':') else { return false };
    let name = name.trim_end_matches(['"', '\'', '\\']);
    !name.contains([':', '/']) && is_secret_field(name)
}

/// Keys also of what is not secret are called so in texts: those of objects, public ones.
fn is_secret_field(name: &str) -> bool {
    is_secret(name) && !matches!(name.to_ascii_lowercase().as_str(), "key" | "keys")
}

/// The word with `token=REDACTED` for `token=x`, also in the parameters of a URL, and for `"token":"x"`.
fn without_assigned(word: &str, sign: char) -> String {
    let mut clean = String::with_capacity(word.len());
    let mut rest = word;
    while let Some((before, after)) = rest.split_once(sign) {
        let name = before.trim_end_matches(['"', '\'', '\\']);
        let is_text = sign == '=' || (name.len() < before.len() && after.starts_with(['"', '\'', '\\']));
        let name = name.rsplit(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).next().unwrap_or_default();
        clean += before;
        clean.push(sign);
        rest = after;
        let is_secret = if sign == '=' { is_secret } else { is_secret_field };
        if is_text && is_secret(name) {
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

/// The text without what is known to be secret by its form, whatever it is called: blocks in the format PEM, tokens and keys
/// that begin as their issuers let them begin, user names and passwords before a host. For logs, whose fields are called `key`
/// and are none.
pub(super) fn without_known(text: &str) -> String {
    let text = without_pem(text);
    let mut clean = String::with_capacity(text.len());
    for piece in text.split_inclusive(char::is_whitespace) {
        let word = piece.trim_end();
        clean += &without_tokens(&without_login(&without_userinfo(word)));
        clean += &piece[word.len()..];
    }
    clean
}

/// A block keeps its first and last line. What was cut off before its end goes to the end of the text.
fn without_pem(text: &str) -> String {
    let [begin, end, mark] = PEM;
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(begin) {
        let label = at + begin.len();
        let Some(opened) = rest[label..].find(mark).map(|found| label + found + mark.len()) else { break };
        clean += &rest[..opened];
        clean += REDACTED;
        rest = rest[opened..].find(end).map_or("", |found| &rest[opened + found..]);
    }
    clean + rest
}

/// The word without tokens that begin as known ones do.
fn without_tokens(word: &str) -> String {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let mut clean = String::with_capacity(word.len());
    for piece in word.split_inclusive(|c: char| !is_part(c)) {
        let token = piece.trim_end_matches(|c: char| !is_part(c));
        let known = KNOWN.iter().any(|(begin, least)| token.starts_with(begin) && token.len() >= *least);
        clean += if known { REDACTED } else { token };
        clean += &piece[token.len()..];
    }
    clean
}

/// The word with `REDACTED@tcp(db)` for `user:password@tcp(db)`. Images have a digest after the sign.
fn without_login(word: &str) -> String {
    let Some((before, after)) = word.rsplit_once('@').filter(|_| !word.contains("://")) else { return word.to_owned() };
    let start = before.rfind(['"', '\'', '=', '(', ',', ';']).map_or(0, |at| at + 1);
    let login = &before[start..];
    let has_password =
        login.split_once(':').is_some_and(|(user, password)| !user.contains('/') && !password.is_empty());
    if !has_password || after.starts_with("sha256:") || after.starts_with("sha512:") {
        return word.to_owned();
    }
    format!("{}{REDACTED}@{after}", &before[..start])
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
mod tests;
