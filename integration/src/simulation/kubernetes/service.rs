//! The API server as the HTTP service that clients of kube talk to, without a socket in between.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{self, Response, StatusCode, header},
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::{BoxError, service_fn};

use super::{
    ApiServer,
    faults::{Moment, Stop},
    log::Verb,
    ownership::Author,
    refusal::Refusal,
    request::Request,
    resources::Resource,
    state::{Change, State},
    store::Key,
    watch,
};

impl ApiServer {
    /// A client, as one replica has it: what it is told, and what goes wrong, is by this name. No retries are built in.
    ///
    /// Must be called within a runtime.
    pub fn client(&self, replica: &str, namespace: &str) -> kube::Client {
        let (server, replica): (_, Arc<str>) = (self.clone(), replica.into());
        let service = service_fn(move |request: http::Request<kube::client::Body>| {
            let (server, replica) = (server.clone(), Arc::clone(&replica));
            async move {
                // What was sent goes its way, whether or not the sender still waits for an answer.
                match tokio::spawn(answer(server, replica, request)).await? {
                    Some(answer) => answer,
                    None => std::future::pending().await,
                }
            }
        });
        kube::Client::new(service, namespace)
    }
}

type Answer = Result<Response<Body>, BoxError>;

/// `None`: there never is an answer.
async fn answer(server: ApiServer, replica: Arc<str>, request: http::Request<kube::client::Body>) -> Option<Answer> {
    let (parts, body) = request.into_parts();
    let body = match body.collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => return Some(Err(error.into())),
    };
    let request = match Request::parse(&parts.method, &parts.uri, &parts.headers, &body) {
        Ok(request) => request,
        Err(Some(refusal)) => return Some(refused(&refusal)),
        Err(None) => return Some(nothing_served()),
    };
    let name = request.name.clone().unwrap_or_default();
    let (course, latency) = {
        let mut state = server.state();
        let count = state.requests.entry((replica.to_string(), request.verb, request.resource.plural)).or_default();
        *count += 1;
        let latency = state.settings.latency;
        (state.faults.course(&replica, request.resource, &name, request.verb), latency)
    };
    sleep(latency + course.delay / 2).await;
    if let Some(stop) = course.before {
        return stopped(stop);
    }
    let mut crash = course.crash;
    if let Some((_, then)) = crash.take_if(|(moment, _)| *moment == Moment::Before) {
        then();
        return None;
    }
    if server.state().absent.contains(request.resource.plural) {
        return Some(nothing_served());
    }
    let answer = if request.verb == Verb::Watch {
        watch::open(&server, &replica, &request)
    } else {
        let result = perform(&mut server.state(), &replica, request);
        match result {
            Ok((code, object)) => json_response(code, &object, None),
            Err(refusal) => refused(&refusal),
        }
    };
    if let Some((_, then)) = crash {
        then();
        return None;
    }
    if !course.delay.is_zero() {
        // What was read may be old when it arrives.
        sleep(course.delay / 2).await;
    }
    match course.after {
        Some(stop) => stopped(stop),
        None => Some(answer),
    }
}

fn stopped(stop: Stop) -> Option<Answer> {
    match stop {
        Stop::Refused(refusal) => Some(refused(&refusal)),
        Stop::Broken => Some(Err(broken())),
        Stop::Silence => None,
    }
}

/// A connection that was reset.
pub(super) fn broken() -> BoxError {
    std::io::Error::new(std::io::ErrorKind::ConnectionReset, "connection reset by the simulated network").into()
}

fn refused(refusal: &Refusal) -> Answer {
    json_response(refusal.code, &refusal.status(), refusal.retry_after)
}

/// No such kind, or its CRD is not installed.
fn nothing_served() -> Answer {
    let response = Response::builder().status(StatusCode::NOT_FOUND).header(header::CONTENT_TYPE, "text/plain");
    Ok(response.body(Body::from("404 page not found\n"))?)
}

fn json_response(code: u16, object: &Value, retry_after: Option<u64>) -> Answer {
    let mut response = Response::builder().status(code).header(header::CONTENT_TYPE, "application/json");
    if let Some(seconds) = retry_after {
        response = response.header(header::RETRY_AFTER, seconds);
    }
    Ok(response.body(Body::from(object.to_string()))?)
}

/// What is left of an object when only its metadata is asked for.
pub(super) fn metadata_of(object: &Value) -> Value {
    json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
}

