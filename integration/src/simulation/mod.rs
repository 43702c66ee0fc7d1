//! Whole controllers under simulated time: clusters of two replicas each, as `app` wires them, with real clients of kube
//! against API servers in this process and the emulator's core as Cloud Map, in one runtime with paused time. A seed
//! decides everything that happens, and the same seed gives the same run.
//!
//! The runtime itself throws dice (which branch of a `select!` comes first, which waiter wakes first). Only with
//! `--cfg tokio_unstable` can these be seeded: without it a run is a run, but not one that can be repeated.

mod bounds;
pub mod campaign;
mod check;
mod claims;
mod cloudmap;
mod continuity;
mod cutovers;
mod discovered;
mod draw;
mod editors;
mod effort;
mod expect;
mod followed;
mod gates;
mod keys;
pub mod kubernetes;
mod ledger;
mod machine;
mod merge;
mod network;
mod ownership;
mod ports;
mod rates;
mod registered;
mod reuse;
mod running;
pub mod scenario;
mod schedule;
mod silences;
mod sites;
mod slices;
mod strangers;
#[cfg(test)]
mod tests;
mod trace;
mod ttls;
mod unreachable;
mod users;
mod world;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::{
    runtime::Builder,
    time::{Instant, sleep_until},
};

use self::{
    check::Checks,
    cutovers::Instruction,
    followed::Followed,
    ports::DerivedPorts,
    rates::Asked,
    registered::{REFUSED_AGAIN, REPAIR, Registered},
    reuse::{Pool, Reused},
    running::Running,
    scenario::{Kind, Scenario},
    schedule::Step,
    trace::Trace,
    users::{ANNOTATED, EXPORTED, JOINING, MOST_TASKS, Place, WISHES},
    world::World,
};
use crate::ledger_sim::rng::Rng;

/// How often the checks look, and whenever an object changes.
const LOOK: Duration = Duration::from_millis(500);
/// How long the first exports have to be everywhere.
const START: Duration = Duration::from_mins(3);
/// How long everything has to be as it should be once nothing happens any more.
const CONVERGENCE: Duration = Duration::from_mins(10);
/// The same where clusters may have left their ClusterSet by losing their ClusterProperty, which may come back: they wait for ten
/// minutes.
const DEPARTURE: Duration = Duration::from_mins(15);
/// After that, the time in which what is late may still be written, such as the ledger's flush after a lull.
const SETTLING: Duration = Duration::from_mins(3);
/// After the last of it, the time in which nothing is written.
const QUIET: Duration = Duration::from_mins(2);
/// The same where clusters have shares of the traffic: each waits until the others had time to follow.
const SHARING: Duration = Duration::from_mins(40);
/// From when a service of others is gone until whoever was refused it has registered there.
const LOOKS_AGAIN: Duration = REFUSED_AGAIN.saturating_add(Duration::from_mins(1));
/// A queue is not empty while something that is looked at now and then has its turn.
const BOUNDED: Duration = Duration::from_mins(1);

/// How one run went.
#[derive(Debug, Clone, Default)]
pub struct Report {
    pub scenario: &'static str,
    pub seed: u64,
    /// The invariant that does not hold, and what shows it.
    pub violation: Option<(&'static str, String)>,
    /// From the start to the end, or to the violation.
    pub lasted: Duration,
    /// What it took to compute.
    pub took: Duration,
    /// From the end of the trouble until everything was as it should be.
    pub converged: Option<Duration>,
    /// What happened, if that was asked for.
    pub trace: Vec<String>,
    /// The steps that were made, in words, and how many of each kind.
    pub steps: Vec<String>,
    pub kinds: BTreeMap<Kind, u64>,
}

thread_local! {
    /// What panicked in this thread since it was asked last.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Lets panics in any thread be told by the runs in it. Call it once.
pub fn note_panics() {
    let known = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
        known(panic);
    }));
}

/// Runs one seed. `only`: the numbers of the steps that are made; all without it.
///
/// # Panics
/// If the runtime cannot be built.
pub fn run(scenario: &'static Scenario, seed: u64, only: Option<&[usize]>, traced: bool) -> Report {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_be_bytes()));
    let runtime = builder.build().expect("a runtime without threads and sockets");
    PANICS.with_borrow_mut(Vec::clear);
    let began = std::time::Instant::now();
    let report = runtime.block_on(async { Driver::new(scenario, seed, traced).run(scenario, only).await });
    Report { took: began.elapsed(), ..report }
}

struct Driver {
    world: World,
    checks: Checks,
    registered: Registered,
    followed: Followed,
    reused: Reused,
    ports: DerivedPorts,
    scenario: &'static Scenario,
    report: Report,
}

