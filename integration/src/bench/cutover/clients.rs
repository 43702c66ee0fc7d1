//! Clients of four kinds. A request is a line, and its answer says who answered.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use cloudmap::{HttpName, Lane, attributes::IPV4};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{ZONE, objects, shares::Shares};
use crate::{bench::figure::Figure, ecs::TASK, ledger_sim::rng::Rng};
use emulator::dns_client as dns;

/// For a request: two queries of 10 s each, and an answer. The addresses of tasks and pods that ended refuse at once, so that a
/// machine that stands still for some seconds fails nothing.
const PATIENCE: Duration = Duration::from_secs(25);
/// How often a resolver is asked: a packet may get lost.
const QUERIES: usize = 2;
/// Connections of a pool.
const CONNECTIONS: usize = 2;

/// What a client does with what it has resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// It resolves when the TTL is over, and opens a connection for each request.
    Fresh,
    /// It keeps connections for as long as they last, and repeats a request once.
    Pool,
    /// It asks `DiscoverInstances` in place of DNS, as often as a client that resolves, and opens a connection for each
    /// request.
    Sdk,
    /// It resolves once.
    Never,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Fresh, Self::Pool, Self::Sdk, Self::Never];

    const fn as_str(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Pool => "pool",
            Self::Sdk => "sdk",
            Self::Never => "never",
        }
    }

    /// Requests a second, of all clients of this kind. Those that measure shares make most of them.
    pub(super) fn rate(self, rate: f64) -> f64 {
        match self {
            Self::Fresh => rate,
            Self::Pool => rate / 2.0,
            Self::Sdk | Self::Never => rate / 4.0,
        }
    }

    /// What became of the requests. Those of clients that resolve again must not fail, if that is promised.
    pub(super) fn figures(self, tally: &Tally, promised: bool) -> Vec<Figure> {
        let name = |what: &str| format!("{}_{what}", self.as_str());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let target = (promised && self != Self::Never).then_some(0.0);
        let mut figures = vec![Figure::for_scale(name("requests"), count(&tally.requests), "requests")];
        if self == Self::Pool {
            figures.push(Figure::for_scale(name("repeated"), count(&tally.repeated), "requests"));
        }
        figures.push(Figure::new(name("failed"), count(&tally.failed), "requests", target));
        figures
    }
}

/// What became of the requests of a kind.
#[derive(Debug, Default)]
pub(super) struct Tally {
    requests: AtomicU64,
    repeated: AtomicU64,
    failed: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A client of one service.
pub(super) struct Client {
    pub(super) kind: Kind,
    /// The number of the service.
    pub(super) number: usize,
    pub(super) source: Source,
    pub(super) port: u16,
    /// Between requests.
    pub(super) pause: Duration,
    pub(super) seed: u64,
}

impl Client {
    /// Sends requests until it is aborted.
    pub(super) async fn run(self, tally: Arc<Tally>, shares: Arc<Shares>) {
        let seed = self.seed ^ ((self.number as u64 + 1) << 32);
        let mut rng = Rng::new(self.kind.as_str(), seed);
        // Clients begin one after the other.
        tokio::time::sleep(self.pause.mul_f64(rng.fraction())).await;
        let mut ticks = interval(self.pause);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut names = Names::new(&self, rng);
        let mut pool: [Option<Connection>; CONNECTIONS] = [None, None];
        for turn in 0_usize.. {
            ticks.tick().await;
            count(&tally.requests);
            let outcome = match self.kind {
                Kind::Fresh | Kind::Sdk | Kind::Never => once(&mut names).await,
                Kind::Pool => {
                    let connection = &mut pool[turn % CONNECTIONS];
                    let first = kept(&mut names, connection).await;
                    if first.is_ok() {
                        first
                    } else {
                        count(&tally.repeated);
                        kept(&mut names, connection).await
                    }
                }
            };
            match outcome {
                Ok(answer) if self.kind == Kind::Fresh => shares.answered(self.number, answer == TASK),
                Ok(_) => {}
                Err(error) => {
                    count(&tally.failed);
                    // Those that never resolve fail for as long as the tasks are gone.
                    if self.kind != Kind::Never {
                        tracing::warn!("{}: a request of {:?} failed: {error:#}", names.service, self.kind);
                    }
                }
            }
        }
    }
}

/// A request with a connection of its own.
async fn once(names: &mut Names) -> Result<String> {
    in_time(async {
        let mut connection = Connection::open(names.address().await?).await?;
        connection.ask().await
    })
    .await
}

/// A request with a connection that is kept, if there is one and it does not break.
async fn kept(names: &mut Names, kept: &mut Option<Connection>) -> Result<String> {
    in_time(async {
        let mut connection = match kept.take() {
            Some(connection) => connection,
            None => Connection::open(names.address().await?).await?,
        };
        let answer = connection.ask().await?;
        *kept = Some(connection);
        Ok(answer)
    })
    .await
}

async fn in_time(request: impl Future<Output = Result<String>>) -> Result<String> {
    timeout(PATIENCE, request).await.with_context(|| format!("no answer within {PATIENCE:?}"))?
}

struct Connection {
    stream: BufReader<TcpStream>,
    to: SocketAddr,
}

impl Connection {
    async fn open(to: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(to).await.with_context(|| format!("failed to connect to {to}"))?;
        Ok(Self { stream: BufReader::new(stream), to })
    }

