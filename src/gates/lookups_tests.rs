use super::*;
use cloudmap::{ErrorKind, Instance, NamespaceKind, Operation, fake::Fake};

fn target(service: &str) -> Target {
    Target { namespace: "shop".into(), service: service.into() }
}

fn sought(pod: &str, id: &str) -> Sought {
    (TargetId::new(pod).unwrap(), id.into())
}

fn asked(questions: &[(&str, &[(&str, &str)])]) -> Questions {
    let question = |all: &[(&str, &str)]| Question {
        http_name: "shop".into(),
        sought: all.iter().map(|(pod, id)| sought(pod, id)).collect(),
    };
    questions.iter().map(|(service, all)| (target(service), question(all))).collect()
}

fn found(ids: &[&str], unhealthy: &[&str]) -> Discovery {
    let instances = ids.iter().map(|id| Instance { id: (*id).into(), attributes: BTreeMap::new() }).collect();
    let unhealthy = unhealthy.iter().map(|id| Arc::from(*id)).collect();
    Discovery { instances, unhealthy, truncated: false }
}

fn refused() -> Error {
    Error { operation: "DiscoverInstances", kind: ErrorKind::AccessDenied, message: "no".to_owned() }
}

#[tokio::test(start_paused = true)]
async fn a_target_is_looked_up_once_a_second_until_all_its_instances_are_shown() {
    let (mut agenda, mut now) = (Agenda::default(), Instant::now());
    agenda.ask(&asked(&[("web", &[("a", "i-1"), ("b", "i-2")])]), now);
    let (at, question) = agenda.next(now).unwrap();
    assert_eq!((at.clone(), question.sought.len()), (target("web"), 2), "one lookup for both pods");
    assert_eq!(agenda.next(now), None, "not while it is in flight");
    agenda.answered(&at, &question, Ok(found(&["i-1"], &[])), now);
    assert_eq!(agenda.wake(), Some(now + PERIOD));
    now += PERIOD;
    let (at, question) = agenda.next(now).unwrap();
    agenda.answered(&at, &question, Ok(found(&["i-2"], &[])), now);
    assert_eq!(agenda.answers.shown.len(), 2, "what was shown once counts");
    assert_eq!(agenda.wake(), None, "nobody waits");
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_for_the_pod_that_asked_before_its_lookup_began() {
    let (mut agenda, now) = (Agenda::default(), Instant::now());
    agenda.ask(&asked(&[("web", &[("old", "i-1")])]), now);
    let (at, question) = agenda.next(now).unwrap();
    // The next pod has the same address, and so the same instance id.
    agenda.ask(&asked(&[("web", &[("new", "i-1")])]), now);
    agenda.answered(&at, &question, Ok(found(&["i-1"], &[])), now);
    assert_eq!(agenda.answers, Answers::default());
    let (at, question) = agenda.next(now + PERIOD).unwrap();
    agenda.answered(&at, &question, Ok(found(&["i-1"], &[])), now + PERIOD);
    assert_eq!(agenda.answers.shown, [(target("web"), sought("new", "i-1"))].into());
    agenda.ask(&Questions::new(), now);
    assert_eq!(agenda.answers, Answers::default());
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_fails_its_health_check_is_not_shown() {
    let (mut agenda, now) = (Agenda::default(), Instant::now());
    agenda.ask(&asked(&[("web", &[("a", "i-1")])]), now);
    let (at, question) = agenda.next(now).unwrap();
    agenda.answered(&at, &question, Ok(found(&["i-1"], &["i-1"])), now);
    assert_eq!((agenda.answers.shown.len(), agenda.answers.unhealthy.len()), (0, 1));
    let (at, question) = agenda.next(now + PERIOD).unwrap();
    agenda.answered(&at, &question, Ok(found(&["i-1"], &[])), now + PERIOD);
    assert_eq!((agenda.answers.shown.len(), agenda.answers.unhealthy.len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn all_targets_together_are_looked_up_ten_times_a_second_and_failing_ones_ever_less_often() {
    let (mut agenda, begun) = (Agenda::default(), Instant::now());
    let names: Vec<_> = (0..100).map(|n| format!("web-{n}")).collect();
    let pods = [("a", "i-1")];
    let questions: Vec<(&str, &[(&str, &str)])> = names.iter().map(|name| (name.as_str(), &pods[..])).collect();
    agenda.ask(&asked(&questions), begun);
    let (mut now, mut lookups) = (begun, BTreeMap::<Target, u32>::new());
    while now < begun + Duration::from_mins(1) {
        while let Some((at, question)) = agenda.next(now) {
            *lookups.entry(at.clone()).or_default() += 1;
            agenda.answered(&at, &question, Ok(found(&[], &[])), now);
        }
        now += Duration::from_millis(10);
    }
    assert_eq!(lookups.len(), 100, "each has its turn");
    assert!((590..=600).contains(&lookups.values().sum::<u32>()), "{lookups:?}");

    agenda.ask(&asked(&[("web-0", &pods)]), now);
    let mut pauses = Vec::new();
    for _ in 0..7 {
        now = agenda.wake().unwrap();
        let (at, question) = agenda.next(now).unwrap();
        agenda.answered(&at, &question, Err(refused()), now);
        pauses.push((agenda.wake().unwrap() - now).as_secs());
    }
    assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 30]);
    assert!(agenda.answers.failures[&target("web-0")].contains("DiscoverInstances"));
}

#[tokio::test(start_paused = true)]
async fn the_task_calls_only_while_somebody_asks() {
    let fake = Fake::new();
    let service = {
        let mut registry = fake.registry();
        let namespace = registry.add_namespace("shop", NamespaceKind::Http);
        registry.add_service(&namespace, "web", "ours", "")
    };
    let lookups = spawn(Arc::new(fake.clone()));
    let mut answers = lookups.answers();
    let calls = || fake.registry().count(Operation::DiscoverInstances);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(calls(), 0);
    lookups.ask(Arc::new(asked(&[("web", &[("a", "i-1")])])));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!((4..=6).contains(&calls()), "{}", calls());
    fake.registry().instances.insert((service, "i-1".into()), BTreeMap::new());
    let shown = answers.wait_for(|answers| !answers.shown.is_empty());
    tokio::time::timeout(Duration::from_secs(2), shown).await.unwrap().unwrap();
    let before = calls();
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!(calls(), before);
}
