//! Scripts say what they do.

use std::{
    fs,
    io::Read as _,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{files, root};

/// The scripts that people run; the others are sourced.
fn programs() -> Vec<PathBuf> {
    let integration = root().join("integration");
    let mut found = files(&integration, "sh");
    found.extend([integration.join("testbed/testbed"), root().join(".ci/run")]);
    found.retain(|path| fs::metadata(path).unwrap().permissions().mode() & 0o111 != 0);
    assert!(found.len() > 11, "{found:?}");
    found
}

/// The exit status, output and errors of a program, which can neither build nor install anything: there is no place for
/// what it would build, and no cargo. A minute ends it, in case that it waits for something.
fn run(program: &Path, argument: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(program)
        .arg(argument)
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .env("CLOUDMAP_MCS_CACHE", "/dev/null/none")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > Duration::from_mins(1) {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(10));
    };
    let (mut text, mut errors) = (String::new(), String::new());
    child.stdout.unwrap().read_to_string(&mut text).unwrap();
    child.stderr.unwrap().read_to_string(&mut errors).unwrap();
    (status.code(), text, errors)
}

#[test]
fn every_script_answers_help_at_once() {
    for program in programs() {
        let (status, text, errors) = run(&program, "--help");
        assert_eq!(status, Some(0), "{}: {errors}", program.display());
        assert!(text.len() > 100 && errors.is_empty(), "{}: {text} {errors}", program.display());
        let name = program.file_name().unwrap().to_str().unwrap();
        let usage = text.lines().find(|line| line.starts_with("Usage: ")).unwrap_or_default();
        assert!(usage.contains(name), "{}: {text}", program.display());
    }
}

#[test]
fn every_script_refuses_an_option_that_it_does_not_have_at_once() {
    for program in programs() {
        let (status, text, errors) = run(&program, "--no-such-option");
        assert_eq!(status, Some(2), "{}: {text} {errors}", program.display());
        assert!(errors.contains("'--no-such-option'") && errors.contains("--help"), "{}: {errors}", program.display());
    }
}

#[test]
fn a_script_clears_up_once_however_it_ends_and_a_lost_terminal_does_not_stop_that() {
    let script = |end: &str| {
        let script = format!(
            "set -euo pipefail; . integration/stages.sh
            clear() {{ kill -HUP $$; echo \"cleared $1 ${{INTERRUPTED:-}}\" >&7; }}
            exec 7>&1; finally clear; {end}; echo after >&7"
        );
        // Whoever runs the tests in the background ignores SIGINT, and so would bash.
        let mut bash = Command::new("env");
        let output = bash.args(["--default-signal", "bash", "-c", &script]).current_dir(root()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    for (end, status, printed) in [
        ("exit 0", 0, "cleared 0 \n"),
        ("false", 1, "cleared 1 \n"),
        ("kill -INT $$", 130, "cleared 130 yes\n"),
        ("kill -TERM $$", 143, "cleared 143 yes\n"),
        ("kill -HUP $$", 129, "cleared 129 yes\n"),
    ] {
        assert_eq!(script(end), (Some(status), printed.to_owned()), "{end}");
    }
}

/// Runs what scripts observe clusters with, beside a kubectl that knows only the EndpointSlices of cluster 1 and cluster 2,
/// written as `address pod` lines.
fn observe(own: &str, imported: &str, script: &str) -> bool {
    let script = format!(
        "set -euo pipefail; . integration/stages.sh; . integration/observe.sh
        kubectl() {{ case \"$*\" in *\"--context one\"*) echo '{own}' ;; *\"--context two\"*) echo '{imported}' ;; *) return 1 ;; esac; }}
        {script}"
    );
    Command::new("bash").args(["-c", &script]).current_dir(root()).output().unwrap().status.success()
}

#[test]
fn scripts_count_pods_and_not_their_addresses() {
    let two_pods_of_both_families = "10.0.0.1 a\nfd00::1 a\n10.0.0.2 b\nfd00::2 b";
    assert!(observe(two_pods_of_both_families, "", "serves one example my-service 2"));
    assert!(!observe(two_pods_of_both_families, "", "serves one example my-service 4"));
    let one_family_late = "10.0.0.1 a\nfd00::1 a\n10.0.0.2 b";
    assert!(
        !observe(one_family_late, "", "serves one example my-service 2"),
        "the slice of the other family is not complete"
    );
    assert!(
        !observe(two_pods_of_both_families, "", "serves one example my-service 2 a"),
        "the pod that was killed is still there"
    );
    assert!(observe(two_pods_of_both_families, "", "serves one example my-service 2 c"));
    assert!(!observe("", "", "serves one example my-service 1"), "there is none");
}

#[test]
fn scripts_take_an_import_as_complete_only_if_it_has_all_addresses_and_no_other() {
    let imports = |own: &str, imported: &str| observe(own, imported, "imports_all two one example my-service");
    assert!(imports("10.0.0.1 a\nfd00::1 a", "fd00::1\n10.0.0.1"));
    assert!(!imports("10.0.0.1 a\nfd00::1 a", "10.0.0.1"), "the other family is missing");
    assert!(!imports("10.0.0.1 a", "10.0.0.1\n10.0.0.9"), "the address of a dead pod is still there");
    assert!(!imports("", ""), "nothing is not everything");
}

#[test]
fn scripts_take_no_failure_for_an_answer() {
    assert!(observe("", "", "nothing true"));
    assert!(!observe("", "", "nothing echo something"));
    assert!(!observe("", "", "nothing false"), "who could not look has not seen that there is nothing");
    assert!(!observe("", "", "serves three example my-service 0"), "kubectl failed");
    assert!(observe("", "", "show echo answer; [ \"$SHOWN\" = answer ]"), "what is printed is what is checked");
    assert!(!observe("", "", "show false"));
    assert!(!observe("", "", "PATIENCE=0 within 'the end' false"));
}
