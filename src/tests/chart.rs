//! Holds the schema of the Helm chart's values to the values and to the command line. What helm makes of the chart is shown in
//! `integration/tests/install.rs`.

use std::{collections::BTreeSet, fs};

use clap::{Arg, CommandFactory};
use serde_json::{Map, Value};

use super::root;
use crate::{cli::Cli, model::ClusterId};

/// A pod works in the cluster and in the namespace that it runs in.
const NOT_SET_BY_VALUES: [&str; 3] = ["kubeconfig", "context", "controller-namespace"];

fn read(file: &str) -> String {
    fs::read_to_string(root().join("config/chart").join(file)).unwrap()
}

fn schema() -> Value {
    serde_json::from_str(&read("values.schema.json")).unwrap()
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// Calls `look` with the path and the schema of every value.
fn each<'a>(path: &str, schema: &'a Value, look: &mut impl FnMut(&str, &'a Value)) {
    look(path, schema);
    for (name, property) in properties(schema).into_iter().flatten() {
        each(&format!("{path}.{name}"), property, look);
    }
}

fn camel_case(flag: &str) -> String {
    let mut words = flag.split('-');
    let first = words.next().unwrap().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

/// All flags of `run`, those of every command included.
fn flags() -> Vec<Arg> {
    let mut cli = Cli::command();
    cli.build();
    let run = cli.find_subcommand("run").unwrap();
    let ours = |flag: &&Arg| flag.get_env().is_some() && !NOT_SET_BY_VALUES.contains(&flag.get_long().unwrap());
    run.get_arguments().filter(ours).cloned().collect()
}

#[test]
fn every_flag_can_be_set_by_a_value() {
    let schema = schema();
    let config = properties(&schema["properties"]["config"]).unwrap();
    let flags = flags();
    let names: BTreeSet<_> = flags.iter().map(|flag| camel_case(flag.get_long().unwrap())).collect();
    assert_eq!(config.keys().cloned().collect::<BTreeSet<_>>(), names, "values on the left, flags on the right");
    for flag in &flags {
        let name = camel_case(flag.get_long().unwrap());
        let value = &config[&name];
        // clap takes the last dot away.
        let help = format!("{}.", flag.get_help().unwrap().to_string().trim_end_matches('.'));
        assert_eq!(value["description"], help.as_str(), "the description of config.{name} is the flag's help");
        let given: Vec<_> = flag.get_default_values().iter().map(|value| value.to_str().unwrap()).collect();
        match &value["default"] {
            Value::Null => assert!(given.is_empty(), "config.{name} has the default {given:?}"),
            Value::String(text) => assert_eq!(given, [text.as_str()], "config.{name}"),
            other => assert_eq!(given, [other.to_string()], "config.{name}"),
        }
        if flag.get_action().takes_values() {
            let possible: Vec<_> =
                flag.get_possible_values().iter().map(|value| Value::from(value.get_name())).collect();
            let listed = value["enum"].as_array().cloned().unwrap_or_default();
            assert_eq!(listed, possible, "config.{name}");
        }
    }
}

/// Helm refuses them before the controller does, which would not start.
#[test]
fn ids_of_discovered_sources_are_no_cluster_ids() {
    let schema = schema();
    for part in ["clusterProperties", "config"] {
        let id = &schema["properties"][part]["properties"]["clusterId"];
        let pattern = id["not"]["pattern"].as_str().unwrap();
        let prefixes: BTreeSet<_> = pattern.trim_matches(['^', '(', ')']).split('|').collect();
        assert_eq!(prefixes, BTreeSet::from(["ecs-", "cloudmap-"]), "{part}");
        for prefix in prefixes {
            assert!(format!("{prefix}prod").parse::<ClusterId>().is_err(), "{prefix}");
        }
    }
}

#[test]
fn every_value_is_described_and_no_other_is_taken() {
    let (schema, mut seen) = (schema(), 0);
    each("values", &schema, &mut |path, value| {
        seen += 1;
        let described = value["description"].as_str().or(value["title"].as_str()).unwrap_or_default();
        assert!(described.len() > 10, "{path} has no description");
        assert!(value["type"].is_string() || value["type"].is_array(), "{path} has no type");
        if properties(value).is_some() {
            assert_eq!(value["additionalProperties"], false, "{path} takes values that nobody reads");
        }
    });
    assert!(seen > 60, "{seen}");
}

#[test]
fn every_value_has_a_default_that_is_in_the_file() {
    let (schema, values) = (schema(), serde_yaml_ng::from_str::<Value>(&read("values.yaml")).unwrap());
    each("", &schema, &mut |path, _| {
        // Flags have their own, and `global` is Helm's.
        if !path.is_empty() && !path.starts_with(".config.") && path != ".global" {
            assert!(values.pointer(&path.replace('.', "/")).is_some(), "values.yaml does not have {path}");
        }
    });
}

#[test]
fn the_chart_and_the_overlay_install_this_version() {
    let chart: Value = serde_yaml_ng::from_str(&read("Chart.yaml")).unwrap();
    for field in ["version", "appVersion"] {
        assert_eq!(chart[field], env!("CARGO_PKG_VERSION"), "{field} of Chart.yaml");
    }
    let overlay = fs::read_to_string(root().join("config/controller/kustomization.yaml")).unwrap();
    let overlay: Value = serde_yaml_ng::from_str(&overlay).unwrap();
    assert_eq!(overlay["images"][0]["newTag"], env!("CARGO_PKG_VERSION"));
}
