//! Shares of the traffic that are annotated on a Service where they have no effect: what to say about them.

use annotations::request::Request;
use api::{events::EventReason, names::ANNOTATION_SHARE_OF_TRAFFIC};
use cluster::{
    events::{self, EventRecord},
    objects::Service,
};
use model::{ClaimOwner, Target};

/// The Event about a share on a Service that requests no registration itself, if that is new.
pub(super) fn on_plain_service(old: Option<&Service>, new: Option<&Service>) -> Option<EventRecord> {
    let is_idle = |service: &&Service| {
        let (lives, share) = (!service.deleting, service.annotations.get(ANNOTATION_SHARE_OF_TRAFFIC));
        lives && !service.managed && share.is_some() && Request::read(&service.annotations).is_none()
    };
    let service = new.filter(is_idle)?;
    // One that was deleted and made again at once is another one.
    if old.is_some_and(|old| old.uid == service.uid && is_idle(&old)) {
        return None;
    }
    let text = format!(
        "The annotation {ANNOTATION_SHARE_OF_TRAFFIC} has no effect on this Service, because no annotation of it names \
         a Cloud Map service. If it is exported, set the annotation on {}, and remove it here.",
        ClaimOwner::export(&service.key)
    );
    let regarding = events::service(&service.key, &service.uid);
    Some(EventRecord { regarding, reason: EventReason::InvalidAnnotation, action: "Register", text })
}

/// The text for `own`: its share has no effect, because `holder`, another object of the same Service, has the target.
pub(super) fn beside(target: &Target, holder: &ClaimOwner, own: &ClaimOwner) -> String {
    format!(
        "Cloud Map service {target} is registered for {holder}, so the annotation {ANNOTATION_SHARE_OF_TRAFFIC} of \
         this {} has no effect there. Set it on {holder}, and remove it here.",
        own.kind
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use cluster::cache::Narrow;

    fn service(uid: &str) -> Service {
        let annotations = json!({ANNOTATION_SHARE_OF_TRAFFIC: "25%"});
        let metadata = json!({"namespace": "shop", "name": "web", "uid": uid, "annotations": annotations});
        Service::narrow(serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap()).unwrap()
    }

    #[test]
    fn a_share_without_effect_is_said_once_on_each_service() {
        let said = |old: Option<&str>, new: &str| {
            let note = on_plain_service(old.map(service).as_ref(), Some(&service(new)));
            note.map(|note| note.regarding.uid.unwrap())
        };
        assert_eq!(said(None, "1").as_deref(), Some("1"));
        assert_eq!(said(Some("1"), "1"), None);
        assert_eq!(said(Some("1"), "2").as_deref(), Some("2"), "it was made again");
    }
}