    async fn ask(&mut self) -> Result<String> {
        let to = self.to;
        let ask = async {
            self.stream.write_all(b"?\n").await?;
            let mut answer = String::new();
            let read = self.stream.read_line(&mut answer).await?;
            anyhow::ensure!(read > 0, "the connection ended");
            Ok(answer.trim_end().to_owned())
        };
        ask.await.with_context(|| format!("no answer from {to}"))
    }
}

/// Where a client learns addresses.
#[derive(Clone)]
pub(super) enum Source {
    Dns(dns::Client),
    /// The answers are used for as long as those of DNS, in seconds.
    Api(Arc<dyn cloudmap::Read>, u32),
}

impl Source {
    /// The addresses, and for how many seconds they may be used.
    async fn resolve(&self, service: &str) -> Result<(Vec<IpAddr>, u32)> {
        match self {
            Self::Dns(client) => {
                let name = format!("{service}.{ZONE}");
                let mut answer = client.ask(&name, "A").await;
                for _ in 1..QUERIES {
                    if answer.is_err() {
                        answer = client.ask(&name, "A").await;
                    }
                }
                let records = answer?.records();
                let ttl = records.iter().map(|record| record.ttl).min().unwrap_or_default();
                Ok((records.iter().filter_map(|record| record.data.parse().ok()).collect(), ttl))
            }
            Self::Api(cloud_map, ttl) => {
                let found = cloud_map
                    .discover_instances(HttpName::own(ZONE), service, &BTreeMap::new(), Lane::Instances)
                    .await?;
                let healthy = found.instances.iter().filter(|instance| !found.unhealthy.contains(&instance.id));
                let addresses = healthy.filter_map(|instance| instance.attributes.get(IPV4)?.parse().ok());
                Ok((addresses.collect(), *ttl))
            }
        }
    }
}

/// What a client has resolved.
struct Names {
    source: Source,
    service: String,
    port: u16,
    /// Whether an answer is used for as long as its TTL says, or for ever.
    again: bool,
    addresses: Vec<IpAddr>,
    until: Instant,
    rng: Rng,
}

impl Names {
    fn new(client: &Client, rng: Rng) -> Self {
        Self {
            source: client.source.clone(),
            service: objects::name(client.number),
            port: client.port,
            again: client.kind != Kind::Never,
            addresses: Vec::new(),
            until: Instant::now(),
            rng,
        }
    }

    /// One of the addresses.
    async fn address(&mut self) -> Result<SocketAddr> {
        if self.addresses.is_empty() || (self.again && Instant::now() >= self.until) {
            self.resolve().await?;
        }
        Ok(SocketAddr::new(*self.rng.pick(&self.addresses), self.port))
    }

    async fn resolve(&mut self) -> Result<()> {
        let found = self.source.resolve(&self.service).await;
        let (addresses, ttl) = found.with_context(|| format!("failed to resolve {}", self.service))?;
        anyhow::ensure!(!addresses.is_empty(), "{} has no address", self.service);
        (self.addresses, self.until) = (addresses, Instant::now() + Duration::from_secs(ttl.into()));
        Ok(())
    }
}
