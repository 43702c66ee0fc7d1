//! The API of ECS over HTTP, `awsJson1_1`: `POST /` with the operation in `X-Amz-Target`. Its services are in memory. Those
//! that were given tasks ([`EcsApi::adopt`]) start and stop them; of the others no task runs anywhere. No signature is
//! checked.

mod driver;
mod model;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;

use driver::Driven;

pub use driver::Fleet;
pub use model::{ManagedService, Model, Refusal};

const TARGET_PREFIX: &str = "AmazonEC2ContainerServiceV20141113.";

type Shared = Arc<Mutex<Model>>;

/// A running API. It stops when this is dropped; tasks run on.
#[derive(Debug)]
pub struct EcsApi {
    address: SocketAddr,
    model: Shared,
    driver: UnboundedSender<Driven>,
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
        let driver = driver::start(Arc::clone(&model))?;
        let router = Router::new().fallback(answer).with_state(Arc::clone(&model));
        let mut server = JoinSet::new();
        server.spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                tracing::warn!(%error, "the API of ECS ended");
            }
        });
        Ok(Self { address, model, driver, _server: server })
    }

    /// Adds a service that has tasks: they follow its desired count, which begins with as many as there are. `registry` is the
    /// ARN of its Cloud Map service. With `reports`, ECS also reports to Cloud Map every so often whether each of them is
    /// healthy; AWS does not document how often it does.
    ///
    /// # Errors
    /// If the tasks cannot be counted.
    pub async fn adopt(
        &self,
        registry: &str,
        mut fleet: impl Fleet + 'static,
        reports: Option<Duration>,
    ) -> Result<()> {
        let tasks = i64::try_from(fleet.alive().await?)?;
        let definition = fleet.definition();
        let key = (definition.cluster.clone(), definition.name.clone());
        let service = ManagedService {
            desired: tasks,
            running: tasks,
            port: definition.port,
            has_tasks: true,
            ..ManagedService::new(registry)
        };
        self.model().services.insert(key.clone(), service);
        let driven = Driven { key, fleet: Box::new(fleet), reports };
        self.driver.send(driven).map_err(|_| anyhow!("ECS has ended"))
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
