//! What must hold at every moment of what is registered in Cloud Map, and of the claims to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use model::ClaimState;

use super::{
    DEPARTURE,
    check::NEWS,
    claims::{Claim, Claims, Instance, candidates, claims, exported, places},
    expect::{Name, live},
    ledger::Ledgers,
    scenario::{Kind, Scenario},
    world::{Cluster, Version, World, record},
};

/// Until what people deleted of a ledger is there again: an audit every 5 minutes, which has to fail for one.
pub(crate) const REPAIR: Duration = Duration::from_mins(8);
/// From a decision to the instance: a discovery, an operation, a process that stood still within its Lease.
const DECIDED: Duration = Duration::from_secs(12);
/// How old the reading may be that shows that a cluster is the only one of its ClusterSet.
const READ: Duration = Duration::from_secs(30);
/// How long who loses a name keeps its endpoints there: two times the default of `--claim-delay`.
const HANDOVER: Duration = Duration::from_secs(20);
/// How often who loses a name looks for instances of its successor, at least.
const SUCCESSION: Duration = Duration::from_secs(20);
/// Who loses a name to another cluster waits until it has heard of that one afterwards.
const HEARTBEAT: Duration = Duration::from_secs(20);
/// How long one has to be the first of the claimants to have the name: the default of `--claim-delay`, as far as it is seen.
const HOLDS: Duration = Duration::from_secs(8);

/// Who was refused a service looks this often whether its owner has deleted it meanwhile.
pub(crate) const REFUSED_AGAIN: Duration = Duration::from_mins(5);

/// A want of users: index of the cluster, its [`Cluster::group`], the target, the Kubernetes name, and whether it is exported.
type Want = (usize, String, Name, Name, bool);

/// By target.
type Instances = BTreeMap<Name, BTreeSet<Instance>>;

/// Since when something is so without a break.
#[derive(Debug, Clone, Copy)]
struct Since {
    wanted: Duration,
    /// With ready endpoints.
    ready: Option<Duration>,
}

/// When a Kubernetes name is, or was, the first of all claimants.
#[derive(Debug, Clone, Copy)]
struct First {
    since: Duration,
    /// `None`: it still is.
    until: Option<Duration>,
    /// Until when it had been that for long enough to have the name.
    held: Option<Duration>,
}

/// What the checks remember.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    /// The versions of the clusters and of Cloud Map that were looked at.
    seen: (Vec<Version>, u64),
    ledgers: Ledgers,
    wants: BTreeMap<Want, Since>,
    /// Who wanted a name last by an export: what is deleted hands nothing over.
    exported: BTreeSet<(usize, Name, Name)>,
    /// The date of each claim, since when it has had it, and whether its owner was unable.
    dates: BTreeMap<Want, (i64, Duration, bool)>,
    /// By the ledger's namespace and by target.
    first: BTreeMap<(String, Name), BTreeMap<Name, First>>,
    /// By the same: when the first claimant said last that it has nothing to register, or nobody was able.
    unserved: BTreeMap<(String, Name), Duration>,
    /// When a cluster, by the ledger's namespace and its UID, was the only one in its ClusterSet last.
    sole: BTreeMap<(String, String), Duration>,
    there: Instances,
    /// When a target had instances of others last, beside which a share can be 0.
    others: BTreeMap<Name, Duration>,
    /// When a target had instances of a cluster last that is not drained.
    undrained: BTreeMap<Name, Duration>,
    /// When a target's Cloud Map service was there last that was made for a group.
    made_for: BTreeMap<(Name, String), Duration>,
    /// Since when a target has instances of several Kubernetes names.
    mixed: BTreeMap<Name, Duration>,
}

