//! Namespaces and services: who has a name.

use aws_sdk_servicediscovery::{operation::create_service::CreateServiceError, types::ServiceChange};

use super::ADDRESS;
use crate::aws_smoke::{
    lab::{self, Lab, TAG, answer, tag},
    verdict::Verdict,
};

/// Creates `what` again under the given creator: what is said of the service that is there.
async fn again(
    lab: &Lab,
    what: &str,
    creator: &str,
) -> anyhow::Result<Result<String, (Option<String>, Option<String>)>> {
    match lab.new_service(what).creator_request_id(creator).send().await {
        Ok(created) => Ok(Ok(created.service.and_then(|service| service.id).unwrap_or_default())),
        Err(refused) => match refused.as_service_error() {
            Some(CreateServiceError::ServiceAlreadyExists(it)) => {
                Ok(Err((it.service_id().map(str::to_owned), it.creator_request_id().map(str::to_owned))))
            }
            _ => Err(refused.into()),
        },
    }
}

async fn created(lab: &Lab, what: &str, creator: &str) -> anyhow::Result<String> {
    let created = lab.new_service(what).creator_request_id(creator).send().await?;
    Ok(created.service.and_then(|service| service.id).unwrap_or_default())
}

pub(crate) async fn one_wins(lab: &Lab) -> anyhow::Result<Verdict> {
    let creators: Vec<_> = (0..6).map(|n| format!("creator-{n}")).collect();
    let calls = creators.iter().map(|creator| again(lab, "race", creator));
    let mut won = 0;
    for answer in futures::future::join_all(calls).await {
        won += u32::from(answer?.is_ok());
    }
    Ok(Verdict::holds(won == 1, format!("{won} of {} calls at once", creators.len())))
}

pub(crate) async fn creator_kept(lab: &Lab) -> anyhow::Result<Verdict> {
    let id = created(lab, "creator", "us").await?;
    let found = lab.client.get_service().id(id).send().await?;
    let creator = found.service().and_then(|service| service.creator_request_id());
    Ok(Verdict::holds(creator == Some("us"), format!("created by us: {creator:?}")))
}

pub(crate) async fn other_creator(lab: &Lab) -> anyhow::Result<Verdict> {
    let id = created(lab, "other", "us").await?;
    let answer = again(lab, "other", "them").await?;
    let holds = answer == Err((Some(id), Some("us".to_owned())));
    Ok(Verdict::holds(holds, format!("{answer:?}")))
}

pub(crate) async fn same_creator(lab: &Lab) -> anyhow::Result<Verdict> {
    let id = created(lab, "same", "us").await?;
    Ok(match again(lab, "same", "us").await? {
        Ok(found) => Verdict::holds(found == id, "it returned the service"),
        Err((_, creator)) => Verdict::holds(
            creator.as_deref() == Some("us"),
            format!("ServiceAlreadyExists with the creator {creator:?}"),
        ),
    })
}

pub(crate) async fn service_in_use(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("in-use").await?;
    lab.put(&service, "one", &[ADDRESS]).await?;
    let code = answer(lab.client.delete_service().id(&service).send().await)?;
    Ok(Verdict::holds(code == "ResourceInUse", code))
}

pub(crate) async fn service_id_again(lab: &Lab) -> anyhow::Result<Verdict> {
    let first = lab.service("id-again").await?;
    lab.client.delete_service().id(&first).send().await?;
    let second = lab.service("id-again").await?;
    Ok(if first == second {
        Verdict::Confirmed("it got the same id".to_owned())
    } else {
        Verdict::Differs("it got another id".to_owned())
    })
}

pub(crate) async fn update_refused(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = lab.service("update").await?;
    let change = ServiceChange::builder().description("changed").build();
    let code = answer(lab.client.update_service().id(&service).service(change).send().await)?;
    Ok(Verdict::holds(code != "accepted", code))
}

pub(crate) async fn namespace_in_use(lab: &Lab) -> anyhow::Result<Verdict> {
    let namespace = lab::namespace(&lab.client, &lab.run, "in-use", lab.patience).await?;
    let service = lab.client.create_service().namespace_id(&namespace.id).name(lab.name("only"));
    service.tags(tag(TAG, &lab.run)).send().await?;
    let refused = match lab.client.delete_namespace().id(&namespace.id).send().await {
        Ok(begun) => lab.finish(begun.operation_id().unwrap_or_default()).await.err().map(|error| error.to_string()),
        Err(refused) => Some(answer::<(), _>(Err(refused))?),
    };
    let there = answer(lab.client.get_namespace().id(&namespace.id).send().await)?;
    let seen = refused.unwrap_or_else(|| "deleted".to_owned());
    Ok(Verdict::holds(there == "accepted", seen))
}

pub(crate) async fn namespace_exists(lab: &Lab) -> anyhow::Result<Verdict> {
    use aws_sdk_servicediscovery::operation::create_http_namespace::CreateHttpNamespaceError::NamespaceAlreadyExists;
    let again = lab.client.create_http_namespace().name(&lab.namespace.name).creator_request_id("them");
    let Err(refused) = again.tags(tag(TAG, &lab.run)).send().await else {
        return Ok(Verdict::Refuted("accepted".to_owned()));
    };
    let id = match refused.as_service_error() {
        Some(NamespaceAlreadyExists(it)) => it.namespace_id().map(str::to_owned),
        _ => None,
    };
    let code = answer::<(), _>(Err(refused))?;
    let holds = code == "NamespaceAlreadyExists" && id.as_ref() == Some(&lab.namespace.id);
    Ok(Verdict::holds(holds, format!("{code} {}", id.unwrap_or_else(|| "without an id".to_owned()))))
}

pub(crate) async fn http_name(lab: &Lab) -> anyhow::Result<Verdict> {
    let first = lab::namespace(&lab.client, &lab.run, "anew", lab.patience).await?;
    let begun = lab.client.delete_namespace().id(&first.id).send().await?;
    lab.finish(begun.operation_id().unwrap_or_default()).await?;
    let second = lab::namespace(&lab.client, &lab.run, "anew", lab.patience).await?;
    let service = lab.client.create_service().namespace_id(&second.id).name(lab.name("web"));
    let service = service.tags(tag(TAG, &lab.run)).send().await?.service.and_then(|it| it.id).unwrap_or_default();
    lab.put(&service, "one", &[ADDRESS]).await?;
    let found = lab
        .until(|| async {
            let request = lab.client.discover_instances().namespace_name(&second.http_name);
            let answer = request.service_name(lab.name("web")).send().await;
            Ok(answer.is_ok_and(|found| found.instances().len() == 1))
        })
        .await?;
    let which = if second.http_name == second.name { "the HttpName is the name" } else { "the HttpName has a suffix" };
    Ok(Verdict::holds(found.is_some(), which))
}
