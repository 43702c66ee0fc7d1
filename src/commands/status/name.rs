//! One name, followed from the clusters that export it to DNS. Pure.

mod registry;
mod traffic;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        core::v1::Service,
        discovery::v1::{Endpoint, EndpointSlice},
    },
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::ResourceExt;

use self::registry::is_live;
pub(super) use self::registry::targets;
use super::{
    observe::{Cluster, Dns, Name},
    overview::{cluster, ignored, known, look_at_controller, of_import, since, subject, troubles, unreachable},
    report::{Finding, Report, State},
};
use api::{
    ServiceExport, ServiceImportType,
    conditions::{ImportCondition, ImportReadyReason, ImportUnreachableReason, ValidReason, Verdict, export_rows},
    names,
};
use cli::shell::quoted;
use cluster::{
    cache::Narrow as _,
    objects::{self, SourceSlice},
};
use import::{is_system, policy};
use model::{Exported, IpFamily};
use records::ClusterView;

/// Where the name is held up, and what to do.
pub(super) fn plan(seen: &Cluster, name: &Name) -> Report {
    let follow = Follow::new(seen, name);
    let mut findings = cluster(seen, !matches!(name.export, Ok(None)));
    findings.push(follow.service());
    findings.extend(follow.export());
    findings.extend(follow.endpoints());
    findings.extend(follow.ports());
    findings.extend(follow.ledger());
    findings.extend(follow.targets());
    findings.extend(follow.import());
    findings.extend(follow.derived());
    findings.extend(follow.slices());
    findings.extend(follow.traffic());
    findings.push(follow.dns());
    Report { subject: format!("{} as seen by {}", name.key, subject(seen)), findings }
}

/// Ready endpoints, and all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    ready: usize,
    total: usize,
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} endpoints ready", self.ready, self.total)
    }
}

impl Count {
    fn of_ledger(exported: &Exported) -> Self {
        Self { ready: exported.ready(), total: exported.endpoints.len() }
    }

    /// An endpoint with two families is in two slices: that of the family with most counts. One address can also be in
    /// several slices, as those of a former derived Service and of the one that takes over.
    fn of_slices<'a>(slices: impl IntoIterator<Item = &'a EndpointSlice>) -> Self {
        let mut families = BTreeMap::<&str, BTreeMap<Option<&str>, bool>>::new();
        for slice in slices {
            let addresses = families.entry(&slice.address_type).or_default();
            for endpoint in &slice.endpoints {
                let ready = is_ready(endpoint);
                *addresses.entry(endpoint.addresses.first().map(String::as_str)).or_default() |= ready;
            }
        }
        let count = |addresses: BTreeMap<Option<&str>, bool>| Self {
            ready: addresses.values().filter(|ready| **ready).count(),
            total: addresses.len(),
        };
        families.into_values().map(count).max_by_key(|count| (count.ready, count.total)).unwrap_or_default()
    }
}

/// The API says that a missing condition means ready.
fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

struct Follow<'a> {
    seen: &'a Cluster,
    name: &'a Name,
    /// The clusters in the ledger; none if it was not read.
    views: &'a [ClusterView],
    /// Who exports the name according to the ledger.
    exporters: BTreeMap<&'a str, Count>,
    own: Option<&'a str>,
}

impl<'a> Follow<'a> {
    fn new(seen: &'a Cluster, name: &'a Name) -> Self {
        let views = seen.ledger.as_deref().unwrap_or_default();
        let exporters = views
            .iter()
            .filter_map(|view| Some((&*view.id, Count::of_ledger(view.catalog.exports.get(&name.key)?))))
            .collect();
        Self { seen, name, views, exporters, own: known(seen).map(|identity| identity.cluster.as_str()) }
    }

    fn kubectl(&self, rest: &str) -> String {
        format!("`kubectl{} -n {} {rest}`", self.seen.flags, quoted(&self.name.key.namespace))
    }

    fn exported_here(&self) -> bool {
        matches!(self.name.export, Ok(Some(_)))
    }

