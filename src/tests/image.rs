//! Holds the Dockerfile and what it copies to the toolchain and to the code.

use std::fs;

use super::{files, root};

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// `rust-toolchain.toml` is not among the sources of the image.
#[test]
fn it_is_built_with_the_compiler_of_the_checkout() {
    let (dockerfile, toolchain) = (read("Dockerfile"), read("rust-toolchain.toml"));
    let built_with = dockerfile.lines().find_map(|line| line.strip_prefix("ARG RUST_VERSION=")).unwrap();
    assert_eq!(built_with.split('.').count(), 3, "{built_with} is not one version");
    assert!(toolchain.contains(&format!("channel = \"{built_with}\"")), "{built_with}, and {toolchain}");
}

#[test]
fn its_sources_have_every_file_that_the_code_includes() {
    let (root, copied) = (root().canonicalize().unwrap(), read(".dockerignore"));
    let mut seen = 0;
    for path in [files(&root.join("src"), "rs"), files(&root.join("integration"), "rs")].concat() {
        // No test is built there.
        if path.strip_prefix(&root).unwrap().display().to_string().contains("tests") {
            continue;
        }
        for rest in fs::read_to_string(&path).unwrap().split("include_str!(\"").skip(1) {
            let included = path.with_file_name(rest.split('"').next().unwrap()).canonicalize().unwrap();
            let folder = included.strip_prefix(&root).unwrap().components().next().unwrap();
            let line = format!("!{}", folder.as_os_str().display());
            assert!(copied.lines().any(|copied| copied == line), "{}: .dockerignore has no {line}", path.display());
            seen += 1;
        }
    }
    assert!(seen > 5, "{seen}");
}
