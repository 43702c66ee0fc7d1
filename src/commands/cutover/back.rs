//! `back`: whether there are tasks that take the traffic, as a pure judgement.

use super::{finish::set_count, situation::Situation};
use ecs::Found;

/// What a user has to know who takes all traffic back; `None`: the tasks are there.
pub(super) fn remark(situation: &Situation) -> Option<String> {
    let registry = match &situation.registry {
        Err(why) => return Some(format!("whether there are tasks that take the traffic is not known: {why}")),
        Ok(registry) => registry,
    };
    let arn = &registry.service.as_ref()?.arn;
    // Nobody can raise the count of those that are being deleted.
    let services: Vec<_> = situation.ecs_services().iter().filter(|service| service.active).collect();
    let ready = situation.pods.as_ref().map_or(0, |pods| pods.ready);
    let count = if ready == 0 { "COUNT".to_owned() } else { ready.to_string() };
    let tasks = situation.tasks(registry);
    let stays = if tasks == 0 { " Until one is healthy, the registered pods keep the traffic." } else { "" };
    if let Some(ending) = situation.ecs_services().first().filter(|_| services.is_empty()) {
        return Some(format!(
            "{} is being deleted, and its tasks with it: create it again, with the same service registry",
            ending.path()
        ));
    }
    if !services.is_empty() && services.iter().all(|service| service.desired == 0) {
        let raise = services.iter().map(|service| set_count(arn, &service.cluster, &service.name, &count));
        let (paths, raise): (Vec<_>, Vec<_>) = services.iter().map(|service| service.path()).zip(raise).unzip();
        return Some(format!(
            "{} is to have 0 tasks, which cannot take the traffic back.{stays} Raise the count: {}",
            paths.join(" and "),
            raise.join("; ")
        ));
    }
    let starting = services.iter().find(|service| service.running < service.desired);
    if let Some(service) = starting {
        let (running, desired) = (service.running, service.desired);
        return Some(if tasks == 0 {
            format!("{}: {running} of {desired} tasks run.{stays}", service.path())
        } else {
            format!("{}: {running} of {desired} tasks run, and the healthy ones get all traffic", service.path())
        });
    }
    if tasks > 0 {
        return None;
    }
    if !services.is_empty() {
        return Some(format!("its tasks run, and none is healthy in Cloud Map: look at their health.{stays}"));
    }
    let raise = || format!("Raise the count: {}", set_count(arn, "CLUSTER", "SERVICE", &count));
    let (gone, remedy) = match &situation.ecs {
        Ok(Some(Found { unread: None, .. })) => {
            ("the ECS service is gone", "Create it again, with the same service registry".to_owned())
        }
        Ok(Some(_)) => ("ECS could not be read everywhere", raise()),
        Ok(None) | Err(_) => ("ECS could not be read", raise()),
    };
    Some(format!("{gone}, and nobody else has a healthy instance in Cloud Map.{stays} {remedy}"))
}
