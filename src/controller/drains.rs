//! Drains: which part of this cluster's endpoints leaves the names that others can serve, and the steps of the way back.
//!
//! A drain takes effect in the importing clusters, which take the endpoints out in steps of their own ([`import::tiers`]). On the
//! way back, this cluster publishes a smaller part with each step, and the importing clusters follow at once. So what is
//! published is all that a new leader needs.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    core::{Core, Now},
    dirty::Fact,
    spills::HOLD,
    world::World,
};
use api::{
    conditions::DrainReason,
    drain::{self, InvalidDrain},
    names::{DRAIN, PROPERTY_DRAIN, PROPERTY_DRAIN_MIN_READY},
};
use cluster::objects::ServiceExport;
use instances::{Share, Traffic};
use ledger::Map;
use model::{ClusterId, Drain, Export, Exported, MinReady, ServiceKey, ServiceType};

/// What is drained.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// All names of this cluster.
    Cluster,
    /// This name.
    Name(ServiceKey),
}

/// The drains of this cluster.
#[derive(Debug, Clone, Default)]
pub(super) struct Drains(BTreeMap<Scope, Course>);

#[derive(Debug, Clone, Copy)]
struct Course {
    drain: Drain,
    /// When the next step of the way back is due; `None` before the way back begins.
    next: Option<Duration>,
}

impl Drains {
    /// What is in force.
    fn of(&self, scope: &Scope) -> Option<Drain> {
        self.0.get(scope).map(|course| course.drain)
    }

    /// Takes in what an earlier leader published.
    fn resume(&mut self, scope: Scope, drain: Drain) {
        self.0.entry(scope).or_insert(Course { drain, next: None });
    }

    /// Takes in what is asked for. Returns whether something else is in force than before.
    fn ask(&mut self, scope: &Scope, asked: &Result<Option<MinReady>, InvalidDrain>, now: Duration) -> bool {
        let before = self.of(scope);
        match (asked, self.0.get_mut(scope)) {
            (Ok(Some(min_ready)), _) => {
                self.0.insert(scope.clone(), Course { drain: Drain::whole(*min_ready), next: None });
            }
            (Ok(None), Some(course)) if course.next.is_none() => {
                course.next = Some(now + HOLD);
                // A new leader that finds somebody on the way back waits first.
                if course.drain.is_whole() {
                    self.step_back(scope);
                }
            }
            // What is unclear changes nothing.
            (Ok(None) | Err(_), _) => {}
        }
        self.of(scope) != before
    }

    fn step_back(&mut self, scope: &Scope) {
        let Some(course) = self.0.get_mut(scope) else { return };
        match course.drain.next() {
            Some(next) => course.drain = next,
            None => self.forget(scope),
        }
    }

    /// What is no more.
    fn forget(&mut self, scope: &Scope) {
        self.0.remove(scope);
    }

    /// Takes the steps that are due, and returns whose they are.
    fn step(&mut self, now: Duration) -> Vec<Scope> {
        let due = self.0.iter().filter(|(_, course)| course.next.is_some_and(|next| next <= now));
        let due: Vec<_> = due.map(|(scope, _)| scope.clone()).collect();
        for scope in &due {
            if let Some(course) = self.0.get_mut(scope) {
                course.next = Some(now + HOLD);
            }
            self.step_back(scope);
        }
        due
    }

    /// When the next step is due.
    pub(super) fn wake(&self) -> Option<Duration> {
        self.0.values().filter_map(|course| course.next).min()
    }
}

/// What an export asks for its name.
fn asked(export: &ServiceExport) -> Result<Option<MinReady>, InvalidDrain> {
    drain::read(DRAIN.map(|name| export.annotations.get(name)), DRAIN)
}

/// What the ClusterProperties ask for all names.
fn asked_for_all(world: &World) -> Result<Option<MinReady>, InvalidDrain> {
    let names = [PROPERTY_DRAIN, PROPERTY_DRAIN_MIN_READY];
    let values = names.map(|name| world.properties.get(&name.into()));
    drain::read(values.each_ref().map(|property| property.as_ref().map(|property| &*property.value)), names)
}

impl Core {
    /// Takes in what ClusterProperties ask for.
    pub(super) fn drain_cluster(&mut self, now: Now) {
        if self.exporting.drains.ask(&Scope::Cluster, &asked_for_all(&self.world), now.mono) {
            self.changed(Fact::Drained);
        }
    }

    /// Takes in what an export asks for its name, before it is planned. `None`: there is no export.
    pub(super) fn drain_name(&mut self, key: &ServiceKey, export: Option<&ServiceExport>, now: Now) {
        let scope = Scope::Name(key.clone());
        match export {
            Some(export) => {
                self.exporting.drains.ask(&scope, &asked(export), now.mono);
            }
            None => self.exporting.drains.forget(&scope),
        }
    }

