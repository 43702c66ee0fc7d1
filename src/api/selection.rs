//! Which clusters serve a name in an importing cluster, nearest first: the *cluster selection* of KEP-5939, which is a draft
//! (kubernetes/enhancements#5940). Its fields are annotations here, with the draft's shapes; docs/traffic.md says what differs.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::{Selector, SelectorExt as _};
use serde::{Deserialize, Serialize};

use super::{
    names::{PROPERTY_CLUSTER_ID, PROPERTY_REGION},
    weights::Weights,
};
use model::{
    Excerpt, MinReady,
    labels::{is_label_key, is_label_value},
};

/// Stands for the value that the importing cluster has of a property (KEP-5939).
pub const SAME_AS_IMPORTER: &str = "@SameAsImporter@";

/// Maximum number of selectors (KEP-5939).
pub const MAX_SELECTORS: usize = 16;

/// Maximum length of a cluster selection as it is published, in bytes. It is a part of the record of an export, which may have
/// 2,500.
pub const MAX_SELECTION: usize = 1_000;

/// The properties of a cluster, by name: its ClusterProperties (KEP-2149).
pub type Properties = BTreeMap<String, String>;

/// An ordered list of selectors over the properties of clusters. The first one that selects a cluster determines its tier.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterSelection {
    /// The selectors, the preferred one first. Without any, all clusters serve alike.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cluster_selectors: Vec<ClusterSelector>,
    /// What becomes of the clusters that none selects.
    #[serde(default, skip_serializing_if = "FallbackPolicy::is_default")]
    cluster_selectors_fallback_policy: FallbackPolicy,
    /// See [`ClusterSelection::min_ready`].
    #[serde(default, skip_serializing_if = "is_any")]
    min_ready: MinReady,
    /// See [`ClusterSelection::weights`].
    #[serde(default, skip_serializing_if = "Weights::is_empty")]
    weights: Weights,
}

/// Selects clusters (KEP-5939).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterSelector {
    /// By their properties, as a label selector selects by labels.
    property_selector: PropertySelector,
}

impl Eq for ClusterSelector {}

/// A label selector over properties. Unlike that of Kubernetes, it refuses fields that it does not know: a misspelled one would
/// select every cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PropertySelector {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    match_labels: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    match_expressions: Vec<PropertyRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PropertyRequirement {
    key: String,
    operator: Operator,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    values: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_any(share: &MinReady) -> bool {
    *share == MinReady::ANY
}

/// What becomes of the clusters that no selector selects (KEP-5939).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FallbackPolicy {
    /// They are the last tier.
    #[default]
    AllClusters,
    /// They never serve.
    None,
}

