use proptest::prelude::*;

use super::*;
use crate::{Evidence, Verdict, judge::ROUNDS};
use model::ClusterId;

fn there(name: &str) -> Party {
    Party::There(name.parse().unwrap())
}

fn address(net: u8, host: u8) -> SocketAddr {
    SocketAddr::from(([10, net, 0, host], 80))
}

/// Endpoints on two nodes.
fn candidates(net: u8, hosts: u8) -> Candidates {
    let endpoints = (0..hosts).map(|host| (address(net, host), format!("node-{}", host % 2).into()));
    Candidates { connected: true, unreachable: false, endpoints: endpoints.collect() }
}

/// A cluster of its own (`0`), and some others.
struct World {
    agenda: Agenda,
    asked: Questions,
    now: Instant,
    /// The networks that do not answer.
    dead: BTreeSet<u8>,
    /// When rounds began, and whom they tried.
    rounds: Vec<(Instant, BTreeSet<SocketAddr>)>,
    /// When an own endpoint answered last.
    here: Option<Instant>,
}

impl World {
    fn new(others: &[&str]) -> Self {
        let mut asked = Questions::from([(Party::Here, candidates(0, 4))]);
        asked.extend((1..).zip(others).map(|(net, name)| (there(name), candidates(net, 8))));
        let (agenda, now) = (Agenda::default(), Instant::now());
        let mut world = Self { agenda, asked, now, dead: BTreeSet::new(), rounds: Vec::new(), here: None };
        world.ask();
        world
    }

    fn ask(&mut self) {
        self.agenda.ask(&self.asked, self.now);
    }

    fn connected(&mut self, name: &str, connected: bool) {
        self.asked.get_mut(&there(name)).unwrap().connected = connected;
        self.ask();
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(at) = self.agenda.wake().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let ((), round) = self.agenda.next(self.now).unwrap();
            assert!(self.agenda.next(self.now + REST).is_none(), "one round at a time");
            let tried: BTreeSet<_> = round.addresses().collect();
            let answers = |at: &SocketAddr| match at.ip() {
                std::net::IpAddr::V4(ip) => !self.dead.contains(&ip.octets()[1]),
                std::net::IpAddr::V6(_) => true,
            };
            let answered: BTreeSet<_> = tried.iter().copied().filter(answers).collect();
            self.rounds.push((self.now, tried.clone()));
            if answered.iter().any(|at| self.asked[&Party::Here].endpoints.contains_key(at)) {
                self.here = Some(self.now);
            }
            // Whoever does not answer takes two seconds.
            let took = if answered == tried { Duration::ZERO } else { Duration::from_secs(2) };
            self.now += took;
            self.agenda.answered(&(), &round, answered, self.now);
        }
        self.now = self.now.max(end);
    }

    fn verdict(&self, name: &str) -> Option<Verdict> {
        self.agenda.answers().get(&name.parse::<ClusterId>().unwrap()).copied()
    }

    fn is_unreachable(&self, name: &str) -> bool {
        matches!(self.verdict(name), Some(Verdict::Unreachable(_)))
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_cluster_whose_stream_and_network_are_gone_is_judged_within_twenty_seconds_and_comes_back_within_ten() {
    let mut world = World::new(&["blue", "green"]);
    world.run(SECOND * 60);
    assert_eq!(world.verdict("blue"), Some(Verdict::Reachable));
    world.dead.insert(1);
    world.run(SECOND * 10);
    world.connected("blue", false);
    world.run(SECOND * 9);
    assert!(!world.is_unreachable("blue"), "not before the stream is lost for ten seconds");
    world.run(SECOND * 5);
    assert_eq!(world.verdict("blue"), Some(Verdict::Unreachable(Evidence { endpoints: 6, nodes: 2 })));
    assert_eq!(world.verdict("green"), Some(Verdict::Reachable));
    world.dead.clear();
    world.run(SECOND * 9);
    assert_eq!(world.verdict("blue"), Some(Verdict::Reachable), "before its stream is back");
}

/// Each of these alone proves nothing.
#[test]
fn nobody_is_judged_by_less() {
    type Trouble = fn(&mut World);
    let cases: [(&str, Trouble); 8] = [
        ("the stream alone", |world| world.connected("blue", false)),
        ("the network to endpoints alone", |world| world.dead.extend([1])),
        ("all others at once", |world| {
            world.dead.extend([1, 2]);
            world.connected("blue", false);
        }),
        ("an own pod as well", |world| {
            world.dead.extend([0, 1]);
            world.connected("blue", false);
        }),
        ("one that never answered before", |world| {
            let hosts = world.asked[&there("blue")].endpoints.keys().copied().collect::<Vec<_>>();
            let candidates = world.asked.get_mut(&there("blue")).unwrap();
            candidates.endpoints = hosts.iter().map(|at| (SocketAddr::new(at.ip(), 81), "node-7".into())).collect();
            world.dead.insert(1);
            world.connected("blue", false);
        }),
        ("endpoints on one node", |world| {
            let candidates = world.asked.get_mut(&there("blue")).unwrap();
            candidates.endpoints.values_mut().for_each(|node| *node = "node-1".into());
            world.dead.insert(1);
            world.connected("blue", false);
        }),
        ("one endpoint that is left", |world| {
            let candidates = world.asked.get_mut(&there("blue")).unwrap();
            candidates.endpoints.retain(|at, _| *at == address(1, 0));
            world.dead.insert(1);
            world.connected("blue", false);
        }),
        ("what answered long ago", |world| {
            world.dead.insert(1);
            world.run(SECOND * 120);
            world.connected("blue", false);
        }),
    ];
    for (why, trouble) in cases {
        let mut world = World::new(&["blue", "green"]);
        world.run(SECOND * 60);
        trouble(&mut world);
        world.run(SECOND * 120);
        assert!(!world.is_unreachable("blue"), "{why}");
    }
}

#[test]
fn with_one_other_cluster_own_endpoints_on_another_node_must_answer() {
    for (hosts, judged) in [(4, true), (1, false), (0, false)] {
        let mut world = World::new(&["blue"]);
        world.asked.insert(Party::Here, candidates(0, hosts));
        world.ask();
        world.run(SECOND * 60);
        world.dead.insert(1);
        world.connected("blue", false);
        world.run(SECOND * 60);
        assert_eq!(world.is_unreachable("blue"), judged, "{hosts} own endpoints");
    }
}

#[test]
fn a_verdict_stays_while_nothing_can_be_judged_and_goes_with_its_question() {
    let mut world = World::new(&["blue", "green"]);
    world.run(SECOND * 60);
    world.dead.insert(1);
    world.connected("blue", false);
    world.run(SECOND * 30);
    world.dead.extend([0, 2]);
    world.run(SECOND * 60);
    assert!(world.is_unreachable("blue") && !world.is_unreachable("green"));
    // Its stream alone does not make its endpoints answer.
    world.connected("blue", true);
    world.run(SECOND * 60);
    assert!(world.is_unreachable("blue"));
    world.asked.remove(&there("blue"));
    world.ask();
    assert_eq!(world.verdict("blue"), None);
}

#[test]
fn a_new_leader_learns_soon_that_a_cluster_is_back() {
    let mut world = World::new(&["blue", "green"]);
    world.asked.get_mut(&there("blue")).unwrap().unreachable = true;
    world.connected("blue", false);
    world.run(SECOND * 60);
    assert_eq!(world.verdict("blue"), None, "nothing of it answered this leader, so nothing of it is tried");
    world.connected("blue", true);
    world.run(SECOND * 10);
    assert_eq!(world.verdict("blue"), Some(Verdict::Reachable));
}

#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    Connect(usize, bool),
    Dead(u8, bool),
    Endpoints(usize, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..40_u64).prop_map(Step::Wait),
        (0..3_usize, any::<bool>()).prop_map(|(other, connected)| Step::Connect(other, connected)),
        (0..4_u8, any::<bool>()).prop_map(|(net, dead)| Step::Dead(net, dead)),
        (0..3_usize, 0..9_u8).prop_map(|(other, hosts)| Step::Endpoints(other, hosts)),
    ]
}