    /// Takes in what an earlier leader published.
    pub(super) fn resume_drains(&mut self, own: &Map, now: Now) {
        let of_cluster = records::properties::value(own, PROPERTY_DRAIN).and_then(|text| text.parse().ok());
        let of_names = records::drains(own).map(|(key, drain)| (Scope::Name(key), drain));
        for (scope, drain) in of_cluster.map(|drain| (Scope::Cluster, drain)).into_iter().chain(of_names) {
            self.exporting.drains.resume(scope.clone(), drain);
            if let Scope::Name(key) = scope {
                self.changed(Fact::DrainStep(&key));
            }
        }
        self.drain_cluster(now);
    }

    /// Takes the steps of the way back that are due.
    pub(super) fn step_back(&mut self, now: Now) {
        for scope in self.exporting.drains.step(now.mono) {
            match scope {
                Scope::Cluster => self.changed(Fact::Drained),
                Scope::Name(key) => self.changed(Fact::DrainStep(&key)),
            }
        }
    }

    /// The drain of all names of this cluster.
    pub(super) fn cluster_drain(&self) -> Option<Drain> {
        self.exporting.drains.of(&Scope::Cluster)
    }

    /// The drain of a name of this cluster, as its export is published with it.
    pub(super) fn name_drain(&self, key: &ServiceKey) -> Option<Drain> {
        self.exporting.drains.of(&Scope::Name(key.clone()))
    }

    /// The drain of the instances of an export. An instance that another cluster has by the last reading of Cloud Map may be on its
    /// way out: where other clusters export the name and none has a ready endpoint, as the ledger says, no instance goes.
    pub(super) fn instance_drain(&self, key: &ServiceKey) -> Option<Drain> {
        let drain = self.own_drain(key)?;
        let sources = self.sources(key);
        let mut others = self.undrained_others(&sources).peekable();
        let serve = others.peek().is_none() || others.any(|(_, source)| source.ready() > 0);
        serve.then_some(drain)
    }

