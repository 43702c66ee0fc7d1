use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::{coordination::v1::Lease, core::v1};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams, VersionMatch, WatchEvent, WatchParams},
};
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::{
    super::{Fault, Moment, Scope, Verb},
    ApiServer, server, service, services,
};

async fn create(api: &Api<v1::Service>, name: &str) -> Result<v1::Service, kube::Error> {
    let object: v1::Service = serde_json::from_value(service(name)).unwrap();
    api.create(&PostParams::default(), &object).await
}

/// What the next event is, and after how many seconds it came, if one comes within five minutes.
async fn next(
    events: &mut (impl futures::TryStream<Ok = WatchEvent<v1::Service>, Error = kube::Error> + Unpin),
) -> Option<(String, u64)> {
    let begun = Instant::now();
    match timeout(Duration::from_mins(5), events.try_next()).await.ok()? {
        Ok(Some(WatchEvent::Added(object))) => Some((object.name_any(), begun.elapsed().as_secs())),
        other => Some((format!("{other:?}"), begun.elapsed().as_secs())),
    }
}

async fn watch(
    server: &ApiServer,
    replica: &str,
) -> futures::stream::BoxStream<'static, kube::Result<WatchEvent<v1::Service>>> {
    let params = WatchParams { bookmarks: false, timeout: Some(3600), ..WatchParams::default() };
    let api = services(server, replica);
    api.watch(&params, "0").await.unwrap().boxed()
}

