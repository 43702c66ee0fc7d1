//! Which build this is, for `--version` and the metric `cloudmap_mcs_build_info`.
//!
//! The version is Cargo.toml's. Commit and date come from the environment of the compiler, which `make build`, `make image` and
//! the Dockerfile set; a build that nobody releases has neither, so that no commit makes cargo compile anything again.

use std::sync::LazyLock;

use prometheus::{IntGauge, Opts};

use crate::metrics::Register;

/// The name of the program.
pub const NAME: &str = "cloudmap-mcs";
/// The version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that it was built from, or nothing.
pub const COMMIT: &str = or_empty(option_env!("CLOUDMAP_MCS_BUILD_COMMIT"));
/// When, in UTC: the date of the commit, unless `SOURCE_DATE_EPOCH` was set. Or nothing.
pub const DATE: &str = or_empty(option_env!("CLOUDMAP_MCS_BUILD_DATE"));

const fn or_empty(given: Option<&'static str>) -> &'static str {
    match given {
        Some(given) => given,
        None => "",
    }
}

/// What `--version` says after the program's name.
pub fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| describe(VERSION, COMMIT, DATE));
    &TEXT
}

fn describe(version: &str, commit: &str, date: &str) -> String {
    let commit = if commit.is_empty() { "unknown" } else { commit };
    let date = if date.is_empty() { "unknown" } else { date };
    format!("{version} (commit {commit}, built {date})")
}

/// Adds `cloudmap_mcs_build_info`, which is always 1.
pub fn register(registry: &impl Register) -> prometheus::Result<()> {
    let info = Opts::new("cloudmap_mcs_build_info", "Which build this is")
        .const_label("version", VERSION)
        .const_label("commit", COMMIT)
        .const_label("date", DATE);
    let info = IntGauge::with_opts(info)?;
    info.set(1);
    registry.register(Box::new(info))
}

#[cfg(test)]
mod tests {
    use prometheus::{Registry, TextEncoder};

    use super::*;

    #[test]
    fn version_commit_and_date_are_said() {
        let line = describe("1.2.3", "0a1b2c3d4e5f", "2026-11-22T06:45:36Z");
        assert_eq!(line, "1.2.3 (commit 0a1b2c3d4e5f, built 2026-11-22T06:45:36Z)");
        assert_eq!(describe("1.2.3", "", ""), "1.2.3 (commit unknown, built unknown)");
    }

    #[test]
    fn the_metric_has_them_as_labels() {
        let registry = Registry::new();
        register(&registry).unwrap();
        let page = TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        assert!(
            page.contains("cloudmap_mcs_build_info{") && page.contains(&format!("version=\"{VERSION}\"")),
            "{page}"
        );
        assert!(page.trim_end().ends_with("} 1"), "{page}");
    }
}
