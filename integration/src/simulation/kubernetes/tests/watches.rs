use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1;
use kube::{
    Api, ResourceExt as _,
    api::{WatchEvent, WatchParams},
    runtime::watcher::{self, Event, watcher},
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{ApiServer, server, service, services};

/// Names with what happened to them, until nothing has for a second.
async fn seen(api: &Api<v1::Service>, params: &WatchParams, version: &str) -> Vec<String> {
    let mut events = api.watch(params, version).await.unwrap().boxed();
    let mut seen = Vec::new();
    while let Ok(Some(event)) = timeout(Duration::from_secs(1), events.try_next()).await.map(Result::unwrap) {
        seen.push(match event {
            WatchEvent::Added(object) => format!("+{}", object.name_any()),
            WatchEvent::Modified(object) => format!("~{}", object.name_any()),
            WatchEvent::Deleted(object) => format!("-{}", object.name_any()),
            WatchEvent::Bookmark(bookmark) => format!("@{}", bookmark.metadata.resource_version),
            WatchEvent::Error(status) => format!("!{}", status.code),
        });
    }
    seen
}

fn history(server: &ApiServer) -> String {
    let begin =
        server.put("services", service("old")).unwrap()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    server.put("services", service("web")).unwrap();
    server.patch("services", "shop", "web", &json!({"metadata": {"labels": {"app": "api"}}})).unwrap();
    server.delete("services", "shop", "old").unwrap();
    begin
}

#[tokio::test(start_paused = true)]
async fn a_watch_shows_what_happened_since_its_version() {
    let server = server();
    let api = services(&server, "a");
    let begin = history(&server);
    assert_eq!(seen(&api, &WatchParams::default(), &begin).await, ["+web", "~web", "-old"]);
    assert_eq!(seen(&api, &WatchParams::default(), "0").await, ["+web"]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_leaves_a_selection_is_gone_for_its_watch() {
    let server = server();
    let api = services(&server, "a");
    let begin = history(&server);
    assert_eq!(seen(&api, &WatchParams::default().labels("app=web"), &begin).await, ["+web", "-web"]);
    assert_eq!(seen(&api, &WatchParams::default().labels("app!=web"), &begin).await, ["+web", "-old"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_not_kept_any_more_is_expired() {
    let server = server();
    let api = services(&server, "a");
    let begin = history(&server);
    server.compact("services");
    assert_eq!(seen(&api, &WatchParams::default(), &begin).await, ["!410"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_in_time_and_tells_where_it_was_before() {
    let server = server();
    let api = services(&server, "a");
    history(&server);
    server.put("namespaces", json!({"metadata": {"name": "more"}})).unwrap();
    let newest =
        server.get("namespaces", "", "more").unwrap()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let begun = Instant::now();
    let params = WatchParams { timeout: Some(90), ..WatchParams::default() };
    let events: Vec<_> = api.watch(&params, &newest).await.unwrap().try_collect().await.unwrap();
    assert!(
        matches!(&events[..], [WatchEvent::Bookmark(mark)] if mark.metadata.resource_version == newest),
        "{events:?}"
    );
    assert_eq!(begun.elapsed().as_secs(), 90);
}

#[tokio::test(start_paused = true)]
async fn the_watcher_of_kube_follows_and_lists_again_when_it_must() {
    let server = server();
    server.put("services", service("one")).unwrap();
    let mut watch = watcher(services(&server, "a"), watcher::Config::default()).boxed();
    let mut next = async || match watch.next().await.unwrap() {
        Ok(Event::Init) => "init".to_owned(),
        Ok(Event::InitApply(object)) => format!("has {}", object.name_any()),
        Ok(Event::InitDone) => "done".to_owned(),
        Ok(Event::Apply(object)) => format!("+{}", object.name_any()),
        Ok(Event::Delete(object)) => format!("-{}", object.name_any()),
        Err(error) => format!("! {error}"),
    };
    assert_eq!([next().await, next().await, next().await], ["init", "has one", "done"]);
    server.put("services", service("two")).unwrap();
    server.delete("services", "shop", "one").unwrap();
    assert_eq!([next().await, next().await], ["+two", "-one"]);
    server.put("services", service("three")).unwrap();
    server.lose_events("a", "services");
    let lost = next().await;
    assert!(lost.contains("too old resource version"), "{lost}");
    assert_eq!([next().await, next().await, next().await, next().await], ["init", "has three", "has two", "done"]);
}