    fn service(&self) -> Finding {
        const ABOUT: &str = "Service";
        let service = match &self.name.service {
            Err(why) => return Finding::unread(ABOUT, why, &self.seen.flags),
            Ok(None) if self.exported_here() => {
                let row = ValidReason::NoService.row();
                return Finding::wrong(ABOUT, row.text, row.remedy);
            }
            Ok(None) => return Finding::absent(ABOUT, "none in this cluster"),
            Ok(Some(service)) => service,
        };
        let spec = service.spec.clone().unwrap_or_default();
        let kind = spec.type_.unwrap_or_default();
        if kind == "ExternalName" && self.exported_here() {
            let row = ValidReason::InvalidServiceType.row();
            return Finding::wrong(ABOUT, row.text, row.remedy);
        }
        let ports: Vec<_> = spec
            .ports
            .unwrap_or_default()
            .into_iter()
            .map(|port| port_text(port.name.as_deref(), port.port, port.protocol.as_deref()))
            .collect();
        let text = format!("{kind} {}, {}", cluster_ips(service).join(","), listed("ports", &ports));
        Finding::well(ABOUT, text).aged(self.age_of(service))
    }

    fn age_of(&self, object: &impl kube::Resource) -> Option<Duration> {
        let Time(created) = object.meta().creation_timestamp.as_ref()?;
        Some(since(self.seen.now, *created))
    }

