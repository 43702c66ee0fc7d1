//! The network between the leaders of clusters: what they say arrives in order and a little later, unless a connection is
//! cut, or nothing passes between two clusters for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use ledger::driver::sessions::{self, Listener, Wire};
use reachability::Connect;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split},
    sync::{mpsc, watch},
    time::{Instant, sleep},
};

/// How long a connection to a pod that is not reached is tried.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long bytes are on their way.
const LATENCY: Duration = Duration::from_millis(2);
/// Bytes that a connection holds before its sender must wait.
const BUFFER: usize = 16 * 1024;

/// What is wrong with the network.
#[derive(Debug, Clone, Default)]
struct Trouble {
    /// From which cluster to which one nothing passes, by the number of the step.
    divided: BTreeMap<usize, BTreeSet<(usize, usize)>>,
    /// How often all connections of a cluster were cut.
    cuts: BTreeMap<usize, u64>,
    /// From which cluster no connection to a pod of which one comes about, by the number of the step.
    blackholes: BTreeMap<usize, BTreeSet<(usize, usize)>>,
    /// Until when that was so, for each way.
    blackholed: BTreeMap<(usize, usize), Instant>,
}

impl Trouble {
    fn divides(&self, from: usize, to: usize) -> bool {
        self.divided.values().any(|divided| divided.contains(&(from, to)))
    }

    fn cuts(&self, ends: [usize; 2]) -> u64 {
        ends.iter().filter_map(|end| self.cuts.get(end)).sum()
    }
}

type Ports = BTreeMap<SocketAddr, mpsc::Sender<(DuplexStream, usize)>>;

/// How a replica connects to pods.
pub(crate) fn pods(network: Option<&Network>, cluster: usize) -> Arc<dyn Connect> {
    Arc::new(PodNetwork { network: network.cloned(), cluster })
}

/// The network of a world.
#[derive(Debug, Clone, Default)]
pub(crate) struct Network {
    ports: Arc<Mutex<Ports>>,
    trouble: watch::Sender<Trouble>,
}

impl Network {
    /// The place of one replica.
    pub(crate) fn place(&self, cluster: usize, replica: usize) -> Arc<dyn sessions::Network> {
        let [cluster_part, replica_part] = [cluster, replica].map(|number| number as u8 + 1);
        let address = SocketAddr::from(([10, 200, cluster_part, replica_part], 7_946));
        Arc::new(ReplicaNetwork { network: self.clone(), cluster, address })
    }

    /// Cuts all connections of a cluster.
    pub(crate) fn cut(&self, cluster: usize) {
        self.trouble.send_modify(|trouble| *trouble.cuts.entry(cluster).or_default() += 1);
    }

    /// Lets nothing pass from one cluster to the other, until [`Self::unite`].
    pub(crate) fn divide(&self, step: usize, ways: BTreeSet<(usize, usize)>) {
        self.trouble.send_modify(|trouble| drop(trouble.divided.insert(step, ways)));
    }

    /// Ends what a step divided.
    pub(crate) fn unite(&self, step: usize) {
        self.trouble.send_modify(|trouble| drop(trouble.divided.remove(&step)));
    }

    /// Lets no connections from one cluster to pods of the other come about, until [`Self::restore`].
    pub(crate) fn blackhole(&self, step: usize, ways: BTreeSet<(usize, usize)>) {
        self.trouble.send_modify(|trouble| drop(trouble.blackholes.insert(step, ways)));
    }

    /// Ends what a step did to the ways to pods.
    pub(crate) fn restore(&self, step: usize) {
        self.trouble.send_modify(|trouble| {
            let ways = trouble.blackholes.remove(&step).unwrap_or_default();
            trouble.blackholed.extend(ways.into_iter().map(|way| (way, Instant::now())));
        });
    }

    /// Whether a cluster does not reach the pods of another one, or did not until so long ago.
    pub(crate) fn lost(&self, from: usize, to: usize, ago: Duration) -> bool {
        let until = self.trouble.borrow().blackholed.get(&(from, to)).copied();
        !self.reaches(from, to) || until.is_some_and(|until| until.elapsed() <= ago)
    }

