//! The engine by itself, with calls that are answered one by one.

use super::*;
use crate::sync::{
    call::{Call, Event, Inventory},
    engine::Engine,
    performer::Performer,
};
use cloudmap::{Error, OperationState};

struct Bench {
    engine: Engine,
    performer: Arc<Performer>,
}

impl Bench {
    fn new(fake: &Fake) -> Self {
        let (cloudmap, hidden) = (Arc::new(fake.clone()), Arc::new(StoredHidden::default()));
        let listings = Listings::new(cloudmap.clone());
        let settings = SyncSettings::new(identity("uid-1"));
        let performer = Performer::new(cloudmap, listings, hidden, &settings, authority());
        let engine = Engine::new(Arc::new(SyncSettings::new(identity("uid-1"))), Instant::now());
        Self { engine, performer: Arc::new(performer) }
    }

    fn desire(&mut self, targets: impl IntoIterator<Item = (Target, TargetDesired)>) {
        self.engine.desire(&super::targets(targets), Instant::now());
    }

    fn status(&self, target: &Target) -> TargetStatus {
        self.engine.status(target).unwrap()
    }

    async fn answer(&mut self, call: Call) {
        let event = self.performer.clone().perform(call).await;
        self.engine.done(event, Instant::now());
    }

    /// Makes its calls for this long, one after the other.
    async fn run(&mut self, time: Duration) {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if let Some(call) = self.engine.next(Instant::now()) {
                self.answer(call).await;
            } else {
                let wake = self.engine.wake().map_or(end, |at| at.min(end));
                tokio::time::sleep_until(wake.max(Instant::now() + Duration::from_millis(1))).await;
            }
        }
    }

    /// Makes its calls until one of these comes, which is still to be answered.
    async fn run_until(&mut self, which: fn(&Call) -> bool) -> Call {
        loop {
            match self.engine.next(Instant::now()) {
                Some(call) if which(&call) => return call,
                Some(call) => self.answer(call).await,
                None => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// Number of entries in memory.
    fn kept(&self) -> usize {
        let Engine { targets, directory, turns, timers, polls, .. } = &self.engine;
        targets.len() + directory.kept() + turns.kept() + timers.len() + polls.due.len()
    }
}

#[tokio::test(start_paused = true)]
async fn targets_that_come_and_go_leave_nothing_behind() {
    let fake = Fake::new();
    let mut bench = Bench::new(&fake);
    for round in 0..50 {
        // One of each kind: created, refused, and in a namespace that cannot be created.
        let [web, orders, api] =
            [("shop", "web"), ("absent", "orders"), ("denied", "api")].map(|(n, s)| target(&format!("{n}-{round}"), s));
        let none = Creation { namespace: false, ..Creation::default() };
        fake.registry().failing.insert(api.namespace.clone(), ErrorKind::AccessDenied);
        let wanted = active(specs("uid-1", "web", 1..=3, "a"));
        bench.desire([
            (web.clone(), wanted.clone()),
            (orders.clone(), TargetDesired { creation: none, ..wanted.clone() }),
            (api.clone(), wanted),
        ]);
        bench.run(Duration::from_secs(40)).await;
        bench.desire([&web, &orders, &api].map(|target| (target.clone(), retiring())));
        bench.run(Duration::from_secs(80)).await;
        assert!([&web, &orders, &api].iter().all(|target| bench.status(target).own_gone));
        bench.desire([]);
        bench.run(Duration::from_mins(6)).await;
        assert!(fake.registry().instances.is_empty() && fake.registry().services.is_empty());
        assert_eq!(bench.kept(), 0, "round {round}");
    }
}

/// A claim that another name won is withdrawn, and much later released: nothing is left to do, and the record must go.
#[tokio::test(start_paused = true)]
async fn a_claim_that_was_lost_is_done_once_it_is_released() {
    let mut bench = Bench::new(&Fake::new());
    let web = target("shop", "web");
    bench.desire([(web.clone(), TargetDesired { released: false, ..retiring() })]);
    bench.run(Duration::from_mins(2)).await;
    let lost = bench.status(&web);
    assert!(lost.own_gone && !lost.done, "{lost:?}");
    bench.desire([(web.clone(), retiring())]);
    assert!(bench.status(&web).done);
}

/// This happens when many pods are registered in DNS namespaces. As long as only time delays the new instance, the old one
/// stays.
#[tokio::test(start_paused = true)]
async fn an_operation_that_route_53_throttles_is_only_a_matter_of_time() {
    let fake = Fake::new();
    let mut bench = Bench::new(&fake);
    let web = target("shop", "web");
    bench.desire([(web.clone(), active(specs("uid-1", "web", [1], "a")))]);
    bench.run(Duration::from_mins(3)).await;
    assert_eq!(bench.status(&web).outcome, Outcome::Registered { count: 1 });
    bench.desire([(web.clone(), active(specs("uid-1", "web", [2], "a")))]);
    loop {
        match bench.engine.next(Instant::now()) {
            Some(Call::Poll { target, id, operation }) => {
                let (code, message) = ("THROTTLED_REQUEST".to_owned(), "Rate exceeded".to_owned());
                let result = Ok(OperationState::Failed { code, message });
                bench.engine.done(Event::Polled { target, id, operation, result }, Instant::now());
                break;
            }
            Some(call) => bench.answer(call).await,
            None => sleep(Duration::from_millis(100)).await,
        }
    }
    let status = bench.status(&web);
    assert!(!matches!(status.outcome, Outcome::Refused { .. }), "{status:?}");
    while let Some(call) = bench.engine.next(Instant::now()) {
        assert!(!matches!(call, Call::Deregister { .. }), "{call:?}");
        bench.answer(call).await;
    }
    bench.run(Duration::from_mins(3)).await;
    assert_eq!(bench.status(&web).outcome, Outcome::Registered { count: 1 });
    assert_eq!(fake.registry().instances.len(), 1);
}

/// A request of the previous leader may take effect while a reading is in progress.
#[tokio::test(start_paused = true)]
async fn a_reading_that_began_before_the_handover_does_not_let_the_record_go() {
    let fake = Fake::new();
    {
        let mut registry = fake.registry();
        let shop = registry.add_namespace("shop", NamespaceKind::Http);
        registry.add_service(&shop, "web", &identity("uid-1").creator_request_id(1), "");
    }
    let mut bench = Bench::new(&fake);
    bench.desire([(target("shop", "web"), retiring())]);
    let mut readings = Vec::new();
    let started = Instant::now();
    while readings.len() < 2 {
        match bench.engine.next(Instant::now()) {
            Some(Call::Read { target, begun, .. }) => {
                readings.push(begun - started);
                // The call is slow, and lists the instances at its beginning.
                sleep(Duration::from_secs(70)).await;
                let result = Ok(Inventory { instances: Vec::new(), unhealthy: None });
                bench.engine.done(Event::Read { target, begun, result }, Instant::now());
            }
            Some(call) => {
                assert!(!matches!(call, Call::DeleteService { .. }), "after {readings:?}");
                let event = bench.performer.clone().perform(call).await;
                bench.engine.done(event, Instant::now());
            }
            None => sleep(Duration::from_millis(100)).await,
        }
    }
    assert!(readings[1] >= Duration::from_mins(1), "{readings:?}");
    bench.run(Duration::from_secs(1)).await;
    assert!(bench.status(&target("shop", "web")).own_gone);
}

/// The registration had no answer, and the instance does not exist yet when it should be deregistered.
#[tokio::test(start_paused = true)]
async fn a_late_registration_is_withdrawn_before_the_record_goes() {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::Http);
    let mut bench = Bench::new(&fake);
    let web = target("shop", "web");
    bench.run(Duration::from_mins(1)).await;
    bench.desire([(web.clone(), active(specs("uid-1", "web", 1..=1, "a")))]);
    let (service_id, instance) = loop {
        match bench.engine.next(Instant::now()) {
            Some(Call::Register { service_id, instance, .. }) => break (service_id, instance),
            Some(call) => {
                let event = bench.performer.clone().perform(call).await;
                bench.engine.done(event, Instant::now());
            }
            None => sleep(Duration::from_millis(100)).await,
        }
    };
    let message = "no answer".to_owned();
    let result = Err(Error { operation: "RegisterInstance", kind: ErrorKind::Unknown, message });
    let (target, id) = (web.clone(), instance.id.clone());
    let unanswered = Event::Written { target, service_id: service_id.clone(), id, result };
    bench.engine.done(unanswered, Instant::now());
    bench.desire([(web.clone(), retiring())]);
    bench.run(Duration::from_secs(10)).await;
    fake.registry().instances.insert((service_id, instance.id), instance.attributes);
    bench.run(Duration::from_mins(2)).await;
    assert!(bench.status(&web).own_gone);
    assert!(fake.registry().instances.is_empty());
}

/// An answer comes so late that its service is gone and another one has taken its place.
#[tokio::test(start_paused = true)]
async fn an_answer_about_a_deleted_service_proves_nothing_about_the_next() {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::Http);
    let mut bench = Bench::new(&fake);
    let web = target("shop", "web");
    bench.desire([(web.clone(), active(specs("uid-1", "web", 1..=1, "a")))]);
    let call = bench.run_until(|call| matches!(call, Call::Register { .. })).await;
    let id = specs("uid-1", "web", 1..=1, "a")[0].id().clone();
    let message = "no such service".to_owned();
    let result = Err(Error { operation: "RegisterInstance", kind: ErrorKind::NotFound, message });
    let late = Event::Written { target: web.clone(), service_id: "srv-gone".into(), id, result };
    bench.engine.done(late, Instant::now());
    assert_eq!(bench.engine.figures().running, 1, "its own answer is still to come");
    let event = bench.performer.clone().perform(call).await;
    bench.engine.done(event, Instant::now());
    bench.run(Duration::from_secs(5)).await;
    assert_eq!(bench.status(&web).outcome, Outcome::Registered { count: 1 });
    assert_eq!(fake.registry().count(Operation::ListServices), 1);
}