    /// How long ago one of the slices was last changed: the API server notes it for each of those who write an object.
    fn age_of_slices<'s>(&self, slices: impl IntoIterator<Item = &'s EndpointSlice>) -> Option<Duration> {
        let changes =
            slices.into_iter().flat_map(ResourceExt::managed_fields).filter_map(|fields| fields.time.as_ref());
        changes.map(|Time(then)| since(self.seen.now, *then)).min()
    }

    fn export(&self) -> Vec<Finding> {
        const ABOUT: &str = "ServiceExport";
        let export = match &self.name.export {
            Err(why) => return vec![Finding::unread(ABOUT, why, &self.seen.flags)],
            Ok(None) => {
                let known = self.seen.ledger.is_ok() && self.exporters.is_empty();
                let nobody = known && matches!(self.name.import, Ok(None));
                let finding = if self.narrowed().is_some_and(|service| is_annotated(&service)) {
                    let text = "this cluster does not export the name; annotations request its registration";
                    Finding::absent(ABOUT, text)
                } else if nobody {
                    let remedy = "Create a ServiceExport of this name where the Service is, or look for a misspelt name or namespace";
                    Finding::wrong(ABOUT, "no cluster exports this name", remedy)
                } else {
                    Finding::absent(ABOUT, "this cluster does not export the name")
                };
                return vec![finding];
            }
            Ok(Some(export)) => export,
        };
        let conditions = export.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let wrong = troubles(ABOUT, &export_rows(), &export.metadata, conditions, self.seen.now);
        if !wrong.is_empty() {
            return wrong;
        }
        vec![Finding::well(ABOUT, summary(export)).aged(self.age_of(export))]
    }

    fn endpoints(&self) -> Option<Finding> {
        const ABOUT: &str = "endpoints here";
        let (true, Ok(Some(service))) = (self.exported_here(), &self.name.service) else { return None };
        let slices = match &self.name.local {
            Err(why) => return Some(Finding::unread(ABOUT, why, &self.seen.flags)),
            Ok(slices) => slices,
        };
        let count = Count::of_slices(slices);
        let age = self.age_of_slices(slices);
        if count.ready > 0 {
            return Some(Finding::well(ABOUT, count.to_string()).aged(age));
        }
        let selector = service.spec.clone().unwrap_or_default().selector.unwrap_or_default();
        let selector: Vec<_> = selector.into_iter().map(|(key, value)| format!("{key}={value}")).collect();
        let remedy = if selector.is_empty() {
            "The Service has no selector: look at who writes its EndpointSlices".to_owned()
        } else {
            format!("Look at its pods: {}", self.kubectl(&format!("get pods -l {}", selector.join(","))))
        };
        let text = if count.total == 0 { "the Service has no endpoints".to_owned() } else { count.to_string() };
        Some(Finding::wrong(ABOUT, text, remedy).aged(age))
    }

    /// The Service as the controller sees it; `None` also if it could not be read.
    fn narrowed(&self) -> Option<objects::Service> {
        objects::Service::narrow(self.name.service.as_ref().ok()?.clone()?)
    }

    /// Ports that endpoints of the exported or annotated Service do not serve, if there are any.
    fn ports(&self) -> Option<Finding> {
        const ABOUT: &str = "ports here";
        let (service, slices) = (self.narrowed()?, self.name.local.as_ref().ok()?);
        if !self.exported_here() && !is_annotated(&service) {
            return None;
        }
        let slices: Vec<_> = slices.iter().cloned().filter_map(SourceSlice::narrow).map(Arc::new).collect();
        let endpoints = export::join(&slices);
        if let Some(text) = export::unserved(&self.name.key, &service.ports, &endpoints, service.has_selector) {
            let (what, remedy) = text.split_once(". ").unwrap_or((&text, ""));
            return Some(Finding::wrong(ABOUT, what, remedy.trim_end_matches('.')));
        }
        let (partly, total) = export::partly_served(&service.ports, &endpoints);
        let partly: Vec<_> = partly
            .iter()
            .map(|served| format!("{} by {} of {total} endpoints", export::port_text(served.port), served.endpoints))
            .collect();
        (!partly.is_empty()).then(|| Finding::well(ABOUT, format!("served {}", partly.join(", "))))
    }

    fn import(&self) -> Vec<Finding> {
        const ABOUT: &str = "ServiceImport";
        let import = match &self.name.import {
            Err(why) => return vec![Finding::unread(ABOUT, why, &self.seen.flags)],
            Ok(None) => return vec![self.no_import()],
            Ok(Some(import)) => import,
        };
        let wrong = of_import(import, self.seen.now);
        if !wrong.is_empty() {
            return wrong.into_iter().map(|finding| Finding { about: ABOUT.to_owned(), ..finding }).collect();
        }
        let ports: Vec<_> = import
            .spec
            .ports
            .iter()
            .map(|port| port_text(port.name.as_deref(), port.port, port.protocol.as_deref()))
            .collect();
        let clusters = import.status.iter().flat_map(|status| &status.clusters);
        let clusters: Vec<_> = clusters.map(|status| status.cluster.clone()).collect();
        let ips = import.spec.ips.join(",");
        let text =
            format!("{} {ips}, {}, {}", import.spec.type_.as_str(), listed("ports", &ports), listed("from", &clusters));
        let said = self.condition(ImportCondition::ClusterSelection);
        let selection = said.map(|said| Finding::well("cluster selection", said.message.clone()));
        [Finding::well(ABOUT, text).aged(self.age_of(import))].into_iter().chain(selection).collect()
    }

    fn no_import(&self) -> Finding {
        const ABOUT: &str = "ServiceImport";
        let namespace = &self.name.key.namespace;
        if self.exporters.is_empty() {
            return Finding::absent(ABOUT, "none, as nobody is known to export the name");
        }
        if matches!(self.name.namespace, Ok(false)) {
            let flags = &self.seen.flags;
            let remedy = format!(
                "Create it, if pods here need the name: `kubectl{flags} create namespace {}`",
                quoted(namespace)
            );
            return Finding::wrong(ABOUT, format!("this cluster has no namespace {namespace}"), remedy);
        }
        if is_system(&self.name.key, Some(&self.seen.own)) {
            let remedy = "Export from another namespace";
            return Finding::wrong(ABOUT, "no cluster imports names of system namespaces", remedy);
        }
        let (events, controller) = (self.kubectl("get events"), look_at_controller(self.seen));
        let remedy = format!("Wait some seconds, look at {events}: policies may exclude exporters. {controller}");
        Finding::wrong(ABOUT, "there is none, although the name is exported", remedy)
    }

    fn derived(&self) -> Option<Finding> {
        const ABOUT: &str = "derived Service";
        let Ok(Some(import)) = &self.name.import else { return None };
        let derived = match &self.name.derived {
            Err(why) => return Some(Finding::unread(ABOUT, why, &self.seen.flags)),
            Ok(derived) => derived,
        };
        let remedy = || format!("Wait some seconds, look at {}", self.kubectl("get events"));
        Some(match derived {
            None if import.spec.type_ == ServiceImportType::Headless => {
                Finding::absent(ABOUT, "a headless import has none")
            }
            None => Finding::wrong(ABOUT, "there is none, so the name has no address", remedy()),
            Some(derived) => {
                let (name, ips) = (derived.name_any(), cluster_ips(derived));
                let finding = if !objects::is_managed(&derived.metadata) {
                    let text = format!("{name} is somebody else's, and is left alone");
                    Finding::wrong(ABOUT, text, "Delete it, or stop whatever creates it")
                } else if !import.spec.ips.iter().all(|ip| ips.contains(ip)) {
                    let text = format!("{name} has {}, the ServiceImport {}", ips.join(","), import.spec.ips.join(","));
                    Finding::wrong(ABOUT, text, remedy())
                } else {
                    Finding::well(ABOUT, format!("{name} {}", ips.join(",")))
                };
                finding.aged(self.age_of(derived))
            }
        })
    }

    /// The EndpointSlices of each source, compared with what the source exports.
    fn slices(&self) -> Vec<Finding> {
        let slices = match &self.name.imported {
            Err(why) => return vec![Finding::unread("EndpointSlices", why, &self.seen.flags)],
            Ok(slices) => slices,
        };
        let mut sources = BTreeMap::<&str, Vec<&EndpointSlice>>::new();
        for slice in slices.iter().filter(|slice| objects::is_managed_slice(&slice.metadata)) {
            let source = slice.labels().get(names::LABEL_SOURCE_CLUSTER).map_or("", String::as_str);
            sources.entry(source).or_default().push(slice);
        }
        if matches!(self.name.import, Ok(Some(_))) {
            for exporter in self.exporters.keys() {
                sources.entry(exporter).or_default();
            }
        }
        sources.into_iter().map(|(source, slices)| self.slices_of(source, &slices)).collect()
    }

    fn slices_of(&self, source: &str, slices: &[&EndpointSlice]) -> Finding {
        let about = format!("EndpointSlices from {source}");
        let count = Count::of_slices(slices.iter().copied());
        let view = self.views.iter().find(|view| *view.id == *source);
        // The slices show the last state that counted. A state that was not read, or does not count, withdraws nothing.
        let unlisted = view.filter(|_| count.total > 0 && !self.exporters.contains_key(source));
        if let Some(ignored) = unlisted.and_then(|view| ignored(self.seen, view, &about)) {
            return ignored;
        }
        let withdrawn = unlisted.is_some_and(|view| view.state.is_some() || !is_live(view));
        let finding = match self.exporters.get(source) {
            Some(_) if count.total == 0 && self.is_out_of_reach(source) => {
                let text = "none: this cluster serves no IP family that the export has";
                Finding::wrong(about, text, ImportReadyReason::IpFamilyNotSupported.row().remedy)
            }
            Some(there) if count.ready == 0 && there.ready > 0 && self.is_unreachable(source) => {
                let text = format!("{count}: the network to it is gone, and others serve; the ledger has {there}");
                Finding::wrong(about, text, ImportUnreachableReason::NoAnswer.row().remedy)
            }
            Some(there)
                if count.ready < there.ready
                    && let Some(why) = self.excluded(source) =>
            {
                Finding::well(about, format!("{count}: {why}"))
            }
            Some(there)
                if count.ready == 0
                    && there.ready > 0
                    && self.condition(ImportCondition::ClusterSelection).is_some() =>
            {
                Finding::well(about, format!("{count}: others serve here by the cluster selection"))
            }
            Some(there) if count.ready == 0 && there.ready > 0 => {
                let remedy = format!(
                    "Wait some seconds. Addresses that cannot be endpoints are left out: look at {}",
                    self.kubectl(&format!("get events --field-selector involvedObject.name={}", self.name.key.name))
                );
                Finding::wrong(about, format!("{count}, but the ledger has {there}"), remedy)
            }
            None if withdrawn => {
                let text = format!("{count}, but the ledger has no such export any more");
                Finding::wrong(about, text, look_at_controller(self.seen))
            }
            _ => Finding::well(about, count.to_string()),
        };
        finding.aged(self.age_of_slices(slices.iter().copied()))
    }

    /// A condition of the import that is there only while it holds, or while it concerns the name.
    fn condition(&self, type_: ImportCondition) -> Option<&Condition> {
        let import = self.name.import.as_ref().ok()?.as_ref()?;
        import.status.as_ref()?.conditions.iter().find(|said| said.type_ == type_.as_str())
    }

    /// What the import says of a source that does not count here, or not with all endpoints.
    fn excluded(&self, source: &str) -> Option<&str> {
        policy::said_of(&self.condition(ImportCondition::Excluded)?.message, source)
    }

    /// Whether this cluster says in its ledger that it cannot reach another one.
    fn is_unreachable(&self, source: &str) -> bool {
        known(self.seen).is_some_and(|own| unreachable(self.views, &own.cluster, source).is_some())
    }

    fn is_out_of_reach(&self, source: &str) -> bool {
        let view = self.views.iter().find(|view| *view.id == *source);
        let exported = view.and_then(|view| view.catalog.exports.get(&self.name.key));
        let Ok(Some(import)) = &self.name.import else { return false };
        let served = &import.spec.ip_families;
        let serves = |family: &IpFamily| served.is_empty() || served.contains(&family.to_string());
        exported.is_some_and(|exported| !exported.export.ip_families.iter().any(serves))
    }

    fn dns(&self) -> Finding {
        let about = "DNS";
        let name = names::dns_name(&self.name.key);
        let import = match &self.name.import {
            Err(_) => {
                let text = format!("{name} was not judged, because the ServiceImport was not read");
                return Finding::new(about, State::Unseen, text);
            }
            Ok(None) => return Finding::absent(about, format!("{name} has no answer without a ServiceImport")),
            Ok(Some(import)) => import,
        };
        let asked = match &self.name.dns {
            Dns::NotAsked => {
                let asked = quoted(&format!("{name}."));
                let ask =
                    self.kubectl(&format!("run ask --rm -it --restart=Never --image=busybox -- nslookup {asked}"));
                return Finding::absent(about, format!("{name} was not asked from here; to ask in a pod: {ask}"));
            }
            Dns::Asked(asked) => asked,
        };
        let remedy = format!(
            "Let CoreDNS answer for clusterset.local: `cloudmap-mcs coredns check{}` names what is missing",
            self.seen.flags
        );
        let none_ready = |slices: &Vec<EndpointSlice>| Count::of_slices(slices).ready == 0;
        match asked {
            // The answer is the ready endpoints.
            Err(_)
                if import.spec.type_ == ServiceImportType::Headless
                    && self.name.imported.as_ref().is_ok_and(none_ready) =>
            {
                Finding::absent(about, format!("{name} has no answer while no endpoint is ready"))
            }
            Err(why) => Finding::wrong(about, format!("{name} has no answer: {why}"), remedy),
            Ok(answers) => {
                let answers: Vec<_> = answers.iter().map(ToString::to_string).collect();
                let expected = import.spec.ips.iter().all(|ip| answers.contains(ip));
                if expected && !answers.is_empty() {
                    Finding::well(about, format!("{name} is {}", answers.join(", ")))
                } else {
                    let text = format!(
                        "{name} is {}, the ServiceImport has {}",
                        answers.join(", "),
                        import.spec.ips.join(", ")
                    );
                    Finding::wrong(about, text, remedy)
                }
            }
        }
    }
}

