//! Registering and deregistering.

use aws_sdk_servicediscovery::types::OperationStatus;

use super::ADDRESS;
use crate::aws_smoke::{
    lab::{Lab, answer, pairs},
    verdict::Verdict,
};

/// The names of an instance's attributes in the control plane, sorted.
async fn attributes(lab: &Lab, service: &str, instance: &str) -> anyhow::Result<String> {
    let found = lab.client.get_instance().service_id(service).instance_id(instance).send().await?;
    let mut all: Vec<_> = found
        .instance
        .and_then(|instance| instance.attributes)
        .unwrap_or_default()
        .into_iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    all.sort_unstable();
    Ok(all.join(" "))
}

pub(crate) async fn replaces(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("replaces").await?;
    lab.put(&service, "one", &[("a", "1"), ("b", "1")]).await?;
    lab.put(&service, "one", &[("b", "2"), ("c", "2")]).await?;
    let seen = attributes(lab, &service, "one").await?;
    Ok(Verdict::holds(seen == "b=2 c=2", format!("a=1 b=1, then b=2 c=2: {seen}")))
}

pub(crate) async fn same_request_id(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("request-id").await?;
    for value in ["first", "second"] {
        let request = lab.client.register_instance().service_id(&service).instance_id("one");
        let begun = request.creator_request_id(&lab.run).attributes("k", value).send().await;
        match begun {
            Ok(begun) => lab.finish(begun.operation_id().unwrap_or_default()).await?,
            Err(refused) => return Ok(Verdict::Refuted(answer::<(), _>(Err(refused))?)),
        };
    }
    let seen = attributes(lab, &service, "one").await?;
    Ok(Verdict::holds(seen == "k=second", seen))
}

pub(crate) async fn one_operation(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("one-operation").await?;
    let first = lab.register(&service, "one", &[ADDRESS]).await?;
    let second = lab.client.register_instance().service_id(&service).instance_id("one");
    let second = second.set_attributes(Some(pairs(&[("AWS_INSTANCE_IPV4", "192.0.2.2")]))).send().await;
    let state = lab.client.get_operation().operation_id(&first).send().await?;
    let running = state.operation().and_then(|state| state.status()) != Some(&OperationStatus::Success);
    lab.finish(&first).await?;
    match second {
        Err(refused) => {
            let named = refused.as_service_error().and_then(|error| match error {
                aws_sdk_servicediscovery::operation::register_instance::RegisterInstanceError::DuplicateRequest(it) => {
                    it.duplicate_operation_id().map(str::to_owned)
                }
                _ => None,
            });
            let code = answer::<(), _>(Err(refused))?;
            let which = if named.as_ref() == Some(&first) { "names the first" } else { "does not name the first" };
            Ok(Verdict::holds(code == "DuplicateRequest" && named == Some(first), format!("{code}, which {which}")))
        }
        Ok(second) => {
            lab.finish(second.operation_id().unwrap_or_default()).await?;
            let seen = "the second was accepted";
            Ok(if running {
                Verdict::Refuted(format!("{seen} while the first ran"))
            } else {
                Verdict::Skipped(format!("{seen}, but the first may have ended before"))
            })
        }
    }
}

pub(crate) async fn deregister_nothing(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("nothing").await?;
    let refused = lab.client.deregister_instance().service_id(&service).instance_id("none").send().await;
    let code = answer(refused)?;
    Ok(Verdict::holds(code == "InstanceNotFound", code))
}
