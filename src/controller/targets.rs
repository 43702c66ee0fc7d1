//! Which exports are registered as instances, where, and with which attributes.

use std::sync::Arc;

use k8s_openapi::jiff::SignedDuration;

use super::{
    Knowledge,
    claims::{Claims, Standing},
    pods::Pods,
};
use annotations::{UNLISTED, Zones, needs_zones, request::wrong_share};
use api::{
    conditions::RegisteredReason,
    names::{
        ANNOTATION_ADOPT, ANNOTATION_INSTANCE_PORT, ANNOTATION_INSTANCES, ANNOTATION_SHARE,
        ANNOTATION_TARGET_NAMESPACE, ANNOTATION_TARGET_SERVICE,
    },
};
use awsmcs::ExportAttributes;
use cluster::objects::ServiceExport;
use instances::{
    Adopt, Consent, Custom, InstanceSpec, Named, Naming, Owner, Rights, Selection, Source, Traffic, custom,
    policy::{Verdict, why_it_wins},
    records::{Wishes, address_records},
    sync::{Creation, Notice, Outcome, Reason, Statuses, TargetDesired},
    target::{DEFAULT_TTL, validate},
};
use model::{ClaimOwner, Excerpt, Export, Exported, Pairs, Registration, ServiceKey, ServicePort, Target};

/// The rules by which this cluster's exports get their targets.
#[derive(Debug, Clone)]
pub struct Targets {
    /// Which exports are registered (`--instances`).
    pub policy: Selection,
    /// How implied targets are named.
    pub naming: Naming,
    /// Our identity, for owner marks.
    pub identity: Owner,
    /// The attribute `REGION`.
    pub region: Option<String>,
    /// Whether every export is also registered for AWS Cloud Map MCS Controllers, whatever else it requests
    /// (`--aws-mcs-compat`).
    pub aws_mcs: bool,
    /// The Cloud Map namespaces, once they were listed: some annotations name a target in several ways.
    pub zones: Option<Arc<Zones>>,
}

/// How the message begins while everything is registered.
const DONE: [&str; 2] = ["The ready endpoints are registered", "A share of the ready endpoints is registered"];

/// What a ServiceExport requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// No instances, because of the annotation or `--instances`.
    None,
    /// Instances in this target.
    Target(Target),
    /// An annotation is invalid or not allowed. The text says what to write instead.
    Invalid(String),
    /// Its Namespace, which matters, is not known yet.
    Unknown,
    /// The Cloud Map namespaces are not listed yet, and only they say which target an annotation means. What is recorded
    /// stays.
    Unlisted,
}

impl Targets {
    /// Where the instances of an export belong.
    pub fn asked(&self, export: &ServiceExport, rights: &Rights) -> Asked {
        let annotations = &export.annotations;
        let named = Named::read(|name| annotations.get(name));
        let wanted = match annotation(annotations, ANNOTATION_INSTANCES) {
            Some("true") => true,
            Some("false") => false,
            Some(other) => {
                return Asked::Invalid(format!(
                    "The annotation {ANNOTATION_INSTANCES} is {other:?}: write \"true\" or \"false\"."
                ));
            }
            None => match self.policy {
                Selection::All => true,
                Selection::Annotated => named.is_any(),
                Selection::None => false,
            },
        };
        if !wanted {
            return Asked::None;
        }
        let mut target = named.target(&self.naming, &export.key);
        if named.is_any() && needs_zones(&target) && validate(&target).is_ok() {
            let Some(zones) = &self.zones else { return Asked::Unlisted };
            target = match zones.place(target) {
                Ok(target) => target,
                Err(why) => return Asked::Invalid(format!("The annotation {ANNOTATION_TARGET_NAMESPACE}: {why}.")),
            };
        }
        if let Err(error) = validate(&target) {
            return Asked::Invalid(format!("{error}."));
        }
        if !named.is_any() && !shares(annotations) {
            return Asked::Target(target);
        }
        match rights.register(&export.key.namespace, &target) {
            Verdict::Allowed => Asked::Target(target),
            Verdict::Refused(why) => Asked::Invalid(format!("{why}.")),
            Verdict::Unknown => Asked::Unknown,
        }
    }

    /// Whether only the list of Cloud Map namespaces says where an export is to be registered.
    pub(super) fn needs_zones(&self, export: &ServiceExport) -> bool {
        let named = Named::read(|name| export.annotations.get(name));
        named.is_any() && needs_zones(&named.target(&self.naming, &export.key))
    }

