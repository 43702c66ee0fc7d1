//! The task that looks for the guards of all Cutovers, as long as they are asked.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::{join, join_all};
use tokio::time::Instant;

use super::{
    Judgements, Question, Questions, Registered,
    judge::{Reading, Rows},
    outside::Outside,
};
use base::inquiry::{Inquiry, Planner};
use cloudmap::{HttpName, Lane};
use model::ServiceKey;

/// Time from one look to the next.
const PERIOD: Duration = Duration::from_secs(5);

/// The task that looks, every five seconds for each question.
pub type Watcher = Inquiry<Agenda>;

/// Starts the task.
pub fn spawn(cloudmap: Arc<dyn cloudmap::Read>, outside: Arc<dyn Outside>) -> Watcher {
    let sight = Arc::new(Sight { cloudmap, outside });
    Watcher::start(move |key: ServiceKey, question: Arc<Question>| {
        let sight = Arc::clone(&sight);
        async move {
            let reading = sight.look(&question).await;
            (key, question, reading)
        }
    })
}

/// The ports through which guards look.
struct Sight {
    cloudmap: Arc<dyn cloudmap::Read>,
    outside: Arc<dyn Outside>,
}

impl Sight {
    async fn look(&self, question: &Question) -> Reading {
        let Question { share: _, guard, services, pods } = question;
        let path = guard.path.as_deref();
        let probes = join_all(pods.iter().map(async |at| (*at, self.outside.probe(*at, path).await)));
        let query = async {
            let query = guard.query.as_ref()?;
            Some(self.outside.query(&query.expression).await.map(|value| value > query.max))
        };
        let unseen = async {
            for service in services {
                if let Err(why) = self.see(service).await {
                    return Some(why);
                }
            }
            None
        };
        let ((pods, above), unseen) = join(join(probes, query), unseen).await;
        Reading { unseen, pods: pods.into_iter().collect(), above }
    }

    /// Whether clients find what is registered.
    async fn see(&self, service: &Registered) -> Result<(), String> {
        let Registered { http_name, service, domain, instances } = service;
        if instances.is_empty() {
            return Ok(());
        }
        let none = BTreeMap::new();
        let found = self.cloudmap.discover_instances(HttpName::own(http_name), service, &none, Lane::Instances).await;
        let found = found.map_err(|error| error.to_string())?;
        // Of more than 1,000 instances, some are not shown.
        let shown = |id: &&Arc<str>| found.truncated || found.instances.iter().any(|instance| instance.id == **id);
        let missing = instances.iter().filter(|id| !shown(id)).count();
        let ill = instances.iter().filter(|id| found.unhealthy.contains(*id)).count();
        if missing + ill > 0 {
            return Err(format!(
                "DiscoverInstances shows {} of the {} registered instances in {http_name}/{service} as healthy",
                instances.len() - missing - ill,
                instances.len()
            ));
        }
        let Some(domain) = domain else { return Ok(()) };
        match self.outside.resolve(domain).await {
            Ok(addresses) if addresses.is_empty() => Err(format!("the DNS name {domain} has no address")),
            Ok(_) => Ok(()),
            Err(why) => Err(format!("the DNS name {domain} does not resolve in the controller's pod: {why}")),
        }
    }
}

/// When to look for which Cutover, and what was judged. Makes no calls and reads no clock.
#[derive(Debug, Default)]
pub struct Agenda {
    entries: BTreeMap<ServiceKey, Entry>,
    judgements: Judgements,
}

#[derive(Debug)]
struct Entry {
    question: Arc<Question>,
    rows: Rows,
    /// When to look next; `None` while a look is in flight.
    due: Option<Instant>,
}

impl Planner for Agenda {
    type Key = ServiceKey;
    type Question = Arc<Question>;
    type Found = Reading;
    type Questions = Questions;
    type Answers = Judgements;

    const IN_FLIGHT: usize = 16;

    /// Takes new questions, and forgets what is no longer asked. Another share, or another guard, is looked at at once.
    fn ask(&mut self, asked: &Questions, now: Instant) {
        self.entries.retain(|key, _| asked.contains_key(key));
        self.judgements.retain(|key, _| asked.contains_key(key));
        for (key, question) in asked {
            let new = || Entry { question: Arc::clone(question), rows: Rows::default(), due: Some(now) };
            let entry = self.entries.entry(key.clone()).or_insert_with(new);
            if !entry.question.is_about(question) {
                entry.due = entry.due.map(|_| now);
                if entry.question.guard != question.guard {
                    entry.rows = Rows::default();
                }
            }
            entry.question = Arc::clone(question);
        }
    }

    /// The next look, if one is due: the one that is due for longest.
    fn next(&mut self, now: Instant) -> Option<(ServiceKey, Arc<Question>)> {
        let due = |(_, entry): &(&ServiceKey, &mut Entry)| entry.due;
        let waiting = self.entries.iter_mut().filter(|(_, entry)| entry.due.is_some_and(|due| due <= now));
        let (key, entry) = waiting.min_by_key(due)?;
        entry.due = None;
        Some((key.clone(), Arc::clone(&entry.question)))
    }

    /// When to call [`next`](Self::next) again.
    fn wake(&self) -> Option<Instant> {
        self.entries.values().filter_map(|entry| entry.due).min()
    }