    /// The other clusters of a name's sources from which not all endpoints leave.
    fn undrained_others<'a>(
        &self,
        sources: &'a BTreeMap<ClusterId, Arc<Exported>>,
    ) -> impl Iterator<Item = (&'a ClusterId, &'a Arc<Exported>)> {
        let others = sources.iter().filter(|(cluster, _)| *cluster != self.knowledge.local());
        others.filter(|(cluster, source)| !self.drain_of(cluster, &source.export).is_some_and(Drain::is_whole))
    }

    /// The drain of a name of this cluster, by its export or with all names.
    pub(super) fn own_drain(&self, key: &ServiceKey) -> Option<Drain> {
        self.cluster_drain().max(self.name_drain(key))
    }

    /// The drain of a cluster that exports a name.
    pub(super) fn drain_of(&self, cluster: &ClusterId, export: &Export) -> Option<Drain> {
        let of_cluster = if cluster == self.knowledge.local() {
            self.cluster_drain()
        } else {
            self.knowledge.property(cluster, PROPERTY_DRAIN).and_then(|text| text.parse().ok())
        };
        of_cluster.into_iter().chain(export.drain).max()
    }

    /// The share of the traffic that instances get, if `traffic` is what an annotation or a Cutover says. These count more than
    /// a drain: with another share, the import would have other pods, too.
    pub(super) fn drained_traffic(drain: Option<Drain>, traffic: Traffic) -> Traffic {
        match drain {
            Some(drain) if traffic == Traffic::All && drain.is_whole() => Traffic::Drained,
            Some(drain) if traffic == Traffic::All => Traffic::Share(Share::percent(100 - drain.percent())),
            _ => traffic,
        }
    }

    /// What the condition `Drained` of an export says.
    pub(super) fn report_drain(&self, export: &ServiceExport) -> Option<(DrainReason, String)> {
        if let Err(why) = asked(export).and_then(|_| asked_for_all(&self.world)) {
            return Some((
                DrainReason::InvalidDrain,
                format!("{why}. Until then, what was valid before stays in force."),
            ));
        }
        let (key, here) = (&export.key, self.knowledge.local());
        let planned = self.knowledge.planned(key)?.as_ref().ok()?;
        let drain = self.drain_of(here, &planned.export)?;
        let stays = |why: String| Some((DrainReason::Stays, why));
        if planned.export.service_type == ServiceType::Headless {
            return stays(
                "Clients of a headless Service choose endpoints by themselves, so all of them stay in its import."
                    .to_owned(),
            );
        }
        if !drain.is_whole() {
            let back = 100 - drain.percent();
            return Some((DrainReason::Returning, format!("{back} % of the endpoints of this cluster are back.")));
        }
        let sources = self.sources(key);
        let others: Vec<_> = self.undrained_others(&sources).collect();
        if others.is_empty() {
            let drained: Vec<_> = sources.keys().filter(|cluster| *cluster != here).map(ClusterId::as_str).collect();
            return stays(if drained.is_empty() {
                "No other cluster exports this name.".to_owned()
            } else {
                format!("The other clusters that export this name are drained, too: {}.", drained.join(", "))
            });
        }
        let reachability = &self.importing.reachability;
        if others.iter().all(|(cluster, _)| reachability.is_unreachable(cluster)) {
            let names = others.iter().map(|(cluster, _)| cluster.as_str()).collect::<Vec<_>>().join(", ");
            return stays(format!("The network from this cluster to those that could serve is gone: {names}."));
        }
        let endpoints = || others.iter().flat_map(|(_, source)| &source.endpoints);
        let ready = endpoints().filter(|endpoint| endpoint.conditions.ready).count();
        let listed = ready + endpoints().filter(|e| !e.conditions.ready && !e.conditions.terminating).count();
        let shows = !self.imported_from_here(key).is_empty();
        if shows && self.importing.spills.is_any(key) {
            let text = "The endpoints of this cluster leave the name step by step.";
            return Some((DrainReason::Leaving, text.to_owned()));
        }
        // Where few endpoints serve, so small a part may stay that it is none.
        if drain.min_ready().health(ready, listed) < 1.0 && (shows || ready == 0) {
            let wanted = match drain.min_ready() {
                MinReady::ANY => "and one must be".to_owned(),
                share => format!("and {share} must be"),
            };
            return stays(format!(
                "In other clusters {ready} of {listed} endpoints are ready, {wanted}: endpoints of this cluster take the connections \
                 that those cannot."
            ));
        }
        if shows {
            return stays(
                "By the cluster selection of this name, clients in this cluster may use no other.".to_owned(),
            );
        }
        let serving = others.iter().map(|(cluster, _)| cluster.as_str()).collect::<Vec<_>>().join(", ");
        Some(self.report_drained_instances(export, &serving))
    }

    /// What remains to be said once no import uses the endpoints: whether instances are left in Cloud Map.
    fn report_drained_instances(&self, export: &ServiceExport, serving: &str) -> (DrainReason, String) {
        let done = format!("Clients use {serving}.");
        if self.traffic(export).is_part() {
            let text = "In Cloud Map, the share of the traffic that the annotation or the Cutover asks for stays.";
            return (DrainReason::Drained, format!("{done} {text}"));
        }
        let held = self.knowledge.exports().into_iter().flat_map(export::Exports::registrations);
        let targets = held.filter(|(_, held)| held.owner.is_same_service(&model::ClaimOwner::export(&export.key)));
        for (target, _) in targets {
            let Some(status) = self.instances.statuses.get(target) else { continue };
            match &status.share {
                Some(share) if share.reached.ours > 0 && share.complete => {
                    return (
                        DrainReason::Stays,
                        format!("{done} In Cloud Map service {target}: {}.", share.reached.text()),
                    );
                }
                _ if status.registered > 0 => {
                    return (
                        DrainReason::Leaving,
                        format!("{done} The instances in Cloud Map service {target} are withdrawn."),
                    );
                }
                _ => {}
            }
        }
        (DrainReason::Drained, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_back_begins_at_once_and_a_new_leader_waits() {
        let (mut drains, scope) = (Drains::default(), Scope::Cluster);
        let at = |n: u32| Duration::from_secs(7) + HOLD * n;
        let percent = |drains: &Drains| drains.of(&Scope::Cluster).map(Drain::percent);
        assert!(!drains.ask(&scope, &Ok(None), at(0)) && drains.wake().is_none());
        assert!(drains.ask(&scope, &Ok(Some(MinReady::MOST)), at(0)) && drains.step(at(9)).is_empty());
        let unclear = drain::read([Some("yes"), None], ["drain", "min"]);
        assert!(!drains.ask(&scope, &unclear, at(0)));
        assert!(drains.ask(&scope, &Ok(None), at(0)));
        assert_eq!((percent(&drains), drains.wake()), (Some(75), Some(at(1))));
        assert!(!drains.ask(&scope, &Ok(None), at(1)), "planning it again takes no step");

        let published = drains.of(&scope).unwrap();
        for (mut drains, wake) in [(drains, at(1)), (Drains::default(), at(2))] {
            drains.resume(scope.clone(), published);
            assert!(!drains.ask(&scope, &Ok(None), at(1)));
            assert_eq!((percent(&drains), drains.wake()), (Some(75), Some(wake)));
            let steps = [at(2), at(3), at(4)].map(|now| (drains.step(now).len(), percent(&drains)));
            assert_eq!(steps, [(1, Some(50)), (1, Some(25)), (1, None)]);
            assert_eq!(drains.wake(), None);
        }
    }
}
