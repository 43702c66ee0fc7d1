//! A server that is one address of this process: hundreds of them are cheap.

use std::future::ready;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body, Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

/// What an HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI ";
/// A gRPC connection that has called this method does not last: the server asks the client to open another one, as servers do
/// that have a greatest age for connections.
const AGEING: &str = "/client/Ageing";
/// The age.
const AGE: Duration = Duration::from_secs(30);

/// Addresses that this machine has, one after the other: none is given twice. A whole range is there after
/// `ip route add local 10.200.128.0/17 dev lo`.
#[derive(Clone, Debug)]
pub struct Addresses(Arc<AtomicU32>);

impl Addresses {
    /// This one, and those after it.
    pub fn beginning_at(first: Ipv4Addr) -> Self {
        Self(Arc::new(AtomicU32::new(first.to_bits())))
    }

    pub fn take(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.0.fetch_add(1, Ordering::Relaxed))
    }
}

/// A server that answers each line with the same line, and speaks HTTP/1.1 and gRPC without TLS on the same port: each request
/// and each call has this answer, too. When it is dropped, its port is closed, and its connections end.
#[derive(Debug)]
pub struct Server(AbortHandle);

impl Server {
    /// Starts it on a runtime. `answer` has no line break.
    pub async fn start(runtime: &Handle, address: SocketAddrV4, answer: &'static str) -> Result<Self> {
        // Sockets belong to the runtime in which they are made.
        let bound = runtime.spawn(TcpListener::bind(address)).await?;
        let listener =
            bound.with_context(|| format!("failed to listen on {address}: has this machine the address?"))?;
        Ok(Self(runtime.spawn(serve(listener, answer)).abort_handle()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(listener: TcpListener, answer: &'static str) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(answer_one(stream, answer));
                }
                // Such as too many open files.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Answers whatever protocol the client begins with.
async fn answer_one(stream: TcpStream, answer: &'static str) -> Result<()> {
    let mut first = [0; PREFACE.len()];
    // No request of any protocol is shorter than two bytes, and a client sends that many at once.
    match stream.peek(&mut first).await? {
        0 => Ok(()),
        _ if first.starts_with(b"?") => lines(stream, answer).await,
        _ if first == PREFACE => grpc(stream, answer).await,
        _ => {
            let response = move |_| ready(anyhow::Ok(Response::new(Full::<Bytes>::from(answer))));
            let service = service_fn::<_, Incoming, _>(response);
            Ok(http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?)
        }
    }
}

async fn lines(mut stream: TcpStream, answer: &'static str) -> Result<()> {
    let (reader, mut writer) = stream.split();
    let mut lines = BufReader::new(reader).lines();
    while lines.next_line().await?.is_some() {
        writer.write_all(format!("{answer}\n").as_bytes()).await?;
    }
    Ok(())
}

async fn grpc(stream: TcpStream, answer: &'static str) -> Result<()> {
    let ages = Arc::new(Notify::new());
    let service = {
        let ages = Arc::clone(&ages);
        service_fn(move |request: Request<Incoming>| {
            if request.uri().path() == AGEING {
                ages.notify_one();
            }
            called(request, answer)
        })
    };
    let mut connection =
        pin!(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
    let age = async {
        ages.notified().await;
        tokio::time::sleep(AGE).await;
    };
    tokio::select! {
        ended = connection.as_mut() => return Ok(ended?),
        () = age => connection.as_mut().graceful_shutdown(),
    }
    Ok(connection.await?)
}

/// The answer to a gRPC call with one request and one answer, whatever the method is. The message has no encoding of its own.
async fn called(
    request: Request<Incoming>,
    answer: &'static str,
) -> Result<Response<impl Body<Data = Bytes, Error: Send + Sync + std::error::Error + 'static>>> {
    request.into_body().collect().await?;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let body = Full::<Bytes>::from(message(answer)).with_trailers(ready(Some(Ok(trailers))));
    Ok(Response::builder().header(CONTENT_TYPE, "application/grpc").body(body)?)
}

/// As gRPC frames it: a byte that says that it is not compressed, its length, and the message.
fn message(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// A server, at a loopback address that no other test of this machine has.
    async fn server(number: u32) -> (Server, SocketAddrV4) {
        let own = Ipv4Addr::from_bits(0x7f00_0008 | ((std::process::id() << 4) & 0x00ff_ffff) | number);
        let address = SocketAddrV4::new(own, 18_081);
        (Server::start(&Handle::current(), address, "pod").await.unwrap(), address)
    }

    #[tokio::test]
    async fn one_port_answers_lines_and_http() {
        let (_server, address) = server(1).await;
        for (request, answer) in
            [("?\n", "pod\n"), ("GET / HTTP/1.1\r\nHost: orders\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n")]
        {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut read = vec![0; answer.len()];
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(String::from_utf8(read).unwrap(), answer);
        }
    }

    #[tokio::test]
    async fn a_call_of_grpc_is_answered_and_only_connections_that_age_end() {
        let (_server, address) = server(2).await;
        for (method, lasts) in [("/client/Ask", true), (AGEING, false)] {
            let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
            let (mut client, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
            let connection = tokio::spawn(connection);
            let request =
                Request::post(format!("http://orders{method}")).body(Full::<Bytes>::from(message("?"))).unwrap();
            let response = client.send_request(request).await.unwrap();
            assert_eq!(response.headers()[CONTENT_TYPE], "application/grpc");
            let body = response.into_body().collect().await.unwrap();
            assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
            assert_eq!(body.to_bytes(), [b"\0\0\0\0\x03".as_slice(), b"pod"].concat());
            tokio::time::pause();
            tokio::time::advance(AGE * 2).await;
            tokio::time::resume();
            // It ends only if the server wishes so: the client is there still.
            let patience = if lasts { Duration::from_millis(100) } else { AGE };
            let ended = tokio::time::timeout(patience, connection).await.is_ok();
            assert_eq!((ended, client.is_closed()), (!lasts, !lasts), "{method}");
        }
    }
}
