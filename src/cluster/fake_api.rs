//! A replacement for the API server behind a client, without a socket, so that it works under paused time. It records
//! requests and gives prepared answers.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, Response, Uri, header},
};
use kube::Client;
use serde_json::{Value, json};

/// Not an HTTP status: the request is never answered.
const HANGS: u16 = 0;

/// One received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path.
    pub path: String,
    /// What follows the `?`.
    pub query: String,
    /// The header `Content-Type`, or nothing.
    pub content_type: String,
    /// The body; null if it is no JSON.
    pub body: Value,
}

#[derive(Debug, Default)]
struct Shared {
    requests: Mutex<Vec<Request>>,
    answers: Mutex<VecDeque<(u16, Value)>>,
    /// What every answer says in its header `Date`.
    date: Mutex<Option<String>>,
}

/// The server.
#[derive(Debug, Default)]
pub struct FakeApi {
    shared: Arc<Shared>,
}

impl FakeApi {
    /// A client of this server.
    pub fn client(&self) -> Client {
        Client::new(Router::new().fallback(answer).with_state(Arc::clone(&self.shared)), "default")
    }

    /// Prepares the answer to the next request for which nothing else is prepared. Without a prepared answer, an object
    /// is returned as it was sent, a list is empty, and a watch ends at once.
    pub fn prepare(&self, code: u16, body: Value) {
        self.shared.answers.lock().unwrap().push_back((code, body));
    }

    /// Prepares a refusal, as the API server words it.
    pub fn refuse(&self, code: u16, reason: &str, message: &str) {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message});
        self.prepare(code, status);
    }

    /// Lets the next request for which nothing else is prepared hang.
    pub fn hang(&self) {
        self.prepare(HANGS, Value::Null);
    }

    /// Lets all answers say this time, such as `Tue, 24 Nov 2026 10:02:00 GMT`.
    pub fn answers_with_date(&self, date: &str) {
        *self.shared.date.lock().unwrap() = Some(date.to_owned());
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let request = Request {
        method: method.clone(),
        path: uri.path().to_owned(),
        query: uri.query().unwrap_or_default().to_owned(),
        content_type: headers
            .get(header::CONTENT_TYPE)
            .map(|value| value.to_str().unwrap().to_owned())
            .unwrap_or_default(),
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
    };
    let prepared = shared.answers.lock().unwrap().pop_front();
    let (code, answer) = prepared.unwrap_or_else(|| (200, default_answer(&request)));
    let text = if request.query.contains("watch=true") { String::new() } else { answer.to_string() };
    shared.requests.lock().unwrap().push(request);
    if code == HANGS {
        std::future::pending::<()>().await;
    }
    let mut response = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    if let Some(date) = shared.date.lock().unwrap().clone() {
        response = response.header(header::DATE, date);
    }
    response.body(text.into()).unwrap()
}

fn default_answer(request: &Request) -> Value {
    // /api/v1/<resource>[...] or /apis/<group>/<version>/<resource>[...], with or without a namespace.
    let parts = super::rbac::Access::of(request);
    match (request.method.as_str(), parts.name) {
        ("GET", Some(name)) => json!({"metadata": {"name": name, "uid": "uid", "resourceVersion": "1"}}),
        ("GET", None) => json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}),
        ("DELETE", _) => json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}),
        _ => request.body.clone(),
    }
}
