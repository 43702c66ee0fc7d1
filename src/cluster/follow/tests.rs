use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Response, Uri},
};
use futures::stream;
use k8s_openapi::api::core::v1;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::{
    cache::{Cache, REFRESHED_WITHIN, STALE_AFTER},
    objects::Service,
};
use model::ServiceKey;

/// What the server does with a request.
enum Answer {
    Json(u16, Value),
    /// It answers after this many seconds.
    Late(u64, Value),
    Hang,
    /// It sends these lines of a watch, which then ends or falls silent.
    Events(Vec<Value>, Then),
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    End,
    /// The watch ends after this many seconds.
    EndAfter(u64),
    Silence,
}

/// Answers requests in turn. A request for which nothing is prepared hangs.
#[derive(Default)]
struct Server {
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<(Instant, String)>>,
}

async fn serve(State(server): State<Arc<Server>>, uri: Uri) -> Response<Body> {
    server.requests.lock().unwrap().push((Instant::now(), uri.query().unwrap_or_default().to_owned()));
    let answer = server.answers.lock().unwrap().pop_front().unwrap_or(Answer::Hang);
    let (code, body) = match answer {
        Answer::Hang => std::future::pending().await,
        Answer::Json(code, body) => (code, body.to_string().into()),
        Answer::Late(seconds, body) => {
            sleep(Duration::from_secs(seconds)).await;
            (200, body.to_string().into())
        }
        Answer::Events(events, then) => {
            let lines = events.iter().map(Value::to_string).chain([String::new()]).collect::<Vec<_>>().join("\n");
            let rest = stream::once(async move {
                match then {
                    Then::End => {}
                    Then::EndAfter(seconds) => sleep(Duration::from_secs(seconds)).await,
                    Then::Silence => std::future::pending().await,
                }
                Ok::<_, Infallible>(String::new())
            });
            (200, Body::from_stream(stream::once(async { Ok(lines) }).chain(rest)))
        }
    };
    Response::builder().status(code).body(body).unwrap()
}

fn service(name: &str, version: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "ns", "name": name, "uid": name, "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ports": [{"port": version}]},
    })
}

fn page(names: &[&str], version: u32, next: Option<&str>) -> Answer {
    let items: Vec<_> = names.iter().map(|name| service(name, version)).collect();
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next.unwrap_or_default()});
    Answer::Json(200, json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": items}))
}

fn list(names: &[&str], version: u32) -> Answer {
    page(names, version, None)
}

fn status(code: u16, reason: &str, retry_after: u32) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
        "message": format!("{reason}, says the server"), "details": {"retryAfterSeconds": retry_after}})
}

fn refuse(code: u16, reason: &str) -> Answer {
    Answer::Json(code, status(code, reason, 0))
}

fn event(kind: &str, object: &Value) -> Value {
    json!({"type": kind, "object": object})
}

fn bookmark(version: u32) -> Value {
    let metadata = json!({"resourceVersion": version.to_string()});
    event("BOOKMARK", &json!({"kind": "Service", "apiVersion": "v1", "metadata": metadata}))
}

fn quiet() -> Answer {
    Answer::Events(Vec::new(), Then::Silence)
}

struct World {
    server: Arc<Server>,
    cache: Cache<Service>,
    metrics: Metrics,
    task: JoinHandle<()>,
}

