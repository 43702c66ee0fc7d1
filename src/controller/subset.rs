//! Which endpoints of an export imports have, if only a subset of its pods is registered: the same pods.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use model::{Endpoint, Exported};

/// A subset of an export's endpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subset {
    /// Those with one of these addresses, which were chosen for the instances.
    Chosen(Arc<BTreeSet<IpAddr>>),
    /// The choice is not known (yet): as many ready ones as there were, those with these addresses first.
    AsMany(usize, BTreeSet<IpAddr>),
}

impl Subset {
    /// As many as these, as long as nothing else is known.
    pub fn as_many(endpoints: &[Endpoint]) -> Self {
        let ready = endpoints.iter().filter(|endpoint| endpoint.conditions.ready);
        Self::AsMany(ready.clone().count(), ready.flat_map(addresses).collect())
    }

    /// As many as are behind these addresses. Nothing says which two of them are one pod's, so the family with most counts.
    pub fn as_listed(ready: BTreeSet<IpAddr>) -> Self {
        let v4 = ready.iter().filter(|address| address.is_ipv4()).count();
        Self::AsMany(v4.max(ready.len() - v4), ready)
    }

    /// The subset of an export that others see.
    pub fn of(&self, local: &Exported) -> Exported {
        let mut endpoints = local.endpoints.clone();
        match self {
            Self::Chosen(chosen) => endpoints.retain(|endpoint| has(endpoint, chosen)),
            Self::AsMany(number, before) => {
                let mut stay =
                    endpoints.iter().filter(|endpoint| endpoint.conditions.ready && has(endpoint, before)).count();
                endpoints.retain(|endpoint| {
                    let known = has(endpoint, before);
                    let comes = !known && endpoint.conditions.ready && stay < *number;
                    stay += usize::from(comes);
                    known || comes
                });
            }
        }
        Exported { export: local.export.clone(), endpoints }
    }
}

fn addresses(endpoint: &Endpoint) -> impl Iterator<Item = IpAddr> + use<> {
    [endpoint.ipv4.map(IpAddr::from), endpoint.ipv6.map(IpAddr::from)].into_iter().flatten()
}

fn has(endpoint: &Endpoint, known: &BTreeSet<IpAddr>) -> bool {
    addresses(endpoint).any(|address| known.contains(&address))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{Conditions, fixtures};

    fn endpoints(pods: &[(u8, bool)]) -> Vec<Endpoint> {
        let endpoint = |&(last, ready): &(u8, bool)| Endpoint {
            conditions: Conditions { ready, ..Conditions::READY },
            ..fixtures::mk_endpoint([10, 0, 0, last])
        };
        pods.iter().map(endpoint).collect()
    }

    fn shown(subset: &Subset, pods: &[(u8, bool)]) -> Vec<u8> {
        let local = Exported { export: fixtures::mk_export(1), endpoints: endpoints(pods) };
        subset.of(&local).endpoints.iter().filter_map(|endpoint| Some(endpoint.ipv4?.octets()[3])).collect()
    }

    #[test]
    fn the_chosen_pods_are_shown_and_no_others() {
        let subset = Subset::Chosen(Arc::new([2, 9].map(|last| IpAddr::from([10, 0, 0, last])).into()));
        assert_eq!(shown(&subset, &[(1, true), (2, true), (3, true)]), [2]);
    }

    #[test]
    fn until_the_choice_is_known_a_pod_that_goes_is_replaced() {
        let subset = Subset::as_many(&endpoints(&[(2, true), (4, true), (5, false)]));
        assert_eq!(shown(&subset, &[(1, true), (2, true), (3, true), (4, true)]), [2, 4]);
        assert_eq!(shown(&subset, &[(1, true), (3, true), (4, true)]), [1, 4]);
        assert_eq!(shown(&subset, &[(1, true), (2, false), (3, true), (4, true)]), [1, 2, 4]);
        assert_eq!(shown(&Subset::as_many(&[]), &[(1, true)]), [0_u8; 0], "a new export shows none");
    }

    #[test]
    fn a_pod_of_which_slices_list_both_families_counts_once() {
        let both =
            |last: u8| [IpAddr::from([10, 0, 0, last]), IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])];
        let subset = Subset::as_listed([2, 4].into_iter().flat_map(both).collect());
        assert_eq!(shown(&subset, &[(1, true), (2, true), (3, true), (4, true)]), [2, 4]);
        assert_eq!(shown(&subset, &[(1, true), (3, true), (4, true)]), [1, 4]);
        let v6 = Subset::as_listed([both(2)[1], both(4)[1]].into());
        assert_eq!(shown(&v6, &[(1, true), (2, true), (3, true)]), [1, 2]);
    }
}
