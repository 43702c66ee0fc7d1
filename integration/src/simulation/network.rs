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
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex, split},
    sync::{mpsc, watch},
    time::sleep,
};

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
