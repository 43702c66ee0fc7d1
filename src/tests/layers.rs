//! What the compiler does not see of the walls between the folders of `src/`: each is a crate, which can use only the
//! crates that its `Cargo.toml` names.

use std::fs;

use super::{files, root};

/// The crates in `src/`, lowest first, as the workspace lists them.
fn crates() -> Vec<String> {
    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = workspace.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    members
        .lines()
        .filter_map(|line| line.trim().strip_prefix("\"src/")?.strip_suffix("\","))
        .map(str::to_owned)
        .collect()
}

/// A section of a `Cargo.toml`, by line.
fn section<'a>(manifest: &'a str, name: &str) -> Vec<&'a str> {
    let lines = manifest.lines().skip_while(|line| *line != format!("[{name}]")).skip(1);
    lines.take_while(|line| !line.starts_with('[')).collect()
}

#[test]
fn every_folder_is_a_crate_and_uses_only_those_before_it() {
    let crates = crates();
    let folders = fs::read_dir(root().join("src")).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir());
    let mut folders: Vec<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    folders.retain(|folder| !["tests", "proptest-regressions"].contains(&&**folder));
    folders.sort();
    let mut listed = crates.clone();
    listed.sort();
    assert_eq!(folders, listed, "the members of the workspace in Cargo.toml");
    for (own, name) in crates.iter().enumerate() {
        let manifest = fs::read_to_string(root().join("src").join(name).join("Cargo.toml")).unwrap();
        for line in [section(&manifest, "dependencies"), section(&manifest, "dev-dependencies")].concat() {
            let used = line.split(['.', ' ']).next().unwrap();
            let height = crates.iter().position(|other| other == used);
            assert!(height.is_none_or(|height| height < own), "{name} uses {used}, which is not below it");
        }
    }
}

/// The feature `testing` has the fakes. Cargo enables it where a test needs it, and nowhere else.
#[test]
fn no_release_has_the_fakes_of_tests() {
    let manifests = files(root(), "toml").into_iter().filter(|path| path.ends_with("Cargo.toml"));
    let (mut fakes, mut uses) = (0, 0);
    for path in manifests {
        let manifest = fs::read_to_string(&path).unwrap();
        fakes += usize::from(section(&manifest, "features").iter().any(|line| line.starts_with("testing =")));
        let default = section(&manifest, "features").into_iter().find(|line| line.starts_with("default"));
        let enabled = section(&manifest, "dependencies").into_iter().chain(default);
        let enabled: Vec<&str> = enabled.filter(|line| line.contains("testing")).collect();
        assert!(enabled.is_empty(), "{}: {enabled:?} would be in a release", path.display());
        uses += section(&manifest, "dev-dependencies").iter().filter(|line| line.contains("\"testing\"")).count();
    }
    assert!(fakes > 5 && uses > 20, "{fakes}, {uses}");
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
