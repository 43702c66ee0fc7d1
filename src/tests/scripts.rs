//! Scripts say what they do.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    process::{Command, Stdio},
};

use super::{files, root};

/// The scripts that people run; the others are sourced.
fn programs() -> Vec<PathBuf> {
    let integration = root().join("integration");
    let mut found = files(&integration, "sh");
    found.push(integration.join("testbed/testbed"));
    found.retain(|path| fs::metadata(path).unwrap().permissions().mode() & 0o111 != 0);
    found
}

/// It may neither build nor install anything first: there is no place for what it would build, and no cargo.
#[test]
fn every_script_answers_help_at_once() {
    let programs = programs();
    assert!(programs.len() > 7, "{programs:?}");
    for program in programs {
        let output = Command::new(&program)
            .arg("--help")
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("CLOUDMAP_MCS_CACHE", "/dev/null/none")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{}: {errors}", program.display());
        assert!(text.len() > 100 && errors.is_empty(), "{}: {text} {errors}", program.display());
    }
}
