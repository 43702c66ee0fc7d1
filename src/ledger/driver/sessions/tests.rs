use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

use async_trait::async_trait;
use tokio::{io::duplex, time::Instant};

use super::*;
use crate::stream::message::Hello;

/// A connection, and from where it comes.
type Call = (Box<dyn Wire>, IpAddr);
type Ports = Arc<Mutex<BTreeMap<SocketAddr, mpsc::Sender<Call>>>>;

/// A network in memory.
#[derive(Debug, Clone)]
struct Memory {
    ports: Ports,
    address: SocketAddr,
}

struct Port(mpsc::Receiver<Call>);

#[async_trait]
impl Network for Memory {
    fn addresses(&self) -> Arc<[SocketAddr]> {
        [self.address].into()
    }

    async fn listen(&self) -> io::Result<Box<dyn Listener>> {
        let (sender, receiver) = mpsc::channel(8);
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).insert(self.address, sender);
        Ok(Box::new(Port(receiver)))
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<Box<dyn Wire>> {
        let port = self.ports.lock().unwrap_or_else(PoisonError::into_inner).get(&to).cloned();
        let (here, there) = duplex(4096);
        let port = port.ok_or_else(|| io::Error::from(io::ErrorKind::ConnectionRefused))?;
        port.send((Box::new(there), self.address.ip()))
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::ConnectionReset))?;
        Ok(Box::new(here))
    }
}

#[async_trait]
impl Listener for Port {
    async fn accept(&mut self) -> io::Result<(Box<dyn Wire>, IpAddr)> {
        self.0.recv().await.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
    }
}

pub(in crate::driver) fn key(n: u8) -> SigningKey {
    SigningKey::from_seed(&[n; 32]).unwrap()
}

#[derive(Default)]
pub(in crate::driver) struct World(Ports);

impl World {
    pub(in crate::driver) fn network(&self, n: u8) -> Arc<dyn Network> {
        Arc::new(Memory { ports: self.0.clone(), address: address(n) })
    }

    /// A leader with key and address `n` that knows these keys.
    async fn leader(&self, n: u8, knows: &[u8]) -> Sessions {
        let sessions = Sessions::new(self.network(n), &key(n)).unwrap();
        sessions.know(knows.iter().map(|n| key(*n).public()).collect());
        // It begins to listen.
        tokio::task::yield_now().await;
        sessions
    }
}

fn address(n: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, n], 7_946))
}

fn dial(sessions: &mut Sessions, addresses: &[SocketAddr], n: u8) {
    let (cluster, key) = ("there".into(), key(n).public());
    sessions.act(Command::Dial { cluster, addresses: addresses.into(), key });
}

async fn opened(sessions: &mut Sessions) -> (SessionId, PublicKey, Option<Arc<str>>) {
    match sessions.next().await {
        Event::Opened { session, key, dialled } => (session, key, dialled),
        other => panic!("{other:?}"),
    }
}

fn world() -> World {
    World::default()
}

#[tokio::test(start_paused = true)]
async fn each_side_knows_the_key_of_the_other_and_hears_what_it_says() {
    let world = world();
    let (mut blue, mut green) = (world.leader(1, &[2]).await, world.leader(2, &[1]).await);
    dial(&mut blue, &[address(9), address(2)], 2);
    let (here, of_green, dialled) = opened(&mut blue).await;
    let (there, of_blue, dialling) = opened(&mut green).await;
    assert_eq!((of_green, of_blue), (key(2).public(), key(1).public()));
    assert_eq!((dialled.as_deref(), dialling), (Some("there"), None));
    let names = ["prod", "blue", "uid"].map(Arc::<str>::from);
    let [clusterset, cluster, uid] = names;
    let hello = Message::Hello(Hello { clusterset, cluster, uid, epoch: 1, nonce: 2 });
    let large = Message::Subscribe { buckets: (0..1_000).map(|n| (n, crate::hash::StateHash([7; 32]))).collect() };
    for message in [hello, large, Message::Alive] {
        blue.act(Command::Send { session: here, message: Arc::new(message.clone()) });
        let (taken, heard) = tokio::join!(blue.next(), green.next());
        assert!(matches!(taken, Event::Taken { session } if session == here), "{taken:?}");
        assert!(matches!(&heard, Event::Received { session, message: said } if *session == there && *said == message));
    }
    // The end follows what was said.
    blue.act(Command::Send { session: here, message: Arc::new(Message::Alive) });
    blue.act(Command::Close { session: here, why: "a test" });
    let heard = green.next().await;
    assert!(matches!(heard, Event::Received { message: Message::Alive, .. }), "{heard:?}");
    assert!(matches!(green.next().await, Event::Closed { session } if session == there));
}

