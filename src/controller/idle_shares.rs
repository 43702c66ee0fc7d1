//! Shares of the traffic that are annotated on a Service where they have no effect: what to say about them.

use crate::{
    annotations::request::Request,
    api::{events::EventReason, names::ANNOTATION_SHARE_OF_TRAFFIC},
    cluster::{
        events::{self, EventRecord},
        objects::Service,
    },
    model::{ClaimOwner, Target},
};

/// The Event about a share on a Service that requests no registration itself, if that is new.
pub(super) fn on_plain_service(old: Option<&Service>, new: Option<&Service>) -> Option<EventRecord> {
    let is_idle = |service: &&Service| {
        let (lives, share) = (!service.deleting, service.annotations.get(ANNOTATION_SHARE_OF_TRAFFIC));
        lives && !service.managed && share.is_some() && Request::read(&service.annotations).is_none()
    };
    let service = new.filter(is_idle).filter(|_| old.is_none_or(|old| !is_idle(&old)))?;
    let text = format!(
        "The annotation {ANNOTATION_SHARE_OF_TRAFFIC} has no effect on this Service, because no annotation of it names \
         a Cloud Map service. If it is exported, set the annotation on {}, and remove it here.",
        ClaimOwner::export(&service.key)
    );
    let regarding = events::service(&service.key, &service.uid);
    Some(EventRecord { regarding, reason: EventReason::InvalidAnnotation, action: "Register", text })
}

/// The text about the share that `own` requests in a target that `holder`, an object of the same Service, has.
pub(super) fn beside(target: &Target, holder: &ClaimOwner, own: &ClaimOwner) -> String {
    format!(
        "Cloud Map service {target} is registered for {holder}, so the annotation {ANNOTATION_SHARE_OF_TRAFFIC} of \
         this {} has no effect there. Set it on {holder}, and remove it here.",
        own.kind
    )
}