impl Drop for World {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        let server = Arc::new(Server { answers: Mutex::new(answers.into_iter().collect()), ..Server::default() });
        let client = Client::new(Router::new().fallback(serve).with_state(Arc::clone(&server)), "default");
        let metrics = Metrics::new(&prometheus::Registry::new()).unwrap();
        let (cache, writer) = Cache::new();
        let scope = Scope { api: Api::<v1::Service>::all(client), labels: Some("a!=b".to_owned()), read: Ok };
        let task = tokio::spawn(follow(scope, writer, metrics.clone(), 1));
        Self { server, cache, metrics, task }
    }

    fn then(&self, answers: impl IntoIterator<Item = Answer>) {
        self.server.answers.lock().unwrap().extend(answers);
    }

    fn names(&self) -> Vec<String> {
        self.cache.snapshot().iter().map(|service| service.key.name.to_string()).collect()
    }

    fn requests(&self) -> Vec<(Instant, String)> {
        self.server.requests.lock().unwrap().clone()
    }

    /// Waits until the server has received this many requests, and returns the last one.
    async fn request(&self, count: usize) -> (Instant, String) {
        loop {
            if let Some(request) = self.requests().get(count - 1) {
                return request.clone();
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    fn errors(&self, reason: &str) -> u64 {
        self.metrics.watch_errors.with_label_values(&["Service", reason]).get()
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_list_is_given_up_and_tried_again() {
    let world = World::new([Answer::Hang, list(&["a"], 5)]);
    sleep(DEADLINE + Duration::from_millis(1)).await;
    let trouble = world.cache.trouble().unwrap();
    assert!(trouble.contains("not complete yet") && trouble.contains("no answer within 30 s"), "{trouble}");
    sleep(MIN_PAUSE).await;
    assert!(world.cache.is_synced());
    assert_eq!((world.names(), world.errors("timeout")), (vec!["a".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_does_not_open_is_given_up_and_tried_again() {
    let opened = Answer::Events(vec![event("ADDED", &service("b", 6))], Then::Silence);
    let world = World::new([list(&["a"], 5), Answer::Hang, opened]);
    sleep(DEADLINE + MIN_PAUSE).await;
    assert_eq!((world.names(), world.errors("timeout")), (vec!["a".to_owned(), "b".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_silent_watch_is_opened_again_at_its_last_version() {
    let world = World::new([
        list(&["a"], 5),
        Answer::Events(vec![event("ADDED", &service("b", 7)), event("DELETED", &service("a", 9))], Then::Silence),
    ]);
    let begun = Instant::now();
    let (at, query) = world.request(3).await;
    assert!(at - begun < SILENCE + 2 * MIN_PAUSE, "{:?}", at - begun);
    assert!(query.contains("resourceVersion=9") && query.contains("labelSelector=a%21%3Db"), "{query}");
    assert_eq!((world.names(), world.errors("silence")), (vec!["b".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn errors_are_reported_from_the_first_on_and_tried_again_at_least_every_16_s() {
    let world = World::new([list(&["a"], 5)]);
    world.then((0..100).map(|_| refuse(503, "ServiceUnavailable")));
    let begun = Instant::now();
    sleep(Duration::from_secs(5)).await;
    assert!(world.errors("api") >= 2, "kube's own retries would hide them for minutes");
    assert_eq!(world.cache.trouble(), None, "not yet: it may heal");
    sleep(STALE_AFTER).await;
    let trouble = world.cache.trouble().unwrap();
    assert!(trouble.contains("no progress for 18") && trouble.contains("says the server"), "{trouble}");
    let times: Vec<_> = world.requests().into_iter().map(|(at, _)| at).collect();
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= MAX_PAUSE));
    assert!(times.iter().filter(|at| **at < begun + Duration::from_mins(1)).count() < 15, "it backs off");
    assert_eq!(world.names(), ["a"], "what is known stays");
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_the_server_requests_is_kept() {
    let world = World::new([Answer::Json(429, status(429, "TooManyRequests", 20)), list(&["a"], 5)]);
    let (first, _) = world.request(1).await;
    let (second, _) = world.request(2).await;
    assert!(second - first >= Duration::from_secs(20) && second - first <= Duration::from_secs(22));
    assert_eq!(world.errors("throttled"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_expired_lists_again_and_only_a_complete_list_removes() {
    let expired = event("ERROR", &status(410, "Expired", 0));
    let world = World::new([
        list(&["a", "b"], 5),
        Answer::Events(vec![expired], Then::End),
        page(&["a"], 9, Some("next")),
        refuse(500, "InternalError"),
    ]);
    world.request(4).await;
    sleep(Duration::from_millis(100)).await;
    assert_eq!(world.names(), ["a", "b"]);
    world.then([page(&[], 9, None), quiet()]);
    world.request(6).await;
    assert_eq!(world.names(), ["a"]);
    assert_eq!((world.errors("expired"), world.errors("api")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_failed_page_is_requested_again_and_the_pages_before_it_are_not_lost() {
    let world = World::new([
        page(&["a"], 5, Some("next")),
        refuse(503, "ServiceUnavailable"),
        Answer::Hang,
        page(&["b"], 5, None),
    ]);
    world.cache.synced().await;
    assert_eq!(world.names(), ["a", "b"]);
    let continued = world.requests().iter().filter(|(_, query)| query.contains("continue=next")).count();
    assert_eq!(continued, 3);
}

#[tokio::test(start_paused = true)]
async fn a_list_that_expires_half_way_begins_again_with_larger_pages() {
    let world = World::new([page(&["a"], 5, Some("next")), refuse(410, "Expired"), list(&["b"], 9)]);
    let (_, first) = world.request(1).await;
    let (_, third) = world.request(3).await;
    assert!(first.contains("limit=250") && third.contains("limit=500") && !third.contains("continue"), "{third}");
    world.cache.synced().await;
    assert_eq!(world.names(), ["b"], "what only the broken list named is gone");
}

#[tokio::test(start_paused = true)]
async fn a_version_that_the_server_never_accepts_leads_to_a_new_list() {
    let world = World::new([list(&["a"], 900)]);
    world.then((0..ATTEMPTS).map(|_| refuse(504, "Timeout: too large resource version")));
    world.then([list(&["b"], 5)]);
    while world.names() != ["b"] {
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn bookmarks_are_progress_and_the_next_watch_begins_at_the_last_one() {
    let world = World::new([list(&["a"], 5)]);
    world.then((1..=5).map(|n| Answer::Events(vec![bookmark(10 * n)], Then::EndAfter(60))));
    let (_, query) = world.request(7).await;
    assert!(query.contains("resourceVersion=50") && query.contains("allowWatchBookmarks=true"), "{query}");
    assert!(world.cache.age() <= Duration::from_mins(1));
    assert_eq!(world.cache.trouble(), None);
}

/// Proxies end quiet connections, some after less than a minute.
#[tokio::test(start_paused = true)]
async fn a_quiet_watch_that_is_ended_early_counts_as_progress() {
    let world = World::new([list(&["a"], 5)]);
    world.then((0..10).map(|_| Answer::Events(Vec::new(), Then::EndAfter(30))));
    sleep(STALE_AFTER + Duration::from_mins(1)).await;
    assert_eq!((world.cache.trouble(), world.errors("api")), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_not_reopened_in_a_tight_loop() {
    for events in [Vec::new(), vec![bookmark(6)]] {
        let world = World::new([list(&["a"], 5)]);
        world.then((0..100).map(|_| Answer::Events(events.clone(), Then::End)));
        sleep(Duration::from_secs(10)).await;
        assert!(world.requests().len() < 15, "{}", world.requests().len());
    }
}

#[tokio::test(start_paused = true)]
async fn missing_permissions_and_crds_are_reported_with_the_remedy() {
    for (code, reason, remedy) in [(403, "forbidden", "config/rbac"), (404, "not_found", "kubectl apply -k config/crd")]
    {
        let world = World::new([refuse(code, "Refused")]);
        world.request(2).await;
        let trouble = world.cache.trouble().unwrap();
        assert!(trouble.contains("Service") && trouble.contains(remedy), "{trouble}");
        assert!(!world.cache.is_synced(), "a failed list is not an empty one");
        assert_eq!(world.errors(reason), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refresh_finds_what_a_frozen_watch_did_not_report() {
    let world = World::new([list(&["a"], 5), quiet()]);
    world.request(2).await;
    world.then([list(&["b"], 9), quiet()]);
    let begun = Instant::now();
    world.cache.refresh().await;
    assert!(begun.elapsed() < Duration::from_secs(1));
    assert!(world.cache.get(&ServiceKey::new("ns", "b")).is_some() && world.cache.len() == 1);
    world.request(4).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(world.requests().len(), 4, "one list answers it");
}

#[tokio::test(start_paused = true)]
async fn a_refresh_is_not_answered_by_a_list_that_began_before_it() {
    let world =
        World::new([list(&["a"], 5), Answer::Events(vec![event("ERROR", &status(410, "Expired", 0))], Then::End)]);
    // After the expiry, the second page of the list hangs while the refresh is requested.
    world.then([page(&["old"], 6, Some("next")), Answer::Hang, list(&["new"], 9), quiet()]);
    world.request(4).await;
    world.cache.refresh().await;
    assert_eq!(world.names(), ["new"]);
}

#[tokio::test(start_paused = true)]
async fn a_refresh_that_does_not_arrive_makes_the_cache_untrusted() {
    let world = World::new([list(&["a"], 5), quiet()]);
    world.request(2).await;
    let refresh = tokio::spawn({
        let cache = world.cache.clone();
        async move { cache.refresh().await }
    });
    sleep(REFRESHED_WITHIN + Duration::from_secs(1)).await;
    let trouble = world.cache.trouble().unwrap();
    assert!(trouble.contains("is waiting for a new list: the list of Service fails: no answer"), "{trouble}");
    assert!(!refresh.is_finished());
    world.then([list(&["b"], 9), quiet()]);
    refresh.await.unwrap();
    assert_eq!(world.cache.trouble(), None);
}

/// Otherwise a leader would make room for another one that is no faster, and so on.
#[tokio::test(start_paused = true)]
async fn a_refresh_of_many_slow_pages_does_not_make_the_cache_untrusted() {
    let slow = |names: &[&str], next| match page(names, 9, next) {
        Answer::Json(_, body) => Answer::Late(25, body),
        other => other,
    };
    let world = World::new([list(&["a"], 5), quiet()]);
    world.request(2).await;
    world.then([
        slow(&["a"], Some("1")),
        slow(&["b"], Some("2")),
        slow(&["c"], Some("3")),
        slow(&["d"], None),
        quiet(),
    ]);
    let refresh = tokio::spawn({
        let cache = world.cache.clone();
        async move { cache.refresh().await }
    });
    while !refresh.is_finished() {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(world.cache.trouble(), None);
    }
    assert_eq!(world.names(), ["a", "b", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_requests_at_the_same_times() {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let world = World::new((0..50).map(|_| refuse(503, "ServiceUnavailable")));
        let begun = Instant::now();
        sleep(Duration::from_mins(2)).await;
        let times: Vec<_> = world.requests().into_iter().map(|(at, query)| (at - begun, query)).collect();
        runs.push(times);
    }
    assert_eq!(runs[0], runs[1]);
}

/// A page of objects with so much in them.
fn heavy(names: &[&str], bytes: usize, next: Option<&str>) -> Answer {
    let items: Vec<_> = names
        .iter()
        .map(|name| {
            let mut service = service(name, 1);
            service["metadata"]["annotations"] = json!({"example.org/text": "x".repeat(bytes)});
            service
        })
        .collect();
    let metadata = json!({"resourceVersion": "1", "continue": next.unwrap_or_default()});
    Answer::Json(200, json!({"kind": "ServiceList", "apiVersion": "v1", "metadata": metadata, "items": items}))
}

/// Every user of a namespace may write 250 objects of a megabyte each.
#[tokio::test(start_paused = true)]
async fn a_page_that_is_too_large_is_requested_again_with_fewer_objects_and_those_before_it_are_kept() {
    let world = World::new([
        page(&["a"], 1, Some("after-a")),
        heavy(&["b", "c", "d"], MAX_PAGE_BYTES / 2, Some("after-d")),
        heavy(&["b"], 1_000_000, Some("after-b")),
        heavy(&["c"], MAX_PAGE_BYTES - 1_000, Some("after-c")),
        heavy(&["d"], 1_000, None),
        quiet(),
    ]);
    world.request(6).await;
    world.cache.synced().await;
    assert_eq!(world.names(), ["a", "b", "c", "d"]);
    let limits: Vec<_> = world.requests().into_iter().take(5).map(|(_, query)| query).collect();
    let limit = |n: usize| {
        let digits = limits[n].split("limit=").nth(1).unwrap();
        digits.split('&').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!((0..5).map(limit).collect::<Vec<_>>(), [250, 250, 62, 124, 124], "smaller, then larger again");
    assert!(limits[2].contains("after-a"), "where it was: {limits:?}");
    assert_eq!(world.errors("api"), 0, "nothing is wrong with the server");
    // One object may have more.
    let world = World::new([
        heavy(&["a", "b"], MAX_PAGE_BYTES, None),
        heavy(&["a", "b"], MAX_PAGE_BYTES, None),
        heavy(&["a", "b"], MAX_PAGE_BYTES, None),
        heavy(&["a", "b"], MAX_PAGE_BYTES, None),
        heavy(&["a"], MAX_PAGE_BYTES, Some("after-a")),
        heavy(&["b"], 10, None),
        quiet(),
    ]);
    world.request(7).await;
    assert_eq!(world.names(), ["a", "b"]);
}
