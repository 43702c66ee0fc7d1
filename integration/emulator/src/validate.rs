//! Sizes and character sets, from the AWS API model (2017-03-14). Sizes are in characters, as there.

use std::collections::BTreeSet;

use super::error::{Answer, ApiError};
use super::requests::{Attributes, Filter, Tag};
use super::state::NamespaceType;

fn printable(byte: u8) -> bool {
    (b'!'..=b'~').contains(&byte)
}

pub(crate) fn required(field: &str, value: &str) -> Answer<()> {
    if value.is_empty() {
        return Err(ApiError::invalid(format!("{field} is required.")));
    }
    Ok(())
}

pub(crate) fn length(field: &str, value: &str, max: usize) -> Answer<()> {
    let chars = value.chars().count();
    if chars > max {
        return Err(ApiError::invalid(format!("{field} has {chars} characters; at most {max} are allowed.")));
    }
    Ok(())
}

/// A required id or ARN (`Arn`, at most 255 characters).
pub(crate) fn id(field: &str, value: &str) -> Answer<()> {
    required(field, value)?;
    length(field, value, 255)
}

/// `ResourceId`, at most 64 characters.
pub(crate) fn creator_request_id(value: Option<&String>) -> Answer<()> {
    value.map_or(Ok(()), |value| length("CreatorRequestId", value, 64))
}

/// `ResourceDescription`, at most 1,024 characters.
pub(crate) fn description(value: Option<&String>) -> Answer<()> {
    value.map_or(Ok(()), |value| length("Description", value, 1024))
}

/// HTTP: `^(?!arn:)[!-~]{1,1024}$`; private: the same up to 253; public: two or more DNS labels, 253 characters.
pub(crate) fn namespace_name(kind: NamespaceType, name: &str) -> Answer<()> {
    required("Name", name)?;
    length("Name", name, if kind == NamespaceType::Http { 1024 } else { 253 })?;
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let good = match kind {
        NamespaceType::Http | NamespaceType::DnsPrivate => name.bytes().all(printable) && !name.starts_with("arn:"),
        NamespaceType::DnsPublic => name.contains('.') && name.split('.').all(label),
    };
    if good { Ok(()) } else { Err(ApiError::invalid(format!("{name} is not a valid namespace name."))) }
}

/// 1 to 127 characters: labels of one letter or digit, or 2 to 63 of letters, digits, `-` and `_` with no `-` at an end.
pub(crate) fn service_name(name: &str) -> Answer<()> {
    required("Name", name)?;
    let label = |label: &str| match label.as_bytes() {
        [only] => only.is_ascii_alphanumeric(),
        [first, .., last] => {
            label.len() <= 63
                && *first != b'-'
                && *last != b'-'
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        }
        [] => false,
    };
    if name == "." || name.len() <= 127 && name.split('.').all(label) {
        return Ok(());
    }
    Err(ApiError::invalid(format!("{name} is not a valid service name.")))
}

/// `^[0-9a-zA-Z_/:.@-]+$`, at most 64 characters.
pub(crate) fn instance_id(id: &str) -> Answer<()> {
    required("InstanceId", id)?;
    length("InstanceId", id, 64)?;
    if id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_/:.@-".contains(&b)) {
        return Ok(());
    }
    Err(ApiError::invalid(format!(
        "{id} is not a valid instance ID: only letters, digits and _ / : . @ - are allowed."
    )))
}

/// Keys `^[a-zA-Z0-9!-~]+$`, at most 255 characters; values printable ASCII with spaces and tabs inside, at most 1,024.
/// The model's pattern lets spaces and tabs stand last but not first.
pub(crate) fn attribute_charset(attributes: &Attributes) -> Answer<()> {
    for (key, value) in attributes {
        required("An attribute key", key)?;
        length("An attribute key", key, 255)?;
        length(&format!("The value of attribute {key}"), value, 1024)?;
        if !key.bytes().all(printable) {
            return Err(ApiError::invalid(format!("Attribute key {key} has characters that are not allowed.")));
        }
        let inside = |byte: u8| printable(byte) || byte == b' ' || byte == b'\t';
        if !(value.bytes().all(inside) && value.bytes().next().is_none_or(printable)) {
            return Err(ApiError::invalid(format!(
                "The value of attribute {key} has characters that are not allowed."
            )));
        }
    }
    Ok(())
}