    /// Takes the result of a look. If the question has changed meanwhile, the next look follows at once.
    fn answered(&mut self, key: &ServiceKey, asked: &Arc<Question>, reading: Reading, now: Instant) {
        // The question is gone.
        let Some(entry) = self.entries.get_mut(key) else { return };
        if entry.question.is_about(asked) {
            self.judgements.insert(key.clone(), (Arc::clone(asked), entry.rows.judge(&reading)));
            entry.due = Some(now + PERIOD);
        } else {
            entry.due = Some(now);
        }
    }

    fn answers(&self) -> &Judgements {
        &self.judgements
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        net::{IpAddr, SocketAddr},
    };

    use async_trait::async_trait;

    use super::*;
    use crate::guard::{Failure, Guard, Judgement, Query, judgement};
    use cloudmap::fake::Fake;

    struct World {
        ill: SocketAddr,
        value: Result<f64, String>,
    }

    #[async_trait]
    impl Outside for World {
        async fn resolve(&self, name: &str) -> Result<BTreeSet<IpAddr>, String> {
            if name.starts_with("orders.") { Ok([[10, 0, 0, 1].into()].into()) } else { Err("no such name".to_owned()) }
        }

        async fn probe(&self, at: SocketAddr, path: Option<&str>) -> Result<(), Failure> {
            if at == self.ill && path == Some("/healthz") { Err(Failure::WrongStatus) } else { Ok(()) }
        }

        async fn query(&self, _: &str) -> Result<f64, String> {
            self.value.clone()
        }
    }

    fn pod(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 80))
    }

    fn question(share: u8) -> Question {
        let query = Query { expression: "errors".to_owned(), max: 0.5 };
        let guard = Guard { path: Some("/healthz".to_owned()), port: None, query: Some(query) };
        Question { share: Some(share), guard, services: Vec::new(), pods: [pod(1), pod(2)].into() }
    }

    fn key() -> ServiceKey {
        ServiceKey::new("shop", "orders")
    }

    async fn judged(world: World, question: Question) -> Vec<Judgement> {
        let watcher = spawn(Arc::new(Fake::new()), Arc::new(world));
        watcher.ask(Arc::new([(key(), Arc::new(question.clone()))].into()));
        let mut judgements = Vec::new();
        for _ in 0..4 {
            tokio::time::sleep(PERIOD).await;
            judgements.push(judgement(&watcher.answers().borrow(), &key(), &question));
        }
        judgements
    }

    #[tokio::test(start_paused = true)]
    async fn pods_and_prometheus_are_looked_at_every_five_seconds() {
        let well = |ill, value| World { ill: pod(ill), value };
        assert_eq!(judged(well(9, Ok(0.5)), question(5)).await, vec![Judgement::Passed; 4]);
        let failed = judged(well(2, Ok(0.0)), question(5)).await;
        assert!(matches!(&failed[1], Judgement::Unknown(why) if why.contains("10.0.0.2:80")), "{failed:?}");
        assert!(matches!(&failed[3], Judgement::Failed(why) if why.contains("the status of its answer")), "{failed:?}");
        let failed = judged(well(9, Ok(0.6)), question(5)).await;
        assert!(matches!(&failed[3], Judgement::Failed(why) if why.contains("above its maximum")), "{failed:?}");
        let held = judged(well(9, Err("no answer within 3 s".to_owned())), question(5)).await;
        assert!(matches!(&held[3], Judgement::Unknown(why) if why.contains("Prometheus: no answer")), "{held:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_clients_do_not_find_yet_holds() {
        let mut question = question(5);
        question.services = vec![Registered {
            http_name: "internal".into(),
            service: "orders".into(),
            domain: None,
            instances: ["i-1".into()].into(),
        }];
        let held = judged(World { ill: pod(9), value: Ok(0.0) }, question).await;
        let said = |why: &str| why.contains("Cloud Map DiscoverInstances failed") || why.contains("shows 0 of the 1");
        assert!(held.iter().all(|judgement| matches!(judgement, Judgement::Unknown(why) if said(why))), "{held:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn another_share_is_looked_at_anew_and_what_failed_before_still_counts() {
        let (mut agenda, now) = (Agenda::default(), Instant::now());
        let bad = Reading { pods: [(pod(1), Err(Failure::Refused))].into(), ..Reading::default() };
        let asked = |share| Questions::from([(key(), Arc::new(question(share)))]);
        agenda.ask(&asked(5), now);
        for _ in 0..2 {
            let (at, question) = agenda.next(now + PERIOD).unwrap();
            assert_eq!(agenda.next(now + PERIOD), None, "not while it is in flight");
            agenda.answered(&at, &question, bad.clone(), now);
        }
        let (at, before) = agenda.next(now + PERIOD).unwrap();
        agenda.ask(&asked(25), now);
        agenda.answered(&at, &before, bad.clone(), now);
        let unknown = judgement(agenda.answers(), &key(), &question(25));
        assert!(matches!(unknown, Judgement::Unknown(why) if why.contains("not looked at this share")));
        let (at, question) = agenda.next(now).unwrap();
        agenda.answered(&at, &question, bad.clone(), now);
        assert!(matches!(judgement(agenda.answers(), &key(), &question), Judgement::Failed(_)));
        agenda.ask(&Questions::new(), now);
        assert_eq!((agenda.answers(), agenda.wake()), (&Judgements::new(), None));
    }
}
