//! The report: a page of the documents.

use std::fmt::Write as _;
use std::time::Duration;

use base::release;

use super::{
    facts::{FACTS, Fact, How},
    meter::Costs,
    verdict::{Verdict, seconds},
};

/// What was found about one fact, and how long that took.
#[derive(Clone, Debug)]
pub struct Finding {
    pub fact: Fact,
    pub verdict: Verdict,
    pub took: Duration,
}

/// A run that is over, as far as it came.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// When it began, as people write it.
    pub date: String,
    pub region: String,
    pub findings: Vec<Finding>,
    pub spent: Costs,
    /// Why it ended early.
    pub ended: Option<String>,
}

const HEAD: &str = "# Facts of AWS

<!-- Written by `make aws-smoke`. Without a run it is made from the table of facts, which a test compares. -->

What this project relies on, or says, about AWS Cloud Map. Its tests run against an emulator; `make aws-smoke` checks the
same facts in an AWS account. [Tests](testing.md#on-aws-itself) has how to run it and what it costs.
";

/// The page before anybody has run it.
pub fn unrun() -> String {
    let mut page = format!(
        "{HEAD}\n**Nobody has run this on AWS yet.** Each fact below comes from AWS's documents, or is an assumption.\n\n"
    );
    page += "| fact | where it is said | how it is checked |\n|---|---|---|\n";
    for fact in FACTS {
        let how = match fact.how {
            How::Always(_) => "always".to_owned(),
            How::With(extra, _) => format!("with `{}`", extra.flag()),
            How::Never(why) => format!("not: {why}"),
        };
        let _ = writeln!(page, "| `{}` {} | {} | {how} |", fact.id, fact.says, places(fact));
    }
    page
}

fn places(fact: &Fact) -> String {
    fact.said_in.iter().map(|(file, _)| format!("`{file}`")).collect::<Vec<_>>().join(", ")
}

impl Report {
    /// How many findings there are with this word.
    pub fn count(&self, word: &str) -> usize {
        self.findings.iter().filter(|finding| finding.verdict.word() == word).count()
    }

    pub fn summary(&self) -> String {
        let count = |word| format!("{} {word}", self.count(word));
        ["confirmed", "refuted", "differs", "skipped"].map(count).join(", ")
    }

    /// The page.
    pub fn markdown(&self) -> String {
        let Self { date, region, findings, spent, ended } = self;
        let mut page = format!(
            "{HEAD}\nRun on {date} in {region}, with cloudmap-mcs {}: {}. It registered {} instances and made {} discovery \
             calls.\n",
            release::version(),
            self.summary(),
            spent.registrations,
            spent.discoveries,
        );
        if let Some(why) = ended {
            let _ = write!(page, "\n**It ended early:** {}.\n", cell(why));
        }
        page += "\n| fact | where it is said | result | seen | time |\n|---|---|---|---|---|\n";
        for Finding { fact, verdict, took } in findings {
            let (word, seen) = (verdict.word(), cell(verdict.seen()));
            let word = if word == "confirmed" { word.to_owned() } else { format!("**{word}**") };
            let _ = writeln!(
                page,
                "| `{}` {} | {} | {word} | {seen} | {} |",
                fact.id,
                fact.says,
                places(fact),
                seconds(*took)
            );
        }
        page
    }
}

fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
