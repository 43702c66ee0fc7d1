//! The connections of a leader with other leaders: TLS, frames, and who may connect. What is said is decided by
//! [`Stream`](crate::stream).
//!
//! A frame is its length in four bytes, the highest first, and one message.

mod network;
#[cfg(test)]
pub(super) mod tests;
mod tls;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::{Arc, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, split},
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::{debug, warn};

use crate::stream::{
    Command, SessionId,
    message::{MAX_FRAME, Message},
};
use base::{env, guests::Guests};
use model::{PublicKey, SigningKey, addresses};
pub use network::{Listener, Network, Tcp, Wire};
use tls::{Known, Secured, Tls};

/// Both sides prove their keys within this time, including the connection itself.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes that run at the same time. Of more, one ends ([`Guests`]).
const HANDSHAKES: usize = 64;
/// Whoever does not take a message within this time is gone (S8).
const TAKEN: Duration = Duration::from_secs(10);
/// Why there is no session where somebody else answers: of itself, TLS says only that a verification failed.
const OTHER_KEY: &str = "who answers there has another key than the one that is accepted for that cluster";
/// Pause before the next attempt to listen.
const LISTEN_AGAIN: Duration = Duration::from_secs(5);
/// Events of all sessions that wait for the leader. Beyond them the sockets wait.
const WAITING: usize = 64;

/// Whether leaders tell each other their states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Streaming {
    /// Wherever they reach each other.
    Auto,
    /// Never: the registry alone.
    Off,
}

/// What happens to sessions.
#[derive(Debug)]
pub(super) enum Event {
    /// A connection was made, by dialling a cluster or by being dialled, and both keys are verified.
    Opened { session: SessionId, key: PublicKey, dialled: Option<Arc<str>> },
    /// Somebody wanted to connect with this key, which no live cluster has. It need not own the key.
    Refused { key: PublicKey },
    /// No connection to this cluster could be made.
    Unreachable { cluster: Arc<str>, why: String },
    /// A message came.
    Received { session: SessionId, message: Message },
    /// The socket has taken the message that was sent last.
    Taken { session: SessionId },
    /// The connection is gone.
    Closed { session: SessionId },
}

enum Inner {
    Secured { stream: Box<Secured>, key: PublicKey, dialled: Option<Arc<str>> },
    Event(Event),
}

/// The sessions of one leader. Dropping this closes all of them at once.
pub(super) struct Sessions {
    network: Arc<dyn Network>,
    tls: Arc<Tls>,
    known: Known,
    sender: mpsc::Sender<Inner>,
    events: mpsc::Receiver<Inner>,
    outboxes: BTreeMap<SessionId, mpsc::Sender<Arc<Message>>>,
    opened: u64,
    tasks: JoinSet<()>,
}

impl Sessions {
    /// Begins to listen. Whoever has a key among those of [`Self::know`] may connect.
    pub(super) fn new(network: Arc<dyn Network>, key: &SigningKey) -> Result<Self, rustls::Error> {
        let known = Known::default();
        let tls = Arc::new(Tls::new(key, Arc::clone(&known))?);
        let (sender, events) = mpsc::channel(WAITING);
        let mut tasks = JoinSet::new();
        tasks.spawn(env::task(accept_all(Arc::clone(&network), Arc::clone(&tls), sender.clone())));
        let (outboxes, opened) = (BTreeMap::new(), 0);
        Ok(Self { network, tls, known, sender, events, outboxes, opened, tasks })
    }

    /// The keys of live clusters, which may connect from now on.
    pub(super) fn know(&self, keys: BTreeSet<PublicKey>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }

    /// Does what the stream asks for.
    pub(super) fn act(&mut self, command: Command) {
        match command {
            Command::Dial { cluster, addresses, key } => {
                let (network, tls, sender) = (Arc::clone(&self.network), Arc::clone(&self.tls), self.sender.clone());
                self.tasks.spawn(env::task(async move {
                    let event = match dial(&*network, &tls, &addresses, key).await {
                        Ok(stream) => Inner::Secured { stream: Box::new(stream), key, dialled: Some(cluster) },
                        Err(why) => Inner::Event(Event::Unreachable { cluster, why }),
                    };
                    let _ = sender.send(event).await;
                }));
            }
            Command::Send { session, message } => {
                // There is room: the stream waits until the socket has taken the last message.
                if self.outboxes.get(&session).is_some_and(|outbox| outbox.try_send(message).is_err()) {
                    self.outboxes.remove(&session);
                }
            }
            Command::Close { session, why } => {
                debug!(session = session.0, why, "closing a connection with another leader");
                self.outboxes.remove(&session);
            }
        }
    }

