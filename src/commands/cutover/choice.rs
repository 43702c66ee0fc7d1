//! Which names a command is about.

use std::collections::BTreeSet;

use model::{ServiceKey, is_dns_label};

/// The names in a list, each `name` or `namespace/name`, without repetitions, in their order.
///
/// # Errors
/// An argument that is no name. The text has it.
pub(crate) fn names<'a>(texts: impl IntoIterator<Item = &'a str>, namespace: &str) -> Result<Vec<ServiceKey>, String> {
    let (mut seen, mut keys) = (BTreeSet::new(), Vec::new());
    for text in texts {
        let (namespace, name) = text.split_once('/').unwrap_or((namespace, text));
        // In a path of the API, the rest of `orders#1` would be lost.
        if !is_dns_label(namespace) || !name.split('.').all(is_dns_label) {
            return Err(format!(
                "\"{namespace}/{name}\" is no name of a Service: write lower-case letters, digits and `-`, and one name on each \
                 line of a file, without a comment behind it"
            ));
        }
        let key = ServiceKey::new(namespace, name);
        if seen.insert(key.clone()) {
            keys.push(key);
        }
    }
    Ok(keys)
}

/// The names in the text of a file. Some editors begin it with a mark of its encoding.
pub(super) fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.trim_start_matches('\u{feff}').lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// Why there is no name, and what to do. `all`: of a namespace, and `before`: also those that have no Cutover yet.
pub(super) fn nothing(all: bool, before: bool, namespace: &str) -> String {
    match (all, before) {
        (false, _) => "the file has no name: write one on each line".to_owned(),
        (true, false) => format!(
            "there is no Cutover in the namespace {namespace}: name another one with --namespace, or begin with `cloudmap-mcs \
             cutover start`"
        ),
        (true, true) => format!(
            "no ServiceExport in the namespace {namespace} has an annotation that names a Cloud Map service, joins one or asks for a \
             share: name another namespace with --namespace, or write cloudmap-mcs/namespace, cloudmap-mcs/service and \
             cloudmap-mcs/share-of-traffic=0% on the ServiceExports"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_a_name_on_each_line() {
        let text = "\u{feff}# wave 1\r\norders\n\n  carts \npay/api\norders\n";
        let keys = names(lines(text), "shop").unwrap();
        assert_eq!(keys.iter().map(ToString::to_string).collect::<Vec<_>>(), ["shop/orders", "shop/carts", "pay/api"]);
        assert_eq!(names(["web.example"], "shop").unwrap().len(), 1, "an Ingress may have dots");
        for wrong in ["a/b/c", "/a", "a/", "orders#1", "orders  # wave 1", "orders,carts", "Orders", "shop.eu/orders"] {
            let why = names([wrong], "shop").unwrap_err();
            assert!(why.contains(wrong) && why.contains("one name on each line"), "{why}");
        }
        assert!(names(["orders"], "Shop").unwrap_err().contains("Shop/orders"), "the namespace is wrong");
    }

    #[test]
    fn who_chose_nothing_is_told_what_is_missing() {
        for (all, before, part) in
            [(false, true, "the file has no name"), (true, false, "no Cutover in"), (true, true, "no ServiceExport in")]
        {
            let why = nothing(all, before, "shop");
            assert!(why.contains(part) && why.contains("shop") == all, "{why}");
        }
    }
}
