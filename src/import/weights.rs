//! How many endpoints of each cluster are shown, so that each gets its part of the connections. Pure.
//!
//! kube-proxy gives each endpoint that it knows an equal share. So of clusters with the weights 90 % and 10 % and ten endpoints
//! each, ten and one are shown, which is 91 % and 9 %. A cluster with a weight shows one endpoint at least.

use std::collections::BTreeMap;

use api::weights::Weights;
use model::{ClusterId, number};

/// How many of the ready endpoints of each cluster are shown: as many as possible in the ratio of the weights. Where only
/// clusters with a weight of 0 % have any, these serve.
pub(super) fn counts<'a>(weights: &Weights, ready: &BTreeMap<&'a ClusterId, usize>) -> BTreeMap<&'a ClusterId, usize> {
    let unnamed: usize =
        ready.iter().filter(|(cluster, _)| weights.of(cluster).is_none()).map(|(_, count)| count).sum();
    let weight = |cluster: &ClusterId, count: usize| match weights.of(cluster) {
        Some(percent) => f64::from(percent),
        None => f64::from(weights.rest()) * number(count) / number(unnamed),
    };
    let serving: BTreeMap<_, _> =
        ready.iter().filter(|(_, count)| **count > 0).map(|(of, count)| (*of, *count)).collect();
    // How many endpoints one percent is, where the cluster with the fewest for its weight shows all.
    let per_percent = serving
        .iter()
        .filter(|(of, count)| weight(of, **count) > 0.0)
        .map(|(of, count)| number(*count) / weight(of, *count));
    let Some(per_percent) = per_percent.min_by(f64::total_cmp) else { return ready.clone() };
    let shown = |(cluster, count): (&&'a ClusterId, &usize)| {
        let wanted = weight(cluster, *count) * per_percent;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is bounded, and not negative")]
        let shown = wanted.round().min(number(*count)) as usize;
        (*cluster, if wanted > 0.0 { shown.max(1).min(*count) } else { 0 })
    };
    ready.iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn shown(weights: &str, ready: &[(&str, usize)]) -> Vec<usize> {
        let ids: Vec<(ClusterId, usize)> = ready.iter().map(|(id, count)| (id.parse().unwrap(), *count)).collect();
        let ready = ids.iter().map(|(id, count)| (id, *count)).collect();
        let shown = counts(&weights.parse().unwrap(), &ready);
        ids.iter().map(|(id, _)| shown[id]).collect()
    }

    #[test]
    fn each_cluster_shows_as_many_as_its_weight_asks_for() {
        for (weights, ready, expected) in [
            ("blue=90%,green=10%", [("blue", 10), ("green", 10), ("red", 0)], [10, 1, 0]),
            ("blue=50%,green=50%", [("blue", 2), ("green", 50), ("red", 0)], [2, 2, 0]),
            // The fewest that there can be is one.
            ("blue=99%,green=1%", [("blue", 2), ("green", 2), ("red", 0)], [2, 1, 0]),
            // Who is not named shares the rest by its endpoints.
            ("green=10%", [("blue", 12), ("green", 10), ("red", 6)], [12, 2, 6]),
            ("blue=100%", [("blue", 3), ("green", 5), ("red", 5)], [3, 0, 0]),
            ("green=0%", [("blue", 3), ("green", 5), ("red", 1)], [3, 0, 1]),
            // Whoever has no endpoint leaves its part to the others.
            ("blue=90%,green=10%", [("blue", 0), ("green", 4), ("red", 0)], [0, 4, 0]),
            ("blue=100%", [("blue", 0), ("green", 5), ("red", 2)], [0, 5, 2]),
        ] {
            assert_eq!(shown(weights, &ready), expected, "{weights} {ready:?}");
        }
    }

    proptest! {
        /// A name with ready endpoints shows one, and nobody gets more than its weight by more than one endpoint.
        #[test]
        fn no_name_is_empty_and_no_cluster_has_more_than_its_part(
            percents in vec(0..=33_u8, 3),
            ready in vec(0..40_usize, 3),
        ) {
            let names = ["a", "b", "c"];
            let weights = names.iter().zip(&percents).map(|(name, percent)| format!("{name}={percent}%")).collect::<Vec<_>>().join(",");
            let of: Vec<_> = names.into_iter().zip(ready.iter().copied()).collect();
            let shown = shown(&weights, &of);
            prop_assert_eq!(shown.iter().sum::<usize>() > 0, ready.iter().sum::<usize>() > 0);
            let serving = |n: &usize| ready[*n] > 0 && percents[*n] > 0;
            let all: u32 = (0..3).filter(serving).map(|n| u32::from(percents[n])).sum();
            let total: usize = shown.iter().sum();
            for n in (0..3).filter(serving) {
                let part = f64::from(percents[n]) / f64::from(all) * f64::from(u32::try_from(total).unwrap());
                prop_assert!(f64::from(u32::try_from(shown[n]).unwrap()) <= part + 3.0, "{:?} of {:?} by {:?}", shown, ready, percents);
                prop_assert!(shown[n] > 0);
            }
        }
    }
}