    /// Whether a cluster reaches the pods of another one.
    pub(crate) fn reaches(&self, from: usize, to: usize) -> bool {
        !self.trouble.borrow().blackholes.values().any(|ways| ways.contains(&(from, to)))
    }

    fn ports(&self) -> std::sync::MutexGuard<'_, Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something passes.
    async fn passes(&self, from: usize, to: usize) {
        drop(self.trouble.subscribe().wait_for(|trouble| !trouble.divides(from, to)).await);
    }

    /// Carries what both sides say, until either ends or the connection is cut.
    async fn carry(self, [one, other]: [DuplexStream; 2], [here, there]: [usize; 2]) {
        let mut trouble = self.trouble.subscribe();
        let before = trouble.borrow_and_update().cuts([here, there]);
        let ((read_one, write_one), (read_other, write_other)) = (split(one), split(other));
        tokio::select! {
            biased;
            _ = trouble.wait_for(|trouble| trouble.cuts([here, there]) > before) => {}
            _ = async {
                tokio::join!(self.relay(read_one, write_other, here, there), self.relay(read_other, write_one, there, here))
            } => {}
        }
    }

    async fn relay(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        here: usize,
        there: usize,
    ) {
        let mut buffer = vec![0; BUFFER];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            sleep(LATENCY).await;
            self.passes(here, there).await;
            if to.write_all(&buffer[..length]).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    }
}

/// One replica in the network.
#[derive(Debug)]
struct ReplicaNetwork {
    network: Network,
    cluster: usize,
    address: SocketAddr,
}

#[async_trait]
impl sessions::Network for ReplicaNetwork {
    fn addresses(&self) -> Arc<[SocketAddr]> {
        [self.address].into()
    }

    async fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let (sender, receiver) = mpsc::channel(8);
        self.network.ports().insert(self.address, sender);
        Ok(Box::new(Port { network: self.network.clone(), cluster: self.cluster, receiver }))
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Wire>> {
        sleep(LATENCY).await;
        let port = self.network.ports().get(&to).cloned();
        let port = port.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        let (here, there) = duplex(BUFFER);
        let refused = |_| io::Error::from(io::ErrorKind::ConnectionRefused);
        port.send((there, self.cluster)).await.map_err(refused)?;
        Ok(Box::new(here))
    }
}

/// One replica, as it connects to pods.
struct PodNetwork {
    network: Option<Network>,
    cluster: usize,
}

#[async_trait]
impl Connect for PodNetwork {
    async fn answers(&self, at: SocketAddr) -> bool {
        let Some(network) = &self.network else { return true };
        if network.reaches(self.cluster, cluster_of(at.ip())) {
            sleep(LATENCY).await;
            return true;
        }
        sleep(PATIENCE).await;
        false
    }
}

/// The cluster of a pod, which is a part of its addresses.
fn cluster_of(pod: IpAddr) -> usize {
    let part = match pod {
        IpAddr::V4(address) => u16::from(address.octets()[1]),
        // Its digits are those of the IPv4 address.
        IpAddr::V6(address) => format!("{:x}", address.segments()[5]).parse().unwrap_or_default(),
    };
    usize::from(part.saturating_sub(1))
}

struct Port {
    network: Network,
    cluster: usize,
    receiver: mpsc::Receiver<(DuplexStream, usize)>,
}

#[async_trait]
impl Listener for Port {
    async fn accept(&mut self) -> io::Result<(Box<dyn Wire>, IpAddr)> {
        let (there, dialled_by) = self.receiver.recv().await.ok_or(io::ErrorKind::BrokenPipe)?;
        let (here, end) = duplex(BUFFER);
        let ends = [dialled_by, self.cluster];
        tokio::spawn(self.network.clone().carry([there, end], ends));
        Ok((Box::new(here), IpAddr::from([10, 200, dialled_by as u8 + 1, 1])))
    }
}