#[tokio::test(start_paused = true)]
async fn a_stale_replica_sees_late_what_the_other_sees_at_once() {
    let server = server();
    let (mut late, mut prompt) = (watch(&server, "a").await, watch(&server, "b").await);
    let fault = server.inject(Scope::replica("a").of("services"), Fault::Stale(Duration::from_secs(40)));
    server.put("services", service("web")).unwrap();
    let any = ListParams {
        resource_version: Some("0".to_owned()),
        version_match: Some(VersionMatch::NotOlderThan),
        ..ListParams::default()
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    let count = async |params: &ListParams| services(&server, "a").list(params).await.unwrap().items.len();
    assert_eq!((count(&any).await, count(&ListParams::default()).await), (0, 1), "a quorum read is fresh");
    assert_eq!(next(&mut prompt).await, Some(("web".to_owned(), 0)));
    assert_eq!(next(&mut late).await, Some(("web".to_owned(), 38)));
    assert_eq!(count(&any).await, 1);
    server.put("services", service("api")).unwrap();
    server.clear(fault);
    assert_eq!(next(&mut late).await, Some(("api".to_owned(), 0)));
}

#[tokio::test(start_paused = true)]
async fn a_dead_watch_stays_dead_and_a_new_one_works() {
    let server = server();
    let mut events = watch(&server, "a").await;
    let fault = server.inject(Scope::replica("a"), Fault::DeadWatches);
    let silence = timeout(Duration::from_hours(2), events.next());
    assert!(silence.await.is_err(), "not even its end is seen");
    server.clear(fault);
    server.put("services", service("web")).unwrap();
    assert_eq!(next(&mut events).await, None);
    assert_eq!(next(&mut watch(&server, "a").await).await, Some(("web".to_owned(), 0)));
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_breaks_what_is_open() {
    let server = server();
    let mut events = watch(&server, "a").await;
    let fault = server.inject(Scope::all(), Fault::Away);
    assert!(events.next().await.unwrap().is_err());
    let error = create(&services(&server, "a"), "web").await.unwrap_err();
    assert!(matches!(&error, kube::Error::Service(_)), "{error:?}");
    server.clear(fault);
    create(&services(&server, "a"), "web").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_fail_as_the_driver_says() {
    let server = server();
    let api = services(&server, "a");
    let first = |fault| _ = server.inject(Scope::replica("a").times(1), fault);
    for (fault, expected) in [
        (Fault::Throttled(7), 429),
        (Fault::Unavailable, 503),
        (Fault::Denied("not on Fridays".to_owned()), 403),
        (Fault::Conflict, 409),
    ] {
        first(fault);
        assert!(matches!(create(&api, "web").await, Err(kube::Error::Api(status)) if status.code == expected));
        assert!(server.list("services").is_empty());
    }
    create(&services(&server, "b"), "of-another").await.unwrap();

    first(Fault::Denied("no".to_owned()));
    api.get("of-another").await.expect("admission is about writes");
    assert!(create(&api, "web").await.is_err());

    first(Fault::HangsBefore);
    assert!(timeout(Duration::from_hours(1), create(&api, "web")).await.is_err());
    assert_eq!(server.get("services", "shop", "web"), None);
    first(Fault::HangsAfter);
    assert!(timeout(Duration::from_hours(1), create(&api, "web")).await.is_err());
    assert!(server.get("services", "shop", "web").is_some());
    first(Fault::AnswerLost);
    assert!(matches!(create(&api, "more").await, Err(kube::Error::Service(_))));
    assert!(server.get("services", "shop", "more").is_some());

    first(Fault::Slow(Duration::from_secs(3)));
    let begun = Instant::now();
    api.delete("more", &DeleteParams::default()).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_for_the_verb_and_kind_that_it_names() {
    let server = server();
    let api = services(&server, "a");
    server.inject(Scope::all().of("services").on(Verb::Create), Fault::Unavailable);
    server.inject(Scope::all().of("pods").on_writes(), Fault::Unavailable);
    assert!(create(&api, "web").await.is_err());
    assert!(api.list(&ListParams::default()).await.unwrap().items.is_empty());
    assert_eq!(server.requests()[&("a".to_owned(), Verb::Create, "services")], 1);
}

#[tokio::test(start_paused = true)]
async fn a_crash_strikes_before_or_after_the_write_that_it_is_set_for() {
    let server = server();
    let api = services(&server, "a");
    for (name, moment, there) in [("one", Moment::Before, false), ("two", Moment::After, true)] {
        let struck = Arc::new(AtomicBool::new(false));
        let noted = Arc::clone(&struck);
        server.crash_at_write("a", 2, moment, move || noted.store(true, Ordering::Relaxed));
        create(&services(&server, "b"), &format!("b-{name}")).await.unwrap();
        create(&api, &format!("a-{name}")).await.unwrap();
        api.list(&ListParams::default()).await.unwrap();
        assert!(!struck.load(Ordering::Relaxed));
        assert!(timeout(Duration::from_hours(1), create(&api, name)).await.is_err());
        assert!(struck.load(Ordering::Relaxed));
        assert_eq!(server.get("services", "shop", name).is_some(), there);
        create(&api, &format!("after-{name}")).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_of_a_lease_bring_no_crash_nearer() {
    let server = server();
    let struck = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&struck);
    server.crash_at_write("a", 1, Moment::Before, move || noted.store(true, Ordering::Relaxed));
    let lease: Lease = serde_json::from_value(json!({"metadata": {"name": "lead"}, "spec": {}})).unwrap();
    let leases: Api<Lease> = Api::namespaced(server.client("a", "shop"), "shop");
    leases.create(&PostParams::default(), &lease).await.unwrap();
    assert!(!struck.load(Ordering::Relaxed));
    assert!(timeout(Duration::from_hours(1), create(&services(&server, "a"), "web")).await.is_err());
    assert!(struck.load(Ordering::Relaxed));
}

#[tokio::test(start_paused = true)]
async fn a_request_goes_its_way_though_its_sender_gave_up() {
    let server = server();
    let api = services(&server, "a");
    server.inject(Scope::all().times(1), Fault::Slow(Duration::from_secs(30)));
    assert!(timeout(Duration::from_secs(4), create(&api, "web")).await.is_err());
    assert_eq!(server.get("services", "shop", "web"), None);
    tokio::time::sleep(Duration::from_secs(27)).await;
    assert!(server.get("services", "shop", "web").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_shows_what_was_there_when_it_was_read() {
    let server = server();
    server.inject(Scope::all().times(1), Fault::Slow(Duration::from_secs(4)));
    let read = tokio::spawn({
        let api = services(&server, "a");
        async move { api.list(&ListParams::default()).await }
    });
    tokio::time::sleep(Duration::from_secs(3)).await;
    server.put("services", service("web")).unwrap();
    assert!(read.await.unwrap().unwrap().items.is_empty());
}
