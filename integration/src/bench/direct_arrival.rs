//! What an arrival takes at the least on these API servers, and how ours compares with it.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::sync::mpsc;

use super::{
    arrivals::{Addresses, Arrivals},
    direct_objects::{self, Objects, SOURCE},
    direct_writer::{How, Reference},
    figure::{Figure, Latencies},
    load::{self, CONCURRENCY, paced},
    others::Others,
    plan::Stage,
    side::{Side, Spent},
    stages::{Bench, EXPORTS_PER_SECOND, PATIENCE},
};

/// The first number of requests in flight, which is doubled until that is no faster, and the last one.
const REQUESTS: (usize, usize) = (8, 512);
/// What counts as faster.
const FASTER: f64 = 0.97;
/// With so many services at most the best number of requests in flight is found.
const TUNED_WITH: usize = 300;
/// How many times as long as the reference is good enough.
const GOOD: f64 = 1.3;
/// Stages that a condition shows after the first one, in the exporting and the importing cluster: `Registered`.
const STAGES: [f64; 2] = [1.0, 0.0];

/// What the reference took for a number of services, which arrivals are compared with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Least {
    services: usize,
    arrival: f64,
    settled: f64,
    withdrawal: f64,
    /// For each service, in the exporting and the importing cluster.
    writes: [f64; 2],
}

impl Least {
    /// An arrival of as many services by this.
    pub(super) fn compare(&self, name: &str, arrival: f64, settled: f64) -> Vec<Figure> {
        vec![
            Figure::at_most(format!("{name}_arrival_by_direct"), arrival / self.arrival, "times", GOOD),
            Figure::at_most(format!("{name}_settled_by_direct"), settled / self.settled, "times", GOOD),
        ]
    }

    /// A withdrawal of as many services by this.
    pub(super) fn compare_withdrawal(&self, name: &str, withdrawal: f64) -> Figure {
        Figure::at_most(format!("{name}_withdrawal_by_direct"), withdrawal / self.withdrawal, "times", GOOD)
    }
}

/// Once everything there and back.
struct Round {
    concurrency: usize,
    arrival: f64,
    settled: f64,
    withdrawal: f64,
    withdrawn: f64,
    /// Of arrival and withdrawal.
    requests: [usize; 2],
    spent: [Spent; 2],
    others: [Latencies; 2],
}

impl Bench {
    /// The reference for this number of services, if there is one.
    pub(super) fn least(&self, services: usize) -> Option<&Least> {
        self.least.iter().find(|least| least.services == services)
    }

    /// The reference for each number of services that is going to arrive.
    pub(super) async fn direct_arrival(&mut self) -> anyhow::Result<Vec<Figure>> {
        for side in self.sides() {
            direct_objects::define(&side.cluster).await?;
        }
        let mut sizes = BTreeSet::new();
        if self.plan.wants(Stage::Small) {
            sizes.insert(self.small_services());
        }
        if self.plan.stages.iter().any(|stage| stage.needs_large()) {
            sizes.insert(self.plan.services);
        }
        // The API servers publish the new kinds, and the machine comes to rest.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let mut figures = self.direct_kinds().await?;
        for services in sizes {
            let mut best = self.tune(services.min(TUNED_WITH)).await?;
            if services > TUNED_WITH {
                best = self.round(How::Created, services, best.concurrency).await?;
            }
            let name = format!("direct_{services}x{}", self.plan.endpoints);
            figures.extend(self.direct_figures(&name, services, &best)?);
            let applied = self.round(How::Applied, services, best.concurrency).await?;
            let name = format!("direct_applied_{services}x{}", self.plan.endpoints);
            figures.extend(self.direct_figures(&name, services, &applied)?);
            let writes = best.spent.each_ref().map(|spent| writes_per_service(spent, services));
            let Round { arrival, settled, withdrawal, .. } = best;
            self.least.push(Least { services, arrival, settled, withdrawal, writes });
        }
        Ok(figures)
    }

    /// Doubles the requests in flight until that is no faster, and returns the fastest round.
    async fn tune(&self, services: usize) -> anyhow::Result<Round> {
        let (first, last) = REQUESTS;
        let mut best = self.round(How::Created, services, first).await?;
        let mut slower = 0;
        let doubled = std::iter::successors(Some(first * 2), |requests| Some(requests * 2));
        for concurrency in doubled.take_while(|requests| *requests <= last) {
            let round = self.round(How::Created, services, concurrency).await?;
            // One slow round may be the machine's.
            slower = if round.settled < best.settled * FASTER { 0 } else { slower + 1 };
            if round.settled < best.settled {
                best = round;
            }
            if slower == 2 {
                break;
            }
        }
        Ok(best)
    }

