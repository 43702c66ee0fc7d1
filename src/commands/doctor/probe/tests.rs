use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{Method, Response, Uri, header},
};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};

use super::*;
use model::ServiceKey;

/// An API server that has pods only, which run at once.
#[derive(Debug, Default)]
struct Pods {
    there: BTreeMap<String, Value>,
    created: Vec<Value>,
    /// Pods do not start.
    stuck: bool,
    /// Nothing may be listed.
    forbids: bool,
}

type Shared = Arc<Mutex<Pods>>;

fn server(pods: &Shared) -> Client {
    Client::new(Router::new().fallback(answer).with_state(Arc::clone(pods)), "default")
}

async fn answer(State(pods): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Response<Body> {
    let mut pods = pods.lock().unwrap();
    let name = uri.path().rsplit('/').next().filter(|name| *name != "pods").map(str::to_owned);
    let (code, answer) = match (method, name) {
        _ if pods.forbids => (403, json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"})),
        (Method::POST, _) => {
            let mut pod: Value = serde_json::from_slice(&body).unwrap();
            let name = format!("pod-{}", pods.created.len());
            pod["metadata"]["name"] = name.as_str().into();
            pod["status"] = status(&pod, pods.stuck);
            pods.created.push(pod.clone());
            pods.there.insert(name, pod.clone());
            (201, pod)
        }
        (Method::GET, None) => {
            let run = uri.query().and_then(|query| query.split("doctor%3D").nth(1)?.split('&').next());
            let is_of = |pod: &&Value| run.is_none_or(|run| pod["metadata"]["labels"][names::LABEL_DOCTOR] == run);
            let items: Vec<_> = pods.there.values().filter(is_of).collect();
            (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
        }
        (Method::GET, Some(name)) => (200, pods.there[&name].clone()),
        (Method::DELETE, Some(name)) => {
            pods.there.remove(&name);
            (200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}))
        }
        (method, _) => panic!("{method}"),
    };
    Response::builder()
        .status(code)
        .header(header::CONTENT_TYPE, "application/json")
        .body(answer.to_string().into())
        .unwrap()
}

/// A pod that listens runs, and one that tries has tried.
fn status(pod: &Value, stuck: bool) -> Value {
    let args = &pod["spec"]["containers"][0]["args"];
    if stuck {
        let waiting = json!({"reason": "ImagePullBackOff", "message": "no such image"});
        return json!({"phase": "Pending", "containerStatuses": [
            {"name": "probe", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": waiting}}]});
    }
    if args[1] == "serve" {
        return json!({"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]});
    }
    let message = serde_json::to_string(&Tried::default()).unwrap();
    let terminated = json!({"exitCode": 0, "message": message});
    json!({"phase": "Succeeded", "containerStatuses": [
        {"name": "probe", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": terminated}}]})
}

fn member(name: &str, pods: &Shared) -> Member {
    Member {
        name: name.to_owned(),
        run: "r".to_owned(),
        ahead: SignedDuration::ZERO,
        client: server(pods),
        namespace: "cloudmap-mcs-system".to_owned(),
        image: "cloudmap-mcs:0.1.0".to_owned(),
        template: PodSpec { node_selector: Some([("os".to_owned(), "linux".to_owned())].into()), ..PodSpec::default() },
        import: Some(Import { key: ServiceKey::new("shop", "web"), ips: BTreeSet::new() }),
        streams: vec![([10, 0, 0, 9], 7_946).into()],
    }
}

/// A pod of another run.
fn other(name: &str, age: SignedDuration) -> (String, Value) {
    let created = env::timestamp().checked_sub(age).unwrap().to_string();
    let labels = json!({names::LABEL_DOCTOR: "another"});
    (name.to_owned(), json!({"metadata": {"name": name, "labels": labels, "creationTimestamp": created}}))
}

/// Two people may look at the same time.
#[tokio::test(start_paused = true)]
async fn the_pods_of_another_run_stay_until_it_must_be_over() {
    let pods = Shared::default();
    pods.lock()
        .unwrap()
        .there
        .extend([other("old", SignedDuration::from_hours(1)), other("young", SignedDuration::ZERO)]);
    probe(&[member("a", &pods)], 8080, std::future::pending()).await.unwrap();
    assert!(pods.lock().unwrap().there.keys().eq(["young"]), "{pods:?}");
    // By the API server's clock, which is an hour ahead, it is old, too.
    let ahead = SignedDuration::from_hours(1);
    probe(&[Member { ahead, ..member("a", &pods) }], 8080, std::future::pending()).await.unwrap();
    assert!(pods.lock().unwrap().there.is_empty(), "{pods:?}");
}

#[tokio::test(start_paused = true)]
async fn the_pods_try_each_other_and_nothing_is_left() {
    let shared: [Shared; 2] = Default::default();
    let members = [member("a", &shared[0]), member("b", &shared[1])];
    let probed = probe(&members, 8080, std::future::pending()).await.unwrap();
    for name in ["a", "b"] {
        let of_cluster = &probed.clusters[name];
        assert_eq!(of_cluster.listens, Ok(vec!["10.0.0.1".parse().unwrap()]));
        assert_eq!((&of_cluster.tried, &of_cluster.left), (&Ok(Tried::default()), &None));
    }
    for pods in &shared {
        let pods = pods.lock().unwrap();
        assert!(pods.there.is_empty(), "{:?}", pods.there);
        assert_eq!(pods.created.len(), 2);
        let args = |at: usize| pods.created[at]["spec"]["containers"][0]["args"].to_string();
        assert!(args(0).starts_with("[\"probe\",\"serve\",\"--port\",\"8080\""), "{}", args(0));
        assert!(args(1).contains("--connect=10.0.0.1:8080="), "{}", args(1));
        assert!(args(1).contains("--connect=10.0.0.9:7946=\""), "{}", args(1));
        assert!(args(1).contains("--resolve=web.shop.svc.clusterset.local."), "{}", args(1));
        for pod in &pods.created {
            let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
            assert_eq!(pod["metadata"]["labels"][names::LABEL_DOCTOR], "r");
            assert_eq!(spec["activeDeadlineSeconds"], DEADLINE.as_secs());
            assert_eq!(spec["automountServiceAccountToken"], false);
            assert_eq!(spec["nodeSelector"]["os"], "linux");
            assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_pod_tries_more_addresses_than_its_status_can_say_something_about() {
    let shared: Vec<Shared> = (0..15).map(|_| Shared::default()).collect();
    let members: Vec<_> = shared.iter().enumerate().map(|(at, pods)| member(&format!("c{at}"), pods)).collect();
    probe(&members, 8080, std::future::pending()).await.unwrap();
    for pods in &shared {
        let pods = pods.lock().unwrap();
        let targets = |pod: &Value| pod["spec"]["containers"][0]["args"].to_string().matches("--connect=").count();
        let mut tried: Vec<_> = pods.created.iter().map(targets).collect();
        tried.sort_unstable();
        // One listens. The others try the pods and the leaders of 14 clusters.
        assert_eq!(tried, [0, 28 - TARGETS, TARGETS]);
    }
    let failed = Connected {
        address: "[2001:db8:1234:5678:9abc:def0:1234:5678]:65535".parse().unwrap(),
        outcome: Outcome::Failed("Network is unreachable (os error 101)".to_owned()),
    };
    let tried = Tried { connected: vec![failed; TARGETS], ..Tried::default() };
    assert!(serde_json::to_string(&tried).unwrap().len() < 3_500);
}

#[tokio::test(start_paused = true)]
async fn pods_that_do_not_start_are_named_and_deleted() {
    let shared: [Shared; 2] = Default::default();
    shared[1].lock().unwrap().stuck = true;
    let members = [member("a", &shared[0]), member("b", &shared[1])];
    let probed = probe(&members, 8080, std::future::pending()).await.unwrap();
    let why = probed.clusters["b"].listens.clone().unwrap_err();
    assert!(why.contains("Pending: ImagePullBackOff no such image"), "{why}");
    assert!(probed.clusters["a"].listens.is_ok());
    assert!(shared.iter().all(|pods| pods.lock().unwrap().there.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn an_interruption_leaves_nothing() {
    let shared: [Shared; 2] = Default::default();
    shared[1].lock().unwrap().stuck = true;
    let members = [member("a", &shared[0]), member("b", &shared[1])];
    let stop = sleep(Duration::from_secs(20));
    assert_eq!(probe(&members, 8080, stop).await, Err(BTreeMap::new()));
    for pods in &shared {
        let pods = pods.lock().unwrap();
        assert!(!pods.created.is_empty() && pods.there.is_empty(), "{pods:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_interruption_names_the_clusters_in_which_pods_are_left() {
    let pods = Shared::default();
    pods.lock().unwrap().forbids = true;
    let left = probe(&[member("a", &pods)], 8080, std::future::ready(())).await.unwrap_err();
    assert_eq!(left.keys().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_created_where_nothing_can_be_deleted() {
    let pods = Shared::default();
    pods.lock().unwrap().forbids = true;
    let probed = probe(&[member("a", &pods)], 8080, std::future::pending()).await.unwrap();
    let why = probed.clusters["a"].listens.clone().unwrap_err();
    assert!(why.contains("cannot be listed and deleted"), "{why}");
    assert!(pods.lock().unwrap().created.is_empty());
}

/// Nothing is decided by how long a connection takes: the machine may stand still for a while.
const NO_HURRY: Duration = Duration::from_mins(5);

#[tokio::test]
async fn who_connects_learns_whether_the_right_one_answers() {
    let [right, other, silent] = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
    let (right, other, silent) = (right.await.unwrap(), other.await.unwrap(), silent.await.unwrap());
    let (to_right, to_other) = (right.local_addr().unwrap(), other.local_addr().unwrap());
    let serving = [tokio::spawn(program::serve(right, "b")), tokio::spawn(program::serve(other, "somebody else"))];
    let to_silent = silent.local_addr().unwrap();
    let targets = vec![(to_right, "b".to_owned()), (to_other, "b".to_owned()), (to_silent, String::new())];
    let tried = program::attempt(targets, Some("localhost"), NO_HURRY).await;
    let outcomes: Vec<_> = tried.connected.iter().map(|it| it.outcome.clone()).collect();
    assert_eq!(outcomes, [Outcome::Answered, Outcome::Stranger("so".to_owned()), Outcome::Answered]);
    assert!(tried.resolved.unwrap().unwrap().iter().all(IpAddr::is_loopback));
    serving.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn who_connects_to_nobody_says_why() {
    // Kept, or another test may get the port and listen.
    let kept = TcpSocket::new_v4().unwrap();
    kept.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = kept.local_addr().unwrap();
    let tried = program::attempt(vec![(closed, "b".to_owned())], None, NO_HURRY).await;
    let Outcome::Failed(why) = &tried.connected[0].outcome else { panic!("{tried:?}") };
    assert!(why.contains("refused"), "{why}");
    let text = serde_json::to_string(&tried).unwrap();
    assert_eq!(serde_json::from_str::<Tried>(&text).unwrap(), tried);
}