/// The reasons of the conditions. What is not so because somebody wants it is said in full.
fn summary(export: &ServiceExport) -> String {
    let rows = export_rows();
    let conditions = export.status.iter().flat_map(|status| &status.conditions);
    let said = conditions.filter_map(|condition| {
        let row = rows.iter().find(|row| row.explains(condition))?;
        let bad = Verdict::new(*row, "").is_bad();
        Some(if bad {
            format!("{}={} {}", row.condition, row.status.as_str(), row.reason)
        } else {
            row.reason.to_owned()
        })
    });
    said.collect::<Vec<_>>().join(", ")
}

/// Whether annotations of a Service request registrations.
fn is_annotated(service: &objects::Service) -> bool {
    annotations::Request::read(&service.annotations).is_some()
}

fn cluster_ips(service: &Service) -> Vec<String> {
    let spec = service.spec.clone().unwrap_or_default();
    spec.cluster_ips.filter(|ips| !ips.is_empty()).unwrap_or_else(|| spec.cluster_ip.into_iter().collect())
}

fn port_text(name: Option<&str>, port: i32, protocol: Option<&str>) -> String {
    let name = name.filter(|name| !name.is_empty()).map_or_else(String::new, |name| format!("{name}:"));
    format!("{name}{port}/{}", protocol.unwrap_or("TCP"))
}

fn listed(what: &str, parts: &[String]) -> String {
    if parts.is_empty() { format!("no {what}") } else { format!("{what} {}", parts.join(", ")) }
}