    /// Where the AWS controllers in other clusters look for an export, if there are any.
    pub(super) fn for_aws_mcs(&self, key: &ServiceKey) -> Option<Target> {
        self.aws_mcs.then(|| Naming::PerNamespace.implied(key)).filter(|target| validate(target).is_ok())
    }

    /// What the annotations and `--aws-mcs-compat` allow for a foreign target.
    fn consent(&self, key: &ServiceKey, target: &Target, annotations: &Pairs, rights: &Rights) -> Consent {
        let mut consent = consent(annotations, &key.namespace, rights);
        consent.ungranted = !rights.is_granted(&key.namespace, target);
        if self.for_aws_mcs(key).as_ref() == Some(target)
            && let Some(clusterset) = self.identity.clusterset.clone()
        {
            // An AWS controller marks neither services nor namespaces as its own.
            (consent.named, consent.ungranted) = (true, false);
            let cluster = self.identity.cluster.clone();
            consent.adopt.get_or_insert(Adopt::AwsMcsController { cluster, clusterset });
        }
        consent
    }

    /// Whether a missing Cloud Map namespace is made for an export. An account has few, so an annotation alone makes none.
    fn creates_namespace(&self, key: &ServiceKey, target: &Target, rights: &Rights) -> bool {
        self.naming.implied(key).namespace == target.namespace || rights.creates(&key.namespace, &target.namespace)
    }

    /// What an export is allowed in a target, and whether a missing namespace is created for it.
    pub(super) fn consented(&self, export: &ServiceExport, target: &Target, rights: &Rights) -> (Consent, bool) {
        let consent = self.consent(&export.key, target, &export.annotations, rights);
        (consent, self.creates_namespace(&export.key, target, rights))
    }

