//! What `status` says: findings in the order in which an endpoint travels.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::{
    apply_crds,
    table::{Table, human},
};
use cluster::reader::Unread;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// As it should be.
    Well,
    /// Not as it should be, or Kubernetes refuses to show it.
    Wrong,
    /// It could not be seen from here, which says nothing about the cluster.
    Unseen,
    /// There is none, and there need not be one.
    Absent,
}

impl State {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Well => "ok",
            Self::Wrong => "WRONG",
            Self::Unseen => "not seen",
            Self::Absent => "-",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// What it is about: a stage, an object or a cluster.
    pub(super) about: String,
    pub(super) state: State,
    /// Since when it is so, or when it was last written.
    pub(super) age: Option<Duration>,
    pub(super) text: String,
    /// What to do, if something is wrong.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn new(about: impl Into<String>, state: State, text: impl Into<String>) -> Self {
        Self { about: about.into(), state, age: None, text: text.into(), remedy: None }
    }

    pub(super) fn well(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(about, State::Well, text)
    }

    pub(super) fn absent(about: impl Into<String>, text: impl Into<String>) -> Self {
        Self::new(about, State::Absent, text)
    }

    pub(super) fn wrong(about: impl Into<String>, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..Self::new(about, State::Wrong, text) }
    }

    /// Kubernetes did not show it. `flags` lead the command of the remedy to the cluster.
    pub(super) fn unread(about: impl Into<String>, why: &Unread, flags: &str) -> Self {
        let remedy = match why {
            Unread::Forbidden(_) => "Have the ClusterRole cloudmap-mcs-reader bound to you".to_owned(),
            Unread::NoSuchKind => format!("Install the CRDs: `{}`", apply_crds(flags)),
            Unread::Failed(_) => {
                format!("Look whether the API server answers, and knows your credentials: `kubectl{flags} auth whoami`")
            }
        };
        Self::wrong(about, format!("not read: {why}"), remedy)
    }

    #[must_use]
    pub(super) fn aged(self, age: Option<Duration>) -> Self {
        Self { age, ..self }
    }
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// What was looked at.
    pub(super) subject: String,
    pub(super) findings: Vec<Finding>,
}

impl Report {
    /// The worst state that is said of each thing.
    pub(crate) fn states(&self) -> BTreeMap<&str, State> {
        let mut states = BTreeMap::new();
        for Finding { about, state, .. } in &self.findings {
            let worst = states.entry(about.as_str()).or_insert(*state);
            if *state == State::Wrong {
                *worst = State::Wrong;
            }
        }
        states
    }

    /// The first finding that is wrong: later ones may follow from it.
    pub(super) fn first_wrong(&self) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.state == State::Wrong)
    }

    /// The answer first, then all findings, each with its remedy.
    pub(crate) fn table(&self) -> String {
        let count = |state| self.findings.iter().filter(|finding| finding.state == state).count();
        let mut answer = match (self.first_wrong(), count(State::Wrong)) {
            (None, _) => format!("{}: nothing is wrong", self.subject),
            (Some(first), 1) => format!("{}: 1 thing is wrong, {}", self.subject, first.about),
            (Some(first), wrong) => format!("{}: {wrong} things are wrong, the first is {}", self.subject, first.about),
        };
        if count(State::Unseen) > 0 {
            answer += " (not everything can be seen from here)";
        }
        let mut table = Table::new(["WHAT", "STATE", "AGE", "FINDING"]);
        for Finding { about, state, age, text, remedy } in &self.findings {
            let age = age.map_or_else(String::new, human);
            table.finding([about.clone(), state.as_str().to_owned(), age, text.clone()], remedy.as_ref());
        }
        format!("{answer}\n\n{table}")
    }

    pub(crate) fn json(&self) -> Value {
        let findings = self.findings.iter().map(|Finding { about, state, age, text, remedy }| {
            json!({
                "about": about, "state": state.as_str(), "ageSeconds": age.map(|age| age.as_secs()), "text": text,
                "remedy": remedy,
            })
        });
        json!({
            "subject": self.subject,
            "well": self.first_wrong().is_none(),
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}