/// At most 200 in a request, keys of 1 to 128 characters that do not begin with `aws:`, values of at most 256.
pub(crate) fn tags(tags: &[Tag]) -> Answer<()> {
    if tags.len() > 200 {
        return Err(ApiError::invalid(format!("{} tags were given; at most 200 are allowed.", tags.len())));
    }
    let mut keys = BTreeSet::new();
    for Tag { key, value } in tags {
        required("A tag key", key)?;
        length("A tag key", key, 128)?;
        length("A tag value", value, 256)?;
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(ApiError::invalid(format!("Tag key {key} begins with aws:, which is reserved.")));
        }
        if !keys.insert(key) {
            return Err(ApiError::invalid(format!("Tag key {key} was given twice.")));
        }
    }
    Ok(())
}

/// `RecordTTL`: 0 to 2,147,483,647 seconds.
pub(crate) fn ttl(ttl: i64) -> Answer<()> {
    if (0..=2_147_483_647).contains(&ttl) {
        return Ok(());
    }
    Err(ApiError::invalid(format!("TTL {ttl} is out of range 0 to 2147483647.")))
}

/// A page size of `1..=max`, 100 where none was given.
pub(crate) fn max_results(given: Option<i64>, max: i64) -> Answer<usize> {
    match given {
        None => Ok(100),
        Some(given) if (1..=max).contains(&given) => Ok(given as usize),
        Some(given) => Err(ApiError::invalid(format!("MaxResults {given} is out of range 1 to {max}."))),
    }
}

/// A filter's name and condition against what the operation takes; `EQ` and `BEGINS_WITH` take one value.
pub(crate) fn filter(filter: &Filter, allowed: &[(&str, &[&str])]) -> Answer<()> {
    let Some((_, conditions)) = allowed.iter().find(|(name, _)| *name == filter.name) else {
        return Err(ApiError::invalid(format!("Filter {} is not supported.", filter.name)));
    };
    let condition = filter.condition.as_deref().unwrap_or("EQ");
    if !conditions.contains(&condition) {
        return Err(ApiError::invalid(format!("Filter {} does not support condition {condition}.", filter.name)));
    }
    let count = match condition {
        "IN" => filter.values.len().max(1),
        "BETWEEN" => 2,
        _ => 1,
    };
    if filter.values.len() != count {
        return Err(ApiError::invalid(format!("Filter {} takes {count} value(s) for {condition}.", filter.name)));
    }
    filter.values.iter().try_for_each(|value| {
        required("A filter value", value)?;
        length("A filter value", value, 255)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(key: &str, value: &str) -> Attributes {
        Attributes::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn service_names_follow_the_pattern_of_the_model() {
        for good in ["a", "my-service", "_http._tcp", "a.b.c", "A1", "x".repeat(63).as_str(), "."] {
            service_name(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        let long = ["x".repeat(63), "y".repeat(63), "z".repeat(2)].join(".");
        for bad in ["", "_", "-a", "a-", "a..b", "a b", "é", "x".repeat(64).as_str(), long.as_str()] {
            assert!(service_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn instance_ids_follow_the_pattern_of_the_model() {
        for good in ["i-1", "a_b/c:d.e@f-g", "x".repeat(64).as_str()] {
            instance_id(good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for bad in ["", "a b", "a+b", "x".repeat(65).as_str()] {
            assert!(instance_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn attributes_follow_the_patterns_of_the_model() {
        for (key, value) in [("k", ""), ("k!~", "a b\tc"), ("k", "x"), ("k", "ends with a space ")] {
            attribute_charset(&attributes(key, value)).unwrap_or_else(|error| panic!("{key}={value}: {error}"));
        }
        let (long_key, long_value) = ("k".repeat(256), "v".repeat(1025));
        let cases = [
            ("", "v"),
            ("a b", "v"),
            ("k", " v"),
            ("k", "\u{e9}"),
            ("k", "a\nb"),
            (&long_key, "v"),
            ("k", &long_value),
        ];
        for (key, value) in cases {
            assert!(attribute_charset(&attributes(key, value)).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn namespace_names_follow_the_patterns_of_the_model() {
        for (kind, good) in [
            (NamespaceType::Http, "a/b:c"),
            (NamespaceType::DnsPrivate, "local"),
            (NamespaceType::DnsPublic, "example.com"),
        ] {
            namespace_name(kind, good).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for (kind, bad) in [
            (NamespaceType::Http, "arn:x"),
            (NamespaceType::Http, "a b"),
            (NamespaceType::DnsPrivate, "arn:x"),
            (NamespaceType::DnsPublic, "local"),
            (NamespaceType::DnsPublic, "-a.com"),
        ] {
            assert!(namespace_name(kind, bad).is_err(), "{bad}");
        }
    }
}
