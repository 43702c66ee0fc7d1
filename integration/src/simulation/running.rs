//! What becomes of a step: how it begins and ends in a world.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::json;

use super::{
    cloudmap::{ROWS, Registry},
    kubernetes::{Fault, FaultId, Moment, Scope},
    machine::Machine,
    schedule::{Action, Step},
    silences::{Silence, Way},
    users::is_terminating,
    world::{self, Cluster, Role, World},
};
use emulator::{Effect, Fault as Rule, Latency};

/// What has been begun and has to be ended.
#[derive(Debug, Default)]
pub(crate) struct Running {
    faults: BTreeMap<usize, FaultId>,
    /// The replicas that lose events in the end, and what keeps them back until then.
    losing: BTreeMap<usize, (String, FaultId)>,
    rules: BTreeMap<usize, Vec<u64>>,
    /// The service that they registered in, and whether they made it.
    foreigners: BTreeMap<usize, (String, bool)>,
    /// The steps that deleted a namespace: one that terminates already ends when the step before says so.
    namespaces: BTreeSet<usize>,
    paused: BTreeMap<usize, Machine>,
}

impl Running {
    pub(crate) fn begin(&mut self, world: &mut World, number: usize, step: &Step) {
        world.trace.line(|| format!("step {number}: {:?} for {:?}", step.action, step.lasts));
        if step.action.holds_up() {
            world.held_up.insert(number);
        }
        match &step.action {
            Action::Scale { place, to, rolled } => world.scale(*place, *to, *rolled),
            Action::Export(place) => world.export(*place),
            Action::Unexport(place) => world.unexport(*place),
            Action::RemoveService(place) => world.remove_service(*place),
            Action::Shape { place, shape } => world.shape(*place, *shape),
            Action::Ports { place, index } => world.change_ports(*place, *index),
            Action::Label { place, tier } => world.label_export(*place, *tier),
            Action::Annotate { place, host, python } => world.annotate(*place, *host, *python),
            Action::Share { cluster, share } => world.share(*cluster, *share),
            Action::Instruct { cluster, instruction } => world.instruct(*cluster, *instruction),
            Action::Tasks(count) => world.run_tasks(*count),
            Action::Orders(tasks) => world.run_orders(*tasks),
            Action::NameTarget { place, wish } => world.name_target(*place, *wish),
            Action::Namespace { cluster, namespace } => self.delete_namespace(world, number, *cluster, namespace),
            Action::Crash { cluster, role, of_registry, nth, after } => {
                crash_at_write(world, (*cluster, *role), *of_registry, *nth, *after);
            }
            Action::Kill { cluster, role } => world.acting(*cluster, *role).kill(),
            Action::Stop { cluster, role } => world.acting(*cluster, *role).stop(),
            Action::Pause { cluster, role } => {
                let machine = world.acting(*cluster, *role).machine.clone();
                machine.pause(true);
                self.paused.insert(number, machine);
            }
            Action::Clock { cluster, role, offset } => world.acting(*cluster, *role).set_clock(*offset),
            Action::Kubernetes { cluster, role, scope, fault } => {
                let replica = role.map(|role| world.acting(*cluster, role).name.clone());
                let id = world.clusters[*cluster].api.inject(Scope { replica, ..scope.clone() }, fault.clone());
                self.faults.insert(number, id);
            }
            // What changes until the end of the step is kept back, and lost then.
            Action::LoseEvents { cluster, role, kind } => {
                let name = world.acting(*cluster, *role).name.clone();
                let scope = Scope::replica(&name).of(kind);
                self.losing
                    .insert(number, (name, world.clusters[*cluster].api.inject(scope, Fault::Stale(step.lasts))));
            }
            Action::Edit { cluster, which, edit } => world.edit(*cluster, *which, *edit),
            Action::Compact { cluster, kind } => world.clusters[*cluster].api.compact(kind),
            Action::Cut { cluster } => world.network.iter().for_each(|network| network.cut(*cluster)),
            Action::Divide { from, to, both } => {
                let ways = [(*from, *to)].into_iter().chain(both.then_some((*to, *from))).collect();
                world.network.iter().for_each(|network| network.divide(number, BTreeSet::clone(&ways)));
            }
            Action::Blackhole { from, to, streams } => {
                let others =
                    (0..world.clusters.len()).filter(|other| other != from && to.is_none_or(|to| to == *other));
                let ways: BTreeSet<_> = others.map(|other| (*from, other)).collect();
                if *streams {
                    let both = ways.iter().flat_map(|(from, to)| [(*from, *to), (*to, *from)]).collect();
                    world.network.iter().for_each(|network| network.divide(number, BTreeSet::clone(&both)));
                }
                world.network.iter().for_each(|network| network.blackhole(number, ways.clone()));
            }
            Action::Truncate(rows) => world.registry.set_rows(*rows),
            Action::Registry { rules, replica } => self.fail_calls(world, number, step.lasts, rules, *replica),
            Action::Lag(lag) => set_lag(world, *lag),
            Action::Foreigner { target } => self.register_foreigner(world, number, *target),
            Action::Meddle { which, how } => world.meddle(*which, *how),
            Action::DeleteKey { cluster, dies: Some(Moment::Before) } => world.acting(*cluster, Role::Leader).kill(),
            Action::DeleteKey { cluster, dies: None | Some(Moment::After) } => world.delete_key(*cluster),
            Action::Weigh { cluster, namespace, weights } => world.weigh(*cluster, namespace, Some(weights)),
            Action::Drain { cluster, drained } => world.drain(*cluster, *drained),
            Action::Rename { cluster, id } => world.rename(*cluster, id),
            Action::Move { cluster, told: true, .. } => world.leave(*cluster, true),
            Action::Move { cluster, told: false, to } => world.join(*cluster, to),
            Action::Silence { cluster, way } => self.cut_off(world, number, *cluster, *way),
            Action::Intrude { place, what } => world.intrude(number, *place, *what),
        }
    }

