//! Who may be connected at a port that anybody in the network reaches, before anybody knows who it is.
//!
//! A fixed number of places does not keep out whoever floods the port: it takes them all, and the kubelet or another
//! leader finds none. So nobody is refused. If all places are taken, the oldest connection of the network that has most
//! of them ends.

use std::{
    collections::{BTreeMap, VecDeque},
    net::{IpAddr, Ipv6Addr},
};

use tokio::task::AbortHandle;

/// The connections that nobody has authenticated, the oldest first.
#[derive(Debug)]
pub struct Guests {
    most: usize,
    present: VecDeque<(IpAddr, AbortHandle)>,
}

impl Guests {
    /// Room for `most` connections, at least one.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), present: VecDeque::new() }
    }

    /// Takes a connection, which `task` serves. If there is no room, another task is aborted.
    pub fn admit(&mut self, from: IpAddr, task: AbortHandle) {
        self.present.retain(|(_, task)| !task.is_finished());
        self.present.push_back((network(from), task));
        if self.present.len() > self.most
            && let Some((_, task)) = self.present.remove(leaving(&self.present))
        {
            task.abort();
        }
    }
}

/// Which connection ends.
fn leaving<T>(present: &VecDeque<(IpAddr, T)>) -> usize {
    let mut counts = BTreeMap::<IpAddr, usize>::new();
    for (network, _) in present {
        *counts.entry(*network).or_default() += 1;
    }
    let most = counts.values().max();
    present.iter().position(|(network, _)| counts.get(network) == most).unwrap_or_default()
}

/// An IPv4 address, or the first 64 bits of an IPv6 address: a host has all addresses that begin with them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[tokio::test]
    async fn a_flood_from_one_address_ends_its_own_connections_and_no_other() {
        let mut guests = Guests::new(4);
        let mut come = |from: &str| {
            let task = tokio::spawn(pending::<()>());
            guests.admit(ip(from), task.abort_handle());
            task
        };
        let probe = come("10.0.0.1");
        let mut flood: Vec<_> = (0..100).map(|_| come("10.0.0.66")).collect();
        let late = come("10.0.0.2");
        let stay = flood.split_off(98);
        for task in flood {
            assert!(task.await.unwrap_err().is_cancelled());
        }
        tokio::task::yield_now().await;
        for task in [probe, late].into_iter().chain(stay) {
            assert!(!task.is_finished());
            task.abort();
        }
    }

    #[tokio::test]
    async fn who_has_gone_takes_no_place() {
        let mut guests = Guests::new(2);
        let stays = tokio::spawn(pending::<()>());
        guests.admit(ip("10.0.0.1"), stays.abort_handle());
        for _ in 0..10 {
            let task = tokio::spawn(async {});
            guests.admit(ip("10.0.0.1"), task.abort_handle());
            task.await.unwrap();
        }
        tokio::task::yield_now().await;
        assert!(!stays.is_finished());
        stays.abort();
    }

    #[test]
    fn addresses_that_one_host_has_count_as_one() {
        for (one, other, same) in [
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
        ] {
            assert_eq!(network(ip(one)) == network(ip(other)), same, "{one} {other}");
        }
    }

    #[test]
    fn of_networks_with_equally_many_the_oldest_connection_ends() {
        let present = |networks: &[u8]| networks.iter().map(|n| (IpAddr::from([10, 0, 0, *n]), ())).collect();
        assert_eq!(leaving(&present(&[1, 2, 3])), 0);
        assert_eq!(leaving(&present(&[1, 2, 3, 2])), 1);
        assert_eq!(leaving(&present(&[1, 2, 3, 3, 2])), 1);
    }
}
