//! Which names a command is about.

use std::collections::BTreeSet;

use crate::model::ServiceKey;

/// The names in a list, each `name` or `namespace/name`, without repetitions, in their order.
///
/// # Errors
/// What is none. The text names it.
pub(super) fn names<'a>(texts: impl IntoIterator<Item = &'a str>, namespace: &str) -> Result<Vec<ServiceKey>, String> {
    let (mut seen, mut keys) = (BTreeSet::new(), Vec::new());
    for text in texts {
        let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err(format!("{text:?} is neither a name nor namespace/name"));
        }
        let key = ServiceKey::new(namespace, name);
        if seen.insert(key.clone()) {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// The names in the text of a file.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_name_on_each_line() {
        let text = "# wave 1\norders\n\n  carts \npay/api\norders\n";
        let keys = names(lines(text), "shop").unwrap();
        assert_eq!(keys.iter().map(ToString::to_string).collect::<Vec<_>>(), ["shop/orders", "shop/carts", "pay/api"]);
        for wrong in ["a/b/c", "/a", "a/"] {
            assert!(names([wrong], "shop").unwrap_err().contains(wrong));
        }
    }
}
