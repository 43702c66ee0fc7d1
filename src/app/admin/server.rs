//! HTTP on a port that anybody in the network may reach: the probes, the metrics and the page.
//!
//! Nobody authenticates here, so that a connection costs little and ends soon, whatever the other side does.

use std::{io, pin::pin, time::Duration};

use axum::Router;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};
use tracing::debug;

use base::guests::Guests;

/// What a connection may cost.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// Connections at the same time. Of more, one ends ([`Guests`]).
    connections: usize,
    /// How long a request may take to come, with all of its headers: also the first one, and one after another.
    head: Duration,
    /// After this time, a connection takes no further request.
    life: Duration,
    /// After that, it ends in this time, whether the other side has taken the answer or not.
    last: Duration,
}

/// The kubelet and Prometheus need one connection each, and a browser at most six. The metrics of a large ClusterSet have
/// several hundred kilobytes, which each of 64 that ask and take nothing holds in memory.
const LIMITS: Limits = Limits {
    connections: 64,
    head: Duration::from_secs(10),
    life: Duration::from_mins(1),
    last: Duration::from_mins(1),
};
/// Bytes of a request's first line and headers. hyper itself takes no more than 100 headers.
const HEAD: usize = 16 * 1024;
/// Pause after an error that is not about one connection, such as too many open files.
const AGAIN: Duration = Duration::from_secs(1);
/// Time for the last answers when the process ends.
const END: Duration = Duration::from_secs(5);

/// Serves until `stop` resolves, and then until all answers are sent, for some seconds at most.
pub async fn serve(listener: TcpListener, app: Router, stop: impl Future<Output = ()>) {
    serve_within(LIMITS, listener, app, stop).await;
}

async fn serve_within(limits: Limits, listener: TcpListener, app: Router, stop: impl Future<Output = ()>) {
    let (ending, _) = watch::channel(false);
    let (mut guests, mut connections) = (Guests::new(limits.connections), JoinSet::new());
    let mut stop = pin!(stop);
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => {
                let task = connections.spawn(converse(limits, stream, app.clone(), ending.subscribe()));
                guests.admit(from.ip(), task);
            }
            // It went before it was accepted.
            Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) => {
            }
            Err(error) => {
                debug!(%error, "cannot accept a connection");
                sleep(AGAIN).await;
            }
        }
    }
    drop(listener);
    ending.send_replace(true);
    let _ = timeout(END, async { while connections.join_next().await.is_some() {} }).await;
}

