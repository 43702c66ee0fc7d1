use std::{collections::BTreeSet, time::Duration};

use proptest::prelude::*;
use tokio::time::Instant;

use super::{
    choice::{Candidate, choose},
    pace::{Observed, PATIENCE, Pace},
    *,
};

fn share(text: &str) -> Share {
    text.parse().unwrap()
}

fn tasks(whole: usize) -> Others {
    Others { whole, ..Others::default() }
}

#[test]
fn a_percentage_is_read_exactly_and_nothing_else_is() {
    for (text, hundredths) in
        [("0%", 0), ("25%", 2500), (" 100 % ", 10_000), ("12.5%", 1250), ("0.05%", 5), ("007%", 700)]
    {
        assert_eq!(share(text).hundredths(), hundredths, "{text:?}");
    }
    for text in [
        "", "%", "abc", "25", "-3%", "+3%", "120%", "700%", "999.99%", "100.01%", "1.234%", ".5%", "5.%", "1e1%",
        "25%%", "٣%",
    ] {
        assert_eq!(text.parse::<Share>(), Err(NoShare), "{text:?}");
    }
    for (text, said) in [("25%", "25 %"), ("12.5%", "12.5 %"), ("0.05%", "0.05 %"), ("33.33%", "33.33 %")] {
        assert_eq!(share(text).to_string(), said);
    }
}

