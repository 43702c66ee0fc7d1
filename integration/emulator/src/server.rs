//! The registry over HTTP, `awsJson1_1`: `POST /` with the operation in `X-Amz-Target`. Any host name is served, and no
//! signature is checked; its access key id names the caller, and its region can say which registry is called. A form
//! (`application/x-www-form-urlencoded`) is a request to STS.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::accounts::Caller;
use super::calls::Outcome;
use super::cloud::StsCall;
use super::control::Control;
use super::error::ApiError;
use super::{CloudMap, EmulatorSettings, sts};

const TARGET_PREFIX: &str = "Route53AutoNaming_v20170314.";

/// A running emulator. It stops when this is dropped, or with [`Emulator::shutdown`].
#[derive(Debug)]
pub struct Emulator {
    address: SocketAddr,
    control: Control,
    servers: JoinSet<()>,
}

impl Emulator {
    /// Starts on a free port of the loopback interface.
    ///
    /// # Errors
    /// If the port can't be opened, or the settings don't hold ([`EmulatorSettings::check`]).
    pub async fn start(settings: EmulatorSettings) -> io::Result<Self> {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), settings).await
    }

    /// Starts on an address; port 0 is any free one.
    ///
    /// # Errors
    /// If the port can't be opened, or the settings don't hold ([`EmulatorSettings::check`]).
    pub async fn start_on(address: SocketAddr, settings: EmulatorSettings) -> io::Result<Self> {
        settings.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let control = Control::new(CloudMap::new(settings));
        let mut servers = JoinSet::new();
        let address = listen(address, &control, &mut servers).await?;
        Ok(Self { address, control, servers })
    }

    /// Serves the same registry on one more address, for clients of the other IP family; returns that address.
    ///
    /// # Errors
    /// If the port can't be opened.
    pub async fn serve_on(&mut self, address: SocketAddr) -> io::Result<SocketAddr> {
        listen(address, &self.control, &mut self.servers).await
    }

    /// The first address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For `--cloudmap-endpoint`, such as `http://127.0.0.1:40123`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The handle for faults, counters, writes, snapshots and settings.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Closes the ports and all connections, and waits until they are closed.
    pub async fn shutdown(mut self) {
        self.servers.shutdown().await;
    }
}

async fn listen(address: SocketAddr, control: &Control, servers: &mut JoinSet<()>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    servers.spawn(serve(listener, control.clone()));
    Ok(address)
}

async fn serve(listener: TcpListener, control: Control) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve_connection(stream, control.clone()));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: those that are open will be closed.
                    tracing::warn!(%error, "failed to accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, control: Control) {
    // Answers are small: waiting to fill packets would add 40 ms to some.
    let _ = stream.set_nodelay(true);
    let service = service_fn(|request| answer(request, control.clone()));
    if let Err(error) = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
    {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// The failure that makes hyper close the connection without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the connection is dropped by a fault rule")]
struct Dropped;

async fn answer(request: Request<Incoming>, control: Control) -> Result<Response<Full<Bytes>>, Dropped> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Dropped)?.to_bytes();
    if let Some(path) = head.uri.path().strip_prefix("/_emulator/") {
        let (status, value) = control.answer(
            head.method.as_str(),
            path.trim_end_matches('/'),
            head.uri.query().unwrap_or_default(),
            &body,
        );
        return Ok(respond(status, "application/json", value.to_string().into_bytes()));
    }
    if is_form(&head.headers) {
        return assume_role(&control, &caller(&head.headers), &body).await;
    }
    let outcome = match operation(&head.headers) {
        Ok(operation) => call(&control, &caller(&head.headers), operation, &body).await,
        Err(error) => Outcome::Answered(Err(error)),
    };
    match outcome {
        Outcome::Answered(Ok(members)) => Ok(respond(200, "application/x-amz-json-1.1", members.into_json())),
        Outcome::Answered(Err(error)) => {
            Ok(respond(error.status, "application/x-amz-json-1.1", error.body().to_string().into_bytes()))
        }
        Outcome::Dropped => Err(Dropped),
    }
}

async fn call(control: &Control, caller: &Caller<'_>, operation: &str, body: &[u8]) -> Outcome {
    let admitted = control.cloud().admit(control.now(), caller, operation, body);
    let admitted = match admitted {
        Ok(admitted) => admitted,
        Err(error) => return Outcome::Answered(Err(error)),
    };
    let half = admitted.admission.latency / 2;
    if !half.is_zero() {
        tokio::time::sleep(half).await;
    }
    let outcome = control.cloud().execute(control.now(), &admitted, body);
    if !half.is_zero() {
        tokio::time::sleep(half).await;
    }
    outcome
}

async fn assume_role(control: &Control, caller: &Caller<'_>, body: &[u8]) -> Result<Response<Full<Bytes>>, Dropped> {
    let StsCall { latency, answer } = control.cloud().answer_sts(control.now(), caller, body);
    if !latency.is_zero() {
        tokio::time::sleep(latency).await;
    }
    let (status, body) = match answer.ok_or(Dropped)? {
        Ok(body) => (200, body),
        Err(error) => (error.status, sts::error_body(&error)),
    };
    Ok(respond(status, "text/xml", body.into_bytes()))
}

fn is_form(headers: &HeaderMap) -> bool {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    !headers.contains_key("x-amz-target")
        && text.is_some_and(|text| text.starts_with("application/x-www-form-urlencoded"))
}

fn operation(headers: &HeaderMap) -> Result<&str, ApiError> {
    headers
        .get("x-amz-target")
        .and_then(|target| target.to_str().ok())
        .and_then(|target| target.strip_prefix(TARGET_PREFIX))
        .ok_or_else(|| {
            let message = format!("The header X-Amz-Target must be {TARGET_PREFIX} and the name of an operation.");
            ApiError::new("UnknownOperationException", message)
        })
}

fn caller<'a>(headers: &'a HeaderMap) -> Caller<'a> {
    let text = |header: Option<&'a HeaderValue>| header.and_then(|value| value.to_str().ok());
    let caller = text(headers.get(AUTHORIZATION)).map(Caller::parse).unwrap_or_default();
    Caller { token: text(headers.get("x-amz-security-token")), ..caller }
}

fn respond(status: u16, content_type: &'static str, body: Vec<u8>) -> Response<Full<Bytes>> {
    static REQUESTS: AtomicU64 = AtomicU64::new(1);
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert("x-amzn-requestid", HeaderValue::from(REQUESTS.fetch_add(1, Ordering::Relaxed)));
    response
}