    pub(super) fn source<'a>(&'a self, service: &'a ServiceKey, ports: &'a [ServicePort]) -> Source<'a> {
        Source { identity: &self.identity, service, ports, region: self.region.as_deref() }
    }

    /// Whether a claim is to the target that its owner's Kubernetes name implies.
    pub(super) fn is_implied(&self, registration: &Registration) -> bool {
        !registration.owner.is_annotated() && self.naming.implied(&registration.owner.key()) == registration.target
    }

    /// The desired instances of a target, according to what is known now. `owner` is the export to which they belong, and
    /// `export` returns it with the share of the traffic that is in force.
    pub(super) fn desired(
        &self,
        knowledge: &Knowledge,
        target: &Target,
        (owner, standing): (&ClaimOwner, Standing),
        export: impl Fn(&ServiceKey) -> Option<(Arc<ServiceExport>, Traffic)>,
        pods: &Pods,
    ) -> TargetDesired {
        let key = owner.key();
        let (object, traffic) = export(&key).unzip();
        let annotations = object.as_ref().map(|export| &export.annotations);
        let planned = knowledge.planned(&key).and_then(|plan| plan.as_ref().ok());
        let hands_over = matches!(standing, Standing::HandsOver | Standing::Keeps);
        let retiring = standing == Standing::Withdraws;
        let active = !retiring
            && match standing {
                Standing::Holds => knowledge.is_on_record(target),
                Standing::HandsOver | Standing::Keeps | Standing::Unable => true,
                _ => false,
            };
        let (mut creation, mut as_is) = (Creation::default(), false);
        let instances = match planned {
            Some(local) if !retiring => {
                creation.dns = address_records(local.export.ip_families.iter().copied().collect(), DEFAULT_TTL);
                match annotations.map(Wishes::read) {
                    Some(Ok(wishes)) => creation = wishes.apply(creation),
                    Some(Err(_)) => creation.service = false,
                    None => {}
                }
                creation.namespace = self.creates_namespace(&key, target, knowledge.rights());
                // The ServiceExport reports what is not possible (`registered`).
                let local = &*knowledge.registers(&key, local);
                let (instances, complaint) = self.instances(target, object.as_deref(), &key, local, pods);
                as_is = complaint.is_some() || instance_ports(object.as_deref(), &local.export.ports).is_err();
                instances
            }
            _ => Some(Vec::new()),
        };
        let keep = instances.is_none();
        let consent = annotations.map(|annotations| self.consent(&key, target, annotations, knowledge.rights()));
        let mut consent = consent.unwrap_or_default();
        // Who moved away names this target no more. What was allowed while it did counts until the successor had time.
        let names_it =
            |export: &Arc<ServiceExport>| self.asked(export, knowledge.rights()) == Asked::Target(target.clone());
        let moved_away = hands_over && !object.as_ref().is_some_and(names_it);
        consent.unclear |= moved_away;
        let instances = instances.unwrap_or_default().into();
        let decides = decides(knowledge, target);
        let only_found = standing.is_only_found().then_some(key);
        let traffic = traffic.unwrap_or_default();
        // The share is that of the new target. In this one it stays as it was.
        let traffic = if moved_away && traffic.is_part() { Traffic::Unclear } else { traffic };
        TargetDesired {
            active,
            only_found,
            retiring,
            decides,
            keep,
            as_is,
            consent,
            creation,
            traffic,
            instances,
            ..TargetDesired::default()
        }
    }

    /// The instances of an export in a target, and a complaint about them; see [`custom::fit`].
    fn instances(
        &self,
        target: &Target,
        export: Option<&ServiceExport>,
        key: &ServiceKey,
        local: &Exported,
        pods: &Pods,
    ) -> (Option<Vec<InstanceSpec>>, Option<String>) {
        let ports = instance_ports(export, &local.export.ports).unwrap_or_else(|_| local.export.ports.clone());
        let service = export.map(|export| custom::read(&export.annotations).0).unwrap_or_default();
        let (source, custom) = (self.source(key, &ports), Custom { service, pods: pods.labels(key) });
        let endpoints = pods.admit(key, &local.endpoints);
        if self.for_aws_mcs(key).as_ref() == Some(target)
            && let Some(clusterset) = &self.identity.clusterset
        {
            let (cluster, Export { created, service_type, .. }) = (&self.identity.cluster, &local.export);
            let exported = ExportAttributes { cluster, clusterset, created: *created, service_type: *service_type };
            return custom::fit(&custom, |custom| source.instances_per_port(exported, &*endpoints, custom));
        }
        custom::fit(&custom, |custom| source.instances_with(&*endpoints, custom))
    }

    /// The condition `Registered` of an export, with the share of the traffic that is in force: reason and message.
    pub(super) fn registered(
        &self,
        knowledge: &Knowledge,
        (export, traffic): (&ServiceExport, Traffic),
        claims: &Claims,
        statuses: &Statuses,
        pods: &Pods,
    ) -> Option<(RegisteredReason, String)> {
        let for_aws_mcs = self.for_aws_mcs(&export.key);
        let target = match (self.asked(export, knowledge.rights()), for_aws_mcs) {
            // Of two targets, the one that needs attention.
            (Asked::Target(target), Some(other)) if other != target => {
                let standings = [target, other]
                    .map(|at| self.registered_in(&at, knowledge, (export, traffic), claims, statuses, pods));
                let [first, second] = standings;
                return Some(if first.0 == RegisteredReason::Registered { second } else { first });
            }
            (Asked::Target(target), _) | (Asked::None, Some(target)) => target,
            (Asked::None, None) if self.policy == Selection::None => return None,
            (Asked::None, None) => {
                return Some((
                    RegisteredReason::Disabled,
                    format!("Not requested; see the annotation {ANNOTATION_INSTANCES} and the flag --instances."),
                ));
            }
            (Asked::Invalid(message), _) => return Some((RegisteredReason::InvalidAnnotation, message)),
            (Asked::Unknown, _) => {
                let message =
                    format!("Waiting for the Namespace {}, which says what is allowed.", export.key.namespace);
                return Some((RegisteredReason::Pending, message));
            }
            (Asked::Unlisted, _) => {
                // What the previous leader reported stays for the second that a listing takes.
                let is_done = |message: &str| DONE.iter().any(|done| message.starts_with(done));
                let said = export.conditions.iter().find(|condition| is_done(&condition.message));
                let said = said.map(|said| (RegisteredReason::Registered, said.message.to_string()));
                return said.or_else(|| Some((RegisteredReason::Pending, format!("Waiting: {UNLISTED}."))));
            }
        };
        Some(self.registered_in(&target, knowledge, (export, traffic), claims, statuses, pods))
    }

    fn registered_in(
        &self,
        target: &Target,
        knowledge: &Knowledge,
        (export, traffic): (&ServiceExport, Traffic),
        claims: &Claims,
        statuses: &Statuses,
        pods: &Pods,
    ) -> (RegisteredReason, String) {
        if let Some(why) = knowledge.barred() {
            return (RegisteredReason::NotApproved, why.clone());
        }
        let own = ClaimOwner::export(&export.key);
        if let Some((_, text)) = knowledge.exceeded(&own) {
            return (RegisteredReason::QuotaExceeded, text);
        }
        if let Some((cluster, owner)) = knowledge.claimant(target)
            && !owner.is_same_service(&own)
        {
            if knowledge.is_unable(target, &own) {
                if let Some((reason, message)) = claims.refusal(target, &own) {
                    return (refusal(*reason), message.clone());
                }
                // A new leader looks first. Meanwhile what the previous one reported stays.
                let said = |reason: RegisteredReason| {
                    let said = export.conditions.iter().find(|condition| *condition.reason == *reason.as_str())?;
                    Some((reason, said.message.to_string()))
                };
                let said = said(RegisteredReason::ForeignOwner).or_else(|| said(RegisteredReason::NoNamespace));
                return said.unwrap_or_else(|| (RegisteredReason::Pending, on_the_way(target)));
            }
            return (
                RegisteredReason::NameConflict,
                format!(
                    "Cloud Map service {target} is claimed by {owner} of cluster {cluster}, {}. Choose another one by the \
                     annotation {ANNOTATION_TARGET_SERVICE}, or have that claim removed.{}",
                    why_it_wins(&owner, &own, target),
                    if claims.successor(target).is_some() {
                        " What is registered stays until a reading of Cloud Map shows an endpoint of the other one."
                    } else {
                        ""
                    }
                ),
            );
        }
        if let Err(message) = understood(&export.annotations, &export.key.namespace, knowledge.rights()) {
            return (RegisteredReason::InvalidAnnotation, message);
        }
        let planned = knowledge.planned(&export.key).and_then(|planned| planned.as_ref().ok());
        if let Some(Err(message)) = planned.map(|local| instance_ports(Some(export), &local.export.ports)) {
            return (RegisteredReason::InvalidAnnotation, message);
        }
        if let Some(local) = planned
            && let (_, Some(complaint)) = self.instances(target, Some(export), &export.key, local, pods)
        {
            return (RegisteredReason::Failed, format!("{complaint}."));
        }
        // Without the count: a condition that changes with every pod would be written for each.
        let done = format!("{} in Cloud Map service {target}.", DONE[usize::from(traffic.is_part())]);
        let status = statuses.get(target);
        match status.map(|status| &status.outcome) {
            Some(Outcome::Registered { .. }) => {
                let notices = status.map(|status| status.notices.as_slice()).unwrap_or_default();
                (RegisteredReason::Registered, with_notes(done, notices, custom::read(&export.annotations).1))
            }
            Some(Outcome::Refused { reason, message }) => (refusal(*reason), message.clone()),
            // A new leader reads all targets first. Meanwhile what the previous one reported about this target stays.
            Some(Outcome::Pending) | None => {
                // Remarks may follow. The name of another service may begin with this one and a dot.
                let says = |message: &str| {
                    message.strip_prefix(&*done).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
                };
                let said = export.conditions.iter().find(|condition| says(&condition.message));
                if let Some(said) = said {
                    return (RegisteredReason::Registered, said.message.to_string());
                }
                let message = match claims.standing(target) {
                    Some(Standing::AwaitsClusters) => awaits_clusters(target),
                    Some(Standing::AwaitsDelay) => format!(
                        "Claimed Cloud Map service {target}: the endpoints are registered after {}, unless an older \
                         claim appears.",
                        SignedDuration::try_from(claims.delay()).map_or_else(|_| String::new(), |d| format!("{d:#}")),
                    ),
                    _ => on_the_way(target),
                };
                (RegisteredReason::Pending, message)
            }
        }
    }
}