#[test]
fn an_invalid_share_is_reported_with_the_field_its_value_and_the_remedy() {
    let read = |text: &str| Traffic::read(&[(ANNOTATION_SHARE_OF_TRAFFIC, text)].into_iter().collect());
    assert_eq!(read("40%"), (Traffic::Share(share("40%")), None));
    let (traffic, message) = read("120%");
    assert_eq!(traffic, Traffic::Unclear);
    let message = message.unwrap();
    for part in ["cloudmap-mcs/share-of-traffic", "120%", "\"0%\" to \"100%\"", "the last valid share stays"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(Traffic::read(&Pairs::default()), (Traffic::All, None));
}

/// The example of the documents: beside two tasks, two pods can have 0, 33 and 50 %, and nothing else.
#[test]
fn beside_two_tasks_two_pods_reach_the_nearest_share_from_below() {
    for (asked, ours, reached) in [
        ("0%", 0, "0 %"),
        ("1%", 1, "33.33 %"),
        ("33%", 1, "33.33 %"),
        ("49%", 1, "33.33 %"),
        ("50%", 2, "50 %"),
        ("100%", 2, "50 %"),
    ] {
        let number = share(asked).number(2).min(2);
        assert_eq!((number, Share::reached(number, 2).to_string().as_str()), (ours, reached), "{asked}");
    }
    for (asked, others, number) in [
        ("5%", 100, 5),
        ("25%", 12, 4),
        ("25%", 11, 3),
        ("50%", 7, 7),
        ("90%", 1, 9),
        ("99.99%", 1, 9999),
        ("100%", 5, usize::MAX),
    ] {
        assert_eq!(share(asked).number(others), number, "{asked} beside {others}");
    }
}

#[test]
fn users_read_what_was_requested_what_is_chosen_and_what_can_be_reached() {
    let reached = |asked: &str, ours, ready, others| Reached {
        asked: asked.parse().ok(),
        ours,
        ready,
        others,
        hidden: 0,
        to_hide: 0,
    };
    for (reached, limited, parts) in [
        (
            reached("40%", 1, 2, 2),
            false,
            &["40 %", "33.33 % chosen (1 instance beside 2 of others)", "the next share is 50 %"][..],
        ),
        (reached("50%", 2, 2, 2), false, &["50 %", "50 % chosen (2 instances beside 2 of others)"]),
        (reached("60%", 2, 2, 2), true, &["60 %", "50 % chosen", "more ready pods, or fewer instances of others"]),
        (
            reached("0%", 0, 2, 2),
            false,
            &["0 % of the traffic", "0 % chosen (0 instances", "the next share is 33.33 %"],
        ),
        (reached("0%", 1, 2, 0), false, &["0 % of the traffic", "100 % chosen", "must not be empty"]),
        (reached("abc", 2, 2, 2), false, &["No valid share was requested yet", "50 % chosen"]),
    ] {
        let text = reached.text();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        assert_eq!(reached.is_limited(), limited, "{text}");
    }
}

#[test]
fn pods_have_the_families_that_all_tasks_have_or_else_any() {
    let [v4, v6, both] = [(true, false), (false, true), (true, true)].map(|(v4, v6)| Families { v4, v6 });
    for (all, common) in
        [(&[][..], both), (&[v4], v4), (&[v4, both], v4), (&[both, both], both), (&[v6, both], v6), (&[v4, v6], both)]
    {
        assert_eq!(Families::common(all.iter().copied()), common, "{all:?}");
    }
}

#[test]
fn instances_of_others_are_counted_by_their_kind() {
    let instance = |attributes: &[(&str, &str)]| Instance {
        id: "i".into(),
        attributes: attributes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    let all = [
        instance(&[(IPV4, "10.9.0.1")]),
        instance(&[(IPV4, "10.9.0.2"), (IPV6, "fd00::2")]),
        instance(&[(IPV6, "fd00::3"), (PARTIAL, "true")]),
        instance(&[("AWS_INSTANCE_CNAME", "lb.example.org")]),
    ];
    let families = Families { v4: true, v6: false };
    assert_eq!(Others::of(&all), Others { whole: 3, partial: 1, families });
}

fn ids<'a>(chosen: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    chosen.into_iter().collect()
}

#[test]
fn chosen_pods_stay_and_zones_get_equally_many() {
    let pods = |registered: &'static [&'static str]| {
        let all = [("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"), ("c1", "c"), ("c2", "c")];
        all.map(|(id, zone)| Candidate { id, zone: Some(zone), registered: registered.contains(&id) })
    };
    for (registered, number, expected) in [
        (&[][..], 3, &["a1", "b1", "c1"][..]),
        (&[], 4, &["a1", "a2", "b1", "c1"]),
        (&["a2", "a3"], 2, &["a2", "a3"]),
        (&["a2", "a3"], 4, &["a2", "a3", "b1", "c1"]),
        (&["a1", "a2", "a3", "c2"], 2, &["a1", "c2"]),
        (&["a1", "a2", "b1"], 0, &[]),
        (&["c2"], 9, &["a1", "a2", "a3", "b1", "c1", "c2"]),
    ] {
        assert_eq!(ids(choose(pods(registered), number)), expected, "{number} of {registered:?}");
    }
}

/// One cluster beside others: the numbers after each step of a schedule, in seconds.
fn numbers(steps: &[(u64, &str, Others, usize)]) -> Vec<usize> {
    let (mut pace, begun) = (Pace::default(), Instant::now());
    let step = |&(at, traffic, others, registered): &(u64, &str, Others, usize)| {
        let traffic = match traffic {
            "all" => Traffic::All,
            text => text.parse().map_or(Traffic::Unclear, Traffic::Share),
        };
        let observed = Observed { traffic, others, registered, settling: 4 * PATIENCE };
        pace.number(observed, begun + Duration::from_secs(at))
    };
    steps.iter().map(step).collect()
}

#[test]
fn a_new_share_counts_at_once_and_others_only_after_a_minute() {
    let t = tasks;
    assert_eq!(numbers(&[(0, "50%", t(4), 0), (1, "25%", t(4), 4), (2, "50%", t(4), 1)]), [4, 1, 4]);
    // ECS scales out, and in again before a minute is over.
    assert_eq!(
        numbers(&[(0, "50%", t(4), 0), (10, "50%", t(8), 4), (60, "50%", t(4), 4), (80, "50%", t(4), 4)]),
        [4; 4]
    );
    let out =
        [(0, "50%", t(4), 0), (10, "50%", t(6), 4), (40, "50%", t(8), 4), (70, "50%", t(8), 4), (129, "50%", t(8), 6)];
    assert_eq!(numbers(&out), [4, 4, 4, 6, 6], "by as much as it was off all the time");
    assert_eq!(numbers(&[&out[..], &[(130, "50%", t(8), 6)]].concat())[5], 8);
    let back = [(0, "50%", t(8), 0), (10, "50%", t(3), 8), (70, "50%", t(5), 8), (130, "50%", t(5), 5)];
    assert_eq!(numbers(&back), [8, 8, 5, 5]);
}

