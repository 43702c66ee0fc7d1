//! Which part of the connections each cluster should get, where clusters serve alike: the annotation
//! [`ANNOTATION_CLUSTER_WEIGHTS`](super::names::ANNOTATION_CLUSTER_WEIGHTS). KEP-5939 has no weights.

use std::{collections::BTreeMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use model::{ClusterId, Excerpt};

/// Whole percentages of clusters, 100 together at the most. Clusters that are not named share the rest.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, u8>", into = "BTreeMap<String, u8>")]
pub struct Weights(BTreeMap<ClusterId, u8>);

/// Weights are refused. The message says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidWeights {
    /// Not a list of weights.
    #[error("{} is no weight: write the id of a cluster and a whole percentage, such as \"blue=90%,green=10%\"", Excerpt(.0))]
    NoWeight(String),
    /// A cluster has two.
    #[error("{} has two weights: write one", Excerpt(.0))]
    Twice(String),
    /// More than everything.
    #[error("the weights are {0}% together: write 100% at the most")]
    TooMuch(u32),
}

impl Weights {
    /// Whether no cluster has one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The weight of a cluster in percent; `None` if it is not named.
    #[must_use]
    pub fn of(&self, cluster: &ClusterId) -> Option<u8> {
        self.0.get(cluster).copied()
    }

    /// What is left for clusters that are not named, in percent.
    #[must_use]
    pub fn rest(&self) -> u8 {
        100 - self.0.values().sum::<u8>()
    }

    /// The clusters that are named.
    pub fn clusters(&self) -> impl Iterator<Item = &ClusterId> {
        self.0.keys()
    }

    fn new(weights: impl IntoIterator<Item = Result<(ClusterId, u8), InvalidWeights>>) -> Result<Self, InvalidWeights> {
        let (mut all, mut sum) = (BTreeMap::new(), 0_u32);
        for weight in weights {
            let (cluster, percent) = weight?;
            sum += u32::from(percent);
            if all.contains_key(&cluster) {
                return Err(InvalidWeights::Twice(cluster.to_string()));
            }
            all.insert(cluster, percent);
        }
        if sum > 100 { Err(InvalidWeights::TooMuch(sum)) } else { Ok(Self(all)) }
    }
}

fn parsed(cluster: &str) -> Result<ClusterId, InvalidWeights> {
    cluster.parse().map_err(|_| InvalidWeights::NoWeight(cluster.to_owned()))
}

impl FromStr for Weights {
    type Err = InvalidWeights;

    fn from_str(text: &str) -> Result<Self, InvalidWeights> {
        Self::new(text.split(',').map(|part| {
            let no_weight = || InvalidWeights::NoWeight(part.to_owned());
            let (cluster, percent) = part.split_once('=').ok_or_else(no_weight)?;
            let percent = percent.trim().strip_suffix('%').and_then(|number| number.parse().ok());
            Ok((parsed(cluster.trim())?, percent.filter(|percent| *percent <= 100).ok_or_else(no_weight)?))
        }))
    }
}

impl TryFrom<BTreeMap<String, u8>> for Weights {
    type Error = InvalidWeights;

    fn try_from(weights: BTreeMap<String, u8>) -> Result<Self, InvalidWeights> {
        Self::new(weights.into_iter().map(|(cluster, percent)| Ok((parsed(&cluster)?, percent))))
    }
}

impl From<Weights> for BTreeMap<String, u8> {
    fn from(Weights(weights): Weights) -> Self {
        weights.into_iter().map(|(cluster, percent)| (cluster.to_string(), percent)).collect()
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (cluster, percent)) in self.0.iter().enumerate() {
            write!(f, "{}{cluster}={percent}%", if n == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_whole_percentages_of_clusters_up_to_100_together() {
        let weights: Weights = " green = 10%, blue=85%".parse().unwrap();
        assert_eq!((weights.to_string(), weights.rest()), ("blue=85%,green=10%".to_owned(), 5));
        assert_eq!([weights.of(&"blue".parse().unwrap()), weights.of(&"red".parse().unwrap())], [Some(85), None]);
        for (text, part) in [
            ("", "\"\" is no weight"),
            ("blue", "\"blue\" is no weight"),
            ("blue=90", "\"blue=90\" is no weight"),
            ("blue=101%", "\"blue=101%\" is no weight"),
            ("blue=-1%", "is no weight"),
            ("blue=1.5%", "is no weight"),
            ("b lue=1%", "\"b lue\" is no weight"),
            ("blue=1%,", "is no weight"),
            ("blue=60%,green=50%", "110% together: write 100% at the most"),
            ("blue=1%,blue=2%", "\"blue\" has two weights"),
        ] {
            let error = text.parse::<Weights>().unwrap_err().to_string();
            assert!(error.contains(part), "{text:?}: {error}");
        }
    }
}
