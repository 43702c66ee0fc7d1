//! Alerts and dashboards, as Prometheus' own tool reads them.
//!
//! `PROMTOOL` names the program; `make test` takes it from Debian's package.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints for whoever runs it"
)]

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Runs promtool in a folder of its own, with these files; `None` if its tests are left out.
fn promtool(name: &str, files: &[(&str, String)], arguments: &[&str]) -> Option<Result<String, String>> {
    let program = std::env::var("PROMTOOL").expect("PROMTOOL names promtool; PROMTOOL=skip leaves its tests out");
    if program == "skip" {
        eprintln!("skipped: PROMTOOL=skip, alerts and dashboards are not looked at");
        return None;
    }
    let folder = std::env::temp_dir().join(format!("cloudmap-mcs-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    for (file, content) in files {
        fs::write(folder.join(file), content).unwrap();
    }
    let output = Command::new(program).args(arguments).current_dir(&folder).output().unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Some(if output.status.success() { Ok(text) } else { Err(text) })
}

/// The groups of the PrometheusRule, as a file of rules.
fn rules() -> String {
    let file = root().join("config/components/monitoring/prometheus_rule.yaml");
    let rule: Value = serde_yaml_ng::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    rule["spec"].to_string()
}

#[test]
fn each_alert_fires_in_its_trouble_and_none_while_all_is_well() {
    let tests = fs::read_to_string(root().join("integration/testdata/alerts_test.yaml")).unwrap();
    let files = [("rules.yaml", rules()), ("tests.yaml", tests)];
    if let Some(output) = promtool("alerts", &files, &["test", "rules", "tests.yaml"]) {
        output.unwrap();
    }
}

#[test]
fn every_expression_can_be_read() {
    let mut recorded = Vec::new();
    for name in ["clusterset", "controller"] {
        let file = root().join(format!("config/components/monitoring/dashboards/{name}.json"));
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
            let expression = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            recorded.push(json!({"record": format!("{name}:{}", recorded.len()), "expr": expression}));
        }
    }
    assert!(recorded.len() > 50);
    let dashboards = json!({"groups": [{"name": "dashboards", "rules": recorded}]}).to_string();
    let files = [("rules.yaml", rules()), ("dashboards.yaml", dashboards)];
    let Some(output) = promtool("rules", &files, &["check", "rules", "rules.yaml", "dashboards.yaml"]) else { return };
    output.unwrap();

    let wrong = json!({"groups": [{"name": "wrong", "rules": [{"record": "a", "expr": "rate(b[5m]"}]}]}).to_string();
    promtool("wrong", &[("rules.yaml", wrong)], &["check", "rules", "rules.yaml"]).unwrap().unwrap_err();
}