#[test]
fn if_nobody_else_is_left_all_pods_are_registered_at_once_and_at_zero_none_goes() {
    let t = tasks;
    assert_eq!(numbers(&[(0, "25%", t(6), 0), (1, "25%", t(0), 2), (2, "25%", t(6), 9)]), [2, usize::MAX, usize::MAX]);
    assert_eq!(numbers(&[(0, "25%", t(0), 0), (1, "0%", t(0), 5), (2, "0%", t(0), 5)]), [usize::MAX, 5, 5]);
    assert_eq!(numbers(&[(0, "0%", t(2), 0), (1, "0%", t(0), 0)]), [0, 0], "none was registered, so none comes");
    // Others that have a share themselves do not serve the rest.
    let partial = Others { partial: 3, ..Others::default() };
    assert_eq!(numbers(&[(0, "25%", partial, 0)]), [usize::MAX]);
}

#[test]
fn an_invalid_share_leaves_the_last_one_and_a_new_leader_the_number() {
    let t = tasks;
    assert_eq!(
        numbers(&[(0, "50%", t(2), 0), (9, "abc", t(2), 2), (20, "abc", t(4), 2), (90, "abc", t(4), 2)]),
        [2, 2, 2, 4]
    );
    assert_eq!(numbers(&[(0, "abc", t(2), 3), (99, "abc", t(9), 2)]), [3, 3]);
    assert_eq!(numbers(&[(0, "all", t(2), 3), (9, "abc", t(2), 3)]), [usize::MAX, usize::MAX]);
    // What an earlier leader registered follows after a minute, too.
    assert_eq!(numbers(&[(0, "50%", t(2), 4), (59, "50%", t(2), 4), (60, "50%", t(2), 4)]), [4, 4, 2]);
}

