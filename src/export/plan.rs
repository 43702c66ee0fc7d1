//! The pure step: a ServiceExport, its Service and the Service's EndpointSlices become what other clusters are told.

use std::sync::Arc;

use super::{Local, endpoints};
use crate::{
    api::{conditions::ValidReason, names::is_reserved},
    awsmcs::FINALIZER,
    cluster::{
        objects::{ForeignSlice, Namespace, Service, ServiceExport, ServiceKind},
        selector::NamespaceSelector,
    },
    model::{
        Export, ServiceType, Target,
        labels::{is_annotation_key, is_label_key, is_label_value},
    },
};

/// Why a ServiceExport exports nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// What the conditions `Valid` and `Ready` say.
    Invalid { reason: ValidReason, message: String },
    /// The export is valid, but its namespace may not export: what to do about it.
    NotAllowed(String),
}

/// What `request` exports. `slices` are those of the Service, written by whoever writes them in this cluster;
/// `target` is where its instances belong, if anywhere.
///
/// # Errors
/// KEP-1645: there must be a Service of the name, and ExternalName Services cannot be exported.
pub fn plan(
    request: &ServiceExport,
    service: Option<&Service>,
    slices: &[Arc<ForeignSlice>],
    target: Option<Target>,
) -> Result<Local, Refusal> {
    let Some(service) = service.filter(|service| !service.deleting) else {
        return Err(Refusal::Invalid {
            reason: ValidReason::NoService,
            message: format!(
                "There is no Service {} in this cluster. Create it, or delete this ServiceExport.",
                request.key
            ),
        });
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
    };
    Ok(Local { export, endpoints: endpoints::join(slices) })
}

/// Whether a namespace with these labels may export anything (`--export-namespaces`).
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

/// Whether a ServiceExport is free of the AWS Cloud Map MCS Controller (`--aws-mcs-compat`). One that this controller exports already
/// goes on ([`remarks`]): what is told to other clusters must not stop because somebody starts that one.
///
/// # Errors
/// It is not: its finalizer says that the AWS controller exports it, or did until it was stopped.
pub fn hand_over(request: &ServiceExport) -> Result<(), Refusal> {
    if !request.aws_mcs_finalizer || is_ours(request) {
        return Ok(());
    }
    Err(Refusal::NotAllowed(format!(
        "The AWS Cloud Map MCS Controller runs in this cluster, or left its finalizer {FINALIZER} here: its instances are \
         left to it. Scale it to zero, then remove the finalizer: kubectl patch serviceexport -n {} {} --type merge -p \
         '{{\"metadata\":{{\"finalizers\":null}}}}'.",
        request.key.namespace, request.key.name
    )))
}

/// Whether this controller said that it exports this.
fn is_ours(request: &ServiceExport) -> bool {
    request.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What to say of an export that is valid: exported labels and annotations that are left out, because no object could have them
/// or because they have a meaning of their own (one import with an impossible label would be refused whole), and the finalizer of
/// a controller that is not to run here.
pub fn remarks(request: &ServiceExport) -> Option<String> {
    let labels = request.exported_labels.iter().filter(|pair| !admitted_label(pair));
    let annotations = request.exported_annotations.iter().filter(|pair| !admitted_annotation(pair));
    let named: Vec<_> = labels
        .map(|(key, value)| format!("exportedLabels {key:?}: {value:?}"))
        .chain(annotations.map(|(key, _)| format!("exportedAnnotations {key:?}")))
        .collect();
    let left_out =
        (!named.is_empty()).then(|| format!("Left out, since they are reserved or malformed: {}.", named.join(", ")));
    let finalizer = (request.aws_mcs_finalizer && is_ours(request)).then(|| {
        format!(
            "It has the finalizer {FINALIZER} of the AWS Cloud Map MCS Controller, which must not run in this cluster, too; remove the \
             finalizer, or nobody can delete this ServiceExport."
        )
    });
    let remarks: Vec<_> = left_out.into_iter().chain(finalizer).collect();
    (!remarks.is_empty()).then(|| remarks.join(" "))
}

fn admitted_label((key, value): &(&String, &String)) -> bool {
    !is_reserved(key) && is_label_key(key) && is_label_value(value)
}

fn admitted_annotation((key, _): &(&String, &String)) -> bool {
    !is_reserved(key) && is_annotation_key(key)
}

fn owned((key, value): (&String, &String)) -> (String, String) {
    (key.clone(), value.clone())
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
