//! Metrics have the names that documents, alerts and dashboards use.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;

use super::{files, root};

const PREFIX: &str = "cloudmap_mcs_";

fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap()
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<String> {
    text.match_indices(PREFIX)
        .filter(|(at, _)| !text[..*at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '-'))
        .map(|(at, _)| text[at..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect())
        .filter(|name: &String| name != "cloudmap_mcs_integration")
        .collect()
}

/// The metrics that the controller registers: the literals of the files that do so.
fn registered() -> BTreeSet<String> {
    let sources = files(&root().join("src"), "rs").into_iter().filter(|path| {
        let registers = ["metrics.rs", "metrics/ledger.rs", "release.rs"].map(Path::new);
        registers.iter().any(|name| path.ends_with(name)) && !path.ends_with("tests/metrics.rs")
    });
    let mut found = BTreeSet::new();
    for path in sources {
        let code = fs::read_to_string(path).unwrap();
        let code = code.split("#[cfg(test)]").next().unwrap();
        let literals = code.split('"').skip(1).step_by(2).filter(|literal| literal.starts_with(PREFIX));
        found.extend(literals.map(str::to_owned));
    }
    found
}

/// Without what a histogram adds to its name.
fn families(text: &str) -> BTreeSet<String> {
    let known = registered();
    let family = |name: String| {
        let plain = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix));
        plain.filter(|plain| known.contains(*plain)).map_or(name.clone(), str::to_owned)
    };
    names(text).into_iter().map(family).collect()
}

#[test]
fn the_documented_metrics_are_those_that_there_are() {
    assert!(registered().len() > 40, "{:?}", registered());
    assert_eq!(
        names(&read("docs/reference/metrics.md")),
        registered(),
        "documented on the left, registered on the right"
    );
}

#[test]
fn documents_alerts_and_dashboards_name_metrics_that_there_are() {
    let known = registered();
    let monitoring = root().join("config/components/monitoring");
    let mut paths = files(&root().join("docs"), "md");
    paths.push(root().join("README.md"));
    paths.extend(files(&monitoring, "yaml"));
    paths.extend(files(&monitoring, "json"));
    assert!(paths.len() > 20);
    for path in paths {
        let unknown: Vec<_> =
            families(&fs::read_to_string(&path).unwrap()).into_iter().filter(|name| !known.contains(name)).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", path.display());
    }
}

#[test]
fn totals_and_units_are_in_the_names() {
    let names = registered();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(!name.ends_with("_ms") && !name.contains("_kb"), "{name} has no base unit");
    }
    let code = ["src/app/metrics.rs", "src/app/metrics/ledger.rs"].map(read).concat();
    assert!(["Family::counter(", "Family::gauge("].iter().all(|call| code.matches(call).count() > 5));
    for call in code.split("Family::counter(").skip(1) {
        let name = call.split('"').nth(1).unwrap();
        assert!(name.ends_with("_total"), "{name} is a counter");
    }
    for call in code.split("Family::gauge(").skip(1) {
        let name = call.split('"').nth(1).unwrap();
        assert!(!name.ends_with("_total"), "{name} is a gauge");
    }
}

#[test]
fn every_alert_has_a_runbook_and_a_test() {
    let rule: Value = serde_yaml_ng::from_str(&read("config/components/monitoring/prometheus_rule.yaml")).unwrap();
    let (runbooks, tests) = (read("docs/alerts.md"), read("integration/testdata/alerts_test.yaml"));
    let values: Value = serde_yaml_ng::from_str(&read("config/chart/values.yaml")).unwrap();
    let runbooks_url = values["monitoring"]["runbooks"].as_str().unwrap();
    assert!(runbooks_url.starts_with("https://") && runbooks_url.ends_with("/docs/alerts.md"), "{runbooks_url}");
    let rules = rule["spec"]["groups"][0]["rules"].as_array().unwrap();
    let alerts: Vec<_> = rules.iter().map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert!(alerts.len() > 15);
    for (alert, rule) in alerts.iter().zip(rules) {
        assert!(tests.contains(&format!("alertname=\"{alert}\"")), "no test in which {alert} fires");
        let runbook = format!("{runbooks_url}#{}", alert.to_lowercase());
        assert_eq!(rule["annotations"]["runbook_url"], runbook);
        for text in ["summary", "description"] {
            assert!(rule["annotations"][text].as_str().unwrap().ends_with('.'), "{text} of {alert}");
        }
        assert!(["critical", "warning", "info"].contains(&rule["labels"]["severity"].as_str().unwrap()));
    }
    let headings: Vec<_> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(headings, alerts, "runbooks, then alerts, in the same order");
    assert!(
        runbooks.lines().find(|line| line.starts_with("    ")).unwrap().contains("cloudmap-mcs status"),
        "the first command"
    );
    for (section, rule) in runbooks.split("\n## ").skip(1).zip(rules) {
        let urgent = rule["labels"]["severity"] == "critical";
        let when = if urgent { "\n\n**Now.** " } else { "\n\n**In the morning.** " };
        assert!(section.contains(when), "when somebody has to look: {section}");
        let command = ["kubectl ", "cloudmap-mcs ", "curl ", "aws "].iter().any(|it| section.contains(it));
        assert!(command || section.contains("Do the same as"), "it has no command: {section}");
    }
}

#[test]
fn every_panel_says_what_it_shows_and_no_two_overlap() {
    for path in files(&root().join("config/components/monitoring/dashboards"), "json") {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let mut taken = BTreeSet::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
            for x in at("x")..at("x") + at("w") {
                for y in at("y")..at("y") + at("h") {
                    assert!(x < 24 && taken.insert((x, y)), "{} of {}", panel["title"], path.display());
                }
            }
            if panel["type"] != "row" {
                assert!(panel["description"].as_str().unwrap().len() > 10, "{}", panel["title"]);
                assert!(!panel["targets"].as_array().unwrap().is_empty());
            }
        }
    }
}
