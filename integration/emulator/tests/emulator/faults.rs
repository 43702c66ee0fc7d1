//! Fault rules.

use std::time::{Duration, Instant};

use cloudmap_emulator::{Effect, Fault};

use super::*;

fn error(code: &str) -> Effect {
    Effect::Error { code: code.into(), message: "injected".into(), status: None }
}

#[tokio::test]
async fn an_error_is_answered_and_nothing_is_done() {
    let f = Fixture::start().await;
    let control = f.emulator.control();
    control
        .add_fault(Fault::on("RegisterInstance", error("ThrottlingException")).for_instance("bad").after(1).times(2));
    let register = async |id: &str| {
        let request = f.client.register_instance().service_id(&f.service).instance_id(id).attributes("k", "v");
        request.send().await.map_err(|error| error.code().unwrap().to_owned()).map(|_| ())
    };
    let throttled = Err("ThrottlingException".to_owned());
    // One is let through, two are hit, and then the rule is spent.
    assert_eq!(register("bad-1").await, Ok(()));
    assert_eq!(register("bad-2").await, throttled);
    assert_eq!(register("good").await, Ok(()));
    assert_eq!(register("bad-3").await, throttled);
    assert!(control.faults().is_empty());
    assert_eq!(register("bad-4").await, Ok(()));
    assert_eq!(f.discover().await, ["bad-1", "bad-4", "good"]);
}

#[tokio::test]
async fn rules_match_by_service_and_caller() {
    let f = Fixture::start().await;
    let control = f.emulator.control();
    let get = |client: &Client| client.get_service().id(&f.service).send();
    let (one, two) = (f.emulator.client("one"), f.emulator.client("two"));
    let id = control.add_fault(Fault::on_any(error("InternalFailure")).for_caller("one"));
    assert_eq!(code(get(&one).await), "InternalFailure");
    get(&two).await.unwrap();
    assert!(control.remove_fault(id));
    assert!(!control.remove_fault(id));
    get(&one).await.unwrap();
    // The name of the service, though the request has only its id; or that id.
    for part in ["we", f.service.as_str()] {
        control.add_fault(Fault::on("GetService", error("InternalFailure")).for_service(part).times(1));
        assert_eq!(code(get(&two).await), "InternalFailure");
    }
    control.add_fault(Fault::on("GetService", error("InternalFailure")).for_service("other"));
    get(&two).await.unwrap();
    control.clear_faults();
    control.add_fault(Fault::on_any(error("InternalFailure")).with_probability(0.0));
    get(&two).await.unwrap();
}

#[tokio::test]
async fn a_connection_is_dropped_before_or_after_the_effect() {
    let f = Fixture::start().await;
    let control = f.emulator.control();
    let register =
        |id: &str| f.client.register_instance().service_id(&f.service).instance_id(id).attributes("k", "v").send();
    control.add_fault(Fault::on("RegisterInstance", Effect::DropRequest).times(1));
    assert!(matches!(register("before").await.unwrap_err(), SdkError::DispatchFailure(_)));
    control.add_fault(Fault::on("RegisterInstance", Effect::DropResponse).times(1));
    assert!(matches!(register("after").await.unwrap_err(), SdkError::DispatchFailure(_)));
    assert_eq!(f.discover().await, ["after"]);
    let results: Vec<_> = control.writes().into_iter().rev().take(2).map(|write| write.result).collect();
    assert_eq!(results, ["ok", "dropped"]);
}

#[tokio::test]
async fn discovery_is_partial_or_stale() {
    let f = Fixture::start().await;
    let control = f.emulator.control();
    for n in 0..100 {
        f.register(&format!("i-{n}"), "v").await;
    }
    control.add_fault(Fault::on("DiscoverInstances", Effect::Partial { keep: 0.5 }).times(1));
    let partial = f.discover().await.len();
    assert!((1..100).contains(&partial), "{partial}");
    assert_eq!(f.discover().await.len(), 100);
    let id = control.add_fault(Fault::on("DiscoverInstances", Effect::Stale));
    f.register("new", "v").await;
    f.client.deregister_instance().service_id(&f.service).instance_id("i-0").send().await.unwrap();
    let stale = f.discover().await;
    assert!(stale.contains(&"i-0".to_owned()) && !stale.contains(&"new".to_owned()));
    control.remove_fault(id);
    let fresh = f.discover().await;
    assert!(!fresh.contains(&"i-0".to_owned()) && fresh.contains(&"new".to_owned()));
}

#[tokio::test]
async fn latency_is_added() {
    let f = Fixture::start().await;
    let add = Duration::from_millis(100);
    f.emulator.control().add_fault(Fault::on("GetService", Effect::Latency { add }).times(1));
    let start = Instant::now();
    f.client.get_service().id(&f.service).send().await.unwrap();
    assert!(start.elapsed() >= add);
}
