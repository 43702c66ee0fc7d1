//! No file is so long that nobody holds it in the head.

use std::{collections::BTreeSet, fs};

use super::{files, root};

/// Most lines of a file, tests included.
const MOST_LINES: usize = 500;

#[test]
fn no_file_has_more_than_500_lines() {
    let code = ["src", "integration"].into_iter().flat_map(|folder| files(&root().join(folder), "rs"));
    let long = code.filter(|path| fs::read_to_string(path).unwrap().lines().count() > MOST_LINES);
    let long: BTreeSet<String> =
        long.map(|path| path.strip_prefix(root()).unwrap().to_string_lossy().into_owned()).collect();
    assert!(long.is_empty(), "more than {MOST_LINES} lines: divide by subject {long:?}");
}
