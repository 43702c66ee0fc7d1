//! The tables of conditions and Events, of which `docs/reference/conditions.md` is made, agree with each other, and the
//! document has every annotation.

use std::{collections::BTreeSet, fs};

use super::root;
use crate::api::conditions::{RegisteredReason, Verdict, export_rows, import_rows};

#[test]
fn every_condition_that_is_bad_has_a_remedy_unless_somebody_wants_it_so() {
    for row in export_rows().into_iter().chain(import_rows()) {
        let wanted = row == RegisteredReason::Disabled.row();
        assert_eq!(Verdict::new(row, "").is_bad() && !wanted, !row.remedy.is_empty(), "{row:?}");
    }
}

#[test]
fn an_event_of_a_condition_is_on_its_kind_of_object() {
    for (kind, table) in [("ServiceExport", export_rows()), ("ServiceImport", import_rows())] {
        for event in table.iter().filter_map(|row| row.event) {
            assert!(event.kinds().contains(&kind), "{event} on a {kind}");
        }
    }
}

#[test]
fn the_documented_annotations_are_those_that_there_are() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let (code, operations) = (read("src/api/names.rs"), read("docs/operations.md"));
    let known: BTreeSet<_> = code
        .split("pub const ANNOTATION_")
        .skip(1)
        .filter_map(|rest| rest.split('"').nth(1))
        .filter(|name| ["cloudmap-mcs/", "cloudmap.controller/"].iter().any(|prefix| name.starts_with(prefix)))
        .filter(|name| !name.ends_with('/'))
        .collect();
    let section = operations.split("\n## Annotations\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let documented: BTreeSet<_> =
        section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert!(known.len() > 10);
    assert_eq!(documented, known, "in docs/operations.md on the left, in the code on the right");
}
