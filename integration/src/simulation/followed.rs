//! That instances follow endpoints within a time where all writes pass, whatever cannot be read: what is registered was
//! read before, and the leader knows what it wrote since.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    check::is_old,
    claims::{Claim, claims, places},
    expect::Name,
    scenario::Scenario,
    world::{Version, World},
};

/// From a change of endpoints to that of instances: a plan, an operation, and for those that go, the first one that comes.
const FOLLOWS: Duration = Duration::from_secs(30);
/// Where the ends of operations cannot be read, an instance may wait for its last operation: two minutes until that is given
/// up, and a reading that may have been refused a minute before.
const GIVEN_UP: Duration = Duration::from_mins(4);

/// How long instances do not follow at most, where writes fail as well, from when nothing fails any more.
pub(crate) const INSTANCES: Duration = GIVEN_UP.saturating_add(FOLLOWS);

/// A cluster's UID and a target.
type ClusterTarget = (String, Name);

/// Where, whether it lacks the instance or still has it, and the endpoint.
type Late = (ClusterTarget, bool, String);

/// What the check remembers.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    /// The versions of the clusters and of Cloud Map that were looked at.
    seen: (Vec<Version>, u64),
    /// Where everything was registered once since the present claim came.
    settled: BTreeSet<ClusterTarget>,
    /// What is otherwise than it should be, and since when.
    late: BTreeMap<Late, Duration>,
}

impl Followed {
    /// Looks at what has not happened yet. Gives what should have.
    pub(crate) fn look(&mut self, world: &World, scenario: &Scenario) -> Option<(&'static str, String)> {
        if !scenario.fails_in_readings_only() && !scenario.reuses_addresses() {
            return None;
        }
        let now = world.began.elapsed();
        let seen = (world.versions(), world.registry.with(|cloudmap, _| cloudmap.revision()));
        if self.seen != seen {
            self.seen = seen;
            self.compare(world, now);
        }
        let blind = world.blind.map(|until| until + GIVEN_UP).unwrap_or_default();
        // New pods have new ids, so they wait for no operation.
        let begun = |lacks: bool, since: Duration| if lacks { since } else { since.max(blind) };
        let (((cluster, target), lacks, endpoint), since) = if scenario.reuses_addresses() {
            // A new pod may have the id of one whose operation is awaited.
            let mut late = self.late.iter_mut();
            late.find_map(|(late, since)| is_old(since, now, INSTANCES, world).then_some((late, *since)))?
        } else {
            let mut late = self.late.iter().map(|(late, since)| (late, *since));
            late.find(|((_, lacks, _), since)| now > begun(*lacks, *since) + FOLLOWS)?
        };
        let what = if *lacks { "is not registered" } else { "is still registered" };
        let what = format!("{endpoint} of {cluster} {what} in {}/{} since {since:.1?}", target.0, target.1);
        Some(("instances follow endpoints while writes pass", what))
    }

    fn compare(&mut self, world: &World, now: Duration) {
        let places = world.registry.with(|cloudmap, _| places(cloudmap));
        let (mut claimed, mut late) = (BTreeSet::new(), BTreeMap::new());
        for (target, claims) in claims(&world.clusters) {
            // Which of several owners has a target is looked at elsewhere, and so is what is registered of a share.
            let differs = |claim: &Claim| claim.owner != claims[0].owner || claim.group != claims[0].group;
            if claims.iter().any(|claim| differs(claim) || claim.share.is_some()) {
                continue;
            }
            for Claim { cluster, endpoints, .. } in &claims {
                let uid = &world.clusters[*cluster].uid;
                let there = places.get(&target).into_iter().flat_map(|place| &place.instances);
                let there = there.filter(|instance| instance.uid == *uid).map(|instance| instance.endpoint.clone());
                let there: BTreeSet<String> = there.collect();
                let place = (uid.clone(), target.clone());
                claimed.insert(place.clone());
                if there == *endpoints && !there.is_empty() {
                    self.settled.insert(place.clone());
                }
                // A service that was not read yet has to be read first.
                if !self.settled.contains(&place) {
                    continue;
                }
                let lacking = endpoints.difference(&there).map(|endpoint| (true, endpoint));
                let left = there.difference(endpoints).map(|endpoint| (false, endpoint));
                for (lacks, endpoint) in lacking.chain(left) {
                    let key = (place.clone(), lacks, endpoint.clone());
                    let since = self.late.get(&key).copied().unwrap_or(now);
                    late.insert(key, since);
                }
            }
        }
        self.settled.retain(|place| claimed.contains(place));
        self.late = late;
    }
}