impl FallbackPolicy {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A cluster selection is refused. The message says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidSelection(String);

/// What is wrong about the annotation of this name.
fn about<E: fmt::Display>(name: &str) -> impl Fn(E) -> InvalidSelection {
    move |why| InvalidSelection(format!("{name}: {why}"))
}

/// A short form, and what it stands for.
type Short = (&'static str, fn() -> ClusterSelection);

/// The short forms.
const SHORT: [Short; 3] = [
    ("spread", ClusterSelection::spread),
    ("local-first", ClusterSelection::local_first),
    ("local-only", ClusterSelection::local_only),
];

impl ClusterSelection {
    fn short(text: &str) -> Option<Self> {
        SHORT.iter().find(|(name, _)| *name == text).map(|(_, selection)| selection())
    }

    /// `spread`: all clusters serve alike.
    #[must_use]
    pub fn spread() -> Self {
        Self::default()
    }

    /// `local-first`: the own cluster, then those of the own region, then all.
    #[must_use]
    pub fn local_first() -> Self {
        let selectors = [PROPERTY_CLUSTER_ID, PROPERTY_REGION].map(ClusterSelector::same);
        Self { cluster_selectors: selectors.into(), min_ready: MinReady::MOST, ..Self::default() }
    }

    /// `local-only`: the own cluster, and no other.
    #[must_use]
    pub fn local_only() -> Self {
        Self {
            cluster_selectors: vec![ClusterSelector::same(PROPERTY_CLUSTER_ID)],
            cluster_selectors_fallback_policy: FallbackPolicy::None,
            ..Self::default()
        }
    }

    /// Reads the four annotations; `None` if there is none.
    ///
    /// # Errors
    /// One is invalid: its name, and what to write.
    pub fn read(
        [selectors, fallback, min_ready, weights]: [Option<&str>; 4],
        [selectors_name, fallback_name, min_ready_name, weights_name]: [&str; 4],
    ) -> Result<Option<Self>, InvalidSelection> {
        let weights = weights.map(|text| text.trim().parse::<Weights>()).transpose();
        let weights = weights.map_err(about(weights_name))?;
        let Some(selectors) = selectors.map(str::trim) else {
            let needless = [(fallback, fallback_name), (min_ready, min_ready_name)];
            return match needless.into_iter().find(|(value, _)| value.is_some()) {
                Some((_, name)) => Err(InvalidSelection(format!(
                    "{name} means nothing without {selectors_name}: add that one, or remove this one"
                ))),
                None => Ok(weights.map(|weights| Self { weights, ..Self::spread() })),
            };
        };
        let mut selection = selectors.parse::<Self>().map_err(about(selectors_name))?;
        if let Some(text) = fallback.map(str::trim) {
            selection.cluster_selectors_fallback_policy = match text {
                "AllClusters" => FallbackPolicy::AllClusters,
                "None" => FallbackPolicy::None,
                other => {
                    let why = format!("{} is no policy: write \"AllClusters\" or \"None\"", Excerpt(other));
                    return Err(about(fallback_name)(why));
                }
            };
        }
        if let Some(text) = min_ready.map(str::trim) {
            selection.min_ready = text.parse().map_err(about(min_ready_name))?;
        }
        if selection.cluster_selectors.is_empty() && selection != Self::spread() {
            return Err(InvalidSelection(format!(
                "{fallback_name} and {min_ready_name} mean nothing with \"spread\": name clusters in {selectors_name}"
            )));
        }
        selection.weights = weights.unwrap_or_default();
        let bytes = selection.published().len();
        if bytes > MAX_SELECTION {
            let why = format!("it takes {bytes} bytes of at most {MAX_SELECTION}: use fewer or shorter selectors");
            return Err(about(selectors_name)(why));
        }
        Ok(Some(selection))
    }

    /// The form in which an export is published with it. Equal selections have equal forms.
    #[must_use]
    pub fn published(&self) -> Arc<str> {
        match self.short_form() {
            Some(name) => name.into(),
            // Its texts can be written, so this never fails.
            None => serde_json::to_string(self).unwrap_or_default().into(),
        }
    }

    /// The name of the short form, if there is one.
    fn short_form(&self) -> Option<&'static str> {
        SHORT.iter().find(|(_, selection)| selection() == *self).map(|(name, _)| *name)
    }

    /// Reads [`ClusterSelection::published`].
    ///
    /// # Errors
    /// A newer version wrote it, or no version of this project.
    pub fn from_published(text: &str) -> Result<Self, InvalidSelection> {
        if text.len() > MAX_SELECTION {
            return Err(InvalidSelection(format!("it has more than {MAX_SELECTION} bytes")));
        }
        if let Some(selection) = Self::short(text) {
            return Ok(selection);
        }
        let selection: Self = serde_json::from_str(text).map_err(|error| InvalidSelection(error.to_string()))?;
        selection.checked()
    }

    /// Whether all clusters serve alike.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.cluster_selectors.is_empty() && self.weights.is_empty()
    }

    /// Which part of the connections each cluster of the tier that serves should get.
    #[must_use]
    pub const fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Which share of a tier's endpoints must be ready for it to serve alone.
    #[must_use]
    pub const fn min_ready(&self) -> MinReady {
        self.min_ready
    }

    /// The tiers for an importing cluster with these properties.
    #[must_use]
    pub fn for_importer(&self, importer: &Properties) -> Tiers {
        let selectors = self.cluster_selectors.iter().map(|selector| selector.resolved(importer));
        Tiers { selectors: selectors.collect(), fallback: self.cluster_selectors_fallback_policy }
    }

    /// The properties by which it selects, beside the id of the cluster.
    pub fn property_names(&self) -> impl Iterator<Item = &str> {
        let names = self.cluster_selectors.iter().flat_map(|selector| {
            let PropertySelector { match_labels, match_expressions } = &selector.property_selector;
            match_labels.keys().chain(match_expressions.iter().map(|requirement| &requirement.key))
        });
        names.map(String::as_str).filter(|name| *name != PROPERTY_CLUSTER_ID)
    }