    fn delete_namespace(&mut self, world: &World, number: usize, cluster: usize, namespace: &str) {
        let api = &world.clusters[cluster].api;
        if api.get("namespaces", "", namespace).is_some_and(|namespace| !is_terminating(&namespace)) {
            drop(api.delete("namespaces", "", namespace));
            self.namespaces.insert(number);
        }
    }

    /// Has calls fail by these rules: those of one replica, or all.
    fn fail_calls(
        &mut self,
        world: &mut World,
        number: usize,
        lasts: Duration,
        rules: &[Rule],
        replica: Option<(usize, Role)>,
    ) {
        if rules.iter().any(|rule| rule.operation.as_deref() == Some("GetOperation")) {
            world.blind = world.blind.max(Some(world.began.elapsed() + lasts));
        }
        let caller = replica.map(|(cluster, role)| world.acting(cluster, role).name.clone());
        let rules = rules.iter().map(|rule| Rule { caller: caller.clone(), ..rule.clone() });
        let added =
            failing(world, number).with(|cloudmap, _| rules.filter_map(|rule| cloudmap.add_fault(rule).ok()).collect());
        self.rules.insert(number, added);
    }

    fn register_foreigner(&mut self, world: &mut World, number: usize, (namespace, service): (&str, &str)) {
        if let Some((service, made)) = world.foreign_service(namespace, service) {
            let body = json!({"ServiceId": service, "InstanceId": format!("ecs-{number}"),
                "Attributes": {"AWS_INSTANCE_IPV4": format!("172.16.0.{}", number % 250 + 1), "AWS_INSTANCE_PORT": "80"}});
            world.registry.call("ecs", "RegisterInstance", &body);
            self.foreigners.insert(number, (service, made));
        }
    }

    /// Lets neither replica of a cluster reach what the way says, or another cluster: who is connected is not silent. One
    /// cluster is silent at a time, so that there are others that hear it.
    fn cut_off(&mut self, world: &mut World, number: usize, cluster: usize, way: Way) {
        if world.silent.is_some() {
            return;
        }
        world.silent = Some(Silence { step: number, cluster, since: world.began.elapsed() });
        let count = world.clusters.len();
        let Cluster { api, replicas, .. } = &world.clusters[cluster];
        if way != Way::CloudMap {
            self.faults.insert(number, api.inject(Scope::all(), Fault::Partitioned));
        }
        if way != Way::Kubernetes {
            let rules = replicas.iter().map(|slot| Rule::on_any(Effect::DropRequest).for_caller(&slot.name));
            let added =
                world.registry.with(|cloudmap, _| rules.filter_map(|rule| cloudmap.add_fault(rule).ok()).collect());
            self.rules.insert(number, added);
        }
        let others = (0..count).filter(|other| *other != cluster);
        let ways: BTreeSet<_> = others.flat_map(|other| [(cluster, other), (other, cluster)]).collect();
        world.network.iter().for_each(|network| network.divide(number, BTreeSet::clone(&ways)));
    }

