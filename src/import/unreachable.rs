//! Clusters that cannot be reached from this one: their endpoints come after all others.

use std::{
    collections::BTreeMap,
    fmt::{self, Display, Formatter},
};

use k8s_openapi::jiff::Timestamp;
use model::ClusterId;

/// What follows the id of a cluster in the message.
const SINCE: &str = " (since ";

/// What is known of a cluster that cannot be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unreachable {
    /// Since when, in seconds since 1970.
    pub since: i64,
    /// How many of its endpoints did not answer, and on how many nodes they were; `None` if an earlier leader of this cluster
    /// judged so.
    pub tried: Option<(usize, usize)>,
}

impl Display for Unreachable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", Timestamp::from_second(self.since).unwrap_or_default())?;
        match self.tried {
            Some((endpoints, nodes)) => write!(
                f,
                "the controller of this cluster lost the stream to it, and {endpoints} of its endpoints on {nodes} nodes took no \
                 connection from here, while others did"
            ),
            None => f.write_str("an earlier leader of this cluster judged so"),
        }
    }
}

/// The message of the condition.
pub(super) fn said(clusters: &BTreeMap<ClusterId, Unreachable>) -> String {
    let clusters: Vec<_> = clusters.iter().map(|(cluster, since)| format!("{cluster}{SINCE}{since})")).collect();
    format!(
        "From this cluster, these cannot be reached: {}. Their endpoints serve only if no others do.",
        clusters.join(", ")
    )
}

/// Whether such a message is about a cluster.
pub fn is_said_of(message: &str, cluster: &ClusterId) -> bool {
    let ends = message.split(SINCE).filter_map(|before| before.rsplit(' ').next());
    ends.into_iter().any(|id| id == cluster.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_of_whom_it_is() {
        let id = |name: &str| name.parse::<ClusterId>().unwrap();
        let tried = Unreachable { since: 60, tried: Some((5, 2)) };
        let message = said(&[(id("blue"), tried), (id("dark-blue"), Unreachable { tried: None, ..tried })].into());
        assert!(message.contains("blue (since 1970-01-01T00:01:00Z: the controller of this cluster lost"), "{message}");
        let of = |name: &str| is_said_of(&message, &id(name));
        assert_eq!(["blue", "dark-blue", "dark", "ark-blue", "do"].map(of), [true, true, false, false, false]);
    }
}