    fn checked(self) -> Result<Self, InvalidSelection> {
        let count = self.cluster_selectors.len();
        if count > MAX_SELECTORS {
            return Err(InvalidSelection(format!("it has {count} selectors of at most {MAX_SELECTORS}")));
        }
        for (n, selector) in self.cluster_selectors.iter().enumerate() {
            let PropertySelector { match_labels, match_expressions } = &selector.property_selector;
            let of = |why: String| InvalidSelection(format!("selector {}: {why}", n + 1));
            if match_labels.is_empty() && match_expressions.is_empty() {
                return Err(
                    of("propertySelector is empty, and would select every cluster: name a property".to_owned()),
                );
            }
            let keys = match_labels.keys().chain(match_expressions.iter().map(|requirement| &requirement.key));
            if let Some(key) = keys.clone().find(|key| !is_label_key(key)) {
                return Err(of(format!("{} cannot be the name of a ClusterProperty", Excerpt(key))));
            }
            let values = match_labels.values().chain(match_expressions.iter().flat_map(|one| &one.values));
            if let Some(value) = values.clone().find(|value| *value != SAME_AS_IMPORTER && !is_label_value(value)) {
                return Err(of(format!(
                    "{} is no value: write up to 63 letters, digits, '-', '_' and '.', or {SAME_AS_IMPORTER:?}",
                    Excerpt(value)
                )));
            }
            for PropertyRequirement { key, operator, values } in match_expressions {
                let takes = matches!(operator, Operator::In | Operator::NotIn);
                if takes == values.is_empty() {
                    let needs = if takes { "needs values" } else { "takes no values" };
                    return Err(of(format!("{operator:?} of {key} {needs}")));
                }
            }
        }
        Ok(self)
    }
}

impl FromStr for ClusterSelection {
    type Err = InvalidSelection;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(selection) = Self::short(text) {
            return Ok(selection);
        }
        if !text.starts_with(['[', '-']) {
            return Err(InvalidSelection(format!(
                "{} is no cluster selection: write \"local-first\", \"local-only\", \"spread\", or a list of selectors, such as \
                 [{{\"propertySelector\": {{\"matchLabels\": {{\"{PROPERTY_REGION}\": \"{SAME_AS_IMPORTER}\"}}}}}}]",
                Excerpt(text)
            )));
        }
        let selectors = serde_yaml_ng::from_str(text).map_err(|error| InvalidSelection(error.to_string()))?;
        let selection = Self { cluster_selectors: selectors, ..Self::default() };
        if selection.is_spread() {
            return Err(InvalidSelection(
                "the list is empty: write \"spread\" if all clusters are to serve alike".to_owned(),
            ));
        }
        selection.checked()
    }
}

/// The short form, if there is one, else as it is published; the weights last.
impl fmt::Display for ClusterSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.weights.is_empty() {
            return f.write_str(&self.published());
        }
        let without = Self { weights: Weights::default(), ..self.clone() };
        write!(f, "{without} with the weights {}", self.weights)
    }
}

impl ClusterSelector {
    /// The clusters that have the importing cluster's value of a property.
    fn same(property: &str) -> Self {
        let match_labels = [(property.to_owned(), SAME_AS_IMPORTER.to_owned())].into();
        Self { property_selector: PropertySelector { match_labels, ..PropertySelector::default() } }
    }

    fn resolved(&self, importer: &Properties) -> Selector {
        // KEP-5939: an empty text, if the importing cluster does not have it. No property has that value.
        let value = |key: &str, value: &String| {
            if value == SAME_AS_IMPORTER { importer.get(key).cloned().unwrap_or_default() } else { value.clone() }
        };
        let PropertySelector { match_labels, match_expressions } = &self.property_selector;
        let labels = match_labels.iter().map(|(key, text)| (key.clone(), value(key, text)));
        let requirements = match_expressions.iter().map(|PropertyRequirement { key, operator, values }| {
            let operator = format!("{operator:?}");
            let values = values.iter().map(|text| value(key, text)).collect::<Vec<_>>();
            LabelSelectorRequirement { key: key.clone(), operator, values: (!values.is_empty()).then_some(values) }
        });
        let selector =
            LabelSelector { match_labels: Some(labels.collect()), match_expressions: Some(requirements.collect()) };
        // It was checked, so that it always is one; what is none selects nothing that this one would not.
        Selector::try_from(selector).unwrap_or_default()
    }
}

/// The tiers of an importing cluster: 0 is the nearest one.
#[derive(Debug, Clone, PartialEq)]
pub struct Tiers {
    selectors: Vec<Selector>,
    fallback: FallbackPolicy,
}

impl Tiers {
    /// The tier of a cluster with these properties; `None` if it never serves.
    #[must_use]
    pub fn of(&self, cluster: &Properties) -> Option<usize> {
        let first = self.selectors.iter().position(|selector| selector.matches(cluster));
        first.or_else(|| (self.fallback == FallbackPolicy::AllClusters).then_some(self.selectors.len()))
    }

    /// The tier of ECS tasks and other discovered instances, which belong to no cluster: that of all if all serve alike, else
    /// the last one; `None` if they never serve.
    #[must_use]
    pub fn of_discovered(&self) -> Option<usize> {
        let last = if self.selectors.is_empty() { 0 } else { self.selectors.len() + 1 };
        (self.fallback == FallbackPolicy::AllClusters).then_some(last)
    }
}

#[cfg(test)]
#[path = "selection_tests.rs"]
mod tests;
