//! The conditions of a Cutover.

use std::fmt;

use super::{CutoverCondition, Row, Status};
use crate::events::EventReason;

condition! {
    /// Reasons of [`CutoverCondition::Progressing`].
    CutoverReason, CutoverCondition::Progressing;
    Shifting => True, "Shifting", None,
        "the share of the step is reached, or as near as possible. The step lasts until its interval is over", "",
        "The message has the requested share, the chosen one and the next, and the interval if it was raised.";
    Registering => True, "Registering", None,
        "the pods of the step are not all registered yet", "If this lasts, look at the ServiceExport or the annotated object",
        "The interval begins when all are registered. Time in which some are not does not count.";
    AwaitsWave => True, "AwaitsWave", None,
        "a Cutover of a lower wave is not finished",
        "Finish the Cutover that the message names, or delete it, or give it a higher wave", "";
    LastStep => True, "LastStep", Some(EventReason::LastStep),
        "the last step is reached, and is less than 100 %", "Add steps if more traffic should move", "";
    OthersServe => True, "OthersServe", Some(EventReason::Finished),
        "all ready pods are registered, and others still have instances, which may be hidden tasks",
        "Stop the tasks when no client needs them: `cloudmap-mcs cutover finish` prints how", "";
    Finished => True, "Finished", Some(EventReason::Finished),
        "all ready pods are registered, and nobody else has instances", "",
        "The Cutover may be deleted: all pods stay registered. If the message names an annotation, remove it before.";
    RollingBack => True, "RollingBack", None, "the pods are being deregistered", "", "";
    RolledBack => True, "RolledBack", Some(EventReason::RolledBack), "no pod is registered any more", "", "";
    LastInstance => False, "LastInstance", Some(EventReason::LastInstance),
        "nobody else has a healthy instance, so the registered pods keep the traffic",
        "Start the tasks again. The pods are deregistered when tasks are healthy", "";
    Paused => False, "Paused", None, "`spec.paused` is set", "Remove the field: `cloudmap-mcs cutover resume`", "";
    Held => False, "Held", None, "`spec.shareOfTraffic` is set and holds the share", "Remove the field: `cloudmap-mcs cutover resume`", "";
    PodsNotReady => False, "PodsNotReady", None,
        "pods of the Service are not ready, or there are none",
        "Repair the pods; then the steps go on by themselves", "No more pods get traffic while some are not ready.";
    GuardUnclear => False, "GuardUnclear", None,
        "the guard has not found that all is well; the message says what is missing",
        "If this lasts, follow the message", "The steps go on when the guard finds that all is well. The time until then does not count.";
    GuardFailed => False, "GuardFailed", Some(EventReason::GuardFailed),
        "the guard found something wrong, and took the traffic back",
        "Repair what the message says, then `cloudmap-mcs cutover resume`, or change the spec", "The share is 0 % until then.";
    InvalidSpec => False, "InvalidSpec", Some(EventReason::CutoverBlocked),
        "the spec is invalid", "The message says what to write", "The share stays as it is.";
    NoObject => False, "NoObject", Some(EventReason::CutoverBlocked),
        "there is no ServiceExport, and no annotated Service or Ingress, of this name",
        "Create one that names the Cloud Map service, or create the Cutover under the name of the right one", "The share does not rise.";
    NotRegistered => False, "NotRegistered", Some(EventReason::CutoverBlocked),
        "the object of this name joins no Cloud Map service; the message says why",
        "Follow the message, and see the object", "The share does not rise.";
}

condition! {
    /// Reasons of [`CutoverCondition::TasksHidden`], which is absent without `spec.hideTasks`.
    HidingReason, CutoverCondition::TasksHidden;
    Hidden => True, "Hidden", None,
        "as many tasks are hidden as the share needs. The message says from when on they may be stopped", "", "";
    NoneToHide => True, "NoneToHide", None, "no task has to be hidden for this share", "", "";
    Hiding => False, "Hiding", None, "tasks are being marked as unhealthy", "Wait; do not stop tasks yet", "";
    Showing => False, "Showing", None, "tasks are being marked as healthy again", "Wait",
        "The controller deregisters pods when clients find the tasks again.";
    FlagMissing => False, "FlagMissing", Some(EventReason::TasksNotHidden),
        "the controller runs without `--hide-tasks`",
        "Start it with `--hide-tasks`, and grant `cloudmap-mcs iam --mode hiding`; or remove `spec.hideTasks`",
        "The steps go on as without `spec.hideTasks`.";
    NotGranted => False, "NotGranted", Some(EventReason::TasksNotHidden),
        "no administrator has allowed it", "Ask an administrator for `cloudmap-mcs/may-register` on the Namespace, or remove `spec.hideTasks`",
        "The annotation must list the Cloud Map service, also with `--registration-policy=open`. The steps go on as without \
         `spec.hideTasks`.";
    NoHealthCheck => False, "NoHealthCheck", Some(EventReason::TasksNotHidden),
        "the Cloud Map service has no custom health check", "Remove `spec.hideTasks`",
        "ECS creates Cloud Map services with such a check. The steps go on as without `spec.hideTasks`.";
    NotPermitted => False, "NotPermitted", Some(EventReason::TasksNotHidden),
        "IAM does not allow the controller to mark tasks, or to read their health", "Grant what `cloudmap-mcs iam --mode hiding` prints",
        "The steps go on as without `spec.hideTasks`. The controller tries again every minute.";
    NotRecorded => False, "NotRecorded", Some(EventReason::TasksNotHidden),
        "the record of hidden tasks cannot be read or written, or is full",
        "Remove the cause in the message: allow the ConfigMap `cloudmap-mcs-hidden-tasks`, or hide fewer tasks at a time",
        "The controller hides a task only after it has recorded it. The record takes 10,000 tasks.";
    NotMarked => False, "NotMarked", Some(EventReason::TasksNotHidden),
        "AWS refuses to mark a task; the message has its words", "Remove the cause in the message",
        "The controller tries again, at least once a minute.";
}