#[tokio::test(start_paused = true)]
async fn who_has_another_key_is_neither_heard_nor_told_anything() {
    let world = world();
    let (mut blue, mut green) = (world.leader(1, &[2]).await, world.leader(2, &[1]).await);
    // Somebody else has its address.
    dial(&mut blue, &[address(2)], 3);
    let Event::Unreachable { cluster, why } = blue.next().await else { panic!("it was believed") };
    assert!(&*cluster == "there" && why.contains("10.0.0.2:7946: who answers there has another key"), "{why}");
    // A cluster that green does not know (any more). The client learns of it with the first answer.
    green.know(BTreeSet::new());
    dial(&mut blue, &[address(2)], 2);
    let (session, ..) = opened(&mut blue).await;
    assert!(matches!(blue.next().await, Event::Closed { session: closed } if closed == session));
    assert!(matches!(green.next().await, Event::Refused { key: of } if of == key(1).public()));
    assert!(timeout(Duration::from_mins(1), green.next()).await.is_err(), "nobody connected");
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_or_something_else_takes_no_place_for_long() {
    let world = world();
    let (mut blue, mut green) = (world.leader(1, &[2]).await, world.leader(2, &[1]).await);
    let network = world.network(9);
    // A probe that comes and goes is nobody.
    drop(network.connect(address(2)).await.unwrap());
    assert!(timeout(Duration::from_mins(1), green.next()).await.is_err());
    // However many come from one address, others find a place at once.
    let (began, mut silent) = (Instant::now(), Vec::new());
    for _ in 0..3 * HANDSHAKES {
        silent.push(network.connect(address(2)).await.unwrap());
    }
    dial(&mut blue, &[address(2)], 2);
    opened(&mut blue).await;
    opened(&mut green).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    // The first ones made room, and the others did not stay either.
    for wire in &mut silent {
        let _ = wire.read_to_end(&mut Vec::new()).await;
    }
    assert_eq!(began.elapsed(), HANDSHAKE);
    let _mute = world.network(8).listen().await.unwrap();
    dial(&mut blue, &[address(8)], 2);
    let Event::Unreachable { why, .. } = blue.next().await else { panic!("nobody answered") };
    assert!(why.contains("no answer within 5 s"), "{why}");
    // Nobody listens, or it is an address of AWS' own services.
    for (at, words) in [(address(9), "refused"), (SocketAddr::from(([169, 254, 169, 254], 80)), "link-local")] {
        dial(&mut blue, &[at], 2);
        let Event::Unreachable { why, .. } = blue.next().await else { panic!("{at}") };
        assert!(why.contains(words), "{why}");
    }
    // Each of a leader's addresses may fail for another reason.
    dial(&mut blue, &[address(9), SocketAddr::from(([169, 254, 169, 254], 80))], 2);
    let Event::Unreachable { why, .. } = blue.next().await else { panic!("nobody is there") };
    assert!(why.contains("10.0.0.9:7946: ") && why.contains("; 169.254.169.254:80 is "), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_connection_from_which_nobody_takes_anything_ends() {
    let world = world();
    let (mut blue, mut green) = (world.leader(1, &[2]).await, world.leader(2, &[1]).await);
    dial(&mut blue, &[address(2)], 2);
    let (session, ..) = opened(&mut blue).await;
    opened(&mut green).await;
    let buckets = (0..1_000).map(|n| (n, crate::hash::StateHash([7; 32]))).collect();
    let message = Arc::new(Message::Subscribe { buckets });
    loop {
        blue.act(Command::Send { session, message: message.clone() });
        if timeout(Duration::from_secs(1), blue.next()).await.is_err() {
            break;
        }
    }
    blue.act(Command::Close { session, why: "a test" });
    let ended = timeout(Duration::from_mins(1), blue.next()).await;
    assert!(matches!(ended, Ok(Event::Closed { session: closed }) if closed == session), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn a_message_beyond_the_limit_or_of_another_format_is_an_error() {
    for bytes in [[0, 1, 0, 1].as_slice(), &[0, 0, 0, 3, 255, 255, 255]] {
        let (mut here, mut there) = duplex(64);
        here.write_all(bytes).await.unwrap();
        assert!(timeout(Duration::from_secs(1), read(&mut there)).await.unwrap().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_ends_closes_all_and_listens_no_more() {
    let world = world();
    let (mut blue, mut green) = (world.leader(1, &[2]).await, world.leader(2, &[1]).await);
    dial(&mut blue, &[address(2)], 2);
    opened(&mut blue).await;
    opened(&mut green).await;
    drop(green);
    assert!(matches!(blue.next().await, Event::Closed { .. }));
    dial(&mut blue, &[address(2)], 2);
    assert!(matches!(blue.next().await, Event::Unreachable { .. }));
}
