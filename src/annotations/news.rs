//! The texts of Events about instances of annotated Services: one Event per change, no matter how many pods it
//! concerns.

use std::{collections::BTreeSet, net::Ipv6Addr, sync::Arc};

use instances::{InstanceSpec, plan::find};
use model::{ClaimOwner, Target};

/// Addresses beyond this number are counted and not listed.
const LISTED: usize = 8;

/// What changed between two moments at which nothing remained to be written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct News {
    /// The text about new instances.
    pub registered: Option<String>,
    /// The text about removed instances.
    pub removed: Option<String>,
}

/// Compares ids of instances. `known` are the desired instances, which contain host names that ids do not.
pub fn news(target: &Target, before: &BTreeSet<Arc<str>>, now: &BTreeSet<Arc<str>>, known: &[InstanceSpec]) -> News {
    let list = |ids: Vec<&Arc<str>>| {
        let named = ids.iter().take(LISTED).map(|id| address(id, known)).collect::<Vec<_>>().join(", ");
        let more = ids.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!ids.is_empty()).then(|| format!("{named}{more}"))
    };
    let registered = list(now.difference(before).collect());
    let removed = list(before.difference(now).collect());
    News {
        registered: registered.map(|list| format!("Registered {list} in Cloud Map service {target}.")),
        removed: removed.map(|list| format!("Removed {list} from Cloud Map service {target}.")),
    }
}

/// The text if the owner of a target was deleted.
pub fn deleted(owner: &ClaimOwner, removed: Option<&str>, target: &Target) -> String {
    let removed =
        removed.map_or_else(|| format!("Nothing of it was left in Cloud Map service {target}."), str::to_owned);
    format!("{owner} was deleted. {removed}")
}

/// The address in an id, or the id itself if it has none.
fn address(id: &str, known: &[InstanceSpec]) -> String {
    if let Some(spec) = find(known, id) {
        return spec.address();
    }
    let parsed = || {
        let rest = id.strip_prefix("k8s-")?.split_once('-')?.1;
        if rest.len() == 32
            && let Ok(bits) = u128::from_str_radix(rest, 16)
        {
            return Some(Ipv6Addr::from_bits(bits).to_string());
        }
        let octets: Vec<u8> = rest.split('-').take(4).filter_map(|part| part.parse().ok()).collect();
        <[u8; 4]>::try_from(octets).ok().map(|octets| std::net::Ipv4Addr::from(octets).to_string())
    };
    parsed().unwrap_or_else(|| id.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use instances::{Custom, Owner, Source};
    use model::{Conditions, Endpoint, ServiceKey};

    fn target() -> Target {
        Target { namespace: "internal".into(), service: "web".into() }
    }

    fn specs(addresses: &[&str], hosts: &[&str]) -> Vec<InstanceSpec> {
        let identity = Owner { clusterset: None, cluster: "c1".parse().unwrap(), cluster_uid: "uid-1".into() };
        let service = ServiceKey::new("shop", "web");
        let source = Source { identity: &identity, service: &service, ports: &[], region: None };
        let endpoints: Vec<_> = addresses
            .iter()
            .map(|address| Endpoint {
                ipv4: address.parse().ok(),
                ipv6: address.parse().ok(),
                ports: [].into(),
                conditions: Conditions::READY,
                hostname: None,
                zone: None,
                node: None,
            })
            .collect();
        let mut specs = source.instances(&endpoints).unwrap();
        let hosts: Vec<Arc<str>> = hosts.iter().map(|&host| Arc::from(host)).collect();
        specs.extend(source.hosts(&hosts, &Custom::default()).unwrap());
        specs.sort_by(|a, b| a.id().cmp(b.id()));
        specs
    }

    fn ids(specs: &[InstanceSpec]) -> BTreeSet<Arc<str>> {
        specs.iter().map(|spec| spec.id().clone()).collect()
    }

    #[test]
    fn one_sentence_lists_what_was_registered_and_one_what_was_removed() {
        let before = specs(&["10.0.0.1", "fd00::1"], &[]);
        let now = specs(&["10.0.0.2", "10.0.0.3"], &["lb.example.org"]);
        let said = news(&target(), &ids(&before), &ids(&now), &now);
        let registered = said.registered.unwrap();
        for address in ["10.0.0.2", "10.0.0.3", "lb.example.org", "internal/web"] {
            assert!(registered.contains(address), "{registered}");
        }
        let removed = said.removed.unwrap();
        assert!(removed.contains("10.0.0.1") && removed.contains("fd00::1"), "{removed}");
        assert_eq!(news(&target(), &ids(&now), &ids(&now), &now), News::default());
    }

    #[test]
    fn many_pods_are_counted_and_every_id_is_named() {
        let addresses: Vec<_> = (0..30).map(|n| format!("10.0.0.{n}")).collect();
        let all = specs(&addresses.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
        let said = news(&target(), &BTreeSet::new(), &ids(&all), &all).registered.unwrap();
        assert!(said.contains("and 22 more") && said.len() < 300, "{said}");
        let host = specs(&[], &["lb.example.org"]);
        let removed = news(&target(), &ids(&host), &BTreeSet::new(), &[]).removed.unwrap();
        assert!(removed.contains("k8s-"), "{removed}");
    }
}
