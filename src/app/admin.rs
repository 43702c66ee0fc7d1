//! The admin server: liveness, readiness and metrics.

mod server;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use anyhow::Context as _;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use prometheus::{Registry, TextEncoder};
use tokio::sync::watch;

use cluster::Caches;
pub use server::serve;

/// The probes and the metrics page.
///
/// Liveness only means that the process answers: a restart fixes neither a missing CRD nor AWS. Readiness means that
/// the caches are complete and fresh, also on a standby.
#[derive(Debug, Clone)]
pub struct Admin {
    caches: Arc<OnceLock<(Caches, cluster::Metrics)>>,
    /// Why there are no caches yet.
    before: Arc<Mutex<String>>,
    /// Why this installation must not lead, if so.
    beside: Arc<OnceLock<watch::Receiver<Option<String>>>>,
    registry: Registry,
}

impl Admin {
    /// An admin server for the metrics of `registry`. It is not ready before [`Self::watch`].
    pub fn new(registry: Registry) -> Self {
        let before = Arc::new(Mutex::new("the API server has not answered yet".to_owned()));
        Self { caches: Arc::default(), before, beside: Arc::default(), registry }
    }

    /// Lets readiness depend on whether this installation may lead, too: a second one in a cluster is not ready.
    pub fn beside(&self, obstacle: watch::Receiver<Option<String>>) {
        // This is called once.
        let _ = self.beside.set(obstacle);
    }

    /// Notes why there are no caches yet, as a text for people.
    pub fn waits(&self, why: String) {
        *self.before.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Sets the caches on which readiness depends, and the metrics that show their age.
    pub fn watch(&self, caches: Caches, metrics: cluster::Metrics) {
        // This is called once.
        let _ = self.caches.set((caches, metrics));
    }

    /// Serves until `shutdown` resolves.
    pub async fn serve(
        self,
        address: SocketAddr,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let listener = bind(address).await.with_context(|| format!("failed to listen on {address} (--listen)"))?;
        server::serve(listener, self.router(), shutdown).await;
        Ok(())
    }

    fn router(self) -> Router {
        Router::new()
            .route("/healthz", get(|| async { "ok\n" }))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

/// Nodes without IPv6 cannot bind the default `[::]`. The same port on `0.0.0.0` works there.
pub async fn bind(address: SocketAddr) -> std::io::Result<tokio::net::TcpListener> {
    match tokio::net::TcpListener::bind(address).await {
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            tokio::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    let trouble = match admin.caches.get() {
        Some((caches, _)) => caches.trouble(),
        None => Some(admin.before.lock().unwrap_or_else(PoisonError::into_inner).clone()),
    };
    let trouble = trouble.or_else(|| admin.beside.get()?.borrow().clone());
    match trouble {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(trouble) => (StatusCode::SERVICE_UNAVAILABLE, format!("{trouble}\n")),
    }
}

async fn metrics(State(admin): State<Admin>) -> Result<String, (StatusCode, String)> {
    if let Some((caches, metrics)) = admin.caches.get() {
        metrics.observe(caches);
    }
    TextEncoder::new()
        .encode_to_string(&admin.registry.gather())
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::*;

    async fn asks(admin: &Admin) -> (StatusCode, String) {
        ready(State(admin.clone())).await
    }

    #[tokio::test(start_paused = true)]
    async fn readiness_names_the_missing_or_frozen_cache() {
        let registry = Registry::new();
        let cluster_metrics = cluster::Metrics::new(&registry).unwrap();
        let admin = Admin::new(registry);
        assert!(asks(&admin).await.1.contains("has not answered yet"));
        admin.waits("namespaces is forbidden".to_owned());
        assert_eq!(asks(&admin).await, (StatusCode::SERVICE_UNAVAILABLE, "namespaces is forbidden\n".to_owned()));

        let (caches, mut writers) = Caches::unfilled();
        admin.watch(caches, cluster_metrics);
        let (code, words) = asks(&admin).await;
        assert_eq!(code, StatusCode::SERVICE_UNAVAILABLE);
        assert!(words.contains("cache of ServiceExport is not complete yet"), "{words}");
        assert!(
            words.contains("cache of Pod is not complete yet"),
            "a replica without its first list never leads: {words}"
        );

        writers.sync();
        assert_eq!(asks(&admin).await, (StatusCode::OK, "ok\n".to_owned()));
        let (obstacle, beside) = watch::channel(Some("another installation leads".to_owned()));
        admin.beside(beside);
        assert_eq!(asks(&admin).await.1, "another installation leads\n");
        obstacle.send_replace(None);
        assert_eq!(asks(&admin).await.0, StatusCode::OK);
        tokio::time::advance(cluster::cache::STALE_AFTER).await;
        writers.namespaces.apply(Event::Init);
        writers.namespaces.apply(Event::InitDone);
        let words = asks(&admin).await.1;
        assert!(
            words.contains("cache of Service has made no progress for 180 s") && !words.contains("Namespace"),
            "{words}"
        );
        assert!(!words.contains("Pod"), "old labels of pods are no obstacle: {words}");
        let page = metrics(State(admin)).await.unwrap();
        assert!(page.contains("cloudmap_mcs_kubernetes_cache_age_seconds{kind=\"Service\"} 180"), "{page}");
    }
}
