//! What needs a DNS namespace, and therefore a VPC.

use anyhow::Context as _;
use aws_sdk_servicediscovery::types::{
    DnsConfig, DnsConfigChange, DnsRecord, RecordType, RoutingPolicy, ServiceChange, ServiceTypeOption,
};

use super::ADDRESS;
use crate::aws_smoke::{
    lab::{self, Lab, TAG, tag},
    verdict::Verdict,
};

/// The private namespace of the run; the first check that needs it creates it.
async fn namespace(lab: &Lab) -> anyhow::Result<lab::Made> {
    let name = format!("{}.internal", lab.name("dns"));
    let vpc = lab.vpc.as_ref().context("no VPC is given")?;
    let create = lab.client.create_private_dns_namespace().name(&name).vpc(vpc).tags(tag(TAG, &lab.run));
    let mut pages = lab.client.list_namespaces().into_paginator().send();
    while let Some(page) = pages.try_next().await? {
        if let Some(found) = page.namespaces().iter().find(|found| found.name() == Some(&name)) {
            return lab::describe(&lab.client, found.id().unwrap_or_default()).await;
        }
    }
    lab::made(&lab.client, create.send().await?.operation_id(), lab.patience).await
}

fn record(ttl: i64) -> anyhow::Result<DnsRecord> {
    Ok(DnsRecord::builder().r#type(RecordType::A).ttl(ttl).build()?)
}

async fn service(lab: &Lab, what: &str) -> anyhow::Result<String> {
    let namespace = namespace(lab).await?;
    let records = DnsConfig::builder().dns_records(record(60)?).routing_policy(RoutingPolicy::Multivalue).build()?;
    let created = lab.client.create_service().namespace_id(namespace.id).name(lab.name(what)).dns_config(records);
    let created = created.tags(tag(TAG, &lab.run)).send().await?;
    created.service.and_then(|service| service.id).context("CreateService returned no id")
}

pub(crate) async fn equal_values(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = service(lab, "equal").await?;
    lab.put(&service, "a", &[ADDRESS]).await?;
    let operation = lab.register(&service, "b", &[ADDRESS]).await?;
    Ok(match lab.finish(&operation).await {
        Ok(_) => Verdict::Confirmed("both operations succeeded".to_owned()),
        Err(error) => Verdict::Refuted(format!("{error:#}")),
    })
}

pub(crate) async fn update(lab: &Lab) -> anyhow::Result<Verdict> {
    let service = service(lab, "ttl").await?;
    let records = DnsConfigChange::builder().dns_records(record(10)?).build()?;
    let change = ServiceChange::builder().description("changed").dns_config(records).build();
    let begun = lab.client.update_service().id(&service).service(change).send().await?;
    lab.finish(begun.operation_id().unwrap_or_default()).await?;
    let found = lab.client.get_service().id(&service).send().await?.service.context("GetService returned nothing")?;
    let ttls: Vec<_> = found
        .dns_config()
        .map_or(&[][..], DnsConfig::dns_records)
        .iter()
        .map(|record| (record.r#type().as_str(), record.ttl()))
        .collect();
    Ok(Verdict::holds(ttls == [("A", 10)] && found.description() == Some("changed"), format!("{ttls:?}")))
}

pub(crate) async fn api_only(lab: &Lab) -> anyhow::Result<Verdict> {
    let namespace = namespace(lab).await?;
    let created = lab.client.create_service().namespace_id(namespace.id).name(lab.name("api-only"));
    let created = created.r#type(ServiceTypeOption::Http).tags(tag(TAG, &lab.run)).send().await?;
    let service = created.service.context("CreateService returned nothing")?;
    lab.put(service.id().unwrap_or_default(), "one", &[("k", "v")]).await?;
    Ok(Verdict::holds(service.dns_config().is_none(), format!("records: {:?}", service.dns_config())))
}
