//! No folder imports one above it: who reads a folder needs to know only those below.

use std::{collections::BTreeSet, fs};

use super::{files, root};

/// The rooms of `src/`, lowest first; `docs/architecture.md` says what is in each.
const ORDER: [&str; 30] = [
    "env",
    "guests",
    "dns",
    "inquiry",
    "metrics",
    "release",
    "shared_map",
    "steps",
    "model",
    "api",
    "cloudmap",
    "ecs",
    "awsmcs",
    "ledger",
    "cluster",
    "instances",
    "iam",
    "annotations",
    "discovery",
    "gates",
    "cutover",
    "export",
    "import",
    "queue",
    "controller",
    "admin",
    "telemetry",
    "cli",
    "app",
    "commands",
];

/// The rooms that a file names in its code: `crate::room`, and in lists, `crate::{room::..., other}`.
fn named(code: &str) -> BTreeSet<String> {
    let code: String = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| line.chars().filter(|c| !c.is_whitespace()).chain(['\n']))
        .collect();
    let mut rooms = BTreeSet::new();
    for rest in code.split("crate::").skip(1) {
        let word = |text: &str| -> String { text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect() };
        let Some(list) = rest.strip_prefix('{') else {
            rooms.insert(word(rest));
            continue;
        };
        let mut depth = 0;
        let mut begins = true;
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                '\n' => {}
                _ if begins => {
                    rooms.insert(word(&list[at..]));
                    begins = false;
                }
                _ => {}
            }
        }
    }
    rooms
}

/// Where in the order a room is.
fn height(room: &str) -> Option<usize> {
    ORDER.iter().position(|there| *there == room)
}

#[test]
fn no_folder_imports_one_above_it() {
    let src = root().join("src");
    let mut wrong = Vec::new();
    for path in files(&src, "rs") {
        let relative = path.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        let room = relative.split('/').next().unwrap().trim_end_matches(".rs");
        if ["lib", "main", "tests"].contains(&room) {
            continue;
        }
        let Some(own) = height(room) else {
            wrong.push(format!("src/{relative}: {room} has no place in the order (src/tests/layers.rs)"));
            continue;
        };
        let above = named(&fs::read_to_string(&path).unwrap()).into_iter().filter(|other| height(other) > Some(own));
        wrong.extend(above.map(|other| format!("src/{relative}: {room} imports {other}, which is above it")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The core decides by its inputs. Only its runtime, which makes inputs of them, knows caches and channels.
#[test]
fn only_the_runtime_of_the_controller_reads_what_other_tasks_write() {
    let edges = ["runtime.rs", "gate_writer.rs", "status_writer.rs", "mod.rs"];
    let mut wrong = Vec::new();
    for path in files(&root().join("src/controller"), "rs") {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_test = name.ends_with("_tests.rs") || path.iter().any(|part| part == "tests" || part == "core_tests");
        if is_test || edges.contains(&&*name) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]").next().unwrap();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        let live =
            ["Caches", "Cache<", "cache::Cache", "Mutex", "RwLock", "Atomic", "watch::", "Instant::now", "env::"];
        wrong.extend(
            lines.filter(|line| live.iter().any(|live| line.contains(live))).map(|line| format!("{name}: {line}")),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn imports_are_found_in_lists_and_paths_but_not_in_comments() {
    let code = "//! As crate::app does.\nuse crate::{\n    cluster::{self, Caches},\n    model::ServiceKey,\n    queue,\n};\n\
                fn f() { crate::ledger::f() }\n/// See [`crate::cli`].\npub(in crate::controller) fn g() {}";
    let expected = ["cluster", "controller", "ledger", "model", "queue"].map(str::to_owned);
    assert_eq!(named(code), expected.into());
}
