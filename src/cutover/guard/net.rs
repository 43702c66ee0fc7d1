//! DNS, pods and Prometheus as a process reaches them.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    body::{Body, to_bytes},
    http::{Request, header::CONTENT_TYPE},
};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::{net::TcpStream, time::timeout};

use super::{
    outside::{Failure, Outside},
    prometheus,
};
use base::dns;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(3);
/// An answer of Prometheus may have so many bytes.
const LARGEST: usize = 64 * 1024;

/// The network of this process.
#[derive(Debug)]
pub struct Net {
    http: Client<HttpConnector, Body>,
    /// Where Prometheus is (`--guard-prometheus`).
    prometheus: Option<String>,
    patience: Duration,
}

impl Net {
    /// `prometheus`: its URL, without a slash at the end.
    pub fn new(prometheus: Option<String>) -> Self {
        let http = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(HttpConnector::new());
        Self { http, prometheus, patience: PATIENCE }
    }

    async fn in_time<T>(&self, call: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let late = |_| Err(format!("no answer within {} s", self.patience.as_secs()));
        timeout(self.patience, call).await.unwrap_or_else(late)
    }
}

#[async_trait]
impl Outside for Net {
    async fn resolve(&self, name: &str) -> Result<BTreeSet<IpAddr>, String> {
        dns::resolve(name, self.patience).await
    }

    async fn probe(&self, at: SocketAddr, path: Option<&str>) -> Result<(), Failure> {
        let probe = async {
            let Some(path) = path else {
                return TcpStream::connect(at).await.map(drop).map_err(|error| failure(&error));
            };
            // The path was read before: it begins with a slash, so that it cannot name another host.
            let request = Request::get(format!("http://{at}{path}")).body(Body::empty());
            let request = request.map_err(|_| Failure::NoAnswer)?;
            // Only the status counts, not the body. Redirects are not followed.
            let status = self.http.request(request).await.map_err(|error| failure(&error))?.status();
            if status.is_success() || status.is_redirection() { Ok(()) } else { Err(Failure::WrongStatus) }
        };
        timeout(self.patience, probe).await.unwrap_or(Err(Failure::NoAnswer))
    }

    async fn query(&self, expression: &str) -> Result<f64, String> {
        let Some(prometheus) = &self.prometheus else {
            return Err("the controller knows no Prometheus: set its flag --guard-prometheus".to_owned());
        };
        let body = form_urlencoded::Serializer::new(String::new()).append_pair("query", expression).finish();
        let request = Request::post(format!("{prometheus}/api/v1/query"))
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(body))
            .map_err(|error| error.to_string())?;
        self.in_time(async {
            let answer = self.http.request(request).await.map_err(|error| last(&error))?.map(Body::new);
            let status = answer.status();
            let body = to_bytes(answer.into_body(), LARGEST).await.map_err(|_| "the answer is too long".to_owned())?;
            // An error has the same form, with another status.
            prometheus::value(&body).map_err(|why| if status.is_success() { why } else { format!("{why} ({status})") })
        })
        .await
    }
}

/// Whether nobody listens, or nothing came.
fn failure(error: &(dyn std::error::Error + 'static)) -> Failure {
    match error.downcast_ref::<io::Error>() {
        Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => Failure::Refused,
        _ => error.source().map_or(Failure::NoAnswer, failure),
    }
}

/// The last cause of an error: the first one is always "connection error".
fn last(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), last)
}

#[cfg(test)]
mod tests {
    use axum::{Router, extract::RawForm, http::StatusCode, routing};
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn serve() -> SocketAddr {
        let answer = |RawForm(form): RawForm| async move {
            let asked = String::from_utf8_lossy(&form).into_owned();
            let value = if asked == "query=sum%28up%29+%2F+2" { "0.5" } else { "NaN" };
            format!(r#"{{"status": "success", "data": {{"resultType": "scalar", "result": [1, "{value}"]}}}}"#)
        };
        let app = Router::new()
            .route("/good", routing::get(|| async { "ok" }))
            .route("/moved", routing::get(|| async { StatusCode::FOUND }))
            .route("/bad", routing::get(|| async { StatusCode::INTERNAL_SERVER_ERROR }))
            .route("/prom/api/v1/query", routing::post(answer));
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        at
    }

    /// Nothing here is decided by how long an answer takes: the machine may stand still for a while.
    fn net(prometheus: Option<String>) -> Net {
        Net { patience: Duration::from_mins(5), ..Net::new(prometheus) }
    }

    #[tokio::test]
    async fn a_pod_is_good_if_it_accepts_a_connection_or_answers_well() {
        let at = serve().await;
        let net = net(None);
        for path in [None, Some("/good"), Some("/moved?x=1")] {
            assert_eq!(net.probe(at, path).await, Ok(()), "{path:?}");
        }
        for path in ["/bad", "/none"] {
            assert_eq!(net.probe(at, Some(path)).await, Err(Failure::WrongStatus), "{path}");
        }
        // Kept, or another test may get the port and listen.
        let kept = tokio::net::TcpSocket::new_v4().unwrap();
        kept.bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        let nobody = kept.local_addr().unwrap();
        for path in [None, Some("/good")] {
            assert_eq!(net.probe(nobody, path).await, Err(Failure::Refused));
        }
    }

    #[tokio::test]
    async fn what_a_pod_says_that_is_no_answer_is_told_to_nobody() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.write_all(b"-ERR password is hunter2\r\n").await;
            }
        });
        let failure = net(None).probe(at, Some("/")).await.unwrap_err();
        assert_eq!(failure, Failure::NoAnswer);
        assert!(!failure.as_str().contains("hunter2"));
    }

    #[tokio::test]
    async fn prometheus_is_asked_where_the_flag_says() {
        let at = serve().await;
        let prometheus = net(Some(format!("http://{at}/prom")));
        assert_eq!(prometheus.query("sum(up) / 2").await, Ok(0.5));
        assert!(prometheus.query("up").await.unwrap_err().contains("NaN"));
        assert!(net(None).query("up").await.unwrap_err().contains("--guard-prometheus"));
        assert!(net(Some(format!("http://{at}"))).query("up").await.unwrap_err().contains("404"));
    }

    #[tokio::test]
    async fn names_are_resolved() {
        assert!(!net(None).resolve("localhost").await.unwrap().is_empty());
    }
}