proptest! {
    /// By the definition: the largest number that has at most the share, and one if even one has more.
    #[test]
    fn the_number_is_the_nearest_from_below(hundredths in 0_u16..=10_000, others in 0_usize..2_000, ready in 0_usize..300) {
        let share = Share(hundredths);
        let number = share.number(others).min(ready);
        // k/(k+t) compared without rounding.
        let fits = |k: usize| k * 10_000 <= usize::from(hundredths) * (k + others);
        let largest = (0..=ready).filter(|k| *k == 0 || fits(*k)).max().unwrap();
        let expected = if hundredths > 0 && others > 0 { largest.max(1).min(ready) } else { largest };
        if others > 0 {
            prop_assert_eq!(number, expected);
        }
        prop_assert!(number <= ready);
    }

    /// Pods come and go, and the number changes: those that stay chosen are kept, gone ones are replaced, and two zones
    /// differ by more than one only if nobody could be registered or kept otherwise.
    #[test]
    fn a_choice_keeps_what_it_can(
        steps in prop::collection::vec((prop::collection::btree_set(0_u8..20, 0..15), 0_usize..16), 1..20),
    ) {
        let mut chosen = BTreeSet::<String>::new();
        for (pods, number) in steps {
            let names: Vec<_> = pods.iter().map(|pod| (format!("{pod:02}"), ["a", "b", "c"][usize::from(pod % 3)])).collect();
            let candidate = |(id, zone): &(String, &'static str)| (id.clone(), *zone, chosen.contains(id));
            let all: Vec<_> = names.iter().map(candidate).collect();
            let candidates =
                all.iter().map(|(id, zone, registered)| Candidate { id, zone: Some(*zone), registered: *registered });
            let now: BTreeSet<_> = choose(candidates, number).into_iter().map(str::to_owned).collect();
            let there: BTreeSet<_> = names.iter().map(|(id, _)| id.clone()).collect();
            prop_assert!(now.is_subset(&there));
            prop_assert_eq!(now.len(), number.min(there.len()));
            let stay: BTreeSet<_> = chosen.intersection(&there).cloned().collect();
            prop_assert!(now.is_subset(&stay) || stay.is_subset(&now), "nobody is exchanged");
            chosen = now;
        }
    }
}

/// A cluster with a share, beside tasks and the other clusters.
#[derive(Debug, Clone)]
struct Cluster {
    share: Share,
    pods: usize,
    registered: usize,
    pace: Pace,
    seen: Others,
    /// When it reads next, and every how many seconds it does.
    reads: u64,
    period: u64,
    changed: u64,
}

/// Clusters read the target at times of their own, and act when they have read or when they waited long enough.
fn settle(whole: usize, clusters: &mut [Cluster], seconds: u64) {
    let begun = Instant::now();
    for second in (0..seconds).step_by(5) {
        for at in 0..clusters.len() {
            let all: usize = clusters.iter().map(|cluster| cluster.registered).sum();
            let partial = all - clusters[at].registered;
            let cluster = &mut clusters[at];
            let now = begun + Duration::from_secs(second);
            let reads = second >= cluster.reads;
            if reads {
                cluster.reads = second + cluster.period;
                cluster.seen = Others { whole, partial, ..Others::default() };
            } else if cluster.pace.wake().is_none_or(|at| at > now) {
                continue;
            }
            let observed = Observed {
                traffic: Traffic::Share(cluster.share),
                others: cluster.seen,
                registered: cluster.registered,
                settling: 2 * (PATIENCE + Duration::from_secs(50)),
            };
            let number = cluster.pace.number(observed, now).min(cluster.pods);
            if number != cluster.registered {
                (cluster.registered, cluster.changed) = (number, second);
            }
        }
    }
}

fn cluster() -> impl Strategy<Value = Cluster> {
    (1_u16..10_000, 1_usize..40, 0_usize..40, 0_u64..50, 20_u64..=50).prop_map(
        |(share, pods, registered, reads, period)| Cluster {
            share: Share(share),
            pods,
            registered: registered.min(pods),
            pace: Pace::default(),
            seen: Others::default(),
            reads,
            period,
            changed: 0,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    /// From any numbers, in any order of readings: each cluster ends at the nearest number from below of its own share,
    /// beside the tasks and what the others have.
    #[test]
    fn several_clusters_with_a_share_each_settle(
        whole in 1_usize..40,
        mut clusters in prop::collection::vec(cluster(), 2..5),
    ) {
        let hours = 12;
        settle(whole, &mut clusters, hours * 3600);
        let all: usize = clusters.iter().map(|cluster| cluster.registered).sum();
        for cluster in &clusters {
            let number = cluster.share.number(whole + all - cluster.registered).min(cluster.pods);
            prop_assert_eq!(cluster.registered, number, "{:?}", clusters);
            prop_assert!(cluster.changed < (hours - 1) * 3600, "{:?}", clusters);
        }
    }
}

/// Both are one third beside two tasks: one and two instances would change places for ever if both followed at once.
#[test]
fn two_clusters_that_see_each_other_at_the_same_time_do_not_change_places() {
    let cluster = |registered, reads| Cluster {
        share: share("33.34%"),
        pods: 9,
        registered,
        pace: Pace::default(),
        seen: Others::default(),
        reads,
        period: 50,
        changed: 0,
    };
    let mut clusters = [cluster(1, 0), cluster(2, 0)];
    settle(2, &mut clusters, 3600);
    assert_eq!(clusters.each_ref().map(|cluster| cluster.registered), [1, 1]);
    assert!(clusters.iter().all(|cluster| cluster.changed < 600), "{clusters:?}");
}