/// Its service was lost meanwhile, and the instance is being written in the next one.
#[tokio::test(start_paused = true)]
async fn an_answer_about_an_earlier_operation_says_nothing_about_the_present_one() {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::Http);
    let mut bench = Bench::new(&fake);
    let web = target("shop", "web");
    bench.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    let (mut first, mut second) = (None, None);
    let (id, operation) = loop {
        match bench.engine.next(Instant::now()) {
            Some(Call::Poll { id, operation, .. }) => break (id, operation),
            Some(Call::Register { service_id, instance, .. }) if first.is_some() => {
                second = Some((service_id, instance.id));
            }
            Some(call) => {
                if let Call::Register { instance, .. } = &call {
                    first = Some(instance.id.clone());
                }
                bench.answer(call).await;
            }
            None => sleep(Duration::from_millis(100)).await,
        }
    };
    assert_eq!(first.as_ref(), Some(&id));
    let (service_id, other) = second.unwrap();
    let message = "no such service".to_owned();
    let result = Err(Error { operation: "RegisterInstance", kind: ErrorKind::NotFound, message });
    bench.engine.done(Event::Written { target: web.clone(), service_id, id: other, result }, Instant::now());
    sleep(Duration::from_secs(5)).await;
    fake.registry().instances.clear();
    let mut again = false;
    while !again {
        match bench.engine.next(Instant::now()) {
            Some(call) => {
                again = matches!(&call, Call::Register { instance, .. } if instance.id == id);
                bench.answer(call).await;
            }
            None => sleep(Duration::from_millis(100)).await,
        }
    }
    let result = Ok(OperationState::Succeeded { targets: BTreeMap::new() });
    bench.engine.done(Event::Polled { target: web.clone(), id, operation, result }, Instant::now());
    assert_eq!(bench.engine.figures().running, 1, "the answer about the present one is still to come");
    bench.run(Duration::from_secs(10)).await;
    assert_eq!(bench.status(&web).outcome, Outcome::Registered { count: 2 });
}