    /// The next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                biased;
                Some(event) = self.events.recv() => match event {
                    Inner::Event(event) => {
                        if let Event::Closed { session } = event {
                            self.outboxes.remove(&session);
                        }
                        return event;
                    }
                    Inner::Secured { stream, key, dialled } => {
                        self.opened += 1;
                        let session = SessionId(self.opened);
                        let (outbox, messages) = mpsc::channel(1);
                        self.outboxes.insert(session, outbox);
                        self.tasks.spawn(env::task(converse(*stream, session, messages, self.sender.clone())));
                        return Event::Opened { session, key, dialled };
                    }
                },
                // Tasks that ended need no memory.
                Some(_) = self.tasks.join_next() => {}
            }
        }
    }
}

/// Accepts connections, until it is dropped.
async fn accept_all(network: Arc<dyn Network>, tls: Arc<Tls>, events: mpsc::Sender<Inner>) {
    let mut guests = Guests::new(HANDSHAKES);
    let mut handshakes = JoinSet::new();
    loop {
        let mut listener = match network.listen().await {
            Ok(listener) => listener,
            Err(error) => {
                warn!(%error, "cannot listen for the leaders of other clusters, so changes may reach them only through the ledger; trying again");
                sleep(LISTEN_AGAIN).await;
                continue;
            }
        };
        loop {
            while handshakes.try_join_next().is_some() {}
            let (wire, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    sleep(LISTEN_AGAIN).await;
                    break;
                }
            };
            let (tls, events) = (Arc::clone(&tls), events.clone());
            let task = handshakes.spawn(env::task(async move {
                match timeout(HANDSHAKE, tls.accept(wire)).await {
                    Ok(Ok((stream, key))) => {
                        let _ = events.send(Inner::Secured { stream: Box::new(stream), key, dialled: None }).await;
                    }
                    Ok(Err(error)) => {
                        debug!(%error, "a connection was refused");
                        if let Some(key) = tls::refused_key(&error) {
                            // One of many is enough.
                            let _ = events.try_send(Inner::Event(Event::Refused { key }));
                        }
                    }
                    Err(_) => debug!("a connection did not say who it is in time"),
                }
            }));
            guests.admit(from, task);
        }
    }
}

/// Connects to the first of these addresses at which this key answers. All are tried at once, because where ranges
/// overlap somebody else may be at one of them.
async fn dial(network: &dyn Network, tls: &Tls, addresses: &[SocketAddr], key: PublicKey) -> Result<Secured, String> {
    let attempt = |to: SocketAddr| async move {
        let failed = |error: io::Error| {
            if tls::is_unknown(&error) { format!("{to}: {OTHER_KEY}") } else { format!("{to}: {error}") }
        };
        // Another cluster says where its leader is. It must not be able to send this one to AWS' own services.
        addresses::check(to.ip()).map_err(|why| format!("{to} is {}", why.as_str()))?;
        let secured = async { tls.connect(network.connect(to).await?, key).await };
        match timeout(HANDSHAKE, secured).await {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(format!("{to}: no answer within {} s", HANDSHAKE.as_secs())),
        }
    };
    if addresses.is_empty() {
        return Err("it says no address".to_owned());
    }
    let mut attempts: FuturesUnordered<_> = addresses.iter().map(|to| attempt(*to)).collect();
    let mut failed = Vec::new();
    while let Some(tried) = attempts.next().await {
        match tried {
            Ok(stream) => return Ok(stream),
            Err(why) => failed.push(why),
        }
    }
    // Whichever failed first, it is the same text.
    failed.sort_unstable();
    Err(failed.join("; "))
}

/// Reads and writes until either ends.
async fn converse(
    stream: Secured,
    session: SessionId,
    mut messages: mpsc::Receiver<Arc<Message>>,
    events: mpsc::Sender<Inner>,
) {
    let (mut reader, mut writer) = split(stream);
    let reading = async {
        loop {
            let message = read(&mut reader).await?;
            if events.send(Inner::Event(Event::Received { session, message })).await.is_err() {
                return Ok(());
            }
        }
    };
    let writing = async {
        while let Some(message) = messages.recv().await {
            in_time(write(&mut writer, &message)).await?;
            if events.send(Inner::Event(Event::Taken { session })).await.is_err() {
                break;
            }
        }
        in_time(writer.shutdown()).await
    };
    let ended: io::Result<()> = tokio::select! {
        biased;
        ended = reading => ended,
        ended = writing => ended,
    };
    if let Err(error) = ended {
        debug!(session = session.0, %error, "a connection with another leader ended");
    }
    let _ = events.send(Inner::Event(Event::Closed { session })).await;
}

/// The kernel gives up a connection from which nobody takes anything after a quarter of an hour, or never.
async fn in_time(sent: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    timeout(TAKEN, sent).await?
}

async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Message> {
    let length = reader.read_u32().await? as usize;
    if length > MAX_FRAME {
        return Err(io::Error::other(format!("a message of {length} bytes")));
    }
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).await?;
    Message::decode(&bytes).map_err(io::Error::other)
}

async fn write(writer: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<()> {
    let bytes = message.encode();
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    writer.write_all(&[&length.to_be_bytes(), bytes.as_slice()].concat()).await?;
    writer.flush().await
}
