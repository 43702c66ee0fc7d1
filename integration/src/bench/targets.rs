//! What is good enough, by the size of the load.

/// The load for which a target is stated: services, and endpoints of each.
type Size = (usize, usize);

/// Seconds until everything has arrived; conditions may take twice as long.
const ARRIVAL: [(Size, f64); 3] = [((100, 10), 1.5), ((1_000, 10), 9.0), ((10_000, 10), 100.0)];
/// MB of the leader of the exporting cluster.
const MEMORY: [(Size, f64); 2] = [((1_000, 10), 30.0), ((10_000, 10), 160.0)];

fn stated(targets: &[(Size, f64)], size: Size) -> Option<f64> {
    targets.iter().find(|(of, _)| *of == size).map(|(_, target)| *target)
}

pub(super) fn arrival(services: usize, endpoints: usize) -> Option<f64> {
    stated(&ARRIVAL, (services, endpoints))
}

pub(super) fn settled(services: usize, endpoints: usize) -> Option<f64> {
    arrival(services, endpoints).map(|seconds| seconds * 2.0)
}

pub(super) fn memory(services: usize, endpoints: usize) -> Option<f64> {
    stated(&MEMORY, (services, endpoints))
}

/// A change with the stream: p50 and p99 in seconds.
pub(super) const STREAMED: (f64, f64) = (0.04, 0.15);
/// A change through the registry alone, where it takes 20 ms a call and 100 ms an operation.
pub(super) const BY_REGISTRY: (f64, f64) = (0.5, 1.1);

/// The targets of a change. There are none for AWS' times without the stream.
pub(super) fn change(stream: bool, aws_times: bool) -> Option<(f64, f64)> {
    match (stream, aws_times) {
        (true, _) => Some(STREAMED),
        (false, false) => Some(BY_REGISTRY),
        (false, true) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_counts_for_the_size_for_which_it_is_stated() {
        assert_eq!(arrival(1_000, 10), Some(9.0));
        assert_eq!(settled(10_000, 10), Some(200.0));
        assert_eq!((arrival(500, 10), arrival(1_000, 5), memory(100, 10)), (None, None, None));
        assert_eq!(memory(10_000, 10), Some(160.0));
    }

    #[test]
    fn a_change_through_a_slow_registry_has_no_target() {
        assert_eq!(change(true, true), Some(STREAMED));
        assert_eq!(change(false, false), Some(BY_REGISTRY));
        assert_eq!(change(false, true), None);
    }
}