    async fn round(&self, how: How, services: usize, concurrency: usize) -> anyhow::Result<Round> {
        tracing::info!("the reference writes {services} services with {concurrency} requests in flight ({how:?})");
        let namespace = format!("bench-{how:?}-{services}-{concurrency}").to_lowercase();
        for side in self.sides() {
            load::create_namespace(&side.cluster, &namespace).await?;
        }
        let objects = Objects::new(&namespace, self.plan.endpoints, self.plan.seed)?;
        let reference = Arc::new(Reference::new(how, self.sides().map(|side| &side.cluster), &namespace, objects));
        let addresses = |service| reference.objects().addresses(service).map(|address| address.to_string()).collect();
        let expected: Addresses = (0..services).map(|service| (load::name(service), addresses(service))).collect();
        let gone: Addresses = expected.keys().map(|service| (service.clone(), BTreeSet::new())).collect();
        let arrivals = Arrivals::watch(self.importer.cluster.clone(), &namespace, SOURCE);
        arrivals.expect(expected).await?;
        let others = self.others().await?;
        let before = self.costs().await?;
        let (send, created) = mpsc::unbounded_channel();
        let from = Arc::clone(&reference);
        let create = move |service| {
            let (reference, send) = (Arc::clone(&from), send.clone());
            async move {
                let export = reference.create_export(service).await?;
                // The reference says why it ended.
                let _ = send.send((service, export));
                Ok(())
            }
        };
        let create = paced(EXPORTS_PER_SECOND, services, create);
        let (sent, settled) = tokio::try_join!(create, reference.import(created, concurrency))?;
        let arrived = arrivals.complete(PATIENCE).await.context("what the reference writes has not arrived")?;
        let (since, requests) =
            (|at: Instant| at.saturating_duration_since(sent.0).as_secs_f64(), reference.take_requests());
        let spent = self.spent(&before, "the reference").await?;
        let others = others.each_ref().map(Others::take);

        arrivals.expect(gone).await?;
        let (send, deleted) = mpsc::unbounded_channel();
        let begun = Instant::now();
        let exports = &reference;
        let delete = async move {
            let send = &send;
            let deletions = futures::stream::iter(0..services).map(async |service| {
                exports.delete_export(service).await?;
                let _ = send.send(service);
                anyhow::Ok(())
            });
            deletions.buffer_unordered(CONCURRENCY).try_for_each(async |()| Ok(())).await
        };
        let ((), withdrawn) = tokio::try_join!(delete, reference.withdraw(deleted, concurrency))?;
        let emptied = arrivals.complete(PATIENCE).await.context("what the reference deletes stays")?;
        let round = Round {
            concurrency,
            arrival: since(arrived),
            settled: since(settled),
            withdrawal: (emptied - begun).as_secs_f64(),
            withdrawn: (withdrawn - begun).as_secs_f64(),
            requests: [requests, reference.take_requests()],
            spent,
            others,
        };
        tracing::info!(
            "{services} services with {concurrency} requests in flight: arrival {:.2} s, settled {:.2} s, withdrawal {:.2} s",
            round.arrival,
            round.settled,
            round.withdrawal
        );
        Ok(round)
    }

    fn direct_figures(&self, name: &str, services: usize, round: &Round) -> anyhow::Result<Vec<Figure>> {
        let [arriving, leaving] = round.requests.map(|requests| requests as f64);
        let mut figures = vec![
            Figure::for_scale(format!("{name}_arrival"), round.arrival, "s"),
            Figure::for_scale(format!("{name}_settled"), round.settled, "s"),
            Figure::for_scale(format!("{name}_concurrency"), round.concurrency as f64, "requests"),
            Figure::for_scale(format!("{name}_rate"), arriving / round.settled, "requests/s"),
            Figure::for_scale(format!("{name}_withdrawal"), round.withdrawal, "s"),
            Figure::for_scale(format!("{name}_withdrawal_rate"), leaving / round.withdrawn, "requests/s"),
        ];
        let sides = self.sides().into_iter().zip(&round.spent).zip(&round.others);
        for ((side, spent), others) in sides {
            let id = &side.member.id;
            let writes = writes_per_service(spent, services);
            figures.push(Figure::for_scale(format!("{name}_writes_{id}"), writes, "1/service"));
            figures.extend(server_figures(name, side, spent, others)?);
        }
        Ok(figures)
    }