    pub(crate) fn end(&mut self, world: &mut World, number: usize, step: &Step) {
        world.held_up.remove(&number);
        match &step.action {
            Action::Namespace { cluster, namespace } if self.namespaces.remove(&number) => {
                let api = &world.clusters[*cluster].api;
                api.finish_namespace(namespace);
                drop(api.put("namespaces", world::namespace(namespace)));
            }
            Action::Divide { .. } => world.network.iter().for_each(|network| network.unite(number)),
            Action::Weigh { cluster, namespace, .. } => world.weigh(*cluster, namespace, None),
            Action::Blackhole { .. } => world.network.iter().for_each(|network| {
                network.unite(number);
                network.restore(number);
            }),
            Action::Orders(tasks) => world.run_orders(*tasks),
            Action::Pause { .. } => {
                if let Some(machine) = self.paused.remove(&number) {
                    machine.pause(false);
                }
            }
            Action::Kubernetes { cluster, .. } => {
                if let Some(id) = self.faults.remove(&number) {
                    world.clusters[*cluster].api.clear(id);
                }
            }
            Action::LoseEvents { cluster, kind, .. } => {
                if let Some((name, id)) = self.losing.remove(&number) {
                    let api = &world.clusters[*cluster].api;
                    api.lose_events(&name, kind);
                    api.clear(id);
                }
            }
            Action::Registry { .. } => {
                for id in self.rules.remove(&number).unwrap_or_default() {
                    failing(world, number).with(|cloudmap, _| cloudmap.remove_fault(id));
                }
            }
            Action::Silence { cluster, .. } => {
                if world.silent.take_if(|silence| silence.step == number).is_some() {
                    world.heard = Some(world.began.elapsed());
                }
                if let Some(id) = self.faults.remove(&number) {
                    world.clusters[*cluster].api.clear(id);
                }
                for id in self.rules.remove(&number).unwrap_or_default() {
                    world.registry.with(|cloudmap, _| cloudmap.remove_fault(id));
                }
                world.network.iter().for_each(|network| network.unite(number));
            }
            Action::Intrude { .. } => world.withdraw(number),
            Action::Truncate(_) => world.registry.set_rows(ROWS),
            Action::Lag(_) => set_lag(world, Duration::from_millis(1500)),
            Action::Shape { place, .. } | Action::Ports { place, .. } => world.settle_slices(*place),
            Action::DeleteKey { cluster, dies: Some(Moment::Before) } => world.delete_key(*cluster),
            Action::DeleteKey { cluster, dies: Some(Moment::After) } => world.acting(*cluster, Role::Leader).kill(),
            Action::Move { cluster, told: true, to } => world.join(*cluster, to),
            Action::Foreigner { .. } => {
                if let Some((service, made)) = self.foreigners.remove(&number) {
                    let body = json!({"ServiceId": service, "InstanceId": format!("ecs-{number}")});
                    world.registry.call("ecs", "DeregisterInstance", &body);
                    if made {
                        // It stays if it is not empty.
                        world.registry.call("ecs", "DeleteService", &json!({"Id": service}));
                    }
                }
            }
            _ => {}
        }
    }
}

/// Has a replica die at its `nth` write from now on: before the write, or after it.
fn crash_at_write(world: &mut World, (cluster, role): (usize, Role), of_registry: bool, nth: u32, after: bool) {
    let slot = world.acting(cluster, role);
    let (machine, name) = (slot.machine.clone(), slot.name.clone());
    let kill = move || machine.kill();
    if of_registry {
        world.home(world.clusters[cluster].site).crash_at_write(&name, nth, after, kill);
    } else {
        let moment = if after { Moment::After } else { Moment::Before };
        world.clusters[cluster].api.crash_at_write(&name, nth, moment, kill);
    }
}

/// The registry in which a step has calls fail.
fn failing(world: &World, step: usize) -> &Registry {
    world.abroad.as_ref().filter(|_| step % 2 == 1).unwrap_or(&world.registry)
}

/// How late the replicas of discovery learn of changes from now on.
fn set_lag(world: &World, longest: Duration) {
    for registry in world.registries() {
        registry
            .with(|cloudmap, _| {
                let mut settings = cloudmap.settings().clone();
                settings.discovery_lag = vec![Latency::range(Duration::ZERO, longest); 3];
                cloudmap.set_settings(settings)
            })
            .unwrap_or_default();
    }
}