/// Checks the annotations that do not say where instances belong, but how. While one is invalid, existing instances
/// stay, and nothing is created. A takeover that is not allowed counts as invalid.
fn understood(annotations: &Pairs, namespace: &str, rights: &Rights) -> Result<(), String> {
    if let Some(message) = wrong_share(annotations) {
        return Err(format!("The annotation {message}."));
    }
    if let (_, Some(message)) = Traffic::read(annotations) {
        return Err(format!("The annotation {message}."));
    }
    if let Some(text) = annotation(annotations, ANNOTATION_ADOPT) {
        match text.parse::<Adopt>().map(|adopt| rights.adopt(namespace, &adopt)) {
            Err(error) => return Err(format!("The annotation {ANNOTATION_ADOPT} is {}: {error}.", Excerpt(text))),
            Ok(Verdict::Refused(why)) => return Err(format!("The annotation {why}.")),
            Ok(Verdict::Allowed | Verdict::Unknown) => {}
        }
    }
    Wishes::read(annotations).map(|_| ())
}

fn on_the_way(target: &Target) -> String {
    format!("On the way to Cloud Map service {target}.")
}

/// What a claim waits for while not every cluster can be read.
pub(super) fn awaits_clusters(target: &Target) -> String {
    format!(
        "Waiting until every cluster of the ClusterSet can be read: one may have claimed Cloud Map service {target} before."
    )
}

