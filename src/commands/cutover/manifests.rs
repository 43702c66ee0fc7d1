//! The manifests with which the services of a Cloud Map namespace move: what people would otherwise write by hand for each,
//! after docs/moving-from-ecs.md. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::{ecs_services, situation::CloudMapService, yaml::block};
use api::{
    Cutover, CutoverSpec, ServiceExport,
    names::{ANNOTATION_SHARE_OF_TRAFFIC, ANNOTATION_TARGET_NAMESPACE, ANNOTATION_TARGET_SERVICE},
};
use cli::{CutoverWriteArgs, shell::quoted};
use cloudmap::RecordType;
use cutover::{Course, course::STEPS};
use ecs::Found;
use instances::target::validate;
use model::{
    Target, is_dns_label,
    labels::{is_label_key, is_label_value},
};

/// Stands for a value that the user has to fill in. It is invalid as a namespace, as labels and as a port.
const TODO: &str = "TODO";
/// A line that no YAML has: kubectl then takes nothing of the file, not even the objects that are complete.
const STOP: &str =
    "TODO: fill in every TODO below, and then delete this line: until then, kubectl takes nothing of this file";
/// What stands for the name of the Cloud Map service in a label.
const SERVICE: &str = "{service}";

/// What the user says of all services.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Wishes {
    /// The Kubernetes namespace.
    pub(super) into: Option<String>,
    /// The labels of the pods. A value may have `{service}`.
    pub(super) selector: BTreeMap<String, String>,
    pub(super) port: Option<u16>,
    /// Whether the Services come from elsewhere.
    pub(super) existing_services: bool,
    pub(super) steps: Vec<u8>,
}

impl Wishes {
    /// What the flags say.
    ///
    /// # Errors
    /// Which flag is wrong, and how to write it.
    pub(super) fn of(args: &CutoverWriteArgs, steps: &[u8]) -> anyhow::Result<Self> {
        let steps = if steps.is_empty() { &STEPS[..] } else { steps };
        Course::read(&spec(steps)).map_err(anyhow::Error::msg)?;
        if let Some(into) = args.into.as_ref().filter(|into| !is_dns_label(into)) {
            anyhow::bail!(
                "--into {into:?} is no name of a Kubernetes namespace: write lower-case letters, digits and `-`"
            );
        }
        let mut selector = BTreeMap::new();
        for pair in &args.selector {
            let valid = pair.split_once('=').filter(|(key, value)| {
                is_label_key(key) && !value.is_empty() && is_label_value(&value.replace(SERVICE, "x"))
            });
            let Some((key, value)) = valid else {
                anyhow::bail!("--selector {pair:?} is no label: write KEY=VALUE, such as app={SERVICE}");
            };
            selector.insert(key.to_owned(), value.to_owned());
        }
        let CutoverWriteArgs { into, port, existing_services, .. } = args.clone();
        Ok(Self { into, selector, port, existing_services, steps: steps.to_vec() })
    }
}

/// A service of a Cloud Map namespace, and what was read of it.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) target: Target,
    pub(super) registry: Result<CloudMapService, String>,
    /// The ECS services that register there; `None`: ECS was not asked.
    pub(super) ecs: Result<Option<Found>, String>,
}

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Manifest {
    /// The name of the objects. The file has it, too.
    pub(super) name: String,
    pub(super) text: String,
    /// The flags with which no TODO would be left.
    pub(super) missing: BTreeSet<&'static str>,
    pub(super) target: Target,
    /// How many instances the pods will add to those that are registered now: one for each task.
    pub(super) pods: usize,
}

/// The manifest of a service of ECS. `Ok(None)`: no task of ECS is registered there.
///
/// # Errors
/// Why it cannot be moved so, or why nothing is known of it, with a remedy.
pub(super) fn manifest(candidate: &Candidate, wishes: &Wishes) -> Result<Option<Manifest>, String> {
    let Candidate { target, registry, .. } = candidate;
    let shown = target.to_string();
    let said = |why: &str| format!("{shown:?}: {why}");
    let registry = registry.as_ref().map_err(|why| said(&format!("it could not be read: {why}")))?;
    if !is_of_ecs(candidate, registry).map_err(|why| said(&why))? {
        return Ok(None);
    }
    let services = candidate.ecs.as_ref().ok().and_then(Option::as_ref);
    let services = services.map(|found| &*found.services).unwrap_or_default();
    let arn = registry.service.as_ref().map_or("", |service| &service.arn);
    if let Some(finding) = ecs_services::blockers(services, arn).first() {
        return Err(said(&format!("{}: {}", finding.text, finding.remedy.as_deref().unwrap_or_default())));
    }
    if registry.records().contains(&RecordType::Cname) {
        return Err(said("it has a CNAME record, and no pod can be registered beside it: use another service"));
    }
    validate(target).map_err(|why| said(&why.to_string()))?;
    let name = &*target.service;
    if !is_service_name(name) {
        return Err(said(
            "neither a Service nor its file can have this name: choose one of at most 63 lower-case letters, digits and `-` that \
             begins with a letter, copy the file of another service, and write the new name as metadata.name, and this one as \
             the annotation cloudmap-mcs/service of the ServiceExport",
        ));
    }
    let ports: BTreeSet<u16> =
        services.iter().flat_map(|service| &service.ports).chain(&registry.ports).copied().collect();
    let selector = wishes.selector.iter().map(|(key, value)| (key.clone(), value.replace(SERVICE, name)));
    let selector: BTreeMap<_, _> = selector.collect();
    if let Some((key, value)) = selector.iter().find(|(_, value)| !is_label_value(value)) {
        return Err(said(&format!(
            "{value:?} is no value of the label {key}, it is too long: choose a shorter --selector"
        )));
    }
    let (text, missing) = text(target, wishes, &selector, &ports);
    let desired: usize = services.iter().map(|service| service.desired as usize).sum();
    let registered: usize = registry.clusters.values().map(|cluster| cluster.instances).sum();
    let pods = desired.max(registry.others.whole).saturating_sub(registered);
    Ok(Some(Manifest { name: name.to_owned(), text, missing, target: target.clone(), pods }))
}

