use std::{net::SocketAddr, sync::Arc};

use axum::{
    body::Body,
    http::{Method, Request, StatusCode, header},
};
use clap::Parser as _;
use kube::Client;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Mutex, Semaphore, oneshot},
    time::{Instant, sleep},
};
use tower::ServiceExt as _;

use super::{AGAIN, By, FRESH, Page, beside, is_address, is_name, plan, router, serve};
use crate::status::{
    Objects,
    tests::{cluster, condition, exported, import, parsed, report},
};
use cli::{Cli, Command, PlaceArgs};
use cloudmap::fake::Fake;
use cluster::{fake_api::FakeApi, reader::Unread};

fn objects() -> Objects {
    let troubled = import(&json!([condition("Ready", "False", "IPFamilyNotSupported")]));
    Objects { namespace: None, exports: Ok(vec![parsed(exported())]), imports: Ok(vec![parsed(troubled)]) }
}

#[test]
fn the_overview_has_clusters_names_what_is_wrong_and_what_it_costs() {
    let (cluster, objects) = (cluster(), objects());
    let said = plan::overview(&cluster, &objects, &report(&cluster, &objects));
    assert_eq!(
        said["clusters"][1],
        json!({"id": "two", "ageSeconds": 2, "stream": true, "exports": 1, "ready": 1, "endpoints": 2, "claims": 1})
    );
    let name = &said["names"][0];
    assert_eq!((&name["namespace"], &name["name"]), (&json!("shop"), &json!("web")));
    assert_eq!(name["exporters"][0], json!({"cluster": "one", "ready": 1, "endpoints": 2}));
    assert_eq!(name["import"], json!({"type": "ClusterSetIP", "ips": ["10.96.0.9"], "ports": ["80/TCP"]}));
    assert_eq!(said["names"].as_array().unwrap().len(), 1);
    // Two clusters, each with a head, two pages and one instance.
    let cost = &said["cost"];
    assert_eq!((&cost["clusters"], &cost["rows"], &cost["instances"]), (&json!(2), &json!(6), &json!(2)));
    let usd = cost["usd"].as_f64().unwrap();
    assert!((usd - (2.0 * 2.628 + 0.6 + 0.2)).abs() < 0.001, "{usd}");
    let about: Vec<_> =
        said["report"]["findings"].as_array().unwrap().iter().map(|finding| &finding["about"]).collect();
    // By these texts the page finds what belongs to a row.
    assert!(about.contains(&&json!("cluster two")) && about.contains(&&json!("ServiceImport shop/web")), "{about:?}");
}

/// What was not read may be wrong.
#[test]
fn a_name_is_ok_only_if_its_objects_were_read() {
    let cluster = cluster();
    let state = |objects: &Objects| {
        let said = plan::overview(&cluster, objects, &report(&cluster, objects));
        said["names"][0]["state"].as_str().unwrap().to_owned()
    };
    let well = || parsed(import(&json!([condition("Ready", "True", "Ready")])));
    let unread = || Unread::Failed("no answer".to_owned());
    assert_eq!(state(&objects()), "WRONG");
    assert_eq!(state(&Objects { imports: Ok(vec![well()]), ..objects() }), "ok");
    assert_eq!(state(&Objects { imports: Ok(vec![well()]), exports: Err(unread()), ..objects() }), "not seen");
    assert_eq!(state(&Objects { imports: Err(unread()), ..objects() }), "not seen");
    assert_eq!(state(&Objects { exports: Err(unread()), ..objects() }), "WRONG");
}

fn place() -> PlaceArgs {
    let Command::Page(args) = Cli::try_parse_from(["cloudmap-mcs", "page"]).unwrap().command else { unreachable!() };
    args.place
}

fn page(client: Client) -> Arc<Page> {
    let (place, names) = (place(), Semaphore::new(1));
    let cloudmap = Mutex::new(Some(Arc::new(Fake::new()) as Arc<dyn cloudmap::Read>));
    Arc::new(Page { client, place, cloudmap, seen: Mutex::default(), names })
}

