//! DNS over UDP and TCP (RFC 1035, section 4.2; RFC 7766), for the zones and for the resolver.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::DNSClass;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::resolver::Resolver;
use super::{Asked, DNS_QUERY, Reply};
use crate::Emulator;
use crate::control::Control;

/// Without EDNS "messages carried by UDP are restricted to 512 bytes" (RFC 1035, section 4.2.1).
const PLAIN_UDP: u16 = 512;
/// With it, what Route 53 sends at most.
const MOST_UDP: u16 = 4096;
/// For a client that keeps its connection and says nothing.
const IDLE: Duration = Duration::from_secs(10);

/// A DNS server of an emulator, over UDP and TCP at one address. It stops when this is dropped.
#[derive(Debug)]
pub struct DnsServer {
    address: SocketAddr,
    tasks: JoinSet<()>,
}

impl Emulator {
    /// Answers from the zones of DNS namespaces, as the name servers of Route 53; port 0 is any free one.
    ///
    /// # Errors
    /// If the port can't be opened for both protocols.
    pub async fn serve_dns(&self, address: SocketAddr) -> io::Result<DnsServer> {
        DnsServer::start(address, Source::Zones(self.control().clone())).await
    }

    /// Answers as the resolver of a VPC: from a cache that keeps what is there and what is not, from the zones, and for
    /// all other names from `upstream`, another resolver; without one they are refused.
    ///
    /// # Errors
    /// If the port can't be opened for both protocols.
    pub async fn serve_resolver(&self, address: SocketAddr, upstream: Option<SocketAddr>) -> io::Result<DnsServer> {
        DnsServer::start(address, Source::Resolver(Resolver::new(self.control().clone(), upstream))).await
    }
}

impl DnsServer {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port and waits until it is closed.
    pub async fn shutdown(mut self) {
        self.tasks.shutdown().await;
    }

    async fn start(address: SocketAddr, source: Source) -> io::Result<Self> {
        let (tcp, udp) = bind(address).await?;
        let address = tcp.local_addr()?;
        let source = Arc::new(source);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_udp(Arc::new(udp), Arc::clone(&source)));
        tasks.spawn(serve_tcp(tcp, source));
        Ok(Self { address, tasks })
    }
}

/// Both protocols at one port. A free port of one may be taken of the other: then the next one is tried.
async fn bind(address: SocketAddr) -> io::Result<(TcpListener, UdpSocket)> {
    let mut left = if address.port() == 0 { 20 } else { 1 };
    loop {
        left -= 1;
        let tcp = TcpListener::bind(address).await?;
        match UdpSocket::bind(tcp.local_addr()?).await {
            Ok(udp) => return Ok((tcp, udp)),
            Err(error) if left == 0 => return Err(error),
            Err(_) => {}
        }
    }
}

#[derive(Debug)]
enum Source {
    Zones(Control),
    Resolver(Resolver),
}

impl Source {
    async fn reply(&self, asked: &Asked<'_>) -> Option<Reply> {
        match self {
            Self::Zones(control) => {
                let shaping = control.lock().shape_query(control.now(), DNS_QUERY, asked);
                if !shaping.latency.is_zero() {
                    tokio::time::sleep(shaping.latency).await;
                }
                control.lock().answer_query(control.now(), asked, &shaping)
            }
            Self::Resolver(resolver) => resolver.resolve(asked).await,
        }
    }

    /// The message for a message; none for what gets no answer.
    async fn answer(&self, client: SocketAddr, bytes: &[u8]) -> Option<Message> {
        let request = match Message::from_vec(bytes) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%error, %client, "no message of DNS");
                let id = u16::from_be_bytes(bytes.get(..2)?.try_into().ok()?);
                return Some(Message::error_msg(id, OpCode::Query, ResponseCode::FormErr));
            }
        };
        if request.metadata.message_type == MessageType::Response {
            return None;
        }
        let mut response = Message::response(request.metadata.id, request.metadata.op_code);
        response.metadata = Metadata::response_from_request(&request.metadata);
        response.metadata.recursion_available = matches!(self, Self::Resolver(_));
        response.add_queries(request.queries.iter().cloned());
        if request.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(MOST_UDP);
            response.set_edns(edns);
        }
        let reply = match &request.queries[..] {
            _ if request.metadata.op_code != OpCode::Query => Reply::failure(ResponseCode::NotImp),
            [query] if query.query_class() != DNSClass::IN => Reply::failure(ResponseCode::Refused),
            [query] => {
                let client = client.ip().to_string();
                self.reply(&Asked { client: &client, name: query.name(), kind: query.query_type() }).await?
            }
            _ => Reply::failure(ResponseCode::FormErr),
        };
        response.metadata.response_code = reply.code;
        response.metadata.authoritative = reply.authoritative;
        response.add_answers(reply.answers);
        response.add_authorities(reply.authorities);
        Some(response)
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, source: Arc<Source>) {
    let mut queries = JoinSet::new();
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let received = tokio::select! {
            received = socket.recv_from(&mut buffer) => received,
            Some(_) = queries.join_next() => continue,
        };
        match received {
            Ok((length, client)) => {
                let (socket, source, bytes) = (Arc::clone(&socket), Arc::clone(&source), buffer[..length].to_vec());
                queries.spawn(async move {
                    if let Some(bytes) = answer_udp(&source, client, &bytes).await
                        && let Err(error) = socket.send_to(&bytes, client).await
                    {
                        tracing::debug!(%error, %client, "failed to send an answer");
                    }
                });
            }
            // Of an earlier answer, for a client that is gone.
            Err(error) => tracing::debug!(%error, "failed to receive"),
        }
    }
}

async fn answer_udp(source: &Source, client: SocketAddr, bytes: &[u8]) -> Option<Vec<u8>> {
    let most = Message::from_vec(bytes)
        .ok()
        .and_then(|request| request.edns)
        .map_or(PLAIN_UDP, |edns| edns.max_payload().clamp(PLAIN_UDP, MOST_UDP));
    let response = source.answer(client, bytes).await?;
    let bytes = encode(&response)?;
    if bytes.len() <= usize::from(most) { Some(bytes) } else { encode(&response.truncate()) }
}

async fn serve_tcp(listener: TcpListener, source: Arc<Source>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, client)) => {
                    let source = Arc::clone(&source);
                    connections.spawn(async move {
                        if let Err(error) = serve_connection(stream, client, &source).await {
                            tracing::debug!(%error, %client, "a connection ended early");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
}

/// Messages one after the other, "prefixed with a two byte length field" (RFC 1035, section 4.2.2). A query that is dropped
/// closes the connection.
async fn serve_connection(mut stream: TcpStream, client: SocketAddr, source: &Source) -> io::Result<()> {
    stream.set_nodelay(true)?;
    while let Ok(length) = timeout(IDLE, stream.read_u16()).await {
        let mut bytes = vec![0; usize::from(length?)];
        timeout(IDLE, stream.read_exact(&mut bytes)).await??;
        let Some(bytes) = source.answer(client, &bytes).await.and_then(|response| encode(&response)) else { break };
        let Ok(length) = u16::try_from(bytes.len()) else { break };
        let framed: Vec<u8> = length.to_be_bytes().into_iter().chain(bytes).collect();
        stream.write_all(&framed).await?;
    }
    Ok(())
}

fn encode(message: &Message) -> Option<Vec<u8>> {
    message.to_vec().inspect_err(|error| tracing::warn!(%error, "failed to encode an answer")).ok()
}
