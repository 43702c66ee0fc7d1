//! The end of a cutover: whether the pods can take all traffic, and how to stop the tasks.

use std::fmt::Display;

use super::{edit, scale, situation::Situation};
use api::conditions::{CutoverCondition, HidingReason};
use cli::shell::quoted;

/// Whether all pods may be registered.
///
/// # Errors
/// Why not, and what to do.
pub(super) fn check(situation: &Situation, force: bool) -> Result<(), String> {
    let key = &situation.key;
    if force {
        return Ok(());
    }
    // Who finishes many at once may not know of this one.
    if let Some(why) = situation.there().and_then(edit::taken_back) {
        return Err(format!("{key}: {why}; or use --force"));
    }
    let unknown = |why: &dyn Display| format!("{key}: {why}; look yourself, and use --force");
    let pods = situation.pods.as_ref().map_err(|why| unknown(why))?;
    let registry = situation.registry.as_ref().map_err(|why| unknown(why))?;
    if situation.counterpart.as_ref().is_ok_and(|counterpart| counterpart.target.is_none()) {
        return Err(format!(
            "{key}: no annotation names its Cloud Map service, so nobody knows how many tasks there are: `cloudmap-mcs cutover \
             plan` says which one is missing; or use --force"
        ));
    }
    if registry.service.is_none() {
        return Err(format!(
            "{key}: its Cloud Map service is not found in this account and region, so nobody knows how many tasks there are: \
             look at --region and the credentials, or use --force"
        ));
    }
    let tasks = situation.tasks(registry);
    if pods.ready < tasks {
        let ready = pods.ready;
        return Err(format!(
            "{key}: {ready} pods are ready, and {tasks} tasks have the traffic now: scale the pods to {tasks}, or use --force"
        ));
    }
    if pods.unready > 0 {
        return Err(format!("{key}: {} pods are not ready: repair them, or use --force", pods.unready));
    }
    // Where nobody is healthy, AWS answers with all instances: tasks without health have the traffic then.
    let runs = situation.ecs_services().iter().find(|service| !service.is_at_zero());
    if let Some(service) = runs.filter(|_| pods.ready == 0) {
        let path = service.path();
        return Err(format!("{key}: no pod is ready, and {path} has tasks: scale the pods, or use --force"));
    }
    Ok(())
}

/// What `TasksHidden` says; `None`: the Cutover hides no task, or cannot.
fn hiding(situation: &Situation) -> Option<String> {
    let cutover = situation.hides()?;
    let conditions = cutover.status.iter().flat_map(|status| &status.conditions);
    let said = conditions.into_iter().find(|said| said.type_ == CutoverCondition::TasksHidden.as_str());
    let key = &situation.key;
    let wait = scale::wait_until_hidden(key);
    Some(match said.filter(|said| HidingReason::Hidden.row().explains(said) && is_finished(situation)) {
        Some(said) => format!("# {key}: {}\n", said.message),
        None => format!(
            "# {key}: the tasks are hidden first. Stop none before the time that the condition TasksHidden says:\n{wait}\n"
        ),
    })
}

/// Whether all pods are registered already, and nobody has asked for something else since.
pub(super) fn is_finished(situation: &Situation) -> bool {
    situation.there().is_some_and(scale::is_finished)
}

/// The commands that stop the tasks, and what to know before. There are none before all pods are registered, unless the user
/// uses `force`.
pub(super) fn commands(situation: &Situation, force: bool) -> String {
    let key = &situation.key;
    let read = situation.registry.as_ref().ok().and_then(|registry| Some((registry, &registry.service.as_ref()?.arn)));
    let Some((registry, arn)) = read else {
        return format!("# {key}: the Cloud Map service could not be read, so the ECS service is not known\n");
    };
    if !is_finished(situation) && !force {
        return format!(
            "# {key}: stop no task yet. When `cloudmap-mcs cutover status` says Finished, run this again: it prints how\n"
        );
    }
    let services = situation.ecs_services();
    if situation.tasks(registry) == 0 && services.iter().all(ecs::Service::is_at_zero) {
        return format!("# {key}: nobody else has a healthy instance: there is nothing to stop\n");
    }
    if !services.is_empty() && services.iter().all(ecs::Service::is_at_zero) {
        let paths: Vec<_> = services.iter().map(ecs::Service::path).collect();
        return format!("# {key}: {} has no task any more; other instances are not of it\n", paths.join(" and "));
    }
    let mut text = before_tasks_stop(situation, registry.ttl());
    for service in services.iter().filter(|service| !service.is_at_zero()) {
        if !service.active {
            text.extend([format!("# {} is being deleted, and ECS stops its tasks\n", service.path())]);
            continue;
        }
        if let Some(why) = scale::hindered(service, arn, force) {
            text.extend([format!("# {} is not to be stopped: {why}\n", service.path())]);
            continue;
        }
        let (look, command) = (service.look_for_autoscaling(), set_count(arn, &service.cluster, &service.name, "0"));
        text.extend([format!("# Whether autoscaling brings them back: {look}\n{command}\n")]);
    }
    if !services.is_empty() {
        return text;
    }
    for (cluster, service) in &registry.ecs {
        text.extend([format!("{}\n", set_count(arn, cluster, service, "0"))]);
    }
    if registry.ecs.is_empty() {
        text.extend([format!(
            "# The instances do not say which ECS service they are of:\n{}\n",
            set_count(arn, "CLUSTER", "SERVICE", "0")
        )]);
    }
    text
}

/// What to know before tasks are stopped. `ttl`: of the records, in seconds.
pub(super) fn before_tasks_stop(situation: &Situation, ttl: u32) -> String {
    let key = &situation.key;
    if let Some(said) = hiding(situation) {
        return said;
    }
    let cannot_hide = situation.cannot_hide();
    let visible =
        cannot_hide.map(|said| format!("# {key}: the tasks cannot be hidden ({}): {}\n", said.reason, said.message));
    format!(
        "{}# {key}: ECS deregisters a task and stops it at once, so clients that have just resolved fail for up to {} s.\n\
         # Stop a few at a time; a sidecar delays the SIGTERM (docs/moving-from-ecs.md). Autoscaling must not bring tasks back.\n",
        visible.unwrap_or_default(),
        situation.settle().beyond(ttl).as_secs()
    )
}

/// The command that sets how many tasks an ECS service is to have, which is in the region of the Cloud Map service with this
/// ARN.
pub(super) fn set_count(arn: &str, cluster: &str, service: &str, count: &str) -> String {
    let (region, cluster, service) = (ecs::region_flag(arn), quoted(cluster), quoted(service));
    format!("aws ecs update-service{region} --cluster {cluster} --service {service} --desired-count {count}")
}
