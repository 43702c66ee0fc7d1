//! The pure step: a ServiceExport, its Service and the Service's EndpointSlices become what other clusters are told.

use std::sync::Arc;

use super::{Local, endpoints};
use crate::{
    api::conditions::ValidReason,
    cluster::objects::{ForeignSlice, Service, ServiceExport, ServiceKind},
    model::{Export, ServiceType, Target},
};

/// Why a ServiceExport exports nothing: the reason and the message of its condition `Valid`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invalid {
    pub reason: ValidReason,
    pub message: String,
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
) -> Result<Local, Invalid> {
    let Some(service) = service.filter(|service| !service.deleting) else {
        return Err(Invalid {
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
        return Err(Invalid {
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
        labels: request.exported_labels.clone(),
        annotations: request.exported_annotations.clone(),
        publish_not_ready_addresses: service.publish_not_ready_addresses,
        target,
    };
    Ok(Local { export, endpoints: endpoints::join(slices) })
}
