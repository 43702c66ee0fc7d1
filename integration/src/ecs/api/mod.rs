//! The API of ECS over HTTP, `awsJson1_1`: `POST /` with the operation in `X-Amz-Target`. Its services are in memory only,
//! and no task runs anywhere. No signature is checked.

mod model;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

pub use model::{ManagedService, Model, Refusal};

const TARGET_PREFIX: &str = "AmazonEC2ContainerServiceV20141113.";

type Shared = Arc<Mutex<Model>>;

/// A running API. It stops when this is dropped.
#[derive(Debug)]
pub struct EcsApi {
    address: SocketAddr,
    model: Shared,
    _server: JoinSet<()>,
}

impl EcsApi {
    /// Starts on a free port of the loopback interface.
    ///
    /// # Errors
    /// If the port can't be opened.
    pub async fn start(model: Model) -> io::Result<Self> {
        Self::start_on(SocketAddr::from(([127, 0, 0, 1], 0)), model).await
    }

    /// Starts on an address; port 0 is any free one.
    ///
    /// # Errors
    /// If the port can't be opened.
    pub async fn start_on(address: SocketAddr, model: Model) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let (address, model) = (listener.local_addr()?, Arc::new(Mutex::new(model)));
        let router = Router::new().fallback(answer).with_state(Arc::clone(&model));
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the API of ECS ended");
            }
        });
        Ok(Self { address, model, _server: server })
    }

    /// For `--ecs-endpoint`, such as `http://127.0.0.1:40123`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What is there. Calls wait while it is held.
    pub fn model(&self) -> MutexGuard<'_, Model> {
        lock(&self.model)
    }
}

fn lock(model: &Shared) -> MutexGuard<'_, Model> {
    model.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn answer(State(model): State<Shared>, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
    let target = headers.get("x-amz-target").and_then(|target| target.to_str().ok()).unwrap_or_default();
    let operation = target.strip_prefix(TARGET_PREFIX).unwrap_or(target);
    let request: Value = serde_json::from_slice(&body).unwrap_or_default();
    let answered = lock(&model).call(operation, &request);
    match answered {
        Ok(members) => (StatusCode::OK, members.to_string()),
        Err(Refusal { code, message }) => {
            (StatusCode::BAD_REQUEST, json!({"__type": code, "message": message}).to_string())
        }
    }
}
