//! What `doctor` says.

use serde_json::{Value, json};

use crate::{apply_crds, table::Table};
use cluster::reader::Unread;

/// How something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// It works, with a disadvantage or for now.
    Warn,
    /// It does not work.
    Fail,
    /// It was not checked.
    Skip,
}

impl State {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
            Self::Skip => "SKIP",
        }
    }
}

/// One thing that was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) state: State,
    /// A cluster, `a→b`, `registry`, or all clusters.
    pub(super) place: String,
    pub(super) subject: &'static str,
    pub(super) what: String,
    /// What to do; always there unless the state is `Ok`.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(place: &str, subject: &'static str, what: impl Into<String>) -> Self {
        Self { state: State::Ok, place: place.to_owned(), subject, what: what.into(), remedy: None }
    }

    fn bad(
        state: State,
        place: &str,
        subject: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { state, remedy: Some(remedy.into()), ..Self::ok(place, subject, what) }
    }

    pub(super) fn warn(place: &str, subject: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::bad(State::Warn, place, subject, what, remedy)
    }

    pub(super) fn fail(place: &str, subject: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::bad(State::Fail, place, subject, what, remedy)
    }

    pub(super) fn skip(place: &str, subject: &'static str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::bad(State::Skip, place, subject, what, remedy)
    }

    /// Kubernetes did not show it. `flags` lead the command of the remedy to the cluster.
    pub(super) fn unread(place: &str, subject: &'static str, why: &Unread, flags: &str) -> Self {
        let what = format!("not read: {why}");
        match why {
            Unread::Forbidden(_) => Self::skip(
                place,
                subject,
                what,
                "have the ClusterRole and the Role cloudmap-mcs-reader bound to you, and run this on a workstation",
            ),
            Unread::NoSuchKind => Self::fail(place, subject, what, apply_crds(flags)),
            Unread::Failed(_) => Self::fail(place, subject, what, "look whether kubectl reads it with this context"),
        }
    }
}

/// All findings.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Report(pub(super) Vec<Finding>);

impl Report {
    pub(super) fn count(&self, state: State) -> usize {
        self.0.iter().filter(|finding| finding.state == state).count()
    }

    /// The first thing that does not work.
    pub(super) fn first_failed(&self) -> Option<&Finding> {
        self.0.iter().find(|finding| finding.state == State::Fail)
    }

    /// The answer first, then all findings, each with its remedy.
    pub(super) fn table(&self) -> String {
        let [failed, warned, skipped] = [State::Fail, State::Warn, State::Skip].map(|state| self.count(state));
        let answer = format!("{} checks: {failed} failed, {warned} warned, {skipped} were skipped", self.0.len());
        let mut table = Table::new(["STATE", "WHERE", "SUBJECT", "FINDING"]);
        for Finding { state, place, subject, what, remedy } in &self.0 {
            let cells = [state.as_str().to_owned(), place.clone(), (*subject).to_owned(), what.clone()];
            table.finding(cells, remedy.as_ref());
        }
        format!("{answer}\n\n{table}")
    }

    pub(super) fn json(&self) -> Value {
        let findings = self.0.iter().map(|Finding { state, place, subject, what, remedy }| {
            json!({"state": state.as_str(), "where": place, "subject": subject, "text": what, "remedy": remedy})
        });
        json!({"well": self.count(State::Fail) == 0, "findings": findings.collect::<Vec<_>>()})
    }
}