proptest! {
    /// Whatever happens: who is judged has had a lost stream for long enough, and does not answer, and others do. Nobody is
    /// tried more often than the stated rate, and nobody who is not listed.
    #[test]
    fn only_the_dead_are_judged_and_few_are_tried(steps in prop::collection::vec(step(), 1..40)) {
        let names = ["blue", "green", "red"];
        let mut world = World::new(&names);
        world.run(SECOND * 60);
        let mut dead_since: [Option<Instant>; 4] = [None; 4];
        for step in steps {
            let before: Vec<_> = names.iter().map(|name| world.is_unreachable(name)).collect();
            let time = match step {
                Step::Wait(seconds) => SECOND * u32::try_from(seconds).unwrap(),
                Step::Connect(other, connected) => { world.connected(names[other], connected); Duration::ZERO }
                Step::Dead(net, dead) => {
                    let since = &mut dead_since[usize::from(net)];
                    if dead { world.dead.insert(net); since.get_or_insert(world.now); } else { world.dead.remove(&net); *since = None; }
                    Duration::ZERO
                }
                Step::Endpoints(other, hosts) => {
                    let net = u8::try_from(other).unwrap() + 1;
                    let connected = world.asked[&there(names[other])].connected;
                    world.asked.insert(there(names[other]), Candidates { connected, ..candidates(net, hosts) });
                    world.ask();
                    Duration::ZERO
                }
            };
            let first = world.rounds.len();
            world.run(time);
            for (other, name) in names.iter().enumerate() {
                let net = other + 1;
                if world.is_unreachable(name) && !before[other] {
                    prop_assert!(dead_since[net].is_some_and(|since| world.now >= since + QUICK * (ROUNDS - 1)));
                    prop_assert!(!world.asked[&there(name)].connected, "its stream is lost");
                    // An own endpoint that has not answered for a minute is as good as none.
                    let is_cut_off = dead_since[0].is_some() && world.here.is_some_and(|last| world.now < last + RECENT);
                    prop_assert!(!is_cut_off, "this cluster is not cut off");
                    let others = (1..4).filter(|other| *other != net).any(|other| dead_since[other].is_none());
                    prop_assert!(others || world.asked[&Party::Here].endpoints.len() > 1);
                }
            }
            for (_, tried) in &world.rounds[first..] {
                for (party, candidates) in &world.asked {
                    let of_it = tried.iter().filter(|at| candidates.endpoints.contains_key(at)).count();
                    prop_assert!(of_it <= PER_ROUND, "{party:?}");
                }
                let listed = |at: &SocketAddr| world.asked.values().any(|candidates| candidates.endpoints.contains_key(at));
                prop_assert!(tried.iter().all(listed));
            }
        }
        for pair in world.rounds.windows(2) {
            prop_assert!(pair[1].0 >= pair[0].0 + QUICK);
        }
    }
}