/// Whether this cluster's claim to a target is the oldest, so that its wishes for the service itself count.
pub(super) fn decides(knowledge: &Knowledge, target: &Target) -> bool {
    knowledge.claimant(target).is_some_and(|(cluster, _)| cluster == *knowledge.local())
}

/// A message, followed by what the user should know even if everything is registered.
fn with_notes(message: String, notices: &[Notice], complaints: Vec<String>) -> String {
    let notes = complaints.into_iter().chain(notices.iter().map(|notice| notice.message.clone()));
    notes.fold(message, |message, note| format!("{message} {note}."))
}

const fn refusal(reason: Reason) -> RegisteredReason {
    match reason {
        Reason::ForeignOwner => RegisteredReason::ForeignOwner,
        Reason::NoNamespace => RegisteredReason::NoNamespace,
        Reason::LimitExceeded => RegisteredReason::LimitExceeded,
        Reason::UnfitEndpoints => RegisteredReason::AddressFamilyMissing,
        Reason::Throttled => RegisteredReason::Throttled,
        Reason::AccessDenied | Reason::Failed => RegisteredReason::Failed,
    }
}

fn annotation<'a>(annotations: &'a Pairs, name: &str) -> Option<&'a str> {
    annotations.get(name).map(str::trim)
}

/// The ports of the Service, with the port for `AWS_INSTANCE_PORT` first, which the annotation gives by name or number.
///
/// # Errors
/// There is no port with that name or number. The text says what happens meanwhile.
fn instance_ports(export: Option<&ServiceExport>, ports: &[ServicePort]) -> Result<Vec<ServicePort>, String> {
    let mut ports = ports.to_vec();
    if let Some(wanted) = export.and_then(|export| annotation(&export.annotations, ANNOTATION_INSTANCE_PORT)) {
        let at = ports.iter().position(|port| *port.name == *wanted || port.port.to_string() == wanted);
        let at = at.ok_or_else(|| {
            format!(
                "The annotation {ANNOTATION_INSTANCE_PORT} is {wanted:?}: write the name or the number of a port of the \
                 Service. Until then, existing instances stay as they are, and new instances get the first port."
            )
        })?;
        ports[..=at].rotate_right(1);
    }
    Ok(ports)
}

/// What the annotations allow for a foreign target.
fn consent(annotations: &Pairs, namespace: &str, rights: &Rights) -> Consent {
    let share = shares(annotations);
    let named = annotation(annotations, ANNOTATION_TARGET_SERVICE).is_some() || share;
    let asked = annotation(annotations, ANNOTATION_ADOPT).map(str::parse::<Adopt>);
    let (adopt, unclear) = match asked.map(|adopt| adopt.map(|adopt| (rights.adopt(namespace, &adopt), adopt))) {
        Some(Ok((Verdict::Allowed, adopt))) => (Some(adopt), false),
        Some(Ok((Verdict::Unknown, _)) | Err(_)) => (None, true),
        Some(Ok((Verdict::Refused(_), _))) | None => (None, false),
    };
    Consent { named, share, adopt, unclear: unclear || wrong_share(annotations).is_some(), ungranted: false }
}

fn shares(annotations: &Pairs) -> bool {
    annotation(annotations, ANNOTATION_SHARE) == Some("true")
}

#[cfg(test)]
#[path = "targets_tests.rs"]
pub(super) mod tests;