async fn converse(limits: Limits, stream: TcpStream, app: Router, mut ending: watch::Receiver<bool>) {
    let mut http = auto::Builder::new(TokioExecutor::new()).http1_only();
    http.http1().timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(app)));
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                debug!(%error, "a connection ended");
            }
            return;
        }
        _ = timeout(limits.life, ending.wait_for(|ending| *ending)) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(limits.last, connection).await;
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::SocketAddr};

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpSocket,
        sync::oneshot,
        task::JoinHandle,
        time::Instant,
    };

    use super::*;

    const HALF: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n";
    const WHOLE: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n";
    /// Where no time is to be over within a test, however slow the machine is.
    const PATIENT: Limits = Limits {
        connections: 64,
        head: Duration::from_mins(10),
        life: Duration::from_mins(10),
        last: Duration::from_mins(10),
    };

    async fn begin(limits: Limits) -> (SocketAddr, oneshot::Sender<()>, JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        let large = "x".repeat(64 * 1024 * 1024);
        let app = Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/large", get(|| async { large }))
            .route("/never", get(pending::<()>));
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(serve_within(limits, listener, app, async { drop(stopped.await) }));
        (at, stop, serving)
    }

    /// A connection from an address of this machine.
    async fn come(from: [u8; 4], at: SocketAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        socket.connect(at).await.unwrap()
    }

    async fn ask(stream: &mut TcpStream, request: &str) -> String {
        // The server may have ended the connection before all is sent.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = vec![0; 1024];
        let length = stream.read(&mut answer).await.unwrap_or_default();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }

    /// Waits until the server has ended the connection.
    async fn is_ended(stream: &mut TcpStream) {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn five_thousand_requests_that_are_half_sent_do_not_stay_and_a_probe_is_answered() {
        let (at, _stop, _serving) = begin(PATIENT).await;
        let mut flood = Vec::new();
        for number in 0..5_000 {
            let mut stream = come([127, 0, 0, 66], at).await;
            let _ = stream.write_all(HALF.as_bytes()).await;
            flood.push(stream);
            if number % 1_000 == 500 {
                let answer = ask(&mut come([127, 0, 0, 1], at).await, WHOLE).await;
                assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
            }
        }
        // Who floods still finds a place, such as a neighbour of Prometheus behind the same proxy.
        let mut last = come([127, 0, 0, 66], at).await;
        let answer = ask(&mut last, WHOLE).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        for stream in &mut flood[..5_000 - PATIENT.connections] {
            is_ended(stream).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_sends_no_request_or_takes_no_answer_is_gone_after_a_while() {
        let short = Duration::from_millis(500);
        let (at, _stop, _serving) = begin(Limits { head: short, ..PATIENT }).await;
        let mut half = come([127, 0, 0, 1], at).await;
        half.write_all(HALF.as_bytes()).await.unwrap();
        let mut silent = come([127, 0, 0, 1], at).await;
        for stream in [&mut half, &mut silent] {
            is_ended(stream).await;
        }
        let (at, _stop, _serving) = begin(Limits { life: short, last: short, ..PATIENT }).await;
        // One that is idle after an answer, one that takes nothing, and one that waits for an answer.
        let mut idle = loop {
            let mut stream = come([127, 0, 0, 1], at).await;
            // On a slow machine, the request may come when the time is over.
            if ask(&mut stream, WHOLE).await.starts_with("HTTP/1.1 200 OK") {
                break stream;
            }
        };
        is_ended(&mut idle).await;
        let mut greedy = come([127, 0, 0, 1], at).await;
        let _ = greedy.write_all(WHOLE.replace("healthz", "large").as_bytes()).await;
        let began = Instant::now();
        let mut waiting = come([127, 0, 0, 1], at).await;
        let _ = waiting.write_all(WHOLE.replace("healthz", "never").as_bytes()).await;
        is_ended(&mut waiting).await;
        assert!(began.elapsed() >= short, "it takes the answers to requests that came");
        // Who reads would take the answer. A byte that is sent to a connection that was ended is refused.
        while greedy.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
        let mut taken = Vec::new();
        let ended = greedy.read_to_end(&mut taken).await;
        assert!(ended.is_err() || taken.len() < 64 * 1024 * 1024, "nothing waits for who takes nothing");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn headers_that_are_too_long_or_too_many_are_refused() {
        let (at, _stop, _serving) = begin(PATIENT).await;
        let long = format!("{HALF}X: {}\r\n\r\n", "x".repeat(380_000));
        let many = (0..200).fold(String::new(), |many, n| many + &format!("X-{n}: 1\r\n"));
        for (request, size) in [(long, "long"), (format!("{HALF}{many}\r\n"), "many")] {
            let answer = ask(&mut come([127, 0, 0, 1], at).await, &request).await;
            // Where the rest is still on its way, the end of the connection may overtake the answer.
            assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{size}: {answer}");
        }
        let fits = format!("{HALF}X: {}\r\n\r\n", "x".repeat(8_000));
        assert!(ask(&mut come([127, 0, 0, 1], at).await, &fits).await.starts_with("HTTP/1.1 200 OK"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn nobody_who_is_silent_holds_the_end_of_the_process() {
        let (at, stop, serving) = begin(PATIENT).await;
        let mut idle = come([127, 0, 0, 1], at).await;
        assert!(ask(&mut idle, WHOLE).await.starts_with("HTTP/1.1 200 OK"));
        let mut half = come([127, 0, 0, 1], at).await;
        half.write_all(HALF.as_bytes()).await.unwrap();
        drop(stop);
        serving.await.unwrap();
        for stream in [&mut idle, &mut half] {
            is_ended(stream).await;
        }
    }
}
