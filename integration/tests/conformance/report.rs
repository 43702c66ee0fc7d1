//! The report: a table for people, JSON for programs.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use cloudmap_mcs_integration::scenario::{Cluster, NODE, contexts};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::check::{Check, Outcome, Played};
use crate::requirement::{Level, REQUIREMENTS, Requirement, unchecked};

/// A change should show within this time; what takes longer is marked.
const SLOW: Duration = Duration::from_secs(5);

/// What ran where and when.
#[derive(Debug, Serialize)]
pub(crate) struct Environment {
    /// The day, in UTC.
    date: String,
    /// The commit of the checkout, as the script that runs the suite says.
    commit: String,
    kubernetes_versions: BTreeSet<String>,
    clusters: usize,
    nodes: usize,
}

impl Environment {
    pub(crate) async fn ask() -> Result<Self> {
        let mut all = Self {
            date: Timestamp::now().strftime("%Y-%m-%d").to_string(),
            commit: std::env::var("MCS_CONFORMANCE_COMMIT").unwrap_or_else(|_| "unknown".to_owned()),
            kubernetes_versions: BTreeSet::new(),
            clusters: 0,
            nodes: 0,
        };
        for context in contexts()? {
            let cluster = Cluster::connect(&context).await?;
            all.kubernetes_versions.insert(cluster.version().await?);
            all.clusters += 1;
            all.nodes += cluster.list(NODE, "", "").await?.len();
        }
        Ok(all)
    }
}

/// What a run found.
#[derive(Debug)]
pub(crate) struct Report {
    played: Vec<Played>,
    place: Environment,
    took: Duration,
    /// Only some of the checks were run.
    partial: bool,
}

/// Says that a check has ended.
#[expect(clippy::print_stdout, reason = "it is what the suite is run for")]
pub(crate) fn progress(played: &Played) {
    let reason = played.outcome.reason().lines().next().unwrap_or_default();
    println!(
        "{:9} {:55} {:>6}  {:>7}  {reason}",
        played.outcome.word(),
        played.name,
        short(played.appeared),
        short(played.took)
    );
}

/// The names of checks.
#[expect(clippy::print_stdout, reason = "it is what was asked for")]
pub(crate) fn list(checks: &[Check]) {
    for check in checks {
        println!("{}", check.name);
    }
}

fn short(duration: Option<Duration>) -> String {
    duration.map(|duration| format!("{:.1} s", duration.as_secs_f64())).unwrap_or_default()
}

impl Report {
    pub(crate) fn new(mut played: Vec<Played>, place: Environment, took: Duration, partial: bool) -> Self {
        played.sort_by_key(|played| played.name);
        Self { played, place, took, partial }
    }

    /// The checks that show a requirement.
    fn of(&self, requirement: &Requirement) -> impl Iterator<Item = &Played> {
        self.played.iter().filter(|played| played.requirements.contains(&requirement.number))
    }

    /// The worst of its checks counts; a check that was skipped does not spoil what another one shows.
    fn outcome(&self, requirement: &Requirement) -> Option<Outcome> {
        let outcomes: Vec<_> = self.of(requirement).map(|played| played.outcome.clone()).collect();
        let shown = outcomes.contains(&Outcome::Pass);
        outcomes.into_iter().filter(|outcome| !shown || !matches!(outcome, Outcome::Skip(_))).max()
    }

    pub(crate) fn exit(&self) -> ExitCode {
        let failed = self.played.iter().any(|played| matches!(played.outcome, Outcome::Fail(_)));
        if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }

    #[expect(clippy::print_stdout, reason = "it is what the suite is run for")]
    pub(crate) fn print(&self) {
        println!("\n{:>2}  {:9}  {:9}  {:>8}  requirement", "", "level", "result", "seconds");
        for requirement in REQUIREMENTS {
            let Some(outcome) = self.outcome(requirement) else { continue };
            let slowest = self.of(requirement).filter_map(|played| played.appeared).max();
            println!(
                "{:>2}  {:9}  {:9}  {:>8}  {}",
                requirement.number,
                requirement.level,
                outcome.word(),
                figure(slowest),
                requirement.text
            );
        }
        for played in &self.played {
            if !played.outcome.reason().is_empty() {
                let reason = played.outcome.reason().lines().take(12).collect::<Vec<_>>().join("\n    ");
                println!("\n{}: {}\n    {reason}", played.outcome.word(), played.name);
            }
        }
        println!("\n{} in {}", self.summary(), short(Some(self.took)));
    }

