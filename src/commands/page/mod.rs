//! The page: what `status` says, in a browser. It only reads, and needs nothing from the internet.

mod plan;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    future::pending,
    io::Write as _,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::Context as _;
use axum::{
    Router,
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use kube::Client;
use tokio::{
    sync::{Mutex, Semaphore},
    time::{Instant, sleep},
};
use tracing::{error, info};

use super::status::{self, Cluster, Observer};
use app::{admin, connect};
use cli::{PageArgs, PlaceArgs};
use model::ServiceKey;

/// How long one reading of the ClusterSet is shown. Nothing is read while nobody looks.
const FRESH: Duration = Duration::from_secs(5);
/// A reading that takes long is shown for this many times as long as it took.
const SHARE: u32 = 5;
/// How many names are followed at once: each is eight lists from the API server and a discovery per target.
const NAMES: usize = 2;
/// How long the controller waits before it tries the address of its page again.
const AGAIN: Duration = Duration::from_secs(10);
/// The longest name of a Kubernetes object.
const LONGEST: usize = 253;

const HTML: &str = include_str!("page.html");
const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");

/// Nothing but what this server has, and no frame around it.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What serves the page.
#[derive(Debug, Clone, Copy)]
enum By {
    Command,
    Controller,
}

impl By {
    /// Whether the page is on a workstation, whose browser a web site could lead there. The command always is. Whoever
    /// starts a controller there has it listen on loopback; in a cluster, a proxy asks the controller by its own name.
    const fn is_local(self, listens: IpAddr) -> bool {
        match self {
            Self::Command => true,
            Self::Controller => listens.is_loopback(),
        }
    }
}

/// The command `page`: for somebody at a workstation, with their own rights.
pub(super) async fn page(args: PageArgs) -> anyhow::Result<()> {
    let PageArgs { place, listen } = args;
    let client = connect::kubernetes(&place.kube).await?;
    let say = |address| writeln!(std::io::stdout(), "The page is at http://{address}/ until you stop this command.");
    serve(client, listen, place, By::Command, say).await
}

/// The page beside the controller, which goes on while the address of the page cannot be bound.
pub(super) async fn beside(client: Client, listen: SocketAddr, place: PlaceArgs) -> Infallible {
    let say = |address| {
        info!(%address, "serving the page");
        Ok(())
    };
    loop {
        if let Err(error) = serve(client.clone(), listen, place.clone(), By::Controller, say).await {
            error!(
                error = &*error as &dyn std::error::Error,
                "cannot serve the page: give --page-listen an address of this machine with a port that nothing else uses"
            );
        }
        sleep(AGAIN).await;
    }
}

/// Serves the page until the future is dropped. Calls `say` with its address.
///
/// # Errors
/// The address cannot be bound.
async fn serve(
    client: Client,
    listen: SocketAddr,
    place: PlaceArgs,
    by: By,
    say: impl FnOnce(SocketAddr) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    let listener = admin::bind(listen).await.with_context(|| format!("failed to serve the page on {listen}"))?;
    let address = listener.local_addr()?;
    say(address)?;
    let page = Page { client, place, cloudmap: Mutex::default(), seen: Mutex::default(), names: Semaphore::new(NAMES) };
    admin::serve(listener, router(Arc::new(page), by.is_local(address.ip())), pending()).await;
    Ok(())
}

/// What all requests share.
struct Page {
    client: Client,
    place: PlaceArgs,
    /// The registry, once it could be connected to.
    cloudmap: Mutex<Option<Arc<dyn cloudmap::Read>>>,
    /// The last reading. Whoever wants a newer one waits here for the one that reads.
    seen: Mutex<Option<Arc<Seen>>>,
    names: Semaphore,
}

struct Seen {
    cluster: Cluster,
    /// As JSON.
    overview: String,
    until: Instant,
}

impl Page {
    async fn observer(&self) -> Observer<'_> {
        let mut known = self.cloudmap.lock().await;
        if let Some(cloudmap) = &*known {
            let cloudmap = Ok(cloudmap.clone());
            return Observer { client: self.client.clone(), place: &self.place, cloudmap };
        }
        let observer = Observer::new(self.client.clone(), &self.place).await;
        *known = observer.cloudmap.as_ref().ok().cloned();
        observer
    }

    async fn seen(&self) -> Arc<Seen> {
        let mut seen = self.seen.lock().await;
        if let Some(there) = seen.as_ref().filter(|there| Instant::now() < there.until) {
            return there.clone();
        }
        let began = Instant::now();
        let observer = self.observer().await;
        let (cluster, objects, report) = status::overview(&observer, None).await;
        let overview = plan::overview(&cluster, &objects, &report).to_string();
        let until = Instant::now() + FRESH.max(began.elapsed() * SHARE);
        let there = Arc::new(Seen { cluster, overview, until });
        *seen = Some(there.clone());
        there
    }
}

fn router(page: Arc<Page>, local: bool) -> Router {
    Router::new()
        .route("/", get(|| async { ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], HTML) }))
        .route("/page.css", get(|| async { ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], CSS) }))
        .route("/page.js", get(|| async { ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], JS) }))
        .route("/api/overview", get(overview))
        .route("/api/names/{namespace}/{name}", get(name))
        .layer(middleware::from_fn(move |request, next| guard(local, request, next)))
        .with_state(page)
}

async fn overview(State(page): State<Arc<Page>>) -> Response {
    json(page.seen().await.overview.clone())
}

async fn name(State(page): State<Arc<Page>>, Path((namespace, name)): Path<(String, String)>) -> Response {
    if ![&namespace, &name].into_iter().all(|part| is_name(part)) {
        return (StatusCode::NOT_FOUND, "no such name\n").into_response();
    }
    let Ok(_turn) = page.names.acquire().await else { return StatusCode::SERVICE_UNAVAILABLE.into_response() };
    let (seen, observer) = (page.seen().await, page.observer().await);
    let key = ServiceKey::new(namespace, name);
    json(status::follow(&observer, &seen.cluster, &key).await.json().to_string())
}

fn json(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// Whether a part of a path can be the name of an object: it becomes part of a selector.
fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    (1..=LONGEST).contains(&text.len()) && text.chars().all(fits)
}

/// Headers for every answer. `local`: on a workstation, only requests to an address are answered, as a web site that
/// gives its name the address of this machine could read the page otherwise.
async fn guard(local: bool, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut response = if local && !is_address(host) {
        (StatusCode::FORBIDDEN, "open the page by its address, as it was printed\n").into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Whether a Host header names this machine, with or without a port.
fn is_address(host: &str) -> bool {
    let name = host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    name == "localhost" || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}
