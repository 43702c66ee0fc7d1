//! What a leader publishes about other clusters, in annotations of its Lease.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::names::{ANNOTATION_REFUSED, ANNOTATION_STREAMS};

/// Most refused clusters that the Lease names: it is written every few seconds.
const MOST_REFUSED: usize = 16;

/// What a leader publishes about other clusters, for people.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerReport {
    /// The ids of the clusters with whose leaders the leader is connected; `None` if there are no streams.
    pub connected: Option<BTreeSet<Arc<str>>>,
    /// The ids of the clusters whose states are too large, and why, on one line. The Lease has the first 16.
    pub refused: BTreeMap<Arc<str>, String>,
}

impl PeerReport {
    /// Reads the annotations of a Lease. What cannot be read is left out.
    pub fn read(annotations: &BTreeMap<String, String>) -> Self {
        let ids = |ids: &String| ids.split_whitespace().map(Arc::from).collect();
        let lines = annotations.get(ANNOTATION_REFUSED).into_iter().flat_map(|lines| lines.lines());
        let refused = lines.filter_map(|line| line.split_once(": ")).map(|(id, why)| (Arc::from(id), why.to_owned()));
        Self { connected: annotations.get(ANNOTATION_STREAMS).map(ids), refused: refused.collect() }
    }

    /// The annotations that [`Self::read`] reads. One that would say nothing is left out.
    pub(super) fn annotations(&self) -> [(&'static str, Option<String>); 2] {
        let ids = |ids: &BTreeSet<Arc<str>>| ids.iter().map(|id| &**id).collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = self.refused.iter().take(MOST_REFUSED).map(|(id, why)| format!("{id}: {why}")).collect();
        [
            (ANNOTATION_STREAMS, self.connected.as_ref().map(ids)),
            (ANNOTATION_REFUSED, (!lines.is_empty()).then(|| lines.join("\n"))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(report: &PeerReport) -> BTreeMap<String, String> {
        let annotations = report.annotations().into_iter();
        annotations.filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    fn refused(ids: &[&str]) -> PeerReport {
        let refused = ids.iter().map(|id| (Arc::from(*id), "it is large: 40 MiB".to_owned())).collect();
        PeerReport { connected: None, refused }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let connected = |ids: &[&str]| PeerReport {
            connected: Some(ids.iter().map(|id| Arc::from(*id)).collect()),
            ..refused(&["c", "d"])
        };
        for report in
            [PeerReport::default(), connected(&[]), connected(&["b", "a"]), refused(&[]), refused(&["a", "b"])]
        {
            assert_eq!(PeerReport::read(&written(&report)), report);
        }
        assert_eq!(written(&connected(&["b", "a"]))[ANNOTATION_STREAMS], "a b");
        assert_eq!(
            written(&refused(&["a", "b"]))[ANNOTATION_REFUSED],
            "a: it is large: 40 MiB\nb: it is large: 40 MiB"
        );
        assert!(written(&PeerReport::default()).is_empty(), "where there are no streams, none is shown");
    }

    #[test]
    fn not_too_many_refused_clusters_are_named() {
        let many: Vec<_> = (0..1_000).map(|n| format!("cluster-{n}")).collect();
        let report = refused(&many.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(PeerReport::read(&written(&report)).refused.len(), MOST_REFUSED);
    }
}
