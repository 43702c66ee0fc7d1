//! Names in Cloud Map, asked for over DNS from outside the clusters.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};

use super::wait::{NAMES, eventually, holds};
use emulator::dns_client::{Answer, Client};

/// As integration/clusters.sh starts the emulator.
const ZONES: u16 = 5300;
const RESOLVER: u16 = 53;

/// The DNS side of the emulator.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    zones: Client,
    resolver: Client,
}

impl Names {
    /// That of `MCS_E2E_DNS_HOST`.
    ///
    /// # Errors
    /// If it is not set: the emulator then need not answer DNS.
    pub fn from_env() -> Result<Self> {
        let host = std::env::var("MCS_E2E_DNS_HOST")
            .context("MCS_E2E_DNS_HOST is not set: needs `make test` with its own clusters")?;
        let host: IpAddr = host.parse().context("MCS_E2E_DNS_HOST is no address")?;
        let client = |port| Client::new(SocketAddr::new(host, port));
        Ok(Self { zones: client(ZONES), resolver: client(RESOLVER) })
    }

    /// What the zone says of a name now; a replica of it may be late.
    pub async fn ask(&self, name: &str, kind: &str) -> Result<Answer> {
        Ok(self.zones.ask(name, kind).await?)
    }

    /// What the resolver says of a name: the data of its records, for as long as their TTL lets it.
    pub async fn resolve(&self, name: &str, kind: &str) -> Result<BTreeSet<String>> {
        Ok(self.resolver.ask(name, kind).await?.data().into_iter().collect())
    }

    /// Waits until a name has exactly these records.
    pub async fn have(&self, name: &str, kind: &str, wanted: &BTreeSet<String>) -> Result<()> {
        let what = format!("{name} has {kind} {wanted:?}");
        eventually(&what, NAMES, async || {
            let found: BTreeSet<_> = self.ask(name, kind).await?.data().into_iter().collect();
            holds(found == *wanted, &what, &found)
        })
        .await
    }

    /// Waits until a name has records, and all of them have this TTL.
    pub async fn have_ttl(&self, name: &str, kind: &str, ttl: u32) -> Result<()> {
        let what = format!("the TTL of {kind} of {name} is {ttl} s");
        eventually(&what, NAMES, async || {
            // A replica that is late has none, of which nothing would follow.
            let found: Vec<_> = self.ask(name, kind).await?.records().iter().map(|record| record.ttl).collect();
            holds(!found.is_empty() && found.iter().all(|one| *one == ttl), &what, &found)
        })
        .await
    }

    /// Waits until there is no such name.
    pub async fn have_not(&self, name: &str) -> Result<()> {
        eventually(&format!("there is no name {name}"), NAMES, async || {
            let answer = self.ask(name, "A").await?;
            holds(answer.code() == "NXDOMAIN", "it is NXDOMAIN", &(answer.code(), answer.data()))
        })
        .await
    }
}
