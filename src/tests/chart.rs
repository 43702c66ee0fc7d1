//! Holds the schema of the Helm chart's values to the values and to the command line. What helm makes of the chart is shown in
//! `integration/tests/install.rs`.

use std::{collections::BTreeSet, fs};

use clap::{Arg, CommandFactory, Parser as _};
use regex::Regex;
use serde_json::{Map, Value};

use super::root;
use cli::Cli;
use model::ClusterId;

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
            Value::Array(texts) => {
                let texts: Vec<_> = texts.iter().filter_map(Value::as_str).collect();
                assert_eq!(given, [texts.join(",")], "config.{name}");
            }
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

/// Whether a schema of the values takes a text, by the keywords that it has for texts.
fn takes(schema: &Value, text: &str) -> bool {
    let fits = |pattern: &Value| Regex::new(pattern.as_str().unwrap()).unwrap().is_match(text);
    let length = text.chars().count() as u64;
    schema.get("pattern").is_none_or(fits)
        && schema.get("not").is_none_or(|not| !fits(&not["pattern"]))
        && schema["enum"].as_array().is_none_or(|all| all.iter().any(|one| one == text))
        && schema["minLength"].as_u64().is_none_or(|least| length >= least)
        && schema["maxLength"].as_u64().is_none_or(|most| length <= most)
}

// Values that are right and wrong, of each type of flag.
const DURATIONS: &[&str] = &[
    "0s",
    "0h0m",
    "1ms",
    "199ms",
    "200ms",
    "1500ms",
    "20000ms",
    "20001ms",
    "299999ms",
    "300000ms",
    "1s",
    "20s",
    "21s",
    "1s500ms",
    "299s",
    "300s",
    "3600s",
    "3601s",
    "1m",
    "1m30s",
    "4m59s",
    "5m",
    "60m",
    "61m",
    "90m",
    "1h",
    "1h1s",
    "1h30m",
    "1s1h",
    "1s1s",
    "999999h",
    "99999999999999999999h",
    "",
    "fast",
    "5",
    "-5s",
    "5 s",
];

const ADDRESSES: &[&str] = &[
    "0.0.0.0:8080",
    "[::]:8080",
    "[::1]:65535",
    "10.0.0.1:65536",
    "256.0.0.1:80",
    "1.2:80",
    "[10.0.0.1]:80",
    ":80",
    "0.0.0.0",
    "0.0.0.0:x",
];

const IPS: &[&str] = &["192.0.2.7", "2001:db8::7", "999.1.1.1", "1.2.3", "12", "", "a.b.c.d"];

const IDS: &[&str] = &[
    "blue",
    "a.b",
    "a..b",
    "-a",
    "a-",
    "Blue",
    "ecs-a",
    "cloudmap-a",
    "a_b",
    "",
    "a.-b",
    "x.y-",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

const NAMES: &[&str] = &["internal", "clusterset-prod", "ClusterSet-a", "arn:aws:x", "a b", "grün", ""];

/// Otherwise the pods do not start, and helm says that all is well.
#[test]
fn the_schema_takes_no_value_that_the_program_refuses() {
    let config = schema()["properties"]["config"]["properties"].clone();
    for (flag, texts, both) in [
        ("gateTimeout", DURATIONS, "1h30m"),
        ("claimDelay", DURATIONS, "1500ms"),
        ("ledgerTick", DURATIONS, "1s500ms"),
        ("staleClusterTtl", DURATIONS, "1h30m"),
        ("settle", DURATIONS, "1m30s"),
        ("listen", ADDRESSES, "[::]:8080"),
        ("pageListen", ADDRESSES, "0.0.0.0:8080"),
        ("clusterId", IDS, "a.b"),
        ("clustersetId", IDS, "a.b"),
        ("instancesNamespace", NAMES, "internal"),
        ("streamAddresses", IPS, "2001:db8::7"),
    ] {
        let schema = config[flag].get("items").unwrap_or(&config[flag]);
        let long = flags().into_iter().find(|it| camel_case(it.get_long().unwrap()) == flag).unwrap();
        let long = long.get_long().unwrap().to_owned();
        let starts = |text: &str| Cli::try_parse_from(["cloudmap-mcs", "run", &format!("--{long}={text}")]).is_ok();
        for text in texts.iter().filter(|text| takes(schema, text)) {
            assert!(starts(text), "config.{flag} takes {text:?}, and --{long} does not");
        }
        assert!(takes(schema, both) && starts(both), "config.{flag}: {both}");
        let default = config[flag]["default"].as_str();
        assert!(default.is_none_or(|default| takes(schema, default)), "config.{flag} does not take its default");
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
