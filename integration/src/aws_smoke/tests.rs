//! The table and its documents.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::*;

fn read(file: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Without what comments and lines put between words.
fn words(text: &str) -> String {
    text.split_whitespace().filter(|word| !["//", "///", "//!"].contains(word)).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_fact_is_said_where_the_table_says() {
    let ids: BTreeSet<_> = FACTS.iter().map(|fact| fact.id).collect();
    assert_eq!(ids.len(), FACTS.len());
    for fact in FACTS {
        assert!(fact.says.ends_with('.') && !fact.says.contains('|'), "{}", fact.id);
        for (file, said) in fact.said_in {
            assert!(words(&read(file)).contains(said), "{}: {file} does not say {said:?}", fact.id);
        }
    }
}

/// `(?)` marks what was not verified. Each has a fact.
#[test]
fn what_the_documents_mark_as_unverified_is_in_the_table() {
    let mut marks = 0;
    for file in [
        "docs/iam.md",
        "docs/moving-from-external-dns.md",
        "docs/moving-from-cloudmap-controller.md",
        "coredns/README.md",
    ] {
        let text = words(&read(file));
        let said =
            FACTS.iter().flat_map(|fact| fact.said_in).filter(|(place, said)| *place == file && said.ends_with("(?)"));
        let known: BTreeSet<_> =
            said.flat_map(|(_, said)| text.match_indices(said).map(|(at, found)| at + found.len())).collect();
        for (at, mark) in text.match_indices("(?)") {
            let explained = text[at..].starts_with("(?) marks");
            assert!(
                explained || known.contains(&(at + mark.len())),
                "{file}: no fact for {:?}",
                &text[at.saturating_sub(60)..at]
            );
            marks += 1;
        }
    }
    assert!(marks > 6, "{marks}");
}

#[test]
fn the_page_without_a_run_is_made_from_the_table() {
    let page = read("docs/aws-report.md");
    if page.contains("Nobody has run this") {
        if std::env::var_os("CLOUDMAP_MCS_WRITE_DOCS").is_some() {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
            fs::write(root.join("docs/aws-report.md"), report::unrun()).unwrap();
        }
        assert_eq!(read("docs/aws-report.md"), report::unrun(), "run `make docs`");
    }
}

fn plan() -> Plan {
    let account = "123456789012".to_owned();
    Plan { account, budget: 10.0, vpc: None, many: false, throttling: false, patience: Duration::from_secs(1) }
}

#[test]
fn a_plan_says_what_it_costs_and_what_is_wrong() {
    plan().check().unwrap();
    let many = Plan { many: true, ..plan() };
    assert!(many.bound().usd() > 100.0 && plan().bound().usd() < 10.0);
    let error = many.check().unwrap_err().to_string();
    assert!(error.contains("more than the budget of 10.00 USD"), "{error}");
    let error = Plan { account: "1234".to_owned(), ..plan() }.check().unwrap_err().to_string();
    assert!(error.contains("twelve digits"), "{error}");
    assert!(plan().bound().usd() < Plan { vpc: Some("vpc-1".to_owned()), ..plan() }.bound().usd());
}