    /// Another client of each API server, if arrivals are compared with the reference.
    pub(super) async fn others(&self) -> anyhow::Result<[Others; 2]> {
        Ok([Others::start(&self.exporter.cluster).await?, Others::start(&self.importer.cluster).await?])
    }

    /// What an arrival cost, and how long other clients waited.
    pub(super) fn arrival_costs(
        &self,
        name: &str,
        services: usize,
        spent: &[Spent; 2],
        others: &[Latencies; 2],
    ) -> anyhow::Result<Vec<Figure>> {
        let mut figures = self.writes(name, services, spent);
        for ((side, spent), others) in self.sides().into_iter().zip(spent).zip(others) {
            figures.extend(server_figures(name, side, spent, others)?);
        }
        Ok(figures)
    }

    /// The writes for each service: all of them, and by verb and resource.
    pub(super) fn writes(&self, name: &str, services: usize, spent: &[Spent; 2]) -> Vec<Figure> {
        let mut figures = Vec::new();
        for (place, side) in self.sides().into_iter().enumerate() {
            let (id, spent) = (&side.member.id, &spent[place]);
            let target = self.least(services).map(|least| least.writes[place] + STAGES[place]);
            let all = writes_per_service(spent, services);
            figures.push(Figure::new(format!("{name}_writes_{id}"), all, "1/service", target));
            figures.extend(controller_writes(spent).map(|(key, count)| {
                let name = format!("{name}_writes_{id}_{}", key.replace(' ', "_"));
                Figure::for_scale(name, count / services as f64, "1/service")
            }));
        }
        figures
    }
}

/// What the API server and its etcd took, and how long other clients waited meanwhile.
fn server_figures(name: &str, side: &Side, spent: &Spent, others: &Latencies) -> anyhow::Result<Vec<Figure>> {
    let id = &side.member.id;
    let mut figures = vec![Figure::for_scale(format!("{name}_servers_processor_{id}"), spent.server_seconds, "s")];
    for percent in [50.0, 99.0] {
        let figure = format!("{name}_others_{id}_p{percent}");
        figures.push(Figure::for_scale(figure, others.percentile(percent)?, "s"));
    }
    Ok(figures)
}

/// The writes that are neither the user's nor the benchmark's nor for leading, nor the API server's own ones: it writes an
/// IPAddress for each Service.
fn controller_writes(spent: &Spent) -> impl Iterator<Item = (&String, f64)> {
    let is_other = |key: &str| {
        let resource = key.split(' ').nth(1).unwrap_or_default();
        ["leases", "configmaps", "ipaddresses"].contains(&resource)
            || ["POST serviceexports", "DELETE serviceexports"].contains(&key)
    };
    spent.kubernetes_writes.iter().filter(move |(key, _)| !is_other(key)).map(|(key, count)| (key, *count))
}

fn writes_per_service(spent: &Spent, services: usize) -> f64 {
    controller_writes(spent).map(|(_, count)| count).sum::<f64>() / services as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_of_the_user_and_of_leading_do_not_count() {
        let writes = [
            ("POST serviceexports", 10.0),
            ("PUT leases", 4.0),
            ("PUT configmaps", 7.0),
            ("POST ipaddresses", 10.0),
            ("APPLY services", 10.0),
            ("APPLY serviceexports/status", 20.0),
        ];
        let spent =
            Spent { kubernetes_writes: writes.map(|(key, count)| (key.to_owned(), count)).into(), ..Spent::default() };
        assert!((writes_per_service(&spent, 10) - 3.0).abs() < 1e-9);
    }

    #[test]
    fn an_arrival_is_good_if_it_takes_a_third_more_than_the_reference() {
        let least = Least { services: 100, arrival: 2.0, settled: 4.0, withdrawal: 1.0, writes: [5.0, 4.0] };
        let met: Vec<_> = least.compare("small", 2.6, 5.3).iter().map(|figure| figure.met).collect();
        assert_eq!(met, [Some(true), Some(false)]);
        assert!((least.compare_withdrawal("small", 2.0).value - 2.0).abs() < 1e-9);
    }
}
