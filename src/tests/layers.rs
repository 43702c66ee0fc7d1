//! What the compiler does not see of the walls between the folders of `src/`: each is a crate, which can use only the
//! crates that its `Cargo.toml` names.

use std::{collections::BTreeSet, fs};

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

/// The core decides by its inputs. Only its runtime, which makes inputs of them (`runtime/inputs.rs`), knows caches and channels.
#[test]
fn only_the_runtime_of_the_controller_reads_what_other_tasks_write() {
    let edges = ["runtime.rs", "inputs.rs", "gate_writer.rs", "status_writer.rs", "mod.rs"];
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

/// A write in Cloud Map needs a permit. Whoever makes one says that this process may write, so only these do.
#[test]
fn only_the_lease_and_commands_make_permits_to_write() {
    let makers = [
        ("Permit::of_lease(", "cluster/lease/leadership.rs"),
        ("Permit::of_command(", "app/connect.rs"),
        // The fakes stand behind the feature `testing`.
        ("Permit::of_command(", "cloudmap/fake/mod.rs"),
        ("Permit::of_lease(", "cloudmap/fake/mod.rs"),
    ];
    let src = root().join("src");
    let mut found = Vec::new();
    for path in files(&src, "rs") {
        let name = path.strip_prefix(&src).unwrap().to_string_lossy().into_owned();
        if name.ends_with("tests.rs") || path.iter().any(|part| part == "tests") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        // A Lease that is set by hand is for tests and simulations.
        for maker in ["Permit::of_lease(", "Permit::of_command(", "Leadership::manual("] {
            found.extend(code.contains(maker).then(|| (maker, name.clone())));
        }
    }
    found.sort();
    let mut makers = makers.map(|(maker, name)| (maker, name.to_owned()));
    makers.sort();
    assert_eq!(found, makers);
}

/// AWS allows few lists. So whoever needs one in a replica asks `cloudmap::Listings`, except for the ledger, which has a lane of
/// its own. Commands are processes of their own, also where they try what IAM allows.
#[test]
fn only_the_ledger_and_commands_list_for_themselves() {
    let src = root().join("src");
    let mut who = BTreeSet::new();
    for path in files(&src, "rs") {
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        // Without an argument it is a request of an SDK.
        let lists = |call: &str| code.contains(call) && !code.contains(&format!("{call})"));
        let is_test = path.iter().any(|part| part == "tests") || path.to_string_lossy().ends_with("tests.rs");
        if !is_test && (lists(".list_namespaces(") || lists(".list_services(")) {
            let name = path.strip_prefix(&src).unwrap();
            who.insert(name.iter().next().unwrap().to_string_lossy().into_owned());
        }
    }
    assert_eq!(who, ["cloudmap", "commands", "iam", "ledger"].map(str::to_owned).into());
}