/// Otherwise there is no room for writes any more, after enough of them.
#[tokio::test(start_paused = true)]
async fn an_operation_in_a_service_that_somebody_deleted_takes_no_room() {
    let fake = Fake::new();
    fake.registry().add_namespace("shop", NamespaceKind::Http);
    let mut bench = Bench::new(&fake);
    let web = target("shop", "web");
    bench.desire([(web.clone(), active(specs("uid-1", "web", 1..=2, "a")))]);
    let mut writes = Vec::new();
    while writes.len() < 2 {
        match bench.engine.next(Instant::now()) {
            Some(Call::Register { service_id, instance, .. }) => writes.push((service_id, instance.id)),
            Some(call) => bench.answer(call).await,
            None => sleep(Duration::from_millis(100)).await,
        }
    }
    sleep(Duration::from_mins(2)).await;
    fake.registry().services.clear();
    bench.desire([(web.clone(), retiring())]);
    // The service is looked for again, while the other one has no answer.
    let (service_id, id) = writes.remove(0);
    let message = "not valid".to_owned();
    let result = Err(Error { operation: "RegisterInstance", kind: ErrorKind::InvalidInput, message });
    bench.engine.done(Event::Written { target: web.clone(), service_id, id, result }, Instant::now());
    bench.run(Duration::from_mins(1)).await;
    assert!(bench.status(&web).own_gone);
    assert_eq!(bench.engine.figures().running, 0);
}