fn perform(state: &mut State, replica: &str, mut request: Request) -> Result<(u16, Arc<Value>), Refusal> {
    let resource = request.resource;
    if request.verb == Verb::List {
        return list(state, replica, &request).map(|list| (200, list.into()));
    }
    let key = key_of(&request, replica, state)?;
    let object = request.body.take();
    let shown = |object: Arc<Value>| if request.metadata_only { Arc::new(metadata_of(&object)) } else { object };
    if request.verb == Verb::Get {
        state.put_back(replica, resource, &key);
        let found = state.get(resource, &key)?;
        state.note_known(replica, resource, &key);
        return Ok((200, shown(found)));
    }
    let author = Author {
        manager: request.query.get("fieldManager").cloned().unwrap_or_else(|| "unknown".to_owned()),
        applies: request.verb == Verb::Apply,
        status: request.status,
    };
    let change = Change { resource, key, author, by: replica, dry_run: request.has("dryRun", "All") };
    match request.verb {
        Verb::Create => {
            let made = state.create(&change, object)?;
            state.note_known(replica, resource, &change.key);
            Ok((201, shown(made)))
        }
        Verb::Update => Ok((200, shown(state.update(&change, object)?))),
        Verb::Patch => Ok((200, shown(state.patch(&change, &object)?))),
        Verb::Apply => {
            if !request.query.contains_key("fieldManager") {
                return Err(Refusal::bad_request(
                    "PatchOptions.meta.k8s.io: fieldManager: Required value: is required for apply patch",
                ));
            }
            let code = if state.store.get(resource, &change.key).is_some() { 200 } else { 201 };
            Ok((code, shown(state.apply(&change, object, request.has("force", "true"))?)))
        }
        Verb::Delete => {
            let preconditions = &object["preconditions"];
            let gone =
                state.delete(&change, preconditions["uid"].as_str(), preconditions["resourceVersion"].as_str())?;
            if state.store.get(resource, &change.key).is_some() {
                return Ok((200, shown(gone)));
            }
            let details = json!({"name": change.key.1, "group": resource.group, "kind": resource.plural, "uid": gone["metadata"]["uid"]});
            Ok((
                200,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
                    .into(),
            ))
        }
        Verb::Get | Verb::List | Verb::Watch => unreachable!("answered before"),
    }
}

/// The object meant: by the path, or where one is created, by its metadata.
fn key_of(request: &Request, replica: &str, state: &State) -> Result<Key, Refusal> {
    let metadata = &request.body["metadata"];
    let name = match (&request.name, metadata["name"].as_str(), metadata["generateName"].as_str()) {
        (Some(name), given, _) => {
            if given.is_some_and(|given| given != name && request.verb != Verb::Delete) {
                return Err(Refusal::bad_request("the name of the object does not match the name on the URL"));
            }
            name.clone()
        }
        (None, Some(name), _) => name.to_owned(),
        // Five characters that nobody else gets: versions grow.
        (None, None, Some(prefix)) => format!("{prefix}{:05x}", state.store.version() & 0xf_ffff),
        (None, None, None) => return Err(Refusal::bad_request(format!("{replica} gave the object no name"))),
    };
    let namespace = request.namespace.clone().unwrap_or_default();
    if request.resource.namespaced {
        if namespace.is_empty() {
            return Err(Refusal::bad_request("an object of this kind must be in a namespace"));
        }
        if metadata["namespace"].as_str().is_some_and(|given| given != namespace) {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(Refusal::bad_request(why));
        }
    }
    Ok((namespace, name))
}

/// A list, or a page of one.
fn list(state: &State, replica: &str, request: &Request) -> Result<Value, Refusal> {
    let resource = request.resource;
    let kind = state.store.kind(resource);
    let newest = state.store.version();
    let lag = state.faults.lag(replica, resource, Verb::List);
    let token = request.query.get("continue").filter(|token| !token.is_empty());
    let asked = request.number("resourceVersion");
    let (version, after) = match token {
        Some(token) => {
            let parsed = token.split_once(' ').and_then(|(version, key)| {
                let (namespace, name) = key.split_once('/')?;
                Some((version.parse().ok()?, Some((namespace.to_owned(), name.to_owned()))))
            });
            parsed.ok_or_else(|| Refusal::bad_request("continue key is not valid"))?
        }
        None => match asked {
            Some(asked) if request.has("resourceVersionMatch", "Exact") => (asked, None),
            Some(asked) if asked > newest => return Err(Refusal::too_large(asked, newest)),
            // From a cache: not older than asked for, but as old as that may be.
            Some(asked) => {
                let then = tokio::time::Instant::now().checked_sub(lag).unwrap_or_else(tokio::time::Instant::now);
                (kind.version_at(then, newest).max(asked), None)
            }
            None => (newest, None),
        },
    };
    let objects = kind.at(version)?;
    let meant: Vec<_> = objects
        .iter()
        .filter(|(key, _)| after.as_ref().is_none_or(|after| *key > after))
        .filter(|(key, _)| request.namespace.as_ref().is_none_or(|namespace| key.0 == *namespace))
        .filter(|(key, _)| request.only.as_ref().is_none_or(|only| key.1 == *only))
        .filter(|(_, object)| request.selector.matches(object))
        .collect();
    let limit = request.number("limit").filter(|limit| *limit > 0).map_or(usize::MAX, |limit| limit as usize);
    let page = &meant[..meant.len().min(limit)];
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let Some((key, _)) = page.last().filter(|_| page.len() < meant.len()) {
        metadata["continue"] = format!("{version} {}/{}", key.0, key.1).into();
        metadata["remainingItemCount"] = (meant.len() - page.len()).into();
    }
    let items: Vec<Value> = page
        .iter()
        .map(|(_, object)| if request.metadata_only { metadata_of(object) } else { listed(object, resource) })
        .collect();
    let (kind, api_version) = if request.metadata_only {
        ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned())
    } else {
        (format!("{}List", resource.kind), resource.api_version())
    };
    Ok(json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items}))
}

/// In lists, the kinds of Kubernetes itself do not repeat their type.
fn listed(object: &Value, resource: &Resource) -> Value {
    let mut object = object.clone();
    if let Some(map) = object.as_object_mut().filter(|_| !resource.custom) {
        map.remove("kind");
        map.remove("apiVersion");
    }
    object
}