async fn ask(
    page: &Arc<Page>,
    local: bool,
    method: Method,
    host: &str,
    path: &str,
) -> (StatusCode, String, Option<String>) {
    let request = Request::builder().method(method).uri(path).header(header::HOST, host).body(Body::empty()).unwrap();
    let answer = router(page.clone(), local).oneshot(request).await.unwrap();
    let (status, policy) = (answer.status(), answer.headers().get(header::CONTENT_SECURITY_POLICY).cloned());
    let body = axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap(), policy.map(|policy| policy.to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn the_page_only_reads_and_is_read_by_nobody_else() {
    let api = FakeApi::default();
    let page = page(api.client());
    for path in ["/", "/page.css", "/page.js"] {
        let (status, body, policy) = ask(&page, true, Method::GET, "127.0.0.1:8090", path).await;
        assert!(status == StatusCode::OK && body.len() > 500, "{path}: {status}");
        assert!(policy.unwrap().starts_with("default-src 'none'"));
        assert!(!body.contains("http://") || path == "/page.js", "{path} needs something from elsewhere");
    }
    assert_eq!(ask(&page, true, Method::POST, "localhost", "/api/overview").await.0, StatusCode::METHOD_NOT_ALLOWED);
    // A web site whose name leads to this machine.
    assert_eq!(ask(&page, true, Method::GET, "evil.example:8090", "/api/overview").await.0, StatusCode::FORBIDDEN);
    assert_eq!(ask(&page, false, Method::GET, "mcs.example", "/").await.0, StatusCode::OK);
    for path in ["/api/names/shop/a,b", "/api/names/shop/x%3Dy", "/api/names/shop/W", "/etc/passwd"] {
        assert_eq!(ask(&page, true, Method::GET, "localhost", path).await.0, StatusCode::NOT_FOUND, "{path}");
    }
}

#[tokio::test]
async fn whoever_looks_sees_one_reading_for_some_seconds() {
    let api = FakeApi::default();
    let (page, began) = (page(api.client()), Instant::now());
    let (status, body, _) = ask(&page, true, Method::GET, "localhost:8090", "/api/overview").await;
    assert_eq!(status, StatusCode::OK);
    let said: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(said["report"]["well"], false, "the cluster has nothing: {said}");
    let requests = api.requests().len();
    let (_, again, _) = ask(&page, true, Method::GET, "[::1]:8090", "/api/overview").await;
    // Unless the machine stood still for longer than a reading lasts.
    if began.elapsed() < FRESH {
        assert_eq!(again, body);
        assert_eq!(api.requests().len(), requests, "it was read again");
    }
    let (status, body, _) = ask(&page, true, Method::GET, "localhost", "/api/names/shop/web").await;
    let said: Value = serde_json::from_str(&body).unwrap();
    assert!(status == StatusCode::OK && said["subject"].as_str().unwrap().starts_with("shop/web"), "{said}");
}

#[tokio::test]
async fn the_command_answers_only_to_addresses_wherever_it_listens() {
    let api = FakeApi::default();
    for (by, listen, expected) in [
        (By::Command, "0.0.0.0:0", "HTTP/1.1 403"),
        (By::Command, "127.0.0.1:0", "HTTP/1.1 403"),
        (By::Controller, "127.0.0.1:0", "HTTP/1.1 403"),
        (By::Controller, "0.0.0.0:0", "HTTP/1.1 200"),
    ] {
        let (tell, told) = oneshot::channel::<SocketAddr>();
        let say = |address| tell.send(address).map_err(|_| std::io::Error::other("nobody wants to know"));
        let asked = async {
            let mut stream = TcpStream::connect(("127.0.0.1", told.await.unwrap().port())).await.unwrap();
            let request = "GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            answer
        };
        tokio::select! {
            answer = asked => assert!(answer.starts_with(expected), "{by:?} {listen}: {answer}"),
            ended = serve(api.client(), listen.parse().unwrap(), place(), by, say) => panic!("{ended:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_address_that_is_taken_ends_no_controller_and_is_served_when_it_is_free() {
    let api = FakeApi::default();
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let listen = taken.local_addr().unwrap();
    let used = async {
        sleep(3 * AGAIN).await;
        drop(taken);
        let free = Instant::now();
        while TcpStream::connect(listen).await.is_err() {
            assert!(free.elapsed() < 2 * AGAIN, "nobody tried again");
            sleep(AGAIN / 10).await;
        }
    };
    tokio::select! {
        () = used => {}
        _ = beside(api.client(), listen, place()) => panic!("the controller ends with its page"),
    }
}

#[test]
fn hosts_and_names_are_told_from_others() {
    for host in ["localhost", "localhost:8090", "127.0.0.1:1", "[::1]:8090", "[::1]", "10.0.0.1"] {
        assert!(is_address(host), "{host}");
    }
    for host in ["", "evil.example", "127.0.0.1.evil.example:80", "localhost.evil.example"] {
        assert!(!is_address(host), "{host}");
    }
    assert!(is_name("a-b.c9") && !is_name("") && !is_name("a,b") && !is_name(&"a".repeat(254)));
}

/// What the script looks for in the report is what the report says.
#[test]
fn the_script_knows_every_state() {
    for state in ["ok", "WRONG", "not seen", "-"] {
        assert_eq!(super::JS.matches(&format!("\"{state}\": ")).count(), 3, "{state}");
    }
}