/// Whether ECS registers tasks there: by what ECS says, and where it says nothing, by the instances.
///
/// # Errors
/// Why nobody knows.
fn is_of_ecs(candidate: &Candidate, registry: &CloudMapService) -> Result<bool, String> {
    let (registers, why) = match &candidate.ecs {
        Ok(Some(found)) => (!found.services.is_empty(), found.unread.clone()),
        Ok(None) => (false, Some("ECS was not asked: set --ecs-endpoint".to_owned())),
        Err(why) => (false, Some(why.clone())),
    };
    match why {
        _ if registers || !registry.ecs.is_empty() => Ok(true),
        // The instances of others show which it is.
        Some(why) if registry.instances() == 0 => Err(format!(
            "it has no instance, so it is not known whether ECS registers tasks there ({why}): grant what `cloudmap-mcs iam \
             --mode cutover` prints, or name the cluster with --ecs-cluster"
        )),
        _ => Ok(false),
    }
}

/// Whether a Service can have this name: of a label of DNS that begins with a letter (RFC 1035), as the API server requires it.
fn is_service_name(name: &str) -> bool {
    is_dns_label(name) && name.starts_with(|c: char| c.is_ascii_lowercase())
}

fn spec(steps: &[u8]) -> CutoverSpec {
    let steps = steps.iter().copied().map(i64::from).collect();
    CutoverSpec { steps, paused: true, ..CutoverSpec::default() }
}

/// The text of a file, and the flags that would have said what it lacks.
fn text(
    target: &Target,
    wishes: &Wishes,
    selector: &BTreeMap<String, String>,
    ports: &BTreeSet<u16>,
) -> (String, BTreeSet<&'static str>) {
    let mut missing = BTreeMap::new();
    if wishes.into.is_none() {
        missing.insert("--into", "the Kubernetes namespace of all objects".to_owned());
    }
    let objects = objects(target, wishes, selector, ports, &mut missing);
    let into = wishes.into.as_deref().unwrap_or(TODO);
    let mut text = format!(
        "# Moves {target} from tasks of ECS to the pods of a Service, step by step (docs/moving-from-ecs.md).\n\
         # Nothing moves before `paused: true` is deleted, and the file applied again.\n\
         # Before, an administrator lets the namespace join the Cloud Map service:\n\
         # kubectl annotate namespace {into} cloudmap-mcs/may-register={}\n",
        quoted(&target.to_string())
    );
    for (flag, what) in &missing {
        text.extend([format!("# TODO ({flag}): {what}\n")]);
    }
    if !missing.is_empty() {
        text.extend([STOP, "\n"]);
    }
    let blocks: Vec<_> = objects.iter().map(|object| block(object, 0)).collect();
    text.push_str(&blocks.join("---\n"));
    (text, missing.into_keys().collect())
}

/// The objects. `missing` gets the flags of the values that are not given.
fn objects(
    target: &Target,
    wishes: &Wishes,
    selector: &BTreeMap<String, String>,
    ports: &BTreeSet<u16>,
    missing: &mut BTreeMap<&'static str, String>,
) -> Vec<Value> {
    let metadata = || ObjectMeta {
        name: Some(target.service.to_string()),
        namespace: Some(wishes.into.clone().unwrap_or_else(|| TODO.to_owned())),
        ..ObjectMeta::default()
    };
    let mut objects = Vec::new();
    if !wishes.existing_services {
        let only = ports.first().copied().filter(|_| ports.len() == 1);
        let port = wishes.port.or(only).map(i32::from);
        let spec = ServiceSpec {
            selector: Some(selector.clone()),
            ports: port.map(|port| {
                vec![ServicePort { port, target_port: Some(IntOrString::Int(port)), ..ServicePort::default() }]
            }),
            ..ServiceSpec::default()
        };
        let mut service = json!(Service { metadata: metadata(), spec: Some(spec), ..Service::default() });
        if selector.is_empty() {
            service["spec"]["selector"] = json!(TODO);
            missing.insert("--selector", "the labels of the pods, such as {app: orders}".to_owned());
        }
        if port.is_none() {
            service["spec"]["ports"] = json!([{"port": TODO}]);
            let theirs: Vec<_> = ports.iter().map(ToString::to_string).collect();
            let theirs =
                if theirs.is_empty() { "is not known".to_owned() } else { format!("is {}", theirs.join(" or ")) };
            missing.insert("--port", format!("the port of the pods; that of the tasks {theirs}"));
        }
        objects.push(service);
    }
    let mut export = ServiceExport { metadata: metadata(), ..ServiceExport::default() };
    let annotations = [
        (ANNOTATION_TARGET_NAMESPACE, &*target.namespace),
        (ANNOTATION_TARGET_SERVICE, &*target.service),
        // Counts while the Cutover has no share, or is gone.
        (ANNOTATION_SHARE_OF_TRAFFIC, "0%"),
    ];
    let annotations = annotations.map(|(name, value)| (name.to_owned(), value.to_owned()));
    export.metadata.annotations = Some(annotations.into());
    let cutover = Cutover { metadata: metadata(), ..Cutover::new("", spec(&wishes.steps)) };
    objects.extend([json!(cutover), json!(export)]);
    objects
}
