//! Validation of labels and annotations as in the API server (apimachinery), so that one bad pair is left out instead
//! of the whole object being refused.

/// Maximum length of the name in a key, and of the value of a label.
const MAX_NAME: usize = 63;

/// Maximum length of the prefix in a key.
const MAX_PREFIX: usize = 253;

/// Whether `key` is a valid key of a label: `[<DNS subdomain>/]<name>`.
pub fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => {
            prefix.len() <= MAX_PREFIX && prefix.split('.').all(super::identity::is_dns_label) && is_name(name)
        }
        None => is_name(key),
    }
}

/// Whether `key` is a valid key of an annotation: as for a label, but in upper or lower case.
pub fn is_annotation_key(key: &str) -> bool {
    is_label_key(&key.to_ascii_lowercase())
}

/// Whether `value` is a valid value of a label.
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_name(value)
}

fn is_name(name: &str) -> bool {
    let alnum = |c: &u8| c.is_ascii_alphanumeric();
    let bytes = name.as_bytes();
    bytes.len() <= MAX_NAME
        && bytes.first().is_some_and(alnum)
        && bytes.last().is_some_and(alnum)
        && bytes.iter().all(|c| alnum(c) || b"-_.".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_the_keys_and_values_that_an_api_server_accepts() {
        let long = "a".repeat(64);
        for key in ["team", "app.kubernetes.io/name", "A_b-c.d", "example.com/X", &long[..63]] {
            assert!(is_label_key(key) && is_annotation_key(key), "{key}");
        }
        for key in ["", "a b", "-a", "a-", "/a", "a/", "a/b/c", "Ex_ample/a", "é", &long] {
            assert!(!is_label_key(key) && !is_annotation_key(key), "{key}");
        }
        assert!(is_annotation_key("Example.com/a") && !is_label_key("Example.com/a"));
        for (value, valid) in
            [("", true), ("a", true), ("A_1.b", true), ("a b", false), ("a/b", false), (&*long, false)]
        {
            assert_eq!(is_label_value(value), valid, "{value}");
        }
    }
}
