//! Which ECS tasks are hidden, so that the pods get a larger share than they have beside all of them.

use std::{collections::BTreeMap, sync::Arc};

use super::Share;

/// How many of the others' instances stay visible beside so many pods, all of which are registered.
///
/// All of them while more pods could still be registered for this share. Otherwise the fewest beside which the pods have at
/// most this share: p/(p+v) ≤ s is v ≥ p(1−s)/s.
pub fn visible(share: Share, pods: usize, others: usize) -> usize {
    if pods == 0 || share.number(others) <= pods {
        return others;
    }
    share.beside(pods).min(others)
}

/// Which tasks are hidden: so many of them, or all if there are fewer. `hidden` are those that are hidden now, in the order
/// in which they were; `tasks` are all that may be hidden, and whether they are healthy.
///
/// Hidden tasks stay hidden, and the last one is shown first. The next one is the healthy one with the lowest id.
pub fn choose(hidden: &[Arc<str>], tasks: &BTreeMap<Arc<str>, bool>, number: usize) -> Vec<Arc<str>> {
    let mut chosen: Vec<_> = hidden.iter().filter(|id| tasks.contains_key(*id)).take(number).cloned().collect();
    let more = number - chosen.len();
    let others = tasks.iter().filter(|(id, healthy)| **healthy && !hidden.contains(id));
    chosen.extend(others.take(more).map(|(id, _)| Arc::clone(id)));
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn share(text: &str) -> Share {
        text.parse().unwrap()
    }

    #[test]
    fn so_many_tasks_stay_visible() {
        for (asked, pods, others, expected) in [
            ("50%", 2, 6, 2),
            ("50%", 2, 2, 2),
            ("25%", 10, 12, 12),
            ("60%", 2, 6, 2),
            ("90%", 2, 6, 1),
            ("99.99%", 2, 6, 1),
            ("100%", 2, 6, 0),
            ("100%", 1, 0, 0),
            ("100%", 0, 6, 6),
            ("0%", 2, 6, 6),
            ("1%", 2, 6, 6),
        ] {
            assert_eq!(visible(share(asked), pods, others), expected, "{asked} for {pods} beside {others}");
        }
    }

    fn ids(all: &[&str]) -> Vec<Arc<str>> {
        all.iter().map(|id| Arc::from(*id)).collect()
    }

    #[test]
    fn hidden_tasks_stay_hidden_and_the_last_one_is_shown_first() {
        let tasks = |ill: &[&str]| {
            ["a", "b", "c", "d"].map(|id| (Arc::from(id), !ill.contains(&id))).into_iter().collect::<BTreeMap<_, _>>()
        };
        for (hidden, ill, number, expected) in [
            (&[][..], &[][..], 2, &["a", "b"][..]),
            (&["c", "a"], &["c", "a"], 2, &["c", "a"]),
            (&["c", "a"], &["c", "a"], 1, &["c"]),
            (&["c", "a"], &["c", "a"], 3, &["c", "a", "b"]),
            (&["c", "gone"], &["c"], 2, &["c", "a"]),
            // Nobody hides what is ill by itself.
            (&[], &["a", "b"], 3, &["c", "d"]),
            (&["c"], &["c"], 0, &[]),
            // ECS' report brought it back.
            (&["c"], &[], 2, &["c", "a"]),
            (&[], &[], 9, &["a", "b", "c", "d"]),
        ] {
            assert_eq!(choose(&ids(hidden), &tasks(ill), number), ids(expected), "{number} of {hidden:?}, {ill:?}");
        }
    }

    proptest! {
        /// The share with hidden tasks is the nearest from below, and never smaller than without; the name is never empty.
        #[test]
        fn hiding_reaches_the_nearest_share_from_below(asked in 0_u16..=10_000, pods in 0_usize..100, others in 0_usize..300) {
            let share = Share(asked);
            let shown = visible(share, pods, others);
            prop_assert!(shown <= others && pods + shown >= (pods + others).min(1));
            // k/(k+v) compared without rounding.
            let fits = |visible: usize| pods * 10_000 <= usize::from(asked) * (pods + visible);
            if shown < others {
                prop_assert!(fits(shown), "{pods} beside {shown}");
                prop_assert!(shown == 0 || !fits(shown - 1), "one more could be hidden");
            } else {
                let room = share.number(others) > pods && pods > 0;
                prop_assert!(!room || others == 0 || !fits(others - 1));
            }
        }
    }
}
