//! `docs/reference/` is what the code says. `make docs` writes it.

use std::{cell::RefCell, collections::BTreeMap, env, fmt::Write as _, fs};

use clap::{Arg, Command, CommandFactory as _};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use prometheus::core::Collector;

use super::root;
use api::{
    annotations,
    conditions::{ConflictState, CutoverReason, GateReason, HidingReason, PolicyReason, Row, export_rows, import_rows},
    crds,
    events::EventReason,
};
use base::{metrics::Register, release};
use cli::Cli;
use model::ConflictReason;

const GENERATED: &str = "<!-- Made from the code by `make docs`. A test compares them. -->";

#[test]
fn the_reference_is_what_the_code_says() {
    let mut stale = Vec::new();
    for (name, text) in [
        ("annotations.md", annotations()),
        ("commands.md", commands()),
        ("conditions.md", conditions()),
        ("metrics.md", metrics()),
        ("resources.md", resources()),
    ] {
        let path = root().join("docs/reference").join(name);
        if env::var_os("CLOUDMAP_MCS_WRITE_DOCS").is_some() {
            fs::write(&path, &text).unwrap();
        }
        if fs::read_to_string(&path).unwrap_or_default() != text {
            stale.push(name);
        }
    }
    assert!(stale.is_empty(), "the code says otherwise than {stale:?} in docs/reference: run `make docs`");
}

/// Text as a cell of a table.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn code(text: impl AsRef<str>) -> String {
    format!("`{}`", text.as_ref())
}

/// A text that other text may follow.
fn sentence(text: &str) -> String {
    if text.is_empty() || text.ends_with(['.', '?', '!', ')', ':']) { text.to_owned() } else { format!("{text}.") }
}

fn commands() -> String {
    let mut program = Cli::command();
    program.build();
    let mut all = Vec::new();
    leaves(&program, release::NAME, &mut all);
    let mut uses = BTreeMap::<_, usize>::new();
    for flag in all.iter().flat_map(|(_, command)| flags(command)) {
        *uses.entry(meaning(flag)).or_default() += 1;
    }
    let shared = |flag: &Arg| uses[&meaning(flag)] > 3;
    let mut page = format!(
        "# Commands and flags\n\n{GENERATED}\n\nMost flags are also environment variables: `CLOUDMAP_MCS_` and the name of \
         the flag with underscores. The Deployment takes those of\n`run` from the ConfigMap `cloudmap-mcs-config` in its \
         namespace. Write durations as `500ms`, `20s`, `5m` or `1h`.\n\nAs a plugin of kubectl, the program is `kubectl \
         mcs`. `{} COMMAND --help` prints the same texts.\n",
        release::NAME
    );
    for (name, command) in &all {
        let usage = Command::clone(command).render_usage().to_string();
        let usage = usage.split_once(": ").map_or("", |(_, usage)| usage.trim());
        let about =
            command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string).unwrap_or_default();
        write!(page, "\n## {name}\n\n{}\n\n    {usage}\n", sentence(&about)).unwrap();
        let own: Vec<_> = flags(command).filter(|flag| !shared(flag)).collect();
        page += &table(&own);
        let others: Vec<_> = flags(command).filter(|flag| shared(flag)).map(|flag| code(spelling(flag))).collect();
        if !others.is_empty() {
            write!(page, "\nAlso, [shared](#shared-flags): {}\n", others.join(", ")).unwrap();
        }
        if let Some(after) = command.get_after_help() {
            write!(page, "\n{after}\n").unwrap();
        }
    }
    page += "\n## Shared flags\n";
    let mut seen = Vec::new();
    let mut rows = Vec::new();
    for flag in all.iter().flat_map(|(_, command)| flags(command)).filter(|flag| shared(flag)) {
        if !seen.contains(&meaning(flag)) {
            seen.push(meaning(flag));
            rows.push(flag);
        }
    }
    page + &table(&rows)
}

/// The commands that do something, with their names.
fn leaves<'a>(command: &'a Command, name: &str, found: &mut Vec<(String, &'a Command)>) {
    let children: Vec<_> =
        command.get_subcommands().filter(|child| child.get_name() != "help" && !child.is_hide_set()).collect();
    if children.is_empty() || command.get_name() == "iam" {
        found.push((name.to_owned(), command));
    }
    for child in children {
        leaves(child, &format!("{name} {}", child.get_name()), found);
    }
}

fn flags(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|flag| !["help", "version"].contains(&flag.get_id().as_str()) && !flag.is_hide_set())
}

/// What two flags share if they are one.
fn meaning(flag: &Arg) -> (String, String) {
    (flag.get_id().to_string(), help(flag))
}

fn help(flag: &Arg) -> String {
    flag.get_long_help().or_else(|| flag.get_help()).map(ToString::to_string).unwrap_or_default()
}

fn spelling(flag: &Arg) -> String {
    match (flag.get_long(), flag.get_short()) {
        (Some(long), Some(short)) => format!("--{long}, -{short}"),
        (Some(long), None) => format!("--{long}"),
        _ => flag.get_value_names().and_then(|names| names.first()).map_or_else(String::new, ToString::to_string),
    }
}

