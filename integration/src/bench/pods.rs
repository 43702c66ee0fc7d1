//! The pods of the load: addresses, nodes and zones as in a real cluster, where neighbours in a list have nothing in
//! common. They follow from the pod's number and a seed, so that a measurement can be repeated.

use std::net::Ipv4Addr;

use crate::ledger_sim::rng::Rng;

/// Nodes that the pods are spread over.
const NODES: u64 = 100;
const ZONES: [&str; 3] = ["eu-central-1a", "eu-central-1b", "eu-central-1c"];
/// What Kubernetes makes the names of pods from.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Addresses are in 10.16.0.0/12, which is outside the ranges of the testbed.
const FIRST: Ipv4Addr = Ipv4Addr::new(10, 16, 0, 0);
const BITS: u32 = 20;

/// Everything about a pod that follows from its number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pods {
    seed: u64,
}

impl Pods {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// A pod's address. Of a million pods with consecutive numbers, no two have the same.
    pub(super) fn address(self, pod: u32) -> Ipv4Addr {
        let mut rng = Rng::new("addresses", self.seed);
        let mask = (1 << BITS) - 1;
        let mut bits = pod & mask;
        // Each step can be reversed, so different numbers stay different.
        for _ in 0..3 {
            let (factor, offset) = (rng.next() as u32 | 1, rng.next() as u32);
            bits = bits.wrapping_mul(factor).wrapping_add(offset) & mask;
            bits ^= bits >> (BITS / 2);
        }
        Ipv4Addr::from_bits(FIRST.to_bits() + bits)
    }

    /// Name of its node.
    pub(super) fn node(self, pod: u32) -> String {
        let mut rng = Rng::new("nodes", self.seed ^ self.node_number(pod));
        let mut part = || rng.below(256);
        format!("ip-10-{}-{}-{}.eu-central-1.compute.internal", part(), part(), part())
    }

    /// Zone of its node.
    pub(super) fn zone(self, pod: u32) -> &'static str {
        ZONES[Rng::new("zones", self.seed ^ self.node_number(pod)).below(ZONES.len())]
    }

    /// Name of a pod of this service.
    pub(super) fn name(self, service: &str, pod: u32) -> String {
        let mut rng = self.rng("names", pod);
        let mut letters = |count: usize| -> String { (0..count).map(|_| char::from(*rng.pick(LETTERS))).collect() };
        format!("{service}-7d4b9c6f5d-{}", letters(5))
    }

    /// A version 4 UUID.
    pub(super) fn uid(self, pod: u32) -> String {
        let mut rng = self.rng("uids", pod);
        let (high, low) = (rng.next(), rng.next());
        let (first, second, third) = (high >> 32, (high >> 16) & 0xffff, high & 0xfff);
        format!("{first:08x}-{second:04x}-4{third:03x}-{:04x}-{:012x}", 0x8000 | (low >> 50), low & 0xffff_ffff_ffff)
    }

    fn node_number(self, pod: u32) -> u64 {
        // Beyond 32 bits, so that it does not mix with small seeds.
        ((self.rng("node", pod).next() % NODES) + 1) << 32
    }

    fn rng(self, what: &str, pod: u32) -> Rng {
        Rng::new(what, self.seed ^ ((u64::from(pod) + 1) << 32))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_pods_share_an_address() {
        for seed in [0, 1, 7] {
            let addresses: BTreeSet<Ipv4Addr> = (0..200_000).map(|pod| Pods::new(seed).address(pod)).collect();
            assert_eq!(addresses.len(), 200_000);
            let (first, last) = (addresses.first().unwrap(), addresses.last().unwrap());
            assert!(*first >= FIRST && *last <= Ipv4Addr::new(10, 31, 255, 255), "{first} to {last}");
        }
    }

    #[test]
    fn pods_are_the_same_for_a_seed_and_others_for_another() {
        let facts = |seed| {
            let pods = Pods::new(seed);
            [pods.address(5).to_string(), pods.node(5), pods.name("web", 5), pods.uid(5)]
        };
        assert_eq!(facts(1), facts(1));
        for (one, other) in facts(1).iter().zip(&facts(2)) {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn pods_are_spread_over_all_nodes_and_zones_and_a_node_is_in_one_zone() {
        let pods = Pods::new(3);
        let placed: BTreeSet<(String, &str)> = (0..5_000).map(|pod| (pods.node(pod), pods.zone(pod))).collect();
        let nodes: BTreeSet<&String> = placed.iter().map(|(node, _)| node).collect();
        assert_eq!((placed.len(), nodes.len()), (NODES as usize, NODES as usize));
        let zones: BTreeSet<&str> = placed.iter().map(|(_, zone)| *zone).collect();
        assert_eq!(zones, BTreeSet::from(ZONES));
    }

    #[test]
    fn a_uid_is_a_uuid_of_version_4() {
        let uid = Pods::new(1).uid(9);
        let parts: Vec<usize> = uid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{uid}");
        assert!(uid.split('-').nth(2).unwrap().starts_with('4'), "{uid}");
        assert!("89ab".contains(uid.split('-').nth(3).unwrap().chars().next().unwrap()), "{uid}");
    }
}
