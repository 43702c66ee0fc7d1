//! The pure step from a ServiceExport, its Service and the Service's EndpointSlices to the published export.

use std::sync::Arc;

use super::endpoints;
use api::conditions::{ExportCondition, Status, ValidReason, find};
use awsmcs::FINALIZER;
use cluster::{
    objects::{Namespace, Service, ServiceExport, ServiceKind, SourceSlice},
    selector::NamespaceSelector,
};
use model::{Drain, Export, Exported, ServiceType, Target};

/// What an export gets that its Service and its annotations do not say.
#[derive(Debug, Clone, Default)]
pub struct Given {
    /// Where its instances belong, if anywhere.
    pub target: Option<Target>,
    /// The cluster selection that is in force, as it is published.
    pub cluster_selection: Option<Arc<str>>,
    /// Which part of its endpoints leaves the name, if any.
    pub drain: Option<Drain>,
}

/// Why a ServiceExport exports nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The export is not valid, with the content of the conditions `Valid` and `Ready`.
    Invalid {
        /// Reason of the condition `Valid`.
        reason: ValidReason,
        /// Its message.
        message: String,
    },
    /// The export is valid, but not allowed. The message has the remedy.
    NotAllowed(String),
}

/// Plans what `request` exports. `slices` are the EndpointSlices of the Service, no matter who writes them in this
/// cluster.
///
/// # Errors
/// KEP-1645: the Service must exist, and Services of type ExternalName cannot be exported. Nor can derived Services.
pub fn plan(
    request: &ServiceExport,
    service: Option<&Service>,
    slices: &[Arc<SourceSlice>],
    Given { target, cluster_selection, drain }: Given,
) -> Result<Exported, Refusal> {
    let Some(service) = service.filter(|service| !service.deleting) else {
        let key = &request.key;
        let message = match service {
            // A finalizer can keep it for long, such as that of a load balancer.
            Some(_) => format!(
                "Service {key} is being deleted. Create it again when it is gone, or delete this ServiceExport."
            ),
            None => format!("There is no Service {key} in this cluster. Create it, or delete this ServiceExport."),
        };
        return Err(Refusal::Invalid { reason: ValidReason::NoService, message });
    };
    if !service.kind.can_be_exported() {
        let kind = match &service.kind {
            ServiceKind::Other(other) => other,
            _ => "ExternalName",
        };
        return Err(Refusal::Invalid {
            reason: ValidReason::InvalidServiceType,
            message: format!(
                "Service {} is of type {kind}, which cannot be exported. Use a Service of type ClusterIP, NodePort or \
                 LoadBalancer, or a headless one.",
                request.key
            ),
        });
    }
    if let Some(import) = service.service_import.as_ref().filter(|_| service.managed) {
        // Its endpoints are those of other exports, so that other clusters would get an import without any.
        return Err(Refusal::Invalid {
            reason: ValidReason::InvalidServiceType,
            message: format!(
                "Service {} is the derived Service of ServiceImport {}/{import} and has no endpoints of its own, so it \
                 cannot be exported. Delete this ServiceExport: other clusters import {import} from where it is exported.",
                request.key, request.key.namespace
            ),
        });
    }
    let export = Export {
        uid: (*request.uid).into(),
        created: request.created,
        service_type: if service.headless { ServiceType::Headless } else { ServiceType::ClusterSetIp },
        ports: service.ports.to_vec(),
        session_affinity: service.session_affinity,
        internal_traffic_policy: service.internal_traffic_policy,
        traffic_distribution: service.traffic_distribution.clone(),
        ip_families: service.ip_families.to_vec(),
        labels: request.exported_labels.iter().filter(admitted_label).map(owned).collect(),
        annotations: request.exported_annotations.iter().filter(admitted_annotation).map(owned).collect(),
        publish_not_ready_addresses: service.publish_not_ready_addresses,
        target,
        cluster_selection,
        drain,
    };
    Ok(Exported { export, endpoints: endpoints::join(slices) })
}

/// Whether a namespace with these labels may export (`--export-namespaces`).
///
/// # Errors
/// It may not.
pub fn permit(namespace: &Namespace, allowed: &NamespaceSelector) -> Result<(), Refusal> {
    if allowed.matches(&namespace.labels) {
        return Ok(());
    }
    Err(Refusal::NotAllowed(format!(
        "Namespace {} may not export: this cluster allows it only to namespaces with the labels \"{allowed}\". Have an \
         administrator label the namespace, or change the controller's flag --export-namespaces.",
        namespace.name
    )))
}

/// Whether the AWS Cloud Map MCS Controller has handed over a ServiceExport (`--aws-mcs-compat`). An export that this
/// controller already publishes continues ([`remarks`]): it must not disappear from other clusters because somebody
/// starts the AWS controller.
///
/// # Errors
/// It has not: its finalizer shows that the AWS controller exports it, or did so until it was stopped.
pub fn hand_over(request: &ServiceExport) -> Result<(), Refusal> {
    let Some(place) = request.aws_mcs_finalizer.filter(|_| !is_ours(request)) else { return Ok(()) };
    Err(Refusal::NotAllowed(format!(
        "The AWS Cloud Map MCS Controller runs in this cluster, or left its finalizer {FINALIZER} here. Its instances are \
         not touched. Scale it to zero, then remove the finalizer: kubectl patch serviceexport -n {} {} --type json -p \
         '[{{\"op\":\"test\",\"path\":\"/metadata/finalizers/{place}\",\"value\":\"{FINALIZER}\"}},\
         {{\"op\":\"remove\",\"path\":\"/metadata/finalizers/{place}\"}}]'.",
        request.key.namespace, request.key.name
    )))
}

/// Whether this controller has reported that it exports this. `Ready` is not `True` while the registry fails, but what is
/// exported keeps the condition `Registered`, which a refused export never has.
fn is_ours(request: &ServiceExport) -> bool {
    let is_ready = find(&request.conditions, ExportCondition::Ready.as_str())
        .is_some_and(|ready| *ready.status == *Status::True.as_str());
    is_ready || find(&request.conditions, ExportCondition::Registered.as_str()).is_some()
}

/// Remarks on a valid export: exported labels and annotations that are left out, because they are malformed or have a
/// meaning of their own (the API server would refuse a whole import for one bad label), and the finalizer of a
/// controller that must not run here.
pub fn remarks(request: &ServiceExport) -> Option<String> {
    let labels = request.exported_labels.iter().filter(|pair| !admitted_label(pair));
    let annotations = request.exported_annotations.iter().filter(|pair| !admitted_annotation(pair));
    let named: Vec<_> = labels
        .map(|(key, value)| format!("exportedLabels {key:?}: {value:?}"))
        .chain(annotations.map(|(key, _)| format!("exportedAnnotations {key:?}")))
        .collect();
    let left_out =
        (!named.is_empty()).then(|| format!("Left out, because they are reserved or malformed: {}.", named.join(", ")));
    let finalizer = (request.aws_mcs_finalizer.is_some() && is_ours(request)).then(|| {
        format!(
            "It has the finalizer {FINALIZER} of the AWS Cloud Map MCS Controller, which must not run in this cluster as well. Remove the \
             finalizer, or this ServiceExport cannot be deleted."
        )
    });
    let remarks: Vec<_> = left_out.into_iter().chain(finalizer).collect();
    (!remarks.is_empty()).then(|| remarks.join(" "))
}

fn admitted_label((key, value): &(&String, &String)) -> bool {
    ServiceExport::admits_label(key, value)
}

fn admitted_annotation((key, _): &(&String, &String)) -> bool {
    ServiceExport::admits_annotation(key)
}

fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
