//! Metrics pages (the Prometheus text format), read as far as the figures need it.

use std::collections::BTreeMap;

/// One line of a metrics page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample<'a> {
    pub(super) name: &'a str,
    labels: &'a str,
    pub(super) value: f64,
}

impl<'a> Sample<'a> {
    /// Whether this is a gauge of that name that is 1: yes, not no.
    pub(super) fn is_true(&self, name: &str) -> bool {
        self.name == name && self.value > 0.5
    }

    /// The value of a label. Quotes in it are not expected and end it early.
    pub(super) fn label(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while let Some((key, tail)) = rest.split_once("=\"") {
            let (value, tail) = tail.split_once('"')?;
            if key.trim_start_matches(',') == name {
                return Some(value);
            }
            rest = tail;
        }
        None
    }
}

/// The samples of a page. Comments and lines that are none are left out.
pub(super) fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (series, ""),
        };
        Some(Sample { name, labels, value: value.parse().ok()? })
    })
}

/// Requests that change objects, as an API server counts them in its metric `apiserver_request_total`: by
/// `<verb> <resource>`, with the subresource behind a slash.
pub(super) fn api_writes(page: &str) -> BTreeMap<String, f64> {
    let mut writes = BTreeMap::new();
    for sample in samples(page).filter(|sample| sample.name == "apiserver_request_total") {
        let verb = sample.label("verb").unwrap_or_default();
        if !["APPLY", "CREATE", "POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION"].contains(&verb) {
            continue;
        }
        let mut key = format!("{verb} {}", sample.label("resource").unwrap_or_default());
        if let Some(subresource) = sample.label("subresource").filter(|name| !name.is_empty()) {
            key = format!("{key}/{subresource}");
        }
        *writes.entry(key).or_default() += sample.value;
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP apiserver_request_total Counter of requests
# TYPE apiserver_request_total counter
apiserver_request_total{code=\"200\",component=\"apiserver\",resource=\"leases\",scope=\"resource\",subresource=\"\",verb=\"PUT\"} 12
apiserver_request_total{code=\"409\",component=\"apiserver\",resource=\"leases\",scope=\"resource\",subresource=\"\",verb=\"PUT\"} 1
apiserver_request_total{code=\"200\",resource=\"serviceexports\",subresource=\"status\",verb=\"APPLY\"} 3e+02
apiserver_request_total{code=\"200\",resource=\"services\",subresource=\"\",verb=\"LIST\"} 7
cloudmap_mcs_instances_drift_period_seconds 5.5
";

    #[test]
    fn writes_are_summed_by_verb_and_resource() {
        let expected =
            BTreeMap::from([("PUT leases".to_owned(), 13.0), ("APPLY serviceexports/status".to_owned(), 300.0)]);
        assert_eq!(api_writes(PAGE), expected);
    }

    #[test]
    fn samples_have_names_labels_and_values() {
        let samples: Vec<Sample<'_>> = samples(PAGE).collect();
        assert_eq!(samples.len(), 5);
        assert_eq!(samples[0].label("code"), Some("200"));
        assert_eq!(samples[0].label("verb"), Some("PUT"));
        assert_eq!(samples[0].label("od"), None);
        let last = &samples[4];
        assert_eq!(
            (last.name, last.value, last.label("code")),
            ("cloudmap_mcs_instances_drift_period_seconds", 5.5, None)
        );
    }
}