/// The table of flags; nothing if there are none.
fn table(flags: &[&Arg]) -> String {
    if flags.is_empty() {
        return String::new();
    }
    let mut table = "\n| | default | |\n|---|---|---|\n".to_owned();
    for flag in flags {
        let mut help = sentence(&cell(&help(flag)));
        let values: Vec<_> = flag.get_possible_values().iter().map(|value| code(value.get_name())).collect();
        if !values.is_empty() && flag.get_action().takes_values() {
            write!(help, " Values: {}.", values.join(", ")).unwrap();
        }
        let default: Vec<_> = flag.get_default_values().iter().map(|value| code(value.to_string_lossy())).collect();
        let default = if flag.get_action().takes_values() { default.join(", ") } else { String::new() };
        writeln!(table, "| {} | {default} | {help} |", code(spelling(flag))).unwrap();
    }
    table
}

fn conditions() -> String {
    let mut page = format!(
        "# Conditions and Events\n\n{GENERATED}\n\n`cloudmap-mcs status` says the same of your objects. \
         [mcs-api.md](../mcs-api.md) says what this implementation does where KEP-1645\nleaves a choice.\n"
    );
    let cutover_rows = CutoverReason::ALL.iter().map(|reason| reason.row());
    for (object, rows) in [
        ("ServiceExport", export_rows()),
        ("ServiceImport", import_rows()),
        ("ClusterImportPolicy", PolicyReason::ALL.iter().map(|reason| reason.row()).collect()),
        ("Pod", GateReason::ALL.iter().map(|reason| reason.row()).collect()),
        ("Cutover", cutover_rows.chain(HidingReason::ALL.iter().map(|reason| reason.row())).collect()),
    ] {
        write!(page, "\n## On a {object}\n\n| condition | reason | meaning | remedy |\n|---|---|---|---|\n").unwrap();
        for row in rows {
            let Row { condition, status, reason, text, remedy, more, event: _ } = row;
            let reasons = if row == ConflictState::Conflict.row() {
                ConflictReason::ALL.iter().map(|reason| code(reason.as_str())).collect::<Vec<_>>().join(", ")
            } else {
                code(reason)
            };
            let meaning = if more.is_empty() { text.to_owned() } else { format!("{} {more}", sentence(text)) };
            let status = status.as_str();
            writeln!(page, "| `{condition}={status}` | {reasons} | {} | {} |", cell(&meaning), cell(remedy)).unwrap();
        }
    }
    page += "\n## Events\n\nThe controller emits an Event when something changes. It repeats some warnings while their cause \
             lasts, but the same text at\nmost once in 10 minutes. See Events with `kubectl events`, or with `kubectl get \
             events --field-selector\ninvolvedObject.name=...`. An Event that has the reason of a condition says the same \
             as it. On an annotated Service or Ingress, a\nwarning says that something of it is not registered; its message \
             has the remedy.\n\n| reason | type | on | meaning |\n|---|---|---|---|\n";
    for reason in EventReason::ALL {
        let (severity, kinds) = (reason.severity().as_str(), reason.kinds().join(", "));
        writeln!(page, "| `{reason}` | {severity} | {kinds} | {} |", cell(reason.text())).unwrap();
    }
    page
}

/// Notes what would be registered: the rows of a table, by name.
#[derive(Default)]
struct Described(RefCell<BTreeMap<String, String>>);

impl Register for Described {
    fn register(&self, metric: Box<dyn Collector>) -> prometheus::Result<()> {
        let families = metric.collect();
        for desc in metric.desc() {
            let kind = families.iter().find(|family| family.name() == desc.fq_name).unwrap().get_field_type();
            let constant = desc.const_label_pairs.iter().map(|label| label.name().to_owned());
            let labels: Vec<_> = constant.chain(desc.variable_labels.iter().cloned()).map(code).collect();
            let (kind, labels) = (format!("{kind:?}").to_lowercase(), labels.join(", "));
            let row = format!("| {} | {kind} | {labels} | {} |", code(&desc.fq_name), cell(&desc.help));
            self.0.borrow_mut().insert(desc.fq_name.clone(), row);
        }
        Ok(())
    }
}

fn metrics() -> String {
    let (all, every) = (Described::default(), Described::default());
    release::register(&every).unwrap();
    cluster::Metrics::new(&every).unwrap();
    cloudmap::Metrics::new(&every).unwrap();
    app::replica::Metrics::new(&all).unwrap();
    let (mut every, mut leader) = (every.0.into_inner(), all.0.into_inner());
    leader.retain(|name, _| !every.contains_key(name));
    // These follow from the calls of the process.
    every.extend(leader.extract_if(.., |name, _| name.starts_with("cloudmap_mcs_estimated_")));
    let mut page = format!(
        "# Metrics\n\n{GENERATED}\n\nEach replica serves `/metrics` on port 8080. No metric has names of objects as \
         labels. [Alerts](../alerts.md) has what to\ndo when they look wrong.\n"
    );
    for (title, text, rows) in [
        ("Every replica", "What the replica does itself.", every),
        ("The leader", "On a standby gauges are empty or 0, and counters are empty or do not change.", leader),
    ] {
        write!(page, "\n## {title}\n\n{text}\n\n| metric | type | labels | |\n|---|---|---|---|\n").unwrap();
        for row in rows.values() {
            writeln!(page, "{row}").unwrap();
        }
    }
    page
}

