//! The difference of two texts, as `diff -u` shows it.

use similar::TextDiff;

/// The difference, with the name of the object for both sides; empty if there is none.
pub(super) fn unified(name: &str, before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().header(name, name).to_string()
}