type Violation = (&'static str, String);

impl Driver {
    fn new(scenario: &'static Scenario, seed: u64, traced: bool) -> Self {
        let began = Instant::now();
        let mut world = World::new(seed, scenario.clusters, scenario.connects(), began, Trace::new(began, traced));
        world.pool = scenario.reuses_addresses().then(Pool::default);
        let report = Report { scenario: scenario.name, seed, ..Report::default() };
        let (checks, registered, followed, reused, ports) = Default::default();
        Self { world, checks, registered, followed, reused, ports, scenario, report }
    }

    async fn run(mut self, scenario: &Scenario, only: Option<&[usize]>) -> Report {
        let mut rng = Rng::new(scenario.name, self.report.seed);
        let steps = draw::draw(&mut rng, scenario, scenario.trouble());
        let chosen: Vec<(usize, Step)> =
            steps.into_iter().enumerate().filter(|(number, _)| only.is_none_or(|only| only.contains(number))).collect();
        self.report.steps = chosen
            .iter()
            .map(|(number, Step { at, lasts, action, .. })| {
                format!("{number:>3}  at {:>6.1} s for {:>5.1} s  {action:?}", at.as_secs_f64(), lasts.as_secs_f64())
            })
            .collect();
        for (_, step) in &chosen {
            *self.report.kinds.entry(step.kind).or_default() += 1;
        }
        let claims = scenario.kinds.contains(&Kind::Claims);
        self.report.violation = self.course(&mut rng, claims, &chosen).await.err();
        self.report.lasted = self.world.began.elapsed();
        for cluster in &self.world.clusters {
            self.world.trace.line(|| format!("{} {:?}", cluster.id, cluster.api.requests()));
        }
        self.report.trace = self.world.trace.take();
        self.report
    }

    async fn course(&mut self, rng: &mut Rng, claims: bool, steps: &[(usize, Step)]) -> Result<(), Violation> {
        for cluster in 0..self.world.clusters.len() {
            for name in 0..EXPORTED {
                let place = Place { cluster, name };
                self.world.scale(place, rng.below(3) + 1, false);
                if cluster == 0 || rng.chance(0.7) {
                    self.world.export(place);
                }
            }
        }
        if self.scenario.kinds.contains(&Kind::Imports) {
            self.world.import_orders();
            self.world.run_orders(Some(MOST_TASKS));
        }
        let shares = self.scenario.kinds.contains(&Kind::Shares);
        if shares {
            self.world.add_namespaces();
            self.wait(Duration::from_secs(5)).await?;
            self.world.run_tasks(rng.below(MOST_TASKS + 1));
            for cluster in 0..self.world.clusters.len() {
                self.world.scale(Place { cluster, name: JOINING.0 }, rng.below(5) + 1, false);
                self.world.share(cluster, Some(*rng.pick(&["0%", "25%", "50%"])));
            }
        }
        let cutovers = self.scenario.kinds.contains(&Kind::Cutovers);
        if cutovers {
            self.world.add_namespaces();
            self.wait(Duration::from_secs(5)).await?;
            self.world.run_tasks(rng.below(MOST_TASKS) + 1);
            self.world.scale(Place { cluster: 0, name: JOINING.0 }, rng.below(5) + 1, false);
            self.world.instruct(0, Instruction::Begin);
            self.world.instruct(0, Instruction::Guard(rng.chance(0.6)));
            self.wait(Duration::from_secs(1)).await?;
            self.world.join_tasks(0);
        }
        let shares = shares || cutovers;
        if claims {
            self.world.add_namespaces();
            for (cluster, name) in
                (0..self.world.clusters.len()).flat_map(|cluster| ANNOTATED.map(|name| (cluster, name)))
            {
                let place = Place { cluster, name };
                self.world.scale(place, rng.below(3) + 1, false);
                self.world.annotate(place, rng.chance(0.5).then(|| rng.below(WISHES.len())), None);
            }
        }
        if claims {
            // Until there are the namespaces.
            self.wait(Duration::from_secs(5)).await?;
            self.world.add_foreign_services();
        }
        self.converge(if shares { SHARING } else { START }, "the first exports arrive").await?;
        self.trouble(steps).await?;
        let calm = Instant::now();
        let within = if self.scenario.kinds.contains(&Kind::Moves) { DEPARTURE } else { CONVERGENCE };
        let within = if shares { SHARING } else { within };
        self.converge(within, "everything converges").await?;
        self.until(within, "every cluster has its key", keys::missing).await?;
        self.until(within, "every gate opens", gates::closed).await?;
        self.until(within, "each address is one of a pod of its Service", reuse::misplaced).await?;
        self.until(within, "every Cutover is where its spec sends it", cutovers::under_way).await?;
        if cutovers {
            self.world.let_go(0);
            self.until(within, "a Cutover that nobody holds comes to its end", cutovers::under_way).await?;
            self.converge(within, "its share is right").await?;
        }
        self.report.converged = Some(calm.elapsed());
        if let Some(at) = self.world.torn {
            self.wait_until(self.world.began + at + REPAIR).await?;
        }
        if let Some(at) = self.world.retimed {
            self.wait_until(self.world.began + at + ttls::REPAIR).await?;
            self.until(ttls::REPAIR, "the records of our services have our TTL", ttls::changed).await?;
        }
        self.rest().await?;
        // For a moment all may be right before what a cluster said last, as a member, is heard and taken back.
        let left = within.saturating_sub(calm.elapsed());
        self.converge(LOOKS_AGAIN.max(left), "what converged stays").await?;
        self.until(BOUNDED, "what processes hold is bounded", bounds::exceeded).await
    }

    /// Waits until nothing was written for a while.
    async fn rest(&mut self) -> Result<(), Violation> {
        let (began, mut last) = (Instant::now(), Instant::now());
        // Who was refused another ClusterSet's service registers there once it is gone.
        let sets: BTreeSet<_> = self.world.clusters.iter().map(|cluster| &cluster.set).collect();
        let several = sets.len() > 1 || self.scenario.kinds.contains(&Kind::Moves);
        let settling = if several { SETTLING + LOOKS_AGAIN } else { SETTLING };
        let shares = [Kind::Shares, Kind::Cutovers].iter().any(|kind| self.scenario.kinds.contains(kind));
        let settling = if shares { SHARING } else { settling };
        self.checks.take_writes();
        let mut asked = Asked::of(&self.world);
        while last.elapsed() < QUIET {
            self.wait(Duration::from_secs(1)).await?;
            if let Some(write) = self.checks.take_writes().pop() {
                if began.elapsed() > settling {
                    return Err(("nothing is written at rest", write));
                }
                last = Instant::now();
                asked = Asked::of(&self.world);
            }
        }
        match asked.exceeded(&self.world) {
            Some(what) => Err(("little is asked for at rest", what)),
            None => Ok(()),
        }
    }

    /// Makes the steps, and ends all that they began.
    async fn trouble(&mut self, steps: &[(usize, Step)]) -> Result<(), Violation> {
        let begun = Instant::now();
        let mut turns: Vec<(Duration, bool, usize)> = Vec::new();
        for (index, (_, step)) in steps.iter().enumerate() {
            turns.push((step.at, true, index));
            turns.push((step.at + step.lasts, false, index));
        }
        turns.sort_by_key(|(at, begins, index)| (*at, !*begins, *index));
        let mut running = Running::default();
        for (at, begins, index) in turns {
            self.wait_until(begun + at).await?;
            let (number, step) = &steps[index];
            if begins {
                running.begin(&mut self.world, *number, step);
            } else {
                running.end(&mut self.world, *number, step);
            }
            // What users do is seen before anybody can answer it: two steps may undo each other between two looks.
            self.look()?;
        }
        self.wait_until(begun + self.scenario.trouble()).await?;
        self.world.callers.heal(self.world.began.elapsed());
        for registry in self.world.registries() {
            registry.forget_crashes();
        }
        self.world.clusters.iter().for_each(|cluster| cluster.api.clear_all());
        Ok(())
    }

    async fn converge(&mut self, within: Duration, what: &'static str) -> Result<(), Violation> {
        self.until(within, what, expect::mismatch).await
    }

    /// Waits until nothing is wrong.
    async fn until(
        &mut self,
        within: Duration,
        what: &'static str,
        wrong: fn(&World) -> Option<String>,
    ) -> Result<(), Violation> {
        let end = Instant::now() + within;
        while let Some(wrong) = wrong(&self.world) {
            if Instant::now() >= end {
                return Err((what, wrong));
            }
            self.wait(Duration::from_secs(1)).await?;
        }
        Ok(())
    }

    async fn wait(&mut self, time: Duration) -> Result<(), Violation> {
        self.wait_until(Instant::now() + time).await
    }

    /// Lets time pass, and looks at what happens.
    async fn wait_until(&mut self, end: Instant) -> Result<(), Violation> {
        loop {
            let next = (Instant::now() + LOOK).min(end);
            tokio::select! {
                biased;
                () = self.world.changed() => {}
                () = sleep_until(next) => {}
            }
            self.world.restart();
            gates::follow(&self.world);
            self.look()?;
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }

    fn look(&mut self) -> Result<(), Violation> {
        self.world.note_addresses();
        let (world, scenario) = (&self.world, self.scenario);
        let violation = self.checks.look(world, scenario);
        // What is registered is looked at where all register in one registry.
        let violation = violation.or_else(|| world.abroad.is_none().then(|| self.registered.look(world, scenario))?);
        let violation = violation.or_else(|| self.followed.look(world, scenario));
        let violation = violation.or_else(|| self.reused.look(world, scenario));
        if let Some(violation) = violation.or_else(|| self.ports.look(world, scenario)) {
            return Err(violation);
        }
        match PANICS.with_borrow_mut(Vec::pop) {
            Some(panic) => Err(("nothing panics", panic)),
            None => Ok(()),
        }
    }
}