/// The engine asked for the overdue reading again within one step, without end.
#[tokio::test(start_paused = true)]
async fn a_reading_that_takes_long_is_awaited() {
    let fake = Fake::new();
    let id = shares::service(&fake);
    shares::run_tasks(&fake, &id, 1);
    let mut bench = Bench::new(&fake);
    let web = target("shop", "web");
    bench.desire([(web.clone(), shares::shared("50%", shares::ready([1])))]);
    bench.run(Duration::from_mins(2)).await;
    let pods = || fake.registry().instances.keys().filter(|(_, id)| id.starts_with("k8s-")).count();
    assert_eq!(pods(), 1);
    // The last pod goes when a reading that is not old shows that the task is healthy.
    bench.desire([(web.clone(), shares::shared("0%", shares::ready([1])))]);
    let (end, mut reading) = (Instant::now() + Duration::from_mins(5), None);
    while Instant::now() < end {
        match bench.engine.next(Instant::now()) {
            Some(call @ Call::Read { .. }) => {
                let before = reading.replace((Instant::now() + Duration::from_secs(35), call));
                assert!(before.is_none(), "one at a time");
            }
            Some(call) => bench.answer(call).await,
            None => sleep(Duration::from_millis(100)).await,
        }
        if let Some((_, call)) = reading.take_if(|(at, _)| *at <= Instant::now()) {
            bench.answer(call).await;
        }
    }
    assert_eq!(pods(), 1);
    assert!(bench.engine.timers.len() < 5, "{:?}", bench.engine.timers);
    if let Some((_, call)) = reading {
        bench.answer(call).await;
    }
    bench.run(Duration::from_mins(1)).await;
    assert_eq!(pods(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_target_wanted_again_while_its_service_is_being_deleted_is_registered() {
    let fake = Fake::new();
    let mut bench = Bench::new(&fake);
    let web = target("shop", "web");
    let wanted = active(specs("uid-1", "web", 1..=2, "a"));
    bench.desire([(web.clone(), wanted.clone())]);
    bench.run(Duration::from_secs(40)).await;
    bench.desire([(web.clone(), retiring())]);
    let mut held = None;
    let end = Instant::now() + Duration::from_mins(5);
    while held.is_none() {
        assert!(Instant::now() < end, "the service is never deleted");
        match bench.engine.next(Instant::now()) {
            Some(call @ Call::DeleteService { .. }) => held = Some(call),
            Some(call) => {
                let event = bench.performer.clone().perform(call).await;
                bench.engine.done(event, Instant::now());
            }
            None => sleep(Duration::from_millis(100)).await,
        }
    }
    bench.desire([(web.clone(), wanted)]);
    let event = bench.performer.clone().perform(held.unwrap()).await;
    bench.engine.done(event, Instant::now());
    bench.run(Duration::from_mins(1)).await;
    assert_eq!(fake.registry().instances.len(), 2, "{:?}", bench.status(&web));
}

/// The service is being looked at again, because AWS called a write invalid, and its instances are being read.
#[tokio::test(start_paused = true)]
async fn a_reading_in_flight_takes_nothing_over_when_the_permission_goes() {
    let fake = Fake::new();
    let theirs: (Arc<str>, Arc<str>) = {
        let mut registry = fake.registry();
        let ns = registry.add_namespace("shop", NamespaceKind::DnsPrivate);
        let web = registry.add_service(&ns, "web", "x", "heritage=external-dns,external-dns/owner=eks");
        let attributes = [("AWS_INSTANCE_IPV4".to_owned(), "10.0.0.9".to_owned())].into();
        let theirs = (web, Arc::from("10.0.0.9"));
        registry.instances.insert(theirs.clone(), attributes);
        theirs
    };
    let (mut bench, web) = (Bench::new(&fake), target("shop", "web"));
    let consent = Consent { share: true, adopt: Some("external-dns/eks".parse().unwrap()), ..Consent::default() };
    let wanted = active(specs("uid-1", "web", 1..=1, "a"));
    bench.desire([(web.clone(), TargetDesired { consent: consent.clone(), ..wanted.clone() })]);
    let reading = bench.run_until(|call| matches!(call, Call::Read { .. })).await;
    let state = bench.engine.targets.get_mut(&web).unwrap();
    state.place_mut().expect("it is being read, so it was found").doubtful = true;
    bench.engine.wake_target(&web, Instant::now());
    let look = bench.run_until(|call| matches!(call, Call::Inspect { .. })).await;
    bench.desire([(web.clone(), TargetDesired { consent: Consent { adopt: None, ..consent }, ..wanted })]);
    bench.answer(reading).await;
    bench.answer(look).await;
    bench.run(Duration::from_mins(20)).await;
    assert!(fake.registry().instances.contains_key(&theirs));
    assert_eq!(bench.status(&web).outcome, Outcome::Registered { count: 1 });
}