    fn summary(&self) -> String {
        let count = |wanted: &str| self.played.iter().filter(|played| played.outcome.word() == wanted).count();
        let met = REQUIREMENTS.iter().filter(|requirement| self.outcome(requirement) == Some(Outcome::Pass)).count();
        let broken = REQUIREMENTS
            .iter()
            .filter(|requirement| requirement.level == Level::Must)
            .filter(|requirement| matches!(self.outcome(requirement), Some(Outcome::Fail(_))))
            .count();
        let slow = self.played.iter().filter(|played| played.appeared > Some(SLOW)).count();
        format!(
            "{} checks: {} passed, {} failed, {} skipped, {} known deviations, {slow} slow; {met} of {} requirements met, \
             {broken} MUSTs not met",
            self.played.len(),
            count("pass"),
            count("FAIL"),
            count("skip"),
            count("deviation"),
            REQUIREMENTS.len()
        )
    }

    /// Writes `<path>.md` and `<path>.json`.
    pub(crate) fn write(&self, path: &str) -> Result<()> {
        for (ending, text) in [("md", self.markdown()), ("json", self.json()?)] {
            let file = format!("{path}.{ending}");
            if let Some(folder) = std::path::Path::new(&file).parent() {
                std::fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))?;
            }
            std::fs::write(&file, text).with_context(|| format!("failed to write {file}"))?;
        }
        Ok(())
    }

    fn markdown(&self) -> String {
        let mut text = String::new();
        let Environment { date, commit, kubernetes_versions, clusters, nodes } = &self.place;
        let versions = kubernetes_versions.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let some = if self.partial { " Only some of the checks were run." } else { "" };
        let _ = writeln!(
            text,
            "# Conformance report\n\nWritten by `make conformance`; [conformance.md](conformance.md) says what it is.\n\n\
             Run on {date} (UTC), with the suite of commit `{commit}`.\n\n\
             {clusters} clusters with {nodes} nodes, Kubernetes {versions}. {}, in {}.{some}\n\n\
             *Seconds* are the longest that a change took to show in the clusters, *slow* means more than {} s. Nothing \
             fails for being slow before 20 s.\n\n\
             ## Requirements\n\n\
             | # | level | source | requirement | result | seconds | shown by |\n|---|---|---|---|---|---|---|",
            self.summary(),
            short(Some(self.took)),
            SLOW.as_secs()
        );
        for requirement in REQUIREMENTS {
            let Requirement { number, level, source, text: words } = requirement;
            let names: Vec<_> = self.of(requirement).map(|played| format!("`{}`", played.name)).collect();
            let slowest = self.of(requirement).filter_map(|played| played.appeared).max();
            let result = match (self.outcome(requirement), unchecked(*number)) {
                (Some(outcome), _) => outcome.word().to_owned(),
                (None, Some(reason)) => reason.to_owned(),
                (None, None) => "not run".to_owned(),
            };
            let _ = writeln!(
                text,
                "| {number} | {level} | {source} | {} | {result} | {} | {} |",
                cell(words),
                figure(slowest),
                names.join(", ")
            );
        }
        let _ = writeln!(
            text,
            "\n## Checks\n\n| check | requirements | result | seconds | took | |\n|---|---|---|---|---|---|"
        );
        for played in &self.played {
            let numbers: Vec<_> = played.requirements.iter().map(ToString::to_string).collect();
            let _ = writeln!(
                text,
                "| `{}` | {} | {} | {} | {} | {} |",
                played.name,
                numbers.join(", "),
                played.outcome.word(),
                figure(played.appeared),
                short(played.took),
                cell(played.outcome.reason().lines().next().unwrap_or_default())
            );
        }
        text
    }

    fn json(&self) -> Result<String> {
        let requirements: Vec<_> = REQUIREMENTS
            .iter()
            .map(|requirement| {
                let outcome = self.outcome(requirement);
                json!({
                    "number": requirement.number, "level": requirement.level, "source": requirement.source,
                    "text": requirement.text, "result": outcome.as_ref().map(|outcome| outcome.word().to_lowercase()),
                    "reason": outcome.as_ref().map(Outcome::reason),
                    "checks": self.of(requirement).map(|played| played.name).collect::<Vec<_>>(),
                })
            })
            .collect();
        let report = json!({"on": self.place, "requirements": requirements, "checks": self.played});
        Ok(serde_json::to_string_pretty(&report)? + "\n")
    }
}

fn figure(duration: Option<Duration>) -> String {
    match duration {
        Some(duration) if duration > SLOW => format!("{:.1} slow", duration.as_secs_f64()),
        Some(duration) => format!("{:.1}", duration.as_secs_f64()),
        None => String::new(),
    }
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}