impl Registered {
    /// Looks at everything that happened since the last time. Gives what must not be.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<(&'static str, String)> {
        let (now, clusters) = (world.began.elapsed(), &world.clusters);
        let seen = (world.versions(), world.registry.with(|cloudmap, _| cloudmap.revision()));
        if std::mem::replace(&mut self.seen, seen.clone()) == seen {
            return None;
        }
        // What people delete of a ledger is written anew by the next heartbeat, or after an audit.
        let torn = world.torn.is_some_and(|at| now <= at + REPAIR);
        // Who is silent says of a claim that users gave up and made again what was before, and learns of it much later.
        let redates = torn || world.has_silence(NEWS);
        let claims = claims(clusters);
        self.note_wants(&claims, now);
        let read = world.registry.with(|cloudmap, _| self.ledgers.read(cloudmap).map(|()| places(cloudmap)));
        let mut refused = BTreeSet::new();
        let there: Instances = match read {
            Ok(places) => {
                for (target, claims) in &claims {
                    let Some(place) = places.get(target) else { continue };
                    let of = claims.iter().filter(|claim| place.refuses(claim, &clusters[claim.cluster].uid));
                    refused.extend(of.map(|claim| (claim.cluster, target.clone(), claim.owner.clone())));
                }
                let made_for =
                    places.iter().filter_map(|(target, place)| Some((target.clone(), place.made_for.clone()?)));
                self.made_for.extend(made_for.map(|made_for| (made_for, now)));
                let others = places.iter().filter(|(_, place)| place.others > 0);
                self.others.extend(others.map(|(target, _)| (target.clone(), now)));
                let stays = |instance: &Instance| !is_drained(clusters, instance);
                let undrained = places.iter().filter(|(_, place)| place.instances.iter().any(stays));
                self.undrained.extend(undrained.map(|(target, _)| (target.clone(), now)));
                places.into_iter().map(|(target, place)| (target, place.instances)).collect()
            }
            Err(_) if torn => return None,
            Err(why) => return Some(("every head can be read", why)),
        };
        self.note_first(now);
        let checks = [
            ("every instance has a record", self.unrecorded(world, &there).filter(|_| !torn)),
            ("a claim keeps its date", self.redated(clusters, now).filter(|_| !redates)),
            ("who is not the first claimant registers nothing", self.usurped(&there, scenario, now).filter(|_| !torn)),
            ("a name has one owner", self.mixed(&there, scenario, now)),
            ("a name that is registered stays", self.emptied(world, (&claims, &refused), &there, scenario, now)),
        ];
        self.there = there;
        checks.into_iter().find_map(|(check, what)| Some((check, what?)))
    }

    fn note_wants(&mut self, claims: &Claims, now: Duration) {
        let mut wants = BTreeMap::new();
        for (target, claims) in claims {
            for Claim { cluster, group, owner, exported, endpoints, .. } in claims {
                let of = (*cluster, target.clone(), owner.clone());
                if *exported {
                    self.exported.insert(of);
                } else {
                    self.exported.remove(&of);
                }
                let want = (*cluster, group.clone(), target.clone(), owner.clone(), *exported);
                let before = self.wants.get(&want);
                let ready = before.and_then(|since| since.ready).unwrap_or(now);
                let ready = (!endpoints.is_empty()).then_some(ready);
                wants.insert(want, Since { wanted: before.map_or(now, |since| since.wanted), ready });
            }
        }
        self.wants = wants;
    }

    /// An instance that no record of its cluster leads to: nobody would find it after a crash.
    fn unrecorded(&self, world: &World, there: &Instances) -> Option<String> {
        for (target, instance) in there.iter().flat_map(|(target, of)| of.iter().map(move |it| (target, it))) {
            let Instance { uid, group, .. } = instance;
            let of_set = |(ns, _): &(&str, _)| namespace(group).is_none_or(|namespace| namespace == **ns);
            let mut records = self.ledgers.of(uid).filter(of_set).flat_map(|(_, ledger)| ledger.records.keys());
            let kept = || world.clusters.iter().any(|cluster| cluster.uid == *uid && kept(cluster, target));
            let known = records.any(|recorded| recorded == target) || namespace(group).is_none() && kept();
            // What it registered outside any ClusterSet is marked anew before that is recorded in the ledger.
            let joins = world.joined.get(uid).is_some_and(|at| world.began.elapsed() <= *at + NEWS);
            if !known && !joins && !world.abandoned.contains(&(uid.clone(), group.clone())) {
                return Some(format!("{instance:?} in {}/{}", target.0, target.1));
            }
        }
        None
    }

    /// A claim that has another date than before, though its object asked for the name all the time.
    fn redated(&mut self, clusters: &[Cluster], now: Duration) -> Option<String> {
        let (mut found, mut recorded) = (None, BTreeSet::new());
        for (index, cluster) in clusters.iter().enumerate() {
            for (set, ledger) in self.ledgers.of(&cluster.uid) {
                for (target, record) in &ledger.records {
                    let group = format!("clusterset/{}", set.trim_start_matches("clusterset-"));
                    let want = (index, group, target.clone(), record.owner.clone(), record.exported);
                    let Some(since) = self.wants.get(&want).copied() else { continue };
                    let long = now.saturating_sub(since.wanted) > NEWS;
                    let before = self.dates.get(&want).copied();
                    let unable = record.state == ClaimState::Unable;
                    let since = before.filter(|(date, ..)| *date == record.claimed).map_or(now, |(_, since, _)| since);
                    self.dates.insert(want.clone(), (record.claimed, since, unable));
                    // A head that a former leader wrote may land late, and stays until the next one of the new leader.
                    // Who is able again claims the name anew.
                    if before.is_some_and(|(date, seen, was_unable)| {
                        long && date != record.claimed && !was_unable && now > seen + HEARTBEAT + DECIDED
                    }) {
                        found = Some(format!("{} {target:?}: {record:?}, before {before:?}", cluster.id));
                    }
                    recorded.insert(want);
                }
            }
        }
        // Whoever waits while another one of its cluster has the record is dated anew by the next leader.
        let passed: BTreeSet<_> =
            recorded.iter().map(|(cluster, group, target, ..)| (*cluster, group, target)).collect();
        self.dates.retain(|want, _| {
            let (cluster, group, target, ..) = want;
            self.wants.contains_key(want) && (recorded.contains(want) || !passed.contains(&(*cluster, group, target)))
        });
        found
    }

    fn note_first(&mut self, now: Duration) {
        self.sole.extend(self.ledgers.sole().map(|(set, uid)| ((set.to_owned(), uid.to_owned()), now)));
        let mut firsts = self.ledgers.firsts();
        for key in firsts.keys() {
            self.first.entry(key.clone()).or_default();
        }
        for (key, known) in &mut self.first {
            let present = firsts.remove(key);
            if present.as_ref().is_none_or(|(_, state)| *state != ClaimState::Serves) {
                self.unserved.insert(key.clone(), now);
            }
            let present = present.map(|(owner, _)| owner);
            for (owner, was) in known.iter_mut().filter(|(_, was)| was.until.is_none()) {
                if Some(owner) != present.as_ref() {
                    was.until = Some(now);
                    was.held = was.held.max(Some(now).filter(|now| *now >= was.since + HOLDS));
                }
            }
            if let Some(owner) = present {
                let is = known.entry(owner).or_insert(First { since: now, until: None, held: None });
                if is.until.take().is_some() {
                    is.since = now;
                }
            }
        }
    }

    /// An instance that came though another Kubernetes name has the name by all ledgers.
    fn usurped(&self, there: &Instances, scenario: &Scenario, now: Duration) -> Option<String> {
        // Who hands over to a cluster that is silent goes on until that one has left.
        let silent = if scenario.kinds.contains(&Kind::Moves) { DEPARTURE } else { Duration::ZERO };
        for (target, of) in there {
            let before = self.there.get(target);
            // What was registered outside any ClusterSet gets the mark of the one that the cluster joins.
            let known = |one: &Instance| {
                let same = |other: &&Instance| {
                    (&one.uid, &one.owner, &one.address) == (&other.uid, &other.owner, &other.address)
                };
                before.is_some_and(|before| before.iter().any(|other| same(&other)))
            };
            for instance in of.iter().filter(|instance| !known(instance)) {
                let Some(namespace) = namespace(&instance.group) else { continue };
                let first = self.first.get(&(namespace.clone(), target.clone()));
                let within = |last: Option<Duration>, time| last.is_some_and(|last| now <= last + time);
                // Who is alone waits for nobody.
                if within(self.sole.get(&(namespace, instance.uid.clone())).copied(), READ + DECIDED) {
                    continue;
                }
                let may =
                    first.and_then(|first| first.get(&instance.owner)).is_some_and(|First { until, held, .. }| {
                        until.is_none()
                            || within(*until, DECIDED)
                            || within(*held, HANDOVER + HEARTBEAT + DECIDED + silent)
                    });
                // Who had the name keeps it until its successor is there.
                let present = first.into_iter().flatten().find(|(_, first)| first.until.is_none());
                let succeeded = |of: &BTreeSet<Instance>| {
                    present.is_some_and(|(owner, _)| of.iter().any(|other| other.owner == *owner))
                };
                let keeps = first.and_then(|first| first.get(&instance.owner)).is_some_and(|it| it.held.is_some())
                    && !before.is_some_and(succeeded);
                // Who has the name that its Kubernetes name implies waits for nobody of whom it has not heard.
                let unheard = instance.owner == *target
                    && first.is_some_and(|first| first.values().all(|first| now <= first.since + DECIDED));
                if !may && !keeps && !unheard && scenario.sees_claims() {
                    return Some(format!("{instance:?} in {}/{}; first were {first:?}", target.0, target.1));
                }
            }
        }
        None
    }

    /// A target with instances of several Kubernetes names for longer than one hands over to another.
    fn mixed(&mut self, there: &Instances, scenario: &Scenario, now: Duration) -> Option<String> {
        let owners =
            |of: &BTreeSet<Instance>| of.iter().map(|instance| instance.owner.clone()).collect::<BTreeSet<_>>();
        let mixed = there.iter().filter(|(_, of)| owners(of).len() > 1);
        self.mixed =
            mixed.map(|(target, _)| (target.clone(), self.mixed.get(target).copied().unwrap_or(now))).collect();
        // Another first claimant begins another hand-over.
        let changed = |target: &Name| {
            let of_target = self.first.iter().filter(|((_, of), _)| of == target).flat_map(|(_, first)| first.values());
            of_target.flat_map(|first| first.until.into_iter().chain([first.since])).max().unwrap_or_default()
        };
        let long = |(target, since): &(&Name, &Duration)| {
            now.saturating_sub((**since).max(changed(target))) > HANDOVER + HEARTBEAT + DECIDED + SUCCESSION
        };
        let (target, _) = self.mixed.iter().find(long).filter(|_| scenario.is_gentle())?;
        Some(format!("{}/{} has instances of {:?}", target.0, target.1, owners(&there[target])))
    }

    /// Whether the endpoint of an instance lives, and its cluster still wants it in the target.
    fn should_stay(&self, world: &World, target: &Name, instance: &Instance) -> bool {
        let clusters = &world.clusters;
        let Some(index) = clusters.iter().position(|cluster| cluster.uid == instance.uid) else { return false };
        let (api, owner) = (&clusters[index].api, &instance.owner);
        let was_exported = self.exported.contains(&(index, target.clone(), owner.clone()));
        clusters[index].group() == instance.group
            && !clusters[index].leaving
            && !world.is_passed_on(&instance.address)
            && live(api, owner).contains(&instance.address)
            && api.get("services", &owner.0, &owner.1).is_some()
            && (!was_exported || exported(&clusters[index], owner).is_some())
    }

    /// A target that is empty now, though an address that was there lives on and whoever may have the name has endpoints.
    fn emptied(
        &self,
        world: &World,
        (claims, refused): (&Claims, &BTreeSet<(usize, Name, Name)>),
        there: &Instances,
        scenario: &Scenario,
        now: Duration,
    ) -> Option<String> {
        let long = if scenario.is_gentle() { 2 * HANDOVER } else { NEWS };
        let clusters = &world.clusters;
        let of_group = |of: &BTreeSet<Instance>, group: &str| -> Vec<Instance> {
            of.iter().filter(|instance| instance.group == group).cloned().collect()
        };
        let before = self.there.iter().flat_map(|(target, of)| {
            let groups: BTreeSet<&str> = of.iter().map(|instance| &*instance.group).collect();
            groups.into_iter().map(move |group| (target, group, of_group(of, group)))
        });
        let is_empty = |target, group| there.get(target).is_none_or(|of| of_group(of, group).is_empty());
        for (target, group, former) in before.filter(|(target, group, _)| is_empty(*target, group)) {
            let of_group = || claims.get(target).into_iter().flatten().filter(|claim| claim.group == group);
            let candidates = candidates(target, of_group());
            let may = |claim: &&Claim| !refused.contains(&(claim.cluster, target.clone(), claim.owner.clone()));
            let able: BTreeSet<&Name> =
                of_group().filter(may).filter(|claim| !claim.endpoints.is_empty()).map(|claim| &claim.owner).collect();
            let wants = |owner: &Name| {
                let owner = owner.clone();
                let wants = self.wants.iter();
                wants.filter(move |((_, of, at, who, _), _)| of == group && at == target && *who == owner)
            };
            let living: Vec<_> = former.iter().filter(|it| self.should_stay(world, target, it)).collect();
            // Where users gave the name up, whoever else has its Kubernetes name takes it as soon as that one is the first.
            let given_up =
                living.iter().all(|it| wants(&it.owner).all(|((index, ..), _)| clusters[*index].uid != it.uid));
            let firsts = namespace(group).and_then(|namespace| self.first.get(&(namespace, target.clone())));
            let first = |owner: &Name| firsts.filter(|_| given_up)?.get(owner).map(|first| first.since);
            let awaited = firsts.filter(|_| given_up).is_some_and(|firsts| {
                !candidates.keys().any(|owner| firsts.get(*owner).is_some_and(|first| first.until.is_none()))
            });
            // Who gave the name up may have been the first for so long that the others had withdrawn just before.
            let handed_over = firsts.into_iter().flatten().any(|(owner, First { since, until, .. })| {
                let until = until.unwrap_or(now);
                until >= *since + HANDOVER && now <= until + DECIDED && living.iter().all(|it| it.owner != *owner)
            });
            let ready = |owner: &Name| {
                let mut ready = wants(owner).filter_map(|(_, since)| Some(since.wanted.max(since.ready?)));
                ready.any(|since| now.saturating_sub(since.max(first(owner).unwrap_or_default())) > long)
            };
            // Whoever wins over it and has something to register is registered first, however long that takes.
            let unserved = namespace(group).and_then(|namespace| self.unserved.get(&(namespace, target.clone())));
            let taken = unserved.is_none_or(|at| now > *at + HANDOVER + HEARTBEAT + DECIDED)
                && living.iter().any(|it| able.contains(&it.owner) && !given_up && ready(&it.owner));
            let uncontested = candidates.len() == 1 && living.iter().all(|it| candidates.contains_key(&it.owner));
            // A reading of the last half minute shows the instances of others.
            let shared = claims.get(target).into_iter().flatten().any(|claim| claim.share.is_some());
            let shared = shared && self.others.get(target).is_some_and(|at| now <= *at + READ + DECIDED);
            // So whoever is drained may go in the moment in which others lose all that they have, and comes back then.
            let drained = living.iter().all(|it| is_drained(clusters, it));
            let drained = drained && self.undrained.get(target).is_some_and(|at| now <= *at + READ + DECIDED);
            let meddled = world.meddled.get(target).is_some_and(|at| now <= *at + NEWS);
            // Another cluster may be the first one to look again.
            let of_others = |((of, made_for), at): (&(Name, String), &Duration)| {
                of == target && *made_for != group && now <= *at + REFUSED_AGAIN + DECIDED
            };
            if !meddled
                && !shared
                && !drained
                && !handed_over
                && !awaited
                && !self.made_for.iter().any(of_others)
                && !living.is_empty()
                && !candidates.is_empty()
                && (taken || candidates.keys().all(|owner| ready(owner)) && (uncontested || scenario.is_gentle()))
            {
                return Some(format!("{}/{} had {living:?}, and may have {candidates:?}", target.0, target.1));
            }
        }
        None
    }
}

/// Whether the cluster of an instance is drained.
fn is_drained(clusters: &[Cluster], instance: &Instance) -> bool {
    clusters.iter().any(|cluster| cluster.uid == instance.uid && cluster.is_drained())
}

/// Whether a cluster outside any ClusterSet has a registration record of a target.
fn kept(cluster: &Cluster, target: &Name) -> bool {
    let record = record(&cluster.api);
    let mut records = record["registrations"].as_array().into_iter().flatten();
    records.any(|record| record["namespace"] == *target.0 && record["service"] == *target.1)
}

/// The namespace of a group's ledger.
fn namespace(group: &str) -> Option<String> {
    group.strip_prefix("clusterset/").map(|set| format!("clusterset-{set}"))
}
