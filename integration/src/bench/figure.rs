//! What a benchmark prints: one JSON line a figure.

use std::fmt;

use serde::Serialize;

/// A measured value and what it should be at most. A figure without a target is there for the reader.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    pub figure: String,
    pub value: f64,
    pub unit: &'static str,
    /// The greatest value that is good enough.
    pub target: Option<f64>,
    pub met: Option<bool>,
}

impl Figure {
    /// A figure that should be `target` at most.
    pub(super) fn at_most(figure: impl Into<String>, value: f64, unit: &'static str, target: f64) -> Self {
        let value = rounded(value);
        Self { figure: figure.into(), value, unit, target: Some(target), met: Some(value <= target) }
    }

    pub(super) fn for_scale(figure: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { figure: figure.into(), value: rounded(value), unit, target: None, met: None }
    }
}

/// The line.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

/// To three digits, and never the negative zero that a sum of nothing is.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0 + 0.0
}

/// The nearest-rank percentile: the least of `sorted` that `percent` of them are not above. `None` without values.
pub(super) fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
    let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=300).map(f64::from).collect();
        for (percent, expected) in [(0.0, 1.0), (50.0, 150.0), (99.0, 297.0), (100.0, 300.0)] {
            assert_eq!(percentile(&values, percent), Some(expected), "p{percent}");
        }
        assert_eq!(percentile(&[7.0], 50.0), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn a_target_is_met_up_to_and_with_its_value() {
        assert_eq!(Figure::at_most("x", 5.0, "s", 5.0).met, Some(true));
        assert_eq!(Figure::at_most("x", 5.0004, "s", 5.0).met, Some(true), "as printed");
        assert_eq!(Figure::at_most("x", 5.001, "s", 5.0).met, Some(false));
        assert_eq!(Figure::for_scale("x", 5.0, "s").met, None);
    }

    #[test]
    fn a_line_has_the_five_members() {
        let line = Figure::at_most("change_p50", 0.61234, "s", 0.8).to_string();
        assert_eq!(line, r#"{"figure":"change_p50","value":0.612,"unit":"s","target":0.8,"met":true}"#);
        let nothing = Figure::for_scale("writes", [0.0; 0].into_iter().sum(), "requests").to_string();
        assert_eq!(nothing, r#"{"figure":"writes","value":0.0,"unit":"requests","target":null,"met":null}"#);
    }
}
