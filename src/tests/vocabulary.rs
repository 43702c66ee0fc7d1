//! The reasons of conditions and their Events are those that `docs/operations.md` explains.

use std::{collections::BTreeSet, fs};

use super::root;
use crate::{
    api::conditions::{
        ConflictState, ImportReadyReason, ImportStaleReason, ReadyReason, RegisteredReason, Row, ValidReason,
    },
    model::ConflictReason,
};

/// Events on a ServiceExport that no condition says: about an address of it, its import, or writes that fail.
const WITHOUT_CONDITION: [&str; 4] = ["AddressSkipped", "ForeignObject", "ReconcileFailed", "SystemNamespace"];

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

fn export_rows() -> Vec<Row> {
    let valid = ValidReason::ALL.iter().map(|reason| reason.row());
    let ready = ReadyReason::ALL.iter().map(|reason| reason.row());
    let conflict = ConflictState::ALL.iter().map(|state| state.row());
    valid.chain(ready).chain(conflict).chain(RegisteredReason::ALL.iter().map(|reason| reason.row())).collect()
}

fn import_rows() -> Vec<Row> {
    let ready = ImportReadyReason::ALL.iter().map(|reason| reason.row());
    ready.chain(ImportStaleReason::ALL.iter().map(|reason| reason.row())).collect()
}

/// The reasons that a row can have on an object.
fn reasons(row: &Row) -> BTreeSet<String> {
    if *row == ConflictState::Conflict.row() {
        return ConflictReason::ALL.iter().map(|reason| reason.as_str().to_owned()).collect();
    }
    [row.reason.to_owned()].into()
}

#[test]
fn the_document_has_each_reason_of_a_condition_with_its_status_and_meaning_and_no_others() {
    for (object, table) in [("ServiceExport", export_rows()), ("ServiceImport", import_rows())] {
        let documented = documented(object);
        for row in &table {
            let condition = format!("{}={}", row.condition, row.status.as_str());
            let there = documented.iter().find(|there| there.0 == condition && there.1 == reasons(row));
            let (_, _, text) = there.unwrap_or_else(|| panic!("{object} {condition} {} is not explained", row.reason));
            assert!(text.contains(row.text), "{object} {condition} {}: {:?} is not in {text:?}", row.reason, row.text);
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
fn the_document_has_each_event_of_a_condition_and_no_others() {
    let said: BTreeSet<String> = export_rows().iter().filter_map(|row| row.event.map(str::to_owned)).collect();
    let events = section("Events");
    let on = |object: &'static str| -> BTreeSet<String> {
        rows(&events)
            .filter(|cells| cells[1].contains(object))
            .flat_map(|cells| quoted(cells[0]).collect::<Vec<_>>())
            .collect()
    };
    let without = WITHOUT_CONDITION.map(str::to_owned).into();
    let documented: BTreeSet<String> = on("ServiceExport").difference(&without).cloned().collect();
    assert_eq!(documented, said);
    for event in import_rows().iter().filter_map(|row| row.event) {
        assert!(on("ServiceImport").contains(event), "{event} on a ServiceImport is not explained");
    }
}