fn annotations() -> String {
    let mut page = format!(
        "# Annotations and labels\n\n{GENERATED}\n\n[Operations](../operations.md#annotations) says how they work \
         together. What is wrong with an annotation is said on its object: by\nthe condition `Registered` of a \
         ServiceExport, or by an Event.\n"
    );
    for (title, text, rows) in [
        ("What you set", "", annotations::SET),
        (
            "Of external-dns",
            "After `external-dns.kubernetes.io/` or `external-dns.alpha.kubernetes.io/`; the first one takes precedence. \
             [From\nexternal-dns](../moving-from-external-dns.md) says what is registered.\n\n",
            annotations::EXTERNAL_DNS,
        ),
    ] {
        write!(page, "\n## {title}\n\n{text}| | on | values | without it | |\n|---|---|---|---|---|\n").unwrap();
        for annotations::Row { key, on, values, default, text } in rows {
            writeln!(page, "| {} | {} | {values} | {default} | {text} |", code(key), on.join(", ")).unwrap();
        }
    }
    for (title, rows) in [
        ("What the controller writes", annotations::WRITTEN),
        ("What others write and the controller reads", annotations::READ),
    ] {
        write!(page, "\n## {title}\n\n| | on | values | |\n|---|---|---|---|\n").unwrap();
        for annotations::Row { key, on, values, default: _, text } in rows {
            writeln!(page, "| {} | {} | {values} | {text} |", code(key), on.join(", ")).unwrap();
        }
    }
    page
}

fn resources() -> String {
    let mut page = format!(
        "# Resources\n\n{GENERATED}\n\n`cloudmap-mcs crds` prints the definitions, and `config/crd` has them. `kubectl get \
         mcs` lists all objects of these kinds.\n"
    );
    for crd in crds() {
        resource(&crd, &mut page);
    }
    page
}

fn resource(crd: &CustomResourceDefinition, page: &mut String) {
    let names = &crd.spec.names;
    let stored = crd.spec.versions.iter().find(|version| version.storage).unwrap();
    let served: Vec<_> =
        crd.spec.versions.iter().filter(|version| version.served).map(|version| code(&version.name)).collect();
    let schema = stored.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).unwrap();
    let short: Vec<_> = names.short_names.iter().flatten().map(code).collect();
    write!(
        page,
        "\n## {}\n\n{}\n\n`{}`, {}, {}. Short names: {}.\n\n| field | type | |\n|---|---|---|\n",
        names.kind,
        schema.description.as_deref().map(cell).unwrap_or_default(),
        crd.spec.group,
        served.join(" and "),
        crd.spec.scope.to_lowercase(),
        if short.is_empty() { "none".to_owned() } else { short.join(", ") },
    )
    .unwrap();
    fields(schema, "", page);
}

/// A row for each field below this one.
fn fields(schema: &JSONSchemaProps, path: &str, page: &mut String) {
    for (name, field) in schema.properties.iter().flatten() {
        if path.is_empty() && ["apiVersion", "kind", "metadata"].contains(&name.as_str()) {
            continue;
        }
        let path = format!("{path}{name}");
        let required = schema.required.iter().flatten().any(|required| required == name);
        let (kind, below) = match (&field.items, &field.additional_properties) {
            (Some(JSONSchemaPropsOrArray::Schema(items)), _) => {
                (format!("list of {}", plain(items)), Some((items, "[].")))
            }
            (_, Some(JSONSchemaPropsOrBool::Schema(values))) => (format!("map of {}", plain(values)), None),
            _ => (plain(field), None),
        };
        let mut text = field.description.as_deref().map(cell).unwrap_or_default();
        let values: Vec<_> = field.enum_.iter().flatten().filter_map(|value| value.0.as_str()).map(code).collect();
        if !values.is_empty() {
            format!("{} Values: {}.", sentence(&text), values.join(", ")).trim().clone_into(&mut text);
        }
        if required {
            format!("{} Required.", sentence(&text)).trim().clone_into(&mut text);
        }
        writeln!(page, "| `{path}` | {kind} | {text} |").unwrap();
        fields(
            below.map_or(field, |(items, _)| items),
            &format!("{path}{}", below.map_or(".", |(_, dots)| dots)),
            page,
        );
    }
}

/// The type of a value.
fn plain(schema: &JSONSchemaProps) -> String {
    match schema.format.as_deref() {
        Some(format) if schema.type_.as_deref() == Some("string") => format.to_owned(),
        _ => schema.type_.clone().unwrap_or_else(|| "integer or string".to_owned()),
    }
}
