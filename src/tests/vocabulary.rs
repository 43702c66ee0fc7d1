//! The reasons of conditions and Events are those that `docs/operations.md` explains.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use super::root;
use crate::{
    api::{
        conditions::{ConflictState, RegisteredReason, Row, Verdict, export_rows, import_rows},
        events::EventReason,
    },
    model::ConflictReason,
};

/// A row of a table of conditions in the document: `Ready=False`, its reasons, and what it says of them.
type Documented = (String, BTreeSet<String>, String);

fn section(heading: &str) -> String {
    let text = fs::read_to_string(root().join("docs/operations.md")).unwrap();
    text.split(&format!("\n## {heading}\n")).nth(1).unwrap().split("\n## ").next().unwrap().to_owned()
}

/// The cells of the rows of all tables, without the headings.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|line| line.split(" | ").map(str::trim).collect())
        .filter(|cells: &Vec<&str>| !["condition", "reason"].contains(&cells[0]))
}

fn quoted(cell: &str) -> impl Iterator<Item = String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The rows of the tables under `object`, each with its condition, which only the first of several has.
fn documented(object: &str) -> Vec<Documented> {
    let conditions = section("Conditions");
    let table =
        conditions.split(&format!("On a {object}:")).nth(1).unwrap().split("\nOn a ").next().unwrap().to_owned();
    let mut condition = String::new();
    let rows = table.lines().filter(|line| line.starts_with("| ")).skip(1).map(|line| {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        if let Some(name) = quoted(cells[0]).next() {
            condition = name;
        }
        (condition.clone(), quoted(cells[1]).collect(), cells[2].to_owned())
    });
    rows.collect()
}

/// The reasons that a row can have on an object.
fn reasons(row: &Row) -> BTreeSet<String> {
    if *row == ConflictState::Conflict.row() {
        return ConflictReason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect();
    }
    [row.reason.to_owned()].into()
}

#[test]
fn the_document_has_each_reason_of_a_condition_with_its_status_meaning_and_remedy_and_no_others() {
    for (object, table) in [("ServiceExport", export_rows()), ("ServiceImport", import_rows())] {
        let documented = documented(object);
        for row in &table {
            let condition = format!("{}={}", row.condition, row.status.as_str());
            let there = documented.iter().find(|there| there.0 == condition && there.1 == reasons(row));
            let (_, _, text) = there.unwrap_or_else(|| panic!("{object} {condition} {} is not explained", row.reason));
            assert!(text.contains(row.text), "{object} {condition} {}: {:?} is not in {text:?}", row.reason, row.text);
            assert!(
                text.contains(row.remedy),
                "{object} {condition} {}: {:?} is not in {text:?}",
                row.reason,
                row.remedy
            );
        }
        for (condition, documented, _) in &documented {
            let said = |row: &Row| {
                *condition == format!("{}={}", row.condition, row.status.as_str()) && *documented == reasons(row)
            };
            assert!(table.iter().any(said), "{object} never says {condition} with {documented:?}");
        }
    }
}

#[test]
fn every_condition_that_is_bad_has_a_remedy_unless_somebody_wants_it_so() {
    for row in export_rows().into_iter().chain(import_rows()) {
        let wanted = row == RegisteredReason::Disabled.row();
        assert_eq!(Verdict::new(row, "").is_bad() && !wanted, !row.remedy.is_empty(), "{row:?}");
    }
}

#[test]
fn the_document_has_each_event_with_the_objects_that_it_is_on_and_no_others() {
    let mut documented = BTreeMap::<String, BTreeSet<String>>::new();
    for cells in rows(&section("Events")) {
        for reason in quoted(cells[0]) {
            documented.entry(reason).or_default().extend(cells[1].split(", ").map(str::to_owned));
        }
    }
    let kinds = |reason: &EventReason| reason.kinds().iter().map(|&kind| kind.to_owned()).collect();
    let said = EventReason::ALL.iter().map(|reason| (reason.to_string(), kinds(reason)));
    assert_eq!(documented, said.collect());
}

#[test]
fn an_event_of_a_condition_is_on_its_kind_of_object() {
    for (kind, table) in [("ServiceExport", export_rows()), ("ServiceImport", import_rows())] {
        for event in table.iter().filter_map(|row| row.event) {
            assert!(event.kinds().contains(&kind), "{event} on a {kind}");
        }
    }
}
