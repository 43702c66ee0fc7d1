//! Names in Kubernetes for discovered services and their sources.
//!
//! A name that is a DNS label stays as it is. Any other name becomes lower case, characters that a label cannot have
//! become `-`, it is cut, and `-x` with ten hexadecimal digits of its SHA-256 is appended. A name that already ends
//! like this is mapped as well. So two names never become one, unless their 40-bit hashes are equal.

use instances::ownership::short_hash;
use model::{ClusterId, is_dns_label};

/// Maximum length of a DNS label.
const MAX: usize = 63;
/// Number of hexadecimal digits of the hash.
const DIGITS: usize = 10;

/// The name of the ServiceImport for a Cloud Map service: a DNS label.
pub fn label(service: &str) -> String {
    map(service)
}

/// The source of an instance's endpoint: `ecs-<ECS cluster>`, or `cloudmap-<Cloud Map namespace>` if no ECS cluster
/// registered it. It is never `None` for names that AWS allows.
pub fn source(ecs_cluster: Option<&str>, namespace: &str) -> Option<ClusterId> {
    let name = match ecs_cluster {
        Some(cluster) => format!("ecs-{cluster}"),
        None => format!("cloudmap-{namespace}"),
    };
    ClusterId::discovered(&map(&name))
}

fn map(name: &str) -> String {
    if is_dns_label(name) && !is_mapped(name) {
        return name.to_owned();
    }
    let hash = short_hash(name, DIGITS / 2);
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let stem: String = name.chars().map(plain).collect();
    let stem = stem.trim_matches('-');
    let stem = stem[..stem.len().min(MAX - DIGITS - 2)].trim_end_matches('-');
    if stem.is_empty() { format!("x{hash}") } else { format!("{stem}-x{hash}") }
}

/// Whether a name has the form of a mapped name.
fn is_mapped(name: &str) -> bool {
    let Some((stem, hash)) = name.rsplit_once('x') else { return false };
    let digits = hash.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
    hash.len() == DIGITS && digits && (stem.is_empty() || stem.ends_with('-'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn dns_labels_stay_as_they_are_and_other_names_get_a_hash() {
        let long = "a".repeat(63);
        for name in ["orders", "web-1", "0", "xn", "production", &long] {
            assert_eq!(label(name), name);
        }
        assert_eq!(label(&"B".repeat(127)).len(), 63);
        let mapped = label("Orders");
        assert_ne!(label(&mapped), mapped, "or a service of that very name would be taken for it");
    }

    /// Objects, labels and DNS names depend on the mapping, so it must never change.
    #[test]
    fn the_mapping_never_changes() {
        for (name, expected) in [
            ("Orders", "orders-xb7e8acdd52"),
            ("orders_v2", "orders-v2-x2377d124ca"),
            ("_http._tcp", "http--tcp-xe857c52446"),
            ("api.shop", "api-shop-x5c63b77fad"),
            ("___", "xbda251550b"),
        ] {
            assert_eq!(label(name), expected);
        }
    }

    #[test]
    fn sources_distinguish_ecs_clusters_from_namespaces_and_are_no_cluster_ids() {
        let of = |ecs, namespace| source(ecs, namespace).unwrap().to_string();
        assert_eq!(of(Some("prod"), "internal"), "ecs-prod");
        assert_eq!(of(None, "internal"), "cloudmap-internal");
        assert!(of(Some("Prod_1"), "internal").starts_with("ecs-prod-1-x"));
        assert!(of(None, "shop.internal").starts_with("cloudmap-shop-internal-x"));
        assert!("ecs-prod".parse::<ClusterId>().is_err() && "cloudmap-internal".parse::<ClusterId>().is_err());
    }

    proptest! {
        #[test]
        fn every_name_becomes_a_label_of_its_own(
            // The names are similar, so that cutting or replacing could make them equal.
            names in prop::collection::btree_set("[aA_.-]{1,4}(x[0-9a-f]{10})?|[!-~]{1,127}|a{50,70}[a-c]?", 2..20),
        ) {
            let mut seen = std::collections::BTreeMap::new();
            let mapped: Vec<_> = names.iter().map(|name| label(name)).collect();
            let mapped_again: Vec<_> = mapped.iter().map(|name| label(name)).collect();
            for name in names.iter().chain(&mapped) {
                let label = label(name);
                prop_assert!(is_dns_label(&label), "{} of {}", label, name);
                if let Some(other) = seen.insert(label, name) {
                    prop_assert_eq!(other, name);
                }
            }
            prop_assert_eq!(mapped_again.len(), mapped.len());
        }

        #[test]
        fn every_source_is_a_label(cluster in "[A-Za-z0-9_-]{1,255}", namespace in "[!-~]{1,1024}") {
            for source in [source(Some(&cluster), &namespace), source(None, &namespace)] {
                prop_assert!(source.is_some_and(|source| ClusterId::is_discovered(source.as_str())));
            }
        }
    }
}
