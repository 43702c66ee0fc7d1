use std::net::Ipv4Addr;

use proptest::{collection::vec, option, prelude::*};

use super::*;
use crate::plan::tests::{id, mk_slice};
use cluster::objects::{Endpoint as Row, EndpointSlice};
use model::{Hints, Protocol, SliceEndpoint};

/// Endpoints of one cluster: its name, its tier, and of each endpoint whether it is ready, not ready or shuts down.
type Cluster<'a> = (&'a str, usize, &'a str);

fn address(cluster: usize, n: usize) -> IpAddr {
    Ipv4Addr::new(10, u8::try_from(cluster).unwrap(), 0, u8::try_from(n).unwrap() + 1).into()
}

fn ports(names: &[&str]) -> Arc<[EndpointPort]> {
    let port =
        |name: &&str| EndpointPort { name: (*name).into(), protocol: Protocol::Tcp, port: 80, app_protocol: None };
    names.iter().map(port).collect()
}

fn endpoint(address: IpAddr, conditions: Conditions, names: &[&str]) -> PackedEndpoint {
    let endpoint =
        SliceEndpoint { address, conditions, hostname: None, zone: None, node: None, hints: Hints::default() };
    PackedEndpoint { endpoint, ports: ports(names) }
}

/// Each letter is an endpoint: `r` is ready, `t` shuts down, and any other is not ready.
fn candidates(clusters: &[Cluster<'_>]) -> BTreeMap<ClusterId, Candidates> {
    let of = |(n, (name, tier, letters)): (usize, &Cluster<'_>)| {
        let endpoint = |(m, letter)| {
            let conditions = match letter {
                'r' => Conditions::READY,
                't' => Conditions { ready: false, serving: true, terminating: true },
                _ => Conditions { ready: false, serving: false, terminating: false },
            };
            endpoint(address(n, m), conditions, &["http"])
        };
        let endpoints = letters.chars().enumerate().map(endpoint).collect();
        (id(name), Candidates { tier: *tier, drain: None, unreachable: false, endpoints })
    };
    clusters.iter().enumerate().map(of).collect()
}

/// What a cluster that shows nothing yet chooses.
fn chosen(
    local: &str,
    min_ready: MinReady,
    candidates: BTreeMap<ClusterId, Candidates>,
) -> BTreeMap<ClusterId, Vec<PackedEndpoint>> {
    let (local, weights) = (id(local), Weights::default());
    let around = Around { local: &local, slices: &[], min_ready, weights: &weights, step: 0, unknown: None };
    choose(candidates, &around).0
}

/// The slices that show these endpoints.
fn slices(chosen: &BTreeMap<ClusterId, Vec<PackedEndpoint>>) -> Vec<Arc<OwnSlice>> {
    let mut slices = Vec::new();
    for (source, endpoints) in chosen {
        for PackedEndpoint { endpoint, ports } in endpoints {
            let OwnSlice(slice) = &*mk_slice("slice", source.as_str());
            let row = Row {
                address: Some(endpoint.address),
                conditions: endpoint.conditions,
                target: None,
                about: Arc::default(),
            };
            let slice = EndpointSlice { ports: Arc::clone(ports), endpoints: [row].into(), ..slice.clone() };
            slices.push(Arc::new(OwnSlice(slice)));
        }
    }
    slices
}

/// What a name shows, over time.
struct Name {
    shown: BTreeMap<ClusterId, Vec<PackedEndpoint>>,
    min_ready: MinReady,
    drains: BTreeMap<&'static str, Drain>,
    unreachable: BTreeSet<&'static str>,
    weights: Weights,
    step: u8,
    unknown: Option<Serving>,
    spill: Spill,
}

impl Name {
    fn new(min_ready: &str) -> Self {
        let min_ready = min_ready.parse().unwrap();
        Self {
            shown: BTreeMap::new(),
            min_ready,
            drains: BTreeMap::new(),
            unreachable: BTreeSet::new(),
            weights: Weights::default(),
            step: 0,
            unknown: None,
            spill: Spill::Settled,
        }
    }

    /// How many ready endpoints each cluster shows then.
    fn with(&mut self, clusters: &[Cluster<'_>]) -> Vec<usize> {
        let slices = slices(&self.shown);
        let Self { min_ready, step, unknown, .. } = *self;
        let around = Around { local: &id("here"), slices: &slices, min_ready, weights: &self.weights, step, unknown };
        let mut candidates = candidates(clusters);
        for (name, drain) in &self.drains {
            candidates.get_mut(&id(name)).unwrap().drain = Some(*drain);
        }
        for name in &self.unreachable {
            candidates.get_mut(&id(name)).unwrap().unreachable = true;
        }
        (self.shown, self.spill) = choose(candidates, &around);
        let ready = |name: &str| {
            let shown = self.shown[&id(name)].iter();
            shown.filter(|packed| packed.endpoint.conditions.ready).count()
        };
        clusters.iter().map(|(name, ..)| ready(name)).collect()
    }

    /// The same after each of the steps.
    fn steps(&mut self, clusters: &[Cluster<'_>]) -> Vec<Vec<usize>> {
        let steps = (0..=STEPS).map(|step| {
            self.step = step;
            self.with(clusters)
        });
        steps.collect()
    }
}

const R50: &str = "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr";

#[test]
fn the_nearest_tier_serves_alone_while_it_is_well_and_the_next_one_gets_what_it_cannot_take() {
    for (min_ready, clusters, expected) in [
        ("70%", [("here", 0, "rr"), ("near", 1, R50), ("far", 2, "rr")], [2, 0, 0]),
        ("70%", [("here", 0, ""), ("near", 1, R50), ("far", 2, "rr")], [0, 50, 0]),
        ("70%", [("here", 0, ".."), ("near", 1, "..."), ("far", 2, "rr")], [0, 0, 2]),
        // 7 of 10 are enough; 6 take 6/7 of the connections, and one endpoint of the next tier takes the rest.
        ("70%", [("here", 0, "rrrrrrr..."), ("near", 1, R50), ("far", 2, "rr")], [7, 0, 0]),
        ("70%", [("here", 0, "rrrrrr...."), ("near", 1, R50), ("far", 2, "rr")], [6, 1, 0]),
        // One of ten takes a seventh.
        ("70%", [("here", 0, "r........."), ("near", 1, R50), ("far", 2, "rr")], [1, 6, 0]),
        ("100%", [("here", 0, "r........."), ("near", 1, R50), ("far", 2, "rr")], [1, 9, 0]),
        // The draft's rule.
        ("any", [("here", 0, "r........."), ("near", 1, R50), ("far", 2, "rr")], [1, 0, 0]),
        // The next tier has no more, and the one behind it gives the rest.
        ("70%", [("here", 0, "r........."), ("near", 1, "rr"), ("far", 2, "r")], [1, 2, 1]),
        ("70%", [("here", 0, "r........."), ("near", 1, "rr"), ("far", 2, R50)], [1, 2, 4]),
        // It is not well either.
        ("100%", [("here", 0, "rr.."), ("near", 1, "rr.."), ("far", 2, "rr")], [2, 1, 1]),
        // What shuts down is wanted no more.
        ("70%", [("here", 0, "rrtttttt"), ("near", 1, R50), ("far", 2, "rr")], [2, 0, 0]),
        // Clusters of one tier serve alike.
        ("70%", [("here", 0, "rrr"), ("near", 0, "rr"), ("far", 2, "rr")], [3, 2, 0]),
    ] {
        assert_eq!(Name::new(min_ready).with(&clusters), expected, "{min_ready} {clusters:?}");
    }
}

#[test]
fn where_nobody_is_ready_all_are_listed() {
    let mut name = Name::new("70%");
    name.with(&[("here", 0, ".t"), ("near", 1, "..")]);
    assert_eq!(name.shown.values().map(Vec::len).collect::<Vec<_>>(), [2, 2]);
}

/// It comes back into a cluster whose clients all use other clusters.
#[test]
fn farther_endpoints_come_at_once_and_go_step_by_step() {
    let mut name = Name::new("70%");
    let with = |here: &'static str| [("here", 0, here), ("near", 1, "rrrrrrrr")];
    assert_eq!((name.with(&with("rr")), name.spill), (vec![2, 0], Spill::Settled));
    assert_eq!((name.with(&with("tt")), name.spill), (vec![0, 8], Spill::Settled));
    assert_eq!(name.shown[&id("here")].len(), 2, "what shuts down keeps its connections");
    assert_eq!((name.with(&with("rr")), name.spill), (vec![2, 8], Spill::Excess));
    assert_eq!(name.steps(&with("rr")), [[2, 8], [2, 6], [2, 4], [2, 2], [2, 0]].map(Vec::from));
    assert_eq!((name.with(&with("rr")), name.spill), (vec![2, 0], Spill::Settled));
}

#[test]
fn whoever_needs_more_again_has_it_at_once() {
    let mut name = Name::new("100%");
    name.with(&[("here", 0, "...."), ("near", 1, "rrrrrrrr")]);
    name.step = 3;
    assert_eq!(name.with(&[("here", 0, "rrrr"), ("near", 1, "rrrrrrrr")]), [4, 2]);
    assert_eq!((name.with(&[("here", 0, "r..."), ("near", 1, "rrrrrrrr")]), name.spill), (vec![1, 3], Spill::Rising));
}

/// A new leader knows the other clusters a moment later, and its own first.
#[test]
fn until_all_clusters_are_known_farther_ones_show_what_they_showed() {
    let known = [("here", 0, "r.........."), ("near", 1, R50)];
    let mut name = Name::new("70%");
    assert_eq!(name.with(&known), [1, 7]);
    name.unknown = Some(false);
    assert_eq!(name.with(&[("here", 0, "rrrr......."), ("near", 1, R50)]), [4, 7]);
    // What it knows of the farther cluster alone does not make that serve, as long as the other one does by its slices.
    let mut name = Name { unknown: Some(true), ..Name::new("70%") };
    assert_eq!(name.with(&[("near", 1, R50)]), [0]);
    let mut name = Name { unknown: Some(false), ..Name::new("70%") };
    assert_eq!(name.with(&[("near", 1, R50)]), [50], "nobody else shows anything");
}

#[test]
fn a_port_that_only_a_farther_cluster_serves_is_served_from_there() {
    let mut all = candidates(&[("here", 0, "rr"), ("near", 1, "r")]);
    all.get_mut(&id("near")).unwrap().endpoints =
        vec![endpoint(address(1, 0), Conditions::READY, &["http", "metrics"])];
    let chosen = chosen("here", MinReady::ANY, all);
    assert_eq!(chosen[&id("here")].len(), 2);
    assert_eq!(chosen[&id("near")][0].ports, ports(&["metrics"]));
}

#[test]
fn an_ip_family_that_only_a_farther_cluster_has_is_served_from_there() {
    let mut all = candidates(&[("here", 0, "rr"), ("near", 1, "r")]);
    let v6 = endpoint("fd00::1".parse().unwrap(), Conditions::READY, &["http"]);
    all.get_mut(&id("near")).unwrap().endpoints.push(v6.clone());
    assert_eq!(chosen("here", MinReady::ANY, all)[&id("near")], [v6]);
}

/// Or all clusters would send what they cannot serve to the same pods.
#[test]
fn clusters_choose_different_endpoints_of_a_farther_tier() {
    let of = |local: &str| {
        let all = candidates(&[("here", 0, "r........."), ("near", 1, R50)]);
        let chosen = chosen(local, MinReady::MOST, all);
        chosen[&id("near")].iter().map(|packed| packed.endpoint.address).collect::<BTreeSet<_>>()
    };
    let clusters: Vec<_> = (0..20).map(|n| of(&format!("c{n}"))).collect();
    assert_eq!(clusters[0], of("c0"));
    let all: BTreeSet<_> = clusters.iter().flatten().collect();
    assert!(all.len() > 40, "{} of 50 endpoints are chosen by 20 clusters that choose 6 each", all.len());
}

#[test]
fn a_drained_cluster_leaves_step_by_step_and_comes_back_as_it_publishes() {
    let clusters = [("here", 0, "rrrrrrrr"), ("near", 0, "rr")];
    let mut name = Name::new("any");
    assert_eq!(name.with(&clusters), [8, 2]);
    name.drains.insert("here", "100-70".parse().unwrap());
    assert_eq!((name.with(&clusters), name.spill), (vec![8, 2], Spill::Excess));
    assert_eq!(name.steps(&clusters), [[8, 2], [6, 2], [4, 2], [2, 2], [0, 2]].map(Vec::from));
    assert_eq!((name.with(&clusters), name.spill), (vec![0, 2], Spill::Settled));
    name.step = 0;
    for (drain, back) in [("75-70", 2), ("50-70", 4), ("25-70", 6)] {
        name.drains.insert("here", drain.parse().unwrap());
        let before: BTreeSet<_> = name.shown[&id("here")].iter().map(|packed| packed.endpoint.address).collect();
        assert_eq!((name.with(&clusters), name.spill), (vec![back, 2], Spill::Settled), "{drain}");
        let after: BTreeSet<_> = name.shown[&id("here")].iter().map(|packed| packed.endpoint.address).collect();
        assert!(before.is_subset(&after), "{before:?} {after:?}");
    }
    name.drains.clear();
    assert_eq!(name.with(&clusters), [8, 2]);
}

#[test]
fn clusters_of_a_tier_get_what_their_weights_ask_for() {
    for (min_ready, weights, clusters, expected) in [
        ("any", "near=10%", [("here", 0, "rrrrrrrrrr"), ("near", 0, "rrrrrrrrrr"), ("far", 1, "rr")], [10, 1, 0]),
        ("any", "near=100%", [("here", 0, "rr"), ("near", 0, "rr"), ("far", 1, "rr")], [0, 2, 0]),
        ("any", "near=100%", [("here", 0, "rr"), ("near", 0, ".."), ("far", 1, "rr")], [2, 0, 0]),
        // A farther tier takes its part beside those that are shown: 2/3 are ready, which take 2/3 of the connections.
        ("100%", "near=0%", [("here", 0, "rrrr"), ("near", 0, ".."), ("far", 1, "rrrr")], [4, 0, 2]),
        ("100%", "near=50%,here=50%", [("here", 0, "rr"), ("near", 0, "rr.."), ("far", 1, "rrrr")], [2, 2, 2]),
    ] {
        let mut name = Name { weights: weights.parse().unwrap(), ..Name::new(min_ready) };
        assert_eq!(name.with(&clusters), expected, "{weights} {clusters:?}");
    }
    // A new leader that does not know all clusters yet gives nobody more than before.
    let mut name = Name { weights: "here=10%".parse().unwrap(), ..Name::new("any") };
    assert_eq!(name.with(&[("here", 0, "rrrrrrrrrr"), ("near", 0, "rrrrrrrrr")]), [1, 9]);
    name.unknown = Some(true);
    name.shown.remove(&id("near"));
    assert_eq!(name.with(&[("here", 0, "rrrrrrrrrr")]), [1]);
}

#[test]
fn a_drained_cluster_serves_what_the_others_cannot() {
    for (min_ready, drain, clusters, expected) in [
        // Nearer is less than undrained.
        ("70%", "100-70", [("here", 0, "rr"), ("near", 1, "rr"), ("far", 2, "rr")], [0, 2, 0]),
        // Nobody else has a ready endpoint, or one at all.
        ("any", "100-70", [("here", 0, "rr"), ("near", 1, ".."), ("far", 2, "")], [2, 0, 0]),
        ("any", "25-70", [("here", 0, "rrrr"), ("near", 1, ".."), ("far", 2, "")], [4, 0, 0]),
        // By the drain's own share, and not by that of the selection: half of the endpoints take 5/7 of the connections.
        ("any", "100-70", [("here", 0, R50), ("near", 1, "rrrrr....."), ("far", 1, "")], [2, 5, 0]),
        ("any", "100-50", [("here", 0, R50), ("near", 1, "rrrrr....."), ("far", 1, "")], [0, 5, 0]),
        ("any", "100-0", [("here", 0, R50), ("near", 1, "r........."), ("far", 1, "")], [0, 1, 0]),
        // All that are not drained count together.
        ("any", "100-70", [("here", 0, R50), ("near", 1, "r..."), ("far", 2, "rrrrrrrrrr")], [0, 1, 0]),
        ("70%", "100-70", [("here", 0, R50), ("near", 1, "r..."), ("far", 2, "rrrrrrrrrr")], [0, 1, 2]),
    ] {
        let mut name = Name::new(min_ready);
        name.drains.insert("here", drain.parse().unwrap());
        assert_eq!(name.with(&clusters), expected, "{min_ready} {drain} {clusters:?}");
    }
    let mut name = Name::new("any");
    name.drains = ["here", "near"].map(|cluster| (cluster, "100-70".parse().unwrap())).into();
    assert_eq!(name.with(&[("here", 0, "rr"), ("near", 0, "r")]), [2, 1], "all are drained");
    name.drains.insert("near", "75-70".parse().unwrap());
    assert_eq!(name.with(&[("here", 0, "rr"), ("near", 0, "rrrr")])[1], 4, "nobody else serves while it comes back");
}

#[test]
fn a_cluster_that_cannot_be_reached_leaves_at_once_and_serves_if_nobody_else_does() {
    for (clusters, expected) in [
        ([("here", 0, "rr"), ("near", 0, "rrrr"), ("far", 0, "rrrr")], [2, 0, 4]),
        // Farther, and half ready, is better than dead.
        ([("here", 0, ".."), ("near", 0, "rrrr"), ("far", 1, "r...")], [0, 0, 1]),
        ([("here", 0, ".."), ("near", 0, "rrrr"), ("far", 1, "....")], [0, 4, 0]),
    ] {
        let mut name = Name::new("70%");
        name.with(&clusters);
        name.unreachable.insert("near");
        assert_eq!(name.with(&clusters), expected, "{clusters:?}");
        assert_ne!(name.spill, Spill::Excess, "{clusters:?}: it goes without steps");
        name.unreachable.clear();
        assert_eq!(name.with(&clusters)[1], 4, "and comes back at once");
    }
    let mut name = Name::new("any");
    let all = [("here", 0, "rr"), ("near", 0, "rrrr"), ("far", 0, "rrrr")];
    name.drains.insert("here", "100-70".parse().unwrap());
    name.unreachable = ["near", "far"].into();
    assert_eq!(name.with(&all), [2, 0, 0], "who is drained is alive");
    name.unknown = Some(true);
    name.unreachable = ["near"].into();
    assert_eq!(name.with(&all)[1], 0, "also while a cluster is not known");
}

fn any_letters() -> impl Strategy<Value = String> {
    vec(prop_oneof![4 => Just('r'), 2 => Just('.'), 1 => Just('t')], 0..12)
        .prop_map(|letters| letters.into_iter().collect())
}

proptest! {
    /// Whatever happens, in any order: a name with a ready endpoint shows one, what is shown depends on nothing but the
    /// endpoints, the slices and the step, farther endpoints go in steps only, and when nothing changes, that ends.
    #[test]
    fn no_name_is_empty_and_farther_endpoints_go_in_steps(
        history in vec(([any_letters(), any_letters(), any_letters()], 0..=STEPS), 1..8),
        tiers in [0..3_usize, 0..3_usize, 0..3_usize],
        min_ready in prop_oneof![Just("any"), Just("1%"), Just("50%"), Just("70%"), Just("100%")],
        weights in option::of(prop_oneof![Just("here=10%"), Just("near=100%"), Just("far=0%"), Just("here=50%,near=50%")]),
        drained in vec(option::of(prop_oneof![Just("100-70"), Just("100-0"), Just("75-70"), Just("50-100")]), 3),
        unreachable in vec(prop_oneof![3 => Just(false), 1 => Just(true)], 3),
    ) {
        let mut name = Name::new(min_ready);
        let drained = ["here", "near", "far"].into_iter().zip(drained).filter_map(|(of, drain)| Some((of, drain?.parse().unwrap())));
        name.drains = drained.collect();
        name.unreachable = ["here", "near", "far"].into_iter().zip(unreachable).filter(|(_, it)| *it).map(|(of, _)| of).collect();
        name.weights = weights.map(|weights| weights.parse().unwrap()).unwrap_or_default();
        let names = ["here", "near", "far"];
        let mut last = Vec::new();
        for (letters, step) in &history {
            let clusters: Vec<Cluster<'_>> = (0..3).map(|n| (names[n], tiers[n], &*letters[n])).collect();
            let before: usize = name.shown.values().map(Vec::len).sum();
            name.step = *step;
            let shown = name.with(&clusters);
            let any_ready = letters.iter().any(|letters| letters.contains('r'));
            prop_assert_eq!(shown.iter().sum::<usize>() > 0, any_ready, "{:?} shows {:?} after {}", clusters, shown, before);
            let (again, spill) = (name.shown.clone(), name.spill);
            name.with(&clusters);
            prop_assert_eq!(&name.shown, &again, "the same plan again");
            prop_assert!(name.spill <= spill, "{:?} after {:?}", name.spill, spill);
            last = clusters.iter().map(|(name, tier, letters)| (*name, *tier, (*letters).to_owned())).collect();
        }
        let last: Vec<Cluster<'_>> = last.iter().map(|(name, tier, letters)| (*name, *tier, &**letters)).collect();
        let mut ready = name.with(&last);
        for step in 0..=STEPS {
            name.step = step;
            let next = name.with(&last);
            let ready_of = |n: usize| last[n].2.chars().filter(|letter| *letter == 'r').count();
            let of_tier = |tier: usize, count: &dyn Fn(usize) -> usize| -> usize {
                (0..3).filter(|n| last[*n].1 == tier).map(count).sum()
            };
            for tier in 0..3 {
                let (was, is) = (of_tier(tier, &|n| ready[n]), of_tier(tier, &|n| next[n]));
                // Its drained part goes in steps of its own.
                let rounded = usize::from(!name.drains.is_empty());
                let most = of_tier(tier, &ready_of).div_ceil(usize::from(STEPS)) + rounded;
                prop_assert!(is <= was || step == 0, "tier {} rises from {} to {}", tier, was, is);
                prop_assert!(was.saturating_sub(is) <= most || step == 0, "tier {} falls from {} to {}", tier, was, is);
            }
            ready = next;
        }
        name.with(&last);
        prop_assert_eq!(name.spill, Spill::Settled);
    }
}
