//! The admin server: liveness, readiness and metrics.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::Context as _;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use prometheus::{Registry, TextEncoder};

/// What the probes and the metrics page answer.
///
/// Liveness says only that the process answers: restarting it makes neither a missing CRD nor AWS appear. Readiness
/// says that the caches are synced, in the standby replica as well.
#[derive(Debug, Clone)]
pub struct Admin {
    ready: Arc<AtomicBool>,
    registry: Registry,
}

impl Admin {
    pub fn new(registry: Registry) -> Self {
        Self { ready: Arc::default(), registry }
    }

    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// Serves until `shutdown` ends.
    pub async fn serve(
        self,
        address: SocketAddr,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> anyhow::Result<()> {
        let listener = bind(address).await.with_context(|| format!("failed to listen on {address} (--listen)"))?;
        axum::serve(listener, self.router()).with_graceful_shutdown(shutdown).await?;
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

/// Nodes without IPv6 cannot bind the default `[::]`: the same port on `0.0.0.0` serves there.
async fn bind(address: SocketAddr) -> std::io::Result<tokio::net::TcpListener> {
    match tokio::net::TcpListener::bind(address).await {
        Err(_) if address.is_ipv6() && address.ip().is_unspecified() => {
            tokio::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, &'static str) {
    if admin.ready.load(Ordering::Relaxed) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "caches are not synced yet\n")
    }
}

async fn metrics(State(admin): State<Admin>) -> Result<String, (StatusCode, String)> {
    TextEncoder::new()
        .encode_to_string(&admin.registry.gather())
        .map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
}
