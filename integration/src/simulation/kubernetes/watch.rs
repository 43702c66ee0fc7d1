//! Watches: a stream of events from a version on.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::{Response, header},
};
use futures::stream;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};
use tower::BoxError;

use super::{
    ApiServer,
    faults::Stop,
    log::Verb,
    refusal::Refusal,
    request::Request,
    resources::Resource,
    selector::Selector,
    service::{broken, metadata_of},
    state::State,
    store::Event,
};

/// Between bookmarks, as the API server's cache sends them.
const BOOKMARK_EVERY: Duration = Duration::from_mins(1);

/// How long a watch lasts that says nothing about it.
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(30);

struct Cursor {
    server: ApiServer,
    replica: Arc<str>,
    resource: &'static Resource,
    selector: Selector,
    namespace: Option<String>,
    metadata_only: bool,
    /// What was sent.
    version: u64,
    lines: VecDeque<Bytes>,
    ends: Instant,
    bookmark: Option<Instant>,
    changed: watch::Receiver<()>,
    over: bool,
}

/// What a look at the store says to do next.
enum Next {
    Send,
    WaitUntil(Instant),
    Stop(Stop),
}

pub(super) fn open(server: &ApiServer, replica: &Arc<str>, request: &Request) -> Result<Response<Body>, BoxError> {
    let now = Instant::now();
    let timeout = request.number("timeoutSeconds").map_or(DEFAULT_TIMEOUT, Duration::from_secs);
    let changed = server.state().store.kind(request.resource).subscribe();
    let mut cursor = Cursor {
        server: server.clone(),
        replica: Arc::clone(replica),
        resource: request.resource,
        selector: request.selector.clone(),
        namespace: request.namespace.clone(),
        metadata_only: request.metadata_only,
        version: request.number("resourceVersion").unwrap_or(0),
        lines: VecDeque::new(),
        ends: now + timeout,
        bookmark: request.has("allowWatchBookmarks", "true").then(|| now + BOOKMARK_EVERY),
        changed,
        over: false,
    };
    if cursor.version == 0 {
        cursor.show_all();
    }
    let stream = stream::unfold(cursor, |mut cursor| async { Some((cursor.next().await?, cursor)) });
    let response = Response::builder().status(200).header(header::CONTENT_TYPE, "application/json");
    Ok(response.body(Body::from_stream(stream))?)
}

impl Cursor {
    /// From no version: first all that there is.
    fn show_all(&mut self) {
        let server = self.server.clone();
        let state = server.state();
        self.version = state.store.version();
        let objects = state.store.kind(self.resource).objects.values().filter(|object| self.is_meant(object));
        self.lines = objects.map(|object| self.line("ADDED", object)).collect();
    }

    async fn next(&mut self) -> Option<Result<Bytes, BoxError>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(Ok(line));
            }
            if self.over {
                return None;
            }
            self.changed.borrow_and_update();
            let server = self.server.clone();
            let next = self.look(&server.state());
            match next {
                Next::Send => {}
                Next::Stop(Stop::Silence) => std::future::pending().await,
                Next::Stop(_) => {
                    self.over = true;
                    return Some(Err(broken()));
                }
                Next::WaitUntil(until) => {
                    tokio::select! {
                        biased;
                        _ = self.changed.changed() => {}
                        () = sleep_until(until) => {}
                    }
                }
            }
        }
    }

    /// Takes what is to be sent by now.
    fn look(&mut self, state: &State) -> Next {
        let now = Instant::now();
        if let Some(stop) = state.faults.of_open_watch(&self.replica, self.resource) {
            return Next::Stop(stop);
        }
        let kind = state.store.kind(self.resource);
        let floor = state.faults.floor(&self.replica, self.resource);
        let lost =
            if self.version < floor { Err(Refusal::expired(self.version, floor)) } else { kind.since(self.version) };
        let events = match lost {
            Ok(events) => events,
            Err(refusal) => {
                // As the API server does it once a watch is authorized: as an event.
                self.lines.push_back(line("ERROR", &refusal.status()));
                self.over = true;
                return Next::Send;
            }
        };
        let lag = state.faults.lag(&self.replica, self.resource, Verb::Watch);
        for event in events.take_while(|event| event.at + lag <= now) {
            self.version = event.version;
            if let Some(line) = self.event(event) {
                self.lines.push_back(line);
            }
        }
        if now >= self.ends {
            self.over = true;
            return Next::Send;
        }
        if let Some(at) = self.bookmark.filter(|at| *at <= now) {
            self.version =
                kind.version_at(now.checked_sub(lag).unwrap_or(now), state.store.version()).max(self.version);
            self.bookmark = Some(at + BOOKMARK_EVERY);
            let version = self.version.to_string();
            let (kind, api_version) = if self.metadata_only {
                ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned())
            } else {
                (self.resource.kind, self.resource.api_version())
            };
            let object = json!({"kind": kind, "apiVersion": api_version, "metadata": {"resourceVersion": version, "creationTimestamp": null}});
            self.lines.push_back(line("BOOKMARK", &object));
        }
        if !self.lines.is_empty() {
            return Next::Send;
        }
        let event = kind.next_after(self.version).map(|at| at + lag);
        let wake = [Some(self.ends), self.bookmark, event].into_iter().flatten().min();
        Next::WaitUntil(wake.unwrap_or(self.ends))
    }

    /// What a reader with this selector sees of an event, if anything.
    fn event(&self, event: &Event) -> Option<Bytes> {
        let (old, new) = (event.old.as_ref(), event.new.as_ref());
        let was = old.is_some_and(|object| self.is_meant(object));
        let is = new.is_some_and(|object| self.is_meant(object));
        let word = match (was, is) {
            (false, false) => return None,
            (false, true) => "ADDED",
            (true, true) => "MODIFIED",
            (true, false) => "DELETED",
        };
        // One that only left the selection is shown as it last matched, with the version of the change.
        let left = old.filter(|_| word == "DELETED" && new.is_some()).map(|old| {
            let mut object = (**old).clone();
            object["metadata"]["resourceVersion"] = event.version.to_string().into();
            object
        });
        Some(self.line(word, left.as_ref().unwrap_or(&event.shown)))
    }

    fn is_meant(&self, object: &Value) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| object["metadata"]["namespace"] == **namespace)
            && self.selector.matches(object)
    }

    fn line(&self, word: &str, object: &Value) -> Bytes {
        if self.metadata_only { line(word, &metadata_of(object)) } else { line(word, object) }
    }
}

fn line(word: &str, object: &Value) -> Bytes {
    format!("{}\n", json!({"type": word, "object": object})).into()
}
