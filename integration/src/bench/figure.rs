//! What a benchmark prints: one JSON line a figure.

use std::{fmt, process::ExitCode, time::Duration};

use anyhow::Context as _;
use serde::Serialize;

/// A measured value and what it should be. A figure without a target is there for the reader.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    pub figure: String,
    pub value: f64,
    pub unit: &'static str,
    /// The greatest value that is good enough, or the only one.
    pub target: Option<f64>,
    pub met: Option<bool>,
}

impl Figure {
    /// A figure that should be `target` at most.
    pub(super) fn at_most(figure: impl Into<String>, value: f64, unit: &'static str, target: f64) -> Self {
        let value = rounded(value);
        Self { figure: figure.into(), value, unit, target: Some(target), met: Some(value <= target) }
    }

    /// A figure that should be `target`, no more and no less: how often something happened that was to happen.
    pub(super) fn exactly(figure: impl Into<String>, value: f64, unit: &'static str, target: f64) -> Self {
        let value = rounded(value);
        // To three digits, too.
        let met = (value - target).abs() < 0.001;
        Self { figure: figure.into(), value, unit, target: Some(target), met: Some(met) }
    }

    /// One with a target, if there is a target.
    pub(super) fn new(figure: impl Into<String>, value: f64, unit: &'static str, target: Option<f64>) -> Self {
        match target {
            Some(target) => Self::at_most(figure, value, unit, target),
            None => Self::for_scale(figure, value, unit),
        }
    }

    /// As a figure of controllers that are not ours, for which our targets do not count.
    pub(super) fn of_peer(self) -> Self {
        Self { figure: format!("peer_{}", self.figure), target: None, met: None, ..self }
    }

    pub(super) fn for_scale(figure: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { figure: figure.into(), value: rounded(value), unit, target: None, met: None }
    }
}

/// Prints figures, and notes which targets are missed.
#[derive(Debug, Default)]
pub struct Verdict {
    missed: Vec<String>,
}

impl Verdict {
    /// Prints one.
    #[expect(clippy::print_stdout, reason = "the figures are the output of the program")]
    pub fn take(&mut self, figure: Figure) {
        println!("{figure}");
        if figure.met == Some(false) {
            self.missed.push(figure.figure);
        }
    }

    /// 1 if a target is missed.
    pub fn exit_code(self) -> ExitCode {
        if self.missed.is_empty() {
            return ExitCode::SUCCESS;
        }
        tracing::error!("targets missed: {}", self.missed.join(", "));
        ExitCode::FAILURE
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

/// Latencies in seconds, sorted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Latencies(Vec<f64>);

impl Latencies {
    /// The nearest-rank percentile.
    ///
    /// # Errors
    /// There are no latencies.
    pub(super) fn percentile(&self, percent: f64) -> anyhow::Result<f64> {
        percentile(&self.0, percent).context("nothing was measured")
    }

    /// `<name>_p50`, `<name>_p99` and `<name>_max`. The first two have targets, if there are any.
    pub(super) fn figures(&self, name: &str, targets: Option<(f64, f64)>) -> anyhow::Result<Vec<Figure>> {
        let (half, most) = targets.unzip();
        Ok(vec![
            Figure::new(format!("{name}_p50"), self.percentile(50.0)?, "s", half),
            Figure::new(format!("{name}_p99"), self.percentile(99.0)?, "s", most),
            Figure::for_scale(format!("{name}_max"), self.percentile(100.0)?, "s"),
        ])
    }
}

impl FromIterator<Duration> for Latencies {
    fn from_iter<I: IntoIterator<Item = Duration>>(latencies: I) -> Self {
        let mut sorted: Vec<f64> = latencies.into_iter().map(|latency| latency.as_secs_f64()).collect();
        sorted.sort_by(f64::total_cmp);
        Self(sorted)
    }
}

/// The nearest-rank percentile: the least of `sorted` that `percent` of them are not above. `None` without values.
fn percentile(sorted: &[f64], percent: f64) -> Option<f64> {
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
    fn latencies_are_sorted_and_have_two_targets() {
        let latencies: Latencies = (1..=100).rev().map(|n| Duration::from_millis(n * 10)).collect();
        assert_eq!(
            latencies.figures("change", Some((0.6, 0.9))).unwrap(),
            [
                Figure::at_most("change_p50", 0.5, "s", 0.6),
                Figure::at_most("change_p99", 0.99, "s", 0.9),
                Figure::for_scale("change_max", 1.0, "s"),
            ]
        );
        assert!(Latencies::default().figures("change", None).is_err());
    }

    #[test]
    fn our_targets_do_not_count_for_a_peer() {
        let figure = Figure::at_most("change_p50", 5.0, "s", 0.04).of_peer();
        assert_eq!(figure, Figure::for_scale("peer_change_p50", 5.0, "s"));
    }

    #[test]
    fn a_target_is_met_up_to_and_with_its_value() {
        assert_eq!(Figure::at_most("x", 5.0, "s", 5.0).met, Some(true));
        assert_eq!(Figure::at_most("x", 5.0004, "s", 5.0).met, Some(true), "as printed");
        assert_eq!(Figure::at_most("x", 5.001, "s", 5.0).met, Some(false));
        assert_eq!(Figure::for_scale("x", 5.0, "s").met, None);
        let exactly = [4.0, 5.0, 6.0].map(|value| Figure::exactly("x", value, "pods", 5.0).met);
        assert_eq!(exactly, [Some(false), Some(true), Some(false)]);
    }

    #[test]
    fn a_line_has_the_five_members() {
        let line = Figure::at_most("change_p50", 0.61234, "s", 0.8).to_string();
        assert_eq!(line, r#"{"figure":"change_p50","value":0.612,"unit":"s","target":0.8,"met":true}"#);
        let nothing = Figure::for_scale("writes", [0.0; 0].into_iter().sum(), "requests").to_string();
        assert_eq!(nothing, r#"{"figure":"writes","value":0.0,"unit":"requests","target":null,"met":null}"#);
    }
}
