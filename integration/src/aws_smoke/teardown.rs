//! Removes what a run has made, by its id: in the same process, or after a run that was killed.

use std::time::{Duration, Instant};

use anyhow::bail;
use aws_sdk_servicediscovery::Client;
use aws_sdk_servicediscovery::types::{
    NamespaceFilter, NamespaceFilterName, OperationFilter, OperationFilterName, ServiceFilter, ServiceFilterName,
};
use futures::StreamExt as _;

use super::lab::{POLLS, PREFIX, TAG};

/// What is left is looked at so often at least, however long that takes.
const LEAST_LOOKS: u32 = 10;

/// Deregisters and deletes everything that has the id of the run, until nothing is left. Begins nothing that costs.
///
/// # Errors
/// Something is left, and for as long as the patience lasts it did not become less.
pub async fn teardown(client: &Client, run: &str, patience: Duration) -> anyhow::Result<()> {
    let (mut begin, mut looks, mut least) = (Instant::now(), 0, usize::MAX);
    loop {
        let why = match sweep(client, run).await {
            Ok(None) => return Ok(()),
            Ok(Some(Left { number, why })) => {
                if number < least {
                    (begin, looks, least) = (Instant::now(), 0, number);
                }
                why
            }
            Err(error) => format!("{:#}", anyhow::Error::from(error)),
        };
        looks += 1;
        // Where this process gets no time, time says nothing about AWS.
        if looks >= LEAST_LOOKS && begin.elapsed() > patience {
            bail!("something of the run {run} is left: {why}\nremove it with --teardown {run}");
        }
        tokio::time::sleep(patience / POLLS).await;
    }
}

/// What was there before a sweep.
struct Left {
    /// Instances, services and namespaces.
    number: usize,
    why: String,
}

/// Removes what can be removed now.
async fn sweep(client: &Client, run: &str) -> Result<Option<Left>, aws_sdk_servicediscovery::Error> {
    let mut left: Option<Left> = None;
    for (id, name) in namespaces(client, run).await? {
        let mut number = 1;
        for service in services(client, &id).await? {
            number += 1 + empty(client, &service).await?;
            // While deregistrations run it is refused, and tried again.
            let _ = client.delete_service().id(service).send().await;
        }
        let why = match client.delete_namespace().id(&id).send().await {
            Ok(_) => format!("the namespace {name}"),
            Err(error) => format!("the namespace {name}: {}", aws_sdk_servicediscovery::Error::from(error)),
        };
        left = Some(Left { number: number + left.map_or(0, |left| left.number), why });
    }
    // A namespace of this run may be about to be.
    if left.is_none() && creating(client).await? {
        left = Some(Left { number: 1, why: "a namespace is being created in the account".to_owned() });
    }
    Ok(left)
}

/// The namespaces of the run: their names say so, and so do their tags. `doctor` tries to create one that cannot have the tag.
async fn namespaces(client: &Client, run: &str) -> Result<Vec<(String, String)>, aws_sdk_servicediscovery::Error> {
    let own = NamespaceFilter::builder().name(NamespaceFilterName::ResourceOwner).values("SELF").build()?;
    let mut pages = client.list_namespaces().filters(own).into_paginator().send();
    let mut found = Vec::new();
    while let Some(page) = pages.try_next().await? {
        for namespace in page.namespaces.unwrap_or_default() {
            let (Some(id), Some(arn), Some(name)) = (namespace.id, namespace.arn, namespace.name) else { continue };
            if name == format!("clusterset-smoke-{run}") {
                found.push((id, name));
            } else if name.starts_with(&format!("{PREFIX}{run}-")) {
                let tags = client.list_tags_for_resource().resource_arn(arn).send().await?;
                if tags.tags().iter().any(|tag| tag.key() == TAG && tag.value() == run) {
                    found.push((id, name));
                }
            }
        }
    }
    Ok(found)
}

async fn services(client: &Client, namespace: &str) -> Result<Vec<String>, aws_sdk_servicediscovery::Error> {
    let within = ServiceFilter::builder().name(ServiceFilterName::NamespaceId).values(namespace).build()?;
    let mut pages = client.list_services().filters(within).into_paginator().send();
    let mut found = Vec::new();
    while let Some(page) = pages.try_next().await? {
        found.extend(page.services.unwrap_or_default().into_iter().filter_map(|service| service.id));
    }
    Ok(found)
}

/// Begins to deregister all instances of a service. Gives their number.
async fn empty(client: &Client, service: &str) -> Result<usize, aws_sdk_servicediscovery::Error> {
    let mut pages = client.list_instances().service_id(service).into_paginator().send();
    let mut ids = Vec::new();
    while let Some(page) = pages.try_next().await? {
        ids.extend(page.instances.unwrap_or_default().into_iter().filter_map(|instance| instance.id));
    }
    let number = ids.len();
    let calls = ids.into_iter().map(|id| client.deregister_instance().service_id(service).instance_id(id).send());
    // What is already on its way out, or not known everywhere yet, is tried again.
    futures::stream::iter(calls).buffer_unordered(10).for_each(async |_| ()).await;
    Ok(number)
}

/// Whether operations run that create namespaces, whoever began them.
async fn creating(client: &Client) -> Result<bool, aws_sdk_servicediscovery::Error> {
    let filter = |name: OperationFilterName, values: &[&str]| {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        OperationFilter::builder().name(name).set_values(Some(values)).condition("IN".into()).build()
    };
    let kind = OperationFilter::builder().name(OperationFilterName::Type).values("CREATE_NAMESPACE").build()?;
    let mut pages = client
        .list_operations()
        .filters(kind)
        .filters(filter(OperationFilterName::Status, &["SUBMITTED", "PENDING"])?)
        .into_paginator()
        .send();
    while let Some(page) = pages.try_next().await? {
        if !page.operations().is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}
