//! The tables of conditions and Events, of which `docs/reference/conditions.md` is made, agree with each other.

use api::conditions::{DrainReason, RegisteredReason, Verdict, export_rows, import_rows};

#[test]
fn every_condition_that_is_bad_has_a_remedy_unless_somebody_wants_it_so() {
    for row in export_rows().into_iter().chain(import_rows()) {
        let wanted = [RegisteredReason::Disabled.row(), DrainReason::Leaving.row(), DrainReason::Returning.row()];
        assert_eq!(Verdict::new(row, "").is_bad() && !wanted.contains(&row), !row.remedy.is_empty(), "{row:?}");
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
