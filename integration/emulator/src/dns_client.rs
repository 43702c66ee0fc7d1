//! A DNS client of one question at a time, for tests and for resolvers: UDP, and TCP where the answer does not fit.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::ProtoError;
use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use hickory_proto::serialize::binary::DecodeError;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// For one attempt, as resolvers have it.
const PATIENCE: Duration = Duration::from_secs(10);
/// Datagrams get lost, and a machine may stand still for longer than an attempt lasts.
const ATTEMPTS: u32 = 5;
const UDP_PAYLOAD: u16 = 1232;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{text}` is not a domain name")]
    Name { text: String, source: ProtoError },
    #[error("`{text}` is not a record type; write one such as A, AAAA or SRV")]
    Kind { text: String, source: DecodeError },
    #[error("failed to encode the query")]
    Encode(#[source] ProtoError),
    #[error("failed to decode the answer")]
    Decode(#[source] DecodeError),
    #[error("failed to reach {server}")]
    Network { server: SocketAddr, source: std::io::Error },
    #[error("{server} did not answer within {PATIENCE:?}")]
    Silence { server: SocketAddr },
}

/// How queries travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// UDP, and TCP after an answer that is cut off.
    Automatic,
    Udp,
    Tcp,
}

/// A client of one server. It caches nothing.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    server: SocketAddr,
    transport: Transport,
    /// The size of UDP answers that EDNS allows; none is no EDNS.
    payload: Option<u16>,
}

impl Client {
    pub fn new(server: SocketAddr) -> Self {
        Self { server, transport: Transport::Automatic, payload: Some(UDP_PAYLOAD) }
    }

    #[must_use]
    pub fn over(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// Without EDNS, so that UDP answers have 512 bytes at most.
    #[must_use]
    pub fn without_edns(self) -> Self {
        Self { payload: None, ..self }
    }

    /// Asks for records such as `A` of a name; a dot at its end makes no difference.
    ///
    /// # Errors
    /// If there is no answer, after some attempts. A response code that is not `NOERROR` is an answer.
    pub async fn ask(&self, name: &str, kind: &str) -> Result<Answer, Error> {
        let mut parsed = Name::from_ascii(name).map_err(|source| Error::Name { text: name.to_owned(), source })?;
        parsed.set_fqdn(true);
        let kind = kind.parse().map_err(|source| Error::Kind { text: kind.to_owned(), source })?;
        let mut left = ATTEMPTS;
        loop {
            left -= 1;
            match self.ask_name(parsed.clone(), kind).await {
                Err(Error::Silence { .. }) if left > 0 => {}
                outcome => return outcome.map(|message| Answer { message }),
            }
        }
    }

    /// A single attempt.
    pub(crate) async fn ask_name(&self, name: Name, kind: RecordType) -> Result<Message, Error> {
        let mut message = Message::query();
        message.metadata.recursion_desired = true;
        message.add_query(Query::query(name, kind));
        if let Some(payload) = self.payload {
            let mut edns = Edns::new();
            edns.set_max_payload(payload);
            message.set_edns(edns);
        }
        self.exchange(&message).await
    }

    async fn exchange(&self, query: &Message) -> Result<Message, Error> {
        let bytes = query.to_vec().map_err(Error::Encode)?;
        if self.transport != Transport::Tcp {
            let answer = self.within_patience(self.over_udp(query, &bytes)).await?;
            if self.transport == Transport::Udp || !answer.metadata.truncation {
                return Ok(answer);
            }
        }
        self.within_patience(self.over_tcp(&bytes)).await
    }

    async fn within_patience(
        &self,
        exchange: impl Future<Output = std::io::Result<Result<Message, DecodeError>>>,
    ) -> Result<Message, Error> {
        let server = self.server;
        tokio::time::timeout(PATIENCE, exchange)
            .await
            .map_err(|_| Error::Silence { server })?
            .map_err(|source| Error::Network { server, source })?
            .map_err(Error::Decode)
    }

    /// Answers to other questions are passed over.
    async fn over_udp(&self, query: &Message, bytes: &[u8]) -> std::io::Result<Result<Message, DecodeError>> {
        let any = if self.server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).await?;
        socket.connect(self.server).await?;
        socket.send(bytes).await?;
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let length = socket.recv(&mut buffer).await?;
            let answer = Message::from_vec(&buffer[..length]);
            if answer.as_ref().is_ok_and(|answer| answer.metadata.id != query.metadata.id) {
                continue;
            }
            return Ok(answer);
        }
    }

    async fn over_tcp(&self, bytes: &[u8]) -> std::io::Result<Result<Message, DecodeError>> {
        let mut stream = TcpStream::connect(self.server).await?;
        let framed: Vec<u8> = (bytes.len() as u16).to_be_bytes().into_iter().chain(bytes.iter().copied()).collect();
        stream.write_all(&framed).await?;
        let mut answer = vec![0; usize::from(stream.read_u16().await?)];
        stream.read_exact(&mut answer).await?;
        Ok(Message::from_vec(&answer))
    }
}

/// An answer, as text where tests look at it.
#[derive(Clone, Debug)]
pub struct Answer {
    pub message: Message,
}

/// A record in the form of zone files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// Without the dot at its end.
    pub name: String,
    /// Seconds.
    pub ttl: u32,
    pub kind: String,
    /// Such as `10.0.0.1` or `1 1 8080 web-1.orders.internal.`.
    pub data: String,
}

impl Answer {
    /// `NOERROR`, `NXDOMAIN`, ... as `dig` prints it.
    pub fn code(&self) -> String {
        match self.message.metadata.response_code {
            ResponseCode::NoError => "NOERROR".to_owned(),
            ResponseCode::NXDomain => "NXDOMAIN".to_owned(),
            ResponseCode::ServFail => "SERVFAIL".to_owned(),
            ResponseCode::Refused => "REFUSED".to_owned(),
            ResponseCode::FormErr => "FORMERR".to_owned(),
            ResponseCode::NotImp => "NOTIMP".to_owned(),
            other => other.to_string(),
        }
    }

    /// The answer section.
    pub fn records(&self) -> Vec<Record> {
        records(&self.message.answers)
    }

    /// The authority section: the SOA record where there is no answer.
    pub fn authorities(&self) -> Vec<Record> {
        records(&self.message.authorities)
    }

    /// The data of the answer section, sorted.
    pub fn data(&self) -> Vec<String> {
        let mut data: Vec<_> = self.records().into_iter().map(|record| record.data).collect();
        data.sort_unstable();
        data
    }
}

fn records(section: &[hickory_proto::rr::Record]) -> Vec<Record> {
    let record = |record: &hickory_proto::rr::Record| Record {
        name: record.name.to_ascii().trim_end_matches('.').to_owned(),
        ttl: record.ttl,
        kind: record.record_type().to_string(),
        data: record.data.to_string(),
    };
    section.iter().map(record).collect()
}
